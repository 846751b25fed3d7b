"""The book of sessions: what is known of each and what it keeps, shared by every process here.

Rule 1: the book knows nothing of a backend but its name. What the interpreter of a session is, it
keeps as a reference to an attachment, and who can read it is somebody else's affair.
Rule 2: expiry is a time and not an act. A session whose time is over is expired from that moment,
whether anybody swept or not; what it keeps stays, and `reopen` gives it a new period.
Rule 3: limits are looked at in the transaction that changes what they bound.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from tallystick.core.errors import (
    ContextVariableRefused,
    InvalidLimit,
    InvalidSessionState,
    MaxExtensionsReached,
    MaxSnapshotsReached,
    RecursionDepthExceeded,
    SessionNotFound,
    SnapshotExists,
)
from tallystick.sandbox.snapshot import SNAPSHOTS_MAX, SnapshotId, check_snapshot_name
from tallystick.sessions.file import SessionFile
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
    KeptSnapshot,
    Left,
    SessionInfo,
    SessionRun,
    SessionState,
    SessionStats,
    encoded,
    find_row,
    info_now,
    info_of,
    is_text,
    put,
    runs_of,
    snapshot_named,
    snapshots_of,
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

    def __init__(self, file: SessionFile, clock: Callable[[], int]) -> None:
        self._file = file
        self._clock = clock

    # -- snapshots -----------------------------------------------------------------------------

    def record_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Keep what the session's interpreter is now under a name of its own."""
        check_snapshot_name(name)
        with self._file.writing() as db:
            info = self._valid(db, session)
            taken = snapshots_of(db, session)
            if any(each.snapshot.name == name for each in taken):
                raise SnapshotExists(name=name)
            if len(taken) >= SNAPSHOTS_MAX:
                raise MaxSnapshotsReached(limit=SNAPSHOTS_MAX)
            now = self._clock()
            snapshot = SnapshotId(
                id=new_id(time_ms=now), name=name, session_id=session, created_at=now
            )
            left = _settled(info.left)
            db.execute(
                "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?)",
                (session, snapshot.id, name, now, info.backend, encoded(left)),
            )
            put(db, session, current_snapshot_id=snapshot.id)
            return KeptSnapshot(snapshot=snapshot, backend=info.backend, left=left)

    def restore_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Put a session's interpreter back to what it was, by name or `name:id`."""
        with self._file.writing() as db:
            info = self._valid(db, session)
            found = snapshot_named(db, session, name)
            put(db, session, kept=encoded(found.left), generation=info.generation + 1)
            put(db, session, current_snapshot_id=found.snapshot.id)
            return found

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        """Those there are, also of a session that has expired."""
        with self._file.reading() as db:
            find_row(db, session)
            return snapshots_of(db, session)

    def named_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Return a snapshot by its name or `name:id`. Raises `SnapshotNotFound`."""
        with self._file.reading() as db:
            find_row(db, session)
            return snapshot_named(db, session, name)

    def delete_snapshot(self, session: str, name: str) -> KeptSnapshot:
        """Take one away, also of a session that has expired. There is room for another then."""
        with self._file.writing() as db:
            info = self._info(db, session)
            found = snapshot_named(db, session, name)
            db.execute(
                "DELETE FROM snapshot WHERE session = ? AND id = ?", (session, found.snapshot.id)
            )
            if info.current_snapshot_id == found.snapshot.id:
                put(db, session, current_snapshot_id=None)
            return found

    def forget_images(self, session: str, ids: Collection[str], runs: Collection[str] = ()) -> int:
        """Have a session keep none of these images, and none that these runs left.

        Gives how many went, of its snapshots and its interpreter. That is a fresh one then.
        """
        with self._file.writing() as db:
            info = self._info(db, session)
            prepared = info.left.prepared
            if prepared is not None and _is_of(prepared, ids, runs):
                put(db, session, kept=encoded(_settled(info.left)))
            fresh = _is_of(info.left, ids, runs)
            if fresh:
                put(db, session, kept=encoded(Left()), generation=info.generation + 1)
                put(db, session, current_snapshot_id=None)
            gone = [
                each.snapshot.id
                for each in snapshots_of(db, session)
                if _is_of(each.left, ids, runs)
            ]
            db.executemany(
                "DELETE FROM snapshot WHERE session = ? AND id = ?", [(session, id) for id in gone]
            )
            return len(gone) + fresh

    # -- runs ----------------------------------------------------------------------------------

    def begin_run(self, session: str, run: str) -> SessionInfo:
        """Note that a run begins, or is gone on with. The session is executing from here on."""
        with self._file.writing() as db:
            info = self._valid(db, session)
            db.execute(
                "INSERT INTO run SELECT ?, coalesce(max(place), 0) + 1, ?, ?, ?, 0, 0, 0 "
                "FROM run WHERE session = ? ON CONFLICT (session, run) DO UPDATE SET ended = 0",
                (session, run, self._clock(), info.generation, session),
            )
            put(db, session, state="executing", recursion_depth=0)
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
        with self._file.writing() as db:
            find_row(db, session)
            db.execute(
                "UPDATE run SET ended = ?, tokens = ?, wall_ms = ? WHERE session = ? AND run = ?",
                (ENDED_LOST if lost else ENDED * ended, tokens, wall_ms, session, run),
            )
            db.execute(
                "UPDATE session SET state = 'ready' WHERE id = ? AND state = 'executing'",
                (session,),
            )

    def forget_run(self, session: str, run: str) -> None:
        """A run that came to nothing, as if it had not been begun."""
        with self._file.writing() as db:
            db.execute("DELETE FROM run WHERE session = ? AND run = ?", (session, run))
            db.execute(
                "UPDATE session SET state = 'ready' WHERE id = ? AND state = 'executing'",
                (session,),
            )

    def prepare(self, session: str, left: Left) -> None:
        """Note what a run leaves that is about to end, on the disk before its end is.

        `leave` makes it the session's, `drop_prepared` forgets it.
        """
        with self._file.writing() as db:
            info = self._info(db, session)
            put(db, session, kept=encoded(msgspec.structs.replace(info.left, prepared=left)))

    def drop_prepared(self, session: str) -> None:
        """Forget what a run had prepared to leave that did not come to its end."""
        with self._file.writing() as db:
            put(db, session, kept=encoded(_settled(self._info(db, session).left)))

    def leave(self, session: str, left: Left) -> bool:
        """Make the interpreter as a run left it the session's. Say whether it is.

        It is not where another run, or a restore, has replaced since what the run began with.
        """
        with self._file.writing() as db:
            row = find_row(db, session)
            begun = db.execute(
                "SELECT generation FROM run WHERE session = ? AND run = ?", (session, left.run)
            ).fetchone()
            if begun is None or begun["generation"] != row["generation"]:
                put(db, session, kept=encoded(_settled(self._info(db, session).left)))
                return False
            generation = row["generation"] + 1
            put(db, session, kept=encoded(left), generation=generation)
            db.execute(
                "UPDATE run SET generation = ? WHERE session = ? AND run = ?",
                (generation, session, left.run),
            )
            return True

    def start_from(self, session: str, left: Left) -> None:
        """Give a new session the interpreter that its first run goes on with."""
        with self._file.writing() as db:
            info = self._valid(db, session)
            put(db, session, kept=encoded(left), generation=info.generation + 1)

    def runs(self, session: str) -> Sequence[SessionRun]:
        """The runs of a session in the order they were begun."""
        with self._file.reading() as db:
            find_row(db, session)
            return runs_of(db, session)

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
        with self._file.reading() as db:
            row = db.execute("SELECT * FROM session WHERE id = ?", (session,)).fetchone()
            if row is None:
                return []
            left = info_of(db, row, now=self._clock()).left
            kept = [left] if left.prepared is None else [left, left.prepared]
            return kept + [each.left for each in snapshots_of(db, session)]

    def _info(self, db: sqlite3.Connection, session: str) -> SessionInfo:
        return info_now(db, session, now=self._clock())

    def _valid(self, db: sqlite3.Connection, session: str) -> SessionInfo:
        return valid(db, session, now=self._clock())


def _settled(left: Left) -> Left:
    """Return what a session has, without what a run prepared to leave."""
    return msgspec.structs.replace(left, prepared=None)


def _is_of(left: Left, ids: Collection[str], runs: Collection[str]) -> bool:
    """Return True if an interpreter or its values are among `ids`, or one of `runs` left it."""
    return left.run in runs or any(ref.id in ids for ref in left.attachments)


# The book of sessions: what is known of each, shared by every process on this machine.


class SessionBook:
    """Sessions, in one file. `clock` gives milliseconds since 1970; `kept` is what they keep."""

    def __init__(self, path: Path, *, clock: Callable[[], int] = now_ms) -> None:
        self._file = SessionFile(path)
        self._clock = clock
        self.kept = SessionKept(self._file, clock)

    @property
    def path(self) -> Path:
        return self._file.path

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
        with self._file.writing() as db:
            db.execute(
                "INSERT INTO session VALUES (?, ?, 'initializing', ?, ?, 0, 0, ?, ?, NULL, NULL, "
                "0, ?)",
                (
                    *(session, backend, now, now + DURATION_MS),
                    *(token_budget, time_budget_ms, encoded(Left())),
                ),
            )
            db.execute("UPDATE counted SET created = created + 1")
            return self._info(db, session)

    def get(self, session: str) -> SessionInfo:
        """A session as it stands now. Raises `SessionNotFound`."""
        with self._file.reading() as db:
            return self._info(db, session)

    def ids(self) -> tuple[str, ...]:
        """The ids of all sessions, the oldest first."""
        with self._file.reading() as db:
            return tuple(row[0] for row in db.execute("SELECT id FROM session ORDER BY id"))

    def list(self) -> Sequence[SessionInfo]:
        """All sessions, the oldest first."""
        with self._file.reading() as db:
            rows = db.execute("SELECT * FROM session ORDER BY id").fetchall()
            return [info_of(db, row, now=self._clock()) for row in rows]

    def stats(self) -> SessionStats:
        with self._file.reading() as db:
            (created,) = db.execute("SELECT created FROM counted").fetchone()
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
        with self._file.reading() as db:
            return self._valid(db, session)

    def update_state(self, session: str, state: SessionState) -> SessionInfo:
        """Put a session into another state. One that was terminated stays so."""
        if state == "expired":
            raise InvalidSessionState(
                session=session, state=state, why="a session expires by time, nobody says so"
            )
        with self._file.writing() as db:
            before = self._info(db, session)
            if before.state in ("terminated", "expired") and state != "terminated":
                raise InvalidSessionState(
                    session=session, state=before.state, why=f"it cannot become {state}"
                )
            put(db, session, state=state)
            if state == "terminated":
                put(db, session, vm_instance_id=None)
            return self._info(db, session)

    def extend(self, session: str) -> SessionInfo:
        """Half an hour more, counted from where the session would have ended."""
        with self._file.writing() as db:
            before = self._info(db, session)
            if before.extension_count >= EXTENSIONS_MAX:
                raise MaxExtensionsReached(session=session, limit=EXTENSIONS_MAX)
            self._valid(db, session)
            put(
                db,
                session,
                expires_at=before.expires_at + EXTENSION_MS,
                extension_count=before.extension_count + 1,
            )
            return self._info(db, session)

    def reopen(self, session: str) -> SessionInfo:
        """Give an expired session a new period. One that can be used stays as it is."""
        with self._file.writing() as db:
            before = self._info(db, session)
            if before.state == "terminated":
                why = "nothing can be done in it any more"
                raise InvalidSessionState(session=session, state=before.state, why=why)
            if before.state == "expired":
                put(
                    db,
                    session,
                    expires_at=self._clock() + DURATION_MS,
                    extension_count=0,
                    recursion_depth=0,
                    state="ready",
                )
            return self._info(db, session)

    def remove(self, session: str) -> SessionInfo:
        """Take a session out of the book, with all that the book says of it."""
        with self._file.writing() as db:
            before = self._info(db, session)
            db.execute("DELETE FROM session WHERE id = ?", (session,))
            return before

    def cleanup_expired(self) -> Sequence[SessionInfo]:
        """Let go of what lives for expired sessions. Gives them as they were: whose it is to end.

        What they keep stays.
        """
        now = self._clock()
        with self._file.writing() as db:
            rows = db.execute(
                "SELECT * FROM session WHERE expires_at < ? AND state NOT IN "
                "('expired', 'terminated')",
                (now,),
            ).fetchall()
            found = [info_of(db, row, now=now) for row in rows]
            for each in found:
                put(db, each.id, state="expired", vm_instance_id=None, recursion_depth=0)
            return found

    def assign_vm(self, session: str, instance: str | None) -> SessionInfo:
        """Note what lives for a session, None for nothing."""
        with self._file.writing() as db:
            self._valid(db, session)
            put(db, session, vm_instance_id=instance)
            return self._info(db, session)

    def update_budget(
        self, session: str, *, token_budget: int | None, time_budget_ms: int | None
    ) -> SessionInfo:
        """Set what the runs of a session may spend together from now on; None for no cap."""
        _check_budgets(token_budget, time_budget_ms)
        with self._file.writing() as db:
            self._valid(db, session)
            put(db, session, token_budget=token_budget, time_budget_ms=time_budget_ms)
            return self._info(db, session)

    def deeper(self, session: str) -> int:
        """One level more. Raises `RecursionDepthExceeded`, and counts nothing then."""
        with self._file.writing() as db:
            depth = self._valid(db, session).recursion_depth
            if depth >= DEPTH_MAX:
                raise RecursionDepthExceeded(session=session, limit=DEPTH_MAX)
            put(db, session, recursion_depth=depth + 1)
            return depth + 1

    def shallower(self, session: str) -> int:
        """One level less, never below none."""
        with self._file.writing() as db:
            depth = max(0, self._info(db, session).recursion_depth - 1)
            put(db, session, recursion_depth=depth)
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
        with self._file.writing() as db:
            after = {**self._valid(db, session).context_variables, **variables}
            _check_together(after, next(iter(variables), ""))
            db.executemany(
                "INSERT OR REPLACE INTO variable VALUES (?, ?, ?)",
                [(session, key, value) for key, value in variables.items()],
            )

    def delete_variable(self, session: str, key: str) -> bool:
        """Take one away. Says whether it was there."""
        with self._file.writing() as db:
            self._valid(db, session)
            if not is_text(key):
                return False
            done = db.execute("DELETE FROM variable WHERE session = ? AND key = ?", (session, key))
            return done.rowcount > 0

    def forget_variables(self, says: Callable[[str, str], bool]) -> int:
        """Take away those of which `says` is true, by name and value, in sessions of any state.

        Gives how many. `scrub` takes their bytes out of the files.
        """
        with self._file.writing() as db:
            rows = db.execute("SELECT session, key, value FROM variable").fetchall()
            gone = [(row["session"], row["key"]) for row in rows if says(row["key"], row["value"])]
            db.executemany("DELETE FROM variable WHERE session = ? AND key = ?", gone)
            return len(gone)

    def damage(self) -> Sequence[str]:
        """Return what SQLite finds wrong with the file of the book."""
        return self._file.damage()

    def scrub(self) -> bool:
        """Take deleted bytes out of the file and out of SQLite's log. False if not done yet."""
        return self._file.scrub()

    # -- inside --------------------------------------------------------------------------------

    def _info(self, db: sqlite3.Connection, session: str) -> SessionInfo:
        return info_now(db, session, now=self._clock())

    def _valid(self, db: sqlite3.Connection, session: str) -> SessionInfo:
        return valid(db, session, now=self._clock())


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
