"""Why a receipt of memory is not believed, sorted as in `tallystick.core.errors`.

LedgerError
└── ReceiptError                  a receipt that does not hold
    ├── ChainBroken                   it does not follow the receipt before it
    ├── HmacInit                      the key cannot be used
    ├── HmacMismatch                  not what was signed, or signed with another key
    ├── MissingRecord                 a note that it names is not there
    ├── NotErased                     a note that it says is gone is there
    ├── QueryHashMismatch             it was given for another query
    ├── RecallDiffers                 the recall, made again, comes to something else
    ├── ReceiptUnknown                no receipt of that id was given here
    ├── ReceiptUnreadable             it is no receipt, or not in its one spelling
    ├── RecordContentHashMismatch     a note does not say what it said
    └── UnknownKey                    no key of that id is known here
Refused
└── NotRecalled                   a citation of what this run did not recall
"""

from __future__ import annotations

from tallystick.core.errors import LedgerError, Refused

__all__ = [
    "ChainBroken",
    "HmacInit",
    "HmacMismatch",
    "MissingRecord",
    "NotErased",
    "NotRecalled",
    "QueryHashMismatch",
    "RecallDiffers",
    "ReceiptError",
    "ReceiptUnknown",
    "ReceiptUnreadable",
    "RecordContentHashMismatch",
    "UnknownKey",
]


class ReceiptError(LedgerError):
    """A receipt that does not hold."""

    code = "ledger.receipt"


class ChainBroken(ReceiptError):
    """A receipt stands where another was given."""

    code = "ledger.receipt.chain"

    def __init__(self, *, number: int, why: str) -> None:
        super().__init__(f"receipt {number}: {why}")
        self.number = number
        self.why = why


class HmacInit(ReceiptError):
    """A key that cannot sign."""

    code = "ledger.receipt.key"

    def __init__(self, *, key_id: str, why: str) -> None:
        super().__init__(f"the key {key_id[:80]!r} cannot be used: {why}")
        self.key_id = key_id
        self.why = why


class HmacMismatch(ReceiptError):
    """The receipt is not what was signed with its key."""

    code = "ledger.receipt.hmac"

    def __init__(self, *, id: str) -> None:
        super().__init__(
            f"receipt {id[:80]}: it was changed, or signed with another key of that id"
        )
        self.id = id


class MissingRecord(ReceiptError):
    """A note that the receipt names is not in the store, nor erased from it."""

    code = "ledger.receipt.missing"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"note {id[:80]} is not there; name the store that the receipt is of")
        self.id = id


class NotErased(ReceiptError):
    """The text of a note that was to be erased can still be read."""

    code = "ledger.receipt.not_erased"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"note {id[:80]} can still be read, and the receipt says it was erased")
        self.id = id


class QueryHashMismatch(ReceiptError):
    """The receipt was given for another query."""

    code = "ledger.receipt.query"

    def __init__(self, *, read_id: str) -> None:
        super().__init__(f"receipt {read_id[:80]} was given for another query")
        self.read_id = read_id


class RecallDiffers(ReceiptError):
    """The same recall, made again, comes to something else.

    `place` is the first that differs: a field of the receipt, or of a hit, counted from one.
    """

    code = "ledger.receipt.differs"

    def __init__(self, *, read_id: str, place: str, recorded: object, now: object) -> None:
        super().__init__(
            f"receipt {read_id[:80]}: {place} was {_cut(recorded)} and is {_cut(now)} now"
        )
        self.read_id = read_id
        self.place = place
        self.recorded = recorded
        self.now = now


class ReceiptUnknown(ReceiptError):
    """This memory gave no receipt of that id."""

    code = "ledger.receipt.unknown"

    def __init__(self, *, id: str) -> None:
        super().__init__(
            f"no recall or forgetting {id[:80]!r} is known here; name a receipt's file or its id"
        )
        self.id = id


class ReceiptUnreadable(ReceiptError):
    """Bytes that are no receipt of this version, or not spelled as receipts are."""

    code = "ledger.receipt.unreadable"

    def __init__(self, *, why: str) -> None:
        super().__init__(f"not a receipt: {' '.join(why.split())[:200]}")
        self.why = why


class RecordContentHashMismatch(ReceiptError):
    """A note's text is not the one that was recalled."""

    code = "ledger.receipt.content"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"note {id[:80]} does not say what it said when it was recalled")
        self.id = id


class UnknownKey(ReceiptError):
    """The receipt was signed with a key that is not known here."""

    code = "ledger.receipt.unknown_key"

    def __init__(self, *, key_id: str) -> None:
        super().__init__(f"no key {key_id[:80]!r} here; a receipt is checked with the key it names")
        self.key_id = key_id


class NotRecalled(Refused):
    """A note can be cited only by a run that recalled it."""

    code = "refused.not_recalled"

    def __init__(self, *, id: str) -> None:
        super().__init__(f"note {id[:80]!r} was not recalled here, so it cannot be cited")
        self.id = id


def _cut(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
