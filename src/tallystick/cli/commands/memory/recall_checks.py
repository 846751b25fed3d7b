"""`tally recall --program` and `--verify`: run recall programs, and check receipts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import click
import msgspec

from tallystick.cli.commands.memory.options import (
    head_from,
    open_memory,
    readable,
    source,
    tell_remarks,
)
from tallystick.cli.errors import exit_code_of
from tallystick.cli.exit_codes import OK
from tallystick.cli.parts import echo_json
from tallystick.cli.show import plain, quantity
from tallystick.core.errors import UsageError
from tallystick.memory.code_mode.form import form_of
from tallystick.memory.code_mode.operations import (
    PROGRAM_BYTES_MAX,
    PYTHON_FORM,
    Budget,
    Bundle,
    CodeModeError,
    Halted,
    WallTimeExceeded,
    bundle_of,
    read_program,
)
from tallystick.memory.code_mode.running import MemoryHost, run_recall_program
from tallystick.memory.errors import ImportRefused
from tallystick.memory.memory import Memory
from tallystick.memory.recall.recall import Strategy
from tallystick.memory.recall.selection import Filters
from tallystick.memory.receipts.receipt import (
    RecallReceipt,
    Receipt,
    ReceiptError,
    ReceiptUnknown,
)
from tallystick.memory.receipts.receipt_file import (
    RECEIPT_FILE_BYTES_MAX,
    CheckedReceipt,
    ReceiptFile,
    read_receipt_file,
    verify_receipt_file,
    verify_with_memory,
)
from tallystick.memory.receipts.receipts import (
    Verified,
    VerifiedForget,
    find_forget_receipt,
    find_recall_receipt,
    verify_forgotten,
)
from tallystick.settings.paths import cache_directory, data_directory
from tallystick.settings.signing import read_public_key

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox


def run_program(
    name: str,
    *,
    limits: tuple[int | None, int | None, int | None],
    tenant: str | None,
    agent: str | None,
    as_of: str | None,
    strategy: Strategy,
    filters: Filters,
    as_json: bool,
) -> int:
    """Run a recall program, print its result, and return the exit code.

    If the program ends early, its partial result is printed with the error, which decides the exit
    code. Raise `InvalidProgram` for a text that is refused before the memory is opened, and what
    `source`, `open_memory` and the sandbox raise.
    """
    with source(name) as file:
        raw = file.read(PROGRAM_BYTES_MAX + 1)
    form = form_of(raw)
    budget = _budget(PYTHON_FORM if form == "python" else Budget(), limits)
    # A program is refused before a memory is opened for it.
    program = raw if form == "python" else read_program(raw)
    error: CodeModeError | None = None
    bundle: Bundle | None
    with open_memory(tenant, agent) as memory:
        host = MemoryHost(memory, as_of=as_of, strategy=strategy, filters=filters)
        try:
            bundle = run_recall_program(
                memory, program, budget=budget, host=host, sandbox=_open_sandbox
            )
        except CodeModeError as ended:
            error, bundle = ended, ended.partial
    tell_remarks(host.remarks, everything=False)
    if as_json:
        echo_json(_bundle_fields(form, bundle, error))
    else:
        _echo_bundle(bundle, error)
    return OK if error is None else exit_code_of(error)


def _open_sandbox() -> WasmSandbox:
    # A list of operations needs neither, and both take long to import.
    from tallystick.cli.progress import Sayer
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

    return WasmSandbox.load(
        cache=cache_directory(),
        output_directory=data_directory() / "output",
        say=Sayer(),
    )


def _budget(usual: Budget, limits: tuple[int | None, int | None, int | None]) -> Budget:
    named = zip(("fuel", "mem_pages", "wall_ms"), limits, strict=True)
    changes: dict[str, Any] = {name: value for name, value in named if value is not None}
    return msgspec.structs.replace(usual, **changes)


def _bundle_fields(
    form: str, bundle: Bundle | None, error: CodeModeError | None
) -> dict[str, object]:
    """Return all fields of a bundle for JSON, and the error that ended the program or None."""
    held = bundle_of([], operations=0, fuel_used=0, answer="") if bundle is None else bundle
    ended = None
    if error is not None:
        ended = {"code": error.code, "message": str(error)}
    fuel = held.fuel_used if error is None else error.fuel_used
    return {**msgspec.structs.asdict(held), "fuel_used": fuel, "form": form, "error": ended}


def _echo_bundle(bundle: Bundle | None, error: CodeModeError | None) -> None:
    ended = error is not None
    if bundle is not None:
        click.echo(readable(bundle.final_answer), err=ended)
        for id, score in bundle.scores.items():
            click.echo(f"score  {score:.4f}  {plain(id)}", err=True)
        for each in bundle.receipts:
            click.echo(f"cite   {plain(each, chars_max=200)}", err=True)
        tokens = bundle.answer_tokens
        counted = "" if tokens is None else f", {tokens.tokens:,} tokens ({tokens.tokenizer})"
        click.echo(
            f"{'partial: ' if ended else ''}{bundle.records_seen:,} notes read, "
            f"{bundle.records_emitted:,} returned, fuel {bundle.fuel_used:,}{counted}",
            err=True,
        )
    if error is not None:
        more = ""
        if isinstance(error, Halted):
            more = "; to give it more: --fuel N"
        elif isinstance(error, WallTimeExceeded):
            more = "; to give it more: --wall-ms N"
        click.echo(f"{error.code}: {plain(str(error), chars_max=300)}{more}", err=True)


# `tally recall --verify`: check a receipt of either kind against the memory as it is now.


_WHY_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class By:
    """The means to check somebody else's receipt: a copy or export, a public key, a head."""

    against: str | None = None
    key_file: Path | None = None
    head: str | None = None

    @property
    def given(self) -> bool:
        """True if the receipt is not to be checked with a key of this user's."""
        return any(each is not None for each in (self.against, self.key_file, self.head))


def verify_receipt(
    named: str, query: str | None, *, by: By, tenant: str | None, as_json: bool
) -> int:
    """Check a receipt, named by its file or by its id; print the result, return the exit code.

    Without JSON, raise `ReceiptError` if the receipt does not hold, and `ImportRefused` if an
    export cannot be read. With JSON, the error is a field of the object that is printed. Other
    errors, such as `UsageError`, are raised in either case.
    """
    checked: CheckedReceipt | None = None
    try:
        if by.given:
            checked = _check_others(named, query, by=by, tenant=tenant)
            verified = checked.verified
        else:
            verified = _check_own(named, query, tenant=tenant)
    except (ReceiptError, ImportRefused) as error:
        if not as_json:
            raise
        said = {"code": error.code, "message": str(error)}
        echo_json({"held": False, **_verified_fields(None), **_by_fields(None), **said})
        return exit_code_of(error)
    if as_json:
        fields = {**_verified_fields(verified), **_by_fields(checked)}
        echo_json({"held": True, **fields, "code": None, "message": None})
    else:
        for line in _lines(verified, checked):
            click.echo(line)
    return OK


def _check_own(named: str, query: str | None, *, tenant: str | None) -> Verified | VerifiedForget:
    with open_memory(tenant) as memory:
        receipt = _receipt(memory, named)
        if isinstance(receipt, ReceiptFile):
            query = receipt.query if query is None else query
            receipt = receipt.read()
        if isinstance(receipt, RecallReceipt):
            return memory.verify(receipt, query=query)
        if query is not None:
            raise UsageError(
                "this is the receipt of a forget, which has no query; leave out --query"
            )
        return verify_forgotten(memory.store, receipt, keys=memory.keys.by_id)


def _check_others(named: str, query: str | None, *, by: By, tenant: str | None) -> CheckedReceipt:
    key = None if by.key_file is None else read_public_key(by.key_file)
    head = None if by.head is None else head_from(by.head)
    if by.against is not None:
        if tenant is not None:
            raise UsageError("--against and --memory name two memories; give one of them")
        with source(named) as file:
            data = file.read(RECEIPT_FILE_BYTES_MAX + 2)
        return verify_receipt_file(data, Path(by.against), key=key, head=head, query=query)
    with _opened_copy(tenant) as memory:
        receipt = _receipt(memory, named)
        return verify_with_memory(receipt, memory.store, key=key, head=head, query=query)


@contextmanager
def _opened_copy(tenant: str | None) -> Iterator[Memory]:
    """Yield a copy of somebody else's memory, kept under a name here.

    A `UsageError` of opening it is raised with a hint at --against.
    """
    with ExitStack() as stack:
        try:
            memory = stack.enter_context(open_memory(tenant))
        except UsageError as error:
            raise UsageError(f"{error}; a copy elsewhere is named with --against FILE") from None
        yield memory


def _receipt(memory: Memory, named: str) -> ReceiptFile | Receipt:
    if not os.path.lexists(named) and os.sep not in named:
        if not named.isprintable():
            raise ReceiptUnknown(id=plain(named))
        try:
            return find_recall_receipt(memory.store, named)
        except ReceiptUnknown:
            return find_forget_receipt(memory.store, named)
    with source(named) as file:
        return read_receipt_file(file.read(RECEIPT_FILE_BYTES_MAX + 2))


def _by_fields(checked: CheckedReceipt | None) -> dict[str, object]:
    """Return what a receipt was checked by; `own_key` for a receipt of this user."""
    if checked is None:
        return {"by": "own_key", "key": None, "head": None, "why_not_ranked": None}
    head = None if checked.head is None else f"{checked.head.count}:{checked.head.hash}"
    why = checked.why_not_ranked or None
    return {"by": checked.by, "key": checked.key_id, "head": head, "why_not_ranked": why}


def _verified_fields(verified: Verified | VerifiedForget | None) -> dict[str, object]:
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


def _lines(
    verified: Verified | VerifiedForget, checked: CheckedReceipt | None = None
) -> Iterator[str]:
    notes = len(verified.notes)
    if isinstance(verified, VerifiedForget):
        yield f"held: forget {verified.forget_id}, {quantity(notes, 'note')}"
    else:
        held = sum(state == "held" for _, state in verified.notes)
        yield f"held: recall {verified.read_id}, notes still there: {held:,} of {notes:,}"
    for id, state in verified.notes:
        if state != "held" or isinstance(verified, VerifiedForget):
            yield f"{state.replace('_', ' ')}: note {id}"
    if isinstance(verified, Verified):
        if verified.query == "not_checked":
            yield "query: its digest can only be checked by the owner, or with the key of the query"
        yield _ranking(verified, "" if checked is None else checked.why_not_ranked)
    if checked is not None:
        yield _trust(checked)


def _trust(checked: CheckedReceipt) -> str:
    head = "" if checked.head is None else f"{checked.head.count}:{checked.head.hash}"
    match checked.by:
        case "public_key":
            return f"signed: by the key {checked.key_id}"
        case "head":
            return f"head: an entry of the log under the head given, {head}"
        case "own_head":
            return f"head: the copy's own, {head}; compare it with one that its owner gives"
        case _:
            assert_never(checked.by)


def _ranking(verified: Verified, why_not: str) -> str:
    match verified.ranking:
        case "same":
            return "ranking: computed again, and the same to the last digit"
        case "close":
            return "ranking: computed again; same notes, same order, and the last digits differ"
        case "erased":
            why = plain(verified.difference or "", chars_max=_WHY_CHARS_MAX)
            return f"ranking: differs, since notes of its scope were erased: {why}"
        case "not_recomputed" if why_not:
            return f"ranking: not computed again: {plain(why_not, chars_max=_WHY_CHARS_MAX)}"
        case "not_recomputed":
            return "ranking: not computed again; to do that, add the query: --query TEXT"
        case _:
            assert_never(verified.ranking)
