"""Write the tables of `docs/compare.md` from the results of the benches.

    python -m tools.compare          write them
    python -m tools.compare --check  change nothing; exit code 1 if a table differs

Every figure of the page comes from a file in `bench/results`, so none can be older than its bench.
A table stands between two comments of the page, `<!-- table: NAME -->` and `<!-- end -->`. A row
that a result file does not have is an error.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "compare.md"
RESULTS = ROOT / "bench" / "results"

_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)
_OURS = "tallystick"


class Row(NamedTuple):
    """One row of a table: what is measured, and the name of its result for each runtime."""

    what: str
    bench: str
    ours: str
    # By runtime, the name of its result; the same as ours if it is "".
    peers: dict[str, str]
    # What stands in the last column, None for what the bench itself set beside our figure.
    beside: str | None = ""
    file: str = "exec"


SLOWER = (
    Row(
        "`1+1` in an interpreter that ran before",
        "warm",
        "warm cell `1+1`",
        {"pyodide": "", "smolagents": ""},
    ),
    Row(
        "a new interpreter and its first result",
        "fresh",
        "fresh session to first result",
        {
            "pyodide": "fresh interpreter to first result",
            "smolagents": "fresh interpreter to first result",
        },
    ),
    Row(
        "a call of a host function with an integer",
        "host-call",
        "host call: JSON, a small integer",
        {
            "pyodide": "host call: JavaScript function, an integer",
            "smolagents": "host call: tool, an integer",
        },
    ),
    Row(
        "processor time to native Python, median of five programs",
        "cpu",
        "cpu: ratio to native, median of five",
        {"pyodide": "", "smolagents": ""},
    ),
    Row(
        "the same, the worst of five",
        "cpu",
        "cpu: ratio to native, worst of five",
        {"pyodide": "", "smolagents": ""},
    ),
)
SLOWER_THAN_BARE = (
    Row("a new process to its first result", "start", "new process to first result", {}, None),
    Row(
        "164 small programs, an interpreter for each",
        "humaneval",
        "HumanEval, 164 fresh sessions",
        {},
        None,
    ),
    Row(
        "processor time of a model turn",
        "model-turn",
        "processor time of a model turn to bare httpx",
        {},
        "bare httpx",
    ),
    Row(
        "forced appends, one thread, to a bare file",
        "durability",
        "forced appends, 1 thread, to bare fdatasync",
        {},
        None,
        "durability",
    ),
    Row("a scan of 1,000 skills", "skills", "scan 1,000 skills", {}, None, "skills"),
)
FASTER = (
    Row(
        "a new process to its first result",
        "start",
        "new process to first result",
        {"pyodide": "", "smolagents": ""},
    ),
    Row(
        "memory of a live interpreter",
        "memory",
        "idle session, private memory (200 live)",
        {"pyodide": "memory of a live interpreter"},
    ),
    Row(
        "fixed part of the prompt",
        "prompt",
        "fixed part of the prompt",
        {"rlms": "", "smolagents": ""},
    ),
    Row(
        "billed under a cap of $1: 1,000 calls of a cent each",
        "fan-out",
        "billed of a cap of $1, 1,000 calls at a cent",
        {"rlms": ""},
    ),
)
DURABLE = (
    Row(
        "forced writes for each paid turn",
        "durability",
        "forced writes per paid turn, 100 turns",
        {
            "langgraph": "forced writes per turn, its default",
            "dbos": "forced writes per turn, SQLite",
        },
        file="durability",
    ),
    Row(
        "bytes written for each paid turn",
        "durability",
        "written per paid turn, 100 turns",
        {"langgraph": "written per turn, its default", "dbos": "written per turn, SQLite"},
        file="durability",
    ),
)


def _peers(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(peer for row in rows for peer in row.peers))


@functools.cache
def _result(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
    return found


def _measured(row: Row, who: str, name: str) -> dict[str, Any]:
    for each in _result(row.file)["rows"]:
        if (each.get("who"), each.get("bench"), each.get("name")) == (who, row.bench, name):
            found: dict[str, Any] = each
            return found
    raise LookupError(f"{row.file}.json has no row {who}, {row.bench}, {name}")


def shown(value: float, unit: str) -> str:
    """Return a figure with two or three digits and its unit."""
    digits = f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2g}"
    unit = {"x": "times", "us": "µs"}.get(unit, unit)
    return f"${value:.2f}" if unit == "$" else f"{digits} {unit}".strip()


def _figure(row: Row, who: str) -> str:
    name = row.ours if who == _OURS else row.peers.get(who)
    if name is None:
        return "–"
    found = _measured(row, who, name or row.ours)
    return shown(found["median"], found["unit"])


def _beside_peers(rows: Sequence[Row]) -> list[str]:
    peers = _peers(rows)
    lines = [f"| | {_OURS} | " + " | ".join(peers) + " |", "| --- |" + " --- |" * (1 + len(peers))]
    for row in rows:
        figures = [_figure(row, who) for who in (_OURS, *peers)]
        lines.append(f"| {row.what} | " + " | ".join(figures) + " |")
    return lines


def _beside_bare(rows: Sequence[Row]) -> list[str]:
    lines = [f"| | {_OURS} | beside |", "| --- | --- | --- |"]
    for row in rows:
        found = _measured(row, _OURS, row.ours)
        beside = row.beside if row.beside is not None else found["against"]
        lines.append(f"| {row.what} | {shown(found['median'], found['unit'])} | {beside} |")
    return lines


def _recall() -> list[str]:
    """Return how much of the evidence each way of searching finds, and in what time."""
    lines = ["| | found among the best ten | processor time |", "| --- | --- | --- |"]
    for who, row in _result("memory-locomo")["parts"]["held out"]["rows"].items():
        lines.append(f"| {who} | {row['R@10']:.3f} | {row['cpu_ms']:g} ms |")
    return lines


def _tasks() -> list[str]:
    """Return what the same model solved in each runtime."""
    lines = ["| | tasks | turns | tokens in | time |", "| --- | --- | --- | --- | --- |"]
    total = re.compile(
        r"(\w+): (solved \d+ of \d+); (\d+) turns, ([\d,]+) tokens in, .* ([\d,]+ s)$"
    )
    for file in ("real-1001", "real-peers"):
        for said in _result(file)["totals"]:
            read = total.fullmatch(said)
            if read is None:
                raise LookupError(f"{file}.json: {said!r} is not a total that can be read")
            lines.append("| " + " | ".join(read.groups()) + " |")
    return lines


def _strategies() -> list[str]:
    """Return accuracy and median cost of the strategies, by task and size."""
    rows = {
        (each["task"], each["tokens"], each["strategy"]): each
        for each in _result("oracle")["rows"]
        if each["setting"] == "fading"
    }
    lines = ["| task | tokens | direct | code | recursive | auto takes |", "| --- |" + " --- |" * 5]
    for task in ("needle", "counting", "oolong", "pairs"):
        for tokens in (1 << 13, 1 << 17, 1 << 20):
            figures = [
                "–"
                if (found := rows.get((task, tokens, strategy))) is None or "accuracy" not in found
                else f"{found['accuracy']:.2f}, ${found['usd_nano_p50'] / 1e9:.4f}"
                for strategy in ("direct", "code", "recursive")
            ]
            took = ", ".join(rows[task, tokens, "auto"]["took"])
            lines.append(f"| `{task}` | {tokens:,} | " + " | ".join(figures) + f" | {took} |")
    return lines


def _sources() -> list[str]:
    """Return when and at which commit each file was measured."""
    lines = ["| file | measured | commit | machine |", "| --- | --- | --- | --- |"]
    for file in ("exec", "durability", "skills", "real-1001", "real-peers", "oracle"):
        found = _result(file)
        machine = found["machine"].split(", Linux")[0]
        lines.append(
            f"| `{file}.json` | {found['measured_at'][:10]} | {found['commit']} | {machine} |"
        )
    return lines


TABLES: dict[str, Callable[[], list[str]]] = {
    "slower": lambda: _beside_peers(SLOWER),
    "slower-than-bare": lambda: _beside_bare(SLOWER_THAN_BARE),
    "faster": lambda: _beside_peers(FASTER),
    "durable": lambda: _beside_peers(DURABLE),
    "recall": _recall,
    "tasks": _tasks,
    "strategies": _strategies,
    "sources": _sources,
}


def with_tables(page: str) -> str:
    """Return the page with its tables as the results have them now."""
    return _TABLE.sub(
        lambda match: match[1] + "\n" + "\n".join(TABLES[match[2]]()) + "\n\n" + match[3], page
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tools.compare")
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args(arguments)
    before = PAGE.read_text(encoding="utf-8")
    after = with_tables(before)
    if not asked.check:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        print("write it again with python -m tools.compare", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
