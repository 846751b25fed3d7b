"""What sessions keep: the interpreter of each, its snapshots by name, and its runs.

A run that ends replaces the interpreter of its session, and so does a restore. Each replacement has
a number, `generation`, and a run knows the one it began with; so a run that is gone on with later
does not put its own in the place of a newer one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence

from tallystick.core.errors import MaxSnapshotsReached
from tallystick.core.session_errors import SnapshotExists
from tallystick.runtime.session_file import SessionFile
from tallystick.runtime.session_info import (
    SNAPSHOTS_MAX,
    KeptSnapshot,
    Left,
    SessionInfo,
    SessionRun,
)
from tallystick.runtime.session_rows import (
    encoded,
    find_row,
    info_now,
    info_of,
    put,
    runs_of,
    snapshot_named,
    snapshots_of,
    valid,
)
from tallystick.sandbox.identity import new_id
from tallystick.sandbox.snapshot import SnapshotId, check_snapshot_name

__all__ = ["SessionKept"]


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
            db.execute(
                "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?)",
                (session, snapshot.id, name, now, info.backend, encoded(info.left)),
            )
            put(db, session, current_snapshot_id=snapshot.id)
            return KeptSnapshot(snapshot=snapshot, backend=info.backend, left=info.left)

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

    def end_run(self, session: str, run: str, *, tokens: int, wall_ms: int, ended: bool) -> None:
        """Note what a run has spent, and that nobody works in the session any more."""
        with self._file.writing() as db:
            find_row(db, session)
            db.execute(
                "UPDATE run SET ended = ?, tokens = ?, wall_ms = ? WHERE session = ? AND run = ?",
                (ended, tokens, wall_ms, session, run),
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

    def leave(self, session: str, left: Left) -> bool:
        """The interpreter as a run left it. Says whether it is the session's now.

        It is not where another run, or a restore, has replaced since what the run began with.
        """
        with self._file.writing() as db:
            row = find_row(db, session)
            begun = db.execute(
                "SELECT generation FROM run WHERE session = ? AND run = ?", (session, left.run)
            ).fetchone()
            if begun is None or begun["generation"] != row["generation"]:
                return False
            generation = row["generation"] + 1
            put(db, session, kept=encoded(left), generation=generation)
            db.execute(
                "UPDATE run SET generation = ? WHERE session = ? AND run = ?",
                (generation, session, left.run),
            )
            return True

    def runs(self, session: str) -> Sequence[SessionRun]:
        """The runs of a session in the order they were begun."""
        with self._file.reading() as db:
            find_row(db, session)
            return runs_of(db, session)

    def needed(self, session: str) -> frozenset[str]:
        """The attachments that a session needs; none, if there is no such session."""
        return frozenset(each.image.id for each in self._lefts(session) if each.image is not None)

    def images_of(
        self, session: str, ids: Collection[str], runs: Collection[str] = ()
    ) -> frozenset[str]:
        """Those that a session needs and that are these, or that these runs left."""
        lefts = [each for each in self._lefts(session) if _is_of(each, ids, runs)]
        return frozenset(each.image.id for each in lefts if each.image is not None)

    # -- inside --------------------------------------------------------------------------------

    def _lefts(self, session: str) -> list[Left]:
        with self._file.reading() as db:
            row = db.execute("SELECT * FROM session WHERE id = ?", (session,)).fetchone()
            if row is None:
                return []
            kept = [info_of(db, row, now=self._clock()).left]
            return kept + [each.left for each in snapshots_of(db, session)]

    def _info(self, db: sqlite3.Connection, session: str) -> SessionInfo:
        return info_now(db, session, now=self._clock())

    def _valid(self, db: sqlite3.Connection, session: str) -> SessionInfo:
        return valid(db, session, now=self._clock())


def _is_of(left: Left, ids: Collection[str], runs: Collection[str]) -> bool:
    """Whether an interpreter is one of these images, or one of these runs left it."""
    return left.run in runs or (left.image is not None and left.image.id in ids)
