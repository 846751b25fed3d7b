"""One way to write a value as bytes, and the digest by which it is compared."""

from __future__ import annotations

import hashlib

import msgspec

__all__ = ["canonical", "digest"]

# Keys and fields sorted, no spaces, shortest form of numbers: equal values are equal bytes.
_encode = msgspec.json.Encoder(order="sorted").encode


def canonical(value: object) -> bytes:
    """Encode a value as canonical JSON."""
    return _encode(value)


def digest(data: bytes) -> str:
    """The SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()
