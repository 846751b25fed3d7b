"""The same program, seed and answers give the same everything, in any process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sandbox.wasm.mixed_programs import PROGRAMS
from tests.wasm_session import TestSession, open_session

ROOT = Path(__file__).parents[3]


def in_another_process(mode: str, journal: Path, results: Path, *, hash_seed: str) -> list[Any]:
    subprocess.run(
        [sys.executable, "-m", "tests.sandbox.wasm.determinism_worker", mode, journal, results],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=300,
    )
    found: list[Any] = msgspec.json.decode(results.read_bytes())
    return found


@pytest.mark.slow
def test_sixty_mixed_programs_are_equal_in_other_processes(tmp_path: Path) -> None:
    """Outputs, calls, fuel, clock (in the state), randomness and every byte of memory."""
    journal = tmp_path / "journal.json"
    assert len(PROGRAMS) >= 60

    recorded = in_another_process("record", journal, tmp_path / "r.json", hash_seed="0")
    replays = [
        in_another_process("replay", journal, tmp_path / f"{seed}.json", hash_seed=seed)
        for seed in ("1", "4242")
    ]

    for replayed in replays:
        for program, first, again in zip(PROGRAMS, recorded, replayed, strict=True):
            assert again == first, program
    assert all(each["stop"] == "finished" for each in recorded)


def test_seeds_differ_and_a_seed_repeats(sandbox: Any) -> None:
    drawn = []
    for seed in (0, 1, 1, 2**63):
        with open_session(sandbox, seed=seed) as session:
            drawn.append(session.value("import os, random\nos.urandom(8), random.random()"))

    assert drawn[1] == drawn[2]
    assert len(set(drawn)) == 3


def test_the_clock_is_the_sessions_own(session: TestSession) -> None:
    first = session.value("import datetime\ndatetime.datetime.now(datetime.UTC).isoformat()")
    session.run("import time\ntime.sleep(3600)")
    later = session.value("datetime.datetime.now(datetime.UTC).isoformat()[:16]")

    assert first is not None
    assert first.startswith("'2026-01-01T00:00:00")
    assert later == "'2026-01-01T01:00'"


@pytest.mark.parametrize("stop", ["fuel", "memory"])
def test_limits_strike_at_the_same_place_each_time(sandbox: Any, stop: str) -> None:
    program = "n = 0\nx = []\nwhile True:\n    x.append(bytes(10_000)); n += 1; echo(n)"
    calls = []
    for _ in range(2):
        with open_session(sandbox) as session:
            result = session.run(
                program,
                fuel=60_000_000 if stop == "fuel" else 20_000_000_000,
                memory_bytes=64 << 20,
                host_calls=10**6,
            )
            assert result.stop == stop
            calls.append([(call.request_sha256, call.fuel) for call in result.calls])

    assert calls[0] == calls[1]
