"""The small agents of the examples run as written, without a key, and print what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.settings.paths import cache_directory

ROOT = Path(__file__).parents[2]
PRINTS = {
    "hello": "yes, rain, 12 degrees\n",
    "typed_answer": "27 115392.06 2\n",
    "fan_out": "100 395\n",
    "approval": """waiting ['delete("old.log")'] []\nold.log is gone ['old.log']\n""",
    "citations": ("Marble Wren\n123457 3456 Marble Wren was towed in with a damaged propeller\n"),
    "memory": "Bern\n",
}


def test_every_small_agent_is_looked_at() -> None:
    assert {each.stem for each in (ROOT / "examples/agents").glob("*.py")} == set(PRINTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTS)
def test_a_small_agent_prints_what_it_should(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", f"examples/agents/{name}.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "TALLYSTICK_CACHE_DIR": str(cache_directory()),
            "TALLYSTICK_DATA_DIR": str(tmp_path / "data"),
        },
    )

    assert (done.stdout, done.stderr) == (PRINTS[name], "")
