"""Runs that programs begin: real runs of their own, capped by what their parent has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.play import block
from tests.runtime.costed import PRICING, Costed

from tallystick.attachments.memory import MemoryAttachments
from tallystick.core.chain import Draft, Head
from tallystick.core.records import ChildBegun, ChildEnded, RunLimits, RunStarted, tag_of
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.verify import verify
from tallystick.model.port import ModelReply, ModelRequest
from tallystick.runtime.child_slots import ChildSlots
from tallystick.runtime.history import records_of
from tallystick.runtime.session import Session
from tallystick.sandbox.wasm.sandbox import WasmSandbox

WIDE = RunLimits(tokens=10_000_000)
slow = pytest.mark.slow
OPEN: list[Session] = []


class Tree(Costed):
    """Splits a count in two until it is one, then answers. Keeps the key of every call."""

    keys: list[str]

    async def _reply(self, request: ModelRequest) -> ModelReply:
        self.__dict__.setdefault("keys", []).append(request.key)
        goal = next(each.text for each in request.messages if "count " in each.text)
        size = int(goal.split("count ")[1].split()[0])
        program = "FINAL(1)"
        if size > 1:
            program = (
                f"parts = rlm_query_batched(['count {size // 2} now'] * 2)\n"
                "FINAL(sum(int(each) for each in parts))"
            )
        self.answer = lambda prompt: block(program)
        return await super()._reply(request)


class Says(Costed):
    """The root runs one program; every other run, and every call of a program, answers alike."""

    def __init__(self, program: str, child: str = "FINAL(context.upper())") -> None:
        super().__init__()
        self.program, self.child = program, child

    async def _reply(self, request: ModelRequest) -> ModelReply:
        direct = len(request.messages) == 1
        root = any("the root" in each.text for each in request.messages)
        said = "said directly" if direct else block(self.program if root else self.child)
        self.answer = lambda prompt: said
        return await super()._reply(request)


class Logged(MemoryLedger):
    """Remembers everything that was written, in the order in which it was, over all chains."""

    def __init__(self, acts: Sequence[Callable[[MemoryLedger], object]] = ()) -> None:
        super().__init__(salts=bytes)
        self.acts: list[Callable[[MemoryLedger], object]] = []
        for act in acts:
            act(self)

    def claim(self, run: str, *, create: bool, grown_from: str | None = None) -> int:
        self.acts.append(
            lambda ledger: MemoryLedger.claim(ledger, run, create=create, grown_from=grown_from)
        )
        return super().claim(run, create=create, grown_from=grown_from)

    def submit(self, run: str, drafts: Sequence[Draft], **more: Any) -> Any:
        fresh = {**more, "also": None}
        self.acts.append(lambda ledger: MemoryLedger.submit(ledger, run, drafts, **fresh))
        return super().submit(run, drafts, **more)


def opened(
    sandbox: WasmSandbox,
    model: Any,
    ledger: Any = None,
    attachments: MemoryAttachments | None = None,
) -> Session:
    session = Session(
        model=model,
        ledger=ledger or MemoryLedger(),
        attachments=attachments,
        sandbox=sandbox,
        pricing=PRICING,
    )
    OPEN.append(session)
    return session


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No session is left open: each has a loop, with files of its own."""
    yield
    while OPEN:
        OPEN.pop().close()


def test_a_tree_of_runs_answers_as_one(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, Tree())

    run = session.run("count 8 now", limits=WIDE)

    assert run.answer == "8"
    chains = [row.run for row in session.ledger.runs()]
    assert len(chains) == 15
    assert verify(session.ledger).ok
    assert all(session.replay(chain).held for chain in chains)
    starts = [next(records_of(session.ledger, chain)) for chain in chains]
    depths = [
        0 if each.caller is None else each.caller.depth
        for each in starts
        if isinstance(each, RunStarted)
    ]
    assert sorted(depths) == [0] + [1] * 2 + [2] * 4 + [3] * 8


def test_what_children_cost_is_in_what_their_parent_cost(sandbox: WasmSandbox) -> None:
    model = Tree()
    session = opened(sandbox, model)

    run = session.run("count 4 now", limits=WIDE)

    assert run.charge.usd == model.billed
    assert run.charge.model_calls == 7
    assert run.charge.turns == 1


def test_a_child_reads_its_own_context_and_returns_text(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, Says("FINAL(rlm_query('shout it', context='so it is'))"))

    assert session.run("the root").answer == "SO IT IS"


def test_a_batch_keeps_its_order_and_tells_failures_apart(sandbox: WasmSandbox) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 3, contexts=['a', {'x': 'b', 'y': 'b'}, 'c'])\n"
        "FINAL([each if isinstance(each, str) else each.kind for each in found])"
    )
    session = opened(sandbox, Says(program))

    run = session.run("the root", limits=WIDE)

    # The second has its texts by name, so its program fails, again and again.
    assert run.answer == '["A","ChildStopped","C"]'


def test_a_single_child_that_stops_is_an_error_that_can_be_caught(sandbox: WasmSandbox) -> None:
    program = "try:\n    rlm_query('q')\nexcept HostError as error:\n    FINAL(error.kind)"
    session = opened(sandbox, Says(program, child="RUN(ls)"))

    assert session.run("the root", limits=WIDE).answer == "ChildStopped"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("rlm_query(3)", "text is needed"),
        ("rlm_query('q', context=3)", "context 0"),
        ("rlm_query('q', context=[1])", "context 0"),
        ("rlm_query_batched('q')", "a list of texts"),
        ("rlm_query_batched(['q'], contexts=[])", "1 prompts and 0 contexts"),
        ("rlm_query('q', model='other')", "is not for programs"),
        ("rlm_query_batched(['q'] * 20_000)", "at most 10,000"),
    ],
)
def test_what_cannot_be_asked_is_said_to_the_program(
    sandbox: WasmSandbox, call: str, said: str
) -> None:
    program = f"try:\n    {call}\nexcept HostError as error:\n    FINAL(str(error))"
    session = opened(sandbox, Says(program))

    assert said in (session.run("the root", limits=WIDE).answer or "")


def test_at_the_greatest_depth_the_model_is_asked_directly_and_it_is_said(
    sandbox: WasmSandbox,
) -> None:
    program = "FINAL(rlm_query('q', context='c'))"
    session = opened(sandbox, Says(program))

    run = session.run("the root", limits=RunLimits(depth=0))

    assert run.answer == "said directly"
    assert len(session.ledger.runs()) == 1
    (finished,) = [
        each for each in records_of(session.ledger, run.run) if tag_of(each) == "program.finished"
    ]
    assert "asked directly" in finished.stderr  # type: ignore[union-attr]
    assert session.replay(run.run).held


def test_a_model_that_recurses_for_ever_comes_to_an_end(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, Says("", child="FINAL(rlm_query('deeper'))"))

    run = session.run("down", limits=RunLimits(tokens=1_000_000, depth=4))

    assert run.answer == "said directly"
    assert len(session.ledger.runs()) == 5


@pytest.mark.parametrize("usd", [3_000_000, 20_000_000, 60_000_000, 200_000_000])
def test_a_tree_never_overdraws_the_cap_of_its_root(sandbox: WasmSandbox, usd: int) -> None:
    model = Tree()
    session = opened(sandbox, model)

    run = session.run("count 16 now", limits=RunLimits(tokens=10_000_000, usd=usd))

    assert model.billed <= usd
    assert run.charge.usd is None or run.charge.usd <= usd


def test_a_child_has_no_more_than_its_parent_has_left(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, Says("FINAL(rlm_query('q', context='c'))"))

    session.run("the root", limits=RunLimits(tokens=30_000, usd=500_000_000))

    _, child = [next(records_of(session.ledger, row.run)) for row in session.ledger.runs()]
    assert isinstance(child, RunStarted)
    assert child.limits.tokens < 30_000
    assert child.limits.usd is not None
    assert child.limits.usd < 500_000_000


@pytest.mark.slow
def test_a_thousand_children_through_one_batch(sandbox: WasmSandbox) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 1000, contexts=[f'c{n}' for n in range(1000)])\n"
        "FINAL(found == [f'C{n}' for n in range(1000)])"
    )
    session = opened(sandbox, Says(program))

    limits = RunLimits(tokens=100_000_000, host_calls=100_000, wall_ms=600_000)
    assert session.run("the root", limits=limits).answer == "true"


# -- cut off, and gone on with ---------------------------------------------------------------------


@pytest.mark.parametrize("start", [pytest.param(each, marks=slow) for each in (0, 1, 2)] + [3])
def test_a_tree_that_is_cut_off_anywhere_goes_on_to_the_same_answer(
    sandbox: WasmSandbox, start: int
) -> None:
    ledger, attachments, whole = Logged(), MemoryAttachments(), Tree()
    run = opened(sandbox, whole, ledger, attachments).run("count 4 now", limits=WIDE)
    acts = list(ledger.acts)

    for cut in range(2 + start, len(acts), 4):
        again, before = Tree(), Logged(acts[:cut])
        session = opened(sandbox, again, before, attachments)
        open_calls = {
            key
            for row in before.runs()
            for key in _open_keys(row.run, list(records_of(before, row.run)))
        }
        ended = session.resume(run.run, in_doubt="retry")

        assert ended.answer == "4", cut
        assert verify(before).ok
        assert all(session.replay(row.run).held for row in before.runs()), cut
        # Nothing that has an outcome was asked again.
        asked_before = {
            f"{row.run}-{each.intent}"  # type: ignore[union-attr]
            for row in Logged(acts[:cut]).runs()
            for each in records_of(Logged(acts[:cut]), row.run)
            if tag_of(each) == "model.replied"
        }
        assert not asked_before & set(again.__dict__.get("keys", [])), cut
        if not open_calls:
            assert ended.charge.usd == run.charge.usd, cut


def _open_keys(run: str, records: Sequence[Any]) -> set[str]:
    begun = {each.intent for each in records if tag_of(each) == "model.ask"}
    ended = {each.intent for each in records if tag_of(each) in ("model.replied", "model.failed")}
    return {f"{run}-{intent}" for intent in begun - ended}


def test_a_child_is_linked_to_its_parent_and_back(sandbox: WasmSandbox) -> None:
    session = opened(sandbox, Says("FINAL(rlm_query('q', context='c'))"))
    run = session.run("the root", limits=WIDE)

    records = list(records_of(session.ledger, run.run))
    (begun,) = [each for each in records if isinstance(each, ChildBegun)]
    (ended,) = [each for each in records if isinstance(each, ChildEnded)]
    started = next(records_of(session.ledger, begun.run))

    assert isinstance(started, RunStarted)
    assert started.caller is not None
    assert (started.caller.run, started.caller.intent) == (run.run, begun.intent)
    row = next(row for row in session.ledger.runs() if row.run == begun.run)
    assert row.head == Head(count=ended.count, hash=ended.hash)


# -- places ----------------------------------------------------------------------------------------


def test_a_tree_wider_than_there_are_places_does_not_wait_for_itself() -> None:
    live, most, begun = 0, 0, 0

    async def node(slots: ChildSlots, depth: int) -> int:
        nonlocal live, most, begun
        async with slots.held(depth=depth):
            live, begun = live + 1, begun + 1
            most = max(most, live)
            await asyncio.sleep(0)
            total = 1
            if depth < 4:
                live -= 1
                async with slots.lent(depth=depth):
                    total += sum(await asyncio.gather(*(node(slots, depth + 1) for _ in range(4))))
                live += 1
            live -= 1
        return total

    async def tree() -> int:
        slots = ChildSlots(2)
        return sum(await asyncio.gather(*(node(slots, 1) for _ in range(4))))

    assert asyncio.run(asyncio.wait_for(tree(), 20)) == 4 + 16 + 64 + 256
    assert most <= 2


def test_a_place_is_given_back_when_whoever_waits_is_cancelled() -> None:
    async def scene() -> None:
        slots = ChildSlots(1)
        async with slots.held(depth=1):
            waiting = asyncio.ensure_future(slots._take(1))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with slots.held(depth=1):
            pass

    asyncio.run(asyncio.wait_for(scene(), 5))
