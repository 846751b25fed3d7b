"""Laws of programs of steps that die: whatever their shape, and wherever each of their lives ends.

A program is a tree of steps, runs and charges. Each life of it is cut behind some write, as a dead
process leaves it; what of the open calls had arrived is for the provider to tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.steps.step_processes import CALL_NANO, JournalLedger, Lives

from tallystick.client import Session
from tallystick.core.records import AskModel, ModelReplied, RunStarted, StepReceipt
from tallystick.core.views.receipt import step_lines
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import records_of, runs_inside
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.decorator import charge_step, step, step_log

SCALE = max(1, settings().max_examples // 50)


@dataclass(frozen=True)
class Asked:
    """A run of so many turns."""

    name: str
    turns: int


@dataclass(frozen=True)
class Charged:
    """A call that is charged by hand."""

    nano: int


@dataclass(frozen=True)
class Inner:
    """A step. `kept` is whether its value can be; `together` runs its parts side by side."""

    kept: bool
    together: bool
    parts: tuple[Asked | Charged | Inner, ...]


Part = Asked | Charged | Inner
asked = st.builds(Asked, name=st.sampled_from("abc"), turns=st.integers(1, 2))
parts: st.SearchStrategy[Part] = asked | st.builds(Charged, nano=st.integers(0, 9))
programs = st.recursive(
    parts,
    lambda inner: st.builds(
        Inner,
        kept=st.booleans(),
        together=st.booleans(),
        parts=st.lists(inner, min_size=1, max_size=3).map(tuple),
    ),
    max_leaves=5,
).map(lambda part: Inner(kept=True, together=False, parts=(Asked("z", 1), part)))


def leaves(part: Part) -> Iterator[Asked | Charged]:
    if isinstance(part, Inner):
        for each in part.parts:
            yield from leaves(each)
    else:
        yield part


def run(session: Session, program: Inner) -> object:
    """Run a program. The value says where each part of it stood."""

    @step("inner", key=lambda part, place: place)
    async def inner(part: Inner, place: str) -> object:
        each = [do(one, f"{place}.{number}") for number, one in enumerate(part.parts)]
        found = await asyncio.gather(*each) if part.together else [await one for one in each]
        return [place, *found] if part.kept else (place, *found)

    async def do(part: Part, place: str) -> object:
        match part:
            case Asked():
                goal = f"task {part.name} in {part.turns}"
                return (await session.arun(goal)).answer
            case Charged():
                charge_step(1, 0, f"{part.nano}e-9")
                return part.nano
            case Inner():
                return await inner(part, place)

    with step_log():
        return asyncio.run(inner(program, "0"))


def total(lives: Lives) -> StepReceipt:
    receipt = step_lines(records_of(lives.ledger, lives.chain))[0].receipt
    assert receipt is not None
    return receipt


def calls_of(lives: Lives, kind: type[AskModel | ModelReplied]) -> set[str]:
    """The keys of the calls that have such a record."""
    return {
        f"{run}-{each.intent}"
        for run in runs_inside(lives.ledger, lives.chain)
        for each in records_of(lives.ledger, run)
        if isinstance(each, kind)
    }


@settings(max_examples=25 * SCALE)
@given(program=programs, data=st.data())
def test_whatever_is_killed_comes_to_the_same_and_no_call_is_paid_for_twice(
    sandbox: WasmSandbox, program: Inner, data: st.DataObject
) -> None:
    lives = Lives(sandbox)
    with lives.session() as session:
        whole = run(session, program)
    calls = sum(each.turns if isinstance(each, Asked) else 1 for each in leaves(program))
    by_hand = sum(each.nano for each in leaves(program) if isinstance(each, Charged))
    by_model = sum(each.turns for each in leaves(program) if isinstance(each, Asked))
    cost = calls, by_model * CALL_NANO + by_hand
    assert (total(lives).llm_calls, total(lives).usd) == cost

    for _ in range(data.draw(st.integers(1, 2), label="deaths")):
        ledger = lives.ledger
        assert isinstance(ledger, JournalLedger)
        lives = lives.cut(data.draw(st.integers(1, len(ledger.journal)), label="killed at"))
        known, provider = calls_of(lives, ModelReplied), lives.provider
        # Of what was begun and had no outcome yet, some had arrived.
        doubted = (calls_of(lives, AskModel) - known) & provider.replies.keys()
        had = known | {key for key in sorted(doubted) if data.draw(st.booleans(), label="arrived")}
        provider.replies = {key: provider.replies[key] for key in had}
        with lives.session() as session, session.resume_steps(lives.chain):
            again = run(session, program)

        assert again == whole
        assert (total(lives).llm_calls, total(lives).usd) == cost
        assert not had & set(provider.keys)
        assert len(provider.keys) == len(set(provider.keys))
        assert verify_ledger(lives.ledger).ok
        goals = [
            first.goal
            for run_id in runs_inside(lives.ledger, lives.chain)
            if isinstance(first := next(records_of(lives.ledger, run_id)), RunStarted)
        ]
        assert sorted(goals) == sorted(
            f"task {each.name} in {each.turns}"
            for each in leaves(program)
            if isinstance(each, Asked)
        )
        with lives.session() as session, session.replay_steps(lives.chain) as report:
            assert run(session, program) == whole
        assert report.held, report
