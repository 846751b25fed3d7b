"""`tally models`: what is configured, what can be reached, and what to set for the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.cli.test_config import inside
from tests.model.fake_server import FakeServer, status, whole
from tests.settings.test_settings import World

from tallystick.cli.main import cli
from tallystick.core.errors import UsageError
from tallystick.model.port import ModelError

_KEY = "sk-0123456789abcdef-of-a-test"
_TWO = json.dumps({"object": "list", "data": [{"id": "qwen"}, {"id": "llama"}]}).encode()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        running.always(whole(_TWO))
        yield running


def call(world: World, *words: str, **env: str) -> Result:
    ours = ("TALLYSTICK_", "XDG_", "OPENAI_", "ANTHROPIC_", "OPENROUTER_")
    gone = {name: None for name in os.environ if name.startswith(ours)}
    with inside(world):
        return CliRunner().invoke(
            cli, ["models", *words], standalone_mode=False, env={**gone, **world.environ, **env}
        )


def found(result: Result) -> dict[str, dict[str, object]]:
    return {each["provider"]: each for each in json.loads(result.stdout)["providers"]}


def test_a_server_that_answers_is_ready_and_its_models_are_named(
    world: World, server: FakeServer
) -> None:
    result = call(world, TALLYSTICK_MODEL_URL=server.url)

    first = result.stdout.splitlines()[0]
    assert first.split() == ["local", "ready", "qwen,", "llama"]


def test_what_is_missing_is_said_with_the_variable_to_set(world: World) -> None:
    providers = found(call(world, "--offline", "--json"))

    assert (providers["openai"]["state"], providers["openai"]["advice"]) == (
        "no key",
        "set OPENAI_API_KEY",
    )
    assert providers["local"]["state"] == "no address"
    assert "TALLYSTICK_MODEL_URL" in str(providers["local"]["advice"])


def test_offline_sends_nothing(world: World, server: FakeServer) -> None:
    providers = found(call(world, "--offline", "--json", TALLYSTICK_MODEL_URL=server.url))

    assert providers["local"]["state"] == "not asked"
    assert server.connections == 0


@pytest.mark.parametrize("variable", ["OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"])
def test_a_key_goes_to_its_provider_and_is_not_printed(
    world: World, server: FakeServer, variable: str
) -> None:
    name = variable.partition("_")[0]

    result = call(world, name.lower(), **{variable: server.url, f"{name}_API_KEY": _KEY})

    assert result.stdout.splitlines() == [f"{name.lower()}:qwen", f"{name.lower()}:llama"]
    asked = server.seen[-1]
    assert (asked.method, asked.key) == ("GET", _KEY)
    assert asked.path.startswith("/v1/models")
    assert _KEY not in result.output


def test_a_key_that_the_server_echoes_is_not_printed(world: World, server: FakeServer) -> None:
    server.always(status(401, f"wrong key {_KEY}"))

    result = call(world, OPENAI_BASE_URL=server.url, OPENAI_API_KEY=_KEY)

    assert "401" in result.stdout
    assert _KEY not in result.output


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"<html>", b'{"data": 3}', b'{"data": [{"name": "x"}]}', b"[" * 100_000]
)
def test_what_is_no_list_of_models_is_an_answer_in_one_line(
    world: World, server: FakeServer, body: bytes
) -> None:
    server.always(whole(body))

    result = call(world, TALLYSTICK_MODEL_URL=server.url)

    assert result.exit_code == 0
    line = next(each for each in result.stdout.splitlines() if each.startswith("local"))
    assert line.split()[1:3] == ["no", "answer"]


def test_names_that_no_model_can_have_are_left_out(world: World, server: FakeServer) -> None:
    names = ["good", "", "two\nlines", "\x1b[31mred", "x" * 201, "good"]
    server.always(whole(json.dumps({"data": [{"id": each} for each in names]}).encode()))

    assert call(world, "local", TALLYSTICK_MODEL_URL=server.url).stdout == "local:good\n"


def test_an_unknown_provider_is_refused_with_those_there_are(world: World) -> None:
    result = call(world, "opnai")

    assert isinstance(result.exception, UsageError)
    assert "openai" in str(result.exception)


def test_a_provider_that_does_not_answer_is_an_error_if_it_was_named(world: World) -> None:
    result = call(world, "local", TALLYSTICK_MODEL_URL="http://127.0.0.1:1/v1")

    assert isinstance(result.exception, ModelError)
    assert str(result.exception).startswith("network_error: local at 127.0.0.1:1: nothing listens")
