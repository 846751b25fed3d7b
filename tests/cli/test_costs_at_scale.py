"""Commands read no more of a ledger that has more runs: rows and entries are counted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.ledger.builders import made, run_id

from tallystick.cli.main import cli
from tallystick.ledger import columns
from tallystick.ledger.port import RunFilter
from tallystick.ledger.sqlite import Rows, SqliteLedger
from tallystick.runtime.runs.history import resolve_run
from tallystick.runtime.runs.in_doubt import runs_in_doubt
from tallystick.runtime.runs.tree import tree_of

FEW, MANY = 60, 900
# Runs with a program's child each stand in the middle, so that both ends have plain ones.
OUTER = 5_000


@dataclass(slots=True)
class Counted:
    """How many rows of runs, and how many entries, were decoded."""

    rows: int = 0
    entries: int = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def count(*given: Any, **named: Any) -> Any:
            setattr(found, name, getattr(found, name) + 1)
            return real(*given, **named)

        return count

    monkeypatch.setattr(columns, "with_columns", counting("rows", columns.with_columns))
    monkeypatch.setattr(columns, "with_facts", counting("entries", columns.with_facts))
    monkeypatch.setattr(Rows, "_as_entry", counting("entries", Rows._as_entry))
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A data folder with few runs, and one with many: all begun by one program, but for some."""
    found = {}
    for many in (FEW, MANY):
        folder = found[many] = tmp_path_factory.mktemp(f"{many}-runs")
        with SqliteLedger(folder / "ledger.db") as ledger:
            for number in range(many):
                made(ledger, number)
            outer = made(ledger, OUTER, stop="max_turns")
            for number in (1, 2, 3):
                made(ledger, OUTER + number, caller=outer)
            made(ledger, OUTER + 4, stop=None)
    return found


def words_of(*words: str) -> Callable[[SqliteLedger], object]:
    def call(ledger: SqliteLedger) -> object:
        result = CliRunner().invoke(cli, words, standalone_mode=False, catch_exceptions=False)
        assert result.return_value == 0, result.output
        return result.stdout

    return call


def children(ledger: SqliteLedger) -> object:
    assert len(ledger.runs(RunFilter(caller=run_id(OUTER)))) == 3
    return tree_of(ledger, run_id(OUTER))


COMMANDS: dict[str, Callable[[SqliteLedger], object]] = {
    "ls --limit 50": words_of("ls", "--limit", "50"),
    "ls --limit 50 --children": words_of("ls", "--limit", "50", "--children"),
    "ls --in-doubt": words_of("ls", "--in-doubt"),
    "inspect last": words_of("inspect", "last"),
    "inspect by prefix": words_of("inspect", run_id(OUTER + 4)[:10]),
    "inspect --tree": words_of("inspect", run_id(OUTER), "--tree"),
    "prune by name": words_of("prune", run_id(7), "--dry-run"),
    "a run by its prefix": lambda ledger: resolve_run(ledger, run_id(OUTER + 2)[:10]),
    "the last run": lambda ledger: resolve_run(ledger, "last"),
    "the children of a run": children,
    "what is in doubt": runs_in_doubt,
    "the row of a run": lambda ledger: ledger.row(run_id(3)),
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_decodes_as_much_with_many_runs_as_with_few(
    command: str,
    folders: dict[int, Path],
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []
    for many in (FEW, MANY):
        monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(folders[many]))
        before = Counted(rows=counted.rows, entries=counted.entries)
        with SqliteLedger(folders[many] / "ledger.db") as ledger:
            assert COMMANDS[command](ledger) is not None
        sizes.append((counted.rows - before.rows, counted.entries - before.entries))

    (few_rows, few_entries), (many_rows, many_entries) = sizes
    assert many_rows <= 1.5 * few_rows, sizes
    assert many_entries <= 1.5 * few_entries, sizes
    assert few_rows, "the ledger was not asked"


def test_a_prune_decodes_as_much_as_it_removes(
    tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    for many in (FEW, MANY):
        folder = tmp_path / str(many)
        monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(folder))
        with SqliteLedger(folder / "ledger.db") as ledger:
            for number in range(many):
                made(ledger, number)
            before = Counted(rows=counted.rows, entries=counted.entries)
            words_of("prune", "--keep", str(many - 5), "--yes")(ledger)
            words_of("prune", run_id(7), "--yes")(ledger)
            words_of("prune", "--older-than", "12h", "--keep", str(many - 7), "--yes")(ledger)
            sizes.append((counted.rows - before.rows, counted.entries - before.entries))
            assert len(ledger.runs(RunFilter(unerased=True))) == many - 8

    (few_rows, few_entries), (many_rows, many_entries) = sizes
    assert many_rows <= 1.5 * few_rows, sizes
    assert many_entries <= 1.5 * few_entries, sizes
