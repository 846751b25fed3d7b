"""Sessions of `tally exec --session NAME`: named, and locked while a program runs in them.

    with hold_session(sessions, "work", folder=folder, seed=None, clock_ns=CLOCK_NS) as held:
        session = await held.reopen(sandbox)
        ...
        await held.keep(session)

Such a session is one of the book like any other, but without an end and without runs. The book
refers to its interpreter, and one process works in it at a time.

Earlier versions kept these sessions in files of their own, `sessions/NAME.json` beside the ledger.
Such a file is migrated at its first use: the session of the book takes hold of its interpreter, the
book refers to it, and then the files are removed. After a crash in between, either only the files
exist, and the next use migrates them, or both exist, and the next use removes the files.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.errors import (
    InvalidName,
    LedgerError,
    SessionBusy,
    SessionNotFound,
    SnapshotNotFound,
    StoreError,
    UsageError,
)
from tallystick.core.ids import is_ulid
from tallystick.sandbox.snapshot import ImageOrigin
from tallystick.sessions.rows import Left, SessionName
from tallystick.sessions.sessions import Sessions
from tallystick.sessions.snapshots import SessionImages
from tallystick.storage.lock import FileLock

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmInterpreter, WasmSandbox

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class HeldSession:
    """A named session that this process has locked."""

    def __init__(self, sessions: Sessions, name: SessionName) -> None:
        self._sessions = sessions
        self.name = name

    async def reopen(self, sandbox: WasmSandbox) -> WasmInterpreter:
        """Open the interpreter as the last process left it, or a fresh one if none did.

        Raise `StoreError` if its image cannot be read, `SnapshotMismatch` if it does not fit the
        sandbox, and `SessionNotFound` if the session was removed.
        """
        id = self.name.session
        session = await sandbox.open(
            session_id=id, seed=self.name.seed, clock_ns=self.name.clock_ns
        )
        ref = self._sessions.book.get(id).left.image
        if ref is not None:
            try:
                image = self._sessions.images.load_image(id, ref)
            except (AttachmentError, LedgerError, StoreError) as error:
                raise StoreError(f"session {self.name.name!r}: {error}") from error
            await session.load(image)
        return session

    async def keep(self, session: WasmInterpreter) -> None:
        """Store the interpreter for the next process, and release the one before.

        A session that was removed stays removed. Raise the errors of `Sessions.put_interpreter`.
        """
        with contextlib.suppress(SessionNotFound):
            self._sessions.put_interpreter(self.name.session, await session.image())


@contextlib.contextmanager
def hold_session(
    sessions: Sessions, name: str, *, folder: Path, seed: int | None, clock_ns: int
) -> Iterator[HeldSession]:
    """Lock the session of a name, which is created if there is none.

    `folder` is where earlier versions kept the files of such sessions. A `seed` of None fits any
    session, and is 0 for a new one. `clock_ns` is the start of a new one's clock. Raise
    `SessionBusy` while another process works in it, and `InvalidName` for a name that is not
    allowed. Raise `UsageError` for another seed than the one it was created with, and `StoreError`
    if such a file cannot be migrated. The errors of `Sessions.working` and `Sessions.check_kept`
    are raised too.
    """
    if not _NAME.fullmatch(name):
        raise InvalidName(
            what="session name", given=name, why="letters, digits, '.', '_' and '-', at most 64"
        )
    found = _migrate_if_needed(sessions, name, folder=folder)
    if found is None:
        found = sessions.book.open_named(name, seed=seed or 0, clock_ns=clock_ns)
    if seed is not None and seed != found.seed:
        raise UsageError(f"session {name!r} has seed {found.seed}; it cannot be given seed {seed}")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(sessions.working(found.session))
        except SessionBusy as error:
            raise _busy(name) from error
        sessions.check_kept(found.session)
        yield HeldSession(sessions, found)


def _busy(name: str) -> SessionBusy:
    return SessionBusy(
        f"session {name!r} is in use by another process; wait for it or use another name"
    )


# Sessions in files of earlier versions.

_FORMAT = 1
_CURRENT = "current"


class NamedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a session that an earlier version kept in a file.

    Its interpreter is the snapshot `current` of the session `SESSION/current`.
    """

    format: int
    name: str
    session_id: str
    seed: int
    clock_ns: int
    created_at: int


def old_origins(images: SessionImages, *, folder: Path) -> Mapping[str, ImageOrigin]:
    """Return by name who made the interpreters of sessions that are still in files.

    The files are in `folder`. Those that cannot be read, and those without an interpreter, are left
    out. Nothing is migrated. Raise `AttachmentError` or `LedgerError` if the rows of attachments
    cannot be read.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(StoreError, SnapshotNotFound):
            if (old := _read(path)) is not None:
                holder = _old_holder(old)
                _, ref = images.find(holder, _CURRENT)
                if (origin := images.origin(holder, ref)) is not None:
                    found[old.name] = origin
    return found


def _migrate_if_needed(sessions: Sessions, name: str, *, folder: Path) -> SessionName | None:
    """Return the session of a name, after migrating its file if there is one; None for neither.

    Raise `SessionBusy` if a process of an earlier version works in it. Raise `StoreError` if its
    lock cannot be taken, or its file cannot be read or removed.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return sessions.book.find_named(name)
    # A process of an earlier version may work in it now, and uses this lock.
    lock = FileLock(folder / f"{name}.lock")
    try:
        if not lock.take():
            raise _busy(name)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}") from error
    brought = False
    try:
        found = sessions.book.find_named(name)
        if found is None:
            old = _read(path)
            found = None if old is None else _migrate(sessions, old)
        elif not _is_remainder_of(found, path):
            # An earlier version made another session of this name since: its file stays.
            return found
        if found is not None:
            _remove_old_files(sessions, found, path)
            brought = True
        return found
    finally:
        with contextlib.suppress(OSError):
            lock.release(remove=brought)
        if brought:
            # Fails as long as the folder has the files of other sessions.
            with contextlib.suppress(OSError):
                folder.rmdir()


def _read(path: Path) -> NamedSession | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=NamedSession)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if found.format != _FORMAT:
        raise StoreError(f"{path} has format {found.format}; this version reads {_FORMAT}")
    if found.name != path.stem or not is_ulid(found.session_id):
        raise StoreError(f"{path} cannot be read: it is not the record of this session")
    return found


def _is_remainder_of(found: SessionName, path: Path) -> bool:
    """Return True if a file is a remainder of migrating this session, and not of another one."""
    try:
        old = _read(path)
    except StoreError:
        return False
    return old is not None and old.session_id == found.session


def _migrate(sessions: Sessions, old: NamedSession) -> SessionName:
    images, left = sessions.images, Left()
    try:
        _, ref = images.find(_old_holder(old), _CURRENT)
        left = Left(image=images.share(old.session_id, ref))
    except SnapshotNotFound:
        pass  # No program has finished in it, so it has no interpreter yet.
    except (AttachmentError, LedgerError) as error:
        raise StoreError(f"session {old.name!r}: {error}") from error
    return sessions.book.open_named(
        old.name, seed=old.seed, clock_ns=old.clock_ns, session=old.session_id, left=left
    )


def _remove_old_files(sessions: Sessions, found: SessionName, path: Path) -> None:
    """Remove the files of an earlier version for a session that the book has.

    Raise `StoreError` if that fails.
    """
    try:
        sessions.images.free(f"{found.session}/{_CURRENT}")
        path.unlink(missing_ok=True)
    except AttachmentError as error:
        raise StoreError(f"session {found.name!r}: {error}") from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error


def _old_holder(old: NamedSession) -> str:
    return f"{old.session_id}/{_CURRENT}"
