"""What can go wrong with skills, sorted as in `tallystick.core.errors`.

UsageError
├── SkillAmbiguous            a name that several skills of different namespaces have
├── SkillArguments            arguments, or a path, that are none
└── SkillNotFound             no skill of that name, or no file of it
Refused
├── SkillDisabled             not for models to load; a user may
├── SkillPathRefused          a path that leaves the skill's folder, or is no ordinary file
├── SkillSignatureInvalid     a SKILL.sig that is none
├── SkillToolDenied           a function that a loaded skill does not name
└── SkillUntrusted            nobody trusts it yet, or its signature does not hold
BackendError
├── SkillFailed               a function of it raised, or returned what is no JSON
└── SkillUnreadable           its file cannot be read, or is not a skill
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.core.errors import BackendError, CapabilityDenied, Refused, UsageError

_SHOWN_CHARS_MAX = 80


class SkillNotFound(UsageError):
    """No such skill, or no such file of one. `near` are names that look alike."""

    code = "usage.skill.not_found"

    def __init__(self, *, name: str, what: str = "skill", near: Sequence[str] = ()) -> None:
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        super().__init__(f"no {what} {_shown(name)}{hint}")
        self.name = name
        self.near = tuple(near)


class SkillAmbiguous(UsageError):
    """A bare name that several skills have."""

    code = "usage.skill.ambiguous"

    def __init__(self, *, name: str, ids: Sequence[str]) -> None:
        super().__init__(f"{_shown(name)} is several skills: {', '.join(ids)}; name one of them")
        self.name = name
        self.ids = tuple(ids)


class SkillArguments(UsageError):
    """What a skill was asked with is not what it takes."""

    code = "usage.skill.arguments"


class SkillDisabled(Refused):
    """A skill that says that models are not to load it."""

    code = "refused.skill.disabled"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"skill {_shown(id)} is not for models to load; a user can, by its name")
        self.id = id


class SkillPathRefused(Refused):
    """A path that is not a file inside the skill's folder."""

    code = "refused.skill.path"

    def __init__(self, *, id: str, path: str, why: str) -> None:
        super().__init__(f"skill {_shown(id)}: {_shown(path)} {why}")
        self.id = id
        self.path = path
        self.why = why


class SkillSignatureInvalid(Refused):
    """A file that should be a signature and is not. Says nothing of who signed."""

    code = "refused.skill.signature"


class SkillToolDenied(CapabilityDenied):
    """A function that is not among the tools of every skill that was loaded."""

    code = "refused.skill.tool"

    def __init__(self, *, name: str) -> None:
        Refused.__init__(
            self, f"{_shown(name)} is not among the allowed tools of a skill that was loaded"
        )
        self.capability = name[:_SHOWN_CHARS_MAX]


class SkillUntrusted(Refused):
    """A skill that may not be used here yet."""

    code = "refused.skill.untrusted"

    def __init__(self, *, id: str, why: str) -> None:
        super().__init__(f"skill {_shown(id)}: {why}")
        self.id = id
        self.why = why


class SkillFailed(BackendError):
    """A function of a skill gave nothing back."""

    code = "backend.skill.failed"


class SkillUnreadable(BackendError):
    """A skill's file cannot be read, or says nothing that can be used."""

    code = "backend.skill"

    def __init__(self, *, id: str, why: str) -> None:
        super().__init__(f"skill {_shown(id)}: {why}")
        self.id = id
        self.why = why


def _shown(name: str) -> str:
    cut = name if len(name) <= _SHOWN_CHARS_MAX else f"{name[:_SHOWN_CHARS_MAX]}…"
    return repr(cut)
