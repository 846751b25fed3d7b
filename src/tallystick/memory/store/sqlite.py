"""A memory in one SQLite file: one log as a hash chain, and the projections that follow from it.

One file is one tenant, and nothing here opens two: notes that must not be seen together are not
stored together. The log is the truth. An entry and its effect on the projections are one
transaction, which waits for the disk, so both have what was acknowledged. A writer takes the file's
lock, reads the head and appends after it: two writers never use one position.

If projections are from another version, or do not reach the end of the log, they are rebuilt when
the file is opened. Bytes that were erased while another process was reading are removed when the
file is opened next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tallystick.core.chain import GENESIS, SALT_BYTES, Head, body_hash
from tallystick.core.json_text import canonical
from tallystick.memory.errors import MemoryCorrupt, MemoryLocked, NoteInvalid
from tallystick.memory.note import ENTROPY_BYTES, SECRET_BYTES, uuid7
from tallystick.memory.store.file import memory_kind
from tallystick.memory.store.projection import PROJECTION, PROJECTION_SCHEMA, drop_projections, fold
from tallystick.memory.store.records import (
    UNREADABLE,
    MemoryRecord,
    decode_memory_record,
    encode_memory_record,
    tag_of,
)
from tallystick.storage.clock import now_ms
from tallystick.storage.sqlite_file import SqliteFile

# The log of a memory: a hash chain of headers. The bodies are sealed apart from them.
#
# An entry's hash is SHA-256(previous hash ‖ header). The header has the entry's position, its time,
# the note it is about, and SHA-256(salt ‖ body); it has nothing of the note's content. Salt and
# body are stored apart. When the note is erased, both are removed and the chain still holds;
# without the salt, nobody can find a short text by trying.
#
# Rule 1: positions count from 1, so a position is also the number of entries up to it. The head of
# an empty log is position 0.
# Rule 2: times in headers never go back. "As of a time" is the last position that is not after it.
# Rule 3: `origin` is in the header and outlives the body. A request that is repeated under one
# origin, after a crash for instance, is done once, also when the note has been erased meanwhile.


LOG_FORMAT = 1


class EntryHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an entry that the chain binds."""

    v: int
    store: str
    seq: int
    at: int
    tag: str
    note: str | None
    origin: str | None
    body_sha256: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry at its position. Salt and body are None after they were erased."""

    seq: int
    header: bytes
    hash: str
    salt: bytes | None
    body: bytes | None


_decode_header = msgspec.json.Decoder(EntryHeader).decode


def empty_head() -> Head:
    """Return the head of a log without entries."""
    return Head(count=0, hash=GENESIS.hex())


def seal_entry(
    *,
    head: Head,
    store: str,
    at: int,
    tag: str,
    note: str | None,
    origin: str | None,
    body: bytes,
    salt: bytes,
) -> tuple[Entry, EntryHeader]:
    """Make the entry that appends `body` after `head`, and its header. Nothing is written."""
    header = EntryHeader(
        v=LOG_FORMAT,
        store=store,
        seq=head.count + 1,
        at=at,
        tag=tag,
        note=note,
        origin=origin,
        body_sha256=body_hash(salt, body),
    )
    data = canonical(header)
    linked = hashlib.sha256(bytes.fromhex(head.hash) + data).hexdigest()
    return Entry(seq=header.seq, header=data, hash=linked, salt=salt, body=body), header


def read_entry_header(data: bytes, *, store: str, seq: int) -> EntryHeader | str:
    """Return the header of the entry at a position, or the reason why these bytes are not one."""
    try:
        header = _decode_header(data)
    except UNREADABLE:
        return "its header cannot be read"
    if header.v != LOG_FORMAT:
        return f"its header has format {header.v}; this version reads {LOG_FORMAT}"
    if header.store != store:
        return "its header names another memory"
    if header.seq != seq:
        return f"its header has place {header.seq}"
    # Two ways to write one header would let a reader see other fields than the hash was made for.
    if canonical(header) != data:
        return "its header is not in canonical form"
    return header


def check_entry(
    entry: Entry, *, store: str, previous: str, at_min: int
) -> tuple[EntryHeader, MemoryRecord | None] | str:
    """Return the header and record of an entry, or the reason why it does not hold.

    `previous` is the hash of the entry before, and `at_min` its time. The record is None if it was
    erased.
    """
    header = read_entry_header(entry.header, store=store, seq=entry.seq)
    if isinstance(header, str):
        return header
    if header.at < at_min:
        return "its time is before that of the entry before"
    if hashlib.sha256(bytes.fromhex(previous) + entry.header).hexdigest() != entry.hash:
        return "its hash is not that of its header and the entry before"
    if entry.salt is None or entry.body is None:
        whole = entry.salt is None and entry.body is None
        return (header, None) if whole else "only one of salt and body is there"
    # Salt and body are hashed as one: without a fixed length, bytes could change sides.
    if len(entry.salt) != SALT_BYTES:
        return f"its salt has {len(entry.salt)} bytes, not {SALT_BYTES}"
    if body_hash(entry.salt, entry.body) != header.body_sha256:
        return "its body is not the one that its header binds"
    try:
        record = decode_memory_record(entry.body)
    except UNREADABLE:
        return "its body is no record that this version knows"
    if tag_of(record) != header.tag:
        return "its body is another record than its header says"
    return header, record


_BUSY_SECONDS = 10.0
_LOG_SCHEMA = (
    # Salt and body are NULL after they were erased.
    """CREATE TABLE log (
        seq INTEGER PRIMARY KEY, header BLOB NOT NULL, hash BLOB NOT NULL, salt BLOB, body BLOB
    )""",
    """CREATE TABLE head (
        one INTEGER PRIMARY KEY CHECK (one = 1), store TEXT NOT NULL, secret BLOB NOT NULL,
        count INTEGER NOT NULL, hash BLOB NOT NULL, at INTEGER NOT NULL,
        projection TEXT NOT NULL, projected INTEGER NOT NULL, scrub INTEGER NOT NULL
    )""",
    # Not a projection: vectors cannot be computed from the log alone. The log has their digests.
    """CREATE TABLE vector (
        number INTEGER NOT NULL, window INTEGER NOT NULL, seq INTEGER NOT NULL,
        vector BLOB NOT NULL, tokens BLOB, PRIMARY KEY (number, window)
    )""",
)


@dataclass(slots=True)
class HeadRow:
    """The row of the table `head`: identity, secret, end of the log, state of the projections."""

    store: str
    secret: bytes
    head: Head
    at: int
    projection: str
    projected: int
    scrub: bool


class LogWriter:
    """A transaction that appends to the log.

    It is valid inside the `SqliteMemory.writing` that made it.
    """

    def __init__(
        self, db: sqlite3.Connection, row: HeadRow, *, now: int, entropy: _Entropy
    ) -> None:
        self.db = db
        self.secret = row.secret
        # The log's time never goes back, whatever the clock does.
        self.at = max(now, row.at)
        self.head = row.head
        self.store = row.store
        self._entropy = entropy
        self.scrub = row.scrub

    def append(
        self,
        record: MemoryRecord,
        *,
        note: str | None = None,
        origin: str | None = None,
        same: bytes | None = None,
    ) -> tuple[int, str]:
        """Append a record to the log and apply it to the projections.

        Return its position and the salted digest of its body. `note` is the id that it is about.
        `origin` names the request, stays after an erasure, and is not checked here. `same` is as in
        `fold`.
        """
        entry, header = seal_entry(
            head=self.head,
            store=self.store,
            at=self.at,
            tag=tag_of(record),
            note=note,
            origin=origin,
            body=encode_memory_record(record),
            salt=self._entropy(SALT_BYTES),
        )
        self.db.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?)",
            (entry.seq, entry.header, bytes.fromhex(entry.hash), entry.salt, entry.body),
        )
        fold(self.db, header, record, secret=self.secret, same=same)
        self.head = Head(count=entry.seq, hash=entry.hash)
        return entry.seq, header.body_sha256

    def new_id(self) -> str:
        """Return a new note id for the time of this transaction."""
        return uuid7(time_ms=self.at, entropy=self._entropy(ENTROPY_BYTES))

    def erase_bodies(self, seqs: Sequence[int]) -> None:
        """Delete salt and body of the entries at these positions, and mark the file for `scrub`."""
        self.db.executemany(
            "UPDATE log SET salt = NULL, body = NULL WHERE seq = ?", [(seq,) for seq in seqs]
        )
        self.scrub = True


_Entropy = Callable[[int], bytes]


class SqliteMemory:
    """The file of a memory, shared by threads and processes. Closing twice is harmless.

    The first use opens the file, and makes it if it is missing. It rebuilds projections that do not
    fit the log, and scrubs if that is due. Every method may raise a `StorageFailed`.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], int] = now_ms,
        entropy: _Entropy = os.urandom,
        busy_seconds: float = _BUSY_SECONDS,
    ) -> None:
        self.path = path
        self.clock = clock
        self._entropy = entropy
        self._ready = False
        kind = memory_kind(schema=(*_LOG_SCHEMA, *PROJECTION_SCHEMA), fill=self._make_head)
        self._file = SqliteFile(path, kind, busy_seconds=busy_seconds)

    def __enter__(self) -> SqliteMemory:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. It is opened again on its next use."""
        self._file.close()
        self._ready = False

    # -- looking -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that reads one state of the memory, whatever is written meanwhile."""
        self._prepare()
        with self._file.reading() as db:
            yield db

    def head(self) -> Head:
        """Return the number of entries and the hash of the last one, to be kept elsewhere."""
        with self.reading() as db:
            return head_row(db, self.path).head

    def identity(self) -> str:
        """Return the id of this store, which every entry binds."""
        with self.reading() as db:
            return head_row(db, self.path).store

    def secret(self) -> bytes:
        """Return the key of the digests by which duplicates are found."""
        with self.reading() as db:
            return head_row(db, self.path).secret

    def entries(self, *, start: int = 1, stop: int | None = None) -> Iterator[Entry]:
        """Yield the entries from position `start` through `stop`, as they are in the file.

        They are read in batches, so entries that are appended meanwhile may be included. Nothing is
        checked: a missing or damaged entry is left out or yielded as it is.
        """
        batch = 500
        end = (1 << 62) if stop is None else stop
        while start <= end:
            with self.reading() as db:
                rows = db.execute(
                    "SELECT seq, header, hash, salt, body FROM log "
                    "WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?",
                    (start, end, batch),
                ).fetchall()
            yield from map(_entry, rows)
            if len(rows) < batch:
                return
            start = rows[-1][0] + 1

    def seq_at(self, time_ms: int) -> int:
        """Return the last position that was written at or before a time; 0 if all are later.

        Raise `MemoryCorrupt` if a header on the way cannot be read.
        """
        with self.reading() as db:
            row = head_row(db, self.path)
            # Times in headers never go back, so the log can be searched by halves.
            low, high = 0, row.head.count
            while low < high:
                middle = (low + high + 1) // 2
                (data,) = db.execute("SELECT header FROM log WHERE seq = ?", (middle,)).fetchone()
                header = read_entry_header(data, store=row.store, seq=middle)
                if isinstance(header, str):
                    raise MemoryCorrupt(where=str(self.path), why=f"entry {middle}: {header}")
                low, high = (middle, high) if header.at <= time_ms else (low, middle - 1)
            return low

    def resolve(self, as_of: int | None) -> int:
        """Return the position to read as of: `as_of`, or the head's if it is None.

        Raise `NoteInvalid` if the log has no such position. Position 0 is before the first entry.
        """
        count = self.head().count
        if as_of is None:
            return count
        if isinstance(as_of, bool) or not 0 <= as_of <= count:
            raise NoteInvalid(field="as_of", why=f"a place from 0 to {count:,}", given=as_of)
        return as_of

    def interruptible(
        self, unwanted: Callable[[], bool]
    ) -> contextlib.AbstractContextManager[None]:
        """End the work of this thread soon after `unwanted` returns True, with `TimeoutError`.

        `unwanted` is called often: before each `reading` and `writing`, and while a statement
        reads. What is being written is written, and a scrub under way goes on. Inside another one
        of these, only the inner one counts.
        """
        return self._file.interruptible(unwanted)

    # -- writing -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def writing(
        self, *, forced: bool = True, busy_seconds: float | None = None
    ) -> Iterator[LogWriter]:
        """Open one transaction for entries and their effects, all or nothing; an error undoes it.

        With `forced`, its commit waits for the disk. Without, it survives this process, but maybe
        not a power cut. Raise `MemoryLocked` if another process holds the file for too long:
        `busy_seconds`, by default those of the store.
        """
        self._prepare()
        with self._file.writing(forced=forced, busy_seconds=busy_seconds) as db:
            row = head_row(db, self.path)
            writer = LogWriter(db, row, now=self.clock(), entropy=self._entropy)
            yield writer
            # A transaction that appended nothing leaves the head, its time too, as it was.
            if writer.head != row.head:
                db.execute(
                    "UPDATE head SET count = ?, hash = ?, at = ?, projected = ?, scrub = ?",
                    (
                        writer.head.count,
                        bytes.fromhex(writer.head.hash),
                        writer.at,
                        writer.head.count,
                        writer.scrub,
                    ),
                )

    def scrub(self) -> bool:
        """Remove erased bytes from indexes, free pages and SQLite's own log.

        Return False if it is not done yet, because a process is reading older pages. It rewrites
        the whole file, so call it once for many erasures. Until it is done the mark stays, and the
        next process that opens the file tries again.
        """
        self._prepare()
        with self._file.writing() as db:
            # Merges the index into one part: words that only erased notes had are in none.
            db.execute("INSERT INTO words (words) VALUES ('optimize')")
        if not self._file.rewrite():
            return False
        # The mark goes last: after a crash before this line, the next opening scrubs again.
        with self._file.writing() as db:
            db.execute("UPDATE head SET scrub = 0")
        return True

    @property
    def scrub_due(self) -> bool:
        """True while bytes that were erased may still be in the file."""
        with self.reading() as db:
            return head_row(db, self.path).scrub

    def rebuild(self) -> int:
        """Rebuild the projections from the log, and delete vectors of notes that it does not have.

        Return how many entries were read. Raise `MemoryCorrupt` if an entry does not hold; then
        nothing is changed.
        """
        with self._file.writing() as db:
            return self._rebuild(db)

    def check_index(self) -> None:
        """Compare the index of words with the table it was made of. It takes the writers' lock.

        Raise `MemoryCorrupt` if they differ.
        """
        with self._file.writing(forced=False) as db:
            db.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")

    # -- inside --------------------------------------------------------------------------------

    def _make_head(self, db: sqlite3.Connection) -> None:
        store = uuid7(time_ms=self.clock(), entropy=self._entropy(ENTROPY_BYTES))
        head = empty_head()
        db.execute(
            "INSERT INTO head VALUES (1, ?, ?, 0, ?, 0, ?, 0, 0)",
            (store, self._entropy(SECRET_BYTES), bytes.fromhex(head.hash), PROJECTION),
        )

    def _prepare(self) -> None:
        """Rebuild the projections if they do not fit the log, and scrub if due. Check only once.

        A scrub that finds the file locked is left to a later opening. Raise `MemoryCorrupt` if an
        entry does not hold.
        """
        if self._ready:
            return
        with self._file.reading() as db:
            row = head_row(db, self.path)
            there = _table_names(db)
        if not _is_current(row, there):
            with self._file.writing() as db:
                # Another process may have rebuilt them before this one got the lock.
                if not _is_current(head_row(db, self.path), _table_names(db)):
                    self._rebuild(db)
        self._ready = True
        if row.scrub:
            # It fails while a reader holds an older state. The mark stays, so a later opening tries
            # again.
            with contextlib.suppress(MemoryLocked):
                self.scrub()

    def _rebuild(self, db: sqlite3.Connection) -> int:
        row = head_row(db, self.path)
        drop_projections(db)
        for statement in PROJECTION_SCHEMA:
            db.execute(statement)
        count = fold_all(db, db, row, path=self.path)
        # Vectors are not rebuilt. Those of notes that the log no longer has go here.
        db.execute("DELETE FROM vector WHERE number NOT IN (SELECT number FROM note)")
        db.execute("UPDATE head SET projection = ?, projected = ?", (PROJECTION, row.head.count))
        return count


def fold_all(
    source: sqlite3.Connection, target: sqlite3.Connection, row: HeadRow, *, path: Path
) -> int:
    """Fold the log of one database into the empty projections of another, and check every entry.

    Return how many there are. Raise `MemoryCorrupt` at the first entry that does not hold, and
    `sqlite3.Error` at one that cannot follow those before it.
    """
    previous, at = empty_head().hash, 0
    rows = source.execute("SELECT seq, header, hash, salt, body FROM log ORDER BY seq")
    count = 0
    while batch := rows.fetchmany(500):
        for each in batch:
            entry = _entry(each)
            checked = check_entry(entry, store=row.store, previous=previous, at_min=at)
            if isinstance(checked, str):
                raise MemoryCorrupt(where=str(path), why=f"entry {entry.seq}: {checked}")
            header, record = checked
            try:
                fold(target, header, record, secret=row.secret)
            except UNREADABLE as error:
                why = f"entry {entry.seq}: its receipt cannot be read: {error}"
                raise MemoryCorrupt(where=str(path), why=why) from error
            previous, at = entry.hash, header.at
            count += 1
    return count


def _is_current(row: HeadRow, tables: set[str]) -> bool:
    named = {statement.split()[2] for statement in PROJECTION_SCHEMA if "TABLE" in statement}
    # Files of earlier versions have no blocks. They only save work.
    named = {name for name in named if name != "TABLE"} - {"block"} | {"words"}
    return row.projection == PROJECTION and row.projected == row.head.count and named <= tables


def _table_names(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def head_row(db: sqlite3.Connection, path: Path) -> HeadRow:
    """Return the row of the table `head`. Raise `MemoryCorrupt` if it is missing or unreadable."""
    found = db.execute(
        "SELECT store, secret, count, hash, at, projection, projected, scrub FROM head"
    ).fetchone()
    if found is None:
        raise MemoryCorrupt(where=str(path), why="its head is gone")
    store, secret, count, hash, at, projection, projected, scrub = found
    typed = isinstance(store, str) and isinstance(secret, bytes) and isinstance(hash, bytes)
    if not (typed and isinstance(count, int) and isinstance(at, int) and len(hash) == 32):
        raise MemoryCorrupt(where=str(path), why="its head cannot be read")
    return HeadRow(
        store=store,
        secret=secret,
        head=Head(count=count, hash=hash.hex()),
        at=at,
        projection=str(projection),
        projected=projected,
        scrub=bool(scrub),
    )


def _entry(row: tuple[int, bytes, bytes, bytes | None, bytes | None]) -> Entry:
    seq, header, hash, salt, body = row
    # A value of another type was not written by this program. As bytes it reaches the checks, which
    # fail.
    return Entry(
        seq=seq,
        header=_bytes(header) or b"",
        hash=(_bytes(hash) or b"").hex(),
        salt=_bytes(salt),
        body=_bytes(body),
    )


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogatepass")
