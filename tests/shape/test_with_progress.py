"""The slow steps of the set-up print something while they run, and keep their exit code."""

from __future__ import annotations

import sys

import pytest
from tools.with_progress import run


def test_a_line_is_printed_every_few_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    code = run([sys.executable, "-c", "import time; time.sleep(0.5); print('end')"], every=0.1)

    lines = capfd.readouterr().out.splitlines()
    assert code == 0
    assert lines[0] == "  0 s"
    assert lines[-1] == "end"


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_that_of_the_command(code: int) -> None:
    assert run([sys.executable, "-c", f"raise SystemExit({code})"]) == code
