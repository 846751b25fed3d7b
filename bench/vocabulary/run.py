"""Validation of programs before they run, with 10,000 terms: processor time of one thread.

    .venv/bin/python -m bench.vocabulary.run            writes bench/results/vocabulary.json
    .venv/bin/python -m bench.vocabulary.run --quick    a tenth of the programs; writes nothing

Question: are over 1,000 programs a second validated with 10,000 terms, and what does it cost where
some are refused and alternatives are looked up?

Sketch before measuring. Python's parser takes 10 us for a line, so 200 us for a program of twenty
lines; walking its tree takes as long again, and the look-ups next to nothing: 2,000 a second. A
refused one has two or three unknown terms, each compared with those of ten thousand that share
pairs of letters: 1 ms each. A command line is short: 10,000 a second. Making the vocabulary is a
few dictionaries of 10,000: 50 ms, and its index of pairs as much again.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.measure import ROOT, Row
from bench.real.draw import NOUNS

from tallystick.vocabulary.check import NORMAL, STRICT, Rules, validate
from tallystick.vocabulary.program import Program, read_python
from tallystick.vocabulary.shell import read_shell
from tallystick.vocabulary.terms import Vocabulary, read_thesaurus

__all__ = ["main", "measure"]

_TERMS = 10_000
_PROGRAMS = 1_000
_REPEATS = 5
_TARGET = 1_000.0
# A run has few refusals: they are measured apart to show what one costs.
_WITHOUT_TARGET = ("Python, strict, all refused", "of it: Python, only read")
_RESULTS = ROOT / "bench" / "results" / "vocabulary.json"
_VERBS = ("read", "list", "count", "send", "close", "open", "merge", "check", "price", "ship")
_GIVEN = {"context": "", "orders": ""}


class _Terms:
    """Drawn terms: functions, tools and skills, and a thesaurus with relations for the rest."""

    def __init__(self, *, seed: int = 11) -> None:
        draw = random.Random(seed)
        names = [f"{verb}_{one}_{two}" for verb in _VERBS for one in NOUNS for two in NOUNS]
        draw.shuffle(names)
        self.functions, self.tools = names[:200], [f"tools.{name}" for name in names[200:500]]
        self.skills = [name.replace("_", "-") for name in names[500:1_000]]
        self.words = names[1_000:_TERMS]
        lines = [
            {"term": word, "synonyms": [f"{word}_again"], "related": [self.words[place - 1]]}
            for place, word in enumerate(self.words)
        ]
        self.file = "\n".join(json.dumps(line) for line in lines).encode()

    def vocabulary(self) -> Vocabulary:
        thesaurus = read_thesaurus(self.file, name="terms.jsonl")
        return Vocabulary(
            functions=self.functions, tools=self.tools, skills=self.skills, thesaurus=thesaurus
        )


def _program(draw: random.Random, terms: _Terms, *, misspelt: bool) -> str:
    """Twenty lines as a model writes them, of known names or with two that are not."""
    read, write = draw.sample(terms.tools, 2)
    look = draw.choice(terms.functions)
    word, other = draw.sample(terms.words, 2)
    if misspelt:
        read, look = read[:-3] + read[-2:], look[1:]
    return f'''\
import json
import re
from collections import Counter, defaultdict

totals = defaultdict(int)
seen = Counter()
for line in context.split("\\n"):
    match = re.search(r"order ([0-9]+) for ([A-Za-z ]+)", line)
    if match is None:
        continue
    number, name = match.groups()
    details = {read}("{word}", number=int(number))
    if details and details["state"] != "closed":
        totals[name.strip().lower()] += details.get("amount", 0)
        seen[name] += 1
notes = [{look}(name, limit=3) for name in sorted(totals) if totals[name] > {draw.randint(1, 99)}]
{write}(f"{{len(notes)}} notes", kind="{other}", about="the {word} of last week")
print(json.dumps(dict(seen.most_common(5)), indent=1))
for note in notes:
    print(note["title"], round(sum(note["values"]) / max(len(note["values"]), 1), 2))
'''


def _line(draw: random.Random, terms: _Terms) -> str:
    one, two, three = draw.sample(terms.words, 3)
    return f'{one} --all "$HOME/data" | {two} -v "$({three} x)" > out.txt && cd /tmp; A=1 {one} $B'


def measure(*, programs: int = _PROGRAMS, repeats: int = _REPEATS) -> Iterable[Row]:
    draw = random.Random(7)
    terms = _Terms()
    vocabulary = terms.vocabulary()
    good = [_program(draw, terms, misspelt=False) for _ in range(programs)]
    bad = [_program(draw, terms, misspelt=True) for _ in range(programs)]
    mixed = [bad[place] if place % 10 == 0 else each for place, each in enumerate(good)]
    lines = [_line(draw, terms) for _ in range(programs)]

    def python(sources: Sequence[str], rules: Rules, *, valid: int) -> Callable[[], None]:
        return lambda: _validated(
            (read_python(each, given=_GIVEN) for each in sources), vocabulary, rules, valid=valid
        )

    refused = -(-programs // 10)
    works = (
        ("Python, normal, all pass", python(good, NORMAL, valid=programs)),
        ("Python, strict, one in ten refused", python(mixed, STRICT, valid=programs - refused)),
        ("Python, strict, all refused", python(bad, STRICT, valid=0)),
        (
            "shell, normal, all pass",
            lambda: _validated(map(read_shell, lines), vocabulary, NORMAL, valid=programs),
        ),
        ("of it: Python, only read", lambda: [read_python(each, given=_GIVEN) for each in good]),
    )
    for name, work in works:
        rates = [programs / seconds for seconds in _timed(work, repeats)]
        target = None if name in _WITHOUT_TARGET else _TARGET
        yield _row(name, "programs/s", rates, target=target)
    made = [1000 * seconds for seconds in _timed(terms.vocabulary, repeats)]
    yield _row("10,000 terms read and made", "ms", made)


def _validated(
    programs: Iterable[Program], vocabulary: Vocabulary, rules: Rules, *, valid: int
) -> None:
    """Validate all. A benchmark of other verdicts than it is about measures nothing."""
    passed = sum(validate(program, vocabulary, rules).is_valid for program in programs)
    if passed != valid:
        raise RuntimeError(f"{passed} programs passed, not {valid}")


def _timed(work: Callable[[], object], repeats: int) -> list[float]:
    work()
    found = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return found


def _row(name: str, unit: str, samples: list[float], *, target: float | None = None) -> Row:
    return Row(
        bench="vocabulary", name=name, unit=unit, samples=samples, target=target,
        higher_is_better=unit.endswith("/s"),
    )  # fmt: skip


def main(arguments: list[str]) -> int:
    quick = arguments == ["--quick"]
    if arguments and not quick:
        print("usage: python -m bench.vocabulary.run [--quick]", file=sys.stderr)
        return 2
    began = os.getloadavg()
    rows = []
    for row in measure(programs=_PROGRAMS // 10) if quick else measure():
        rows.append(row)
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        spread = f"[{min(row.samples):,.0f}..{max(row.samples):,.0f}]"
        print(f"{row.name:<40}{row.median:>10,.0f} {row.unit:<12}{spread:<20}{verdict}".rstrip())
    if not quick:
        about = {**_about(), "load": {"start": began, "end": os.getloadavg()}}
        stored = {**about, "terms": _TERMS, "rows": [_stored(row) for row in rows]}
        _RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print(f"written to {_RESULTS}")
    return 0


def _about() -> dict[str, Any]:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "commit": done.stdout.strip() or "unknown",
    }


def _stored(row: Row) -> dict[str, Any]:
    return {
        "who": row.who, "bench": row.bench, "name": row.name, "unit": row.unit,
        "median": row.median, "least": min(row.samples), "most": max(row.samples),
        "samples": len(row.samples), "target": row.target, "met": row.met,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
