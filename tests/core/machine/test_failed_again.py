"""A program that fails as the one before it: the message has the line's values, not the trace."""

from __future__ import annotations

import msgspec
import pytest
from tests.core.machine.test_suspect_answer import begun, over, turn

from tallystick.core.machine.state import RunState
from tallystick.core.records import ProgramFailure, RunStarted

LINE = "total += record['paid']\ntotal is 3.5 (float)\nrecord['paid'] is '12.50 EUR' (str)"
TRACE = 'Traceback (most recent call last):\n  File "<turn 1>", line 2, in <module>\nTypeError: no'
ADDS = "for record in records:\n    total += record['paid']"
OTHERWISE = "total = 0.0\nfor record in records:\n    total += record['paid']"


def failure(line: str | msgspec.UnsetType = LINE, *, message: str = "no") -> ProgramFailure:
    return ProgramFailure(kind="TypeError", message=message, traceback=TRACE, line=line)


def after(*turns: tuple[str, ProgramFailure], start: RunStarted | None = None) -> RunState:
    state, _ = begun(over(goal="what is the sum?") if start is None else start)
    for source, failed in turns:
        state, _ = turn(state, source, failure=failed)
    return state


def last(state: RunState) -> str:
    """What the last failure added to the prompt."""
    return state.messages[-1].text.rpartition("Write the whole block again, corrected.")[2]


def shown(line: str) -> str:
    """A line and its values, as the message has them."""
    head, _, values = line.partition("\n")
    return f"    {head}\nThe values there:\n{values}"


def test_the_program_stays_in_view_with_the_values_of_its_line() -> None:
    state = after((ADDS, failure()), (ADDS, failure()))

    assert state.messages[-2].role == "assistant"
    assert ADDS in state.messages[-2].text
    assert len(state.messages) == 4


def test_the_first_failure_is_told_with_its_trace() -> None:
    assert TRACE in after((ADDS, failure())).messages[-1].text


def test_the_same_failing_program_again_is_told_with_the_values_of_its_line() -> None:
    said = last(after((ADDS, failure()), (ADDS, failure())))

    assert "The same line failed again, with TypeError: no" in said
    assert shown(LINE) in said
    assert "with that line changed so that it works with these values." in said
    assert "Traceback" not in said


def test_another_program_that_fails_on_the_same_line_is_told_so_too() -> None:
    said = last(after((ADDS, failure()), (OTHERWISE, failure())))

    assert shown(LINE) in said
    assert "Traceback" not in said


def test_other_values_on_the_same_line_are_told() -> None:
    other = LINE.replace("12.50 EUR", "7 EUR")

    assert shown(other) in last(after((ADDS, failure()), (ADDS, failure(other))))


@pytest.mark.parametrize(
    "second",
    [failure("count += 1\ncount is 'a' (str)"), failure(message="yes"), failure(msgspec.UNSET)],
    ids=["another line", "another error", "a line without values"],
)
def test_another_failure_is_told_with_its_trace(second: ProgramFailure) -> None:
    state = after((ADDS, failure()), (OTHERWISE, second))

    assert "same line failed again" not in state.messages[-1].text
    assert TRACE in state.messages[-1].text


def test_a_failure_after_a_program_that_ran_is_told_with_its_trace() -> None:
    state = after((ADDS, failure()))
    state, _ = turn(state, "print(records[:1])", stdout="[{'paid': '12.50 EUR'}]\n")
    state, _ = turn(state, OTHERWISE, failure=failure())

    assert TRACE in state.messages[-1].text


def test_long_values_are_cut() -> None:
    long = failure(f"x = {'a + ' * 400}b\nb is {'y' * 900} (str)")

    said = last(after((ADDS, long), (OTHERWISE, long)))

    assert len(said) < 1_000


def test_the_message_is_not_longer_than_what_it_replaces_by_more_than_60_tokens() -> None:
    plain = msgspec.structs.replace(over(goal="what is the sum?"), aids=())
    aided = after((ADDS, failure()), (ADDS, failure()))
    without = after((ADDS, failure()), (ADDS, failure()), start=plain)

    # 60 tokens are about 240 characters.
    assert len(aided.messages[-1].text) <= len(without.messages[-1].text) + 240


@pytest.mark.parametrize("template", ["python@2", "python@3"])
def test_runs_of_earlier_prompts_get_the_trace_again(template: str) -> None:
    start = msgspec.structs.replace(over(goal="what is the sum?"), template=template)

    state = after((ADDS, failure()), (OTHERWISE, failure()), start=start)

    assert "same line failed again" not in state.messages[-1].text
    assert TRACE in state.messages[-1].text
