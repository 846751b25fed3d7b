"""Runs with one call of each kind in them, and what a process leaves that dies at any place of one.

Everything below the session is the real one; only the model is planned. A ledger keeps what was
written in the order in which it was, over the run and the runs inside it, so each prefix of that is
what a crash can leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.laws.costed_world import WatchedTree
from tests.laws.test_costed_sessions import watched
from tests.runtime.run.cut_runs import GOAL, ROOMY, World, keys_of, world

from tallystick.core.chain import Draft, Head
from tallystick.core.charge import RunLimits
from tallystick.core.history import Beginning, Key, Outcome, key_of
from tallystick.core.json_text import digest
from tallystick.core.records import (
    AskModel,
    CallHost,
    ModelReplied,
    QueryAsked,
    Record,
    RunProgram,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.core.views.open_calls import OpenCall, open_calls
from tallystick.runtime.calls.functions import RunFunction, host_function
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import CutLedger, LastingAttachments
from tallystick.testing.models import Answer, ModelCall, ModelDouble, block
from tallystick.testing.plans import Plan, Planned, program

CAUGHT = "except HostError as error:\n    n += 1000\n    print(error.kind)"
CHILD = "the child's question"
# A run inside that comes to nothing.
LOST_CHILD = f"{CHILD}, and no answer"
# The turn whose program makes the call.
TURN = 2


@dataclass(frozen=True)
class Kind:
    """A kind of effect: the line by which a program makes it, and the record that begins it."""

    line: str
    begins: type[Record] | None
    # Whether the call that can be in doubt is one of a run inside.
    inside: bool = False

    @property
    def source(self) -> str:
        return f"try:\n    n += {self.line}\n{CAUGHT}\nprint(n)"

    @property
    def plan(self) -> Sequence[Planned]:
        return (program("n = 1", "print(n)"), program(self.source), program("FINAL(n)"))


KINDS = {
    "turn": Kind("2", AskModel),
    "query": Kind("len(llm_query('one'))", QueryAsked),
    "batch": Kind("len(str(llm_query_batched(['a', 'bc'])))", QueryAsked),
    "whole batch": Kind("len(str(llm_query_batched(['a', 'bc'], fit='whole')))", QueryAsked),
    "effect": Kind("send('what')", CallHost),
    "local effect": Kind("note('no')", CallHost),
    "read": Kind("fetch('key')", None),
    "child": Kind(f"len(rlm_query({CHILD!r}, context='c'))", AskModel, inside=True),
    "children": Kind(
        f"len(str(rlm_query_batched([{CHILD!r}] * 2, contexts=['c', 'd'])))", AskModel, inside=True
    ),
}


class TreePlan(Plan):
    """A plan for the root; it answers the runs inside as well, which are done at once."""

    def turn(self, call: ModelCall) -> Answer:
        if GOAL not in call.text:
            return "RUN(ls)" if LOST_CHILD in call.text else block("FINAL(context.upper())")
        return super().turn(call)


@dataclass
class Lived:
    """A run over a ledger that remembers, and all that was made to happen for it."""

    kind: Kind
    world: World
    run: Run
    ledger: CutLedger
    tree: WatchedTree
    read: list[str]

    @property
    def id(self) -> str:
        return self.run.run

    @property
    def happened(self) -> list[str]:
        """The keys of all that was paid for or done, and what was read."""
        return [*self.world.asked, *self.read]

    def chains(self) -> dict[str, list[Record]]:
        return chains_of(self.ledger)

    def places(self) -> range:
        """Every place at which its process can have died: something was written by then."""
        begun = (n for n in range(len(self.ledger.acts)) if chains_of(self.cut(n)).get(self.id))
        return range(next(begun), len(self.ledger.acts) + 1)

    def cut(self, at: int) -> CutLedger:
        """What it has left after so many acts."""
        ledger = CutLedger(self.ledger.acts[:at])
        # What is written behind them stands behind them.
        ledger.acts[:0] = self.ledger.acts[:at]
        return ledger

    def doubtful(self) -> list[int]:
        """The places at which a call is under way that is of its kind."""
        found = []
        begins, inside = self.kind.begins, self.kind.inside
        for at in self.places():
            calls = open_in(self.cut(at))
            if any(type(call) is begins and (run != self.id) is inside for run, call in calls):
                found.append(at)
        return found


@dataclass
class Living:
    """A session of another process over what a run has left."""

    before: Lived
    world: World
    ledger: CutLedger
    tree: WatchedTree
    read: list[str] = field(default_factory=list)

    def resume(self, **more: Any) -> Lived:
        run = self.world.session.resume(self.before.id, **{"in_doubt": "retry", **more})
        return Lived(self.before.kind, self.world, run, self.ledger, self.tree, self.read)


def reading(read: list[str]) -> RunFunction:
    @host_function(policy="read")
    def fetch(key: str) -> int:
        """Fetch a number."""
        read.append(key)
        return len(key) * 3

    return fetch


def opened(
    sandbox: WasmSandbox,
    plan: Sequence[Planned],
    ledger: CutLedger,
    read: list[str],
    *,
    recorded: Sequence[Record] = (),
    **more: Any,
) -> tuple[World, WatchedTree]:
    with watched() as trees:
        said = TreePlan(plan, recorded)
        model = ModelDouble(said)
        made = world(
            sandbox,
            plan,
            ledger=ledger,
            instead=[reading(read)],
            **{"attachments": LastingAttachments(), "model": model, **more},
        )
        made.model, made.plan = model, said
    return made, trees[0]


def lived(
    sandbox: WasmSandbox,
    kind: Kind,
    *,
    limits: RunLimits = ROOMY,
    plan: Sequence[Planned] | None = None,
) -> Lived:
    """Let a run with a call of a kind come to its end."""
    ledger, read = CutLedger(), list[str]()
    made, tree = opened(sandbox, plan or kind.plan, ledger, read)
    run = made.session.run(GOAL, limits=limits)
    return Lived(kind, made, run, ledger, tree, read)


def reopened(
    before: Lived,
    sandbox: WasmSandbox,
    ledger: CutLedger,
    *,
    recorded: Sequence[Record] | None = None,
) -> Living:
    """Open what a run has left in another process."""
    read = list[str]()
    recorded = chains_of(ledger).get(before.id, []) if recorded is None else recorded
    made, tree = opened(
        sandbox,
        before.world.plan.replies,
        ledger,
        read,
        recorded=recorded,
        attachments=before.world.session.attachments,
    )
    return Living(before, made, ledger, tree, read)


# -- records ------------------------------------------------------------------------------------


def chains_of(ledger: CutLedger) -> dict[str, list[Record]]:
    """The records of the run and of those inside it."""
    return {row.run: whole_records(ledger, row.run) for row in ledger.runs() if row.head.count}


def heads_of(ledger: CutLedger) -> dict[str, Head]:
    return {row.run: row.head for row in ledger.runs()}


def written(chains: Mapping[str, Sequence[Record]]) -> CutLedger:
    """A ledger that has these records."""
    ledger = CutLedger()
    for run, records in chains.items():
        fence = ledger.claim(run, create=True)
        drafts = [
            Draft(tag=tag_of(each), intent=intent_of(each), body=encode_record(each))
            for each in records
        ]
        ledger.submit(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)
    return ledger


def known_keys(ledger: CutLedger) -> set[str]:
    """The keys of all that was begun, in all chains; of effects, of those that ended."""
    return {key for run, records in chains_of(ledger).items() for key in keys_of(run, records)}


def open_in(ledger: CutLedger) -> list[tuple[str, OpenCall]]:
    """The calls without an outcome, with their runs."""
    return [(run, each) for run, all_of in chains_of(ledger).items() for each in open_calls(all_of)]


def begun_without_end(records: Sequence[Record]) -> set[Key]:
    """The keys of calls that were begun and have no outcome, by the definition of it.

    A program that can be run again is none, and a run inside is resumed.
    """
    begun = {
        key_of(each)
        for each in records
        if isinstance(each, Beginning) and not (isinstance(each, RunProgram) and not each.effect)
    }
    ended = {key_of(each) for each in records if isinstance(each, Outcome)}
    return {each for each in begun - ended if each.kind != "child"}


def check_keys(ledger: CutLedger) -> None:
    """No two calls of a run have one key; an effect that is begun again says how often it was."""
    for records in chains_of(ledger).values():
        ended = [key_of(each) for each in records if isinstance(each, Outcome)]
        begun = [
            (key_of(each), each.attempt if isinstance(each, CallHost) else 0)
            for each in records
            if isinstance(each, Beginning)
        ]
        assert len(set(ended)) == len(ended)
        assert len(set(begun)) == len(begun)


# -- another program ----------------------------------------------------------


def with_program(records: Sequence[Record], kind: Kind, source: str) -> list[Record]:
    """The records, as if the program of the call had been another."""
    found: list[Record] = []
    for each in records:
        if isinstance(each, ModelReplied) and kind.source in each.text:
            found.append(msgspec.structs.replace(each, text=block(source)))
        elif isinstance(each, RunProgram) and each.turn == TURN:
            assert each.sha256 == digest(kind.source.encode())
            found.append(msgspec.structs.replace(each, sha256=digest(source.encode())))
        else:
            found.append(each)
    return found


def continues_behind_program(records: Sequence[Record]) -> bool:
    """Whether anything is recorded behind the beginning of the program of the call."""
    return any(isinstance(each, RunProgram) and each.turn == TURN for each in records[:-1])
