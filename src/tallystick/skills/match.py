"""Match skills with a task, by their words, names and path patterns, and search them by words."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.skills.format.manifest import Card

# Path patterns: globs that a skill says it is for, matched in bounded time.
#
# `*` is any text within one part of a path, `?` one character, `[a-z]` and `[!a-z]` one of a set,
# `**` as a whole part any number of parts, `{a,b}` one of several texts. A pattern without a slash
# is for the last part of a path; one that ends in a slash is for all below it. Case counts.
#
# Patterns come from strangers. They are never turned into regular expressions, which can be made to
# backtrack for ever. All places of the pattern that a match may have reached are kept at once, as
# the bits of one number. Each character of the path moves them on, so the time is linear in the
# path.


_PATTERN_CHARS_MAX = 256
_PATH_CHARS_MAX = 4_096
_ALTERNATIVES_MAX = 16

_Test = Callable[[str], bool]


@dataclass(slots=True)
class _Places:
    """A pattern as places in a row: the n-th test has to hold to pass the n-th place.

    Bits of `runs` are places that may stay for any character but a slash, of `deep_runs` for any
    character at all; both may also be passed without a character. From a bit of `skips`, two places
    are passed so.
    """

    tests: list[_Test] = field(default_factory=list)
    runs: int = 0
    deep_runs: int = 0
    skips: int = 0

    def add(self, test: _Test) -> None:
        self.tests.append(test)

    def add_run(self, *, deep: bool = False, skip: bool = False) -> None:
        bit = 1 << len(self.tests)
        self.runs |= 0 if deep else bit
        self.deep_runs |= bit if deep else 0
        self.skips |= bit if skip else 0
        self.tests.append(_never)


def path_matches(pattern: str, path: str) -> bool:
    """Return True if a pattern fits a path.

    It is False for an empty pattern or path, a pattern of more than 256 characters and a path of
    more than 4,096.
    """
    if not pattern or len(pattern) > _PATTERN_CHARS_MAX or len(path) > _PATH_CHARS_MAX:
        return False
    parts = _parts(path)
    return bool(parts) and any(_one_matches(each, parts) for each in _alternatives(pattern))


def _one_matches(pattern: str, parts: Sequence[str]) -> bool:
    deep = "/" in pattern.removeprefix("./")
    places = _places(_parts(f"{pattern}**" if pattern.endswith("/") else pattern))
    stays = {True: places.deep_runs, False: places.runs | places.deep_runs}
    passes: dict[str, int] = {}
    at = _add_free_places(places, 1)
    for letter in "/".join(parts) if deep else parts[-1]:
        if letter not in passes:
            passes[letter] = sum(1 << n for n, test in enumerate(places.tests) if test(letter))
        at = _add_free_places(places, (at & passes[letter]) << 1, at & stays[letter == "/"])
        if not at:
            return False
    return bool(at >> len(places.tests))


def _add_free_places(places: _Places, come: int, stayed: int = 0) -> int:
    """Add the places that are reached without a character. No two runs follow each other."""
    # `**/` may be passed as a whole only at the beginning of a part: from places just reached, not
    # from those that stayed.
    at = come | (come & places.skips) << 2 | stayed
    return at | (at & (places.runs | places.deep_runs)) << 1


def _places(parts: Sequence[str]) -> _Places:
    places = _Places()
    for n, part in enumerate(parts):
        last = n == len(parts) - 1
        if part == "**":
            if not last and parts[n + 1] == "**":
                continue
            places.add_run(deep=True, skip=not last)
        else:
            _add_part(places, part)
        if not last:
            places.add("/".__eq__)
    return places


def _add_part(places: _Places, part: str) -> None:
    at = 0
    while at < len(part):
        end = at + 1
        match part[at]:
            case "*":
                if at == 0 or part[at - 1] != "*":
                    places.add_run()
            case "?":
                places.add("/".__ne__)
            case "[" if (close := part.find("]", at + 2 + part.startswith("[!", at))) > 0:
                places.add(_of_set(part[at + 1 : close]))
                end = close + 1
            case letter:
                places.add(letter.__eq__)
        at = end


def _of_set(inside: str) -> _Test:
    wanted = not inside.startswith("!")
    inside = inside.removeprefix("!")
    single: set[str] = set()
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            ranges.append((inside[at], inside[at + 2]))
            at += 3
        else:
            single.add(inside[at])
            at += 1

    def test(letter: str) -> bool:
        found = letter in single or any(low <= letter <= high for low, high in ranges)
        return found is wanted and letter != "/"

    return test


def _never(_: str) -> bool:
    return False


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _alternatives(pattern: str) -> list[str]:
    """Return the texts that `{a,b}` stands for; for more than 16, the pattern alone as it is."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        if len(done) + len(todo) > _ALTERNATIVES_MAX:
            return [pattern]
        each = todo.pop()
        close = each.find("}")
        start = each.rfind("{", 0, close) if close >= 0 else -1
        if start < 0:
            done.append(each)
            continue
        head, tail = each[:start], each[close + 1 :]
        todo += [head + option + tail for option in each[start + 1 : close].split(",")]
    return done


# Stems: English words without their endings, so that `invoices` and `invoicing` are one word.
#
# Endings are removed by a few rules, the outermost first. A stem need not be a word: it has to be
# the same for words of one family. Words of other languages mostly stay as they are.


_VOWELS = frozenset("aeiouy")
_PASSES = 3
# An ending, its replacement, and how many characters have to be left.
_ENDINGS = (
    ("ization", "iz", 3), ("isation", "iz", 3), ("ersion", "ert", 6), ("ation", "", 4),
    ("ating", "", 4), ("ator", "", 4), ("ated", "", 4), ("ate", "", 4), ("izing", "iz", 4),
    ("ising", "iz", 4), ("ized", "iz", 4), ("ised", "iz", 4), ("izer", "iz", 4),
    ("iser", "iz", 4), ("ize", "iz", 4), ("ise", "iz", 4), ("yzing", "ys", 4), ("yzed", "ys", 4),
    ("yzer", "ys", 4), ("yze", "ys", 4), ("ysis", "ys", 4), ("ment", "", 4), ("ness", "", 4),
    ("ion", "", 4), ("ing", "", 3), ("ied", "y", 3), ("er", "", 4), ("or", "", 4), ("ed", "", 3),
    ("ly", "", 4), ("e", "", 4),
)  # fmt: skip


def stem(word: str) -> str:
    """Return the stem of a word that is in lower case.

    A word with letters beyond ASCII is returned as it is.
    """
    if not word.isascii():
        return word
    word = _singular(word)
    for _ in range(_PASSES):
        shorter = _without_ending(word)
        if shorter == word:
            break
        word = shorter
    return f"{word[:-1]}i" if word.endswith("y") and len(word) > 3 else word


def _singular(word: str) -> str:
    if len(word) <= 3 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-2] if word.endswith(("sses", "xes", "zes", "ches", "shes")) else word[:-1]


def _without_ending(word: str) -> str:
    for ending, instead, chars_min in _ENDINGS:
        if word.endswith(ending) and not word.endswith("eed"):
            root = word[: -len(ending)] + instead
            if len(root) < chars_min or _VOWELS.isdisjoint(root):
                continue
            # A consonant that was doubled before the ending: `planning`, `formatted`.
            doubled = len(root) > 3 and root[-1] == root[-2] and root[-1] not in "aeioulsz"
            return root[:-1] if doubled else root
    return word


# Matching: the skills that fit a task, by the words of their cards, their names and path patterns.
#
# The score of a card is hits / (hits + 1.5), plus 2.0 if its name is in the prompt, plus 1.5 for
# each of its path patterns that fits one of the paths. `hits` counts the different words of the
# prompt, longer than two characters, that are words of the description or of when_to_use. Words are
# runs of letters and digits; case does not count. The name has to be in the prompt letter for
# letter, but may be part of another word.
#
# A host may do the matching instead (strategies `host` and `embedding`): its scores are taken as
# they are, zero and below too. Where it fails, the words decide.


# So many hits give half a point: hits / (hits + 1.5).
_HALF_HITS = 1.5
_NAME_SCORE = 2.0
_PATH_SCORE = 1.5
_WORD_CHARS_MIN = 3
_PATHS_MAX = 64
_REASONS_SHOWN = 5
# One class repeated: each character is looked at once.
_WORD = re.compile(r"[^\W_]+")


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that fits, with its score and the reason."""

    id: str
    score: float
    reason: str


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing a task with the skills.

    `strategy` is the one that decided. `candidates` are all that fit, the best first; `matched` the
    first of them. `problem` says why a host that was asked did not decide.
    """

    strategy: str
    candidates: tuple[Match, ...]
    matched: tuple[Match, ...]
    problem: str = ""


# Given the prompt and the cards that a model may load, give those that fit.
Host = Callable[[str, Sequence[Card]], Iterable[Match]]


def match_skills(
    prompt: str,
    cards: Iterable[Card],
    *,
    paths: Sequence[str] = (),
    strategy: str = "metadata",
    host: Host | None = None,
    top_n: int = 1,
) -> Matching:
    """Compare a task with the skills that a model may load; the first `top_n` are matched.

    `paths` are compared with the globs of the skills. An unknown strategy counts as `metadata`.
    With `host` or `embedding`, `host` is called once. Equal scores are in the order of their ids.
    Any `Exception` of a host is caught: the result has the first 200 characters of it as `problem`,
    and the words decide.
    """
    invocable = tuple(card for card in cards if not card.disable_model_invocation)
    problem = ""
    if strategy in ("host", "embedding"):
        try:
            found = _by_host(prompt, invocable, host)
            return _matching(strategy, found, top_n=top_n)
        except Exception as exc:
            # The host is foreign code: whatever it raises, the run continues without it.
            problem = f"{type(exc).__name__}: {exc}"[:200]
    scored = _by_metadata(prompt, invocable, paths)
    return _matching("metadata", scored, top_n=top_n, problem=problem)


def _matching(strategy: str, found: Iterable[Match], *, top_n: int, problem: str = "") -> Matching:
    candidates = tuple(sorted(found, key=lambda match: (-match.score, match.id)))
    return Matching(
        strategy=strategy,
        candidates=candidates,
        matched=candidates[: max(top_n, 0)],
        problem=problem,
    )


def _by_host(prompt: str, cards: Sequence[Card], host: Host | None) -> list[Match]:
    """Return the host's matches with the skills that it was asked about, the first for each.

    Raise `LookupError` without a host, `TypeError` for a match that is none or has no finite score;
    the host may raise anything.
    """
    if host is None:
        raise LookupError("there is no host to ask")
    known = {card.id for card in cards}
    found: dict[str, Match] = {}
    given: Iterable[object] = host(prompt, cards)
    for match in given:
        if not isinstance(match, Match) or not math.isfinite(match.score):
            raise TypeError("the host gave something that is no match")
        if match.id in known:
            found.setdefault(match.id, match)
    return list(found.values())


def _by_metadata(prompt: str, cards: Sequence[Card], paths: Sequence[str]) -> Iterable[Match]:
    folded = prompt.casefold()
    asked = dict.fromkeys(_long_words(folded))
    for card in cards:
        has = set(_long_words(f"{card.description}\n{card.when_to_use}".casefold()))
        hits = [word for word in asked if word in has]
        named = bool(card.name) and card.name.casefold() in folded
        fit = [
            pattern
            for pattern in card.paths[:_PATHS_MAX]
            if any(path_matches(pattern, path) for path in paths)
        ]
        score = len(hits) / (len(hits) + _HALF_HITS) + _NAME_SCORE * named + _PATH_SCORE * len(fit)
        if score > 0:
            yield Match(id=card.id, score=score, reason=_match_reason(hits, named=named, fit=fit))


def _long_words(folded: str) -> list[str]:
    return [word for word in _WORD.findall(folded) if len(word) >= _WORD_CHARS_MIN]


def _match_reason(hits: Sequence[str], *, named: bool, fit: Sequence[str]) -> str:
    said = ["name"] if named else []
    if hits:
        said.append(f"words {_first_words(hits)}")
    if fit:
        said.append(f"paths {_first_words(fit)}")
    return "; ".join(said)


def _first_words(words: Sequence[str]) -> str:
    shown = ", ".join(word[:40] for word in words[:_REASONS_SHOWN])
    left = len(words) - _REASONS_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown


# Search: the results of `skills.search`, by the words of the cards.
#
# Programs are written by models, and a model that does not know the skills asks in its own words.
# So case, punctuation and endings do not count, the beginning of a word finds it, and a word that
# is in no card does no harm. Words that are in few cards count more than words that are in many; a
# word of a name counts more than one of a description. Ties are in the order of the ids: the same
# cards and the same query give the same list everywhere.


_QUERY_CHARS_MAX = 2_000
_QUERY_WORDS_MAX = 32
_TEXT_CHARS_MAX = 4_000
_WORDS_SHOWN = 5
# A text of up to so many different words counts fully, a longer one less.
_WORDS_USUAL = 60
# How much one word counts in each field; a second time it counts less and less.
_NAME, _SHORT, _WHEN, _DESCRIPTION = 3.0, 1.5, 1.5, 1.0
_SATURATION = 1.2
# The share of its score that a card keeps if its words only begin with, or only contain, the
# query's word.
_BEGINS, _CONTAINS = 0.6, 0.3
_BEGINS_CHARS_MIN, _CONTAINS_CHARS_MIN = 3, 4
# A query that is the id, or the name, means that skill.
_IS_ID, _IS_NAME = 200.0, 100.0
_LISTED = "listed"
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Words that say nothing about the subject of a skill.
_STOP = frozenset(
    _WORD.findall(
        "a about all an and any are as at be by can do does find for from get give have help how "
        "i in into is it its list make me my need of on or our out please should skill skills so "
        "some that the them then there these this to up use used using want we what when where "
        "which with work would you your"
    )
)


def search(cards: Iterable[Card], query: str, *, k: int = 10) -> tuple[Match, ...]:
    """Return the `k` skills that fit a query best, the best first, of those that a model may load.

    There are fewer, or none, if fewer fit. Only the first 2,000 characters of a query, and 32 words
    of them, count. A query without words, or only with words such as `all` and `skills`, lists the
    first `k` by id, with the score 0.
    """
    invocable = sorted(
        (card for card in cards if not card.disable_model_invocation), key=lambda card: card.id
    )
    k = max(k, 0)
    asked = _query_stems(query)
    whole = _plain(query)
    exact = any(whole in (_plain(each.id), _plain(each.name)) for each in invocable)
    if not whole or not (asked or exact):
        return tuple(Match(id=card.id, score=0.0, reason=_LISTED) for card in invocable[:k])
    scores: dict[int, float] = defaultdict(float)
    words: dict[int, list[str]] = defaultdict(list)
    known = 0
    for said, scored in zip(asked.values(), _word_scores(invocable, list(asked)), strict=True):
        known += bool(scored)
        for place, score in scored.items():
            scores[place] += score
            words[place].append(said)
    found = []
    for place, card in enumerate(invocable):
        is_id, is_name = whole == _plain(card.id), whole == _plain(card.name)
        # A word that no card has lowers the score of none.
        score = scores[place] * len(words[place]) / max(known, 1)
        score += _IS_ID * (query == card.id) + _IS_ID * is_id + _IS_NAME * is_name
        if score > 0:
            reason = _search_reason(words[place], of=len(asked), exact=is_id or is_name)
            found.append(Match(id=card.id, score=round(score, 6), reason=reason))
    found.sort(key=lambda match: (-match.score, match.id))
    return tuple(found[:k])


def _word_scores(cards: Sequence[Card], asked: Sequence[str]) -> list[dict[int, float]]:
    """Return, for each word of a query, the cards that have it or a similar one, with their scores.

    The keys are the indexes of the cards. Only words similar to those of the query are counted:
    most words of a thousand cards are not.
    """
    fields = [_fields(card) for card in cards]
    vocabulary = frozenset().union(*(words for card in fields for _, words in card))
    alike = _similar_words(vocabulary, asked)
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
    """Return the words of each field of a card, with the weight of the field.

    Only the first 4,000 characters of a text are read. Empty texts are left out.
    """
    name = card.id if card.name in card.id else f"{card.id} {card.name}"
    fields = [(_NAME, frozenset(_folded_words(_HUMP.sub(" ", name))))]
    for weight, text in (
        (_SHORT, card.short),
        (_WHEN, card.when_to_use),
        (_DESCRIPTION, card.description),
    ):
        if words := frozenset(_folded_words(text[:_TEXT_CHARS_MAX])):
            # A long text names many subjects and says little about each.
            fields.append((weight * min(1.0, math.sqrt(_WORDS_USUAL / len(words))), words))
    return fields


def _similar_words(
    words: Iterable[str], asked: Sequence[str]
) -> dict[str, list[tuple[int, str, float]]]:
    """Return the words that are similar to one of the query.

    Each is given with the index of the query's word, its own root, and the similarity.
    """
    found: dict[str, list[tuple[int, str, float]]] = {}
    for word in words:
        root = stem(word)
        keys = [
            (which, root, share)
            for which, wanted in enumerate(asked)
            if (share := _similarity(root, wanted)) > 0
        ]
        if keys:
            found[word] = keys
    return found


def _similarity(root: str, wanted: str) -> float:
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


def _query_stems(query: str) -> dict[str, str]:
    """Return the roots of the meaningful words of a query, at most 32, each with its first word.

    Only the first 2,000 characters are read.
    """
    asked: dict[str, str] = {}
    for word in _folded_words(_HUMP.sub(" ", query[:_QUERY_CHARS_MAX])):
        if word not in _STOP:
            asked.setdefault(stem(word), word)
    return dict(list(asked.items())[:_QUERY_WORDS_MAX])


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _folded_words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _search_reason(words: Sequence[str], *, of: int, exact: bool) -> str:
    shown = ", ".join(word[:40] for word in words[:_WORDS_SHOWN])
    counted = f"{len(words)} of {of} words: {shown}" if words else ""
    return "; ".join(part for part in ("name" if exact else "", counted) if part)
