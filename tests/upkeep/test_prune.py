"""Pruning: bodies go, receipts and proofs stay, and what is still needed is kept."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.ledger.builders import draft, drafted, run_id
from tests.upkeep.transfer_builders import Place, exported, in_files, session_id, started

from tallystick.attachments.collect import EmptyRootSet, ReclaimPolicy, reclaim
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.client import Session
from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.chain import Draft, Head
from tallystick.core.charge import Charge
from tallystick.core.errors import InvalidLimit, RunNotFound
from tallystick.core.records import (
    STEP_SCHEMA,
    AttachmentRef,
    Caller,
    CallHost,
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunResumed,
    RunStarted,
    StepEntered,
    StepLeft,
    StepReceipt,
    StopReason,
    decode_record,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.core.views.receipt import Tally, step_lines
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of, resolve_run
from tallystick.runtime.runs.lock import lock_run
from tallystick.runtime.spend.scopes import DEPLOYMENT, SharedCap
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.upkeep.proof import head_of, proof_of, verify_proof
from tallystick.upkeep.prune import Kept, Pruned, Pruner, age_ms, disk_bytes, read_chain
from tallystick.upkeep.transfer import import_run_with_attachments

DAY = 86_400_000
NOW = 1_000 * DAY
GIVEN = b"the secret of the harbour\n" * 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """A ledger with what pruning needs."""

    place: Place
    ledger: SqliteLedger
    kept: SqliteAttachments
    scopes: SharedScopes

    def pruner(self) -> Pruner:
        return Pruner(self.ledger, self.kept, self.scopes, clock=lambda: NOW)

    def prune(self, run: str) -> Pruned | Kept:
        return self.pruner().prune(run, why="a test")

    def tags(self, run: str) -> list[str | None]:
        """The records that are left, by their kind; None where one was taken out."""
        return [
            None if each.body is None else type(decode_record(each.body)).__name__
            for each in self.ledger.read(run)
        ]


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    place = in_files(tmp_path)
    assert isinstance(place.ledger, SqliteLedger)
    assert isinstance(place.kept, SqliteAttachments)
    with SharedScopes(place.ledger.file) as scopes:
        yield Kit(place=place, ledger=place.ledger, kept=place.kept, scopes=scopes)
    place.close()


def the_end(first: Draft, stop: StopReason = "answered", *, receipt: bool = True) -> list[Record]:
    begun = decode_record(first.body)
    end = RunEnded(stop=stop, detail="", answer="Greco", partial=False, charge=Charge(turns=1))
    if not receipt:
        return [end]
    assert isinstance(begun, RunStarted)
    return [ReceiptIssued(receipt=Tally().receipt(begun, end)), end]


def made(
    kit: Kit,
    number: int,
    *between: Record,
    stop: StopReason | None = "answered",
    given: bytes | None = None,
    receipt: bool = True,
) -> str:
    """A run of a start, two records, those that are given, and an end."""
    run, session = run_id(number), session_id(number)
    batch = kit.place.held(session).batch()
    refs: list[AttachmentRef] = [] if given is None else [batch.add(given)]
    first = started(session, refs)
    end = [] if stop is None else the_end(first, stop, receipt=receipt)
    kit.ledger.append(
        run,
        [first, draft(1), draft(2), *map(drafted, [*between, *end])],
        expected=Head.of_nothing(),
        fence=kit.ledger.claim(run, create=True),
        forced=False,
        also=batch.commit,
    )
    return run


def grown(kit: Kit, number: int, parent: str) -> str:
    """A run that grew from the first two entries of another."""
    run = run_id(number)
    root = list(kit.ledger.read(parent, stop=2))[-1].hash
    fork = RunForked(
        parent=parent, count=2, hash=root, turn=1, at=number, session_id=session_id(number)
    )
    end = the_end(started(session_id(number), []))
    kit.ledger.append(
        run,
        list(map(drafted, [fork, *end])),
        expected=Head(count=0, hash=root),
        fence=kit.ledger.claim(run, create=True, grown_from=root),
        forced=False,
    )
    return run


def entered(path: str, *, missed: int = 0) -> StepEntered:
    return StepEntered(
        missed=missed,
        path=path,
        name=path,
        function="f",
        key="",
        model=None,
        tokens_max=None,
        usd_max=None,
        error_boundary="fail",
        entered_at=1,
    )


def left(path: str, *, value: str = "") -> StepLeft:
    return StepLeft(
        value=value,
        receipt=StepReceipt(
            schema=STEP_SCHEMA,
            chain="",
            path=path,
            name=path,
            function="f",
            model=None,
            input_tokens=1,
            output_tokens=1,
            usd=1,
            unpriced=0,
            llm_calls=1,
            status="completed",
            error=None,
            started_at=1,
            completed_at=2,
            runs=(),
            runs_begun=0,
            unfinished=0,
        ),
    )


def chain_of(kit: Kit, number: int, *records: Record) -> str:
    run = run_id(number)
    kit.ledger.append(
        run,
        list(map(drafted, records)),
        expected=Head.of_nothing(),
        fence=kit.ledger.claim(run, create=True),
        forced=False,
    )
    return run


def begun_by(kit: Kit, number: int, *, steps: str | None = None, caller: str | None = None) -> str:
    """A run that says who began it."""
    first = decode_record(started(session_id(number), []).body)
    assert isinstance(first, RunStarted)
    first = msgspec.structs.replace(
        first,
        parent=steps,
        caller=None if caller is None else Caller(run=caller, intent=1, item=0, depth=1),
    )
    return chain_of(kit, number, first, *the_end(drafted(first)))


# -- what stays and what goes ---------------------------------------------------------------------


def test_a_pruned_run_is_proven_and_says_what_it_cost(sandbox: WasmSandbox, tmp_path: Path) -> None:
    secret = "marble wren and the officer"
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        model = ScriptedModel([ScriptedReply(text=block(f"FINAL({secret!r})"))])
        session = Session(model=model, ledger=ledger, sandbox=sandbox)
        run = session.run("which one is it?", inputs=[given_text(GIVEN.decode())]).run
        head = head_of(ledger, run, at_ms=NOW)
        proof = proof_of(ledger, run, 1)
        receipts = [each for each in records_of(ledger, run) if isinstance(each, ReceiptIssued)]
        count = head.count

        with SharedScopes(ledger.file) as scopes, SqliteAttachments(ledger.file) as kept:
            pruner = Pruner(ledger, kept, scopes, clock=lambda: NOW)
            would = pruner.look(run)
            done = pruner.prune(run, why="a test")
            assert pruner.shrink() is None
            assert kept.references() == []

        assert done == would
        assert isinstance(done, Pruned)
        assert (done.bodies, done.attachments) == (count - 1, 1)
        report = verify_ledger(ledger, heads={run: head.head})
        assert (report.ok, report.entries, report.erased) == (True, count + 1, count - 1)
        assert verify_proof(proof, head, key=None).ok
        assert verify_proof(proof_of(ledger, run, 1), head_of(ledger, run, at_ms=NOW), key=None).ok
        record = RunPruned(
            at=NOW, before=count, removed=done.bodies, bytes=done.bytes, why="a test"
        )
        assert list(records_of(ledger, run)) == [*receipts, record]
        with pytest.raises(ResumeRefused, match="was pruned"):
            session.resume(run)
    # Nothing of what was said is left on the disk.
    for path in tmp_path.rglob("*"):
        if path.is_file():
            found = path.read_bytes()
            assert secret.encode() not in found
            assert GIVEN[:25] not in found


def test_attachments_that_somebody_else_holds_stay(kit: Kit) -> None:
    first, second = made(kit, 1, given=b"shared"), made(kit, 2, given=b"shared")
    only = made(kit, 3, given=GIVEN)

    looked = kit.pruner()
    would = [looked.look(run) for run in (only, second, first)]
    done = [kit.prune(run) for run in (only, second, first)]

    assert done == would
    assert [each.attachment_bytes for each in done if isinstance(each, Pruned)] == [
        len(GIVEN), 0, 6,
    ]  # fmt: skip
    assert kit.kept.references() == []


def test_a_session_that_two_runs_name_is_neither_of_theirs(kit: Kit) -> None:
    first = made(kit, 1, given=b"some")
    chain_of(kit, 2, decode_record(started(session_id(1), []).body))

    done = kit.prune(first)

    assert isinstance(done, Pruned)
    assert done.attachments == 0
    assert len(kit.kept.references(session_id(1))) == 1


def test_a_run_from_before_there_were_receipts_gets_one(kit: Kit) -> None:
    run = made(kit, 1, receipt=False)

    kit.prune(run)

    assert kit.tags(run) == [None, None, None, None, "ReceiptIssued", "RunPruned"]
    assert verify_ledger(kit.ledger).ok


def test_steps_keep_their_receipts(kit: Kit) -> None:
    first = entered("a", missed=3)
    chain = chain_of(kit, 1, first, entered("a/b"), left("a/b"), left("a"))
    lines = step_lines(records_of(kit.ledger, chain))

    done = kit.prune(chain)

    assert isinstance(done, Pruned)
    assert kit.tags(chain) == ["StepEntered", None, "StepLeft", "StepLeft", "RunPruned"]
    assert step_lines(records_of(kit.ledger, chain)) == lines
    assert list(kit.pruner().chosen(keep=0)) == []


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_step_gave_goes_and_its_receipt_is_written_again(kit: Kit, killed: bool) -> None:
    said = [left("a/b", value='"harbour"'), left("a", value='"harbour"'), left("a/c")]
    chain = chain_of(kit, 1, entered("a"), entered("a/b"), *said)
    before = step_lines(records_of(kit.ledger, chain))
    if killed:
        row = kit.ledger.row(chain)
        assert row is not None
        kit.pruner().mark(read_chain(kit.ledger, row), why="")

    kit.prune(chain)

    left_over = ["StepLeft", "StepLeft", "StepLeft", "RunPruned"]
    assert kit.tags(chain) == [None, None, None, None, *left_over]
    after = step_lines(records_of(kit.ledger, chain))
    assert {each.path: each.receipt for each in after} == {
        each.path: each.receipt for each in before
    }
    assert not any(b"harbour" in (each.body or b"") for each in kit.ledger.read(chain))
    assert verify_ledger(kit.ledger).ok


def test_the_file_shrinks_by_what_went(kit: Kit) -> None:
    runs = [made(kit, number, draft_of(200_000)) for number in range(10)]
    kit.ledger.file.sweep()
    before = disk_bytes(kit.ledger)
    pruner = kit.pruner()

    gone = sum(done.bytes for run in runs if isinstance(done := pruner.prune(run, why=""), Pruned))
    assert pruner.shrink() is None

    assert gone > 2_000_000
    assert before - disk_bytes(kit.ledger) > 0.95 * gone


def draft_of(size: int) -> Record:
    return decode_record(draft(4, text="x" * size).body)


def test_a_file_that_another_process_reads_keeps_its_size_and_that_is_said(
    kit: Kit, tmp_path: Path
) -> None:
    made(kit, 1)
    with SqliteLedger(kit.ledger.path, busy_seconds=0.05) as hasty:
        pruner = Pruner(hasty, SqliteAttachments(hasty.file), kit.scopes, clock=lambda: NOW)
        reader = sqlite3.connect(hasty.path)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchall()
        assert isinstance(pruner.prune(run_id(1), why=""), Pruned)

        note = pruner.shrink()

        reader.close()
        assert note is not None
        assert "keeps its size for now" in note
        assert pruner.shrink() is None


# -- what is kept, and why -------------------------------------------------------------------------

EFFECT = CallHost(intent=9, program=1, index=0, name="s", request_sha256="0", policy="effect")


def test_what_may_still_be_needed_is_kept_with_a_reason(kit: Kit) -> None:
    unended = made(kit, 1, stop=None)
    doubtful = made(kit, 2, EFFECT, stop="in_doubt")
    damaged = made(kit, 3)
    with kit.ledger.file.writing(forced=False) as db:
        db.execute("UPDATE body SET body = ? WHERE run = ? AND seq = 1", (b"{}", damaged))
    parent = made(kit, 4)
    fork = grown(kit, 5, parent)
    steps = chain_of(kit, 6, entered("a"))
    inside = begun_by(kit, 7, steps=steps)
    child = begun_by(kit, 8, caller=unended)
    held = made(kit, 9)
    scopes = SharedScopes(kit.ledger.file)
    scopes.record_total(DEPLOYMENT, Budget.of(usd=1))
    run_scopes = SharedCap(scopes, run=held)
    run_scopes.reserve(Amount(usd=5, tokens=1, model_calls=1), usd_waived=False)
    running = made(kit, 10)
    before = {row.run: row.head for row in kit.ledger.runs()}

    with lock_run(kit.ledger, running):
        found = list(kit.pruner().chosen(keep=0))
        done = {run: kit.prune(run) for run in before if run != fork}

    reasons = {each.run: each.why for each in found if isinstance(each, Kept)}
    assert reasons == {
        unended: "has not ended: it can be resumed, or removed",
        doubtful: "has calls in doubt: tally ls --in-doubt lists them",
        damaged: "does not hold: entry 1: its body is not the one that its header binds",
        steps: "has steps that are open",
        inside: f"was begun in steps {steps}, which are open",
        child: f"was begun by run {unended}, which has not ended",
        held: "holds some of the shared total: tally resolve closes that",
        running: "is running",
    }
    # The fork would go first, and then its parent is not needed. Alone, the parent is.
    assert [each.run for each in found if isinstance(each, Pruned)] == [fork, parent]
    assert done.pop(parent) == Kept(run=parent, why=f"is what run {fork} grew from, which needs it")
    assert {run: each.why for run, each in done.items() if isinstance(each, Kept)} == reasons
    assert {row.run: row.head for row in kit.ledger.runs()} == before
    scopes.close()


def test_a_parent_may_go_when_its_forks_have_gone(kit: Kit) -> None:
    parent = made(kit, 1)
    fork = grown(kit, 2, parent)
    pruner = kit.pruner()

    assert isinstance(pruner.prune(parent, why=""), Kept)
    assert isinstance(pruner.prune(fork, why=""), Pruned)
    assert isinstance(pruner.prune(parent, why=""), Pruned)

    assert kit.tags(fork) == ["RunForked", "ReceiptIssued", None, "RunPruned"]
    assert verify_ledger(kit.ledger).ok


def test_copies_and_runs_that_were_moved_away_go_without_a_record(kit: Kit, tmp_path: Path) -> None:
    ended, cut_off = made(kit, 1, given=b"one"), made(kit, 2, stop=None, given=b"two")
    (tmp_path / "there").mkdir()
    there = in_files(tmp_path / "there")
    for run in (ended, cut_off):
        file = tmp_path / f"{run}.tally"
        file.write_bytes(exported(kit.place, run, move=True))
        import_run_with_attachments(there.ledger, there.kept, file)
        file.write_bytes(exported(there, run))
    (tmp_path / "third").mkdir()
    third = in_files(tmp_path / "third")
    for run in (ended, cut_off):
        import_run_with_attachments(third.ledger, third.kept, tmp_path / f"{run}.tally")
    there.close()

    for place in (kit.place, third):
        assert isinstance(place.ledger, SqliteLedger)
        assert isinstance(place.kept, SqliteAttachments)
        with SharedScopes(place.ledger.file) as scopes:
            pruner = Pruner(place.ledger, place.kept, scopes, clock=lambda: NOW)
            done = [pruner.prune(run, why="") for run in (ended, cut_off)]
        assert [each.attachments for each in done if isinstance(each, Pruned)] == [1, 1]
        report = verify_ledger(place.ledger)
        assert (report.ok, report.erased) == (True, 7)
        assert place.kept.references() == []
    third.close()


def test_a_run_that_is_not_here_is_not_found(kit: Kit) -> None:
    for name in ("", "../../etc", "x" * 500, run_id(1).lower(), "\0"):
        with pytest.raises(RunNotFound):
            kit.prune(name)
        with pytest.raises(RunNotFound):
            kit.pruner().look(name)
    assert not list(kit.ledger.path.parent.glob("*-runs/*"))
    assert kit.prune(run_id(1)) == Kept(run=run_id(1), why="is not here any more")


# -- which ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hours"), [("12h", 12), ("30d", 720), ("2w", 336), ("0h", 0), ("999999w", 167_999_832)]
)
def test_an_age_is_hours_days_or_weeks(text: str, hours: int) -> None:
    assert age_ms(text) == hours * 3_600_000


@pytest.mark.parametrize(
    "text",
    ["", "30", "d", "30 d", " 30d", "30d ", "30D", "-1d", "+1d", "1.5d", "1e3d", "007d", "1d12h",
     "30m", "30s", "٣d", "30d\n", "1000000d", "9" * 400 + "d"],
)  # fmt: skip
def test_anything_else_is_no_age(text: str) -> None:
    with pytest.raises(InvalidLimit, match="12h, 30d, 2w"):
        age_ms(text)


def test_runs_are_chosen_by_age_and_by_number_the_newest_first(kit: Kit) -> None:
    runs = [made(kit, NOW - days * DAY) for days in (50, 40, 30, 20)]
    again = made(kit, NOW - 45 * DAY, RunResumed(at=NOW - DAY, fence=2))

    def chosen(**how: int) -> list[str]:
        return [each.run for each in kit.pruner().chosen(**how)]

    assert chosen(older_than_ms=30 * DAY) == [runs[2], runs[1], runs[0]]
    assert chosen(older_than_ms=30 * DAY + 1) == [runs[1], runs[0]]
    assert chosen(older_than_ms=0) == [runs[3], runs[2], runs[1], again, runs[0]]
    assert chosen(keep=2) == [runs[1], again, runs[0]]
    assert chosen(keep=0, older_than_ms=45 * DAY) == [runs[0]]
    assert chosen(keep=4, older_than_ms=DAY) == [runs[0]]
    assert chosen(keep=99) == []


def test_runs_that_programs_began_are_kept_with_the_run_that_began_them(kit: Kit) -> None:
    """They are not listed, so whoever keeps so many does not count them."""
    old = made(kit, 1)
    olds = [begun_by(kit, 2, caller=old), begun_by(kit, 3, caller=old)]
    inner = begun_by(kit, 4, caller=olds[0])
    new = made(kit, 5)
    news = [begun_by(kit, number, caller=new) for number in (6, 7, 8)]
    # One whose caller is gone is kept with nobody.
    orphan = begun_by(kit, 9, caller=run_id(77))

    def chosen(keep: int) -> list[str]:
        return [each.run for each in kit.pruner().chosen(keep=keep)]

    everything = [orphan, *reversed(news), new, inner, *reversed(olds), old]
    assert chosen(0) == everything
    assert chosen(1) == [orphan, inner, *reversed(olds), old]
    assert chosen(2) == [orphan]
    assert chosen(9) == [orphan]


def test_runs_that_call_each_other_do_not_keep_the_survey_going(kit: Kit) -> None:
    first = begun_by(kit, 1, caller=run_id(2))
    second = begun_by(kit, 2, caller=first)

    assert [each.run for each in kit.pruner().chosen(keep=1)] == [second, first]


@pytest.mark.parametrize("killed", [False, True])
def test_a_child_that_was_pruned_is_still_known_as_one(kit: Kit, killed: bool) -> None:
    parent = made(kit, 1)
    child = begun_by(kit, 2, caller=parent)
    if killed:
        row = kit.ledger.row(child)
        assert row is not None
        kit.pruner().mark(read_chain(kit.ledger, row), why="")

    for run in (child, parent):
        assert isinstance(kit.prune(run), Pruned)

    assert [each.run for each in kit.ledger.runs() if each.caller is not None] == [child]
    assert resolve_run(kit.ledger, "last") == parent
    (record,) = [each for each in records_of(kit.ledger, child) if isinstance(each, RunPruned)]
    assert record.caller == parent
    assert verify_ledger(kit.ledger).ok


def test_a_run_that_a_fork_is_about_to_grow_from_is_kept(kit: Kit) -> None:
    """A pruner that has looked before does not believe what it saw."""
    parent = made(kit, 1)
    pruner = kit.pruner()
    assert isinstance(pruner.look(parent), Pruned)
    *_, last = kit.ledger.read(parent, stop=2)
    kit.ledger.claim(run_id(2), create=True, grown_from=last.hash)

    why = f"is what run {run_id(2)} grew from, which needs it"
    assert pruner.prune(parent, why="") == Kept(run=parent, why=why)
    kit.ledger.remove(run_id(2))
    assert isinstance(pruner.prune(parent, why=""), Pruned)


def test_a_fork_that_began_to_grow_since_the_last_look_is_seen(kit: Kit) -> None:
    """It was there before, and said nothing yet."""
    parent = made(kit, 1)
    *_, last = kit.ledger.read(parent, stop=2)
    fence = kit.ledger.claim(run_id(2), create=True, grown_from=last.hash)
    pruner = kit.pruner()
    assert isinstance(pruner.look(parent), Kept)
    fork = RunForked(parent=parent, count=2, hash=last.hash, turn=1, at=2, session_id=session_id(2))
    before = Head(count=0, hash=last.hash)
    kit.ledger.append(run_id(2), [drafted(fork)], expected=before, fence=fence, forced=False)

    why = f"is what run {run_id(2)} grew from, which needs it"
    assert pruner.prune(parent, why="") == Kept(run=parent, why=why)


def test_the_file_is_not_written_anew_while_somebody_works(kit: Kit) -> None:
    run, other = made(kit, 1), made(kit, 2, stop=None)
    pruner = kit.pruner()
    assert isinstance(pruner.prune(run, why=""), Pruned)

    with lock_run(kit.ledger, other):
        note = pruner.shrink()

    assert note == f"the ledger's file keeps its size for now: run {other} is running"
    assert pruner.shrink() is None


# -- in the middle ---------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", ["marked", "marked twice", "erased"])
def test_a_process_that_dies_in_the_middle_has_begun_it(kit: Kit, parts: str) -> None:
    run = made(kit, 1, given=GIVEN)
    row = kit.ledger.row(run)
    assert row is not None
    plan = read_chain(kit.ledger, row)

    kit.pruner().mark(plan, why="first")
    if parts == "marked twice":
        # The second one was killed before it had erased anything, too.
        row = kit.ledger.row(run)
        assert row is not None
        kit.pruner().mark(read_chain(kit.ledger, row), why="second")
    if parts == "erased":
        kit.pruner().erase(plan)
    assert verify_ledger(kit.ledger).ok
    chosen = list(kit.pruner().chosen(keep=0))
    again = kit.prune(run)

    assert kit.tags(run) == [None, None, None, "ReceiptIssued", None, "RunPruned"]
    assert [each.why for each in records_of(kit.ledger, run) if isinstance(each, RunPruned)] == [
        "first"
    ]
    assert kit.kept.references() == []
    if parts == "erased":
        # Nobody knows any more what it held: a sweep finds that.
        assert chosen == []
        assert again == Kept(run=run, why="was pruned before", pruned=True)
        policy = ReclaimPolicy(grace_period_ms=0, empty_root_set=EmptyRootSet.AUTHORIZE_DELETE_ALL)
        assert reclaim(kit.kept, policy=policy).reclaimed_bytes == len(GIVEN)
    else:
        assert [each.run for each in chosen] == [run]
        assert isinstance(again, Pruned)
        assert again.attachment_bytes == len(GIVEN)
    assert not [path for path in kit.kept.files.ids()]


PRUNES = """
import sys
from pathlib import Path
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.upkeep.prune import Pruned, Pruner
with SqliteLedger(Path(sys.argv[1])) as ledger, SqliteAttachments(ledger.file) as kept:
    with SharedScopes(ledger.file) as scopes:
        pruner = Pruner(ledger, kept, scopes, clock=lambda: 1)
        print("ready", flush=True)
        sys.stdin.readline()
        runs = [row.run for row in ledger.runs()]
        print(sum(isinstance(pruner.prune(run, why="x"), Pruned) for run in runs))
"""


def test_two_processes_prune_each_run_once(kit: Kit) -> None:
    runs = [made(kit, number, given=b"%d" % number * 50) for number in range(30)]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PRUNES, str(kit.ledger.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for each in both:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"

    told = [""] * 2

    def talk(place: int) -> None:
        told[place] = both[place].communicate("go\n", timeout=60)[0]

    threads = [threading.Thread(target=talk, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(map(int, told)) == 30
    for run in runs:
        assert kit.tags(run) == [None, None, None, "ReceiptIssued", None, "RunPruned"]
    assert verify_ledger(kit.ledger).ok
    assert kit.kept.references() == []


@pytest.mark.slow
def test_a_thousand_runs_are_looked_through_quickly(kit: Kit) -> None:
    body = draft_of(2_000)
    for number in range(1_000):
        made(kit, number, *[body] * 10)
    began = time.perf_counter()

    found = list(kit.pruner().chosen(keep=10))

    took = time.perf_counter() - began
    # About a second on a quiet machine.
    assert took < 8
    assert len(found) == 990
    assert all(isinstance(each, Pruned) for each in found)
