"""Follow a run of this or another process: its recorded events first, then those to come.

Rule 1: an event is made from committed entries and from nothing else, so it has the same number in
every process and after every restart.
Rule 2: whoever follows reads the ledger, and holds nothing up: not the run, and not other readers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import UsageError
from tallystick.interop.trajectory import ChainSource, Trajectory
from tallystick.interop.trajectory_events import CHARS_MAX, Shown, TrajectoryEvent
from tallystick.live.order import EntriesInOrder
from tallystick.runtime.calls.deltas import TextDelta
from tallystick.runtime.runs.history import resolve_run, runs_inside
from tallystick.runtime.runs.lock import is_running
from tallystick.settings.paths import ledger_path
from tallystick.stores import open_stores, stores_of

if TYPE_CHECKING:
    from tallystick.ledger.port import TransferLedger
    from tallystick.live.deltas import DeltaBuffer
    from tallystick.stores import Stores

# How long a reader waits before it looks at the ledger again, in seconds. The look is one query.
_LOOK_SECONDS = 0.05
# Looks without news before it looks whether the run is still going. That takes a lock for a moment.
_LOOKS_MAX = 4
# The most events that are made before the reader takes the first of them.
_READY_MAX = 512


def follow(
    run: str, *, after: int = 0, ledger: TransferLedger | Path | None = None, full: bool = False
) -> Followed:
    """Return the events of a run, those on record first, and then live, to iterate over.

    `run` is an id, the beginning of one, or `last`. `after` is the number of the last event that
    was seen: the next one is the first. `ledger` is a ledger or its file; without one, it is that
    of the configuration. Texts are cut after 10,000 characters, unless they are asked for in
    `full`.

    The iterator ends when the run has ended or waits for a person, or when its process is gone. It
    can be iterated over with `for` or with `async for`, and holds nothing up.

    Raise `UsageError` if `after` is negative or the id is of a chain of steps, `RunNotFound` if
    there is no such run, and errors of the ledger.
    """
    if after < 0:
        raise UsageError(f"after={after}: the number of an event, or 0 for all of them")
    with ExitStack() as stack:
        stores: Stores
        if ledger is None or isinstance(ledger, Path):
            stores = stack.enter_context(open_stores(ledger or ledger_path()))
        else:
            stores = stores_of(ledger)
        found = resolve_run(stores.ledger, run)
        followed = Followed(stores, found, after=after, full=full)
        followed.close_with(stack.pop_all())
    return followed


class Followed:
    """The events of a run. See `follow`.

    Events are `TrajectoryEvent`s, each with its `number`. With `deltas`, the text of replies that
    are still coming is among them, as `TextDelta`s without a number. `is_going` returns True while
    the run may still get entries; by default, while a process has its lock.
    """

    def __init__(
        self,
        stores: Stores,
        run: str,
        *,
        after: int = 0,
        full: bool = False,
        redact: bool = False,
        deltas: DeltaBuffer | None = None,
        is_going: Callable[[], bool] | None = None,
    ) -> None:
        self.run = run
        # The number of the last event that was returned, or skipped.
        self.number = after
        ledger = stores.ledger
        self._is_going = is_going or (lambda: is_running(ledger, run))
        source = ChainSource(ledger, stores.attachments)
        self._entries = EntriesInOrder(ledger, run)
        self._trajectory = Trajectory(
            Shown(redact=redact, chars_max=None if full else CHARS_MAX, text_of=source.text_of),
            open_child=self._entries.open_child,
        )
        self._events = self._new_events()
        self._made = 0
        self._deltas = deltas
        self._ready: deque[TrajectoryEvent | TextDelta] = deque()
        self._looks = 0
        self._over = False
        self._closing: ExitStack | None = None
        self._check_run(ledger)

    def _check_run(self, ledger: TransferLedger) -> None:
        row = ledger.row(self.run)
        if row is not None and row.steps:
            inside = ", ".join(runs_inside(ledger, self.run)) or "none are here"
            raise UsageError(f"{self.run} holds steps, which have no events; name a run: {inside}")

    def close_with(self, stack: ExitStack) -> None:
        """Close this when the iteration ends, or `close` is called."""
        self._closing = stack

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, and close what was opened for it. Closing twice is harmless."""
        self._over = True
        stack, self._closing = self._closing, None
        if stack is not None:
            stack.close()

    def skip_recorded(self) -> None:
        """Skip every event that is on record now."""
        for _ in self._new_events():
            pass
        self.number = max(self.number, self._made)
        self._events = self._new_events()

    def __iter__(self) -> Iterator[TrajectoryEvent | TextDelta]:
        while True:
            while self._ready:
                yield self._take()
            if not self._look():
                return
            if not self._ready:
                self._wait()

    async def __aiter__(self) -> AsyncIterator[TrajectoryEvent | TextDelta]:
        while True:
            while self._ready:
                yield self._take()
            # In a thread, since it reads files.
            if not await asyncio.to_thread(self._look):
                return
            if not self._ready:
                await asyncio.to_thread(self._wait)

    # -- inside ----------------------------------------------------------------------------------

    def _take(self) -> TrajectoryEvent | TextDelta:
        event = self._ready.popleft()
        if not isinstance(event, TextDelta) and isinstance(event.number, int):
            self.number = event.number
        return event

    def _wait(self) -> None:
        if self._deltas is None:
            time.sleep(_LOOK_SECONDS)
        else:
            self._deltas.came.wait(_LOOK_SECONDS)

    def _look(self) -> bool:
        """Make the next events ready. Return False if there are none, and none will come.

        Then this is closed. True does not mean that there are some now.
        """
        if self._over:
            return False
        # Asked before the ledger is read: what a run writes before it ends is read then.
        asks = self._trajectory.has_ended or self._looks % _LOOKS_MAX == 0
        going = not asks or self._is_going()
        self._looks += 1
        for event in self._events:
            if self._deltas is not None:
                self._deltas.note(event)
            self._ready.append(event)
            self._looks = 1
            if len(self._ready) >= _READY_MAX:
                return True
        self._events = self._new_events()
        if self._deltas is not None:
            self._ready.extend(self._deltas.take())
        if not going and not self._ready:
            self.close()
            return False
        return True

    def _new_events(self) -> Iterator[TrajectoryEvent]:
        """Yield the events of entries that were committed since, after those to be skipped."""
        for entry in self._entries.read():
            for event in self._trajectory.add(entry):
                self._made += 1
                if self._made > self.number:
                    yield msgspec.structs.replace(event, number=self._made)
