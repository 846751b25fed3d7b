"""The pen of a replay: compares what would be written with what was.

Records stand in the order in which they were written, but for the model calls of programs: those
run side by side and are compared by their places, whatever order they ended in.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tallystick.core.query_records import QueryRecord
from tallystick.core.records import Record, encode_record, tag_of
from tallystick.runtime.pen import Pen

__all__ = ["ComparingPen", "Divergence", "NothingMore"]

# How long things took is the world's word; everything else is recomputed.
_UNREPEATABLE = frozenset({"wall_ms"})
_SHOWN_CHARS_MAX = 200
_Key = tuple[str, int, int, int]


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where the run is not what it was."""

    seq: int
    field: str
    recorded: object
    now: object


class NothingMore(Exception):
    """The record has nothing more to compare with."""


class ComparingPen:
    """Compares with a recorded run."""

    def __init__(self, records: Sequence[Record]) -> None:
        numbered = list(enumerate(records))
        self._records = [(seq, each) for seq, each in numbered if not isinstance(each, QueryRecord)]
        self._queries = {
            _key(each): (seq, each) for seq, each in numbered if isinstance(each, QueryRecord)
        }
        self._place = 0
        self._first: Divergence | None = None

    @property
    def seq(self) -> int:
        """The place of the next record."""
        end = len(self._records) + len(self._queries)
        return self._records[self._place][0] if self._place < len(self._records) else end

    @property
    def first(self) -> Divergence | None:
        """The first difference that was seen."""
        return self._first

    @property
    def left(self) -> tuple[int, Record] | None:
        """The first record that was not made again, and its place."""
        rest = [*self._records[self._place :], *self._queries.values()]
        return min(rest, key=lambda each: each[0]) if rest else None

    def ride(self, record: Record) -> None:
        if isinstance(record, QueryRecord):
            seq, recorded = self._queries.pop(_key(record), (self.seq, None))
            if recorded is None:
                self._note(Divergence(seq=seq, field="calls", recorded=None, now=tag_of(record)))
            else:
                self._note(_difference(seq, recorded, record))
            return
        if self._place >= len(self._records):
            raise NothingMore
        seq, before = self._records[self._place]
        self._note(_difference(seq, before, record))
        self._place += 1

    commit = force = ride

    def all(self, records: Sequence[Record], *, forced: bool) -> None:
        for record in records:
            self.ride(record)

    def _note(self, found: Divergence | None) -> None:
        self._first = self._first or found


def _key(record: QueryRecord) -> _Key:
    """Asked, or ended: an attempt has one of each."""
    begun = "ask" if tag_of(record) == "query.ask" else "end"
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


_: type[Pen] = ComparingPen
