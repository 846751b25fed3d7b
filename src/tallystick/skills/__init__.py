"""Skills: found in layers, checked, fitted into a catalog with its evidence, and given to runs.

These names are the contract of this module; what else is in the package is internal.

- `find_skills` returns the `Skills` that the command line would find, for `Agent(skills=…)`;
  `Skills.of` those of your own directories
- `Registry` holds them: each a `Skill` with its `Card` and `Manifest`
- `Shadowed` is one that another layer hides, `Failed` one that cannot be read; `LAYER_ORDER` says
  which layer wins
- `lint` checks a skill's folder, and returns each `Problem`
- `new_skill` makes the folder of one, and `install_skill` copies one: `Installed`
- `SkillTrust` remembers which skills and signers are trusted; `write_signature` signs a skill, and
  `check_signature` returns a `SignatureReport`
- `match_skills` says which skills fit a prompt: a `Matching` of `Match`
- `fit_catalog` fits cards into a budget: a `Catalog` with its `Evidence`, made of `CardEvidence`
  and `MatchEvidence`; `reference_catalog` returns that of other hosts: `ReferenceCatalog` with
  `ReferenceEvidence`
- `why_here` and `why_in_run` say why a skill was listed, loaded or used, as `Why`;
  `evidence_of_run` returns what a run recorded of its catalog, `SkillDrift` is a changed skill
- the errors are `SkillNotFound`, `SkillAmbiguous`, `SkillArguments`, `SkillDisabled`,
  `SkillFailed`, `SkillPathRefused`, `SkillSignatureInvalid`, `SkillUnreadable` and `SkillUntrusted`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.skills.catalog import (
        CardEvidence,
        Catalog,
        Evidence,
        MatchEvidence,
        fit_catalog,
    )
    from tallystick.skills.errors import (
        SkillAmbiguous,
        SkillArguments,
        SkillDisabled,
        SkillFailed,
        SkillNotFound,
        SkillPathRefused,
        SkillSignatureInvalid,
        SkillUnreadable,
        SkillUntrusted,
    )
    from tallystick.skills.format.frontmatter import Problem
    from tallystick.skills.format.lint import lint
    from tallystick.skills.format.manifest import Card, Manifest
    from tallystick.skills.found import find_skills
    from tallystick.skills.installed import Installed, install_skill, new_skill
    from tallystick.skills.layers import Failed, Registry, Shadowed, Skill
    from tallystick.skills.match import Match, Matching, match_skills
    from tallystick.skills.places import LAYER_ORDER
    from tallystick.skills.reference import ReferenceCatalog, ReferenceEvidence, reference_catalog
    from tallystick.skills.skills import Skills
    from tallystick.skills.trust import (
        SignatureReport,
        SkillTrust,
        check_signature,
        write_signature,
    )
    from tallystick.skills.why import SkillDrift, Why, evidence_of_run, why_here, why_in_run

__all__ = [
    "LAYER_ORDER",
    "Card",
    "CardEvidence",
    "Catalog",
    "Evidence",
    "Failed",
    "Installed",
    "Manifest",
    "Match",
    "MatchEvidence",
    "Matching",
    "Problem",
    "ReferenceCatalog",
    "ReferenceEvidence",
    "Registry",
    "Shadowed",
    "SignatureReport",
    "Skill",
    "SkillAmbiguous",
    "SkillArguments",
    "SkillDisabled",
    "SkillDrift",
    "SkillFailed",
    "SkillNotFound",
    "SkillPathRefused",
    "SkillSignatureInvalid",
    "SkillTrust",
    "SkillUnreadable",
    "SkillUntrusted",
    "Skills",
    "Why",
    "check_signature",
    "evidence_of_run",
    "find_skills",
    "fit_catalog",
    "install_skill",
    "lint",
    "match_skills",
    "new_skill",
    "reference_catalog",
    "why_here",
    "why_in_run",
    "write_signature",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.skills.catalog": "CardEvidence Catalog Evidence MatchEvidence fit_catalog",
            "tallystick.skills.errors": (
                "SkillAmbiguous SkillArguments SkillDisabled SkillFailed SkillNotFound "
                "SkillPathRefused SkillSignatureInvalid SkillUnreadable SkillUntrusted"
            ),
            "tallystick.skills.format.frontmatter": "Problem",
            "tallystick.skills.format.lint": "lint",
            "tallystick.skills.format.manifest": "Card Manifest",
            "tallystick.skills.found": "find_skills",
            "tallystick.skills.installed": "Installed install_skill new_skill",
            "tallystick.skills.layers": "Failed Registry Shadowed Skill",
            "tallystick.skills.match": "Match Matching match_skills",
            "tallystick.skills.places": "LAYER_ORDER",
            "tallystick.skills.reference": "ReferenceCatalog ReferenceEvidence reference_catalog",
            "tallystick.skills.skills": "Skills",
            "tallystick.skills.trust": "SignatureReport SkillTrust check_signature write_signature",
            "tallystick.skills.why": "SkillDrift Why evidence_of_run why_here why_in_run",
        },
    )
