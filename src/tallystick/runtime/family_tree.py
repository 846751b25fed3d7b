"""A run and the runs inside it, as one tree: what each was asked, came to and cost."""

from __future__ import annotations

import msgspec

from tallystick.core.charge import Charge
from tallystick.core.records import ChildBegun, ChildEnded, Record, RunEnded, RunStarted
from tallystick.ledger.port import Ledger, find_row
from tallystick.runtime.history import whole_records

__all__ = ["Node", "tree_of"]

# More are counted and not shown.
_NODES_MAX = 10_000


class Node(msgspec.Struct, kw_only=True):
    """One run of a tree. `stop` is empty while it has none; `usd` in `charge` is nano-dollars.

    `missing` says that it was begun and nothing of it is here, `more` how many are not shown.
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


def tree_of(ledger: Ledger, run: str) -> Node:
    """The tree below a run, in the order in which its programs began it."""
    root = _node(run, whole_records(ledger, run))
    left = _NODES_MAX - 1
    waiting = [root]
    seen = {run}
    while waiting:
        parent = waiting.pop(0)
        for begun in _begun_in(ledger, parent):
            if left <= 0 or begun in seen:
                parent.more += 1
                continue
            left -= 1
            seen.add(begun)
            here = find_row(ledger, begun)
            if here is None or not here.head.count:
                parent.children.append(Node(run=begun, missing=True))
                continue
            child = _node(begun, whole_records(ledger, begun))
            parent.children.append(child)
            waiting.append(child)
    return root


def _begun_in(ledger: Ledger, node: Node) -> list[str]:
    records = whole_records(ledger, node.run)
    return [each.run for each in records if isinstance(each, ChildBegun)]


def _node(run: str, records: list[Record]) -> Node:
    node = Node(run=run, children=[])
    spent = Charge()
    for record in records:
        if isinstance(record, RunStarted):
            node.goal, node.limits_usd = record.goal, record.limits.usd
        elif isinstance(record, RunEnded):
            node.stop, node.answer, node.charge = record.stop, record.answer, record.charge
        elif isinstance(record, ChildEnded):
            spent += record.charge
    if not node.stop:
        node.charge = spent
    return node
