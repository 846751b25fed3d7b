"""The cursor through a run's record: how far an execution has made it again, and where it differs.

Records stand in the order in which they were written, but for the model calls and children of
programs: those run side by side and are compared by their keys, whatever order they ended in.

Where a run was resumed, the record of that stands between the others, and before it perhaps how the
run had ended from outside: by a cancel, or since its sandbox broke. The machine knows nothing of
such an end, and continues as if there had been none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tallystick.core.records import (
    CallHost,
    ChildBegun,
    Continuation,
    HostAnswered,
    NetworkAttempted,
    QueryAsked,
    QueryRecord,
    ReceiptIssued,
    Record,
    RunEnded,
    RunPruned,
    RunResumed,
    encode_record,
    tag_of,
)

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


class RecordEnds(Exception):
    """The record has nothing more to compare with, and does not say how the run ended."""


class Cursor:
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
        # Of those that were not made again yet, how many each host call has.
        self._left: Counter[int | None] = Counter(each.intent for _, each in self._queries.values())
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

    def left_beside(self, intent: int | None) -> int | None:
        """Return the place of what comes next, None if nothing does.

        The model calls and children of one host call do not count: they are made in any order.
        """
        if not self.exhausted:
            return self.seq
        if len(self._queries) == self._left[intent]:
            return None
        return min(seq for seq, each in self._queries.values() if each.intent != intent)

    def has_query(self, record: QueryRecord) -> bool:
        """Tell whether this is recorded and was not made again yet."""
        return _key(record) in self._queries

    def had_query(self, record: Record) -> bool:
        """Tell whether it is of a program's model call and recorded, made again by now or not."""
        return isinstance(record, QueryRecord) and _key(record) in self._known

    def continuation(self, *, ending: bool) -> tuple[Continuation | None, RunEnded | None] | None:
        """Take the record by which the run was resumed or forked here, if it is the next one.

        A driver that is not `ending` the run takes an end that is none of the machine's as well;
        where that is the last of the record, nobody has resumed the run yet.
        """
        found = self._at(0)
        if isinstance(found, Continuation):
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
        """Compare the end that `continuation` passed with the end that the run would have now."""
        before, self._end = self._end, ()
        pairs = zip(before, ended, strict=True)
        found = (_difference(seq, recorded, now) for (seq, recorded), now in pairs)
        return next((each for each in found if each is not None), None)

    def take(self, record: Record) -> Divergence | None:
        """Compare the next record. Raises `RecordEnds` where there is none."""
        if isinstance(record, QueryRecord):
            found = self._pop(record)
            if found is None:
                return Divergence(seq=self.seq, field="calls", recorded=None, now=tag_of(record))
            return _difference(*found, record)
        if self.exhausted:
            raise RecordEnds
        seq, before = self._records[self._place]
        self._place += 1
        return _difference(seq, before, record)

    def take_call_of(self, program: int) -> CallHost | HostAnswered | None:
        """Take the next record if it is a host call of a program, or its answer."""
        found = self._at(0)
        if isinstance(found, CallHost | HostAnswered) and found.program == program:
            self._place += 1
            return found
        return None

    def take_query(self, record: QueryRecord) -> None:
        """Count a model call or child of a program that is served whole as made again."""
        self._pop(record)

    def _pop(self, record: QueryRecord) -> tuple[int, QueryRecord] | None:
        found = self._queries.pop(_key(record), None)
        if found is not None:
            self._left[record.intent] -= 1
        return found

    def _at(self, ahead: int) -> Record | None:
        place = self._place + ahead
        return self._records[place][1] if place < len(self._records) else None


def _key(record: QueryRecord) -> _Key:
    """AskedRun, or ended: an attempt has one of each."""
    begun = "ask" if isinstance(record, QueryAsked | ChildBegun) else "end"
    return begun, record.intent, record.item, record.attempt


def _difference(seq: int, recorded: Record, now: Record) -> Divergence | None:
    if recorded == now:
        return None
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
