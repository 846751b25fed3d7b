"""Laws of children: any tree of batches comes to its end, in order, and never too many are live.

Real places and real batches, over children that only wait. Time is the loop's own: nothing is
waited for, and where nobody has anything left to wait for, that is said and not sat out.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.call_scopes import RUN, ProgramCalls

from tallystick.core.chain import Head
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.records import Caller, ChildBegun, ChildEnded
from tallystick.model.port import Model
from tallystick.runtime.calls.children import Children, ChildRequest, ChildRunner, Parent
from tallystick.runtime.calls.queries import AskedName, Queries, QueryProblem
from tallystick.runtime.runs.decided import Decided
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import ModelDoor
from tallystick.runtime.spend.slots import ChildSlots

Result = TypeVar("Result")


class Stuck(Exception):
    """Everybody waits for somebody else."""


class _Selector(selectors.SelectSelector):
    """Moves the clock instead of waiting."""

    clock = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self.clock += timeout
        return super().select(0)


def run_virtually(work: Coroutine[Any, Any, Result]) -> Result:
    selector = _Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.clock  # type: ignore[method-assign]
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()


@dataclass(frozen=True)
class Child:
    """A child that works, asks for a batch of others, works again, and may come to nothing."""

    works: int
    inside: tuple[Child, ...] = ()
    fails: bool = False

    @property
    def height(self) -> int:
        return 1 + max((each.height for each in self.inside), default=0)


@dataclass
class Counts:
    """How many are live, and begun, and the most there were."""

    live: int = 0
    begun: int = 0
    most_live: int = 0
    most_begun: int = 0

    def change(self, *, live: int, begun: int = 0) -> None:
        self.live, self.begun = self.live + live, self.begun + begun
        self.most_live = max(self.most_live, self.live)
        self.most_begun = max(self.most_begun, self.begun)


class ScriptedRunner:
    """Drives the children of one run, which only wait. `depth` is how many runs that stands in."""

    def __init__(
        self, children: tuple[Child, ...], slots: ChildSlots, counts: Counts, depth: int = 0
    ) -> None:
        self.children = children
        self.counts = counts
        self.depth = depth
        self._slots = slots

    @property
    def slots(self) -> ChildSlots:
        return self._slots

    def decide(self, decided: Decided | None) -> None: ...

    def check_model(self, parent: Parent, asked: AskedName) -> None: ...

    def refusal(self, parent: Parent, request: ChildRequest) -> None: ...

    def waits(self, parent: str, change: int) -> None: ...

    async def begin(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller
    ) -> tuple[Run, Head]:
        assert caller.depth == self.depth + 1
        child = self.children[request.item]
        self.counts.change(live=1, begun=1)
        try:
            answer = await self._work(child, request.prompt)
        finally:
            self.counts.change(live=-1, begun=-1)
        return Run(
            run=run,
            answer=answer,
            stop="no_progress" if child.fails else "answered",
            detail="",
            partial=child.fails,
            turns=0,
            charge=Charge(),
            citations=(),
            ledger="",
        ), Head.of_nothing()

    async def resume(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller
    ) -> tuple[Run, Head]:
        raise AssertionError("nothing was begun before")

    async def _work(self, child: Child, name: str) -> str:
        await asyncio.sleep(child.works)
        if not child.inside:
            return name
        inside = ScriptedRunner(child.inside, self.slots, self.counts, self.depth + 1)
        self.counts.change(live=-1)
        try:
            told = await batch(inside, name)
        finally:
            self.counts.change(live=1)
        await asyncio.sleep(child.works)
        return str(told)


_: type[ChildRunner] = ScriptedRunner


async def batch(runner: ScriptedRunner, name: str) -> dict[str, object]:
    """Begin all children of a runner at once, as a program of its run does."""
    calls = ProgramCalls()
    children = Children(
        calls.effects,
        cast(Queries, None),
        calls.run_attachments,
        depth=runner.depth,
        parent=Parent(
            run=RUN,
            model_door=cast(ModelDoor, None),
            limits=RunLimits(),
            grants=(),
            seed=0,
            temperature=None,
            wrap=lambda function: function,
            deeper=lambda depth: nullcontext(),
            model=cast(Model, None),
            depth=runner.depth,
        ),
        runner=runner,
    )
    prompts = [f"{name}.{number}" for number in range(len(runner.children))]
    try:
        return await children.query_batch(calls.call("rlm_query_batched"), prompts)
    finally:
        # Whatever was begun has its end, however it was left.
        begun = [each.item for each in calls.of(ChildBegun)]
        assert sorted(begun) == sorted(each.item for each in calls.of(ChildEnded))


def expected(children: tuple[Child, ...], name: str) -> dict[str, object]:
    """What a batch tells: answers in order, and of those that failed the place and why."""
    names = [f"{name}.{number}" for number in range(len(children))]
    answers = [
        str(expected(each.inside, called)) if each.inside else called
        for each, called in zip(children, names, strict=True)
    ]
    errors = []
    for item, each in enumerate(children):
        if each.fails:
            said = f"no_progress: . What it had: {answers[item][:1_000]}"
            problem = QueryProblem("ChildStopped", said)
            errors.append([item, problem.kind, str(problem)])
    told = [None if each.fails else said for each, said in zip(children, answers, strict=True)]
    return {"answers": told, "errors": errors, "note": None}


works = st.integers(min_value=0, max_value=9)
leaves = st.builds(Child, works=works, fails=st.booleans())
trees = st.recursive(
    leaves,
    lambda inside: st.builds(
        Child,
        works=works,
        inside=st.lists(inside, min_size=1, max_size=5).map(tuple),
        fails=st.booleans(),
    ),
    max_leaves=15,
)
batches = st.lists(trees, max_size=5).map(tuple)


@given(children=batches, most=st.integers(1, 5), begun_most=st.integers(1, 8))
def test_any_tree_of_batches_ends_with_its_answers_in_order(
    children: tuple[Child, ...], most: int, begun_most: int
) -> None:
    counts = Counts()
    runner = ScriptedRunner(children, ChildSlots(most, begun_most), counts)

    told = run_virtually(batch(runner, "0"))

    assert told == expected(children, "0")
    assert counts.most_live <= most
    height = max((each.height for each in children), default=0)
    assert counts.most_begun <= max(begun_most, most) + 4 * height
    assert (counts.live, counts.begun) == (0, 0)


@given(children=batches, most=st.integers(1, 4), left_at=st.integers(0, 30))
def test_a_tree_that_is_left_in_the_middle_gives_every_place_back(
    children: tuple[Child, ...], most: int, left_at: int
) -> None:
    counts, after = Counts(), Counts()
    slots = ChildSlots(most, 6)

    async def scene() -> dict[str, object]:
        going = asyncio.ensure_future(batch(ScriptedRunner(children, slots, counts), "0"))
        await asyncio.sleep(left_at)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        assert (counts.live, counts.begun) == (0, 0)
        return await batch(ScriptedRunner((Child(1),) * 9, slots, after), "1")

    run_virtually(scene())

    assert after.most_live == most


def test_whoever_waits_for_nobody_is_found_out() -> None:
    """The control: a loop that could not tell would prove nothing."""

    async def scene() -> None:
        slots = ChildSlots(1)
        async with slots.hold(depth=1), slots.hold(depth=2):
            raise AssertionError("there was one place")

    with pytest.raises(Stuck):
        run_virtually(scene())
