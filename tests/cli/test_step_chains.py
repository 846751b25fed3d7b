"""A chain of steps, as a user meets it: in `tally ls`, `receipt`, `inspect`, `replay` and so on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.ledger.builders import EMPTY, OTHER, RUN, draft, drafted
from tests.runtime.run.one_program_model import ROOMY, opened, writer
from tests.upkeep.transfer_builders import SESSION, in_files, session_id, started

from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli
from tallystick.core.chain import Draft
from tallystick.core.errors import TallystickError
from tallystick.core.records import FIGURE_MAX, STEP_SCHEMA, StepEntered, StepLeft, StepReceipt
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.decorator import charge_step, step, step_log

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow


@dataclass
class Done:
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


class Tally:
    """Calls the command in this process, with data of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, folder: Path | None = None) -> Done:
        env = {"TALLYSTICK_DATA_DIR": str(folder or self.folder)}
        result = CliRunner().invoke(cli, words, standalone_mode=False, env=env)
        if result.exception is None:
            return Done(result.return_value, result.stdout, result.stderr)
        assert isinstance(result.exception, TallystickError), result.exc_info
        said = f"{result.exception.code}: {result.exception}\n"
        return Done(exit_code_of(result.exception), result.stdout, result.stderr + said)


@pytest.fixture
def tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tally:
    monkeypatch.chdir(tmp_path)
    return Tally(tmp_path / "data")


def ledger_of(tally: Tally) -> SqliteLedger:
    return SqliteLedger(tally.folder / "ledger.db")


@pytest.fixture
def runs(tally: Tally, sandbox: WasmSandbox) -> list[Run]:
    """Two runs inside steps, in the user's own ledger."""
    ledger = ledger_of(tally)
    with ledger, opened(sandbox, writer(), ledger=ledger) as session, step_log():

        @step("look up", budget={"max_usd": 0.5})
        def look_up() -> Run:
            return session.run("which?", limits=ROOMY)

        @step("decorate", budget={"max_tokens": 0}, error_boundary="continue")
        def decorate() -> None:
            session.run("how?")

        @step("plan")
        def plan() -> list[Run]:
            charge_step(1, 1, None, "elsewhere")
            found = [look_up(), session.run("what?")]
            decorate()
            return found

        return plan()


def entered(path: str, name: str = "x", **more: Any) -> Draft:
    facts: dict[str, Any] = {
        "function": "f", "key": "", "model": None, "tokens_max": None, "usd_max": None,
        "error_boundary": "fail", "entered_at": 0,
    }  # fmt: skip
    return drafted(StepEntered(path=path, name=name, **{**facts, **more}))


def left(path: str, name: str = "x", **more: Any) -> Draft:
    facts: dict[str, Any] = {
        "schema": STEP_SCHEMA, "chain": RUN, "function": "f", "model": None, "input_tokens": 1,
        "output_tokens": 1, "usd": 1, "unpriced": 0, "llm_calls": 1, "status": "completed",
        "error": None, "started_at": 0, "completed_at": 0, "runs": (), "runs_begun": 0,
        "unfinished": 0,
    }  # fmt: skip
    return drafted(StepLeft(receipt=StepReceipt(path=path, name=name, **{**facts, **more})))


def made_of(tally: Tally, drafts: Sequence[Draft], run: str = RUN) -> None:
    with ledger_of(tally) as ledger:
        fence = ledger.claim(run, create=True)
        ledger.append(run, drafts, expected=EMPTY, fence=fence, forced=False)


def test_ls_says_what_it_is(tally: Tally, runs: list[Run]) -> None:
    listed = tally("ls").stdout.splitlines()
    rows = {row["run"]: row for row in json.loads(tally("ls", "--json").stdout)}

    (line,) = [each for each in listed if each.startswith(str(runs[0].parent))]
    assert "completed " in line
    assert "  $0.00028  " in line
    assert line.endswith("  steps plan")
    chain = rows[str(runs[0].parent)]
    assert (chain["kind"], chain["goal"], chain["stop"]) == ("steps", "plan", "completed")
    assert chain["usd"] == 280_000
    assert rows[runs[0].run]["kind"] == "run"
    assert rows[runs[0].run]["usd"] == 140_000


def test_its_receipt_is_a_table_of_steps(tally: Tally, runs: list[Run]) -> None:
    done = tally("receipt", str(runs[0].parent))

    assert done.returncode == 0
    head, cost, blank, *table = done.stdout.splitlines()
    assert head == f"steps     {runs[0].parent}"
    assert cost == "cost      $0.00028 + 1 unpriced"
    assert blank == ""
    assert [line.split("  ")[0].rstrip() or line[2:].split("  ")[0] for line in table] == [
        "step", "plan", "look up", "decorate", "total",
    ]  # fmt: skip
    assert table[1].split() == [
        "plan", "completed", "3", "201", "21", "$0.00028", "+", "1", "unpriced", "1",
    ]  # fmt: skip
    assert table[2].split() == ["look", "up", "completed", "1", "100", "10", "$0.00014", "1"]
    assert "skipped" in table[3]
    assert "left in step decorate" in table[3]
    assert table[4].split() == ["total", "3", "201", "21", "$0.00028", "+", "1", "unpriced"]


def test_its_receipts_are_printed_as_json(tally: Tally, runs: list[Run]) -> None:
    told = json.loads(tally("receipt", str(runs[0].parent), "--json").stdout)
    harn = json.loads(tally("receipt", str(runs[0].parent), "--harn").stdout)

    assert told["run"] == runs[0].parent
    assert [each["path"] for each in told["receipts"]] == ["plan", "plan/look_up", "plan/decorate"]
    assert {each["schema"] for each in told["receipts"]} == {STEP_SCHEMA}
    assert told["receipts"][1]["runs"] == [runs[0].run]
    assert told["open"] == []
    assert told["totals"]["usd"] == 280_000
    assert (harn["persona"], harn["status"], harn["cost_usd"]) == ("plan", "success", 0.00028)
    assert [each["cost_usd"] for each in harn["model_calls"]] == [0.00014, 0.00014, 0]
    assert [each["llm_calls"] for each in harn["model_calls"]] == [2, 1, 0]


def test_the_receipt_of_a_run_names_its_step_and_leads_to_the_others(
    tally: Tally, runs: list[Run]
) -> None:
    of_run = tally("receipt", runs[0].run)
    harn = json.loads(tally("receipt", runs[0].run, "--harn").stdout)
    of_steps = tally("receipt", runs[0].run, "--steps")

    assert f"step      plan/look_up  of {runs[0].parent}\n" in of_run.stdout
    assert (harn["parent_run_id"], harn["step"]) == (runs[0].parent, "plan/look_up")
    assert of_steps.stdout == tally("receipt", str(runs[0].parent)).stdout


def test_a_run_outside_of_steps_leads_nowhere(tally: Tally) -> None:
    made_of(tally, [started(SESSION, [])])

    done = tally("receipt", "last", "--steps")

    assert (done.returncode, done.stdout) == (2, "")
    assert "was not started inside a step" in done.stderr


def test_inspect_shows_its_records(tally: Tally, runs: list[Run]) -> None:
    done = tally("inspect", str(runs[0].parent))
    records = json.loads(tally("inspect", str(runs[0].parent), "--json").stdout)["records"]

    # Each line begins with its time.
    assert [line.partition("  ")[2] for line in done.stdout.splitlines()[:3]] == [
        "step      entered    plan",
        "step      entered    plan/look_up  usd<=$0.50",
        "step      left       plan/look_up  completed  calls=1 runs=1  $0.00014",
    ]
    assert [each["type"] for each in records] == [
        "step.entered", "step.entered", "step.left", "step.entered", "step.left", "step.left",
    ]  # fmt: skip


def test_replay_says_that_steps_are_host_code_and_names_the_runs(
    tally: Tally, runs: list[Run]
) -> None:
    done = tally("replay", str(runs[0].parent))
    again = tally("replay", runs[0].run)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "host code" in done.stderr
    assert all(run.run in done.stderr for run in runs)
    assert again.returncode == 0


def test_last_is_a_run(tally: Tally, runs: list[Run]) -> None:
    made_of(tally, [entered("late")], run=session_id(1 << 47))

    done = tally("receipt", "last", "--json")

    assert json.loads(done.stdout)["receipt"]["parent"] == runs[0].parent


def test_it_is_verified_exported_imported_and_removed(
    tally: Tally, runs: list[Run], tmp_path: Path
) -> None:
    chain = str(runs[0].parent)
    other = tmp_path / "other"

    assert tally("verify", chain).stdout.startswith("1 run, ")
    assert tally("export", chain, "steps.tally").stderr == f"exported {chain} to steps.tally\n"
    assert tally("import", "steps.tally", folder=other).stderr == f"imported {chain}\n"
    assert tally("receipt", chain, folder=other).stdout == tally("receipt", chain).stdout
    assert "none is in this ledger" in tally("replay", chain, folder=other).stderr
    assert tally("attach", "ls", "--run", chain).returncode == 2
    assert tally("rm", chain, "--yes").returncode == 0
    assert tally("receipt", chain).returncode == 6
    assert tally("verify").returncode == tally("replay", runs[0].run).returncode == 0


def test_a_chain_that_was_cut_off_says_so(tally: Tally) -> None:
    made_of(tally, [entered("a", "outer"), entered("a/b", "inner"), left("a/b", "inner")])

    assert "unfinished" in tally("ls").stdout
    told = tally("receipt", RUN).stdout
    assert "outer    open\n" in told
    assert "cost      $0.000000001\n" in told
    assert "open steps have no receipt yet" in told


FORGED = {
    "nothing entered": [left("a/b/c")],
    "entered twice": [entered("a"), entered("a"), left("a"), left("a", status="failed")],
    "no nesting": [entered(""), entered("/"), entered("//"), left("/"), left("")],
    "very deep": [entered("/".join("a" * depth)) for depth in range(1, 300)],
    "a very long path": [entered("/" * 1_000_000), left("/" * 1_000_000 + "a")],
    "absurd figures": [
        left(each, usd=FIGURE_MAX, input_tokens=FIGURE_MAX, unpriced=FIGURE_MAX, llm_calls=0)
        for each in "abc"
    ],
    "an early end": [entered("a"), entered("a/b"), left("a", unfinished=1), left("a/b", usd=9)],
    "a terminal's language": [
        entered("\x1b[2J\r\n", "\x1b[31m\u202ered\u0000"),
        left("\x1b[2J\r\n", error="\x1b]0;title\x07\n" * 9),
    ],
    "a run inside": [entered("a"), started(SESSION, []), draft(1), draft(2)],
    "steps inside a run": [started(SESSION, []), entered("a"), left("a")],
}


@pytest.mark.parametrize("drafts", FORGED.values(), ids=FORGED.keys())
def test_a_chain_that_somebody_forged_is_shown_or_refused_in_one_line(
    drafts: list[Draft], tally: Tally, tmp_path: Path
) -> None:
    forger = in_files(tmp_path / "forger")
    fence = forger.ledger.claim(RUN, create=True)
    forger.ledger.append(RUN, drafts, expected=EMPTY, fence=fence, forced=False)
    forger.close()
    tally("export", RUN, "forged.tally", folder=tmp_path / "forger")

    assert tally("import", "forged.tally").returncode == 0
    for words in (
        ["ls"], ["ls", "--json"], ["inspect", RUN], ["inspect", RUN, "--json"], ["receipt", RUN],
        ["receipt", RUN, "--json"], ["receipt", RUN, "--harn"], ["receipt", RUN, "--steps"],
        ["replay", RUN], ["verify", RUN],
    ):  # fmt: skip
        done = tally(*words)
        assert done.returncode in (0, 2, 6, 8), done.stderr
        assert done.stderr.count("\n") <= 1
        assert not any(char in done.stdout for char in "\x1b\x07\x00\r")
        assert "--json" in words or "--harn" in words or "\u202e" not in done.stdout


def test_figures_that_no_step_can_have_are_no_record(tally: Tally) -> None:
    body = left("a").body.replace(b'"usd":1}', b'"usd":-1}')
    made_of(tally, [Draft(tag="step.left", intent=None, body=body)], run=OTHER)

    done = tally("verify", OTHER)

    assert done.returncode == 6
    assert "no record that this version knows" in done.stdout
