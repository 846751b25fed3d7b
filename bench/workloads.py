"""The programs whose speed is compared: here, natively, and in other sandboxes.

`WORKLOADS` are the five that the target is about. `FURTHER` are measured and shown beside them and
have no target: the same loop and the same building of text as a function with local names, where
native Python is quickest and the ratio therefore worst. Each takes a size, so that an executor with
a cap on operations can be given less of the same work. A workload ends with an expression, and its
value is checked: a program that was cut short is quick.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FURTHER", "WORKLOADS", "Workload"]


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
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(SIZE)
""",
        size=24,
        small=12,
    ),
    Workload(
        name="loop",
        template="""\
x = 0
for i in range(SIZE): x += i
x
""",
        size=1_000_000,
        small=5_000,
    ),
    Workload(
        name="json",
        template="""\
import json
d = [{"id": i, "name": "n%d" % i, "v": [1, 2, 3]} for i in range(SIZE)]
len(json.loads(json.dumps(d)))
""",
        size=10_000,
        small=500,
    ),
    Workload(
        name="dict+sort",
        template="""\
d = {str(i): i for i in range(SIZE)}
len(sorted(d, key=d.get, reverse=True))
""",
        size=200_000,
        small=2_000,
    ),
    Workload(
        name="string build",
        template="""\
s = "".join(str(i) for i in range(SIZE))
len(s)
""",
        size=300_000,
        small=2_000,
    ),
)

FURTHER = (
    Workload(
        name="loop in a function",
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
        name="f-strings in a function",
        template="""\
def build():
    parts = []
    for i in range(SIZE):
        parts.append(f"{i}:{i * 2};")
    return "".join(parts).upper().count(";")

build()
""",
        size=100_000,
        small=2_000,
    ),
)
