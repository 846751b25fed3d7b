"""Models by name: what a name means, where it is asked, and keys that are shown nowhere."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.settings.test_settings import World, toml

from tallystick.core.errors import RunNotFound, UsageError
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.endpoint import Endpoint
from tallystick.model.http import HttpModel
from tallystick.model.pacing import Pacing
from tallystick.model.port import Model
from tallystick.runtime.runs.history import recorded_model
from tallystick.settings.models import endpoint_of, open_model
from tallystick.settings.providers import FileModel, ProviderModel, resolve_model

KEYS = {
    "OPENAI_API_KEY": "sk-openai-0123456789",
    "ANTHROPIC_API_KEY": "sk-ant-0123456789",
    "OPENROUTER_API_KEY": "sk-or-0123456789",
}
URL = {"TALLYSTICK_MODEL_URL": "http://127.0.0.1:9999/v1"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def no_recording(run: str) -> Model:
    raise AssertionError(f"no recorded run is asked for, and {run} is none")


def opened(world: World, name: str | None, **env: str) -> Model:
    environ = {**world.environ, **env}
    return open_model(
        name, world.load(**env), pacing=Pacing(), recorded=no_recording, environ=environ
    )


def meant(world: World, name: str, **env: str) -> FileModel | ProviderModel:
    found = world.load(**env)
    return resolve_model(name, aliases=found.aliases, providers=found.providers)


def endpoint(world: World, name: str, **env: str) -> Endpoint:
    found = meant(world, name, **env)
    assert isinstance(found, ProviderModel)
    return endpoint_of(found, {**world.environ, **env})


def refusal(world: World, name: str | None, **env: str) -> str:
    with pytest.raises(UsageError) as caught:
        opened(world, name, **env)
    message = str(caught.value)
    assert message.isprintable()
    return message


# -- what a name means ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("openai:gpt-5-mini", "openai", "gpt-5-mini"),
        ("openrouter:meta/llama:free", "openrouter", "meta/llama:free"),
        ("ollama:qwen2.5-coder:1.5b", "ollama", "qwen2.5-coder:1.5b"),
        ("gpt-5", "openai", "gpt-5"),
        ("o1", "openai", "o1"),
        ("o3-mini", "openai", "o3-mini"),
        ("o4-mini", "openai", "o4-mini"),
        ("claude-sonnet-4", "anthropic", "claude-sonnet-4"),
    ],
)
def test_a_provider_is_named_or_known_by_the_models_name(
    world: World, name: str, provider: str, model: str
) -> None:
    found = meant(world, name)

    assert isinstance(found, ProviderModel)
    assert (found.provider.name, found.model) == (provider, model)


@pytest.mark.parametrize("name", ["qwen", "gpt-oss", "claude-like"])
def test_with_a_server_of_ones_own_all_bare_names_are_its(world: World, name: str) -> None:
    found = meant(world, name, **URL)

    assert isinstance(found, ProviderModel)
    assert (found.provider.name, found.model) == ("local", name)


def test_an_alias_stands_for_a_whole_name(world: World) -> None:
    world.user("[aliases]\nfast = 'ollama:tiny'\ngpt-5 = 'openrouter:openai/gpt-5'\nf = 'gguf:/f'")

    fast, shadow, file = (meant(world, name) for name in ("fast", "gpt-5", "f"))

    assert isinstance(fast, ProviderModel)
    assert isinstance(shadow, ProviderModel)
    assert (fast.provider.name, fast.model) == ("ollama", "tiny")
    assert (shadow.provider.name, shadow.model) == ("openrouter", "openai/gpt-5")
    assert file == FileModel(kind="gguf", rest="/f")


@pytest.mark.parametrize("text", ["a = 'b'\nb = 'openai:x'", "a = 'a'", "a = 'b'\nb = 'a'"])
def test_an_alias_of_an_alias_is_refused_and_so_are_loops(world: World, text: str) -> None:
    world.user(f"[aliases]\n{text}")

    assert "aliases.a: must be PROVIDER:MODEL" in world.error()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpt", "model 'gpt' is not known; use PROVIDER:MODEL, gguf:PATH, scripted:FILE or "),
        ("o9", "model 'o9' is not known"),
        ("o1x", "model 'o1x' is not known"),
        ("fst", "model 'fst' is not known; did you mean fast?"),
        ("opnai:x", "model 'opnai:x': no provider 'opnai'; did you mean openai?"),
        ("ggufs:x", "did you mean gguf?"),
        ("zzz:x", "no provider 'zzz'; there are anthropic, "),
        ("far", "model 'nosuch:x': no provider 'nosuch'"),
        ("openai:", "model 'openai:': nothing after the colon"),
        ("gguf:", "nothing after the colon"),
        (":x", "no provider ''"),
        ("local:x", "provider local has no address; set TALLYSTICK_MODEL_URL"),
        ("openai:" + "x" * 400, "model: a name of 1 to 200"),
        ("\x1b[31m", r"model '\x1b[31m' is not known"),
    ],
)
def test_a_name_that_means_nothing_is_one_line(world: World, name: str, says: str) -> None:
    world.user("[aliases]\nfast = 'openai:x'\nfar = 'nosuch:x'")

    assert says in refusal(world, name, **KEYS)


def test_a_colon_in_the_name_of_a_local_model_is_not_guessed_at(world: World) -> None:
    assert "write local:MODEL" in refusal(world, "llama3.2:3b", **URL)
    assert endpoint(world, "local:llama3.2:3b", **URL).model == "llama3.2:3b"


def test_without_a_model_the_error_names_three_ways_to_one_and_the_demo(world: World) -> None:
    message = refusal(world, None)

    for way in ("no model", "OPENAI_API_KEY", "-m openai:", "-m ollama:", "TALLYSTICK_MODEL_URL",
                "-m gguf:PATH", "tallystick[gguf]", "tally demo"):  # fmt: skip
        assert way in message


def test_with_a_server_and_no_model_the_error_asks_for_its_name(world: World) -> None:
    assert "name a model of it with -m MODEL" in refusal(world, None, **URL)


# -- where it is asked ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "base_url", "dialect", "key"),
    [
        ("openai:x", "https://api.openai.com/v1", "openai", "OPENAI_API_KEY"),
        ("anthropic:x", "https://api.anthropic.com", "anthropic", "ANTHROPIC_API_KEY"),
        ("openrouter:x", "https://openrouter.ai/api/v1", "openai", "OPENROUTER_API_KEY"),
        ("ollama:x", "http://127.0.0.1:11434/v1", "openai", None),
        ("lmstudio:x", "http://127.0.0.1:1234/v1", "openai", None),
        ("vllm:x", "http://127.0.0.1:8000/v1", "openai", None),
        ("llamacpp:x", "http://127.0.0.1:8080/v1", "openai", None),
        ("local:x", URL["TALLYSTICK_MODEL_URL"], "openai", None),
    ],
)
def test_built_in_providers_have_their_address_dialect_and_key(
    world: World, name: str, base_url: str, dialect: str, key: str | None
) -> None:
    found = endpoint(world, name, **KEYS, **URL)

    assert (found.base_url, found.dialect, found.name) == (base_url, dialect, name)
    assert (found.key.reveal() if found.key else None) == (KEYS[key] if key else None)


def test_a_local_server_may_have_a_key_and_need_not(world: World) -> None:
    with_key = endpoint(world, "local:x", **URL, TALLYSTICK_MODEL_KEY="word")

    assert with_key.key is not None
    assert with_key.key.reveal() == "word"
    assert endpoint(world, "local:x", **URL).key is None


def test_a_file_adds_a_provider_and_changes_one(world: World) -> None:
    world.user("""
        [providers.work]
        dialect = "anthropic"
        base_url = "https://models.work.example/anthropic"
        key_env = "WORK_KEY"
        concurrency = 2
        connect_seconds = 1
        silence_seconds = 2
        total_seconds = 3
        stream = false
        [providers.openai]
        key_env = ""
        base_url = "http://127.0.0.1:1/v1"
        [providers.lan]
        base_url = "http://models.example"
        key_env = "WORK_KEY"
        allow_plain_http = true
    """)

    work = endpoint(world, "work:x", WORK_KEY="k-1234567")

    assert (work.dialect, work.stream, work.concurrency) == ("anthropic", False, 2)
    assert (work.connect_seconds, work.silence_seconds, work.total_seconds) == (1, 2, 3)
    assert work.key_origin == "https://models.work.example:443"
    assert endpoint(world, "openai:x", **KEYS).key is None
    assert endpoint(world, "lan:x", WORK_KEY="k-1234567").scheme == "http"


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai:x", "OPENAI_API_KEY"),
        ("claude-x", "ANTHROPIC_API_KEY"),
        ("openrouter:x", "OPENROUTER_API_KEY"),
        ("work:x", "WORK_KEY"),
    ],
)
def test_a_missing_key_is_one_line_with_the_variable_to_set(
    world: World, name: str, variable: str
) -> None:
    world.user("[providers.work]\nbase_url = 'https://h'\nkey_env = 'WORK_KEY'")

    assert f"needs a key; set {variable} to it" in refusal(world, name)
    assert f"set {variable} to it" in refusal(world, name, **{variable: ""})


def test_an_address_that_cannot_be_used_is_said_when_it_is_asked(world: World) -> None:
    assert "OPENAI_BASE_URL: must be an http" in refusal(
        world, "openai:x", OPENAI_BASE_URL="unix:/s", **KEYS
    )


def test_models_of_one_provider_wait_together(world: World) -> None:
    pacing = Pacing()
    environ = {**world.environ, **KEYS}

    for name in ("openai:a", "openai:b", "openrouter:a"):
        open_model(name, world.load(), pacing=pacing, recorded=no_recording, environ=environ)

    assert pacing.gate(endpoint(world, "openai:c", **KEYS)) is pacing.gate(
        endpoint(world, "openai:d", **KEYS)
    )
    assert pacing.gate(endpoint(world, "openai:c", **KEYS)) is not pacing.gate(
        endpoint(world, "openrouter:c", **KEYS)
    )


# -- what is opened -------------------------------------------------------------------------------


def test_opening_a_providers_model_asks_nothing_of_it(world: World) -> None:
    model = opened(world, "openai:gpt-5-mini", **KEYS)

    assert isinstance(model, HttpModel)
    assert model.name == "openai:gpt-5-mini"


def test_a_script_is_found_at_home_too(world: World) -> None:
    (world.home / "demo.jsonl").write_text('{"text": "hello"}')

    assert opened(world, "scripted:~/demo.jsonl").name == f"scripted:{world.home}/demo.jsonl"
    assert "No such file" in refusal(world, "scripted:nosuch")


def recorded(run: str) -> Model:
    return recorded_model(MemoryLedger(), run)


def test_a_recorded_run_is_looked_for_in_the_ledger(world: World) -> None:
    with pytest.raises(UsageError, match="no run yet"):
        open_model("recorded:last", world.load(), pacing=Pacing(), recorded=recorded)


def test_a_recording_that_is_not_here_says_what_to_do(world: World) -> None:
    advice = r"no run 'Qwen' in the ledger; .* Name another model: -m"
    with pytest.raises(RunNotFound, match=advice):
        open_model("recorded:Qwen", world.load(), pacing=Pacing(), recorded=recorded)


def test_a_model_file_is_looked_at_when_it_is_named(world: World) -> None:
    path = world.home / "tiny.gguf"
    path.write_bytes(b"GGUF")

    assert "nosuch.gguf: No such file" in refusal(world, "gguf:nosuch.gguf")
    if importlib.util.find_spec("xllamacpp") is None:
        assert "tallystick[gguf]" in refusal(world, f"gguf:{path}")
    else:
        assert opened(world, "gguf:~/tiny.gguf").name == "gguf:tiny.gguf"


# -- keys -----------------------------------------------------------------------------------------

# Keys as vendors make them, and with whatever else fits on a line.
keys = st.builds(
    "sk-{}{}".format,
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16, max_size=40),
    st.sampled_from(["", " ", "é", "\n"]),
)
MISPLACED = (
    "api_key = {}",
    "[providers.openai]\nkey = {}",
    "[providers.openai]\nkey_env = {}",
    "[providers.openai]\nkey_env = [{}]",
    "[providers.openai]\nheaders = {}",
    "[providers.openai]\ntoken = {}",
    "[providers]\nopenai_key = {}",
)


@given(key=keys, place=st.sampled_from(MISPLACED))
@settings(max_examples=30)
def test_a_key_in_a_file_is_refused_and_not_repeated(key: str, place: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        world.says(place.format(json.dumps(key)))

        message = world.error()

    assert key.strip() not in message
    assert key[3:] not in message


@given(key=keys, form=st.sampled_from(["https://{}@h/v1", "https://u:{}@h", "https://h/v1?k={}"]))
@settings(max_examples=30)
def test_a_key_in_an_address_is_refused_and_not_repeated(key: str, form: str) -> None:
    url = form.format(key)
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        messages = [refusal(world, "openai:x", OPENAI_BASE_URL=url, **KEYS)]
        messages.append(world.error(TALLYSTICK_MODEL_URL=url))
        messages += [f"{each.value} {each.source}" for each in world.load(
            OPENAI_BASE_URL=url).listed()]  # fmt: skip
        world.user("[providers.x]\n" + toml({"base_url": url}))
        messages.append(world.error())

    assert not any(key[3:].strip() in message for message in messages)


@given(key=keys)
@settings(max_examples=30)
def test_a_key_is_in_no_setting_no_listing_and_no_error(key: str) -> None:
    variables = dict.fromkeys([*KEYS, "TALLYSTICK_MODEL_KEY"], key)
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        found = world.load(**variables, **URL)
        said = [repr(found), *map(repr, found.listed())]
        for name in ("openai:x", "anthropic:x", "local:x", "openrouter:x", "nosuch:x"):
            try:
                said.append(repr(opened(world, name, **variables, **URL)))
            except UsageError as error:
                said += [str(error), repr(error), repr(error.__cause__)]

    assert not any(key[3:].strip() in each for each in said)
