"""Read docstrings in the styles of Google, NumPy and reST: the text, and a line for each argument.

A docstring in no style is all text. Sections that a model does not need, such as examples, stay in
the text: `help` shows it to a program.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_GOOGLE = re.compile(r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments):\s*")
_NUMPY = re.compile(r"(Parameters|Other Parameters)\s*")
_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Keyword Args|Keyword Arguments|Returns?|Yields?|Raises|"
    r"Examples?|Notes?|Attributes|Warns|Warnings?|See Also|References|Todo|Other Parameters):?\s*"
)
_UNDERLINE = re.compile(r"-{3,}\s*")
# `name: text`, `name (type): text`; stars, for text that has them.
_GOOGLE_ITEM = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
# `name`, `name : type`, `one, other : type`
_NUMPY_ITEM = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_REST_ITEM = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:(?P<text>.*)"
)
_REST_FIELD = re.compile(r":\w+[^:]*:")


@dataclass(frozen=True, slots=True)
class Described:
    """A docstring: its first paragraph in one line, and a line for each argument it describes."""

    summary: str
    arguments: Mapping[str, str]


def described(docstring: str | None) -> Described:
    """Return what a docstring says. Without one, the summary is empty."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    summary = _joined(_first_paragraph(lines))
    return Described(summary, {**_rest(lines), **_sections(lines)})


def _first_paragraph(lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        heads = _SECTION.fullmatch(line) and (line.rstrip().endswith(":") or _is_rule(after))
        if not line.strip() or heads or _REST_FIELD.match(line):
            return
        yield line


def _is_rule(line: str) -> bool:
    return _UNDERLINE.fullmatch(line) is not None


def _joined(lines: Iterator[str] | Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def _rest(lines: Sequence[str]) -> dict[str, str]:
    """Return the arguments of reST fields; a field goes on in lines that are indented."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        item = _REST_ITEM.match(line)
        if item is not None:
            current = found[item["name"]] = [item["text"]]
        elif line[:1].isspace() and line.strip():
            current.append(line)
        else:
            current = []
    return {name: _joined(said) for name, said in found.items()}


def _sections(lines: Sequence[str]) -> dict[str, str]:
    """Return the arguments in the sections of Google's and of NumPy's style."""
    found: dict[str, str] = {}
    number = 0
    while number < len(lines):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        if _NUMPY.fullmatch(lines[number]) and _is_rule(after):
            body = list(_until_section(lines, number + 2))
            found |= _items(body, _numpy_names)
        elif _GOOGLE.fullmatch(lines[number]):
            body = [line for line in _until_section(lines, number + 1) if _is_inside(line)]
            found |= _items(body, _google_names)
        number += 1
    return found


def _is_inside(line: str) -> bool:
    return not line.strip() or line[:1].isspace()


def _until_section(lines: Sequence[str], start: int) -> Iterator[str]:
    for number in range(start, len(lines)):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        head = _SECTION.fullmatch(lines[number])
        if head and (lines[number].rstrip().endswith(":") or _is_rule(after)):
            return
        yield lines[number]


def _items(body: Sequence[str], names_in: object) -> dict[str, str]:
    """Return the items of a section. An item begins at the smallest indent, and goes on deeper."""
    assert callable(names_in)
    filled = [line for line in body if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    found: dict[str, list[str]] = {}
    current: list[list[str]] = []
    for line in filled:
        if len(line) - len(line.lstrip()) > indent:
            for each in current:
                each.append(line)
            continue
        names, said = names_in(line.strip())
        current = [found.setdefault(name, []) for name in names]
        for each in current:
            each.append(said)
    return {name: _joined(said) for name, said in found.items() if _joined(said)}


def _google_names(line: str) -> tuple[list[str], str]:
    item = _GOOGLE_ITEM.fullmatch(line)
    return ([], "") if item is None else ([item["name"]], item["text"])


def _numpy_names(line: str) -> tuple[list[str], str]:
    item = _NUMPY_ITEM.fullmatch(line)
    if item is None:
        return [], ""
    return [name.strip().lstrip("*") for name in item["names"].split(",")], ""
