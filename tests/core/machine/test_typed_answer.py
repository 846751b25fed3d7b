"""Answers under a schema: what fits, what is told of what does not, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.machine.test_machine import finished, replied, started
from tests.core.test_json_text import values

from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.machine.answer import (
    SCHEMA_BYTES_MAX,
    fit_of,
    read_schema,
    schema_text,
    value_of,
)
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.prompt import direct, opening
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.records import RunResumed

INVOICE: dict[str, Any] = {
    "type": "object",
    "required": ["customer", "amount"],
    "properties": {"customer": {"type": "string"}, "amount": {"type": "number", "minimum": 0}},
    "additionalProperties": False,
}
TEXT = {"type": "string", "maxLength": 5}


def fit(answer: str, schema: dict[str, Any]) -> tuple[str, str | None]:
    found = fit_of(answer, started(schema=schema_text(schema)))
    return found.text, found.problem


# -- what fits ---------------------------------------------------------------------------------


@settings(max_examples=settings().max_examples // 2)
@given(value=values)
def test_any_value_is_taken_as_canonical_json_that_is_read_again_as_itself(value: object) -> None:
    start = started(schema="{}")

    taken = fit_of(json.dumps(value), start)

    assert taken.problem is None
    assert value_of(taken.text, start) == value
    assert fit_of(taken.text, start) == taken
    assert fit_of(json.dumps(value, indent=1, sort_keys=True), start) == taken


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_text_is_taken_where_a_string_is_asked_for(text: str) -> None:
    start = started(schema='{"type":"string"}')

    taken = fit_of(text, start)

    assert taken.problem is None
    assert isinstance(value := value_of(taken.text, start), str)
    assert text in (value, json.dumps(value), json.dumps(value, ensure_ascii=False)) or (
        json.loads(text) == value
    )
    assert fit_of(taken.text, start) == taken


@pytest.mark.parametrize(
    ("answer", "schema", "text"),
    [
        ('{"amount": 1.50, "customer": "Q"}', INVOICE, '{"amount":1.5,"customer":"Q"}'),
        ('{"customer": "Q", "amount": 2}', INVOICE, '{"amount":2,"customer":"Q"}'),
        ('```json\n{"customer": "Q", "amount": 2}\n```', INVOICE, '{"amount":2,"customer":"Q"}'),
        ("abc", TEXT, '"abc"'),
        ('"abc"', TEXT, '"abc"'),
        ("42", TEXT, '"42"'),
        ("42", {"type": ["string", "integer"]}, "42"),
        ("yes", {"enum": ["yes", "no"]}, '"yes"'),
        ("x", {"anyOf": [{"type": "integer"}, {"const": "x"}]}, '"x"'),
        ("null", {"type": "null"}, "null"),
        ("2.0", {"type": "integer"}, "2.0"),
        ("1" * 400, {"type": "integer"}, "1" * 400),
        ('["\\u00e9"]', {}, '["\u00e9"]'),
    ],
)
def test_what_fits_is_kept_in_one_form(answer: str, schema: dict[str, Any], text: str) -> None:
    assert fit(answer, schema) == (text, None)


@pytest.mark.parametrize(
    ("answer", "schema", "problem"),
    [
        ('{"customer":"Q","amount":"2"}', INVOICE, "the answer.amount is string, not number"),
        ('{"customer":"Q","amount":-1}', INVOICE, "the answer.amount breaks minimum 0"),
        ('{"customer":"Q"}', INVOICE, "the answer has no 'amount'"),
        ('"Q"', INVOICE, "the answer is string, not object"),
        ("Q", INVOICE, "the answer cannot be read: no JSON: Expecting value at character 1"),
        ("Q", {"required": ["a"]}, "the answer cannot be read: no JSON: Expecting value at char"),
        ('{"customer":"Q","amount":NaN}', INVOICE, "the answer cannot be read: NaN is no JSON"),
        ('{"customer":"Q","customer":"R","amount":1}', INVOICE, "the answer cannot be read: "
         '"customer" stands twice in one object'),
        ("[" * 5_000, INVOICE, "the answer cannot be read: it is nested deeper than 64 levels"),
        ("too long", TEXT, "the answer breaks maxLength 5"),
        ("4200000", TEXT, "the answer is integer, not string"),
        ("a\ud800", TEXT, "the answer holds half of a character"),
        ("maybe", {"enum": ["yes", "no"]}, 'the answer is "maybe", which is none of ["yes", "no"]'),
        ("[true]", {"const": [1]}, "the answer is [true], not [1]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_where_and_what_is_expected(
    answer: str, schema: dict[str, Any], problem: str
) -> None:
    text, found = fit(answer, schema)

    assert text == answer
    assert found is not None
    assert found.startswith(problem)


def test_what_is_wrong_is_said_in_one_short_line() -> None:
    _, problem = fit(json.dumps({"x\n" * 5_000: 1}), {"additionalProperties": False})

    assert problem is not None
    assert len(problem) <= 300
    assert "\n" not in problem


@pytest.mark.parametrize("schema", ["", "[]", '{"type": "date"}', '{"a":1}', "{" * 9_000])
def test_a_record_whose_schema_is_none_takes_no_answer_and_raises_nothing(schema: str) -> None:
    assert fit_of("1", started(schema=schema)).problem == "the schema of this run cannot be read"


def test_without_a_schema_an_answer_stays_as_it_is() -> None:
    assert fit_of('{"b": 1, "a": NaN', started()).text == '{"b": 1, "a": NaN'
    assert value_of("1", started()) is None


# -- schemas -----------------------------------------------------------------------------------


def test_a_schema_is_recorded_in_the_order_it_was_written() -> None:
    assert schema_text({"type": "object", "properties": {"b": {}, "a": {}}}) == (
        '{"type":"object","properties":{"b":{},"a":{}}}'
    )
    assert schema_text(None) is None
    assert read_schema(b'\xef\xbb\xbf{"type": "null"}', name="s.json") == {"type": "null"}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"{", "s.json: cannot be read: no JSON: Expecting property name"),
        (b"", "s.json: cannot be read: no JSON: Expecting value at character 1"),
        (b"\xff", "s.json: cannot be read: not UTF-8"),
        (b"[]", "s.json: schema: a schema is a JSON object, not list"),
        (b'{"type":"object","not":{}}', "s.json: schema: 'not' is not supported"),
        (b'{"properties":{"a":{"$ref":"#"}}}', "s.json: schema.a.a: # refers to itself"),
        (b'{"minimum":NaN}', "s.json: cannot be read: NaN is no JSON value"),
        (b'{"type":"null","type":"null"}', 's.json: cannot be read: "type" stands twice'),
        (b" " * (SCHEMA_BYTES_MAX + 1), "s.json: a schema has at most 64,000 bytes"),
        (b"[" * 9_000, "s.json: cannot be read: it is nested deeper"),
    ],
)
def test_a_bad_schema_is_refused_in_a_line_that_names_the_file(raw: bytes, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_schema(raw, name="s.json")

    assert str(refused.value).startswith(why)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [[], "x", {"enum": [{1, 2}]}, {"const": float("nan")}, {"title": "\ud800"}, {"pattern": "("},
     {"description": "x" * 9_000}],
)  # fmt: skip
def test_a_schema_from_python_that_is_none_is_refused(schema: Any) -> None:
    with pytest.raises(UsageError, match="schema"):
        schema_text(schema)


# -- what the model is told --------------------------------------------------------------------


def test_only_a_prompt_with_a_schema_speaks_of_one() -> None:
    typed = started(schema=schema_text(INVOICE))

    assert opening(typed)[0] == opening(started())[0]
    plain, told = opening(started())[1].text, opening(typed)[1].text
    assert "schema" not in plain
    assert '"customer":{"type":"string"}' in told
    assert told.endswith("Write one ```python block.")
    assert "schema" not in direct(started(), ())[1].text
    assert '"customer":{"type":"string"}' in direct(typed, ())[1].text


def test_a_long_schema_is_shown_in_part() -> None:
    schema = schema_text({"description": "x" * 7_000})

    assert len(opening(started(schema=schema))[1].text) < 4_500


# -- asking again ------------------------------------------------------------------------------


def typed_run(**limits: int) -> RunState:
    schema = schema_text(INVOICE)
    return begin(started(schema=schema, limits=RunLimits(**limits)))[0]


def answered(state: RunState, answer: str) -> RunState:
    state, _ = advance(state, replied("```python\nFINAL(x)\n```", intent=state.next_intent - 1))
    return advance(state, finished(answer=answer, intent=state.next_intent - 1))[0]


GOOD, BAD = '{"customer":"Q","amount":2}', '{"customer":"Q"}'


def test_an_answer_that_does_not_fit_is_told_in_one_line_and_the_next_is_taken() -> None:
    state = answered(typed_run(), BAD)

    assert state.phase is Phase.ASKING
    assert state.messages[-1].text == (
        "That answer does not fit the schema: the answer has no 'amount'. "
        "Write one ```python block that calls FINAL(...) with a value that fits."
    )
    ended = answered(state, GOOD).ended
    assert ended is not None
    assert (ended.stop, ended.answer) == ("answered", '{"amount":2,"customer":"Q"}')


def test_it_is_asked_for_twice_more_and_then_the_run_ends_with_the_last() -> None:
    state = answered(answered(typed_run(), BAD), BAD)
    assert state.phase is Phase.ASKING

    ended = answered(state, '{"customer":"last"}').ended

    assert ended is not None
    assert (ended.stop, ended.answer, ended.partial) == ("no_progress", '{"customer":"last"}', True)
    assert ended.detail == "3 answers do not fit the schema: the answer has no 'amount'"


def test_on_the_last_turn_it_is_not_taken_either() -> None:
    ended = answered(typed_run(turns=1), BAD).ended

    assert ended is not None
    assert (ended.stop, ended.answer, ended.partial) == ("no_progress", BAD, True)
    assert ended.detail == (
        "the answer does not fit the schema: the answer has no 'amount' (all 1 turns used)"
    )
    taken = answered(typed_run(turns=1), GOOD).ended
    assert taken is not None
    assert taken.stop == "answered"


def test_a_run_that_ended_so_is_gone_on_with_by_saying_what_is_wrong() -> None:
    state = answered(typed_run(turns=1), BAD)
    assert state.ended is not None
    state, _ = advance(state, state.ended)

    resumed = RunResumed(at=0, fence=2, limits=RunLimits(), in_doubt="halt", stolen=False)
    state, _ = advance(state, resumed)

    assert "the answer has no 'amount'" in state.messages[-1].text
    assert answered(state, GOOD).answer == '{"amount":2,"customer":"Q"}'


def test_a_line_that_says_final_is_held_to_the_schema_too() -> None:
    state, _ = advance(typed_run(), replied("FINAL(no idea)"))
    assert "cannot be read" in state.messages[-1].text

    state, _ = advance(state, replied(f"FINAL({GOOD})", intent=2))
    assert state.answer == '{"amount":2,"customer":"Q"}'


def direct_run(**limits: int) -> RunState:
    schema = schema_text(INVOICE)
    start = started(schema=schema, strategy="direct", limits=RunLimits(**limits))
    return begin(start)[0]


def test_a_direct_run_stays_direct_when_it_is_asked_again() -> None:
    state, _ = advance(direct_run(turns=2), replied("It is 2."))

    assert [each.role for each in state.messages] == ["system", "user", "assistant", "user"]
    assert state.messages[2].text == "It is 2."
    assert state.messages[3].text == (
        "That answer does not fit the schema: the answer cannot be read: no JSON: Expecting value "
        "at character 1. Reply with a JSON value that fits, and nothing else."
    )
    state, _ = advance(state, replied(f"```json\n{GOOD}\n```", intent=2))
    assert state.ended is not None
    assert (state.ended.stop, state.answer) == ("answered", '{"amount":2,"customer":"Q"}')


def test_a_direct_run_ends_after_three_answers_that_do_not_fit() -> None:
    state = direct_run()
    for intent in (1, 2, 3):
        state, _ = advance(state, replied(BAD, intent=intent))

    assert state.ended is not None
    assert (state.ended.stop, state.ended.answer, state.ended.partial) == ("no_progress", BAD, True)
