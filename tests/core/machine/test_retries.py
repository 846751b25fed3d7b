"""A model call that failed: asked again as an attempt of its own, or the end of the run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.machine.test_machine import finished, replied, started, told

from tallystick.core.charge import Charge, ModelUsage, RunLimits
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.records import AskModel, Intent, ModelFailed

# Half of what the profile says, so that the folder takes seconds.
EXAMPLES = settings().max_examples // 2


def failed(**changes: object) -> ModelFailed:
    fields: dict[str, object] = {
        "intent": 1,
        "turn": 1,
        "reason": "rate_limit",
        "message": "slow down",
        "kind": "transient",
        **changes,
    }
    return ModelFailed(**fields)  # type: ignore[arg-type]


def limited(**limits: int) -> RunState:
    return begin(started(limits=RunLimits(**limits)))[0]


def asked(intents: tuple[Intent, ...]) -> AskModel:
    (intent,) = intents
    assert isinstance(intent, AskModel)
    return intent


def ended(state: RunState) -> tuple[str, str]:
    assert state.phase is Phase.ENDING
    assert state.ended is not None
    return state.ended.stop, state.ended.detail


def test_what_failed_in_passing_is_asked_again_as_another_attempt_at_the_same_turn() -> None:
    state, first = begin(started())

    state, second = advance(state, failed())

    before, again = asked(first), asked(second)
    assert (again.attempt, again.turn) == (2, before.turn)
    assert again.intent == before.intent + 1
    assert again.request_sha256 == before.request_sha256
    assert (again.base, again.added, again.kept) == (before.intent, (), None)


def test_the_wait_before_an_attempt_is_doubled_each_time() -> None:
    state = limited(retries=4)

    waits = []
    for _ in range(4):
        state, intents = advance(state, failed())
        waits.append(asked(intents).wait_ms)

    assert waits == [250, 500, 1_000, 2_000]


@pytest.mark.parametrize(("retry_after_ms", "wait_ms"), [(None, 250), (0, 250), (9_000, 9_000)])
def test_a_server_that_says_when_is_waited_for_as_long_as_it_says(
    retry_after_ms: int | None, wait_ms: int
) -> None:
    _, intents = advance(limited(), failed(retry_after_ms=retry_after_ms))

    assert asked(intents).wait_ms == wait_ms


def test_what_would_fail_again_ends_the_run_at_once() -> None:
    state, intents = advance(
        limited(), failed(kind="terminal", reason="auth_failure", message="check the key")
    )

    assert intents == ()
    assert ended(state) == ("model_error", "auth_failure: check the key")


def test_attempts_that_are_used_up_end_the_run_and_are_counted() -> None:
    state = limited(retries=2)
    for _ in range(2):
        state, _ = advance(state, failed())

    state, intents = advance(state, failed())

    assert intents == ()
    assert ended(state) == ("model_error", "rate_limit: slow down (3 attempts)")


def test_without_retries_the_first_failure_is_the_last_and_is_not_counted() -> None:
    state, intents = advance(limited(retries=0), failed())

    assert intents == ()
    assert ended(state) == ("model_error", "rate_limit: slow down")


def test_a_wait_longer_than_the_time_that_is_left_ends_the_run_at_once() -> None:
    state, intents = advance(limited(wall_ms=10_000), failed(wall_ms=4_000, retry_after_ms=6_000))

    assert intents == ()
    stop, detail = ended(state)
    assert stop == "model_error"
    assert detail == "rate_limit: slow down; asking again in 6,000 ms would be too late"


def test_a_wait_that_just_fits_is_waited() -> None:
    _, intents = advance(limited(wall_ms=10_000), failed(wall_ms=4_000, retry_after_ms=5_999))

    assert asked(intents).wait_ms == 5_999


@pytest.mark.parametrize("kind", ["transient", "terminal"])
def test_an_attempt_that_used_up_the_time_ends_the_run_by_its_deadline(kind: str) -> None:
    state, _ = advance(limited(wall_ms=1_000), failed(wall_ms=1_000, kind=kind))

    assert ended(state) == ("deadline", "rate_limit: slow down")


def test_what_a_failed_attempt_used_is_charged_and_no_turn_is() -> None:
    usage = ModelUsage(tokens_in=70, tokens_out=30, reported=True)

    state, _ = advance(limited(), failed(usage=usage, wall_ms=40))

    assert state.charge == Charge(tokens_in=70, tokens_out=30, model_calls=1, wall_ms=40)


def test_an_attempt_without_a_report_is_charged_as_a_call_and_its_time() -> None:
    state, _ = advance(limited(), failed(wall_ms=40))

    assert state.charge == Charge(model_calls=1, wall_ms=40)


def test_failed_attempts_that_use_up_the_tokens_end_the_run_by_its_budget() -> None:
    usage = ModelUsage(tokens_in=70, tokens_out=30, reported=True)

    state, intents = advance(limited(tokens=100), failed(usage=usage))

    assert intents == ()
    assert ended(state) == ("budget", "tokens: 100 allowed, all used")


def test_a_reply_after_a_failure_is_of_the_same_turn_and_attempts_begin_anew() -> None:
    state, _ = advance(limited(), failed())
    state, _ = advance(state, replied("```python\nx = 1\n```", intent=2))
    state, intents = advance(state, finished(stdout="1"))

    assert state.charge.turns == 1
    assert state.charge.model_calls == 2
    assert (asked(intents).turn, asked(intents).attempt, asked(intents).wait_ms) == (2, 1, 0)


def test_a_run_that_fails_later_gives_what_it_has() -> None:
    state, _ = advance(limited(), replied("```python\n6 * 7\n```"))
    state, _ = advance(state, finished(value="42"))

    state, _ = advance(state, failed(kind="terminal"))

    assert state.ended is not None
    assert (state.ended.stop, state.ended.answer, state.ended.partial) == (
        "model_error",
        "42",
        True,
    )


def test_a_failure_is_not_told_to_the_model() -> None:
    before = limited()

    state, _ = advance(before, failed(message="the key sk-1 is wrong"))

    assert state.messages == before.messages
    assert "sk-1" not in told(state)


@settings(max_examples=EXAMPLES)
@given(
    limits=st.builds(
        RunLimits, retries=st.integers(0, 5), wall_ms=st.integers(1, 20_000),
        tokens=st.integers(1, 500),
    ),
    failures=st.lists(
        st.builds(
            failed,
            kind=st.sampled_from(["transient", "transient", "transient", "terminal"]),
            wall_ms=st.integers(0, 3_000),
            retry_after_ms=st.none() | st.integers(0, 9_000),
            usage=st.none()
            | st.builds(
                ModelUsage,
                tokens_in=st.integers(0, 99),
                tokens_out=st.integers(0, 99),
                reported=st.just(True),
            ),
        ),
        min_size=7,
        max_size=7,
    ),
)  # fmt: skip
def test_any_row_of_failures_ends_within_its_attempts_and_its_time(
    limits: RunLimits, failures: list[ModelFailed]
) -> None:
    state, intents = begin(started(limits=limits))
    attempts: list[AskModel] = []
    used = 0
    for failure in failures:
        if not intents:
            break
        attempts.append(asked(intents))
        assert used + attempts[-1].wait_ms < limits.wall_ms
        assert attempts[-1].tokens_out_max >= 1
        used += failure.wall_ms
        state, intents = advance(state, failure)

    assert intents == ()
    assert [each.attempt for each in attempts] == list(range(1, len(attempts) + 1))
    assert len(attempts) <= limits.retries + 1
    assert {each.turn for each in attempts} == {1}
    assert (state.charge.turns, state.charge.model_calls) == (0, len(attempts))
    assert state.charge.wall_ms == used
    assert ended(state)[0] in ("model_error", "deadline", "budget")
