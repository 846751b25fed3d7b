"""Tools of plain functions: what the model is told of them, and what they refuse."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import functools
from typing import Annotated, Any, Literal

import pydantic
import pytest

from tallystick.core.errors import UsageError
from tallystick.runtime.calls.functions import RunFunction
from tallystick.tools.tool import tool, tool_of, tools_of


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Order:
    sku: str
    count: int = 1


class Invoice(pydantic.BaseModel):
    number: str
    due: datetime.date


@tool(reads=True)
def rate(currency: str, day: datetime.date | None = None) -> float:
    """The rate of a currency in euro.

    Args:
        currency: its code, such as usd
        day: the day; today if it is left out

    Returns:
        Euro for one unit.
    """
    return 0.92


@tool
async def send(order: Order, colour: Colour = Colour.RED, urgent: bool = False) -> str:
    """Send an order."""
    return f"{order.count} {order.sku} {colour.value} {urgent}"


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool(reads=True, name="find_price")
    def price(self, sku: str) -> str:
        """The price of an article."""
        return f"{self.name}: {sku}"

    @staticmethod
    @tool
    def closed(day: datetime.date) -> bool:
        """Say if the shop is closed."""
        return day.weekday() == 6

    @classmethod
    def opened(cls, year: int) -> str:
        """Say who opened."""
        return f"{cls.__name__} {year}"

    def plain(self, sku: str) -> str:
        """Say it again."""
        return sku


def shown(function: Any) -> str:
    return tool_of(function).hosted().described().doc


def test_a_marked_function_stays_the_function_that_it_was() -> None:
    assert rate("usd") == 0.92
    assert asyncio.run(send(Order("a"))) == "1 a red False"
    assert Shop("x").price("a") == "x: a"
    assert rate.__name__ == "rate"


def test_the_model_is_told_signature_summary_and_arguments_in_two_lines() -> None:
    assert shown(rate).splitlines()[:3] == [
        "rate(currency: str, day: date | None = None) -> float",
        "",
        "The rate of a currency in euro. currency: its code, such as usd. "
        "day: the day; today if it is left out; date as text | None.",
    ]
    assert shown(rate).endswith("Euro for one unit.")
    assert shown(send) == (
        "send(order: Order, colour: Colour = 'red', urgent: bool = False) -> str\n\n"
        'Send an order. order: {"sku": text, "count"?: integer}. colour: "red" | "blue".'
    )


def test_a_function_is_an_effect_unless_it_is_said_to_read() -> None:
    def plain(key: str) -> str:
        return key

    assert [tool_of(each).policy for each in (plain, rate, send)] == ["effect", "read", "effect"]


def test_options_are_handed_on() -> None:
    @tool(ask=True, needs="mail", idempotent=True, name="mail.send")
    def mail(to: str) -> None:
        """Send."""

    made = tool_of(mail)

    assert (made.ask, made.needs, made.idempotent, made.name) == (True, "mail", True, "mail.send")


def test_methods_are_tools_of_their_object() -> None:
    shop = Shop("corner")
    made = {
        each.name: each for each in tools_of([shop.price, Shop.closed, Shop.opened, shop.plain])
    }

    assert made["find_price"]("a") == "corner: a"
    assert made["find_price"].policy == "read"
    assert made["closed"]("2031-07-06") is True
    assert made["opened"](1999) == "Shop 1999"
    assert made["plain"]("a") == "a"
    assert shown(shop.price) == "find_price(sku: str) -> str\n\nThe price of an article."


def test_a_bound_method_can_be_marked_and_two_marks_do_not_meet() -> None:
    shop = Shop("corner")
    one, two = tool(name="one")(shop.plain), tool(name="two", reads=True)(shop.plain)
    three, four = tool(name="three")(rate), tool(name="four")(rate)

    assert [each.name for each in tools_of([one, two, three, four, rate])] == [
        "one",
        "two",
        "three",
        "four",
        "rate",
    ]
    assert tool_of(rate).policy == "read"


def test_partials_and_objects_are_tools() -> None:
    class Looker:
        """Look."""

        async def __call__(self, key: str) -> str:
            return key.upper()

    def add(one: int, two: int) -> int:
        """Add."""
        return one + two

    made = tools_of([functools.partial(add, 1), Looker()])

    assert [each.name for each in made] == ["add", "looker"]
    assert made[0](2) == 3
    assert asyncio.run(made[1]("a")) == "A"  # type: ignore[arg-type]


def test_arguments_become_values_of_their_types() -> None:
    seen: list[Any] = []

    def keep(
        order: Order,
        invoice: Invoice,
        at: datetime.datetime,
        colour: Colour,
        sizes: list[Literal["s", "m"]],
        share: float,
        data: bytes,
        more: dict[str, Any],
    ) -> None:
        """Keep."""
        seen.extend([order, invoice, at, colour, sizes, share, data, more])

    tool_of(keep)(
        {"sku": "a"},
        {"number": "7", "due": "2031-07-01"},
        "2031-07-01T16:36",
        colour="blue",
        sizes=["s"],
        share=1,
        data=b"\x00",
        more={"x": [1]},
    )

    assert seen == [
        Order("a"),
        Invoice(number="7", due=datetime.date(2031, 7, 1)),
        datetime.datetime(2031, 7, 1, 16, 36),  # noqa: DTZ001 (as it was given)
        Colour.BLUE,
        ["s"],
        1.0,
        b"\x00",
        {"x": [1]},
    ]
    assert type(seen[5]) is float


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (({"count": 1},), "send: argument order: it has no 'sku'"),
        (({"sku": "a", "count": "1"},), r"send: argument order\.count: Expected `int`, got `str`"),
        (({"sku": "a"}, "green"), "send: argument colour: 'green' is none of 'red', 'blue'"),
        ((), "send: missing a required argument: 'order'"),
        (({"sku": "a"}, "red", True, 4), "send: too many positional arguments"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_place(
    args: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        asyncio.run(tool_of(send)(*args))  # type: ignore[arg-type]


def untyped(key) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Look."""


def starred(*keys: str) -> None:
    """Look."""


def named(**keys: str) -> None:
    """Look."""


def with_object(key: str, store: Shop = Shop("a")) -> None:  # noqa: B008
    """Look."""


def with_unknown(key: Shop) -> None:
    """Look."""


def sum(values: list[int]) -> int:
    """Add."""
    return 0


def llm_query(prompt: str) -> str:
    """Ask."""
    return prompt


def limited(count: Annotated[int, pydantic.Field(ge=1, description="how many")]) -> None:
    """Count."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "tool untyped: argument key has no type; write it, as in key: str"),
        (starred, r"tool starred: \*keys could be anything; name each argument"),
        (named, r"tool named: \*\*keys could be anything; name each argument"),
        (
            with_object,
            "tool with_object: the default of store is a Shop, which has no form in JSON",
        ),
        (with_unknown, "tool with_unknown: argument key: Shop is no type that can be checked"),
        (sum, "tool sum: programs have Python's own sum; use another name"),
        (llm_query, "llm_query: programs have llm_query for something else; use another name"),
        (lambda key: key, "tools: a lambda has no name that programs can call"),
        (Order, "tools: Order is no function; give a function"),
        (5, "tools: 5 is no function"),
    ],
)
def test_a_bad_tool_is_refused_in_one_line(function: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        tools_of([function])

    assert "\n" not in str(refused.value)


def test_a_bad_tool_is_refused_where_it_is_marked() -> None:
    with pytest.raises(UsageError, match="argument key has no type"):
        tool(untyped)


def test_two_tools_of_one_name_and_a_list_that_is_none_are_refused() -> None:
    with pytest.raises(UsageError, match="tools: two are called rate"):
        tools_of([rate, rate])
    with pytest.raises(UsageError, match="tools: a list of functions is needed, not function"):
        tools_of(rate)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="tools: a list of functions is needed, not str"):
        tools_of("rate")


def test_limits_of_an_argument_are_told_and_kept() -> None:
    assert shown(limited).endswith("Count. count: integer >= 1.")
    with pytest.raises(UsageError, match="argument count: it breaks minimum 1"):
        tool_of(limited)(0)


def test_classes_of_the_function_around_a_tool_are_found() -> None:
    @dataclasses.dataclass
    class Local:
        n: int

    @tool(reads=True)
    def look(key: Local) -> int:
        """Look."""
        return key.n

    assert tool_of(look)({"n": 2}) == 2


def test_a_tool_that_was_made_elsewhere_is_taken_as_it_is() -> None:
    made = tool_of(rate)

    assert tools_of([made]) == (made,)
    assert isinstance(made, RunFunction)
