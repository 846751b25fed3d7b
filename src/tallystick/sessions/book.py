"""The book of sessions: their rows and what they keep, shared by all processes of a machine.

Rule 1: the book knows only the name of a backend. It keeps the interpreter of a session as a
reference to an attachment; reading that is up to the backend.
Rule 2: a session has no end, unless it was given one. Expiry is a time and not an act: a session
whose time is over is expired from that moment, even before a clean-up. What it keeps stays, and
`reopen` gives it a new period. While a session is paused, its time stands still.
Rule 3: limits are checked in the transaction that makes the change.
Rule 4: the rules are here, and the rows are behind a port (`tallystick.sessions.rows`): a book in a
file and one in memory differ only in how long they live.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypedDict

import msgspec

from tallystick.core.errors import (
    ContextVariableRefused,
    InvalidLimit,
    InvalidSessionState,
    MaxExtensionsReached,
    MaxSnapshotsReached,
    RecursionDepthExceeded,
    SessionBusy,
    SessionNotFound,
    SnapshotExists,
)
from tallystick.core.ids import is_ulid
from tallystick.ledger.custody import created_at_ms
from tallystick.sandbox.snapshot import SNAPSHOTS_MAX, SnapshotId, check_snapshot_name
from tallystick.sessions.rows import (
    CONTEXT_BYTES_MAX,
    CONTEXT_KEY_CHARS_MAX,
    CONTEXT_VARIABLES_MAX,
    DEPTH_MAX,
    ENDED,
    ENDED_LOST,
    LIFETIME_MS_MAX,
    NO_END_MS,
    BookRows,
    BookStore,
    KeptSnapshot,
    Left,
    Period,
    RunOfSession,
    SessionInfo,
    SessionName,
    SessionRow,
    SessionRun,
    SessionState,
    SessionStats,
    info_now,
    info_of,
    is_text,
    require_usable,
    row_of,
    run_of_row,
    snapshot_named,
)
from tallystick.storage.clock import new_id, now_ms

# What sessions keep: the interpreter of each, its snapshots by name, and its runs.
#
# A run that ends replaces the interpreter of its session, and so does a restore. Each replacement
# has a number, `generation`, and a run records the one it began with. So a run that is resumed
# later does not replace a newer interpreter by its own.


class SessionKept:
    """The part of the book about interpreters, snapshots and runs.

    A method raises `SessionNotFound` for a session that does not exist, unless it says otherwise.
    """

    def __init__(self, store: BookStore, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock

    # -- snapshots -----------------------------------------------------------------------------

    def record_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Keep the session's present interpreter under a name, and return the snapshot.

        It becomes the current snapshot. What a run has prepared is not part of it. Raise
        `InvalidName` for a name that is not allowed, `SnapshotExists` if it is used, and
        `MaxSnapshotsReached` if there are too many. Raise an error for a session that cannot be
        used (see `require_usable`).
        """
        check_snapshot_name(name)
        with self._store.writing() as rows:
            info = self._require_usable(rows, session)
            taken = rows.snapshots(session)
            if any(each.snapshot.name == name for each in taken):
                raise SnapshotExists(name=name)
            if len(taken) >= SNAPSHOTS_MAX:
                raise MaxSnapshotsReached(limit=SNAPSHOTS_MAX)
            now = self._clock()
            snapshot = SnapshotId(
                id=new_id(time_ms=now), name=name, session_id=session, created_at=now
            )
            left = _without_prepared(info.left)
            kept = KeptSnapshot(snapshot=snapshot, backend=info.backend, left=left)
            rows.add_snapshot(kept)
            rows.put(session, current_snapshot_id=snapshot.id)
            return kept

    def restore_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Replace a session's interpreter by a snapshot, by name or `name:id`. Return the snapshot.

        It becomes the current snapshot. What a run has prepared is dropped, and a run that began
        before leaves nothing any more.
        Raise `SnapshotNotFound`, or an error for a session that cannot be used.
        """
        with self._store.writing() as rows:
            info = self._require_usable(rows, session)
            found = snapshot_named(rows, session, name)
            rows.put(
                session,
                left=found.left,
                generation=info.generation + 1,
                current_snapshot_id=found.snapshot.id,
            )
            return found

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        """Return the snapshots of a session in the order they were taken.

        The session may have expired.
        """
        with self._store.reading() as rows:
            row_of(rows, session)
            return rows.snapshots(session)

    def named_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Return a snapshot by its name or `name:id`. Raise `SnapshotNotFound` if there is none."""
        with self._store.reading() as rows:
            row_of(rows, session)
            return snapshot_named(rows, session, name)

    def delete_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Delete a snapshot by its name or `name:id`, and return it. The session may have expired.

        Its attachments are not released here. Raise `SnapshotNotFound` if there is none.
        """
        with self._store.writing() as rows:
            info = self._info(rows, session)
            found = snapshot_named(rows, session, name)
            rows.delete_snapshot(session, found.snapshot.id)
            if info.current_snapshot_id == found.snapshot.id:
                rows.put(session, current_snapshot_id=None)
            return found

    def clear(self, session: str) -> None:
        """Drop the interpreter and all snapshots of a session. Harmless if it does not exist."""
        with self._store.writing() as rows:
            row = rows.session(session)
            if row is None or not (row.left != Left() or rows.snapshots(session)):
                return
            for each in rows.snapshots(session):
                rows.delete_snapshot(session, each.snapshot.id)
            rows.put(session, left=Left(), generation=row.generation + 1, current_snapshot_id=None)

    def forget_images(self, session: str, ids: Collection[str], runs: Collection[str] = ()) -> int:
        """Drop these images from a session, and those that these runs left.

        Return how many were dropped, of its snapshots and its interpreter; one that a run has
        prepared is not counted. A dropped interpreter is replaced by a fresh one.
        """
        with self._store.writing() as rows:
            info = self._info(rows, session)
            prepared = info.left.prepared
            if prepared is not None and _is_of(prepared, ids, runs):
                rows.put(session, left=_without_prepared(info.left))
            fresh = _is_of(info.left, ids, runs)
            if fresh:
                rows.put(
                    session,
                    left=Left(),
                    generation=info.generation + 1,
                    current_snapshot_id=None,
                )
            gone = [
                each.snapshot.id for each in rows.snapshots(session) if _is_of(each.left, ids, runs)
            ]
            for id in gone:
                rows.delete_snapshot(session, id)
            return len(gone) + fresh

    # -- runs ----------------------------------------------------------------------------------

    def begin_run(self, session: str, run: str) -> SessionInfo:
        """Note that a run begins or is resumed, and set the session to executing, at depth 0.

        Return the session as it was before. A resumed run keeps the number of the interpreter that
        it began with. Raise an error for a session that cannot be used.
        """
        with self._store.writing() as rows:
            info = self._require_usable(rows, session)
            before = rows.run(session, run)
            if before is None:
                before = RunOfSession(run=run, begun_at=self._clock(), generation=info.generation)
            rows.put_run(session, msgspec.structs.replace(before, ended=0))
            rows.put(session, state="executing", recursion_depth=0)
            return info

    def end_run(
        self,
        session: str,
        run: str,
        *,
        tokens: int,
        wall_ms: int,
        ended: bool,
        lost: bool = False,
    ) -> None:
        """Note what a run has spent, and set the session to ready if it was executing.

        `tokens` and `wall_ms` are the sums of the run, and replace what was noted before. `ended`
        is False if its spending may still grow. `lost` notes that the session does not keep what
        its programs left, and that the run has ended. A run that the session does not list is not
        added. Raise `SessionNotFound` if the session was removed.
        """
        with self._store.writing() as rows:
            row = row_of(rows, session)
            before = rows.run(session, run)
            if before is not None:
                after = ENDED_LOST if lost else ENDED * ended
                rows.put_run(
                    session,
                    msgspec.structs.replace(before, ended=after, tokens=tokens, wall_ms=wall_ms),
                )
            _set_ready(rows, row)

    def forget_run(self, session: str, run: str) -> None:
        """Delete a run that was refused before it was recorded, as if it had not begun.

        A session that is executing becomes ready. Nothing is raised if the session was removed.
        """
        with self._store.writing() as rows:
            rows.delete_run(session, run)
            _set_ready(rows, rows.session(session))

    def prepare(self, session: str, left: Left) -> None:
        """Note the interpreter that a run is about to leave, on the disk before the run's end is.

        It replaces one that was prepared before. `leave` makes it the session's, `drop_prepared`
        drops it. Raise `SessionNotFound` if the session was removed.
        """
        with self._store.writing() as rows:
            info = self._info(rows, session)
            rows.put(session, left=msgspec.structs.replace(info.left, prepared=left))

    def drop_prepared(self, session: str) -> None:
        """Drop what a run had prepared, because the run did not end. Harmless without one."""
        with self._store.writing() as rows:
            rows.put(session, left=_without_prepared(self._info(rows, session).left))

    def leave(self, session: str, left: Left) -> bool:
        """Make the interpreter that a run left the session's. Return False if that is not allowed.

        It is not allowed if another run, or a restore, has replaced the interpreter that the run
        began with. Nor is it if the session was terminated, or does not list the run. What was
        prepared is dropped in either case. Raise `SessionNotFound` if the session was removed.
        """
        with self._store.writing() as rows:
            row = row_of(rows, session)
            begun = rows.run(session, left.run or "")
            over = row.state == "terminated"
            if over or begun is None or begun.generation != row.generation:
                rows.put(session, left=_without_prepared(row.left))
                return False
            generation = row.generation + 1
            rows.put(session, left=left, generation=generation)
            rows.put_run(session, msgspec.structs.replace(begun, generation=generation))
            return True

    def start_from(self, session: str, left: Left) -> None:
        """Replace the interpreter of a session by `left`, and drop what a run has prepared.

        A run that began before leaves nothing any more. Raise an error for a session that cannot be
        used.
        """
        with self._store.writing() as rows:
            info = self._require_usable(rows, session)
            rows.put(session, left=(left), generation=info.generation + 1)

    def runs(self, session: str) -> Sequence[SessionRun]:
        """Return the runs of a session in the order they were begun."""
        with self._store.reading() as rows:
            row_of(rows, session)
            return [run_of_row(each) for each in rows.runs(session)]

    def needed_attachments(self, session: str) -> frozenset[str]:
        """Return the ids of the attachments that a session needs; none if it does not exist.

        These are those of its interpreter, of a prepared one, and of its snapshots.
        """
        return frozenset(ref.id for each in self._lefts(session) for ref in each.attachments)

    def sizes(self) -> Mapping[str, int]:
        """Return the bytes of each attachment that some session needs, by its id."""
        with self._store.reading() as rows:
            lefts = [
                left
                for row in rows.sessions()
                for left in (row.left, *(each.left for each in rows.snapshots(row.id)))
            ]
        both = [each for left in lefts for each in (left, left.prepared) if each is not None]
        return {ref.id: ref.byte_len for left in both for ref in left.attachments}

    def images_of(
        self, session: str, ids: Collection[str], runs: Collection[str] = ()
    ) -> frozenset[str]:
        """Return the attachments of a session's images that are in `ids` or were left by `runs`.

        With an image come its values. The result is empty if the session does not exist.
        """
        lefts = [each for each in self._lefts(session) if _is_of(each, ids, runs)]
        return frozenset(ref.id for each in lefts for ref in each.attachments)

    # -- inside --------------------------------------------------------------------------------

    def _lefts(self, session: str) -> list[Left]:
        with self._store.reading() as rows:
            row = rows.session(session)
            if row is None:
                return []
            kept = [row.left] if row.left.prepared is None else [row.left, row.left.prepared]
            return kept + [each.left for each in rows.snapshots(session)]

    def _info(self, rows: BookRows, session: str) -> SessionInfo:
        return info_now(rows, session, now=self._clock())

    def _require_usable(self, rows: BookRows, session: str) -> SessionInfo:
        return require_usable(rows, session, now=self._clock())


def _set_ready(rows: BookRows, row: SessionRow | None) -> None:
    if row is not None and row.state == "executing":
        rows.put(row.id, state="ready")


def _without_prepared(left: Left) -> Left:
    """Return a session's interpreter without what a run prepared."""
    return msgspec.structs.replace(left, prepared=None)


def _is_of(left: Left, ids: Collection[str], runs: Collection[str]) -> bool:
    """Return True if an image or its values are in `ids`, or one of `runs` left it."""
    return left.run in runs or any(ref.id in ids for ref in left.attachments)


_NEW = Left()


class SessionBook:
    """The sessions of one store. `clock` gives milliseconds since 1970.

    `kept` is the part about interpreters, snapshots and runs. A method that takes a session raises
    `SessionNotFound` if there is none, unless it says otherwise. A method that changes one raises
    the errors of `require_usable` too, except `update_state`, `reopen`, `set_period`, `remove`,
    `increase_depth` and `decrease_depth`. Errors of the store (`StoreError`) are raised as they
    are.
    """

    def __init__(self, store: BookStore, *, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._clock = clock
        self.kept = SessionKept(store, clock)

    @property
    def where(self) -> str:
        """The place of the book, for messages."""
        return self._store.where

    @property
    def exists(self) -> bool:
        """True if the book exists. Reading this property does not create it."""
        return self._store.exists

    def now(self) -> int:
        """Return the present time by the clock of the book, in milliseconds since 1970."""
        return self._clock()

    # -- locks ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold(self, session: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
        """Lock a session while inside, even if it is removed meanwhile.

        Raise `SessionBusy` if another client still has it after `wait_seconds`, and
        `SessionNotFound` if this is no id. That the session exists is not checked.
        """
        # The id becomes part of a file name, so it must be nothing but an id.
        if not is_ulid(session):
            raise SessionNotFound(session=session)
        lock = self._store.lock(session)
        if not lock.take(wait_seconds=wait_seconds):
            raise SessionBusy(
                f"session {session} is in use: one run at a time; wait for its end, stop it, or "
                f"make another session (tally session new)"
            )
        try:
            yield
        finally:
            lock.release()

    def is_held(self, session: str) -> bool:
        """Return True if a living client works in a session; False for what is no id."""
        return is_ulid(session) and self._store.is_locked(session)

    # -- sessions ------------------------------------------------------------------------------

    def create(
        self,
        *,
        backend: str = "wasm",
        token_budget: int | None = None,
        time_budget_ms: int | None = None,
        period: Period | None = None,
    ) -> SessionInfo:
        """Create a session in the state initializing. The budgets are for all its runs together.

        It expires at the end of `period`; with None it has no end. Raise `InvalidLimit` for a
        budget that is no whole number from 0 to 2**63 - 1, and for a period that is not allowed.
        """
        _check_budgets(token_budget, time_budget_ms)
        now = self._clock()
        lasting = _lasting(period, now=now)
        session = new_id(time_ms=now)
        with self._store.writing() as rows:
            rows.add(
                SessionRow(
                    id=session,
                    backend=backend,
                    state="initializing",
                    created_at=now,
                    token_budget=token_budget,
                    time_budget_ms=time_budget_ms,
                    **lasting,
                )
            )
            return self._info(rows, session)

    def open_named(
        self, name: str, *, seed: int, clock_ns: int, session: str | None = None, left: Left = _NEW
    ) -> SessionName:
        """Return the session of a name; a new one without an end if there is none yet.

        `session` and `left` are the id and the interpreter of a new one. `seed` and `clock_ns` are
        the settings of its first interpreter. If the session is there, all four are ignored.
        """
        with self._store.writing() as rows:
            if (found := rows.find_named(name)) is not None:
                return found
            id = new_id(time_ms=self._clock()) if session is None else session
            rows.add(
                SessionRow(
                    id=id,
                    backend="wasm",
                    state="ready",
                    created_at=created_at_ms(id),
                    expires_at=NO_END_MS,
                    left=left,
                )
            )
            made = SessionName(session=id, name=name, seed=seed, clock_ns=clock_ns)
            rows.add_name(made)
            return made

    def find_named(self, name: str) -> SessionName | None:
        """Return the session of a name; None if there is none."""
        with self._store.reading() as rows:
            return rows.find_named(name)

    def names(self) -> Mapping[str, str]:
        """Return the names of the sessions that have one, by their ids."""
        with self._store.reading() as rows:
            return rows.names()

    def get(self, session: str) -> SessionInfo:
        """Return a session as it is now. Raise `SessionNotFound` if there is none."""
        with self._store.reading() as rows:
            return self._info(rows, session)

    def ids(self) -> tuple[str, ...]:
        """Return the ids of all sessions, the oldest first."""
        with self._store.reading() as rows:
            return tuple(rows.ids())

    def list(self) -> Sequence[SessionInfo]:
        """Return all sessions, the oldest first."""
        with self._store.reading() as rows:
            return [info_of(rows, row, now=self._clock()) for row in rows.sessions()]

    def stats(self) -> SessionStats:
        """Return counts of the sessions. One that has expired or was terminated is not active."""
        with self._store.reading() as rows:
            created = rows.created_count()
        live = self.list()
        return SessionStats(
            total_created=created,
            active=sum(each.state not in ("expired", "terminated") for each in live),
            with_vm=sum(each.vm_instance_id is not None for each in live),
        )

    def is_valid(self, session: str) -> bool:
        """Return True if a session exists and can be used."""
        try:
            return self.get(session).state not in ("expired", "terminated", "paused")
        except SessionNotFound:
            return False

    def validate(self, session: str) -> SessionInfo:
        """Return a session that can be used.

        Raise, checked in this order, `SessionNotFound`, `SessionExpired`, or `InvalidSessionState`
        if it was terminated or is paused.
        """
        with self._store.reading() as rows:
            return self._require_usable(rows, session)

    def update_state(self, session: str, state: SessionState) -> SessionInfo:
        """Set the state of a session, and return it. A terminated one stays terminated.

        The time of a paused session stands still: it goes on with the next state. Terminating
        forgets the live instance. Raise `InvalidSessionState` if it is terminated or expired and
        would become anything but terminated. Raise it also for "expired", which only time brings
        about.
        """
        if state == "expired":
            raise InvalidSessionState(
                session=session,
                state=state,
                why="a session expires when its time is over, and cannot be set to that",
            )
        with self._store.writing() as rows:
            before = self._info(rows, session)
            if before.state in ("terminated", "expired") and state != "terminated":
                raise InvalidSessionState(
                    session=session, state=before.state, why=f"it cannot become {state}"
                )
            if before.state == "paused" and state != "paused":
                # What was left of its time when it was paused is left from now on.
                rows.put(session, expires_at=before.expires_at, paused_at=None)
            elif before.state != "paused" and state == "paused":
                rows.put(session, paused_at=self._clock())
            rows.put(session, state=state)
            if state == "terminated":
                rows.put(session, vm_instance_id=None)
            return self._info(rows, session)

    def extend(self, session: str) -> SessionInfo:
        """Add one more period to the end of a session, and return it.

        Raise `MaxExtensionsReached` after as many times as its period allows, which is checked
        first. Raise `InvalidSessionState` for a session without an end, and an error for a session
        that cannot be used.
        """
        with self._store.writing() as rows:
            before = self._info(rows, session)
            most = None if before.period is None else before.period.extensions_max
            if most is not None and before.extension_count >= most:
                raise MaxExtensionsReached(session=session, limit=most)
            self._require_usable(rows, session)
            if before.period is None:
                raise InvalidSessionState(session=session, state=before.state, why="it has no end")
            rows.put(
                session,
                expires_at=min(before.expires_at + before.period.lifetime_ms, NO_END_MS - 1),
                extension_count=before.extension_count + 1,
            )
            return self._info(rows, session)

    def reopen(self, session: str) -> SessionInfo:
        """Let a session go on that is paused or has expired. One that can be used stays as it is.

        An expired one gets its period again, from now, with no extension counted; a paused one has
        the time that it had left. Raise `InvalidSessionState` if it was terminated.
        """
        with self._store.writing() as rows:
            before = self._info(rows, session)
            if before.state == "terminated":
                why = "nothing can be done in it any more"
                raise InvalidSessionState(session=session, state=before.state, why=why)
            if before.state == "paused":
                rows.put(session, state="ready", expires_at=before.expires_at, paused_at=None)
            elif before.state == "expired":
                self._begin_period(rows, session, before.period)
                rows.put(session, recursion_depth=0, state="ready")
            return self._info(rows, session)

    def set_period(self, session: str, period: Period | None) -> SessionInfo:
        """Let a session last for a period from now, or with None without an end. Return it.

        It may have expired, and can be used then. One that is paused stays so, and the whole period
        is left when it is resumed. No extension counts. Raise `InvalidLimit` for a
        period that is not allowed, and `InvalidSessionState` if it was terminated, or has a name.
        """
        with self._store.writing() as rows:
            before = self._info(rows, session)
            if before.state == "terminated":
                why = "nothing can be done in it any more"
                raise InvalidSessionState(session=session, state=before.state, why=why)
            if before.name is not None and period is not None:
                why = f"it has the name {before.name}, and no end"
                raise InvalidSessionState(session=session, state=before.state, why=why)
            self._begin_period(rows, session, period)
            if before.state == "expired":
                rows.put(session, recursion_depth=0, state="ready")
            elif before.state == "paused":
                rows.put(session, paused_at=self._clock())
            return self._info(rows, session)

    def _begin_period(self, rows: BookRows, session: str, period: Period | None) -> None:
        rows.put(session, extension_count=0, **_lasting(period, now=self._clock()))

    def remove(self, session: str) -> SessionInfo:
        """Delete a session from the book, and return it as it was.

        Its attachments are not released here.
        """
        with self._store.writing() as rows:
            before = self._info(rows, session)
            rows.remove(session)
            return before

    def cleanup_expired(self) -> Sequence[SessionInfo]:
        """Mark sessions as expired whose time is over; forget their live instances and depths.

        Return those marked now, as expired, but with the instance and depth that they had, so that
        the caller can end the instances. What they keep stays. A terminated session stays
        terminated.
        """
        now = self._clock()
        with self._store.writing() as rows:
            found = [
                info
                for row in rows.sessions()
                if row.state != "expired"
                and (info := info_of(rows, row, now=now)).state == "expired"
            ]
            for each in found:
                rows.put(each.id, state="expired", vm_instance_id=None, recursion_depth=0)
            return found

    def assign_vm(self, session: str, instance: str | None) -> SessionInfo:
        """Note the live instance of a session, None for no instance. Return the session."""
        with self._store.writing() as rows:
            self._require_usable(rows, session)
            rows.put(session, vm_instance_id=instance)
            return self._info(rows, session)

    def update_budget(
        self, session: str, *, token_budget: int | None, time_budget_ms: int | None
    ) -> SessionInfo:
        """Set what the runs of a session may spend together from now on; None for no limit.

        What they have spent already counts. Return the session. Raise `InvalidLimit` for a budget
        that is no whole number from 0 to 2**63 - 1.
        """
        _check_budgets(token_budget, time_budget_ms)
        with self._store.writing() as rows:
            self._require_usable(rows, session)
            rows.put(session, token_budget=token_budget, time_budget_ms=time_budget_ms)
            return self._info(rows, session)

    def increase_depth(self, session: str) -> int:
        """Add one level of recursion, and return the depth. The session may have expired.

        Raise `RecursionDepthExceeded`, and change nothing, at the limit.
        """
        with self._store.writing() as rows:
            depth = self._info(rows, session).recursion_depth
            if depth >= DEPTH_MAX:
                raise RecursionDepthExceeded(session=session, limit=DEPTH_MAX)
            rows.put(session, recursion_depth=depth + 1)
            return depth + 1

    def decrease_depth(self, session: str) -> int:
        """Take away one level of recursion, if there is one, and return the depth: at least 0."""
        with self._store.writing() as rows:
            depth = max(0, self._info(rows, session).recursion_depth - 1)
            rows.put(session, recursion_depth=depth)
            return depth

    # -- context variables ---------------------------------------------------------------------

    def variables(self, session: str) -> Mapping[str, str]:
        """Return the context variables of a session in the order of their names.

        Raise an error for a session that cannot be used.
        """
        return self.validate(session).context_variables

    def variable(self, session: str, key: str) -> str | None:
        """Return one context variable; None if it is not set.

        Raise an error for a session that cannot be used.
        """
        return self.variables(session).get(key)

    def set_variable(self, session: str, key: str, value: str) -> None:
        """Set a context variable, from the next run of the session on.

        Raise `ContextVariableRefused` as `set_variables` does.
        """
        self.set_variables(session, {key: value})

    def set_variables(self, session: str, variables: Mapping[str, str]) -> None:
        """Set context variables, all of them or none. Others stay.

        A name has 1 to 256 printable characters; a value is a text without NUL and lone surrogates.
        Raise `ContextVariableRefused` for another one. Raise it also if there would be more than
        100, or more than 65,536 bytes of names and values.
        """
        for key, value in variables.items():
            _check_variable(key, value)
        with self._store.writing() as rows:
            after = {**self._require_usable(rows, session).context_variables, **variables}
            _check_together(after, next(iter(variables), ""))
            rows.set_variables(session, variables)

    def delete_variable(self, session: str, key: str) -> bool:
        """Delete a context variable. Return False if it was not there."""
        with self._store.writing() as rows:
            self._require_usable(rows, session)
            return is_text(key) and rows.delete_variable(session, key)

    def forget_variables(self, says: Callable[[str, str], bool]) -> int:
        """Delete the variables for which `says(name, value)` is True, in sessions of any state.

        Return how many were deleted. `scrub` removes their bytes from the files.
        """
        with self._store.writing() as rows:
            gone = [
                (session, key)
                for session in rows.ids()
                for key, value in rows.variables(session).items()
                if says(key, value)
            ]
            for session, key in gone:
                rows.delete_variable(session, key)
            return len(gone)

    def damage(self) -> Sequence[str]:
        """Return the faults of the storage itself, not of its content; none in memory."""
        return self._store.damage()

    def scrub(self) -> bool:
        """Remove deleted bytes from the storage. Return False if that could not be done yet."""
        return self._store.scrub()

    # -- inside --------------------------------------------------------------------------------

    def _info(self, rows: BookRows, session: str) -> SessionInfo:
        return info_now(rows, session, now=self._clock())

    def _require_usable(self, rows: BookRows, session: str) -> SessionInfo:
        return require_usable(rows, session, now=self._clock())


class _Lasting(TypedDict):
    """The fields of a row that say how long a session lasts."""

    expires_at: int
    lifetime_ms: int | None
    extensions_max: int | None


def _lasting(period: Period | None, *, now: int) -> _Lasting:
    """Return the fields for a period that begins now. Raise `InvalidLimit` if it is not allowed."""
    if period is None:
        return {"expires_at": NO_END_MS, "lifetime_ms": None, "extensions_max": None}
    lifetime, most = period.lifetime_ms, period.extensions_max
    if type(lifetime) is not int or not 1_000 <= lifetime <= LIFETIME_MS_MAX:
        why = "from a second to 1,000 years; leave it out for no end"
        raise InvalidLimit(field="expires", given=lifetime, why=why)
    if most is not None and (type(most) is not int or not 0 <= most < 1 << 31):
        raise InvalidLimit(field="extensions_max", given=most, why="a whole number of at least 0")
    return {"expires_at": now + lifetime, "lifetime_ms": lifetime, "extensions_max": most}


def _check_budgets(token_budget: int | None, time_budget_ms: int | None) -> None:
    for field, value in (("token_budget", token_budget), ("time_budget_ms", time_budget_ms)):
        if value is not None and (type(value) is not int or not 0 <= value < 1 << 63):
            raise InvalidLimit(field=field, given=value, why="a whole number of at least 0")


def _check_together(variables: Mapping[str, str], key: str) -> None:
    if len(variables) > CONTEXT_VARIABLES_MAX:
        why = f"a session has at most {CONTEXT_VARIABLES_MAX}"
        raise ContextVariableRefused(key=key, why=why)
    size = sum(len(name.encode()) + len(text.encode()) for name, text in variables.items())
    if size > CONTEXT_BYTES_MAX:
        why = f"all together are {size:,} bytes; at most {CONTEXT_BYTES_MAX:,}"
        raise ContextVariableRefused(key=key, why=why)


def _check_variable(key: str, value: str) -> None:
    if type(key) is not str:
        raise ContextVariableRefused(key=repr(key), why="its name is no text")
    why = None
    if not key or not key.isprintable():
        why = "a name of printable characters is needed"
    elif len(key) > CONTEXT_KEY_CHARS_MAX:
        why = f"a name has at most {CONTEXT_KEY_CHARS_MAX} characters"
    elif not is_text(value) or "\0" in value:
        why = "its value holds what is no text"
    if why is not None:
        raise ContextVariableRefused(key=key, why=why)
