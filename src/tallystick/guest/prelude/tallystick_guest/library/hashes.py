"""`hashlib.pbkdf2_hmac` and `hashlib.scrypt`, which natively come with OpenSSL."""

import hashlib
import hmac
import struct

_OPENSSL_MEMORY_BYTES = 32 * 1024 * 1024
_LENGTH_MAX = 2**31 - 1
_WORDS = struct.Struct("<16I")


def pbkdf2_hmac(
    hash_name: str,
    password: object,
    salt: object,
    iterations: int,
    dklen: int | None = None,
) -> bytes:
    """Derive a key with PBKDF2 and HMAC, as RFC 8018 says."""
    if not isinstance(hash_name, str):
        raise TypeError("expected a string for hash_name")
    password, salt = _bytes(password), _bytes(salt)
    size = hashlib.new(hash_name).digest_size
    if not size:
        raise ValueError(f"unsupported hash type {hash_name}")
    if iterations < 1:
        raise ValueError("iteration value must be greater than 0.")
    length = size if dklen is None else dklen
    if length < 1:
        raise ValueError("key length must be greater than 0.")
    _check_length(iterations, length)
    keyed = hmac.new(password, digestmod=hash_name)

    def digest(message: bytes) -> bytes:
        made = keyed.copy()
        made.update(message)
        return made.digest()

    key = b""
    for number in range(1, -(-length // size) + 1):
        last = digest(salt + number.to_bytes(4, "big"))
        mixed = int.from_bytes(last, "big")
        for _ in range(iterations - 1):
            last = digest(last)
            mixed ^= int.from_bytes(last, "big")
        key += mixed.to_bytes(size, "big")
    return key[:length]


def scrypt(
    password: object,
    *,
    salt: object,
    n: int,
    r: int,
    p: int,
    maxmem: int = 0,
    dklen: int = 64,
) -> bytes:
    """Derive a key with scrypt, as RFC 7914 says. In pure Python, so a large `n` takes long."""
    password, salt = _bytes(password), _bytes(salt)
    if n < 2 or n & (n - 1):
        raise ValueError("n must be a power of 2.")
    if not 0 <= maxmem <= _LENGTH_MAX:
        raise ValueError(f"maxmem must be positive and smaller than {_LENGTH_MAX}")
    if not 1 <= dklen <= _LENGTH_MAX:
        raise ValueError(f"dklen must be greater than 0 and smaller than {_LENGTH_MAX}")
    needed = 128 * r * p + 128 * r * (n + 2)
    if r < 1 or p < 1 or r * p >= 2**30 or needed > (maxmem or _OPENSSL_MEMORY_BYTES):
        raise ValueError("Invalid parameter combination for n, r, p, maxmem.")
    block = pbkdf2_hmac("sha256", password, salt, 1, p * 128 * r)
    parts = [_mixed(block[low : low + 128 * r], n) for low in range(0, len(block), 128 * r)]
    return pbkdf2_hmac("sha256", password, b"".join(parts), 1, dklen)


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        raise TypeError("a bytes-like object is required, not 'str'")
    return bytes(memoryview(value))


def _check_length(*values: int) -> None:
    if max(values) > _LENGTH_MAX:
        raise OverflowError("the value is too great.")


def _mixed(block: bytes, n: int) -> bytes:
    """Run the memory-hard part over one block."""
    size = len(block)
    seen = []
    for _ in range(n):
        seen.append(int.from_bytes(block, "little"))
        block = _shuffled(block)
    for _ in range(n):
        place = int.from_bytes(block[-64:-60], "little") & (n - 1)
        block = (int.from_bytes(block, "little") ^ seen[place]).to_bytes(size, "little")
        block = _shuffled(block)
    return block


def _shuffled(block: bytes) -> bytes:
    last = int.from_bytes(block[-64:], "little")
    made = []
    for low in range(0, len(block), 64):
        mixed = last ^ int.from_bytes(block[low : low + 64], "little")
        data = _salsa(mixed.to_bytes(64, "little"))
        made.append(data)
        last = int.from_bytes(data, "little")
    return b"".join(made[::2] + made[1::2])


# The places that each quarter of a double round mixes: four columns, then four rows.
_QUARTERS = (
    *((0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11)),
    *((0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14)),
)


def _salsa_source() -> str:
    """Write Salsa20/8 with a name for each word: a list would be several times slower."""
    names = ", ".join(f"x{place}" for place in range(16))
    rounds = ""
    for a, b, c, d in _QUARTERS:
        for to, one, other, turn in ((b, a, d, 7), (c, b, a, 9), (d, c, b, 13), (a, d, c, 18)):
            rounds += f"        t = (x{one} + x{other}) & 0xFFFFFFFF\n"
            rounds += f"        x{to} ^= (t << {turn} & 0xFFFFFFFF) | (t >> {32 - turn})\n"
    sums = ", ".join(f"(x{place} + y[{place}]) & 0xFFFFFFFF" for place in range(16))
    return (
        "def _salsa(data):\n"
        f"    {names} = y = unpack(data)\n"
        f"    for _ in range(4):\n{rounds}"
        f"    return pack({sums})\n"
    )


_made: dict[str, object] = {"unpack": _WORDS.unpack, "pack": _WORDS.pack, "range": range}
exec(_salsa_source(), _made)
_salsa = _made["_salsa"]


def install() -> None:
    """Give `hashlib` what this build of it lacks."""
    for function in (pbkdf2_hmac, scrypt):
        if not hasattr(hashlib, function.__name__):
            function.__module__ = "hashlib"
            setattr(hashlib, function.__name__, function)
            hashlib.__all__ += (function.__name__,)
