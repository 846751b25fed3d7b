"""Lock a run while a process works on it, and ask that process to stop it.

The locks are files beside the ledger, and so are the requests to stop. The operating system
releases a lock when its process dies, in whatever way. So a lock that can be taken proves that no
process of this machine works on the run. It proves nothing about others. The runs of a ledger in
memory are known to this process alone, and nothing is locked.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from tallystick.core.errors import (
    CleanUpWarning,
    LedgerError,
    LedgerUnavailable,
    RunNotFound,
    UsageError,
)
from tallystick.core.ids import is_ulid
from tallystick.ledger.port import Ledger
from tallystick.runtime.runs.decided import Decided, decode_decided, encode_decided
from tallystick.storage.lock import FileLock, is_locked
from tallystick.storage.private_file import make_private

_SUFFIX = ".lock"
_LOOKED_AT_SECONDS = 0.04
_NAME_CHARS_MAX = 200


@dataclass(slots=True)
class _Requests:
    """The requests to a run of a ledger in memory: who asked for its stop, and a decision."""

    stopped_by: str | None = None
    decided: Decided | None = None


# The runs of ledgers in memory that are under way.
_IN_MEMORY: WeakKeyDictionary[Ledger, dict[str, _Requests]] = WeakKeyDictionary()


@contextlib.contextmanager
def lock_run(ledger: Ledger, run: str, *, steal: bool = False) -> Iterator[bool]:
    """Hold the lock of a run while inside. Yield True if the lock was stolen.

    With `steal`, the lock of a living process is renamed, so that it has no effect, and a new one
    is taken. Without it, raise `UsageError`. Raise `RunNotFound` if `run` is no id, and
    `LedgerUnavailable` if the file cannot be locked. A ledger in memory has no folder for locks:
    then nothing is locked, and the run is only noted as running. If the file cannot be removed at
    the end, warn `CleanUpWarning`. A request to stop that is older than the lock has no effect.
    """
    folder = ledger.lock_folder
    if folder is None:
        running = _IN_MEMORY.setdefault(ledger, {})
        outer = running.setdefault(run, mine := _Requests()) is not mine
        try:
            yield False
        finally:
            # Nothing is locked, so the same run may be here twice.
            if not outer:
                running.pop(run, None)
        return
    if not is_ulid(run):
        raise RunNotFound(run=run)
    lock = FileLock(_lock_path(folder, run))
    before = _fence(ledger, run) if steal else None
    stolen = _take(lock, run, steal=steal)
    request = _stop_path(folder, run)
    _remove_request(request)
    try:
        yield stolen
    finally:
        aside = _stolen_path(lock.path)
        try:
            untaken = stolen and _fence(ledger, run) == before and is_locked(aside)
            if untaken and lock.is_current:
                # The run was not claimed: its fence is unchanged and the other process still has
                # it. Put its lock back, so that it is seen again.
                aside.replace(lock.path)
            if lock.is_current:
                _remove_request(request)
            lock.release(remove=True)
            if stolen:
                aside.unlink(missing_ok=True)
        except (OSError, LedgerError) as error:
            # Only the file could not be removed. Closing the descriptor releases the lock.
            why = getattr(error, "strerror", None) or str(error)
            warnings.warn(CleanUpWarning(path=str(lock.path), why=why), stacklevel=3)
        finally:
            lock.release()


def require_idle(ledger: Ledger, run: str) -> None:
    """Raise `UsageError` if a living process of this machine works on the run.

    Raise `LedgerUnavailable` if its lock cannot be read.
    """
    if is_running(ledger, run):
        raise _running_error(run)


def is_running(ledger: Ledger, run: str) -> bool:
    """Return True if a living process of this machine works on the run.

    For a ledger in memory, that is this process. Raise `LedgerUnavailable` if its lock cannot be
    read.
    """
    folder = ledger.lock_folder
    if folder is None:
        return run in _IN_MEMORY.get(ledger, {})
    path = _lock_path(folder, run)
    try:
        return is_locked(path)
    except OSError as error:
        raise _unavailable_error(path, error) from error


def running_runs(ledger: Ledger) -> Iterator[str]:
    """Yield the runs that living processes work on, by id. The time grows with the locks.

    Raise `LedgerUnavailable` if the locks cannot be read.
    """
    folder = ledger.lock_folder
    if folder is None:
        yield from sorted(_IN_MEMORY.get(ledger, {}))
        return
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unavailable_error(folder, error) from error
    for name in names:
        run = name.removesuffix(_SUFFIX)
        if run != name and is_running(ledger, run):
            yield run


# -- requests to stop ----------------------------------------------------------------------------


def request_stop(ledger: Ledger, run: str, *, by: str) -> bool:
    """Ask the process that works on a run to stop it. `by` is the name of the person who asks.

    The process looks for the request five times a second. Return False if none works on the run:
    then no request is left behind. Raise `LedgerUnavailable` if it cannot be written.
    """
    folder = ledger.lock_folder
    if folder is None:
        running = _IN_MEMORY.get(ledger, {})
        if run in running:
            running[run].stopped_by = by
        return run in running
    if not is_running(ledger, run):
        return False
    path = _stop_path(folder, run)
    try:
        # Written beside and renamed, so that nobody reads half of it.
        written = path.with_name(f"{path.name}.{os.getpid()}")
        written.write_text(by[:_NAME_CHARS_MAX], encoding="utf-8", errors="replace")
        written.chmod(0o600)
        written.replace(path)
    except OSError as error:
        raise _unavailable_error(path, error) from error
    if is_running(ledger, run):
        return True
    # It ended in between, and nobody is left to look.
    _remove_request(path)
    return False


def stop_requested(ledger: Ledger, run: str) -> str | None:
    """Return who asked for the stop of a run that this process works on; None if nobody did.

    A request that cannot be read counts as none.
    """
    folder = ledger.lock_folder
    if folder is None:
        requests = _IN_MEMORY.get(ledger, {}).get(run)
        return None if requests is None else requests.stopped_by
    try:
        return _stop_path(folder, run).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def submit_decided(
    ledger: Ledger, run: str, decided: Decided, *, still: Callable[[Decided], bool]
) -> bool:
    """Leave a decision for the process that works on a run, or for the next one that resumes it.

    Return False if there is one that was not taken and of which `still` is true: somebody else has
    decided. Another is of no use any more, and is replaced. Raise `LedgerUnavailable` if it cannot
    be written, and `UsageError` for a ledger in memory that has no such run under way.
    """
    folder = ledger.lock_folder
    if folder is None:
        requests = _IN_MEMORY.get(ledger, {}).get(run)
        if requests is None:
            raise UsageError(f"run {run} is not running, and its ledger is in memory")
        if requests.decided is not None and still(requests.decided):
            return False
        requests.decided = decided
        return True
    path = _decided_path(folder, run)
    make_private(folder)
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.write_bytes(encode_decided(decided))
        written.chmod(0o600)
        try:
            before = _read_decided(path)
            if before is not None and not still(before):
                _remove_request(path)
            # A link fails if the name is taken, so only one of two decisions is left.
            os.link(written, path)
        finally:
            written.unlink()
    except FileExistsError:
        return False
    except OSError as error:
        raise _unavailable_error(path, error) from error
    return True


def decided_left(ledger: Ledger, run: str, sha256s: Collection[str]) -> Decided | None:
    """Return the decision about one of these requests that was left for a run.

    Return None if there is none that can be read, or only one about another request.
    """
    folder = ledger.lock_folder
    if folder is None:
        requests = _IN_MEMORY.get(ledger, {}).get(run)
        found = None if requests is None else requests.decided
    else:
        found = _read_decided(_decided_path(folder, run))
    return None if found is None or not set(sha256s).intersection(found.sha256s) else found


def take_decided(ledger: Ledger, run: str, sha256s: Collection[str]) -> Decided | None:
    """Return what `decided_left` returns, and remove it."""
    found = decided_left(ledger, run, sha256s)
    folder = ledger.lock_folder
    if found is None:
        return None
    if folder is not None:
        _remove_request(_decided_path(folder, run))
    elif (requests := _IN_MEMORY.get(ledger, {}).get(run)) is not None:
        requests.decided = None
    return found


def _read_decided(path: Path) -> Decided | None:
    try:
        return decode_decided(path.read_bytes())
    except OSError:
        return None


def _remove_request(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _decided_path(folder: Path, run: str) -> Path:
    return folder / f"{run}.decided"


def _stop_path(folder: Path, run: str) -> Path:
    return folder / f"{run}.stop"


def _take(lock: FileLock, run: str, *, steal: bool) -> bool:
    """Take a lock, with `steal` also from a living process. Return True if it was stolen.

    The file of a stolen lock is renamed. Without `steal`, raise `UsageError` if a living process
    has the lock. Raise `LedgerUnavailable` if the file cannot be locked.
    """
    stolen = False
    try:
        # Twice: whoever only looks whether it is running has the lock for a moment too.
        while not lock.take(wait_seconds=_LOOKED_AT_SECONDS):
            if not steal:
                raise _running_error(run)
            stolen = True
            # Renamed, not removed: `lock_run` puts it back if the run is not claimed after all.
            with contextlib.suppress(FileNotFoundError):
                lock.path.replace(_stolen_path(lock.path))
    except OSError as error:
        raise _unavailable_error(lock.path, error) from error
    return stolen


def _unavailable_error(path: Path, error: OSError) -> LedgerUnavailable:
    return LedgerUnavailable(where=str(path), why=error.strerror or str(error))


def _running_error(run: str) -> UsageError:
    return UsageError(f"run {run} is running; wait for its end, or stop it first")


def _stolen_path(path: Path) -> Path:
    """Return the path to which the lock of a process is renamed when its run is stolen."""
    return path.with_suffix(".stolen")


def _fence(ledger: Ledger, run: str) -> int | None:
    row = ledger.row(run)
    return None if row is None else row.fence


def _lock_path(folder: Path, run: str) -> Path:
    return folder / f"{run}{_SUFFIX}"
