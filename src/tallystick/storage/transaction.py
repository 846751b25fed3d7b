"""A transaction of a store, handed from one store to another that takes part in it.

Whoever hands it on knows nothing of it. A store that keeps its tables where the first one does
knows what it is, and asks for it by its own kind: `sqlite_of`.
"""

from __future__ import annotations

import sqlite3
from typing import Protocol

from tallystick.core.errors import UsageError


class Transaction(Protocol):
    """A transaction under way. It ends with whoever began it."""


def sqlite_of(transaction: Transaction) -> sqlite3.Connection:
    """Return the connection of a transaction on a SQLite file."""
    if isinstance(transaction, sqlite3.Connection):
        return transaction
    raise UsageError("a store in a SQLite file cannot take part in a transaction of another kind")
