"""Standard input of `tally run` is kept in memory, so it stops at a size cap."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tallystick.cli.commands import run
from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli


def test_more_than_the_cap_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "```python\\nFINAL(len(context))\\n```"}\n' * 2)
    words = ["run", "how long?", "-f", "-", "-m", f"scripted:{script}", "--quiet"]
    monkeypatch.setattr(run, "_STDIN_BYTES_MAX", 1_000)

    exactly = CliRunner().invoke(cli, words, input="x" * 1_000, standalone_mode=False)
    more = CliRunner().invoke(cli, words, input="x" * 1_001, standalone_mode=False)

    assert exactly.stdout == "1000\n"
    assert more.exception is not None
    assert exit_code_of(more.exception) == 2
    assert str(more.exception).startswith("standard input has more than 1,000 bytes")
    listed = CliRunner().invoke(cli, ["ls"], standalone_mode=False).stdout
    assert listed.count("answered") == 1
