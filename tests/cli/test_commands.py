"""Every command: help exists, is documented, exits with the right code."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli
from tallystick.core.errors import Cancelled, SandboxError, SnapshotNotFound, UsageError
from tallystick.runtime.programs.backends import CAPABILITIES
from tallystick.sandbox.backend import BACKENDS
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.settings.paths import cache_directory, data_directory

ROOT = Path(__file__).parents[2]
COMMANDS = cli.list_commands(click.Context(cli))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])

    assert result.exit_code == 0
    assert "Example:" in result.output
    assert f"tally {name}" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_docs(name: str) -> None:
    assert f"tally {name}" in (ROOT / "docs" / "reference" / "commands.md").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_the_docs(name: str) -> None:
    documented = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None

    options = [opt for each in command.params for opt in each.opts if opt.startswith("--")]

    assert [option for option in options if f"`{option}" not in documented] == []


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli, ["nosuch"]).exit_code == 2


def test_doctor_proves_every_capability_here() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--json"], standalone_mode=False)
    report = json.loads(result.stdout)

    assert result.return_value == 0
    both = [(backend, name) for backend in BACKENDS for name in CAPABILITIES]
    assert [(each["backend"], each["capability"]) for each in report["findings"]] == both
    wasm = [each for each in report["findings"] if each["backend"] == "wasm" and each["offered"]]
    assert {each["capability"] for each in wasm} == {
        "LlmBridge", "PythonExecution", "ResourceLimits", "Snapshots",
    }  # fmt: skip
    assert all(each["proven"] for each in [*wasm, *report["beside"]])
    assert all(each["why"] for each in report["findings"] if not each["proven"])


def test_a_sandbox_that_a_host_cannot_give_is_named_and_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lacking(ProcessSandbox):
        async def self_test(self) -> Any:
            raise OSError("no such system call")

    monkeypatch.setattr("tallystick.cli.commands.doctor.ProcessSandbox", Lacking)

    result = CliRunner().invoke(cli, ["doctor", "--json"], standalone_mode=False)

    assert result.return_value == 0
    findings = json.loads(result.stdout)["findings"]
    process = [each for each in findings if each["backend"] == "process"]
    assert {each["why"] for each in process} == {"no such system call"}


def test_warm_leaves_the_sandbox_compiled() -> None:
    result = CliRunner().invoke(cli, ["warm"], standalone_mode=False)

    assert result.return_value == 0
    assert "ready" in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (SnapshotNotFound(name="x"), 4),
        (SandboxError("x"), 4),
        (Cancelled("x"), 130),
    ],
)
def test_errors_have_their_exit_codes(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code


def test_directories_follow_the_conventions() -> None:
    home = {"HOME": "/h"}

    assert cache_directory(home) == Path("/h/.cache/tallystick")
    assert data_directory(home) == Path("/h/.local/share/tallystick")
    assert cache_directory({**home, "XDG_CACHE_HOME": "/c"}) == Path("/c/tallystick")
    assert data_directory({**home, "XDG_DATA_HOME": "relative"}) == (
        Path("/h/.local/share/tallystick")
    )
    assert data_directory({**home, "TALLYSTICK_DATA_DIR": "/d"}) == Path("/d")
