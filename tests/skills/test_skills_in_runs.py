"""Skills in runs: what programs find, load, read and run, and what is recorded of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.runtime.run.cut_runs import played, without_time
from tests.skills.skill_runs import answers, asked, make_skill, outputs, play_with

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.prompt import opening
from tallystick.core.machine.state import SkillState
from tallystick.core.records import (
    CallHost,
    HostAnswered,
    ModelReplied,
    ProgramFinished,
    RunStarted,
    SkillLoaded,
    SkillMatched,
    SkillUsed,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.calls.functions import host_function
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.skills import skills as runtime_skills
from tallystick.skills.catalog import Catalog, fit_catalog
from tallystick.skills.errors import SkillArguments, SkillNotFound
from tallystick.skills.format.bundle import bundle_of
from tallystick.skills.skills import Skills, evidence_of, read_evidence, recorded_cards
from tallystick.skills.why import SkillDrift, why_in_run
from tallystick.testing.ledgers import LastingAttachments
from tallystick.testing.models import block
from tallystick.testing.plans import program
from tallystick.testing.runs import Played

pytestmark = pytest.mark.slow

CALC = """\
import sys
from beside import more

def total(rows, plus=0):
    return {"total": sum(rows) + plus}

if __name__ == "__main__":
    print(more(int(sys.argv[1])), sys.stdin.read(), open("rates.csv").read().strip())
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "skills"
    make_skill(
        made,
        "shelf-codes",
        body="Add $1 to the code. The folder is ${TALLYSTICK_SKILL_DIR}, home ${HOME}.\n",
        description="Turn warehouse codes into shelf numbers.",
        files={
            "rates.csv": "a,1\n",
            "logo.png": b"\x89PNG\xff\x00",
            "scripts/calc.py": CALC,
            "scripts/beside.py": "def more(n):\n    return n + 7\n",
        },
    )
    make_skill(made, "by-hand", body="Only by hand.\n", disable_model_invocation="true")
    return made


@pytest.fixture
def skills(root: Path) -> Skills:
    return Skills.of(root)


def evidences(run: Played) -> list[msgspec.Struct]:
    run_attachments = run.session.attachments_of(run.records)
    return [
        read_evidence(each.evidence, run_attachments)
        for each in asked(run.records)
        if each.evidence is not None
    ]


# -- loading and reading -----------------------------------------------------------------------


def test_a_program_loads_a_skill_and_the_model_sees_its_instructions_whole(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    long = "".join(f"Step {n}: do what step {n} says.\n" for n in range(300))
    make_skill(tmp_path, "long-one", body=long)
    run = play_with(sandbox, Skills.of(tmp_path), "text = skills.load('long-one')", "FINAL(1)")

    assert run.run.answer == "1"
    touched = answers(run.records)[0].skill
    assert isinstance(touched, SkillLoaded)
    assert touched.id == "long-one"
    # Without a print, and far beyond what is shown of an output.
    second = run.session.replay(run.run.run)
    assert second.held, second.divergence
    assert "Step 299: do what step 299 says." in _prompt_after(run, 1)


def _prompt_after(run: Played, programs: int) -> str:
    """What the last message of the request says after so many programs."""
    started = run.records[0]
    assert isinstance(started, RunStarted)
    state, _ = begin(started)
    for record in run.records[1:]:
        if programs and isinstance(record, ModelReplied | HostAnswered | ProgramFinished):
            state, _ = advance(state, record)
            programs -= isinstance(record, ProgramFinished)
    return state.messages[-1].text


def test_printed_instructions_are_not_told_twice(sandbox: WasmSandbox, skills: Skills) -> None:
    run = play_with(sandbox, skills, "print(skills.load('shelf-codes', 5))", "FINAL(1)")

    assert _prompt_after(run, 1).count("Add 5 to the code.") == 1


def test_arguments_are_put_in_and_nothing_of_the_environment_is(
    sandbox: WasmSandbox, skills: Skills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/secret-user")
    run = play_with(sandbox, skills, "print(skills.load('shelf-codes', 5))", "FINAL(1)")

    said = outputs(run.records)[0]
    assert "Add 5 to the code. The folder is shelf-codes, home ${HOME}." in said


def test_files_are_read_as_text_or_bytes_and_only_inside(
    sandbox: WasmSandbox, skills: Skills, tmp_path: Path
) -> None:
    (tmp_path / "secret.txt").write_text("the secret")
    run = play_with(
        sandbox,
        skills,
        "print(repr(skills.read('shelf-codes', 'rates.csv')))",
        "print(type(skills.read('shelf-codes', 'logo.png')))",
        "for path in ['../../secret.txt', '/etc/passwd', 'scripts/../../by-hand/SKILL.md', '']:\n"
        "    try:\n        print(skills.read('shelf-codes', path))\n"
        "    except Exception as error:\n        print('refused', error)",
        "FINAL(1)",
    )

    read, kind, refused, _ = outputs(run.records)
    assert read == "'a,1\\n'\n"
    assert kind == "<class 'bytes'>\n"
    assert refused.count("refused") == 4
    assert "the secret" not in refused
    assert "Only by hand" not in refused
    used = [each.skill for each in answers(run.records) if each.skill is not None]
    assert [each.what for each in used if isinstance(each, SkillUsed)] == ["rates.csv", "logo.png"]


@pytest.mark.parametrize(
    "call",
    [
        "skills.load('by-hand')",
        "skills.read('by-hand', 'SKILL.md')",
        "skills.run('by-hand', 'x.py')",
        "skills.load('nothing-like-it')",
        "skills.load(5)",
        "skills.load()",
        "skills.search(5)",
        "skills.search('x', k=0)",
        "skills.search('x', k=True)",
        "skills.read('shelf-codes', 'gone.txt')",
        "skills.read('shelf-codes', None)",
        "skills.run('shelf-codes', 'rates.csv')",
        "skills.run('shelf-codes', '../calc.py')",
        "skills.call('shelf-codes', 'scripts/calc.py')",
        "skills.call('shelf-codes', 'scripts/calc.py:nothing')",
        "skills.call('shelf-codes', ':total')",
        "skills.run('shelf-codes', 'scripts/calc.py', stdin=5)",
    ],
)
def test_what_cannot_be_done_is_told_and_touches_nothing(
    call: str, sandbox: WasmSandbox, skills: Skills
) -> None:
    run = play_with(sandbox, skills, f"print({call})", "FINAL(1)")

    assert run.run.answer == "1"
    assert outputs(run.records)[0].strip()
    assert not answers(run.records)[0].ok
    assert run.replayed().held


def test_a_disabled_skill_is_neither_found_nor_listed_but_its_user_loads_it(
    sandbox: WasmSandbox, skills: Skills
) -> None:
    run = play_with(
        sandbox, skills, "print([each['id'] for each in skills.search('')])", "FINAL(1)"
    )
    put = play_with(sandbox, skills, "FINAL(2)", put=["by-hand"])

    assert outputs(run.records)[0] == "['shelf-codes']\n"
    started = put.records[0]
    assert isinstance(started, RunStarted)
    assert "by-hand" not in opening(started)[0].text
    assert "Only by hand." in opening(started)[1].text
    assert put.replayed().held


def test_a_user_names_a_skill_that_is_not_there_and_nothing_is_begun(
    sandbox: WasmSandbox, skills: Skills
) -> None:
    for asked_for, error in (("nope", SkillNotFound), ("'", SkillArguments)):
        with pytest.raises(error):
            play_with(sandbox, skills, "FINAL(2)", put=[asked_for])
    with pytest.raises(UsageError, match="no skills"):
        play_with(sandbox, None, "FINAL(2)", put=["by-hand"])


# -- scripts -----------------------------------------------------------------------------------


def test_a_script_runs_by_itself_with_arguments_input_and_its_own_files(
    sandbox: WasmSandbox, skills: Skills
) -> None:
    run = play_with(
        sandbox,
        skills,
        "secret = 'of the run'\n"
        "print(skills.run('shelf-codes', 'scripts/calc.py', 5, stdin='given'))",
        "print(skills.call('shelf-codes', 'scripts/calc.py:total', [1, 2], plus=4))",
        "FINAL(1)",
    )

    first, second, _ = outputs(run.records)
    assert first == "{'stdout': '12 given a,1\\n', 'stderr': '', 'exit': 0}\n"
    assert second == "{'total': 7}\n"
    used = [each.skill for each in answers(run.records)]
    assert [each.said for each in used if isinstance(each, SkillUsed)] == [
        "script scripts/calc.py",
        "function scripts/calc.py:total",
    ]
    assert all(isinstance(each, SkillUsed) and each.fuel > 0 for each in used)
    assert run.replayed().held


@pytest.mark.parametrize(
    ("source", "stdout", "exit_code"),
    [
        ("import sys\nprint('a')\nsys.exit(3)", "a\n", 3),
        ("raise ValueError('no')", "", 1),
        ("import sys\nsys.exit('why')", "", 1),
        ("print(secret)", "", 1),
        ("print(skills)", "", 1),
        ("print(llm_query('x'))", "", 1),
        ("FINAL(5)", "", 1),
        ("import socket\nsocket.create_connection(('127.0.0.1', 1))", "", 1),
        ("open('/etc/passwd')", "", 1),
        ("this is no Python", "", 1),
    ],
)
def test_a_script_has_nothing_of_the_run(
    source: str, stdout: str, exit_code: int, sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "odd", files={"run.py": source})
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "secret = 'of the run'\nresult = skills.run('odd', 'run.py')\n"
        "print(result['stdout'], end='')\nprint(result['exit'])",
        "FINAL(1)",
    )

    assert outputs(run.records)[0] == f"{stdout}{exit_code}\n"


def test_a_script_calls_only_what_its_skill_names(sandbox: WasmSandbox, tmp_path: Path) -> None:
    sent: list[object] = []

    @host_function(policy="effect")
    def send(what: object) -> int:
        sent.append(what)
        return len(sent)

    @host_function(policy="read", needs="mail")
    def fetch() -> str:
        return "mail"

    @host_function(policy="read", name="box.open")
    def box() -> str:
        return "opened"

    source = """\
for call in ("send(1)", "fetch()", "box.open()"):
    try:
        print(eval(call))
    except NameError:
        print("-")
"""
    for name, tools in (("none", None), ("named", "send fetch"), ("group", "namespace:box")):
        fields = {} if tools is None else {"allowed_tools": tools}
        make_skill(tmp_path, name, files={"run.py": source}, **fields)
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "for name in ('none', 'named', 'group'):\n"
        "    print(skills.run(name, 'run.py')['stdout'].split())",
        "FINAL(1)",
        functions=[send, fetch, box],
    )

    # `fetch` is named, and the run was not granted what it needs.
    assert outputs(run.records)[0] == "['-', '-', '-']\n['1', '-', '-']\n['-', '-', 'opened']\n"
    assert sent == [1]
    # Since it could do something twice, a script is on the disk before it begins.
    assert [each.name for each in run.records if isinstance(each, CallHost)] == ["skills.run"] * 3
    assert run.replayed().held
    assert sent == [1]


def test_a_script_that_never_ends_is_stopped_with_the_run(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "endless", files={"run.py": "while True:\n    pass"})
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "print(skills.run('endless', 'run.py')['exit'])",
        "FINAL(1)",
        limits=RunLimits(wall_ms=1_500),
    )

    assert run.run.stop in ("deadline", "answered")
    assert run.replayed().held


# -- what a skill allows -----------------------------------------------------------------------


def test_a_loaded_skill_narrows_the_programs_that_follow(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    @host_function(policy="read")
    def look() -> str:
        return "looked"

    @host_function(policy="read")
    def touch() -> str:
        return "touched"

    make_skill(tmp_path, "narrow", allowed_tools="look")
    make_skill(tmp_path, "wide", allowed_tools='"*"')
    both = "print(look())\ntry:\n    print(touch())\nexcept Exception as error:\n    print('no')"
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        f"{both}\nskills.load('narrow')\n{both}",
        f"{both}\nskills.load('wide')",
        both,
        "FINAL(1)",
        functions=[look, touch],
    )

    first, second, third, _ = outputs(run.records)
    assert first.split() == ["looked", "touched"] * 2
    # What one has narrowed, another does not widen.
    assert second.split() == third.split() == ["looked", "no"]
    assert run.replayed().held


# -- what a skill asks, and who follows it -----------------------------------------------------


def test_in_the_sandbox_a_child_run_follows_a_skill_and_asks_its_model(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(
        tmp_path,
        "letters",
        body="Count the letters of the file.\n",
        files={"words.txt": "abcde", "more/logo.png": b"\x89PNG\xff"},
        context="fork",
        model="small",
    )
    ledger = MemoryLedger()
    session = Session(
        model=ScriptedModel.of(block("n = skills.load('letters')"), block("FINAL(n * 2)")),
        models={"small": ScriptedModel.of(block("FINAL(len(context))"))},
        ledger=ledger,
        sandbox=sandbox,
        skills=Skills.of(tmp_path),
    )

    run = session.run("count")

    assert run.answer == "55"
    assert all(session.replay(row.run).held for row in ledger.runs())
    assert len(ledger.runs()) == 2


# -- evidence ----------------------------------------------------------------------------------


def test_each_turn_records_evidence_that_can_be_made_again(
    sandbox: WasmSandbox, skills: Skills
) -> None:
    run = play_with(
        sandbox,
        skills,
        "print(skills.search('codes'))",
        "skills.load('shelf-codes', 1)",
        "skills.read('shelf-codes', 'rates.csv')",
        "FINAL(1)",
        goal="turn the warehouse code into a shelf",
    )

    found = evidences(run)
    lives = [[each.lifecycle for each in one.cards] for one in found]  # type: ignore[attr-defined]
    assert lives == [
        ["omitted", "shown"],
        ["omitted", "shown"],
        ["omitted", "loaded"],
        ["omitted", "used"],
    ]
    started = run.records[0]
    assert isinstance(started, RunStarted)
    assert started.skills is not None
    cards = recorded_cards(started.skills, run.session.attachments_of(run.records))
    used = SkillState(loaded=("shelf-codes",), used=(("shelf-codes", "resource rates.csv"),))
    assert evidence_of(started.skills, cards, used) == found[-1]
    assert started.skills.rendered in opening(started)[0].text


def test_a_match_is_recorded_also_where_nothing_matches(
    sandbox: WasmSandbox, skills: Skills
) -> None:
    for goal, matched in (("shelf numbers of codes", ("shelf-codes",)), ("?", ())):
        run = play_with(sandbox, skills, "FINAL(1)", goal=goal)
        found = [each for each in run.records if isinstance(each, SkillMatched)]
        assert [each.matched for each in found] == [matched]


def test_a_catalog_that_is_fitted_otherwise_is_a_divergence(
    sandbox: WasmSandbox, skills: Skills, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play_with(sandbox, skills, "FINAL(1)")
    assert run.replayed().held

    def other(cards: Sequence[object], **more: object) -> Catalog:
        return fit_catalog(cards[:1], **more)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime_skills, "fit_catalog", other)
    report = run.replayed()

    assert report.divergence is not None
    assert report.divergence.field == "evidence"


def test_a_run_without_skills_records_nothing_of_them(sandbox: WasmSandbox, tmp_path: Path) -> None:
    make_skill(tmp_path, "by-hand", disable_model_invocation="true")
    bare = play_with(sandbox, None, "FINAL(1)")
    unlisted = play_with(sandbox, Skills.of(tmp_path), "print(skills)", "FINAL(1)")

    assert not any(isinstance(each, SkillMatched) for each in bare.records)
    assert all(each.evidence is None for each in asked(bare.records))
    # There is nothing that a program could load.
    assert "NameError" in str(unlisted.records)
    assert evidences(unlisted)


def test_why_says_in_a_sentence_what_became_of_a_skill(
    sandbox: WasmSandbox, skills: Skills
) -> None:
    run = play_with(
        sandbox,
        skills,
        "skills.load('shelf-codes', 1)",
        "skills.run('shelf-codes', 'scripts/calc.py', 1)",
        "FINAL(1)",
        put=["by-hand"],
    )
    id = run.run.run

    shown = why_in_run(run.session, id, "shelf-codes").sentence
    hidden = why_in_run(run.session, "last", "by-hand").sentence

    assert "was listed in full" in shown
    assert "a program loaded it in turn 1" in shown
    assert "programs used script scripts/calc.py in turn 2" in shown
    assert "models are not to load it" in hidden
    assert "the user put it into the prompt" in hidden
    with pytest.raises(SkillNotFound):
        why_in_run(run.session, id, "never-seen")


# -- later -------------------------------------------------------------------------------------


def test_a_skill_that_changed_is_reported_as_drift_and_the_run_still_holds(
    sandbox: WasmSandbox, skills: Skills, root: Path
) -> None:
    run = play_with(
        sandbox,
        skills,
        "skills.load('shelf-codes', 1)",
        "skills.read('shelf-codes', 'rates.csv')",
        "FINAL(1)",
    )
    assert run.replayed().drift == ()
    file = root / "shelf-codes" / "SKILL.md"
    file.write_text(file.read_text() + "More.\n")
    (root / "shelf-codes" / "rates.csv").unlink()
    make_skill(root, "new-one")

    run.session.engine.skills = Skills.of(root)
    report = run.replayed()

    assert report.held
    drift = [each for each in report.drift if isinstance(each, SkillDrift)]
    assert [(each.id, each.file, each.what) for each in drift] == [
        ("shelf-codes", "SKILL.md", "changed"),
        ("shelf-codes", "rates.csv", "gone"),
    ]
    assert len(drift) == len(report.drift)


def test_a_trusted_skill_that_changes_under_the_run_is_not_read(
    sandbox: WasmSandbox, skills: Skills, root: Path
) -> None:
    folder = skills.registry.find("shelf-codes").folder
    trusted = dataclasses.replace(skills, bundles={"shelf-codes": bundle_of(folder)})
    (root / "shelf-codes" / "rates.csv").write_text("changed\n")
    (root / "shelf-codes" / "new.txt").write_text("added\n")
    run = play_with(
        sandbox,
        trusted,
        "for path in ('SKILL.md', 'rates.csv', 'new.txt'):\n"
        "    try:\n        skills.read('shelf-codes', path)\n        print('read')\n"
        "    except Exception as error:\n        print(error)",
        "FINAL(1)",
    )

    read, changed, added = outputs(run.records)[0].splitlines()
    assert read == "read"
    assert "changed since it was trusted" in changed
    assert "changed since it was trusted" in added


def test_from_every_place_a_run_with_skills_reaches_the_same_end(
    sandbox: WasmSandbox, skills: Skills
) -> None:
    whole = played(
        sandbox,
        program("print(skills.search('codes'))"),
        program("text = skills.load('shelf-codes', 1)", "n = send('x')"),
        program("out = skills.run('shelf-codes', 'scripts/calc.py', 5)", "print(out)"),
        program("FINAL(len(text) + n)"),
        skills=skills,
        attachments=LastingAttachments(),
    )
    for at in range(1, len(whole.records) + 1):
        made = whole.cut(sandbox, at, skills=skills)

        run = made.session.resume(whole.id, in_doubt="retry")

        assert run.answer == whole.run.answer
        report = made.session.replay(whole.id)
        assert report.held, (at, report.divergence)
        if at == len(whole.records):
            assert without_time(run.charge) == without_time(whole.run.charge)


def test_a_run_is_gone_on_with_where_its_skills_are_gone(
    sandbox: WasmSandbox, skills: Skills
) -> None:
    whole = played(
        sandbox,
        program("text = skills.load('shelf-codes', 1)"),
        program(
            "try:\n    skills.load('shelf-codes')\nexcept Exception as error:\n    print(error)"
        ),
        program("FINAL(len(text))"),
        skills=skills,
        attachments=LastingAttachments(),
    )
    places = [n for n, each in enumerate(whole.records) if type(each).__name__ == "AskModel"]
    made = whole.cut(sandbox, places[1])

    run = made.session.resume(whole.id, in_doubt="retry")

    assert run.answer == whole.run.answer
    assert "no skill" in outputs(made.records(whole.id))[1]


def test_a_program_that_rebinds_the_name_has_it_back(sandbox: WasmSandbox, skills: Skills) -> None:
    run = play_with(
        sandbox, skills, "skills = 5", "print(skills.search('codes')[0]['id'])", "FINAL(1)"
    )

    assert outputs(run.records)[1] == "shelf-codes\n"
