"""Count a run and the runs inside it as one tree: goal, state, result and cost of each.

Rule: a child that has ended counts with the charge that its parent recorded for it. A live one
counts with its own records. So the sum is right at every moment, and at the end it is the charge of
the root.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tallystick.core.charge import Charge, RunLimits
from tallystick.core.history import History
from tallystick.core.machine.turn import charge_of, charge_of_child
from tallystick.core.records import (
    CUT_OFF,
    AskModel,
    ChildBegun,
    ChildEnded,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryRefused,
    QueryReplied,
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunProgram,
    RunResumed,
    RunStarted,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.ledger.port import Ledger, RunRow
from tallystick.runtime.runs.history import records_of, whole_records
from tallystick.runtime.runs.in_doubt import status_of

# `waiting` is for a free slot of the provider, or for money that other calls have reserved.
Doing = Literal["starting", "waiting", "asking", "running", "ended"]
_LIMITS = RunLimits()
_NOTHING = Charge()


@dataclass(slots=True)
class Batch:
    """The model calls of one host call: the items that were asked, and those that were answered."""

    intent: int = -1
    asked: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)

    def add(self, record: QueryAsked | QueryReplied | QueryFailed | QueryRefused) -> None:
        """Count a record. One of another host call starts a new batch; a refusal counts nothing."""
        if record.intent != self.intent:
            self.intent = record.intent
            self.asked, self.answered = set(), set()
        if isinstance(record, QueryRefused):
            return
        self.asked.add(record.item)
        if isinstance(record, QueryReplied):
            self.answered.add(record.item)
        else:
            # It failed, or it is asked again because the reply did not match the schema.
            self.answered.discard(record.item)


@dataclass(slots=True, kw_only=True)
class RunNode:
    """The counts of one run of a tree so far.

    `own` is the charge of the run itself, and `inside` that of its children that ended. `reported`
    is the part of the run's charge that its parent has recorded. `since` is the time at which
    `doing` began, by the clock of the tree, in seconds.
    """

    run: str = ""
    depth: int = 0
    goal: str = ""
    limits: RunLimits = _LIMITS
    own: Charge = _NOTHING
    inside: Charge = _NOTHING
    reported: Charge = _NOTHING
    turn: int = 0
    calls: int = 0
    doing: Doing = "starting"
    since: float = 0.0
    stop: str = ""
    answer: str | None = None
    batch: Batch = field(default_factory=Batch)
    live: dict[str, RunNode] = field(default_factory=dict)
    waiting: int = 0

    @property
    def used(self) -> Charge:
        """The charge of the run so far, with all runs inside it."""
        found = [self]
        for each in found:
            found.extend(each.live.values())
        totals: dict[str, Charge] = {}
        for each in reversed(found):
            totals[each.run] = each.own + each.inside
            for child in each.live.values():
                totals[each.run] += charge_increase(
                    child.reported, charge_of_child(totals[child.run])
                )
        return totals[self.run]


class RunTree:
    """A counter for the records of a run and of the runs inside it.

    `before` are the records of a run that is resumed, and `inside` those of its open children.
    """

    def __init__(
        self,
        before: Iterable[Record] = (),
        inside: Iterable[tuple[str, Record]] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._branches: dict[str, RunNode] = {}
        self._cut: dict[str, RunNode] = {}
        self.root = RunNode(since=clock())
        # True once a call was charged as reserved. Then the charges are an upper bound.
        self.at_most = False
        # Counts of the whole tree, without its root.
        self.answered = self.failed = self.stopped = self.waiting = 0
        for record in before:
            self._count(self.root, record)
        for run, record in inside:
            branch = self._branches.get(run) or self._cut.get(run)
            if branch is not None:
                self._count(branch, record)

    @property
    def live(self) -> int:
        """The number of runs inside the root that have begun and not ended."""
        return len(self._branches) - (self.root.run in self._branches)

    def branch(self, run: str) -> RunNode | None:
        """Return a live run of the tree, or the root; None for others.

        The first run that is named becomes the root. Its id is set here.
        """
        if not self.root.run and run not in self._branches:
            self.root.run = run
            self._branches[run] = self.root
        return self._branches.get(run)

    def add(self, run: str, record: Record) -> RunNode | None:
        """Count a record. Return the child that ended with it, or None.

        A record of a run that is not in the tree is ignored.
        """
        branch = self.branch(run)
        return None if branch is None else self._count(branch, record)

    def waits(self, parent: str, change: int) -> None:
        """Change the number of children of a run that wait to start. It stays at least 0."""
        self.waiting = max(0, self.waiting + change)
        if (branch := self.branch(parent)) is not None:
            branch.waiting = max(0, branch.waiting + change)

    def _count(self, branch: RunNode, record: Record) -> RunNode | None:
        settled = getattr(record, "settled", None)
        self.at_most = self.at_most or (settled is not None and settled.figures == "reserved")
        match record:
            case AskModel():
                branch.turn = record.turn
                self._set_doing(branch, "asking")
            case ModelReplied():
                branch.own += charge_of(record) + Charge(turns=1, wall_ms=record.wall_ms)
            case ModelFailed():
                branch.own += charge_of(record) + Charge(wall_ms=record.wall_ms)
                self._set_doing(branch, "waiting")
            case RunProgram():
                self._set_doing(branch, "running")
            case HostAnswered():
                # A program has the answer, so the children of that call are over for it.
                branch.own += charge_of(record)
                branch.calls += 1
                self._drop_children(branch)
            case ProgramFinished():
                branch.own += Charge(wall_ms=record.wall_ms, fuel=record.fuel)
                self._drop_children(branch)
                self._set_doing(branch, "waiting")
            case record if isinstance(record, QueryRecord):
                return self._count_call(branch, record)
            case RunStarted() | RunResumed() | RunForked() | RunEnded():
                self._set_status(branch, record)
            case _:
                pass
        return None

    def _count_call(self, branch: RunNode, record: QueryRecord) -> RunNode | None:
        """Count a program's call to a model or a child. Return the child that ended, or None."""
        if isinstance(record, ChildBegun):
            self._add_child(branch, record)
        elif isinstance(record, ChildEnded):
            return self._end_child(branch, record)
        else:
            branch.batch.add(record)
            if not isinstance(record, QueryAsked):
                branch.own += charge_of(record)
        return None

    def _set_doing(self, branch: RunNode, doing: Doing) -> None:
        branch.doing, branch.calls, branch.batch = doing, 0, Batch()
        branch.since = self._clock()

    def _set_status(
        self, branch: RunNode, record: RunStarted | RunResumed | RunForked | RunEnded
    ) -> None:
        match record:
            case RunStarted():
                branch.goal, branch.limits = record.goal, record.limits
                self._set_doing(branch, "waiting")
            case RunEnded():
                branch.stop, branch.answer, branch.doing = record.stop, record.answer, "ended"
            case _:
                branch.limits = record.limits or branch.limits
                branch.stop, branch.answer = "", None
                self._set_doing(branch, "starting")

    def _add_child(self, parent: RunNode, record: ChildBegun) -> None:
        if record.run in self._branches:
            return
        child = self._cut.pop(record.run, None)
        if child is None:
            child = RunNode(run=record.run, depth=parent.depth + 1)
        else:
            self.stopped -= 1
        child.since = self._clock()
        parent.live[record.run] = self._branches[record.run] = child

    def _end_child(self, parent: RunNode, record: ChildEnded) -> RunNode:
        child = parent.live.pop(record.run, None) or RunNode(run=record.run, depth=parent.depth + 1)
        self._forget(child)
        charge = charge_of_child(record.charge)
        parent.inside += charge
        child.reported += charge
        child.stop, child.answer, child.doing = record.stop, record.answer, "ended"
        if record.stop in CUT_OFF:
            self._cut[record.run] = child
            self.stopped += 1
        elif record.stop == "answered":
            self.answered += 1
        else:
            self.failed += 1
        return child

    def _drop_children(self, branch: RunNode) -> None:
        """Drop the children that are still live: their parent continues without them.

        They count as failed, and what their parent did not record of them is not charged.
        """
        for child in branch.live.values():
            self._forget(child)
            self.failed += 1
        branch.live.clear()

    def _forget(self, branch: RunNode) -> None:
        """Remove a run that ended, and the runs that are still live inside it."""
        gone = [branch]
        for each in gone:
            self._branches.pop(each.run, None)
            gone.extend(each.live.values())


def charge_increase(before: Charge, now: Charge) -> Charge:
    """Return by how much a charge has grown, in each dimension; 0 where it has not.

    The money is None if that of `now` is unknown.
    """
    return Charge(
        usd=None if now.usd is None else max(0, now.usd - (before.usd or 0)),
        tokens_in=max(0, now.tokens_in - before.tokens_in),
        tokens_out=max(0, now.tokens_out - before.tokens_out),
        model_calls=max(0, now.model_calls - before.model_calls),
        turns=max(0, now.turns - before.turns),
        host_calls=max(0, now.host_calls - before.host_calls),
        fuel=max(0, now.fuel - before.fuel),
        wall_ms=max(0, now.wall_ms - before.wall_ms),
    )


# -- trees of recorded runs -----------------------------------------------------------------------


# Further runs are counted in `Node.more`, and not read.
_NODES_MAX = 10_000


class Node(msgspec.Struct, kw_only=True):
    """One run of a tree. `stop` is empty if it has not ended; `usd` in `charge` is nano-dollars.

    `charge` is that of the run so far, with all runs inside it. `missing` says that the run was
    begun and this ledger has no entry of it. `more` is the number of children that are not in the
    tree. `standing` is the state of a run without an end, such as `running`, or `pruned`. `queries`
    are the numbers of model calls in its last batch: answered, and asked.
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
    """Return the tree of a run. Children are in the order in which the programs began them.

    Of more than 10,000 runs, the rest is counted in `more` of their parents. So is a run that is in
    the tree already. Raise `LedgerError` if a record cannot be read.
    """
    root, branch, inside = _node(ledger, run, ledger.row(run), depth=0)
    found: list[tuple[Node, RunNode]] = [(root, branch)]
    waiting = [(root, inside)]
    seen = {run}
    while waiting:
        parent, begun = waiting.pop(0)
        for child in begun:
            if len(seen) >= _NODES_MAX or child in seen:
                parent.more += 1
                continue
            seen.add(child)
            row = ledger.row(child)
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
    """Return the records of the open runs inside a run, each with the id of its run.

    These are the runs that a resume of the outer run also resumes. A run without an entry has no
    records. Raise `LedgerError` or `ResumeRefused` if one cannot be read.
    """
    found: list[tuple[str, Record]] = []
    waiting = [records]
    while waiting:
        for child in History(waiting.pop()).awaited_children:
            row = ledger.row(child)
            if row is not None and row.head.count:
                inside = whole_records(ledger, child)
                found += [(child, each) for each in inside]
                waiting.append(inside)
    return found


def _node(
    ledger: Ledger, run: str, row: RunRow | None, *, depth: int
) -> tuple[Node, RunNode, list[str]]:
    """Return a run, its counts, and the ids of the runs that it began, in order.

    Raise `LedgerError` if it cannot be read. A pruned one began no runs that can be known.
    """
    try:
        records = whole_records(ledger, run)
    except ResumeRefused:
        return _pruned_node(ledger, run, depth=depth)
    branch = RunTree(records).root
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
        standing="" if branch.stop or row is None else status_of(ledger, row),
        queries=(len(batch.answered), len(batch.asked)),
    )
    begun = dict.fromkeys(each.run for each in records if isinstance(each, ChildBegun))
    return node, branch, list(begun)


def _pruned_node(ledger: Ledger, run: str, *, depth: int) -> tuple[Node, RunNode, list[str]]:
    """Return a run whose bodies were deleted. Its charge is that of its receipt, if it has one."""
    receipts = [each for each in records_of(ledger, run) if isinstance(each, ReceiptIssued)]
    node = Node(run=run, children=[], depth=depth, standing="pruned")
    if receipts:
        node.stop = receipts[-1].receipt.stop
        return node, RunNode(run=run, own=receipts[-1].receipt.charge), []
    return node, RunNode(run=run), []


def _charge(node: Node, branch: RunNode) -> None:
    """Set the charge of a run whose children have their charges already."""
    node.charge = branch.own + branch.inside
    for child in node.children:
        if (live := branch.live.get(child.run)) is not None:
            node.charge += charge_increase(live.reported, charge_of_child(child.charge))
