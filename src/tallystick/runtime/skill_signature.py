"""Signatures of skills, checked and made: whose they are, and what they say of every file.

Rule 1: keys are those that the user keeps, or names. A key beside a skill is never looked at.
Rule 2: what a signature says of files counts only if it was made with one of those keys.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tallystick.core.errors import StoreError, UsageError
from tallystick.runtime.config_keys import one_line
from tallystick.runtime.signing import PublicKey, SigningKey, read_public_key
from tallystick.skills.bundle import (
    SIGNATURE_NAME,
    Bundle,
    BundleDifference,
    bundle_of,
    differences,
)
from tallystick.skills.errors import (
    SkillNotFound,
    SkillPathRefused,
    SkillSignatureInvalid,
    SkillUnreadable,
)
from tallystick.skills.folder import Folder
from tallystick.skills.layers import Skill
from tallystick.skills.signature import (
    SIGNATURE_BYTES_MAX,
    SkillSignature,
    encode_signature,
    parse_signature,
    signature_for,
    signed_bytes,
    with_signature,
)

__all__ = [
    "SignatureReport",
    "Signers",
    "add_signer",
    "check_signature",
    "read_signers",
    "remove_signer",
    "signers_of",
    "write_signature",
]

_SIGNERS_MAX = 1_000
_FILES = ("SKILL.md", "skill.md")

SignatureState = Literal["none", "valid", "unknown signer", "changed", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureReport:
    """What a skill's signature is worth with the keys it was checked with.

    `state` is `valid`, or why it is not: there is `none`, no key is that of the `signer`, files
    have `changed` since, or it is `bad`. `why` says it in words; `difference` names the files.
    """

    state: SignatureState
    why: str
    signer: str = ""
    signed_at: str = ""
    difference: BundleDifference = field(default_factory=BundleDifference)

    @property
    def ok(self) -> bool:
        return self.state == "valid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signers:
    """Keys by their fingerprints, the files that they are in, and which files are none."""

    keys: Mapping[str, PublicKey]
    files: Mapping[str, tuple[Path, ...]]
    notes: tuple[str, ...] = ()


def check_signature(
    folder: Folder, keys: Mapping[str, PublicKey], *, bundle: Bundle | None = None
) -> SignatureReport:
    """Check the signature of a folder with keys by their fingerprints, and every file under it."""
    try:
        document = parse_signature(folder.read(SIGNATURE_NAME, bytes_max=SIGNATURE_BYTES_MAX))
    except SkillNotFound:
        return SignatureReport(state="none", why="it has no signature")
    except (SkillSignatureInvalid, SkillPathRefused, SkillUnreadable) as error:
        return SignatureReport(state="bad", why=f"{SIGNATURE_NAME}: {one_line(str(error))}")
    try:
        now = bundle if bundle is not None else bundle_of(folder)
    except (SkillNotFound, SkillPathRefused, SkillUnreadable) as error:
        return SignatureReport(state="bad", why=f"its files cannot be told: {one_line(str(error))}")
    signer, signed_at = document.signer_fingerprint, document.signed_at
    found = differences(document.bundle, now)
    key = keys.get(signer)

    def report(state: SignatureState, why: str) -> SignatureReport:
        return SignatureReport(
            state=state, why=why, signer=signer, signed_at=signed_at, difference=found
        )

    # Whose it is comes first: what a signature says of files counts only if it holds.
    if key is None:
        return report("unknown signer", f"no trusted key is that of its signer {signer}")
    if not key.signed(signed_bytes(document), document.raw):
        return report("bad", f"its signature was not made with the key {signer}")
    if not found.is_none:
        return report("changed", f"its files are not those that {signer} signed")
    if document.skill_sha256 not in {each.sha256 for each in now.files if each.path in _FILES}:
        return report("bad", "its signature is of another SKILL.md")
    return report("valid", f"signed by {signer} at {signed_at}")


def write_signature(skill: Skill, key: SigningKey, *, at_ms: int) -> SkillSignature:
    """Sign every file of a skill, and put the signature beside them."""
    bundle = bundle_of(skill.folder)
    file = bundle.find(skill.file)
    if file is None or file.sha256 != skill.sha256:
        raise SkillUnreadable(id=skill.id, why=f"its {skill.file} changed while it was looked at")
    bare = signature_for(bundle, signer_fingerprint=key.id, skill_sha256=skill.sha256, at_ms=at_ms)
    document = with_signature(bare, key.sign(signed_bytes(bare)))
    path = skill.folder.path / SIGNATURE_NAME
    try:
        _replace(path, encode_signature(document))
    except OSError as error:
        raise StoreError(f"{one_line(str(path))}: {error.strerror or error}") from error
    return document


# -- keys ---------------------------------------------------------------------------------------


def read_signers(directory: Path) -> Signers:
    """Read every key. One that cannot be used is named, and does not take the others with it."""
    keys: dict[str, PublicKey] = {}
    files: dict[str, tuple[Path, ...]] = {}
    notes: list[str] = []
    for path in _signer_files(directory, notes):
        try:
            _require_own(path)
            key = read_public_key(path)
        except (StoreError, UsageError) as error:
            notes.append(one_line(str(error)))
        except OSError as error:
            notes.append(f"{one_line(str(path))}: {error.strerror or error}")
        else:
            keys[key.id] = key
            files[key.id] = (*files.get(key.id, ()), path)
    return Signers(keys=keys, files=files, notes=tuple(notes))


def signers_of(path: Path) -> Signers:
    """The holder of one key and nobody else."""
    key = read_public_key(path)
    return Signers(keys={key.id: key}, files={key.id: (path,)})


def _signer_files(directory: Path, notes: list[str]) -> Sequence[Path]:
    try:
        _require_own(directory)
        paths = sorted(each for each in directory.iterdir() if each.suffix == ".pub")
    except FileNotFoundError:
        return []
    except StoreError as error:
        notes.append(str(error))
        return []
    except OSError as error:
        notes.append(f"{one_line(str(directory))}: {error.strerror or error}")
        return []
    if len(paths) > _SIGNERS_MAX:
        notes.append(f"{one_line(str(directory))}: only {_SIGNERS_MAX:,} keys were read")
    return paths[:_SIGNERS_MAX]


def _require_own(path: Path) -> None:
    """Raise if others could have put it there, or put something else in its place."""
    status = path.stat()
    is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    if not is_plain or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise StoreError(f"{one_line(str(path))} may be written by others; close it: chmod go-w")


def add_signer(directory: Path, path: Path) -> PublicKey:
    """Keep a key among those of the signers whom the user trusts."""
    key = read_public_key(path)
    target = directory / f"{key.id}.pub"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own(directory)
        with path.open("rb") as source:
            _replace(target, source.read())
    except OSError as error:
        raise StoreError(f"{one_line(str(target))}: {error.strerror or error}") from error
    return key


def remove_signer(directory: Path, fingerprint: str) -> bool:
    """Take a key away. False if there is none of that fingerprint."""
    files = read_signers(directory).files.get(fingerprint, ())
    for path in files:
        path.unlink(missing_ok=True)
    return bool(files)


def _replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, in the place of whatever has its name, be it a link."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".signing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
