"""`tally inspect`: a run turn by turn, or a chain of steps."""

from __future__ import annotations

from collections import Counter

import click
import msgspec

from tallystick.cli.progress_rows import Row, budget_lines, row_text, shown_cost
from tallystick.cli.render import plain, safe, transcript_lines
from tallystick.core.charge import Charge
from tallystick.core.records import ModelReplied, ProgramFinished, encode_record
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.family_tree import Node, tree_of
from tallystick.runtime.history import records_of, resolve_run
from tallystick.runtime.paths import ledger_path

__all__ = ["command", "tree_lines"]

# Children of one run that have a line each; the others are summed up.
_CHILDREN_SHOWN = 20
_DEPTH_SHOWN = 12
_NAME_CELLS = 36
_WIDTH = 94


@click.command("inspect")
@click.argument("run")
@click.option("--programs", is_flag=True, help="Show replies and outputs in full.")
@click.option("--tree", is_flag=True, help="Show the runs inside it, with what each cost.")
@click.option("--all", "whole", is_flag=True, help="With --tree: every run of a long batch.")
@click.option("--json", "as_json", is_flag=True, help="Print every record, or the tree, as JSON.")
def command(run: str, programs: bool, tree: bool, whole: bool, as_json: bool) -> int:
    r"""Show a run turn by turn. RUN is an id, the beginning of one, or `last`.

    \b
    Example:
        tally inspect last --programs
    """
    ledger = SqliteLedger(ledger_path())
    found = resolve_run(ledger, run)
    if tree:
        root = tree_of(ledger, found)
        if as_json:
            click.echo(msgspec.json.encode(root).decode())
            return 0
        for line in tree_lines(root, whole=whole):
            click.echo(line)
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


def tree_lines(root: Node, *, whole: bool) -> list[str]:
    """A run and those inside it, a line each, and what the whole may still use."""
    lines: list[str] = []
    waiting: list[Node | str] = [root]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            lines.append(each)
            continue
        lines.append(_node_line(each))
        shown = each.children if whole else each.children[:_CHILDREN_SHOWN]
        rest = _rest_line(each, each.children[len(shown) :])
        waiting += [*([] if rest is None else [rest]), *reversed(shown)]
    if root.limits is not None:
        lines += budget_lines(root.charge, root.limits, seconds=0, width=_WIDTH)
    return lines


def _node_line(node: Node) -> str:
    row = Row(
        depth=min(node.depth, _DEPTH_SHOWN),
        name=node.goal or ("(pruned)" if node.standing == "pruned" else "(nothing written)"),
        state=_state(node),
        turn=node.turn,
        charge=node.charge,
    )
    answer = "" if node.answer is None else f"  {plain(node.answer, chars_max=40)!r}"
    asked = f"  {node.queries[0]:,} of {node.queries[1]:,} queries" if node.queries[1] else ""
    text = row_text(row, width=_WIDTH, name_cells=_NAME_CELLS)
    return f"{text:<{_WIDTH}}  {plain(node.run, chars_max=26)}{asked}{answer}"


def _state(node: Node) -> str:
    return "not begun" if node.missing else node.stop or node.standing or "unfinished"


def _rest_line(node: Node, hidden: list[Node]) -> str | None:
    """The children that have no line, in numbers."""
    count = len(hidden) + node.more
    if not count:
        return None
    states = Counter(_state(each) for each in hidden)
    named = ", ".join(f"{many:,} {plain(state)}" for state, many in states.most_common())
    cost = sum((each.charge for each in hidden), Charge())
    told = f": {named}   {shown_cost(cost)}" if cost.model_calls else f": {named}"
    return f"{'  ' * (min(node.depth, _DEPTH_SHOWN) + 1)}… {count:,} more{told if hidden else ''}"


def _indented(text: str) -> str:
    """Lines of a model or a program, with nothing in them that a terminal would act on."""
    lines = text.rstrip("\n").expandtabs().splitlines()
    return "\n".join(f"          | {safe(line)}" for line in lines)
