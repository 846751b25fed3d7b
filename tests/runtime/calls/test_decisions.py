"""Calls that a process died in: nothing is done about them until somebody has decided.

Each test cuts a run off where one of its calls is under way: its own, one of a program, some of a
batch, or an effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import pytest
from tests.runtime.run.cut_runs import (
    Whole,
    World,
    in_doubt,
    keys_of,
    played,
    reopened,
    without_time,
)

from tallystick.core.charge import Charge, ModelUsage, Reserved
from tallystick.core.errors import UsageError
from tallystick.core.records import (
    DOUBTED,
    AskModel,
    CallHost,
    HostAnswered,
    ModelFailed,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunResumed,
)
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.views.open_calls import NOT_RECEIVED, UNKNOWN, Lookup, open_calls
from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import ModelReply
from tallystick.runtime.calls.functions import RunFunction, effect_key, host_function
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import ledger_of
from tallystick.testing.models import block, reported
from tallystick.testing.plans import Planned, planned, program
from tallystick.testing.runs import play

CAUGHT = "except HostError as error:\n    n += 1000\n    print(error.kind, error)"
PLAN: Sequence[Planned] = (
    program("n = 1", "print(n)"),
    program(f"try:\n    n += send('what')\n{CAUGHT}"),
    program(f"try:\n    n += len(llm_query('one'))\n{CAUGHT}"),
    program(
        "rs = llm_query_batched(['a', 'bc', 'def'])",
        "n += sum(len(each) for each in rs if isinstance(each, str))",
        "print([each.kind for each in rs if isinstance(each, HostError)])",
    ),
    program("FINAL(n)"),
)
ANSWER = str(1 + 4 + len("said one") + len("said a") + len("said bc") + len("said def"))
# What is open, and how many calls that is.
KINDS = {"model": 1, "query": 1, "batch": 2, "effect": 1}


@pytest.fixture(scope="module")
def whole(sandbox: WasmSandbox) -> Whole:
    made = played(sandbox, *PLAN)
    assert made.run.answer == ANSWER
    return made


def place_of(records: Sequence[Record], kind: str) -> int:
    """How many records there are when a call of that kind is under way."""
    for place, record in enumerate(records):
        match record:
            case AskModel(turn=3) if kind == "model":
                return place + 1
            case CallHost() if kind == "effect":
                return place + 1
            case QueryAsked() if kind == "query":
                return place + 1
            case QueryReplied() if kind == "batch" and isinstance(records[place - 1], QueryAsked):
                if isinstance(records[place - 2], QueryAsked):
                    # One of three has its answer.
                    return place + 1
            case _:
                pass
    raise AssertionError(kind)


def cut(whole: Whole, sandbox: WasmSandbox, kind: str, **more: Any) -> tuple[World, list[Record]]:
    before = whole.records[: place_of(whole.records, kind)]
    assert len(open_calls(before)) == KINDS[kind]
    return reopened(whole, sandbox, before, **more), before


def doubted(records: Sequence[Record]) -> list[ModelFailed | QueryFailed]:
    return [
        each
        for each in records
        if isinstance(each, ModelFailed | QueryFailed) and each.reason == DOUBTED
    ]


def printed(records: Sequence[Record]) -> str:
    return "".join(each.stdout for each in records if isinstance(each, ProgramFinished))


def check_held(made: World, run: Run) -> None:
    assert verify_ledger(made.ledger, [run.run]).first_bad is None
    assert open_calls(made.records(run.run)) == []
    report = made.session.replay(run.run)
    assert report.held, report.divergence


# -- halt --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_by_default_nothing_is_done_and_what_is_open_is_named(
    whole: Whole, sandbox: WasmSandbox, kind: str
) -> None:
    made, before = cut(whole, sandbox, kind)
    row = made.ledger.row(whole.id)

    with pytest.raises(RunInDoubt) as caught:
        made.session.resume(whole.id)

    (found,) = caught.value.open
    opened = open_calls(before)
    assert found.intent == opened[0].intent
    assert found.what == {"model": "the model", "effect": "send"}.get(kind, "llm_query")
    if kind == "batch":
        assert found.items == tuple(sorted(each.item for each in opened))  # type: ignore[union-attr]
    assert whole.id in str(caught.value)
    assert made.asked == []
    assert made.ledger.row(whole.id) == row
    assert made.records(whole.id) == before


# -- retry -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "query", "batch"])
def test_a_paid_call_that_is_made_again_is_charged_once_at_what_was_reserved(
    whole: Whole, sandbox: WasmSandbox, kind: str
) -> None:
    made, before = cut(whole, sandbox, kind)
    opened = [each for each in open_calls(before) if isinstance(each, AskModel | QueryAsked)]

    run = made.session.resume(whole.id, in_doubt="retry")

    records = made.records(whole.id)
    failures = doubted(records)
    assert run.answer == ANSWER
    assert len(failures) == len(opened)
    reserved = [each.reserved for each in opened]
    for failure in failures:
        assert failure.settled is not None
        assert failure.settled.figures == "reserved"
        assert failure.settled.flags
        assert (failure.kind, failure.billed) == ("transient", True)
    extra = reduce(add, map(worst, reserved))
    assert without_time(run.charge) == without_time(whole.run.charge) + extra
    # Each in a new attempt, under a key of its own.
    assert not set(made.model.keys) & keys_of(whole.id, before)
    assert len(made.model.keys) == len(whole.world.model.keys) - answered(before)
    check_held(made, run)


def worst(reserved: Reserved | None) -> Charge:
    assert reserved is not None
    return Charge(
        usd=reserved.usd,
        tokens_in=reserved.tokens_in,
        tokens_out=reserved.tokens_out,
        model_calls=1,
    )


def answered(records: Sequence[Record]) -> int:
    asked = sum(isinstance(each, AskModel | QueryAsked) for each in records)
    return asked - len([each for each in open_calls(records) if not isinstance(each, CallHost)])


def test_an_effect_that_is_made_again_is_a_second_attempt(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made, _ = cut(whole, sandbox, "effect")

    run = made.session.resume(whole.id, in_doubt="retry")

    calls = [each for each in made.records(whole.id) if isinstance(each, CallHost)]
    assert [each.attempt for each in calls] == [1, 2]
    # Under the key that it had: whoever got it twice can tell.
    assert made.effects.keys == [f"{whole.id}-{calls[0].intent}"]
    assert run.answer == ANSWER
    assert run.charge.host_calls == whole.run.charge.host_calls
    check_held(made, run)


def test_an_effect_may_be_in_doubt_as_often_as_the_process_dies(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    """Each time behind the record of the attempt that was made last."""
    _, records = cut(whole, sandbox, "effect")
    for attempt in range(2, 5):
        made = reopened(whole, sandbox, records)
        made.session.resume(whole.id, in_doubt="retry")
        assert made.effects.keys == [f"{whole.id}-{open_calls(records)[0].intent}"]
        after = made.records(whole.id)
        begun = [place for place, each in enumerate(after) if isinstance(each, CallHost)]
        assert len(begun) == attempt
        records = after[: begun[-1] + 1]
        assert made.session.replay(whole.id).held


def test_an_effect_that_was_made_twice_is_asked_for_by_the_one_key_it_had(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made, before = cut(whole, sandbox, "effect")
    made.session.resume(whole.id, in_doubt="retry")
    records = made.records(whole.id)
    *_, second = [place for place, each in enumerate(records) if isinstance(each, CallHost)]
    asked: list[str] = []

    def look(key: str) -> int:
        asked.append(key)
        return 4

    again = reopened(whole, sandbox, records[: second + 1], **with_send(lookup=look))
    run = again.session.resume(whole.id)

    assert asked == made.effects.keys == [f"{whole.id}-{open_calls(before)[0].intent}"]
    assert run.answer == ANSWER
    check_held(again, run)


# -- abandon -----------------------------------------------------------------------------------


def test_a_run_whose_own_call_is_given_up_ends_and_can_be_gone_on_with(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made, _ = cut(whole, sandbox, "model")

    run = made.session.resume(whole.id, in_doubt="abandon")

    assert (run.stop, made.asked) == ("in_doubt", [])
    (failure,) = doubted(made.records(whole.id))
    assert failure.settled is not None
    assert failure.settled.figures == "reserved"
    check_held(made, run)

    again = made.session.resume(whole.id)

    assert again.answer == ANSWER
    check_held(made, again)


@pytest.mark.parametrize("kind", ["query", "batch", "effect"])
def test_a_program_sees_a_call_that_is_given_up_as_an_error(
    whole: Whole, sandbox: WasmSandbox, kind: str
) -> None:
    made, before = cut(whole, sandbox, kind)

    run = made.session.resume(whole.id, in_doubt="abandon")

    records = made.records(whole.id)
    assert run.stop == "answered"
    assert not set(made.asked) & keys_of(whole.id, before)
    assert made.effects.keys == []
    told = "['InDoubt', 'InDoubt']" if kind == "batch" else "InDoubt "
    assert told in printed(records)
    if kind == "effect":
        (answer,) = [each for each in records if isinstance(each, HostAnswered)][:1]
        assert not answer.ok
    else:
        assert [each.kind for each in doubted(records)] == ["terminal"] * KINDS[kind]
    check_held(made, run)


def test_a_program_that_does_not_catch_it_fails_and_the_model_hears_of_it(
    sandbox: WasmSandbox,
) -> None:
    whole = played(sandbox, program("n = send('what')", "print(n)"), program("FINAL(7)"))
    made, _ = cut(whole, sandbox, "effect")

    run = made.session.resume(whole.id, in_doubt="abandon")

    (failed, _) = [each for each in made.records(whole.id) if isinstance(each, ProgramFinished)]
    assert failed.failure is not None
    assert "not made again" in failed.failure.traceback
    assert run.answer == "7"
    check_held(made, run)


# -- a provider that can be asked --------------------------------------------------------------


def finding(
    whole: Whole, said: Callable[[str], ModelReply | Lookup], asked: list[tuple[str, str]]
) -> Callable[[str, str], Any]:
    async def find(model: str, key: str) -> ModelReply | Lookup:
        asked.append((model, key))
        return said(key)

    return find


def reply_to(whole: Whole, key: str) -> ModelReply:
    """What a call of the whole run was answered."""
    for record in whole.records:
        if isinstance(record, QueryReplied) and key == f"{whole.id}-{record.intent}.{record.item}":
            return ModelReply(text=record.text, usage=record.usage)
        if getattr(record, "intent", 0) and key == f"{whole.id}-{record.intent}":  # type: ignore[union-attr]
            text, usage = getattr(record, "text", None), getattr(record, "usage", None)
            if isinstance(text, str) and isinstance(usage, ModelUsage):
                return ModelReply(text=text, usage=usage)
    raise AssertionError(key)


@pytest.mark.parametrize("kind", ["model", "query", "batch"])
def test_a_reply_that_is_found_is_taken_and_settled_as_it_is_reported(
    whole: Whole, sandbox: WasmSandbox, kind: str
) -> None:
    asked: list[tuple[str, str]] = []
    made, before = cut(
        whole, sandbox, kind, lookup=finding(whole, lambda key: reply_to(whole, key), asked)
    )
    if kind == "model":
        made.plan.skip_reply()

    run = made.session.resume(whole.id)

    assert run.answer == ANSWER
    assert without_time(run.charge) == without_time(whole.run.charge)
    assert {key for _, key in asked} <= keys_of(whole.id, before)
    assert [model for model, _ in asked] == ["fake:model"] * KINDS[kind]
    assert not {key for _, key in asked} & set(made.model.keys)
    assert not doubted(made.records(whole.id))
    check_held(made, run)


@pytest.mark.parametrize("kind", ["model", "query", "batch"])
def test_a_call_that_never_arrived_costs_nothing_and_is_made(
    whole: Whole, sandbox: WasmSandbox, kind: str
) -> None:
    made, _ = cut(whole, sandbox, kind, lookup=finding(whole, lambda key: NOT_RECEIVED, []))

    run = made.session.resume(whole.id)

    failures = doubted(made.records(whole.id))
    assert run.answer == ANSWER
    assert [each.settled.figures for each in failures] == ["returned"] * KINDS[kind]  # type: ignore[union-attr]
    assert [each.billed for each in failures] == [False] * KINDS[kind]
    assert run.charge.usd == whole.run.charge.usd
    assert run.charge.tokens_in == whole.run.charge.tokens_in
    check_held(made, run)


@pytest.mark.parametrize("kind", ["model", "query", "batch"])
def test_where_nobody_knows_it_is_as_if_nobody_had_been_asked(
    whole: Whole, sandbox: WasmSandbox, kind: str
) -> None:
    made, before = cut(whole, sandbox, kind, lookup=finding(whole, lambda key: UNKNOWN, []))

    with pytest.raises(RunInDoubt):
        made.session.resume(whole.id)

    assert made.records(whole.id) == before


def test_only_those_of_a_batch_are_named_of_which_nobody_knows(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    before = whole.records[: place_of(whole.records, "batch")]
    first, second = open_calls(before)
    assert isinstance(first, QueryAsked)
    assert isinstance(second, QueryAsked)

    def said(key: str) -> ModelReply | Lookup:
        return reply_to(whole, key) if key.endswith(f".{first.item}") else UNKNOWN

    made = reopened(whole, sandbox, before, lookup=finding(whole, said, []))
    with pytest.raises(RunInDoubt) as caught:
        made.session.resume(whole.id)
    (found,) = caught.value.open
    assert found.items == (second.item,)

    run = made.session.resume(whole.id, in_doubt="retry")

    (failure,) = doubted(made.records(whole.id))
    assert isinstance(failure, QueryFailed)
    assert failure.item == second.item
    assert run.answer == ANSWER
    check_held(made, run)


def test_a_model_may_be_asked_itself(whole: Whole, sandbox: WasmSandbox) -> None:
    before = whole.records[: place_of(whole.records, "query")]
    made = reopened(whole, sandbox, before)
    model = planned(whole.plan, before)
    model.lookup_reply = lambda key: reply_to(whole, key)
    made.session.use(model)

    run = made.session.resume(whole.id)

    (opened,) = open_calls(before)
    assert model.looked_up == [f"{whole.id}-{opened.intent}.0"]
    assert run.answer == ANSWER
    assert without_time(run.charge) == without_time(whole.run.charge)


def test_a_long_reply_that_is_found_is_kept_apart_like_any_other(sandbox: WasmSandbox) -> None:
    plan = (program("n = len(llm_query('long one'))", "print(n)"), program("FINAL(n)"))
    whole = played(sandbox, *plan)
    (record,) = [each for each in whole.records if isinstance(each, QueryReplied)]
    assert record.text_ref is not None

    async def find(model: str, key: str) -> ModelReply:
        return ModelReply(text="long " * 20_000, usage=record.usage)

    made, _ = cut(whole, sandbox, "query", lookup=find)
    run = made.session.resume(whole.id)

    assert run.answer == whole.run.answer == "100000"
    (again,) = [each for each in made.records(whole.id) if isinstance(each, QueryReplied)]
    assert again.text_ref == record.text_ref
    check_held(made, run)


@pytest.mark.parametrize("usage", [(0, 0, True), (-1, 5, True), (9, 9, False)])
def test_a_found_reply_without_figures_is_settled_at_what_was_reserved(
    whole: Whole, sandbox: WasmSandbox, usage: tuple[int, int, bool]
) -> None:
    figures = ModelUsage(tokens_in=usage[0], tokens_out=usage[1], reported=usage[2])

    async def find(model: str, key: str) -> ModelReply:
        return ModelReply(text="said one", usage=figures)

    made, before = cut(whole, sandbox, "query", lookup=find)
    made.session.resume(whole.id)

    (opened,) = open_calls(before)
    (found,) = [
        each
        for each in made.records(whole.id)
        if isinstance(each, QueryReplied) and each.intent == opened.intent
    ]
    assert found.settled.figures == "reserved"
    assert found.settled.flags


@pytest.mark.parametrize("kind", ["model", "effect"])
def test_a_lookup_that_fails_stops_the_resume_and_nothing_is_written(
    whole: Whole, sandbox: WasmSandbox, kind: str
) -> None:
    def failing(key: str) -> object:
        raise ConnectionError("no route")

    async def find(model: str, key: str) -> ModelReply:
        raise ConnectionError("no route")

    made, _ = cut(whole, sandbox, kind, lookup=find, **with_send(lookup=failing))
    row = made.ledger.row(whole.id)

    with pytest.raises(ConnectionError):
        made.session.resume(whole.id, in_doubt="retry")

    assert made.ledger.row(whole.id) == row
    assert made.asked == []


@pytest.mark.parametrize("said", [None, "a text", 7, b"", {"text": "x"}])
@pytest.mark.parametrize("kind", ["model", "query"])
def test_a_lookup_that_says_what_is_no_answer_is_refused_and_nothing_is_written(
    whole: Whole, sandbox: WasmSandbox, kind: str, said: object
) -> None:
    async def find(model: str, key: str) -> Any:
        return said

    made, _ = cut(whole, sandbox, kind, lookup=find)
    row = made.ledger.row(whole.id)

    with pytest.raises(UsageError, match="lookup"):
        made.session.resume(whole.id)

    assert made.ledger.row(whole.id) == row


# -- models in this process --------------------------------------------------------------------


def test_a_model_in_this_process_sends_no_bill_and_is_asked_again(sandbox: WasmSandbox) -> None:
    replies = [block("n = 20\nprint(n)"), block("FINAL(n + 1)")]
    whole = play(sandbox, replies)
    place = [type(each) for each in whole.records].index(AskModel, 4)
    ledger = ledger_of(whole.run.run, whole.records[: place + 1])

    from tallystick.client import Session
    from tallystick.model.scripted import ScriptedModel

    session = Session(model=ScriptedModel.of(*replies), ledger=ledger, sandbox=sandbox)
    run = session.resume(whole.run.run)

    assert run.answer == "21"
    (failure,) = doubted(whole_records(ledger, run.run))
    assert failure.settled is not None
    assert failure.settled.figures == "returned"
    assert run.charge.tokens_in == whole.run.charge.tokens_in
    assert session.replay(run.run).held


# -- effects -----------------------------------------------------------------------------------


def with_send(**more: Any) -> dict[str, Any]:
    """Functions as they were, but for `send`, which says more of itself."""

    @host_function(policy="effect", **more)
    def send(what: str) -> int:
        """Send it."""
        SENT.append(effect_key())
        return len(what)

    return {"instead": [send]}


SENT: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


def test_what_may_be_made_twice_is_simply_made_again(whole: Whole, sandbox: WasmSandbox) -> None:
    made, before = cut(whole, sandbox, "effect", **with_send(idempotent=True))

    run = made.session.resume(whole.id)

    (opened,) = open_calls(before)
    assert [f"{whole.id}-{opened.intent}"] == SENT
    assert run.answer == ANSWER
    check_held(made, run)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("said", [4, NOT_RECEIVED, UNKNOWN])
def test_whoever_made_an_effect_says_what_came_of_it(
    whole: Whole, sandbox: WasmSandbox, said: object, asynchronous: bool
) -> None:
    keys: list[str] = []

    def look(key: str) -> object:
        keys.append(key)
        return said

    async def alook(key: str) -> object:
        return look(key)

    made, before = cut(
        whole, sandbox, "effect", **with_send(lookup=alook if asynchronous else look)
    )
    (opened,) = open_calls(before)

    if said is UNKNOWN:
        with pytest.raises(RunInDoubt):
            made.session.resume(whole.id)
        assert made.records(whole.id) == before
    else:
        run = made.session.resume(whole.id)
        assert run.answer == ANSWER
        assert len(SENT) == (said is NOT_RECEIVED)
        check_held(made, run)
    assert keys == [f"{whole.id}-{opened.intent}"]


@pytest.mark.parametrize("found", [None, "text", [1, {"a": None}], b"bytes", "x" * 200_000])
def test_what_an_effect_returned_is_told_as_it_would_have_been(
    sandbox: WasmSandbox, found: object
) -> None:
    @host_function(policy="effect", lookup=lambda key: found)
    def get() -> object:
        """Get it."""
        return found

    whole = played(
        sandbox, program("found = get()", "print(repr(found)[-40:])"), LAST, functions=[get]
    )
    made, _ = cut(whole, sandbox, "effect", functions=[get])
    run = made.session.resume(whole.id)

    assert printed(made.records(run.run)) == printed(whole.records)
    assert without_time(run.charge) == without_time(whole.run.charge)
    check_held(made, run)


LAST = program("FINAL(repr(found)[:9])")


def test_what_cannot_be_told_is_an_error_of_the_program(sandbox: WasmSandbox) -> None:
    @host_function(policy="effect", lookup=lambda key: object())
    def get() -> int:
        """Get it."""
        return 4

    whole = played(sandbox, program("found = get()", "print(found)"), LAST, functions=[get])
    made, _ = cut(whole, sandbox, "effect", functions=[get])
    run = made.session.resume(whole.id)

    (failed, *_) = [each for each in made.records(run.run) if isinstance(each, ProgramFinished)]
    assert failed.failure is not None
    assert "cannot be encoded" in failed.failure.message
    check_held(made, run)


def test_the_key_is_the_same_wherever_a_function_runs(sandbox: WasmSandbox) -> None:
    keys: dict[str, str] = {}
    looked: list[str] = []

    def look(key: str) -> int:
        looked.append(key)
        return 1

    @host_function(policy="effect", lookup=look)
    def threaded() -> int:
        """Run in a thread."""
        keys["threaded"] = effect_key()
        return 1

    @host_function(policy="effect", local=True, lookup=look)
    def inline() -> int:
        """Run in the program's thread."""
        keys["inline"] = effect_key()
        return 1

    @host_function(policy="effect", lookup=look)
    async def awaited() -> int:
        """Run on the loop."""
        import asyncio

        await asyncio.sleep(0)
        keys["awaited"] = effect_key()
        return 1

    functions: list[RunFunction] = [threaded, inline, awaited]
    whole = played(
        sandbox, program("n = threaded() + inline() + awaited()", "print(n)"), functions=functions
    )
    begun = [
        (place, each) for place, each in enumerate(whole.records) if isinstance(each, CallHost)
    ]
    assert len(set(keys.values())) == 3

    for place, record in begun:
        made = reopened(whole, sandbox, whole.records[: place + 1], functions=functions)
        before = dict(keys)
        assert made.session.resume(whole.id).answer == whole.run.answer
        assert looked.pop() == before[record.name]
        assert looked == []
    with pytest.raises(UsageError, match="no effect is under way"):
        effect_key()


def test_a_read_is_not_in_doubt_and_has_no_key(sandbox: WasmSandbox) -> None:
    """What only reads is made again without a word."""
    seen: list[str] = []

    @host_function(policy="read")
    def look() -> int:
        """Look."""
        try:
            seen.append(effect_key())
        except UsageError:
            seen.append("")
        return 1

    whole = played(sandbox, program("n = look()", "print(n)"), functions=[look])
    place = next(n for n, each in enumerate(whole.records) if isinstance(each, HostAnswered))
    made = reopened(whole, sandbox, whole.records[:place], functions=[look])

    assert made.session.resume(whole.id).answer == whole.run.answer
    assert len(seen) == 2


# -- what is written ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["retry", "abandon"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_record_says_what_was_decided_before_it_says_what_came_of_it(
    whole: Whole, sandbox: WasmSandbox, kind: str, policy: Any
) -> None:
    made, before = cut(whole, sandbox, kind)
    watched: list[Record] = []

    made.session.resume(whole.id, in_doubt=policy, watch=lambda run, record: watched.append(record))

    records = made.records(whole.id)
    continuation = records[len(before)]
    assert isinstance(continuation, RunResumed)
    assert (continuation.in_doubt, continuation.limits, continuation.stolen) == (
        policy,
        None,
        False,
    )
    assert continuation.fence == 2
    # Who watches sees what is new, and all of it.
    assert watched == records[len(before) :]
    assert in_doubt(records) or kind == "effect"


def test_what_was_found_is_asked_for_once_and_not_when_the_run_is_cut_off_again(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    asked: list[tuple[str, str]] = []
    find = finding(whole, lambda key: reply_to(whole, key), asked)
    made, before = cut(whole, sandbox, "batch", lookup=find)
    made.session.resume(whole.id)
    records = made.records(whole.id)
    assert len(asked) == 2

    # Behind the first of those that were found.
    after = next(
        place
        for place, each in enumerate(records)
        if place >= len(before) and isinstance(each, QueryReplied)
    )
    second = reopened(whole, sandbox, records[: after + 1], lookup=find)
    run = second.session.resume(whole.id)

    assert len(asked) == 3
    assert run.answer == ANSWER
    assert without_time(run.charge) == without_time(whole.run.charge)
    check_held(second, run)


def test_a_schema_is_held_against_a_reply_that_is_found(sandbox: WasmSandbox) -> None:
    """One that does not fit is repaired, in a second attempt."""
    plan = (program("n = llm_query('number of it', schema=int)", "print(n)"), program("FINAL(n)"))
    whole = played(sandbox, *plan)

    async def find(model: str, key: str) -> ModelReply:
        return ModelReply(text="no number", usage=reported(1, 2))

    made, _ = cut(whole, sandbox, "query", lookup=find)
    made.plan.count_outcome(open_calls(made.records(whole.id))[0].intent, 0)
    run = made.session.resume(whole.id)

    assert run.answer == whole.run.answer
    assert len(made.model.keys) == 2
    check_held(made, run)
    assert json.dumps(run.answer)
