"""Ctrl-C while a run goes: once stops it, written down; a second time leaves at once.

The second leaves as a crash would: nothing more is written, and a call that is under way then may
be in doubt. The ledger is made for that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import click

from tallystick.cli.exit_codes import INTERRUPTED
from tallystick.cli.progress import Progress

__all__ = ["interruptible"]

_CURSOR_SHOWN = b"\x1b[?25h"


@contextmanager
def interruptible(
    progress: Progress, run: Callable[[], str | None], *, tells: bool
) -> Iterator[None]:
    """Inside, Ctrl-C stops what goes on, and once more leaves. `run` is what to go on with.

    Signals that somebody else handles, or ignores, stay theirs.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main = threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not in_main:
        yield
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            _leave(run(), tells=tells)
        pressed = True
        progress.stopping()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield
    except KeyboardInterrupt:
        # It did not stop in time, or nothing was live yet.
        if tells and (named := run()) is not None:
            click.echo(f"to go on: tally resume {named}", err=True)
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(run: str | None, *, tells: bool) -> None:
    """End the process. Nothing is waited for: whatever holds a lock may never let go of it."""
    said = "" if run is None else f"left at once; to go on: tally resume {run}\n"
    line = f"\n{said or 'interrupted'}".encode() if tells else b""
    shown = _CURSOR_SHOWN if sys.stderr.isatty() else b""
    try:
        os.write(2, shown + line)
    finally:
        os._exit(INTERRUPTED)
