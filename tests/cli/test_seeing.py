"""What a user sees: help in groups, runs in a table, turns in blocks, programs while they run."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.test_exec import Tally
from tests.core.machine.test_machine import finished

from tallystick.cli.commands.ls import _Listed, table_of
from tallystick.cli.main import cli
from tallystick.cli.progress import Sayer, progress_for
from tallystick.core.budget.amount import HoldAlive
from tallystick.core.charge import ModelUsage
from tallystick.core.records import ModelReplied, RunProgram
from tallystick.sandbox.port import COMPILED, COMPILING

PROGRAM = "rows = context.split()\nprint(len(rows))"
REPLIES = [f"```python\n{PROGRAM}\n```", "```python\nFINAL(rows[0])\n```"]


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    (tmp_path / "words.txt").write_text("pear apple fig\n")
    lines = "\n".join(json.dumps({"text": each}) for each in REPLIES)
    (tmp_path / "replies.jsonl").write_text(lines)
    return Tally(tmp_path)


def listed(goal: str = "which host failed?", model: str = "openai:gpt-5-mini") -> _Listed:
    return _Listed(
        kind="run",
        run="01M7P6M2NGXJ0F6QRJRWVXE5RK",
        created_at=0,
        entries=11,
        goal=goal,
        model=model,
        stop="answered",
        answer="x",
        usd=1_200_000,
    )


# -- help ---------------------------------------------------------------------------------------


def test_without_a_command_the_help_is_printed_in_groups() -> None:
    alone = CliRunner().invoke(cli, [])
    asked = CliRunner().invoke(cli, ["--help"])

    assert (alone.exit_code, alone.output) == (0, asked.output)
    assert re.findall(r"^([A-Z]\w+(?: \w+)?):$", alone.output, re.MULTILINE) == [
        "Options", "Run", "Look", "Check", "Remember", "Store", "Set up",
    ]  # fmt: skip
    assert max(map(len, alone.output.splitlines())) <= 80


@pytest.mark.parametrize(
    ("word", "says"),
    [("inspct", "Did you mean inspect?"), ("veryfy", "Did you mean verify?"), ("qqqq", "'qqqq'.")],
)
def test_an_unknown_command_gets_a_suggestion(word: str, says: str) -> None:
    done = CliRunner().invoke(cli, [word])

    assert done.exit_code == 2
    assert says in done.output
    assert ("Did you mean" in done.output) == ("mean" in says)


def test_the_help_of_run_has_every_exit_code_of_a_run() -> None:
    text = CliRunner().invoke(cli, ["run", "--help"]).output

    codes = re.search(r"Exit codes: (.*?)\n\n", text, re.DOTALL)
    assert codes is not None
    assert re.findall(r"\b(\d+) [a-z]", codes[1]) == [*"012345679", "130"]


# -- ls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 132, 200])
def test_a_list_of_runs_has_a_head_and_fits_the_width(width: int) -> None:
    rows = [listed(), listed(goal="é" * 300, model="ollama:a-model-with-a-very-long-name:32b")]

    lines = table_of(rows, width=width)

    assert lines[0].split() == ["RUN", "WHEN", "STATE", "COST", "MODEL", "GOAL"]
    assert max(map(len, lines)) <= width
    assert "gpt-5-mini" in lines[1]
    assert "$0.0012" in lines[1]
    assert "answered" in lines[1]
    assert rows[0].run.startswith(lines[1].split()[0])


def test_a_program_that_reads_the_list_gets_whole_ids_and_no_head() -> None:
    (line,) = table_of([listed()], width=None)

    assert line.split()[0] == listed().run
    assert line.endswith("which host failed?")


# -- while it runs ------------------------------------------------------------------------------


def test_verbose_shows_programs_and_output_as_they_come() -> None:
    stream = io.StringIO()
    progress = progress_for(quiet=False, stream=stream, verbose=True)
    usage = ModelUsage(tokens_in=1, tokens_out=1, reported=True)
    progress.watch("R", ModelReplied(intent=0, turn=1, text=REPLIES[0], usage=usage))
    progress.watch("R", RunProgram(intent=1, turn=1, part=0, sha256=""))

    assert stream.getvalue().splitlines() == [f"    >>> {line}" for line in PROGRAM.splitlines()]

    many = "".join(f"row {n} \x1b[31m\n" for n in range(60))
    progress.watch("R", finished(intent=1, stdout=many))
    shown = stream.getvalue().splitlines()[2:]

    assert shown[0] == "    row 0 ?[31m"
    assert "20 more lines" in shown[40]
    assert shown[41].startswith("turn 1")


def test_lines_of_the_sandbox_have_no_bar_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    say = Sayer(stream)

    say(f"{COMPILING} once")
    say(f"{COMPILED} 9.1 s")

    assert stream.getvalue() == f"{COMPILING} once\n{COMPILED} 9.1 s\n"


def test_without_a_terminal_a_line_says_now_and_then_that_a_compilation_goes_on() -> None:
    stream = io.StringIO()
    say = Sayer(stream, every=0.01)

    say(f"{COMPILING} once")
    while stream.getvalue().count("on most machines") < 2:
        time.sleep(0.01)
    say(f"{COMPILED} 9.1 s")
    shown = stream.getvalue()
    time.sleep(0.05)

    assert shown.startswith(f"{COMPILING} once\n  0 s (5 to 20 s on most machines)\n")
    assert stream.getvalue() == shown
    assert shown.endswith(f"{COMPILED} 9.1 s\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_compilation_has_a_bar_that_goes_away() -> None:
    stream = Terminal()
    say = Sayer(stream)

    say(f"{COMPILING} once")
    shown = stream.getvalue()
    say(f"{COMPILED} 9.1 s")

    assert "0 s (5 to 20 s on most machines)" in shown
    assert stream.getvalue().endswith(f"{COMPILED} 9.1 s\n")


# -- whole commands -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pipe_is_read_and_a_run_is_inspected_turn_by_turn(tally: Tally) -> None:
    words = ("run", "which is first?", "-m", "scripted:replies.jsonl")
    piped = tally(*words, stdin="pear apple fig\n")
    empty = tally(*words, stdin="")
    inspected = tally("inspect", tally("ls").stdout.split()[0])

    assert (piped.returncode, piped.stdout) == (0, "pear\n")
    assert "NameError" in empty.stderr
    assert inspected.stdout.count("\nturn ") == 2
    for line in [*(f"    >>> {each}" for each in PROGRAM.splitlines()), "    3", "    pear"]:
        assert f"{line}\n" in inspected.stdout
    assert re.search(
        r"turn 1 +[\d,]+ tokens in, \d+ out \(estimated\) +\$0.00 +\d", inspected.stdout
    )


@pytest.mark.slow
def test_a_file_that_is_named_is_taken_and_the_pipe_is_left_alone(tally: Tally) -> None:
    done = tally(
        "run", "?", "-f", "words.txt", "-m", "scripted:replies.jsonl", stdin="other words\n"
    )

    assert done.stdout == "pear\n"


# -- words --------------------------------------------------------------------------------------


def test_a_living_hold_is_refused_without_an_option_that_does_not_exist() -> None:
    said = str(HoldAlive(run="R", intent=1, owner="O"))

    assert "insist" not in said
    assert "wait until it ends" in said
