"""Search: what `skills.search` gives to programs, by the words of the cards.

Programs are written by models, and a model that does not know what there is asks in its own words.
So case, punctuation and endings do not count, the beginning of a word finds it, and a word that is
in no card costs nothing. Words that are in few cards count more than words that are in many; a
word of a name counts more than one of a description. Ties are in the order of the ids: the same
cards and the same query give the same list everywhere.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tallystick.skills.card import Card
from tallystick.skills.match import Match
from tallystick.skills.stem import stem

__all__ = ["search"]

_QUERY_CHARS_MAX = 2_000
_QUERY_WORDS_MAX = 32
_TEXT_CHARS_MAX = 4_000
_WORDS_SHOWN = 5
_WORDS_USUAL = 60
# How much one word counts in each field; a second time it counts less and less.
_NAME, _SHORT, _WHEN, _DESCRIPTION = 3.0, 1.5, 1.5, 1.0
_SATURATION = 1.2
# How much of it a card keeps whose words only begin with, or only contain, the one that was asked.
_BEGINS, _CONTAINS = 0.6, 0.3
_BEGINS_CHARS_MIN, _CONTAINS_CHARS_MIN = 3, 4
# A query that is the id, or the name, means that skill.
_IS_ID, _IS_NAME = 200.0, 100.0
_LISTED = "listed"

# Runs of letters and digits. A capital after a small letter begins a word: `readPdf` is two.
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Words that say nothing of what a skill is about.
_STOP = frozenset(
    _WORD.findall(
        "a about all an and any are as at be by can do does find for from get give have help how "
        "i in into is it its list make me my need of on or our out please should skill skills so "
        "some that the them then there these this to up use used using want we what when where "
        "which with work would you your"
    )
)


def search(cards: Iterable[Card], query: str, *, k: int = 10) -> tuple[Match, ...]:
    """The `k` skills that fit a query best, of those that a model may load.

    A query without words, or of none but such as `all` and `skills`, lists them by id.
    """
    invocable = sorted(
        (card for card in cards if not card.disable_model_invocation), key=lambda card: card.id
    )
    k = max(k, 0)
    asked = _asked(query)
    whole = _plain(query)
    exact = any(whole in (_plain(each.id), _plain(each.name)) for each in invocable)
    if not whole or not (asked or exact):
        return tuple(Match(id=card.id, score=0.0, reason=_LISTED) for card in invocable[:k])
    scores: dict[int, float] = defaultdict(float)
    words: dict[int, list[str]] = defaultdict(list)
    known = 0
    for said, scored in zip(asked.values(), _scored(invocable, list(asked)), strict=True):
        known += bool(scored)
        for place, score in scored.items():
            scores[place] += score
            words[place].append(said)
    found = []
    for place, card in enumerate(invocable):
        is_id, is_name = whole == _plain(card.id), whole == _plain(card.name)
        # A word that no card has is not held against any.
        score = scores[place] * len(words[place]) / max(known, 1)
        score += _IS_ID * (query == card.id) + _IS_ID * is_id + _IS_NAME * is_name
        if score > 0:
            reason = _reason(words[place], of=len(asked), exact=is_id or is_name)
            found.append(Match(id=card.id, score=round(score, 6), reason=reason))
    found.sort(key=lambda match: (-match.score, match.id))
    return tuple(found[:k])


def _scored(cards: Sequence[Card], asked: Sequence[str]) -> list[dict[int, float]]:
    """For each word that is asked, the cards that have it or one like it, and how well it fits.

    Only words like those that are asked are counted: most of the words of a thousand cards are not.
    """
    fields = [_fields(card) for card in cards]
    vocabulary = frozenset().union(*(words for card in fields for _, words in card))
    alike = _alike(vocabulary, asked)
    relevant = frozenset(alike)
    counts: dict[tuple[int, str, float], dict[int, float]] = defaultdict(dict)
    for place, card in enumerate(fields):
        for weight, words in card:
            for word in relevant & words:
                for key in alike[word]:
                    counts[key][place] = counts[key].get(place, 0.0) + weight
    best: list[dict[int, float]] = [{} for _ in asked]
    for (which, _, share), places in counts.items():
        rarity = math.log(1 + (len(cards) - len(places) + 0.5) / (len(places) + 0.5))
        for place, weight in places.items():
            score = share * rarity * weight / (weight + _SATURATION)
            best[which][place] = max(best[which].get(place, 0.0), score)
    return best


def _fields(card: Card) -> list[tuple[float, frozenset[str]]]:
    """The words of each field of a card, and how much they count."""
    name = card.id if card.name in card.id else f"{card.id} {card.name}"
    fields = [(_NAME, frozenset(_words(_HUMP.sub(" ", name))))]
    for weight, text in (
        (_SHORT, card.short),
        (_WHEN, card.when_to_use),
        (_DESCRIPTION, card.description),
    ):
        if words := frozenset(_words(text[:_TEXT_CHARS_MAX])):
            # A text that names everything says little about each.
            fields.append((weight * min(1.0, math.sqrt(_WORDS_USUAL / len(words))), words))
    return fields


def _alike(words: Iterable[str], asked: Sequence[str]) -> dict[str, list[tuple[int, str, float]]]:
    """The words that are like one that is asked: which, by what root, and how much alike."""
    found: dict[str, list[tuple[int, str, float]]] = {}
    for word in words:
        root = stem(word)
        keys = [
            (which, root, share)
            for which, wanted in enumerate(asked)
            if (share := _share(root, wanted)) > 0
        ]
        if keys:
            found[word] = keys
    return found


def _share(root: str, wanted: str) -> float:
    if root == wanted:
        return 1.0
    if root.startswith(wanted):
        return _BEGINS * _likeness(root, wanted) if len(wanted) >= _BEGINS_CHARS_MIN else 0.0
    if wanted.startswith(root):
        return _BEGINS * _likeness(root, wanted) if len(root) > _BEGINS_CHARS_MIN else 0.0
    if wanted in root and len(wanted) >= (_CONTAINS_CHARS_MIN if wanted.isascii() else 2):
        return _CONTAINS * _likeness(root, wanted)
    return 0.0


def _likeness(one: str, other: str) -> float:
    return min(len(one), len(other)) / max(len(one), len(other))


def _asked(query: str) -> dict[str, str]:
    """The roots of the words of a query that say something, each with the word itself."""
    asked: dict[str, str] = {}
    for word in _words(_HUMP.sub(" ", query[:_QUERY_CHARS_MAX])):
        if word not in _STOP:
            asked.setdefault(stem(word), word)
    return dict(list(asked.items())[:_QUERY_WORDS_MAX])


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _reason(words: Sequence[str], *, of: int, exact: bool) -> str:
    shown = ", ".join(word[:40] for word in words[:_WORDS_SHOWN])
    counted = f"{len(words)} of {of} words: {shown}" if words else ""
    return "; ".join(part for part in ("name" if exact else "", counted) if part)
