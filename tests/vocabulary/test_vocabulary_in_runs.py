"""The vocabulary in runs: told, retried, warned of, blocked, escalated and decided by a person."""

from __future__ import annotations

import msgspec
import pytest
from tests.runtime.run.cut_runs import GOAL, World, world

from tallystick.core.errors import UsageError
from tallystick.core.records import (
    HostAnswered,
    ProgramChecked,
    ReceiptIssued,
    RunProgram,
    RunResumed,
    RunStarted,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.runtime.calls.functions import RunFunction, host_function
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import LastingAttachments, ledger_of
from tallystick.testing.plans import Planned, program
from tallystick.vocabulary.capability import VocabularyAsked, read_vocabulary

THESAURUS = (
    b'{"term": "invoice", "synonyms": ["bill"], "related": ["customer"]}\n{"term": "customer"}\n'
)


@host_function(policy="read")
def fetch_invoice(name: str) -> str:
    """Fetch one."""
    return f"invoice of {name}"


def asked(strictness: str, thesaurus: bytes | None = None) -> VocabularyAsked:
    read = read_vocabulary(strictness, thesaurus, name="terms.jsonl")
    assert read is not None
    return read


def checked(here: World, run: str) -> list[ProgramChecked]:
    return [each for each in here.records(run) if isinstance(each, ProgramChecked)]


def decisions(here: World, run: str) -> list[str]:
    return [each.decision for each in checked(here, run)]


def at(sandbox: WasmSandbox, plan: list[Planned], vocabulary: VocabularyAsked | None) -> World:
    functions: list[RunFunction] = [fetch_invoice]
    return world(sandbox, plan, bare=True, functions=functions, vocabulary=vocabulary)


GOOD = program("n = fetch_invoice('customer')", "print(n)")
BAD = program("fetch_invioce('customer')")
END = program("FINAL('done')")


def test_without_a_vocabulary_nothing_is_checked(sandbox: WasmSandbox) -> None:
    here = at(sandbox, [BAD, END], None)

    run = here.session.run(GOAL)

    assert run.answer == "done"
    assert not checked(here, run.run)


def test_permissive_records_and_stops_nothing(sandbox: WasmSandbox) -> None:
    here = at(sandbox, [BAD, GOOD, END], asked("permissive"))

    run = here.session.run(GOAL)

    assert decisions(here, run.run) == ["pass", "pass", "pass"]
    assert checked(here, run.run)[0].unknown_terms == ("fetch_invioce",)
    assert "NameError" in here.model.asked[1]


def test_normal_asks_again_with_the_feedback_and_then_warns(sandbox: WasmSandbox) -> None:
    plan = [BAD, BAD, BAD, BAD, END]
    here = at(sandbox, plan, asked("normal", THESAURUS))

    run = here.session.run(GOAL)

    assert decisions(here, run.run)[:4] == ["retry", "retry", "retry", "warn"]
    first = checked(here, run.run)[0]
    assert here.model.asked[1].startswith(first.feedback)
    assert first.feedback.splitlines()[:2] == [
        "Command validation warning:",
        '  Unknown terms: ["fetch_invioce"]',
    ]
    assert "  Instead of 'fetch_invioce', consider: [\"fetch_invoice\"]" in first.feedback
    assert first.feedback.endswith("Please rephrase to use only known domain terminology.")
    programs = [each for each in here.records(run.run) if isinstance(each, RunProgram)]
    # The fourth ran, and failed by itself; FINAL is the fifth.
    assert len(programs) == 2
    assert "Command validation warning" in here.model.asked[4]
    assert run.answer == "done"


def test_strict_blocks_and_then_waits_for_a_person(sandbox: WasmSandbox) -> None:
    here = at(sandbox, [BAD, BAD, BAD, BAD, END], asked("strict"))

    run = here.session.run(GOAL)

    assert (run.stop, run.answer) == ("waiting", None)
    assert "a person has to decide" in (run.detail or "")
    assert decisions(here, run.run) == ["block", "block", "block", "escalate"]
    assert not [each for each in here.records(run.run) if isinstance(each, RunProgram)]
    with pytest.raises(ResumeRefused, match="waits for a person: tally approve"):
        here.session.resume(run.run)
    assert here.session.replay(run.run).held


def test_a_good_program_gives_the_retries_back(sandbox: WasmSandbox) -> None:
    here = at(sandbox, [BAD, BAD, GOOD, BAD, BAD, BAD, END], asked("strict"))

    run = here.session.run(GOAL)

    assert run.answer == "done"
    assert decisions(here, run.run) == ["block"] * 2 + ["pass"] + ["block"] * 3 + ["pass"]


def waiting(sandbox: WasmSandbox, then: list[Planned]) -> tuple[World, str]:
    here = at(sandbox, [BAD, BAD, BAD, BAD, *then], asked("strict"))
    return here, here.session.run(GOAL).run


def test_what_is_approved_runs_and_who_said_so_is_on_the_record(sandbox: WasmSandbox) -> None:
    here, run = waiting(sandbox, [END])

    again = here.session.resume(run, decision="approve", by="ann")

    assert again.answer == "done"
    records = here.records(run)
    resumed = next(each for each in records if isinstance(each, RunResumed))
    assert (resumed.decision, resumed.by) == ("approve", "ann")
    # It ran, although nothing of that name is there.
    assert isinstance(records[records.index(resumed) + 1], RunProgram)
    assert here.session.replay(run).held


def test_what_is_denied_does_not_run_and_the_model_is_told(sandbox: WasmSandbox) -> None:
    here, run = waiting(sandbox, [GOOD, END])

    again = here.session.resume(run, decision="deny", by="ann")

    assert again.answer == "done"
    assert "A person looked at this program and did not allow it." in here.model.asked[4]
    answered = [each for each in here.records(run) if isinstance(each, HostAnswered)]
    assert [each.name for each in answered] == ["fetch_invoice"]
    assert here.session.replay(run).held


def test_a_second_escalation_waits_again(sandbox: WasmSandbox) -> None:
    here, run = waiting(sandbox, [BAD, BAD, BAD, BAD, END])
    denied = here.session.resume(run, decision="deny")
    assert denied.stop == "waiting"

    again = here.session.resume(run, decision="approve")

    assert again.answer == "done"
    assert decisions(here, run).count("escalate") == 2
    assert here.session.replay(run).held


def test_nobody_decides_where_nothing_waits(sandbox: WasmSandbox) -> None:
    here = at(sandbox, [GOOD, END], asked("strict"))
    run = here.session.run(GOAL)

    with pytest.raises(ResumeRefused, match="has nothing that waits for a person"):
        here.session.resume(run.run, decision="approve")


def test_names_of_earlier_programs_data_and_python_are_known(sandbox: WasmSandbox) -> None:
    plan = [
        program("import re, json", "def helper(x):", "    return re.sub('a', 'b', x)"),
        program("rows = [helper(fetch_invoice(name)) for name in ('customer',)]"),
        program("total = len(json.dumps(rows))", "print(total, sorted(rows))"),
        END,
    ]
    here = at(sandbox, plan, asked("strict"))

    run = here.session.run(GOAL)

    assert run.answer == "done"
    assert set(decisions(here, run.run)) == {"pass"}


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_cut_off_anywhere_it_comes_to_the_same(step: int, sandbox: WasmSandbox) -> None:
    kept = LastingAttachments()
    plan = [BAD, GOOD, BAD, BAD, BAD, BAD, END]
    given = {
        "bare": True,
        "functions": [fetch_invoice],
        "vocabulary": asked("normal", THESAURUS),
        "attachments": kept,
    }
    here = world(sandbox, plan, **given)  # type: ignore[arg-type]
    whole = here.session.run(GOAL)
    records = here.records(whole.run)
    for cut in range(1, len(records), step):
        again = world(
            sandbox,
            plan,
            ledger=ledger_of(whole.run, records[:cut]),
            recorded=records[:cut],
            **given,  # type: ignore[arg-type]
        )

        run = again.session.resume(whole.run, in_doubt="retry")

        assert run.answer == "done"
        assert decisions(again, whole.run) == decisions(here, whole.run)
        assert again.session.replay(whole.run).held


def test_children_are_checked_as_well(sandbox: WasmSandbox) -> None:
    plan = [program("told = rlm_query('a part')"), BAD, GOOD, END, program("FINAL(told)")]
    here = at(sandbox, plan, asked("strict"))

    run = here.session.run(GOAL)

    assert run.answer == "done"
    child = next(row.run for row in here.ledger.runs() if row.run != run.run)
    assert decisions(here, child) == ["block", "pass", "pass"]


@pytest.mark.parametrize(
    ("thesaurus", "said"),
    [
        (b"{", "terms.jsonl"),
        (b'{"term": 5}', "line 1"),
        (b'{"term": "a"}\n{"term": "a", "denied": true}', "line 2"),
        (b"\xff", "terms.jsonl"),
    ],
)
def test_a_malformed_thesaurus_is_one_clear_line(thesaurus: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        asked("normal", thesaurus)
    assert "\n" not in str(caught.value)


def test_an_unknown_strictness_is_refused() -> None:
    with pytest.raises(UsageError, match="there are permissive, normal, strict"):
        asked("severe")


@pytest.mark.parametrize(
    "slip",
    [
        program("type A = int", "print(f'{fetch_invioce('customer')}')"),
        program("\ufefffetch_invioce('customer')"),
        program("try: pass", "except ValueError, TypeError: pass", "fetch_invioce('customer')"),
    ],
    ids=["3.12", "mark", "3.14"],
)
def test_syntax_that_only_the_sandbox_has_is_checked_too(
    sandbox: WasmSandbox, slip: Planned
) -> None:
    here = at(sandbox, [slip, END], asked("strict"))

    run = here.session.run(GOAL)

    assert decisions(here, run.run) == ["block", "pass"]
    assert "fetch_invioce" in checked(here, run.run)[0].unknown_terms
    assert here.session.replay(run.run).held


def test_a_run_says_how_its_programs_are_read_and_an_unknown_way_is_refused(
    sandbox: WasmSandbox,
) -> None:
    here = at(sandbox, [END], asked("strict"))
    run = here.session.run(GOAL).run
    first, *rest = here.records(run)
    assert isinstance(first, RunStarted)
    assert first.vocabulary is not None
    assert first.vocabulary.reading == 2
    newer = msgspec.structs.replace(
        first, vocabulary=msgspec.structs.replace(first.vocabulary, reading=3)
    )
    there = world(sandbox, [], bare=True, ledger=ledger_of(run, [newer, *rest]))

    with pytest.raises(UsageError, match="by reading 3; this version of tallystick knows 1 to 2"):
        there.session.replay(run)


def test_a_run_of_before_is_read_as_it_was(sandbox: WasmSandbox) -> None:
    """The mark hid the program from the reading of then; its verdict is still the same."""
    plan = [program("\ufefffetch_invioce('customer')"), END]
    here = at(sandbox, plan, asked("strict"))
    run = here.session.run(GOAL).run
    first = here.records(run)[0]
    assert isinstance(first, RunStarted)
    assert first.vocabulary is not None
    old = msgspec.structs.replace(
        first, vocabulary=msgspec.structs.replace(first.vocabulary, reading=1)
    )
    there = world(sandbox, plan, bare=True, functions=[fetch_invoice], ledger=ledger_of(run, [old]))

    there.session.resume(run)

    assert decisions(there, run) == ["pass", "pass"]
    assert checked(there, run)[0].message.startswith("Not checked: line 1: invalid")
    assert there.session.replay(run).held


def test_strict_stops_a_program_that_runs_a_text_which_was_not_read(sandbox: WasmSandbox) -> None:
    plan = [program("exec(fetch_invoice('x'))"), program("getattr(answer, 'a' * 2, 1)"), END]
    here = at(sandbox, plan, asked("strict"))

    run = here.session.run(GOAL)

    assert decisions(here, run.run) == ["block", "pass", "pass"]
    said = [each.message for each in checked(here, run.run)]
    assert said == [
        'Not covered by the check: "exec" (line 1).',
        'Not covered by the check: "getattr" (line 1).',
        "",
    ]
    assert said[0] in here.model.asked[1]


def test_the_receipt_says_who_decided_what_and_when(sandbox: WasmSandbox) -> None:
    here, run = waiting(sandbox, [BAD, BAD, BAD, BAD, END])
    here.session.resume(run, decision="deny", by="ann")

    here.session.resume(run, decision="approve", by="bob")

    records = here.records(run)
    receipts = [each.receipt for each in records if isinstance(each, ReceiptIssued)]
    resumed = [each for each in records if isinstance(each, RunResumed)]
    escalated = [each for each in checked(here, run) if each.decision == "escalate"]
    assert receipts[0].approvals is msgspec.UNSET
    assert receipts[-1].approvals is not msgspec.UNSET
    assert [(each.decision, each.by) for each in receipts[-1].approvals] == [
        ("deny", "ann"),
        ("approve", "bob"),
    ]
    assert [each.at for each in receipts[-1].approvals] == [each.at for each in resumed]
    assert [each.sha256 for each in receipts[-1].approvals] == [each.sha256 for each in escalated]
    assert [each.turn for each in receipts[-1].approvals] == [4, 8]
    assert here.session.replay(run).held
