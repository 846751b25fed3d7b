"""The notes of a store as arrays: columns, terms, codes of vectors, and counts of tokens.

An index holds one of these for the whole store. A block of an index is made from another one that
has the notes of its range. Both are read from the same tables by the same functions.

Needs the extra `memory`.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tallystick.memory.recall.codes import Codes
from tallystick.memory.recall.columns import (
    Column,
    NoteColumns,
    NoteRow,
    PackedNotes,
    StateRow,
)
from tallystick.memory.recall.packing import Packed, unpack
from tallystick.memory.recall.postings import Postings
from tallystick.memory.recall.selection import in_batches
from tallystick.memory.recall.shortlist import Count, content_tokens
from tallystick.memory.recall.words import TOKENIZER, count_tokens
from tallystick.memory.store.blocks import NOTES, Span
from tallystick.memory.store.projection import OPEN, decode_terms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BATCH = 10_000
_NOTE = ", ".join(f"note.{name}" for name in NoteRow._fields)
_STATE = ", ".join(f"state.{name}" for name in StateRow._fields)
_NOTES = (
    f"SELECT {_NOTE}, {_STATE}, told.terms FROM note "
    f"JOIN state ON state.number = note.number AND state.seq_to = {OPEN} "
    "JOIN told ON told.number = note.number "
)
# Positions of a block for one part of its terms: a part has some ten kilobytes.
_POSITIONS_OF_PART = 128
CODES = "codes"


class _NotesPart(msgspec.Struct, frozen=True, array_like=True):
    """The part `notes` of a block. Tokens are counted by the tokenizer of that name."""

    notes: PackedNotes
    lengths: Packed
    tokenizer: str
    tokens: Packed


class _CodesPart(msgspec.Struct, frozen=True, array_like=True):
    """The part `codes` of a block: the position at which the model was chosen, and its codes."""

    model_seq: int
    places: Packed
    seqs: Packed
    words: bytes


_decode_notes = msgspec.msgpack.Decoder(_NotesPart).decode
_decode_codes = msgspec.msgpack.Decoder(_CodesPart).decode


def terms_part(number: int) -> str:
    """Return the name of a part with terms."""
    return f"terms{number}"


def _term_parts(span: Span) -> int:
    """Return in how many parts the terms of a block are."""
    return max(1, (span.last - span.first + 1) // _POSITIONS_OF_PART)


def latest_model(db: sqlite3.Connection) -> tuple[int, int] | None:
    """Return the position at which the present model was chosen, and its dimensions, or None."""
    row = db.execute("SELECT seq, dimensions FROM model ORDER BY seq DESC LIMIT 1").fetchone()
    return None if row is None else (row[0], row[1])


class Contents:
    """Notes by place, from 0 on. `model` is what `latest_model` returns."""

    def __init__(self, model: tuple[int, int] | None = None) -> None:
        self.notes = NoteColumns()
        self.postings = Postings()
        # Notes that were erased, or added again at another place.
        self.dead = 0
        # The number of tokens of each note, by tokenizer. -1 is for a note that was not counted.
        self._tokens: dict[tuple[str, Count], Column[np.int64]] = {}
        self.forget_codes(model)

    def reserve(self, count: int) -> None:
        """Make room for that many notes, each with one vector."""
        self.notes.reserve(count)
        for column in (self.code_place, self._code_seq):
            column.reserve(count)
        if self.codes is not None:
            self.codes.reserve(count)

    def forget_codes(self, model: tuple[int, int] | None) -> None:
        """Drop all codes. From now on those of `model` are held."""
        import numpy as np

        self.model = model
        self.codes = None if model is None else Codes(dimensions=model[1])
        # For each code, the place of its note, and the position from which it exists.
        self.code_place, self._code_seq = Column(np.int64), Column(np.int64)
        self._code_seq_newest = 0
        # True while every note has one code, at the same place: then the mask needs no lookup.
        self._aligned = True

    # -- blocks --------------------------------------------------------------------------------

    def packed(self, db: sqlite3.Connection, span: Span) -> dict[str, bytes]:
        """Return the parts of a block with all notes that are held."""
        part = _NotesPart(
            self.notes.packed(),
            self.postings.pack_lengths(),
            TOKENIZER,
            self._count_tokens(db, count_tokens, TOKENIZER).packed(),
        )
        parts = {NOTES: msgspec.msgpack.encode(part)}
        if self.codes is not None and self.model is not None:
            places, seqs = self.code_place.packed(), self._code_seq.packed()
            codes = _CodesPart(self.model[0], places, seqs, self.codes.packed())
            parts[CODES] = msgspec.msgpack.encode(codes)
        terms = self.postings.pack_terms(_term_parts(span))
        parts.update((terms_part(number), data) for number, data in enumerate(terms))
        return parts

    def add_block(self, notes: bytes, span: Span, *, read_terms: Callable[[int], bytes]) -> None:
        """Add the notes of a block, without their codes.

        `read_terms` returns a part of its terms by number. It is called when the part is needed.
        """
        part = _decode_notes(notes)
        before = len(self.notes)
        self.notes.add_block(part.notes)
        self.postings.add_block(part.lengths, parts=_term_parts(span), read=read_terms)
        if part.tokenizer == TOKENIZER:
            self._tokens_of(count_tokens, TOKENIZER, upto=before).extend_packed(part.tokens)

    def add_block_codes(self, data: bytes | None, *, first: int) -> bool:
        """Add the codes of a block, whose first note is at the place `first`.

        Return False, and add none, if `data` is None or of another model. Without a model here,
        there is nothing to add, and the result is True.
        """
        import numpy as np

        if self.codes is None or self.model is None:
            return True
        if data is None or (part := _decode_codes(data)).model_seq != self.model[0]:
            return False
        places = unpack(part.places, np.int64) + first
        self._add_codes(places, unpack(part.seqs, np.int64))
        self.codes.add_packed(part.words)
        return True

    # -- tables --------------------------------------------------------------------------------

    def add_range(self, db: sqlite3.Connection, span: Span, *, vectors: bool = True) -> None:
        """Add the notes of a range of positions, as they are now."""
        after = span.first - 1
        while True:
            rows = db.execute(
                f"{_NOTES} WHERE note.number > ? AND note.number <= ? "
                f"ORDER BY note.number LIMIT {_BATCH}",
                (after, span.last),
            ).fetchall()
            if not rows:
                break
            self._add(rows)
            after = rows[-1][0]
        past = db.execute(
            f"SELECT state.number, {_STATE} FROM state "
            f"WHERE number BETWEEN ? AND ? AND seq_to < {OPEN}",
            span,
        )
        while some := past.fetchmany(_BATCH):
            self._add_replaced_states(some)
        tagged = "SELECT number, tag FROM tag WHERE number BETWEEN ? AND ?"
        for number, tag in db.execute(tagged, span):
            self._tag(number, tag)
        shares = "SELECT number, agent_id, seq_from, seq_to FROM share WHERE number BETWEEN ? AND ?"
        for number, spans in _by_number(db.execute(shares, span)).items():
            self.notes.set_shares(number, spans)
        if vectors:
            self.add_vectors(db, span)

    def add_vectors(self, db: sqlite3.Connection, span: Span) -> None:
        """Add the codes of the notes of a range of positions."""
        if self.codes is not None:
            select = "SELECT number, seq, vector FROM vector WHERE number BETWEEN ? AND ?"
            rows = db.execute(f"{select} ORDER BY number, window", span)
            while some := rows.fetchmany(_BATCH):
                self._add_vectors(some)

    def update(
        self, db: sqlite3.Connection, numbers: Sequence[int], *, vectors_after: int | None
    ) -> None:
        """Update notes that later entries are about: state, shares, tags and place.

        A note that was erased, or has other content now, is dropped at its place. With other
        content it is added again. Codes are added of vectors after that position; none for None.
        """
        rows = {row[0]: row for row in in_batches(db, f"{_NOTES} WHERE note.number", numbers)}
        past = f"SELECT number, {_STATE} FROM state WHERE seq_to < {OPEN} AND number"
        replaced = _by_number(in_batches(db, past, numbers))
        shares = "SELECT number, agent_id, seq_from, seq_to FROM share WHERE number"
        shared = _by_number(in_batches(db, shares, numbers))
        tagged = _by_number(in_batches(db, "SELECT number, tag FROM tag WHERE number", numbers))
        for number in numbers:
            row = rows.get(number)
            self.notes.set_shares(number, () if row is None else shared.get(number, ()))
            known = self._replace(number, row, [tag for (tag,) in tagged.get(number, ())])
            if row is not None:
                states = [(number, *state) for state in replaced.get(number, ())]
                # The second field is the position from which the state was valid.
                self._add_replaced_states([state for state in states if state[1] >= known])
        if vectors_after is not None and self.codes is not None:
            select = f"SELECT number, seq, vector FROM vector WHERE seq > {int(vectors_after)}"
            found = in_batches(db, f"{select} AND number", numbers, order="number, window")
            self._add_vectors(list(found))

    def token_counts(
        self, db: sqlite3.Connection, count: Count, tokenizer: str
    ) -> NDArray[np.int64]:
        """Return the number of tokens of each note by place.

        For each tokenizer, `count` is called once for each note.
        """
        return self._count_tokens(db, count, tokenizer).values

    def coded_mask(self, mask: NDArray[np.bool_], seq: int) -> NDArray[np.bool_] | None:
        """Return the mask over codes: those of notes under `mask` that existed as of `seq`.

        Return None if no model was chosen by then, or if it was replaced since.
        """
        if self.model is None or self.model[0] > seq:
            return None
        count = len(self.code_place)
        coded = mask[:count] if self._aligned else mask.take(self.code_place.values)
        return coded & (self._code_seq.values <= seq) if seq < self._code_seq_newest else coded

    # -- inside --------------------------------------------------------------------------------

    def _add(self, rows: Sequence[tuple[object, ...]], *, again: bool = False) -> None:
        end = len(NoteRow._fields)
        notes = [(NoteRow(*row[:end]), StateRow(*row[end:-1])) for row in rows]  # type: ignore[arg-type]
        self.notes.add(notes, again=again)
        for row in rows:
            self.postings.add(Counter(decode_terms(str(row[-1]))))

    def _replace(self, number: int, row: tuple[Any, ...] | None, tags: Sequence[str]) -> int:
        """Bring a note up to date with its row, which is None if it was erased.

        Return the position from which its state here was valid, 0 if it had none.
        """
        place = self.notes.find_place(number)
        if place is not None and (row is None or _body(row) != self._body_at(place)):
            self.notes.drop(place)
            self.dead += 1
            place = None
        if row is None:
            return 0
        if place is not None:
            known = int(self.notes.seq_from.values[place])
            self.notes.set_state(place, StateRow(*row[len(NoteRow._fields) : -1]))
            return known
        self._add([row], again=True)
        for tag in tags:
            self._tag(number, tag)
        return 0

    def _add_replaced_states(self, rows: Sequence[tuple[Any, ...]]) -> None:
        found = [(self.notes.find_place(row[0]), StateRow(*row[1:])) for row in rows]
        kept = [(place, state) for place, state in found if place is not None]
        self.notes.add_replaced_states([place for place, _ in kept], [state for _, state in kept])

    def _tag(self, number: int, tag: str) -> None:
        place = self.notes.find_place(number)
        if place is not None:
            self.notes.add_tag(place, tag)

    def _body_at(self, place: int) -> int:
        return int(self.notes.body_seq.values[place])

    def _add_vectors(self, rows: Sequence[tuple[int, int, bytes]]) -> None:
        if self.codes is None or self.model is None:
            return
        size = 2 * self.model[1]
        places = [self.notes.find_place(number) for number, _, _ in rows]
        # The store does not check vectors. One of another length cannot be compared.
        kept = [
            (place, seq, vector)
            for place, (_, seq, vector) in zip(places, rows, strict=True)
            if place is not None and len(vector) == size
        ]
        self._add_codes([place for place, _, _ in kept], [seq for _, seq, _ in kept])
        self.codes.add(b"".join(vector for _, _, vector in kept))

    def _add_codes(
        self, places: Sequence[int] | NDArray[np.int64], seqs: Sequence[int] | NDArray[np.int64]
    ) -> None:
        import numpy as np

        if not len(places):
            return
        before = len(self.code_place)
        upward = np.arange(before, before + len(places))
        self._aligned = self._aligned and bool((np.asarray(places) == upward).all())
        self.code_place.extend(places)
        self._code_seq.extend(seqs)
        self._code_seq_newest = max(self._code_seq_newest, int(np.max(seqs)))

    def _tokens_of(self, count: Count, tokenizer: str, *, upto: int) -> Column[np.int64]:
        import numpy as np

        counted = self._tokens.setdefault((tokenizer, count), Column(np.int64))
        counted.extend(np.full(upto - len(counted), -1))
        return counted

    def _count_tokens(
        self, db: sqlite3.Connection, count: Count, tokenizer: str
    ) -> Column[np.int64]:
        import numpy as np

        counted = self._tokens_of(count, tokenizer, upto=len(self.notes))
        missing = np.flatnonzero(counted.values < 0)
        if len(missing):
            numbers = self.notes.number.values[missing].tolist()
            found = dict(content_tokens(db, numbers, count))
            counted.values[missing] = [found.get(number, 0) for number in numbers]
        return counted


def _by_number(rows: Any) -> Mapping[int, list[Any]]:  # noqa: ANN401 (rows of any columns)
    found: dict[int, list[Any]] = defaultdict(list)
    for number, *rest in rows:
        found[number].append(tuple(rest))
    return found


def _body(row: tuple[object, ...]) -> object:
    return row[len(NoteRow._fields) + StateRow._fields.index("body_seq")]
