"""Lines: text of strangers made fit for one line of a catalog, a terminal or a message."""

from __future__ import annotations

import re

__all__ = ["hidden", "one_line", "quoted"]

# What is not seen, or turns what is seen around: control characters, marks of direction, breaks of
# lines, characters without width, the tags and selectors that can spell hidden text, and halves of
# pairs. The two joiners stay: Persian and emoji are written with them. The list is spelled out, not
# asked of the interpreter's tables, so that every version of Python gives the same text.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e01ef]"
)
_QUOTED_CHARS_MAX = 60


def hidden(text: str) -> bool:
    """Whether a text has characters that are not seen where it is shown."""
    return _HIDDEN.search(text) is not None


def one_line(text: str) -> str:
    """A text as one line: white space is one space, and what cannot be seen is left out."""
    line = " ".join(text.split())
    if hidden(line):
        line = " ".join(_HIDDEN.sub("", line).split())
    return line


def quoted(text: str) -> str:
    """A short piece of a text for a message, in quotes."""
    line = one_line(text[: _QUOTED_CHARS_MAX * 4])
    cut = line if len(line) <= _QUOTED_CHARS_MAX else f"{line[:_QUOTED_CHARS_MAX]}…"
    return f"'{cut}'"
