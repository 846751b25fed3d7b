"""Hash every file of a skill, give them one digest together, and record who signed it.

Rule 1: a signature has one spelling: its canonical bytes, with or without one newline after them.
Two spellings would let another reader see other fields than those that were signed.
Rule 2: everything else in the file is signed. The file names its own format, so a signature of a
skill is not valid for anything else.
Rule 3: the file names the key it was signed with and never holds it. The caller who checks a
signature brings the key.

This module reads and writes; the keys, and the mathematics, are in `tallystick.settings.signing`.
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import cached_property

import msgspec

from tallystick.core.ids import is_moment, moment_text
from tallystick.core.json_text import canonical, digest
from tallystick.skills.errors import SkillSignatureInvalid, SkillUnreadable
from tallystick.skills.format.folder import Folder

# Bundles: every file of a skill by its digest, and one digest for them all.
#
# Rule 1: the manifest of a folder has one spelling, its canonical bytes; two folders have the same
# digest if, and only if, they hold the same bytes under the same names.
# Rule 2: the signature is the one file that is left out, since it cannot sign itself.
# Rule 3: a folder that cannot be read whole has no digest. A file that was left out of a digest
# could be changed unnoticed, so a folder over its bounds is refused, never cut.


BUNDLE_FORMAT = "tallystick-bundle@1"
SIGNATURE_NAME = "SKILL.sig"
BUNDLE_BYTES_MAX = 256 * 1024 * 1024


class BundledFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a skill. `path` is from the skill's folder, with slashes."""

    path: str
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The document that a bundle's digest is made of. Its format is part of the digest."""

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
        """Return the file of that path; None if there is none."""
        return next((each for each in self.files if each.path == path), None)


class BundleDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The paths that differ between two bundles."""

    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def is_none(self) -> bool:
        return not (self.changed or self.added or self.removed)


def bundle_of(folder: Folder) -> Bundle:
    """Read every file of a folder once, but the signature, and return their digests.

    Raise `SkillUnreadable` if a name is not UTF-8, the files have more than 256 MiB in all, or the
    folder cannot be listed. Raise `SkillNotFound` or `SkillPathRefused` if a file is gone, or has
    become a link or the like, since it was listed.
    """
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
    """Return the paths of files that were changed, added or removed since `before`."""
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


# Signatures of skills: the file `SKILL.sig`, which says who signed which files, and when.


SIGNATURE_FORMAT = "tallystick-skill@1"
SIGNATURE_BYTES_MAX = 4 * 1024 * 1024

_RAW_SIGNATURE_BYTES = 64
_HASH = re.compile(r"[0-9a-f]{64}")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class SkillSignature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The statement who signed which files. `signature` is in base64, and empty until it is made.

    `skill_sha256` is the digest of SKILL.md, `manifest_sha256` that of the bundle of `files`.
    """

    format: str
    signed_at: str
    signer_fingerprint: str
    skill_sha256: str
    manifest_sha256: str
    files: tuple[BundledFile, ...]
    signature: str = ""

    @property
    def bundle(self) -> Bundle:
        """The files as they were when they were signed."""
        return Bundle(files=self.files)

    @property
    def raw(self) -> bytes:
        """The signature's own bytes, none before it is made.

        Raise `ValueError` if it is not base64, which `parse_signature` refuses.
        """
        return base64.b64decode(self.signature)


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The one field that says how to read the rest."""

    format: str


def signature_for(
    bundle: Bundle, *, signer_fingerprint: str, skill_sha256: str, at_ms: int
) -> SkillSignature:
    """Return the document to be signed, without its signature. `with_signature` completes it."""
    return SkillSignature(
        format=SIGNATURE_FORMAT,
        signed_at=moment_text(at_ms),
        signer_fingerprint=signer_fingerprint,
        skill_sha256=skill_sha256,
        manifest_sha256=bundle.sha256,
        files=bundle.files,
    )


def signed_bytes(document: SkillSignature) -> bytes:
    """Return the bytes that are signed: the canonical document without its signature."""
    fields = msgspec.structs.asdict(document)
    del fields["signature"]
    return canonical(fields)


def with_signature(document: SkillSignature, raw: bytes) -> SkillSignature:
    """Return the document with its signature in it."""
    return msgspec.structs.replace(document, signature=base64.b64encode(raw).decode())


def encode_signature(document: SkillSignature) -> bytes:
    """Return the bytes of `SKILL.sig`."""
    return canonical(document) + b"\n"


def parse_signature(data: bytes) -> SkillSignature:
    """Read `SKILL.sig`. What it says is not yet to be trusted: only its form is checked.

    Raise `SkillSignatureInvalid` if it is too long, of another format or not in canonical form, or
    if its fields contradict each other.
    """
    if len(data) > SIGNATURE_BYTES_MAX:
        raise SkillSignatureInvalid(f"longer than {SIGNATURE_BYTES_MAX:,} bytes")
    try:
        kind = msgspec.json.decode(data, type=_Kind)
        if kind.format != SIGNATURE_FORMAT:
            raise SkillSignatureInvalid(
                f"it is {kind.format[:80]!r}; this version reads {SIGNATURE_FORMAT!r}"
            )
        document = msgspec.json.decode(data, type=SkillSignature)
    except _UNREADABLE as error:
        raise SkillSignatureInvalid(f"not a signature: {error}") from error
    why = _flaw(document)
    if why is None and data.removesuffix(b"\n") != canonical(document):
        why = "not in canonical form"
    if why is not None:
        raise SkillSignatureInvalid(why)
    return document


def _flaw(document: SkillSignature) -> str | None:
    """Return what is wrong with a signature's fields, None if nothing is."""
    if not is_moment(document.signed_at):
        return "its time is not like 2026-01-31T12:00:00Z"
    digests = (document.signer_fingerprint, document.skill_sha256, document.manifest_sha256)
    if not all(_HASH.fullmatch(each) for each in digests):
        return "a digest in it is not 64 hexadecimal digits"
    if not _is_signature(document.signature):
        return "its signature is not 64 bytes in base64"
    paths = [each.path for each in document.files]
    if paths != sorted(set(paths)):
        return "its files are not in order, or one is there twice"
    if document.bundle.sha256 != document.manifest_sha256:
        return "its files are not those of its manifest_sha256"
    return None


def _is_signature(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _RAW_SIGNATURE_BYTES
    except (binascii.Error, ValueError):
        return False
