"""Replay: the same run again with the world unplugged, and what it notices."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tallystick.client import Session
from tallystick.core.chain import Draft, Head
from tallystick.core.machine import prompt
from tallystick.core.records import (
    HostAnswered,
    ModelReplied,
    ProgramFinished,
    Record,
    RunEnded,
    RunStarted,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import recorded_model
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.storage.clock import new_id
from tallystick.testing.models import block
from tallystick.testing.runs import Played, play

# Programs are run again by the guest, to the byte.
NEEDS_GUEST = True

CALLS: list[str] = []


@host_function(policy="read")
def fetch(key: str) -> dict[str, Any]:
    """Fetch a row."""
    CALLS.append(key)
    return {"key": key, "n": len(CALLS)}


@pytest.fixture
def played(sandbox: WasmSandbox) -> Played:
    CALLS.clear()
    return play(
        sandbox,
        [
            block("import random, time\nrow = fetch('a')\nprint(row, random.random())"),
            block("rows = [fetch(k) for k in sorted(set(context.split()))]\nFINAL(rows[-1]['n'])"),
        ],
        functions=[fetch],
        inputs=[given_text("x y z y")],
    )


def rewritten(played: Played, change: Any) -> Session:
    """A ledger with the same run, its records changed and its chain sealed anew."""
    ledger = MemoryLedger()
    run = new_id()
    fence = ledger.claim(run, create=True)
    drafts = [
        Draft(tag=tag_of(each), intent=intent_of(each), body=encode_record(each))
        for each in (change(record) for record in played.records)
    ]
    ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)
    session = Session(
        ledger=ledger,
        attachments=played.session.attachments,
        sandbox=played.session.engine.backends.wasm(),
    )
    session.run_id = run  # type: ignore[attr-defined]
    return session


def replace_in(kind: type, **changes: Any) -> Any:
    def change(record: Record) -> Record:
        return msgspec.structs.replace(record, **changes) if isinstance(record, kind) else record

    return change


def test_replay_calls_no_host_function_and_holds(played: Played) -> None:
    before = list(CALLS)

    report = played.replayed()

    assert report.held
    assert report.programs == 2
    assert report.entries == len(played.records)
    assert before == CALLS


@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        (ProgramFinished, {"stdout": "something else\n"}, "stdout"),
        (ProgramFinished, {"fuel": 1}, "fuel"),
        (ProgramFinished, {"value": "'other'"}, "value"),
        (HostAnswered, {"request_sha256": "0" * 64}, "request"),
        (HostAnswered, {"fuel": 7}, "fuel"),
        (RunEnded, {"answer": "forged"}, "answer"),
        (RunEnded, {"stop": "max_turns"}, "stop"),
    ],
)
def test_a_record_that_was_changed_is_a_divergence_that_names_the_field(
    played: Played, kind: type, changes: dict[str, Any], field: str
) -> None:
    session = rewritten(played, replace_in(kind, **changes))

    report = session.replay(session.run_id)  # type: ignore[attr-defined]

    assert not report.held
    assert report.divergence is not None
    assert report.divergence.field == field


def test_a_changed_reply_is_seen_where_its_program_differs(played: Played) -> None:
    def change(record: Record) -> Record:
        if isinstance(record, ModelReplied) and record.turn == 2:
            return msgspec.structs.replace(record, text=block("FINAL('forged')"))
        return record

    session = rewritten(played, change)

    report = session.replay(session.run_id)  # type: ignore[attr-defined]

    assert report.divergence is not None
    assert report.divergence.field == "sha256"


def test_a_changed_prompt_template_is_drift_at_its_entry_and_not_a_crash(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt, "_WASM_SYSTEM", prompt._WASM_SYSTEM + " Be brief.")

    report = played.replayed()

    assert report.divergence is not None
    assert report.divergence.seq == 1
    assert report.divergence.field == "request_sha256"
    assert report.programs == 2


def test_with_another_guest_programs_are_served_and_the_report_says_so(played: Played) -> None:
    session = rewritten(played, replace_in(RunStarted, guest="another"))

    report = session.replay(session.run_id)  # type: ignore[attr-defined]

    assert report.held
    assert (report.programs, report.served) == (0, 2)


def test_how_long_it_took_is_not_compared(played: Played) -> None:
    session = rewritten(played, replace_in(ProgramFinished, wall_ms=0))

    report = session.replay(session.run_id)  # type: ignore[attr-defined]

    assert report.divergence is None or report.divergence.field in ("charge", "receipt")


def test_a_recorded_model_repeats_the_run_and_reports_no_drift(
    played: Played, sandbox: WasmSandbox
) -> None:
    model = recorded_model(played.ledger, played.run.run[:14])
    CALLS.clear()

    again = play(sandbox, model, functions=[fetch], inputs=[given_text("x y z y")])

    assert again.run.answer == played.run.answer
    assert model.drift == []


def test_a_recorded_model_reports_where_its_prompt_has_changed(
    played: Played, sandbox: WasmSandbox
) -> None:
    model = recorded_model(played.ledger, "last")
    CALLS.clear()

    play(sandbox, model, goal="another question", functions=[fetch], inputs=[given_text("x y")])

    assert [drift.position for drift in model.drift] == [0, 1]


def test_the_ledger_of_a_run_verifies(played: Played) -> None:
    report = verify_ledger(played.ledger)

    assert report.ok
    assert report.entries == len(played.records)


def test_a_run_that_was_not_finished_replays_as_far_as_it_goes(played: Played) -> None:
    kept = played.records[:-3]
    session = rewritten(
        Played(run=played.run, records=kept, ledger=played.ledger, session=played.session),
        lambda record: record,
    )

    report = session.replay(session.run_id)  # type: ignore[attr-defined]

    assert report.held
    assert report.entries == len(kept)
