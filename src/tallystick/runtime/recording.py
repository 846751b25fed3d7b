"""A recorded run, gone through once: what a driver does is compared with what was written.

Records stand in the order in which they were written, but for the model calls of programs: those
run side by side and are compared by their places, whatever order they ended in.

Where a run was gone on with, the record of that stands between the others; and before it perhaps
how the run had ended from outside: by a cancel, or since its sandbox broke. The machine knows
nothing of such an end, and goes on as if there had been none.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tallystick.core.query_records import QueryRecord
from tallystick.core.records import (
    ChildBegun,
    NetworkAttempted,
    QueryAsked,
    ReceiptIssued,
    Record,
    RunEnded,
    RunPruned,
    RunResumed,
    encode_record,
    tag_of,
)
from tallystick.runtime.pen import Passage

__all__ = ["Divergence", "NothingMore", "Recording"]

# How long things took is the world's word; everything else is recomputed.
_UNREPEATABLE = frozenset({"wall_ms"})
_SHOWN_CHARS_MAX = 200
# Not made again: an act upon the run, and what native programs did, which are served.
_Passed = RunPruned | NetworkAttempted
_Key = tuple[str, int, int, int]


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where the run is not what it was."""

    seq: int
    field: str
    recorded: object
    now: object


class NothingMore(Exception):
    """The record has nothing more to compare with."""


class Recording:
    """The records of a run, and how far they were made again."""

    def __init__(self, records: Sequence[Record]) -> None:
        numbered = [
            (seq, each) for seq, each in enumerate(records) if not isinstance(each, _Passed)
        ]
        self._records = [(seq, each) for seq, each in numbered if not isinstance(each, QueryRecord)]
        self._queries = {
            _key(each): (seq, each) for seq, each in numbered if isinstance(each, QueryRecord)
        }
        self._known = frozenset(self._queries)
        self._count = len(records)
        self._place = 0
        self._end: Sequence[tuple[int, Record]] = ()

    @property
    def seq(self) -> int:
        """The place of the next record."""
        if self._place < len(self._records):
            return self._records[self._place][0]
        return self._count

    @property
    def ends_here(self) -> bool:
        """Whether nothing is left but how the run ended."""
        return len(self._records) - self._place <= 2

    @property
    def exhausted(self) -> bool:
        """Whether all but model calls of programs was made again."""
        return self._place >= len(self._records)

    @property
    def left(self) -> tuple[int, Record] | None:
        """The first record that was not made again, and its place."""
        rest = [*self._records[self._place :], *self._queries.values()]
        return min(rest, key=lambda each: each[0]) if rest else None

    def has_query(self, record: QueryRecord) -> bool:
        return _key(record) in self._queries

    def had_query(self, record: Record) -> bool:
        """Whether it is of a program's model call and recorded, made again by now or not."""
        return isinstance(record, QueryRecord) and _key(record) in self._known

    def passage(self, *, ending: bool) -> tuple[Passage | None, RunEnded | None] | None:
        """Take the record that the run was gone on with here, if it is the next one.

        A driver that is not `ending` the run takes an end that is none of the machine's as well;
        where that is the last of the record, nobody has gone on with it yet.
        """
        found = self._at(0)
        if isinstance(found, Passage):
            self._place += 1
            return found, None
        ended, resumed = self._at(1), self._at(2)
        if ending or not isinstance(found, ReceiptIssued) or not isinstance(ended, RunEnded):
            return None
        if resumed is not None and not isinstance(resumed, RunResumed):
            return None
        self._end = self._records[self._place : self._place + 2]
        self._place += 2 if resumed is None else 3
        return resumed, ended

    def compare_end(self, ended: Sequence[Record]) -> Divergence | None:
        """Compare the end that a passage was taken with."""
        before, self._end = self._end, ()
        pairs = zip(before, ended, strict=True)
        found = (_difference(seq, recorded, now) for (seq, recorded), now in pairs)
        return next((each for each in found if each is not None), None)

    def take(self, record: Record) -> Divergence | None:
        """Compare the next record. Raises `NothingMore` where there is none."""
        if isinstance(record, QueryRecord):
            seq, recorded = self._queries.pop(_key(record), (self.seq, None))
            if recorded is None:
                return Divergence(seq=seq, field="calls", recorded=None, now=tag_of(record))
            return _difference(seq, recorded, record)
        if self.exhausted:
            raise NothingMore
        seq, before = self._records[self._place]
        self._place += 1
        return _difference(seq, before, record)

    def _at(self, ahead: int) -> Record | None:
        place = self._place + ahead
        return self._records[place][1] if place < len(self._records) else None


def _key(record: QueryRecord) -> _Key:
    """Asked, or ended: an attempt has one of each."""
    begun = "ask" if isinstance(record, QueryAsked | ChildBegun) else "end"
    return begun, record.intent, record.item, record.attempt


def _difference(seq: int, recorded: Record, now: Record) -> Divergence | None:
    before, after = _fields(recorded), _fields(now)
    for field in sorted(before.keys() | after.keys()):
        if field not in _UNREPEATABLE and before.get(field) != after.get(field):
            return Divergence(
                seq=seq,
                field=field,
                recorded=_shown(before.get(field)),
                now=_shown(after.get(field)),
            )
    return None


def _fields(record: Record) -> dict[str, object]:
    fields: dict[str, object] = msgspec.json.decode(encode_record(record))
    return fields


def _shown(value: object) -> object:
    if isinstance(value, str) and len(value) > _SHOWN_CHARS_MAX:
        return value[:_SHOWN_CHARS_MAX] + "..."
    return value
