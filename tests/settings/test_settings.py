"""Settings: which place wins, what each may hold, and one clear line for what it may not."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unprivileged import unprivileged

from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.settings.files import PROJECT_FILE, config_directory, read_config
from tallystick.settings.schema import PROVIDER_KEYS, SETTINGS
from tallystick.settings.settings import OTHER_VARIABLES, Setting, Settings, load_settings
from tallystick.settings.trust import TrustStore

# The least that is a tokenizer: it has no words.
TOKENIZER = Path(tempfile.mkdtemp()) / "tokenizer.json"
TOKENIZER.write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}')


class World:
    """A home with a project in it."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.project = self.home / "code" / "project"
        self.project.mkdir(parents=True)
        self.environ = {"HOME": str(self.home)}
        self.user_file = config_directory(self.environ) / "config.toml"
        self.project_file = self.project / PROJECT_FILE

    def user(self, text: str | bytes) -> None:
        self.user_file.parent.mkdir(parents=True, exist_ok=True)
        self.user_file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def says(self, text: str | bytes, *, trusted: bool = False) -> None:
        self.project_file.write_bytes(text if isinstance(text, bytes) else text.encode())
        if trusted:
            self.trust()

    def trust(self) -> None:
        TrustStore(config_directory(self.environ)).trust(read_config(self.project_file))

    def load(self, flags: Mapping[str, object] | None = None, /, **env: str) -> Settings:
        return load_settings(flags=flags, environ={**self.environ, **env}, cwd=self.project)

    def load_at(self, cwd: Path) -> Settings:
        return load_settings(environ=self.environ, cwd=cwd)

    def error(self, flags: Mapping[str, object] | None = None, /, **env: str) -> str:
        with pytest.raises(UsageError) as caught:
            self.load(flags, **env)
        message = str(caught.value)
        assert message.isprintable(), "an error is one line that no terminal obeys"
        return message


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def toml(values: Mapping[str, object]) -> str:
    return "".join(f"{name} = {_toml_of(value)}\n" for name, value in values.items())


def _toml_of(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {json.dumps(each)}' for name, each in value.items())} }}"
    return json.dumps(value)


def listed(found: Settings) -> dict[str, Setting]:
    return {each.name: each for each in found.listed()}


def value_of(found: Settings, name: str) -> object:
    limits = found.limits
    return {
        "model": found.model,
        "max_turns": limits.turns,
        "max_tokens": limits.tokens,
        "timeout": limits.wall_ms / 1000,
        "max_host_calls": limits.host_calls,
        "reply_tokens": limits.reply_tokens,
        "retries": limits.retries,
        "temperature": found.temperature,
        "strategy": found.strategy,
        "compact_at": found.compact_at,
        "grants": found.grants,
        "max_usd": None if limits.usd is None else limits.usd / 10**9,
        "total_usd": None if found.total.usd is None else found.total.usd / 10**9,
        "allow_unpriced": found.pricing.waived,
        "tokenizer": found.pricing.tokenizer and str(TOKENIZER),
        "skills_paths": found.skills.paths,
        "skills_require_signature": found.skills.require_signature,
        "skills_budget": found.skills.budget,
        "session_mb": found.session_bytes / 2**20,
        "memory": found.memory,
        "clock": found.clock,
        "timezone": found.timezone,
    }[name]


LISTS = ("grants", "skills_paths")


# -- precedence -----------------------------------------------------------------------------------

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["openai:a", "ollama:b", "claude-c", "openrouter:d/e:f"]),
    "max_turns": st.integers(0, 1_000_000),
    "max_tokens": st.integers(0, 10**12),
    "timeout": st.integers(0, 10**7),
    "max_host_calls": st.integers(0, 10**9),
    "reply_tokens": st.integers(0, 10**9),
    "retries": st.integers(0, 100),
    "temperature": st.sampled_from([0, 0.5, 1, 2]),
    "strategy": st.sampled_from(["auto", "direct", "code", "recursive"]),
    "compact_at": st.integers(0, 10**9),
    "max_usd": st.sampled_from([0, 0.5, 12, 0.0001]),
    "total_usd": st.sampled_from([0, 0.25, 100]),
    "allow_unpriced": st.booleans(),
    "tokenizer": st.just(str(TOKENIZER)),
    "grants": st.lists(st.sampled_from(["files.read", "net"]), min_size=1, unique=True),
    "skills_paths": st.lists(st.sampled_from(["/a", "~/b"]), min_size=1, unique=True),
    "skills_require_signature": st.booleans(),
    "skills_budget": st.integers(0, 1_000_000),
    "session_mb": st.integers(0, 10**9),
    "memory": st.sampled_from(["default", "work"]),
    "clock": st.sampled_from(["now", "fixed", "2026-03-01"]),
    "timezone": st.sampled_from(["UTC", "Asia/Tokyo"]),
}
LAYERS = ("user", "project", "environment", "flag")


@st.composite
def layered(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """For each place, what it sets."""
    return {
        layer: {
            name: draw(VALUES[name])
            for name in draw(st.lists(st.sampled_from(sorted(SETTINGS)), unique=True))
            if layer != "environment" or name not in LISTS
        }
        for layer in LAYERS
    }


@given(layers=layered())
@settings(max_examples=40)
def test_the_highest_place_that_sets_a_value_wins(layers: dict[str, dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        world.user(toml(layers["user"]))
        world.says(toml(layers["project"]), trusted=True)
        variables = {f"TALLYSTICK_{k.upper()}": str(v) for k, v in layers["environment"].items()}

        found = world.load(layers["flag"], **variables)

        sources = {
            "user": str(world.user_file),
            "project": os.path.realpath(world.project_file),
            "environment": "environment TALLYSTICK_",
            "flag": "flag --",
        }
        for name, spec in SETTINGS.items():
            setting = listed(found)[name]
            winner = next((each for each in reversed(LAYERS) if name in layers[each]), None)
            if winner is None:
                assert setting.source == "default"
                assert value_of(found, name) == (
                    spec.default if spec.default is not None else (() if name in LISTS else None)
                )
            else:
                given_value = layers[winner][name]
                expected = tuple(given_value) if name in LISTS else given_value
                assert value_of(found, name) == expected
                assert setting.source.startswith(sources[winner])


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_changes_something(world: World, name: str) -> None:
    before = value_of(world.load(), name)
    given: dict[str, object] = {
        "model": "ollama:x",
        "temperature": 0.5,
        "strategy": "direct",
        "grants": ["net"],
        "skills_paths": ["/a"],
        "skills_require_signature": True,
        "allow_unpriced": True,
        "tokenizer": str(TOKENIZER),
        "memory": "default",
        "clock": "fixed",
        "timezone": "Asia/Tokyo",
    }
    other = given.get(name, 1)

    world.user(toml({name: other}))

    assert value_of(world.load(), name) != before


def test_without_files_and_variables_everything_is_at_its_default(world: World) -> None:
    found = world.load()

    assert found.limits == RunLimits()
    assert (found.model, found.temperature, found.grants) == (None, None, ())
    assert {each.source for each in found.listed() if each.name in SETTINGS} == {"default"}


def test_zero_means_zero_and_less_than_a_millisecond_does_not(world: World) -> None:
    none = world.load({"timeout": 0, "max_turns": 0, "retries": 0})
    little = world.load({"timeout": 0.0001})

    assert (none.limits.wall_ms, none.limits.turns, none.limits.retries) == (0, 0, 0)
    assert little.limits.wall_ms == 1


def test_a_flag_that_was_not_given_sets_nothing(world: World) -> None:
    world.user("max_turns = 7\ngrants = ['net']")

    found = world.load({"max_turns": None, "grants": ()})

    assert (found.limits.turns, found.grants) == (7, ("net",))


def test_an_empty_variable_is_one_that_is_not_set(world: World) -> None:
    assert world.load(TALLYSTICK_MAX_TURNS="").limits == RunLimits()


# -- the page ------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text(
    encoding="utf-8"
)


def test_the_example_on_the_page_is_a_file_that_is_read(world: World) -> None:
    examples = re.findall(r"^```toml\n(.*?)^```", PAGE, re.S | re.M)
    assert len(examples) == 2

    world.user("\n".join(examples))

    found = world.load()
    assert found.model == "fast"
    assert found.aliases["fast"] == "openai:gpt-5-mini"
    assert found.providers["work"].key_env == "WORK_API_KEY"
    price = found.pricing.declared.find("ollama:anything")
    assert price is not None
    assert price.rates.input == 0


def test_every_key_and_every_variable_is_on_the_page() -> None:
    rows = set(re.findall(r"`([^`\n]+)`", PAGE))
    variables = {spec.variable for spec in SETTINGS.values() if spec.variable}

    assert {*SETTINGS, *PROVIDER_KEYS, *variables, *OTHER_VARIABLES} - rows == set()


def test_every_range_on_the_page_is_the_one_that_holds() -> None:
    for name, spec in SETTINGS.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE, re.M)
        ends = re.findall(r"from ([\d.,]+) to ([\d.,]+)", spec.kind.what)
        assert all(f"{low} to {high}" in row for low, high in ends), row


# -- where the files are --------------------------------------------------------------------------


def test_the_users_file_follows_the_conventions(world: World) -> None:
    elsewhere = world.home / "xdg" / "tallystick" / "config.toml"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text("max_turns = 2")
    named = world.home / "named.toml"
    named.write_text("max_turns = 3")
    world.user("max_turns = 1")

    assert world.load().limits.turns == 1
    assert world.load(XDG_CONFIG_HOME="relative").limits.turns == 1
    assert world.load(XDG_CONFIG_HOME=str(world.home / "xdg")).limits.turns == 2
    assert world.load(TALLYSTICK_CONFIG=str(named)).limits.turns == 3


def test_a_users_file_that_is_named_has_to_be_there(world: World) -> None:
    message = world.error(TALLYSTICK_CONFIG=str(world.home / "nosuch.toml"))

    assert "nosuch.toml: No such file" in message


def test_the_projects_file_is_found_from_below_and_the_nearest_counts(world: World) -> None:
    deep = world.project / "a" / "b"
    deep.mkdir(parents=True)
    world.says("max_turns = 4")
    (world.project / "a" / PROJECT_FILE).write_text("max_turns = 3")

    assert world.load_at(deep).limits.turns == 3
    assert world.load_at(world.project).limits.turns == 4


@pytest.mark.parametrize("stop", ["home", "git directory", "git file"])
def test_the_search_ends_at_home_and_at_the_root_of_a_checkout(world: World, stop: str) -> None:
    above = world.home.parent if stop == "home" else world.project.parent
    (above / PROJECT_FILE).write_text("max_turns = 1")
    if stop == "git directory":
        (world.project / ".git").mkdir()
    if stop == "git file":
        (world.project / ".git").write_text("gitdir: elsewhere")

    assert world.load().project is None


def test_a_file_beside_the_git_directory_counts(world: World) -> None:
    (world.project / ".git").mkdir()
    world.says("max_turns = 1")

    assert world.load().limits.turns == 1


def test_a_working_directory_that_is_gone_has_no_project(world: World) -> None:
    assert world.load_at(world.project / "gone").project is None


def test_who_names_the_projects_file_as_their_own_trusts_it(world: World) -> None:
    world.says("grants = ['net']")

    found = world.load(TALLYSTICK_CONFIG=str(world.project_file))

    assert (found.grants, found.warnings, found.project) == (("net",), (), None)


def test_a_path_in_a_file_is_meant_from_where_the_file_is(world: World) -> None:
    world.user("model = 'gguf:models/a.gguf'\n[aliases]\nhome = 'gguf:~/b.gguf'\n")

    found = world.load()

    assert found.model == f"gguf:{world.user_file.parent}/models/a.gguf"
    assert found.aliases["home"] == "gguf:~/b.gguf"


def test_a_directory_in_a_file_is_meant_from_where_the_file_is(world: World) -> None:
    world.user("skills_paths = ['skills', '~/more', '/all']")

    skills = world.load().skills

    assert skills.paths == (f"{world.user_file.parent}/skills", "~/more", "/all")
    assert not skills.of_project


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_turn = 5", "max_turn is not a setting; did you mean max_turns?"),
        ("max_token = 5", "max_token is not a setting; did you mean max_tokens?"),
        ("colour = 5", "colour is not a setting; known are "),
        ("max_turns = 'many'", "max_turns: must be a whole number from 0 to 1,000,000, not 'many'"),
        ("max_turns = -1", "max_turns: must be a whole number from 0 to 1,000,000, not -1"),
        ("max_turns = 1.5", "not 1.5"),
        ("max_turns = true", "not true"),
        ("max_turns = [1]", "not what this list holds"),
        ("max_turns = {a = 1}", "not a table"),
        ("max_turns = 2020-01-01", "not a date or time"),
        ("max_turns = 0x" + "f" * 9_000, "not a number that long"),
        ("max_turns = 1000001", "not 1,000,001"),
        ("timeout = nan", "timeout: must be a number from 0 to"),
        ("timeout = inf", "not inf"),
        ("timeout = -0.1", "not -0.1"),
        ("timeout = 0x" + "f" * 9_000, "not a number that long"),
        ("timeout = 10000001", "must be a number from 0 to 10,000,000, not 10,000,001"),
        ("temperature = 3", "temperature: must be a number from 0 to 2, not 3"),
        ("temperature = 'hot'", "not 'hot'"),
        ("model = ''", "model: must be one line of text, not ''"),
        ('model = "a\\nb"', "model: must be one line of text"),
        ("model = 5", "not 5"),
        ("grants = 'net'", "grants: must be a list of capabilities"),
        ("grants = ['']", "grants: must be a list of capabilities"),
        ("aliases = 5", "aliases: must be a table"),
        ("[aliases]\nfast = 'slow'", "aliases.fast: must be PROVIDER:MODEL"),
        ("[aliases]\nfast = ':x'", "aliases.fast: must be PROVIDER:MODEL"),
        ("[aliases]\n'a:b' = 'openai:x'", "aliases: 'a:b' is not a name"),
        ("[aliases]\na.b = 'openai:x'", "aliases.a: must be PROVIDER:MODEL"),
        ("providers = 5", "providers: must be a table"),
        ("[providers]\nx = 5", "providers.x: must be a table"),
        ("[providers.x]", "providers.x: base_url is missing"),
        ("[providers.X]", "providers: 'X' is not a name"),
        ("[providers.gguf]", "providers.gguf: this name is taken"),
        ("[providers.x]\nurl = 'http://h'", "providers.x.url is not a setting; known are "),
        ("[providers.x]\nbase-url = 'http://h'", "did you mean providers.x.base_url?"),
        ("[providers.x]\nbase_url = 'ftp://h'", "providers.x.base_url: must be an http or https"),
        ("[providers.x]\ndialect = 'french'", "must be openai or anthropic, not 'french'"),
        ("[providers.x]\nconcurrency = 0", "concurrency: must be a whole number from 1"),
        ("[providers.x]\ntotal_seconds = 0", "total_seconds: must be a number from 0.001"),
        ("[providers.x]\nstream = 'yes'", "stream: must be true or false, not 'yes'"),
        ("[providers.x]\napi_key = 'k'", "providers.x.api_key: a key does not belong in a file"),
        ("[providers.x]\nkey_env = 'sk-1'", "key_env: must be the name of an environment variable"),
        ("openai_api_key = 'k'", "openai_api_key: a key does not belong in a file"),
        ("[prices.m]\ninput = 1", 'prices."m".output is missing'),
        ("[prices.m]\ninput = 1\noutput = -1", 'prices."m".output: must be dollars'),
        ("[commands]\nx = 'y'", "commands are not supported by this version"),
        ("max_usd = -1", "max_usd: must be a sum of dollars"),
        ("max_usd = 0.0000000001", "max_usd: must be a sum of dollars"),
        ("allow_unpriced = 1", "allow_unpriced: must be true or false"),
        ("max_turns = ", "not TOML: Invalid value (at "),
        ("max_turns = 1\nmax_turns = 2", "not TOML: "),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_one_line_that_names_it(
    world: World, text: str, says: str
) -> None:
    world.user(text)

    message = world.error()

    assert message.startswith(f"{world.user_file}: ")
    assert says in message


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"#" * 65_537, "longer than 65,536 bytes"),
        (b"a=" + b"[" * 60_000, "nested too deeply"),
        (b"a=" + b"{a=" * 20_000, "nested too deeply"),
        (b".".join([b"a"] * 30_000) + b" = 1", "line 1: more than 100 dots"),
        (b"\n[" + b".".join([b"a"] * 30_000) + b"]", "line 2: more than 100 dots"),
        (b"max_turns = 9" + b"9" * 60_000, "not TOML: "),
        (b"model = 'a\0b'", "not TOML: "),
        (b"\0" * 100, "not TOML: "),
        (b"model = 'a\xff'", "not UTF-8 at byte 10"),
        (b"\xff\xfem\0o\0", "not UTF-8 at byte 0"),
        (b"max_turns = 1\rmax_tokens = 1", "not TOML: "),
        (b'"\\u001b[31m\\n" = 1', r"'\x1b[31m\n' is not a setting"),
        (b'"' + b"x" * 60_000 + b'" = 1', "is not a setting"),
        (b'model = "\\u202egnp"', "must be one line of text"),
    ],
)
def test_a_hostile_file_is_an_error_and_no_more(world: World, data: bytes, says: str) -> None:
    world.says(data)

    message = world.error()

    assert message.startswith(f"{world.project_file}: ")
    assert says in message
    assert len(message) < 2_000


def test_the_slowest_file_of_the_allowed_length_is_read(world: World) -> None:
    key = ".".join(["a"] * 95)
    lines = [f"[{key}]", *(f"b{number}.{key}=1" for number in range(320))]

    world.says("\n".join(lines))

    assert "a is not a setting" in world.error()


@pytest.mark.parametrize(
    "data", [b"max_turns = 5\r\nretries = 1\r\n", b"\xef\xbb\xbfmax_turns = 5\nretries = 1"]
)
def test_line_ends_and_marks_of_other_editors_are_read(world: World, data: bytes) -> None:
    world.says(data)

    found = world.load()

    assert (found.limits.turns, found.limits.retries) == (5, 1)


def test_what_is_no_file_is_said_and_not_waited_for(world: World) -> None:
    os.mkfifo(world.project_file)
    assert world.error() == f"{world.project_file}: not a regular file"

    world.project_file.unlink()
    world.project_file.mkdir()
    assert world.error() == f"{world.project_file}: not a regular file"

    world.project_file.rmdir()
    world.project_file.symlink_to(PROJECT_FILE)
    assert "symbolic links" in world.error()

    world.project_file.unlink()
    world.project_file.symlink_to("nowhere")
    assert "No such file" in world.error()


def test_a_file_that_may_not_be_read_is_said() -> None:
    with unprivileged() as directory:
        world = World(directory)
        world.says("max_turns = 1")
        world.project_file.chmod(0)

        assert world.error() == f"{world.project_file}: Permission denied"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TALLYSTICK_MAX_TURNS", "many", "TALLYSTICK_MAX_TURNS: must be a whole number from 0 to"),
        ("TALLYSTICK_MAX_TURNS", "1.5", "not '1.5'"),
        ("TALLYSTICK_MAX_TURNS", "-1", "not -1"),
        ("TALLYSTICK_MAX_TURNS", "٣", "not '٣'"),
        ("TALLYSTICK_MAX_TURNS", "9" * 9_000, "not '999"),
        ("TALLYSTICK_TIMEOUT", "nan", "TALLYSTICK_TIMEOUT: must be a number"),
        ("TALLYSTICK_TIMEOUT", "9" * 9_000, "not inf"),
        ("TALLYSTICK_TEMPERATURE", "warm", "not 'warm'"),
        ("TALLYSTICK_MODEL", "a\x1b[31m", "TALLYSTICK_MODEL: must be one line of text"),
        ("TALLYSTICK_MODEL_URL", "localhost", "TALLYSTICK_MODEL_URL: must be an http or https URL"),
        ("TALLYSTICK_MAX_TURN", "5", "TALLYSTICK_MAX_TURN is not a setting; did you mean "),
        ("TALLYSTICK_TURNS", "5", "did you mean TALLYSTICK_MAX_TURNS?"),
        ("TALLYSTICK_TIMOUT", "5", "did you mean TALLYSTICK_TIMEOUT?"),
    ],
)
def test_what_is_wrong_in_the_environment_is_one_line(
    world: World, variable: str, value: str, says: str
) -> None:
    assert says in world.error(**{variable: value})


def test_variables_of_others_are_let_be(world: World) -> None:
    found = world.load(TALLYSTICK_SOAK="full", TALLYSTICK_EVAL_DATA="x", TALLYSTICKS="1")

    assert found.limits == RunLimits()


def test_what_is_wrong_in_a_flag_names_the_flag(world: World) -> None:
    assert world.error({"max_turns": -1}).startswith("--max-turns: must be a whole number")
    assert world.error({"grants": [""]}).startswith("--grant: must be a list")
    assert "is not a setting" in world.error({"nosuch": 1})


# -- providers and aliases ------------------------------------------------------------------------

OTHER = {
    "dialect": "anthropic",
    "base_url": "https://proxy.example/v1",
    "key_env": "OTHER_KEY",
    "concurrency": 3,
    "connect_seconds": 1.5,
    "silence_seconds": 2.5,
    "total_seconds": 3.5,
    "stream": False,
    "allow_plain_http": True,
    "cache": True,
    # Tables are kept as JSON.
    "headers": {"x-team": "search"},
    "query": {"api-version": "1"},
    "body": {"service_tier": "flex"},
}


TABLES = ("headers", "query", "body")


@pytest.mark.parametrize("key", sorted(PROVIDER_KEYS))
def test_every_value_of_a_provider_can_be_set(world: World, key: str) -> None:
    before = world.load().providers["openai"].value_of(key)

    world.user("[providers.openai]\n" + toml({key: OTHER[key]}))

    found = world.load().providers["openai"]
    expected = json.dumps(OTHER[key], separators=(",", ":")) if key in TABLES else OTHER[key]
    assert found.value_of(key) == expected != before
    assert {name for name, source in found.sources.items() if source != "default"} == {key}


def test_a_providers_values_come_each_from_the_highest_place_that_sets_it(world: World) -> None:
    world.user("[providers.x]\nbase_url = 'http://user.lan'\nconcurrency = 2\nstream = false")
    world.says("[providers.x]\nbase_url = 'http://project.lan'\nconcurrency = 3", trusted=True)

    found = world.load().providers["x"]

    assert (found.base_url, found.concurrency, found.stream) == ("http://project.lan", 3, False)
    assert found.sources["stream"] == str(world.user_file)
    assert found.sources["base_url"] == str(world.project_file)


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("OPENAI_BASE_URL", "openai"),
        ("ANTHROPIC_BASE_URL", "anthropic"),
        ("TALLYSTICK_MODEL_URL", "local"),
    ],
)
def test_the_environment_names_an_address_over_every_file(
    world: World, variable: str, name: str
) -> None:
    world.user(f"[providers.{name}]\nbase_url = 'http://file.lan/v1'")

    found = world.load(**{variable: "http://127.0.0.1:9/v1/"})

    assert found.providers[name].base_url == "http://127.0.0.1:9/v1"
    assert listed(found)[f"providers.{name}.base_url"].source == f"environment {variable}"


def test_an_address_only_other_tools_can_use_is_an_error_for_who_asks_there(world: World) -> None:
    found = world.load(OPENAI_BASE_URL="unix:/run/socket")

    assert listed(found)["providers.openai.base_url"].value == "cannot be used"
    assert found.providers["openai"].fault.startswith("OPENAI_BASE_URL: must be an http")


def test_a_trusted_projects_alias_comes_before_the_users(world: World) -> None:
    world.user("[aliases]\nfast = 'openai:user'\nmine = 'openai:mine'")
    world.says("[aliases]\nfast = 'openai:project'", trusted=True)

    found = world.load()

    assert found.aliases == {"fast": "openai:project", "mine": "openai:mine"}
    assert listed(found)["aliases.fast"].source == str(world.project_file)
    assert listed(found)["aliases.mine"].source == str(world.user_file)


def test_every_value_is_listed_with_a_name_of_its_own(world: World) -> None:
    names = [each.name for each in world.load().listed()]

    assert len(names) == len(set(names))
    assert {*SETTINGS, "cache", "data", "user_file", "project_file"} <= set(names)
    assert "providers.openai.key" in names


def test_the_directories_are_listed_with_what_set_them(world: World) -> None:
    found = listed(world.load(TALLYSTICK_DATA_DIR="/d", XDG_CACHE_HOME="/c"))

    assert (found["data"].value, found["data"].source) == ("/d", "environment TALLYSTICK_DATA_DIR")
    assert found["cache"].source == "environment XDG_CACHE_HOME"


def test_a_relative_directory_that_is_ignored_is_not_listed_as_the_source(world: World) -> None:
    found = listed(world.load(XDG_CACHE_HOME="relative"))

    assert found["cache"].value == str(world.home / ".cache" / "tallystick")
    assert found["cache"].source == "default"


def test_settings_that_are_shown_whole_hold_no_key(world: World) -> None:
    key = "sk-not-to-be-seen"
    found = world.load(OPENAI_API_KEY=key)

    assert key not in repr(found.origins)
    assert listed(found)["providers.openai.key"].value == "set (OPENAI_API_KEY)"
