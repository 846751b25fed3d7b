"""Build and check the hash chain of a run: each entry binds the one before it.

The first entry of a run follows nothing, or in a fork the last entry that it shares with its
parent. Only the body of the first entry says which.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from tallystick.core.ids import is_ulid
from tallystick.core.json_text import canonical
from tallystick.core.records import (
    Record,
    RunForked,
    decode_record,
    encode_record,
    intent_of,
    tag_of,
)

# Building a chain.
#
# An entry's hash is SHA-256(previous hash ‖ header bytes). The header holds SHA-256(salt ‖ body);
# body and salt are stored apart, so they can be removed and the chain still holds. The salt keeps a
# removed body from being guessed by its hash. The first entry of a run binds 32 zero bytes, or in a
# fork the head of its parent.
#
# A header of format 2 says when. Those of format 1 are read for ever, and one chain may have both:
# a run that an older version began is resumed by a newer one.


FORMAT_TIMELESS = 1
FORMAT = 2
GENESIS = bytes(32)
SALT_BYTES = 16


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an entry that the chain binds.

    `at` is the time when the entry was appended, in milliseconds since 1970 by the clock of the
    machine. A clock can be set back, so it may be earlier than that of the entry before. Headers of
    format 1 have none.
    """

    v: int
    run: str
    seq: int
    tag: str
    intent: int | None
    body_sha256: str
    at: int | msgspec.UnsetType = msgspec.UNSET


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The entry count of a run's chain, and the hash of its last entry."""

    count: int
    hash: str

    @classmethod
    def of_nothing(cls) -> Head:
        """Return the head of a chain without entries."""
        return cls(count=0, hash=GENESIS.hex())


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that has no position yet: its tag, the intent it belongs to, its body as bytes.

    `at` is its time in milliseconds since 1970; None if nobody knows it, as of an imported log.
    """

    tag: str
    intent: int | None
    body: bytes
    at: int | None = None


def draft_of(record: Record, *, at: int | None = None) -> Draft:
    """Return a record as an entry that was appended at a time, in milliseconds since 1970."""
    return Draft(tag=tag_of(record), intent=intent_of(record), body=encode_record(record), at=at)


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """An entry at its position. Body and salt are None once they were removed."""

    header: bytes
    hash: str
    salt: bytes | None
    body: bytes | None


def body_hash(salt: bytes, body: bytes) -> str:
    """Return the digest by which a header binds a body."""
    return hashlib.sha256(salt + body).hexdigest()


def seal(draft: Draft, *, run: str, head: Head, salt: bytes) -> tuple[Sealed, Head]:
    """Return a draft as the entry after `head`, and the new head. Nothing is stored.

    A salt of another length than `SALT_BYTES` is not refused here, but by `check_body`.
    """
    header = canonical(
        Header(
            v=FORMAT_TIMELESS if draft.at is None else FORMAT,
            run=run,
            seq=head.count,
            tag=draft.tag,
            intent=draft.intent,
            body_sha256=body_hash(salt, draft.body),
            at=msgspec.UNSET if draft.at is None else draft.at,
        )
    )
    entry_hash = hashlib.sha256(bytes.fromhex(head.hash) + header).hexdigest()
    sealed = Sealed(header=header, hash=entry_hash, salt=salt, body=draft.body)
    return sealed, Head(count=head.count + 1, hash=entry_hash)


# Checking an entry: its header at its position, its hash after another, its body.


# The problem of an entry that is whole, and was written by a later version.
UNKNOWN_RECORD = "its body is no record that this version knows"

# The tag of the first entry of a forked run.
FORKED = "run.forked"

_decode_header = msgspec.json.Decoder(Header).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_COUNT_MAX = (1 << 53) - 1
# The last millisecond of the year 9999, which every calendar can show.
_AT_MAX = 253_402_300_799_999
_HASH = re.compile(r"[0-9a-f]{64}")


class Root(msgspec.Struct, frozen=True, kw_only=True):
    """The hash that a chain begins with, and for a fork the record that names it."""

    hash: str
    fork: RunForked | None = None


_NOTHING = Root(hash=GENESIS.hex())


def is_hash(text: str) -> bool:
    """Return True if this is a hash as chains have it: 64 lower-case hexadecimal digits."""
    return _HASH.fullmatch(text) is not None


def is_of_fork(header: bytes) -> bool:
    """Return True if this is the header of a fork's first entry; False if it cannot be read."""
    try:
        return _decode_header(header).tag == FORKED
    except _UNREADABLE:
        return False


def root_of(first: Sealed, *, run: str) -> Root | str:
    """Return the root of a run's chain, by its first entry, or why it cannot be known.

    The root of a run that is no fork is 32 zero bytes, also if the header cannot be read. The entry
    itself is not checked: its content holds if `check_entry` accepts it after this root.
    """
    if not is_of_fork(first.header):
        return _NOTHING
    if first.body is None:
        return "its body was removed, and with it what the run grew from"
    try:
        fork = decode_record(first.body)
    except _UNREADABLE:
        return UNKNOWN_RECORD
    if not isinstance(fork, RunForked):
        return "its body is another record than its header says"
    known = is_ulid(fork.parent) and is_hash(fork.hash)
    if not (known and 1 <= fork.count <= _COUNT_MAX):
        return "it names no entry that a run can grow from"
    if fork.parent == run:
        return "it says that the run grew from itself"
    return Root(hash=fork.hash, fork=fork)


def check_entry(entry: Sealed, *, run: str, seq: int, previous: str) -> str | None:
    """Return why an entry does not belong after the hash `previous`; None if it does.

    For the first entry of a run, `root_of` gives that hash. It is `UNKNOWN_RECORD` for an entry
    that is whole and has a record of a later version. Raise `ValueError` if `previous` is not
    hexadecimal.
    """
    header = read_header(entry.header, run=run, seq=seq)
    if isinstance(header, str):
        return header
    if link(previous, entry.header) != entry.hash:
        return "its hash is not that of its header and the entry before"
    return check_body(header, entry.salt, entry.body)


def read_header(data: bytes, *, run: str, seq: int) -> Header | str:
    """Return the header of the entry at a position, or why these bytes are not one."""
    try:
        header = _decode_header(data)
    except _UNREADABLE:
        return "its header cannot be read"
    if header.v not in (FORMAT_TIMELESS, FORMAT):
        return (
            f"its header has format {header.v}; this version reads {FORMAT_TIMELESS} and {FORMAT}"
        )
    timed = isinstance(header.at, int)
    if timed != (header.v == FORMAT):
        return f"its header has format {header.v} and {'a' if timed else 'no'} time"
    if isinstance(header.at, int) and not 0 <= header.at <= _AT_MAX:
        return "its header has a time that no calendar has"
    if header.run != run:
        return "its header names another run"
    if header.seq != seq:
        return f"its header has place {header.seq}"
    # Two ways to write one header would let a reader see other fields than the hash was made for.
    if canonical(header) != data:
        return "its header is not in canonical form"
    return header


def time_of(entry: Sealed) -> int | None:
    """Return when an entry was appended, in milliseconds since 1970.

    None if its header is of format 1 or cannot be read. Nothing is checked: `check_entry` does.
    """
    try:
        at = _decode_header(entry.header).at
    except _UNREADABLE:
        return None
    return at if isinstance(at, int) else None


def link(previous: str, header: bytes) -> str:
    """Return the hash of an entry with this header that follows the hash `previous`.

    Raise `ValueError` if `previous` is not hexadecimal.
    """
    return hashlib.sha256(bytes.fromhex(previous) + header).hexdigest()


def check_body(header: Header, salt: bytes | None, body: bytes | None) -> str | None:
    """Return why a body is not the one of a header; None if it is, or was erased with its salt.

    It is `UNKNOWN_RECORD` for a body that is bound and is no record that this version knows.
    """
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
        return UNKNOWN_RECORD
    if tag_of(record) != header.tag or intent_of(record) != header.intent:
        return "its body is another record than its header says"
    return None
