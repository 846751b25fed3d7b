"""Going on with runs while others live, and with runs inside them: refused before it harms."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.run.cut_children import (
    GOAL,
    ONE,
    TOTAL,
    WIDE,
    Said,
    cut_off,
    holds,
    is_root,
    opened,
    says,
    spent,
)

from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.errors import LedgerConflict, RunNotFound, UsageError
from tallystick.core.history import History
from tallystick.core.records import (
    ChildBegun,
    ChildEnded,
    HostAnswered,
    ModelReplied,
    ProgramFinished,
    Record,
)
from tallystick.core.resume_errors import ResumeRefused, RunInDoubt
from tallystick.core.views.open_calls import Lookup
from tallystick.ledger.port import RunRow
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model import UNKNOWN
from tallystick.model.port import ModelReply
from tallystick.runtime.calls.functions import RunFunction, host_function
from tallystick.runtime.runs.history import (
    records_of,
    require_no_children,
    require_not_awaited,
    resolve_run,
)
from tallystick.runtime.runs.lock import is_running, lock_run
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import ModelCall, ModelDouble, Pauses, block
from tallystick.upkeep.prune import Kept, Pruner
from tallystick.upkeep.transfer import remove_run_with_attachments

KID = "FINAL('kid')"


def answers(*programs: str) -> Said:
    """One program for each turn of a run."""
    return lambda call: block(programs[call.turn])


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db") as made:
        yield made


def at_rest(ledger: SqliteLedger) -> list[RunRow]:
    return list(ledger.runs())


# -- while its owner lives -----------------------------------------------------------------------


@contextmanager
def living(
    sandbox: WasmSandbox, path: Path, pauses: Pauses, *programs: str, **more: Any
) -> Iterator[tuple[str, list[Run | BaseException]]]:
    """A run whose owner waits in its first call. Gives its id, and later what came of it."""
    model = ModelDouble(answers(*programs), before=pauses)
    came: list[Run | BaseException] = []
    with SqliteLedger(path) as ledger, opened(sandbox, ledger, model, **more) as session:

        def works() -> None:
            try:
                came.append(session.run(GOAL, limits=WIDE))
            except BaseException as error:
                came.append(error)

        thread = threading.Thread(target=works)
        thread.start()
        try:
            assert pauses.wait()
            (row,) = ledger.runs()
            yield row.run, came
        finally:
            pauses.allow(9)
            thread.join(20)


def test_a_thief_that_is_refused_leaves_the_run_to_whoever_works_on_it(
    sandbox: WasmSandbox, ledger: SqliteLedger
) -> None:
    pauses = Pauses()
    with living(sandbox, ledger.path, pauses, "FINAL('done')") as (run, came):
        with opened(sandbox, ledger, says("FINAL('another')")) as session:
            with pytest.raises(RunInDoubt):
                session.resume(run, steal=True)
            assert is_running(ledger, run)
            # So whoever does not mean to take it does not.
            with pytest.raises(UsageError, match="is running"):
                session.resume(run, in_doubt="retry")
        pauses.allow()

    (ended,) = came
    assert isinstance(ended, Run)
    assert ended.answer == "done"
    assert not is_running(ledger, run)
    assert not list(ledger.path.with_name("ledger.db-runs").iterdir())


def test_what_a_living_owner_wrote_during_a_lookup_is_not_gone_over(
    sandbox: WasmSandbox, ledger: SqliteLedger
) -> None:
    """The call that was looked for has been answered and paid, and the next one is held."""
    pauses, programs = Pauses(), ("print(1)", "FINAL('done')")

    async def find(name: str, key: str) -> ModelReply | Lookup:
        pauses.allow()
        assert await asyncio.to_thread(pauses.wait)
        return UNKNOWN

    with living(sandbox, ledger.path, pauses, *programs, total=TOTAL) as (run, came):
        session = opened(sandbox, ledger, says(KID), total=TOTAL, lookup=find)
        with pytest.raises(LedgerConflict) as caught:
            session.resume(run, steal=True, in_doubt="retry")
        paid, held = spent(ledger), holds(ledger)

    assert caught.value.field == "head"
    (replied,) = [each for each in records_of(ledger, run) if isinstance(each, ModelReplied)]
    assert replied.settled is not None
    # What the owner spent is spent, and what it holds is held: it was not taken for another call's.
    assert paid == replied.settled.usd
    assert [(each.row.run, each.row.intent, each.owner_dead) for each in held] == [(run, 2, False)]
    assert isinstance(came[0], LedgerConflict)


# -- which run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../victim", "../victim", "a/b", "x\0y", "x" * 300, "", "."])
def test_what_is_no_id_is_no_run_and_no_file(
    sandbox: WasmSandbox, tmp_path: Path, name: str
) -> None:
    victims = [tmp_path / "victim.lock", tmp_path / "data" / "victim.lock"]
    with SqliteLedger(tmp_path / "data" / "ledger.db") as ledger:
        assert at_rest(ledger) == []
        for victim in victims:
            victim.write_text("precious")
        with opened(sandbox, ledger, says(KID)) as session:
            for steal in (False, True):
                with pytest.raises(RunNotFound):
                    session.resume(name, steal=steal)

    assert [each.read_text() for each in victims] == ["precious"] * 2
    assert not (tmp_path / "data" / "ledger.db-runs").exists()


def test_the_last_run_is_no_child_that_waits_for_the_model(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    model = ModelDouble(says("FINAL(rlm_query_batched(['child one', 'child two']))"))
    # There is room for the root, and then for nobody.
    model.admit = lambda before: model.hang() if before else None
    folder = cut_off(sandbox, tmp_path, model)

    with SqliteLedger(folder / "ledger.db") as ledger:
        parent, *waiting = ledger.runs()
        assert [row.head.count for row in waiting] == [0, 0]

        assert resolve_run(ledger, "last") == parent.run
        # One that nobody says they began is a run that was cut off early.
        alone = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
        ledger.claim(alone, create=True)
        assert resolve_run(ledger, "last") == alone


# -- cut off inside a child ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def inside(sandbox: WasmSandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed while its child waited for its second reply."""
    return cut_off(sandbox, tmp_path_factory.mktemp("in"), ModelDouble(says(ONE, "print(1)", None)))


@pytest.fixture(scope="module")
def stopped(sandbox: WasmSandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cancelled there: the child and its parent have ends, and are gone on with."""
    folder = tmp_path_factory.mktemp("stopped")
    model = ModelDouble(says(ONE, "print(1)", None))
    with SqliteLedger(folder / "ledger.db") as ledger, opened(sandbox, ledger, model) as session:

        async def cancelled() -> None:
            running = asyncio.ensure_future(session.arun(GOAL, limits=WIDE))
            assert await asyncio.to_thread(model.wait_until_hung)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        asyncio.run(cancelled())
    return folder


@pytest.fixture(params=["inside", "stopped"])
def cut(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteLedger]:
    shutil.copytree(request.getfixturevalue(request.param), tmp_path / "cut")
    with SqliteLedger(tmp_path / "cut" / "ledger.db") as ledger:
        yield ledger


def test_a_run_that_was_cut_off_inside_a_child_is_forked_before_that_or_not_at_all(
    sandbox: WasmSandbox, cut: SqliteLedger
) -> None:
    rows = at_rest(cut)
    parent, child = (row.run for row in rows)

    with opened(sandbox, cut, says(ONE, KID)) as session:
        with pytest.raises(UsageError, match=f"was cut off inside run {child} in turn 1; resume"):
            session.fork(parent, turn=1)
        assert at_rest(cut) == rows
        fork = session.fork(parent, turn=0)

        assert fork.answer == "kid"
        assert session.replay(fork.run).held
    # It has a child of its own.
    assert len(at_rest(cut)) == 4
    assert at_rest(cut)[:2] == rows


def test_it_may_be_forked_there_once_it_was_gone_on_with(
    sandbox: WasmSandbox, cut: SqliteLedger
) -> None:
    parent = at_rest(cut)[0].run

    with opened(sandbox, cut, says(ONE, "print(1)", KID)) as session:
        assert session.resume(parent, in_doubt="retry").answer == "kid"
        require_no_children(cut, parent)

        assert session.fork(parent, turn=1).answer == "kid"


def test_a_run_that_was_cut_off_inside_a_child_does_not_move_without_it(cut: SqliteLedger) -> None:
    parent, child = (row.run for row in at_rest(cut))

    with pytest.raises(UsageError, match=f"run {parent} was cut off inside run {child}, which"):
        require_no_children(cut, parent)
    require_no_children(cut, child)


BEGUN = ChildBegun(intent=3, program=2, item=0, run="child", request_sha256="0")
SECOND = ChildBegun(intent=3, program=2, item=0, run="child", request_sha256="0", attempt=2)
TOLD = HostAnswered(
    intent=3, program=2, index=0, name="f", request_sha256="0", fuel=0, reply=b"", ok=False
)
OVER = ProgramFinished(
    intent=2, turn=1, stop="wall", stdout="", stderr="", value=None, failure=None, answer=None,
    names_restored=(), fuel=0, host_calls=1, truncated=False,
)  # fmt: skip


def stopped_by(stop: str) -> ChildEnded:
    return ChildEnded(
        intent=3, item=0, run="child", stop=stop, detail="", answer="", partial=True,
        charge=Charge(), count=2, hash="0",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("records", "awaited"),
    [
        ([], False),
        ([BEGUN], True),
        ([BEGUN, stopped_by("answered")], False),
        ([BEGUN, stopped_by("max_turns")], False),
        ([BEGUN, stopped_by("cancelled")], True),
        ([BEGUN, stopped_by("in_doubt")], True),
        ([BEGUN, stopped_by("cancelled"), SECOND], True),
        # The program has gone on without it, or is over.
        ([BEGUN, TOLD], False),
        ([BEGUN, stopped_by("cancelled"), TOLD], False),
        ([BEGUN, stopped_by("cancelled"), OVER], False),
    ],
)
def test_a_child_is_awaited_until_its_program_was_told(
    records: list[Record], awaited: bool
) -> None:
    assert History(records).awaited_children == ["child"] * awaited


def test_a_child_whose_caller_may_go_on_is_not_removed(cut: SqliteLedger) -> None:
    parent, child = (row.run for row in at_rest(cut))

    with pytest.raises(
        UsageError, match=f"run {child} was begun by run {parent}, which can still be resumed"
    ):
        require_not_awaited(cut, child)
    require_not_awaited(cut, parent)
    cut.remove(parent)
    require_not_awaited(cut, child)


def test_a_child_that_has_answered_may_go(sandbox: WasmSandbox, ledger: SqliteLedger) -> None:
    with opened(sandbox, ledger, says(ONE, KID)) as session:
        session.run(GOAL, limits=WIDE)
    parent, child = (row.run for row in at_rest(ledger))

    require_not_awaited(ledger, child)
    require_no_children(ledger, parent)


def test_what_cannot_be_read_may_be_removed(ledger: SqliteLedger, sandbox: WasmSandbox) -> None:
    with opened(sandbox, ledger, says(ONE, KID)) as session:
        session.run(GOAL, limits=WIDE)
    _, child = (row.run for row in at_rest(ledger))
    with ledger.file.writing(forced=False) as db:
        db.execute("UPDATE body SET body = ? WHERE run = ? AND seq = 0", (b"{}", child))

    require_not_awaited(ledger, child)


# -- a child that cannot be gone on with -----------------------------------------------------------

CAUGHT = """
try:
    x = rlm_query('child please', context='abc' * 40_000, model='fake:two')
except Exception as error:
    x = f'told: {error}'
FINAL(x)
"""


def peeking(hangs: threading.Event | None) -> RunFunction:
    @host_function(policy="read")
    async def peek() -> int:
        """Look."""
        if hangs is not None:
            hangs.set()
            await asyncio.Event().wait()
        return 1

    return peek


def of_child(call: ModelCall) -> str:
    if call.by_program:
        return "said"
    return block(CAUGHT if is_root(call) else "print(llm_query('x'), peek())\nFINAL('kid')")


@pytest.fixture(scope="module")
def peeked(sandbox: WasmSandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in a read of its child: nothing is in doubt."""
    hangs = threading.Event()
    return cut_off(
        sandbox,
        tmp_path_factory.mktemp("peeked"),
        ModelDouble(of_child),
        until=hangs,
        functions=[peeking(hangs)],
        models={"fake:two": ModelDouble(of_child, name="fake:two")},
    )


def lose_attachments(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and len(path.name) == 64:
            path.unlink()


@pytest.mark.parametrize(
    ("lost", "models", "why"),
    [(False, [], "asks fake:two"), (True, ["fake:two"], "attachment `[0-9a-f]+` was not found")],
)
def test_a_child_that_cannot_be_gone_on_with_is_not_the_programs_to_handle(
    sandbox: WasmSandbox,
    peeked: Path,
    tmp_path: Path,
    lost: bool,
    models: list[str],
    why: str,
) -> None:
    folder = tmp_path / "peeked"
    shutil.copytree(peeked, folder)
    if lost:
        lose_attachments(folder)
    with SqliteLedger(folder / "ledger.db") as ledger:
        heads = [row.head for row in at_rest(ledger)]
        parent, child = (row.run for row in at_rest(ledger))
        named = {name: ModelDouble(of_child, name=name) for name in models}

        session = opened(sandbox, ledger, of_child, models=named, functions=[peeking(None)])
        with pytest.raises(ResumeRefused, match=why) as caught:
            session.resume(parent)

        assert caught.value.run == child
        assert [row.head for row in at_rest(ledger)] == heads


def test_where_everything_is_there_it_goes_on(
    sandbox: WasmSandbox, peeked: Path, tmp_path: Path
) -> None:
    shutil.copytree(peeked, tmp_path / "peeked")
    with SqliteLedger(tmp_path / "peeked" / "ledger.db") as ledger:
        parent, child = (row.run for row in at_rest(ledger))
        two = {"fake:two": ModelDouble(of_child, name="fake:two")}
        with opened(sandbox, ledger, of_child, functions=[peeking(None)], models=two) as session:
            assert session.resume(parent).answer == "kid"

        (ended,) = [each for each in records_of(ledger, parent) if isinstance(each, ChildEnded)]
        assert (ended.run, ended.stop) == (child, "answered")


def test_a_child_that_somebody_else_goes_on_with_is_waited_for(
    sandbox: WasmSandbox, peeked: Path, tmp_path: Path
) -> None:
    """Its parent does not go on as if it had failed."""
    shutil.copytree(peeked, tmp_path / "peeked")
    with SqliteLedger(tmp_path / "peeked" / "ledger.db") as ledger:
        heads = [row.head for row in at_rest(ledger)]
        parent, child = (row.run for row in at_rest(ledger))
        two = {"fake:two": ModelDouble(of_child, name="fake:two")}
        with (
            opened(sandbox, ledger, of_child, functions=[peeking(None)], models=two) as session,
            lock_run(ledger, child),
            pytest.raises(ResumeRefused, match=f"{child} is running"),
        ):
            session.resume(parent)

        assert [row.head for row in at_rest(ledger)] == heads


# -- while a fork grows ----------------------------------------------------------------------------


def test_a_run_stays_while_a_fork_is_about_to_grow_from_it(
    sandbox: WasmSandbox, ledger: SqliteLedger
) -> None:
    said = answers("print(1)", "FINAL('a')")
    with opened(sandbox, ledger, said) as session:
        run = session.run(GOAL, limits=WIDE).run
    told: list[str] = []

    def meanwhile() -> None:
        # While the fork waits for the model, before it has written anything.
        if told:
            return
        with SqliteLedger(ledger.path) as other, SqliteAttachments(other.file) as kept:
            with SharedScopes(other.file) as scopes:
                done = Pruner(other, kept, scopes, clock=lambda: 1).prune(run, why="")
            assert isinstance(done, Kept)
            told.append(done.why)
            with pytest.raises(UsageError, match=f"run {run} stays: run .* grew from it"):
                remove_run_with_attachments(other, kept, run)

    model = ModelDouble(said, admit=lambda before: asyncio.to_thread(meanwhile))
    with opened(sandbox, ledger, model) as session:
        fork = session.fork(run, turn=1)

        assert fork.answer == "a"
        assert told == [f"is what run {fork.run} grew from, which needs it"]
        assert session.replay(fork.run).held


def test_a_run_that_was_pruned_while_its_fork_was_made_ready_is_not_forked(
    sandbox: WasmSandbox, ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its reading and its claim; nothing is left of the fork."""
    with opened(sandbox, ledger, answers("print(1)", "FINAL('a')")) as session:
        run = session.run(GOAL, limits=WIDE).run
        claim = ledger.claim

        def pruned_before(name: str, **more: Any) -> int:
            if more.get("grown_from") is not None:
                ledger.erase(run, [0, 1, 2])
            return claim(name, **more)

        monkeypatch.setattr(ledger, "claim", pruned_before)
        with pytest.raises(ResumeRefused, match="was pruned"):
            session.fork(run, turn=1)

    assert [row.run for row in at_rest(ledger)] == [run]


# -- what a fork shares ----------------------------------------------------------------------------


def test_what_a_fork_shares_is_looked_at_before_it_is_believed(
    sandbox: WasmSandbox, ledger: SqliteLedger
) -> None:
    said = answers("print('one')", "print('two')", "FINAL('a')")
    limits = RunLimits(tokens=WIDE.tokens, turns=2)
    with opened(sandbox, ledger, said) as session:
        run = session.run(GOAL, limits=WIDE).run
        fork = session.fork(run, turn=1, limits=limits)
        assert fork.stop == "max_turns"
        place, reply = next(
            (place, each)
            for place, each in enumerate(records_of(ledger, run))
            if isinstance(each, ModelReplied)
        )
        assert reply.settled is not None
        edit(ledger, run, place, b'"usd":%d' % (reply.settled.usd or 0), b'"usd":1')
        rows = at_rest(ledger)
        why = f"run {run} does not hold at entry {place}"

        with pytest.raises(ResumeRefused, match=why):
            session.resume(fork.run, limits=WIDE)
        with pytest.raises(UsageError, match=why):
            session.fork(fork.run, turn=1)
        with pytest.raises(UsageError, match=why):
            session.fork(fork.run, turn=2)
        report = session.replay(fork.run)

    assert not report.held
    assert report.divergence is not None
    assert (report.divergence.field, report.divergence.seq) == ("chain", place)
    assert at_rest(ledger) == rows


def edit(ledger: SqliteLedger, run: str, seq: int, old: bytes, new: bytes) -> None:
    """Change a body behind the ledger's back."""
    db = sqlite3.connect(ledger.path)
    with db:
        found = "SELECT body FROM body WHERE run = ? AND seq = ?"
        (body,) = db.execute(found, (run, seq)).fetchone()
        assert old in body
        changed = (body.replace(old, new), run, seq)
        db.execute("UPDATE body SET body = ? WHERE run = ? AND seq = ?", changed)
    db.close()


def test_a_ledger_that_is_reached_by_two_names_has_one_lock_for_a_run(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "data" / "ledger.db"
    pauses = Pauses()
    with SqliteLedger(path):
        pass
    (tmp_path / "link.db").symlink_to(path)
    (tmp_path / "folder").symlink_to(path.parent)
    with living(sandbox, path, pauses, "FINAL('done')") as (run, _):
        for other in (tmp_path / "link.db", tmp_path / "folder" / "ledger.db"):
            with SqliteLedger(other) as ledger, opened(sandbox, ledger, says(KID)) as session:
                assert is_running(ledger, run)
                with pytest.raises(UsageError, match="is running"):
                    session.resume(run, in_doubt="retry")
    assert sorted(os.listdir(tmp_path)) == ["data", "folder", "link.db"]


def test_children_are_known_as_such(cut: SqliteLedger) -> None:
    assert [row.caller is not None for row in at_rest(cut)] == [False, True]
