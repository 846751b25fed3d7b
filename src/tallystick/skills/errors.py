"""What can go wrong with skills, sorted as in `tallystick.core.errors`.

UsageError
├── SkillAmbiguous            a name that several skills of different namespaces have
├── SkillArguments            arguments, or a path, that are none
└── SkillNotFound             no skill of that name, or no file of it
Refused
├── SkillDisabled             not for models to load; a user may
├── SkillPathRefused          a path that leaves the skill's folder, or is no ordinary file
├── SkillSignatureInvalid     a SKILL.sig that is none
└── SkillUntrusted            nobody trusts it yet, or its signature does not hold
BackendError
├── SkillFailed               a function of it raised, or returned what is no JSON
└── SkillUnreadable           its file cannot be read, or is not a skill
"""

from __future__ import annotations

from tallystick.core.errors import BackendError, Facts, Refused, UsageError

_SHOWN_CHARS_MAX = 80


class SkillNotFound(Facts, UsageError):
    """No such skill, or no such file of one. `near` are names that look alike."""

    code = "usage.skill.not_found"

    name: str
    what: str = "skill"
    near: tuple[str, ...] = ()

    def text(self) -> str:
        hint = f"; did you mean {', '.join(self.near)}?" if self.near else ""
        return f"no {self.what} {_shown(self.name)}{hint}"


class SkillAmbiguous(Facts, UsageError):
    """A bare name that several skills have."""

    code = "usage.skill.ambiguous"

    name: str
    ids: tuple[str, ...]

    def text(self) -> str:
        several = ", ".join(self.ids)
        return f"{_shown(self.name)} is several skills: {several}; name one of them"


class SkillArguments(UsageError):
    """What a skill was asked with is not what it takes."""

    code = "usage.skill.arguments"


class SkillDisabled(Facts, Refused):
    """A skill that says that models are not to load it."""

    code = "refused.skill.disabled"

    id: str

    def text(self) -> str:
        return f"skill {_shown(self.id)} is not for models to load; a user can, by its name"


class SkillPathRefused(Facts, Refused):
    """A path that is not a file inside the skill's folder."""

    code = "refused.skill.path"

    id: str
    path: str
    why: str

    def text(self) -> str:
        return f"skill {_shown(self.id)}: {_shown(self.path)} {self.why}"


class SkillSignatureInvalid(Refused):
    """A file that should be a signature and is not. Says nothing of who signed."""

    code = "refused.skill.signature"


class SkillUntrusted(Facts, Refused):
    """A skill that may not be used here yet."""

    code = "refused.skill.untrusted"

    id: str
    why: str

    def text(self) -> str:
        return f"skill {_shown(self.id)}: {self.why}"


class SkillFailed(BackendError):
    """A function of a skill gave nothing back."""

    code = "backend.skill.failed"


class SkillUnreadable(Facts, BackendError):
    """A skill's file cannot be read, or says nothing that can be used."""

    code = "backend.skill"

    id: str
    why: str

    def text(self) -> str:
        return f"skill {_shown(self.id)}: {self.why}"


def _shown(name: str) -> str:
    cut = name if len(name) <= _SHOWN_CHARS_MAX else f"{name[:_SHOWN_CHARS_MAX]}…"
    return repr(cut)
