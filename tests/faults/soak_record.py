"""Where a full sweep leaves its counts: one file, a section for each, written by them alone."""

from __future__ import annotations

import datetime
import fcntl
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.killed_runs import Outcome

__all__ = ["noted", "outcome_table"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "soak-durability.txt"


def noted(title: str, lines: Sequence[str], *, path: Path = RESULTS) -> None:
    """Write down what a sweep came to, in the place of what the one before it did.

    Only a full soak does: a short one would leave the counts of a part.
    """
    if os.environ.get("TALLYSTICK_SOAK") != "full":
        return
    with path.open("a+") as file:
        # Sweeps run beside each other: each reads and writes the whole file, so one at a time.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        kept = file.read().split("\n\n")
        sections = {section.partition("\n")[0]: section.strip("\n") for section in kept if section}
        sections[title] = "\n".join([title, _where(), *lines])
        file.truncate(0)
        file.write("\n\n".join(sections.values()) + "\n")


def outcome_table(outcomes: Counter[tuple[str, Outcome]]) -> list[str]:
    """A line for each kind, and one for all: how many had each outcome."""
    ways: tuple[Outcome, ...] = ("not begun", "went on", "in doubt")
    kinds = sorted({kind for kind, _ in outcomes})
    rows = [[kind, *(str(outcomes[kind, way]) for way in ways)] for kind in kinds]
    sums = [sum(outcomes[kind, way] for kind in kinds) for way in ways]
    rows.append(["all", *map(str, sums)])
    return ["  ".join(f"{cell:>12}" for cell in row) for row in [["", *ways], *rows]]


def _where() -> str:
    # What the sweeps write themselves makes nothing else of what they measure.
    dirty = _git("status", "--porcelain", "--", ".", ":!bench/results")
    commit = _git("rev-parse", "--short", "HEAD") + ("-dirty" if dirty else "")
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")
    return (
        f"{commit or 'no commit'}  {now}  {platform.platform()}  Python {platform.python_version()}"
    )


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
