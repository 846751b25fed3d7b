"""The snapshot file: pages stored once, damage found, unknown formats refused."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest
from tests.contract.test_snapshot_store import an_image, named

from tallystick.core.errors import StoreError
from tallystick.sandbox.snapshot import PAGE_BYTES
from tallystick.sandbox.sqlite_store import SqliteSnapshotStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "snapshots.db"


def pages_in(path: Path) -> int:
    with sqlite3.connect(path) as db:
        (count,) = db.execute("SELECT count(*) FROM page").fetchone()
    db.close()
    return int(count)


def test_equal_pages_are_stored_once(path: Path) -> None:
    store = SqliteSnapshotStore(path)

    store.save(named("a"), an_image(count=10))
    store.save(named("b"), an_image(count=12))

    assert pages_in(path) == 1


def test_pages_go_with_the_last_snapshot_that_holds_them(path: Path) -> None:
    store = SqliteSnapshotStore(path)
    store.save(named("a"), an_image(b"\1"))
    store.save(named("b"), an_image(b"\1"))

    store.delete("S", "a")
    kept = pages_in(path)
    store.delete("S", "b")

    assert (kept, pages_in(path)) == (1, 0)


def test_the_file_and_its_directory_are_private(path: Path) -> None:
    SqliteSnapshotStore(path).save(named("a"), an_image())

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700


def test_another_process_finds_what_was_saved(path: Path) -> None:
    first = SqliteSnapshotStore(path)
    first.save(named("a"), an_image())
    first.close()

    assert SqliteSnapshotStore(path).load("S", "a")[1] == an_image()


def test_a_file_of_an_unknown_format_is_refused_by_name(path: Path) -> None:
    SqliteSnapshotStore(path).save(named("a"), an_image())
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()

    with pytest.raises(StoreError, match="format 99; this version reads 1"):
        SqliteSnapshotStore(path).list("S")


def test_a_changed_page_is_found(path: Path) -> None:
    SqliteSnapshotStore(path).save(named("a"), an_image())
    with sqlite3.connect(path) as db:
        import zlib

        db.execute("UPDATE page SET data = ?", (zlib.compress(b"\2" * PAGE_BYTES),))
    db.close()

    with pytest.raises(StoreError, match="damaged"):
        SqliteSnapshotStore(path).load("S", "a")


@pytest.mark.parametrize("data", [b"", b"junk", b"x\x9c"])
def test_a_page_that_cannot_be_unpacked_is_found(path: Path, data: bytes) -> None:
    SqliteSnapshotStore(path).save(named("a"), an_image())
    with sqlite3.connect(path) as db:
        db.execute("UPDATE page SET data = ?", (data,))
    db.close()

    with pytest.raises(StoreError, match="damaged"):
        SqliteSnapshotStore(path).load("S", "a")


def test_a_file_that_is_no_database_is_one_clear_error(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"this is not a database, whatever its name says" * 100)

    with pytest.raises(StoreError, match="not a database"):
        SqliteSnapshotStore(path).list("S")


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreError, match="file"):
        SqliteSnapshotStore(tmp_path / "file" / "snapshots.db").list("S")
