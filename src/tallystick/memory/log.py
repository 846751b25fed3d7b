"""The log of a memory: a hash chain of headers, with what was said sealed apart.

An entry's hash is SHA-256(previous hash ‖ header). The header says where the entry stands, when it
was written, which note it is about, and SHA-256(salt ‖ body); it says nothing of what the note
says. Salt and body are stored apart: both are removed when the note is erased, the chain still
holds, and with the salt gone nobody can find a short text by trying.

Rule 1: places count from 1, so that a place is also the number of entries up to it. The head of an
empty log is place 0.
Rule 2: times in headers never go back. "As of a time" is the last place that is not after it.
Rule 3: `origin` is in the header and outlives the body: whoever asks twice under one origin, after
a crash for instance, is answered once, also when the note has been erased meanwhile.
"""

from __future__ import annotations

import hashlib

import msgspec

from tallystick.core.canonical import canonical
from tallystick.core.chain import GENESIS, SALT_BYTES, Head, body_hash
from tallystick.memory.records import UNREADABLE, MemoryRecord, decode_memory_record, tag_of

__all__ = [
    "LOG_FORMAT",
    "SALT_BYTES",
    "Entry",
    "EntryHeader",
    "Head",
    "check_entry",
    "empty_head",
    "read_entry_header",
    "seal_entry",
]

LOG_FORMAT = 1


class EntryHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the chain binds of an entry."""

    v: int
    store: str
    seq: int
    at: int
    tag: str
    note: str | None
    origin: str | None
    body_sha256: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry at its place. Salt and body are None once they were erased."""

    seq: int
    header: bytes
    hash: str
    salt: bytes | None
    body: bytes | None


_decode_header = msgspec.json.Decoder(EntryHeader).decode


def empty_head() -> Head:
    """Where a log stands that has no entries."""
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
    """Put a body at the end of a log."""
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
    """The header of the entry at a place, or why these bytes are not one."""
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
    """The header and record of an entry behind the hash `previous`, or why it does not hold.

    The record is None if it was erased.
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
