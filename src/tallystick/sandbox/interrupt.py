"""Long work done for a program in its own thread asks here whether it shall stop.

The check is per thread, since texts and host functions are shared by sessions and the program whose
call is being served is the one this thread runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["check", "watched_by"]


class _Watch(threading.local):
    check: Callable[[], None] | None = None


_watch = _Watch()


def check() -> None:
    """Raise if the program that this thread serves has to end."""
    if _watch.check is not None:
        _watch.check()


@contextlib.contextmanager
def watched_by(look: Callable[[], None]) -> Iterator[None]:
    """Make `look` the check of this thread."""
    before, _watch.check = _watch.check, look
    try:
        yield
    finally:
        _watch.check = before
