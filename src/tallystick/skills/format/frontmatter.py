"""Separate the frontmatter of a SKILL.md, the YAML at its head, from the instructions below it.

Rule 1: no file makes this module raise. Faults come out as problems.
Rule 2: values are text, lists and mappings of text, or None (`tallystick.skills.format.yaml_head`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

# Lines: text of strangers made fit for one line of a catalog, a terminal or a message.


# Characters that are not seen, or that change the order of those that are: control characters,
# marks of direction, line breaks, characters without width, the tags and selectors that can spell
# hidden text, and halves of surrogate pairs. The two joiners stay: Persian and emoji are written
# with them. The list is spelled out instead of taken from the interpreter's tables, so that every
# version of Python gives the same text.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e01ef]"
)
_QUOTED_CHARS_MAX = 60


def has_hidden(text: str) -> bool:
    """Return True if a text has characters that are not seen where it is shown."""
    return _HIDDEN.search(text) is not None


def one_line_text(text: str) -> str:
    """Return a text as one line: white space is one space, and hidden characters are left out."""
    line = " ".join(text.split())
    if has_hidden(line):
        line = " ".join(_HIDDEN.sub("", line).split())
    return line


def quote(text: str) -> str:
    """Return a text on one line and in single quotes, for a message.

    Only its first 240 characters are read. A line of more than 60 is cut, with an ellipsis.
    """
    line = one_line_text(text[: _QUOTED_CHARS_MAX * 4])
    cut = line if len(line) <= _QUOTED_CHARS_MAX else f"{line[:_QUOTED_CHARS_MAX]}…"
    return f"'{cut}'"


# Problems: the faults of a skill, as they are shown to its author or user.


Level = Literal["error", "warning"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a skill. With an error a skill cannot be used; with a warning it can.

    `code` is stable and dotted, `message` one line that is safe to print.
    """

    level: Level
    code: str
    message: str


# Frontmatter: the YAML at the head of a SKILL.md, separated from the instructions below it.


FILE_BYTES_MAX = 1_000_000
FRONTMATTER_BYTES_MAX = 64_000

_BOM = b"\xef\xbb\xbf"
_FENCE = re.compile(r"--- *")
_OPENING = re.compile(r"---[ \t]*(#.*)?")
_LIKE_FENCE = re.compile(r"[ \t]*-{3,}[ \t]*")
_BREAKS = re.compile("[\x85\u2028\u2029]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A file in its parts.

    `fields` is None if there is no frontmatter, or if it cannot be read; in the second case there
    is an error among the `problems`. Its keys are spelled with underscores; `keys` has them as
    written. `strict` are faults that matter to other clients and not to this one.
    """

    fields: Mapping[str, object] | None
    body: str
    problems: tuple[Problem, ...] = ()
    keys: tuple[str, ...] = ()
    strict: tuple[Problem, ...] = ()


def split(raw: bytes) -> Split:
    """Split a file into frontmatter and body.

    All line ends become newlines; a byte-order mark is dropped, and so are empty lines around the
    body. Without frontmatter, all of the file is the body.

    Nothing is raised: faults are in `problems`. A file of more than 1,000,000 bytes, or a binary
    one, is not read: its body is "". Frontmatter of more than 64,000 bytes is an error.
    """
    if len(raw) > FILE_BYTES_MAX:
        why = f"the file has {len(raw):,} bytes; {FILE_BYTES_MAX:,} are read"
        return Split(fields=None, body="", problems=(_problem("error", "file.large", why),))
    problems: list[Problem] = []
    text = _decode(raw, problems)
    if text is None:
        return Split(fields=None, body="", problems=tuple(problems))
    lines = text.split("\n")
    start = next((at for at, line in enumerate(lines) if line.strip()), 0)
    if not _OPENING.fullmatch(lines[start]):
        problems.append(_problem("warning", "frontmatter.missing", "it does not begin with ---"))
        return Split(fields=None, body=_trim(text), problems=tuple(problems))
    end = _closing_line(lines, start + 1)
    if end is None:
        problems.append(_problem("error", "frontmatter.unclosed", "no second --- closes it"))
        return Split(fields=None, body=_trim(text), problems=tuple(problems))
    if start:
        why = "there are blank lines above the first ---"
        problems.append(_problem("warning", "frontmatter.late", why))
    if not (_FENCE.fullmatch(lines[start]) and _FENCE.fullmatch(lines[end])):
        why = "it is not between two lines of three hyphens and nothing more"
        problems.append(_problem("warning", "frontmatter.fence", why))
    # YAML 1.1 ends a line at these, and 1.2 does not: a key could hide after one.
    source = "".join(f"{_BREAKS.sub(' ', line)}\n" for line in lines[start + 1 : end])
    return _read_fields(source, _trim("\n".join(lines[end + 1 :])), problems)


def _closing_line(lines: list[str], start: int) -> int | None:
    """Return the index of the line that closes a frontmatter; None if there is none.

    A line of more than three hyphens, or an indented one, closes it only if there is no exact one.
    """
    within = range(start, len(lines))
    exact = next((at for at in within if _FENCE.fullmatch(lines[at])), None)
    if exact is not None:
        return exact
    return next((at for at in within if _LIKE_FENCE.fullmatch(lines[at])), None)


def _read_fields(source: str, body: str, problems: list[Problem]) -> Split:
    """Read the frontmatter; return it with the body and all problems.

    New problems are added to `problems`. If the frontmatter cannot be used, `fields` is None.
    """
    # The library takes longer to import than most commands do without it.
    from tallystick.skills.format.yaml_head import Reading, Unusable, parse, quote_texts

    reading = Reading()
    try:
        if len(source.encode("utf-8", "replace")) > FRONTMATTER_BYTES_MAX:
            why = f"the frontmatter has more than {FRONTMATTER_BYTES_MAX:,} bytes"
            raise Unusable("frontmatter.large", why, final=True)
        try:
            fields = parse(source, reading)
        except Unusable as first:
            if first.final:
                raise
            fields = quote_texts(source, reading, first)
            why = f"not YAML as written ({first.why}); read as if the text were in quotes"
            problems.append(_problem("warning", "yaml.mended", why))
    except Unusable as error:
        problems.append(_problem("error", error.code, error.why))
        return Split(fields=None, body=body, problems=tuple(problems))
    problems += [
        _problem("warning", "yaml.duplicate", f"{quote(key)} is there twice; the last one counts")
        for key in reading.duplicates[:5]
    ]
    strict = []
    if reading.flow:
        why = "a list or mapping in brackets; the reference validator refuses it"
        strict.append(_problem("error", "yaml.flow", why))
    if "---" in source:
        why = "there are three hyphens in it; some clients take them for its end"
        strict.append(_problem("warning", "frontmatter.dashes", why))
    if "\t" in source:
        why = "there are tabs in it; some clients refuse them outside of quotes"
        strict.append(_problem("warning", "yaml.tab", why))
    return Split(
        fields=fields,
        body=body,
        problems=tuple(problems),
        keys=tuple(reading.keys),
        strict=tuple(strict),
    )


def _problem(level: Level, code: str, message: str) -> Problem:
    return Problem(level=level, code=code, message=message)


def _decode(raw: bytes, problems: list[Problem]) -> str | None:
    """Return a file's text with newlines as line ends; None, with an error, if it is binary.

    Errors and warnings are added to `problems`. Bytes that are not UTF-8 become U+FFFD, with a
    warning, and so a byte-order mark is left out.
    """
    if raw.startswith(_BOM):
        problems.append(_problem("warning", "encoding.bom", "it begins with a byte-order mark"))
        raw = raw.removeprefix(_BOM)
    if b"\0" in raw:
        why = "it has NUL bytes: it is binary, or not UTF-8"
        problems.append(_problem("error", "encoding.binary", why))
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        why = f"not UTF-8 at byte {error.start:,}; such bytes are read as U+FFFD"
        problems.append(_problem("warning", "encoding.utf8", why))
        text = raw.decode("utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _trim(body: str) -> str:
    return body.strip("\n").rstrip()
