"""The same tasks through other runtimes, with the same model and the same limits.

    .venv/bin/python bench/real/peers.py --url URL --model NAME --seed 1001

Each peer runs in a Python of its own: TALLYSTICK_BENCH_RLMS and TALLYSTICK_BENCH_SMOLAGENTS name
the executables. A peer that asks the model once more after its last turn, for a final answer, may.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# A script starts with its own directory in the path; these modules are named from the root.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.real.meter import Meter
from bench.real.outcome import ROOT, Allowed, Outcome, Runner, Server, about
from bench.real.table import Row, header_line, row_line, total_lines, write_json, write_trace
from bench.real.task import Task
from bench.real.tasks import PEER_TASKS, tasks_of

__all__ = ["PEERS", "PeerMissing", "runner", "version"]

PEERS = {"rlms": "TALLYSTICK_BENCH_RLMS", "smolagents": "TALLYSTICK_BENCH_SMOLAGENTS"}
_RUNNERS = Path(__file__).resolve().parent / "runners"
_RESULTS = ROOT / "bench" / "results" / "real-peers.json"
# What a peer may take to start and to stop, beside its run.
_SECONDS_AROUND = 30


class PeerMissing(Exception):
    """No Python is named that has this peer."""


def version(peer: str) -> str:
    """The version of a peer, as its own Python reports it."""
    done = subprocess.run(_command(peer, "version"), capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerMissing(f"{peer} does not start: {done.stderr.strip()[-300:]}")
    return str(json.loads(done.stdout.splitlines()[-1])["version"])


def runner(peer: str, server: Server, allowed: Allowed) -> Runner:
    """A runner of tasks, each in a process of its own."""
    command = _command(peer)

    def run(task: Task) -> Outcome:
        began = time.monotonic()
        with Meter(server, seconds=allowed.seconds) as meter:
            given = {
                "question": task.question,
                "files": dict(task.files),
                "url": meter.url,
                "model": server.model,
                "turns": allowed.turns,
                "reply_tokens": allowed.reply_tokens,
                "tokens": allowed.tokens,
                "seconds": allowed.seconds,
                "temperature": allowed.temperature,
            }
            came = _ran(command, given, seconds=allowed.seconds + _SECONDS_AROUND)
        seconds = time.monotonic() - began
        answer = came.get("answer")
        return Outcome(
            answer=None if answer is None else str(answer),
            answered=answer is not None,
            stop=str(came["stop"]),
            turns=int(came.get("turns", len(meter.exchanges))),
            tokens_in=sum(each.tokens_in for each in meter.exchanges),
            tokens_out=sum(each.tokens_out for each in meter.exchanges),
            seconds=seconds,
            detail=str(came.get("detail", "")),
            exchanges=meter.exchanges,
        )

    return run


def _command(peer: str, *arguments: str) -> list[str]:
    python = os.environ.get(PEERS[peer], "")
    if not python or not Path(python).exists():
        raise PeerMissing(f"set {PEERS[peer]} to a Python that has {peer}")
    return [python, str(_RUNNERS / f"{peer}_runner.py"), *arguments]


def _ran(command: list[str], given: dict[str, Any], *, seconds: int) -> dict[str, Any]:
    """What a peer said of its run, or how it ended without saying anything."""
    # Away from the repository: a peer's own imports must not find our modules.
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(json.dumps(given), timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"stop": "deadline", "detail": f"ended after {seconds} s"}
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        return {"stop": "error", "detail": f"exit {process.returncode}: {err.strip()[-500:]}"}
    said: dict[str, Any] = json.loads(lines[-1])
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    server = Server(url=given.url, model=given.model, key=os.environ.get(given.key_env, ""))
    allowed = Allowed()
    names = [name for name in given.peers.split(",") if name]
    try:
        versions = {name: version(name) for name in names}
    except (PeerMissing, KeyError) as error:
        print(error, file=sys.stderr)
        return 2
    facts = about("peers", ", ".join(f"{n} {v}" for n, v in versions.items()), server, allowed)
    facts["seeds"] = [given.seed]
    print(f"{facts['version']}, model {server.model}, commit {facts['commit']}")
    print(f"limits {facts['limits']}\n\n{header_line()}")
    rows: list[Row] = []
    for name in names:
        run = runner(name, server, allowed)
        for task in tasks_of(given.seed, PEER_TASKS):
            rows.append(Row(runtime=name, task=task, outcome=run(task)))
            print(row_line(rows[-1]), flush=True)
            if given.trace:
                write_trace(Path(given.trace), rows[-1])
            # After every task: hours of a slow model are not lost to an interrupt.
            write_json(Path(given.out), facts, rows)
    print("\n" + "\n".join(total_lines(rows)) + f"\nwritten to {given.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", default=os.environ.get("TALLYSTICK_MODEL_URL", ""))
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-env", default="TALLYSTICK_MODEL_KEY")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--seed", type=int, default=1001)
    parser.add_argument("--out", default=str(_RESULTS))
    parser.add_argument("--trace", default="")
    return parser


if __name__ == "__main__":
    sys.exit(main())
