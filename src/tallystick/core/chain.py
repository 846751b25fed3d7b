"""The hash chain of a run: each entry binds the one before it.

An entry's hash is SHA-256(previous hash ‖ header bytes). The header holds SHA-256(salt ‖ body);
body and salt are stored apart, so they can be removed and the chain still holds. The salt keeps a
removed body from being guessed by its hash. The first entry of a run binds 32 zero bytes, or for a
fork the head it grew from.
"""

from __future__ import annotations

import hashlib

import msgspec

from tallystick.core.canonical import canonical

__all__ = [
    "FORMAT",
    "GENESIS",
    "SALT_BYTES",
    "Draft",
    "Head",
    "Header",
    "Sealed",
    "body_hash",
    "seal",
]

FORMAT = 1
GENESIS = bytes(32)
SALT_BYTES = 16


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the chain binds of an entry."""

    v: int
    run: str
    seq: int
    tag: str
    intent: int | None
    body_sha256: str


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's chain stands: how many entries, and the hash of the last."""

    count: int
    hash: str

    @classmethod
    def of_nothing(cls) -> Head:
        return cls(count=0, hash=GENESIS.hex())


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that has no place yet: its tag, the intent it belongs to, its body as bytes."""

    tag: str
    intent: int | None
    body: bytes


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in its place. Body and salt are None once they were removed."""

    header: bytes
    hash: str
    salt: bytes | None
    body: bytes | None


def body_hash(salt: bytes, body: bytes) -> str:
    """The digest by which a header binds a body."""
    return hashlib.sha256(salt + body).hexdigest()


def seal(draft: Draft, *, run: str, head: Head, salt: bytes) -> tuple[Sealed, Head]:
    """Put a draft at the end of a chain. Returns the entry and the new head."""
    header = canonical(
        Header(
            v=FORMAT,
            run=run,
            seq=head.count,
            tag=draft.tag,
            intent=draft.intent,
            body_sha256=body_hash(salt, draft.body),
        )
    )
    entry_hash = hashlib.sha256(bytes.fromhex(head.hash) + header).hexdigest()
    sealed = Sealed(header=header, hash=entry_hash, salt=salt, body=draft.body)
    return sealed, Head(count=head.count + 1, hash=entry_hash)
