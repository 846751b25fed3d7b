"""A head as a document: where a run's chain stood, when, and who signed that.

Rule 1: a document has one spelling, its canonical bytes with or without one newline behind them.
Two spellings would let another reader see other fields than those that were signed.
Rule 2: what is signed is the canonical document without its signature. It names its own format, so
a signature under a head is one under nothing else.
Rule 3: a document names the key it was signed with and never holds it. Whoever checks a signature
brings the key.

Before there were documents, a head was kept as JSON with `count` and `hash`. Those are still read:
they name no run and no time, and are unsigned.
"""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

from tallystick.core.canonical import canonical
from tallystick.core.chain import Head
from tallystick.core.errors import UsageError
from tallystick.core.ids import is_ulid

__all__ = [
    "HEAD_BYTES_MAX",
    "HEAD_FORMAT",
    "UNSIGNED",
    "HeadFile",
    "parse_head",
    "signed_bytes",
]

HEAD_FORMAT = "tallystick-head@1"
HEAD_BYTES_MAX = 4096
UNSIGNED = "unsigned"

_HASH = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_COUNT_MAX = (1 << 53) - 1
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class HeadFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a run's chain stood. `key_id` is None if, and only if, `signature` is `unsigned`."""

    format: str
    run: str
    count: int
    hash: str
    at: str
    key_id: str | None
    signature: str

    @property
    def head(self) -> Head:
        return Head(count=self.count, hash=self.hash)

    @property
    def signed(self) -> bool:
        return self.signature != UNSIGNED


class _Unsigned(msgspec.Struct, frozen=True, kw_only=True):
    """A document without its signature."""

    format: str
    run: str
    count: int
    hash: str
    at: str
    key_id: str | None


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a document from a head without one."""

    format: str | None = None


def signed_bytes(document: HeadFile) -> bytes:
    """What a signature under this document is made of."""
    return canonical(
        _Unsigned(
            format=document.format,
            run=document.run,
            count=document.count,
            hash=document.hash,
            at=document.at,
            key_id=document.key_id,
        )
    )


def parse_head(data: bytes) -> HeadFile | Head:
    """Read a document, or the bare head of earlier versions. Raises `UsageError`."""
    if len(data) > HEAD_BYTES_MAX:
        raise UsageError(f"not a head: longer than {HEAD_BYTES_MAX:,} bytes")
    try:
        kind = msgspec.json.decode(data, type=_Kind)
        if kind.format is None:
            return _checked(msgspec.json.decode(data, type=Head))
        if kind.format != HEAD_FORMAT:
            raise UsageError(f"it is {kind.format[:80]!r}; this version reads {HEAD_FORMAT!r}")
        document = msgspec.json.decode(data, type=HeadFile)
    except _UNREADABLE as error:
        raise UsageError(f"not a head: {error}") from error
    _checked(document.head)
    why = _flaw(document)
    if why is None and data.removesuffix(b"\n") != canonical(document):
        why = "not in canonical form"
    if why is not None:
        raise UsageError(f"not a head: {why}")
    return document


def _checked(head: Head) -> Head:
    if not 0 <= head.count <= _COUNT_MAX:
        raise UsageError(f"not a head: a count of {head.count}")
    if not _HASH.fullmatch(head.hash):
        raise UsageError("not a head: its hash is not 64 hexadecimal digits")
    return head


def _flaw(document: HeadFile) -> str | None:
    if not is_ulid(document.run):
        return "its run is not the id of one"
    if not _is_time(document.at):
        return "its time is not like 2026-01-31T12:00:00Z"
    if (document.key_id is None) is document.signed:
        return "it has a key without a signature, or a signature without a key"
    if document.key_id is not None and not _HASH.fullmatch(document.key_id):
        return "its key_id is not 64 hexadecimal digits"
    if document.signed and not _SIGNATURE.fullmatch(document.signature):
        return "its signature is not 128 hexadecimal digits"
    return None


def _is_time(text: str) -> bool:
    try:
        return _AT.fullmatch(text) is not None and datetime.fromisoformat(text) is not None
    except ValueError:
        return False
