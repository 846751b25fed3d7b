"""Forks: another run that grows from one, pays only for what is new, and leaves that as it is."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.attachments.builders import EVERYTHING
from tests.runtime.run.cut_runs import (
    GOAL,
    ROOMY,
    Whole,
    World,
    in_doubt,
    keys_of,
    played,
    without_time,
    world,
)
from tests.runtime.run.test_resume_budgets import spent_of

from tallystick.attachments.collect import reclaim
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.errors import RunNotFound, UsageError
from tallystick.core.records import (
    AskModel,
    CallHost,
    QueryAsked,
    ReceiptIssued,
    Record,
    RunForked,
    RunResumed,
)
from tallystick.core.resume_errors import ResumeRefused, RunInDoubt
from tallystick.core.views.open_calls import call_key, open_calls
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import ModelError
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of, whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import LastingAttachments, ledger_of
from tallystick.testing.models import ModelCall
from tallystick.testing.plans import Planned, planned, program
from tallystick.upkeep.transfer import (
    export_run_with_attachments,
    import_run_with_attachments,
    remove_run_with_attachments,
)

# Programs are run again by the guest up to the fork.
NEEDS_GUEST = True

pytestmark = pytest.mark.slow

PLAN = (
    program("import random", "n = len(context)", "print(n, random.random())"),
    program("n += send('x') + len(llm_query('one'))", "print(n)"),
    program("n += len(str(llm_query_batched(['a', 'bc', 'def'])))", "print('x' * 70_000)"),
    program("FINAL(n + len(outputs[0]) + int(random.random() * 100))"),
)
TURNS = len(PLAN)
INPUTS = [given_text("x y z")]


@pytest.fixture(scope="module")
def whole(sandbox: WasmSandbox) -> Whole:
    return played(sandbox, *PLAN, inputs=INPUTS, attachments=LastingAttachments())


def beside(
    whole: Whole, sandbox: WasmSandbox, turn: int, run: str | None = None, **more: Any
) -> World:
    """Another session over the same ledger, whose model goes on after a turn."""
    made = world(
        sandbox,
        whole.plan,
        ledger=whole.world.ledger,
        attachments=whole.world.session.attachments,
        **more,
    )
    made.plan.continue_at(turn)
    return made


def own(made: World, run: str) -> list[Record]:
    """The records that are a run's own."""
    return list(records_of(made.ledger, run))


def check_sound(made: World, run: Run) -> None:
    assert verify_ledger(made.ledger, [run.run]).first_bad is None
    report = made.session.replay(run.run)
    assert report.held, report.divergence


def only(records: list[Record], kind: type) -> list[Any]:
    return [each for each in records if isinstance(each, kind)]


# -- what it shares ----------------------------------------------------------------------------


@pytest.mark.parametrize("turn", range(TURNS + 1))
def test_a_fork_pays_only_for_what_comes_after_its_turn(
    whole: Whole, sandbox: WasmSandbox, turn: int
) -> None:
    row = whole.world.ledger.row(whole.id)
    made = beside(whole, sandbox, turn)

    fork = made.session.fork(whole.id, turn=turn)

    assert fork.answer == whole.run.answer
    assert without_time(fork.charge) == without_time(whole.run.charge)
    # The run itself is as it was.
    assert whole.world.ledger.row(whole.id) == row
    first, *rest = own(made, fork.run)
    assert isinstance(first, RunForked)
    assert (first.parent, first.turn) == (whole.id, turn)
    assert first.count <= len(whole.records)
    asked = only(rest, AskModel | QueryAsked)  # type: ignore[arg-type]
    assert len(made.model.keys) == len(asked)
    assert len(only(rest, AskModel)) == TURNS - turn
    # Under keys of its own, since it is another run.
    assert all(key.startswith(fork.run) for key in made.asked)
    assert set(made.asked) <= keys_of(fork.run, rest)
    assert len(rest) <= len(whole.records) - first.count
    check_sound(made, fork)


def test_of_a_fork_another_can_grow_before_and_behind_where_it_parted(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    for turn in range(TURNS):
        fork = beside(whole, sandbox, turn).session.fork(whole.id, turn=turn)
        for deeper in {0, max(0, turn - 1), turn, turn + 1, TURNS}:
            made = beside(whole, sandbox, deeper)

            again = made.session.fork(fork.run, turn=deeper)

            assert again.answer == whole.run.answer
            (first,) = only(own(made, again.run), RunForked)
            # It grows from the run that holds the last of what it shares.
            assert first.parent == (whole.id if deeper < turn else fork.run)
            check_sound(made, again)


def test_a_run_that_was_gone_on_with_is_forked_at_any_turn(sandbox: WasmSandbox) -> None:
    stopped = played(sandbox, *PLAN, limits=RunLimits(turns=1), inputs=INPUTS)
    session = stopped.world.session
    session.resume(stopped.id, limits=RunLimits(turns=3))
    ended = session.resume(stopped.id, limits=ROOMY)
    assert ended.stop == "answered"
    row = session.ledger.row(stopped.id)

    for turn in range(TURNS + 1):
        made = beside(stopped, sandbox, turn)
        fork = made.session.fork(stopped.id, turn=turn)
        shared = only(made.records(fork.run), RunResumed)
        if turn == 0:
            # It has the limits that the run had then.
            assert (fork.stop, fork.charge.turns) == ("max_turns", 1)
        check_sound(made, fork)
        assert len(shared) <= 2
    assert session.ledger.row(stopped.id) == row


def test_a_run_that_was_killed_is_forked_before_the_call_it_was_killed_in(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    place = next(
        n for n, each in enumerate(whole.records) if isinstance(each, AskModel) and each.turn == 3
    )
    before = whole.records[: place + 1]
    assert in_doubt(before)
    made = world(
        sandbox, whole.plan, ledger=ledger_of(whole.id, before),
        attachments=whole.world.session.attachments,
    )  # fmt: skip
    made.plan.continue_at(2)

    with pytest.raises(UsageError, match="has a call under way after turn 3"):
        made.session.fork(whole.id, turn=3)
    fork = made.session.fork(whole.id, turn=2)

    assert fork.answer == whole.run.answer
    check_sound(made, fork)
    with pytest.raises(RunInDoubt):
        made.session.resume(whole.id)


@pytest.mark.parametrize(
    "stop",
    [
        "max_turns",
        "model_error",
        "no_progress",
    ],
)
def test_a_fork_after_the_last_turn_goes_on_however_the_run_ended(
    sandbox: WasmSandbox, stop: str
) -> None:
    plan: list[Planned] = [program("n = 1", "print(n)")]
    plan += [Planned("Hm."), Planned("Well."), Planned("So.")] if stop == "no_progress" else []
    made = world(sandbox, plan)

    def before(request: ModelCall) -> None:
        if len(request.messages) > 2 and stop == "model_error":
            raise ModelError(reason="auth_failure", message="no", billed=False)

    made.model.before = before
    stopped = made.session.run(GOAL, limits=RunLimits(turns=1 if stop == "max_turns" else 30))
    assert stopped.stop == stop
    made.model.before = lambda request: None
    last = max(each.turn for each in only(made.records(stopped.run), AskModel))

    fork = made.session.fork(stopped.run, turn=last, limits=RunLimits())

    assert (fork.stop, fork.answer) == ("answered", "1")
    check_sound(made, fork)


@pytest.mark.parametrize("turn", [-1, TURNS + 1, 99])
def test_a_turn_that_a_run_does_not_have_is_refused(
    whole: Whole, sandbox: WasmSandbox, turn: int
) -> None:
    made = beside(whole, sandbox, 0)
    runs = len(made.ledger.runs())

    with pytest.raises(UsageError, match=f"has turns 1 to {TURNS}"):
        made.session.fork(whole.id, turn=turn)

    assert len(made.ledger.runs()) == runs


def test_a_run_that_is_not_there_is_not_forked(sandbox: WasmSandbox) -> None:
    with pytest.raises(RunNotFound):
        world(sandbox, PLAN).session.fork("01M7H9059YPYTCBKVW1YQJBKX4", turn=0)


def test_a_run_whose_chain_does_not_hold_is_not_forked(whole: Whole, sandbox: WasmSandbox) -> None:
    ledger = copied(whole.world.ledger)
    entries = ledger._entries[whole.id]
    body = entries[2].body
    assert body is not None
    entries[2] = msgspec.structs.replace(entries[2], body=body + b" ")
    made = world(sandbox, whole.plan, ledger=ledger)

    with pytest.raises(UsageError, match="does not hold at entry 2"):
        made.session.fork(whole.id, turn=1)


def copied(ledger: object) -> MemoryLedger:
    assert isinstance(ledger, MemoryLedger)
    made = MemoryLedger()
    made._rows, made._entries = dict(ledger._rows), copy.deepcopy(ledger._entries)
    return made


# -- what is another ---------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [0, 2])
def test_another_model_is_asked_from_there_on(
    whole: Whole, sandbox: WasmSandbox, turn: int
) -> None:
    other = planned(whole.plan, name="fake:other", place=turn)
    made = beside(whole, sandbox, turn, models={"fake:model": planned(())})
    made.session.use(other)

    fork = made.session.fork(whole.id, turn=turn)

    assert fork.answer == whole.run.answer
    assert made.model.keys == []
    (first,) = only(own(made, fork.run), RunForked)
    assert first.model == "fake:other"
    assert all(each.model == "fake:other" for each in only(own(made, fork.run), QueryAsked))
    check_sound(made, fork)
    receipt = only(own(made, fork.run), ReceiptIssued)[-1].receipt
    calls = {line.model: line.calls for line in receipt.models}
    assert calls["fake:other"] == len(other.keys)
    assert sum(calls.values()) == fork.charge.model_calls


def test_another_temperature_counts_from_the_first_call_on(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made = beside(whole, sandbox, 2)

    fork = made.session.fork(whole.id, turn=2, temperature=0.25)

    own_calls = [
        temperature
        for key, temperature in zip(made.model.keys, made.model.temperatures, strict=True)
        if "." not in key
    ]
    assert own_calls == [0.25, 0.25]
    check_sound(made, fork)


def test_other_limits_are_for_the_whole_of_it(whole: Whole, sandbox: WasmSandbox) -> None:
    made = beside(whole, sandbox, 2)

    fork = made.session.fork(whole.id, turn=2, limits=RunLimits(turns=3, tokens=10_000_000))

    assert (fork.stop, fork.charge.turns) == ("max_turns", 3)
    check_sound(made, fork)
    # And what is spent already is spent.
    none = made.session.fork(whole.id, turn=2, limits=RunLimits(turns=1))
    assert (none.stop, none.charge.turns) == ("max_turns", 2)
    check_sound(made, none)


def test_a_session_pays_for_what_is_new_in_a_fork_and_not_for_what_is_shared(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    made = beside(whole, sandbox, 2)

    fork = made.session.fork(whole.id, turn=2)

    settled = [getattr(each, "settled", None) for each in own(made, fork.run)]
    new = sum(each.usd for each in settled if each is not None)
    assert spent_of(made.session, "session").usd == new


def test_another_sandbox_cannot_grow_from_it(whole: Whole, sandbox: WasmSandbox) -> None:
    started = msgspec.structs.replace(whole.records[0], guest="0" * 64)
    made = world(
        sandbox, whole.plan, ledger=ledger_of(whole.id, [started, *whole.records[1:]]),
        attachments=whole.world.session.attachments,
    )  # fmt: skip

    with pytest.raises(ResumeRefused, match="another version of the sandbox"):
        made.session.fork(whole.id, turn=1)

    assert len(made.ledger.runs()) == 1


# -- cut off -----------------------------------------------------------------------------------


def cut_fork(ledger: object, run: str, at: int) -> MemoryLedger:
    """The ledger as it was when a fork had so many entries of its own."""
    made = copied(ledger)
    entries = made._entries[run][:at]
    head = Head(count=at, hash=entries[-1].hash)
    made._entries[run] = entries
    made._rows[run] = msgspec.structs.replace(made._rows[run], head=head)
    return made


def test_a_fork_that_was_cut_off_goes_on_from_every_place(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    first = beside(whole, sandbox, 1)
    fork = first.session.fork(whole.id, turn=1)
    count = len(own(first, fork.run))

    for at in range(1, count + 1):
        ledger = cut_fork(first.ledger, fork.run, at)
        recorded = whole_records(ledger, fork.run)
        made = world(
            sandbox, whole.plan, ledger=ledger, recorded=recorded,
            attachments=whole.world.session.attachments,
        )  # fmt: skip

        run = made.session.resume(fork.run, in_doubt="retry")

        assert run.answer == fork.answer
        # Nothing is asked for again but the effect that is in doubt, under the key that it had.
        doubtful = [each for each in open_calls(recorded) if isinstance(each, CallHost)]
        again = {call_key(fork.run, each.intent) for each in doubtful}
        before = keys_of(fork.run, own(first, fork.run)[:at])
        assert not set(made.asked) & (before - again)
        assert again <= set(made.effects.keys)
        if not in_doubt(recorded):
            assert without_time(run.charge) == without_time(fork.charge)
        check_sound(made, run)


# -- attachments -------------------------------------------------------------------------------


@pytest.fixture
def on_disk(sandbox: WasmSandbox, tmp_path: Path) -> Iterator[Whole]:
    plan = (
        program("n = len(attachments.put('k' * 70_000)['id'])", "print('x' * 70_000)"),
        program("n += len(llm_query('long one'))", "print(n)"),
        program("FINAL(n + len(outputs[0]) + len(context))"),
    )
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        made = played(
            sandbox, *plan, ledger=ledger, inputs=[given_text("x y z " * 20_000)],
            grants=["attachments.read", "attachments.write"],
        )  # fmt: skip
        yield made
        made.world.session.close()


def test_a_fork_holds_what_it_needs_and_its_parent_stays(
    sandbox: WasmSandbox, on_disk: Whole
) -> None:
    session, attachments = on_disk.world.session, on_disk.world.session.attachments
    assert isinstance(attachments, SqliteAttachments)
    on_disk.world.plan.continue_at(2)
    fork = session.fork(on_disk.id, turn=2)
    assert fork.answer == on_disk.run.answer

    with pytest.raises(UsageError, match=f"run {fork.run} grew from it"):
        remove_run_with_attachments(session.ledger, attachments, on_disk.id)
    # Even if the session of the parent holds nothing any more.
    started = on_disk.records[0]
    attachments.forget_session(started.session_id)  # type: ignore[union-attr]
    reclaim(attachments, policy=EVERYTHING)

    assert session.replay(fork.run).held
    deeper = session.fork(fork.run, turn=1)
    assert session.replay(deeper.run).held

    for run in (deeper.run, fork.run, on_disk.id):
        remove_run_with_attachments(session.ledger, attachments, run)
    reclaim(attachments, policy=EVERYTHING)
    assert list(attachments.files.ids()) == []
    assert list(session.ledger.runs()) == []


def test_a_fork_holds_nothing_that_came_after_its_turn(
    sandbox: WasmSandbox, on_disk: Whole
) -> None:
    session = on_disk.world.session
    on_disk.world.plan.continue_at(0)
    fork = session.fork(on_disk.id, turn=0, limits=RunLimits(turns=0))
    (first,) = only(own(on_disk.world, fork.run), RunForked)
    held = session.attachments.references(first.session_id)

    # What it was given, and nothing that programs put or printed.
    assert [each.ref.byte_len for each in held] == [len("x y z " * 20_000)]


def test_a_fork_that_was_moved_goes_on_where_it_was_imported(
    sandbox: WasmSandbox, on_disk: Whole, tmp_path: Path
) -> None:
    session = on_disk.world.session
    on_disk.world.plan.continue_at(1)
    fork = session.fork(on_disk.id, turn=1, limits=RunLimits(turns=2, tokens=10_000_000))
    assert fork.stop == "max_turns"
    moved = io.BytesIO()
    export_run_with_attachments(session.ledger, session.attachments, fork.run, moved, move=True)  # type: ignore[arg-type]
    moved.seek(0)
    made = world(
        sandbox, on_disk.plan, ledger=SqliteLedger(tmp_path / "there.db"),
        recorded=whole_records(session.ledger, fork.run),
    )  # fmt: skip
    import_run_with_attachments(made.ledger, made.session.attachments, moved)  # type: ignore[arg-type]

    run = made.session.resume(fork.run, limits=ROOMY)

    assert run.answer == on_disk.run.answer
    check_sound(made, run)
    made.session.close()
