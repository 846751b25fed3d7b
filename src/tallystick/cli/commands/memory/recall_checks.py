"""`tally recall --program` and `--verify`: run recall programs, and check receipts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from tallystick.cli.commands.memory.options import open_memory, readable, source, tell_remarks
from tallystick.cli.errors import exit_code_of
from tallystick.cli.exit_codes import OK
from tallystick.cli.parts import echo_json
from tallystick.cli.progress import Sayer
from tallystick.cli.show import plain, quantity
from tallystick.core.errors import UsageError
from tallystick.memory.code_mode.operations import (
    PROGRAM_BYTES_MAX,
    PYTHON_FORM,
    Budget,
    Bundle,
    CodeModeError,
    Halted,
    Host,
    RecallHit,
    Tokenizer,
    WallTimeExceeded,
    bundle_of,
    read_program,
    run,
)
from tallystick.memory.code_mode.python import form_of, run_python
from tallystick.memory.memory import Memory
from tallystick.memory.recall.recall import Strategy
from tallystick.memory.recall.selection import Filters
from tallystick.memory.recall.words import TOKENIZER, count_tokens
from tallystick.memory.receipts.receipt import (
    RECEIPT_BYTES_MAX,
    RecallReceipt,
    Receipt,
    ReceiptError,
    ReceiptUnknown,
    read_receipt,
)
from tallystick.memory.receipts.receipts import (
    Verified,
    VerifiedForget,
    cite,
    kept_forget,
    kept_receipt,
    verify_forgotten,
)
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory, data_directory

_MS_PER_SECOND = 1_000


class _Pieces:
    """The tokenizer that receipts count with."""

    name = TOKENIZER

    def count(self, text: str) -> int:
        return count_tokens(text)


class _Host:
    """Serve the calls of a recall program from a memory. It can cite only what it recalled."""

    def __init__(
        self, memory: Memory, *, as_of: str | None, strategy: Strategy, filters: Filters
    ) -> None:
        self._memory = memory
        self._as_of = as_of
        self._strategy: Strategy = strategy
        self._filters = filters
        self._receipts: list[RecallReceipt] = []
        # A dict, as a set that keeps the order.
        self.remarks: dict[str, None] = {}

    def recall(self, query: str, k: int) -> Sequence[RecallHit]:
        made = self._memory.recall(
            query, k, as_of=self._as_of, strategy=self._strategy, filters=self._filters
        )
        self._receipts.append(made.receipt)
        self.remarks.update(dict.fromkeys(made.remarks))
        return [
            RecallHit(id=hit.id, content=made.notes[hit.id].content, score=hit.score)
            for hit in made.hits
        ]

    def score(self, memory_id: str) -> float:
        return self._memory.score(memory_id)

    def cite(self, memory_id: str) -> str:
        return cite(memory_id, self._receipts).text


_: type[Host] = _Host
__: type[Tokenizer] = _Pieces


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

    If the program ends early, its partial result is printed with the error.
    """
    with source(name) as file:
        raw = file.read(PROGRAM_BYTES_MAX + 1)
    form = form_of(raw)
    budget = _budget(PYTHON_FORM if form == "python" else Budget(), limits)
    error: CodeModeError | None = None
    bundle: Bundle | None
    with open_memory(tenant, agent) as memory:
        # Load the embedding model first: that takes longer than a program may run.
        memory.prepare()
        host = _Host(memory, as_of=as_of, strategy=strategy, filters=filters)
        try:
            bundle = _run(raw, form, host, budget)
        except CodeModeError as ended:
            error, bundle = ended, ended.partial
    tell_remarks(host.remarks, everything=False)
    if as_json:
        echo_json(_bundle_fields(form, bundle, error))
    else:
        _echo_bundle(bundle, error)
    return OK if error is None else exit_code_of(error)


def _run(raw: bytes, form: str, host: _Host, budget: Budget) -> Bundle:
    if form == "python":
        return asyncio.run(_in_sandbox(raw.decode("utf-8-sig"), host, budget))
    return run(
        read_program(raw),
        host,
        clock=lambda: time.monotonic() * _MS_PER_SECOND,
        budget=budget,
        tokenizer=_Pieces(),
    )


async def _in_sandbox(text: str, host: _Host, budget: Budget) -> Bundle:
    sandbox = WasmSandbox.load(
        cache=cache_directory(),
        output_directory=data_directory() / "output",
        say=Sayer(),
    )
    try:
        return await run_python(text, host, sandbox=sandbox, budget=budget, tokenizer=_Pieces())
    finally:
        await sandbox.close()


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


def verify_receipt(named: str, query: str | None, *, tenant: str | None, as_json: bool) -> int:
    """Check a receipt, named by its file or by its id; print the result, return the exit code.

    Without JSON, raise `ReceiptError` if the receipt does not hold. With JSON, the error is a field
    of the object that is printed.
    """
    verified: Verified | VerifiedForget
    with open_memory(tenant) as memory:
        try:
            receipt = _receipt(memory, named)
            if isinstance(receipt, RecallReceipt):
                verified = memory.verify(receipt, query=query)
            elif query is not None:
                raise UsageError(
                    "this is the receipt of a forget, which has no query; leave out --query"
                )
            else:
                verified = verify_forgotten(memory.store, receipt, keys=memory.keys.by_id)
        except ReceiptError as error:
            if not as_json:
                raise
            echo_json(
                {"held": False, **_verified_fields(None), "code": error.code, "message": str(error)}
            )
            return exit_code_of(error)
    if as_json:
        echo_json({"held": True, **_verified_fields(verified), "code": None, "message": None})
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


def _lines(verified: Verified | VerifiedForget) -> Iterator[str]:
    notes = len(verified.notes)
    if isinstance(verified, VerifiedForget):
        yield f"held: forget {verified.forget_id}, {quantity(notes, 'note')}"
    else:
        held = notes - len(verified.erased)
        yield f"held: recall {verified.read_id}, notes still there: {held:,} of {notes:,}"
    for id, state in verified.notes:
        if state != "held" or isinstance(verified, VerifiedForget):
            yield f"{state}: note {id}"
    if isinstance(verified, Verified):
        yield _ranking(verified)


def _ranking(verified: Verified) -> str:
    match verified.ranking:
        case "same":
            return "ranking: computed again, and the same to the last digit"
        case "erased":
            why = plain(verified.difference or "", chars_max=_WHY_CHARS_MAX)
            return f"ranking: differs, since notes of its scope were erased: {why}"
        case "not_recomputed":
            return "ranking: not computed again; to do that, add the query: --query TEXT"
