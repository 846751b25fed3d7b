"""The book of sessions in memory, for sessions that end with their process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from tallystick.sessions.book import SessionBook
from tallystick.sessions.rows import (
    BookStore,
    KeptSnapshot,
    RunOfSession,
    SessionName,
    SessionRow,
)
from tallystick.storage.clock import now_ms


class _SessionRows(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of one session."""

    row: SessionRow
    name: SessionName | None = None
    variables: Mapping[str, str] = {}
    snapshots: tuple[KeptSnapshot, ...] = ()
    runs: Mapping[str, RunOfSession] = {}


class MemoryRows:
    """The rows of a book. Values are replaced and never changed, so a copy of `kept` is a state."""

    def __init__(self) -> None:
        self.kept: dict[str, _SessionRows] = {}
        self.count = 0

    # -- sessions ------------------------------------------------------------------------------

    def session(self, session: str) -> SessionRow | None:
        kept = self.kept.get(session)
        return None if kept is None else kept.row

    def sessions(self) -> Sequence[SessionRow]:
        return [self.kept[id].row for id in self.ids()]

    def ids(self) -> Sequence[str]:
        return sorted(self.kept)

    def add(self, row: SessionRow) -> None:
        if row.id in self.kept:
            raise ValueError(f"session {row.id} is there already")
        self.kept[row.id] = _SessionRows(row=row)
        self.count += 1

    def put(self, session: str, **fields: object) -> None:
        if session in self.kept:
            row = msgspec.structs.replace(self.kept[session].row, **fields)
            self._change(session, row=row)

    def remove(self, session: str) -> None:
        self.kept.pop(session, None)

    def created_count(self) -> int:
        return self.count

    # -- names ---------------------------------------------------------------------------------

    def names(self) -> Mapping[str, str]:
        return {id: each.name.name for id, each in self.kept.items() if each.name is not None}

    def find_named(self, name: str) -> SessionName | None:
        found = [each.name for each in self.kept.values() if each.name is not None]
        return next((each for each in found if each.name == name), None)

    def add_name(self, name: SessionName) -> None:
        self._change(name.session, name=name)

    # -- variables -----------------------------------------------------------------------------

    def variables(self, session: str) -> Mapping[str, str]:
        return dict(sorted(self._of(session).variables.items()))

    def set_variables(self, session: str, variables: Mapping[str, str]) -> None:
        self._change(session, variables={**self._of(session).variables, **variables})

    def delete_variable(self, session: str, key: str) -> bool:
        before = self._of(session).variables
        self._change(session, variables={name: before[name] for name in before if name != key})
        return key in before

    # -- snapshots -----------------------------------------------------------------------------

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        taken = self._of(session).snapshots
        return sorted(taken, key=lambda each: (each.snapshot.created_at, each.snapshot.id))

    def add_snapshot(self, snapshot: KeptSnapshot) -> None:
        session = snapshot.snapshot.session_id
        self._change(session, snapshots=(*self._of(session).snapshots, snapshot))

    def delete_snapshot(self, session: str, id: str) -> None:
        taken = self._of(session).snapshots
        self._change(session, snapshots=tuple(each for each in taken if each.snapshot.id != id))

    # -- runs ----------------------------------------------------------------------------------

    def runs(self, session: str) -> Sequence[RunOfSession]:
        return list(self._of(session).runs.values())

    def run(self, session: str, run: str) -> RunOfSession | None:
        return self._of(session).runs.get(run)

    def put_run(self, session: str, run: RunOfSession) -> None:
        self._change(session, runs={**self._of(session).runs, run.run: run})

    def delete_run(self, session: str, run: str) -> None:
        before = self._of(session).runs
        self._change(session, runs={name: before[name] for name in before if name != run})

    def total_spent(self, session: str) -> tuple[int, int]:
        runs = self._of(session).runs.values()
        return sum(each.tokens for each in runs), sum(each.wall_ms for each in runs)

    # -- inside --------------------------------------------------------------------------------

    def _of(self, session: str) -> _SessionRows:
        return self.kept.get(session, _NONE)

    def _change(self, session: str, **changes: object) -> None:
        if session in self.kept:
            self.kept[session] = msgspec.structs.replace(self.kept[session], **changes)


_NONE = _SessionRows(
    row=SessionRow(id="", backend="", state="terminated", created_at=0, expires_at=0)
)


class SessionMemory:
    """A store that ends with its process. Can be shared between threads."""

    where = "memory"
    exists = True

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._rows = MemoryRows()
        self._held: set[str] = set()
        self._freed = threading.Condition()

    @contextlib.contextmanager
    def reading(self) -> Iterator[MemoryRows]:
        with self._guard:
            yield self._rows

    @contextlib.contextmanager
    def writing(self) -> Iterator[MemoryRows]:
        with self._guard:
            before, count = dict(self._rows.kept), self._rows.count
            try:
                yield self._rows
            except BaseException:
                self._rows.kept, self._rows.count = before, count
                raise

    def lock(self, session: str) -> MemorySessionLock:
        return MemorySessionLock(session, held=self._held, freed=self._freed)

    def is_locked(self, session: str) -> bool:
        with self._freed:
            return session in self._held

    def damage(self) -> Sequence[str]:
        """Return nothing: there is no file that could be damaged."""
        return ()

    def scrub(self) -> bool:
        """Return True: deleted values are nowhere in memory."""
        return True


class MemorySessionLock:
    """The lock of a session among the threads of this process."""

    def __init__(self, session: str, *, held: set[str], freed: threading.Condition) -> None:
        self._session = session
        self._held = held
        self._freed = freed
        self._mine = False

    def take(self, *, wait_seconds: float) -> bool:
        with self._freed:
            if not self._freed.wait_for(lambda: self._session not in self._held, wait_seconds):
                return False
            self._held.add(self._session)
            self._mine = True
            return True

    def release(self) -> None:
        with self._freed:
            if self._mine:
                self._mine = False
                self._held.discard(self._session)
                self._freed.notify_all()


def book_in_memory(*, clock: Callable[[], int] = now_ms) -> SessionBook:
    """Return a new, empty book."""
    return SessionBook(SessionMemory(), clock=clock)


_: type[BookStore] = SessionMemory
