"""The root model as a policy: from the prompt alone, the program that a competent model writes.

It reads the prompt as a model does. It knows of model calls from programs only if it was told of
them, by the fixed part or by the task; what it is shown it understands as the reader does. By the
chances of `Habits` it errs as models do: programs that break, before or after what they paid for, a
look that was not needed, a whole block written again with all its calls.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from bench.oracle.oracle import JUDGE, Reader, Sight
from bench.oracle.tasks import needle_pattern

from tallystick.core.machine.prompt import Message

__all__ = ["HABITS", "Habits", "written"]

_TASK = re.compile(r"The task: (.*?)\n\nWrite one ```python block\.", re.DOTALL)
_NEEDLE = re.compile(r"clearance code of (\w+)\?")
_LEVEL = re.compile(r"the level (\w+) and are of the service (\w+)\?")
_COUNT = re.compile(r"messages are a (\w+)\?")
_PAIRS = re.compile(r"the orders that have one (\w+) and one (\w+)\.")
_TOTAL = r"total \d+ of \d+ pieces, failed (\[.*?\])"
_LINES = r"lines (\d+)\n"
_PIECE_CHARS = 8_000
# What goes into one call for a batch, which takes 1 MB: it was told so.
_BATCH, _PART_CHARS, _PARTS = 100, 120_000, 8
# What it takes to be long: then parts of it are given to runs of their own, if it knows how long.
_LONG_LINES = 1_500
_READ_LINES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How often it does what it should not, in each turn."""

    # A program that breaks at once; one that breaks behind its model calls; a look before.
    breaks: float = 0.08
    breaks_late: float = 0.05
    looks: float = 0.25
    # A second look at what it has; the whole block again, though what it paid for is still there.
    checks: float = 0.1
    pays_again: float = 0.75
    # An answer in the same program that finds it; more in one batch than it was told it can hold.
    at_once: float = 0.3
    crowds: float = 0.3


HABITS = Habits()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a run stands, as its prompt shows it: `heard` is the last thing that was said to it."""

    task: str
    told: bool
    on_host: bool
    heard: str
    before: str
    draw: random.Random
    reader: Reader
    habits: Habits

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def looks_again(self) -> bool:
        """Whether it looks once more at what it has; not if it was told that it did."""
        return "You ran this program before" not in self.heard and self.chance(self.habits.checks)

    @property
    def is_first(self) -> bool:
        return not self.heard.strip()

    @property
    def failed(self) -> bool:
        return "The program failed" in self.heard

    @property
    def lines(self) -> str:
        """How a program gets at the lines of its data."""
        return "lines = list(context.lines())\n" if self.on_host else ""

    @property
    def read(self) -> str:
        """The messages that it was shown by its programs, and not in the sample."""
        said = f"{self.before}\n{self.heard}"
        return said if "Instance: " in said else ""

    def saw(self, pattern: str) -> re.Match[str] | None:
        """What a program of this run has printed, if it is still in the prompt."""
        found = list(re.finditer(pattern, f"{self.before}\n{self.heard}\n"))
        return found[-1] if found else None


def written(
    messages: tuple[Message, ...], reader: Reader, draw: random.Random, habits: Habits = HABITS
) -> str:
    """The next reply: one block of Python."""
    first = messages[1].text
    task = _TASK.search(first)
    # What is said of a reply that was taken out of the prompt stands behind the task.
    said = [first[task.end() :] if task else ""]
    said += [each.text for each in messages[2:] if each.role == "user"]
    place = _Place(
        task=task[1] if task else first,
        told="llm_query" in messages[0].text or "llm_query" in first,
        on_host="stays outside" in first,
        heard=said[-1],
        before="\n".join(said[:-1]),
        draw=draw,
        reader=reader,
        habits=habits,
    )
    return f"```python\n{_program(place).strip()}\n```"


def _program(place: _Place) -> str:
    if not place.failed and place.chance(place.habits.breaks):
        return f"{place.lines}found = [each for each in lnes if each]\nprint(len(found))"
    for asked, plan in _PLANS:
        found = asked.search(place.task)
        if found is not None:
            return plan(place, found)
    return 'FINAL("unknown")'


# -- by code alone -----------------------------------------------------------------------------


def _needle(place: _Place, asked: re.Match[str]) -> str:
    find = f'import re\nfound = re.findall(r"{needle_pattern(asked[1])}(\\d+)", context)\n'
    if place.saw(r"\['\d+'\]") and not place.looks_again():
        return "FINAL(found[0])"
    if place.is_first and place.chance(place.habits.looks):
        # It takes the wording of the question for that of the text.
        return f'import re\nprint(re.findall(r"code of {asked[1]}: (\\w+)", context))'
    return find + ("FINAL(found[0])" if place.chance(place.habits.at_once) else "print(found)")


def _level(place: _Place, asked: re.Match[str]) -> str:
    sought = f" {asked[1]} {asked[2]}: "
    if place.saw(r"count \d+\n") and not place.looks_again():
        return "FINAL(count)"
    if place.is_first and place.chance(place.habits.looks):
        return f"{place.lines}print(len(lines))\nprint(lines[:3])"
    count = f'{place.lines}count = sum("{sought}" in line for line in lines)\n'
    at_once = place.chance(place.habits.at_once)
    return count + ("FINAL(count)" if at_once else 'print("count", count)')


# -- by model calls ----------------------------------------------------------------------------

_CUT = """\
{name}, part, size = [], [], 0
for line in lines:
    if size + len(line) > {chars} and part:
        {name}.append("\\n".join(part))
        part, size = [], 0
    part.append(line)
    size += len(line) + 1
{name}.append("\\n".join(part))
"""
_PIECES = _CUT.format(name="pieces", chars=_PIECE_CHARS)
_ASK = """\
ask = {question!r}
found = llm_query_batched([ask + chr(10) + p for p in pieces], schema={schema})
"""
_ASK_IN_TURN = """\
ask = {question!r}
found = []
for i in range(0, len(pieces), {batch}):
    asked = [ask + chr(10) + p for p in pieces[i:i+{batch}]]
    found += llm_query_batched(asked, schema={schema})
"""
_SAID = """\
failed = [i for i, n in enumerate(found) if not isinstance(n, {kind})]
{joined}
print(f"total {{total}} of {{len(pieces)}} pieces, failed {{failed[:20]}}")
"""
_AGAIN = """\
for i in failed:
    try:
        {again}
    except Exception as e:
        print(e)
"""
# A name that a program is never given.
_LATE = "totals"
_SUM = "total = sum(n for n in found if isinstance(n, int))"
_JOIN = """\
kinds = defaultdict(list)
for said in found:
    for each in said if isinstance(said, list) else []:
        kinds[each.split()[0]].append(each.split()[-1])
matched = sorted(k for k, both in kinds.items() if sorted(both) == {wanted!r})
total = len(matched)"""


def _count(place: _Place, asked: re.Match[str]) -> str:
    if not place.told:
        return _by_sample(place, asked[1])
    question = f"How many of these messages are a {asked[1]}?"
    if (looked := place.saw(_LINES)) and int(looked[1]) > _LONG_LINES:
        return _by_parts(place, question)
    return _by_pieces(
        place,
        ask=f"{place.lines}{_PIECES}{_asking(place, question, 'int')}",
        again="found[i] = llm_query(ask + chr(10) + pieces[i], schema=int)",
        said=_SAID.format(kind="int", joined=_SUM),
        final="FINAL(total)",
    )


def _pairs(place: _Place, asked: re.Match[str]) -> str:
    if not place.told:
        return _by_reading_some(place, asked)
    question = JUDGE.format(*asked.groups())
    select = (
        "import re\nfrom collections import defaultdict\n"
        f"{place.lines}orders = defaultdict(list)\n"
        "for line in lines:\n"
        '    for order in re.findall(r"Order: (K-\\d+)", line):\n'
        "        orders[order].append(line)\n"
        "lines = [line for both in orders.values() if len(both) > 1 for line in both]\n"
    )
    return _by_pieces(
        place,
        ask=f"{select}{_PIECES}{_asking(place, question, 'list[str]')}",
        again="found[i] = llm_query(ask + chr(10) + pieces[i], schema=list[str])",
        said=_SAID.format(kind="list", joined=_JOIN.format(wanted=sorted(asked.groups()))),
        final='FINAL(", ".join(matched) or "none")',
    )


def _asking(place: _Place, question: str, schema: str) -> str:
    """All pieces in one call, or so many at a time that they are taken."""
    crowds = not place.failed and place.chance(place.habits.crowds)
    made = _ASK if crowds else _ASK_IN_TURN
    return made.format(question=question, schema=schema, batch=_BATCH)


def _by_pieces(place: _Place, *, ask: str, again: str, said: str, final: str) -> str:
    """Every piece is asked about once, what failed once more, and then it is the answer."""
    seen = place.saw(_TOTAL)
    if seen is not None:
        if seen[1] != "[]" and place.saw("asked again") is None:
            return f'print("asked again")\n{_AGAIN.format(again=again)}{said}'
        if not place.saw("first piece") and place.looks_again():
            return 'print("first piece", pieces[0][:500])\nprint(found[:10])'
        return final
    if place.is_first and place.chance(place.habits.looks):
        return f'{place.lines}print("lines", len(lines))\nprint(lines[0][:300])'
    if place.failed and _LATE in place.heard and not place.chance(place.habits.pays_again):
        return said
    late = f"print({_LATE})\n" if place.chance(place.habits.breaks_late) else ""
    return f"{ask}{late}{said}"


def _by_parts(place: _Place, question: str) -> str:
    """A level of recursion: parts of the text for runs of their own, which are told how."""
    how = (
        f"Each line is a message. {question} Ask llm_query_batched about pieces of whole lines of "
        f"up to {_PIECE_CHARS} characters with schema=int, add the numbers up, FINAL(the sum)."
    )
    seen = place.saw(r"parts( again)? \[.*")
    if seen is None:
        return (
            f"{place.lines}{_CUT.format(name='parts', chars=_PART_CHARS)}"
            f"task, found = {how!r}, []\n"
            f"for i in range(0, len(parts), {_PARTS}):\n"
            f"    part = parts[i:i+{_PARTS}]\n"
            "    found += rlm_query_batched([task] * len(part), part)\n"
            'print("parts", found)'
        )
    if "HostError" in seen[0] and not seen[1]:
        return (
            "both = zip(found, parts)\n"
            "found = [n if isinstance(n, str) else rlm_query(task, p) for n, p in both]\n"
            'print("parts again", found)'
        )
    number = 'int(re.sub(r"[^0-9]", "", n) or 0)'
    return f"import re\nFINAL(sum({number} for n in found if isinstance(n, str)))"


# -- where it was not told of model calls ------------------------------------------------------


def _by_sample(place: _Place, label: str) -> str:
    """It reads some lines itself, and takes the whole to be like them."""
    if not place.failed and (read := place.read):
        seen = place.reader.posts(read, Sight(place.draw, 0.0, place.reader.faults.wrong))
        count = sum(kind == label for _, kind in seen)
        return f"FINAL(round({count} / {max(1, len(seen))} * len(lines)))"
    return f"{place.lines}print(chr(10).join(lines[::-(-len(lines) // {_READ_LINES})]))"


def _by_reading_some(place: _Place, asked: re.Match[str]) -> str:
    """It reads the messages of some orders itself, and answers with what it has seen."""
    if not place.failed and (read := place.read):
        sight = Sight(place.draw, 0.0, place.reader.faults.wrong)
        return f"FINAL({place.reader.pairs(read, asked, sight)!r})"
    return (
        "import re\nfrom collections import defaultdict\n"
        f"{place.lines}orders = defaultdict(list)\n"
        "for line in lines:\n"
        '    for order in re.findall(r"Order: (K-\\d+)", line):\n'
        "        orders[order].append(line)\n"
        "both = [pair for pair in orders.values() if len(pair) > 1]\n"
        f"print(chr(10).join(line for pair in both[:{_READ_LINES // 2}] for line in pair))"
    )


_PLANS = (
    (_PAIRS, _pairs),
    (_COUNT, _count),
    (_LEVEL, _level),
    (_NEEDLE, _needle),
)
