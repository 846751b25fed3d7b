"""Which calls of a run are open: begun, and without an outcome on the record."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.core.machine.test_machine import finished, replied, started

from tallystick.core.charge import ModelUsage, Reserved, Settled
from tallystick.core.history import History
from tallystick.core.records import (
    LEFT,
    AskModel,
    CallHost,
    HostAnswered,
    ModelFailed,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    Record,
    RunProgram,
    RunResumed,
)
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.views.open_calls import OpenIntent, call_key, open_calls, open_intents

PAID = Reserved(tokens_in=100, tokens_out=50, usd=3_000)
PROGRAM = RunProgram(intent=2, turn=4, part=0, sha256="s")


def ask(intent: int = 1, *, turn: int = 1, reserved: Reserved | None = PAID) -> AskModel:
    return AskModel(
        intent=intent, turn=turn, base=None, added=(), request_sha256="r", reserved=reserved
    )


def query(item: int = 0, *, attempt: int = 1, intent: int = 3, usd: int | None = 10) -> QueryAsked:
    return QueryAsked(
        intent=intent, program=2, item=item, attempt=attempt, model="m", request_sha256="r",
        tokens_out_max=9, reserved=Reserved(tokens_in=5, tokens_out=6, usd=usd),
    )  # fmt: skip


def answered(item: int = 0, *, attempt: int = 1, intent: int = 3) -> QueryReplied:
    return QueryReplied(
        intent=intent, item=item, attempt=attempt, text="t",
        usage=ModelUsage(tokens_in=1, tokens_out=1, reported=True),
        settled=Settled(figures="reported", tokens_in=1, tokens_out=1),
    )  # fmt: skip


def failed(item: int = 0, *, attempt: int = 1, intent: int = 3) -> QueryFailed:
    return QueryFailed(
        intent=intent, item=item, attempt=attempt, reason="timeout", message="",
        settled=Settled(figures="reserved", tokens_in=1, tokens_out=1),
    )  # fmt: skip


def call(intent: int = 5, *, attempt: int = 1) -> CallHost:
    return CallHost(
        intent=intent, program=2, index=0, name="send", request_sha256="r", policy="effect",
        attempt=attempt,
    )  # fmt: skip


def told(intent: int = 5) -> HostAnswered:
    return HostAnswered(
        intent=intent, program=2, index=0, name="send", request_sha256="r", fuel=1, reply=b"0",
        ok=True,
    )  # fmt: skip


def test_nothing_is_open_in_a_run_that_has_only_begun() -> None:
    assert open_calls([]) == []
    assert open_calls([started()]) == []


def test_a_call_is_open_until_its_outcome_is_written() -> None:
    refused = QueryRefused(intent=3, item=0, attempt=2, message="", dimension="usd", scope="")

    assert open_calls([ask()]) == [ask()]
    assert open_calls([ask(), replied("x")]) == []
    assert open_calls([ask(), ModelFailed(intent=1, turn=1, reason="x", message="")]) == []
    assert open_calls([call()]) == [call()]
    assert open_calls([call(), told()]) == []
    assert open_calls([query()]) == [query()]
    assert open_calls([query(), answered()]) == []
    assert open_calls([query(), failed(), refused]) == []


def test_another_attempt_stands_for_the_one_before_it() -> None:
    second = query(attempt=2)

    assert open_calls([query(), failed(), second]) == [second]
    assert open_calls([call(), call(attempt=2)]) == [call(attempt=2)]
    assert open_calls([call(), call(attempt=2), told()]) == []


def test_of_a_batch_those_are_open_that_have_no_answer() -> None:
    items = [query(item) for item in range(4)]

    assert open_calls([*items, answered(2), answered(0)]) == [items[1], items[3]]


def test_a_batch_is_one_intent_with_the_places_that_are_open() -> None:
    records: Sequence[Record] = [PROGRAM, *map(query, range(4)), answered(2)]

    assert open_intents(records) == (
        OpenIntent(
            intent=3, kind="query", what="llm_query", turn=4, items=(0, 1, 3), tokens=33, usd=30
        ),
    )


def test_what_is_reserved_is_the_worst_and_is_unknown_where_no_price_was() -> None:
    (own,) = open_intents([ask(turn=7)])
    (free,) = open_intents([ask(reserved=None)])
    (unpriced,) = open_intents([query(0, usd=None), query(1, usd=None)])
    (mixed,) = open_intents([query(0, usd=None), query(1, usd=4)])

    assert (own.kind, own.turn, own.tokens, own.usd) == ("model", 7, 150, 3_000)
    assert (free.tokens, free.usd) == (0, None)
    assert (unpriced.tokens, unpriced.usd) == (22, None)
    assert mixed.usd == 4


def test_whoever_goes_on_in_spite_of_it_closes_what_nobody_waits_for() -> None:
    """A program that ended with an effect under way does not make it again."""
    ended: Sequence[Record] = [PROGRAM, call(), query(), finished(intent=2)]
    halted = RunResumed(at=1, fence=2)
    accepted = RunResumed(at=1, fence=2, in_doubt="abandon")

    assert len(open_calls([*ended, halted])) == 2
    assert open_calls([*ended, accepted]) == []
    # What a program still waits for stays open, and so does the run's own call.
    assert open_calls([PROGRAM, call(), ask(9), accepted]) == [call(), ask(9)]


def test_an_outcome_without_its_call_leaves_no_call_and_is_no_exchange() -> None:
    gone = ModelFailed(intent=1, turn=1, reason=LEFT, message="")
    left = QueryFailed(
        intent=3, item=0, attempt=1, reason=LEFT, message="",
        settled=Settled(figures="reserved", tokens_in=1, tokens_out=1),
    )  # fmt: skip
    history = History([started(), gone, left])
    assert history.left == []
    assert history.exchanges == []
    assert open_intents(history.records) == ()


def test_what_is_open_is_named_with_what_it_may_have_cost_and_what_to_do() -> None:
    error = RunInDoubt(run="R", open=open_intents([ask(), PROGRAM, query(0), query(1), call()]))

    said = str(error)
    assert "the model (turn 1, intent 1, at most $0.000003)" in said
    assert "llm_query (turn 4, intent 3, 2 calls, at most $0.00000002)" in said
    assert "send (turn 4, intent 5)" in said
    assert "--in-doubt retry" in said
    assert "--in-doubt abandon" in said
    assert "\n" not in said
    assert [each.intent for each in error.open] == [1, 3, 5]


calls = st.tuples(st.integers(0, 9), st.none() | st.integers(0, 99), st.integers(1, 9))


@given(one=calls, other=calls)
def test_no_two_calls_of_a_run_have_one_key(
    one: tuple[int, int | None, int], other: tuple[int, int | None, int]
) -> None:
    keys = [
        call_key("R", intent, item=item, attempt=attempt) for intent, item, attempt in (one, other)
    ]

    assert (keys[0] == keys[1]) == (one == other)
