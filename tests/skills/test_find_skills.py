"""`find_skills`: a Python caller has the layers of the command line, and its evidence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from tests.skills.skill_runs import make_skill
from tests.skills.test_skill_trust import Home

from tallystick.cli.main import cli
from tallystick.client import Session
from tallystick.core.errors import RunNotFound, UsageError
from tallystick.ledger.memory import MemoryLedger
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.settings import load_settings
from tallystick.skills import (
    Evidence,
    Skills,
    evidence_of_run,
    find_skills,
    fit_catalog,
    reference_catalog,
    why_here,
    why_in_run,
)
from tallystick.testing.models import ModelDouble, block
from tallystick.testing.sandbox import PlainSandbox


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home and a project, which this process is in."""
    for name in [each for each in os.environ if each.startswith(("TALLYSTICK_", "XDG_"))]:
        monkeypatch.delenv(name)
    made = Home(tmp_path)
    (made.project / ".git").mkdir()
    monkeypatch.setenv("HOME", str(made.path))
    monkeypatch.chdir(made.project)
    return made


@pytest.fixture
def sandbox(tmp_path: Path) -> WasmSandbox:
    return cast(WasmSandbox, PlainSandbox(output_directory=tmp_path))


def listed(*words: str) -> list[tuple[str, str]]:
    """The id and layer of what `tally skills` calls usable."""
    result = CliRunner().invoke(cli, ["skills", "list", "--json", *words], standalone_mode=False)
    assert result.exception is None, result.exception
    rows = json.loads(result.stdout)["skills"]
    return sorted((each["id"], each["layer"]) for each in rows if each["state"] == "ok")


def found(skills: Skills | None) -> list[tuple[str, str]]:
    return [] if skills is None else [(each.id, each.layer) for each in skills.registry.skills]


def test_every_layer_is_that_of_the_command_line(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "site" / "shipped"
    make_skill(package / "skills", "from-package")
    monkeypatch.setattr("tallystick.skills.places._site_directories", lambda: [str(package.parent)])
    (package.parent / "shipped-1.dist-info").mkdir()
    (package.parent / "shipped-1.dist-info" / "entry_points.txt").write_text(
        "[tallystick.skills]\nskills = shipped\n"
    )
    monkeypatch.setenv("TALLYSTICK_SKILLS", str(home.path / "env"))
    config = home.path / ".config" / "tallystick" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('skills_paths = ["~/conf"]\nskills_budget = 777\n')
    for place in ("env", "conf", ".agents/skills", "code/project/.agents/skills"):
        home.skill(f"{place}/from-{place.partition('/')[0].strip('.')}")
        # Of each id, the highest layer counts.
        home.skill(f"{place}/shared")
    home.note(home.project / ".agents/skills/from-code")
    home.skill("code/project/.agents/skills/waiting")
    said: list[str] = []

    skills = find_skills(say=said.append)

    assert (
        found(skills)
        == listed()
        == [
            ("from-agents", "user"),
            ("from-code", "project"),
            ("from-conf", "config"),
            ("from-env", "environment"),
            ("from-package", "package"),
            ("shared", "environment"),
        ]
    )
    assert skills is not None
    assert skills.budget_chars == 777
    assert said == ["1 skill that was found is not used (waiting); tally skills list says why"]


def test_directories_of_the_caller_come_first(home: Home) -> None:
    home.skill(".agents/skills/shared")
    home.skill("mine/shared")

    assert found(find_skills(home.path / "mine")) == [("shared", "flag")]
    assert found(find_skills(str(home.path / "mine"))) == [("shared", "flag")]
    assert found(find_skills()) == [("shared", "user")]
    with pytest.raises(UsageError, match="nosuch: there is no such directory"):
        find_skills("nosuch")


def test_settings_and_pins_of_the_caller_are_used(home: Home) -> None:
    home.skill(".agents/skills/alpha")
    home.skill(".agents/skills/omega")
    home.skill("conf/added")
    file = home.path / "own.toml"
    file.write_text('skills_paths = ["~/conf"]\n')
    settings = load_settings(environ={"TALLYSTICK_CONFIG": str(file), "HOME": str(home.path)})

    assert found(find_skills(settings=settings))[0] == ("added", "config")
    assert found(find_skills())[0] == ("alpha", "user")
    for pinned, order in (((), ["alpha", "omega"]), (("omega",), ["omega", "alpha"])):
        skills = find_skills(pinned=pinned)
        assert skills is not None
        catalog = fit_catalog(skills.registry.cards(), budget_chars=2_000, pinned=skills.pinned)
        assert list(catalog.evidence.order) == order


def test_without_any_skill_there_is_nothing_to_give_to_a_session(
    home: Home, sandbox: WasmSandbox
) -> None:
    assert find_skills() is None
    home.skill("code/project/.agents/skills/untrusted")
    assert find_skills() is None


def test_a_run_with_them_has_evidence_that_a_caller_reads(home: Home, sandbox: WasmSandbox) -> None:
    home.skill(".agents/skills/deploy")
    home.skill(".agents/skills/by-hand", "disable-model-invocation: true\n")
    model = ModelDouble([block("print(skills.load('deploy'))"), block("FINAL(1)")])
    session = Session(
        model=model, ledger=MemoryLedger(), sandbox=sandbox, skills=find_skills(), config=None
    )
    run = session.run("roll it out")

    shown = evidence_of_run(session, run.run)

    assert all(isinstance(each, Evidence) for each in shown)
    assert [[card.lifecycle for card in each.cards] for each in shown] == [
        ["omitted", "shown"],
        ["omitted", "loaded"],
    ]
    assert evidence_of_run(session, "last") == shown
    assert "a program loaded it in turn 1" in why_in_run(session, run.run, "deploy").sentence
    assert "was not listed" in why_in_run(session, "last", "by-hand").sentence
    with pytest.raises(RunNotFound):
        evidence_of_run(session, "01ARZ3NDEKTSV4RRFFQ69G5FAV")


def test_a_run_without_skills_has_no_evidence(home: Home, sandbox: WasmSandbox) -> None:
    session = Session(model=ModelDouble("yes"), ledger=MemoryLedger(), sandbox=sandbox, config=None)
    run = session.run("is it?")

    assert evidence_of_run(session, run.run) == ()
    assert "was given no skills" in why_in_run(session, run.run, "deploy").sentence


def test_a_caller_prints_both_catalogs(home: Home) -> None:
    home.skill(".agents/skills/deploy", "argument-hint: '[`env`]'\n")
    skills = find_skills()
    assert skills is not None
    cards = skills.registry.cards()

    assert "## Available skills" in reference_catalog(cards).rendered
    assert "- `deploy`: Does deploy." in reference_catalog(cards).rendered
    # Other hosts print no hint, and ours cannot end the markup around it.
    assert "[" not in reference_catalog(cards).rendered.partition("deploy")[2]
    ours = fit_catalog(cards, budget_chars=2_000).rendered
    assert "- `deploy`: Does deploy.\n  arguments: ['env']" in ours
    assert "deploy (user) is listed in full" in why_here(skills, "deploy").sentence


@pytest.mark.parametrize("hint", ["", "[file]", "<a> <b>"])
def test_the_hint_about_arguments_is_shown_to_models(
    home: Home, sandbox: WasmSandbox, hint: str
) -> None:
    head = f"argument-hint: '{hint}'\n" if hint else ""
    home.skill(".agents/skills/deploy", head)
    model = ModelDouble([block("FINAL(skills.search('')[0].get('arguments'))")])
    session = Session(
        model=model, ledger=MemoryLedger(), sandbox=sandbox, skills=find_skills(), config=None
    )

    run = session.run("deploy")

    assert run.answer == (hint or "null")
    shown = hint.replace("<", "&lt;")
    assert (f"\n  arguments: {shown}\n" in model.prompts[0]) is bool(hint)
    assert session.replay(run.run).held
