"""Trust in skills: which of those that were found may be used, and why the others may not.

A skill is text that a model follows and files that its programs run, so one that came with a
project counts for nothing until its user trusts it, once, by the digest of all its files. Any
change of any of them ends that. A signature by somebody whose key the user keeps does the same
without a question. The user's own directories, and those that a command or the environment names,
need neither, unless the user's policy asks for signatures: then nothing counts without one, in
whatever directory it lies.

Rule 1: what may not be used hides nothing. A skill of the same id in a lower layer takes its place.
Rule 2: a skill whose files cannot all be read is not trusted, whatever was noted of it.
Rule 3: keys are those in the user's own directory. A key beside a skill is never looked at.
Rule 4: a skill may ask to be signed, and by whom. That narrows who counts; it never adds anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tallystick.runtime.config_keys import one_line
from tallystick.runtime.signing import PublicKey, signing_available
from tallystick.runtime.skill_settings import SkillSettings
from tallystick.runtime.skill_signature import (
    SignatureReport,
    Signers,
    add_signer,
    check_signature,
    read_signers,
    remove_signer,
)
from tallystick.runtime.trust import Noted, TrustStore
from tallystick.skills.bundle import SIGNATURE_NAME, Bundle, bundle_of
from tallystick.skills.errors import SkillNotFound, SkillPathRefused, SkillUnreadable
from tallystick.skills.layers import LAYER_ORDER, LayerName, Registry, Shadowed, Skill

__all__ = ["Admitted", "RefusedSkill", "SkillTrust", "Verdict"]

STORE_NAME = "trusted-skills.json"
SIGNERS_NAME = "trusted-signers"

_UNREADABLE = (SkillNotFound, SkillPathRefused, SkillUnreadable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a skill may be used: by what, or why not and what to do about it.

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
    """What may be used of what was found.

    `bundles`, by id, are the files of skills that count by what they hold. Whoever reads such a
    file later compares its digest: it may have changed since.
    """

    registry: Registry
    refused: tuple[RefusedSkill, ...]
    bundles: Mapping[str, Bundle]


class SkillTrust:
    """Decides which skills count. Reads what is noted, and keys, when it is asked."""

    def __init__(self, directory: Path, *, settings: SkillSettings | None = None) -> None:
        self._directory = directory
        self._settings = settings if settings is not None else SkillSettings()
        self._store = TrustStore(directory, name=STORE_NAME)

    def admitted(self, registry: Registry) -> Admitted:
        """Sort what was found into what may be used and what may not."""
        judge = _Judge(self._settings, self._store.noted(), self._directory / SIGNERS_NAME)
        kept: dict[str, Skill] = {}
        shadowed: list[Shadowed] = []
        refused: list[RefusedSkill] = []
        bundles: dict[str, Bundle] = {}
        for skill in _in_order(registry):
            if skill.id in kept:
                shadowed.append(Shadowed(skill=skill, by=kept[skill.id]))
                continue
            verdict = judge.verdict(skill)
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
        """Say whether this one may be used."""
        judge = _Judge(self._settings, self._store.noted(), self._directory / SIGNERS_NAME)
        return judge.verdict(skill)

    def note(self, bundles: Mapping[Path, Bundle]) -> None:
        """Trust these files at these folders, as they were read and shown."""
        self._store.note({path: each.sha256 for path, each in bundles.items()})

    def forget(self, path: Path) -> bool:
        """Take trust in a folder back. False if there was none."""
        return self._store.untrust(path)

    def signers(self) -> Signers:
        """The keys of those whom the user trusts."""
        return read_signers(self._directory / SIGNERS_NAME)

    def add_signer(self, path: Path) -> PublicKey:
        """Trust whatever the holder of this key signed and will sign."""
        return add_signer(self._directory / SIGNERS_NAME, path)

    def remove_signer(self, fingerprint: str) -> bool:
        """Take that back. False if there is no such key."""
        return remove_signer(self._directory / SIGNERS_NAME, fingerprint)


class _Judge:
    """One sitting: what is noted is read once, and keys at most once, if any skill has to do."""

    def __init__(self, settings: SkillSettings, noted: Noted, signers: Path) -> None:
        self._settings = settings
        self._noted = noted
        self._signers_path = signers
        self._signers: Signers | None = None

    def verdict(self, skill: Skill) -> Verdict:
        required = self._settings.require_signature or skill.manifest.require_signature
        if not required and not self._needs_trust(skill.layer):
            return Verdict(usable=True, why=f"it is of the layer {skill.layer}")
        try:
            verdict = self._signed(skill) if required else self._trusted(skill)
        except _UNREADABLE as error:
            return Verdict(usable=False, why=f"its files cannot be told: {one_line(str(error))}")
        file = verdict.bundle.find(skill.file) if verdict.bundle is not None else None
        if verdict.usable and (file is None or file.sha256 != skill.sha256):
            return Verdict(usable=False, why=f"its {skill.file} changed while it was looked at")
        return verdict

    def _needs_trust(self, layer: LayerName) -> bool:
        return layer == "project" or (layer == "config" and self._settings.of_project)

    def _trusted(self, skill: Skill) -> Verdict:
        name = one_line(skill.id)
        has_signature = skill.folder.exists(SIGNATURE_NAME)
        # Of a skill that nobody trusts and nobody signed, no file has to be read.
        if skill.folder.path not in self._noted and not has_signature:
            return Verdict(
                usable=False,
                why=f"nobody trusts it yet; to see and trust it: tally skills trust {name}",
            )
        bundle = bundle_of(skill.folder)
        state = self._noted.state(skill.folder.path, bundle.sha256)
        if state == "trusted":
            return Verdict(usable=True, why="its files are those that were trusted", bundle=bundle)
        what = "it changed since it was trusted" if state == "changed" else "nobody trusts it yet"
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

    def _signed(self, skill: Skill) -> Verdict:
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
    """All skills, those of the highest layer first, and of one layer as they were found."""
    found = [*registry.skills, *(each.skill for each in registry.shadowed)]
    ranks = {name: number for number, name in enumerate(LAYER_ORDER)}
    return iter(sorted(found, key=lambda skill: ranks[skill.layer]))
