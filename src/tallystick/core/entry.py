"""Whether one entry holds: its header at its place, its hash behind another, its body in it."""

from __future__ import annotations

import hashlib

import msgspec

from tallystick.core.canonical import canonical
from tallystick.core.chain import FORMAT, SALT_BYTES, Header, Sealed
from tallystick.core.records import decode_record, intent_of, tag_of

__all__ = ["check_body", "check_entry", "link", "read_header"]

_decode_header = msgspec.json.Decoder(Header).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def check_entry(entry: Sealed, *, run: str, seq: int, previous: str) -> str | None:
    """Say why an entry does not belong behind the hash `previous`; None if it does."""
    header = read_header(entry.header, run=run, seq=seq)
    if isinstance(header, str):
        return header
    if link(previous, entry.header) != entry.hash:
        return "its hash is not that of its header and the entry before"
    return check_body(header, entry.salt, entry.body)


def read_header(data: bytes, *, run: str, seq: int) -> Header | str:
    """The header of the entry at a place, or why these bytes are not one."""
    try:
        header = _decode_header(data)
    except _UNREADABLE:
        return "its header cannot be read"
    if header.v != FORMAT:
        return f"its header has format {header.v}; this version reads {FORMAT}"
    if header.run != run:
        return "its header names another run"
    if header.seq != seq:
        return f"its header has place {header.seq}"
    # Two ways to write one header would let a reader see other fields than the hash was made for.
    if canonical(header) != data:
        return "its header is not in canonical form"
    return header


def link(previous: str, header: bytes) -> str:
    """The hash of the entry with this header behind the hash `previous`."""
    return hashlib.sha256(bytes.fromhex(previous) + header).hexdigest()


def check_body(header: Header, salt: bytes | None, body: bytes | None) -> str | None:
    """Say why a body is not the one of a header; None if it is, or was erased."""
    if salt is None or body is None:
        return None if salt is body else "only one of salt and body is there"
    # Salt and body are hashed as one: without a fixed length, bytes could change sides.
    if len(salt) != SALT_BYTES:
        return f"its salt has {len(salt)} bytes, not {SALT_BYTES}"
    if hashlib.sha256(salt + body).hexdigest() != header.body_sha256:
        return "its body is not the one that its header binds"
    try:
        record = decode_record(body)
    except _UNREADABLE:
        return "its body is no record that this version knows"
    if tag_of(record) != header.tag or intent_of(record) != header.intent:
        return "its body is another record than its header says"
    return None
