"""The book of sessions: what is known of each and what it keeps, shared by every process here.

Rule 1: the book knows nothing of a backend but its name. What the interpreter of a session is, it
keeps as a reference to an attachment, and who can read it is somebody else's affair.
Rule 2: expiry is a time and not an act. A session whose time is over is expired from that moment,
whether anybody swept or not; what it keeps stays, and `reopen` gives it a new period.
Rule 3: limits are looked at in the transaction that changes what they bound.
Rule 4: the rules are here, and the rows behind a port (`tallystick.sessions.rows`): a book in a
file and one in memory differ in nothing but how long they live.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

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
    DURATION_MS,
    ENDED,
    ENDED_LOST,
    EXTENSION_MS,
    EXTENSIONS_MAX,
    NO_END_MS,
    BookRows,
    BookStore,
    KeptSnapshot,
    Left,
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
    row_of,
    shown_run,
    snapshot_named,
    valid,
)
from tallystick.storage.clock import new_id, now_ms

# What sessions keep: the interpreter of each, its snapshots by name, and its runs.
#
# A run that ends replaces the interpreter of its session, and so does a restore. Each replacement
# has a number, `generation`, and a run knows the one it began with; so a run that is gone on with
# later does not put its own in the place of a newer one.


class SessionKept:
    """The part of the book that says what sessions keep."""

    def __init__(self, store: BookStore, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock

    # -- snapshots -----------------------------------------------------------------------------

    def record_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Keep what the session's interpreter is now under a name of its own."""
        check_snapshot_name(name)
        with self._store.writing() as rows:
            info = self._valid(rows, session)
            taken = rows.snapshots(session)
            if any(each.snapshot.name == name for each in taken):
                raise SnapshotExists(name=name)
            if len(taken) >= SNAPSHOTS_MAX:
                raise MaxSnapshotsReached(limit=SNAPSHOTS_MAX)
            now = self._clock()
            snapshot = SnapshotId(
                id=new_id(time_ms=now), name=name, session_id=session, created_at=now
            )
            left = _settled(info.left)
            kept = KeptSnapshot(snapshot=snapshot, backend=info.backend, left=left)
            rows.add_snapshot(kept)
            rows.put(session, current_snapshot_id=snapshot.id)
            return kept

    def restore_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Put a session's interpreter back to what it was, by name or `name:id`."""
        with self._store.writing() as rows:
            info = self._valid(rows, session)
            found = snapshot_named(rows, session, name)
            rows.put(
                session,
                left=found.left,
                generation=info.generation + 1,
                current_snapshot_id=found.snapshot.id,
            )
            return found

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        """Those there are, also of a session that has expired."""
        with self._store.reading() as rows:
            row_of(rows, session)
            return rows.snapshots(session)

    def named_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Return a snapshot by its name or `name:id`. Raises `SnapshotNotFound`."""
        with self._store.reading() as rows:
            row_of(rows, session)
            return snapshot_named(rows, session, name)

    def delete_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Take one away, also of a session that has expired. There is room for another then."""
        with self._store.writing() as rows:
            info = self._info(rows, session)
            found = snapshot_named(rows, session, name)
            rows.delete_snapshot(session, found.snapshot.id)
            if info.current_snapshot_id == found.snapshot.id:
                rows.put(session, current_snapshot_id=None)
            return found

    def forget_images(self, session: str, ids: Collection[str], runs: Collection[str] = ()) -> int:
        """Have a session keep none of these images, and none that these runs left.

        Gives how many went, of its snapshots and its interpreter. That is a fresh one then.
        """
        with self._store.writing() as rows:
            info = self._info(rows, session)
            prepared = info.left.prepared
            if prepared is not None and _is_of(prepared, ids, runs):
                rows.put(session, left=_settled(info.left))
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
        """Note that a run begins, or is gone on with. The session is executing from here on."""
        with self._store.writing() as rows:
            info = self._valid(rows, session)
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
        """Note what a run has spent, and that nobody works in the session any more.

        `lost` notes that what its programs left is not the session's.
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
            _not_executing(rows, row)

    def forget_run(self, session: str, run: str) -> None:
        """A run that came to nothing, as if it had not been begun."""
        with self._store.writing() as rows:
            rows.delete_run(session, run)
            _not_executing(rows, rows.session(session))

    def prepare(self, session: str, left: Left) -> None:
        """Note what a run leaves that is about to end, on the disk before its end is.

        `leave` makes it the session's, `drop_prepared` forgets it.
        """
        with self._store.writing() as rows:
            info = self._info(rows, session)
            rows.put(session, left=msgspec.structs.replace(info.left, prepared=left))

    def drop_prepared(self, session: str) -> None:
        """Forget what a run had prepared to leave that did not come to its end."""
        with self._store.writing() as rows:
            rows.put(session, left=_settled(self._info(rows, session).left))

    def leave(self, session: str, left: Left) -> bool:
        """Make the interpreter as a run left it the session's. Say whether it is.

        It is not where another run, or a restore, has replaced since what the run began with.
        """
        with self._store.writing() as rows:
            row = row_of(rows, session)
            begun = rows.run(session, left.run or "")
            if begun is None or begun.generation != row.generation:
                rows.put(session, left=_settled(row.left))
                return False
            generation = row.generation + 1
            rows.put(session, left=left, generation=generation)
            rows.put_run(session, msgspec.structs.replace(begun, generation=generation))
            return True

    def start_from(self, session: str, left: Left) -> None:
        """Give a new session the interpreter that its first run goes on with."""
        with self._store.writing() as rows:
            info = self._valid(rows, session)
            rows.put(session, left=(left), generation=info.generation + 1)

    def runs(self, session: str) -> Sequence[SessionRun]:
        """The runs of a session in the order they were begun."""
        with self._store.reading() as rows:
            row_of(rows, session)
            return [shown_run(each) for each in rows.runs(session)]

    def needed(self, session: str) -> frozenset[str]:
        """The attachments that a session needs; none, if there is no such session."""
        return frozenset(ref.id for each in self._lefts(session) for ref in each.attachments)

    def images_of(
        self, session: str, ids: Collection[str], runs: Collection[str] = ()
    ) -> frozenset[str]:
        """Those that a session needs and that are these, or that these runs left."""
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

    def _valid(self, rows: BookRows, session: str) -> SessionInfo:
        return valid(rows, session, now=self._clock())


def _not_executing(rows: BookRows, row: SessionRow | None) -> None:
    if row is not None and row.state == "executing":
        rows.put(row.id, state="ready")


def _settled(left: Left) -> Left:
    """Return what a session has, without what a run prepared to leave."""
    return msgspec.structs.replace(left, prepared=None)


def _is_of(left: Left, ids: Collection[str], runs: Collection[str]) -> bool:
    """Return True if an interpreter or its values are among `ids`, or one of `runs` left it."""
    return left.run in runs or any(ref.id in ids for ref in left.attachments)


# The book of sessions: what is known of each, shared by every process on this machine.


_NEW = Left()


class SessionBook:
    """Sessions, in one store. `clock` gives milliseconds since 1970; `kept` is what they keep."""

    def __init__(self, store: BookStore, *, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._clock = clock
        self.kept = SessionKept(store, clock)

    @property
    def where(self) -> str:
        """Say where the book is, for messages."""
        return self._store.where

    @property
    def exists(self) -> bool:
        """Say whether there is a book yet. Asking makes none."""
        return self._store.exists

    # -- who works in a session ----------------------------------------------------------------

    @contextlib.contextmanager
    def hold(self, session: str, *, wait_seconds: float = 0.0) -> Iterator[None]:
        """Hold a session while inside, also one that is removed meanwhile.

        Raises `SessionBusy` while another client does.
        """
        # It may become the name of a file.
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
        """Say whether a living client works in a session."""
        return is_ulid(session) and self._store.is_locked(session)

    # -- sessions ------------------------------------------------------------------------------

    def create(
        self,
        *,
        backend: str = "wasm",
        token_budget: int | None = None,
        time_budget_ms: int | None = None,
    ) -> SessionInfo:
        """A new session, initializing. The budgets are for all its runs together."""
        _check_budgets(token_budget, time_budget_ms)
        now = self._clock()
        session = new_id(time_ms=now)
        with self._store.writing() as rows:
            rows.add(
                SessionRow(
                    id=session,
                    backend=backend,
                    state="initializing",
                    created_at=now,
                    expires_at=now + DURATION_MS,
                    token_budget=token_budget,
                    time_budget_ms=time_budget_ms,
                )
            )
            return self._info(rows, session)

    def open_named(
        self, name: str, *, seed: int, clock_ns: int, session: str | None = None, left: Left = _NEW
    ) -> SessionName:
        """Return the session of a name; a new one that has no end, if there is none yet.

        `session` and `left` are the id and the interpreter of a new one. `seed` and `clock_ns` are
        what its first interpreter begins with.
        """
        with self._store.writing() as rows:
            if (found := rows.named(name)) is not None:
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

    def named(self, name: str) -> SessionName | None:
        """Return the session of a name, None if there is none."""
        with self._store.reading() as rows:
            return rows.named(name)

    def names(self) -> Mapping[str, str]:
        """Return the names of the sessions that have one, by their ids."""
        with self._store.reading() as rows:
            return rows.names()

    def get(self, session: str) -> SessionInfo:
        """A session as it stands now. Raises `SessionNotFound`."""
        with self._store.reading() as rows:
            return self._info(rows, session)

    def ids(self) -> tuple[str, ...]:
        """The ids of all sessions, the oldest first."""
        with self._store.reading() as rows:
            return tuple(rows.ids())

    def list(self) -> Sequence[SessionInfo]:
        """All sessions, the oldest first."""
        with self._store.reading() as rows:
            return [info_of(rows, row, now=self._clock()) for row in rows.sessions()]

    def stats(self) -> SessionStats:
        with self._store.reading() as rows:
            created = rows.created()
        live = self.list()
        return SessionStats(
            total_created=created,
            active=sum(each.state not in ("expired", "terminated") for each in live),
            with_vm=sum(each.vm_instance_id is not None for each in live),
        )

    def is_valid(self, session: str) -> bool:
        """Whether a session is there and can be used."""
        try:
            return self.get(session).state not in ("expired", "terminated")
        except SessionNotFound:
            return False

    def validate(self, session: str) -> SessionInfo:
        """A session that can be used. Says why not: not found, then expired, then terminated."""
        with self._store.reading() as rows:
            return self._valid(rows, session)

    def update_state(self, session: str, state: SessionState) -> SessionInfo:
        """Put a session into another state. One that was terminated stays so."""
        if state == "expired":
            raise InvalidSessionState(
                session=session, state=state, why="a session expires by time, nobody says so"
            )
        with self._store.writing() as rows:
            before = self._info(rows, session)
            if before.state in ("terminated", "expired") and state != "terminated":
                raise InvalidSessionState(
                    session=session, state=before.state, why=f"it cannot become {state}"
                )
            rows.put(session, state=state)
            if state == "terminated":
                rows.put(session, vm_instance_id=None)
            return self._info(rows, session)

    def extend(self, session: str) -> SessionInfo:
        """Half an hour more, counted from where the session would have ended."""
        with self._store.writing() as rows:
            before = self._info(rows, session)
            if before.extension_count >= EXTENSIONS_MAX:
                raise MaxExtensionsReached(session=session, limit=EXTENSIONS_MAX)
            self._valid(rows, session)
            if before.name is not None:
                raise InvalidSessionState(session=session, state=before.state, why="it has no end")
            rows.put(
                session,
                expires_at=before.expires_at + EXTENSION_MS,
                extension_count=before.extension_count + 1,
            )
            return self._info(rows, session)

    def reopen(self, session: str) -> SessionInfo:
        """Give an expired session a new period. One that can be used stays as it is."""
        with self._store.writing() as rows:
            before = self._info(rows, session)
            if before.state == "terminated":
                why = "nothing can be done in it any more"
                raise InvalidSessionState(session=session, state=before.state, why=why)
            if before.state == "expired":
                rows.put(
                    session,
                    expires_at=self._clock() + DURATION_MS,
                    extension_count=0,
                    recursion_depth=0,
                    state="ready",
                )
            return self._info(rows, session)

    def remove(self, session: str) -> SessionInfo:
        """Take a session out of the book, with all that the book says of it."""
        with self._store.writing() as rows:
            before = self._info(rows, session)
            rows.remove(session)
            return before

    def cleanup_expired(self) -> Sequence[SessionInfo]:
        """Let go of what lives for expired sessions. Gives them as they were: whose it is to end.

        What they keep stays.
        """
        now = self._clock()
        with self._store.writing() as rows:
            found = [
                info_of(rows, row, now=now)
                for row in rows.sessions()
                if row.expires_at < now and row.state not in ("expired", "terminated")
            ]
            for each in found:
                rows.put(each.id, state="expired", vm_instance_id=None, recursion_depth=0)
            return found

    def assign_vm(self, session: str, instance: str | None) -> SessionInfo:
        """Note what lives for a session, None for nothing."""
        with self._store.writing() as rows:
            self._valid(rows, session)
            rows.put(session, vm_instance_id=instance)
            return self._info(rows, session)

    def update_budget(
        self, session: str, *, token_budget: int | None, time_budget_ms: int | None
    ) -> SessionInfo:
        """Set what the runs of a session may spend together from now on; None for no cap."""
        _check_budgets(token_budget, time_budget_ms)
        with self._store.writing() as rows:
            self._valid(rows, session)
            rows.put(session, token_budget=token_budget, time_budget_ms=time_budget_ms)
            return self._info(rows, session)

    def deeper(self, session: str) -> int:
        """One level more. Raises `RecursionDepthExceeded`, and counts nothing then."""
        with self._store.writing() as rows:
            depth = self._valid(rows, session).recursion_depth
            if depth >= DEPTH_MAX:
                raise RecursionDepthExceeded(session=session, limit=DEPTH_MAX)
            rows.put(session, recursion_depth=depth + 1)
            return depth + 1

    def shallower(self, session: str) -> int:
        """One level less, never below none."""
        with self._store.writing() as rows:
            depth = max(0, self._info(rows, session).recursion_depth - 1)
            rows.put(session, recursion_depth=depth)
            return depth

    # -- context variables ---------------------------------------------------------------------

    def variables(self, session: str) -> Mapping[str, str]:
        return self.validate(session).context_variables

    def variable(self, session: str, key: str) -> str | None:
        """One of them, None if it is not set."""
        return self.variables(session).get(key)

    def set_variable(self, session: str, key: str, value: str) -> None:
        """Set one. The next run of the session has it."""
        self.set_variables(session, {key: value})

    def set_variables(self, session: str, variables: Mapping[str, str]) -> None:
        """Set several, all of them or none."""
        for key, value in variables.items():
            _check_variable(key, value)
        with self._store.writing() as rows:
            after = {**self._valid(rows, session).context_variables, **variables}
            _check_together(after, next(iter(variables), ""))
            rows.set_variables(session, variables)

    def delete_variable(self, session: str, key: str) -> bool:
        """Take one away. Says whether it was there."""
        with self._store.writing() as rows:
            self._valid(rows, session)
            return is_text(key) and rows.delete_variable(session, key)

    def forget_variables(self, says: Callable[[str, str], bool]) -> int:
        """Take away those of which `says` is true, by name and value, in sessions of any state.

        Gives how many. `scrub` takes their bytes out of the files.
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
        """Return what is wrong with what is stored, apart from what it says."""
        return self._store.damage()

    def scrub(self) -> bool:
        """Take deleted bytes out of what is stored. Returns False if that is not done yet."""
        return self._store.scrub()

    # -- inside --------------------------------------------------------------------------------

    def _info(self, rows: BookRows, session: str) -> SessionInfo:
        return info_now(rows, session, now=self._clock())

    def _valid(self, rows: BookRows, session: str) -> SessionInfo:
        return valid(rows, session, now=self._clock())


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
