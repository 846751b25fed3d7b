"""A chain of steps, read: nesting by path, totals that count nothing twice, foreign names."""

from typing import Any

import msgspec
import pytest

from tallystick.core.records import (
    FIGURE_MAX,
    STEP_SCHEMA,
    Record,
    StepEntered,
    StepLeft,
    StepReceipt,
    decode_record,
    encodable,
    encode_record,
    figure,
    intent_of,
    tag_of,
)
from tallystick.core.views.receipt import (
    StepLine,
    StepTotals,
    harn_step_fields,
    holds_steps,
    step_lines,
    step_totals,
)


def entered(path: str, **more: Any) -> StepEntered:
    facts: dict[str, Any] = {
        "name": path.rpartition("/")[2], "function": "f", "key": "", "model": None,
        "tokens_max": None, "usd_max": None, "error_boundary": "fail", "entered_at": 1,
    }  # fmt: skip
    return StepEntered(path=path, **{**facts, **more})


def left(path: str, usd: int = 1, **more: Any) -> StepLeft:
    facts: dict[str, Any] = {
        "schema": STEP_SCHEMA, "chain": "C", "name": path.rpartition("/")[2], "function": "f",
        "model": None, "input_tokens": usd, "output_tokens": usd, "unpriced": 0, "llm_calls": usd,
        "status": "completed", "error": None, "started_at": 1, "completed_at": 2, "runs": (),
        "runs_begun": 0, "unfinished": 0,
    }  # fmt: skip
    return StepLeft(receipt=StepReceipt(path=path, usd=usd, **{**facts, **more}))


def drawn(lines: list[StepLine]) -> list[str]:
    return ["  " * line.depth + line.name for line in lines]


# Written as concurrent steps write: by turns, and an inner one after the one around it was left.
CHAIN: list[Record] = [
    entered("a"), entered("a/b"), entered("a/c"), entered("a/c/d"), left("a/c/d", 3),
    left("a/b", 2), left("a/c", 4), entered("a/b#2"), left("a/b#2", 1), left("a", 10),
]  # fmt: skip


def test_each_step_stands_behind_the_one_around_it() -> None:
    assert drawn(step_lines(CHAIN)) == ["a", "  b", "  c", "    d", "  b#2"]


def test_the_outermost_receipts_hold_the_rest() -> None:
    assert step_totals(step_lines(CHAIN)) == StepTotals(10, 10, 10, 0, 10)


def test_of_steps_that_are_open_what_is_inside_them_counts() -> None:
    cut = [each for each in CHAIN if each not in (CHAIN[-1], CHAIN[6])]

    assert step_totals(step_lines(cut)).usd == 2 + 3 + 1
    assert [line.path for line in step_lines(cut) if line.status == "open"] == ["a", "a/c"]


def test_a_path_whose_surroundings_are_not_there_stands_for_itself() -> None:
    assert drawn(step_lines([left("x/y/z"), entered("x/y"), entered("q/r")])) == ["y", "  z", "r"]


def test_the_last_of_two_receipts_counts_and_a_step_that_was_entered_again_is_open() -> None:
    chain: list[Record] = [entered("a", name="first"), entered("a"), left("a", 1), left("a", 2)]
    lines = step_lines(chain)

    assert [(line.name, line.receipt.usd) for line in lines if line.receipt] == [("first", 2)]
    assert [line.status for line in step_lines([*chain, entered("a")])] == ["open"]


def test_the_foreign_receipt_has_what_each_step_used_itself() -> None:
    told = harn_step_fields("C", step_lines(CHAIN))
    calls = told["model_calls"]

    assert isinstance(calls, list)
    assert {each["name"]: each["llm_calls"] for each in calls} == {
        "a": 10 - 2 - 4 - 1, "b": 2, "c": 4 - 3, "d": 3, "b#2": 1,
    }  # fmt: skip
    assert (told["id"], told["persona"], told["status"]) == ("C", "a", "success")
    assert told["cost_usd"] == pytest.approx(10 / 10**9)
    assert harn_step_fields("C", step_lines(CHAIN[:1]))["status"] == "running"


@pytest.mark.parametrize("record", [CHAIN[0], CHAIN[-1]], ids=tag_of)
def test_records_of_steps_are_read_back_and_belong_to_no_intent(record: Record) -> None:
    assert decode_record(encode_record(record)) == record
    assert intent_of(record) is None
    assert holds_steps([record])


def test_the_tags_are_forever() -> None:
    assert [tag_of(CHAIN[0]), tag_of(CHAIN[-1])] == ["step.entered", "step.left"]


@pytest.mark.parametrize("usd", [b"-1", str(FIGURE_MAX + 1).encode(), b"1" * 4_000, b"1.5"])
def test_a_figure_that_no_step_has_is_not_read(usd: bytes) -> None:
    body = encode_record(left("a", 7, llm_calls=1)).replace(b'"usd":7', b'"usd":' + usd)

    with pytest.raises(msgspec.MsgspecError):
        decode_record(body)


def test_what_is_written_is_made_fit_for_it() -> None:
    assert [figure(each) for each in (-1, 0, 10**30)] == [0, 0, FIGURE_MAX]
    assert encodable("a\ud800b") == "a\\ud800b"
    assert encodable("abcdef", chars_max=5) == "ab..."
