"""`tally inspect`: a run turn by turn, or a chain of steps."""

from __future__ import annotations

import click
import msgspec

from tallystick.cli.render import plain, transcript_lines
from tallystick.core.money import shown_usd
from tallystick.core.records import ModelReplied, ProgramFinished, encode_record
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.family_tree import Node, tree_of
from tallystick.runtime.history import records_of, resolve_run
from tallystick.runtime.paths import ledger_path

__all__ = ["command"]


@click.command("inspect")
@click.argument("run")
@click.option("--programs", is_flag=True, help="Show replies and outputs in full.")
@click.option("--tree", is_flag=True, help="Show the runs inside it, with what each cost.")
@click.option("--json", "as_json", is_flag=True, help="Print every record as JSON.")
def command(run: str, programs: bool, tree: bool, as_json: bool) -> int:
    r"""Show a run turn by turn. RUN is an id, the beginning of one, or `last`.

    \b
    Example:
        tally inspect last --programs
    """
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    if tree:
        root = tree_of(ledger, found)
        told = msgspec.json.encode(root).decode() if as_json else "\n".join(_branch(root))
        click.echo(told)
        return 0
    records = list(records_of(ledger, found))
    if as_json:
        bodies = [msgspec.Raw(encode_record(record)) for record in records]
        click.echo(msgspec.json.encode({"run": found, "records": bodies}).decode())
        return 0
    for record in records:
        for line in transcript_lines(record):
            click.echo(line)
        if programs and isinstance(record, ModelReplied):
            click.echo(_indented(record.text))
        if programs and isinstance(record, ProgramFinished):
            failure = record.failure.traceback if record.failure is not None else ""
            click.echo(_indented(record.stdout + record.stderr + failure))
    return 0


def _branch(node: Node, indent: str = "") -> list[str]:
    """A run and those inside it, a line each."""
    if node.missing:
        return [f"{indent}{node.run}  nothing of it was written"]
    charge = node.charge
    cost = "unpriced" if charge.usd is None else shown_usd(charge.usd)
    used = charge.tokens_in + charge.tokens_out
    answer = "" if node.answer is None else f"  {plain(node.answer, chars_max=40)!r}"
    lines = [
        f"{indent}{node.run}  {node.stop or 'unfinished'}  {cost}  {used:,} tokens  "
        f"{plain(node.goal, chars_max=60)}{answer}"
    ]
    for child in node.children:
        lines += _branch(child, indent + "  ")
    if node.more:
        lines.append(f"{indent}  and {node.more:,} more")
    return lines


def _indented(text: str) -> str:
    return "\n".join(f"          | {line}" for line in text.rstrip("\n").splitlines())
