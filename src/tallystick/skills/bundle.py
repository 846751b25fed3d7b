"""Bundles: every file of a skill by its digest, and one digest for them all.

Rule 1: the manifest of a folder has one spelling, its canonical bytes; two folders have the same
digest if, and only if, they hold the same bytes under the same names.
Rule 2: the signature is the one file that is left out, since it cannot sign itself.
Rule 3: what cannot be read whole has no digest. A file that was left out of a digest could be
changed by anybody, so a folder over its bounds is refused, never cut.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from tallystick.core.canonical import canonical, digest
from tallystick.skills.errors import SkillUnreadable
from tallystick.skills.folder import Folder

__all__ = [
    "BUNDLE_BYTES_MAX",
    "BUNDLE_FORMAT",
    "SIGNATURE_NAME",
    "Bundle",
    "BundleDifference",
    "BundledFile",
    "bundle_of",
    "differences",
]

BUNDLE_FORMAT = "tallystick-bundle@1"
SIGNATURE_NAME = "SKILL.sig"
BUNDLE_BYTES_MAX = 256 * 1024 * 1024


class BundledFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a skill. `path` is from the skill's folder, with slashes."""

    path: str
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the digest of a bundle is made of. It names its format: it is a digest of no more."""

    format: str
    files: tuple[BundledFile, ...]


class Bundle(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The files of a skill, in order of their paths."""

    files: tuple[BundledFile, ...]

    @cached_property
    def sha256(self) -> str:
        """One digest for all of them."""
        return digest(canonical(_Manifest(format=BUNDLE_FORMAT, files=self.files)))

    def find(self, path: str) -> BundledFile | None:
        """The file of that path, if there is one."""
        return next((each for each in self.files if each.path == path), None)


class BundleDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What came between two bundles, by path."""

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return not (self.changed or self.added or self.removed)


def bundle_of(folder: Folder) -> Bundle:
    """Read every file of a folder once. Raises `SkillUnreadable` and `SkillPathRefused`."""
    entries = [each for each in folder.files() if each.path != SIGNATURE_NAME]
    total = sum(each.bytes for each in entries)
    if total > BUNDLE_BYTES_MAX:
        raise SkillUnreadable(
            id=folder.path.name, why=f"its files have more than {BUNDLE_BYTES_MAX:,} bytes"
        )
    files = []
    for each in sorted(entries, key=lambda entry: entry.path):
        if not _is_text(each.path):
            raise SkillUnreadable(
                id=folder.path.name, why=f"a file's name is not UTF-8: {each.path!a}"
            )
        # Read, not taken from the listing: only the bytes that are hashed are counted.
        data = folder.read(each.path, bytes_max=BUNDLE_BYTES_MAX)
        files.append(BundledFile(path=each.path, bytes=len(data), sha256=digest(data)))
    return Bundle(files=tuple(files))


def differences(before: Bundle, now: Bundle) -> BundleDifference:
    """Say which files are not what they were."""
    old = {each.path: each for each in before.files}
    new = {each.path: each for each in now.files}
    return BundleDifference(
        changed=tuple(path for path in sorted(old.keys() & new.keys()) if old[path] != new[path]),
        added=tuple(sorted(new.keys() - old.keys())),
        removed=tuple(sorted(old.keys() - new.keys())),
    )


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
