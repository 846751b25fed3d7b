"""The keys that sign receipts of memory: in the configuration directory, closed to others.

Rule 1: a key lies apart from the memory: whoever can change the one should not find the other.
Rule 2: keys are added and never thrown away. Receipts name the one they were signed with.

The file has one key a line, `<id> <64 hex digits>`; the last one signs.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.core.canonical import digest
from tallystick.core.errors import StoreError
from tallystick.memory.receipt_records import Key
from tallystick.runtime.config_keys import one_line

__all__ = ["MemoryKeys", "add_key", "open_keys"]

_NAME = "memory.keys"
_SECRET_BYTES = 32
_ID_CHARS = 16
_FILE_BYTES_MAX = 1 << 20
_LINE = re.compile(r"([0-9a-f]{16}) ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKeys:
    """The keys of this user, by id; `current` signs."""

    current: Key
    by_id: dict[str, bytes] = field(repr=False)


def open_keys(directory: Path) -> MemoryKeys:
    """The keys in a directory; the first one is made if there is none."""
    path = directory / _NAME
    try:
        if not os.path.lexists(path):
            _made(directory, path)
        return _read(path)
    except OSError as error:
        raise StoreError(f"{one_line(str(path))}: {error.strerror or error}") from error


def add_key(directory: Path) -> MemoryKeys:
    """Have another key sign from now on. The old ones still check what they signed."""
    before = open_keys(directory)
    lines = [*(f"{id} {secret.hex()}" for id, secret in before.by_id.items()), _new_line()]
    path = directory / _NAME
    try:
        os.replace(_written(directory, "\n".join(lines) + "\n"), path)
        return _read(path)
    except OSError as error:
        raise StoreError(f"{one_line(str(path))}: {error.strerror or error}") from error


def _made(directory: Path, path: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A link is refused if the name is taken: of two processes, both go on with the same key.
    temporary = _written(directory, _new_line() + "\n")
    try:
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


def _read(path: Path) -> MemoryKeys:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise StoreError(
                f"{one_line(str(path))} is open to others; if nobody used it, close it: chmod 600"
            )
        text = file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")
    keys: dict[str, bytes] = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None or _id(bytes.fromhex(found[2])) != found[1]:
            raise StoreError(
                f"{one_line(str(path))} is damaged; move it away, and a new key is made: receipts "
                f"signed before can then not be checked"
            )
        keys[found[1]] = bytes.fromhex(found[2])
    if not keys:
        raise StoreError(f"{one_line(str(path))} is empty; move it away, and a new key is made")
    last = list(keys)[-1]
    return MemoryKeys(current=Key(id=last, secret=keys[last]), by_id=keys)


def _new_line() -> str:
    secret = secrets.token_bytes(_SECRET_BYTES)
    return f"{_id(secret)} {secret.hex()}"


def _id(secret: bytes) -> str:
    return digest(b"tallystick.memory.key.v1" + secret)[:_ID_CHARS]


def _written(directory: Path, text: str) -> str:
    descriptor, name = tempfile.mkstemp(dir=directory, prefix=".memory-")
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return name
