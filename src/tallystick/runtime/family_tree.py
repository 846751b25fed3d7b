"""A run and the runs inside it, as one tree: what each was asked, came to and cost."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tallystick.core.caps import charge_of_child
from tallystick.core.charge import Charge
from tallystick.core.child_records import CUT_OFF
from tallystick.core.passage_errors import ResumeRefused
from tallystick.core.records import (
    ChildBegun,
    ChildEnded,
    HostAnswered,
    ReceiptIssued,
    Record,
    RunLimits,
)
from tallystick.ledger.port import Ledger, RunRow
from tallystick.runtime.family_tally import Branch, FamilyTally, grown
from tallystick.runtime.history import records_of, whole_records
from tallystick.runtime.in_doubt import standing_of

__all__ = ["Node", "open_records", "tree_of"]

# More are counted and not shown.
_NODES_MAX = 10_000


class Node(msgspec.Struct, kw_only=True):
    """One run of a tree. `stop` is empty while it has none; `usd` in `charge` is nano-dollars.

    `charge` is so far, with everything inside it. `missing` says that it was begun and nothing of
    it is here, `more` how many children are not in the tree. `standing` is how a run without an end
    stands: running, cut off, in doubt; or that it was pruned. `queries` are the model calls of its
    last batch: answered, and asked.
    """

    run: str
    goal: str = ""
    stop: str = ""
    answer: str | None = None
    charge: Charge = Charge()
    limits_usd: int | None = None
    children: list[Node] = []
    missing: bool = False
    more: int = 0
    depth: int = 0
    turn: int = 0
    limits: RunLimits | None = None
    standing: str = ""
    queries: tuple[int, int] = (0, 0)


def tree_of(ledger: Ledger, run: str) -> Node:
    """The tree below a run, in the order in which its programs began it."""
    rows = {row.run: row for row in ledger.runs()}
    root, branch, inside = _node(ledger, run, rows.get(run), depth=0)
    found: list[tuple[Node, Branch]] = [(root, branch)]
    waiting = [(root, inside)]
    seen = {run}
    while waiting:
        parent, begun = waiting.pop(0)
        for child in begun:
            if len(seen) >= _NODES_MAX or child in seen:
                parent.more += 1
                continue
            seen.add(child)
            row = rows.get(child)
            if row is None or not row.head.count:
                parent.children.append(Node(run=child, missing=True, depth=parent.depth + 1))
                continue
            node, branch, inside = _node(ledger, child, row, depth=parent.depth + 1)
            parent.children.append(node)
            found.append((node, branch))
            waiting.append((node, inside))
    for node, branch in reversed(found):
        _charge(node, branch)
    return root


def open_records(ledger: Ledger, records: Sequence[Record]) -> list[tuple[str, Record]]:
    """What is recorded of the runs that a resume goes on with inside a run, each under its own."""
    found: list[tuple[str, Record]] = []
    waiting = [records]
    rows: dict[str, RunRow] = {}
    while waiting:
        begun = _open_in(waiting.pop())
        if begun and not rows:
            rows = {row.run: row for row in ledger.runs()}
        for child in begun:
            row = rows.get(child)
            if row is not None and row.head.count:
                inside = whole_records(ledger, child)
                found += [(child, each) for each in inside]
                waiting.append(inside)
    return found


def _open_in(records: Sequence[Record]) -> list[str]:
    """The children whose parent waits for them; also those that ended from outside."""
    told = {each.intent for each in records if isinstance(each, HostAnswered)}
    begun = {each.run: each.intent for each in records if isinstance(each, ChildBegun)}
    over = {
        each.run for each in records if isinstance(each, ChildEnded) and each.stop not in CUT_OFF
    }
    return [run for run, intent in begun.items() if run not in over and intent not in told]


def _node(
    ledger: Ledger, run: str, row: RunRow | None, *, depth: int
) -> tuple[Node, Branch, list[str]]:
    """A run, what was counted of it, and the runs that it began."""
    try:
        records = whole_records(ledger, run)
    except ResumeRefused:
        return _pruned(ledger, run, depth=depth)
    branch = FamilyTally(records).root
    batch = branch.batch
    node = Node(
        run=run,
        goal=branch.goal,
        stop=branch.stop,
        answer=branch.answer,
        limits_usd=branch.limits.usd,
        children=[],
        depth=depth,
        turn=branch.turn,
        limits=branch.limits,
        standing="" if branch.stop or row is None else standing_of(ledger, row),
        queries=(len(batch.answered), len(batch.asked)),
    )
    begun = dict.fromkeys(each.run for each in records if isinstance(each, ChildBegun))
    return node, branch, list(begun)


def _pruned(ledger: Ledger, run: str, *, depth: int) -> tuple[Node, Branch, list[str]]:
    """A run whose bodies were taken out, but for its receipt."""
    receipts = [each for each in records_of(ledger, run) if isinstance(each, ReceiptIssued)]
    node = Node(run=run, children=[], depth=depth, standing="pruned")
    if receipts:
        node.stop = receipts[-1].receipt.stop
        return node, Branch(run=run, own=receipts[-1].receipt.charge), []
    return node, Branch(run=run), []


def _charge(node: Node, branch: Branch) -> None:
    """Sum up a run whose children are summed up."""
    node.charge = branch.own + branch.inside
    for child in node.children:
        if (live := branch.live.get(child.run)) is not None:
            node.charge += grown(live.told, charge_of_child(child.charge))
