"""The shape bench: counts lines by what they hold, and traces a command in a home of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench.shape import Lines, Row, World, counted, lines_of, shape_rows

_MODULE = '''"""A module
of two lines."""

import os
from sys import (
    path,
)

__all__ = ["told"]


def told() -> str:
    """Tell."""
    # Why.
    text = """two

lines"""
    return text + str(path) + os.sep  # beside code
'''


def test_lines_are_counted_by_what_they_hold() -> None:
    assert lines_of(_MODULE) == Lines(
        files=1, lines=18, code=10, imports=4, exports=1, comments=1, docstrings=3
    )


def test_an_empty_module_has_no_code() -> None:
    assert lines_of("") == Lines(files=1)


def test_the_package_is_counted_without_what_is_built_into_it(tmp_path: Path) -> None:
    (tmp_path / "_image").mkdir()
    (tmp_path / "_image" / "built.py").write_text("a = 1\n")
    (tmp_path / "own.py").write_text("a = 1\n")

    assert counted(tmp_path) == Lines(files=1, lines=1, code=1)


def test_a_row_without_an_aim_is_neither_met_nor_missed() -> None:
    assert Row(name="a", unit="", value=1).met is None
    assert Row(name="a", unit="", value=1, aim=1).met
    assert not Row(name="a", unit="", value=2, aim=1).met


@pytest.mark.slow
def test_a_trace_has_the_functions_of_the_command_and_no_comprehensions() -> None:
    with World.made() as world:
        trace = world.trace("config", "--help", says="tally config")

    names = {name for _, name, _ in trace.functions}
    assert "cli/main.py" in trace.files
    assert "main" in names
    assert not {name for name in names if name.endswith(">") and not name.endswith("<locals>")}
    assert "tallystick.cli.commands.setup.config" in trace.modules


@pytest.mark.slow
def test_a_command_that_fails_is_not_measured() -> None:
    with World.made() as world, pytest.raises(RuntimeError, match="ended with 2"):
        world.cpu_ms([sys.executable, "-m", "tallystick", "run"])


@pytest.mark.slow
def test_the_figures_are_plausible() -> None:
    rows = {row.name: row.value for row in shape_rows(rounds=1)}

    assert json.dumps(rows)
    for name in ("tally run, two turns", "tally resume", "tally replay"):
        assert 100 < rows[f"{name}: functions"] < 2_000
        assert 20 < rows[f"{name}: files"] < rows[f"{name}: modules imported"] < rows["files"]
    # With a memory the same run passes through more.
    memory = rows["tally run --memory, one recall: files"]
    assert memory > rows["tally replay: files"]
    assert 1 < rows["tally --help: CPU"] < rows["tally run, two turns: CPU"] < 1_000
