"""Matching: which skills fit what was asked, by the words of their cards, their names and paths.

The score of a card is hits / (hits + 1.5), plus 2.0 if its name stands in the prompt, plus 1.5 for
each of its path patterns that one of the paths fits. `hits` counts the different words of the
prompt, longer than two characters, that are words of the description or of when_to_use. Words are
runs of letters and digits; case does not count. The name has to stand in the prompt letter for
letter, be it inside another word.

A host may do the matching instead (strategies `host` and `embedding`): its scores are taken as
they are, zero and below too. Where it fails, the words decide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tallystick.skills.card import Card
from tallystick.skills.path_pattern import path_matches

__all__ = ["Host", "Match", "Matching", "match_skills"]

_HALF_HITS = 1.5
_NAME_SCORE = 2.0
_PATH_SCORE = 1.5
_WORD_CHARS_MIN = 3
_PATHS_MAX = 64
_REASONS_SHOWN = 5
# One class repeated: each character is looked at once.
_WORD = re.compile(r"[^\W_]+")


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that fits, how well, and by what."""

    id: str
    score: float
    reason: str


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """How a prompt was compared with the skills.

    `strategy` is the one that decided. `candidates` are all that fit, the best first; `matched`
    the first of them. `problem` says why a host that was asked did not decide.
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
    """Compare a prompt with the skills that a model may load; the first `top_n` are matched.

    A strategy that is not known is `metadata`. Equal scores are in the order of their ids.
    """
    invocable = tuple(card for card in cards if not card.disable_model_invocation)
    problem = ""
    if strategy in ("host", "embedding"):
        try:
            found = _by_host(prompt, invocable, host)
            return _matching(strategy, found, top_n=top_n)
        except Exception as exc:
            # The host is somebody else's code: whatever it raises, the run goes on without it.
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
    """What the host says, as far as it speaks of skills that it was asked about, each once."""
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
    asked = dict.fromkeys(_words(folded))
    for card in cards:
        has = set(_words(f"{card.description}\n{card.when_to_use}".casefold()))
        hits = [word for word in asked if word in has]
        named = bool(card.name) and card.name.casefold() in folded
        fit = [
            pattern
            for pattern in card.paths[:_PATHS_MAX]
            if any(path_matches(pattern, path) for path in paths)
        ]
        score = len(hits) / (len(hits) + _HALF_HITS) + _NAME_SCORE * named + _PATH_SCORE * len(fit)
        if score > 0:
            yield Match(id=card.id, score=score, reason=_reason(hits, named=named, fit=fit))


def _words(folded: str) -> list[str]:
    return [word for word in _WORD.findall(folded) if len(word) >= _WORD_CHARS_MIN]


def _reason(hits: Sequence[str], *, named: bool, fit: Sequence[str]) -> str:
    said = ["name"] if named else []
    if hits:
        said.append(f"words {_listed(hits)}")
    if fit:
        said.append(f"paths {_listed(fit)}")
    return "; ".join(said)


def _listed(words: Sequence[str]) -> str:
    shown = ", ".join(word[:40] for word in words[:_REASONS_SHOWN])
    left = len(words) - _REASONS_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown
