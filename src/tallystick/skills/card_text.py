"""A card as lines of a catalog: whole, short, or by name.

Texts come from strangers. White space becomes one space and what cannot be seen is left out, so
that a text stays in its line. An id is written as it stands in a Python string between double
quotes, with backticks escaped too: whatever it holds, it ends where its backticks end, and what a
model copies into `skills.load("...")` is that id.
"""

from __future__ import annotations

from tallystick.skills.card import Card
from tallystick.skills.evidence import Form
from tallystick.skills.line import hidden, one_line

__all__ = ["card_forms", "flat", "quoted_id", "shortened"]

_SHORT_CHARS_MAX = 120
_SENTENCE_CHARS_MIN = 20
_ESCAPED = frozenset('"\\`')


def card_forms(card: Card) -> tuple[tuple[Form, str], ...]:
    """The forms of a card from the least to the full one, each longer than the one before."""
    name = f"- `{quoted_id(card.id)}`"
    brief = flat(card.short)
    text = flat(card.description) or brief
    when = flat(card.when_to_use)
    full = f"{name}: {text}" if text else name
    if when:
        full = f"{full}\n  when: {when}"
    if len(full) == len(name):
        return (("full", name),)
    short = f"{name}: {shortened(brief or text or when)}"
    if len(short) < len(full):
        return (("name", name), ("short", short), ("full", full))
    return (("name", name), ("full", full))


def flat(text: str) -> str:
    """A text as one line."""
    # Most texts are in order already, and this is asked of each of a thousand cards. In no version
    # of Unicode is white space printable, but for the space itself; and of what cannot be seen
    # only selectors are, all of which begin with these two bytes.
    if (
        text.isprintable()
        and "  " not in text
        and text.strip() == text
        and (text.isascii() or b"\xf3\xa0" not in text.encode())
    ):
        return text
    return one_line(text)


def shortened(text: str) -> str:
    """The first sentence of a line that is long, or as many of its words as there is room for."""
    if len(text) <= _SHORT_CHARS_MAX:
        return text
    end = text.find(". ", _SENTENCE_CHARS_MIN, _SHORT_CHARS_MAX)
    if end >= 0:
        return text[: end + 1]
    cut = text[: _SHORT_CHARS_MAX - 1]
    return f"{cut.rpartition(' ')[0] or cut}…"


def quoted_id(id: str) -> str:
    """An id as it is written between the double quotes of a Python string."""
    if id.isascii() and id.isprintable() and _ESCAPED.isdisjoint(id):
        return id
    return "".join(map(_quoted, id))


def _quoted(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter != " " and (letter == "`" or letter.isspace() or hidden(letter)):
        code = ord(letter)
        if code < 0x100:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return letter
