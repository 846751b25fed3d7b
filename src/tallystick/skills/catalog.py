"""Fit the cards of a run's skills into a budget: the text for the prompt, and the evidence of it.

One function makes both, so they cannot disagree. Rules:

1. The text is at most as long as the effective budget: the budget, or what it takes to say that
   there are skills and how to find them, if that is more.
2. Cards are ranked in this order: pinned, matched (the better first), recently used, by id.
3. A card that does not fit whole is shown short, then by name. Only names that do not fit are left
   out. How many were left out is always said, with the way to reach them.
4. A skill that models may not load is not in the text and takes no room.
5. A card is one line, and one more for each of `when:` and `arguments:`. Whatever its texts hold,
   it cannot begin a line.

The room is distributed as follows. A name for every card comes first, in order: however long a card
is, those after it lose no more room than its name takes. The rest makes cards longer. First, up to
three of the pinned or matched cards are made as full as possible, one after the other. Then every
card is made short; then, if all are short, full in order.

Where the names alone would take all the room, those three still get up to half of it for their
words. With a thousand skills, eighty names tell a model less than forty names and the one
description it needs. A line of more than 133 characters for the name alone is longer than any
conforming name with its namespace. It waits until all others have their place, so that it cannot
crowd them out either.

Rejected: full cards in order until the room is used up, which hides the rest of the alphabet; names
by whichever is shorter, which shows one card more but shows fewer when the budget grows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import msgspec

from tallystick.core.errors import InvalidName
from tallystick.skills.format.frontmatter import has_hidden, one_line_text
from tallystick.skills.format.manifest import Card
from tallystick.skills.match import Match

# Evidence: why each skill is or is not in a catalog, and whether it was loaded or used.
#
# It is made by the function that fits the catalog, never read back from a prompt. Counts called
# `chars` are characters, counts called `bytes` are bytes of UTF-8; tokens are estimated, four
# characters each, rounded up.


# How much of a card is shown. `full` is the whole card, even if that is a name alone.
Form = Literal["full", "short", "name", "none"]
# `eligible`: a model may load it, but it had no part in this catalog.
Lifecycle = Literal["eligible", "shown", "omitted", "loaded", "used"]
OmittedReason = Literal["disable_model_invocation", "catalog_limit", "budget"]
# The way to a skill: it is listed; a program searches for it; a user names it; there is none.
Reachability = Literal["shown", "search", "user", "none"]

_CHARS_PER_TOKEN = 4


def tokens_of(length: int) -> int:
    """Return the estimated tokens of a text of this many characters: a quarter, rounded up."""
    return -(-length // _CHARS_PER_TOKEN)


def size_bytes(text: str) -> int:
    """Return the size of a text in bytes of UTF-8.

    Half of a surrogate pair, which no file can hold, counts three bytes.
    """
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class MatchEvidence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The score of a skill that was matched with the task, and the reason for it."""

    score: float
    reason: str


class ListedCard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One skill of a catalog: its card, whether it was shown, and whether it was loaded or used."""

    id: str
    name: str
    source: str
    description: str
    when_to_use: str
    disable_model_invocation: bool
    selected: bool
    omitted_reason: OmittedReason | None
    char_estimate: int
    token_estimate: int
    lifecycle: Lifecycle
    matched: MatchEvidence | None


class CardEvidence(ListedCard, frozen=True, kw_only=True, gc=False):
    """The evidence of one skill in a catalog.

    `char_estimate` is the size of its full form, `shown_chars` the size of the form in the text;
    both are without the newline before it. `rank` is its position in the order of fitting, counted
    from 1; 0 if it took no part. `used_by` names what of it was opened, run or called.
    """

    byte_estimate: int
    form: Form
    shown_chars: int
    shown_bytes: int
    rank: int
    pinned: bool
    reachability: Reachability
    used_by: tuple[str, ...]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog card by card, in the order they were given: what is shown, and what is left out.

    `shown` and `omitted` together hold every id. `eligible` are those beyond the catalog's limit,
    `order` those that were fitted, the most wanted first. `reachable` is true if every skill that a
    model may load is listed, or is found by the search that the text names. `unreachable` are those
    that neither a model nor a user can load.
    """

    schema_version: int = 2
    mode: Literal["default"] = "default"
    budget_chars: int
    effective_budget_chars: int
    used_chars: int
    used_bytes: int
    budget_tokens: int
    used_tokens: int
    shown: tuple[str, ...]
    omitted: tuple[str, ...]
    eligible: tuple[str, ...]
    order: tuple[str, ...]
    reachable: bool
    unreachable: tuple[str, ...]
    cards: tuple[CardEvidence, ...]


def reachability_of(card: Card, *, selected: bool) -> Reachability:
    """Return the way to reach a skill; `selected` is true if the catalog lists it.

    It is "shown" if listed, or else "search" if models may load it, "user" if only users may, and
    "none" if nobody may.
    """
    if selected:
        return "shown"
    if not card.disable_model_invocation:
        return "search"
    return "user" if card.user_invocable else "none"


# A card as lines of a catalog: whole, short, or by name.
#
# Texts come from strangers. White space becomes one space and hidden characters are left out, so
# that a text stays in its line. A backtick becomes an apostrophe, and the `<` of a tag `&lt;`: a
# text can neither end the code that holds an id, nor close a tag around the catalog, nor look
# like the marks between the turns of a chat. An id is written as in a Python string between double
# quotes, with backticks and `<` escaped too: whatever it holds, it ends where its backticks end,
# and what a model copies into `skills.load("...")` is that id.


_SHORT_CHARS_MAX = 120
_SENTENCE_CHARS_MIN = 20
_ESCAPED = frozenset('"\\`<')
# The beginning of a tag, also of one like <|im_end|>. "a < b" is not a tag.
_TAG = re.compile(r"<(?=[<>/!?|\[]|[^\W\d_])")


def card_forms(card: Card) -> tuple[tuple[Form, str], ...]:
    """Return the forms of a card, each longer than the one before: the name alone to the full text.

    A card without any text has one form, its name, which counts as full.
    """
    name = f"- `{quoted_id(card.id)}`"
    brief = without_marks(flat(card.short))
    text = without_marks(flat(card.description)) or brief
    when = without_marks(flat(card.when_to_use))
    full = f"{name}: {text}" if text else name
    if when:
        full = f"{full}\n  when: {when}"
    if card.argument_hint:
        full = f"{full}\n  arguments: {without_marks(flat(card.argument_hint))}"
    if len(full) == len(name):
        return (("full", name),)
    words = brief or text or when
    short = f"{name}: {short_text(words)}"
    if words and len(short) < len(full):
        return (("name", name), ("short", short), ("full", full))
    return (("name", name), ("full", full))


def flat(text: str) -> str:
    """Return a text as one line, as `one_line_text` does, but quickly if it is one line already."""
    # Most texts are one line already, and there may be a thousand cards. In every version of
    # Unicode, the space itself is the only printable white space. Of the hidden characters only
    # selectors are printable, and all of them begin with these two bytes.
    if (
        text.isprintable()
        and "  " not in text
        and text.strip() == text
        and (text.isascii() or b"\xf3\xa0" not in text.encode())
    ):
        return text
    return one_line_text(text)


def without_marks(text: str) -> str:
    """Return a text with backticks and the `<` of tags replaced.

    So no code begins or ends in it, and no tag.
    """
    return _TAG.sub("&lt;", text.replace("`", "'"))


def short_text(text: str) -> str:
    """Return a line of at most 120 characters.

    A longer one is cut after a sentence: at the first full stop before a space that has at least 20
    characters before it. Without one, it is cut after a word, with an ellipsis. One word that is
    longer is cut inside.
    """
    if len(text) <= _SHORT_CHARS_MAX:
        return text
    end = text.find(". ", _SENTENCE_CHARS_MIN, _SHORT_CHARS_MAX)
    if end >= 0:
        return text[: end + 1]
    cut = text[: _SHORT_CHARS_MAX - 1]
    return f"{cut.rpartition(' ')[0] or cut}…"


def quoted_id(id: str) -> str:
    """Return an id as it is written between the double quotes of a Python string."""
    if id.isascii() and id.isprintable() and _ESCAPED.isdisjoint(id):
        return id
    return "".join(map(_escape, id))


def _escape(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter != " " and (letter in "`<" or letter.isspace() or has_hidden(letter)):
        code = ord(letter)
        if code < 0x100:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return letter


# The catalog: the cards of a run's skills, fitted into a budget, and the evidence of it.


HEADER = (
    "Skills are instructions for certain tasks. If one below fits the task, let your first block "
    'be print(skills.load("ID")), then do what it says. print(skills.search("words")) finds more.'
)
# The header and the suffix name the search by this text. Without it in the catalog, a model cannot
# know how to find a skill that is not listed.
_SEARCH = "skills.search("
_LINE_CHARS_MAX = 133
_PREFERRED_MAX = 3
_NO_MATCHES: Mapping[str, Match] = MappingProxyType({})
_NOT_USED: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The text for a prompt, empty if there is no skill to show, and the evidence of it."""

    rendered: str
    evidence: Evidence


def suffix(omitted: int) -> str:
    """Return the line that says how many skills are not listed, and how to find them."""
    are, them = ("skill is", "it") if omitted == 1 else ("skills are", "them")
    return f'\n... {omitted} more {are} not listed. print(skills.search("words")) finds {them}.'


@dataclass(slots=True)
class _Entry:
    """A card while it is being fitted.

    `forms` begin with the shortest; `level` is the index of the chosen one, -1 for none.
    `preferred` marks the few that may be full before others are short.
    """

    card: Card
    forms: Sequence[tuple[Form, str]]
    preferred: bool = False
    level: int = -1

    @property
    def name_cost(self) -> int:
        return len(self.forms[0][1]) + 1

    @property
    def full_cost(self) -> int:
        return len(self.forms[-1][1]) + 1

    @property
    def long_name(self) -> bool:
        return self.name_cost > _LINE_CHARS_MAX + 1

    @property
    def chosen(self) -> tuple[Form, str]:
        return self.forms[self.level] if self.level >= 0 else ("none", "")

    def grow(self, level: int, left: int) -> int:
        """Take the form of this level if it is longer and fits; return the room that is left."""
        level = min(level, len(self.forms) - 1)
        cost = len(self.forms[level][1]) - len(self.forms[self.level][1])
        if level <= self.level or cost > left:
            return left
        self.level = level
        return left - cost


def fit_catalog(
    cards: Sequence[Card],
    *,
    budget_chars: int = 2_000,
    catalog_limit: int | None = None,
    pinned: Collection[str] = (),
    matched: Mapping[str, Match] = _NO_MATCHES,
    recent: Sequence[str] = (),
    loaded: Collection[str] = (),
    used: Mapping[str, tuple[str, ...]] = _NOT_USED,
) -> Catalog:
    """Fit cards into a budget of characters; return the text and its evidence.

    At most `catalog_limit` cards are listed, the most wanted; the text is "" if models may load
    none. A budget too small for the header and the line about the others counts as room for both.
    `pinned`, `recent` and `loaded` are ids, the latest first in `recent`; `used` names, for an id,
    what was opened, run or called. `loaded` and `used` are for the evidence alone. The result
    depends on the arguments alone. Raise `InvalidName` if an id is empty or not unique.
    """
    entries = _entries(cards)
    wanted = _in_order(entries, pinned=frozenset(pinned), matched=matched, recent=recent)
    order = wanted if catalog_limit is None else wanted[: max(catalog_limit, 0)]
    budget = max(budget_chars, 0)
    effective = max(budget, len(HEADER) + len(suffix(len(wanted)))) if wanted else budget
    _fit(order, room=effective - len(HEADER), wanted=len(wanted))
    rendered = _render(order, wanted=len(wanted))
    known = _RunFacts(
        ranks={entry.card.id: rank for rank, entry in enumerate(order, 1)},
        pinned=frozenset(pinned),
        matched=dict(matched),
        loaded=frozenset(loaded),
        used=dict(used),
    )
    evidence = tuple(_card_evidence(entry, known) for entry in entries)
    return Catalog(
        rendered=rendered,
        evidence=Evidence(
            budget_chars=budget,
            effective_budget_chars=effective,
            used_chars=len(rendered),
            used_bytes=size_bytes(rendered),
            budget_tokens=tokens_of(budget),
            used_tokens=tokens_of(len(rendered)),
            shown=tuple(each.id for each in evidence if each.selected),
            omitted=tuple(each.id for each in evidence if not each.selected),
            eligible=tuple(e.id for e in evidence if e.omitted_reason == "catalog_limit"),
            order=tuple(known.ranks),
            reachable=_SEARCH in rendered or all(entry.level >= 0 for entry in wanted),
            unreachable=tuple(each.id for each in evidence if each.reachability == "none"),
            cards=evidence,
        ),
    )


def _entries(cards: Sequence[Card]) -> list[_Entry]:
    entries = [_Entry(card=card, forms=card_forms(card)) for card in cards]
    if len({card.id for card in cards}) < len(cards) or any(not card.id for card in cards):
        ids = sorted(card.id for card in cards)
        given = next(a for a, b in zip(ids, ["", *ids], strict=False) if a == b)
        raise InvalidName(what="skill", given=given, why="each skill needs an id of its own")
    return entries


def _in_order(
    entries: Sequence[_Entry],
    *,
    pinned: frozenset[str],
    matched: Mapping[str, Match],
    recent: Sequence[str],
) -> list[_Entry]:
    """Return the entries that a model may load, the most wanted first.

    Those among the first three that are pinned or matched are marked as preferred.
    """
    latest = {id: place for place, id in reversed(list(enumerate(recent)))}
    never = len(recent)

    def key(entry: _Entry) -> tuple[bool, bool, float, int, str]:
        id = entry.card.id
        match = matched.get(id)
        return (
            id not in pinned,
            match is None,
            -_score(match) if match else 0.0,
            latest.get(id, never),
            id,
        )

    invocable = (entry for entry in entries if not entry.card.disable_model_invocation)
    ordered = sorted(invocable, key=key)
    for entry in ordered[:_PREFERRED_MAX]:
        entry.preferred = entry.card.id in pinned or entry.card.id in matched
    return ordered


def _fit(order: Sequence[_Entry], *, room: int, wanted: int) -> None:
    """Choose the form of each entry. `room` is what the header leaves; `wanted` counts all cards.

    More room never shows fewer cards, nor the first card in a lesser form: each amount below grows
    with the room, and so does what is left for names.
    """
    tail = len(suffix(wanted))
    names = sum(entry.name_cost for entry in order)
    whole = room - tail if len(order) < wanted else room
    if names <= whole - _room_for_words(order, whole):
        for entry in order:
            entry.level = 0
        _grow(order, left=whole - names)
        return
    kept = _room_for_words(order, room - tail)
    left = room - tail - kept
    listed = []
    for entry in sorted(order, key=lambda e: (e.long_name, e.name_cost if e.long_name else 0)):
        left -= entry.name_cost
        if left < 0:
            break
        entry.level = 0
        listed.append(entry)
    _grow([entry for entry in order if entry.level >= 0], left=kept)


def _room_for_words(order: Sequence[_Entry], room: int) -> int:
    """Return the room kept for the words of the preferred cards: at most half, if they need it."""
    preferred = [entry for entry in order if entry.preferred and not entry.long_name]
    names = sum(entry.name_cost for entry in preferred)
    full = sum(entry.full_cost for entry in preferred)
    return min(max(room - names, 0) // 2, full - names)


def _grow(listed: Sequence[_Entry], *, left: int) -> None:
    """Make cards longer with `left`, the room that their names leave.

    First the preferred ones are made full, or else short; then all are made short. Only if none is
    left by name, the others are made full.
    """
    for entry in listed:
        if entry.preferred:
            left = entry.grow(2, left)
            left = entry.grow(1, left)
    for entry in listed:
        left = entry.grow(1, left)
    # A card that is neither pinned nor matched becomes full only when every card has some words.
    if all(entry.level > 0 or len(entry.forms) == 1 for entry in listed):
        for entry in listed:
            left = entry.grow(2, left)


def _render(order: Sequence[_Entry], *, wanted: int) -> str:
    if not wanted:
        return ""
    lines = [entry.chosen[1] for entry in order if entry.level >= 0]
    text = "\n".join([HEADER, *lines])
    return text + suffix(wanted - len(lines)) if len(lines) < wanted else text


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunFacts:
    """The facts about a run's skills that are not on their cards."""

    ranks: Mapping[str, int]
    pinned: frozenset[str]
    matched: Mapping[str, Match]
    loaded: frozenset[str]
    used: Mapping[str, tuple[str, ...]]


def _card_evidence(entry: _Entry, known: _RunFacts) -> CardEvidence:
    card = entry.card
    form, shown = entry.chosen
    full = entry.forms[-1][1]
    reason = _reason(entry, known)
    match = known.matched.get(card.id)
    return CardEvidence(
        id=card.id,
        name=card.name,
        source=card.source,
        description=card.description,
        when_to_use=card.when_to_use,
        disable_model_invocation=card.disable_model_invocation,
        selected=reason is None,
        omitted_reason=reason,
        char_estimate=len(full),
        token_estimate=tokens_of(len(full)),
        lifecycle=_lifecycle(card.id, reason, known),
        matched=MatchEvidence(score=_score(match), reason=match.reason) if match else None,
        byte_estimate=size_bytes(full),
        form=form,
        shown_chars=len(shown),
        shown_bytes=size_bytes(shown),
        rank=known.ranks.get(card.id, 0),
        pinned=card.id in known.pinned,
        reachability=reachability_of(card, selected=reason is None),
        used_by=tuple(known.used.get(card.id, ())),
    )


def _reason(entry: _Entry, known: _RunFacts) -> OmittedReason | None:
    if entry.card.disable_model_invocation:
        return "disable_model_invocation"
    if entry.card.id not in known.ranks:
        return "catalog_limit"
    return None if entry.level >= 0 else "budget"


def _lifecycle(id: str, reason: OmittedReason | None, known: _RunFacts) -> Lifecycle:
    if id in known.used:
        return "used"
    if id in known.loaded:
        return "loaded"
    if reason is None:
        return "shown"
    return "eligible" if reason == "catalog_limit" else "omitted"


def _score(match: Match) -> float:
    # NaN and infinity cannot be sorted reliably, nor written as JSON.
    return match.score if math.isfinite(match.score) else 0.0
