"""What is set of skills: directories to look in, the policy on signatures, room for the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tallystick.runtime.config_keys import SKILLS_BUDGET, Value

__all__ = ["SkillSettings", "skill_settings_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSettings:
    """The settings of skills as they are in force.

    `of_project` says that a project's file named the `paths`: who trusts that file trusts the names
    and not what will be in those directories tomorrow, so their skills need trust as well.
    `budget` is in characters.
    """

    paths: tuple[str, ...] = ()
    of_project: bool = False
    require_signature: bool = False
    budget: int = SKILLS_BUDGET


def skill_settings_of(values: Mapping[str, Value], *, of_project: bool) -> SkillSettings:
    """Take out of all values what is for skills."""
    paths, budget = values.get("skills_paths", ()), values["skills_budget"]
    assert isinstance(paths, tuple)
    assert isinstance(budget, int)
    return SkillSettings(
        paths=paths,
        of_project=of_project and bool(paths),
        require_signature=values.get("skills_require_signature") is True,
        budget=budget,
    )
