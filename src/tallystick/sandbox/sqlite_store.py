"""Snapshots in one SQLite file: pages by their hash, compressed, shared by all snapshots.

A snapshot is a row and a list of (place, hash); a page is stored once however many snapshots hold
it, and goes with the last of them. Everything of one snapshot is written in one transaction. A page
is checked against its hash when it is read: what a damaged file gives back is an error, not a
memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tallystick.core.errors import SnapshotNotFound, StoreError
from tallystick.sandbox.snapshot import PAGE_BYTES, Image, SnapshotId, SnapshotStore

__all__ = ["FORMAT", "SqliteSnapshotStore"]

FORMAT = 1
# A window as long as a page: setting up the usual one costs as much as the work.
_LEVEL, _WINDOW_BITS, _MEMORY = 1, 12, 5
_BUSY_SECONDS = 10.0
_SCHEMA = """
CREATE TABLE snapshot (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, session_id TEXT NOT NULL, created_at INTEGER NOT NULL,
    guest TEXT NOT NULL, engine TEXT NOT NULL, memory_bytes INTEGER NOT NULL,
    state BLOB NOT NULL, session BLOB NOT NULL, UNIQUE (session_id, name)
);
CREATE TABLE page (number INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, data BLOB NOT NULL);
CREATE TABLE placed (
    snapshot_id TEXT NOT NULL REFERENCES snapshot (id) ON DELETE CASCADE,
    place INTEGER NOT NULL, page INTEGER NOT NULL REFERENCES page (number),
    PRIMARY KEY (snapshot_id, place)
) WITHOUT ROWID;
CREATE INDEX placed_page ON placed (page);
"""


class SqliteSnapshotStore:
    """Keeps snapshots across processes. Made private to the user: files 0600, directory 0700."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def save(self, snapshot: SnapshotId, image: Image) -> None:
        hashes = [hashlib.sha256(page).digest() for page in image.pages]
        with self._transaction() as db:
            db.execute(
                "DELETE FROM snapshot WHERE session_id = ? AND name = ?",
                (snapshot.session_id, snapshot.name),
            )
            db.execute(
                "INSERT INTO snapshot VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    snapshot.id,
                    snapshot.name,
                    snapshot.session_id,
                    snapshot.created_at,
                    image.guest,
                    image.engine,
                    image.memory_bytes,
                    msgspec.json.encode(image.state),
                    image.session,
                ),
            )
            numbers = _store_pages(db, hashes, image.pages)
            db.executemany(
                "INSERT INTO placed VALUES (?, ?, ?)",
                [
                    (snapshot.id, place, numbers[page_hash])
                    for place, page_hash in zip(image.indices, hashes, strict=True)
                ],
            )
            _drop_orphans(db)

    def load(self, session_id: str, name: str) -> tuple[SnapshotId, Image]:
        with self._transaction() as db:
            snapshot = _find(db, session_id, name)
            row = db.execute(
                "SELECT guest, engine, memory_bytes, state, session FROM snapshot WHERE id = ?",
                (snapshot.id,),
            ).fetchone()
            placed = db.execute(
                "SELECT place, hash, data FROM placed JOIN page ON page = number "
                "WHERE snapshot_id = ? ORDER BY place",
                (snapshot.id,),
            ).fetchall()
        try:
            state = msgspec.json.decode(row[3], type=dict[str, int])
        except msgspec.MsgspecError as error:
            raise StoreError(f"snapshot {snapshot} in {self._path} is damaged") from error
        image = Image(
            guest=row[0],
            engine=row[1],
            memory_bytes=row[2],
            state=state,
            session=row[4],
            indices=[place for place, _, _ in placed],
            pages=[self._page(data, page_hash) for _, page_hash, data in placed],
        )
        return snapshot, image

    def list(self, session_id: str) -> Sequence[SnapshotId]:
        with self._transaction() as db:
            return _listed(db, session_id)

    def delete(self, session_id: str, name: str) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM snapshot WHERE id = ?", (_find(db, session_id, name).id,))
            _drop_orphans(db)

    def close(self) -> None:
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _page(self, data: bytes, page_hash: bytes) -> bytes:
        try:
            page = zlib.decompressobj().decompress(data, PAGE_BYTES)
        except zlib.error as error:
            raise StoreError(f"a page in {self._path} is damaged") from error
        if len(page) != PAGE_BYTES or hashlib.sha256(page).digest() != page_hash:
            raise StoreError(f"a page in {self._path} is damaged")
        return page

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._guard:
            try:
                if self._connection is None:
                    self._connection = self._open()
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    self._connection.rollback()
                    raise
                self._connection.commit()
            except (sqlite3.Error, OSError) as error:
                raise StoreError(f"{self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Made by us first, so that it never exists with wider rights. One that is there is not
        # opened: closing it again would drop the locks of every connection of this process.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("BEGIN IMMEDIATE")
            (found,) = db.execute("PRAGMA user_version").fetchone()
            if found == 0:
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {FORMAT}")
            elif found != FORMAT:
                raise StoreError(f"{self._path} has format {found}; this version reads {FORMAT}")
            db.commit()
        except BaseException:
            db.close()
            raise
        return db


def _store_pages(
    db: sqlite3.Connection, hashes: Sequence[bytes], pages: Sequence[bytes]
) -> dict[bytes, int]:
    """Store the pages that are not there yet. Returns the number of each."""
    numbers: dict[bytes, int] = {}
    for page_hash, page in zip(hashes, pages, strict=True):
        if page_hash in numbers:
            continue
        row = db.execute("SELECT number FROM page WHERE hash = ?", (page_hash,)).fetchone()
        if row is None:
            made = db.execute(
                "INSERT INTO page (hash, data) VALUES (?, ?)",
                (page_hash, _compressed(page)),
            )
            row = (made.lastrowid,)
        numbers[page_hash] = row[0]
    return numbers


def _compressed(page: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY)
    return packer.compress(page) + packer.flush()


def _drop_orphans(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM page WHERE number NOT IN (SELECT page FROM placed)")


def _listed(db: sqlite3.Connection, session_id: str) -> Sequence[SnapshotId]:
    rows = db.execute(
        "SELECT id, name, created_at FROM snapshot WHERE session_id = ? ORDER BY id", (session_id,)
    )
    return [
        SnapshotId(id=ident, name=name, session_id=session_id, created_at=created_at)
        for ident, name, created_at in rows
    ]


def _find(db: sqlite3.Connection, session_id: str, name: str) -> SnapshotId:
    for snapshot in reversed(_listed(db, session_id)):
        if name in (snapshot.name, str(snapshot)):
            return snapshot
    raise SnapshotNotFound(name=name)


_: type[SnapshotStore] = SqliteSnapshotStore
