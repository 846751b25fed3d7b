"""Sweeps: who wins against a put, what is left by the dead, and what cannot be deleted."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.attachments.builders import (
    AT_ONCE,
    EVERYTHING,
    LARGE,
    SMALL,
    Ticks,
    crash,
    digest,
    intent,
    session,
    stored,
)

from tallystick.attachments.collect import Fence, ReclaimReport, Sweep, reclaim, verify_attachments
from tallystick.attachments.port import (
    AttachmentIoFailed,
    AttachmentNotFound,
    ReclamationInFlight,
    ReclamationRefused,
)
from tallystick.attachments.sqlite import SqliteAttachments

OTHER = LARGE + b"other"
both_sizes = pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def kept(tmp_path: Path, ticks: Ticks) -> Iterator[SqliteAttachments]:
    with stored(tmp_path, ticks) as made:
        anchor = session(made, "anchor")
        anchor.commit([anchor.put(b"an anchor, so that something is held").id])
        yield made


def orphaned(kept: SqliteAttachments, *datas: bytes) -> list[str]:
    """Bytes that were held once."""
    held = session(kept, "gone")
    ids = [held.put(data).id for data in datas]
    for id in ids:
        held.delete(id)
    return ids


def until(steps: Iterator[str], name: str) -> None:
    while next(steps) != name:
        pass


def drained(steps: Iterator[str]) -> None:
    for _ in steps:
        pass


@both_sizes
def test_a_put_after_the_sentence_revokes_it_and_the_sweep_defers(
    kept: SqliteAttachments, data: bytes
) -> None:
    (id,) = orphaned(kept, data)
    sweep = Sweep(kept, policy=AT_ONCE)
    steps = sweep.steps()
    until(steps, "condemned")

    held = session(kept)
    held.put(data)
    drained(steps)

    assert sweep.report.condemn_deferred_ids == [id]
    assert sweep.report.reclaimed_count == 0
    assert held.read(id) == data


@both_sizes
def test_a_put_before_the_sentence_is_seen_by_the_second_look(
    kept: SqliteAttachments, data: bytes
) -> None:
    (id,) = orphaned(kept, data)
    sweep = Sweep(kept, policy=AT_ONCE)
    steps = sweep.steps()
    until(steps, "looked")

    held = session(kept)
    held.put(data)
    drained(steps)

    assert sweep.report.condemn_deferred_ids == [id]
    assert held.read(id) == data


def test_a_put_that_its_session_forgets_halfway_counts_as_put_before_that(
    kept: SqliteAttachments, tmp_path: Path, ticks: Ticks
) -> None:
    staged = kept.stage(LARGE)
    kept.record_intent(intent("s1", staged.ref.id, at=ticks.now, owner=kept.owner()), staged.ref)
    with stored(tmp_path, ticks) as other:
        held = session(other)
        held.put(LARGE)
        held.delete(staged.ref.id)
        held.put(LARGE)

        kept.keep(staged)
        crash(other)
        report = reclaim(kept, policy=AT_ONCE)

    # The row was made anew by the other process and died with it.
    assert report.reclaimed_count == 1
    with pytest.raises(AttachmentNotFound):
        session(kept).commit([staged.ref.id])


@pytest.mark.parametrize("step", ["deleting", "unlinked"])
def test_a_put_while_the_file_is_deleted_waits_and_is_told_if_it_waited_too_long(
    kept: SqliteAttachments, step: str
) -> None:
    (id,) = orphaned(kept, LARGE)
    sweep = Sweep(kept, policy=AT_ONCE)
    steps = sweep.steps()
    until(steps, step)
    held = session(kept)

    with pytest.raises(ReclamationInFlight, match=f"attachment `{id}` is being deleted"):
        held.put(LARGE)
    with pytest.raises(AttachmentNotFound):
        kept.chunks(id)
    drained(steps)

    assert (sweep.report.reclaimed_count, sweep.report.fence) == (1, Fence.FENCED)
    assert held.references() == []
    held.put(LARGE)
    assert held.read(id) == LARGE


@pytest.mark.parametrize("step", ["condemned", "deleting", "unlinked"])
def test_what_a_sweep_that_died_left_can_be_put_again(kept: SqliteAttachments, step: str) -> None:
    (id,) = orphaned(kept, LARGE)
    steps = Sweep(kept, policy=AT_ONCE).steps()
    until(steps, step)
    steps.close()  # type: ignore[attr-defined]

    held = session(kept)
    held.put(LARGE)
    held.commit([id])

    assert held.read(id) == LARGE
    assert reclaim(kept, policy=AT_ONCE).reclaimed_count == 0
    assert verify_attachments(kept).ok


@pytest.mark.parametrize("step", ["condemned", "deleting", "unlinked"])
def test_what_a_sweep_that_died_left_is_done_by_the_next(
    kept: SqliteAttachments, step: str
) -> None:
    ids = orphaned(kept, LARGE, OTHER)
    steps = Sweep(kept, policy=AT_ONCE).steps()
    until(steps, step)
    steps.close()  # type: ignore[attr-defined]

    report = reclaim(kept, policy=AT_ONCE)

    assert report.reclaimed_count == 2
    assert list(kept.files.ids()) == []
    assert [kept.owners.proven_dead(id) for id in kept.owners.ids()] == [False]
    with kept.reading() as db:
        assert db is not None
        left = db.execute("SELECT count(*) FROM attachment_blob").fetchone()
    assert (left, len(ids)) == ((1,), 2)


@pytest.mark.parametrize("step", ["looked", "condemned", "deleting", "unlinked"])
def test_two_sweeps_at_once_delete_once(kept: SqliteAttachments, step: str) -> None:
    orphaned(kept, LARGE, SMALL)
    first = Sweep(kept, policy=AT_ONCE)
    steps = first.steps()
    until(steps, step)

    second = reclaim(kept, policy=AT_ONCE)
    drained(steps)

    assert first.report.reclaimed_count + second.reclaimed_count == 2
    assert first.report.deleted_while_referenced == second.deleted_while_referenced == []
    assert list(kept.files.ids()) == []


def test_a_small_put_never_waits_for_a_sweep(kept: SqliteAttachments) -> None:
    (id,) = orphaned(kept, SMALL)
    with kept.writing(forced=False) as db:
        # As if it had been a file in the days of a smaller limit, and were being deleted now.
        sweeper = kept.owners.hold()
        db.execute(
            "UPDATE attachment_blob SET data = NULL, state = 2, sweep = ? WHERE id = ?",
            (sweeper.id, id),
        )

    held = session(kept)
    held.put(SMALL)
    sweeper.release(remove=False)

    assert held.read(id) == SMALL


def test_a_file_that_cannot_be_deleted_is_named_and_passed_over(
    kept: SqliteAttachments, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, free = orphaned(kept, LARGE, OTHER)
    unlink = os.unlink

    def failing(path: str, **options: int) -> None:
        if stuck in str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        report = reclaim(kept, policy=AT_ONCE)

    assert (report.failed_ids, report.reclaimed_count) == ([stuck], 1)
    assert list(kept.files.ids()) == [stuck]
    # Still a blob, and the next sweep's to try.
    assert kept.byte_len(stuck) == len(LARGE)
    assert reclaim(kept, policy=AT_ONCE).reclaimed_count == 1
    assert free not in list(kept.files.ids())


@pytest.mark.parametrize(
    "change", ["ref = x'ff'", "attachment_id = 'garbage'", "intent_at = x'00'"]
)
def test_a_manifest_that_cannot_be_read_stops_the_sweep_before_it_deletes(
    kept: SqliteAttachments, change: str
) -> None:
    (id,) = orphaned(kept, LARGE)
    with closing(sqlite3.connect(kept.files.root.with_name("ledger.db"))) as db, db:
        db.execute(f"UPDATE attachment_reference SET {change}")

    with pytest.raises(ReclamationRefused, match="who holds what cannot be read") as caught:
        reclaim(kept, policy=EVERYTHING)

    report = caught.value.report
    assert isinstance(report, ReclaimReport)
    assert report.root_enumeration_failure is not None
    assert report.reclaimed_count == 0
    assert kept.byte_len(id) == len(LARGE)


def test_a_dry_run_changes_nothing(kept: SqliteAttachments) -> None:
    orphaned(kept, LARGE, SMALL)
    kept.files.write([LARGE], owner=dead_owner(kept))
    before = sorted(kept.files.root.rglob("*"))

    report = reclaim(kept, policy=AT_ONCE, dry_run=True)

    assert (report.dry_run, report.reclaimed_count, report.orphan_staged_count) == (True, 2, 1)
    assert report.reclaimed_bytes == len(LARGE) + len(SMALL)
    assert sorted(kept.files.root.rglob("*")) == before


def dead_owner(kept: SqliteAttachments) -> str:
    owner = kept.owners.hold()
    owner.release(remove=False)
    return owner.id


def test_staged_files_of_the_dead_go_and_those_of_the_living_stay(
    kept: SqliteAttachments,
) -> None:
    staged = kept.stage(OTHER)
    kept.files.write([LARGE], owner=dead_owner(kept))

    report = reclaim(kept, policy=AT_ONCE)

    assert report.orphan_staged_count == 1
    assert [path for _, path in kept.files.staged()] == [staged.blob]
    # The dead owner's lock file has nothing to prove any more.
    assert len(kept.owners.ids()) == 1


def test_a_sweep_keeps_the_proofs_of_deaths_if_the_staged_files_cannot_be_listed(
    kept: SqliteAttachments, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = dead_owner(kept)
    kept.files.write([LARGE], owner=dead)

    def unreadable() -> Iterator[tuple[str, Path]]:
        raise AttachmentIoFailed(path="staging", source="it cannot be listed")

    monkeypatch.setattr(kept, "staged_files", unreadable)
    report = reclaim(kept, policy=AT_ONCE)

    assert kept.owners.proven_dead(dead)
    assert "it cannot be listed" in report.orphan_failures[-1]


def test_a_file_without_a_row_goes_unless_somebody_is_about_to_give_it_one(
    kept: SqliteAttachments,
) -> None:
    stray, _, _ = kept.files.write([LARGE], owner=kept.owner())
    kept.files.put(digest(LARGE), stray)
    expected = kept.stage(OTHER)
    held = session(kept)
    held._put(expected, None, owner=kept.owner())
    with kept.writing(forced=False) as db:
        db.execute("DELETE FROM attachment_blob WHERE id = ?", (expected.ref.id,))

    report = reclaim(kept, policy=AT_ONCE)

    assert (report.orphan_file_count, report.reclaimed_bytes) == (1, len(LARGE))
    assert list(kept.files.ids()) == [expected.ref.id]


def test_an_intent_whose_bytes_never_came_is_forgotten_with_its_owner(
    kept: SqliteAttachments, ticks: Ticks
) -> None:
    with stored(kept.files.root.parent, ticks) as other:
        held = session(other)
        staged = other.stage(LARGE)
        ref = staged.ref
        other.record_intent(intent("s1", ref.id, at=ticks.now, owner=other.owner()), ref)
        alive = reclaim(kept, policy=AT_ONCE)
        crash(other)

        dead = reclaim(kept, policy=AT_ONCE)

    assert (alive.swept_intent_count, dead.swept_intent_count) == (0, 1)
    assert dead.orphan_staged_count == 1
    assert held.references() == []


def test_an_owner_whose_lock_file_was_taken_away_is_named_and_left_alone(
    kept: SqliteAttachments, ticks: Ticks
) -> None:
    with stored(kept.files.root.parent, ticks) as other:
        id = session(other).put(LARGE).id
        owner = other.owner()
        crash(other)
        (kept.files.root / "owners" / f"{owner}.lock").unlink()

        report = reclaim(kept, policy=AT_ONCE)

    assert report.unproven_owners == [owner]
    assert session(kept).read(id) == LARGE


def test_a_directory_that_cannot_be_listed_is_named_and_does_not_stop_the_sweep(
    kept: SqliteAttachments, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphaned(kept, SMALL)
    listdir = os.listdir

    def failing(path: Path) -> list[str]:
        if Path(path) == kept.files.root:
            raise PermissionError(errno.EACCES, "Permission denied")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", failing)
    report = reclaim(kept, policy=AT_ONCE)

    assert report.reclaimed_count == 1
    assert report.orphan_failures == [
        f"attachment store I/O failed at {kept.files.root}: Permission denied"
    ]


def test_who_reads_a_file_while_it_is_deleted_reads_it_to_its_end(kept: SqliteAttachments) -> None:
    held = session(kept)
    data = LARGE * 20
    id = held.put(data).id

    with held.chunks(id) as chunks:
        first = next(chunks)
        held.delete(id)
        assert reclaim(kept, policy=AT_ONCE).reclaimed_count == 1
        rest = b"".join(chunks)

    assert first + rest == data


def test_many_are_deleted_in_groups(kept: SqliteAttachments) -> None:
    orphaned(kept, *(b"%d" % number for number in range(600)))

    report = reclaim(kept, policy=AT_ONCE)

    assert (report.scanned_blob_count, report.reclaimed_count) == (601, 600)


def test_what_was_deleted_is_nowhere_in_the_files(kept: SqliteAttachments) -> None:
    secret = b"a-secret-word" * 1_000
    orphaned(kept, secret)

    reclaim(kept, policy=AT_ONCE)

    for file in kept.files.root.parent.rglob("*"):
        assert file.is_dir() or b"a-secret-word" not in file.read_bytes()


def test_a_session_that_is_resumed_can_commit_what_a_sweep_has_condemned(
    kept: SqliteAttachments, ticks: Ticks
) -> None:
    with stored(kept.files.root.parent, ticks) as dead:
        id = session(dead, "resumed").put(LARGE).id
        crash(dead)
    sweep = Sweep(kept, policy=AT_ONCE)
    steps = sweep.steps()
    until(steps, "condemned")

    held = session(kept, "resumed")
    held.commit([id])
    drained(steps)

    assert sweep.report.condemn_deferred_ids == [id]
    assert held.read(id) == LARGE
    assert len(kept.owners.ids()) == 1
