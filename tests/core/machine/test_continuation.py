"""The machine over a run that is gone on with, or forked: what it asks next, and is told."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from tests.core.machine.test_machine import finished, replied, started

from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.machine.machine import (
    advance,
    begin,
    continue_between_intents,
    end_from_outside,
)
from tallystick.core.machine.prompt import WRITE
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.machine.turn import limit_reached, state_after_end, with_new_terms
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    AskModel,
    Intent,
    ModelFailed,
    ModelRefused,
    ProgramFailure,
    RunForked,
    RunProgram,
    RunResumed,
)

PROGRAM = "```repl\nx\n```"


def resumed(**changes: object) -> RunResumed:
    fields: dict[str, object] = {"at": 7, "fence": 2, **changes}
    return RunResumed(**fields)  # type: ignore[arg-type]


def forked(**changes: object) -> RunForked:
    fields: dict[str, object] = {
        "parent": "P", "count": 3, "hash": "h", "turn": 1, "at": 7, "session_id": "T", **changes,
    }  # fmt: skip
    return RunForked(**fields)  # type: ignore[arg-type]


def failed(reason: str = "server_error", **changes: object) -> ModelFailed:
    fields: dict[str, object] = {
        "intent": 1, "turn": 1, "reason": reason, "message": "no", **changes,
    }  # fmt: skip
    return ModelFailed(**fields)  # type: ignore[arg-type]


def over_now(state: RunState) -> RunState:
    """The state once its end is written."""
    assert state.ended is not None
    return advance(state, state.ended)[0]


def asked(intents: tuple[Intent, ...]) -> AskModel:
    (intent,) = intents
    assert isinstance(intent, AskModel)
    return intent


def roles(state: RunState) -> list[str]:
    return [each.role for each in state.messages]


# -- what it changes ---------------------------------------------------------------------------


def test_only_what_is_said_is_another_from_there_on() -> None:
    before = started(temperature=0.5)
    limits = RunLimits(turns=99)

    assert with_new_terms(before, resumed()) == before
    assert with_new_terms(before, resumed(limits=limits)).limits == limits
    assert with_new_terms(before, forked()) == before
    fork = with_new_terms(before, forked(model="other", limits=limits, temperature=0.0))
    assert (fork.model, fork.limits, fork.temperature) == ("other", limits, 0.0)
    assert (
        msgspec.structs.replace(fork, model=before.model, limits=before.limits, temperature=0.5)
        == before
    )


# -- while something is under way --------------------------------------------------------------


def test_what_is_under_way_stays_so_and_new_limits_count_at_once() -> None:
    asking, intents = begin(started())
    running, programs = advance(asking, replied(PROGRAM))
    limits = RunLimits(turns=1)

    again, more = advance(asking, resumed(limits=limits))
    going, nothing = advance(running, resumed(limits=limits))

    assert (more, nothing) == ((), ())
    assert (again.phase, going.phase) == (Phase.ASKING, Phase.RUNNING)
    assert len(intents) == len(programs) == 1
    ended, _ = advance(going, finished(stdout="3"))
    assert ended.ended is not None
    assert ended.ended.stop == "max_turns"


def test_a_call_in_doubt_is_asked_again_and_that_is_no_failure_of_the_model() -> None:
    state, _ = begin(started(limits=RunLimits(retries=0)))

    for intent in range(2, 6):
        state, intents = advance(state, failed(DOUBTED, kind="transient", intent=intent - 1))
        again = asked(intents)
        assert (again.intent, again.turn, again.wait_ms) == (intent, 1, 0)


def test_a_model_has_as_many_tries_as_it_had_after_a_call_in_doubt() -> None:
    state, _ = begin(started(limits=RunLimits(retries=1)))
    state, _ = advance(state, failed(DOUBTED, kind="transient"))

    state, intents = advance(state, failed("server_error", kind="transient", intent=2))

    assert asked(intents).attempt == 3
    assert asked(intents).wait_ms == 250


def test_a_call_that_was_left_is_asked_again_too() -> None:
    state, _ = begin(started(limits=RunLimits(retries=0)))

    _, intents = advance(state, failed(LEFT))

    assert asked(intents).attempt == 2


def test_a_call_that_is_given_up_ends_the_run_in_doubt() -> None:
    state, _ = begin(started())

    ended, intents = advance(state, failed(DOUBTED, message="nobody knows"))

    assert intents == ()
    assert ended.ended is not None
    assert (ended.ended.stop, ended.ended.detail) == ("in_doubt", "nobody knows")


def test_a_call_in_doubt_that_used_up_the_budget_is_not_made_again() -> None:
    state, _ = begin(started(limits=RunLimits(tokens=100)))
    usage = ModelUsage(tokens_in=60, tokens_out=40, reported=False)

    ended, intents = advance(state, failed(DOUBTED, kind="transient", usage=usage))

    assert intents == ()
    assert ended.ended is not None
    assert ended.ended.stop == "budget"


# -- after an end of the machine's own ---------------------------------------------------------


def at_its_turns(turns: int = 1) -> RunState:
    state, _ = begin(started(limits=RunLimits(turns=turns)))
    state, _ = advance(state, replied(PROGRAM))
    return advance(state, finished(stdout="3 lines"))[0]


def test_a_run_at_its_cap_goes_on_with_what_it_saw_last() -> None:
    state, intents = advance(over_now(at_its_turns()), resumed(limits=RunLimits(turns=5)))

    again = asked(intents)
    assert (again.turn, again.attempt, again.base) == (2, 1, None)
    assert "3 lines" in state.messages[-1].text
    assert len(again.added) == len(state.messages)
    assert state.ended is None


def test_an_end_that_was_not_written_yet_is_undone_by_new_limits_and_by_no_others() -> None:
    ending_now = at_its_turns()
    assert ending_now.phase is Phase.ENDING

    _, intents = advance(ending_now, resumed(limits=RunLimits(turns=5)))
    same, nothing = advance(ending_now, resumed())
    tokens, neither = advance(ending_now, resumed(limits=RunLimits(turns=1, tokens=9)))

    assert asked(intents).turn == 2
    assert (nothing, same.phase, same.ended) == ((), Phase.ENDING, ending_now.ended)
    assert (neither, tokens.phase) == ((), Phase.ENDING)


def test_a_run_that_is_still_over_a_cap_ends_again_and_says_which() -> None:
    state, intents = advance(over_now(at_its_turns()), resumed(limits=RunLimits(turns=2, tokens=5)))

    assert intents == ()
    assert state.phase is Phase.ENDING
    assert state.ended is not None
    assert state.ended.stop == "budget"


def test_a_model_that_failed_is_asked_the_same_in_the_same_turn() -> None:
    state, first = begin(started())
    state, nothing = advance(state, failed("auth_failure", kind="terminal"))

    again, intents = advance(over_now(state), resumed())

    assert nothing == ()
    assert asked(intents).turn == asked(first).turn == 1
    assert asked(intents).intent == asked(first).intent + 1
    assert again.messages == state.messages


def test_a_call_that_no_budget_paid_for_is_tried_once_more() -> None:
    state, first = begin(started())
    refused = ModelRefused(intent=1, turn=1, message="usd: none left", dimension="usd", scope="s")
    state, _ = advance(state, refused)

    _, intents = advance(over_now(state), resumed())

    assert asked(intents).turn == asked(first).turn
    assert asked(intents).request_sha256 == asked(first).request_sha256


def test_a_run_that_came_to_nothing_is_asked_for_a_program() -> None:
    state, _ = begin(started())
    for intent in (1, 2, 3):
        state, _ = advance(state, replied(f"I shall think, {intent}.", intent=intent))
    assert state.ended is not None
    assert state.ended.stop == "no_progress"

    state, intents = advance(over_now(state), resumed())

    assert asked(intents).turn == 4
    assert state.messages[-1].text == WRITE
    # It has as many tries as it had.
    _, more = advance(state, replied("Still thinking.", intent=4))
    assert asked(more).turn == 5


def test_a_run_that_repeated_itself_may_again() -> None:
    state, _ = begin(started())
    intent = 1
    while state.ended is None:
        state, _ = advance(state, replied(PROGRAM, intent=intent))
        state, _ = advance(state, finished(stdout="same", intent=intent + 1))
        intent += 2
    assert state.ended.stop == "no_progress"

    state, intents = advance(over_now(state), resumed())

    assert asked(intents).turn == state.turn
    assert state.repeats == 0


def test_a_run_that_was_refused_goes_on() -> None:
    state, _ = begin(started())
    state, _ = advance(state, replied("RUN(a)\n\nRUN(b)\n\nRUN(c)"))
    assert state.ended is not None
    assert state.ended.stop == "refused"

    state, intents = advance(over_now(state), resumed())

    assert asked(intents).turn == 2
    assert "is not available in this run" in state.messages[-1].text


# -- after an end from outside -----------------------------------------------------------------


@pytest.mark.parametrize("stop", ["cancelled", "sandbox_error", "in_doubt", "deadline"])
def test_a_run_that_was_ended_from_outside_can_be_gone_on_with_in_any_phase(stop: str) -> None:
    asking, _ = begin(started())
    running, _ = advance(asking, replied(PROGRAM))

    for state in (asking, running):
        ended = over_now(end_from_outside(state, stop, "why"))  # type: ignore[arg-type]
        state, intents = advance(ended, resumed())
        assert asked(intents).attempt == 1
        assert state.phase is Phase.ASKING


def test_roles_alternate_however_a_run_ended() -> None:
    failure = ProgramFailure(kind="ValueError", message="no", traceback="...")
    ends = [
        at_its_turns(),
        advance(begin(started())[0], failed("auth_failure"))[0],
        end_from_outside(begin(started())[0], "cancelled", ""),
        end_from_outside(advance(begin(started())[0], replied(PROGRAM))[0], "sandbox_error", ""),
        advance(
            advance(begin(started(limits=RunLimits(turns=1)))[0], replied(PROGRAM))[0],
            finished(failure=failure),
        )[0],
    ]

    for ended in ends:
        state, intents = advance(over_now(ended), resumed(limits=RunLimits(turns=9)))
        assert asked(intents).base is None
        assert roles(state)[:2] == ["system", "user"]
        assert all(a != b for a, b in itertools.pairwise(roles(state)))
        assert limit_reached(state.started.limits, state.charge) is None


def test_the_next_prompt_refers_to_none_that_may_not_have_been_written() -> None:
    state = state_after_end(over_now(at_its_turns()))

    assert (state.base, state.base_length, state.sent) == (None, 0, 0)
    assert state.phase is Phase.ASKING


# -- forks -------------------------------------------------------------------------------------


def test_a_fork_between_turns_asks_the_other_model_from_then_on() -> None:
    state, _ = begin(started())
    state, _ = advance(state, replied(PROGRAM))
    state, intents = advance(state, finished(stdout="3"))
    before = asked(intents)

    state, more = continue_between_intents(state, forked(model="other", temperature=0.25), intents)
    again = asked(more)

    assert again.turn == before.turn
    assert again.intent == before.intent
    assert again.temperature == 0.25
    assert again.request_sha256 != before.request_sha256


def test_a_fork_of_a_run_that_has_its_answer_has_it_too() -> None:
    state, _ = begin(started())
    state, _ = advance(state, replied("FINAL(42)"))
    assert state.phase is Phase.ENDING

    fork, intents = advance(state, forked())

    assert intents == ()
    assert fork.ended == state.ended


def test_a_program_of_the_last_reply_is_still_run_in_a_fork() -> None:
    state, _ = begin(started())
    state, intents = advance(state, replied(PROGRAM))
    assert isinstance(intents[0], RunProgram)

    fork, more = advance(state, forked())

    assert more == ()
    assert fork.phase is Phase.RUNNING
