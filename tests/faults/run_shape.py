"""The tree of runs that a ledger holds, without what differs each time: ids, times and costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tallystick.core.records import RunStarted
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.tree import Node, tree_of

__all__ = ["Shape", "shape_of"]

# A run of a tree: its task, how it ended, its answer, and the runs inside it.
Shape = tuple[str, str, str | None, tuple["Shape", ...]]


def shape_of(data: Path) -> Shape:
    """The one tree that there is, with every run that came so far as to be one in it."""
    with SqliteLedger(data / "ledger.db") as ledger:
        firsts = {
            row.run: next(records_of(ledger, row.run)) for row in ledger.runs() if row.head.count
        }
        starts = {run: each for run, each in firsts.items() if isinstance(each, RunStarted)}
        (root,) = [run for run, started in starts.items() if started.caller is None]
        seen: Counter[str] = Counter()
        shape = _shape(tree_of(ledger, root), seen)
    assert seen == Counter(starts.keys()), "a run stands in no tree, or in two places"
    return shape


def _shape(node: Node, seen: Counter[str]) -> Shape:
    assert not node.missing
    assert not node.more
    seen[node.run] += 1
    return node.goal, node.stop, node.answer, tuple(_shape(each, seen) for each in node.children)
