"""`tally config`, `trust` and `untrust`, as a user calls them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.test_exec import Tally
from tests.settings.test_settings import World

from tallystick.cli.main import cli
from tallystick.core.errors import UsageError


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@contextmanager
def inside(world: World) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(world.project)
    try:
        yield
    finally:
        os.chdir(before)


def call(world: World, *words: str, say: str = "", **env: str) -> Result:
    """Call the command with the world's variables and no others of ours."""
    ours = ("TALLYSTICK_", "XDG_", "OPENAI_", "ANTHROPIC_", "OPENROUTER_")
    gone = {name: None for name in os.environ if name.startswith(ours)}
    with inside(world):
        return CliRunner().invoke(
            cli, ["config", *words], input=say, standalone_mode=False,
            env={**gone, **world.environ, **env},
        )  # fmt: skip


def rows(result: Result) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(result.stdout)}


def test_each_setting_is_printed_with_its_source(world: World) -> None:
    world.user("max_turns = 7\n[aliases]\nfast = 'openai:x'")
    world.says("max_tokens = 9")

    result = call(world, TALLYSTICK_MODEL="fast")

    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert result.return_value == 0
    assert lines["model"] == ["fast", "environment", "TALLYSTICK_MODEL"]
    assert lines["max_turns"] == ["7", str(world.user_file)]
    assert lines["max_tokens"] == ["9", str(world.project_file)]
    assert lines["retries"] == ["2", "default"]
    assert lines["temperature"] == ["-", "default"]
    assert lines["aliases.fast"] == ["openai:x", str(world.user_file)]
    assert lines["project_file"] == [str(world.project_file), "not", "trusted"]
    assert lines["providers.openai.key"] == ["not", "set", "(OPENAI_API_KEY)", "default"]
    assert result.stderr == ""


def test_of_a_provider_nobody_changed_only_address_and_key_are_printed(world: World) -> None:
    world.user("[providers.ollama]\nconcurrency = 2")

    text = call(world).stdout
    every = rows(call(world, "--json"))

    assert "providers.ollama.concurrency" in text
    assert "providers.openai.concurrency" not in text
    assert every["providers.openai.concurrency"]["source"] == "default"


def test_a_key_shows_as_set_or_not_set(world: World) -> None:
    found = rows(call(world, "--json", OPENAI_API_KEY="sk-123456789"))

    assert found["providers.openai.key"]["value"] == "set (OPENAI_API_KEY)"
    assert found["providers.anthropic.key"]["value"] == "not set (ANTHROPIC_API_KEY)"
    assert found["providers.ollama.key"]["value"] == "none"


@given(key=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16, max_size=60))
@settings(max_examples=15)
def test_a_key_is_in_no_output(key: str) -> None:
    variables = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TALLYSTICK_MODEL_KEY", "MINE")
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        world.says("[providers.mine]\nbase_url = 'https://h'\nkey_env = 'MINE'")
        for words in ((), ("--json",), ("trust", "--yes"), (), ("--json",)):
            result = call(world, *words, **dict.fromkeys(variables, key))

            assert result.return_value == 0
            assert key not in result.output


def test_what_was_ignored_is_one_warning_on_stderr(world: World) -> None:
    world.says("grants = ['net']")

    for words in ((), ("--json",)):
        result = call(world, *words)

        assert result.stderr.startswith(f"warning: {world.project_file} is not trusted; ")
        assert result.stderr.count("\n") == 1


def test_trust_shows_what_it_is_for_and_asks(world: World) -> None:
    world.user("max_turns = 10")
    world.says(
        "max_turns = 20\nmax_tokens = 5\ngrants = ['net', 'files.read']\n"
        "[aliases]\nbig = 'gguf:/x'\n[providers.openai]\nbase_url = 'https://proxy.example/v1'\n"
    )

    refused = call(world, "trust", say="n\n")
    before = rows(call(world, "--json"))
    agreed = call(world, "trust", say="y\n")
    after = rows(call(world, "--json"))

    assert refused.exception is not None
    assert agreed.stdout.splitlines() == [
        "aliases.big = gguf:/x",
        "max_turns = 20  (more than 10)",
        "grants = net, files.read",
        "providers.openai.base_url = https://proxy.example/v1",
        "  the key in OPENAI_API_KEY would be sent to https://proxy.example/v1",
    ]
    assert f"trust {world.project_file}? [y/N]" in agreed.stderr
    assert (before["max_turns"]["value"], after["max_turns"]["value"]) == ("10", "20")
    assert (before["project_file"]["source"], after["project_file"]["source"]) == (
        "not trusted",
        "trusted",
    )


def test_trust_can_be_given_without_being_asked_and_taken_back(world: World) -> None:
    world.says("grants = ['net']")

    trusted = call(world, "trust", "--yes")
    again = call(world, "trust")
    grants = rows(call(world, "--json"))["grants"]["value"]
    taken = call(world, "untrust")
    once_more = call(world, "untrust")

    assert (trusted.return_value, again.return_value, grants) == (0, 0, "net")
    assert "already trusted" in again.stderr
    assert "no longer trusted" in taken.stderr
    assert "was not trusted" in once_more.stderr
    assert rows(call(world, "--json"))["grants"]["value"] == ""


def test_a_file_that_would_be_an_error_is_not_trusted(world: World) -> None:
    world.says("[commands]\nx = 'y'")

    result = call(world, "trust", "--yes")

    assert isinstance(result.exception, UsageError)
    assert call(world).return_value == 0


@pytest.mark.parametrize("word", ["trust", "untrust"])
def test_without_a_file_there_is_nothing_to_trust(world: World, word: str) -> None:
    result = call(world, word)

    assert isinstance(result.exception, UsageError)
    assert "there is no tallystick.toml" in str(result.exception)


def test_the_subcommands_have_help_with_an_example(world: World) -> None:
    for word in ("trust", "untrust"):
        shown = call(world, word, "--help").stdout

        assert "Example:" in shown
        assert f"tally config {word}" in shown


def test_a_typo_is_one_line_on_stderr_and_exit_code_2(tmp_path: Path) -> None:
    tally = Tally(tmp_path)
    (tmp_path / "tallystick.toml").write_text("max_turn = 5")

    done = tally("config")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"usage: {tmp_path}/tallystick.toml: max_turn is not a setting; did you mean max_turns?\n"
    )
