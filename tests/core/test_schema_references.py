"""Schemas with references, patterns, formats and choices, as libraries of types write them."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.core.errors import UsageError
from tallystick.core.schema.check import check_schema
from tallystick.core.schema.formats import FORMATS
from tallystick.core.schema.values import problem_of

ORDER = {
    "$defs": {
        "Line": {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}},
        "Odd name": {"type": "integer"},
        "a/b": {"type": "boolean"},
    },
    "type": "object",
    "properties": {
        "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
        "first": {"$ref": "#/$defs/Line", "description": "the first line"},
        "small": {"$ref": "#/$defs/Odd%20name", "maximum": 5},
        "paid": {"$ref": "#/$defs/a~1b"},
    },
}


def test_references_are_put_in_place() -> None:
    placed = check_schema(ORDER)

    line = ORDER["$defs"]["Line"]  # type: ignore[index]
    assert "$defs" not in placed
    assert placed["properties"] == {
        "lines": {"type": "array", "items": line},
        "first": {**line, "description": "the first line"},
        "small": {"allOf": [{"type": "integer"}, {"maximum": 5}]},
        "paid": {"type": "boolean"},
    }
    assert check_schema(placed) == placed
    assert problem_of({"small": 6}, placed) == "the answer.small breaks maximum 5"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "#"}, "# refers to itself"),
        (
            {
                "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}},
                "$ref": "#/$defs/Node",
            },
            "schema.next: Node refers to itself; a recursive schema cannot be checked",
        ),
        (
            {
                "$defs": {"A": {"items": {"$ref": "#/$defs/B"}}, "B": {"$ref": "#/$defs/A"}},
                "items": {"$ref": "#/$defs/A"},
            },
            "A refers to itself",
        ),
        ({"$ref": "https://example.org/x"}, "is not in this schema; use #/\\$defs/NAME"),
        ({"$ref": "#/$defs/Absent", "$defs": {}}, "'#/\\$defs/Absent' is not in this schema"),
        ({"$ref": 5}, "5 is not in this schema"),
    ],
)
def test_a_reference_that_cannot_be_put_in_place_is_refused_by_name(
    schema: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_schema(schema)


def test_references_that_multiply_are_bounded() -> None:
    wide: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 9} for level in range(12)
    }
    long: dict[str, Any] = {f"d{level}": {"$ref": f"#/$defs/d{level + 1}"} for level in range(400)}

    wide["d12"], long["d400"] = {}, {}
    for defined in (wide, long):
        with pytest.raises(UsageError, match=r"at most|references inside each other"):
            check_schema({"$defs": defined, "$ref": "#/$defs/d0"})


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        ("INV-12", {"pattern": r"^INV-\d+$"}, None),
        ("12", {"pattern": r"^INV-\d+$"}, r'the answer is "12", which does not match "^INV-\\d+$"'),
        ("xINV", {"pattern": "INV"}, None),
        (5, {"pattern": "^a$"}, None),
        (3, {"oneOf": [{"type": "integer"}, {"type": "string"}]}, None),
        (
            3,
            {"oneOf": [{"type": "integer"}, {"maximum": 5}]},
            "the answer fits 2 of what oneOf allows, and only one is asked for",
        ),
        ("a", {"oneOf": [{"type": "integer"}, {"const": 1}]}, "is none of what oneOf allows"),
        (
            {"kind": "a"},
            {"oneOf": [{"type": "object", "required": ["n"]}, {"type": "null"}]},
            "the answer has no 'n'",
        ),
        (
            [1, "a"],
            {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
            None,
        ),
        ([1, 2], {"prefixItems": [{}, {"type": "string"}]}, "the answer[1] is integer, not string"),
        ([1, 2], {"prefixItems": [{}], "items": False}, "the answer has 2 items; at most 1"),
        ([1, "b"], {"prefixItems": [{}], "items": {"type": "integer"}}, "the answer[1] is string"),
        ([1, 2, 1], {"uniqueItems": True}, "the answer has 1 twice"),
        ([1, True], {"uniqueItems": True}, None),
        (9, {"multipleOf": 3}, None),
        (0.3, {"multipleOf": 0.1}, None),
        (0.35, {"multipleOf": 0.1}, "the answer breaks multipleOf 0.1"),
        ({"a": 1}, {"minProperties": 2}, "the answer breaks minProperties 2"),
        (
            {"x1": "a"},
            {"patternProperties": {"^x": {"type": "integer"}}},
            "the answer.x1 is string",
        ),
        ({"y": 1}, {"propertyNames": {"pattern": "^x"}}, "a name in the answer is"),
        ("aGk=", {"contentEncoding": "base64"}, None),
        ("a", {"contentEncoding": "base64"}, "which is no base64"),
    ],
)
def test_each_word_is_compared(value: object, schema: dict[str, Any], problem: str | None) -> None:
    found = problem_of(value, check_schema(schema))

    assert (found is None) if problem is None else (found is not None and problem in found)


FITTING = {
    "date": ["2031-07-01"],
    "date-time": [
        "2031-07-01T16:36:00Z",
        "2031-07-01 16:36",
        "2031-07-01T16:36:00.123456789+02:00",
    ],
    "time": ["16:36", "16:36:00.5Z"],
    "duration": ["P1D", "PT1H30M", "P2W", "PT0.5S"],
    "uuid": ["8b1ae1c6-7d3e-4a77-9b1f-0c9c0a6ff6a5"],
    "decimal": ["12.50", "-1e5", ".5"],
    "email": ["ann@example.org"],
    "uri": ["https://example.org/a?b#c", "mailto:ann@example.org"],
    "hostname": ["example.org", "localhost"],
    "ipv4": ["192.0.2.1"],
    "ipv6": ["2001:db8::1"],
    "byte": ["aGk="],
}
UNFIT = {
    "date": ["2031-02-30", "1 July", "20310701"],
    "date-time": ["2031-07-01", "2031-07-01T25:00:00", "now"],
    "time": ["25:00", "4pm"],
    "duration": ["P", "PT", "1 day"],
    "uuid": ["8b1ae1c6"],
    "decimal": ["NaN", "1,5", ""],
    "email": ["ann", "ann@host", "a b@example.org"],
    "uri": ["example.org", "https://a b"],
    "hostname": ["-a", "a..b", "a" * 64],
    "ipv4": ["1.2.3", "256.1.1.1"],
    "ipv6": ["::g"],
    "byte": ["a"],
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_allows_what_it_names_and_nothing_else(name: str) -> None:
    for text in FITTING.get(name, ["anything"]):
        assert problem_of(text, {"format": name}) is None
    for text in UNFIT.get(name, []):
        assert problem_of(text, {"format": name}) is not None


def test_a_pattern_that_takes_other_engines_for_ever_is_quick() -> None:
    assert problem_of("a" * 50_000 + "!", check_schema({"pattern": "^(a+)+$"})) is not None
