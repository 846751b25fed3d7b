"""The keys that sign receipts of memory, in a file that is closed to other users."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.core.errors import StoreError, system_errors
from tallystick.core.json_text import digest
from tallystick.memory.receipts.receipt import Key
from tallystick.settings.schema import one_line
from tallystick.storage import system
from tallystick.storage.private_file import make_private, write_whole

# The keys that sign receipts of memory. They are in the configuration directory, closed to others.
#
# Rule 1: a key is apart from the memory: one who can change the memory should not find the key.
# Rule 2: keys are added and never deleted. A receipt names the key that signed it.
#
# The file has one key a line, `<id> <64 hex digits>`; the last one signs.


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
    """Read the keys in a directory. If there is no file, make it with a first key.

    Raise `StoreError` if the file is empty, damaged, open to other users or cannot be read.
    """
    path = directory / _NAME
    with system_errors(one_line(str(path)), StoreError):
        if not os.path.lexists(path):
            _make_key_file(directory, path)
        return _read(path)


def add_key(directory: Path) -> MemoryKeys:
    """Add a key that signs from now on; return all. The old keys still check what they signed.

    Raise `StoreError` as `open_keys` does, or if the file cannot be written.
    """
    before = open_keys(directory)
    lines = [*(f"{id} {secret.hex()}" for id, secret in before.by_id.items()), _new_line()]
    path = directory / _NAME
    with system_errors(one_line(str(path)), StoreError):
        write_whole(path, ("\n".join(lines) + "\n").encode())
        return _read(path)


def _make_key_file(directory: Path, path: Path) -> None:
    make_private(directory)
    # Another process may have made the file meanwhile: then both use its key.
    with contextlib.suppress(FileExistsError):
        write_whole(path, f"{_new_line()}\n".encode(), replace=False)


def _read(path: Path) -> MemoryKeys:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != system.user_id() or status.st_mode & 0o077:
            raise StoreError(
                f"{one_line(str(path))} is open to other users; if none of them used it, close it: "
                f"chmod 600 {one_line(str(path))}"
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
