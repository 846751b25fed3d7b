"""HumanEval's reference solutions: what a usual small program costs, all told.

Question: what is the price of a fresh session for each program, against none at all?

Sketch before measuring. A task compiles 1 to 2 KB of source and runs for under a millisecond. In a
fresh session that is 4 ms of session and 3 ms of compiling with cold code, so 164 tasks take 1.2 to
1.6 s; natively, in one process with nothing isolated, 0.3 s. Needs HumanEval.jsonl.gz in the
directory that TALLYSTICK_EVAL_DATA names.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path

from bench.measure import Bench, Row, World, checked, now

from tallystick.storage.clock import new_id

__all__ = ["BENCHES"]

_VARIABLE = "TALLYSTICK_EVAL_DATA"
_FILE = "HumanEval.jsonl.gz"


def _programs(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file]
    return [
        f"{task['prompt']}{task['canonical_solution']}\n{task['test']}\ncheck({task['entry_point']})"
        for task in tasks
    ]


def humaneval(world: World) -> Iterable[Row]:
    name = "HumanEval, 164 fresh sessions"
    path = Path(os.environ.get(_VARIABLE, "")) / _FILE
    if not os.environ.get(_VARIABLE) or not path.is_file():
        why = f"set {_VARIABLE} to a directory with {_FILE}"
        yield Row(bench="humaneval", name=name, unit="s", samples=[], skipped=why)
        return
    programs = _programs(path)

    async def ours() -> float:
        began = now()
        for program in programs:
            session = await world.sandbox.open(session_id=new_id())
            await checked(session, program)
            await session.close()
        return now() - began

    def native() -> float:
        began = now()
        with contextlib.redirect_stdout(io.StringIO()):
            for program in programs:
                exec(compile(program, "<task>", "exec"), {"__name__": "__main__"})
        return now() - began

    native()
    pairs = [(world.do(ours()), native()) for _ in range(3)]
    least = min(pair[1] for pair in pairs)
    samples = [pair[0] for pair in pairs]
    yield Row(
        bench="humaneval",
        name=name,
        unit="s",
        samples=samples,
        against=f"{min(samples) / least:.1f}x native exec in one process ({least:.2f} s)",
    )


BENCHES: dict[str, Bench] = {"humaneval": humaneval}
