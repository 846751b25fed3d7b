"""Compare an execution with the record of a run, one record after the other.

Records are compared in the order in which they were written. The model calls and children of
programs are the exception: they run side by side, so they are compared by their keys.

If a run was resumed, the record of the resume is between the others. Before it there may be an end
that came from outside, such as a cancel or a broken sandbox. The machine knows nothing of such an
end, and continues as if there had been none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tallystick.core.records import (
    CallDecided,
    CallHost,
    CallWaiting,
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

# A duration is measured and differs each time. Every other field is computed again.
_UNREPEATABLE = frozenset({"wall_ms"})
_SHOWN_CHARS_MAX = 200
# Records that a replay does not produce: pruning is an act on the run, and what a native program
# reached for is served with it.
_Passed = RunPruned | NetworkAttempted
# Records of a host call: what a person was asked and said, its beginning, and its answer.
HostRecord = CallWaiting | CallDecided | CallHost | HostAnswered
_Key = tuple[str, int, int, int]


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first difference between a record and what an execution produces now.

    `seq` is the position of the record. `recorded` or `now` is None if that side has no such field.
    `field` is `calls` if a whole call is missing or new.
    """

    seq: int
    field: str
    recorded: object
    now: object


class RecordEnds(Exception):
    """Raised if the record stops before the run does, and does not say how the run ended."""


class Cursor:
    """The records of a run, and the position up to which an execution has repeated them."""

    def __init__(self, records: Sequence[Record]) -> None:
        numbered = [
            (seq, each) for seq, each in enumerate(records) if not isinstance(each, _Passed)
        ]
        self._records = [(seq, each) for seq, each in numbered if not isinstance(each, QueryRecord)]
        self._queries = {
            _key(each): (seq, each) for seq, each in numbered if isinstance(each, QueryRecord)
        }
        # The number of records that are not repeated yet, by host call.
        self._left: Counter[int | None] = Counter(each.intent for _, each in self._queries.values())
        self._count = len(records)
        self._place = 0
        self._end: Sequence[tuple[int, Record]] = ()

    @property
    def seq(self) -> int:
        """The position of the next record."""
        if self._place < len(self._records):
            return self._records[self._place][0]
        return self._count

    @property
    def ends_here(self) -> bool:
        """True if at most two records are left: an end has two, its receipt and `RunEnded`.

        Model calls and children of programs do not count.
        """
        return len(self._records) - self._place <= 2

    @property
    def exhausted(self) -> bool:
        """True if everything was repeated, except perhaps model calls and children of programs."""
        return self._place >= len(self._records)

    @property
    def left(self) -> tuple[int, Record] | None:
        """The first record that was not repeated, with its position; None if all were."""
        rest = [*self._records[self._place :], *self._queries.values()]
        return min(rest, key=lambda each: each[0]) if rest else None

    def left_beside(self, intent: int | None) -> int | None:
        """Return the position of the first record that is left, None if there is none.

        The model calls and children of the host call `intent` do not count: they may be repeated
        in any order.
        """
        if not self.exhausted:
            return self.seq
        # Counted, not searched: a batch asks this for each of up to 10,000 calls.
        if len(self._queries) == self._left[intent]:
            return None
        return min(seq for seq, each in self._queries.values() if each.intent != intent)

    def has_query(self, record: QueryRecord) -> bool:
        """Return True if this record is there and was not repeated yet."""
        return _key(record) in self._queries

    def continuation(self, *, ending: bool) -> tuple[Continuation | None, RunEnded | None] | None:
        """Take the record of a resume or fork, if it is next, and return it.

        Unless the driver is `ending` the run itself, an end that came from outside is taken with
        it and returned too. If that end is the last record, the run was not resumed yet, and the
        continuation is None. Return None if neither is next.
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
        """Compare the end that `continuation` took with the end that the run would have now.

        Return the first difference, None if they are equal. The end that was taken is forgotten, so
        it is compared once. Raise `ValueError` if none was taken.
        """
        before, self._end = self._end, ()
        pairs = zip(before, ended, strict=True)
        found = (_difference(seq, recorded, now) for (seq, recorded), now in pairs)
        return next((each for each in found if each is not None), None)

    def take(self, record: Record) -> Divergence | None:
        """Compare with the recorded one, and take it. Return a difference, None if they are equal.

        The difference is the first field that differs, in alphabetical order; `wall_ms` is not
        compared. A field that is a text is cut after 200 characters; texts inside other values are
        whole. For a program's call, the recorded one is found by its key; if there is none, the
        field is `calls`. For other records, raise `RecordEnds` if all were repeated.
        """
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

    def take_call_of(self, program: int) -> HostRecord | None:
        """Take the next record if it is a host call of this program, or its answer; else None."""
        found = self._at(0)
        if isinstance(found, HostRecord) and found.program == program:
            self._place += 1
            return found
        return None

    def take_query(self, record: QueryRecord) -> None:
        """Take a recorded model call or child without a comparison: its program is served.

        Do nothing if it was taken before, or is not on record.
        """
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
    """Return the key of a record. An attempt has two: of its beginning and of its end."""
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
                recorded=_shortened(before.get(field)),
                now=_shortened(after.get(field)),
            )
    return None


def _fields(record: Record) -> dict[str, object]:
    fields: dict[str, object] = msgspec.json.decode(encode_record(record))
    return fields


def _shortened(value: object) -> object:
    if isinstance(value, str) and len(value) > _SHOWN_CHARS_MAX:
        return value[:_SHOWN_CHARS_MAX] + "..."
    return value
