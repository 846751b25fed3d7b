"""Every command: help exists, is documented, exits with the right code."""

import json
from collections.abc import Iterator
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


def every_command(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            inner = click.Context(found, info_name=name, parent=context, terminal_width=80)
            yield from every_command(found, inner)


EVERY = list(every_command(cli, click.Context(cli, info_name="tally", terminal_width=80)))


@pytest.mark.parametrize(
    ("command", "context"), EVERY, ids=[context.command_path for _, context in EVERY]
)
def test_every_help_begins_with_a_sentence_and_fits_80_columns(
    command: click.Command, context: click.Context
) -> None:
    text = command.get_help(context)

    assert [line for line in text.splitlines() if len(line) > 80] == []
    first = (command.help or "").partition("\n\n")[0]
    assert first[:1].isupper()
    assert first.endswith(".")
    assert f"{context.command_path} " in text


@pytest.mark.parametrize(
    ("command", "context"), EVERY, ids=[context.command_path for _, context in EVERY]
)
def test_the_help_of_every_option_is_a_sentence(
    command: click.Command, context: click.Context
) -> None:
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]

    for option in options:
        text = (option.help or "").partition("  [")[0]
        assert text[:1].isupper(), option.opts
        assert text.endswith("."), option.opts


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli, ["nosuch"]).exit_code == 2


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_sandbox_that_a_host_cannot_give_is_named_and_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lacking(ProcessSandbox):
        async def self_test(self) -> Any:
            raise OSError("no such system call")

    monkeypatch.setattr("tallystick.cli.commands.setup.doctor.ProcessSandbox", Lacking)

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
