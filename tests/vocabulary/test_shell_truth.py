"""No command that a real shell comes to is missing from those that were read."""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tallystick.vocabulary.shell import read_shell

BASH = shutil.which("bash")
# Every command is one that is not there; the shell then names it.
NOTES = 'command_not_found_handle() { builtin echo "$1" >> "$TOLD"; return 0; }\n'
PIECES = [
    "$(", ")", "(", "((", "))", "`", '"', "'", "\\", "\n", ";", ";;", "|", "||", "&&", "<<E\n",
    "\nE\n", "<(", "<<<", " ", "case x in ", "x) ", "esac", " in ", "[[ ", " ]]", "{ ", "; }",
    "${v:-", "}", "if ", "; then ", "; else ", "; fi", "aa ", "bb ", "cc ", "A=1 ", "a=(", "eval ",
    "command ", "#", "$", "$'", "\\'", "@(", "echo ", "'dd ee'", '"ff gg"', "$((", "]", "*", "?",
    "trap 'hh' EXIT;", "time ", "! ", " < /dev/null ", "2>&1 ", "<&- ", "=", "+=", "-",
]  # fmt: skip


def told_by_bash(source: str, directory: Path) -> set[str]:
    told = directory / "told"
    told.unlink(missing_ok=True)
    process = subprocess.Popen(
        [str(BASH), "-O", "extglob", "-c", NOTES + source],
        cwd=directory, env={"PATH": "/nonexistent", "TOLD": str(told)}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return set(told.read_text(errors="replace").split()) if told.exists() else set()


@pytest.mark.slow
@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_every_command_that_bash_comes_to_was_read(tmp_path: Path) -> None:
    draw = random.Random(3)
    seen = 0
    for _ in range(400):
        source = "".join(draw.choices(PIECES, k=draw.randint(2, 14)))
        program = read_shell(source)
        names = " ".join(name.path for name in program.names)
        # What only a shell can know is a name as it is written.
        if program.problem is not None or any(each in names for each in "$`*?("):
            continue

        told = told_by_bash(source, tmp_path)

        assert told <= set(names.split()), source
        seen += bool(told)
    assert seen >= 10
