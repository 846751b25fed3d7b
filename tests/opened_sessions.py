"""The sessions beside a ledger, for tests that look at what another process left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tallystick.sessions.sessions import Sessions
from tallystick.stores import open_stores


@contextlib.contextmanager
def open_sessions(ledger: Path) -> Iterator[Sessions]:
    with open_stores(ledger) as stores:
        yield stores.sessions
