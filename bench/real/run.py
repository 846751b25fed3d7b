"""Seeded tasks with checkable answers, given to a real model behind any OpenAI-compatible server.

    .venv/bin/python bench/real/run.py --url http://127.0.0.1:8080/v1 --model NAME

The key is read from the environment variable that `--key-env` names and is written nowhere.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

# A script starts with its own directory in the path; these modules are named from the root.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.real import ours, peers
from bench.real.kept import KeptReplies
from bench.real.outcome import Allowed, Outcome, Runner, Server, about
from bench.real.table import Row, header_line, row_line, total_lines, write_json, write_trace
from bench.real.task import Task
from bench.real.tasks import EVERY, tasks_of

from tallystick.core.records import AIDS


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    names = [name for name in given.tasks.split(",") if name]
    unknown = [name for name in names if name not in EVERY]
    if unknown:
        known = ", ".join(EVERY)
        print(f"no task {unknown[0]!r}; there are: {known}", file=sys.stderr)
        return 2
    if not given.url or not given.model:
        print("give --url and --model, or set TALLYSTICK_MODEL_URL", file=sys.stderr)
        return 2
    server = Server(url=given.url, model=given.model, key=os.environ.get(given.key_env, ""))
    allowed = Allowed(
        turns=given.turns,
        reply_tokens=given.reply_tokens,
        tokens=given.tokens,
        seconds=given.seconds,
        temperature=given.temperature,
    )
    try:
        kept = KeptReplies(Path(given.kept)) if given.kept else None
        aids = tuple(name for name in given.aids.split(",") if name)
        runner, version = _runner(given.runtime, server, allowed, kept, aids)
        seeds = [int(seed) for seed in given.seed.split(",")] if given.seed else None
    except (peers.PeerMissing, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    facts = about(given.runtime, version, server, allowed)
    facts["seeds"] = list(range(given.seeds)) if seeds is None else seeds
    print(f"{given.runtime} {version}, model {server.model}, commit {facts['commit']}")
    print(f"limits {facts['limits']}\n\n{header_line()}")
    rows: list[Row] = []
    try:
        for task in (each for seed in facts["seeds"] for each in tasks_of(seed, names)):
            rows.append(Row(runtime=given.runtime, task=task, outcome=_outcome(runner, task)))
            print(row_line(rows[-1]), flush=True)
            if given.trace:
                write_trace(Path(given.trace), rows[-1])
            if given.out:
                # After every task: hours of a slow model are not lost to an interrupt.
                write_json(Path(given.out), facts, rows)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
    print("\n" + "\n".join(total_lines(rows)))
    if given.out:
        print(f"written to {given.out}")
    return 0


def _outcome(runner: Runner, task: Task) -> Outcome:
    """What came of a task. A runtime that breaks is a line in the table, not the end of it."""
    began = time.monotonic()
    try:
        return runner(task)
    except Exception:
        return Outcome(
            answer=None,
            answered=False,
            stop="crashed",
            turns=0,
            tokens_in=0,
            tokens_out=0,
            seconds=time.monotonic() - began,
            detail=traceback.format_exc(),
        )


def _runner(
    runtime: str,
    server: Server,
    allowed: Allowed,
    kept: KeptReplies | None,
    aids: tuple[str, ...],
) -> tuple[Runner, str]:
    if runtime == "tallystick":
        return ours.runner(server, allowed, kept=kept, aids=aids), ours.VERSION
    return peers.runner(runtime, server, allowed), peers.version(runtime)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    env = os.environ.get
    parser.add_argument("--url", default=env("TALLYSTICK_MODEL_URL", ""), help="up to and with /v1")
    parser.add_argument("--model", default=env("TALLYSTICK_MODEL", ""), help="its name there")
    parser.add_argument("--key-env", default="TALLYSTICK_MODEL_KEY", help="variable with the key")
    parser.add_argument("--runtime", default="tallystick", choices=["tallystick", *peers.PEERS])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=3, help="seeds 0 to N-1; 3 unless told")
    which.add_argument("--seed", default="", help="this seed only, or these: 1001,1002")
    parser.add_argument("--tasks", default="", help="names, separated by commas; all unless told")
    default = Allowed()
    parser.add_argument("--turns", type=int, default=default.turns)
    parser.add_argument("--reply-tokens", type=int, default=default.reply_tokens)
    parser.add_argument("--tokens", type=int, default=default.tokens, help="for a whole run")
    parser.add_argument("--seconds", type=int, default=default.seconds, help="for a whole run")
    parser.add_argument("--temperature", type=float, default=default.temperature)
    parser.add_argument("--out", default="", help="write all figures to this JSON file")
    parser.add_argument("--aids", default=",".join(AIDS), help="helps of the runtime that are on")
    parser.add_argument("--kept", default="", help="file of replies that are not asked for again")
    parser.add_argument("--trace", default="", help="write each run's exchanges below this folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
