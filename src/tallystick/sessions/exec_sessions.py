"""Sessions by name for `tally exec`: a namespace that the next process finds again.

The record of a session is a file; its current image is an attachment beside the user's ledger. A
lock file makes sure that one process works in a session at a time.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tallystick.core.errors import (
    InvalidName,
    SessionBusy,
    SnapshotNotFound,
    StoreError,
    UsageError,
)
from tallystick.sandbox.port import new_id, now_ms
from tallystick.sandbox.snapshot import SnapshotId
from tallystick.sandbox.wasm.sandbox import WasmSandbox, WasmSession
from tallystick.storage import system
from tallystick.storage.directories import make_private

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# The current image is kept beside the session's own snapshots: neither listed nor counted.
_CURRENT = "current"
_FORMAT = 1


class NamedSession(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a session beside its memory."""

    format: int
    name: str
    session_id: str
    seed: int
    clock_ns: int
    created_at: int


@contextlib.contextmanager
def hold_session(
    name: str, *, directory: Path, seed: int | None, clock_ns: int
) -> Iterator[NamedSession]:
    """Own a session for a while: the one of that name, or a new one."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            what="session name", given=name, why="letters, digits, '.', '_' and '-', at most 64"
        )
    system.require_posix("a session in a file")
    folder = directory / "sessions"
    try:
        make_private(folder)
        lock = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | system.CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}") from error
    try:
        _lock(lock, name)
        yield _read_or_make(folder / f"{name}.json", name, seed=seed, clock_ns=clock_ns)
    finally:
        os.close(lock)


def _lock(descriptor: int, name: str) -> None:
    try:
        system.lock(descriptor, wait=False)
    except OSError:
        raise SessionBusy(
            f"session {name!r} is in use by another process; wait for it or use another name"
        ) from None


def _read_or_make(path: Path, name: str, *, seed: int | None, clock_ns: int) -> NamedSession:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=NamedSession)
    except FileNotFoundError:
        made = NamedSession(
            format=_FORMAT,
            name=name,
            session_id=new_id(),
            seed=seed or 0,
            clock_ns=clock_ns,
            created_at=now_ms(),
        )
        _write(path, msgspec.json.encode(made))
        return made
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if kept.format != _FORMAT:
        raise StoreError(f"{path} has format {kept.format}; this version reads {_FORMAT}")
    if seed is not None and seed != kept.seed:
        raise UsageError(f"session {name!r} has seed {kept.seed}; it cannot be given seed {seed}")
    return kept


def _write(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(f".{new_id()}")
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"{path}: {error.strerror or error}") from error


async def reopen(sandbox: WasmSandbox, named: NamedSession) -> WasmSession:
    """Open the session where the last process left it."""
    session = await sandbox.open(
        session_id=named.session_id, seed=named.seed, clock_ns=named.clock_ns
    )
    try:
        _, image = sandbox.store.load(_beside(named.session_id), _CURRENT)
    except SnapshotNotFound:
        return session
    await session.load(image)
    return session


async def keep(sandbox: WasmSandbox, session: WasmSession) -> None:
    """Leave the session for the next process."""
    current = SnapshotId(
        id=new_id(), name=_CURRENT, session_id=_beside(session.session_id), created_at=now_ms()
    )
    sandbox.store.save(current, await session.image())


def _beside(session_id: str) -> str:
    return f"{session_id}/current"
