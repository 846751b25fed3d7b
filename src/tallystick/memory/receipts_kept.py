"""The receipts that a memory keeps in its log: found by id, read in order, checked against it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from tallystick.memory.errors import MemoryCorrupt
from tallystick.memory.log import read_entry_header
from tallystick.memory.receipt import Erased, Held, VerifiedForget, verify_forget
from tallystick.memory.receipt_errors import MissingRecord, NotErased, ReceiptUnknown
from tallystick.memory.receipt_records import (
    ForgetReceipt,
    Link,
    RecallReceipt,
    Receipt,
    check_signature,
    read_receipt,
)
from tallystick.memory.records import NotesForgotten, NotesRecalled, decode_memory_record
from tallystick.memory.sqlite import SqliteMemory

__all__ = [
    "content_at",
    "kept_forget",
    "kept_receipt",
    "kept_receipts",
    "link_of",
    "verify_forgotten",
]


def kept_receipt(memory: SqliteMemory, read_id: str) -> RecallReceipt:
    """The receipt of a recall. Raises `ReceiptUnknown` if this memory gave none of that id."""
    found = _found(memory, read_id)
    if not isinstance(found, RecallReceipt):
        raise ReceiptUnknown(id=read_id)
    return found


def kept_forget(memory: SqliteMemory, forget_id: str) -> ForgetReceipt:
    """The receipt of a forgetting. Raises `ReceiptUnknown` if this memory gave none of that id."""
    found = _found(memory, forget_id)
    if not isinstance(found, ForgetReceipt):
        raise ReceiptUnknown(id=forget_id)
    return found


def kept_receipts(memory: SqliteMemory) -> Iterator[Receipt]:
    """Every receipt of either kind, the first one first."""
    with memory.reading() as db:
        rows = db.execute("SELECT seq FROM receipt ORDER BY number").fetchall()
    for (seq,) in rows:
        yield _at(memory, seq)


def link_of(db: sqlite3.Connection) -> Link:
    """Where the chain of receipts stands."""
    last = db.execute("SELECT number, hash FROM receipt ORDER BY number DESC LIMIT 1").fetchone()
    return Link() if last is None else Link(count=last[0] + 1, hash=last[1])


def verify_forgotten(
    memory: SqliteMemory, receipt: ForgetReceipt, *, keys: Mapping[str, bytes]
) -> VerifiedForget:
    """Check a receipt of a forgetting against the memory as it is now. Raises a `ReceiptError`.

    What it says of runs is what was done to them then, and is signed; runs are not looked at here.
    """
    check_signature(receipt, keys)
    ids = [each.id for each in receipt.forgotten]
    if receipt.store != memory.identity():
        raise MissingRecord(id=ids[0] if ids else receipt.forget_id)
    for seq in receipt.entries:
        if isinstance(content_at(memory, seq), Held):
            raise NotErased(id=f"at entry {seq}")
    places = {each.id: each.seq for each in receipt.forgotten}

    def contents(id: str) -> Held | Erased:
        found = content_at(memory, places[id])
        if found is None:
            raise MissingRecord(id=id)
        return found

    return verify_forget(receipt, keys=keys, contents=contents)


def content_at(memory: SqliteMemory, seq: int) -> Held | Erased | None:
    """What the log has of an entry; None if it has no such entry."""
    entry = next(memory.entries(start=seq, stop=seq), None)
    if entry is None:
        return None
    if entry.salt is not None and entry.body is not None:
        return Held(body=entry.body, salt=entry.salt)
    header = read_entry_header(entry.header, store=memory.identity(), seq=seq)
    return None if isinstance(header, str) else Erased(content_hash=header.body_sha256)


def _found(memory: SqliteMemory, id: str) -> Receipt:
    with memory.reading() as db:
        row = db.execute("SELECT seq FROM receipt WHERE read_id = ?", (id,)).fetchone()
    if row is None:
        raise ReceiptUnknown(id=id)
    return _at(memory, row[0])


def _at(memory: SqliteMemory, seq: int) -> Receipt:
    entry = next(memory.entries(start=seq, stop=seq), None)
    if entry is not None and entry.body is not None:
        record = decode_memory_record(entry.body)
        if isinstance(record, NotesRecalled | NotesForgotten) and record.receipt:
            return read_receipt(record.receipt.encode())
    raise MemoryCorrupt(path=str(memory.path), why=f"entry {seq} has no receipt")
