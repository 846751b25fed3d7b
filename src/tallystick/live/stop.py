"""Stop a run of this or another process: it ends as cancelled, and can be resumed."""

from __future__ import annotations

import getpass
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError
from tallystick.runtime.runs.history import resolve_run
from tallystick.runtime.runs.lock import is_running, request_stop
from tallystick.settings.paths import ledger_path
from tallystick.stores import open_stores

if TYPE_CHECKING:
    from tallystick.ledger.port import Ledger

# Runs look for a request five times a second, and record their end at once.
WAIT_SECONDS = 5.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The result of a stop. `stop` is why the run ended, None if it is still ending.

    That is `cancelled`, unless the run ended by itself just before.
    """

    run: str
    stop: str | None


def stop(
    run: str,
    *,
    wait: float = WAIT_SECONDS,
    by: str | None = None,
    ledger: Ledger | Path | None = None,
) -> Stopped:
    """Stop a run that a process of this machine works on, and wait up to `wait` seconds for it.

    The run and those inside it end as cancelled; `tally resume` continues them. `run` is an id, the
    beginning of one, or `last`. `by` is the name of who asks, which the run records; by default the
    user and the machine. `ledger` is a ledger or its file; without one, that of the configuration.

    Raise `UsageError` if nothing works on the run, or if it is inside another: then nothing is
    stopped. Raise `RunNotFound` if there is no such run, and errors of the ledger.
    """
    if ledger is None or isinstance(ledger, Path):
        with open_stores(ledger or ledger_path()) as stores:
            return stop(run, wait=wait, by=by, ledger=stores.ledger)
    found = resolve_run(ledger, run)
    row = ledger.row(found)
    root = outermost(ledger, found)
    if root != found and is_running(ledger, root):
        raise UsageError(f"run {found} is inside run {root}: tally stop {root}")
    if not request_stop(ledger, found, by=by or person_here()):
        state = "has not begun" if row is None or not row.head.count else "has not ended"
        ended = state if row is None or row.stop is None else f"has ended: {row.stop}"
        raise UsageError(f"run {found} is not running ({ended}); nothing was stopped")
    return Stopped(run=found, stop=_wait_for_end(ledger, found, wait))


def outermost(ledger: Ledger, run: str) -> str:
    """Return the run around a run that no program began; the run itself if it is that."""
    seen = {run}
    while (row := ledger.row(run)) is not None and row.caller is not None:
        if row.caller in seen:
            break
        run = row.caller
        seen.add(run)
    return run


def person_here() -> str:
    """Return the login name of whoever runs this process, with the name of the machine.

    A user without a name here is given by the uid.
    """
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return f"{name}@{platform.node()}"


def _wait_for_end(ledger: Ledger, run: str, seconds: float) -> str | None:
    give_up = time.monotonic() + seconds
    while is_running(ledger, run):
        if time.monotonic() >= give_up:
            return None
        time.sleep(_LOOK_SECONDS)
    row = ledger.row(run)
    return None if row is None else row.stop
