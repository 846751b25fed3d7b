"""Manifests: what the frontmatter of a skill says, read leniently.

Rule 1: a fault of form is a warning, and the skill loads. Only what has no description, no YAML or
no name that can be used does not.
Rule 2: what limits a skill fails closed. A flag that cannot be read counts as set to the safe side,
and tools or signers that cannot be read fail the skill.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tallystick.skills.frontmatter import Split
from tallystick.skills.line import one_line, quoted
from tallystick.skills.manifest_field import Fields
from tallystick.skills.name import folder_name, usable_name
from tallystick.skills.problem import Problem

__all__ = ["KNOWN_KEYS", "SPEC_KEYS", "Manifest", "Problem", "manifest_of"]

# The keys of the public specification, and with those of clients, all that are read here.
SPEC_KEYS = frozenset(
    {"name", "description", "license", "compatibility", "metadata", "allowed_tools"}
)
KNOWN_KEYS = SPEC_KEYS | {
    "short", "when_to_use", "disable_model_invocation", "user_invocable", "paths", "context",
    "agent", "hooks", "model", "effort", "require_signature", "trusted_signers", "shell",
    "argument_hint", "requires_mcp",
}  # fmt: skip

_NAME_CHARS_MAX = 64
_DESCRIPTION_CHARS_MAX = 1_024
_COMPATIBILITY_CHARS_MAX = 500
_SHORT_CHARS_MAX = 120
_KEYS_TOLD_MAX = 8


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a skill says of itself.

    `allowed_tools` are exact names, `namespace:<tag>` or `*`; None if it says nothing of tools, and
    empty if it is to have none. `hooks` is canonical JSON text and is never run. Texts may have
    several lines; `short` and `name` have one.
    """

    name: str
    short: str
    description: str
    when_to_use: str = ""
    disable_model_invocation: bool = False
    allowed_tools: tuple[str, ...] | None = None
    user_invocable: bool = True
    paths: tuple[str, ...] = ()
    context: str = ""
    agent: str = ""
    hooks: str = ""
    model: str = ""
    effort: str = ""
    require_signature: bool = False
    trusted_signers: tuple[str, ...] = ()
    shell: str = ""
    argument_hint: str = ""
    requires_mcp: tuple[str, ...] = ()
    license: str = ""
    compatibility: str = ""
    metadata: tuple[tuple[str, str], ...] = ()


def manifest_of(split: Split, *, directory: str) -> tuple[Manifest | None, tuple[Problem, ...]]:
    """The manifest of a file, or None if it cannot be used, with all that is wrong with it.

    `directory` is the name of the skill's folder, which stands in for a name that is missing.
    """
    fields = Fields(split.fields or {}, list(split.problems))
    if fields.failed():
        return None, tuple(fields.problems)
    _tell_unknown(split.fields or {}, fields)
    name = _name(fields, directory)
    description, short = _description(fields)
    manifest = Manifest(
        name=name,
        short=short,
        description=description,
        when_to_use=fields.text("when_to_use"),
        disable_model_invocation=fields.flag(
            "disable_model_invocation", default=False, closed=True
        ),
        allowed_tools=fields.tools("allowed_tools"),
        user_invocable=fields.flag("user_invocable", default=True, closed=True),
        paths=fields.patterns("paths"),
        context=_context(fields),
        agent=fields.text("agent"),
        hooks=fields.json("hooks"),
        model=fields.text("model"),
        effort=fields.text("effort"),
        require_signature=fields.flag("require_signature", default=False, closed=True),
        trusted_signers=fields.words("trusted_signers", closed=True),
        shell=fields.text("shell"),
        argument_hint=fields.hint("argument_hint"),
        requires_mcp=fields.words("requires_mcp"),
        license=fields.text("license"),
        compatibility=fields.text("compatibility", chars_max=_COMPATIBILITY_CHARS_MAX),
        metadata=fields.pairs("metadata"),
    )
    return None if fields.failed() else manifest, tuple(fields.problems)


def _tell_unknown(found: Mapping[str, object], fields: Fields) -> None:
    unknown = [key for key in found if key not in KNOWN_KEYS]
    for key in unknown[:_KEYS_TOLD_MAX]:
        fields.warn("key.unknown", f"{quoted(key)} is no key that is known here")
    if len(unknown) > _KEYS_TOLD_MAX:
        fields.warn("key.unknown", f"and {len(unknown) - _KEYS_TOLD_MAX} more unknown keys")


def _name(fields: Fields, directory: str) -> str:
    given = fields.text("name")
    name = usable_name(given)
    if name is not None:
        if len(name) > _NAME_CHARS_MAX:
            fields.warn("name.long", f"the name has {len(name)} characters; {_NAME_CHARS_MAX} may")
        if name != folder_name(directory):
            why = f"the name {quoted(name)} is not that of its folder, {quoted(directory)}"
            fields.warn("name.folder", why)
        return name
    fallback = folder_name(directory)
    if fallback is None:
        fields.fail("name.unusable", f"no name, and the folder {quoted(directory)} gives none")
        return ""
    if given:
        why = f"{quoted(given)} cannot be a name; that of the folder is taken, {quoted(fallback)}"
        fields.warn("name.unusable", why)
    else:
        fields.warn("name.missing", f"no name; that of the folder is taken, {quoted(fallback)}")
    return fallback


def _description(fields: Fields) -> tuple[str, str]:
    """The description and its short form; each stands in for the other."""
    description = fields.text("description", chars_max=_DESCRIPTION_CHARS_MAX)
    short = one_line(fields.text("short"))
    if not one_line(description):
        if not short:
            fields.fail("description.missing", "no description: nobody can say when to use it")
        else:
            fields.warn("description.missing", "no description; `short` is taken for it")
        return short, short
    return description, short or _shortened(one_line(description))


def _context(fields: Fields) -> str:
    context = fields.text("context")
    if context not in {"", "fork"}:
        fields.warn("context.unknown", f"context {quoted(context)} is not known; it may be 'fork'")
    return context


_FULL_STOPS = "\u3002\uff01\uff1f"
_ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "cf.", "incl.", "approx.")


def _shortened(line: str) -> str:
    """The first sentence, or as many words as there is room for."""
    end = 0
    for at, each in enumerate(line[:_SHORT_CHARS_MAX]):
        following = line[at + 1 : at + 3]
        ends = each in _FULL_STOPS or (
            each in ".!?"
            and (not following or (following[0] == " " and not following[1:].islower()))
        )
        if ends and not line[: at + 1].endswith(_ABBREVIATIONS):
            end = at + 1
            break
    if end:
        return line[:end]
    if len(line) <= _SHORT_CHARS_MAX:
        return line
    words = line[: _SHORT_CHARS_MAX - 1]
    cut = words.rpartition(" ")[0] if line[len(words)] != " " else words
    return f"{(cut or words).rstrip(' ,;:-')}…"
