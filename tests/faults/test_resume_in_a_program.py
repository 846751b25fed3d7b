"""A process killed inside a host call: another goes on from snapshot and answers to the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def work(mode: str, directory: Path, call: int = 0) -> int:
    directory.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.resume_worker", mode, directory, str(call)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(call + 1)},
        timeout=120,
    )
    return done.returncode


def result(directory: Path) -> Any:
    return msgspec.json.decode((directory / "result.json").read_bytes())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("whole")
    assert work("whole", directory) == 0
    return result(directory)


@pytest.mark.parametrize("call", [0, 6, 9])
def test_a_program_killed_inside_a_call_ends_as_if_it_had_not_been(
    tmp_path: Path, whole: Any, call: int
) -> None:
    killed = work("killed", tmp_path, call)
    answered = (tmp_path / "journal").read_bytes().count(b"\n") if call else 0
    resumed = work("resumed", tmp_path)

    assert killed == -signal.SIGKILL
    assert answered == call
    assert resumed == 0
    assert result(tmp_path) == whole
