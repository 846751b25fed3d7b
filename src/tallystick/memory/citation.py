"""Citations of notes: a short text that names a note, the recall that gave it, and its digest.

`note:<id>@<read_id>#<first 16 digits of the digest>`. The recall's receipt has the whole digest,
and is signed; so a citation is as good as that receipt. Only what was recalled can be cited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from tallystick.core.errors import UsageError
from tallystick.memory.receipt_errors import NotRecalled, RecordContentHashMismatch
from tallystick.memory.receipt_records import Derived, RecallReceipt

__all__ = ["NoteCitation", "check_citation", "cite", "read_citation"]

_DIGEST_CHARS = 16
_CITATION = re.compile(r"note:([^@#\s]{1,200})@([^@#\s]{1,200})#([0-9a-f]{16})")


class NoteCitation(msgspec.Struct, frozen=True, kw_only=True):
    """A note as one recall gave it."""

    id: str
    read_id: str
    digest: str

    @property
    def text(self) -> str:
        """The citation as it is written."""
        return f"note:{self.id}@{self.read_id}#{self.digest}"


def cite(id: str, receipts: Iterable[RecallReceipt]) -> NoteCitation:
    """Cite a note by the last of these receipts that has it. Raises `NotRecalled` if none has."""
    for receipt in reversed(list(receipts)):
        for hit in receipt.derived_from:
            if hit.id == id:
                digest = hit.content_hash[:_DIGEST_CHARS]
                return NoteCitation(id=id, read_id=receipt.read_id, digest=digest)
    raise NotRecalled(id=id)


def read_citation(text: str) -> NoteCitation:
    """Read a citation as it is written. Raises `UsageError`; it may still be of nothing."""
    found = _CITATION.fullmatch(text)
    if found is None:
        raise UsageError(f"not a citation: {text[:80]!r}; one is note:<id>@<recall>#<16 digits>")
    return NoteCitation(id=found[1], read_id=found[2], digest=found[3])


def check_citation(citation: NoteCitation, receipt: RecallReceipt) -> Derived:
    """The hit that a citation is of. The receipt, and the note itself, are for `verify` to check.

    Raises `NotRecalled` if the receipt is of another recall or has no such note, and
    `RecordContentHashMismatch` if the note had another text then.
    """
    if receipt.read_id != citation.read_id:
        raise NotRecalled(id=citation.id)
    for hit in receipt.derived_from:
        if hit.id == citation.id:
            if hit.content_hash[:_DIGEST_CHARS] != citation.digest:
                raise RecordContentHashMismatch(id=citation.id)
            return hit
    raise NotRecalled(id=citation.id)
