"""The short list: candidates out of a scope that is too large to rank note by note."""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from tallystick.core.errors import UsageError
from tallystick.memory.note import Note, worth_of
from tallystick.memory.recall.rank import QUERY_CHARS_MAX, ParsedQuery, ask, common_terms
from tallystick.memory.recall.scope import Embedded, Embedder, NoteFields, Profile, Scope
from tallystick.memory.recall.selection import Filters, in_batches, scope_numbers
from tallystick.memory.recall.words import Bm25, Statistics, words
from tallystick.memory.store.projection import OPEN, decode_terms, encode_term
from tallystick.memory.store.records import NoteRedacted, NoteRemembered, decode_memory_record
from tallystick.memory.store.vectors import model_at, tokens_at, vector_rows_at, vectors_of

# How a short list is made.
#
# It has two parts, and each follows from the notes of the scope alone: the best by the words of the
# query, and the nearest by one bit for each component of their vectors. Together they are ranked as
# a scope of their own, with the statistics of the whole. Two things are as in a ranking of the
# whole: every lane's value for a note of the list, and the floor above which notes lend to their
# neighbours. One thing is not: a note in neither part is not found, even if its neighbours are
# good.
#
# Rule 1: of equally good notes, those with the smaller ids are taken. So the source does not
# matter: an index that has followed the log for days (`index`), or the file, read for this one
# query.
# Rule 2: `RULES` names these computations, and is in receipts. Change the name with any change of
# results, also by another limit.


RULES = "words-codes-2"
# A scope of more notes has a short list. A smaller one is ranked note by note.
LARGE = 2_000
# Notes of each part. A code is coarse: with fewer than 300, some of the nearest ten are missed.
CANDIDATES = 300
# The guard: among more notes than this, a term that more than this share of them has is not looked
# for, unless the query has no other. Such terms take the longest to read and tell the least.
GUARDED_NOTES = 50_000
GUARDED_SHARE = 0.02
# Scores are compared as multiples of a billionth: their last bits differ between machines.
PARTS = 1e9

Number = TypeVar("Number")


class NumberedScope(Protocol):
    """A scope of very many notes, by their numbers, as the short list asks about it."""

    @property
    def notes(self) -> int: ...

    @property
    def numbers(self) -> list[int]:
        """The numbers of all its notes."""
        ...

    def authors(self, said: frozenset[str]) -> Iterable[str]:
        """Return authors of its notes, at least those whose names have one of these words."""
        ...

    def best(
        self, asked: Sequence[str], *, count: int, bm25: Bm25
    ) -> tuple[Sequence[int], Statistics]:
        """Return at most `count` notes with the best sums of `term_scores`, and the statistics.

        Only notes with one of the `rare_terms` are returned. The statistics are of the whole scope.
        """
        ...

    def statistics(self, asked: Sequence[str]) -> Statistics:
        """Return the statistics of the whole scope, as far as a query of these terms needs them."""
        ...

    def near(self, vector: bytes, *, count: int) -> Sequence[int]:
        """Return the notes of the `count` vectors that differ in sign in the fewest components.

        Each note is returned once, so there may be fewer; none if there are no vectors. Raise
        `UsageError` if `vector` has another length than those of the store.
        """
        ...

    def counts(self, numbers: Sequence[int], asked: Sequence[str]) -> Sequence[Mapping[str, int]]:
        """Return for each note how often it has each term of `asked`.

        The rest is under the empty term.
        """
        ...

    def fields(self, numbers: Sequence[int]) -> Sequence[tuple[str, NoteFields]]:
        """Return the id of each note, and what ranking reads of it except text and relations."""
        ...

    def within(self, numbers: Collection[int]) -> Collection[int]:
        """Return those of some notes that are in this scope."""
        ...

    def tokens(self, db: sqlite3.Connection, count: Count, *, tokenizer: str) -> int:
        """Return how many tokens all its notes have, as `count` counts, which has that name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """The notes to rank, how often each has the terms, and the data to rank them with.

    `statistics` are of the whole scope. `asked` is the query as parsed with the authors of the
    scope.
    """

    numbers: tuple[int, ...]
    counts: Mapping[int, Mapping[str, int]]
    statistics: Statistics
    asked: ParsedQuery

    def with_more(self, numbers: Collection[int], whole: NumberedScope) -> Shortlist:
        """Return the same list with further notes, as far as they are in the scope."""
        more = sorted(set(whole.within(numbers)) - self.counts.keys())
        counted = dict(zip(more, whole.counts(more, self.asked.terms), strict=True))
        return Shortlist(
            numbers=tuple(sorted((*self.numbers, *more))),
            counts={**self.counts, **counted},
            statistics=self.statistics,
            asked=self.asked,
        )


def shortlist(
    query: str, whole: NumberedScope, *, profile: Profile, embedder: Embedder | None
) -> Shortlist:
    """Return the candidates for a query: at most 300 by words, or 150 by words and 300 by vectors.

    There are none by words if the profile gives those no weight. `embedder` is called at most once.
    It is None if there are no vectors to compare. Raise `UsageError` if its vectors have another
    length than those of the store.
    """
    asked = _parse_query(query, whole)
    by_vectors = profile.dense and any(char.isalnum() for char in asked.text)
    # Scores by words are exact: beside vectors, half as many are enough.
    count = -(-CANDIDATES // 2) if by_vectors and embedder is not None else CANDIDATES
    found, statistics = whole.best(asked.terms, count=count, bm25=profile.bm25)
    chosen = set(found if profile.lexical else ())
    if by_vectors and embedder is not None:
        common = common_terms(asked.terms, statistics, profile)
        vector = embedder.embed(asked.model_text(common, rules=profile.rules)).vector
        chosen.update(whole.near(vector, count=CANDIDATES))
    numbers = tuple(sorted(chosen))
    counts = whole.counts(numbers, asked.terms)
    return Shortlist(
        numbers=numbers,
        counts=dict(zip(numbers, counts, strict=True)),
        statistics=statistics,
        asked=asked,
    )


def full_list(query: str, whole: NumberedScope) -> Shortlist:
    """Return a list of all notes of a scope."""
    asked = _parse_query(query, whole)
    numbers = whole.numbers
    counts = whole.counts(numbers, asked.terms)
    return Shortlist(
        numbers=tuple(numbers),
        counts=dict(zip(numbers, counts, strict=True)),
        statistics=whole.statistics(asked.terms),
        asked=asked,
    )


def _parse_query(query: str, whole: NumberedScope) -> ParsedQuery:
    text = query[:QUERY_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")
    return ask(query, authors=whole.authors(frozenset(words(text))))


def rare_terms(asked: Sequence[str], statistics: Statistics) -> list[str]:
    """Return the terms to look for: those that a note has, and in a large scope only rare ones.

    If none of them is rare, return the least common one.
    """
    known = [term for term in asked if statistics.frequency[term]]
    if statistics.notes <= GUARDED_NOTES:
        return known
    many = GUARDED_SHARE * statistics.notes
    rare = [term for term in known if statistics.frequency[term] <= many]
    # For a query of common words only, take the least common of them.
    return rare or sorted(known, key=lambda term: (statistics.frequency[term], term))[:1]


def term_scores(
    often: Number, length: Number, *, rarity: float, usual: float, bm25: Bm25
) -> Number:
    """Return what a term adds to the score of a note that has it `often` among `length` terms.

    `usual` is the mean length of a note, `rarity` the weight of the term. Numbers and arrays go
    through the same operations in the same order, so the bits are the same.
    """
    longer = length / usual  # type: ignore[operator]
    held = bm25.saturation * (1 - bm25.length + bm25.length * longer)
    return rarity * (often * (bm25.saturation + 1) / (often + held))  # type: ignore[operator, return-value]


class CachingEmbedder:
    """An embedder that asks another one once for each text, however often the text is needed."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._made: dict[str, Embedded] = {}

    @property
    def digest(self) -> str:
        return self._embedder.digest

    def embed(self, text: str) -> Embedded:
        """Return the vectors of a text, computed the first time only."""
        if text not in self._made:
            self._made[text] = self._embedder.embed(text)
        return self._made[text]


_caching_embedder_is_an_embedder: type[Embedder] = CachingEmbedder


# A scan: the parts of a short list, read from the file for one query.
#
# It is for a process without a standing index: a command that ends with its answer, the check of a
# receipt, or a machine without the extra `memory`. It reads every note of the scope once, which
# takes seconds for a million, and gives the same result as the index. The full-text index answers
# only which notes have a word: its own statistics are of all its notes, and change with every later
# one. Every word is encoded in letters and digits and quoted: no word of a query can be read as an
# operator.


class Scan:
    """The notes that a reader sees as of a position and a moment, in one state of the file."""

    def __init__(
        self, db: sqlite3.Connection, *, reader: str | None, filters: Filters, seq: int, at: int
    ) -> None:
        self._db = db
        self._seq = int(seq)
        found = scope_numbers(db, reader=reader, filters=filters, seq=seq, at=at)
        self._lengths = dict.fromkeys(found, 0)
        for number, length in db.execute(
            "SELECT number, CASE terms WHEN '' THEN 0 "
            "ELSE length(terms) - length(replace(terms, ' ', '')) + 1 END FROM told"
        ):
            if number in self._lengths:
                self._lengths[number] = length

    @property
    def notes(self) -> int:
        return len(self._lengths)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all notes of the scope."""
        return list(self._lengths)

    def authors(self, said: frozenset[str]) -> list[str]:
        """Return all authors of the scope, whatever the words are."""
        found = self._db.execute("SELECT number, author FROM note WHERE author IS NOT NULL")
        return sorted({author for number, author in found if number in self._lengths})

    def statistics(self, asked: Sequence[str]) -> Statistics:
        return self._statistics({term: self._having(term) for term in asked})

    def best(self, asked: Sequence[str], *, count: int, bm25: Bm25) -> tuple[list[int], Statistics]:
        having = {term: self._having(term) for term in asked}
        statistics = self._statistics(having)
        looked_for = rare_terms(asked, statistics)
        some = sorted({number for term in looked_for for number in having[term]})
        scores = [
            self._score(number, counts, looked_for, statistics, bm25)
            for number, counts in zip(some, self.counts(some, looked_for), strict=True)
        ]
        # Rounded to a whole number, as the index does: half goes to the even neighbour.
        parts = [round(score * PARTS) for score in scores]
        return self._first(dict(zip(some, parts, strict=True)), count), statistics

    def near(self, vector: bytes, *, count: int) -> list[int]:
        model = model_at(self._db, self._seq)
        if model is None:
            return []
        signs = _Signs(model[1])
        wanted = signs.of(vector)
        if wanted is None:
            raise UsageError("vectors of different models or lengths cannot be compared")
        rows = (
            (number, signs.of(each))
            for number, each in vector_rows_at(self._db, self._seq)
            if number in self._lengths
        )
        found = [((code ^ wanted).bit_count(), number) for number, code in rows if code is not None]
        if len(found) > count:
            last = heapq.nsmallest(count, (far for far, _ in found))[-1]
            equal = [number for far, number in found if far == last]
            nearer = [number for far, number in found if far < last]
            # A note may be in the list by several of its windows, and each of them counts.
            ids = self._ids(equal)
            equal.sort(key=ids.__getitem__)
            return sorted({*nearer, *equal[: count - len(nearer)]})
        return sorted({number for _, number in found})

    def counts(self, numbers: Sequence[int], asked: Sequence[str]) -> list[Mapping[str, int]]:
        encoded = dict(in_batches(self._db, "SELECT number, terms FROM told WHERE number", numbers))
        return [_count_terms(encoded.get(number, ""), asked) for number in numbers]

    def fields(self, numbers: Sequence[int]) -> list[tuple[str, NoteFields]]:
        select = (
            "SELECT number, id, author, thread_id, position, created_at, importance "
            f"FROM note JOIN state USING (number) WHERE seq_from <= {self._seq} "
            f"AND {self._seq} < seq_to AND number"
        )
        found = {
            number: (
                id,
                NoteFields(
                    text="",
                    author=author or "",
                    session=thread or "",
                    position=position,
                    created_at=created_at,
                    importance=importance,
                ),
            )
            for number, id, author, thread, position, created_at, importance in in_batches(
                self._db, select, numbers
            )
        }
        return [found[number] for number in numbers]

    def within(self, numbers: Collection[int]) -> list[int]:
        return [number for number in numbers if number in self._lengths]

    def tokens(self, db: sqlite3.Connection, count: Count, *, tokenizer: str) -> int:
        return sum(each for _, each in content_tokens(db, self._lengths, count))

    def _having(self, term: str) -> list[int]:
        return [number for number in notes_having(self._db, term) if number in self._lengths]

    def _statistics(self, having: Mapping[str, Sequence[int]]) -> Statistics:
        return Statistics(
            notes=len(self._lengths),
            terms=sum(self._lengths.values()),
            frequency={term: len(found) for term, found in having.items()},
        )

    def _score(
        self,
        number: int,
        counts: Mapping[str, int],
        looked_for: Sequence[str],
        statistics: Statistics,
        bm25: Bm25,
    ) -> float:
        score = 0.0
        for term in looked_for:
            if term in counts:
                score += term_scores(
                    float(counts[term]),
                    float(self._lengths[number]),
                    rarity=statistics.rarity(term),
                    usual=statistics.length,
                    bm25=bm25,
                )
        return score

    def _first(self, scores: Mapping[int, int], count: int) -> list[int]:
        if len(scores) <= count:
            return sorted(scores)
        least = heapq.nlargest(count, scores.values())[-1]
        better = [number for number, score in scores.items() if score > least]
        equal = [number for number, score in scores.items() if score == least]
        ids = self._ids(equal)
        return sorted((*better, *sorted(equal, key=ids.__getitem__)[: count - len(better)]))

    def _ids(self, numbers: Sequence[int]) -> dict[int, str]:
        return dict(in_batches(self._db, "SELECT number, id FROM note WHERE number", numbers))


def notes_having(db: sqlite3.Connection, term: str) -> Iterator[int]:
    """Yield the numbers of all notes of a store that have a term, as `words.terms` makes terms."""
    # Quoted and encoded: nothing in a word is an operator.
    asked = (f'"{encode_term(term)}"',)
    for (number,) in db.execute("SELECT rowid FROM words WHERE words MATCH ?", asked):
        yield number


class _Signs:
    """Codes as whole numbers: one bit for each component, set if the component is above 0."""

    def __init__(self, dimensions: int) -> None:
        self._size = 2 * dimensions
        self._low = int.from_bytes(b"\xff\x7f" * dimensions, "little")
        self._high = int.from_bytes(b"\x00\x80" * dimensions, "little")

    def of(self, vector: bytes) -> int | None:
        """Return the code of a vector in fixed point, or None if it has another length."""
        if len(vector) != self._size:
            return None
        whole = int.from_bytes(vector, "little")
        # In each component, adding the largest value sets the sign bit only if the component is
        # above zero.
        return ((whole & self._low) + self._low) & ~whole & self._high


def _count_terms(encoded: str, asked: Sequence[str]) -> dict[str, int]:
    found = decode_terms(encoded)
    counts = Counter(found)
    kept = {term: counts[term] for term in asked if term in counts}
    kept[""] = len(found) - sum(kept.values())
    return kept


_scan_is_a_numbered_scope: type[NumberedScope] = Scan


# Candidates: the notes of a short list, as ranking reads them.
#
# Texts are not read: their terms were counted already. Vectors are read for all candidates, and
# vectors of tokens only for those that ranking asks for.


# Counts the tokens of a text. The receipt has the tokenizer's name.
Count = Callable[[str], int]
_RELATED_STEPS = 2
_RELATED_MAX = 1_000


class Candidates:
    """The notes of a short list as of a position. Vectors are read from one state of the file."""

    def __init__(
        self,
        db: sqlite3.Connection,
        listed: Shortlist,
        whole: NumberedScope,
        *,
        seq: int,
        vectors: bool,
    ) -> None:
        self._db = db
        self._seq = seq
        self._counts = listed.counts
        found = whole.fields(listed.numbers)
        self._fields = dict(found)
        ids = [id for id, _ in found]
        self._numbers = dict(zip(ids, listed.numbers, strict=True))
        self._vectors = vectors_of(db, seq, listed.numbers) if vectors else {}

    def read_relations(self) -> None:
        """Read the relations of the notes, which only some profiles need."""
        related = _relations_of(self._db, self._numbers.values(), self._seq)
        for id, number in self._numbers.items():
            if number in related:
                others = related[number]
                self._fields[id] = replace(
                    self._fields[id], related=tuple(others), ties=tuple(others.values())
                )

    def read_worths(self, now: int) -> None:
        """Compute what is left of each note's importance at a time, in milliseconds."""
        used = dict(
            in_batches(
                self._db,
                f"SELECT number, count(*) FROM access WHERE seq <= {int(self._seq)} AND number",
                self._numbers.values(),
                group="number",
            )
        )
        for id, number in self._numbers.items():
            note, fields = self._note(number), self._fields[id]
            worth = worth_of(note, fields.importance, now=now, access_count=used.get(number, 0))
            self._fields[id] = replace(fields, worth=worth)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def number(self, id: str) -> int:
        """Return the number of a note. Raise `KeyError` for one that is not in the list."""
        return self._numbers[id]

    def fields(self, id: str) -> NoteFields:
        return self._fields[id]

    def counts(self, id: str) -> Mapping[str, int]:
        return self._counts[self._numbers[id]]

    def vectors(self, id: str) -> tuple[bytes, ...]:
        return self._vectors.get(self._numbers[id], ())

    def tokens(self, id: str) -> bytes | None:
        return tokens_at(self._db, self._seq, self._numbers[id])

    def text(self, id: str) -> str:
        """Return what a note says."""
        return self._note(self._numbers[id]).content

    def _note(self, number: int) -> Note:
        (body,) = self._db.execute(
            "SELECT body FROM state JOIN log ON log.seq = body_seq "
            "WHERE number = :number AND seq_from <= :seq AND :seq < seq_to",
            {"number": number, "seq": self._seq},
        ).fetchone()
        record = decode_memory_record(body)
        assert isinstance(record, NoteRemembered | NoteRedacted)
        return record.note


def related_numbers(db: sqlite3.Connection, numbers: Sequence[int], *, seq: int) -> set[int]:
    """Return the notes that relations lead to from some others, in either direction, in two steps.

    At most 1,000 are added in each step: those with the smallest numbers. The others themselves are
    left out. Visibility is not checked here.
    """
    reached, edge = set(numbers), list(numbers)
    for _ in range(_RELATED_STEPS):
        found = {
            number
            for select in (
                "SELECT note.number FROM relation JOIN note ON note.id = relation.target "
                f"WHERE relation.seq_from <= {seq} AND relation.number",
                "SELECT relation.number FROM note JOIN relation ON relation.target = note.id "
                f"WHERE relation.seq_from <= {seq} AND note.number",
            )
            for (number,) in in_batches(db, select, edge)
        }
        # If there are too many to rank, the earliest ones.
        edge = sorted(found - reached)[:_RELATED_MAX]
        reached.update(edge)
    return reached - set(numbers)


def content_tokens(
    db: sqlite3.Connection, numbers: Collection[int], count: Count
) -> Iterator[tuple[int, int]]:
    """Yield the number of each of some notes, and how many tokens its present content has.

    Erased notes are left out. `count` is called once for each note.
    """
    select = (
        "SELECT number, body FROM state JOIN log ON log.seq = body_seq "
        f"WHERE seq_to = {OPEN} AND number"
    )
    for number, body in in_batches(db, select, numbers):
        record = decode_memory_record(body)
        assert isinstance(record, NoteRemembered | NoteRedacted)
        yield number, count(record.note.content)


def _relations_of(
    db: sqlite3.Connection, numbers: Collection[int], seq: int
) -> dict[int, dict[str, float]]:
    """Return the notes that each note is related to, with the largest weight of their relations.

    Of a relation that was recorded several times, the last weight counts.
    """
    last: dict[int, dict[tuple[str, str], float]] = {}
    select = (
        f"SELECT number, target, relation, weight FROM relation WHERE seq_from <= {int(seq)} "
        "AND number"
    )
    for number, target, relation, weight in in_batches(
        db, select, numbers, order="number, seq_from"
    ):
        last.setdefault(number, {})[target, relation] = weight
    related: dict[int, dict[str, float]] = {}
    for number, weights in last.items():
        others = related[number] = {}
        for (target, _), weight in sorted(weights.items()):
            others[target] = max(weight, others.get(target, 0.0))
    return related


_candidates_is_a_scope: type[Scope] = Candidates
