"""Define the transaction that one store hands to another, so that both take part in it.

The code that hands it on does not look into it. A store that keeps its tables in the same file asks
for its own kind: `sqlite_of`.
"""

from __future__ import annotations

import sqlite3
from typing import Protocol

from tallystick.core.errors import UsageError


class Transaction(Protocol):
    """A transaction in progress. The code that began it ends it."""


def sqlite_of(transaction: Transaction) -> sqlite3.Connection:
    """Return the connection of a transaction on a SQLite file. It is the transaction itself.

    Raise `UsageError` for another kind.
    """
    if isinstance(transaction, sqlite3.Connection):
        return transaction
    raise UsageError("a store in a SQLite file cannot take part in a transaction of another kind")
