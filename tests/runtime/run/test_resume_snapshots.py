"""Snapshots of a run: what was run before one is not run again, and nothing depends on one."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.attachments.builders import EVERYTHING, local_path
from tests.laws.test_costed_sessions import watched
from tests.runtime.run.cut_runs import (
    GOAL,
    ROOMY,
    Dead,
    Whole,
    died,
    played,
    reopened,
    without_time,
    world,
)

from tallystick.attachments.collect import reclaim
from tallystick.attachments.port import Attachments
from tallystick.attachments.session import SessionAttachments, snapshots_holder
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.charge import RunLimits
from tallystick.core.records import ProgramFinished, Record, RunStarted, SnapshotTaken
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.programs import execution
from tallystick.sandbox.snapshot import pack_snapshot, unpack_snapshot
from tallystick.sandbox.wasm.sandbox import WasmInterpreter, WasmSandbox
from tallystick.testing.ledgers import LastingAttachments
from tallystick.testing.plans import program
from tallystick.upkeep.transfer import (
    export_run_with_attachments,
    import_run_with_attachments,
    remove_run_with_attachments,
)

# Snapshots are the guest's memory.
NEEDS_GUEST = True

pytestmark = pytest.mark.slow

SOURCES = (
    "import random\nn = 1\nprint(random.random())",
    "n += len(llm_query('one')) + send('x')\nprint(n)",
    "n += int(random.random() * 1000)\nprint(n)",
    "FINAL(n + int(random.random() * 1000))",
)
PLAN = tuple(program(each) for each in SOURCES)


@pytest.fixture(autouse=True)
def after_every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "SNAPSHOT_FUEL", 0)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that are run, one after another."""
    sources: list[str] = []
    execute = WasmInterpreter.execute

    async def counted(self: WasmInterpreter, source: str, **more: Any) -> Any:
        sources.append(source)
        return await execute(self, source, **more)

    monkeypatch.setattr(WasmInterpreter, "execute", counted)
    return sources


@pytest.fixture(scope="module")
def whole(sandbox: WasmSandbox) -> Whole:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "SNAPSHOT_FUEL", 0)
        return played(sandbox, *PLAN, attachments=LastingAttachments())


def held(attachments: Attachments, records: list[Record]) -> SessionAttachments:
    """Where the snapshots of a run are."""
    started = records[0]
    assert isinstance(started, RunStarted)
    return SessionAttachments(attachments, session_id=snapshots_holder(started.session_id))


def after(whole: Whole, kind: type, number: int) -> int:
    places = [n for n, each in enumerate(whole.records) if isinstance(each, kind)]
    return places[number] + 1


# -- used --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(3))
def test_what_ran_before_a_snapshot_is_not_run_again(
    whole: Whole, sandbox: WasmSandbox, ran: list[str], number: int
) -> None:
    made = whole.cut(sandbox, after(whole, SnapshotTaken, number))

    run = made.session.resume(whole.id)

    assert ran == list(SOURCES[number + 1 :])
    assert run.answer == whole.run.answer
    assert without_time(run.charge) == without_time(whole.run.charge)
    report = made.session.replay(whole.id)
    assert report.held, report.divergence
    # A replay takes nobody's word for it.
    assert report.programs == len(SOURCES)


def test_a_program_that_was_cut_off_runs_on_the_snapshot_before_it(
    whole: Whole, sandbox: WasmSandbox, ran: list[str]
) -> None:
    made = whole.cut(sandbox, after(whole, ProgramFinished, 2) - 1)

    assert made.session.resume(whole.id).answer == whole.run.answer
    assert ran == list(SOURCES[2:])


def test_calls_of_programs_that_are_not_run_again_are_counted_all_the_same(
    whole: Whole, sandbox: WasmSandbox
) -> None:
    before = whole.records[: after(whole, SnapshotTaken, 1)]
    with watched() as trees:
        made = reopened(whole, sandbox, before)

    run = made.session.resume(whole.id)

    spent = trees[0].spent[whole.id]
    assert spent["usd"] == run.charge.usd
    assert spent["tokens"] == run.charge.tokens_in + run.charge.tokens_out
    assert spent["model_calls"] == run.charge.model_calls


def test_a_run_on_a_disk_that_was_killed_goes_on_from_its_last_snapshot(
    sandbox: WasmSandbox, tmp_path: Path, ran: list[str]
) -> None:
    dead = dead_run(sandbox, tmp_path)
    ran.clear()
    made = dead.reopened(sandbox)
    kept = held(made.session.attachments, made.records(dead.run))
    assert len(kept.references()) == 1

    run = made.session.resume(dead.run, in_doubt="retry")

    assert ran == [SOURCES[3]]
    assert run.stop == "answered"
    assert made.session.replay(dead.run).held
    # There is nothing to resume any more.
    assert kept.references() == []
    made.session.close()


def dead_run(sandbox: WasmSandbox, folder: Path) -> Dead:
    """Killed while it waits for its last turn: three programs have run."""
    asked: list[int] = []

    def when(request: Any) -> bool:
        asked.append(1)
        return len(asked) == 5

    return died(sandbox, folder, *PLAN, when=when)


# -- passed over -------------------------------------------------------------------------------


def missing(attachments: SqliteAttachments, kept: SessionAttachments) -> None:
    kept.delete_all()


def damaged(attachments: SqliteAttachments, kept: SessionAttachments) -> None:
    (each,) = kept.references()
    path = local_path(kept, each.ref.id)
    assert path is not None
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 255
    path.chmod(0o600)
    path.write_bytes(raw)


def cut_short(attachments: SqliteAttachments, kept: SessionAttachments) -> None:
    (each,) = kept.references()
    path = local_path(kept, each.ref.id)
    assert path is not None
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("harm", [missing, damaged, cut_short])
def test_without_its_snapshot_a_run_goes_on_from_its_start(
    sandbox: WasmSandbox,
    tmp_path: Path,
    ran: list[str],
    harm: Callable[[SqliteAttachments, SessionAttachments], None],
) -> None:
    dead = dead_run(sandbox, tmp_path)
    ran.clear()
    made = dead.reopened(sandbox)
    attachments = made.session.attachments
    assert isinstance(attachments, SqliteAttachments)
    harm(attachments, held(attachments, made.records(dead.run)))

    run = made.session.resume(dead.run, in_doubt="retry")

    assert ran == list(SOURCES)
    assert run.stop == "answered"
    assert made.session.replay(dead.run).held
    made.session.close()


def test_a_snapshot_of_another_sandbox_is_passed_over(
    whole: Whole, sandbox: WasmSandbox, ran: list[str]
) -> None:
    """Its bytes are whole, and mean nothing here."""
    store = LastingAttachments()
    place = after(whole, SnapshotTaken, 1)
    taken = whole.records[place - 1]
    assert isinstance(taken, SnapshotTaken)
    origin = held(whole.world.session.attachments, whole.records)
    with origin.chunks(taken.image.id) as chunks:
        snapshot, image = unpack_snapshot(chunks)
    foreign = [
        b"".join(pack_snapshot(snapshot, msgspec.structs.replace(image, guest="0" * 64))),
        b"".join(pack_snapshot(snapshot, msgspec.structs.replace(image, engine="another"))),
        b"".join(pack_snapshot(snapshot, msgspec.structs.replace(image, session=b"?"))),
        b"not a container at all",
        b"",
    ]
    for raw in foreign:
        kept = held(store, whole.records)
        ref = kept.put(raw)
        kept.commit([ref.id])
        other = msgspec.structs.replace(taken, image=ref)
        records = [
            other if each == taken else each
            for each in whole.records[:place]
            if each == taken or not isinstance(each, SnapshotTaken)
        ]
        ran.clear()
        made = reopened(whole, sandbox, records, attachments=store)
        assert made.session.resume(whole.id).answer == whole.run.answer
        assert ran == list(SOURCES)


# -- kept and let go of ------------------------------------------------------------------------


def test_only_the_last_is_kept_and_none_once_there_is_an_answer(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        made = world(sandbox, PLAN, ledger=ledger)
        seen: list[int] = []
        started: list[Record] = []

        def watch(run: str, record: Record) -> None:
            started.append(record)
            if isinstance(record, SnapshotTaken):
                kept = held(made.session.attachments, started)
                seen.append(len(kept.references()))

        run = made.session.run(GOAL, limits=ROOMY, watch=watch)

        assert seen == [1, 1, 1, 1]
        assert held(made.session.attachments, started).references() == []
        assert made.session.replay(run.run).held
        made.session.close()


def test_a_run_that_stopped_keeps_its_last_and_its_removal_frees_it(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        stopped = played(sandbox, *PLAN, limits=RunLimits(turns=2), ledger=ledger)
        attachments = stopped.world.session.attachments
        assert isinstance(attachments, SqliteAttachments)
        kept = held(attachments, stopped.records)
        (each,) = kept.references()
        assert kept.read(each.ref.id)

        remove_run_with_attachments(ledger, attachments, stopped.id)
        reclaim(attachments, policy=EVERYTHING)

        assert kept.references() == []
        assert list(attachments.files.ids()) == []
        stopped.world.session.close()


def test_an_export_carries_none_and_the_run_goes_on_where_it_arrives(
    sandbox: WasmSandbox, tmp_path: Path, ran: list[str]
) -> None:
    here = SqliteLedger(tmp_path / "here.db")
    stopped = played(sandbox, *PLAN, limits=RunLimits(turns=3), ledger=here)
    moved = io.BytesIO()
    export_run_with_attachments(
        here, stopped.world.session.attachments, stopped.id, moved, move=True
    )
    (each,) = held(stopped.world.session.attachments, stopped.records).references()
    assert len(moved.getvalue()) < each.ref.byte_len
    moved.seek(0)
    made = world(
        sandbox, PLAN, ledger=SqliteLedger(tmp_path / "there.db"), recorded=stopped.records
    )
    import_run_with_attachments(made.ledger, made.session.attachments, moved)  # type: ignore[arg-type]
    assert held(made.session.attachments, stopped.records).references() == []
    ran.clear()

    run = made.session.resume(stopped.id, limits=ROOMY)

    assert ran == list(SOURCES)
    assert run.stop == "answered"
    assert made.session.replay(stopped.id).held
    made.session.close()
    stopped.world.session.close()


def test_a_program_that_did_not_end_well_leaves_no_snapshot(sandbox: WasmSandbox) -> None:
    limits = RunLimits(wall_ms=400)
    stopped = played(sandbox, program("n = 1\nwhile True:\n    pass"), limits=limits)

    assert stopped.run.stop == "deadline"
    assert not any(isinstance(each, SnapshotTaken) for each in stopped.records)
