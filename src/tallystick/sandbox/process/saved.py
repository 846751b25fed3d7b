"""A session on disk: its files, its variables and its shell's state, to be opened again elsewhere.

A directory with `files.tar` and `session.json`. What is in them came out of a box and is put back
into one; the host reads only what is its own: sizes, the shell's state, and names.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tallystick.core.errors import SandboxError, StoreError, UsageError
from tallystick.sandbox.identity import new_id
from tallystick.sandbox.process.launch import Box
from tallystick.sandbox.process.shell_state import ShellState

__all__ = ["Saved", "load_session", "save_session"]

_FORMAT = 1
_VARIABLES_BYTES_MAX = 256 * 1024 * 1024
_SECONDS = 60.0
_CHUNK_BYTES = 1 << 20


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What was kept. `refused` are variables that were not, each with why."""

    format: int = _FORMAT
    shell: ShellState = ShellState()
    kept: dict[str, str] = {}
    imported: dict[str, str] = {}
    refused: dict[str, str] = {}
    files_left_out: int = 0


class _Variables(msgspec.Struct, frozen=True):
    kept: dict[str, str]
    imported: dict[str, str]
    refused: dict[str, str]


def save_session(box: Box, directory: Path, *, shell: ShellState, bytes_max: int) -> Saved:
    """Write a session to a directory, which must not be there yet."""
    if directory.exists():
        raise UsageError(f"{directory} is there already")
    made = directory.with_name(f".{directory.name}.{new_id()}")
    made.mkdir(mode=0o700, parents=True)
    try:
        variables = bytearray()
        _piped(box, {"do": "pack_variables"}, variables.extend, _VARIABLES_BYTES_MAX)
        try:
            found = msgspec.json.decode(bytes(variables), type=_Variables)
        except (msgspec.MsgspecError, UnicodeError):
            raise SandboxError("the interpreter did not give its variables") from None
        descriptor = os.open(made / "files.tar", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            _piped(box, {"do": "pack_files"}, file.write, bytes_max)
            file.flush()
            os.fsync(file.fileno())
        answer, _ = box.hear("packed")
        if not answer["packed"]:
            raise SandboxError(f"the files could not be packed: {answer.get('why')}")
        saved = Saved(
            shell=shell,
            kept=found.kept,
            imported=found.imported,
            refused=found.refused,
            files_left_out=int(answer.get("left_out", 0)),
        )
        # A shell's directory and variables may hold bytes that are no text.
        told = json.dumps(msgspec.to_builtins(saved))
        (made / "session.json").write_bytes(told.encode())
        made.rename(directory)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return saved


def _piped(
    box: Box, order: dict[str, str], take: Callable[[bytes], object], bytes_max: int
) -> None:
    """Have the box write into a pipe, and take what comes, up to its end or too much of it."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    until, count = time.monotonic() + _SECONDS, 0
    try:
        try:
            box.tell(order, [writing])
        finally:
            os.close(writing)
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        while True:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise SandboxError("the session did not give what it holds in time")
            data = os.read(reading, _CHUNK_BYTES)
            if not data:
                return
            count += len(data)
            if count > bytes_max:
                raise SandboxError(f"the session holds more than {bytes_max:,} bytes")
            take(data)
    except SandboxError:
        box.tell({"do": "drop"})
        box.hear("dropped")
        raise
    finally:
        os.close(reading)


def load_session(box: Box, directory: Path) -> Saved:
    """Fill a new box from a directory that was saved."""
    try:
        text = (directory / "session.json").read_bytes()
        saved = msgspec.convert(json.loads(text), type=Saved)
        files = os.open(directory / "files.tar", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StoreError(f"{directory}: not a saved session: {error}") from None
    try:
        if saved.format != _FORMAT:
            raise StoreError(f"{directory}: format {saved.format}; this version reads {_FORMAT}")
        box.tell({"do": "unpack_files"}, [files])
        answer, _ = box.hear("unpacked")
    finally:
        os.close(files)
    if not answer["unpacked"]:
        raise StoreError(f"{directory}: the files cannot be put back: {answer.get('why')}")
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        box.tell({"do": "unpack_variables"}, [reading])
    finally:
        os.close(reading)
    with open(writing, "wb") as file:
        file.write(msgspec.json.encode({"kept": saved.kept, "imported": saved.imported}))
    box.hear("begun")
    box.tell({"do": "keep"})
    if not box.hear("kept")[0]["kept"]:
        raise StoreError(f"{directory}: the variables cannot be put back")
    return saved
