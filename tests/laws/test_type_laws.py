"""Laws of generated types: their values go to JSON and back, and fit the schema on the way."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import typing
import uuid
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.core.schema.values import problem_of
from tallystick.typed.encode import encode_value
from tallystick.typed.value_type import value_type

Typed = tuple[Any, st.SearchStrategy[Any]]
NAMES = st.lists(
    st.sampled_from(["a", "b", "name", "title", "type_", "due"]),
    min_size=1,
    max_size=4,
    unique=True,
)
TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "Z", "P"]), max_size=8)
SCALARS: list[Typed] = [
    (bool, st.booleans()),
    (int, st.integers(-(10**12), 10**12)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, TEXT),
    (type(None), st.none()),
    (bytes, st.binary(max_size=8)),
    (datetime.date, st.dates()),
    (datetime.datetime, st.datetimes()),
    (datetime.time, st.times()),
    (datetime.timedelta, st.timedeltas(datetime.timedelta(0), datetime.timedelta(10_000))),
    (uuid.UUID, st.uuids()),
    (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=3)),
    (Literal["x", 2, None], st.sampled_from(["x", 2, None])),
]


def enums() -> st.SearchStrategy[Typed]:
    def made(names: list[str]) -> Typed:
        make: Any = enum.Enum
        kind = make("Kind", {name.upper(): name for name in names})
        return kind, st.sampled_from(list(kind))

    return NAMES.map(made)


KINDS = ("dataclass", "struct", "typed dict", "model")


def objects(
    inner: st.SearchStrategy[Typed], kinds: Sequence[str] = KINDS
) -> st.SearchStrategy[Typed]:
    """Draw a class of one of these kinds, with fields of the types that are drawn."""
    create: Any = pydantic.create_model

    def made(drawn: tuple[list[tuple[str, Typed]], str]) -> Typed:
        fields, kind = drawn
        types = {name: each for name, (each, _) in fields}
        values = st.fixed_dictionaries({name: value for name, (_, value) in fields})
        match kind:
            case "dataclass":
                cls: Any = dataclasses.make_dataclass("Made", list(types.items()))
            case "struct":
                cls = msgspec.defstruct("Made", list(types.items()))
            case "model":
                cls = create("Made", **{name: (t, ...) for name, t in types.items()})
            case _:
                return typing.TypedDict("Made", types), values  # type: ignore[operator]
        return cls, values.map(lambda each: cls(**each))

    fields = NAMES.flatmap(
        lambda names: st.tuples(*(st.tuples(st.just(name), inner) for name in names)).map(list)
    )
    return st.tuples(fields, st.sampled_from(kinds)).map(made)


def extended(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    lists: Any = list
    dicts: Any = dict
    rows: Any = tuple
    return st.one_of(
        inner.map(lambda one: (lists[one[0]], st.lists(one[1], max_size=3))),
        inner.map(lambda one: (dicts[str, one[0]], st.dictionaries(TEXT, one[1], max_size=3))),
        inner.map(lambda one: (one[0] | None, one[1] | st.none())),
        st.tuples(inner, inner).map(
            lambda two: (rows[two[0][0], two[1][0]], st.tuples(two[0][1], two[1][1]))
        ),
        objects(inner),
    )


TYPES = st.recursive(st.sampled_from(SCALARS) | enums(), extended, max_leaves=6)


@given(data=st.data())
def test_values_of_generated_types_fit_their_schema_and_come_back(data: st.DataObject) -> None:
    annotation, values = data.draw(TYPES)
    value = data.draw(values)
    made = value_type(annotation, where="answer")

    as_json = json.loads(json.dumps(encode_value(value)))

    assert problem_of(as_json, made.schema) is None
    assert encode_value(made.decode(as_json)) == encode_value(value)


@given(data=st.data())
def test_whatever_fits_the_schema_of_a_generated_type_becomes_a_value(data: st.DataObject) -> None:
    one, values = data.draw(TYPES)
    other, _ = data.draw(TYPES)
    as_json = json.loads(json.dumps(encode_value(data.draw(values))))
    made = value_type(other, where="answer")

    if problem_of(as_json, made.schema) is None:
        made.decode(as_json)
    assert value_type(one, where="answer").schema is not None


@given(data=st.data(), unknown=st.sampled_from([complex, print, type, range]))
def test_a_generated_type_with_an_unknown_one_inside_is_refused_by_name(
    data: st.DataObject, unknown: Any
) -> None:
    wrapped = st.just((unknown, st.none()))
    annotation, _ = data.draw(
        # Pydantic refuses such a type itself, while the class is made.
        objects(wrapped, KINDS[:-1])
        if isinstance(unknown, type)
        else st.just((list[unknown], None))
    )

    with pytest.raises(UsageError, match=unknown.__name__):
        value_type(annotation, where="answer")
