"""What records say of sessions and attachments: whose a session is, and which bytes are needed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tallystick.attachments.port import AttachmentRef
from tallystick.core.chain import Sealed
from tallystick.core.errors import LedgerCorrupt, LedgerError
from tallystick.core.ids import is_ulid
from tallystick.core.records import Record, RunForked, RunStarted, SnapshotTaken, decode_record
from tallystick.ledger.port import Ledger

__all__ = ["mentions", "other_run_of", "own_session", "references_in", "session_in", "session_of"]

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def own_session(ledger: Ledger, run: str) -> str | None:
    """The session that is this run's alone; None if it has none, or its start was erased."""
    session_id = session_of(ledger, run)
    if session_id is None or not is_ulid(session_id):
        return None
    return None if other_run_of(ledger, session_id, run) else session_id


def session_in(entry: Sealed) -> str | None:
    """The session that a first entry names."""
    if entry.body is None:
        return None
    try:
        record = decode_record(entry.body)
    except _UNREADABLE:
        return None
    return record.session_id if isinstance(record, RunStarted | RunForked) else None


def session_of(ledger: Ledger, run: str) -> str | None:
    try:
        first = next(ledger.read(run, stop=1), None)
    except LedgerCorrupt:
        return None
    return None if first is None else session_in(first)


def other_run_of(ledger: Ledger, session_id: str, run: str) -> str | None:
    """Another run that names this session."""
    named = session_id.encode()
    for row in ledger.runs():
        if row.run == run:
            continue
        try:
            first = next(ledger.read(row.run, stop=1), None)
        except LedgerError:
            continue  # removed just now, or damaged: then it says nothing
        if first is None or named not in (first.body or b""):
            continue
        if session_in(first) == session_id:
            return row.run
    return None


def mentions(entry: Sealed) -> Iterator[AttachmentRef]:
    """Every attachment that a record refers to.

    Looked for in the record as it is decoded, where a reference is one by its type. In the JSON,
    what a model's server reported or a program printed could look like one.
    """
    body = entry.body
    # Most records refer to none. A name may also be written in escapes.
    if body is None or (b"byte_len" not in body and b"\\u" not in body):
        return
    try:
        record = decode_record(body)
    except _UNREADABLE:
        return
    yield from _references(record)


def references_in(record: Record) -> Iterator[AttachmentRef]:
    """Every attachment that a record refers to."""
    yield from _references(record)


def _references(value: object) -> Iterator[AttachmentRef]:
    """In order, as deep as the types of records go: what they hold freely is passed over."""
    match value:
        case SnapshotTaken():
            # It only saves time: whoever does not have it runs the programs again.
            return
        case AttachmentRef():
            yield value
        case msgspec.Struct():
            for field in value.__struct_fields__:
                yield from _references(getattr(value, field))
        case tuple():
            for each in value:
                yield from _references(each)
        case _:
            pass
