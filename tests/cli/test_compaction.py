"""`tally run --compact-at`, and what `tally inspect` shows of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow


def test_the_bound_is_set_and_inspect_shows_what_it_did(tmp_path: Path) -> None:
    programs = [f"print({n}, 'x' * 3_000)" for n in range(7)] + ["FINAL(outputs[0][0:4])"]
    replies = [{"text": f"```python\n{each}\n```"} for each in programs]
    (tmp_path / "long.jsonl").write_text("\n".join(json.dumps(each) for each in replies))
    tally = Tally(tmp_path)
    words = ("run", "what?", "-m", "scripted:long.jsonl", "--max-tokens", "1000000")

    done = tally(*words, "--compact-at", "2000")
    shown = tally("inspect", "last", "--records").stdout

    assert (done.returncode, done.stdout) == (0, "0 xx\n")
    assert re.search(r"^[\d:.]+  turn \d +compacted  turns: \d in short$", shown, re.MULTILINE)
    assert tally("replay", "last").returncode == 0
    wrong = tally(*words, TALLYSTICK_COMPACT_AT="-1")
    assert wrong.returncode == 2
    assert "a whole number from 0" in wrong.stderr
