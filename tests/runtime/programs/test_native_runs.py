"""Runs whose programs are native Python and bash: what is written, served, put back and told."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.escape.process.boxes import made_sandbox
from tests.runtime.run.cut_runs import GOAL, ROOMY, Cancelling, World, world

from tallystick.client import Session
from tallystick.core.errors import NotSupported, UsageError
from tallystick.core.machine.native import RETRIED
from tallystick.core.machine.prompt import ABANDONED
from tallystick.core.records import (
    AskModel,
    ChildBegun,
    ChildEnded,
    FilesKept,
    HostAnswered,
    NetworkAttempted,
    ProgramChecked,
    ProgramFinished,
    QueryAsked,
    QueryReplied,
    Record,
    RunEnded,
    RunProgram,
    RunResumed,
    RunStarted,
    encode_record,
)
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.views.open_calls import open_calls
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.in_doubt import runs_in_doubt
from tallystick.sandbox.process.backend import network_of
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sessions.surroundings import SessionLease
from tallystick.testing.ledgers import LastingAttachments, ledger_of
from tallystick.testing.models import PRICING
from tallystick.testing.plans import Planned, planned, program
from tallystick.vocabulary.capability import read_vocabulary

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessSandbox]:
    made = made_sandbox(tmp_path_factory.mktemp("output"), spares=0)
    yield made
    asyncio.run(made.close())


def bash(*lines: str) -> Planned:
    return Planned("```bash\n" + "\n".join(lines) + "\n```")


def at(process: ProcessSandbox, plan: list[Planned], **more: Any) -> World:
    # The planned world is typed for the other sandbox.
    given: Any = process
    return world(given, plan, backend="process", **{"attachments": LastingAttachments(), **more})


def of(records: list[Record], kind: type) -> list[Any]:
    return [each for each in records if isinstance(each, kind)]


END = program("FINAL(open('a/total').read().strip())")
PLAN = [
    bash("mkdir -p a && cd a && export UNIT=crowns", "echo 41 > total"),
    program("n = int(open('a/total').read()) + send('x')", "print(n, file=open('a/total', 'w'))"),
    Planned("SNAPSHOT(good)"),
    program("print(llm_query('hello'))", "print(llm_query_batched(['one', 'two']))"),
    bash('cp total "total.$UNIT"', "rm total"),
    Planned("ROLLBACK(good)"),
    bash('echo "$UNIT" >> total', "pwd"),
    END,
]


# -- what is no text, too deep or too much -------------------------------------------------------


def test_names_and_values_that_are_no_text_stay_what_they_are(process: ProcessSandbox) -> None:
    plan = [
        bash("export X=$'\\xff' && mkdir -p $'\\xfe' && cd $'\\xfe'", "echo one > file"),
        bash('printf %s "$X" | od -An -tx1', "pwd | od -An -tx1 | tr -d '\\n'", "cat file"),
        program("FINAL('done')"),
    ]
    here = at(process, plan)

    run = here.session.run(GOAL, limits=ROOMY)

    assert run.answer == "done"
    shown = of(here.records(run.run), ProgramFinished)[1].stdout
    assert shown.startswith(" ff")
    assert " fe" in shown
    assert shown.endswith("one\n")
    assert here.session.replay(run.run).held


def test_a_path_that_no_host_could_make_is_left_out_by_name(process: ProcessSandbox) -> None:
    deep = "import os\nfor n in range(30):\n    os.mkdir('a' * 200); os.chdir('a' * 200)\n"
    here = at(process, [program(deep), bash("echo 1 > near"), program("FINAL('done')")])

    run = here.session.run(GOAL, limits=ROOMY)
    records = here.records(run.run)

    assert run.answer == "done"
    assert any(each.left_out for each in of(records, FilesKept))
    last = max(place for place, each in enumerate(records) if isinstance(each, FilesKept))
    kept = here.session.attachments
    again = at(
        process,
        [program("FINAL(open('near').read().strip())")],
        ledger=ledger_of(run.run, records[: last + 1]),
        attachments=kept,
    )
    assert again.session.resume(run.run, in_doubt="retry").answer == "1"


# -- the bridge ----------------------------------------------------------------------------------


def test_a_command_of_a_shell_asks_by_the_bridge_and_it_is_on_the_record(
    process: ProcessSandbox, tmp_path: Path
) -> None:
    """Its own sandbox, which has the folder of the bridge; `process` is there so that it can be."""
    plan = [
        bash('python3 "$TALLYSTICK_ASK" hello > told; echo "$TALLYSTICK_BRIDGE_TOKEN" | wc -c'),
        bash('test -z "$LEFT"', "python3 - <<'X'", "import os", "print('x' * 3)", "X"),
        program("FINAL(open('told').read().strip())"),
    ]
    model = planned(plan)
    ledger = SqliteLedger(tmp_path / "ledger.db")
    with Session(model=model, ledger=ledger, backend="process", pricing=PRICING) as session:
        run = session.run(GOAL, limits=ROOMY)
        records = whole_records(session.ledger, run.run)

        assert run.answer == "said hello"
        asked = of(records, QueryAsked)
        assert [(each.program, each.prompt) for each in asked] == [(2, "hello")]
        assert of(records, QueryReplied)[0].text == "said hello"
        assert [each.name for each in of(records, HostAnswered)] == ["llm_query"]
        assert run.charge.model_calls == len(plan) + 1
        assert run.charge.host_calls == 1
        assert session.replay(run.run).held
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in left if b"TALLYSTICK_BRIDGE_TOKEN=" in path.read_bytes()]


def test_a_question_that_no_budget_pays_for_is_refused_and_the_command_goes_on(
    process: ProcessSandbox, tmp_path: Path
) -> None:
    plan = [
        bash('python3 "$TALLYSTICK_ASK" hello 2> why; echo $? >> why'),
        program("FINAL(open('why').read())"),
    ]
    limits = msgspec.structs.replace(ROOMY, model_calls=1)
    ledger = SqliteLedger(tmp_path / "ledger.db")
    with Session(model=planned(plan), ledger=ledger, backend="process", pricing=PRICING) as session:
        run = session.run(GOAL, limits=limits)
        finished = of(whole_records(session.ledger, run.run), ProgramFinished)

    assert run.stop == "budget"
    assert finished[0].stop == "finished"


def test_a_native_program_is_told_where_runs_that_it_starts_begin_to_count(
    process: ProcessSandbox, tmp_path: Path
) -> None:
    plan = [
        bash('echo "$TALLYSTICK_DEPTH" > depth'),
        program("import os\nFINAL(open('depth').read() + os.environ['TALLYSTICK_DEPTH'])"),
    ]
    for above, told in ((0, "1\n1"), (4, "5\n5")):
        ledger = SqliteLedger(tmp_path / f"{above}.db")
        model = planned(plan)
        with Session(model=model, ledger=ledger, backend="process", pricing=PRICING) as session:
            run = session.run(GOAL, limits=ROOMY, recursion_depth=above)
            assert run.answer == told
            assert session.replay(run.run).held


# -- a run ---------------------------------------------------------------------------------------


def test_a_run_has_a_shell_files_and_variables_that_stay(process: ProcessSandbox) -> None:
    here = at(process, PLAN)

    run = here.session.run(GOAL, limits=ROOMY)

    assert (run.stop, run.answer) == ("answered", "42\ncrowns")
    records = here.records(run.run)
    started = records[0]
    assert isinstance(started, RunStarted)
    assert started.backend == "process"
    kinds = [(each.kind, each.effect) for each in of(records, RunProgram)]
    assert kinds == [
        (kind, True)
        for kind in (
            *("bash", "python", "snapshot", "python"),
            *("bash", "rollback", "bash", "python"),
        )
    ]


def test_what_a_command_came_to_is_told_as_streams_and_exit_code(process: ProcessSandbox) -> None:
    here = at(process, [bash("echo out; echo err >&2; exit 3"), program("FINAL(1)")])

    run = here.session.run(GOAL)

    assert here.model.asked[1].startswith("stdout:\nout\nstderr:\nerr\nexit_code: 3\n")
    (finished, _) = of(here.records(run.run), ProgramFinished)
    assert finished.exit_code == 3
    assert finished.failure is None


def test_the_prompt_says_what_there_is(process: ProcessSandbox) -> None:
    here = at(process, [program("FINAL(1)")])
    told: list[str] = []
    here.model.before = lambda request: told.append(request.messages[0].text)

    here.session.run(GOAL)
    here.session.run(GOAL, grants=["net:example.com", "net:none.test:8080"])

    assert "```bash" in told[0]
    assert "There is no network." in told[0]
    assert "only these can be reached, by HTTP and HTTPS: example.com, none.test:8080." in told[1]


def test_commands_are_refused_where_there_is_no_shell(sandbox: Any) -> None:
    here = world(sandbox, [bash("ls"), program("FINAL(1)")])

    run = here.session.run(GOAL)

    assert "RUN is not available in this run" in here.model.asked[1]
    assert run.answer == "1"


def test_a_program_is_on_disk_before_it_begins_and_its_end_is_committed(
    process: ProcessSandbox, tmp_path: Path
) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        forced: list[tuple[list[str], bool]] = []
        submit = ledger.submit

        def noting(run: str, drafts: Any, **more: Any) -> Any:
            forced.append(([each.tag for each in drafts], more["forced"]))
            return submit(run, drafts, **more)

        ledger.submit = noting  # type: ignore[method-assign]
        here = at(process, [PLAN[0], END], ledger=ledger, attachments=None)
        here.session.run(GOAL)

    assert (["program.run"], True) in forced
    # The end of a program and what it left are one transaction.
    assert (["program.finished", "files.kept"], False) in forced


def test_the_same_command_may_come_to_the_same_where_files_changed(process: ProcessSandbox) -> None:
    look = bash("wc -l < log")
    plan = [bash("echo 1 > log"), look, bash("sort -o log log"), look, bash("true"), look, END]
    here = at(process, [*plan[:-1], program("FINAL('seen')")])

    assert here.session.run(GOAL).answer == "seen"


def test_a_program_that_is_stopped_is_undone(process: ProcessSandbox) -> None:
    plan = [
        bash("echo kept > f"),
        program("open('f', 'w').write('half')", "x = [0]", "while True: x.append(bytes(1 << 24))"),
        program("FINAL(open('f').read())"),
    ]
    here = at(process, plan)

    run = here.session.run(GOAL)

    assert run.answer == "kept\n"
    assert "its files were put back" in here.model.asked[2]
    assert here.session.replay(run.run).held


def test_names_of_snapshots_that_cannot_be_are_told(process: ProcessSandbox) -> None:
    plan = [Planned("SNAPSHOT(a/b)"), Planned("ROLLBACK(nope)"), program("FINAL(1)")]
    here = at(process, plan)

    run = here.session.run(GOAL)

    assert run.answer == "1"
    assert "snapshot name" in here.model.asked[1]
    assert "nope (there are: none)" in here.model.asked[2]


def test_a_command_that_nobody_can_run_is_told(process: ProcessSandbox) -> None:
    plan = [bash("echo a\0b"), program("x = 'a\0b'"), program("FINAL(1)")]
    here = at(process, plan)

    run = here.session.run(GOAL)

    assert run.answer == "1"
    assert "It did not run (a command holds no NUL)" in here.model.asked[1]
    assert here.session.replay(run.run).held


def test_a_reply_with_several_commands_runs_them_in_order(process: ProcessSandbox) -> None:
    both = Planned("```bash\necho 7 > n\n```\n\n```python\nprint(open('n').read())\n```")
    here = at(process, [both, program("FINAL(1)")])

    here.session.run(GOAL)

    assert "exit_code: 0" in here.model.asked[1]
    assert "Output:\n7" in here.model.asked[1]


# -- replay --------------------------------------------------------------------------------------


def test_replay_serves_programs_with_the_backend_gone(
    process: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = at(process, PLAN)
    run = here.session.run(GOAL, limits=ROOMY)

    gone = Session(ledger=here.ledger, attachments=here.session.attachments)
    monkeypatch.setattr("tallystick.sandbox.process.backend.make", None)
    report = gone.replay(run.run)

    assert report.held, report.divergence
    assert (report.programs, report.served) == (0, 8)


def test_a_changed_end_of_a_program_is_found(process: ProcessSandbox) -> None:
    here = at(process, PLAN)
    run = here.session.run(GOAL, limits=ROOMY)
    records = here.records(run.run)
    place = records.index(of(records, ProgramFinished)[0])
    changed = msgspec.structs.replace(records[place], stdout="something else")
    ledger = ledger_of(run.run, [*records[:place], changed, *records[place + 1 :]])

    report = Session(ledger=ledger, attachments=here.session.attachments).replay(run.run)

    assert not report.held


# -- gone on with ---------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(("policy", "step"), [("retry", 4), ("abandon", 5)])
def test_cut_off_anywhere_it_goes_on_and_replays(
    process: ProcessSandbox, policy: Any, step: int
) -> None:
    step = 1 if os.environ.get("TALLYSTICK_SOAK") == "full" else step
    kept = LastingAttachments()
    here = at(process, PLAN, attachments=kept)
    whole = here.session.run(GOAL, limits=ROOMY)
    records = here.records(whole.run)
    for cut in range(1, len(records), step):
        if isinstance(records[cut], FilesKept):
            continue  # They are one transaction with the end of their program.
        before = records[:cut]
        again = at(
            process,
            PLAN,
            ledger=ledger_of(whole.run, before),
            recorded=before,
            attachments=kept,
        )
        doubtful = bool(open_calls(before))
        if any(isinstance(each, RunProgram) for each in open_calls(before)):
            with pytest.raises(RunInDoubt) as found:
                again.session.resume(whole.run)
            assert "program (" in str(found.value.open)

        run = again.session.resume(whole.run, in_doubt=policy)

        after = again.records(whole.run)
        assert after[:cut] == before
        left = policy == "abandon" and doubtful
        # What is given up may be what the rest of the plan needs.
        ends = {"answered", "no_progress", "in_doubt"} if left else {"answered"}
        assert run.stop in ends, (cut, run)
        if policy == "retry" or not doubtful:
            assert run.answer == whole.answer, (cut, before[-1])
        assert open_calls(after) == []
        report = again.session.replay(whole.run)
        assert report.held, (cut, report.divergence)
        assert verify_ledger(again.ledger, [whole.run]).first_bad is None
        if cut % 5 == 0 and not left:
            # Once more, of what was gone on with.
            _gone_on_once_more(process, whole.run, after, kept)


def _gone_on_once_more(
    process: ProcessSandbox, run: str, records: list[Record], kept: LastingAttachments
) -> None:
    before = records[: records.index(of(records, RunResumed)[-1]) + 2]
    again = at(process, PLAN, ledger=ledger_of(run, before), recorded=before, attachments=kept)

    assert again.session.resume(run, in_doubt="retry").stop == "answered"
    assert again.session.replay(run).held


def cut_in(records: list[Record], program_number: int) -> list[Record]:
    """The records up to where a program was begun."""
    begun = of(records, RunProgram)[program_number]
    return records[: records.index(begun) + 1]


def test_a_program_that_was_cut_off_is_in_doubt_and_begun_once_more(
    process: ProcessSandbox,
) -> None:
    plan = [bash("echo 1 > a"), bash("echo 2 >> a"), program("FINAL(open('a').read())")]
    here = at(process, plan)
    run = here.session.run(GOAL)
    before = cut_in(here.records(run.run), 1)
    again = at(
        process,
        plan,
        ledger=ledger_of(run.run, before),
        recorded=before,
        attachments=here.session.attachments,
    )

    with pytest.raises(RunInDoubt):
        again.session.resume(run.run)
    resumed = again.session.resume(run.run, in_doubt="retry")

    assert resumed.answer == "1\n2\n"
    stops = [each.stop for each in of(again.records(run.run), ProgramFinished)]
    assert stops == ["finished", RETRIED, "finished", "finished"]
    assert len(of(again.records(run.run), RunProgram)) == 4


def test_one_that_is_given_up_is_told_and_its_files_are_from_before_it(
    process: ProcessSandbox,
) -> None:
    plan = [bash("echo 1 > a"), bash("echo 2 >> a"), program("FINAL(open('a').read())")]
    here = at(process, plan)
    run = here.session.run(GOAL)
    before = cut_in(here.records(run.run), 1)
    again = at(
        process,
        plan,
        ledger=ledger_of(run.run, before),
        recorded=before,
        attachments=here.session.attachments,
    )

    resumed = again.session.resume(run.run, in_doubt="abandon")

    assert resumed.answer == "1\n"
    assert again.model.asked[0].startswith("The program was left in the middle")
    stops = [each.stop for each in of(again.records(run.run), ProgramFinished)]
    assert stops == ["finished", ABANDONED, "finished"]
    assert again.session.replay(run.run).held


def test_it_goes_on_with_files_directory_and_environment_and_is_told_which_names_are_gone(
    process: ProcessSandbox,
) -> None:
    plan = [
        program("import json", "rows = [1]", "def total(): return sum(rows)"),
        bash("mkdir -p d/e && cd d/e && export A='x y' && ln -s ../g link && chmod 700 ."),
        bash('echo "$A ${PWD##*/} $(readlink link)" > said; cat said'),
        program("FINAL(open('d/e/said').read())"),
    ]
    here = at(process, plan)
    run = here.session.run(GOAL)
    records = here.records(run.run)
    before = records[: records.index(of(records, AskModel)[2])]
    again = at(
        process,
        plan,
        ledger=ledger_of(run.run, before),
        recorded=before,
        attachments=here.session.attachments,
    )

    resumed = again.session.resume(run.run)

    assert resumed.answer == "x y e ../g\n"
    assert "The Python interpreter was started again." in again.model.asked[0]
    assert "are gone: `json`, `rows`, `total`." in again.model.asked[0]
    # It is said once.
    assert not any("started again" in each for each in again.model.asked[1:])
    assert again.session.replay(run.run).held


def test_a_snapshot_of_an_earlier_process_is_gone_back_to(process: ProcessSandbox) -> None:
    here = at(process, PLAN)
    run = here.session.run(GOAL, limits=ROOMY)
    records = here.records(run.run)
    before = records[: records.index(of(records, AskModel)[5])]
    again = at(
        process,
        PLAN,
        ledger=ledger_of(run.run, before),
        recorded=before,
        attachments=here.session.attachments,
    )

    assert again.session.resume(run.run).answer == "42\ncrowns"
    assert "variables are gone" in again.model.asked[1]


def test_a_fork_has_the_files_of_its_turn(process: ProcessSandbox) -> None:
    plan = [bash("echo 1 > a"), bash("echo 2 >> a"), program("FINAL(open('a').read())")]
    here = at(process, plan)
    run = here.session.run(GOAL)
    other = at(
        process,
        [program("FINAL(open('a').read())")],
        ledger=here.ledger,
        attachments=here.session.attachments,
    )

    fork = other.session.fork(run.run, turn=1)

    assert (run.answer, fork.answer) == ("1\n2\n", "1\n")
    assert other.session.replay(fork.run).held


def test_files_that_do_not_fit_are_said_by_name(
    process: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.sandbox.process.files.KEPT_BYTES_MAX", 100)
    plan = [
        bash("echo small > s; head -c 200 /dev/zero > large; mkfifo pipe"),
        program("FINAL(sorted(__import__('os').listdir()))"),
    ]
    here = at(process, plan)
    run = here.session.run(GOAL)
    records = here.records(run.run)
    (kept,) = of(records, FilesKept)
    assert (kept.left_out, kept.left_out_of) == (("large", "pipe"), 2)
    before = records[: records.index(of(records, AskModel)[1])]
    again = at(
        process,
        plan,
        ledger=ledger_of(run.run, before),
        recorded=before,
        attachments=here.session.attachments,
    )

    resumed = again.session.resume(run.run)

    assert resumed.answer == '["s"]'
    assert "These files could not be kept and are gone: large, pipe." in again.model.asked[0]


def test_a_cancelled_run_says_that_its_program_was_left_and_goes_on(
    process: ProcessSandbox,
) -> None:
    plan = [bash("echo 1 > a"), bash("echo 2 >> a; sleep 30"), program("FINAL(open('a').read())")]
    here = at(process, plan)
    cancelling = Cancelling()
    here.model.before = cancelling.watch

    def watch(run: str, record: Record) -> None:
        if isinstance(record, RunProgram) and record.turn == 2:
            threading.Timer(0.2, cancelling.cancel).start()

    run = here.session.run(GOAL, watch=watch)

    records = here.records(run.run)
    assert run.stop == "cancelled"
    assert of(records, ProgramFinished)[-1].stop == "cancelled"
    assert here.session.replay(run.run).held
    again = at(
        process, plan, ledger=here.ledger, recorded=records, attachments=here.session.attachments
    )

    # Nothing is in doubt: whoever left it said so.
    resumed = again.session.resume(run.run)

    assert resumed.answer == "1\n"
    assert "its files were put back" in again.model.asked[0]
    assert again.session.replay(run.run).held


def test_the_deadline_of_a_run_ends_its_box(process: ProcessSandbox) -> None:
    limits = msgspec.structs.replace(ROOMY, wall_ms=700)
    here = at(process, [bash("sleep 60 & sleep 60")])

    run = here.session.run(GOAL, limits=limits)

    assert run.stop == "deadline"
    assert here.session.replay(run.run).held


def test_a_child_that_a_program_waited_for_counts_with_what_it_had_spent(
    process: ProcessSandbox, sandbox: Any
) -> None:
    plan = [
        program("print(rlm_query('what is six times seven?', 'a text'))"),
        program("FINAL(42)"),
        program("FINAL(1)"),
    ]
    here = at(process, plan)
    run = here.session.run(GOAL, limits=ROOMY)
    records = here.records(run.run)
    # Its programs are the other sandbox's.
    assert run.answer == "1"
    child = of(records, ChildBegun)[0]
    assert whole_records(here.ledger, child.run)[0].backend == "wasm"  # type: ignore[union-attr]
    before = records[: records.index(child) + 1]
    again = at(
        process,
        plan,
        ledger=ledger_of(run.run, before),
        recorded=before,
        attachments=here.session.attachments,
    )

    resumed = again.session.resume(run.run, in_doubt="retry")

    after = again.records(run.run)
    assert resumed.answer == "1"
    assert [each.stop for each in of(after, ChildEnded)] == ["cancelled", "answered"]
    assert again.session.replay(run.run).held


def test_a_program_in_doubt_is_listed_and_is_nobodys_bill(process: ProcessSandbox) -> None:
    plan = [bash("echo 1"), program("FINAL(1)")]
    here = at(process, plan)
    run = here.session.run(GOAL)
    ledger = ledger_of(run.run, cut_in(here.records(run.run), 0))

    (found,) = runs_in_doubt(ledger)

    assert [(each.kind, each.what) for each in found.open] == [("effect", "program (bash)")]


def test_a_fork_in_the_middle_of_a_program_is_refused(process: ProcessSandbox) -> None:
    plan = [bash("echo 1"), program("FINAL(1)")]
    here = at(process, plan)
    run = here.session.run(GOAL)
    ledger = ledger_of(run.run, cut_in(here.records(run.run), 0))
    other = at(process, plan, ledger=ledger, attachments=here.session.attachments)

    with pytest.raises(UsageError, match="has a call under way"):
        other.session.fork(run.run, turn=1)


def test_commands_of_the_shell_are_checked_against_a_vocabulary(process: ProcessSandbox) -> None:
    plan = [bash("launch_missiles now"), bash("echo fine"), program("FINAL(1)")]
    asked = read_vocabulary("strict", None, name="")
    here = at(process, plan, vocabulary=asked)

    run = here.session.run(GOAL)

    records = here.records(run.run)
    assert [each.decision for each in of(records, ProgramChecked)][:2] == ["block", "pass"]
    assert of(records, ProgramChecked)[0].unknown_terms == ("launch_missiles",)
    assert here.session.replay(run.run).held


# -- the network ---------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[int]:
    """A port at which every request gets the same answer."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client:
                client.recv(65_536)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with closing(listening):
        yield listening.getsockname()[1]


FETCH = (
    "import urllib.request",
    "def get(url):",
    "    try: return urllib.request.urlopen(url, timeout=5).read().decode()",
    "    except OSError as error: return str(error)",
)


def test_every_attempt_is_on_the_record_and_replays(
    process: ProcessSandbox, served: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = socket.getaddrinfo

    def found(host: Any, *more: Any, **named: Any) -> Any:
        # Programs do not ask the proxy for what is called localhost.
        return find("127.0.0.1" if host == "a.test" else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    plan = [
        program(*FETCH, f"print(get('http://a.test:{served}/'), get('http://other.test/'))"),
        program("FINAL(1)"),
    ]
    here = at(process, plan)

    run = here.session.run(GOAL, grants=[f"net:private:a.test:{served}"])

    records = here.records(run.run)
    seen = [
        (each.program, each.host, each.port, each.outcome, each.address)
        for each in of(records, NetworkAttempted)
    ]
    assert seen == [
        (2, "a.test", served, "allowed", "127.0.0.1"),
        (2, "other.test", 80, "refused", None),
    ]
    assert "here" in here.model.asked[1]
    assert run.answer == "1"
    assert here.session.replay(run.run).held
    assert isinstance(records[-1], RunEnded)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_service_of_this_machine_is_reached_if_it_is_granted_as_private(
    process: ProcessSandbox, served: int, host: str
) -> None:
    there, elsewhere = f"http://{host}:{served}/", "http://127.0.0.1:1/"
    plan = [
        program(*FETCH, f"print(get({there!r}), get({elsewhere!r}))"),
        program("FINAL(1)"),
    ]
    here = at(process, plan)

    run = here.session.run(GOAL, grants=[f"net:private:{host}:{served}"])

    seen = [
        (each.host, each.port, each.outcome) for each in of(here.records(run.run), NetworkAttempted)
    ]
    assert seen == [(host, served, "allowed"), ("127.0.0.1", 1, "refused")]
    assert "here" in here.model.asked[1]
    assert here.session.replay(run.run).held


@pytest.mark.parametrize(
    ("grant", "said"),
    [
        ("net:127.0.0.1:8080", "to grant it, give net:private:127.0.0.1:8080"),
        ("net:localhost:8080", "to grant it, give net:private:localhost:8080"),
        ("net:[::1]:8080", r"to grant it, give net:private:\[::1\]:8080"),
        ("net:192.168.1.4", "192.168.1.4 is not a public address"),
        ("net:private:*.corp:80", "a host that may be private is named in full"),
        ("net:private:[corp]:80", "an IPv6 address in brackets is needed"),
    ],
)
def test_a_grant_that_could_never_work_is_refused_when_it_is_given(
    process: ProcessSandbox, grant: str, said: str
) -> None:
    here = at(process, [program("FINAL(1)")])

    with pytest.raises(UsageError, match=said) as caught:
        here.session.run(GOAL, grants=[grant])

    assert "\n" not in str(caught.value)
    assert here.ledger.runs() == []


def test_an_ipv6_address_is_granted_as_the_proxy_writes_it() -> None:
    network = network_of(["net:private:[0:0:0:0:0:0:0:1]:80", "net:[2606:4700::1111]"])

    assert network is not None
    assert network.private == {"::1:80"}
    assert network.allow == {"::1:80", "2606:4700::1111:80", "2606:4700::1111:443"}


@pytest.mark.parametrize(
    "grants",
    [
        ["net:none", "net:example.com"],
        ["net:a.test:80", "net:private:a.test:80"],
        ["net:"],
        ["net:a.test:http"],
        ["net:A.test"],
        ["net:a.test/x"],
    ],
)
def test_contradictory_grants_are_refused_by_name(
    process: ProcessSandbox, grants: list[str]
) -> None:
    here = at(process, [program("FINAL(1)")])

    with pytest.raises(UsageError, match="net"):
        here.session.run(GOAL, grants=grants)

    assert here.ledger.runs() == []


def test_the_wasm_sandbox_has_no_network_to_grant(sandbox: Any) -> None:
    here = world(sandbox, [program("FINAL(1)")])

    with pytest.raises(UsageError, match=r"net:example\.com: programs of the wasm sandbox"):
        here.session.run(GOAL, grants=["net:example.com"])


# -- records -------------------------------------------------------------------------------------


def test_records_of_other_runs_keep_their_bytes() -> None:
    begun = RunProgram(intent=2, turn=1, part=0, sha256="ab")

    assert encode_record(begun) == (
        b'{"intent":2,"part":0,"sha256":"ab","turn":1,"type":"program.run"}'
    )


# -- sessions ------------------------------------------------------------------------------------


def test_files_carry_over_between_the_runs_of_a_session(
    process: ProcessSandbox, tmp_path: Path
) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        first = at(
            process,
            [
                bash("mkdir d; cd d; echo 1 > a; export B=2"),
                program("import json", "x = [1]", "def f(): return 2", "FINAL(x)"),
            ],
            ledger=ledger,
            attachments=None,
        )
        session = first.session.sessions.new(backend="process")
        first.session.run(GOAL, session=session.id)
        first.session.close()
        second = at(
            process,
            [
                bash('echo "$(cat a) $B ${PWD##*/}"; cd ..'),
                program("FINAL([open('d/a').read(), x, json.dumps(x)])"),
            ],
            ledger=ledger,
            attachments=None,
        )

        run = second.session.run(GOAL, session=session.id)

        assert run.answer == '["1\\n",[1],"[1]"]'
        assert "stdout:\n1 2 d" in second.model.asked[1]
        assert "left in the working directory are still there" in second.model.asked[0]
        assert "still there: json, x; not kept: f." in second.model.asked[0]
        assert second.session.replay(run.run).held


class Dead(BaseException):
    """The process is no more."""


def test_variables_of_a_session_are_there_after_a_death_at_the_end_of_a_run(
    process: ProcessSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(run: str, record: Record) -> None:
        if isinstance(record, RunEnded):
            raise Dead

    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        plan = [program("x = [1]", "open('a', 'w').write('2')", "FINAL(x)")]
        first = at(process, plan, ledger=ledger, attachments=None)
        session = first.session.sessions.new(backend="process")
        with monkeypatch.context() as patch:
            patch.setattr(SessionLease, "over", lambda self: None)
            with pytest.raises(Dead):
                first.session.run(GOAL, session=session.id, watch=watch)
        first.session.close()
        plan = [program("FINAL([x, open('a').read()])")]
        second = at(process, plan, ledger=ledger, attachments=None)

        assert second.session.run(GOAL, session=session.id).answer == '[[1],"2"]'
        second.session.close()


def test_a_session_of_one_sandbox_is_refused_in_another(
    process: ProcessSandbox, sandbox: Any, tmp_path: Path
) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        here = at(process, [program("FINAL(1)")], ledger=ledger, attachments=None)
        session = here.session.sessions.new()

        with pytest.raises(NotSupported, match="a session of the wasm sandbox"):
            here.session.run(GOAL, session=session.id)
        assert here.session.sessions.runs(session.id) == []


def test_calls_of_a_native_program_are_recorded(process: ProcessSandbox) -> None:
    here = at(process, PLAN)
    run = here.session.run(GOAL, limits=ROOMY)

    names = [each.name for each in of(here.records(run.run), HostAnswered)]

    assert names == ["send", "llm_query", "llm_query_batched"]


# -- the vocabulary ------------------------------------------------------------------------------


def test_a_native_program_is_checked_as_the_python_of_this_process_reads_it(
    process: ProcessSandbox,
) -> None:
    """That is the Python that runs it: what is new in the WASM sandbox would fail by itself."""
    vocabulary = read_vocabulary("strict", None, name="")
    here = at(
        process,
        [program("\ufefffetch_invioce(1)"), program("FINAL(1)")],
        vocabulary=vocabulary,
    )

    run = here.session.run(GOAL)

    checked = of(here.records(run.run), ProgramChecked)
    assert [(each.decision, each.unknown_terms) for each in checked] == [
        ("block", ("fetch_invioce",)),
        ("pass", ()),
    ]
    assert here.session.replay(run.run).held


def test_what_this_python_cannot_parse_is_not_read_by_another(
    process: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_guest(*given: object, **more: object) -> None:
        raise AssertionError("a native program is not read in the WASM sandbox")

    monkeypatch.setattr("tallystick.vocabulary.guest_python.read_python_in", no_guest)
    vocabulary = read_vocabulary("strict", None, name="")
    here = at(process, [program("x = = 1"), program("FINAL(1)")], vocabulary=vocabulary)

    run = here.session.run(GOAL)

    checked = of(here.records(run.run), ProgramChecked)
    assert checked[0].message == "Not checked: line 1: invalid syntax."
    assert run.answer == "1"
