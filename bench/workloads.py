"""The programs whose speed is compared: here, natively, and in other sandboxes.

Each takes a size, so that an executor with a cap on operations can be given less of the same work.
A workload ends with an expression, and its value is checked: a program that was cut short is quick.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WORKLOADS", "Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A program in which SIZE stands for how much to do."""

    name: str
    template: str
    size: int
    small: int

    @property
    def program(self) -> str:
        return self.template.replace("SIZE", str(self.size))

    @property
    def small_program(self) -> str:
        """The same work, less of it."""
        return self.template.replace("SIZE", str(self.small))


WORKLOADS = (
    Workload(
        name="fib",
        template="""\
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

fib(SIZE)
""",
        size=24,
        small=12,
    ),
    Workload(
        name="loop",
        template="""\
def count():
    total = 0
    for i in range(SIZE):
        total += i
    return total

count()
""",
        size=1_000_000,
        small=5_000,
    ),
    Workload(
        name="json",
        template="""\
import json

def both_ways():
    rows = [{"id": i, "name": f"item {i}", "tags": ["a", "b"], "price": i / 8} for i in range(SIZE)]
    for _ in range(5):
        rows = json.loads(json.dumps(rows))
    return len(rows)

both_ways()
""",
        size=2_000,
        small=200,
    ),
    Workload(
        name="dict+sort",
        template="""\
def index():
    found = {}
    for i in range(SIZE):
        found[(i * 7919) % 1000003] = str(i)
    ordered = sorted(found.items(), key=lambda pair: pair[1])
    return ordered[0]

index()
""",
        size=60_000,
        small=1_000,
    ),
    Workload(
        name="string build",
        template="""\
def build():
    parts = []
    for i in range(SIZE):
        parts.append(f"{i}:{i * 2};")
    text = "".join(parts)
    return text.upper().count(";")

build()
""",
        size=100_000,
        small=2_000,
    ),
)
