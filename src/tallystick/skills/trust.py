"""Decide which skills may be used, and say why the others may not; check and make signatures.

A skill is text that a model follows and files that its programs run. So one that came with a
project may not be used until its user trusts it, once, by the digest of all its files. Any change
of any of them ends that. A valid signature by a key that the user keeps has the same effect without
a question. The user's own directories, and those that a command or the environment names, need
neither, unless the user's settings require signatures: then no skill counts without one, whatever
its directory.

Rule 1: a skill that may not be used hides nothing. One of the same id in a lower layer takes its
place.
Rule 2: a skill whose files cannot all be read is not trusted, even if it was noted as trusted.
Rule 3: keys are those in the user's own directory. A key beside a skill is never looked at.
Rule 4: a skill may ask to be signed, and by whom. That narrows who counts; it never adds anybody.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tallystick.core.errors import StoreError, UsageError, system_errors
from tallystick.settings.schema import one_line
from tallystick.settings.settings import SkillSettings
from tallystick.settings.signing import PublicKey, SigningKey, read_public_key, signing_available
from tallystick.settings.trust import Noted, TrustStore
from tallystick.skills.errors import (
    SkillNotFound,
    SkillPathRefused,
    SkillSignatureInvalid,
    SkillUnreadable,
)
from tallystick.skills.format.bundle import (
    SIGNATURE_BYTES_MAX,
    SIGNATURE_NAME,
    Bundle,
    BundleDifference,
    SkillSignature,
    bundle_of,
    differences,
    encode_signature,
    parse_signature,
    signature_for,
    signed_bytes,
    with_signature,
)
from tallystick.skills.format.folder import Folder
from tallystick.skills.layers import Registry, Shadowed, Skill
from tallystick.skills.places import LAYER_ORDER, LayerName
from tallystick.storage import system
from tallystick.storage.private_file import make_private, write_whole

# Signatures of skills: check and make them.
#
# Rule 1: keys are those that the user keeps, or names. A key beside a skill is never looked at.
# Rule 2: the digests in a signature count only if it was made with one of those keys.


_SIGNERS_MAX = 1_000
_FILES = ("SKILL.md", "skill.md")

SignatureState = Literal["none", "valid", "unknown signer", "changed", "bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureReport:
    """The validity of a skill's signature under the keys it was checked with.

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
    """Keys by their fingerprints, their files, and a note for each file that could not be used."""

    keys: Mapping[str, PublicKey]
    files: Mapping[str, tuple[Path, ...]]
    notes: tuple[str, ...] = ()


def check_signature(
    folder: Folder, keys: Mapping[str, PublicKey], *, bundle: Bundle | None = None
) -> SignatureReport:
    """Check the signature of a folder with keys by their fingerprints, and every file under it.

    Nothing is raised: a missing, unreadable or invalid signature is in the report. `bundle` saves
    reading the files again.
    """
    try:
        document = parse_signature(folder.read(SIGNATURE_NAME, bytes_max=SIGNATURE_BYTES_MAX))
    except SkillNotFound:
        return SignatureReport(state="none", why="it has no signature")
    except (SkillSignatureInvalid, SkillPathRefused, SkillUnreadable) as error:
        return SignatureReport(state="bad", why=f"{SIGNATURE_NAME}: {one_line(str(error))}")
    try:
        now = bundle if bundle is not None else bundle_of(folder)
    except (SkillNotFound, SkillPathRefused, SkillUnreadable) as error:
        return SignatureReport(state="bad", why=f"its files cannot be read: {one_line(str(error))}")
    signer, signed_at = document.signer_fingerprint, document.signed_at
    found = differences(document.bundle, now)
    key = keys.get(signer)

    def report(state: SignatureState, why: str) -> SignatureReport:
        return SignatureReport(
            state=state, why=why, signer=signer, signed_at=signed_at, difference=found
        )

    # The key is checked first: what a signature says about files counts only if it is valid.
    if key is None:
        return report("unknown signer", f"no trusted key is that of its signer {signer}")
    if not key.signed(signed_bytes(document), document.raw):
        return report("bad", f"its signature was not made with the key {signer}")
    if not found.is_none:
        return report("changed", f"its files are not those that {signer} signed")
    # The digest of SKILL.md is a field of its own, which nothing binds to the list of files.
    if document.skill_sha256 not in {each.sha256 for each in now.files if each.path in _FILES}:
        return report("bad", "its signature is of another SKILL.md")
    return report("valid", f"signed by {signer} at {signed_at}")


def write_signature(skill: Skill, key: SigningKey, *, at_ms: int) -> SkillSignature:
    """Sign every file of a skill, and write the signature beside them; return it.

    An earlier signature is replaced. Raise `SkillUnreadable` if its SKILL.md changed since the
    skill was read, `StoreError` if the signature cannot be written. If its files cannot all be
    read, raise `SkillNotFound`, `SkillPathRefused` or `SkillUnreadable`.
    """
    bundle = bundle_of(skill.folder)
    file = bundle.find(skill.file)
    if file is None or file.sha256 != skill.sha256:
        raise SkillUnreadable(id=skill.id, why=f"its {skill.file} changed while it was read")
    bare = signature_for(bundle, signer_fingerprint=key.id, skill_sha256=skill.sha256, at_ms=at_ms)
    document = with_signature(bare, key.sign(signed_bytes(bare)))
    path = skill.folder.path / SIGNATURE_NAME
    with system_errors(one_line(str(path)), StoreError):
        _write_public(path, encode_signature(document))
    return document


# -- keys ---------------------------------------------------------------------------------------


def read_signers(directory: Path) -> Signers:
    """Read the keys of a directory: its first 1,000 `.pub` files by name. Without one, none.

    A file that cannot be used, or that others may write, is named in `notes`; the others count.
    If others may write the directory, no key of it counts.
    """
    keys: dict[str, PublicKey] = {}
    files: dict[str, tuple[Path, ...]] = {}
    notes: list[str] = []
    for path in _signer_files(directory, notes):
        try:
            _check_ownership(path)
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
    """Return the one key in a file. Unlike `read_signers`, it does not ask who may write the file.

    Raise `UsageError` if the file cannot be read, is no public key in PEM, or is not of Ed25519,
    and if the extra `sign` is not installed.
    """
    key = read_public_key(path)
    return Signers(keys={key.id: key}, files={key.id: (path,)})


def _signer_files(directory: Path, notes: list[str]) -> Sequence[Path]:
    try:
        _check_ownership(directory)
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


def _check_ownership(path: Path) -> None:
    """Raise `StoreError` if another user could write a file or directory, or if it is neither.

    Raise `OSError` if it cannot be looked at.
    """
    status = path.stat()
    is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    # Owner 0 is root, who can write anything; 0o022 are the write bits of the group and of others.
    if not is_plain or status.st_uid not in (0, system.user_id()) or status.st_mode & 0o022:
        raise StoreError(f"{one_line(str(path))} may be written by others; close it: chmod go-w")


def add_signer(directory: Path, path: Path) -> PublicKey:
    """Copy a key to those of the signers whom the user trusts; return it.

    Raise `StoreError` if the directory may be written by others, or the file cannot be written,
    and `UsageError` if the file has no key that can be used, as in `signers_of`.
    """
    key = read_public_key(path)
    target = directory / f"{key.id}.pub"
    with system_errors(one_line(str(target)), StoreError):
        make_private(directory)
        _check_ownership(directory)
        _write_public(target, path.read_bytes())
    return key


def remove_signer(directory: Path, fingerprint: str) -> bool:
    """Remove every file with a key; return False if there is none.

    A file counts only if `read_signers` reads a key from it. Raise `StoreError` if one cannot be
    removed; the others may be gone then.
    """
    files = read_signers(directory).files.get(fingerprint, ())
    for path in files:
        with system_errors(one_line(str(path)), StoreError):
            path.unlink(missing_ok=True)
    return bool(files)


def _write_public(path: Path, data: bytes) -> None:
    """Write a file that everybody may read. It replaces whatever has its name, even a link.

    Raise `OSError` if it cannot be written.
    """
    write_whole(path, data)
    path.chmod(0o644)


# Trust in skills: decide which of those that were found may be used.


STORE_NAME = "trusted-skills.json"
SIGNERS_NAME = "trusted-signers"

_UNREADABLE = (SkillNotFound, SkillPathRefused, SkillUnreadable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision on one skill: usable by what, or why not and what to do about it.

    `bundle` has the digest of each file that was looked at; None if none had to be.
    """

    usable: bool
    why: str
    bundle: Bundle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedSkill:
    """A skill that was found and may not be used."""

    skill: Skill
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The skills that were found and may be used.

    `bundles`, by id, are the files of skills that are trusted by their digests. Whoever reads such
    a file later compares its digest: it may have changed since.
    """

    registry: Registry
    refused: tuple[RefusedSkill, ...]
    bundles: Mapping[str, Bundle]


class SkillTrust:
    """Decides which skills may be used. It reads the notes of trust, and keys, at each request."""

    def __init__(self, directory: Path, *, settings: SkillSettings | None = None) -> None:
        self._directory = directory
        self._settings = settings if settings is not None else SkillSettings()
        self._store = TrustStore(directory, name=STORE_NAME)

    def admitted(self, registry: Registry) -> Admitted:
        """Sort what was found into what may be used and what may not.

        A skill that a higher layer hid counts if the one above may not be used. Raise `StoreError`
        if the notes of trust cannot be read, or if others may write them.
        """
        check = _TrustCheck(self._settings, self._store.noted(), self._directory / SIGNERS_NAME)
        kept: dict[str, Skill] = {}
        shadowed: list[Shadowed] = []
        refused: list[RefusedSkill] = []
        bundles: dict[str, Bundle] = {}
        for skill in _in_order(registry):
            if skill.id in kept:
                shadowed.append(Shadowed(skill=skill, by=kept[skill.id]))
                continue
            verdict = check.verdict(skill)
            if not verdict.usable:
                refused.append(RefusedSkill(skill=skill, why=verdict.why))
                continue
            kept[skill.id] = skill
            if verdict.bundle is not None:
                bundles[skill.id] = verdict.bundle
        usable = Registry(
            skills=tuple(kept[id] for id in sorted(kept)),
            shadowed=tuple(shadowed),
            failed=registry.failed,
            truncated=registry.truncated,
        )
        return Admitted(registry=usable, refused=tuple(refused), bundles=bundles)

    def verdict(self, skill: Skill) -> Verdict:
        """Return whether a skill may be used, and why. Raise `StoreError` as `admitted` does."""
        check = _TrustCheck(self._settings, self._store.noted(), self._directory / SIGNERS_NAME)
        return check.verdict(skill)

    def note(self, bundles: Mapping[Path, Bundle]) -> None:
        """Trust these files at these folders, as they were read and shown.

        Raise the errors of `TrustStore`: `StoreError` or `NotSupportedHere`.
        """
        self._store.note({path: each.sha256 for path, each in bundles.items()})

    def forget(self, path: Path) -> bool:
        """Withdraw trust in a folder. Return False if there was none.

        Raise the errors of `TrustStore`: `StoreError` or `NotSupportedHere`.
        """
        return self._store.untrust(path)

    def signers(self) -> Signers:
        """Return the keys of the signers whom the user trusts, as `read_signers` does."""
        return read_signers(self._directory / SIGNERS_NAME)

    def add_signer(self, path: Path) -> PublicKey:
        """Trust everything that the holder of this key signed or will sign; return the key.

        Raise `StoreError` or `UsageError` as the function `add_signer` does.
        """
        return add_signer(self._directory / SIGNERS_NAME, path)

    def remove_signer(self, fingerprint: str) -> bool:
        """Withdraw trust in a key, as the function `remove_signer` does.

        Return False if no file had it.
        """
        return remove_signer(self._directory / SIGNERS_NAME, fingerprint)


class _TrustCheck:
    """One decision over many skills.

    The notes of trust are read once, by the caller; keys are read once, if a signature is checked.
    """

    def __init__(self, settings: SkillSettings, noted: Noted, signers: Path) -> None:
        self._settings = settings
        self._noted = noted
        self._signers_path = signers
        self._signers: Signers | None = None

    def verdict(self, skill: Skill) -> Verdict:
        """Return whether a skill may be used, and why.

        A skill that needs neither trust nor a signature may be used without reading its files. One
        whose files cannot be read may not, and the reason is in the result.
        """
        required = self._settings.require_signature or skill.manifest.require_signature
        if not required and not self._needs_trust(skill.layer):
            return Verdict(usable=True, why=f"it is of the layer {skill.layer}")
        try:
            verdict = self._signature_verdict(skill) if required else self._trust_verdict(skill)
        except _UNREADABLE as error:
            return Verdict(usable=False, why=f"its files cannot be read: {one_line(str(error))}")
        file = verdict.bundle.find(skill.file) if verdict.bundle is not None else None
        if verdict.usable and (file is None or file.sha256 != skill.sha256):
            return Verdict(usable=False, why=f"its {skill.file} changed while it was read")
        return verdict

    def _needs_trust(self, layer: LayerName) -> bool:
        return layer == "project" or (layer == "config" and self._settings.of_project)

    def _trust_verdict(self, skill: Skill) -> Verdict:
        """Decide on a skill that needs its user's trust, or a signature by a key that they keep.

        Raise the errors of `bundle_of` if its files cannot all be read.
        """
        name = one_line(skill.id)
        has_signature = skill.folder.exists(SIGNATURE_NAME)
        # A skill that is neither trusted nor signed is refused without reading its files.
        if skill.folder.path not in self._noted and not has_signature:
            return Verdict(
                usable=False,
                why=f"it is not trusted yet; to see and trust it: tally skills trust {name}",
            )
        bundle = bundle_of(skill.folder)
        state = self._noted.state(skill.folder.path, bundle.sha256)
        if state == "trusted":
            return Verdict(usable=True, why="its files are those that were trusted", bundle=bundle)
        what = "it changed since it was trusted" if state == "changed" else "it is not trusted yet"
        if has_signature and signing_available():
            report = self._report(skill, bundle)
            if report.ok:
                return Verdict(usable=True, why=report.why, bundle=bundle)
            what = f"{what}, and {report.why}"
        return Verdict(
            usable=False,
            why=f"{what}; to see and trust it: tally skills trust {name}",
            bundle=bundle,
        )

    def _signature_verdict(self, skill: Skill) -> Verdict:
        """Decide on a skill that has to be signed. Raise the errors of `bundle_of`.

        Without the extra `sign`, it may not be used.
        """
        own = not self._settings.require_signature
        asks = "it asks for a signature itself" if own else "skills_require_signature is set"
        if not signing_available():
            return Verdict(
                usable=False,
                why=f"{asks}, and signatures cannot be checked: pip install 'tallystick[sign]'",
            )
        bundle = bundle_of(skill.folder)
        report = self._report(skill, bundle)
        if report.ok:
            return Verdict(usable=True, why=report.why, bundle=bundle)
        return Verdict(usable=False, why=f"{asks}, and {report.why}", bundle=bundle)

    def _report(self, skill: Skill, bundle: Bundle) -> SignatureReport:
        """Check the signature with the user's keys, but only with those that the skill allows.

        If no such key made it, the report says what to do.
        """
        if self._signers is None:
            self._signers = read_signers(self._signers_path)
        known = self._signers.keys
        allowed = {each.lower().removeprefix("sha256:") for each in skill.manifest.trusted_signers}
        keys = {id: key for id, key in known.items() if not allowed or id in allowed}
        report = check_signature(skill.folder, keys, bundle=bundle)
        if report.state != "unknown signer":
            return report
        hints = [
            "the skill names other signers"
            if report.signer in known
            else "to trust that signer: tally skills trust --signer FILE.pub",
            *self._signers.notes,
        ]
        return replace(report, why="; ".join([report.why, *hints]))


def _in_order(registry: Registry) -> Iterator[Skill]:
    """Return all skills, those of the highest layer first.

    Within a layer, those that count by their id come before those that were shadowed.
    """
    found = [*registry.skills, *(each.skill for each in registry.shadowed)]
    ranks = {name: number for number, name in enumerate(LAYER_ORDER)}
    return iter(sorted(found, key=lambda skill: ranks[skill.layer]))
