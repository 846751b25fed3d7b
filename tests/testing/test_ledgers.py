"""A run can be cut after any of its records, and a ledger after any of its writes."""

from __future__ import annotations

from tallystick.core.records import ModelReplied, RunEnded
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import records_of
from tallystick.testing.ledgers import CutLedger, ledger_of
from tallystick.testing.models import ModelDouble, programs
from tallystick.testing.plans import Plan, planned, program
from tallystick.testing.runs import ROOMY, play
from tallystick.testing.sandbox import PlainSandbox

MODEL = ("n = 20\nprint(n)", "n += 1", "FINAL(n)")


def test_a_ledger_with_the_first_records_is_sound_and_the_run_is_resumed_from_there() -> None:
    whole = play(PlainSandbox(), ModelDouble(programs(*MODEL)))
    place = [isinstance(each, ModelReplied) for each in whole.records].index(True) + 1

    cut = ledger_of(whole.run.run, whole.records[:place])
    before = list(records_of(cut, whole.run.run))
    again = ModelDouble(programs(*MODEL))
    whole.session.use(again)

    assert before == whole.records[:place]
    assert verify_ledger(cut).ok
    resumed = play_resumed(cut, whole.run.run, again)
    assert resumed == whole.run.answer == "21"
    assert len(again.asked) == 2


def play_resumed(ledger: object, run: str, model: ModelDouble) -> str | None:
    from tallystick.client import Session

    with Session(config=None, model=model, ledger=ledger, sandbox=PlainSandbox()) as session:
        return session.resume(run).answer


def test_a_cut_ledger_is_what_it_was_after_any_write() -> None:
    ledger = CutLedger()
    played = play(PlainSandbox(), ModelDouble(programs(*MODEL)), ledger=ledger)
    entries = []

    for writes in range(len(ledger.acts) + 1):
        before = ledger.cut(writes)
        assert verify_ledger(before).ok
        row = before.row(played.run.run)
        entries.append(0 if row is None else row.head.count)

    assert entries == sorted(entries)
    assert entries[-1] == len(played.records)
    assert isinstance(list(records_of(ledger.cut(len(ledger.acts)), played.run.run))[-1], RunEnded)


def test_a_plan_continues_where_a_record_ends() -> None:
    replies = [program("n = 1"), program("n += 1", failures=1), program("FINAL(n)")]
    limits = ROOMY
    whole = play(PlainSandbox(), planned(replies), limits=limits)
    place = [isinstance(each, ModelReplied) for each in whole.records].index(True) + 1

    again = planned(replies, whole.records[:place])
    cut = ledger_of(whole.run.run, whole.records[:place])

    assert play_resumed(cut, whole.run.run, again) == whole.run.answer == "2"
    # The failure before the second reply is repeated, and then two replies come.
    assert len(again.asked) == 3
    assert isinstance(again.answers, Plan)
