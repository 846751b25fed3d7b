"""Read and write the tables of attachments in the ledger's own file.

They are made with the first attachment. They are independent of the ledger's tables: an older
version of this package reads such a file as if they were not there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tallystick.attachments.manifest import CONDEMNED, DELETING, FREE, Blob, ManifestRows
from tallystick.attachments.port import (
    AttachmentCorrupt,
    AttachmentError,
    Intent,
    Reference,
    is_digest,
)
from tallystick.core.errors import InvalidName
from tallystick.core.records import AttachmentRef

FORMAT = 1
_TOGETHER = 500
_SCHEMA = (
    "CREATE TABLE attachment_format (version INTEGER NOT NULL)",
    # No data: a file of its own. A rowid table, since rows with data are large.
    """CREATE TABLE attachment_blob (
        id TEXT PRIMARY KEY, byte_len INTEGER NOT NULL, stored_at INTEGER NOT NULL,
        state INTEGER NOT NULL, sweep TEXT, data BLOB
    )""",
    """CREATE TABLE attachment_reference (
        session_id TEXT NOT NULL, attachment_id TEXT NOT NULL, owner TEXT,
        intent_at INTEGER NOT NULL, committed_at INTEGER, ref BLOB NOT NULL,
        PRIMARY KEY (session_id, attachment_id)
    )""",
    "CREATE INDEX attachment_reference_blob ON attachment_reference (attachment_id)",
    """CREATE INDEX attachment_reference_open ON attachment_reference (intent_at)
        WHERE committed_at IS NULL""",
    # Further owners of one intent: it is alive as long as one of them may be.
    """CREATE TABLE attachment_holder (
        session_id TEXT NOT NULL, attachment_id TEXT NOT NULL, owner TEXT NOT NULL,
        PRIMARY KEY (session_id, attachment_id, owner)
    ) WITHOUT ROWID""",
    f"INSERT INTO attachment_format VALUES ({FORMAT})",
)
_ROW = "SELECT session_id, attachment_id, owner, intent_at, committed_at, ref"
_BLOB = "SELECT id, byte_len, stored_at, state, sweep, data IS NULL FROM attachment_blob"
_DATA = "SELECT data FROM attachment_blob WHERE id = ?"
_decode_ref = msgspec.json.Decoder(AttachmentRef).decode
_encode_ref = msgspec.json.Encoder().encode


def has_tables(db: sqlite3.Connection, *, create: bool) -> bool:
    """Return True if the tables are there. With `create`, they are made if they are not: True too.

    Raise `AttachmentError` if another version wrote them.
    """
    (found,) = db.execute(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'attachment_format'"
    ).fetchone()
    if found:
        versions = db.execute("SELECT version FROM attachment_format").fetchall()
        if versions != [(FORMAT,)]:
            raise AttachmentError(
                f"the attachments of this ledger have format {versions}; this version reads "
                f"{FORMAT}: use the version that wrote them"
            )
    elif create:
        for statement in _SCHEMA:
            db.execute(statement)
    return bool(found) or create


class SqliteManifest:
    """The rows of attachments on one connection, inside a transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def blob_of(self, id: str) -> Blob | None:
        found = self._db.execute(f"{_BLOB} WHERE id = ?", (id,)).fetchone()
        return None if found is None else _as_blob(found)

    def upsert(self, intent: Intent, ref: AttachmentRef) -> None:
        key = (intent.session_id, intent.attachment_id)
        encoded = _encode_ref(ref)
        inserted = self._db.execute(
            "INSERT INTO attachment_reference VALUES (?, ?, ?, ?, NULL, ?) ON CONFLICT DO NOTHING",
            (*key, intent.owner, intent.intent_at_epoch_ms, encoded),
        ).rowcount
        if inserted:
            return
        self._db.execute(
            "UPDATE attachment_reference SET ref = ? WHERE session_id = ? AND attachment_id = ?",
            (encoded, *key),
        )
        if intent.owner is not None:
            self._db.execute(
                """INSERT INTO attachment_holder SELECT session_id, attachment_id, ?
                FROM attachment_reference WHERE session_id = ? AND attachment_id = ?
                AND committed_at IS NULL AND owner IS NOT ? ON CONFLICT DO NOTHING""",
                (intent.owner, *key, intent.owner),
            )

    def revoke(self, id: str) -> None:
        self._db.execute(
            "UPDATE attachment_blob SET state = ?, sweep = NULL WHERE id = ? AND state = ?",
            (FREE, id, CONDEMNED),
        )

    def keep_inline(self, id: str, data: bytes, *, now: int) -> None:
        self._keep_inline_all([(id, len(data), now, FREE, data)])

    def _keep_inline_all(self, values: Sequence[tuple[str, int, int, int, bytes]]) -> None:
        self._db.executemany(
            """INSERT INTO attachment_blob VALUES (?, ?, ?, ?, NULL, ?) ON CONFLICT DO UPDATE
            SET state = excluded.state, sweep = NULL,
                byte_len = excluded.byte_len, data = excluded.data
            WHERE state != excluded.state OR data IS NOT excluded.data""",
            values,
        )

    def keep_file(self, id: str, byte_len: int, *, now: int) -> None:
        self._db.execute(
            "REPLACE INTO attachment_blob VALUES (?, ?, ?, ?, NULL, NULL)",
            (id, byte_len, now, FREE),
        )

    def commit(self, session_id: str, ids: Sequence[str], *, now: int) -> list[str]:
        there = []
        for start in range(0, len(ids), _TOGETHER):
            some = ids[start : start + _TOGETHER]
            chosen = f"session_id = ? AND attachment_id IN ({', '.join('?' * len(some))})"
            key = (session_id, *some)
            self._db.execute(
                "UPDATE attachment_reference SET committed_at = ? "
                f"WHERE {chosen} AND committed_at IS NULL",
                (now, *key),
            )
            self._db.execute(f"DELETE FROM attachment_holder WHERE {chosen}", key)
            self._db.execute(
                f"UPDATE attachment_blob SET state = {FREE}, sweep = NULL "
                f"WHERE state = {CONDEMNED} "
                f"AND id IN (SELECT attachment_id FROM attachment_reference WHERE {chosen})",
                key,
            )
            there += self._db.execute(
                "SELECT id FROM attachment_reference JOIN attachment_blob ON id = attachment_id "
                f"WHERE {chosen} AND state != {DELETING}",
                key,
            ).fetchall()
        return [id for (id,) in there]

    def insert_committed(
        self,
        session_id: str,
        blobs: Sequence[tuple[AttachmentRef, bytes]],
        *,
        now: int,
    ) -> None:
        self._keep_inline_all([(ref.id, len(data), now, FREE, data) for ref, data in blobs])
        self._db.executemany(
            """INSERT INTO attachment_reference VALUES (?, ?, NULL, ?, ?, ?) ON CONFLICT DO UPDATE
            SET committed_at = ifnull(committed_at, excluded.committed_at), ref = excluded.ref""",
            [(session_id, ref.id, now, now, _encode_ref(ref)) for ref, _ in blobs],
        )
        # A row that was an intent may have had further owners. A commit makes them irrelevant.
        self._db.execute(
            """DELETE FROM attachment_holder WHERE session_id = ?1 AND attachment_id IN (
                SELECT attachment_id FROM attachment_reference
                WHERE session_id = ?1 AND committed_at IS NOT NULL
            )""",
            (session_id,),
        )

    def forget(self, session_id: str, id: str | None) -> None:
        where, key = "session_id = ?", [session_id]
        if id is not None:
            where, key = f"{where} AND attachment_id = ?", [session_id, id]
        for table in ("attachment_reference", "attachment_holder"):
            self._db.execute(f"DELETE FROM {table} WHERE {where}", key)

    def references(
        self, *, session_id: str | None = None, id: str | None = None
    ) -> Iterator[Reference]:
        wanted = {"session_id": session_id, "attachment_id": id}
        chosen = {column: value for column, value in wanted.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in chosen) or "1"
        rows = self._db.execute(
            f"{_ROW} FROM attachment_reference WHERE {where} ORDER BY rowid", tuple(chosen.values())
        )
        return map(_as_reference, rows)

    def uncommitted_references(self, cutoff: int) -> list[Reference]:
        rows = self._db.execute(
            f"{_ROW} FROM attachment_reference WHERE committed_at IS NULL AND intent_at <= ? "
            "ORDER BY intent_at, rowid",
            (cutoff,),
        )
        return [_as_reference(row) for row in rows]

    def holders(self, intent: Intent) -> list[str]:
        further = self._db.execute(
            "SELECT owner FROM attachment_holder WHERE session_id = ? AND attachment_id = ?",
            (intent.session_id, intent.attachment_id),
        )
        first = [] if intent.owner is None else [intent.owner]
        return first + [owner for (owner,) in further]

    def mark(self, id: str, *, state: int, sweep: str | None) -> None:
        self._db.execute(
            "UPDATE attachment_blob SET state = ?, sweep = ? WHERE id = ?", (state, sweep, id)
        )

    def data(self, id: str) -> bytes | None:
        found = self._db.execute(_DATA, (id,)).fetchone()
        return found[0] if found and isinstance(found[0], bytes) else None

    def drop_blob(self, id: str) -> None:
        self._db.execute("DELETE FROM attachment_blob WHERE id = ?", (id,))

    def blobs(self) -> Iterator[Blob]:
        return map(_as_blob, self._db.execute(f"{_BLOB} ORDER BY id"))

    def named_owners(self) -> set[str]:
        rows = self._db.execute(
            """SELECT owner FROM attachment_reference
            WHERE committed_at IS NULL AND owner IS NOT NULL
            UNION SELECT owner FROM attachment_holder
            UNION SELECT sweep FROM attachment_blob WHERE sweep IS NOT NULL AND state = ?""",
            (DELETING,),
        )
        return {owner for (owner,) in rows}


def _as_blob(found: tuple[Any, ...]) -> Blob:
    """Return the blob in a row. Raise `AttachmentCorrupt` if the row is damaged."""
    id, byte_len, stored_at, state, sweep, filed = found
    if not (
        _is_id(id)
        and isinstance(byte_len, int)
        and isinstance(stored_at, int)
        and state in (FREE, CONDEMNED, DELETING)
        and isinstance(sweep, str | None)
    ):
        raise AttachmentCorrupt(id=str(id), why="its row holds what no row does")
    return Blob(id, byte_len, stored_at, state, sweep, bool(filed))


def _as_reference(found: tuple[Any, ...]) -> Reference:
    """Return the reference in a row. Raise `AttachmentCorrupt` if the row is damaged."""
    session_id, id, owner, intent_at, committed_at, encoded = found
    try:
        ref = _decode_ref(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise AttachmentCorrupt(
            id=str(id), why=f"its row in the manifest of session {session_id} cannot be read"
        ) from error
    if not (
        ref.id == id
        and _is_id(id)
        and isinstance(session_id, str)
        and isinstance(owner, str | None)
        and isinstance(intent_at, int)
        and isinstance(committed_at, int | None)
    ):
        raise AttachmentCorrupt(
            id=str(id),
            why=f"its row in the manifest of session {session_id} holds what no row does",
        )
    intent = Intent(
        session_id=session_id, attachment_id=id, intent_at_epoch_ms=intent_at, owner=owner
    )
    return Reference(intent=intent, ref=ref, committed_at_epoch_ms=committed_at)


def _is_id(id: object) -> bool:
    try:
        return isinstance(id, str) and is_digest(id)
    except InvalidName:
        return False


_: type[ManifestRows] = SqliteManifest
