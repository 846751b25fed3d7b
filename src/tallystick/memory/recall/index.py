"""The standing index: the data of short lists, held in memory beside an open store.

A process that keeps a store open keeps one of these with it. The index follows the log: before it
answers, it reads the entries that were appended since. Its answers follow from the log alone. So an
index that is days old, a new one, and no index at all (`shortlist`) give the same.

Most of it is read from blocks in the memory's file (`store.blocks`), and the rest from the tables:
notes of ranges that have no block, and notes that entries after their block are about. `keep` makes
the blocks that are due. A file that cannot be written is used with the blocks that it has.

In memory it may hold terms of notes that were erased meanwhile, until it is built again.

Needs the extra `memory`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.chain import Head
from tallystick.core.errors import UsageError
from tallystick.memory.errors import MemoryCorrupt, StorageFailed
from tallystick.memory.recall.contents import CODES, Contents, latest_model, terms_part
from tallystick.memory.recall.scope import NoteFields
from tallystick.memory.recall.selection import Filters
from tallystick.memory.recall.shortlist import Count, NumberedScope
from tallystick.memory.recall.words import Bm25, Statistics
from tallystick.memory.store import blocks as sizes
from tallystick.memory.store.blocks import (
    BLOCK_FORMAT,
    NOTES,
    Block,
    Span,
    read_part,
    spans,
    stored_blocks,
    touched_numbers,
    write_block,
)
from tallystick.memory.store.sqlite import HeadRow, SqliteMemory, head_row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Masked:
    """The notes of an index that one reader sees, as a short list asks about them."""

    def __init__(self, contents: Contents, mask: NDArray[np.bool_], seq: int) -> None:
        import numpy as np

        self._contents = contents
        self._columns = contents.notes
        self._postings = contents.postings
        self._mask = mask
        self._seq = seq
        self._notes = int(np.count_nonzero(mask))
        # The places of the notes that were returned, so that they need not be looked up again.
        self._places: dict[int, int] = {}

    @property
    def notes(self) -> int:
        return self._notes

    @property
    def numbers(self) -> list[int]:
        """The numbers of all notes under the mask."""
        import numpy as np

        return self._numbers_at(np.flatnonzero(self._mask).tolist())

    def authors(self, said: frozenset[str]) -> list[str]:
        """Return the authors of notes under the mask whose names have one of these words."""
        return self._columns.authors(said, self._mask)

    def best(self, asked: Sequence[str], *, count: int, bm25: Bm25) -> tuple[list[int], Statistics]:
        """Return at most `count` notes with the best sums of `term_scores`, and the statistics.

        Only notes with one of the `rare_terms` are returned. The statistics are of the mask.
        """
        places, statistics = self._postings.best(
            asked, count=count, mask=self._counted_mask, bm25=bm25, first=self._columns.first
        )
        return self._numbers_at(places), statistics

    def statistics(self, asked: Sequence[str]) -> Statistics:
        """Return the statistics of the notes under the mask."""
        return self._postings.statistics(asked, self._counted_mask)

    def near(self, vector: bytes, *, count: int) -> list[int]:
        """Return the notes of the `count` nearest codes, each once, so there may be fewer.

        Return none if no model was chosen by the position, or if it was replaced since. Raise
        `UsageError` if `vector` has another length than those of the store.
        """
        import numpy as np

        codes, coded = self._contents.codes, self._contents.coded_mask(self._mask, self._seq)
        if codes is None or coded is None:
            return []
        of = self._contents.code_place.values

        def first(rows: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
            # Sort by note id. The codes of one note keep the order of its windows.
            places = of[rows]
            low, high = self._columns.id_low.values, self._columns.id_high.values
            return rows[np.lexsort((rows, low[places], high[places]))[:wanted]]

        rows = codes.near(vector, count=count, mask=coded, first=first)
        return self._numbers_at(np.unique(of[rows]).tolist())

    def counts(self, numbers: Sequence[int], asked: Sequence[str]) -> list[Mapping[str, int]]:
        """Return for each note how often it has each term of `asked`.

        The rest is under the empty term.

        Raise `UsageError` if a note is not in the index.
        """
        places = [self._place_of(number) for number in numbers]
        return list(self._postings.counts(places, asked))

    def fields(self, numbers: Sequence[int]) -> list[tuple[str, NoteFields]]:
        """Return the id of each note, and what ranking reads of it except text and relations.

        Raise `UsageError` if a note is not in the index.
        """
        return self._columns.fields([self._place_of(number) for number in numbers], seq=self._seq)

    def tokens(self, db: sqlite3.Connection, count: Count, *, tokenizer: str) -> int:
        """Return how many tokens all notes under the mask have.

        For each tokenizer, `count` is called once for each note, until the index is built again.
        """
        counts = self._contents.token_counts(db, count, tokenizer)
        return int(counts[self._mask].sum())

    def within(self, numbers: Collection[int]) -> list[int]:
        """Return those of some notes that are under the mask."""
        return [
            number
            for number in numbers
            if (place := self._columns.find_place(number)) is not None and self._mask[place]
        ]

    @property
    def _counted_mask(self) -> NDArray[np.bool_] | None:
        """The mask, or None if it has every note: then the terms need no selection."""
        return None if self._notes == len(self._mask) else self._mask

    def _numbers_at(self, places: Sequence[int]) -> list[int]:
        numbers: list[int] = self._columns.number.values[places].tolist()
        self._places.update(zip(numbers, places, strict=True))
        return numbers

    def _place_of(self, number: int) -> int:
        if number in self._places:
            return self._places[number]
        place = self._columns.find_place(number)
        if place is None:
            raise UsageError(f"note {number:,} is not in the index")
        return place


_: type[NumberedScope] = Masked


_DEAD_MIN = 1_000
# A block is made again if more of its notes were touched since: of a large one, of a small one.
_TOUCHED_MAX, _TOUCHED_MAX_SMALL = 256, 64
# A recall does not wait longer than this to keep a block. The next one tries again.
_BUSY_SECONDS = 0.5


class _Header(msgspec.Struct):
    """The fields of an entry's header that are needed here."""

    tag: str
    note: str | None


_decode_header = msgspec.json.Decoder(_Header).decode


class StandingIndex:
    """The index of one store, loaded when it is first asked. It follows the log from then on.

    It is used under the store's own lock for reading, and needs none of its own.
    """

    def __init__(self, memory: SqliteMemory) -> None:
        self.memory = memory
        self._store = ""
        # Blocks whose bytes are not what was written.
        self._spoiled: set[Block] = set()
        # The blocks when `keep` looked last, and how many small ones would fill the log.
        self._looked: tuple[list[Block] | None, int] = (None, 0)
        self._newest_format = 0
        self._with_codes = False
        # The notes of each block that entries after it are about, as of a head.
        self._touched: tuple[Head | None, dict[Block, list[int]]] = (None, {})
        self._clear()

    @property
    def remarks(self) -> tuple[str, ...]:
        """A remark for a recall if there are blocks of a newer version, which are not used."""
        if self._newest_format <= BLOCK_FORMAT:
            return ()
        return (
            f"the index in the file has format {self._newest_format}, of a newer version; this "
            f"version reads {BLOCK_FORMAT}, so the index is made in memory",
        )

    @contextmanager
    def at(
        self, *, reader: str | None, filters: Filters, seq: int, at: int, vectors: bool = True
    ) -> Iterator[Masked]:
        """Yield the notes that a reader sees as of a position and a moment.

        They are valid inside the block only. Without `vectors`, none is near to any. The index
        follows the log first; raise `MemoryCorrupt` as `follow` does.
        """
        with self.memory.reading():
            self.follow(vectors=vectors)
            mask = self._held.notes.mask(reader=reader, filters=filters, seq=seq, at=at)
            yield Masked(self._held, mask, seq)

    def follow(self, *, vectors: bool = True) -> int:
        """Read the entries appended since the last call. Return the position of the last one read.

        Codes of vectors are read from the first call with `vectors` on: others need none.

        Load the index again if the file holds another log now, if a block of it was replaced, or if
        too many of its notes are dead: more than 1,000, and more than half. Raise `MemoryCorrupt`
        if a header cannot be read. After any error the index is empty, and the next call loads it.
        """
        with self.memory.reading() as db:
            row = head_row(db, self.memory.path)
            blocks = stored_blocks(db)
            if (
                (vectors and not self._with_codes)
                or row.store != self._store
                or not self._log_continues(db, row.head.count)
                or not self._loaded <= set(blocks)
            ):
                self._clear()
                self._store = row.store
                self._with_codes = self._with_codes or vectors
            if row.head.count > self._seq:
                self._read(db, row, blocks)
            if self._held.dead > max(_DEAD_MIN, len(self._held.notes) // 2):
                # This also removes the terms of erased notes.
                self._clear()
                self._read(db, row, blocks)
            return self._seq

    # -- keeping -------------------------------------------------------------------------------

    def keep(self) -> None:
        """Make the blocks of the file that are due, each in a transaction of its own.

        Those are missing ones, damaged ones, those of an older version, and those of which many
        notes were touched. Where the file cannot be written, or is locked for more than half a
        second, nothing is done. So is nothing where a newer version keeps blocks.
        """
        try:
            with self.memory.reading() as db:
                due = self._due(db)
            for span in due:
                self._keep_block(span)
        except StorageFailed:
            return

    @property
    def spoiled(self) -> bool:
        """True if a block was found whose bytes are not what was written."""
        return bool(self._spoiled)

    def _due(self, db: sqlite3.Connection) -> list[Span]:
        """Return the ranges of the blocks to make.

        Look only if blocks came or went, or if the log has filled another small one. After a
        failure to write, that is also when it is tried again.
        """
        head = head_row(db, self.memory.path).head
        count = head.count
        blocks = stored_blocks(db)
        self._newest_format = max((block.format for block in blocks), default=0)
        if self._newest_format > BLOCK_FORMAT:
            return []
        before, then = self._looked
        if before == blocks and count // sizes.SMALL == then and not self._spoiled:
            return []
        self._looked = (blocks, count // sizes.SMALL)
        spoiled, self._spoiled = self._spoiled, set()
        good = [each for each in blocks if each.format == BLOCK_FORMAT and each not in spoiled]
        self._touched = (head, {block: touched_numbers(db, block) for block in good})
        usable = {
            block.span
            for block, touched in self._touched[1].items()
            if not _overdue(block, touched)
        }
        return [span for span in spans(count) if span not in usable]

    def _keep_block(self, span: Span) -> None:
        with self.memory.writing(forced=False, busy_seconds=_BUSY_SECONDS) as writer:
            row = head_row(writer.db, self.memory.path)
            blocks = stored_blocks(writer.db)
            if any(block.format > BLOCK_FORMAT for block in blocks):
                return
            known = self._looked[0] or ()
            if any(block.span == span and block not in known for block in blocks):
                # Another process or thread was quicker.
                return
            made = Contents(latest_model(writer.db))
            made.add_range(writer.db, span)
            write_block(writer.db, row, span, made.packed(writer.db, span))

    # -- loading and following -----------------------------------------------------------------

    def _clear(self) -> None:
        self._seq, self._hash = 0, b""
        self._held = Contents()
        # The blocks that are a part of what is held. Their terms are read when they are needed.
        self._loaded: set[Block] = set()

    def _log_continues(self, db: sqlite3.Connection, count: int) -> bool:
        """Return True if the log still has the entry that was read last, or none was read yet."""
        if not self._seq:
            return True
        if count < self._seq:
            return False
        row = db.execute("SELECT hash FROM log WHERE seq = ?", (self._seq,)).fetchone()
        return row is not None and row[0] == self._hash

    def _read(self, db: sqlite3.Connection, row: HeadRow, blocks: Sequence[Block]) -> None:
        try:
            if self._seq:
                self._read_after(db, row.head)
            else:
                self._load(db, row, blocks)
        except BaseException:
            # A part of the entries was read, and which part is unknown.
            self._clear()
            raise
        self._seq, self._hash = row.head.count, bytes.fromhex(row.head.hash)

    def _load(self, db: sqlite3.Connection, row: HeadRow, blocks: Sequence[Block]) -> None:
        """Read the whole index: from blocks where there are any, and the rest from the tables."""
        self._held = held = Contents(self._model(db))
        (notes,) = db.execute("SELECT count(*) FROM note").fetchone()
        held.reserve(notes)
        stored = {block.span: block for block in blocks if block.format == BLOCK_FORMAT}
        begin = 1
        # For each block, the position after which vectors are read, or None if it is all read.
        after: dict[Block, int | None] = {}
        for span in _cover(stored, row.head.count):
            if span.first > begin:
                held.add_range(db, Span(begin, span.first - 1))
            block = stored[span]
            begin = span.last + 1
            first = len(held.notes)
            if not self._load_block(db, row, block):
                held.add_range(db, span)
            elif held.model is None:
                after[block] = None
            elif held.add_block_codes(read_part(db, row, block, CODES), first=first):
                after[block] = block.seq
            else:
                held.add_vectors(db, span)
                after[block] = None
        held.add_range(db, Span(begin, row.head.count))
        seen, known = self._touched
        for block, vectors_after in after.items():
            same = seen == row.head and block in known
            touched = known[block] if same else touched_numbers(db, block)
            held.update(db, touched, vectors_after=vectors_after)

    def _load_block(self, db: sqlite3.Connection, row: HeadRow, block: Block) -> bool:
        """Add the notes of a block. Return False, and add none, if it is not what was written."""
        notes = read_part(db, row, block, NOTES)
        if notes is None:
            self._spoiled.add(block)
            return False

        def read_terms(number: int) -> bytes:
            with self.memory.reading() as db:
                data = read_part(db, row, block, terms_part(number))
                if data is not None:
                    return data
                self._spoiled.add(block)
                made = Contents()
                made.add_range(db, block.span, vectors=False)
                return made.packed(db, block.span)[terms_part(number)]

        self._held.add_block(notes, block.span, read_terms=read_terms)
        self._loaded.add(block)
        return True

    def _read_after(self, db: sqlite3.Connection, head: Head) -> None:
        """Read the entries after the position that the index has reached.

        Raise `MemoryCorrupt` if one cannot be read; a part of them may be in the index then.
        """
        touched = self._changed_numbers(db)
        held, new = self._held, Span(self._seq + 1, head.count)
        model = self._model(db)
        others = model != held.model
        if others:
            # Vectors of another model were deleted when this one was chosen.
            held.forget_codes(model)
        held.add_range(db, new, vectors=False)
        held.update(db, touched, vectors_after=None if others else self._seq)
        held.add_vectors(db, Span(1, head.count) if others else new)

    def _model(self, db: sqlite3.Connection) -> tuple[int, int] | None:
        """Return the model whose codes are held, or None if none are."""
        return latest_model(db) if self._with_codes else None

    def _changed_numbers(self, db: sqlite3.Connection) -> list[int]:
        """Return the numbers of earlier notes that new entries are about.

        Raise `MemoryCorrupt` if the header of one cannot be read.
        """
        ids: dict[str, None] = {}
        for (header,) in db.execute("SELECT header FROM log WHERE seq > ?", (self._seq,)):
            try:
                said = _decode_header(header)
            except msgspec.MsgspecError as error:
                why = "an entry's header cannot be read"
                raise MemoryCorrupt(where=str(self.memory.path), why=why) from error
            if said.note is not None and said.tag != "note.remembered":
                ids[said.note] = None
        numbers: set[int] = set()
        for id in ids:
            for table in ("note", "erased"):
                found = db.execute(f"SELECT number FROM {table} WHERE id = ?", (id,)).fetchone()
                numbers.update(found or ())
        return sorted(number for number in numbers if number <= self._seq)


def _cover(stored: Collection[Span], count: int) -> Iterator[Span]:
    """Yield the ranges of those blocks that are there, ascending, none inside another."""
    for span in spans(count):
        if span in stored:
            yield span
        elif span.last - span.first + 1 == sizes.LARGE:
            for first in range(span.first, span.last, sizes.SMALL):
                if (small := Span(first, first + sizes.SMALL - 1)) in stored:
                    yield small


def _overdue(block: Block, touched: Collection[int]) -> bool:
    """Return True if so many notes of a block were touched that it is to be made again."""
    large = block.last - block.first + 1 == sizes.LARGE
    most = _TOUCHED_MAX if large else _TOUCHED_MAX_SMALL
    return len(touched) > most


def check_blocks(memory: SqliteMemory) -> None:
    """Make each block of a memory again, and compare. Raise `MemoryCorrupt` if one differs.

    Of a block whose notes were touched since, only the terms are compared; the rest is checked by
    its code.
    """
    with memory.reading() as db:
        row, model = head_row(db, memory.path), latest_model(db)
        for block in stored_blocks(db):
            if block.format != BLOCK_FORMAT:
                continue
            made = Contents(model)
            made.add_range(db, block.span)
            expected = made.packed(db, block.span)
            if model is None or model[0] > block.seq:
                # Codes of another model are never used.
                expected.pop(CODES, None)
            changed = (NOTES, CODES) if touched_numbers(db, block) else ()
            for part, data in expected.items():
                stored = read_part(db, row, block, part)
                if stored is None or (stored != data and part not in changed):
                    why = f"the index of entries {block.first:,} to {block.last:,} is damaged"
                    what = "a recall makes it again, unless it was made to look right"
                    raise MemoryCorrupt(where=str(memory.path), why=f"{why}; {what}")
