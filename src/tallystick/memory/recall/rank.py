"""Ranking: find the notes of a scope that answer a query best, and say why, lane by lane.

Rule 1: every lane gives a number that means the same for every query and scope: a share, a cosine,
a yes or no. They are weighted and added. Ranks are not fused: the best note of a lane may be a poor
one, and its rank does not show that. Nor are scores measured by their spread in the scope: that
needs figures of the whole scope.
Rule 2: nothing depends on the order of the notes, on `k`, or on notes outside the scope. Equal
scores are in the order of the ids.
Rule 3: a lane without its data is left out, and `notes` says so.
Rule 4: no lane is negative, and a note without any evidence is no hit. Author, time and importance
are no evidence.
"""

from __future__ import annotations

import datetime
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tallystick.core.errors import InvalidLimit, UsageError
from tallystick.core.json_text import digest
from tallystick.memory.recall.codes import cosines, passage_cosines, token_similarities
from tallystick.memory.recall.scope import (
    DEFAULT,
    FIRST_RULES,
    Embedded,
    Embedder,
    NoteFields,
    Profile,
    Scope,
)
from tallystick.memory.recall.words import (
    STOP,
    Statistics,
    asked_terms,
    bm25_scores,
    count_statistics,
    terms,
    told_share,
    words,
)

# Periods: the days and months that a query names.
#
# Only dates that are written out: `3 June 2023`, `June 3rd, 2023`, `2023-06-03`, `June 2023`, `in
# June`. Words such as `yesterday` depend on the asker and the time, and are not read. Days are UTC.


_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>\d{4})"
# The longest form first: what it has matched is removed for the next ones. `may` alone is mostly a
# verb.
_FORMS = tuple(
    re.compile(rf"\b{form}\b", re.IGNORECASE | re.ASCII)
    for form in (
        rf"{_YEAR}-(?P<number>\d{{2}})-{_DAY}",
        rf"{_DAY} (?:of )?{_MONTH},? {_YEAR}",
        rf"{_MONTH} {_DAY},? {_YEAR}",
        rf"{_MONTH},? {_YEAR}",
        rf"(?:in|during|since|of) {_MONTH}",
    )
)
_PERIODS_MAX = 8
# People write of an event on the same day or some days later.
_LATER_DAYS, _LATER_SHARE = 7, 0.5
_DAY_MS = 86_400_000
_EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A day, a month, or with year 0 a month of any year. Day 0 means the whole month."""

    year: int
    month: int
    day: int = 0


def named_periods(query: str) -> tuple[Period, ...]:
    """Return the periods that a query names, each once, at most 8.

    31 February is no date and no period.
    """
    found: dict[Period, None] = {}
    for form in _FORMS:
        for match in form.finditer(query):
            period = _period(match.groupdict())
            if period is not None:
                found[period] = None
        query = form.sub(" ", query)
    return tuple(found)[:_PERIODS_MAX]


def nearness(created_at: int, periods: tuple[Period, ...]) -> float:
    """Return 1 for a note of one of the periods, a half in the 7 days after it, else 0."""
    day = created_at // _DAY_MS
    return max((_nearness_of_day(day, period) for period in periods), default=0.0)


def _nearness_of_day(day: int, period: Period) -> float:
    if not period.year:
        try:
            date = _EPOCH + datetime.timedelta(days=day)
        except OverflowError:
            return 0.0
        # The month of this year, or early in a year that of the year before.
        years = (date.year, date.year - 1)
        return max(_nearness_of_day(day, Period(year=year, month=period.month)) for year in years)
    first, last = _days(period)
    if first <= day <= last:
        return 1.0
    return _LATER_SHARE if last < day <= last + _LATER_DAYS else 0.0


def _days(period: Period) -> tuple[int, int]:
    """Return the first and the last day of a period, counted from 1970."""
    first = datetime.date(period.year, period.month, period.day or 1)
    if period.day:
        return (first - _EPOCH).days, (first - _EPOCH).days
    # A month never has 32 days: the first of the next is in the week after the 28th.
    beyond = (first.replace(day=28) + datetime.timedelta(days=4)).replace(day=1)
    return (first - _EPOCH).days, (beyond - _EPOCH).days - 1


def _period(written: dict[str, str | None]) -> Period | None:
    number, month = written.get("number"), written.get("month")
    period = Period(
        year=int(written.get("year") or 0),
        month=int(number) if number else _MONTHS.index((month or "").lower()) + 1,
        day=int(written.get("day") or 0),
    )
    try:
        if written.get("day") is not None:
            datetime.date(period.year, period.month, period.day)
        # The month after must be one too.
        return period if not written.get("year") or 1 <= period.year < datetime.MAXYEAR else None
    except ValueError:
        return None


# ParsedQuery: the terms of a query, the people and days it names, and the rest.
#
# A question about a person is full of that person's name, and so is every other note of that
# person. To a small model the name outweighs the subject. So names of authors are taken out of the
# question, and count on their own: for the notes that these authors wrote. Other words that many of
# the notes have are taken out of the text for the model: it cannot know that they tell nothing
# here.
#
# Notes of a person say `I`, and a question about the person has the name. For the model, the name
# becomes `I`: the question is then put as its answer is.


# Characters beyond this are not read; a remark says so.
QUERY_CHARS_MAX = 8_000

_NAME_CHARS_MIN = 2
_SPAN = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedQuery:
    """A query in parts. `text` is without names, `terms` are looked for, `named` are authors in it.

    `spoken` is the query as one of these authors would put it: with `I` in place of the name.
    `periods` are the days and months that it names. `cut` says that its end was not read.
    """

    text: str
    spoken: str
    terms: tuple[str, ...]
    named: frozenset[str]
    periods: tuple[Period, ...]
    cut: bool

    def model_text(self, common: frozenset[str], *, rules: str) -> str:
        """Return the text that the model gets, without the words of some terms.

        It is all of the text if no term would be left. By the first rules, names are left out.
        """
        text = self.text if rules == FIRST_RULES else self.spoken
        left = _without(text, lambda word: not common.isdisjoint(terms(word)))
        return left if terms(left) else text


def ask(query: str, *, authors: Iterable[str]) -> ParsedQuery:
    """Parse a query, up to its first 8,000 characters.

    Names of `authors` are taken out of its text, unless nothing else would be left.
    """
    # Replace surrogates: models and hashes need text that can be encoded as UTF-8.
    text = query[:QUERY_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")
    said = frozenset(words(text))
    names = {author: said & _name_words(author) for author in set(authors)}
    hidden = frozenset().union(*names.values())
    without = _without(text, lambda word: not hidden.isdisjoint(words(word))) if hidden else text
    looked_for = asked_terms(without)
    if hidden and not looked_for:
        without, looked_for = text, asked_terms(text)
    return ParsedQuery(
        text=without,
        spoken=_in_first_person(text, hidden) if without is not text else text,
        terms=looked_for,
        named=frozenset(author for author, found in names.items() if found),
        periods=named_periods(text),
        cut=len(query) > QUERY_CHARS_MAX,
    )


def _name_words(author: str) -> frozenset[str]:
    """Return the words by which an author may be named. Numbers and stop words are no names."""
    return frozenset(
        word
        for word in words(author)
        if len(word) >= _NAME_CHARS_MIN and word not in STOP and not word.isdigit()
    )


def _in_first_person(text: str, hidden: frozenset[str]) -> str:
    """Return the text with `I` for each hidden name, and `my` for a name that owns."""

    def spoken(span: re.Match[str]) -> str:
        if hidden.isdisjoint(words(span[0])):
            return span[0]
        return "my" if span[0].lower().endswith(("'s", "’s")) else "I"

    plain = unicodedata.normalize("NFKC", text)
    return " ".join(_SPAN.sub(spoken, plain).split())


def _without(text: str, unwanted: Callable[[str], bool]) -> str:
    """Return the text without its unwanted words."""
    plain = unicodedata.normalize("NFKC", text)
    kept = _SPAN.sub(lambda span: "" if unwanted(span[0]) else span[0], plain)
    return " ".join(kept.split())


# MaxSim: compare the tokens of a query with those of a note.
#
# One vector for a text loses its details; the vectors of its tokens keep them. They come from the
# same pass through the model. They take some ten kilobytes for a note, so they are read for the
# best notes only, and may be left out altogether.


def rerank(query: Embedded, notes: Sequence[bytes]) -> list[float]:
    """Return a number from 0 to about 1 for each note, given by its token vectors.

    Raise `UsageError` if they have another length than those of the query.
    """
    # A vector has two bytes for each of its components.
    return token_similarities(query.tokens, notes, dimensions=len(query.vector) // 2)


# The ranking itself, lane by lane.


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
    """The hits, the best first. `notes` say which lanes were left out, and why.

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
    asked: ParsedQuery | None = None,
) -> Ranked:
    """Return the best `k` notes of a scope, or fewer if fewer have any evidence.

    `now`, in milliseconds, is needed if the profile weighs recency; without it, raise `UsageError`.
    Raise it too if vectors of the scope have another length than the embedder's, and `InvalidLimit`
    if `k` is below 0.

    `statistics` and `asked` are given if the scope is the short list of a larger one. Then the
    lexical lane counts as in the larger one, and the query may name the authors of that one.
    """
    if k < 0:
        raise InvalidLimit(field="k", given=k, why="is at least 0")
    ranking = _Ranking(query, scope, profile, statistics, asked)
    ranking.add_lexical()
    ranking.add_dense(embedder)
    if profile.rules == FIRST_RULES:
        # They let authors count for the neighbours too.
        ranking.add_author()
    ranking.add_when()
    ranking.add_neighbours()
    if profile.rules != FIRST_RULES:
        ranking.add_author()
    ranking.add_recency_and_importance(now)
    ranking.add_related()
    ranking.look_closer()
    return ranking.result(k)


def common_terms(asked: Sequence[str], statistics: Statistics, profile: Profile) -> frozenset[str]:
    """Return the terms that too many notes have to tell one note from another.

    Too many means more than 10, and more than the share `profile.common`.
    """
    many = max(_COMMON_NOTES_MIN, profile.common * statistics.notes)
    return frozenset(term for term in asked if statistics.frequency.get(term, 0) > many)


class _Ranking:
    """One ranking in progress: lanes are added one after the other, each over all notes."""

    def __init__(
        self,
        query: str,
        scope: Scope,
        profile: Profile,
        statistics: Statistics | None,
        asked: ParsedQuery | None,
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
        self._near: list[float] = []
        self._model = ""
        if self._asked.cut:
            self._notes.append(f"query: read as far as {QUERY_CHARS_MAX:,} characters")

    # -- lanes ------------------------------------------------------------------------------------

    def add_lexical(self) -> None:
        """Add the share of BM25, or a remark if the query has no words."""
        asked = self._asked.terms
        if not asked:
            self._absent("lexical", "the query has no words that say something")
            return
        scores = bm25_scores(asked, self._counts, self._statistics, self._profile.bm25)
        self._add("lexical", self._profile.lexical, scores, evidence=True)

    def add_dense(self, embedder: Embedder | None) -> None:
        """Add the cosine of query and note. A long note counts by its nearest window.

        `embedder` is called once, or not at all if the lane is left out; then a remark says why,
        unless the lane has no weight. Raise `UsageError` for vectors of another length than its
        own.
        """
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
            text = self._asked.model_text(common, rules=self._profile.rules)
            self._embedded = embedder.embed(text)
            self._model = embedder.digest
            found = iter(cosines(self._embedded.vector, [one for each in windows for one in each]))
            # A long note is as near as the nearest of its windows.
            near = [
                next(found) if len(each) == 1 else max((next(found) for _ in each), default=0.0)
                for each in windows
            ]
            self._near = near
            self._add("dense", self._profile.dense, near, evidence=True)

    def add_author(self) -> None:
        """Add 1 for each note whose author the query names; nothing if it names none.

        It comes after the lanes of neighbours: who wrote a note says nothing about those beside it.
        If no note has an author, add a remark instead.
        """
        if not any(note.author for note in self._fields):
            self._absent("author", "no note has an author", weight=self._profile.author)
        elif self._asked.named:
            named = [float(note.author in self._asked.named) for note in self._fields]
            self._add("author", self._profile.author, named)

    def add_when(self) -> None:
        """Add the nearness of each note to the days and months that the query names, if any.

        If no note has a time, add a remark instead.
        """
        if not self._asked.periods:
            return
        if not any(note.created_at for note in self._fields):
            self._absent("when", "no note has a time", weight=self._profile.when)
            return
        near = [nearness(note.created_at, self._asked.periods) for note in self._fields]
        self._add("when", self._profile.when, near)

    def add_neighbours(self) -> None:
        """Add the lanes before, after and session, by which good notes lend to their neighbours.

        If no note has a place, or none a session, add a remark instead of those lanes.
        """
        spare = self._scores_above_floor()
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
                beside = [_best_beside(note, places, step) for note in self._fields]
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

    def add_recency_and_importance(self, now: int | None) -> None:
        """Add the lanes of age, importance and decay that weigh.

        Raise `UsageError` if age needs `now`.
        """
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
        if profile.decay:
            worths = [
                note.importance if note.worth is None else note.worth for note in self._fields
            ]
            self._add("decay", profile.decay, [min(1.0, max(0.0, each)) for each in worths])

    def add_related(self) -> None:
        """Add 1 for the best ten notes, and a share of it for those that relations lead to.

        It is halved at each of two steps, and multiplied by the weight of the relation. If no note
        of the scope is related to another, add a remark instead.
        """
        if not self._profile.related:
            return
        ties = _relations_within(self._ids, self._fields)
        if self._profile.rules == FIRST_RULES:
            # They knew of no weights.
            ties = {id: dict.fromkeys(others, 1.0) for id, others in ties.items()}
        if not any(weight for others in ties.values() for weight in others.values()):
            self._absent("related", "no note is tied to another")
            return
        reached = dict.fromkeys((self._ids[at] for at in self._order()[:_SEEDS]), 1.0)
        edge = dict(reached)
        for _ in range(_STEPS):
            further: dict[str, float] = {}
            for id, share in edge.items():
                for other, weight in ties.get(id, {}).items():
                    if weight and other not in reached:
                        further[other] = max(further.get(other, 0.0), share * _STEP_SHARE * weight)
            reached.update(further)
            edge = further
        spread = [reached.get(id, 0.0) for id in self._ids]
        self._add("related", self._profile.related, spread, evidence=True)

    def look_closer(self) -> None:
        """Look at the best `token_notes` notes again: at their tokens, passages and sentences.

        No lane is negative, so they stay the best. Lanes that the profile does not weigh are left
        out, without a remark. If one of the notes has no token vectors, or there is no dense lane,
        add a remark instead of token and passage. Raise `UsageError` for token vectors of another
        model.
        """
        profile = self._profile
        if not (profile.token or profile.passage or profile.tells):
            return
        best = self._order()[: profile.token_notes]
        if profile.token or profile.passage:
            self._add_token_and_passage(best)
        if profile.tells:
            told = [told_share(self._scope.text(self._ids[at])) for at in best]
            self._add_for("tells", profile.tells, best, told)

    def _add_token_and_passage(self, best: Sequence[int]) -> None:
        if self._embedded is None:
            self._absent("token", "it needs the dense lane")
            return
        tokens = [self._scope.tokens(self._ids[at]) for at in best]
        held = [each for each in tokens if each is not None]
        if len(held) < len(tokens):
            missing = len(tokens) - len(held)
            self._absent("token", f"{missing:,} of {len(tokens):,} notes have no token vectors")
            return
        if self._profile.token:
            found = rerank(self._embedded, held)
            self._add_for("token", self._profile.token, best, found)
        if self._profile.passage:
            nearer = [
                passage - self._near[at]
                for at, passage in zip(
                    best, passage_cosines(self._embedded.vector, held), strict=True
                )
            ]
            self._add_for("passage", self._profile.passage, best, nearer)

    # -- what lanes share -------------------------------------------------------------------------

    def result(self, k: int) -> Ranked:
        """Return the best `k` notes that have evidence, with the remarks."""
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
        # Adding 0 changes nothing, and the score was rounded before.
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

    def _add_for(
        self, name: str, weight: float, places: Sequence[int], values: Sequence[float]
    ) -> None:
        """Add a lane that has values at some places, and 0 elsewhere."""
        found = dict(zip(places, values, strict=True))
        self._add(name, weight, [found.get(at, 0.0) for at in range(len(self._ids))])

    def _absent(self, name: str, why: str, *, weight: float = 1.0) -> None:
        if weight:
            self._notes.append(f"{name}: left out, {why}")

    def _order(self) -> list[int]:
        """Return the places of the notes with evidence, the best first."""
        scores = self._scores
        found = [at for at, evidence in enumerate(self._evidence) if evidence]
        # The places are in the order of the ids, and sorting keeps the order of equals.
        return sorted(found, key=lambda at: -scores[at])

    def _scores_above_floor(self) -> list[float]:
        """Return for each note its score above the floor, or 0 if it has no evidence of its own.

        The floor is the score at a rank and not a mean, so it is the same in a scope and in its
        short list.
        """
        scores = self._scores
        floor = min(sorted(scores, reverse=True)[: self._profile.floor], default=0.0)
        return [
            max(0.0, score - floor) if evidence else 0.0
            for score, evidence in zip(scores, self._evidence, strict=True)
        ]


def _best_beside(note: NoteFields, places: dict[tuple[str, int], list[float]], step: int) -> float:
    if not note.session or note.position is None:
        return 0.0
    return max(places.get((note.session, note.position + step), ()), default=0.0)


def _relations_within(
    ids: Sequence[str], fields: Sequence[NoteFields]
) -> dict[str, dict[str, float]]:
    """Return for each note of the scope its related notes in the scope, in either direction.

    Each has the weight of the relation; of several, the largest. Notes without any are left out.
    """
    known = frozenset(ids)
    ties: dict[str, dict[str, float]] = defaultdict(dict)
    for id, note in zip(ids, fields, strict=True):
        weights = note.ties or (1.0,) * len(note.related)
        for other, weight in zip(note.related, weights, strict=True):
            if other in known:
                most = max(weight, ties[id].get(other, 0.0))
                ties[id][other] = ties[other][id] = most
    return ties


# Nearest: the notes of a small memory, if no note has a word of the query and there is no model.
#
# With a model every note is near to a query, more or less, so a recall finds something. Without one
# a word has to be the same, and among few notes often none has it: "live" does not find "moved to".
# Users of a small memory expect its notes rather than nothing. Words are compared by the letters
# they share. That is poor evidence, so it is used only if there is no other, and never in a memory
# so large that notes would be singled out by chance.


NEAREST = "nearest-1"
FEW_NOTES = 20
_GRAM = 3


def nearest(query: str, scope: Scope, *, k: int) -> Ranked:
    """Return `k` notes of a small scope, those with the most similar words first.

    Words are compared by the groups of three letters that they share. Stop words of the query count
    only if it has no others. Authors are among the words of their notes. Notes without any likeness
    are returned too, with the score 0. A query without words finds nothing, and only its first
    8,000 characters are read.
    """
    said = [word for word in words(query[:QUERY_CHARS_MAX]) if word not in STOP]
    asked = [_grams(word) for word in dict.fromkeys(said or words(query[:QUERY_CHARS_MAX]))]
    if not asked:
        return Ranked(hits=())
    scores = {id: _likeness(asked, scope.fields(id)) for id in scope.ids}
    best = sorted(scores, key=lambda id: (-scores[id], id))[:k]
    hits = tuple(Hit(id=id, score=scores[id], lanes=(("near", scores[id]),)) for id in best)
    remark = (
        f"near: no note has a word of the query; of {len(scores):,} notes the nearest are given"
    )
    return Ranked(hits=hits, notes=(remark,))


def _likeness(asked: Sequence[frozenset[str]], note: NoteFields) -> float:
    """Return the mean, over the words of a query, of the likeness to the closest word of a note."""
    there = [_grams(word) for word in {*words(note.text), *words(note.author)}]
    best = [max((_overlap(one, other) for other in there), default=0.0) for one in asked]
    return round(math.fsum(best) / len(best), _DIGITS)


def _grams(word: str) -> frozenset[str]:
    """Return the groups of three letters of a word, with its beginning and its end."""
    padded = f"  {word} "
    return frozenset(padded[at : at + _GRAM] for at in range(len(padded) - _GRAM + 1))


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return 2 * len(one & other) / (len(one) + len(other))
