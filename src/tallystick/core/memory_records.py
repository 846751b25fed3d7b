"""What a run's ledger says of memory: which one it has, and which notes went to and fro.

Notes are named, not told: what they say is in the memory, and in the answers of the calls. Whoever
erases a note finds by these names the runs that have read it or written it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["MemoryGiven", "NotesTouched"]


class MemoryGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The memory of a run: whose it is, the id of its store, and for whom it is read.

    `begin` is the first block that the model is shown: weak models write what they see.
    """

    tenant: str
    store: str
    agent_id: str
    begin: str = ""


class NotesTouched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Notes that one call recalled or remembered.

    `read_id` is the recall's receipt, `receipt_sha256` its hash in the chain of receipts.
    """

    how: Literal["recalled", "remembered"]
    ids: tuple[str, ...]
    read_id: str | None = None
    receipt_sha256: str | None = None
