"""Ranking: which notes of a scope answer a query best, and why, lane by lane.

Rule 1: every lane gives a number that means the same for every query and scope: a share, a cosine,
a yes or no. They are weighted and added. Ranks are not fused: ranks forget that the best note of a
lane may be a poor one. Nor are scores measured by their spread in the scope: that needs figures of
the whole scope.
Rule 2: nothing depends on the order of the notes, on `k`, or on notes outside the scope. Equal
scores are in the order of the ids.
Rule 3: a lane whose data is not there is left out, and `notes` says so.
Rule 4: no lane is negative, and a note without any evidence is no hit: who wrote it, when, and how
important it is are no evidence.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.core.canonical import digest
from tallystick.core.errors import InvalidLimit, UsageError
from tallystick.memory.asked import QUERY_CHARS_MAX, Asked, ask
from tallystick.memory.bm25 import Statistics, bm25_scores, count_statistics
from tallystick.memory.fixed_point import cosines
from tallystick.memory.maxsim import rerank
from tallystick.memory.profile import DEFAULT, Profile
from tallystick.memory.scope import Embedded, Embedder, NoteFields, Scope
from tallystick.memory.when import nearness

__all__ = ["Hit", "Ranked", "common_terms", "rank"]

_DIGITS = 9
_BEST_OF_SESSION = 3
_COMMON_NOTES_MIN = 10
_SEEDS, _STEPS, _STEP_SHARE = 10, 2, 0.5
_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A note that was found. The values of its lanes add up to its score."""

    id: str
    score: float
    lanes: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """What was found, the best first. `notes` say which lanes were left out, and why.

    `model` is the digest of the model that the dense lane used, `vector` that of the query's
    vector; both are empty without one.
    """

    hits: tuple[Hit, ...]
    notes: tuple[str, ...] = ()
    model: str = ""
    vector: str = ""


def rank(
    query: str,
    scope: Scope,
    *,
    k: int,
    profile: Profile = DEFAULT,
    embedder: Embedder | None = None,
    now: int | None = None,
    statistics: Statistics | None = None,
    asked: Asked | None = None,
) -> Ranked:
    """The best `k` notes of a scope.

    `now`, in milliseconds, is needed if the profile weighs recency. `statistics` and `asked` are
    given if the scope is the short list of a larger one: then the lexical lane counts as in the
    larger one, and its authors are those that the query may name.
    """
    if k < 0:
        raise InvalidLimit(field="k", given=k, why="is at least 0")
    ranking = _Ranking(query, scope, profile, statistics, asked)
    ranking.lexical()
    ranking.dense(embedder)
    ranking.author()
    ranking.when()
    ranking.around()
    ranking.age_and_weight(now)
    ranking.related()
    ranking.token()
    return ranking.ranked(k)


def common_terms(asked: Sequence[str], statistics: Statistics, profile: Profile) -> frozenset[str]:
    """Terms that so many notes have that they do not tell one from another."""
    many = max(_COMMON_NOTES_MIN, profile.common * statistics.notes)
    return frozenset(term for term in asked if statistics.frequency.get(term, 0) > many)


class _Ranking:
    """One ranking while it is made: lanes are added one after the other, each over all notes."""

    def __init__(
        self,
        query: str,
        scope: Scope,
        profile: Profile,
        statistics: Statistics | None,
        asked: Asked | None,
    ) -> None:
        self._scope = scope
        self._profile = profile
        self._ids = sorted(scope.ids)
        self._fields = [scope.fields(id) for id in self._ids]
        self._lanes: dict[str, list[float]] = {}
        self._scores = [0.0] * len(self._ids)
        self._evidence = [False] * len(self._ids)
        self._notes: list[str] = []
        self._asked = asked or ask(query, authors=(note.author for note in self._fields))
        self._counts = [scope.counts(id) for id in self._ids]
        self._statistics = statistics or count_statistics(self._asked.terms, self._counts)
        self._embedded: Embedded | None = None
        self._model = ""
        if self._asked.cut:
            self._notes.append(f"query: read as far as {QUERY_CHARS_MAX:,} characters")

    # -- lanes ------------------------------------------------------------------------------------

    def lexical(self) -> None:
        asked = self._asked.terms
        if not asked:
            self._absent("lexical", "the query has no words that say something")
            return
        scores = bm25_scores(asked, self._counts, self._statistics, self._profile.bm25)
        self._add("lexical", self._profile.lexical, scores, evidence=True)

    def dense(self, embedder: Embedder | None) -> None:
        if not self._profile.dense:
            return
        windows = [self._scope.vectors(id) for id in self._ids] if embedder is not None else []
        without = sum(not each for each in windows)
        if embedder is None:
            self._absent("dense", "there is no embedder")
        elif without == len(windows):
            self._absent("dense", "no note has a vector")
        elif not any(char.isalnum() for char in self._asked.text):
            self._absent("dense", "the query has no words")
        else:
            if without:
                self._notes.append(f"dense: {without:,} of {len(windows):,} notes have no vector")
            common = common_terms(self._asked.terms, self._statistics, self._profile)
            self._embedded = embedder.embed(self._asked.text_without(common))
            self._model = embedder.digest
            found = iter(cosines(self._embedded.vector, [one for each in windows for one in each]))
            # A long note is as near as the nearest of its windows.
            near = [
                next(found) if len(each) == 1 else max((next(found) for _ in each), default=0.0)
                for each in windows
            ]
            self._add("dense", self._profile.dense, near, evidence=True)

    def author(self) -> None:
        if not any(note.author for note in self._fields):
            self._absent("author", "no note has an author", weight=self._profile.author)
        elif self._asked.named:
            named = [float(note.author in self._asked.named) for note in self._fields]
            self._add("author", self._profile.author, named)

    def when(self) -> None:
        if not self._asked.periods:
            return
        if not any(note.created_at for note in self._fields):
            self._absent("when", "no note has a time", weight=self._profile.when)
            return
        near = [nearness(note.created_at, self._asked.periods) for note in self._fields]
        self._add("when", self._profile.when, near)

    def around(self) -> None:
        """Notes next to a good one, or in its session, are about the same thing."""
        spare = self._spare()
        profile = self._profile
        places = defaultdict(list)
        sessions = defaultdict(list)
        for note, more in zip(self._fields, spare, strict=True):
            if note.session:
                sessions[note.session].append(more)
                if note.position is not None:
                    places[note.session, note.position].append(more)
        if not places:
            self._absent("before", "no note has a place", weight=profile.before + profile.after)
        else:
            for name, weight, step in (("before", profile.before, -1), ("after", profile.after, 1)):
                beside = [_beside(note, places, step) for note in self._fields]
                self._add(name, weight, beside, evidence=True)
        if not sessions:
            self._absent("session", "no note has a session", weight=profile.session)
            return
        best = {
            session: math.fsum(sorted(each)[-_BEST_OF_SESSION:]) / _BEST_OF_SESSION
            for session, each in sessions.items()
        }
        whole = [best.get(note.session, 0.0) for note in self._fields]
        self._add("session", profile.session, whole, evidence=True)

    def age_and_weight(self, now: int | None) -> None:
        profile = self._profile
        if profile.recency:
            if now is None:
                raise UsageError("a profile that weighs recency needs the time of the recall")
            half = profile.recency_half_life_hours * _MS_PER_HOUR
            ages = [max(0, now - note.created_at) / half for note in self._fields]
            self._add("recency", profile.recency, [0.5 ** min(age, 1000.0) for age in ages])
        if profile.importance:
            weights = [min(1.0, max(0.0, note.importance)) for note in self._fields]
            self._add("importance", profile.importance, weights)

    def related(self) -> None:
        if not self._profile.related:
            return
        ties = _ties(self._ids, self._fields)
        if not ties:
            self._absent("related", "no note is tied to another")
            return
        reached = dict.fromkeys((self._ids[at] for at in self._order()[:_SEEDS]), 1.0)
        edge, share = list(reached), 1.0
        for _ in range(_STEPS):
            share *= _STEP_SHARE
            edge = sorted({other for id in edge for other in ties[id]} - reached.keys())
            reached.update(dict.fromkeys(edge, share))
        spread = [reached.get(id, 0.0) for id in self._ids]
        self._add("related", self._profile.related, spread, evidence=True)

    def token(self) -> None:
        """The best notes again, by their tokens. They stay ahead of the others: no lane takes."""
        if not self._profile.token:
            return
        if self._embedded is None:
            self._absent("token", "it needs the dense lane")
            return
        best = self._order()[: self._profile.token_notes]
        tokens = [self._scope.tokens(self._ids[at]) for at in best]
        held = [each for each in tokens if each is not None]
        if len(held) < len(tokens):
            missing = len(tokens) - len(held)
            self._absent("token", f"{missing:,} of {len(tokens):,} notes have no token vectors")
            return
        found = dict(zip(best, rerank(self._embedded, held), strict=True))
        self._add(
            "token", self._profile.token, [found.get(at, 0.0) for at in range(len(self._ids))]
        )

    # -- what lanes share -------------------------------------------------------------------------

    def ranked(self, k: int) -> Ranked:
        order = self._order()
        hits = tuple(
            Hit(
                id=self._ids[at],
                score=self._scores[at],
                lanes=tuple((name, values[at]) for name, values in self._lanes.items()),
            )
            for at in order[:k]
        )
        vector = digest(self._embedded.vector) if self._embedded is not None else ""
        return Ranked(hits=hits, notes=tuple(self._notes), model=self._model, vector=vector)

    def _add(
        self, name: str, weight: float, values: Sequence[float], *, evidence: bool = False
    ) -> None:
        if not weight:
            return
        # Rounded, so that the last bits of a logarithm, which machines disagree on, do not count;
        # and so that a sum of lanes, rounded again, is exact in whatever order they are added.
        lane = [round(weight * value, _DIGITS) if value > 0 else 0.0 for value in values]
        # A sum with nothing is what it was, and was rounded before.
        self._scores = (
            [
                round(score + value, _DIGITS) if value else score
                for score, value in zip(self._scores, lane, strict=True)
            ]
            if self._lanes
            else list(lane)
        )
        self._lanes[name] = lane
        if evidence:
            self._evidence = [
                found or value > 0 for found, value in zip(self._evidence, lane, strict=True)
            ]

    def _absent(self, name: str, why: str, *, weight: float = 1.0) -> None:
        if weight:
            self._notes.append(f"{name}: left out, {why}")

    def _order(self) -> list[int]:
        """The places of the notes with evidence, the best first."""
        scores = self._scores
        found = [at for at, evidence in enumerate(self._evidence) if evidence]
        # The places are in the order of the ids, and sorting keeps the order of equals.
        return sorted(found, key=lambda at: -scores[at])

    def _spare(self) -> list[float]:
        """What each note has to lend: its score above the floor, if it has evidence of its own.

        The floor is a rank and not a mean, so it is the same in a scope and in its short list.
        """
        scores = self._scores
        floor = min(sorted(scores, reverse=True)[: self._profile.floor], default=0.0)
        return [
            max(0.0, score - floor) if evidence else 0.0
            for score, evidence in zip(scores, self._evidence, strict=True)
        ]


def _beside(note: NoteFields, places: dict[tuple[str, int], list[float]], step: int) -> float:
    if not note.session or note.position is None:
        return 0.0
    return max(places.get((note.session, note.position + step), ()), default=0.0)


def _ties(ids: Sequence[str], fields: Sequence[NoteFields]) -> dict[str, set[str]]:
    """Which notes of the scope are tied, in both directions."""
    known = frozenset(ids)
    ties: dict[str, set[str]] = defaultdict(set)
    for id, note in zip(ids, fields, strict=True):
        for other in known.intersection(note.related):
            ties[id].add(other)
            ties[other].add(id)
    return ties
