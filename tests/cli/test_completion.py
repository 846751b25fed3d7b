"""`tally completion`: what may come next in a command line, in three shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.builders import made, run_id
from tools import completion

from tallystick.cli.commands.setup.completion import _words_of
from tallystick.cli.completion import TABLE, Candidate, complete, read_table
from tallystick.cli.main import cli
from tallystick.core.errors import UsageError
from tallystick.ledger.sqlite import SqliteLedger

BIN = Path(sys.executable).parent
SHELLS = ("bash", "zsh", "fish")
_TABLE = read_table()


def known(kind: str, given: Sequence[str]) -> list[Candidate]:
    return [Candidate(f"{kind}-1", f"after {' '.join(given)}"), Candidate(f"{kind}-2")]


def found(line: str) -> list[str]:
    return [each.word for each in complete(_words_of(line)[1:], _TABLE, known)]


def test_the_table_is_that_of_the_commands() -> None:
    path = Path(completion._FILE)

    assert path.name == TABLE
    assert path.read_bytes() == completion.table(), "write it again with make reference"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tally resu", ["resume"]),
        ("tally session sh", ["show"]),
        ("tally resume ", ["run-1", "run-2"]),
        ("tally diff run-1 ", ["run-1", "run-2"]),
        ("tally rm run-1 run-2 run-", []),
        ("tally prune --ke", ["--keep"]),
        ("tally run --strategy d", ["direct"]),
        ("tally run --strategy=d", ["--strategy=direct"]),
        ("tally run 'which are overdue?' --strategy d", ["direct"]),
        ("tally run 'which are ov", []),
        ("tally run -m model-1 --sub-mo", ["--sub-model"]),
        ("tally run --json --model ", ["model-1", "model-2"]),
        ("tally run --model=model-1", ["--model=model-1"]),
        ("tally inspect -- --js", []),
        ("tally run --json=", []),
        ("tally nothing ", []),
        ("tally run --unknown=", []),
        ("tally run -f ", ["file-1", "file-2"]),
    ],
)
def test_what_may_come_next(line: str, words: list[str]) -> None:
    assert found(line) == words


def test_the_value_of_an_argument_may_depend_on_the_one_before() -> None:
    first = complete(_words_of("tally snapshot restore last ")[1:], _TABLE, known)[0]

    assert first == Candidate("snapshot-1", "after last")


def test_a_hidden_command_is_not_offered() -> None:
    assert found("tally completion ") == ["bash", "fish", "zsh"]


@given(st.text(max_size=60))
def test_no_line_is_an_error(line: str) -> None:
    found(f"tally {line}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def tally(*words: str) -> Result:
    return CliRunner().invoke(cli, words, standalone_mode=False)


def words(line: str) -> list[list[str]]:
    result = tally("completion", "words", line)
    assert result.exit_code == 0, result.output
    return [each.split("\t") for each in result.stdout.splitlines()]


def test_runs_are_offered_with_their_goals_the_newest_first(home: Path) -> None:
    with SqliteLedger(home / "data" / "ledger.db") as ledger:
        first, second = made(ledger, 1), made(ledger, 2)

    offered = words("tally inspect ")

    assert [each[0] for each in offered] == [second, first, "last"]
    assert all(len(each) == 2 for each in offered)
    assert [each[0] for each in words(f"tally inspect {first[:-1]}")] == [first]


def test_a_session_is_offered_by_its_id_or_name(home: Path) -> None:
    made_here = tally("session", "new", "--json")
    assert made_here.exit_code == 0, made_here.output

    assert len(words("tally run x --session ")) == 2


def test_skills_and_memories_are_offered_by_name(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill = home / "work" / ".agents" / "skills" / "invoices"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: invoices\n---\n", encoding="utf-8")
    monkeypatch.chdir(home / "work")
    assert tally("remember", "--memory", "clients", "Ann pays late").exit_code == 0

    assert ["invoices"] in [each[:1] for each in words("tally run x --skill in")]
    assert words("tally recall --memory ") == [["clients"]]


@pytest.mark.parametrize("line", ["tally inspect ", "tally run --session ", "tally snapshot rm x "])
def test_nothing_is_said_and_nothing_is_made_where_nothing_is_stored(home: Path, line: str) -> None:
    assert all(each[0] == "last" for each in words(line))
    assert not (home / "data").exists()


def test_a_damaged_ledger_is_silence(home: Path) -> None:
    (home / "data").mkdir()
    (home / "data" / "ledger.db").write_bytes(b"not a ledger")

    assert words("tally inspect ") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_installing_twice_is_installing_once(home: Path, shell: str) -> None:
    rc = home / f".{shell}rc"
    if shell != "fish":
        rc.write_text("alias ll='ls -l'", encoding="utf-8")

    assert tally("completion", shell, "--install").exit_code == 0
    assert tally("completion", shell, "--install").exit_code == 0

    if shell == "fish":
        assert (home / ".config" / "fish" / "completions" / "tally.fish").is_file()
    else:
        alias, source = rc.read_text(encoding="utf-8").splitlines()
        assert alias == "alias ll='ls -l'"
        assert Path(source.removeprefix("source ")).is_file()


def test_a_home_that_cannot_be_written_is_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("HOME", str(home / "file"))

    result = tally("completion", "bash", "--install")

    assert isinstance(result.exception, UsageError)
    assert "tally completion bash" in str(result.exception)


# -- in real shells -----------------------------------------------------------------------------


def _in_bash(line: str) -> str:
    split = line.replace(":", " : ").split()
    if line.endswith(" "):
        split.append("")
    given = " ".join(f"'{each}'" for each in split)
    return (
        f"source <(tally completion bash); COMP_LINE='{line}'; COMP_POINT={len(line)}; "
        f"COMP_WORDS=({given}); COMP_CWORD={len(split) - 1}; _tally_completion; "
        f'printf "%s\\n" "${{COMPREPLY[@]}}"'
    )


def _in_zsh(line: str) -> str:
    split = [*line.split(), *([""] if line.endswith(" ") else [])]
    given = " ".join(f"'{each}'" for each in split)
    # Outside of an edited line there is no _describe: it prints what it would be given.
    return (
        f"compdef() {{ }}; _describe() {{ print -l -- $found }}; _files() {{ }}; "
        f"source <(tally completion zsh); words=({given}); CURRENT={len(split)}; _tally_completion"
    )


def _in_fish(line: str) -> str:
    return f"tally completion fish | source; complete -C '{line}'"


_SCRIPTS: dict[str, Callable[[str], str]] = {"bash": _in_bash, "zsh": _in_zsh, "fish": _in_fish}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes(shell: str, home: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    with SqliteLedger(home / "data" / "ledger.db") as ledger:
        made(ledger, 1)

    def said(line: str) -> str:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [shell, "-c", _SCRIPTS[shell](line)],
            env={**os.environ, "PATH": path, "TERM": "dumb"},
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert not done.stderr, done.stderr
        return done.stdout

    assert said("tally resu").startswith("resume")
    assert "direct" in said("tally run --strategy d")
    assert "olla" in said("tally run -m ollam")
    assert "last" in said("tally inspect la")


@pytest.mark.slow
def test_completing_a_run_among_ten_thousand_takes_at_most_150_ms(home: Path) -> None:
    with SqliteLedger(home / "data" / "ledger.db") as ledger:
        for number in range(10_000):
            made(ledger, number)
    command = [str(BIN / "tally"), "completion", "words", "tally inspect "]
    took = []
    for _ in range(7):
        before = os.times()
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = os.times()
        cpu = after.children_user + after.children_system
        cpu -= before.children_user + before.children_system
        took.append((cpu, time.monotonic() - began))
    assert done.stdout.startswith(run_id(9_999))
    # Of processor time: what else runs on the machine is not the command's.
    assert min(took)[0] <= 0.150, took
