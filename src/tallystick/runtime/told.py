"""What a model is told of its data: names, shapes and parts, never more than fits a short prompt.

A text is told by its shape, or by parts of it if it has none or stays on the host. Of several texts
some are told; of a corpus of many files their first names and a few parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.runtime.shapes import Shape, described
from tallystick.runtime.variables import called, view_name
from tallystick.sandbox.text import HostText

__all__ = [
    "FILES_SHOWN",
    "WHOLE_CHARS_MAX",
    "files_shown",
    "told_in_short",
    "told_of",
    "told_of_corpus",
    "told_of_long",
    "told_of_names",
]

FILES_SHOWN = 4
_SAMPLE_CHARS = 300
WHOLE_CHARS_MAX = 1_500
_WHOLE_OF_SEVERAL_CHARS_MAX = 400
_NAMES_SHOWN = 20
# More files than names are shown are many: then little is told of each.
_OF_MANY_SHOWN = 2
_OF_MANY_CHARS_MAX = 500
_OF_MANY_WHOLE_CHARS_MAX = 200
_OF_MANY_SAMPLE_CHARS = 80
_NAMES_CHARS_MAX = 4_000
_OF_MANY_NAMES_CHARS_MAX = 500


def files_shown(count: int, *, at_most: int) -> int:
    """Of how many files in a variable more is told than their names."""
    return min(at_most, count if count <= _NAMES_SHOWN else _OF_MANY_SHOWN)


def told_of_names(variable: str, names: Sequence[str]) -> str:
    """For several files: that they are a dictionary, and its keys."""
    many = len(names) > _NAMES_SHOWN
    left = _OF_MANY_NAMES_CHARS_MAX if many else _NAMES_CHARS_MAX
    shown: list[str] = []
    for name in names[:_NAMES_SHOWN]:
        left -= len(repr(name))
        if left < 0 and shown:
            break
        shown.append(_cut(repr(name), _NAMES_CHARS_MAX))
    more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    return f"`{variable}` is a dict of texts by file name: {', '.join(shown)}{more}."


def told_of_corpus(variable: str) -> str:
    """What can be done with texts on the host all at once."""
    return (
        f"They stay outside: {variable}.grep(pattern) gives (name, line number, line) for each "
        f"line that matches in any of them, {variable}.search(pattern) gives (name, start, end, "
        "text) of each match."
    )


def told_of(
    text: str, shape: Shape, *, of: str, key: str | None, alone: bool, count: int, question: str
) -> tuple[str, bool]:
    """A text in the guest, one of `count` in its variable; and whether all of it is shown.

    One that is `alone` is all the data there is.
    """
    name = called(of, key)
    many = count > _NAMES_SHOWN
    told = described(shape, of=of, key=key, question=question)
    told = _cut(told, _OF_MANY_CHARS_MAX) if many else told
    whole = WHOLE_CHARS_MAX if alone else _WHOLE_OF_SEVERAL_CHARS_MAX
    if len(text) <= (_OF_MANY_WHOLE_CHARS_MAX if many else whole):
        return f"`{name}` is this text (str), whole:\n{text}\n{told}", True
    if shape.prose:
        lines = called(view_name(shape.name, of), key)
        parts = _sample(HostText.of(text), count=count)
        return (
            f"`{name}` is a long text (str), `{lines}` the list of its lines. Parts:\n{parts}",
            False,
        )
    # Of a text that was taken apart, the whole is not named: weak models would parse it again.
    return told, False


def told_of_long(text: HostText, *, of: str, key: str | None, count: int) -> str:
    """A text on the host, one of `count` in its variable."""
    name = called(of, key)
    parts = _sample(text, count=count)
    if count > _NAMES_SHOWN:
        return f"Parts of {name}:\n{parts}"
    return (
        f"`{name}` is a long text that stays outside: slice it ({name}[0:500]), or find in it with "
        f"{name}.search(pattern), which gives (start, end, text) of each match. Parts of it:\n"
        f"{parts}"
    )


def told_in_short(shape: Shape | None, *, of: str, key: str | None) -> str:
    """One line for a text of which no more is told. Without a shape it stays on the host."""
    name = called(of, key)
    if shape is None:
        return f"`{name}` is a long text that stays outside: slice it, or use {name}.search."
    return f"`{name}` is a text (str), `{called(view_name(shape.name, of), key)}` is {shape.says}."


def _cut(told: str, chars_max: int) -> str:
    return told if len(told) <= chars_max else f"{told[:chars_max]}..."


def _sample(text: HostText, *, count: int) -> str:
    """Head, middle and tail of a long text."""
    size = _SAMPLE_CHARS if count <= _NAMES_SHOWN else _OF_MANY_SAMPLE_CHARS
    chars = text.length()
    if chars <= 3 * size:
        return text.slice(0, chars)
    middle = chars // 2
    parts = [
        text.slice(0, size),
        text.slice(middle - size // 2, middle + size // 2),
        text.slice(chars - size, chars),
    ]
    return "\n[...]\n".join(parts)
