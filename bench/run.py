"""`make bench`: measure, print one table, and write bench/results/exec.json.

    .venv/bin/python bench/run.py                  everything
    .venv/bin/python bench/run.py warm host-call   these only; the file is then left alone
    .venv/bin/python bench/run.py durability --out FILE   these only, written to a file of their own

A missed target is a line in the table, never a failure: a shared machine's figures are no verdict.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

# A script starts with its own directory in the path; these modules are named from the root.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import (
    attachment_bench,
    budget_bench,
    call_bench,
    cpu_bench,
    durability,
    follow_bench,
    humaneval_bench,
    ledger_bench,
    model_bench,
    peer_bench,
    prompt_bench,
    run_memory_bench,
    session_bench,
    skill_bench,
    snapshot_bench,
    start_bench,
    text_bench,
    turn_bench,
    turn_http_bench,
)
from bench.measure import ROOT, Bench, Row, World

from tallystick.sandbox.wasm.image import ENGINE

_BENCHES: dict[str, Bench] = {
    **session_bench.BENCHES,
    **call_bench.BENCHES,
    **snapshot_bench.BENCHES,
    **start_bench.BENCHES,
    **turn_bench.BENCHES,
    **follow_bench.BENCHES,
    **turn_http_bench.BENCHES,
    **run_memory_bench.BENCHES,
    **model_bench.BENCHES,
    **budget_bench.BENCHES,
    **prompt_bench.BENCHES,
    **cpu_bench.BENCHES,
    **text_bench.BENCHES,
    **attachment_bench.BENCHES,
    **durability.BENCHES,
    **ledger_bench.BENCHES,
    **skill_bench.BENCHES,
    **humaneval_bench.BENCHES,
    **peer_bench.BENCHES,
}
# Last: a thousand sessions leave the machine busy for a while.
_BENCHES["thousand"] = _BENCHES.pop("thousand")
_RESULTS = ROOT / "bench" / "results" / "exec.json"


def main(names: list[str]) -> int:
    out = _RESULTS if not names else None
    if "--out" in names[:-1]:
        place = names.index("--out")
        out = Path(names[place + 1])
        names = names[:place] + names[place + 2 :]
    unknown = [name for name in names if name not in _BENCHES]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(_BENCHES)}", file=sys.stderr)
        return 2
    began = os.getloadavg()
    with World.open() as world:
        about = _about(world)
        print(f"{about['machine']}\n{about['python']}, {ENGINE}, commit {about['commit']}")
        print(f"load at the start {_shown_load(began)}\n")
        print(_line("", "", "median [least..most]", "target", "", "against"))
        rows = [row for name in names or _BENCHES for row in _measured(name, world)]
    ended = os.getloadavg()
    missed = [row for row in rows if row.met is False]
    print(f"\nload at the end {_shown_load(ended)}")
    for row in missed:
        print(f"missed: {row.name}: {_number(row.median)} {row.unit}, target {_target(row)}")
    if not missed and any(row.met for row in rows):
        print("every target that was measured is met")
    if out is not None:
        about["load"] = {"start": began, "end": ended}
        _write(out, {**about, "rows": [_stored(row) for row in rows]})
    return 0


def _measured(name: str, world: World) -> list[Row]:
    """The rows of one benchmark, printed as they come. One that breaks does not stop the others."""
    rows = []
    try:
        for row in _BENCHES[name](world):
            rows.append(row)
            print(_shown(row), flush=True)
    except Exception as error:
        why = f"failed: {type(error).__name__}: {error}"
        rows.append(Row(bench=name, name=name, unit="", samples=[], skipped=why))
        print(_shown(rows[-1]), flush=True)
    return rows


def _shown(row: Row) -> str:
    if row.skipped:
        why = row.skipped if row.skipped.startswith("failed") else f"skipped: {row.skipped}"
        return _line(row.who, row.name, "-", "", "", why)
    spread = ""
    if len(row.samples) > 1:
        spread = f" [{_number(min(row.samples))}..{_number(max(row.samples))}]"
    measured = f"{_number(row.median)} {row.unit}{spread}"
    verdict = {True: "met", False: "MISSED", None: ""}[row.met]
    return _line(row.who, row.name, measured, _target(row), verdict, row.against)


def _line(who: str, name: str, measured: str, target: str, verdict: str, against: str) -> str:
    return f"{who:<12}{name:<48}{measured:<32}{target:<12}{verdict:<7}{against}".rstrip()


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    return f"{'>=' if row.higher_is_better else '<='} {row.target:g} {row.unit}"


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def _shown_load(load: tuple[float, float, float]) -> str:
    return " ".join(f"{each:.2f}" for each in load) + f" on {os.cpu_count()} cores"


def _about(world: World) -> dict[str, Any]:
    return {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "guest": world.sandbox.guest.image.sha256,
        "engine": ENGINE,
        "commit": _commit(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next(line.split(":")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _stored(row: Row) -> dict[str, Any]:
    stored: dict[str, Any] = {"who": row.who, "bench": row.bench, "name": row.name}
    if row.skipped:
        return {**stored, "skipped": row.skipped}
    return {
        **stored,
        "unit": row.unit,
        "median": row.median,
        "least": min(row.samples),
        "most": max(row.samples),
        "samples": len(row.samples),
        "target": row.target,
        "met": row.met,
        "against": row.against,
    }


def _write(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
