"""Bytes that were let go of just now: gone at once, unless somebody holds them by then."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from tests.attachments.builders import (
    EVERYTHING,
    LARGE,
    SMALL,
    Ticks,
    digest,
    intent,
    ref_of,
    session,
    stored,
)

from tallystick.attachments.collect import Sweep, reclaim, reclaim_forgotten
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import AttachmentNotFound, ReclamationInFlight
from tallystick.attachments.sqlite import SqliteAttachments


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[SqliteAttachments]:
    with stored(tmp_path) as made:
        yield made


def forgotten(kept: SqliteAttachments, data: bytes) -> str:
    held = session(kept)
    ref = held.put(data)
    held.commit([ref.id])
    held.delete(ref.id)
    return ref.id


def all_blobs(kept: SqliteAttachments) -> set[str]:
    with kept.reading() as db:
        assert db is not None
        return {id for (id,) in db.execute("SELECT id FROM attachment_blob")} | set(
            kept.files.ids()
        )


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_what_was_just_let_go_of_is_deleted_and_nothing_else_is(
    kept: SqliteAttachments, data: bytes
) -> None:
    others = {session(kept).put(b"mine").id, forgotten(kept, b"forgotten by somebody else")}
    id = forgotten(kept, data)

    report = reclaim_forgotten(kept, [id])

    assert (report.reclaimed_count, report.reclaimed_bytes) == (1, len(data))
    assert all_blobs(kept) == others
    assert len(kept.owners.ids()) <= 1


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_what_any_row_names_is_not_deleted(kept: SqliteAttachments, data: bytes) -> None:
    id = forgotten(kept, data)
    # Nobody can prove this one dead or alive, and it is as old as can be.
    kept.record_intent(intent("other", id, at=0), ref_of(data))

    report = reclaim_forgotten(kept, [id])

    assert report.condemn_deferred_ids == [id]
    assert session(kept, "other").read(id) == data


def test_what_is_not_there_is_passed_over(kept: SqliteAttachments) -> None:
    session(kept).put(SMALL)

    assert reclaim_forgotten(kept, [digest(b"never put")]).reclaimed_count == 0


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("step", range(4))
def test_a_put_at_any_step_has_its_bytes(tmp_path: Path, data: bytes, step: int) -> None:
    with stored(tmp_path, wait_seconds=0.05) as kept, stored(tmp_path, wait_seconds=0.05) as other:
        id = forgotten(kept, data)
        sweep = Sweep(kept, forgotten=[id])
        held = session(other, "other")
        steps = sweep.forgotten_steps()
        for _ in range(step):
            next(steps, None)

        try:
            held.commit([held.put(data).id])
        except ReclamationInFlight:  # told to come again
            for _ in steps:
                pass
            held.commit([held.put(data).id])
        for _ in steps:
            pass

        assert held.read(id) == data
        assert sweep.report.deleted_while_referenced == []


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("step", range(4))
def test_what_a_death_left_is_for_the_next_sweep(tmp_path: Path, data: bytes, step: int) -> None:
    clock = Ticks()
    with stored(tmp_path, clock) as kept:
        id = forgotten(kept, data)
        steps = Sweep(kept, forgotten=[id]).forgotten_steps()
        for _ in range(step):
            next(steps, None)
        assert isinstance(steps, Generator)
        steps.close()  # its owner is dead from here

        clock.now += 1
        reclaim(kept, policy=EVERYTHING)

        assert all_blobs(kept) == set()
        assert session(kept, "other").put(data).id == id


def test_in_memory_it_is_the_same() -> None:
    kept = MemoryAttachments()
    one, other = session(kept, "one"), session(kept, "other")
    ids = [one.put(data).id for data in (SMALL, LARGE)]
    other.put(LARGE)
    for id in ids:
        one.delete(id)

    reclaim_forgotten(kept, ids)

    assert other.read(ids[1]) == LARGE
    with pytest.raises(AttachmentNotFound):
        kept.chunks(ids[0])
