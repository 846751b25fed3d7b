"""`tally receipt`: what a run, or the steps around runs, did and cost, line by line."""

from __future__ import annotations

from collections.abc import Sequence

import click
import msgspec

from tallystick.cli.render import plain
from tallystick.cli.step_table import as_json as steps_as_json
from tallystick.cli.step_table import table_lines
from tallystick.core.errors import UsageError
from tallystick.core.money import shown_usd
from tallystick.core.receipt import Tally
from tallystick.core.receipt_records import ModelLine, Receipt, ReceiptIssued, harn_fields
from tallystick.core.records import Record, RunEnded, RunStarted
from tallystick.core.step_receipt import harn_step_fields, holds_steps, step_lines
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.history import records_of, resolve_run
from tallystick.runtime.paths import ledger_path

__all__ = ["command"]

_PRICES = {
    "published": "published price",
    "declared": "declared price",
    "in_process": "free: asks no server",
    "waived": "price waived",
    "unknown": "price unknown",
}


@click.command("receipt")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
@click.option("--harn", is_flag=True, help="With the field names of harn.receipt.v1, as JSON.")
@click.option("--steps", is_flag=True, help="Of the steps that the run was begun in.")
def command(run: str, as_json: bool, harn: bool, steps: bool) -> int:
    r"""Show what a run did and cost. RUN is an id, the beginning of one, or `last`.

    The id of a chain of steps shows what each of them came to.

    \b
    Example:
        tally receipt last
    """
    with SqliteLedger(ledger_path()) as ledger:
        found = resolve_run(ledger, run)
        records = list(records_of(ledger, found))
        if steps and not holds_steps(records):
            found = _parent_of(found, records)
            records = list(records_of(ledger, found))
    if holds_steps(records):
        _show_steps(found, records, as_json=as_json, harn=harn)
        return 0
    receipt = _receipt_of(found, records)
    if harn:
        click.echo(msgspec.json.encode(harn_fields(receipt)).decode())
    elif as_json:
        click.echo(msgspec.json.encode({"run": found, "receipt": receipt}).decode())
    else:
        for line in _lines(found, receipt):
            click.echo(line)
    return 0


def _show_steps(chain: str, records: Sequence[Record], *, as_json: bool, harn: bool) -> None:
    lines = step_lines(records)
    if harn:
        click.echo(msgspec.json.encode(harn_step_fields(chain, lines)).decode())
    elif as_json:
        click.echo(steps_as_json(chain, lines).decode())
    else:
        for line in table_lines(chain, lines):
            click.echo(line)


def _parent_of(run: str, records: Sequence[Record]) -> str:
    started = next((each for each in records if isinstance(each, RunStarted)), None)
    if started is None or started.parent is None:
        raise UsageError(f"run {run} was not begun inside a step")
    return started.parent


def _receipt_of(run: str, records: Sequence[Record]) -> Receipt:
    """The receipt that was issued; for runs from before there were any, computed."""
    # Of a run that was gone on with, the last counts all of it.
    for record in reversed(records):
        if isinstance(record, ReceiptIssued):
            return record.receipt
    started = next((each for each in records if isinstance(each, RunStarted)), None)
    ended = next((each for each in records if isinstance(each, RunEnded)), None)
    if started is None or ended is None:
        raise UsageError(f"run {run} has not ended; there is no receipt yet")
    tally = Tally()
    for record in records:
        tally.add(record)
    return tally.receipt(started, ended)


def _lines(run: str, receipt: Receipt) -> list[str]:
    charge = receipt.charge
    total = sum(each.usd for each in receipt.models)
    unpriced = sum(each.unpriced for each in receipt.models)
    cost = shown_usd(total) if receipt.models else shown_usd(0)
    if unpriced:
        cost += f" and {unpriced:,} unpriced call{'' if unpriced == 1 else 's'}"
    cap = "" if receipt.usd_cap is None else f" of {shown_usd(receipt.usd_cap)}"
    made = [
        f"run       {run}",
        f"status    {receipt.status}  ({receipt.stop}: {receipt.detail})",
        f"cost      {cost}{cap}",
        f"used      {charge.turns:,} turns, {charge.model_calls:,} model calls, "
        f"{charge.tokens_in:,} tokens in, {charge.tokens_out:,} out, "
        f"{charge.wall_ms / 1000:.1f} s",
    ]
    if receipt.step is not None and receipt.parent is not None:
        made.append(f"step      {plain(receipt.step)}  of {plain(receipt.parent)}")
    made += [_model(each) for each in receipt.models]
    if receipt.refused_calls:
        made.append(f"refused   {receipt.refused_calls:,} calls that no budget paid for")
    made += [f"called    {name}  {count:,} times" for name, count in receipt.tool_calls]
    made.append(f"effects   {receipt.side_effects:,}")
    made.append(f"given     sha256:{receipt.inputs_digest}")
    made.append(f"answered  sha256:{receipt.outputs_digest}")
    return made


def _model(line: ModelLine) -> str:
    usd = shown_usd(line.usd) if line.calls > line.unpriced else "unpriced"
    failed = f", {line.failed:,} failed" if line.failed else ""
    odd = "".join(f"  {name} x{count}" for name, count in line.flags)
    return (
        f"model     {line.model}  {line.calls:,} calls{failed}  {line.tokens_in:,} in  "
        f"{line.tokens_out:,} out  {usd}  ({_PRICES.get(line.price, line.price)}){odd}"
    )
