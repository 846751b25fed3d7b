"""Identifiers that sort by time: ULIDs, from a time and randomness given by the caller."""

__all__ = ["ENTROPY_BYTES", "ULID_CHARS", "is_ulid", "ulid"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_MS_MAX = (1 << 48) - 1
ENTROPY_BYTES = 10
ULID_CHARS = 26


def ulid(*, time_ms: int, entropy: bytes) -> str:
    """Return the 26-character ULID of a millisecond and ten bytes of randomness."""
    if not 0 <= time_ms <= _TIME_MS_MAX:
        raise ValueError(f"time_ms does not fit 48 bits: {time_ms}")
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"entropy is {ENTROPY_BYTES} bytes, not {len(entropy)}")
    number = (time_ms << 80) | int.from_bytes(entropy, "big")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -5, -5))


def is_ulid(text: str) -> bool:
    """Say whether `text` is a ULID in its canonical upper-case form."""
    return len(text) == ULID_CHARS and text[0] in "01234567" and set(text) <= set(_ALPHABET)
