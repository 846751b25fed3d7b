"""What a task is, and how an answer to it is judged: lenient about form, strict about value.

Rule 1: a number may stand in quotes, brackets or a sentence, with separators and trailing zeros.
Two different numbers are no answer, unless all but one of them stand in the question or in a date.
Rule 2: a name may stand in a short sentence, in any case. Beside another candidate it is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

__all__ = ["Check", "Task", "money", "name_check", "number_check"]

Check = Callable[[str], bool]

_SENTENCE_CHARS_MAX = 300
# A sum of floats is off by less than this, and no amount in the tasks is as fine.
_FLOAT_NOISE = Decimal("0.000001")
_DATE = re.compile(r"\b(?:\d{4}-\d\d-\d\d|\d\d[./]\d\d[./]\d{4})\b")
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,2})?(?!\w)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question over texts. One file is `context`; several are a dictionary by their names.

    `near_misses` are answers a plausible mistake would give; `check` refuses them all.
    """

    name: str
    kind: str
    seed: int
    question: str
    files: Mapping[str, str]
    expected: str
    check: Check
    near_misses: tuple[str, ...]
    # How this runtime is told to answer it; peers have ways of their own.
    strategy: Literal["code", "recursive"] = "code"
    # The SKILL.md of each skill that programs may load, by name.
    skills: Mapping[str, str] = field(default_factory=dict)

    @property
    def context(self) -> str | dict[str, str]:
        """What the program finds under the name `context`."""
        texts = dict(self.files)
        return next(iter(texts.values())) if len(texts) == 1 else texts

    @property
    def chars(self) -> int:
        return sum(len(text) for text in self.files.values())


def money(cents: int) -> str:
    """An amount with two decimals and nothing else."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def number_check(expected: str, *, question: str) -> Check:
    """Judge answers that should be this number."""
    right = Decimal(expected)
    asked = _numbers(question)

    def check(answer: str) -> bool:
        if len(answer) > _SENTENCE_CHARS_MAX:
            return False
        found = _numbers(answer)
        if len(found) > 1:
            found -= asked
        return len(found) == 1 and abs(found.pop() - right) < _FLOAT_NOISE

    return check


def name_check(expected: str, *, rivals: Iterable[str]) -> Check:
    """Judge answers that should be this name and none of the rivals."""
    right = expected.casefold()
    others = tuple({rival.casefold() for rival in rivals} - {right})

    def check(answer: str) -> bool:
        said = answer.casefold()
        if len(answer) > _SENTENCE_CHARS_MAX or not _stands_in(right, said):
            return False
        rest = said.replace(right, " ")
        return not any(_stands_in(other, rest) for other in others)

    return check


def _numbers(text: str) -> set[Decimal]:
    return {Decimal(found.replace(",", "")) for found in _NUMBER.findall(_DATE.sub(" ", text))}


def _stands_in(name: str, text: str) -> bool:
    """Whether a name is there as a whole, not as a part of a longer one."""
    at = text.find(name)
    while at >= 0:
        around = text[max(at - 1, 0) : at], text[at + len(name) : at + len(name) + 1]
        if not any(each.isalnum() or each in ("-", "_") for each in around if each):
            return True
        at = text.find(name, at + 1)
    return False
