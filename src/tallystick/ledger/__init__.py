"""Ledgers: where each run is recorded, entry by entry, under a chain of hashes.

These names are the contract of this module; what else is in the package is internal.
`tallystick.upkeep` has what reads, checks, compares, moves and deletes recorded runs.

- `SqliteLedger` is a ledger in a file, and `MemoryLedger` one that keeps nothing
- `Ledger` is the port that both implement; a `RunRow` says what is known of a run without reading
  it, and a `RunFilter` chooses rows
- `verify_ledger` checks hashes, and returns a `VerifyReport`; `Head` is the count and last hash of
  a run, and a `BadEntry` is the first entry that does not fit
- the errors are the kinds of `LedgerError`: `LedgerConflict`, `LedgerCorrupt`, `LedgerFull`,
  `LedgerFormatUnknown`, `LedgerLocked`, `LedgerReadOnly`, `LedgerUnavailable`, `NotALedger`,
  `RecordUnreadable`, `RunExists`, `RunNotFound`, `RunNotOwned` and `TransferRefused`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.core.chain import Head
    from tallystick.core.errors import (
        LedgerConflict,
        LedgerCorrupt,
        LedgerError,
        LedgerFormatUnknown,
        LedgerFull,
        LedgerLocked,
        LedgerReadOnly,
        LedgerUnavailable,
        NotALedger,
        RecordUnreadable,
        RunExists,
        RunNotFound,
        RunNotOwned,
        TransferRefused,
    )
    from tallystick.ledger.memory import MemoryLedger
    from tallystick.ledger.port import Ledger, RunFilter, RunRow
    from tallystick.ledger.sqlite import SqliteLedger
    from tallystick.ledger.verify import BadEntry, VerifyReport, verify_ledger

__all__ = [
    "BadEntry",
    "Head",
    "Ledger",
    "LedgerConflict",
    "LedgerCorrupt",
    "LedgerError",
    "LedgerFormatUnknown",
    "LedgerFull",
    "LedgerLocked",
    "LedgerReadOnly",
    "LedgerUnavailable",
    "MemoryLedger",
    "NotALedger",
    "RecordUnreadable",
    "RunExists",
    "RunFilter",
    "RunNotFound",
    "RunNotOwned",
    "RunRow",
    "SqliteLedger",
    "TransferRefused",
    "VerifyReport",
    "verify_ledger",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "tallystick.core.chain": "Head",
            "tallystick.core.errors": (
                "LedgerConflict LedgerCorrupt LedgerError LedgerFormatUnknown "
                "LedgerFull LedgerLocked LedgerReadOnly LedgerUnavailable NotALedger "
                "RecordUnreadable RunExists RunNotFound RunNotOwned TransferRefused"
            ),
            "tallystick.ledger.memory": "MemoryLedger",
            "tallystick.ledger.port": "Ledger RunFilter RunRow",
            "tallystick.ledger.sqlite": "SqliteLedger",
            "tallystick.ledger.verify": "BadEntry VerifyReport verify_ledger",
        },
    )
