"""The book of sessions in a file: its tables, its rows, how it is recognised, and its errors.

A connection lives for one transaction. Sessions are looked up once per run, not per turn, so
opening costs too little to keep a connection, and no thread has one left to close.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tallystick.core.errors import NotASessionBook, SessionFormatUnknown, StoreError
from tallystick.sandbox.snapshot import SnapshotId
from tallystick.sessions.book import SessionBook
from tallystick.sessions.rows import (
    BookStore,
    KeptSnapshot,
    Left,
    RunOfSession,
    SessionName,
    SessionRow,
    SessionState,
    is_text,
)
from tallystick.storage.clock import now_ms
from tallystick.storage.lock import FileLock, is_locked
from tallystick.storage.sqlite_connection import FileKind
from tallystick.storage.sqlite_errors import code_of, integrity_faults
from tallystick.storage.sqlite_file import SqliteFile

FORMAT = 1
# "TLSB" distinguishes a book of sessions from other SQLite files.
APPLICATION_ID = 0x544C5342
_BUSY_SECONDS = 10.0
_SCHEMA = (
    """CREATE TABLE session (
        id TEXT PRIMARY KEY, backend TEXT NOT NULL, state TEXT NOT NULL,
        created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        extension_count INTEGER NOT NULL, recursion_depth INTEGER NOT NULL,
        token_budget INTEGER, time_budget_ms INTEGER, vm_instance_id TEXT,
        current_snapshot_id TEXT, generation INTEGER NOT NULL, kept BLOB NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE variable (
        session TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (session, key)
    ) WITHOUT ROWID""",
    """CREATE TABLE snapshot (
        session TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        id TEXT NOT NULL, name TEXT NOT NULL, created_at INTEGER NOT NULL,
        backend TEXT NOT NULL, kept BLOB NOT NULL,
        PRIMARY KEY (session, id), UNIQUE (session, name)
    ) WITHOUT ROWID""",
    """CREATE TABLE run (
        session TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,
        place INTEGER NOT NULL, run TEXT NOT NULL, begun_at INTEGER NOT NULL,
        generation INTEGER NOT NULL, ended INTEGER NOT NULL, tokens INTEGER NOT NULL,
        wall_ms INTEGER NOT NULL, PRIMARY KEY (session, place), UNIQUE (session, run)
    ) WITHOUT ROWID""",
    "CREATE TABLE counted (created INTEGER NOT NULL)",
    "INSERT INTO counted VALUES (0)",
)


# This table is not part of format 1. It is created with the first session that has a name. Versions
# that know no names read the file as if the table were not there.
_NAMED_SCHEMA = """CREATE TABLE IF NOT EXISTS named (
    session TEXT PRIMARY KEY REFERENCES session (id) ON DELETE CASCADE,
    name TEXT NOT NULL UNIQUE, seed TEXT NOT NULL, clock_ns INTEGER NOT NULL
) WITHOUT ROWID"""


# Nor is this one: it is created with the first session that has a time of its own, or is paused.
# For versions that know no periods, a paused session is one that cannot be used.
_PERIOD_SCHEMA = """CREATE TABLE IF NOT EXISTS period (
    session TEXT PRIMARY KEY REFERENCES session (id) ON DELETE CASCADE,
    lifetime_ms INTEGER, extensions_max INTEGER, paused_at INTEGER
) WITHOUT ROWID"""


class _Errors:
    """The errors of a book: those of stores, and one for a file that is no book."""

    def of(self, error: BaseException, path: Path, *, waited_seconds: float) -> BaseException:
        """Return the error to raise for one of SQLite or the system; others come back unchanged."""
        match error:
            case sqlite3.Error() if (code_of(error) or 0) & 0xFF == sqlite3.SQLITE_NOTADB:
                return self.foreign(where=str(path))
            case sqlite3.Error():
                return self.unavailable(where=str(path), why=_why(error, path))
            case OSError():
                return self.unavailable(where=str(path), why=error.strerror or str(error))
            case _:
                return error

    def foreign(self, *, where: str) -> Exception:
        return NotASessionBook(path=where)

    def unavailable(self, *, where: str, why: str) -> Exception:
        return StoreError(f"{where}: {why}")


def _why(error: sqlite3.Error, path: Path) -> str:
    match (code_of(error) or 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another process was writing it for too long; try again when it is done"
        case sqlite3.SQLITE_FULL:
            return "the disk is full; free some space, then go on"
        case sqlite3.SQLITE_CANTOPEN if path.is_dir():
            return "Is a directory"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return "it cannot be written; make it and its directory writable for this user"
        case _:
            return f"it cannot be used: {error}"


def _format_error(path: str, version: int) -> SessionFormatUnknown:
    return SessionFormatUnknown(path=path, found=version, known=FORMAT)


def _prepare(db: sqlite3.Connection) -> None:
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA trusted_schema = OFF")


_BOOK = FileKind(
    name="a session in a file",
    application_id=APPLICATION_ID,
    versions=(FORMAT,),
    schema=_SCHEMA,
    errors=_Errors(),
    newer=_format_error,
    prepare=_prepare,
)


class SessionFile:
    """The store of a book that several processes share, one writer at a time."""

    def __init__(self, path: Path, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        self.path = path
        self._file = SqliteFile(path, _BOOK, busy_seconds=busy_seconds, kept=False)

    @property
    def where(self) -> str:
        return str(self.path)

    @property
    def exists(self) -> bool:
        return self.path.exists()

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqliteRows]:
        with self._file.reading() as db:
            yield SqliteRows(db)

    @contextlib.contextmanager
    def writing(self) -> Iterator[SqliteRows]:
        with self._file.writing() as db:
            yield SqliteRows(db)

    def lock(self, session: str) -> FileSessionLock:
        return FileSessionLock(self._lock_path(session))

    def is_locked(self, session: str) -> bool:
        path = self._lock_path(session)
        try:
            return is_locked(path)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}") from error

    def scrub(self) -> bool:
        """Write the file again and empty its log. Return False if that has to be done later.

        That is so while another process reads or writes it, or the disk is full.
        """
        return self._file.rewrite(later_if=(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL))

    def damage(self) -> Sequence[str]:
        """Return the first 20 faults that SQLite finds in the file, its tables and its indexes."""
        with self._file.reading() as db:
            return integrity_faults(db)

    def _lock_path(self, session: str) -> Path:
        path = Path(os.path.realpath(self.path))
        return path.with_name(f"{path.name}-held") / f"{session}.lock"


def book_in(path: Path, *, clock: Callable[[], int] = now_ms) -> SessionBook:
    """Return the book in a file, which is created when it is first used."""
    return SessionBook(SessionFile(path), clock=clock)


class FileSessionLock:
    """The lock of a session. The system releases it when the process that has it dies.

    Two threads of one process exclude each other as well: each opens the file for itself.
    """

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)

    def take(self, *, wait_seconds: float) -> bool:
        try:
            return self._lock.take(wait_seconds=wait_seconds)
        except OSError as error:
            raise StoreError(f"{self._lock.path}: {error.strerror or error}") from error

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._lock.release(remove=True)


# The rows of the file.


_PERIOD = ("lifetime_ms", "extensions_max", "paused_at")
_FIELDS = tuple(each for each in SessionRow.__struct_fields__ if each not in _PERIOD)
_COLUMNS = ", ".join(each if each != "left" else "kept" for each in _FIELDS)
_RUN = "SELECT run, begun_at, generation, ended, tokens, wall_ms FROM run"
_decode = msgspec.json.Decoder(Left).decode


class SqliteRows:
    """The rows of a book on one connection, inside a transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    # -- sessions ------------------------------------------------------------------------------

    def session(self, session: str) -> SessionRow | None:
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM session WHERE id = ?", (session,)
        ).fetchone()
        return None if row is None else _as_session(row, self._periods(session).get(session, {}))

    def sessions(self) -> Sequence[SessionRow]:
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM session ORDER BY id").fetchall()
        periods = self._periods()
        return [_as_session(row, periods.get(row["id"], {})) for row in rows]

    def ids(self) -> Sequence[str]:
        return [row[0] for row in self._db.execute("SELECT id FROM session ORDER BY id")]

    def add(self, row: SessionRow) -> None:
        values = [_to_column(getattr(row, field)) for field in _FIELDS]
        marks = ", ".join("?" * len(values))
        self._db.execute(f"INSERT INTO session ({_COLUMNS}) VALUES ({marks})", values)
        self._db.execute("UPDATE counted SET created = created + 1")
        self._put_period(row.id, {each: getattr(row, each) for each in _PERIOD})

    def put(self, session: str, **fields: object) -> None:
        # Field names come from the callers in this package, never from users: no SQL injection.
        self._put_period(session, {each: fields.pop(each) for each in _PERIOD if each in fields})
        if not fields:
            return
        named = ", ".join(f"{'kept' if name == 'left' else name} = ?" for name in fields)
        values = [_to_column(each) for each in fields.values()]
        self._db.execute(f"UPDATE session SET {named} WHERE id = ?", (*values, session))

    def _periods(self, session: str | None = None) -> Mapping[str, Mapping[str, int | None]]:
        """Return the rows of periods by session, of one or of all."""
        if not self._has_table("period"):
            return {}
        wanted = "SELECT * FROM period WHERE ? IS NULL OR session = ?"
        rows = [dict(row) for row in self._db.execute(wanted, (session, session)).fetchall()]
        return {row.pop("session"): row for row in rows}

    def _put_period(self, session: str, fields: Mapping[str, object]) -> None:
        before = self._periods(session).get(session, {})
        after = {**dict.fromkeys(_PERIOD), **before, **fields}
        if after == {**dict.fromkeys(_PERIOD), **before}:
            return
        self._db.execute(_PERIOD_SCHEMA)
        # Nothing is inserted for a session that does not exist.
        self._db.execute(
            "INSERT OR REPLACE INTO period SELECT id, ?, ?, ? FROM session WHERE id = ?",
            (*(after[each] for each in _PERIOD), session),
        )

    def remove(self, session: str) -> None:
        self._db.execute("DELETE FROM session WHERE id = ?", (session,))

    def created_count(self) -> int:
        (count,) = self._db.execute("SELECT created FROM counted").fetchone()
        return int(count)

    # -- names ---------------------------------------------------------------------------------

    def names(self) -> Mapping[str, str]:
        if not self._has_table("named"):
            return {}
        return dict(self._db.execute("SELECT session, name FROM named").fetchall())

    def find_named(self, name: str) -> SessionName | None:
        if not is_text(name) or not self._has_table("named"):
            return None
        row = self._db.execute("SELECT * FROM named WHERE name = ?", (name,)).fetchone()
        try:
            return None if row is None else msgspec.convert(dict(row), SessionName, strict=False)
        except msgspec.ValidationError as error:
            raise StoreError(f"session {name!r} cannot be read: {error}") from error

    def add_name(self, name: SessionName) -> None:
        self._db.execute(_NAMED_SCHEMA)
        # As text: a seed may be too long for an integer column.
        values = (name.session, name.name, str(name.seed), name.clock_ns)
        self._db.execute("INSERT INTO named VALUES (?, ?, ?, ?)", values)

    def _has_table(self, name: str) -> bool:
        """Return True if a table exists that is created when it is first needed."""
        wanted = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self._db.execute(wanted, (name,)).fetchone() is not None

    # -- variables -----------------------------------------------------------------------------

    def variables(self, session: str) -> Mapping[str, str]:
        wanted = "SELECT key, value FROM variable WHERE session = ? ORDER BY key"
        return dict(self._db.execute(wanted, (session,)).fetchall())

    def set_variables(self, session: str, variables: Mapping[str, str]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO variable VALUES (?, ?, ?)",
            [(session, key, value) for key, value in variables.items()],
        )

    def delete_variable(self, session: str, key: str) -> bool:
        done = self._db.execute(
            "DELETE FROM variable WHERE session = ? AND key = ?", (session, key)
        )
        return done.rowcount > 0

    # -- snapshots -----------------------------------------------------------------------------

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        rows = self._db.execute(
            "SELECT session, id, name, created_at, backend, kept FROM snapshot "
            "WHERE session = ? ORDER BY created_at, id",
            (session,),
        )
        return [_as_snapshot(row) for row in rows.fetchall()]

    def add_snapshot(self, snapshot: KeptSnapshot) -> None:
        of = snapshot.snapshot
        self._db.execute(
            "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?)",
            (
                of.session_id,
                of.id,
                of.name,
                of.created_at,
                snapshot.backend,
                _to_column(snapshot.left),
            ),
        )

    def delete_snapshot(self, session: str, id: str) -> None:
        self._db.execute("DELETE FROM snapshot WHERE session = ? AND id = ?", (session, id))

    # -- runs ----------------------------------------------------------------------------------

    def runs(self, session: str) -> Sequence[RunOfSession]:
        rows = self._db.execute(f"{_RUN} WHERE session = ? ORDER BY place", (session,))
        return [RunOfSession(**dict(row)) for row in rows.fetchall()]

    def run(self, session: str, run: str) -> RunOfSession | None:
        row = self._db.execute(f"{_RUN} WHERE session = ? AND run = ?", (session, run)).fetchone()
        return None if row is None else RunOfSession(**dict(row))

    def put_run(self, session: str, run: RunOfSession) -> None:
        self._db.execute(
            "INSERT INTO run SELECT ?, coalesce(max(place), 0) + 1, ?, ?, ?, ?, ?, ? "
            "FROM run WHERE session = ? ON CONFLICT (session, run) DO UPDATE SET "
            "begun_at = excluded.begun_at, generation = excluded.generation, "
            "ended = excluded.ended, tokens = excluded.tokens, wall_ms = excluded.wall_ms",
            (
                *(session, run.run, run.begun_at, run.generation),
                *(run.ended, run.tokens, run.wall_ms, session),
            ),
        )

    def delete_run(self, session: str, run: str) -> None:
        self._db.execute("DELETE FROM run WHERE session = ? AND run = ?", (session, run))

    def total_spent(self, session: str) -> tuple[int, int]:
        wanted = "SELECT coalesce(sum(tokens), 0), coalesce(sum(wall_ms), 0) FROM run"
        tokens, wall_ms = self._db.execute(f"{wanted} WHERE session = ?", (session,)).fetchone()
        return tokens, wall_ms


def _to_column(value: object) -> object:
    return msgspec.json.encode(value) if isinstance(value, Left) else value


def _as_session(row: sqlite3.Row, period: Mapping[str, int | None]) -> SessionRow:
    fields = dict(row)
    left = _as_left(fields.pop("kept"), row["id"])
    try:
        msgspec.convert(row["state"], SessionState)
    except msgspec.ValidationError as error:
        raise StoreError(f"session {row['id']}: its state cannot be read: {error}") from error
    return msgspec.structs.replace(SessionRow(**fields, left=left), **period)


def _as_snapshot(row: sqlite3.Row) -> KeptSnapshot:
    session = row["session"]
    return KeptSnapshot(
        snapshot=SnapshotId(
            id=row["id"], name=row["name"], session_id=session, created_at=row["created_at"]
        ),
        backend=row["backend"],
        left=_as_left(row["kept"], session),
    )


def _as_left(kept: bytes, session: str) -> Left:
    try:
        return _decode(kept)
    except (msgspec.MsgspecError, TypeError) as error:
        raise StoreError(f"what session {session} keeps cannot be read: {error}") from error


_: type[BookStore] = SessionFile
