"""The page Start, followed word by word in an empty home, ends with an answer over a new file.

`TALLYSTICK_MODEL_URL` stands in the place of a key; without it these commands are skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

START = Path(__file__).parents[2] / "docs" / "start.md"
URL = os.environ.get("TALLYSTICK_MODEL_URL", "")
KEY = os.environ.get("TALLYSTICK_MODEL_KEY", "")
MOST_COMMANDS = 8
# Printed between two commands, with the seconds since the first.
MARK = "@@ "

# What a reader types: blocks of commands, and of the table of models the line for a local server.
_TYPED = re.compile(
    r"^```(?:sh|console)\n(?P<block>.*?)^```$"
    r"|`(?P<model>export TALLYSTICK_MODEL_URL=\S+ TALLYSTICK_MODEL=\S+)`",
    re.S | re.M,
)


def commands() -> list[str]:
    """Return the commands of the page in order; of a console block, its lines after `$`."""
    found: list[str] = []
    for match in _TYPED.finditer(START.read_text(encoding="utf-8")):
        if match["model"]:
            found.append(match["model"])
            continue
        lines = match["block"].splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")]
        found += typed or [line for line in lines if line.strip()]
    return found


def model_name() -> str:
    """Return the name of the model that the server offers."""
    headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
    request = urllib.request.Request(f"{URL}/models", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return str(json.load(reply)["data"][0]["id"])


def test_start_has_at_most_eight_commands() -> None:
    typed = commands()

    assert len(typed) <= MOST_COMMANDS, typed
    assert typed[0] == "pip install tallystick"
    assert sum(each.startswith("export ") for each in typed) == 1
    assert sum(each.startswith("tally run ") for each in typed) == 1


@pytest.mark.slow
@pytest.mark.skipif(not URL, reason="TALLYSTICK_MODEL_URL names no server of a real model")
def test_start_followed_word_by_word_gives_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    own = f"export TALLYSTICK_MODEL_URL={URL} TALLYSTICK_MODEL={model_name()}"
    typed = [own if each.startswith("export ") else each for each in commands()]
    # The package is installed already, so its first command finds it and downloads nothing. The
    # cache is not shared: compiling the sandbox is a part of the time that a reader waits.
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        **({"TALLYSTICK_MODEL_KEY": KEY} if KEY else {}),
        **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
    }
    script = "\n".join(["set -e", *(f"{each}\necho; echo '{MARK}'$SECONDS" for each in typed)])

    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, timeout=580,
        capture_output=True, text=True,
    )  # fmt: skip
    took = time.monotonic() - began

    assert done.returncode == 0, f"printed:\n{done.stdout}\n{done.stderr}"
    printed = re.split(rf"^{MARK}\d+\n", done.stdout, flags=re.M)
    answer = printed[next(n for n, each in enumerate(typed) if each.startswith("tally run "))]
    assert answer.strip()
    with capsys.disabled():
        print(f"\nStart: {len(typed)} commands in {took:.0f} s; answer {answer.strip()[:80]!r}")
