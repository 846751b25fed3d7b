"""`tally recall --verify`: a receipt of either kind, held against the memory as it is now."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from tallystick.cli.exit_codes import OK, exit_code_of
from tallystick.cli.memory_opened import echo_json, opened, source
from tallystick.cli.render import plain
from tallystick.core.errors import UsageError
from tallystick.memory.receipt import (
    RecallReceipt,
    Receipt,
    Verified,
    VerifiedForget,
    read_receipt,
)
from tallystick.memory.receipt_errors import ReceiptError, ReceiptUnknown
from tallystick.memory.receipt_records import RECEIPT_BYTES_MAX
from tallystick.memory.receipts_kept import kept_forget, kept_receipt, verify_forgotten
from tallystick.runtime.memory import Memory

__all__ = ["verify_receipt"]

_WHY_CHARS_MAX = 300


def verify_receipt(named: str, query: str | None, *, tenant: str | None, as_json: bool) -> int:
    """Check a receipt by its file, or by its id. The exit code says what came of it.

    With JSON what does not hold is told as what does: in one object.
    """
    verified: Verified | VerifiedForget
    with opened(tenant) as memory:
        try:
            receipt = _receipt(memory, named)
            if isinstance(receipt, RecallReceipt):
                verified = memory.verify(receipt, query=query)
            elif query is not None:
                raise UsageError("the receipt is of a forgetting, which has no query")
            else:
                verified = verify_forgotten(memory.store, receipt, keys=memory.keys.by_id)
        except ReceiptError as error:
            if not as_json:
                raise
            echo_json({"held": False, **_fields(None), "code": error.code, "message": str(error)})
            return exit_code_of(error)
    if as_json:
        echo_json({"held": True, **_fields(verified), "code": None, "message": None})
    else:
        for line in _lines(verified):
            click.echo(line)
    return OK


def _receipt(memory: Memory, named: str) -> Receipt:
    if not os.path.lexists(named) and os.sep not in named:
        if not named.isprintable():
            raise ReceiptUnknown(id=plain(named))
        try:
            return kept_receipt(memory.store, named)
        except ReceiptUnknown:
            return kept_forget(memory.store, named)
    with source(named) as file:
        return read_receipt(file.read(RECEIPT_BYTES_MAX + 2))


def _fields(verified: Verified | VerifiedForget | None) -> dict[str, object]:
    match verified:
        case None:
            names = ("id", "kind", "query", "ranking", "difference", "notes")
            return dict.fromkeys(names)
        case VerifiedForget():
            said = {"id": verified.forget_id, "kind": "forgotten"}
            ranked = dict.fromkeys(("query", "ranking", "difference"))
        case Verified():
            said = {"id": verified.read_id, "kind": "recalled"}
            ranked = {name: getattr(verified, name) for name in ("query", "ranking", "difference")}
    notes = [{"id": id, "state": state} for id, state in verified.notes]
    return {**said, **ranked, "notes": notes}


def _lines(verified: Verified | VerifiedForget) -> Iterator[str]:
    notes = len(verified.notes)
    if isinstance(verified, VerifiedForget):
        yield f"held: forgetting {verified.forget_id}, {notes:,} notes"
    else:
        held = notes - len(verified.erased)
        yield f"held: recall {verified.read_id}, {held:,} of {notes:,} notes are there"
    for id, state in verified.notes:
        if state != "held" or isinstance(verified, VerifiedForget):
            yield f"{state}: note {id}"
    if isinstance(verified, Verified):
        yield _ranking(verified)


def _ranking(verified: Verified) -> str:
    match verified.ranking:
        case "same":
            return "ranking: made again, and the same to the last digit"
        case "erased":
            why = plain(verified.difference or "", chars_max=_WHY_CHARS_MAX)
            return f"ranking: differs, as notes of its scope were erased: {why}"
        case "not_recomputed":
            return "ranking: not made again; --query TEXT says what was asked"
