"""Twenty questions about the workshop, each as a model would work it out in both ways.

In the JSON way a question has rounds of tool calls: what does not need the result of another call
is called at once. In the code way it has programs. A model that does not know how the notes are
worded looks at three of them before it writes the one that counts, and that look is paid for here.

`kind` is `one`, where one hit is enough and a program has little to leave out; `latest` by key; and
`count`, `sum` and `join`, where many notes are read for a short answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.memory.workshop import CARRIERS, PRODUCTS, Order, Workshop

__all__ = ["Call", "Question", "questions"]

# A query, and how many notes are asked for.
Call = tuple[str, int]
_MANY = 100
_FEW = 10
_ONE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`needed` are the notes that the answer follows from.

    Where there are two programs, the second prints the answer and nothing else. A single one prints
    notes.
    """

    kind: str
    text: str
    answer: str
    needed: frozenset[str]
    rounds: tuple[tuple[Call, ...], ...]
    programs: tuple[str, ...]

    @property
    def computed(self) -> bool:
        """Whether its last program prints the answer itself."""
        return len(self.programs) > 1


def questions(shop: Workshop) -> list[Question]:
    return [*_single(shop), *_latest(shop), *_counts(shop), *_sums(shop), *_joins(shop)]


# -- one hit is enough -----------------------------------------------------------------------------


def _single(shop: Workshop) -> list[Question]:
    ilse, anton = "Ilse Brandt", "Anton Okafor"
    order, delivery, complaint = shop.orders[61], shop.deliveries[40], shop.complaints[7]
    paid = next(each for each in shop.complaints if each.refund)
    return [
        _one(f"What is the number of {ilse}?", shop.phones[ilse],
             f"The number of {ilse} is {shop.phones[ilse]}."),
        _one(f"What should we know about {anton} before we deliver or send a bill?",
             shop.wishes[anton], f"{anton} {shop.wishes[anton]}.", k=_FEW),
        _one(f"What was ordered with order {order.number}?",
             f"{order.quantity} {order.product}", order.note),
        _one(f"Who delivered order {delivery.order.number}?", delivery.carrier, delivery.note),
        _one(f"What was wrong with order {complaint.order.number}, as the customer complained?",
             complaint.fault, complaint.note),
        _one(f"How much was the refund for order {paid.order.number}?",
             f"{paid.refund} euros", paid.refund_note),
    ]  # fmt: skip


def _one(text: str, answer: str, needed: str, *, k: int = _ONE) -> Question:
    return Question(
        kind="one",
        text=text,
        answer=answer,
        needed=frozenset({needed}),
        rounds=(((text, k),),),
        programs=(f"for note in recall({text!r}, {k}):\n    print(note['content'])",),
    )


# -- the latest of a few ---------------------------------------------------------------------------


def _latest(shop: Workshop) -> list[Question]:
    desks = [each for each in shop.prices if each.product == "maple desks"]
    crates = [each for each in shop.stocks if each.product == "birch crates"]
    newest = max(crates, key=lambda each: each.day)
    return [
        Question(
            kind="latest",
            text="What does a maple desk cost now?",
            answer=f"{desks[-1].euros} euros",
            needed=frozenset({desks[-1].note}),
            rounds=((("maple desks cost euros each", _FEW),),),
            programs=(
                "for note in recall('maple desks cost euros each', 10):\n"
                "    if 'maple desks cost' in note['content']:\n"
                "        print(note['content'])",
            ),
        ),
        Question(
            kind="latest",
            text="How many birch crates were left at the latest stock count?",
            answer=str(newest.count),
            needed=frozenset({newest.note}),
            rounds=((("stock count birch crates left", _FEW),),),
            programs=(
                "for note in recall('stock count birch crates left', 10):\n"
                "    if 'birch crates' in note['content']:\n"
                "        print(note['content'])",
            ),
        ),
        Question(
            kind="latest",
            text="What does each product cost now? Give them by name.",
            answer="\n".join(
                f"{name}: {max(each.euros for each in shop.prices if each.product == name)}"
                for name in sorted(PRODUCTS)
            ),
            needed=frozenset(each.note for each in shop.prices if each.day == desks[-1].day),
            rounds=((("from a day on, products cost euros each", _MANY),),),
            programs=(
                _look("from a day on, products cost euros each"),
                "import re\n"
                "from datetime import datetime\n"
                "latest = {}\n"
                "for note in recall('from a day on, products cost euros each', 100):\n"
                "    if m := re.match(r'From (.+) on, (.+) cost (\\d+) euros', note['content']):\n"
                "        day = datetime.strptime(m[1] + ' 2025', '%d %B %Y')\n"
                "        latest[m[2]] = max(latest.get(m[2], (day, '')), (day, m[3]))\n"
                "for name in sorted(latest):\n"
                "    print(f'{name}: {latest[name][1]}')",
            ),
        ),
    ]


# -- counts ----------------------------------------------------------------------------------------


def _counts(shop: Workshop) -> list[Question]:
    broken = [each.note for each in shop.complaints if each.fault == "broken"]
    late = [each.note for each in shop.deliveries if each.carrier == CARRIERS[0] and each.days_late]
    lund = [each.note for each in shop.orders if each.city == "Lund"]
    faults = Counter(each.fault for each in shop.complaints)
    return [
        _counted("How many customers complained that something was broken?", broken,
                 "customer complained about order, something was broken",
                 "re.search(r'complained .* was broken', text)"),
        _counted(f"How many deliveries of {CARRIERS[0]} were late?", late,
                 f"{CARRIERS[0]} delivered order days late",
                 f"re.search(r'^{CARRIERS[0]} delivered .* days late', text)"),
        _counted("How many orders came from Lund?", lund, "order from Lund ordered",
                 "re.match(r'Order .* from Lund ordered', text)"),
        Question(
            kind="count",
            text="Which fault do customers complain about most, and how often?",
            answer=_most(faults),
            needed=frozenset(each.note for each in shop.complaints),
            rounds=((("customer complained about order, something was", _MANY),),),
            programs=(
                _look("customer complained about order, something was"),
                "import re\n"
                "from collections import Counter\n"
                "faults = Counter()\n"
                "for note in recall('customer complained about order, something was', 100):\n"
                "    if m := re.search(r'complained .* in it was (.+)\\. We', note['content']):\n"
                "        faults[m[1]] += 1\n"
                "fault, count = min(faults.items(), key=lambda each: (-each[1], each[0]))\n"
                "print(f'{fault}: {count}')",
            ),
        ),
    ]  # fmt: skip


def _counted(text: str, notes: Sequence[str], query: str, test: str) -> Question:
    return Question(
        kind="count",
        text=text,
        answer=str(len(notes)),
        needed=frozenset(notes),
        rounds=(((query, _MANY),),),
        programs=(
            _look(query),
            f"import re\ntexts = [note['content'] for note in recall({query!r}, 100)]\n"
            f"print(sum(1 for text in texts if {test}))",
        ),
    )


# -- sums ------------------------------------------------------------------------------------------


def _sums(shop: Workshop) -> list[Question]:
    desks = [each for each in shop.orders if each.product == "maple desks"]
    refunds = [each for each in shop.complaints if each.refund]
    halden = [each for each in shop.deliveries if each.carrier == CARRIERS[0]]
    mara = [each for each in shop.orders if each.customer == "Mara Lindqvist"]
    return [
        _summed("How many maple desks were ordered in all?",
                sum(each.quantity for each in desks), [each.note for each in desks],
                "ordered maple desks", r"ordered (\d+) maple desks"),
        _summed("How many euros of refunds were paid in all?",
                sum(each.refund for each in refunds), [each.refund_note for each in refunds],
                "a refund of euros was paid for order", r"refund of (\d+) euros"),
        _summed(f"How many days late were the deliveries of {CARRIERS[0]}, all together?",
                sum(each.days_late for each in halden),
                [each.note for each in halden if each.days_late],
                f"{CARRIERS[0]} delivered order days late",
                rf"^{CARRIERS[0]} .* (\d+) days late"),
        _summed("How many pieces did Mara Lindqvist order, all orders together?",
                sum(each.quantity for each in mara), [each.note for each in mara],
                "Mara Lindqvist ordered", r"Mara Lindqvist from \w+ ordered (\d+)"),
    ]  # fmt: skip


def _summed(text: str, total: int, notes: Sequence[str], query: str, pattern: str) -> Question:
    return Question(
        kind="sum",
        text=text,
        answer=str(total),
        needed=frozenset(notes),
        rounds=(((query, _MANY),),),
        programs=(
            _look(query),
            f"import re\ntotal = 0\nfor note in recall({query!r}, 100):\n"
            f"    if m := re.search(r'{pattern}', note['content']):\n"
            "        total += int(m[1])\n"
            "print(total)",
        ),
    )


# -- joins -----------------------------------------------------------------------------------------


def _joins(shop: Workshop) -> list[Question]:
    carriers = {each.order.number: each.carrier for each in shop.deliveries}
    by_halden = [each for each in shop.complaints if carriers[each.order.number] == CARRIERS[0]]
    desks = [each for each in shop.complaints if each.order.product == "maple desks"]
    delivered = {each.order.number: each.note for each in shop.deliveries}
    complained, came = "customer complained about order", f"{CARRIERS[0]} delivered order"
    halden_notes = [delivered[each.order.number] for each in by_halden]
    both = (
        "import re\n"
        "def orders(query, test):\n"
        "    texts = [note['content'] for note in recall(query, 100)]\n"
        "    return {re.search(r'(?i)order (\\d+)', text)[1] for text in texts if test in text}\n"
    )
    return [
        _joined(
            f"How many orders that {CARRIERS[0]} delivered were complained about?",
            str(len(by_halden)),
            [*(each.note for each in by_halden), *halden_notes],
            (((complained, _MANY), (came, _MANY)),),
            f"{both}print(len(orders({complained!r}, 'complained') "
            f"& orders({came!r}, '{CARRIERS[0]} delivered')))",
        ),
        _joined(
            f"From which cities were the orders that {CARRIERS[0]} delivered and that were "
            "complained about?",
            ", ".join(sorted({each.order.city for each in by_halden})),
            [
                *(each.note for each in by_halden), *halden_notes,
                *(each.order.note for each in by_halden),
            ],
            (((complained, _MANY), (came, _MANY)), _each(each.order for each in by_halden)),
            f"{both}found = orders({complained!r}, 'complained') "
            f"& orders({came!r}, '{CARRIERS[0]} delivered')\n"
            "cities = set()\n"
            "for number in found:\n"
            "    for note in recall(f'order {number}', 5):\n"
            "        if m := re.match(rf'Order {number}: .* from (\\w+)', note['content']):\n"
            "            cities.add(m[1])\n"
            "print(', '.join(sorted(cities)))",
        ),
        _joined(
            "Which customers complained about an order of maple desks?",
            ", ".join(sorted({each.order.customer for each in desks})),
            [*(each.note for each in desks), *(each.order.note for each in desks)],
            ((("ordered maple desks", _MANY), (complained, _MANY)),),
            "import re\n"
            "desks = {m[1]: m[2] for note in recall('ordered maple desks', 100)\n"
            "    if (m := re.match(r'Order (\\d+): (.+) from .* maple desks', note['content']))}\n"
            f"found = {{m[1] for note in recall({complained!r}, 100)\n"
            "    if (m := re.search(r'complained .* order (\\d+)', note['content']))}\n"
            "print(', '.join(sorted({desks[number] for number in found & desks.keys()})))",
        ),
    ]  # fmt: skip


def _joined(
    text: str,
    answer: str,
    needed: Iterable[str],
    rounds: tuple[tuple[Call, ...], ...],
    program: str,
) -> Question:
    return Question(
        kind="join",
        text=text,
        answer=answer,
        needed=frozenset(needed),
        rounds=rounds,
        programs=(_look(*(query for query, _ in rounds[0])), program),
    )


def _each(orders: Iterable[Order]) -> tuple[Call, ...]:
    return tuple((f"order {each.number}", _ONE) for each in orders)


def _look(*queries: str) -> str:
    """The program that shows how notes are worded."""
    asked = queries[0] if len(queries) == 1 else queries
    if isinstance(asked, str):
        return f"for note in recall({asked!r}, 3):\n    print(note['content'])"
    return (
        f"for query in {asked!r}:\n"
        "    for note in recall(query, 3):\n        print(note['content'])"
    )


def _most(counted: Counter[str]) -> str:
    name, count = min(counted.items(), key=lambda each: (-each[1], each[0]))
    return f"{name}: {count}"
