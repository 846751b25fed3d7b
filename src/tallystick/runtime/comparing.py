"""The pen of a replay: compares what would be written with what was, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tallystick.core.records import ReceiptIssued, Record, RunEnded
from tallystick.runtime.pen import Passage, Pen, Writing
from tallystick.runtime.recording import Divergence, Recording

__all__ = ["ComparingPen"]


class ComparingPen:
    """Compares with a recorded run."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._first: Divergence | None = None
        self._hear: Callable[[Passage], None] = lambda passage: None
        # What ended a run from outside ends it again.
        self.live = True

    @property
    def first(self) -> Divergence | None:
        """The first difference that was seen."""
        return self._first

    def ride(self, record: Record) -> None:
        ending = isinstance(record, ReceiptIssued | RunEnded)
        while (passed := self.passage(ending=ending)) is not None:
            self._hear(passed[0])
        self._first = self._first or self._recording.take(record)

    def write(self, records: Sequence[Record], *, forced: bool) -> Writing:
        for record in records:
            self.ride(record)
        return Writing()

    def passage(self, *, ending: bool) -> tuple[Passage, RunEnded | None] | None:
        # An end from outside that nobody went on from is made again, not passed over.
        found = self._recording.passage(ending=ending or self._recording.ends_here)
        return None if found is None or found[0] is None else (found[0], found[1])

    def compare(self, ended: Sequence[Record]) -> None:
        self._first = self._first or self._recording.compare_end(ended)

    def on_passage(self, hear: Callable[[Passage], None]) -> None:
        self._hear = hear


_: type[Pen] = ComparingPen
