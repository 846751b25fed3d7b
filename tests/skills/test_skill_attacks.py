"""Skills against a run: what a hostile or broken one can take, forge, widen or leave behind."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.calls.child_models import WIDE, says
from tests.runtime.run.cut_runs import played
from tests.skills.skill_runs import answers, asked, make_skill, outputs, play_with

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.prompt import CANNOT, opening
from tallystick.core.machine.state import RunState, SkillState, allows
from tallystick.core.records import (
    CallHost,
    HostAnswered,
    ModelReplied,
    ProgramFinished,
    Record,
    RunEnded,
    RunStarted,
    SkillUsed,
)
from tallystick.core.resume_errors import RunInDoubt
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.port import ModelReply, ModelRequest
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.calls.functions import RunFunction, effect_key, host_function
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of, whole_records
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.skills.catalog import HEADER
from tallystick.skills.format.bundle import bundle_of
from tallystick.skills.skills import Skills, evidence_of, read_evidence, recorded_cards
from tallystick.testing.ledgers import LastingAttachments
from tallystick.testing.models import PRICING, block
from tallystick.testing.plans import program
from tallystick.testing.runs import LIMITS, Played

pytestmark = pytest.mark.slow

OURS = "import sys\nours = sys._getframe(1).f_globals\n"


def script(
    sandbox: WasmSandbox,
    root: Path,
    source: str,
    *,
    call: str = "print(skills.run('odd', 'run.py'))",
    functions: Sequence[RunFunction] = (),
    limits: RunLimits = LIMITS,
    **fields: str,
) -> Played:
    """Run a script of a skill from a program, which prints what comes back."""
    make_skill(root, "odd", files={"run.py": source}, **fields)
    skills = Skills.of(root)
    return play_with(sandbox, skills, call, "FINAL(1)", functions=functions, limits=limits)


def states(records: Sequence[Record]) -> list[RunState]:
    """The machine after each program."""
    started = records[0]
    assert isinstance(started, RunStarted)
    state, _ = begin(started)
    made = []
    for record in records[1:]:
        if isinstance(record, ModelReplied | HostAnswered | ProgramFinished):
            state, _ = advance(state, record)
            made += [state] * isinstance(record, ProgramFinished)
    return made


def said(state: RunState) -> str:
    return "\n".join(each.text for each in state.messages)


@host_function(policy="read")
def look() -> str:
    return "looked"


@host_function(policy="read")
def touch() -> str:
    return "touched"


# -- what a script may call --------------------------------------------------------------------


def test_scripts_share_the_calls_that_the_run_has_left(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    made: list[int] = []

    @host_function(policy="read")
    def count(n: int) -> int:
        made.append(n)
        return n

    run = script(
        sandbox,
        tmp_path,
        "for n in range(8):\n    count(n)",
        call="for _ in range(6):\n    print(skills.run('odd', 'run.py')['exit'])",
        functions=[count],
        limits=RunLimits(host_calls=12),
        allowed_tools="count",
    )

    # Six of the program's own are left for; the second script gets what remains of the twelve.
    assert len(made) <= 12 - 1
    assert outputs(run.records)[0].split() == ["0", "1", "1", "1", "1", "1"]
    assert run.run.charge.host_calls == len(made) + 6
    assert run.replayed().held


def test_each_call_of_a_script_has_a_key_of_its_own_that_stays(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    source = "for n in (1, 2):\n    send(n)\n    post(n)"
    make_skill(tmp_path, "sender", files={"run.py": source}, allowed_tools="send post")
    keys, second = list[str](), list[str]()
    whole = played(
        sandbox,
        program("out = skills.run('sender', 'run.py')", "print(out)"),
        program("FINAL(out['exit'])"),
        instead=_keyed(keys),
        skills=Skills.of(tmp_path),
        attachments=LastingAttachments(),
    )

    assert whole.run.answer == "0"
    assert len(set(keys)) == len(keys) == 4
    place = next(n for n, each in enumerate(whole.records, 1) if isinstance(each, CallHost))
    again = whole.cut(
        sandbox, place, skills=Skills.of(tmp_path), instead=_keyed(second)
    ).session.resume(whole.id, in_doubt="retry")
    # Who gave such a key before can tell that it is the same call.
    assert again.answer == "0"
    assert second == keys


def _keyed(keys: list[str]) -> list[RunFunction]:
    @host_function(policy="effect")
    def send(what: int) -> None:
        keys.append(effect_key())

    @host_function(policy="effect")
    async def post(what: int) -> None:
        keys.append(effect_key())

    return [send, post]


def test_a_script_of_another_skill_does_not_widen_what_one_has_narrowed(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "narrow", allowed_tools="look")
    source = "for each in ('look', 'touch'):\n    print(each in globals())"
    make_skill(tmp_path, "wide", allowed_tools='"*"', files={"run.py": source})
    call = "print(skills.run('wide', 'run.py')['stdout'].split())"
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        call,
        f"skills.load('narrow')\n{call}",
        call,
        "FINAL(1)",
        functions=[look, touch],
    )

    assert outputs(run.records)[:3] == ["['True', 'True']\n"] * 2 + ["['True', 'False']\n"]


def test_a_run_that_a_program_begins_is_narrowed_as_the_program_is(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "narrow", allowed_tools="look")
    child = """\
said = [look()]
for call in (touch, attachments.ls):
    try:
        said.append(type(call()).__name__)
    except Exception as error:
        said.append("no")
FINAL(" ".join(said))"""
    ask = "rlm_query('what do you have?')"
    ledger = MemoryLedger()
    session = Session(
        model=says(f"skills.load('narrow')\nprint({ask})", f"FINAL({ask})", child=child),
        ledger=ledger,
        sandbox=sandbox,
        pricing=PRICING,
        skills=Skills.of(tmp_path),
        functions=[look, touch],
    )

    run = session.run("the root", limits=WIDE, grants=["attachments.read"])

    # The program that loads it is not narrowed yet, and neither is what it begins.
    assert outputs(whole_records(ledger, run.run))[0] == "looked str list\n"
    assert run.answer == "looked no no"
    for row in ledger.runs():
        report = session.replay(row.run)
        assert report.held, report.divergence


def test_what_is_denied_is_not_begun_and_is_told_by_its_name(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    sent: list[str] = []

    @host_function(policy="effect")
    def send(what: str) -> None:
        sent.append(what)

    make_skill(tmp_path, "narrow", allowed_tools="look")
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "skills.load('narrow')",
        "try:\n    send('x')\nexcept Exception as error:\n    print(error)",
        "FINAL(1)",
        functions=[send, look],
    )

    assert sent == []
    assert not any(isinstance(each, CallHost) for each in run.records)
    expected = "'send' is not among the allowed tools of a skill that was loaded\n"
    assert outputs(run.records)[1] == expected
    assert run.replayed().held


@pytest.mark.parametrize(
    ("tools", "name", "allowed"),
    [
        (("mail",), "mail.send", False),
        (("mail.send",), "mail.send", True),
        (("namespace:mail",), "mail.send", True),
        (("namespace:mail",), "mail", False),
        (("namespace:mail",), "mailbox.send", False),
        (("namespace:",), "send", False),
        (("namespace:*",), "mail.send", False),
        (("*",), "mail.send", True),
        (("Mail.send",), "mail.send", False),
        ((), "send", False),
    ],
)
def test_tools_are_allowed_by_name_group_or_all(
    tools: tuple[str, ...], name: str, allowed: bool
) -> None:
    assert allows((tools,), name) is allowed
    assert allows((("*",), tools), name) is allowed
    assert allows((tools, ()), name) is False


# -- what a script may say ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "exit_code"),
    [
        ("import sys\nsys.exit(True)", "1"),
        ("import sys\nsys.exit(10**30)", "1"),
        ("import sys\nsys.exit(-1)", "-1"),
        ("import os\nos._exit(0)", "1"),
        (f"{OURS}ours['_tallystick_exit']({{'a': 1}})", "1"),
        (f"{OURS}ours['_tallystick_exit'](0)\n1 / 0", "1"),
        (f"{OURS}ours.clear()", "0"),
        (f"{OURS}ours['_tallystick_job'].clear()", "0"),
        ("import builtins\nbuiltins.isinstance = None\nraise SystemExit('x')", "1"),
        ("while True:\n    print('x' * 100_000)", "1"),
    ],
)
def test_whatever_a_script_does_to_its_runner_it_ends_with_a_number(
    source: str, exit_code: str, sandbox: WasmSandbox, tmp_path: Path
) -> None:
    call = "code = skills.run('odd', 'run.py')['exit']\nprint(type(code).__name__, code)"
    run = script(sandbox, tmp_path, source, call=call)

    assert outputs(run.records)[0] == f"int {exit_code}\n"
    assert run.replayed().held


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return float('nan')",
        "def f():\n    return {1, 2}",
        "def f():\n    return '\\ud800'",
        "def f():\n    return 'x' * 2_000_000",
        "async def f():\n    return 1",
        "def f():\n    raise SystemExit(0)",
        "f = 5",
        f"{OURS}def f():\n    ours['_tallystick_returned']('no json')\n    raise SystemExit",
        f"{OURS}def f():\n    ours['_tallystick_returned'](5)\n    raise SystemExit",
        f"{OURS}def f():\n    ours['_tallystick_returned']('1')\n    1 / 0",
    ],
)
def test_a_function_that_gives_no_json_fails_by_its_name(
    source: str, sandbox: WasmSandbox, tmp_path: Path
) -> None:
    call = (
        "try:\n    print(skills.call('odd', 'run.py:f'))\n"
        "except Exception as error:\n    print('no', error)"
    )
    run = script(sandbox, tmp_path, source, call=call)

    told = outputs(run.records)[0]
    assert told.startswith("no run.py:f of skill 'odd'"), told
    assert not told.rstrip().endswith(":")
    assert run.replayed().held


def test_a_function_may_have_any_names_for_its_arguments_and_gets_no_bytes(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    run = script(
        sandbox,
        tmp_path,
        "def f(name, function=1):\n    return [name, function]",
        call="print(skills.call('odd', 'run.py:f', name='n', function=2))\n"
        "try:\n    print(skills.call('odd', 'run.py:f', b'abc'))\n"
        "except Exception as error:\n    print(error)",
    )

    first, second = outputs(run.records)[0].splitlines()
    assert first == "['n', 2]"
    assert "bytes" in second


def test_functions_of_the_session_have_the_names_they_have(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    @host_function(policy="read")
    def skill_exit() -> str:
        return "mine"

    @host_function(policy="read", name="skill_job.now")
    def job() -> str:
        return "mine too"

    run = script(
        sandbox,
        tmp_path,
        "print(skill_exit(), skill_job.now())",
        call="print(skills.run('odd', 'run.py')['stdout'])",
        functions=[skill_exit, job],
        allowed_tools='"*"',
    )

    assert outputs(run.records)[0].strip() == "mine mine too"


def test_what_a_script_prints_beyond_its_limit_is_left_nowhere(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    folder = sandbox.output_directory
    assert folder is not None
    before = set(folder.glob("*"))
    run = script(
        sandbox,
        tmp_path,
        "while True:\n    print('x' * 100_000)",
        call="skills.run('odd', 'run.py')",
    )

    assert run.run.answer == "1"
    assert set(folder.glob("*")) == before


def test_a_run_that_is_cancelled_in_a_script_is_in_doubt_and_leaves_nothing_behind(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    began = threading.Event()

    @host_function(policy="effect")
    def begun() -> None:
        began.set()

    source = "begun()\nwhile True:\n    pass"
    make_skill(tmp_path, "endless", files={"run.py": source}, allowed_tools="begun")
    ledger = MemoryLedger()
    session = Session(
        model=ScriptedModel.of(block("skills.run('endless', 'run.py')")),
        functions=[begun],
        ledger=ledger,
        sandbox=sandbox,
        skills=Skills.of(tmp_path),
    )

    async def cancelled() -> None:
        task = asyncio.ensure_future(session.arun("what is it?"))
        await asyncio.to_thread(began.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    session.close()
    records = list(records_of(ledger, next(iter(ledger.runs())).run))
    ended = records[-1]
    assert isinstance(ended, RunEnded)
    assert ended.stop == "in_doubt"
    assert not [each for each in threading.enumerate() if each.name.startswith("tally-host-")]


# -- files that change under a run -------------------------------------------------------------


def test_a_file_beside_a_script_that_changed_since_it_was_trusted_is_not_there(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    folder = make_skill(
        tmp_path,
        "calc",
        files={
            "run.py": "try:\n    import beside\n    print(beside.n)\n"
            "except ImportError:\n    print('-')\n"
            "try:\n    print(open('data.txt').read())\nexcept OSError:\n    print('-')",
            "beside.py": "n = 1",
            "data.txt": "data",
        },
    )
    skills = Skills.of(tmp_path)
    trusted = dataclasses.replace(
        skills, bundles={"calc": bundle_of(skills.registry.find("calc").folder)}
    )
    call = "print(skills.run('calc', 'run.py')['stdout'].split())"
    assert outputs(play_with(sandbox, trusted, call, "FINAL(1)").records)[0] == "['1', 'data']\n"
    (folder / "beside.py").write_text("n = 'evil'")
    (folder / "data.txt").write_text("evil")
    assert outputs(play_with(sandbox, trusted, call, "FINAL(1)").records)[0] == "['-', '-']\n"
    (folder / "run.py").write_text("print('evil')")
    assert "changed since it was trusted" in str(
        outputs(play_with(sandbox, trusted, call, "FINAL(1)").records)[0]
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_does_not_stop_a_script(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    folder = make_skill(tmp_path, "calc", files={"run.py": "print(5)", "closed.txt": "x"})
    (folder / "closed.txt").chmod(0)
    call = "print(skills.run('calc', 'run.py')['stdout'])"

    assert outputs(play_with(sandbox, Skills.of(tmp_path), call, "FINAL(1)").records)[0] == "5\n\n"


# -- what the model is told --------------------------------------------------------------------


def test_short_instructions_do_not_eat_what_a_program_printed(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "zero", body="0\n")
    line = "The sum of all that is in the table is 10."
    make_skill(tmp_path, "line", body=f"{line}\n")
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "skills.load('zero')\nskills.load('line')\nprint(1000)\n"
        f"print({line!r} + '5')\nprint('x ' + {line!r})",
        "FINAL(1)",
    )

    told = states(run.records)[0].messages[-1].text
    assert told.startswith(f"Output:\n1000\n{line}5\nx {line}\n")


def test_instructions_stay_though_the_program_that_loaded_them_failed(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "steps", body="Count the red ones and add four to what you have then.\n")
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "print(skills.load('steps'))\n1 / 0",
        "print(3)",
        "FINAL(7)",
    )

    first, second, _ = states(run.records)
    assert "Count the red ones" in said(first)
    assert "Count the red ones" in said(second)
    assert run.replayed().held


def test_instructions_are_not_what_a_run_came_to(sandbox: WasmSandbox, tmp_path: Path) -> None:
    make_skill(tmp_path, "steps", body="Count the red ones and add four to what you have then.\n")
    for load in ("print(skills.load('steps'))", "text = skills.load('steps')"):
        run = play_with(sandbox, Skills.of(tmp_path), "print(41)", load, limits=RunLimits(turns=2))
        assert (run.run.stop, run.run.answer) == ("max_turns", "41")


def test_one_skill_with_two_arguments_is_told_with_both(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "steps", body="Look at the row with the number $1 and nothing else.\n")
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "a = skills.load('steps', 4)\nb = skills.load('steps', 9)\nc = skills.load('steps', 4)",
        "FINAL(7)",
    )

    told = said(states(run.records)[0])
    assert told.count("'steps':\nLook at the row with the number 4") == 1
    assert told.count("'steps':\nLook at the row with the number 9") == 1


def test_all_that_one_program_loads_has_a_bound(sandbox: WasmSandbox, tmp_path: Path) -> None:
    for n in range(30):
        make_skill(tmp_path, f"long-{n:02}", body=f"Step {n}. {'Go on then. ' * 1_000}\n")
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "for each in skills.search('', k=50):\n    skills.load(each['id'])",
        "FINAL(7)",
        limits=RunLimits(tokens=10_000_000),
    )

    told = said(states(run.records)[0])
    assert len(told) < 45_000
    assert "Step 0. Go on" in told
    assert "not told here for want of room: 'long-02'" in told
    assert run.replayed().held


def test_instructions_that_are_kept_apart_are_told_as_far_as_there_is_room(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "huge", body=f"Begin here. {'And go on. ' * 9_000} End there.\n")
    run = play_with(sandbox, Skills.of(tmp_path), "text = skills.load('huge')", "FINAL(7)")

    answered = answers(run.records)[0]
    assert answered.reply_ref is not None
    told = said(states(run.records)[0])
    assert "Begin here. And go on." in told
    assert "End there." in told
    assert 16_000 < len(told) < 20_000
    assert run.replayed().held


def test_instructions_that_a_long_prompt_leaves_out_stand_in_outputs(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "steps", body=f"{'Some words before it. ' * 40}The word is marmalade.\n")
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "print(skills.load('steps'))",
        *(f"print({letter!r} * 3_000)" for letter in "abcdef"),
        "print('marmalade' in outputs[0][0:5000])",
        "FINAL(1)",
        limits=RunLimits(tokens=10_000_000),
        compact_at=2_000,
    )

    last = states(run.records)[6]
    assert "The word is marmalade." not in said(last)
    assert "outputs[0] has all" in said(last)
    assert outputs(run.records)[7] == "True\n"
    assert run.replayed().held


def test_the_model_is_told_which_files_a_skill_has_and_how_they_are_reached(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    files = {"rates.csv": "a,1", "scripts/sum.py": "print(7)", ".hidden/x": "", "SKILL.sig": "{}"}
    make_skill(tmp_path, "sums", body="See rates.csv.\n", files=files)
    run = play_with(
        sandbox, Skills.of(tmp_path), "skills.load('sums')", "open('rates.csv')", "FINAL(1)"
    )

    told = said(states(run.records)[0])
    assert "Files of this skill: rates.csv, scripts/sum.py." in told
    assert "print(skills.read('sums', 'rates.csv'))" in told
    assert "print(skills.run('sums', 'scripts/sum.py'))" in told
    assert "Files of a skill: skills.read(name, path)." in said(states(run.records)[1])
    assert run.replayed().held


def test_the_files_of_a_skill_that_the_user_put_are_open_to_programs(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    for name, fields in (("by-hand", {"disable_model_invocation": "true"}), ("other", {})):
        body = "See rates.csv.\n"
        make_skill(tmp_path / name, name, body=body, files={"rates.csv": "a,1"}, **fields)
    read = "print(skills.read('by-hand', 'rates.csv'), len(skills.load('by-hand')))"
    # Where there is nothing else to list, too.
    for skills in (Skills.of(tmp_path / "by-hand"), Skills.of(*tmp_path.iterdir())):
        run = play_with(sandbox, skills, read, "FINAL(1)", put=["by-hand"])

        started = run.records[0]
        assert isinstance(started, RunStarted)
        assert "print(skills.read('by-hand', 'rates.csv'))" in opening(started)[1].text
        assert outputs(run.records)[0] == "a,1 14\n"
        assert run.replayed().held
    bare = play_with(sandbox, Skills.of(*tmp_path.iterdir()), read, "FINAL(1)")
    assert "not for models to load" in outputs(bare.records)[0]


# -- what is recorded --------------------------------------------------------------------------


def test_one_file_is_used_under_one_name(sandbox: WasmSandbox, tmp_path: Path) -> None:
    source = "def f():\n    return 1"
    make_skill(tmp_path, "steps", files={"a/b.txt": "x", "a/run.py": source})
    run = play_with(
        sandbox,
        Skills.of(tmp_path),
        "for path in ('a/b.txt', './a/b.txt', 'a//b.txt', 'a/./b.txt'):\n"
        "    skills.read('steps', path)\n"
        "skills.run('steps', './a//run.py')\n"
        "skills.call('steps', './a//run.py:f')",
        "FINAL(1)",
    )

    used = [each.skill for each in answers(run.records)]
    assert [each.what for each in used if isinstance(each, SkillUsed)] == [
        *["a/b.txt"] * 4,
        "a/run.py",
        "a/run.py:f",
    ]
    assert len(states(run.records)[0].skills.used) == 3
    assert run.replayed().drift == ()


@pytest.mark.parametrize("first", [block("print(1)"), CANNOT])
def test_evidence_begins_where_the_catalog_does(
    first: str, sandbox: WasmSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_skill(tmp_path, "steps")
    sent: list[str] = []
    ask = ScriptedModel.ask

    async def heard(self: ScriptedModel, request: ModelRequest, **more: Any) -> ModelReply:
        sent.append(request.messages[0].text)
        return await ask(self, request, **more)

    monkeypatch.setattr(ScriptedModel, "ask", heard)
    ledger = MemoryLedger()
    session = Session(
        model=ScriptedModel.of(first, block("print(2)"), block("FINAL(3)")),
        ledger=ledger,
        sandbox=sandbox,
        skills=Skills.of(tmp_path),
    )

    run = session.run("what is it?", strategy="direct", inputs=[given_text("some text")])

    turns = asked(whole_records(ledger, run.run))
    assert [each.evidence is not None for each in turns] == [HEADER in each for each in sent]
    assert [HEADER in each for each in sent] == [False, True, True]
    assert session.replay(run.run).held


@pytest.mark.slow
def test_from_every_place_a_script_with_effects_goes_on_and_does_nothing_unasked(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    source = "print(send('x'), send('yy'))"
    fields = {"allowed_tools": "send"}
    make_skill(tmp_path, "sender", files={"run.py": source}, **fields)
    skills = Skills.of(tmp_path)
    whole = played(
        sandbox,
        program("text = skills.load('sender')"),
        program("out = skills.run('sender', 'run.py')", "print(out['stdout'])"),
        program("try:\n    post('x')\nexcept Exception as error:\n    print(error)"),
        program("FINAL(out['stdout'] + text)"),
        skills=skills,
        attachments=LastingAttachments(),
    )
    assert whole.run.answer == "1 2\nDo it."
    sent = [n for n, each in enumerate(whole.records, 1) if isinstance(each, CallHost)]
    assert len(sent) == 1
    for at in range(1, len(whole.records) + 1):
        made = whole.cut(sandbox, at, skills=skills)
        done = [each for each in whole.records[:at] if isinstance(each, HostAnswered)]
        is_open = at == sent[0]
        if is_open:
            with pytest.raises(RunInDoubt):
                made.session.resume(whole.id)
            assert made.effects.keys == []

        run = made.session.resume(whole.id, in_doubt="retry")

        assert run.answer == whole.run.answer
        # The two calls of the script are made where its answer is not on the record, else none is.
        assert len(made.effects.keys) == (0 if len(done) > 1 else 2)
        report = made.session.replay(whole.id)
        assert report.held, (at, report.divergence)


def test_a_directory_that_is_not_there_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no directory"):
        Skills.of(tmp_path / "skils")


STEPS = st.lists(
    st.sampled_from(
        [
            ("load", "alpha", "skills.load('alpha')"),
            ("load", "beta", "skills.load('beta', 'x')"),
            ("resource a.txt", "alpha", "skills.read('alpha', 'a.txt')"),
            ("resource a.txt", "beta", "skills.read('beta', './a.txt')"),
            ("script run.py", "beta", "skills.run('beta', 'run.py')"),
            ("", "", "skills.search('alpha')"),
            ("", "", "1 / 0"),
            ("", "", "try:\n    skills.load('gamma')\nexcept Exception:\n    pass"),
        ]
    ),
    max_size=4,
)


@given(programs=st.lists(STEPS, min_size=1, max_size=3), put=st.booleans())
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_evidence_is_what_loads_and_uses_came_to(
    programs: list[list[tuple[str, str, str]]],
    put: bool,
    sandbox: WasmSandbox,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("skills")
    for name in ("alpha", "beta", "gamma"):
        fields = {"disable_model_invocation": "true"} if name == "gamma" else {}
        make_skill(root, name, files={"a.txt": "x", "run.py": "print(1)"}, **fields)
    # Made different from each other: the same program with the same result ends a run.
    sources = [
        "\n".join([f"n = {number}", *(each[2] for each in steps), f"print({number})"])
        for number, steps in enumerate(programs)
    ]
    run = play_with(sandbox, Skills.of(root), *sources, "FINAL(1)", put=["gamma"] if put else [])

    started = run.records[0]
    assert isinstance(started, RunStarted)
    assert started.skills is not None
    run_attachments = run.session.attachments_of(run.records)
    cards = recorded_cards(started.skills, run_attachments)
    loaded, used = ["gamma"] * put, list[tuple[str, str]]()
    turns = [each for each in asked(run.records) if each.evidence is not None]
    assert len(turns) == len(sources) + 1
    for turn, steps in zip(turns, [*programs, []], strict=True):
        assert turn.evidence is not None
        expected = SkillState(loaded=tuple(dict.fromkeys(loaded)), used=tuple(dict.fromkeys(used)))
        found = read_evidence(turn.evidence, run_attachments)
        assert found == evidence_of(started.skills, cards, expected)
        assert (turn.evidence.shown, turn.evidence.omitted) == (2, 1)
        for what, id, source in steps:
            if source == "1 / 0":
                break
            if what == "load":
                loaded.append(id)
            elif what:
                used.append((id, what))
    assert run.replayed().held
