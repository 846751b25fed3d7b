"""Skills with `context: fork`: a child run follows them, and the program is given its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime.run.cut_runs import without_time
from tests.skills.skill_runs import answers, make_skill, outputs

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.records import (
    ChildBegun,
    ChildEnded,
    QueryRefused,
    Record,
    RunStarted,
    SkillLoaded,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.skills.skills import Skills
from tallystick.testing.ledgers import CutLedger
from tallystick.testing.models import PRICING, ModelDouble, block
from tallystick.testing.sandbox import PlainSandbox

WIDE = RunLimits(tokens=10_000_000)
LOAD = "found = skills.load('count')"
COUNT = "FINAL(len(context))"


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> WasmSandbox:
    """Plain Python in the place of the sandbox: these tests are about what is run and recorded."""
    return cast(WasmSandbox, PlainSandbox(output_directory=tmp_path_factory.mktemp("output")))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A skill that counts the letters of its file in a run of its own."""
    place = tmp_path / "skills"
    make_skill(
        place, "count", body="Count the letters.\n", context="fork", files={"rows.txt": "abcde"}
    )
    return place


@host_function(policy="read")
def look() -> str:
    """Look."""
    return "looked"


@host_function(policy="read")
def touch() -> str:
    """Touch."""
    return "touched"


def model_of(*programs: str, child: str = COUNT, **more: Any) -> ModelDouble:
    """A model whose root runs these programs, and every other run `child`."""
    return ModelDouble(
        lambda call: block(programs[call.turn] if "the root" in call.text else child),
        queries="said directly",
        **more,
    )


def opened(sandbox: WasmSandbox, root: Path | None, model: ModelDouble, **more: Any) -> Session:
    return Session(
        **{
            "model": model,
            "ledger": MemoryLedger(),
            "sandbox": sandbox,
            "functions": [look, touch],
            "skills": None if root is None else Skills.of(root),
            "pricing": PRICING,
            "config": None,
            **more,
        }
    )


def children(records: Sequence[Record]) -> list[str]:
    return [each.run for each in records if isinstance(each, ChildBegun)]


def records_of(session: Session, run: Run | str) -> list[Record]:
    return whole_records(session.ledger, run if isinstance(run, str) else run.run)


def start_of(session: Session, run: Run | str) -> RunStarted:
    first = records_of(session, run)[0]
    assert isinstance(first, RunStarted)
    return first


def test_a_run_of_its_own_follows_the_skill_and_its_answer_is_what_load_returns(
    sandbox: WasmSandbox, root: Path
) -> None:
    model = model_of(f"{LOAD}\nprint(found)", "FINAL(found)")
    session = opened(sandbox, root, model)

    run = session.run("the root")

    records = records_of(session, run)
    (child,) = children(records)
    assert run.answer == "5"
    assert start_of(session, child).goal == "Count the letters."
    # The instructions were for the child: the program's model is not shown them.
    assert not any("Count the letters" in text for text in model.prompts if "the root" in text)
    loaded = answers(records)[0].skill
    assert isinstance(loaded, SkillLoaded)
    assert (loaded.id, loaded.by_child) == ("count", True)
    assert session.replay(run.run).held
    assert session.replay(child).held
    assert verify_ledger(session.ledger).ok


def test_without_fork_the_same_skill_is_instructions_for_the_program(
    sandbox: WasmSandbox, root: Path, tmp_path: Path
) -> None:
    other = tmp_path / "others"
    make_skill(other, "count", body="Count the letters.\n", files={"rows.txt": "abcde"})
    session = opened(sandbox, other, model_of("FINAL(skills.load('count'))"))

    run = session.run("the root")

    assert run.answer == "Count the letters."
    assert children(records_of(session, run)) == []


def test_what_the_child_costs_counts_for_the_run_and_its_limits(
    sandbox: WasmSandbox, root: Path
) -> None:
    model = model_of(LOAD, "FINAL(found)")
    session = opened(sandbox, root, model)
    run = session.run("the root")
    assert run.charge.usd == model.billed
    assert (run.charge.model_calls, run.charge.turns) == (3, 2)

    asking = f"try:\n    {LOAD}\nexcept HostError as error:\n    found = error.kind"
    poor = opened(sandbox, root, model_of(asking, "FINAL(found)"))
    limits = RunLimits(model_calls=1)
    stopped = poor.run("the root", limits=limits)

    # The child would make the second call, and is refused before it begins.
    assert stopped.stop == "budget"
    refused = [each for each in records_of(poor, stopped) if isinstance(each, QueryRefused)]
    assert [each.dimension for each in refused] == ["model_calls"]
    assert children(records_of(poor, stopped)) == []
    assert outputs(records_of(poor, stopped)) == [""]
    assert poor.replay(stopped.run).held


@pytest.mark.parametrize(
    ("allowed", "said"),
    [("look", ["looked", "no"]), ("touch", ["no", "touched"]), (None, ["looked", "touched"])],
)
def test_the_child_is_allowed_what_the_skill_names_and_the_program_what_it_was(
    sandbox: WasmSandbox, tmp_path: Path, allowed: str | None, said: list[str]
) -> None:
    make_skill(tmp_path, "narrow", context="fork")
    if allowed is not None:
        file = tmp_path / "narrow" / "SKILL.md"
        file.write_text(file.read_text().replace("context:", f"allowed-tools: {allowed}\ncontext:"))
    both = (
        "found = []\n"
        "for each in (look, touch):\n"
        "    try:\n        found.append(each())\n"
        "    except Exception as error:\n        found.append('no')\n"
    )
    programs = [
        "inside = skills.load('narrow')",
        f"{both}FINAL(inside + str(len(found)) + found[1])",
    ]
    session = opened(sandbox, tmp_path, model_of(*programs, child=f"{both}FINAL(' '.join(found))"))

    run = session.run("the root")

    assert run.answer == " ".join(said) + "2touched"


def test_a_child_is_never_allowed_more_than_the_program_that_loads_it(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "narrow", allowed_tools="look")
    make_skill(tmp_path, "wide", context="fork", allowed_tools='"*"')
    child = "try:\n    FINAL(touch())\nexcept Exception as error:\n    FINAL('no')"
    session = opened(
        sandbox,
        tmp_path,
        model_of("skills.load('narrow')", "FINAL(skills.load('wide'))", child=child),
    )

    assert session.run("the root").answer == "no"


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_child_asks_the_model_that_the_skill_names(
    sandbox: WasmSandbox, tmp_path: Path, name: str
) -> None:
    make_skill(tmp_path, "count", context="fork", model=name)
    others = {
        each: ModelDouble(block("FINAL('by ' + llm_query('q'))"), queries=each, name=f"fake:{each}")
        for each in ("small", "large")
    }
    programs = (LOAD, "FINAL(found + ', then ' + llm_query('q'))")
    session = opened(sandbox, tmp_path, model_of(*programs), models=others)

    run = session.run("the root")

    # It was for the child alone: the calls of the program ask the run's own model.
    assert run.answer == f"by {name}, then said directly"
    assert start_of(session, children(records_of(session, run))[0]).model == f"fake:{name}"


def test_a_model_that_the_run_may_not_ask_starts_no_child(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    make_skill(tmp_path, "count", context="fork", model="opus")
    asking = (
        f"try:\n    {LOAD}\nexcept HostError as error:\n    FINAL(f'{{error.kind}}: {{error}}')"
    )
    session = opened(sandbox, tmp_path, model_of(asking))

    run = session.run("the root")

    assert run.answer is not None
    assert run.answer.startswith("UnknownModel: model 'opus' is not for programs; known are: ")
    assert children(records_of(session, run)) == []
    assert session.replay(run.run).held


@pytest.mark.parametrize(
    ("body", "goal"),
    [
        ("Count $1 in $2.\n", "Count a b in c."),
        ("Count.\n", "Count.\n\nArguments: a b c"),
    ],
)
def test_arguments_are_put_into_the_instructions_or_follow_them(
    sandbox: WasmSandbox, tmp_path: Path, body: str, goal: str
) -> None:
    make_skill(tmp_path, "count", body=body, context="fork")
    child = "FINAL(1)"
    session = opened(
        sandbox, tmp_path, model_of("FINAL(skills.load('count', 'a b', 'c'))", child=child)
    )

    run = session.run("the root")

    assert start_of(session, children(records_of(session, run))[0]).goal == goal


def test_a_child_that_stops_is_an_error_that_the_program_can_catch(
    sandbox: WasmSandbox, root: Path
) -> None:
    asking = f"try:\n    {LOAD}\nexcept HostError as error:\n    FINAL(error.kind)"
    session = opened(sandbox, root, model_of(asking, child="raise ValueError('no')"))

    run = session.run("the root", limits=WIDE)

    assert run.answer == "ChildStopped"
    assert session.replay(run.run).held


def test_where_no_run_may_stand_deeper_the_program_gets_the_instructions(
    sandbox: WasmSandbox, root: Path
) -> None:
    session = opened(sandbox, root, model_of("FINAL(skills.load('count'))"))

    run = session.run("the root", limits=RunLimits(depth=0))

    assert run.answer == "Count the letters."
    loaded = answers(records_of(session, run))[0].skill
    assert isinstance(loaded, SkillLoaded)
    assert not loaded.by_child
    assert session.replay(run.run).held


def test_a_user_who_puts_it_first_has_it_followed_by_the_run_itself(
    sandbox: WasmSandbox, root: Path
) -> None:
    model = model_of("FINAL(1)")
    session = opened(sandbox, root, model)

    run = session.run("the root", skills=["count"])

    assert "Count the letters." in model.prompts[0]
    assert children(records_of(session, run)) == []


def test_several_forks_of_one_program_are_children_of_their_own(
    sandbox: WasmSandbox, root: Path
) -> None:
    twice = "FINAL([skills.load('count'), skills.load('count'), rlm_query('q', context='ab')])"
    session = opened(sandbox, root, model_of(twice))

    run = session.run("the root")

    assert run.answer == '["5","5","2"]'
    assert len(children(records_of(session, run))) == 3
    assert session.replay(run.run).held


def test_a_cancel_ends_the_child_too_and_a_resume_finishes_both(
    sandbox: WasmSandbox, root: Path
) -> None:
    # The child's first call is never answered.
    hangs = [True]
    model = ModelDouble(
        lambda call: (
            block([LOAD, "FINAL(found)"][call.turn])
            if "the root" in call.text
            else None
            if hangs.pop()
            else block(COUNT)
        )
    )
    session = opened(sandbox, root, model)

    async def cancel() -> None:
        task = asyncio.ensure_future(session.arun("the root"))
        assert await asyncio.to_thread(model.wait_until_hung)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    (run,) = (each.run for each in session.ledger.runs() if each.caller is None)
    # The end is recorded in the client's thread, which the caller does not wait for.
    session.engine.loop.close()
    (begun,) = children(records_of(session, run))
    assert [session.ledger.row(each).stop for each in (run, begun)] == ["cancelled"] * 2  # type: ignore[union-attr]
    hangs.append(False)

    resumed = session.resume(run, in_doubt="retry")

    assert resumed.answer == "5"
    assert session.replay(run).held
    assert {*children(records_of(session, run))} == {begun}


# -- after a crash ---------------------------------------------------------------------------------


def _whole(sandbox: WasmSandbox, root: Path) -> tuple[CutLedger, MemoryAttachments, Run]:
    ledger, attachments = CutLedger(), MemoryAttachments()
    programs = (f"a = 1\n{LOAD}\nb = look()", "FINAL(found + b + str(a))")
    session = opened(sandbox, root, model_of(*programs), ledger=ledger, attachments=attachments)
    return ledger, attachments, session.run("the root", limits=WIDE)


def _reopened(
    sandbox: WasmSandbox, root: Path | None, ledger: Ledger, attachments: MemoryAttachments
) -> Session:
    programs = (f"a = 1\n{LOAD}\nb = look()", "FINAL(found + b + str(a))")
    return opened(sandbox, root, model_of(*programs), ledger=ledger, attachments=attachments)


def test_from_every_place_a_run_with_a_fork_reaches_the_same_end(
    sandbox: WasmSandbox, root: Path
) -> None:
    ledger, attachments, whole = _whole(sandbox, root)
    for cut in range(2, len(ledger.acts) + 1):
        session = _reopened(sandbox, root, ledger.cut(cut), attachments)

        run = session.resume(whole.run, in_doubt="retry")

        assert run.answer == whole.answer == "5looked1"
        assert session.replay(whole.run).held, cut
        assert verify_ledger(session.ledger).ok
        begun = children(records_of(session, whole.run))
        assert len(set(begun)) == 1, "a child that was begun is resumed, and none begun beside it"
        if cut == len(ledger.acts):
            assert without_time(run.charge) == without_time(whole.charge)


@pytest.mark.parametrize(("calls", "stop"), [(2, "budget"), (3, "answered")])
def test_a_fork_that_is_served_from_the_record_counts_for_the_resumed_run(
    sandbox: WasmSandbox, root: Path, calls: int, stop: str
) -> None:
    session = opened(sandbox, root, model_of(LOAD, "FINAL(found)"))
    stopped = session.run("the root", limits=RunLimits(turns=1))
    assert (stopped.stop, stopped.charge.model_calls) == ("max_turns", 2)

    resumed = session.resume(stopped.run, limits=RunLimits(turns=5, model_calls=calls))

    # One call of the first turn, one of the child; the second turn needs a third.
    assert resumed.stop == stop
    assert resumed.charge.model_calls == calls
    assert session.replay(stopped.run).held


def test_a_child_continues_with_the_instructions_that_it_began_with(
    sandbox: WasmSandbox, root: Path
) -> None:
    ledger, attachments, whole = _whole(sandbox, root)
    cut = _inside_the_child(ledger, whole)
    (root / "count" / "rows.txt").write_text("changed")
    file = root / "count" / "SKILL.md"
    file.write_text(file.read_text().replace("Count the letters", "Count the words"))

    session = _reopened(sandbox, root, ledger.cut(cut), attachments)

    run = session.resume(whole.run, in_doubt="retry")
    assert run.answer == whole.answer
    (child,) = {*children(records_of(session, run))}
    assert start_of(session, child).goal == "Count the letters."
    assert session.replay(whole.run).held


def test_a_child_whose_skill_is_gone_waits_for_it(sandbox: WasmSandbox, root: Path) -> None:
    ledger, attachments, whole = _whole(sandbox, root)
    cut = _inside_the_child(ledger, whole)
    without = _reopened(sandbox, None, ledger.cut(cut), attachments)

    with pytest.raises(ResumeRefused, match="a run that follows a skill: no skill 'count'") as told:
        without.resume(whole.run, in_doubt="retry")
    again = _reopened(sandbox, root, without.ledger, attachments)

    assert "\n" not in str(told.value)
    assert again.resume(whole.run, in_doubt="retry").answer == whole.answer


def _inside_the_child(ledger: CutLedger, whole: Run) -> int:
    """The number of writes after which the child has begun and has not ended."""
    for cut in range(2, len(ledger.acts)):
        records = whole_records(ledger.cut(cut), whole.run)
        begun = children(records)
        if begun and not any(isinstance(each, ChildEnded) for each in records):
            row = ledger.cut(cut).row(begun[0])
            if row is not None and row.head.count > 1:
                return cut
    raise AssertionError("the child was never under way")
