"""Sessions by name for `tally exec`: a namespace that the next process finds again.

The record of a session is a file; its current image is an attachment beside the user's ledger. A
lock file makes sure that one process works in a session at a time.
"""

from __future__ import annotations

import contextlib
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
from tallystick.sandbox.snapshot import ImageOrigin, SnapshotId
from tallystick.sandbox.wasm.sandbox import WasmSandbox, WasmSession
from tallystick.sessions.snapshots import open_snapshots
from tallystick.storage import system
from tallystick.storage.clock import new_id, now_ms
from tallystick.storage.lock import FileLock
from tallystick.storage.private_file import write_whole

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
    lock = FileLock(folder / f"{name}.lock")
    try:
        taken = lock.take()
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}") from error
    if not taken:
        raise SessionBusy(
            f"session {name!r} is in use by another process; wait for it or use another name"
        )
    try:
        yield _read_or_make(folder / f"{name}.json", name, seed=seed, clock_ns=clock_ns)
    finally:
        lock.release()


def named_origins(ledger: Path, *, directory: Path) -> dict[str, ImageOrigin]:
    """Return who made the image of each session in `directory`, by the session's name.

    Sessions that have none yet, and those that cannot be read, are left out. Nothing is made.
    """
    kept = []
    for path in sorted((directory / "sessions").glob("*.json")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            kept.append(msgspec.json.decode(path.read_bytes(), type=NamedSession))
    if not kept or not ledger.exists():
        return {}
    with open_snapshots(ledger) as store:
        found = {each.name: store.origin(_beside(each.session_id), _CURRENT) for each in kept}
    return {name: origin for name, origin in found.items() if origin is not None}


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
        try:
            write_whole(path, msgspec.json.encode(made))
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}") from error
        return made
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if kept.format != _FORMAT:
        raise StoreError(f"{path} has format {kept.format}; this version reads {_FORMAT}")
    if seed is not None and seed != kept.seed:
        raise UsageError(f"session {name!r} has seed {kept.seed}; it cannot be given seed {seed}")
    return kept


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
