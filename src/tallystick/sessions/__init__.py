"""Sessions: variables that outlive runs and processes, and their snapshots.

These names are the contract of this module; what else is in the package is internal.

- `Sessions` makes, lists, saves and removes sessions; `Session.sessions` are those of a ledger
- `SessionBook`, which is `Sessions.book`, has their times and their context variables
- `SessionInfo` is what is known of one, with its `BudgetStatus` and its `Period`
- `SessionRun` is a run in it, `EarlierRun` what the ledger has of that run, `KeptSnapshot` a saved
  state
- `ExportedValues` are the values of variables as JSON
- `open_snapshots` keeps the snapshots of a sandbox in a ledger's file, as `SessionImages`
- the errors are `SessionNotFound`, `SessionBusy`, `SessionExpired`, `SessionNotKept`,
  `SessionsFull`, `InvalidSessionState`, `MaxExtensionsReached` and `ContextVariableRefused`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.core.errors import (
        ContextVariableRefused,
        InvalidSessionState,
        MaxExtensionsReached,
        SessionBusy,
        SessionExpired,
        SessionNotFound,
        SessionNotKept,
        SessionsFull,
    )
    from tallystick.sessions.book import SessionBook
    from tallystick.sessions.rows import (
        BudgetStatus,
        KeptSnapshot,
        Period,
        SessionInfo,
        SessionRun,
    )
    from tallystick.sessions.sessions import EarlierRun, Sessions
    from tallystick.sessions.snapshots import SessionImages, open_snapshots
    from tallystick.sessions.values import ExportedValues

__all__ = [
    "BudgetStatus",
    "ContextVariableRefused",
    "EarlierRun",
    "ExportedValues",
    "InvalidSessionState",
    "KeptSnapshot",
    "MaxExtensionsReached",
    "Period",
    "SessionBook",
    "SessionBusy",
    "SessionExpired",
    "SessionImages",
    "SessionInfo",
    "SessionNotFound",
    "SessionNotKept",
    "SessionRun",
    "Sessions",
    "SessionsFull",
    "open_snapshots",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.core.errors": (
                "ContextVariableRefused InvalidSessionState MaxExtensionsReached "
                "SessionBusy SessionExpired SessionNotFound SessionNotKept SessionsFull"
            ),
            "tallystick.sessions.book": "SessionBook",
            "tallystick.sessions.rows": ("BudgetStatus KeptSnapshot Period SessionInfo SessionRun"),
            "tallystick.sessions.sessions": "EarlierRun Sessions",
            "tallystick.sessions.snapshots": "SessionImages open_snapshots",
            "tallystick.sessions.values": "ExportedValues",
        },
    )
