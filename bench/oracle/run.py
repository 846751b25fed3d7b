"""Strategies compared offline: four tasks, 2^13 to 2^20 tokens, a model that answers by a table.

    .venv/bin/python -m bench.oracle.run            everything; writes bench/results/oracle.json
    .venv/bin/python -m bench.oracle.run --quick    2^13 and 2^14, two seeds; writes nothing

Question: is auto never worse or dearer than reading at once below 2^14 tokens, and is the cost of a
run at its 95th percentile at most three times the median?

Sketch before measuring, at $0.25 and $2 for a million tokens: reading 2^13 tokens is $0.0021. A
program of 100 tokens over a prompt of 500 is $0.0003, so two or three turns of code are under half
of that at any size. Reading in pieces costs what the text does and a third more: $0.35 at 2^20. A
program that breaks behind its calls and makes them again doubles that, which is the tail.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.oracle.oracle import SETTINGS, WINDOW, Faults
from bench.oracle.root import HABITS
from bench.oracle.runs import Case, Outcome, cap_of, ran
from bench.oracle.table import Row, checks_of, row_of, shown, stored
from bench.oracle.tasks import KINDS

from tallystick.core.strategy import STRATEGIES, AskedStrategy
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory

__all__ = ["cases_of", "measured", "rows_of"]

ROOT = Path(__file__).resolve().parents[2]
_RESULTS = ROOT / "bench" / "results" / "oracle.json"
# How many seeds at each size: of fewer than twenty, the 95th percentile is only the most. Where
# every piece of a long text is read, a run takes many seconds, and there are fewer.
_SEEDS = dict.fromkeys((2**11, 2**12, 2**13, 3 * 2**12, *(2**at for at in range(14, 21))), 20)
_FEWER = {(kind, tokens): 6 for kind in ("oolong", "pairs") for tokens in (2**19, 2**20)}
_QUICK = {2**13: 2, 3 * 2**12: 2, 2**14: 2}
# What else is varied: only where a prompt is long does it matter how much of it is overlooked, and
# a program's calls are short; what output costs matters where reading and programs cost alike.
_VARIED: tuple[AskedStrategy, ...] = ("auto", "direct")
_VARIED_TOKENS_MAX = {"perfect": 2**17, "flat": 2**14 - 1}
# Where every piece is read, a cap of about half of what that costs.
_TIGHT_TOKENS, _TIGHT_KINDS, _TIGHT_USD = 2**14, ("oolong", "pairs"), 2_500_000
_Group = tuple[Case, ...]


def cases_of(seeds: dict[int, int]) -> Iterator[_Group]:
    """Everything to run, in groups over the same text: it is made once."""
    for (tokens, count), kind in itertools.product(seeds.items(), KINDS):
        for seed in range(min(count, _FEWER.get((kind, tokens), count))):
            yield tuple(_over(kind, tokens, seed))


def _over(kind: str, tokens: int, seed: int) -> Iterator[Case]:
    base = Case(
        kind=kind, tokens=tokens, seed=seed, strategy="auto", setting="fading", usd=cap_of(tokens)
    )
    for strategy in STRATEGIES:
        yield replace(base, strategy=strategy)
    for setting, tokens_max in _VARIED_TOKENS_MAX.items():
        # Longer ones are not read at once by auto.
        varied = _VARIED if tokens <= 2**14 else _VARIED[-1:]
        if tokens <= tokens_max:
            yield from (replace(base, setting=setting, strategy=each) for each in varied)
    if tokens == _TIGHT_TOKENS and kind in _TIGHT_KINDS:
        for strategy in STRATEGIES:
            yield replace(base, setting="tight", strategy=strategy, usd=_TIGHT_USD)


def measured(groups: Sequence[_Group], sandbox: WasmSandbox) -> list[Outcome]:
    """Run them here, one after the other."""
    return [ran(case, sandbox) for group in groups for case in group]


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Rows by task, size and setting, their strategies side by side."""
    by_row: dict[tuple[Any, ...], list[Outcome]] = {}
    for each in sorted(outcomes, key=lambda each: each.case.seed):
        case = each.case
        place = (
            list(KINDS).index(case.kind),
            case.tokens,
            list(SETTINGS).index(case.setting),
            STRATEGIES.index(case.strategy),
        )
        by_row.setdefault(place, []).append(each)
    return [row_of(by_row[place]) for place in sorted(by_row)]


# -- in several processes ----------------------------------------------------------------------

_held: list[WasmSandbox] = []


def _open(directory: str) -> None:
    sandbox = WasmSandbox.load(cache=cache_directory(), output_directory=Path(directory))
    _held.append(sandbox)


def _run_group(group: _Group) -> list[Outcome]:
    return measured([group], _held[0])


def _at_once(groups: Sequence[_Group], workers: int) -> list[Outcome]:
    """Run them in several processes. What waits for a retry leaves its core to another."""
    found: list[Outcome] = []
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="tally-oracle-") as directory,
        ProcessPoolExecutor(
            workers, mp_context=context, initializer=_open, initargs=(directory,)
        ) as pool,
    ):
        began = time.monotonic()
        for number, outcomes in enumerate(pool.map(_run_group, groups), 1):
            found += outcomes
            if number % 20 == 0 or number == len(groups):
                took = time.monotonic() - began
                print(f"{number} of {len(groups)} texts, {took:,.0f} s", file=sys.stderr)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="2^13 and 2^14, two seeds")
    parser.add_argument("--workers", type=int, default=(os.cpu_count() or 1) + 1)
    given = parser.parse_args(arguments)
    began = time.monotonic()
    groups = list(cases_of(_QUICK if given.quick else _SEEDS))
    # The longest first: none of them is then left over at the end.
    groups.sort(key=lambda group: -group[0].tokens)
    rows = rows_of(_at_once(groups, given.workers))
    checks = checks_of(rows)
    print("\n".join(shown(rows, checks)))
    if not given.quick:
        _write(rows, {each.name: [each.met, each.found] for each in checks}, began)
    return 0


def _write(rows: Sequence[Row], checks: dict[str, Any], began: float) -> None:
    results = {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "commit": _commit(),
        "seconds": round(time.monotonic() - began),
        "assumed": {
            "bytes_per_token": 4,
            "window": WINDOW,
            "faults": asdict(Faults()),
            "root": asdict(HABITS),
            "settings": {name: asdict(setting) for name, setting in SETTINGS.items()},
            "cap_usd_nano": {"tight": _TIGHT_USD, "else": "6 x the text + 10**8"},
            "seeds": {"else": 20, **{f"{kind} {at}": few for (kind, at), few in _FEWER.items()}},
        },
        "checks": checks,
        "rows": [stored(row) for row in rows],
    }
    _RESULTS.parent.mkdir(parents=True, exist_ok=True)
    _RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {_RESULTS.relative_to(ROOT)}")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
