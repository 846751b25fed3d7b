"""Read from the records of a run what its row says of it: who started it, and whether it ended.

Rule 1: the row follows the records in their order, in the transaction that writes them. Rows are
for finding runs; what a run did is read from its entries.
Rule 2: a record that cannot be read changes nothing. Only the tags in `_TAGS` are decoded.
Rule 3: the two ends of a chain are enough to know its facts (`deciding_positions`). The first entry
says what started the run. After an end come at most a receipt and the record that the run was
pruned.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from tallystick.core.chain import Draft, Header, Sealed
from tallystick.core.records import (
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunResumed,
    RunStarted,
    StepEntered,
    decode_record,
)
from tallystick.ledger.port import Ledger, RunFilter, RunRow

# The last entries of a chain say whether and when it ended. They are at most four: a receipt, the
# end, a receipt that pruning adds to runs older than receipts, and the record of the pruning.
LAST_ENTRIES = 4
_TAGS = frozenset(
    {
        "receipt.issued",
        "run.ended",
        "run.forked",
        "run.pruned",
        "run.resumed",
        "run.started",
        "step.entered",
        "step.left",
    }
)
# The fields of a row that are read from records.
FACTS = (
    "steps",
    "parent",
    "caller",
    "session",
    "grown_from",
    "stop",
    "started_at",
    "ended_at",
    "erased",
)
# The fields that only the first entry of a run says reliably.
_OF_A_START = ("parent", "caller", "session", "grown_from", "started_at")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
# The largest integer that a column of SQLite holds.
_FIGURE_MAX = (1 << 63) - 1
_decode_header = msgspec.json.Decoder(Header).decode

# The tag of an entry and its body, None if that was removed.
Tagged = tuple[str, bytes | None]


def tagged_drafts(drafts: Iterable[Draft]) -> list[Tagged]:
    """Return the tags and bodies of the drafts that may change a row; the others are left out."""
    return [(each.tag, each.body) for each in drafts if each.tag in _TAGS]


def tagged_entry(entry: Sealed) -> Tagged:
    """Return the tag of an entry, and its body: None if erased, empty if it cannot change a row.

    An entry whose header cannot be read has the tag "".
    """
    try:
        tag = _decode_header(entry.header).tag
    except _UNREADABLE:
        tag = ""
    return tag, entry.body if entry.body is None or tag in _TAGS else b""


def deciding_positions(count: int) -> tuple[int, ...]:
    """Return the positions of the entries that decide the facts of a chain of `count` entries.

    These are the first and the last `LAST_ENTRIES`, ascending; none for an empty chain.
    """
    return tuple(sorted({0, *range(max(0, count - LAST_ENTRIES), count)} if count else ()))


def row_after_entries(row: RunRow, entries: Iterable[Tagged]) -> RunRow:
    """Return the row of a run updated by more of its entries, in their order.

    An entry that cannot be read changes nothing. One without a body marks the row as erased. Of an
    end without a body, the reason is that of the receipt among `entries` before it, else "".
    """
    changed: dict[str, Any] = {}
    receipt_stop = ""
    for tag, body in entries:
        if body is None:
            changed["erased"] = True
        if tag.startswith("step."):
            changed["steps"] = True
            # A chain of steps gets an entry for each step. Only the first says when it started, so
            # the others are not decoded.
            if row.started_at is not None or "started_at" in changed:
                continue
        if tag not in _TAGS:
            continue
        record = None if body is None else _record(body)
        if isinstance(record, ReceiptIssued):
            receipt = record.receipt
            # The receipt comes just before the end, and names the same reason: if only the body of
            # the end was erased, that is still known.
            receipt_stop = receipt.stop
            changed["ended_at"] = _fit_column(receipt.completed_at)
            if row.started_at is None and "started_at" not in changed:
                # The first record was erased. The receipt has these three facts too.
                changed["started_at"] = _fit_column(receipt.started_at)
                changed["session"], changed["parent"] = receipt.id, receipt.parent
        elif tag == "run.ended" and body is None:
            changed["stop"] = receipt_stop
        elif record is not None:
            changed.update(_changes(record))
    return msgspec.structs.replace(row, **changed) if changed else row


def row_differences(ledger: Ledger, row: RunRow) -> list[str]:
    """Return the differences between a row and its entries, one sentence with both values each.

    Only the entries that decide facts are read. `erased` is not compared, nor a fact that only an
    erased first record could confirm. Raise `RunNotFound` or `LedgerCorrupt` if they cannot be
    read.
    """
    said = {field: None for field in FACTS} | {"steps": False, "erased": False}
    last = max(1, row.head.count - LAST_ENTRIES)
    ends = [*ledger.read(row.run, stop=1), *ledger.read(row.run, start=last)]
    fresh = row_after_entries(msgspec.structs.replace(row, **said), map(tagged_entry, ends))
    # If the first record was erased, the caller is known only from a `RunPruned` that names it.
    lost = fresh.erased and fresh.caller is None
    return [
        f"its {field} is {getattr(row, field)!r}, and its entries say {getattr(fresh, field)!r}"
        for field in FACTS
        if field != "erased"
        and not (lost and field in _OF_A_START)
        and getattr(row, field) != getattr(fresh, field)
    ]


def copy_facts(before: RunRow, row: RunRow) -> RunRow:
    """Return `row` with the facts of `before`, another row of the same run. Head and owner stay."""
    return msgspec.structs.replace(row, **{each: getattr(before, each) for each in FACTS})


def select_rows(
    rows: Iterable[RunRow],
    which: RunFilter,
    *,
    after: str,
    skip: int,
    most: int | None,
    newest_first: bool,
) -> list[RunRow]:
    """Return the rows that `which` accepts, from rows already in the requested order.

    Rows up to and including the id `after`, and the first `skip` rows that are accepted, are left
    out. `most` limits the number; None means all.
    """
    behind = (
        row for row in rows if not after or (row.run < after if newest_first else row.run > after)
    )
    last = None if most is None else skip + most
    return list(islice(filter(which.accepts, behind), skip, last))


def _changes(record: Record) -> dict[str, Any]:
    match record:
        case RunStarted():
            return {
                "parent": record.parent,
                "caller": None if record.caller is None else record.caller.run,
                "session": record.session_id,
                "started_at": _fit_column(record.started_at),
            }
        case RunForked():
            return {
                "grown_from": record.parent,
                "session": record.session_id,
                "started_at": _fit_column(record.at),
            }
        case StepEntered():
            return {"started_at": _fit_column(record.entered_at)}
        case RunResumed():
            return {"stop": None, "ended_at": None}
        case RunEnded():
            return {"stop": record.stop}
        case RunPruned() if record.caller is not None:
            return {"caller": record.caller}
        case _:
            return {}


def _record(body: bytes) -> Record | None:
    try:
        return decode_record(body)
    except _UNREADABLE:
        return None


def _fit_column(value: int) -> int | None:
    """Return a time if it fits a column, else None: an imported record may claim any number."""
    return value if -_FIGURE_MAX <= value <= _FIGURE_MAX else None
