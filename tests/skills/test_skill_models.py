"""The `model` of a skill: which model the calls of programs ask, and what a run refuses to ask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.skills.skill_runs import answers, make_skill, outputs

from tallystick.agent.models import models_for_programs
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.records import (
    ChildBegun,
    QueryAsked,
    QueryRefused,
    Record,
    RunStarted,
    SkillLoaded,
    encode_record,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.runtime.runs.history import records_of, whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.models import recorded_name
from tallystick.settings.settings import load_settings
from tallystick.skills.errors import SkillArguments
from tallystick.skills.skills import Skills
from tallystick.testing.models import ModelDouble, block
from tallystick.testing.sandbox import PlainSandbox

NAMES = ("small", "large")


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> WasmSandbox:
    """Plain Python in the place of the sandbox: these tests are about what a run asks."""
    return cast(WasmSandbox, PlainSandbox(output_directory=tmp_path_factory.mktemp("output")))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in NAMES:
        make_skill(tmp_path, f"for-{name}", model=name)
    make_skill(tmp_path, "plain")
    make_skill(tmp_path, "inherits", model="inherit")
    make_skill(tmp_path, "unknown", model="opus")
    return tmp_path


class World:
    """A session whose root runs programs, with two more models that they may ask."""

    def __init__(self, sandbox: WasmSandbox, root: Path | None, *programs: str) -> None:
        # A child run, of whichever model, asks once more without a name.
        child = block("FINAL('child ' + llm_query('inside'))")
        self.root = ModelDouble(
            lambda call: block(programs[call.turn]) if "the root" in call.text else child,
            queries="own",
            name="fake:root",
        )
        self.others = {
            name: ModelDouble(child, queries=name, name=f"fake:{name}") for name in NAMES
        }
        self.session = Session(
            model=self.root,
            models=self.others,
            ledger=MemoryLedger(),
            sandbox=sandbox,
            skills=None if root is None else Skills.of(root),
            config=None,
        )

    def run(self, *, put: Sequence[str] = (), **more: Any) -> Run:
        return self.session.run("the root", skills=put, **more)

    def records(self, run: Run) -> list[Record]:
        return list(records_of(self.session.ledger, run.run))


def asked_models(records: Sequence[Record]) -> list[str]:
    return [each.model for each in records if isinstance(each, QueryAsked)]


@pytest.mark.parametrize("name", NAMES)
def test_calls_without_a_name_ask_the_model_of_the_loaded_skill(
    sandbox: WasmSandbox, root: Path, name: str
) -> None:
    world = World(
        sandbox, root, f"skills.load('for-{name}')\nprint(llm_query('q'))", "FINAL(llm_query('q'))"
    )
    run = world.run()
    records = world.records(run)

    # As what a skill allows, its model counts from the next program on.
    assert outputs(records)[0] == "own\n"
    assert run.answer == name
    assert asked_models(records) == ["fake:root", f"fake:{name}"]
    loaded = answers(records)[0].skill
    assert isinstance(loaded, SkillLoaded)
    assert loaded.model == f"fake:{name}"
    assert world.session.replay(run.run).held


@pytest.mark.parametrize("name", NAMES)
def test_a_skill_that_its_user_puts_first_names_the_model_from_the_start(
    sandbox: WasmSandbox, root: Path, name: str
) -> None:
    world = World(sandbox, root, "FINAL(llm_query('q'))")
    run = world.run(put=[f"for-{name}"])
    started = world.records(run)[0]

    assert run.answer == name
    assert isinstance(started, RunStarted)
    assert started.skills is not None
    assert [each.model for each in started.skills.put] == [f"fake:{name}"]
    assert world.session.replay(run.run).held


@pytest.mark.parametrize("name", NAMES)
def test_child_runs_and_their_own_calls_ask_it_too(
    sandbox: WasmSandbox, root: Path, name: str
) -> None:
    world = World(sandbox, root, f"skills.load('for-{name}')", "FINAL(rlm_query('a part'))")
    run = world.run()

    assert run.answer == f"child {name}"
    (child,) = (each.run for each in world.records(run) if isinstance(each, ChildBegun))
    inside = whole_records(world.session.ledger, child)
    assert isinstance(inside[0], RunStarted)
    assert inside[0].model == f"fake:{name}"
    assert asked_models(inside) == [f"fake:{name}"]
    assert world.session.replay(run.run).held
    assert world.session.replay(child).held


def test_models_of_one_name_are_told_apart_by_those_that_were_given_to_them(
    sandbox: WasmSandbox, root: Path
) -> None:
    world = World(sandbox, root, "skills.load('for-small')", "FINAL(rlm_query('a part'))")
    for each in world.others.values():
        each.name = world.root.name

    run = world.run()

    assert run.answer == "child small"
    assert world.session.replay(run.run).held


def test_a_name_in_the_call_counts_before_that_of_the_skill(
    sandbox: WasmSandbox, root: Path
) -> None:
    world = World(
        sandbox,
        root,
        "skills.load('for-small')",
        "FINAL([llm_query('q', model='large'), llm_query_batched(['q'])[0],\n"
        "       rlm_query('a part', model='large'), rlm_query('a part', model='fake:root')])",
    )

    assert world.run().answer == '["large","small","child large","child own"]'


def test_the_last_skill_that_names_one_counts(sandbox: WasmSandbox, root: Path) -> None:
    load = "for name in {}:\n    skills.load(name)"
    world = World(
        sandbox,
        root,
        load.format(["for-small", "for-large", "plain", "inherits"]),
        load.format(["plain", "inherits"]),
        "FINAL(llm_query('q'))",
    )

    assert world.run().answer == "large"


def test_a_sub_model_stays_for_skills_that_name_none(sandbox: WasmSandbox, root: Path) -> None:
    programs = ("skills.load('inherits')", "FINAL(llm_query('q'))")
    world = World(sandbox, root, *programs)

    assert world.run(sub_model="small").answer == "small"
    assert World(sandbox, root, *programs).run().answer == "own"
    other = World(sandbox, root, "skills.load('for-large')", "FINAL(llm_query('q'))")
    assert other.run(sub_model="small").answer == "large"


def test_a_model_that_the_run_may_not_ask_is_never_asked(sandbox: WasmSandbox, root: Path) -> None:
    asking = "try:\n    {}\nexcept HostError as error:\n    print(error.kind)\n    print(error)"
    world = World(
        sandbox,
        root,
        "print(skills.load('unknown'))",
        asking.format("llm_query('q')"),
        asking.format("rlm_query('q')"),
        "FINAL(llm_query('q', model='small'))",
    )
    run = world.run()
    records = world.records(run)

    # Its instructions are there; only the call that would ask the model is refused.
    first, query, child, _ = outputs(records)
    assert first == "Do it.\n"
    said = (
        "model 'opus' is not for programs; known are: fake:root, small, large; the skill 'unknown' "
        "names it, and a call may name another"
    )
    assert query == child == f"UnknownModel\n{said}\n"
    assert run.answer == "small"
    assert [each.message for each in records if isinstance(each, QueryRefused)] == [said, said]
    assert asked_models(records) == ["fake:small"]
    assert world.session.replay(run.run).held


def test_a_user_is_told_of_a_model_that_the_run_may_not_ask_before_anything_is_written(
    sandbox: WasmSandbox, root: Path
) -> None:
    world = World(sandbox, root, "FINAL(1)")

    with pytest.raises(SkillArguments, match=r"'unknown'.*'opus'.*known are.*--sub-model") as told:
        world.run(put=["unknown"])

    assert "\n" not in str(told.value)
    assert world.session.ledger.runs() == []
    # Named for sub-calls, it is one that the run may ask.
    world.others["opus"] = world.session.engine.models.others["opus"] = ModelDouble(
        "", name="fake:opus"
    )
    assert world.run(put=["unknown"], sub_model="opus").answer == "1"


def test_a_resumed_run_asks_the_same_model_though_its_skills_are_gone(
    sandbox: WasmSandbox, root: Path
) -> None:
    world = World(sandbox, root, "skills.load('for-large')", "print(1)", "FINAL(llm_query('q'))")
    stopped = world.run(limits=RunLimits(turns=2))
    assert stopped.stop == "max_turns"
    world.session.engine.skills = None

    resumed = world.session.resume(stopped.run, limits=RunLimits(turns=5))

    assert resumed.answer == "large"
    assert asked_models(world.records(resumed)) == ["fake:large"]


def test_a_skill_without_a_model_is_recorded_as_before(sandbox: WasmSandbox, root: Path) -> None:
    world = World(sandbox, root, "skills.load('plain')", "FINAL(1)")
    run = world.run(put=["inherits"])

    started, loaded = world.records(run)[0], answers(world.records(run))[0]
    for record, field in ((started, "put"), (loaded, "skill")):
        inside = msgspec.json.decode(encode_record(record))
        found = inside["skills"]["put"][0] if field == "put" else inside["skill"]
        assert found["id"] in ("inherits", "plain")
        assert not {"model", "by_child"} & found.keys()


# -- names -----------------------------------------------------------------------------------------


def test_a_model_is_found_by_its_own_name_by_that_given_to_it_and_by_an_alias() -> None:
    own, small = ModelDouble("", name="openai:gpt-5-mini"), ModelDouble("", name="fake:small")
    known = {"cheap": "openai:gpt-5-mini"}

    find = models_for_programs(own, {"small": small}, None, lambda name: known.get(name, name))

    assert find("small") is find("fake:small") is small
    assert find(None) is find("openai:gpt-5-mini") is find("cheap") is own
    with pytest.raises(
        UsageError, match="'opus' is not for programs; known are: openai:gpt-5-mini"
    ):
        find("opus")


def test_a_short_name_and_an_alias_have_the_name_that_a_run_records(tmp_path: Path) -> None:
    file = tmp_path / "tallystick.toml"
    file.write_text('[aliases]\nopus = "openai:gpt-5-mini"\nlocal-one = "gguf:/models/a.gguf"\n')
    settings = load_settings(environ={"TALLYSTICK_CONFIG": str(file), "HOME": str(tmp_path)})

    names = {
        "opus": "openai:gpt-5-mini",
        "gpt-5-mini": "openai:gpt-5-mini",
        "openai:gpt-5-mini": "openai:gpt-5-mini",
        "local-one": "gguf:a.gguf",
        "scripted:a.jsonl": "scripted:a.jsonl",
        "no such model": "no such model",
    }
    assert {name: recorded_name(name, settings) for name in names} == names
