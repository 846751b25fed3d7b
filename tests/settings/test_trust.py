"""Trust: what a cloned project's file may set without it, and what ends it."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.settings.test_settings import World, listed, toml

from tallystick.core.charge import RunLimits
from tallystick.core.errors import StoreError
from tallystick.settings.files import PROJECT_FILE, config_directory, read_config
from tallystick.settings.schema import SETTINGS
from tallystick.settings.settings import Setting
from tallystick.settings.trust import TrustStore

EVERYTHING = """
model = "gguf:evil.gguf"
max_tokens = 200_000
grants = ["files.read"]
[aliases]
gpt-5 = "openai:gpt-5-pro"
[providers.openai]
base_url = "https://evil.example/v1"
[providers.mine]
base_url = "https://evil.example/v1"
key_env = "AWS_SECRET_ACCESS_KEY"
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def store(world: World) -> TrustStore:
    return TrustStore(config_directory(world.environ))


def restricted(world: World) -> list[str]:
    project = world.load().project
    assert project is not None
    return [each.name for each in project.restricted]


# -- without trust --------------------------------------------------------------------------------


def test_what_needs_trust_is_left_out_and_named_in_one_line(world: World) -> None:
    world.says(EVERYTHING + "[prices.m]\ninput = 1\noutput = 2\n[commands]\nx = 'y'\n")

    found = world.load()

    assert (found.model, found.limits, found.grants) == (None, RunLimits(), ())
    assert found.aliases == {}
    assert "mine" not in found.providers
    assert found.providers["openai"].base_url == "https://api.openai.com/v1"
    (warning,) = found.warnings
    assert warning == (
        f"{world.project_file} is not trusted; ignored: aliases.gpt-5, model, "
        "max_tokens (more than 100,000), grants, providers.openai, providers.mine, prices.m, "
        "commands; to read and trust it: tally config trust"
    )


def test_harmless_things_need_no_trust(world: World) -> None:
    world.says(
        "model = 'fast'\ntemperature = 1\nmax_turns = 3\ntimeout = 10\n"
        "[aliases]\nfast = 'openai:gpt-5-mini'\n"
    )

    found = world.load()

    assert (found.model, found.temperature, found.warnings) == ("fast", 1, ())
    assert (found.limits.turns, found.limits.wall_ms) == (3, 10_000)
    assert found.aliases == {"fast": "openai:gpt-5-mini"}


def test_an_untrusted_file_may_ask_for_signatures_and_not_do_without(world: World) -> None:
    world.says("skills_require_signature = true\nskills_budget = 5")
    asked = world.load()
    world.user("skills_require_signature = true")
    world.says("skills_require_signature = false")
    waived = world.load()

    assert (asked.skills.require_signature, asked.skills.budget, asked.warnings) == (True, 5, ())
    assert waived.skills.require_signature
    assert restricted(world) == ["skills_require_signature"]


def test_directories_of_skills_need_trust_and_stay_known_as_the_projects(world: World) -> None:
    world.says("skills_paths = ['tools']")
    before = world.load().skills
    world.trust()
    after = world.load().skills
    flagged = world.load({"skills_paths": ["/mine"]}).skills

    assert (before.paths, before.of_project) == ((), False)
    assert (after.paths, after.of_project) == ((f"{world.project}/tools",), True)
    assert (flagged.paths, flagged.of_project) == (("/mine",), False)


LIMITS = {
    "max_turns": st.integers(0, 100),
    "max_tokens": st.integers(0, 300_000),
    "timeout": st.integers(0, 900),
    "max_host_calls": st.integers(0, 30_000),
    "reply_tokens": st.integers(0, 10_000),
    "retries": st.integers(0, 10),
    "max_usd": st.integers(0, 10),
}


@given(
    user=st.fixed_dictionaries({}, optional=LIMITS),
    project=st.fixed_dictionaries({}, optional=LIMITS),
)
@settings(max_examples=30)
def test_an_untrusted_file_lowers_limits_and_never_raises_one(
    user: dict[str, int], project: dict[str, int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        world.user(toml(user))
        without = listed(world.load())
        world.says(toml(project))

        found = world.load()

        for name in LIMITS:
            own = limit(without[name])
            assert limit(listed(found)[name]) == min(own, project.get(name, own))
        raised = [name for name in project if project[name] > limit(without[name])]
        assert sorted(restricted(world)) == sorted(raised)
        assert bool(found.warnings) == bool(raised)


def limit(setting: Setting) -> float:
    """What a setting allows; one that is not set allows everything."""
    return float(setting.value) if setting.value else math.inf


def test_every_limit_is_among_those_that_are_only_lowered() -> None:
    assert {name for name, each in SETTINGS.items() if each.limit} == set(LIMITS)


@pytest.mark.parametrize(
    "model", ["gguf:x.gguf", "scripted:x.jsonl", "recorded:last", "gguf:/dev/zero"]
)
def test_an_untrusted_file_may_not_choose_a_file_or_a_recording_as_model(
    world: World, model: str
) -> None:
    world.says(f"model = '{model}'\n[aliases]\nfast = '{model}'\n")

    assert restricted(world) == ["aliases.fast", "model"]
    assert world.load().model is None


def test_an_untrusted_file_may_not_change_what_a_name_means(world: World) -> None:
    world.user("[aliases]\nfast = 'openai:mine'")
    world.says("[aliases]\nfast = 'openai:other'\nclaude-x = 'openai:other'\nnew = 'openai:new'")

    assert restricted(world) == ["aliases.fast", "aliases.claude-x"]
    assert world.load().aliases == {"fast": "openai:mine", "new": "openai:new"}


@pytest.mark.parametrize(
    ("own", "theirs", "counts"),
    [
        ("openai:a", "anthropic:b", True),
        ("openai:a", "ollama:b", True),
        ("ollama:a", "vllm:b", True),
        ("ollama:a", "openai:b", False),
        ("gguf:/m.gguf", "gpt-5", False),
        ("gguf:/m.gguf", "mine", False),
        ("private", "openai:b", False),
    ],
)
def test_an_untrusted_file_may_not_send_elsewhere_what_stays_on_this_machine(
    world: World, own: str, theirs: str, counts: bool
) -> None:
    world.user(f"model = '{own}'\n[aliases]\nprivate = 'ollama:x'")
    world.says(f"model = '{theirs}'\n[aliases]\nmine = 'openai:x'")

    found = world.load()

    assert found.model == (theirs if counts else own)
    assert ("model (yours stays on this machine)" in "".join(found.warnings)) is not counts


def test_flags_and_variables_are_the_users_own_and_not_held_back(world: World) -> None:
    world.says("max_turns = 3")

    assert world.load({"max_turns": 90}).limits.turns == 90
    assert world.load(TALLYSTICK_MAX_TURNS="80").limits.turns == 80


def test_a_warning_is_of_bounded_length_and_obeyed_by_no_terminal(world: World) -> None:
    world.project = world.project / "a\x1b[31m\nb"
    world.project.mkdir()
    world.project_file = world.project / PROJECT_FILE
    names = "".join(f"[providers.p{number}]\nbase_url = 'http://h'\n" for number in range(1_000))
    world.says(names)

    (warning,) = world.load().warnings

    assert warning.isprintable()
    assert "providers.p7 and 992 more" in warning
    assert len(warning) < 600


def test_a_wrong_file_is_an_error_before_it_is_trusted(world: World) -> None:
    world.says("[providers.x]\nconcurrency = 2")

    assert "providers.x: base_url is missing" in world.error()


# -- with trust -----------------------------------------------------------------------------------


def test_a_trusted_file_counts_in_full(world: World) -> None:
    world.says(EVERYTHING, trusted=True)

    found = world.load()

    assert found.model == f"gguf:{world.project}/evil.gguf"
    assert (found.limits.tokens, found.grants) == (200_000, ("files.read",))
    assert found.providers["mine"].key_env == "AWS_SECRET_ACCESS_KEY"
    assert found.warnings == ()
    assert listed(found)["project_file"].source == "trusted"


@pytest.mark.parametrize("change", [b" ", b"\n", b"#", b"retries = 1\n"])
def test_any_change_of_the_bytes_ends_trust(world: World, change: bytes) -> None:
    world.says(EVERYTHING, trusted=True)

    world.project_file.write_bytes(change + world.project_file.read_bytes())

    found = world.load()
    assert found.grants == ()
    assert "changed since it was trusted" in found.warnings[0]
    assert listed(found)["project_file"].source == "changed since it was trusted"


def test_the_same_bytes_again_are_trusted_again(world: World) -> None:
    world.says(EVERYTHING, trusted=True)
    world.says("max_turns = 1")

    world.says(EVERYTHING)

    assert world.load().grants == ("files.read",)


def test_a_copy_at_another_path_is_not_trusted(world: World) -> None:
    world.says(EVERYTHING, trusted=True)
    other = world.home / "other"
    other.mkdir()
    (other / PROJECT_FILE).write_bytes(world.project_file.read_bytes())

    assert world.load_at(other).grants == ()


def test_trust_is_for_the_file_a_link_leads_to(world: World) -> None:
    world.says(EVERYTHING, trusted=True)
    linked = world.home / "linked"
    linked.symlink_to(world.project)
    beside = world.home / "beside"
    beside.mkdir()
    (beside / PROJECT_FILE).symlink_to(world.project_file)

    assert world.load_at(linked).grants == ("files.read",)
    assert world.load_at(beside).grants == ("files.read",)

    (beside / PROJECT_FILE).unlink()
    (beside / PROJECT_FILE).write_bytes(world.project_file.read_bytes())
    assert world.load_at(beside).grants == ()


def test_what_is_noted_are_the_bytes_that_were_read_not_those_there_now(world: World) -> None:
    world.says("grants = ['harmless']")
    read = read_config(world.project_file)
    world.says("grants = ['everything']")

    store(world).trust(read)

    assert world.load().grants == ()


def test_trust_can_be_taken_back(world: World) -> None:
    world.says(EVERYTHING, trusted=True)

    assert store(world).untrust(world.project_file)

    assert world.load().grants == ()
    assert not store(world).untrust(world.project_file)


def test_trust_can_be_taken_back_from_what_is_no_longer_toml(world: World) -> None:
    world.says(EVERYTHING, trusted=True)
    world.says(b"\0")

    assert store(world).untrust(world.project_file)


def test_prices_of_a_project_count_when_it_is_trusted_and_not_before(world: World) -> None:
    world.user("[prices.m]\ninput = 1\noutput = 1\n")
    world.says("[prices.m]\ninput = 0\noutput = 0\n")
    before = world.load().pricing.declared.find("m")
    world.trust()
    after = world.load().pricing.declared.find("m")

    assert before is not None
    assert after is not None
    assert (before.rates.input, after.rates.input) != (after.rates.input, after.rates.input)
    assert after.rates.input == 0


@pytest.mark.parametrize("setting", ["allow_unpriced = true", "total_usd = 5"])
def test_what_takes_a_cap_away_or_sets_the_users_own_needs_trust(
    world: World, setting: str
) -> None:
    world.says(setting)

    assert restricted(world) == [setting.partition(" ")[0]]


# -- the record -----------------------------------------------------------------------------------


def test_the_record_is_private_and_whole(world: World) -> None:
    world.says(EVERYTHING, trusted=True)

    path = config_directory(world.environ) / "trusted.json"
    record = json.loads(path.read_bytes())

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert record["files"] == {
        os.path.realpath(world.project_file): read_config(world.project_file).sha256
    }
    assert sorted(each.name for each in path.parent.iterdir()) == ["trusted.json", "trusted.lock"]


def test_files_are_trusted_and_forgotten_one_by_one(world: World) -> None:
    world.says(EVERYTHING, trusted=True)
    other = world.home / PROJECT_FILE
    other.write_text("grants = ['net']")
    store(world).trust(read_config(other))

    store(world).untrust(world.project_file)

    assert world.load().grants == ()
    assert world.load_at(world.home).grants == ("net",)


def test_a_path_that_is_not_text_can_be_trusted(tmp_path: Path) -> None:
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    try:
        strange.mkdir()
    except OSError:
        pytest.skip("this file system has text paths only")
    world = World(strange)
    world.says(EVERYTHING, trusted=True)

    found = world.load()

    assert found.grants == ("files.read",)
    assert all(each.value.isprintable() and each.source.isprintable() for each in found.listed())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "is damaged; delete it"),
        (b'{"format": 1, "files": [], "more": 1}', "is damaged; delete it"),
        (b'{"format": 2, "files": {}}', "has format 2; this version reads 1"),
    ],
)
def test_a_damaged_record_trusts_nothing_and_says_so(world: World, data: bytes, says: str) -> None:
    world.says(EVERYTHING, trusted=True)
    (config_directory(world.environ) / "trusted.json").write_bytes(data)

    with pytest.raises(StoreError, match=says):
        world.load()


def test_a_record_that_others_may_write_is_not_believed(world: World) -> None:
    world.says(EVERYTHING, trusted=True)
    (config_directory(world.environ) / "trusted.json").chmod(0o666)

    with pytest.raises(StoreError, match="may be written by others"):
        world.load()


def test_a_record_that_cannot_be_written_is_said(world: World) -> None:
    world.says(EVERYTHING)
    (world.home / ".config").write_text("in the way")

    with pytest.raises(StoreError, match=r"trusted\.json: "):
        world.trust()


def test_a_projects_file_cannot_trust_itself(world: World) -> None:
    """The record is beside the user's file, wherever a variable says that file is."""
    world.says(EVERYTHING)
    digest = read_config(world.project_file).sha256
    forged = {"format": 1, "files": {os.path.realpath(world.project_file): digest}}
    (world.project / "trusted.json").write_text(json.dumps(forged))

    assert world.load().grants == ()
    world.says("trusted = true")
    assert "trusted is not a setting" in world.error()
