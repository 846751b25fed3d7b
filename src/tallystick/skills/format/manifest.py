"""Read what the frontmatter of a skill says, leniently: its name, its manifest and its card."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from tallystick.core.json_text import canonical
from tallystick.skills.format.frontmatter import Problem, Split, has_hidden, one_line_text, quote

# Names of skills: which may be in an id, and the name that a folder gives.


# The public limit is 64, and a longer name gets a warning. Beyond this one it cannot be used.
NAME_CHARS_MAX = 128
_OTHERS = "-_. "
_RUN = re.compile(r"-{2,}")


def usable_name(text: str) -> str | None:
    """Return a name as it is written in an id, or None if it cannot be in one.

    It is normalized (NFKC) and has at most 128 characters: letters, marks and digits of any script,
    `-`, `_`, `.` and single spaces. The first is a letter, a digit or `_`. So an id is one line and
    has no slash but those of its namespace. It is no option of a command, and ends no quotes
    wherever it is put.
    """
    if has_hidden(text.strip()):
        return None
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    if not name or len(name) > NAME_CHARS_MAX or not (name[0].isalnum() or name[0] == "_"):
        return None
    return name if all(_is_allowed(each) for each in name) else None


def folder_name(directory: str) -> str | None:
    """Return the name that a folder gives to what is in it.

    If its own name is not usable, strange characters become hyphens, and it is cut to 128.

    Return None for a folder whose name hides characters, or has none that can be used.
    """
    if has_hidden(directory):
        return None
    normal = unicodedata.normalize("NFKC", directory)
    made = "".join(each if _is_allowed(each) else "-" for each in normal)
    return usable_name(directory) or usable_name(_RUN.sub("-", made).strip("-. ")[:NAME_CHARS_MAX])


def _is_allowed(each: str) -> bool:
    return each.isalnum() or each in _OTHERS or unicodedata.category(each) in {"Mn", "Mc"}


# Cards: the facts about a skill that are known without reading its instructions.


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One skill as a catalog sees it, known without reading its instructions.

    `id` is `name`, or `namespace/name`. `source` is the layer it was found in. `short` is the text
    for a catalog with little room, `sha256` the digest of the file it was read from.
    `user_invocable` says whether a user may load it by name; `paths` are globs that it is for.
    `argument_hint` says which arguments it takes, if its head does.
    """

    id: str
    name: str
    source: str
    description: str = ""
    when_to_use: str = ""
    short: str = ""
    disable_model_invocation: bool = False
    user_invocable: bool = True
    paths: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    sha256: str = ""
    # Left out where there is none, so that the cards of a run keep their bytes.
    argument_hint: str | msgspec.UnsetType = msgspec.UNSET


# Fields of a manifest: text, flags, words and tools, as they are met in practice.
#
# Frontmatter gives text, lists, mappings and None. Each kind of field takes the forms that are met
# in practice, and warns about those that are not the documented one, with how it read them.


_WORDS_MAX = 256
_WORD_CHARS_MAX = 256
_PAIRS_MAX = 64
_YES = frozenset({"yes", "on", "1", "y"})
_NO = frozenset({"no", "off", "0", "n"})
_WORD = re.compile(r"[^\s,]+")
_TAG = re.compile(r"namespace:[^\s:()*,]+")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one frontmatter, and the problems that came up so far.

    Each method that reads a field adds a problem for a value in another than the documented form.
    """

    values: Mapping[str, object]
    problems: list[Problem]

    def has_errors(self) -> bool:
        return any(each.level == "error" for each in self.problems)

    def warn(self, code: str, message: str) -> None:
        self.problems.append(Problem(level="warning", code=code, message=message))

    def fail(self, code: str, message: str) -> None:
        self.problems.append(Problem(level="error", code=code, message=message))

    def text(self, key: str, *, chars_max: int | None = None) -> str:
        """Return a field as text, "" if it is missing; a list of texts is joined.

        Any other list, and a mapping, count as missing. A text of more than `chars_max` characters
        is returned whole.
        """
        value = self.values.get(key)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            self.warn(
                f"{_key_name(key)}.type", f"{_key_name(key)} is a list; it is read as one text"
            )
            value = ", ".join(value)
        if isinstance(value, list | dict):
            self.warn(f"{_key_name(key)}.type", f"{_key_name(key)} is not text; it is left out")
            return ""
        text = str(value or "").strip()
        if chars_max is not None and len(text) > chars_max:
            why = (
                f"{_key_name(key)} has {len(text):,} characters; at most {chars_max:,} are allowed"
            )
            self.warn(f"{_key_name(key)}.long", why)
        return text

    def hint(self, key: str) -> str:
        """Return a text that is often written in brackets, and so comes as a list.

        A list of texts is returned in brackets again, without a problem; else as by `text`.
        """
        value = self.values.get(key)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return f"[{', '.join(value)}]"
        return self.text(key)

    def flag(self, key: str, *, default: bool, closed: bool) -> bool:
        """Return a field as true or false: `default` if absent, `closed` if it cannot be read.

        Words such as `yes`, `off` and `1` are read too, with a warning.
        """
        if key not in self.values:
            return default
        value = self.values[key]
        word = value.strip().lower() if isinstance(value, str) else ""
        if word in {"true", "false"}:
            return word == "true"
        if word in _YES or word in _NO:
            self.warn(f"{_key_name(key)}.flag", f"{_key_name(key)} is {word}; write true or false")
            return word in _YES
        why = f"{_key_name(key)} is neither true nor false; it is taken as {str(closed).lower()}"
        self.warn(f"{_key_name(key)}.flag", why)
        return closed

    def words(self, key: str, *, closed: bool = False) -> tuple[str, ...]:
        """Return at most 256 words, each once: a list, or one text with spaces or commas between.

        With `closed`, a value that cannot be read is an error, and otherwise a warning.
        """
        value = self.values.get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            value = _WORD.findall(value)
        return self._names(key, value, closed=closed)

    def patterns(self, key: str) -> tuple[str, ...]:
        """Return at most 256 globs, each once: a list, or one text with commas between.

        A comma inside braces is part of a glob.
        """
        value = self.values.get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            value = _split_outside_brackets(value, separators=",\n", opening="{", closing="}")
        return self._names(key, value)

    def tools(self, key: str) -> tuple[str, ...] | None:
        """Return at most 256 names of tools; None if the key is absent, empty if it names nothing.

        A value that cannot be read, or more names, are an error; so is a name with a colon before
        its brackets, except `namespace:<tag>`.
        """
        if key not in self.values:
            return None
        value = self.values[key]
        if value is None:
            self.warn(
                f"{_key_name(key)}.empty", f"{_key_name(key)} names no tool, so none is allowed"
            )
            return ()
        if isinstance(value, str):
            value = _split_outside_brackets(value, separators=", \t\n", opening="(", closing=")")
        kept = self._names(key, value, closed=True)
        for each in kept:
            # A colon inside brackets is a pattern for the tool before them, as in `Bash(git:*)`.
            if ":" in each.partition("(")[0] and not _TAG.fullmatch(each):
                why = f"{_key_name(key)}: {quote(each)} is no tool; write namespace:<tag>"
                self.fail(f"{_key_name(key)}.colon", why)
        return kept

    def json(self, key: str) -> str:
        """Return a field as canonical JSON text; "" if it is absent."""
        value = self.values.get(key)
        return "" if value is None else canonical(value).decode("utf-8")

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """Return at most 64 keys with texts; what is nested below them is JSON text.

        Return none for a value that is no mapping.
        """
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, dict):
            self.warn(f"{_key_name(key)}.type", f"{_key_name(key)} is no mapping; it is left out")
            return ()
        if len(value) > _PAIRS_MAX:
            why = f"{_key_name(key)} has {len(value)} keys; the first {_PAIRS_MAX} are kept"
            self.warn(f"{_key_name(key)}.long", why)
        nested = [name for name, each in value.items() if isinstance(each, list | dict)]
        if nested:
            self.warn(f"{_key_name(key)}.type", f"{_key_name(key)}: {quote(nested[0])} is not text")
        return tuple(
            (one_line_text(name), _flat(each)) for name, each in list(value.items())[:_PAIRS_MAX]
        )

    def _names(self, key: str, value: object, *, closed: bool = False) -> tuple[str, ...]:
        """Return at most 256 names of a list, each once; add a problem for each that is not one.

        With `closed`, a problem is an error, otherwise a warning. More names are a problem too.
        """
        tell = self.fail if closed else self.warn
        if not isinstance(value, list):
            tell(f"{_key_name(key)}.type", f"{_key_name(key)} is no list of names")
            return ()
        kept = []
        for each in value:
            if each is None:
                continue
            if not isinstance(each, str) or has_hidden(each.strip()) or len(each) > _WORD_CHARS_MAX:
                tell(f"{_key_name(key)}.type", f"{_key_name(key)}: {quote(str(each))} is no name")
            elif each.strip():
                kept.append(one_line_text(each))
        if len(kept) > _WORDS_MAX:
            tell(
                f"{_key_name(key)}.long",
                f"{_key_name(key)} has {len(kept)} entries; at most {_WORDS_MAX} are allowed",
            )
        return tuple(dict.fromkeys(kept[:_WORDS_MAX]))


def _key_name(key: str) -> str:
    return key.replace("_", "-") if key != "when_to_use" else key


def _flat(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical(value).decode("utf-8")


def _split_outside_brackets(text: str, *, separators: str, opening: str, closing: str) -> list[str]:
    """Split at separators that are not inside brackets. Strip the parts; leave out empty ones."""
    parts, part, depth = [], "", 0
    for each in text:
        depth += (each == opening) - (each == closing and depth > 0)
        if each in separators and not depth:
            parts.append(part)
            part = ""
        else:
            part += each
    return [each.strip() for each in (*parts, part) if each.strip()]


# Manifests: the statements of a skill's frontmatter, read leniently.
#
# Rule 1: a fault of form is a warning, and the skill loads. It does not if it has no description,
# no readable YAML or no usable name.
# Rule 2: fields that restrict a skill fail closed. A flag that cannot be read counts as set to the
# safe side, and tools or signers that cannot be read fail the skill.


# The keys of the public specification; with the keys of other clients, all that are read here.
SPEC_KEYS = frozenset(
    {"name", "description", "license", "compatibility", "metadata", "allowed_tools"}
)
KNOWN_KEYS = SPEC_KEYS | {
    "short", "when_to_use", "disable_model_invocation", "user_invocable", "paths", "context",
    "agent", "hooks", "model", "effort", "require_signature", "trusted_signers", "shell",
    "argument_hint", "requires_mcp",
}  # fmt: skip
# Keys of other clients that change nothing here; they are read, so that a skill can be shown whole.
UNUSED_KEYS = frozenset({"agent", "effort", "hooks", "requires_mcp", "shell"})
# A `model` that says no more than if it were left out.
_INHERITED = "inherit"
FORK = "fork"

# Limits of the public specification. Beyond them there is a warning, and the skill loads.
_NAME_CHARS_MAX = 64
_DESCRIPTION_CHARS_MAX = 1_024
_COMPATIBILITY_CHARS_MAX = 500
_SHORT_CHARS_MAX = 120
_KEYS_REPORTED_MAX = 8


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The statements of a skill about itself.

    `allowed_tools` are exact names, `namespace:<tag>` or `*`; None if it says nothing of tools, and
    empty if it is to have none. `model` is for model calls of programs; `context` is "fork" if a
    child run is to follow the instructions. `agent`, `effort`, `hooks`, `requires_mcp` and `shell`
    are read, and change nothing; `hooks` is canonical JSON text. Texts may have several lines;
    `short` and `name` have one.
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

    @property
    def own_model(self) -> str:
        """The model that it names, on one line; "" if it leaves the choice to the run."""
        named = one_line_text(self.model)
        return "" if named == _INHERITED else named

    @property
    def is_fork(self) -> bool:
        """True if a child run is to follow the instructions."""
        return self.context == FORK


def manifest_of(split: Split, *, directory: str) -> tuple[Manifest | None, tuple[Problem, ...]]:
    """Return the manifest of a file, None if a problem is an error, and all problems of the file.

    `directory` is the name of the skill's folder, which is used if the name is missing or not
    usable.
    """
    fields = Fields(split.fields or {}, list(split.problems))
    if fields.has_errors():
        return None, tuple(fields.problems)
    _warn_of_unknown(split.fields or {}, fields)
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
    return None if fields.has_errors() else manifest, tuple(fields.problems)


def _warn_of_unknown(found: Mapping[str, object], fields: Fields) -> None:
    unknown = [key for key in found if key not in KNOWN_KEYS]
    for key in unknown[:_KEYS_REPORTED_MAX]:
        fields.warn("key.unknown", f"{quote(key)} is no key that is known here")
    if len(unknown) > _KEYS_REPORTED_MAX:
        fields.warn("key.unknown", f"and {len(unknown) - _KEYS_REPORTED_MAX} more unknown keys")


def _name(fields: Fields, directory: str) -> str:
    """Return the name of a skill, or of its folder if it has no usable one.

    If the folder gives none either, add an error and return "". Add a warning for a name that is
    missing, unusable, long, or not that of the folder.
    """
    given = fields.text("name")
    name = usable_name(given)
    if name is not None:
        if len(name) > _NAME_CHARS_MAX:
            fields.warn(
                "name.long",
                f"the name has {len(name)} characters; at most {_NAME_CHARS_MAX} are allowed",
            )
        if name != folder_name(directory):
            why = f"the name {quote(name)} is not that of its folder, {quote(directory)}"
            fields.warn("name.folder", why)
        return name
    fallback = folder_name(directory)
    if fallback is None:
        fields.fail("name.unusable", f"no name, and the folder {quote(directory)} gives none")
        return ""
    if given:
        why = f"{quote(given)} cannot be a name; that of the folder is taken, {quote(fallback)}"
        fields.warn("name.unusable", why)
    else:
        fields.warn("name.missing", f"no name; that of the folder is taken, {quote(fallback)}")
    return fallback


def _description(fields: Fields) -> tuple[str, str]:
    """Return the description and its short form; each is used for the other if that is missing.

    A missing description is a problem: an error if the short form is missing too, else a warning.
    """
    description = fields.text("description", chars_max=_DESCRIPTION_CHARS_MAX)
    short = one_line_text(fields.text("short"))
    if not one_line_text(description):
        if not short:
            fields.fail("description.missing", "no description: a model cannot know when to use it")
        else:
            fields.warn("description.missing", "no description; `short` is taken for it")
        return short, short
    return description, short or _short_form(one_line_text(description))


def _context(fields: Fields) -> str:
    context = fields.text("context")
    if context not in {"", FORK}:
        why = f"context {quote(context)} is not used here; it may be {FORK!r}"
        fields.warn("context.unknown", why)
    return context


_FULL_STOPS = "\u3002\uff01\uff1f"
_ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "cf.", "incl.", "approx.")


def _short_form(line: str) -> str:
    """Return the first sentence, or as many words as fit, in at most 120 characters.

    Words that are cut off are shown by an ellipsis. An abbreviation ends no sentence.
    """
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
