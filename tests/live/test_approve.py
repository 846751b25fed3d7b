"""A call that needs a person's word waits without a process, and is made once or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tallystick.attachments.memory import MemoryAttachments
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import ReplayDiverged, UsageError
from tallystick.core.json_text import digest
from tallystick.core.records import CallHost, CallWaiting, HostAnswered, RunEnded, RunResumed
from tallystick.core.resume_errors import ResumeRefused, RunInDoubt
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.live.decide import bind, pending
from tallystick.runtime.calls.approvals import script_refusal
from tallystick.runtime.calls.functions import RunFunction, host_function
from tallystick.runtime.runs.decided import Decided
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.waiting import waiting_in
from tallystick.testing.ledgers import CutLedger, LastingAttachments, ledger_of
from tallystick.testing.models import PRICING, ModelCall, ModelDouble, block

GOAL = "the root of all this"
ROOMY = RunLimits(tokens=10_000_000, turns=8)
PAYS = "n = 1\nprint(look('a'))\nprint(pay('INV-1', amount=200))\nFINAL('paid')"


class Bank:
    """A tool with an effect that needs a person, one that needs none, and what was done."""

    def __init__(self, ask: Any = True) -> None:
        self.paid: list[str] = []
        self.ask = ask

    def functions(self) -> list[RunFunction]:
        @host_function(ask=self.ask)
        def pay(invoice: str, amount: int = 0) -> str:
            """Pay an invoice."""
            self.paid.append(invoice)
            return f"paid {invoice}"

        @host_function(policy="read")
        def look(key: str) -> str:
            """Look a key up."""
            return key

        return [pay, look]


def opened(
    sandbox: Any,
    ledger: Any,
    bank: Bank,
    *programs: str,
    attachments: MemoryAttachments | None = None,
    **more: Any,
) -> Session:
    """A session whose model writes these programs; one for another goal pays too."""

    def answer(call: ModelCall) -> str:
        if GOAL in call.text:
            return block(programs[min(call.turn, len(programs) - 1)])
        return block("FINAL(pay('INV-' + context))" if call.turn == 0 else "FINAL('gave up')")

    kept = None if hasattr(ledger, "path") else attachments or MemoryAttachments()
    return Session(
        config=None,
        model=ModelDouble(answer),
        ledger=ledger,
        attachments=kept,
        sandbox=sandbox,
        functions=bank.functions(),
        pricing=PRICING,
        clock="fixed",
        **more,
    )


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryLedger()
        return
    with SqliteLedger(tmp_path / "ledger.db") as kept:
        yield kept


def test_a_call_that_needs_a_person_is_not_made_and_the_run_says_what_it_waits_for(
    sandbox: Any, ledger: Any
) -> None:
    bank = Bank()
    with opened(sandbox, ledger, bank, PAYS) as session:
        run = session.run(GOAL, limits=ROOMY)

        assert (run.stop, bank.paid) == ("waiting", [])
        (waits,) = run.waits
        assert waits.text() == 'pay("INV-1", amount=200)'
        assert waits.sha256 == digest(waits.request.encode())
        assert (waits.run, waits.kind, waits.turn) == (run.run, "call", 1)
        records = whole_records(ledger, run.run)
        assert isinstance(records[-1], RunEnded)
        assert not any(isinstance(each, CallHost) for each in records)
        assert session.replay(run.run).held
        with pytest.raises(ResumeRefused, match=r"waits for a person: tally approve .*, or"):
            session.resume(run.run)


def test_an_approved_call_is_made_once_and_the_record_says_who_decided_about_what(
    sandbox: Any, ledger: Any
) -> None:
    bank = Bank()
    with opened(sandbox, ledger, bank, PAYS) as session:
        run = session.run(GOAL, limits=ROOMY)
        ended = session.approve(run.run, by="ann@desk")

        assert ended is not None
        assert (ended.stop, ended.answer, bank.paid) == ("answered", "paid", ["INV-1"])
        records = whole_records(ledger, run.run)
        (resumed,) = [each for each in records if isinstance(each, RunResumed)]
        assert (resumed.decision, resumed.by) == ("approve", "ann@desk")
        assert resumed.decided_sha256 == run.waits[0].sha256
        (call,) = [each for each in records if isinstance(each, CallHost)]
        assert call.request_sha256 == resumed.decided_sha256
        assert session.replay(run.run).held
        assert verify_ledger(ledger, [run.run]).ok
        with pytest.raises(UsageError, match="has nothing that waits for a person"):
            session.approve(run.run)


def test_a_denied_call_is_an_exception_with_the_reason(sandbox: Any, ledger: Any) -> None:
    bank = Bank()
    tries = (
        "try:\n    pay('INV-1')\nexcept HostError as error:\n    FINAL(f'{error.kind}: {error}')"
    )
    with opened(sandbox, ledger, bank, tries) as session:
        run = session.run(GOAL, limits=ROOMY)
        ended = session.deny(run.run, because="not on Fridays", by="ann")

        assert ended is not None
        assert bank.paid == []
        assert str(ended.answer).startswith("Denied: ")
        assert "ann denied it: not on Fridays" in str(ended.answer)
        (resumed,) = [
            each for each in whole_records(ledger, run.run) if isinstance(each, RunResumed)
        ]
        assert resumed.because == "not on Fridays"
        assert session.replay(run.run).held


def test_the_same_call_again_needs_a_word_of_its_own_unless_all_are_approved(
    sandbox: Any, ledger: Any
) -> None:
    bank = Bank()
    with opened(sandbox, ledger, bank, "pay('A')\npay('A')\npay('B')\nFINAL('x')") as session:
        run = session.run(GOAL, limits=ROOMY).run

        first = session.approve(run)
        assert first is not None
        assert (first.stop, bank.paid) == ("waiting", ["A"])
        second = session.approve(run, all=True)
        assert second is not None
        assert (second.stop, bank.paid) == ("answered", ["A", "A", "B"])
        assert session.replay(run).held


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (lambda name, args, kwargs: kwargs["amount"] > 100, True),
        (lambda name, args, kwargs: kwargs["amount"] > 300, False),
        (False, False),
    ],
)
def test_a_policy_says_which_calls_need_a_person(sandbox: Any, ask: Any, asked: bool) -> None:
    bank = Bank(ask)
    with opened(sandbox, MemoryLedger(), bank, PAYS) as session:
        run = session.run(GOAL, limits=ROOMY)

    assert (run.stop == "waiting", bank.paid) == (asked, [] if asked else ["INV-1"])


def test_a_policy_of_the_session_is_about_every_tool(sandbox: Any) -> None:
    bank = Bank(ask=False)
    names: list[str] = []

    def ask(name: str, args: list[Any], kwargs: dict[str, Any]) -> bool:
        names.append(name)
        return name == "pay"

    with opened(sandbox, MemoryLedger(), bank, PAYS, ask=ask) as session:
        run = session.run(GOAL, limits=ROOMY)

    assert (run.stop, bank.paid, names) == ("waiting", [], ["look", "pay"])


def test_a_policy_that_fails_lets_no_call_through(sandbox: Any) -> None:
    bank = Bank(lambda name, args, kwargs: 1 / 0)
    tries = "try:\n    pay('INV-1')\nexcept HostError as error:\n    FINAL(str(error))"
    with opened(sandbox, MemoryLedger(), bank, tries) as session:
        run = session.run(GOAL, limits=ROOMY)

    assert bank.paid == []
    assert "ZeroDivisionError" in str(run.answer)
    assert "it was not called" in str(run.answer)


BATCH = "print(rlm_query_batched(['c', 'c', 'c'], ['1', '2', '3']))\nFINAL('done')"


def test_calls_of_runs_inside_are_decided_one_by_one_or_together(sandbox: Any, ledger: Any) -> None:
    bank = Bank()
    with opened(sandbox, ledger, bank, BATCH) as session:
        run = session.run(GOAL, limits=ROOMY)
        assert (run.stop, len(run.waits), bank.paid) == ("waiting", 3, [])
        with pytest.raises(ResumeRefused, match=r"waits for 3 decisions; add --all, or name one"):
            session.approve(run.run)

        one = session.approve(run.waits[1].run)
        assert one is not None
        assert (one.run, one.stop, bank.paid) == (run.run, "waiting", ["INV-2"])
        assert [each.text() for each in one.waits] == ['pay("INV-1")', 'pay("INV-3")']
        ended = session.approve(run.run, all=True)

        assert ended is not None
        assert (ended.stop, ended.answer) == ("answered", "done")
        assert sorted(bank.paid) == ["INV-1", "INV-2", "INV-3"]
        assert session.replay(run.run).held
        for each in (waits.run for waits in run.waits):
            assert session.replay(each).held


def test_of_two_people_who_decide_at_once_one_wins_and_the_other_is_told(
    sandbox: Any, tmp_path: Path
) -> None:
    bank, told = Bank(), list[str]()
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as ledger, opened(sandbox, ledger, bank, PAYS) as session:
        run = session.run(GOAL, limits=ROOMY).run
    barrier = threading.Barrier(2)

    def decide(word: Callable[[Session], object]) -> None:
        with SqliteLedger(path) as own, opened(sandbox, own, bank, PAYS) as session:
            barrier.wait()
            try:
                word(session)
                told.append("won")
            except UsageError as error:
                told.append(str(error))

    words: list[Callable[[Session], object]] = [
        lambda session: session.approve(run, by="ann"),
        lambda session: session.deny(run, by="bob"),
    ]
    threads = [threading.Thread(target=decide, args=(word,)) for word in words]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert told.count("won") == 1
    (other,) = [each for each in told if each != "won"]
    assert "is running" in other or "nothing that waits" in other
    with SqliteLedger(path) as ledger:
        resumed = [each for each in whole_records(ledger, run) if isinstance(each, RunResumed)]
    assert len(resumed) == 1
    assert len(bank.paid) == (resumed[0].decision == "approve")


def test_a_decision_about_another_request_is_refused_and_nothing_is_written(
    sandbox: Any, ledger: Any
) -> None:
    bank = Bank()
    with opened(sandbox, ledger, bank, PAYS) as session:
        run = session.run(GOAL, limits=ROOMY).run
        head = ledger.row(run)
        other = Decided(decision="approve", by="ann", sha256s=(digest(b"another"),))

        with pytest.raises(ResumeRefused, match="something else than what was decided about"):
            session.resume(run, decision=other)

        assert (ledger.row(run), bank.paid) == (head, [])


def test_a_request_that_differs_from_the_approved_one_is_not_made(sandbox: Any) -> None:
    ledger, bank = MemoryLedger(), Bank()
    with opened(sandbox, ledger, bank, "pay('INV-1')\nFINAL('x')") as session:
        run = session.run(GOAL, limits=ROOMY).run
    records = whole_records(ledger, run)
    waits = next(each for each in records if isinstance(each, CallWaiting))

    # The same record, but for the request of the call that waits.
    forged = [
        msgspec.structs.replace(
            each, request='["pay",["INV-9"],{}]', request_sha256=digest(b'["pay",["INV-9"],{}]')
        )
        if each is waits
        else each
        for each in records
    ]
    with opened(sandbox, ledger_of(run, forged), bank, "pay('INV-1')\nFINAL('x')") as session:
        with pytest.raises(ReplayDiverged):
            session.approve(run)
        assert len(whole_records(session.ledger, run)) == len(forged)
    assert bank.paid == []


def test_what_a_person_is_shown_is_what_the_digest_is_of(sandbox: Any) -> None:
    ledger, bank = MemoryLedger(), Bank()
    with opened(sandbox, ledger, bank, PAYS) as session:
        run = session.run(GOAL, limits=ROOMY).run
    forged = [
        msgspec.structs.replace(each, request='["pay",["harmless"],{}]')
        if isinstance(each, CallWaiting)
        else each
        for each in whole_records(ledger, run)
    ]

    with pytest.raises(UsageError, match="is not what its digest is of"):
        pending(ledger_of(run, forged), run)


CATCHES = "try:\n    pay('INV-1')\nexcept HostError as error:\n    print(error)\nFINAL('paid')"


@pytest.mark.parametrize("program", [CATCHES, pytest.param(BATCH, marks=pytest.mark.slow)])
def test_killed_at_any_entry_around_a_call_that_waits_it_is_made_once_or_not_at_all(
    sandbox: Any, program: str
) -> None:
    whole, bank, files = CutLedger(), Bank(), LastingAttachments()
    with opened(sandbox, whole, bank, program, attachments=files) as session:
        run = session.run(GOAL, limits=ROOMY).run
        waited = len(whole.acts)
        session.approve(run, all=True)
        paid = sorted(bank.paid)

    for at in range(1, len(whole.acts) + 1):
        ledger, again = whole.cut(at), Bank()
        if not whole_or_none(ledger, run):
            continue
        done = {each for each in calls_begun(ledger)}
        with opened(sandbox, ledger, again, program, attachments=files) as session:
            how: Any = "halt"
            for _ in range(8):
                try:
                    go_on: Any = session.resume
                    if waiting_in(ledger, run):
                        go_on = partial(session.approve, all=True)
                    ended = go_on(run, in_doubt=how)
                    how = "halt"
                except RunInDoubt as doubt:
                    # A call of a model may be repeated. An effect was begun: a person finds out.
                    how = "abandon" if any(x.kind == "effect" for x in doubt.open) else "retry"
                    continue
                assert ended is not None
                if ended.stop == "answered":
                    break
            assert ended.stop == "answered"
            made = sorted([*done, *again.paid])
            assert len(made) == len(set(made)), (at, made)
            assert set(made) <= set(paid)
            if at <= waited:
                # Nothing had been begun, so nothing was in doubt: all are made, each once.
                assert made == paid, (at, waited)
            assert session.replay(run).held


def whole_or_none(ledger: Any, run: str) -> bool:
    row = ledger.row(run)
    return row is not None and bool(row.head.count)


def calls_begun(ledger: Any) -> list[str]:
    """The invoices of the calls that the record says were begun."""
    begun = [
        str(each.request)
        for row in ledger.runs()
        for each in whole_records(ledger, row.run)
        if isinstance(each, CallHost)
    ]
    return [each.split('"')[3] for each in begun]


def test_a_decision_is_bound_to_the_run_that_was_named(sandbox: Any) -> None:
    ledger, bank = MemoryLedger(), Bank()
    same = "print(rlm_query_batched(['c', 'c'], ['1', '1']))\nFINAL('done')"
    with opened(sandbox, ledger, bank, same) as session:
        run = session.run(GOAL, limits=ROOMY)
        assert len({each.sha256 for each in run.waits}) == 1
        bound = bind(pending(ledger, run.waits[0].run), Decided(decision="approve", by="ann"))
        assert bound.run == run.waits[0].run

        one = session.approve(run.waits[0].run)

        assert one is not None
        assert (one.stop, bank.paid) == ("waiting", ["INV-1"])


def test_no_answer_is_recorded_for_a_call_that_waits(sandbox: Any) -> None:
    ledger, bank = MemoryLedger(), Bank()
    with opened(sandbox, ledger, bank, PAYS) as session:
        run = session.run(GOAL, limits=ROOMY).run

    answered = [each.name for each in whole_records(ledger, run) if isinstance(each, HostAnswered)]
    assert answered == ["look"]


@pytest.mark.parametrize(("ask", "refused"), [(True, True), (False, False)])
def test_a_script_of_a_skill_cannot_wait_for_a_person_and_is_refused(
    ask: bool, refused: bool
) -> None:
    @host_function(ask=ask)
    def pay(invoice: str) -> str:
        """Pay an invoice."""
        return invoice

    found = script_refusal(pay, b'["pay",["INV-1"],{}]')

    assert (found is not None) is refused
    assert found is None or "needs a person's word" in str(found)


def test_a_run_inside_a_session_that_waits_keeps_its_lease_to_none(sandbox: Any) -> None:
    """Another run of the session may begin meanwhile, and the first is resumed after it."""
    ledger, bank = MemoryLedger(), Bank()
    with opened(sandbox, ledger, bank, PAYS) as session:
        named = session.sessions.new().id
        run = session.run(GOAL, limits=ROOMY, session=named)
        assert run.stop == "waiting"
        ended = session.approve(run.run)
        assert ended is not None
        assert (ended.stop, bank.paid) == ("answered", ["INV-1"])
        assert session.replay(run.run).held
