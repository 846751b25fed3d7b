"""What a session reads of the configuration: what the command line reads. Arguments win."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.host_call_sandbox import HostCallSandbox, calling

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.errors import UsageError
from tallystick.core.records import RunStarted, decode_record, encode_record
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.runs.history import records_of
from tallystick.settings.client import ClientSettings
from tallystick.settings.files import config_directory, read_config
from tallystick.settings.settings import load_settings
from tallystick.settings.trust import TrustStore
from tallystick.testing.models import PRICING, ModelDouble, by_prompt

PRICE = '[prices."fake:*"]\ninput = 1\noutput = 4\n'


class Home:
    """A user's home, and a project in it in which the tests run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.user_file = path / ".config" / "tallystick" / "config.toml"
        self.project_file = path / "project" / "tallystick.toml"

    def user(self, text: str) -> None:
        self.user_file.write_text(text, encoding="utf-8")

    def project(self, text: str, *, trusted: bool = True) -> None:
        self.project_file.write_text(text, encoding="utf-8")
        if trusted:
            store = TrustStore(config_directory({"HOME": str(self.path)}))
            store.trust(read_config(self.project_file))

    def replies(self, name: str = "replies.jsonl") -> Path:
        path = self.path / name
        path.write_text(json.dumps({"text": calling([], answer=f"of {name}")}), encoding="utf-8")
        return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    made = Home(tmp_path)
    made.user_file.parent.mkdir(parents=True)
    made.project_file.parent.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(made.project_file.parent)
    return made


def session(**given: Any) -> Session:
    return Session(**{"ledger": MemoryLedger(), "sandbox": HostCallSandbox(), **given})


def answers() -> ScriptedModel:
    return ScriptedModel([ScriptedReply(text=calling([], answer="it"))])


def start(ledger: Ledger, run: str) -> RunStarted:
    started = next(iter(records_of(ledger, run)))
    assert isinstance(started, RunStarted)
    return started


def started(run: Mapping[str, Any] | None = None, **given: Any) -> RunStarted:
    """The first record of a run with a model that answers at once."""
    with session(**{"model": answers(), **given}) as made:
        return start(made.ledger, made.run("?", **(run or {})).run)


# -- what is read --------------------------------------------------------------------------------


def test_the_model_and_an_alias_come_from_the_configuration(home: Home) -> None:
    home.user(f'model = "mine"\n[aliases]\nmine = "scripted:{home.replies()}"\n')

    with session() as made:
        assert made.run("?").answer == "of replies.jsonl"


def test_limits_strategy_and_temperature_come_from_the_configuration(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.user("max_turns = 7\nmax_usd = 0.5\ntemperature = 0.25\ncompact_at = 9000\n")
    home.project("max_tokens = 50000\n")
    monkeypatch.setenv("TALLYSTICK_TIMEOUT", "12")

    found = started()

    settings = load_settings()
    assert found.limits == settings.limits
    assert (found.limits.turns, found.limits.tokens, found.limits.usd) == (7, 50_000, 500_000_000)
    assert (found.temperature, found.compact_at) == (0.25, 9_000)


def test_a_configured_cap_and_price_stop_a_run_from_python(home: Home) -> None:
    home.user(f"max_usd = 0.003\nreply_tokens = 200\nmax_tokens = 10000000\n{PRICE}")
    model = ModelDouble(by_prompt(lambda prompt: calling([], note=str(len(prompt)))))

    with session(model=model) as made:
        ended = made.run("?")

    assert ended.stop == "budget"
    assert 0 < model.billed <= nano_usd("0.003")


def test_a_configured_total_binds_python_and_is_recorded(home: Home) -> None:
    home.user(f"total_usd = 0.003\n{PRICE}")
    model = ModelDouble(calling([], answer="it"))
    limits = RunLimits(reply_tokens=200)
    with SqliteLedger(home.path / "ledger.db") as ledger:
        for _ in range(12):
            with session(model=model, ledger=ledger) as made:
                last = made.run("?", limits=limits, strategy="code")
        with session(model=model, ledger=ledger, config=None, pricing=PRICING) as made:
            without = made.run("?", limits=limits, strategy="code")

    assert (last.stop, without.stop) == ("budget", "budget")
    assert 0 < model.billed <= nano_usd("0.003")


def test_a_configured_total_caps_a_session_whose_ledger_is_in_memory(home: Home) -> None:
    home.user(f"total_usd = 0.003\n{PRICE}")
    model = ModelDouble(calling([], answer="it"))
    limits = RunLimits(reply_tokens=200)

    with session(model=model) as made:
        ends = [made.run("?", limits=limits, strategy="code").stop for _ in range(12)]

    assert ends[0] == "answered"
    assert ends[-1] == "budget"
    assert 0 < model.billed <= nano_usd("0.003")


def test_a_broken_configuration_is_said_and_nothing_is_asked(home: Home) -> None:
    home.user("max_turn = 5\n")
    model = answers()

    with session(model=model) as made, pytest.raises(UsageError, match="did you mean max_turns"):
        made.run("?")


# -- whose word counts ---------------------------------------------------------------------------


def test_arguments_win_over_all(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.user('model = "scripted:nowhere"\nmax_turns = 3\nstrategy = "recursive"\nmax_usd = 0.01\n')
    home.project("temperature = 1.5\n")
    monkeypatch.setenv("TALLYSTICK_MAX_TOKENS", "4000")
    limits = RunLimits(turns=50, tokens=200_000, usd=nano_usd(2))

    found = started({"limits": limits, "strategy": "code", "temperature": 0.5, "compact_at": 0})

    assert found.limits == limits
    assert (found.strategy, found.temperature, found.compact_at) == ("code", 0.5, 0)


def test_a_total_and_prices_that_are_given_win(home: Home) -> None:
    home.user('total_usd = 0\n[prices."fake:*"]\ninput = 1000\noutput = 1000\n')
    model = ModelDouble(calling([], answer="it"))

    with (
        SqliteLedger(home.path / "ledger.db") as ledger,
        session(model=model, ledger=ledger, total=Budget.of(usd=1), pricing=PRICING) as made,
    ):
        assert made.run("?").charge.usd == model.billed > 0


def test_what_is_not_given_of_the_limits_is_configured(home: Home) -> None:
    home.user("max_usd = 0.25\nmax_tokens = 5000\n")

    found = started({"limits": RunLimits(turns=4)}).limits

    assert (found.turns, found.tokens, found.usd) == (4, 5_000, nano_usd("0.25"))


@given(data=st.data())
def test_a_trusted_project_never_sets_a_limit_higher_than_an_argument(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = {"turns": "max_turns", "tokens": "max_tokens", "host_calls": "max_host_calls",
             "reply_tokens": "reply_tokens", "retries": "retries"}  # fmt: skip
    figures = st.integers(0, 100)
    project = data.draw(st.dictionaries(st.sampled_from([*names.values()]), figures))
    limits = RunLimits(**data.draw(st.dictionaries(st.sampled_from([*names]), figures)))
    folder = tmp_path_factory.mktemp("project")
    environ = {"HOME": str(folder)}
    file = folder / "tallystick.toml"
    file.write_text("".join(f"{name} = {value}\n" for name, value in project.items()))
    TrustStore(config_directory(environ)).trust(read_config(file))
    settings = load_settings(environ=environ, cwd=folder)
    assert project == {} or settings.project is not None

    client = ClientSettings(settings, total=None, pricing=None, say=lambda line: None)
    found = client.for_run(
        limits=limits, strategy=None, temperature=None, compact_at=None, model_given=False
    ).limits

    for field in names:
        asked = getattr(limits, field)
        assert getattr(found, field) <= asked
        if asked != getattr(RunLimits(), field):
            assert getattr(found, field) == asked


def test_a_project_that_is_not_trusted_may_lower_and_not_raise(home: Home) -> None:
    home.project("max_turns = 99\nmax_tokens = 5000\ntotal_usd = 5\n", trusted=False)
    said: list[str] = []

    found = started(say=said.append).limits

    assert (found.turns, found.tokens) == (30, 5_000)
    assert len(said) == 1
    assert "is not trusted; ignored: max_turns" in said[0]


def test_without_a_configuration_none_is_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.user("max_turn = broken\n")
    home.project("max_turns = 2\n")
    monkeypatch.setenv("TALLYSTICK_MAX_TOKENS", "17")

    found = started(config=None)

    assert found.limits == RunLimits()
    assert found.settings is msgspec.UNSET
    with session(config=None) as made, pytest.raises(UsageError, match="no model"):
        made.run("?")


def test_a_configuration_is_auto_or_none() -> None:
    with pytest.raises(UsageError, match='"auto" reads the configuration'):
        session(config="config.toml")


# -- the record ----------------------------------------------------------------------------------


def test_a_run_records_where_its_settings_came_from(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.user(f'model = "mine"\nmax_usd = 1\nmax_turns = 9\n{PRICE}'
              f'[aliases]\nmine = "scripted:{home.replies()}"\n')  # fmt: skip
    home.project("reply_tokens = 900\n")
    monkeypatch.setenv("TALLYSTICK_MAX_TOKENS", "60000")

    with session() as made:
        ended = made.run("?", limits=RunLimits(turns=5), temperature=0.5)
        found = start(made.ledger, ended.run).settings
        assert made.replay(ended.run).held

    user, project = str(home.user_file), str(home.project_file)
    assert found == {
        "aliases": user,
        "max_tokens": "environment TALLYSTICK_MAX_TOKENS",
        "max_turns": "argument",
        "max_usd": user,
        "model": user,
        "prices": user,
        "reply_tokens": project,
        "temperature": "argument",
    }


def test_a_first_record_without_settings_is_encoded_as_before() -> None:
    encoded = encode_record(started(config=None))

    assert b'"settings"' not in encoded
    assert encode_record(decode_record(encoded)) == encoded
