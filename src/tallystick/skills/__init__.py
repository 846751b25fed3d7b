"""Skills: found in layers, checked, fitted into a catalog with its evidence, and given to runs.

`find_skills` returns the skills that the command line would find, and `Skills.of` those of your own
directories; both are for `Session(skills=…)`. The names below are what they hold and return: skills
with their cards, the catalog and its evidence, the catalog that other hosts print, what a run
recorded of its skills, and errors. They are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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
    from tallystick.skills.format.frontmatter import (
        Problem,
    )
    from tallystick.skills.format.lint import (
        lint,
    )
    from tallystick.skills.format.manifest import (
        Card,
        Manifest,
    )
    from tallystick.skills.found import (
        find_skills,
    )
    from tallystick.skills.layers import (
        Failed,
        Registry,
        Shadowed,
        Skill,
    )
    from tallystick.skills.match import (
        Match,
        Matching,
        match_skills,
    )
    from tallystick.skills.places import (
        LAYER_ORDER,
    )
    from tallystick.skills.reference import (
        ReferenceCatalog,
        ReferenceEvidence,
        reference_catalog,
    )
    from tallystick.skills.skills import (
        Skills,
    )
    from tallystick.skills.why import (
        SkillDrift,
        Why,
        evidence_of_run,
        why_here,
        why_in_run,
    )

__all__ = [
    "LAYER_ORDER",
    "Card",
    "CardEvidence",
    "Catalog",
    "Evidence",
    "Failed",
    "Manifest",
    "Match",
    "MatchEvidence",
    "Matching",
    "Problem",
    "ReferenceCatalog",
    "ReferenceEvidence",
    "Registry",
    "Shadowed",
    "Skill",
    "SkillAmbiguous",
    "SkillArguments",
    "SkillDisabled",
    "SkillDrift",
    "SkillFailed",
    "SkillNotFound",
    "SkillPathRefused",
    "SkillSignatureInvalid",
    "SkillUnreadable",
    "SkillUntrusted",
    "Skills",
    "Why",
    "evidence_of_run",
    "find_skills",
    "fit_catalog",
    "lint",
    "match_skills",
    "reference_catalog",
    "why_here",
    "why_in_run",
]

_HOMES = {
    "tallystick.skills.catalog": (
        "CardEvidence",
        "Catalog",
        "Evidence",
        "MatchEvidence",
        "fit_catalog",
    ),
    "tallystick.skills.errors": (
        "SkillAmbiguous",
        "SkillArguments",
        "SkillDisabled",
        "SkillFailed",
        "SkillNotFound",
        "SkillPathRefused",
        "SkillSignatureInvalid",
        "SkillUnreadable",
        "SkillUntrusted",
    ),
    "tallystick.skills.format.frontmatter": ("Problem",),
    "tallystick.skills.format.lint": ("lint",),
    "tallystick.skills.format.manifest": (
        "Card",
        "Manifest",
    ),
    "tallystick.skills.found": ("find_skills",),
    "tallystick.skills.layers": (
        "Failed",
        "Registry",
        "Shadowed",
        "Skill",
    ),
    "tallystick.skills.match": (
        "Match",
        "Matching",
        "match_skills",
    ),
    "tallystick.skills.places": ("LAYER_ORDER",),
    "tallystick.skills.reference": (
        "ReferenceCatalog",
        "ReferenceEvidence",
        "reference_catalog",
    ),
    "tallystick.skills.skills": ("Skills",),
    "tallystick.skills.why": (
        "SkillDrift",
        "Why",
        "evidence_of_run",
        "why_here",
        "why_in_run",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tallystick.skills' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
