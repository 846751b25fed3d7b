"""The notes of a made-up workshop, and what is true in it: drawn from a seed, nobody's data.

Orders, deliveries, complaints, refunds, prices, stock, customers, and much that has nothing to do
with any of them. Every note is a sentence or two, as somebody would write it down that day.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

__all__ = ["Complaint", "Delivery", "Order", "Price", "Stock", "Workshop"]

PRODUCTS = {
    "oak shelves": 42, "pine benches": 65, "cherry stools": 38, "ash trays": 12,
    "walnut frames": 27, "beech ladders": 54, "maple desks": 180, "birch crates": 19,
}  # fmt: skip
CARRIERS = ("Halden Freight", "Norra Post", "Bluebird Couriers", "Tarn Logistics")
FAULTS = ("scratched", "the wrong colour", "missing its screws", "broken", "the wrong size")
_FIRST = ("Mara", "Jonas", "Ilse", "Tobias", "Greta", "Anton", "Signe", "Paul")
_LAST = ("Lindqvist", "Okafor", "Brandt")
_CITIES = ("Bergen", "Lund", "Turku", "Aarhus", "Tartu", "Visby")
_WISHES = (
    "wants to be called before nine", "asks for invoices on paper",
    "is away every August", "has a dog that bites couriers",
    "wants everything left at the back door", "pays within a day, always",
)  # fmt: skip
_SMALL_TALK = (
    "The {machine} was {done} today; {who} says it should hold until {month}.",
    "{who} was ill, so {other} took over the {machine} for the morning.",
    "Talked with {who} about the {month} fair: we share a table with the potters.",
    "{who} found the {thing} behind the {machine}. Nobody knows since when.",
    "The {thing} has to be renewed in {month}; {who} asks for two offers.",
    "It rained into the {place} again. {who} moved the {thing} upstairs.",
    "{other} wants the {place} painted before {month}, {who} would rather wait.",
    "A class of apprentices visited the {place}; {who} showed them the {machine}.",
)
_MACHINES = ("band saw", "planer", "lathe", "glue press", "sander", "dust fan")
_THINGS = ("fire permit", "spare key", "tea kettle", "first-aid box", "ladder hook", "old ledger")
_PLACES = ("yard", "cellar", "paint room", "front office", "loading bay")
_DONE = ("oiled", "repaired", "cleaned", "levelled")
_STAFF = ("Ines", "Bo", "Katrin")
_MONTHS = ("July", "August", "September", "October")
_FROM = datetime.date(2025, 1, 6)
_ORDERS, _COMPLAINTS, _SMALL = 120, 36, 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    number: int
    customer: str
    city: str
    product: str
    quantity: int
    day: datetime.date

    @property
    def note(self) -> str:
        return (
            f"Order {self.number}: {self.customer} from {self.city} ordered {self.quantity} "
            f"{self.product} on {said(self.day)}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    order: Order
    carrier: str
    day: datetime.date
    days_late: int

    @property
    def note(self) -> str:
        late = f"{self.days_late} days late" if self.days_late else "on time"
        return (
            f"{self.carrier} delivered order {self.order.number} on {said(self.day)}, {late}. "
            "The receipt is in the folder."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    order: Order
    fault: str
    day: datetime.date
    refund: int

    @property
    def note(self) -> str:
        return (
            f"{self.order.customer} complained on {said(self.day)} about order "
            f"{self.order.number}: something in it was {self.fault}. We apologised."
        )

    @property
    def refund_note(self) -> str:
        return f"A refund of {self.refund} euros was paid for order {self.order.number}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    product: str
    euros: int
    day: datetime.date

    @property
    def note(self) -> str:
        return f"From {said(self.day)} on, {self.product} cost {self.euros} euros each."


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    product: str
    count: int
    day: datetime.date

    @property
    def note(self) -> str:
        return f"Stock count on {said(self.day)}: there were {self.count} {self.product} left."


class Workshop:
    """Half a year of it. `notes` are in the order of their days."""

    def __init__(self, *, seed: int = 1) -> None:
        random = Random(seed)
        people = [f"{first} {last}" for last in _LAST for first in _FIRST]
        homes = {name: random.choice(_CITIES) for name in people}
        self.phones = {name: f"555-0{number}" for number, name in enumerate(people, 101)}
        self.wishes = {name: random.choice(_WISHES) for name in people}
        self.orders = [_order(random, number, homes) for number in range(1001, 1001 + _ORDERS)]
        self.deliveries = [_delivery(random, each) for each in self.orders if random.random() < 0.8]
        chosen = random.sample(self.deliveries, _COMPLAINTS)
        self.complaints = [_complaint(random, each) for each in chosen]
        self.prices = [
            Price(product=name, euros=euros + 3 * step, day=_FROM + datetime.timedelta(31 * step))
            for name, euros in PRODUCTS.items()
            for step in range(5)
        ]
        self.stocks = [
            Stock(product=name, count=random.randrange(60), day=_day(random, step * 20))
            for name in PRODUCTS
            for step in range(8)
        ]
        self.notes: Sequence[tuple[datetime.date, str]] = sorted(self._notes(random))

    def _notes(self, random: Random) -> list[tuple[datetime.date, str]]:
        told: list[Order | Delivery | Complaint | Price | Stock] = []
        told += [*self.orders, *self.deliveries, *self.complaints, *self.prices, *self.stocks]
        notes = [(each.day, each.note) for each in told]
        notes += [(each.day, each.refund_note) for each in self.complaints if each.refund]
        for name in self.phones:
            notes.append((_day(random, 0), f"The number of {name} is {self.phones[name]}."))
            notes.append((_day(random, 0), f"{name} {self.wishes[name]}."))
        small: dict[str, datetime.date] = {}
        while len(small) < _SMALL:
            small.setdefault(_small_talk(random), _day(random, random.randrange(160)))
        return notes + [(day, text) for text, day in small.items()]


def said(day: datetime.date) -> str:
    return f"{day.day} {day:%B}"


def _day(random: Random, after: int) -> datetime.date:
    return _FROM + datetime.timedelta(after + random.randrange(14))


def _order(random: Random, number: int, homes: dict[str, str]) -> Order:
    customer = random.choice(list(homes))
    return Order(
        number=number,
        customer=customer,
        city=homes[customer],
        product=random.choice(list(PRODUCTS)),
        quantity=random.randrange(1, 7),
        day=_FROM + datetime.timedelta(number - 1001),
    )


def _delivery(random: Random, order: Order) -> Delivery:
    late = random.choice((0, 0, 0, 2, 3, 5, 9))
    return Delivery(
        order=order,
        carrier=random.choice(CARRIERS),
        day=order.day + datetime.timedelta(5 + late),
        days_late=late,
    )


def _complaint(random: Random, delivery: Delivery) -> Complaint:
    return Complaint(
        order=delivery.order,
        fault=random.choice(FAULTS),
        day=delivery.day + datetime.timedelta(random.randrange(1, 6)),
        refund=random.choice((0, 10, 15, 25, 40)),
    )


def _small_talk(random: Random) -> str:
    who, other = random.sample(_STAFF, 2)
    return random.choice(_SMALL_TALK).format(
        who=who,
        other=other,
        machine=random.choice(_MACHINES),
        thing=random.choice(_THINGS),
        place=random.choice(_PLACES),
        done=random.choice(_DONE),
        month=random.choice(_MONTHS),
    )
