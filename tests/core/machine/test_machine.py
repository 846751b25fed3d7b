"""The machine, example by example: what the model is told, and what is refused."""

import pytest

from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.errors import IllegalEvent
from tallystick.core.machine.machine import advance, begin, end_from_outside
from tallystick.core.machine.prompt import opening
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.records import (
    AskModel,
    ContextRef,
    HostAnswered,
    ModelReplied,
    ProgramFailure,
    ProgramFinished,
    RunStarted,
)


def started(**changes: object) -> RunStarted:
    fields: dict[str, object] = {
        "goal": "count the lines",
        "model": "m",
        "limits": RunLimits(),
        "grants": (),
        "contexts": (),
        "functions": (),
        "values": {},
        "texts": (),
        "seed": 0,
        "clock_ns": 0,
        "session_id": "S",
        "template": "t",
        "guest": "g",
        "engine": "e",
        "started_at": 0,
        **changes,
    }
    return RunStarted(**fields)  # type: ignore[arg-type]


def replied(text: str, *, intent: int = 1, cut: bool = False) -> ModelReplied:
    usage = ModelUsage(tokens_in=10, tokens_out=5, reported=True)
    return ModelReplied(intent=intent, turn=1, text=text, usage=usage, cut=cut)


def finished(**changes: object) -> ProgramFinished:
    fields: dict[str, object] = {
        "intent": 2,
        "turn": 1,
        "stop": "finished",
        "stdout": "",
        "stderr": "",
        "value": None,
        "failure": None,
        "answer": None,
        "names_restored": (),
        "fuel": 1,
        "host_calls": 0,
        "truncated": False,
        **changes,
    }
    return ProgramFinished(**fields)  # type: ignore[arg-type]


def after(program_result: ProgramFinished, **limits: int) -> RunState:
    state, _ = begin(started(limits=RunLimits(**limits)))
    state, _ = advance(state, replied("```repl\nx\n```"))
    return advance(state, program_result)[0]


def told(state: RunState) -> str:
    return state.messages[-1].text


def test_the_fixed_part_of_the_prompt_is_at_most_400_tokens() -> None:
    """Counted at three bytes a token, which is more than any tokenizer in use makes of English."""
    system, _ = opening(started())

    # Eight more for what a provider puts around a message.
    assert (len(system.text.encode()) + 8) / 3 <= 400


def test_the_task_comes_after_the_data_is_described_and_asks_for_code_last() -> None:
    context = ContextRef(name="context", sha256="a", bytes=9, chars=9, sample="one\ntwo\n3")
    _, task = opening(started(contexts=(context,)))

    assert task.text.startswith("The data:\none\ntwo\n3")
    assert "The task: count the lines" in task.text
    assert task.text.endswith("Write one ```python block.")


def test_the_size_of_a_long_text_is_not_printed() -> None:
    context = ContextRef(name="context", sha256="a", bytes=987_654, chars=987_654, sample="x")

    assert "987" not in opening(started(contexts=(context,)))[1].text


def test_a_program_cannot_finish_before_it_runs() -> None:
    state, _ = begin(started())

    with pytest.raises(IllegalEvent, match="ProgramFinished while asking"):
        advance(state, finished())


def test_printed_text_and_value_are_shown_and_none_is_not() -> None:
    text = told(after(finished(stdout="3 lines\n", value="3")))

    assert "3 lines" in text
    assert "Value of the last line: 3" in text
    assert "None" not in told(after(finished(stdout="x")))


def test_a_silent_program_is_told_to_print() -> None:
    assert "printed nothing" in told(after(finished()))


def test_a_failure_is_shown_with_its_line() -> None:
    traceback = 'File "<turn 1>", line 3\n    1 / 0\nZeroDivisionError'
    failure = ProgramFailure(kind="ZeroDivisionError", message="by zero", traceback=traceback)

    assert "1 / 0" in told(after(finished(failure=failure)))


def test_a_program_that_was_stopped_is_told_that_its_variables_are_as_before() -> None:
    failure = ProgramFailure(kind="WallExceeded", message="wall: 100 ms", traceback="")

    assert "as before" in told(after(finished(stop="wall", failure=failure)))


def test_rebound_names_are_told() -> None:
    assert "`context`" in told(after(finished(stdout="x", names_restored=("context",))))


def test_long_output_is_cut_in_the_middle_and_says_how_to_see_the_rest() -> None:
    text = told(after(finished(stdout="a" * 9_000 + "b" * 9_000)))

    assert len(text) < 6_000
    assert "left out" in text
    assert text.index("a") < text.index("left out") < text.rindex("b")


def test_the_last_turn_says_so() -> None:
    assert "last turn" in told(after(finished(stdout="x"), turns=2))
    assert "last turn" not in told(after(finished(stdout="x"), turns=3))


def test_an_answer_ends_the_run_even_if_it_passes_a_limit() -> None:
    state = after(finished(answer="42", wall_ms=10**9))

    assert state.phase is Phase.ENDING
    assert state.ended is not None
    assert (state.ended.stop, state.ended.answer, state.ended.partial) == ("answered", "42", False)


def test_a_cap_gives_the_last_shown_value_as_a_partial_answer() -> None:
    state = after(finished(value="17"), turns=1)

    assert state.ended is not None
    assert (state.ended.stop, state.ended.answer, state.ended.partial) == ("max_turns", "17", True)


def test_a_failed_program_ends_its_reply() -> None:
    state, _ = begin(started())
    state, intents = advance(state, replied("```repl\n1/0\n```\n```repl\n2\n```\nFINAL(3)"))
    failure = ProgramFailure(kind="ZeroDivisionError", message="", traceback="")

    state, intents = advance(state, finished(failure=failure))

    assert isinstance(intents[0], AskModel)


def test_host_calls_are_counted_and_too_many_end_the_run() -> None:
    state, _ = begin(started(limits=RunLimits(host_calls=1)))
    state, _ = advance(state, replied("```repl\nf()\n```"))
    for index in range(2):
        call = HostAnswered(intent=3 + index, program=2, index=index, name="f",
                            request_sha256="", fuel=0, reply=b"0", ok=True)  # fmt: skip
        state, _ = advance(state, call)
    state, intents = advance(state, finished(stdout="x"))

    assert intents == ()
    assert state.ended is not None
    assert (state.ended.stop, state.charge.host_calls) == ("budget", 2)


def test_a_run_can_be_ended_from_outside_in_any_phase() -> None:
    state = end_from_outside(begin(started())[0], "cancelled", "by the user")

    assert state.phase is Phase.ENDING
    assert state.ended is not None
    assert state.ended.stop == "cancelled"


def test_functions_are_listed_by_signature_and_first_line() -> None:
    system, _ = opening(started(functions=(("look", "look(key: str)\n\nLook a key up.\nMore."),)))

    assert "- look(key: str): Look a key up." in system.text
    assert "More." not in system.text
