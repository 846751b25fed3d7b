"""Python types as schemas: what fits the schema becomes a value, and what cannot be is refused."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import pathlib
import subprocess
import sys
import typing
import uuid
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import annotated_types
import msgspec
import pydantic
import pytest

from tallystick.core.errors import UsageError
from tallystick.core.schema.values import problem_of
from tallystick.typed.encode import encode_value
from tallystick.typed.value_type import type_name, value_type

Item = TypeVar("Item")
Euro = NewType("Euro", decimal.Decimal)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Line(pydantic.BaseModel):
    """One line of an invoice."""

    sku: str = pydantic.Field(pattern=r"^[A-Z]+$", description="the article")
    count: int = pydantic.Field(gt=0)
    due: datetime.date
    colour: Colour = Colour.RED
    price: decimal.Decimal | None = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Pets(pydantic.BaseModel):
    pets: list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]


@pydantic.dataclasses.dataclass
class Place:
    code: Annotated[str, pydantic.Field(min_length=2)]


@dataclasses.dataclass
class Refund:
    """Money that goes back."""

    amount: float
    lines: list[Line]
    at: datetime.datetime
    tags: list[str] = dataclasses.field(default_factory=list)
    note: Annotated[str, "in one sentence"] = ""


@dataclasses.dataclass
class Escalate:
    to: str
    level: Level = Level.LOW


class Unloaded(msgspec.Struct, rename="camel", tag="unloaded", frozen=True):
    at_time: datetime.time
    tons: Annotated[float, msgspec.Meta(ge=0, le=500)] = 0.0


class Options(TypedDict, total=False):
    name: typing.Required[str]
    depth: int


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclasses.dataclass
class Page(Generic[Item]):
    items: list[Item]
    next: int | None = None


@dataclasses.dataclass
class Node:
    children: list[Node]


class Tree(pydantic.BaseModel):
    children: list[Tree]


class Plain:
    pass


WHEN = datetime.datetime(2031, 7, 1, 16, 36, tzinfo=datetime.UTC)
LINE = Line(sku="AB", count=2, due=datetime.date(2031, 7, 1), price=decimal.Decimal("1.50"))
VALUES: list[tuple[Any, Any]] = [
    (Refund, Refund(1.5, [LINE], WHEN, ["a"])),
    (Refund | Escalate, Escalate("ann", Level.HIGH)),
    (list[Refund | Escalate | Line], [Escalate("ann"), LINE]),
    (Pets, Pets(pets=[Cat(lives=9), Dog(name="Rex")])),
    (Cat | Dog | None, Dog(name="Rex")),
    (Place, Place("de")),
    (pydantic.HttpUrl, pydantic.HttpUrl("https://example.org/a")),
    (Unloaded, Unloaded(datetime.time(16, 36), 120.5)),
    (list[Unloaded], [Unloaded(datetime.time(16, 36))]),
    (Options, {"name": "a"}),
    (Point, Point(1)),
    (Page[int], Page([1, 2])),
    (Page[Line], Page([LINE], 3)),
    (Literal["a", 1, None, True], True),
    (Literal[Colour.RED], Colour.RED),
    (dict[Colour, list[int]], {Colour.BLUE: [1]}),
    (dict[int, Point], {-3: Point(1, 2)}),
    (set[datetime.date], {datetime.date(2031, 7, 1)}),
    (tuple[int, ...], (1, 2)),
    (tuple[str, Colour], ("a", Colour.RED)),
    (tuple[()], ()),
    (frozenset[str], frozenset({"a"})),
    (Euro, decimal.Decimal("1.10")),
    (datetime.date | datetime.datetime | str, WHEN),
    (datetime.timedelta, datetime.timedelta(days=2, hours=1, microseconds=5)),
    (uuid.UUID, uuid.UUID(int=7)),
    (bytes, b"\x00\xff"),
    (pathlib.PurePosixPath, pathlib.PurePosixPath("a/b")),
    (Annotated[int, annotated_types.Ge(1)], 1),
    (Any, {"a": [1, None]}),
]


@pytest.mark.parametrize(("type_", "value"), VALUES, ids=[type_name(each) for each, _ in VALUES])
def test_a_value_fits_the_schema_of_its_type_and_comes_back(type_: Any, value: Any) -> None:
    made = value_type(type_, where="answer")
    as_json = json.loads(json.dumps(encode_value(value)))

    assert problem_of(as_json, made.schema) is None
    assert made.decode(as_json) == value
    assert type(made.decode(as_json)) is type(value)


@pytest.mark.parametrize(
    ("type_", "value", "problem"),
    [
        (Line, {"sku": "ab", "count": 1, "due": "2031-07-01"}, "does not match"),
        (Line, {"sku": "AB", "count": 0, "due": "2031-07-01"}, "exclusiveMinimum 0"),
        (Line, {"sku": "AB", "count": 1, "due": "tomorrow"}, "which is no date"),
        (Refund, {"amount": 1, "lines": [{}], "at": "2031-07-01T16:36"}, "lines[0] has no 'sku'"),
        (Refund, {"amount": "1", "lines": [], "at": "2031-07-01T16:36"}, "is string, not number"),
        (Escalate, {"to": "a", "level": 3}, "none of [1, 2]"),
        (Unloaded, {"type": "unloaded", "atTime": "16:36", "tons": 501}, "breaks maximum 500"),
        (Unloaded, {"type": "loaded", "atTime": "16:36"}, 'not "unloaded"'),
        (Options, {"depth": 1}, "has no 'name'"),
        (Point, [1, 2, 3], "has 3 items; at most 2"),
        (Pets, {"pets": [{"kind": "cow"}]}, "is none of what oneOf allows"),
        (dict[int, int], {"a": 1}, "a name in the answer"),
        (datetime.timedelta, "P1Y", "does not match"),
        (Annotated[list[int], annotated_types.MinLen(2)], [1], "breaks minItems 2"),
        (Annotated[str, pydantic.Field(max_length=2)], "abc", "breaks maxLength 2"),
    ],
)
def test_a_value_that_is_none_fits_neither_schema_nor_type(
    type_: Any, value: Any, problem: str
) -> None:
    made = value_type(type_, where="answer")
    found = problem_of(value, made.schema)

    assert found is not None
    assert problem in found
    with pytest.raises(ValueError, match=r"."):
        made.decode(value)


@pytest.mark.parametrize(
    ("type_", "said"),
    [
        (Node, "answer: Node contains itself"),
        (Tree, "answer: Tree refers to itself|Tree"),
        (complex, "answer: complex is no type that can be checked; use a dataclass"),
        (Plain, "answer: Plain is no type that can be checked"),
        (list[Plain], "answer: Plain is no type"),
        (typing.Callable[[int], int], "is no type that can be checked"),
        (dict[float, int], r"dict\[float, int\] has names that are no text"),
        ("Missing", "the type 'Missing' cannot be found"),
        (print, "answer: print is no type"),
        (5, "answer: 5 is no type"),
    ],
)
def test_a_type_that_cannot_be_checked_is_refused_by_name(type_: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        value_type(type_, where="answer")

    assert "\n" not in str(refused.value)


def test_descriptions_of_the_author_are_in_the_schema_and_titles_of_machines_are_not() -> None:
    schema = value_type(Refund, where="answer").schema

    assert schema["description"] == "Money that goes back."
    assert schema["properties"]["note"]["description"] == "in one sentence"
    assert schema["properties"]["lines"]["items"]["description"] == "One line of an invoice."
    assert "title" not in json.dumps(schema)
    assert "description" not in value_type(Escalate, where="answer").schema


def test_a_validator_of_the_author_is_heard() -> None:
    class Even(pydantic.BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def even(cls, n: int) -> int:
            if n % 2:
                raise ValueError("n must be even")
            return n

    with pytest.raises(ValueError, match=r"^\.n: Value error, n must be even$"):
        value_type(Even, where="answer").decode({"n": 1})


def test_pydantic_is_never_imported_by_the_package() -> None:
    source = (
        "import sys, dataclasses, tallystick.typed.value_type as t\n"
        "t.value_type(dataclasses.make_dataclass('A', [('n', int)]), where='answer')\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"
