"""Seeded questions over texts nobody has seen: a needle, a count, labels to add up, pairs to match.

A task comes from its kind, its size and its seed alone; words are coined from syllables. What a
message means is drawn too, and stands nowhere in the text: `meanings` is all that a reader knows
beyond what he reads. A token is four bytes here, for texts as for bills.

The size of a task is that of its text, to within one line.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from bench.real.draw import coined

__all__ = ["BYTES_PER_TOKEN", "KINDS", "LABELS", "Task", "needle_pattern", "task_of"]

BYTES_PER_TOKEN = 4
LABELS = ("complaint", "question", "praise", "request", "report")
_LEVELS = ("INFO", "INFO", "INFO", "WARN", "ERROR", "DEBUG")
_MESSAGES = ("timeout after {} ms", "retry {} of 5", "cache hit for {}", "sent {} bytes", "user {}")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WORDS = 4_000
# A number that is off by this part of the right one is worth nothing.
_OFF_MAX = 0.2
_NUMBER = re.compile(r"-?\d+")
_ORDER = re.compile(r"K-\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question over one text. `score` says what an answer is worth, from 0 to 1."""

    kind: str
    tokens: int
    seed: int
    question: str
    text: str
    expected: str
    score: Callable[[str], float]
    meanings: Mapping[str, str] = field(default_factory=dict)


def needle_pattern(name: str) -> str:
    """What a code is written behind."""
    return f"clearance code of {name} is "


@functools.lru_cache(maxsize=2)
def task_of(kind: str, tokens: int, seed: int) -> Task:
    """One task. The same three always give the same one."""
    return KINDS[kind](tokens, seed)


# -- kinds -------------------------------------------------------------------------------------


def _needle(tokens: int, seed: int) -> Task:
    """The code of one place, in prose that has codes of others."""
    draw = _source("needle", tokens, seed)
    words = _lexicon(draw)
    names = [each.capitalize() for each in coined(draw, 7)]
    codes = [f"{draw.randrange(10**6, 10**7)}" for _ in names]
    hidden = [f"The {needle_pattern(name)}{code}." for name, code in zip(names, codes, strict=True)]
    size = tokens * BYTES_PER_TOKEN
    size -= sum(len(each) + 1 for each in hidden)
    said = _up_to(_paragraphs(draw, words), size)
    # To the byte: a question at the limit of a strategy is then on one side of it.
    rest = "".join(itertools.islice(_paragraphs(draw, words), 3))
    said.append(rest[: size - sum(len(each) + 1 for each in said)])
    for each in hidden:
        at = draw.randrange(len(said))
        said[at] = f"{said[at]} {each}"
    return Task(
        kind="needle",
        tokens=tokens,
        seed=seed,
        question=f"What is the clearance code of {names[0]}?",
        text="\n".join(said),
        expected=codes[0],
        score=lambda answer: float(_NUMBER.findall(answer) == [codes[0]]),
    )


def _counting(tokens: int, seed: int) -> Task:
    """Lines of a log with one level and one service: a program can see both."""
    draw = _source("counting", tokens, seed)
    services = coined(draw, 6)
    lines = _up_to(_log(draw, services), tokens * BYTES_PER_TOKEN)
    level, service = "ERROR", services[0]
    right = sum(f" {level} {service}: " in line for line in lines)
    return Task(
        kind="counting",
        tokens=tokens,
        seed=seed,
        question=f"How many lines have the level {level} and are of the service {service}?",
        text="\n".join(lines),
        expected=f"{right}",
        score=lambda answer: _near(answer, right),
    )


def _oolong(tokens: int, seed: int) -> Task:
    """Messages of one kind, which only their meaning tells."""
    draw = _source("oolong", tokens, seed)
    meanings: dict[str, str] = {}
    lines = _up_to(_posts(draw, meanings), tokens * BYTES_PER_TOKEN)
    label = draw.choice(LABELS)
    right = sum(meanings[_meant(line)] == label for line in lines)
    return Task(
        kind="oolong",
        tokens=tokens,
        seed=seed,
        question=f"Each line is a message: {_listed()}. How many messages are a {label}?",
        text="\n".join(lines),
        expected=f"{right}",
        score=lambda answer: _near(answer, right),
        meanings=meanings,
    )


def _pairs(tokens: int, seed: int) -> Task:
    """Orders with two messages, far apart, of two kinds that only their meaning tells."""
    draw = _source("pairs", tokens, seed)
    meanings: dict[str, str] = {}
    lines = _up_to(_posts(draw, meanings), tokens * BYTES_PER_TOKEN - 200, longer=16)
    named = draw.sample(range(len(lines)), len(lines) // 2 // 2 * 2)
    numbers = draw.sample(range(10_000, 99_999), len(named) // 2)
    by_order: dict[str, list[str]] = {}
    for at, place in enumerate(named):
        order = f"K-{numbers[at // 2]}"
        by_order.setdefault(order, []).append(meanings[_meant(lines[place])])
        lines[place] = lines[place].replace(" || Instance:", f" || Order: {order} || Instance:")
    right = {order for order, both in by_order.items() if sorted(both) == ["complaint", "praise"]}
    return Task(
        kind="pairs",
        tokens=tokens,
        seed=seed,
        question=(
            f"Each line is a message: {_listed()}. Some orders have two messages. List the numbers "
            "of the orders that have one complaint and one praise."
        ),
        text="\n".join(lines),
        expected=", ".join(sorted(right)),
        score=lambda answer: _f1(set(_ORDER.findall(answer)), right),
        meanings=meanings,
    )


KINDS: dict[str, Callable[[int, int], Task]] = {
    "needle": _needle,
    "counting": _counting,
    "oolong": _oolong,
    "pairs": _pairs,
}


# -- text --------------------------------------------------------------------------------------


def _source(kind: str, tokens: int, seed: int) -> random.Random:
    return random.Random(f"oracle/{kind}/{tokens}/{seed}")


def _lexicon(draw: random.Random) -> list[str]:
    return coined(draw, _WORDS)


def _up_to(lines: Iterator[str], size: int, *, longer: int = 0) -> list[str]:
    """As many lines as fit, where `longer` is what may be put into each of them later."""
    taken: list[str] = []
    for line in lines:
        size -= len(line) + 1 + longer // 2
        if size < 0:
            return taken
        taken.append(line)
    return taken


def _paragraphs(draw: random.Random, words: list[str]) -> Iterator[str]:
    while True:
        yield " ".join(_sentence(draw, words) for _ in range(draw.randrange(4, 9)))


def _sentence(draw: random.Random, words: list[str]) -> str:
    return f"{' '.join(draw.choices(words, k=draw.randrange(6, 14))).capitalize()}."


def _log(draw: random.Random, services: list[str]) -> Iterator[str]:
    while True:
        day, second = draw.randrange(1, 29), draw.randrange(86_400)
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        said = draw.choice(_MESSAGES).format(draw.randrange(10_000))
        yield f"2025-03-{day:02} {clock} {draw.choice(_LEVELS)} {draw.choice(services)}: {said}"


def _posts(draw: random.Random, meanings: dict[str, str]) -> Iterator[str]:
    """Messages of users. What each means is noted, and not written."""
    words = _lexicon(draw)
    while True:
        said = f"{_sentence(draw, words)} {_sentence(draw, words)}"
        meanings[said] = draw.choice(LABELS)
        date = f"{draw.choice(_MONTHS)} {draw.randrange(1, 29):02}, 2025"
        yield f"Date: {date} || User: {draw.randrange(10_000, 99_999)} || Instance: {said}"


def _meant(line: str) -> str:
    return line.rpartition("Instance: ")[2]


def _listed() -> str:
    return f"a {', a '.join(LABELS[:-1])} or a {LABELS[-1]}"


# -- scores ------------------------------------------------------------------------------------


def _near(answer: str, right: int) -> float:
    found = _NUMBER.findall(answer)
    if len(found) != 1:
        return 0.0
    off = abs(int(found[0]) - right)
    return max(0.0, 1 - off / (max(1, right) * _OFF_MAX))


def _f1(found: set[str], right: set[str]) -> float:
    if not found and not right:
        return 1.0
    return 2 * len(found & right) / (len(found) + len(right))
