"""Errors of skills, sorted as in `tallystick.core.errors`.

UsageError
├── SkillAmbiguous            a name that several skills of different namespaces have
├── SkillArguments            arguments, or a path, that are not valid
└── SkillNotFound             no skill of that name, or no file of it
Refused
├── SkillDisabled             not for models to load; a user may
├── SkillPathRefused          a path that leaves the skill's folder, or is no ordinary file
├── SkillSignatureInvalid     a SKILL.sig that is not a signature
└── SkillUntrusted            not trusted yet, or its signature is not valid
BackendError
├── SkillFailed               a function of it raised, or returned something other than JSON
└── SkillUnreadable           its file cannot be read, or is not a skill
"""

from __future__ import annotations

from tallystick.core.errors import BackendError, Facts, Refused, UsageError

_NAME_CHARS_MAX = 80


class SkillNotFound(Facts, UsageError):
    """No such skill, or no such file of one. `near` are names that look alike."""

    code = "usage.skill.not_found"

    name: str
    what: str = "skill"
    near: tuple[str, ...] = ()

    def text(self) -> str:
        hint = f"; did you mean {', '.join(self.near)}?" if self.near else ""
        return f"no {self.what} {_short_repr(self.name)}{hint}"


class SkillAmbiguous(Facts, UsageError):
    """A bare name that belongs to several skills, whose ids are `ids`."""

    code = "usage.skill.ambiguous"

    name: str
    ids: tuple[str, ...]

    def text(self) -> str:
        several = ", ".join(self.ids)
        return f"{_short_repr(self.name)} is several skills: {several}; name one of them"


class SkillArguments(UsageError):
    """The arguments of a call, or of a skill that a user puts into a prompt, are not valid."""

    code = "usage.skill.arguments"


class SkillDisabled(Facts, Refused):
    """The skill says that models may not load it."""

    code = "refused.skill.disabled"

    id: str

    def text(self) -> str:
        return f"skill {_short_repr(self.id)} is not for models to load; a user can, by its name"


class SkillPathRefused(Facts, Refused):
    """A path that is no readable ordinary file inside the skill's folder. `why` says more."""

    code = "refused.skill.path"

    id: str
    path: str
    why: str

    def text(self) -> str:
        return f"skill {_short_repr(self.id)}: {_short_repr(self.path)} {self.why}"


class SkillSignatureInvalid(Refused):
    """A file that should be a signature and is not. It says nothing about who signed."""

    code = "refused.skill.signature"


class SkillUntrusted(Facts, Refused):
    """A skill that may not be used here yet, or a file of it that changed since it was trusted."""

    code = "refused.skill.untrusted"

    id: str
    why: str

    def text(self) -> str:
        return f"skill {_short_repr(self.id)}: {self.why}"


class SkillFailed(BackendError):
    """A function of a skill returned nothing that can be passed on."""

    code = "backend.skill.failed"


class SkillUnreadable(Facts, BackendError):
    """A skill's file cannot be read, or holds nothing that can be used."""

    code = "backend.skill"

    id: str
    why: str

    def text(self) -> str:
        return f"skill {_short_repr(self.id)}: {self.why}"


def _short_repr(name: str) -> str:
    """Return a name in quotes, cut to 80 characters."""
    cut = name if len(name) <= _NAME_CHARS_MAX else f"{name[:_NAME_CHARS_MAX]}…"
    return repr(cut)
