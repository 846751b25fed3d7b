"""Snapshots among attachments: replaced whole, never collected while they live, damage found."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.attachments.builders import (
    EVERYTHING,
    Kept,
    Ticks,
    final_file,
    local_path,
    session,
    stored,
)
from tests.contract.test_snapshot_store import an_image, named

from tallystick.attachments.collect import reclaim, verify_attachments
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import Chunks
from tallystick.attachments.session import snapshots_holder
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import InvalidName, SnapshotNotFound, StoreError
from tallystick.sandbox.snapshot import MAGIC, PAGE_BYTES, SNAPSHOT_TYPE, Image, pack_snapshot
from tallystick.sessions.snapshots import SessionImages, open_snapshots

ROOT = Path(__file__).parents[2]
STEP_DEFAULT, STEP_SLOW = 150, 30


def an_image_of(seed: int, *, count: int = 40) -> Image:
    """Pages that no packing makes fewer: forty are a file, one is a row."""
    return msgspec.structs.replace(
        an_image(),
        memory_bytes=count * PAGE_BYTES,
        indices=list(range(count)),
        pages=[Random(f"{seed} {page}").randbytes(PAGE_BYTES) for page in range(count)],
    )


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[SqliteAttachments]:
    with stored(tmp_path) as made:
        yield made


@pytest.fixture
def store(kept: SqliteAttachments) -> SessionImages:
    return SessionImages(kept)


def blob_of(kept: Kept, name: str) -> str:
    (id,) = [
        each.ref.id
        for each in kept.references(snapshots_holder("S"))
        if (each.ref.label or "").startswith(f"{name}:")
    ]
    return id


def blobs_in(kept: SqliteAttachments) -> set[str]:
    with kept.reading() as db:
        assert db is not None
        rows = {id for (id,) in db.execute("SELECT id FROM attachment_blob")}
    return rows | set(kept.files.ids())


# -- how they are held -------------------------------------------------------------------------


def test_a_snapshot_is_one_attachment_with_a_label_that_says_which(
    store: SessionImages, kept: SqliteAttachments
) -> None:
    store.save(named("before: the merge", ident="X"), an_image())

    (held,) = kept.references()

    assert held.intent.session_id == "S/snapshots"
    assert held.ref.media_type == SNAPSHOT_TYPE
    assert held.ref.label == "before: the merge:X:7"
    assert held.committed_at_epoch_ms is not None


def test_what_a_session_puts_itself_is_no_snapshot_of_it(
    store: SessionImages, kept: SqliteAttachments
) -> None:
    held = session(kept, "S")
    forged = b"".join(pack_snapshot(named("a", ident="X"), an_image()))
    held.commit([held.put(forged, media_type=SNAPSHOT_TYPE, label="a:X:7").id])

    assert store.list("S") == []
    with pytest.raises(SnapshotNotFound):
        store.load("S", "a")


@pytest.mark.parametrize("label", [None, "", "a", "a:X", "a:X:", "a:X:seven", "a:X:७", "a:X:--7"])
def test_what_has_another_label_is_no_snapshot(
    store: SessionImages, kept: SqliteAttachments, label: str | None
) -> None:
    held = session(kept, snapshots_holder("S"))
    held.commit([held.put(b"else", media_type=SNAPSHOT_TYPE, label=label).id])

    assert store.list("S") == []


def test_a_snapshot_that_was_only_intended_is_not_there_yet(
    store: SessionImages, kept: SqliteAttachments
) -> None:
    begun = pack_snapshot(named("a", ident="X"), an_image())
    session(kept, snapshots_holder("S")).put(begun, media_type=SNAPSHOT_TYPE, label="a:X:7")

    assert store.list("S") == []


def test_bytes_of_another_snapshot_are_not_taken_for_this_one(
    store: SessionImages, kept: SqliteAttachments
) -> None:
    held = session(kept, snapshots_holder("S"))
    other = pack_snapshot(named("b", ident="X"), an_image())
    held.commit([held.put(other, media_type=SNAPSHOT_TYPE, label="a:X:7").id])

    with pytest.raises(StoreError, match="snapshot 'a': its bytes are those of 'b'"):
        store.load("S", "a")


def test_an_id_with_a_colon_is_refused(store: SessionImages) -> None:
    with pytest.raises(InvalidName, match="colon"):
        store.save(named("a", ident="X:7"), an_image())


def test_another_process_finds_what_was_saved_and_only_the_user_can_read_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data" / "ledger.db"
    with open_snapshots(path) as store:
        store.save(named("a"), an_image_of(1))

    with open_snapshots(path) as store:
        assert store.load("S", "a")[1] == an_image_of(1)
    files = [each for each in path.parent.rglob("*") if each.is_file()]
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# -- what is damaged or in the way -------------------------------------------------------------


class Damaged:
    """A store with one snapshot, whose bytes can be changed behind its back."""

    def __init__(self, folder: Path, *, count: int) -> None:
        self.kept = stored(folder)
        self.store = SessionImages(self.kept)
        self.image = an_image_of(1, count=count)
        self.store.save(named("a"), self.image)
        self.id = blob_of(self.kept, "a")
        with self.kept.chunks(self.id) as chunks:
            self.data = b"".join(chunks)
        self.path = local_path(self.kept, self.id)

    def write(self, data: bytes) -> None:
        if self.path is not None:
            self.path.write_bytes(data)
            return
        with self.kept.writing(forced=False) as db:
            db.execute("UPDATE attachment_blob SET data = ?", (data,))


@pytest.fixture(scope="module", params=[1, 40], ids=["row", "file"])
def damaged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Damaged]:
    made = Damaged(tmp_path_factory.mktemp("damaged"), count=request.param)
    yield made
    made.kept.close()


@given(at=st.integers(0, 200_000), cut=st.integers(0, 4), value=st.binary(max_size=4))
def test_a_change_behind_its_back_is_found(
    damaged: Damaged, at: int, cut: int, value: bytes
) -> None:
    start = at % len(damaged.data)
    data = damaged.data[:start] + value + damaged.data[start + cut :]
    damaged.write(data)

    if data == damaged.data:
        assert damaged.store.load("S", "a")[1] == damaged.image
        return
    with pytest.raises(StoreError, match="snapshot 'a'"):
        damaged.store.load("S", "a")


@given(data=st.binary(max_size=200), start=st.sampled_from([b"", b"\0", MAGIC, MAGIC + b"\0\0\0"]))
def test_bytes_that_are_no_snapshot_are_one_clear_error(data: bytes, start: bytes) -> None:
    kept = MemoryAttachments()
    held = session(kept, snapshots_holder("S"))
    ref = held.put(start + data, media_type=SNAPSHOT_TYPE, label="a:X:7")
    held.commit([ref.id])

    # What is plainly something else, a picture say, is not even listed.
    expected = StoreError if ref.media_type == SNAPSHOT_TYPE else SnapshotNotFound
    with pytest.raises(expected, match="snapshot 'a'"):
        SessionImages(kept).load("S", "a")


def test_bytes_that_are_lost_are_an_error_and_not_an_absence(
    store: SessionImages, kept: SqliteAttachments
) -> None:
    store.save(named("a"), an_image_of(1))
    final_file(kept, blob_of(kept, "a")).unlink()

    with pytest.raises(StoreError, match=r"snapshot 'a': attachment .* was not found"):
        store.load("S", "a")
    store.delete("S", "a")
    assert store.list("S") == []


def test_a_save_that_fails_leaves_the_one_before_it(
    store: SessionImages, kept: SqliteAttachments, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(named("a", ident="1"), an_image_of(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space left on device"):
            store.save(named("a", ident="2"), an_image_of(2))

    assert store.load("S", "a") == (named("a", ident="1"), an_image_of(1))
    assert list(kept.files.staged()) == []


def test_a_file_that_is_no_ledger_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"this is not a database, whatever its name says" * 100)

    with open_snapshots(path) as store:
        with pytest.raises(StoreError, match=r"snapshots: .*ledger\.db"):
            store.list("S")
        with pytest.raises(StoreError, match=r"snapshot 'a': .*ledger\.db"):
            store.save(named("a"), an_image())


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with (
        open_snapshots(tmp_path / "file" / "ledger.db") as store,
        pytest.raises(StoreError, match="file"),
    ):
        store.list("S")


# -- what becomes of the bytes -----------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 40], ids=["row", "file"])
def test_a_snapshot_that_is_replaced_again_and_again_takes_the_place_of_one(
    store: SessionImages, kept: SqliteAttachments, tmp_path: Path, count: int
) -> None:
    for number in range(50):
        store.save(named("current", ident=f"{number:02}"), an_image_of(number, count=count))

    assert store.load("S", "current")[1] == an_image_of(49, count=count)
    assert blobs_in(kept) == {blob_of(kept, "current")}
    assert len(kept.owners.ids()) <= 1
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert sum(each.stat().st_size for each in files) < 5_000_000


def test_in_memory_nothing_piles_up_either() -> None:
    kept = MemoryAttachments()
    store = SessionImages(kept)

    for number in range(50):
        store.save(named("current", ident=str(number)), an_image_of(number))

    assert list(kept.blobs.ids()) == [blob_of(kept, "current")]
    with kept.looking() as rows:
        assert [each.id for each in rows.blobs()] == [blob_of(kept, "current")]


def test_the_bytes_of_a_deleted_snapshot_go_with_it(
    store: SessionImages, kept: SqliteAttachments
) -> None:
    store.save(named("a"), an_image_of(1))
    store.save(named("b"), an_image_of(1))

    store.delete("S", "a")

    assert blobs_in(kept) == {blob_of(kept, "b")}


def test_bytes_that_somebody_else_holds_outlive_their_snapshot(
    store: SessionImages, kept: SqliteAttachments
) -> None:
    store.save(named("a", ident="1"), an_image_of(1))
    other = session(kept, "other")
    old = other.put(pack_snapshot(named("a", ident="1"), an_image_of(1)))

    store.save(named("a", ident="2"), an_image_of(2))

    assert blobs_in(kept) == {old.id, blob_of(kept, "a")}
    assert other.read(old.id) == b"".join(pack_snapshot(named("a", ident="1"), an_image_of(1)))


def test_a_sweep_takes_no_living_snapshot(tmp_path: Path) -> None:
    clock = Ticks()
    with stored(tmp_path, clock) as kept:
        store = SessionImages(kept)
        for number, name in enumerate(["small", "large", "replaced", "replaced"]):
            store.save(named(name, ident=str(number)), an_image_of(number, count=1 + 39 * number))
    clock.now += 10**9

    with stored(tmp_path, clock) as kept:
        report = reclaim(kept, policy=EVERYTHING)
        store = SessionImages(kept)

        assert (report.scanned_blob_count, report.reclaimed_count) == (3, 0)
        assert [store.load("S", each.name)[1] for each in store.list("S")] == [
            an_image_of(number, count=1 + 39 * number) for number in (0, 1, 3)
        ]
        assert verify_attachments(kept).ok


def test_who_loads_while_another_replaces_gets_the_old_or_the_new(
    store: SessionImages, kept: SqliteAttachments, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(named("a", ident="1"), an_image_of(1))
    original = kept.chunks
    asked: list[str] = []

    def replaced_meanwhile(id: str) -> Chunks:
        asked.append(id)
        if len(asked) == 1:
            store.save(named("a", ident="2"), an_image_of(2))
        return original(id)

    monkeypatch.setattr(kept, "chunks", replaced_meanwhile)

    assert store.load("S", "a") == (named("a", ident="2"), an_image_of(2))
    assert len(asked) == 2


# -- kill -9 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [STEP_DEFAULT, pytest.param(STEP_SLOW, marks=pytest.mark.slow)])
def test_a_process_that_dies_while_saving_leaves_the_old_one_or_the_new(
    tmp_path: Path, step: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.snapshot_worker", str(tmp_path), str(step)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        deaths, arrived = map(int, line.split())
        assert 0 < arrived < deaths
