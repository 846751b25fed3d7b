"""Values of steps as they are kept, and digests of what steps are called with."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.budget.amount import Budget
from tallystick.core.records import (
    NOT_KEPT,
    VALUE_BYTES_MAX,
    KeptValue,
    RunRef,
    arguments_digest,
    kept_value,
    value_of,
)


class Colour(StrEnum):
    RED = "red"


class Pair(msgspec.Struct):
    left: object
    right: object


@dataclass
class Point:
    x: object
    y: object


@dataclass(frozen=True)
class Thing:
    """What stands for a run."""

    id: str


def refer(value: object) -> RunRef | None:
    return RunRef(run=value.id, sha256="00") if isinstance(value, Thing) else None


def find(ref: RunRef) -> object:
    return Thing(ref.run)


def kept(value: object) -> KeptValue:
    return kept_value(value, refer)


def is_same(first: object, second: object) -> bool:
    """Equal, of the same types, and in the same order all the way down."""
    if type(first) is not type(second):
        return False
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return list(first) == list(second) and all(
            is_same(first[key], second[key]) for key in first
        )
    return repr(first) == repr(second) if isinstance(first, float) else first == second


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
others = st.binary() | st.just(Colour.RED) | st.frozensets(st.integers(), max_size=2)
values = st.recursive(
    scalars | others | st.builds(Thing, id=st.text(max_size=5)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.dictionaries(st.integers(), inner, max_size=2)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


@given(value=values)
def test_what_is_kept_is_read_back_the_same_type_by_type(value: object) -> None:
    found = kept(value)

    assert found == NOT_KEPT or is_same(value_of(found, find), value)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 10**40, 1.5, -0.0, 1e308, "", "\u00fc\u2028\x00\U0001f600", [], {},
        [1, [2.0, None, {"a": []}]], {"b": 1, "a": {"run": "x", "items": {}}},
        Thing("1"), [Thing("1"), {"run": Thing("2"), "items": {"run": "x", "sha256": "y"}}],
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_of_json_is_kept_and_runs_in_it_by_their_ids(value: object) -> None:
    assert is_same(value_of(kept(value), find), value)


@pytest.mark.parametrize(
    "value",
    [
        (1, 2), [(1,)], {1, 2}, math.nan, math.inf, [-math.inf], b"x", {1: 2}, {None: 1},
        Colour.RED, {Colour.RED: 1}, object(), OrderedDict(a=1), Point(1, 2), Pair(1, 2),
        "\ud800", ["\udfff"], {"\ud800": 1}, range(3), 1 + 2j, print, [[object()]],
    ],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_would_be_read_back_otherwise_is_not_kept(value: object) -> None:
    assert kept(value) == NOT_KEPT
    with pytest.raises(ValueError, match="no value was kept"):
        value_of(NOT_KEPT, find)


def test_what_is_longer_than_the_cap_is_not_kept() -> None:
    assert kept("x" * (VALUE_BYTES_MAX - 2)).kind == "json"
    assert kept("x" * (VALUE_BYTES_MAX - 1)) == NOT_KEPT
    assert kept("\u00fc" * (VALUE_BYTES_MAX // 2)) == NOT_KEPT
    assert kept([0] * 1_000_000) == NOT_KEPT
    # More digits than Python writes.
    assert kept(10**5_000) == NOT_KEPT


def test_what_holds_itself_is_not_kept_and_has_no_digest() -> None:
    around: list[object] = []
    around.append(around)

    assert kept(around) == NOT_KEPT
    assert arguments_digest((around,), {}) == ""


@pytest.mark.parametrize(
    "text", ["{", '{"items":1}', '{"run":"x"}', '{"run":"x","sha256":"y","more":1}', '{"a":1}']
)
def test_what_is_no_value_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        value_of(KeptValue(kind="runs", text=text), find)


# -- arguments -----------------------------------------------------------------------------------


ARGUMENTS: list[Any] = [
    (), (None,), (True,), (1,), (1.0,), ("1",), (b"1",), ([1],), ((1,),), ({"1": 1},), ({},), ([],),
    (["list", 1],), (["int", "0x1"],), (2**70,), (["int", hex(2**70)],), ("1", "2"), (["1", "2"],),
    (Pair(1, 2),), (Point(1, 2),), (Pair(1, Point(1, 2)),), (["bytes", "x"],), ("",), (b"",),
    (-0.0,), (0.0,), (0,),
]  # fmt: skip


def test_a_type_that_moved_has_the_digest_that_it_was_written_with() -> None:
    written = "3f8b57e19d4163cb1d04bfd27a7c31bc1c2faa78bdd255edad74256c44315321"

    assert arguments_digest((Budget(tokens=5),), {}) == written


def test_what_is_not_equal_in_value_and_type_has_other_digests() -> None:
    found = [arguments_digest(args, {}) for args in ARGUMENTS]
    named = [arguments_digest((), {"a": each}) for each in ARGUMENTS[1:]]

    assert "" not in [*found, *named]
    assert len({*found, *named}) == len(found) + len(named)


def test_equal_arguments_have_one_digest_whatever_their_order() -> None:
    first = arguments_digest((Pair("x", [1]),), {"a": {"k": 1, "j": 2}, "b": 2})
    second = arguments_digest((Pair("x", [1]),), {"b": 2, "a": {"j": 2, "k": 1}})

    assert first == second
    assert len(first) == 64


@pytest.mark.parametrize(
    "argument",
    [object(), {1}, math.nan, math.inf, {1: 2}, "\ud800", Colour.RED, bytearray(b"x"), print,
     Point(1, object()), "x" * (17 << 20), [0] * 70_000],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_has_no_canonical_form_has_no_digest(argument: object) -> None:
    assert arguments_digest((argument,), {}) == ""
    assert arguments_digest((), {"a": [argument]}) == ""


@given(value=values)
def test_a_digest_is_of_the_value_and_not_of_the_object(value: object) -> None:
    again: object = msgspec.json.decode(msgspec.json.encode(value)) if _is_plain(value) else value

    assert arguments_digest((value,), {}) == arguments_digest((again,), {})


def _is_plain(value: object) -> bool:
    try:
        return is_same(msgspec.json.decode(msgspec.json.encode(value)), value)
    except (TypeError, ValueError, OverflowError):
        return False
