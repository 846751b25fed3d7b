"""Keep the text of replies that are still coming, until whoever follows the run takes it."""

from __future__ import annotations

import threading

import msgspec

from tallystick.interop.trajectory_events import ErrorSeen, LlmResponse, TrajectoryEvent
from tallystick.runtime.calls.deltas import TextDelta

_Call = tuple[str, str, int, int]


class DeltaBuffer:
    """The deltas of a run that were not taken yet, at most one for each call in progress.

    Calling it adds a delta, so it can be given to a run as `heard`. Pieces of one call are joined
    until they are taken: a slow reader gets larger pieces, and holds nothing up. Once the outcome
    of a call is taken from the record, its deltas are of no use, and are dropped.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: dict[_Call, TextDelta] = {}
        self.came = threading.Event()

    def __call__(self, delta: TextDelta) -> None:
        """Add a delta; one that begins the text again replaces what waits of its call.

        It never waits for a reader.
        """
        key = (delta.run, delta.call, delta.intent, delta.item)
        with self._guard:
            before = self._waiting.get(key)
            if before is not None and delta.chars > before.chars:
                delta = msgspec.structs.replace(delta, text=before.text + delta.text)
            self._waiting[key] = delta
        self.came.set()

    def take(self) -> list[TextDelta]:
        """Return the deltas that came since the last call, in the order of their calls."""
        self.came.clear()
        with self._guard:
            taken, self._waiting = list(self._waiting.values()), {}
        return taken

    def note(self, event: TrajectoryEvent) -> None:
        """Drop the deltas of a call whose outcome is in an event."""
        if isinstance(event, LlmResponse):
            key = (event.run, event.call, event.intent, event.item)
        elif isinstance(event, ErrorSeen) and event.of != "run" and event.intent is not None:
            key = (event.run, event.of, event.intent, event.item)
        else:
            return
        with self._guard:
            self._waiting.pop(key, None)
