"""Schemas for answers: what they refuse, what they find in a reply, what they say of a value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.core.schema.check import check_schema
from tallystick.core.schema.replies import json_in_reply
from tallystick.core.schema.values import problem_of
from tallystick.testing.strategies import json_values

values = json_values(integers=st.integers(-(10**6), 10**6), floats=False)


def exactly(value: object) -> dict[str, Any]:
    """The schema that describes a value to the last part."""
    match value:
        case dict():
            return {
                "type": "object",
                "required": list(value),
                "properties": {name: exactly(each) for name, each in value.items()},
                "additionalProperties": False,
            }
        case list():
            return {
                "type": "array",
                "minItems": len(value),
                "maxItems": len(value),
                "items": {"anyOf": [exactly(each) for each in value]} if value else {},
            }
        case _:
            return {"const": value}


@given(value=values)
def test_a_value_matches_the_schema_that_was_made_of_it(value: object) -> None:
    assert problem_of(value, check_schema(exactly(value))) is None


@given(value=values, other=values)
def test_another_value_does_not(value: object, other: object) -> None:
    same = json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)
    nested_list = "[" in json.dumps(value)

    if not same and not nested_list:
        assert problem_of(other, exactly(value)) is not None


@given(value=values)
def test_a_value_is_found_in_its_own_json_bare_fenced_and_in_prose(value: object) -> None:
    text = json.dumps(value)

    assert json_in_reply(text, {}) == value
    assert json_in_reply(f"Here you are:\n```json\n{text}\n```\nThat is all.", {}) == value
    if isinstance(value, dict | list):
        assert json_in_reply(f"It is {text}, I think.", {}) == value


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        (True, {"type": "integer"}, "the answer is boolean, not integer"),
        (1, {"type": "boolean"}, "the answer is integer, not boolean"),
        (2.0, {"type": "integer"}, None),
        (2.5, {"type": "integer"}, "the answer is number, not integer"),
        ("x", {"type": ["integer", "null"]}, "the answer is string, not integer or null"),
        ("c", {"enum": ["a", "b"]}, 'the answer is "c", which is none of ["a", "b"]'),
        (1, {"enum": [True]}, "the answer is 1, which is none of [true]"),
        ({"a": 1}, {"required": ["b"]}, "the answer has no 'b'"),
        ({"a": 1}, {"additionalProperties": False}, "the answer has 'a', which is not asked for"),
        ({"a": "x"}, {"properties": {"a": {"type": "null"}}}, "the answer.a is string, not null"),
        (
            {"a": 1},
            {"additionalProperties": {"type": "string"}},
            "the answer.a is integer, not string",
        ),
        ([1, "x"], {"items": {"type": "integer"}}, "the answer[1] is string, not integer"),
        (5, {"maximum": 5}, None),
        (6, {"maximum": 5}, "the answer breaks maximum 5"),
        (5, {"exclusiveMaximum": 5}, "the answer breaks exclusiveMaximum 5"),
        ("abc", {"maxLength": 2}, "the answer breaks maxLength 2"),
        ([], {"minItems": 1}, "the answer breaks minItems 1"),
        (1, {"anyOf": [{"type": "string"}]}, "the answer is none of what anyOf allows"),
        (1, {"allOf": [{"minimum": 0}, {"minimum": 2}]}, "the answer breaks minimum 2"),
        ("x", {"title": "anything", "description": "at all"}, None),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    value: object, schema: dict[str, Any], problem: str | None
) -> None:
    assert problem_of(value, check_schema(schema)) == problem


@pytest.mark.parametrize(
    "schema",
    [
        5,
        {"$ref": "#/x"},
        {"pattern": "(?=a)b"},
        {"pattern": 5},
        {"patternProperties": {"(": {}}},
        {"format": "postcode"},
        {"contentEncoding": "quoted-printable"},
        {"multipleOf": 0},
        {"uniqueItems": 1},
        {"not": {}},
        {"type": "date"},
        {"type": [5]},
        {"minimum": "1"},
        {"minimum": True},
        {"enum": "ab"},
        {"required": "a"},
        {"required": [1]},
        {"properties": []},
        {"items": [{}]},
        {"anyOf": {}},
        {"description": "x" * 9_000},
    ],
)
def test_a_schema_that_would_not_be_kept_is_refused(schema: object) -> None:
    with pytest.raises(UsageError, match="schema"):
        check_schema(schema)


def test_a_schema_is_as_deep_as_it_may_be_and_no_deeper() -> None:
    schema: dict[str, Any] = {}
    for _ in range(16):
        schema = {"items": schema}

    assert check_schema(schema) == schema
    with pytest.raises(UsageError, match="levels"):
        check_schema({"items": schema})


@pytest.mark.parametrize(
    "text", ["", "no value here", "NaN", "Infinity", "1e999", "{", "[" * 5_000]
)
def test_a_reply_without_a_value_says_so(text: str) -> None:
    with pytest.raises(ValueError, match=r"value|number"):
        json_in_reply(text, {"type": "object"})


@pytest.mark.parametrize(
    ("text", "value"),
    [("Yes, it is.", True), ("no", False), ("TRUE", True), ("False.", False)],
)
def test_a_yes_is_a_yes_however_it_is_written(text: str, value: bool) -> None:
    assert json_in_reply(text, {"type": "boolean"}) is value


@pytest.mark.parametrize(
    ("said", "value"),
    [("42.", 42), ("**7**", 7), ("It is 1,234", 1234), ("-3", -3), ("It is -3.5 now", -3.5)],
)
def test_a_bare_number_is_found_among_words(said: str, value: float) -> None:
    assert json_in_reply(said, {"type": "number"}) == value


@pytest.mark.parametrize("said", ["3 or 4", "12-14", "007", "1.2.3", "v2", "none"])
def test_what_is_not_one_number_is_none(said: str) -> None:
    with pytest.raises(ValueError, match="no JSON value"):
        json_in_reply(said, {"type": "number"})
