"""The ledger's file: private, versioned, and clear about what is wrong with it."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.ledger.builders import EMPTY, OTHER, RUN, bodies, draft, drafts, filled

from tallystick.core.chain import Head
from tallystick.core.errors import (
    LedgerCorrupt,
    LedgerError,
    LedgerFormatUnknown,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
    NotALedger,
)
from tallystick.ledger.file import APPLICATION_ID
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.storage.sqlite_connection import SqliteConnection
from tallystick.upkeep.audit import verify_records

WORKER = Path(__file__).with_name("append_worker.py")
FILE_FAULT = "BadRow(what='file'"
TRY_TO_WRITE = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], timeout=0).execute("BEGIN IMMEDIATE")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(path, busy_seconds=0.05) as opened:
        yield opened


def a_file(path: Path) -> bytes:
    """Make a ledger with two runs, and return the bytes of its file."""
    with SqliteLedger(path) as ledger:
        filled(ledger, run=RUN)
        filled(ledger, run=OTHER)
    return path.read_bytes()


def set_pragma(monkeypatch: pytest.MonkeyPatch, pragma: str) -> None:
    """Give every connection that is opened from now on a further setting."""
    opened = SqliteConnection._prepare

    def prepare(self: SqliteConnection, db: sqlite3.Connection) -> None:
        opened(self, db)
        db.execute(pragma).fetchall()

    monkeypatch.setattr(SqliteConnection, "_prepare", prepare)


def test_the_file_its_log_and_its_directory_are_private(ledger: SqliteLedger) -> None:
    filled(ledger)

    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in ledger.path.parent.iterdir()}

    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
    assert stat.S_IMODE(os.stat(ledger.path.parent).st_mode) == 0o700


def test_another_process_finds_what_was_appended(path: Path) -> None:
    with SqliteLedger(path) as first:
        head = filled(first)
    with SqliteLedger(path) as second:
        assert second.runs()[0].head == head
        assert verify_ledger(second).ok


def test_closing_twice_is_harmless_and_using_it_again_opens_it(ledger: SqliteLedger) -> None:
    filled(ledger)

    ledger.close()
    ledger.close()

    assert len(bodies(ledger)) == 4


def test_making_a_ledger_object_touches_no_file(path: Path) -> None:
    SqliteLedger(path)

    assert not path.parent.exists()


def test_a_second_connection_of_one_process_leaves_the_locks_of_the_first(path: Path) -> None:
    with SqliteLedger(path, busy_seconds=0.05) as first:
        filled(first)
        with first._file.writing(forced=False):
            with SqliteLedger(path, busy_seconds=0.05) as second:
                assert len(bodies(second)) == 4
            held = subprocess.run(
                [sys.executable, "-c", TRY_TO_WRITE, path],
                capture_output=True,
                text=True,
                check=False,
            )

    assert "database is locked" in held.stderr


def test_a_file_of_a_newer_format_is_refused_by_name_and_left_alone(path: Path) -> None:
    a_file(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()

    with pytest.raises(
        LedgerFormatUnknown, match=r"ledger\.db has format 99; this version reads 1"
    ):
        SqliteLedger(path).runs()

    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"hello", b"x" * 10_000, b"SQLite format 3\0", b"PK\3\4" * 500]
)
def test_what_is_no_database_is_refused_by_name_and_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)

    with pytest.raises(NotALedger, match=r"ledger\.db is not a ledger"):
        SqliteLedger(path).claim(RUN, create=True)

    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "setting", ["CREATE TABLE t (a)", "PRAGMA user_version = 1", "PRAGMA application_id = 7"]
)
def test_another_programs_database_is_refused_and_left_alone(path: Path, setting: str) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute(setting)
    before = path.read_bytes()

    with pytest.raises(NotALedger):
        SqliteLedger(path).runs()

    assert path.read_bytes() == before


def test_a_half_written_file_is_never_taken_for_a_whole_one(path: Path) -> None:
    whole = a_file(path)

    for size in range(2, len(whole), 509):
        path.write_bytes(whole[:size])
        with SqliteLedger(path) as ledger:
            try:
                report = verify_records(ledger)
                # The last pages may be those of no entry.
                said = str(report.first_bad or report.bad_rows[0])
            except (LedgerCorrupt, NotALedger) as error:
                said = str(error)
        assert said.startswith((f"{path} is ", "BadEntry(run='", FILE_FAULT))


def test_an_empty_file_becomes_a_ledger(ledger: SqliteLedger) -> None:
    ledger.path.parent.mkdir()
    ledger.path.touch()

    filled(ledger)

    with closing(sqlite3.connect(ledger.path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_a_file_without_its_tables_is_damaged(path: Path) -> None:
    a_file(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE entry")

    with pytest.raises(LedgerCorrupt, match=r"ledger\.db is damaged: no such table"):
        list(SqliteLedger(path).read(RUN))


@pytest.mark.parametrize("column", ["count", "hash", "fence"])
def test_a_row_that_holds_what_no_row_does_is_damaged(path: Path, column: str) -> None:
    a_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"UPDATE run SET {column} = 'x'")

    with pytest.raises(LedgerCorrupt, match="holds a value that is never written there"):
        SqliteLedger(path).runs()


def test_a_file_under_something_that_is_no_directory_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()

    with pytest.raises(LedgerUnavailable, match="cannot be used: what should be a directory"):
        SqliteLedger(tmp_path / "plain" / "ledger.db").runs()


def test_a_directory_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="cannot be used: unable to open"):
        SqliteLedger(tmp_path).runs()


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="no directory that nobody may write")
def test_a_file_in_a_read_only_directory_is_refused_by_name() -> None:
    with pytest.raises((LedgerReadOnly, LedgerUnavailable), match="/sys/kernel/new/"):
        SqliteLedger(Path("/sys/kernel/new/ledger.db")).runs()


def test_a_read_only_file_can_be_read_and_an_append_says_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_file(path)
    set_pragma(monkeypatch, "PRAGMA query_only = ON")

    with SqliteLedger(path) as ledger:
        assert len(bodies(ledger)) == 4
        with pytest.raises(LedgerReadOnly, match=r"ledger\.db is read-only; make it and its"):
            ledger.claim(RUN, create=False)


def append_until_it_fails(ledger: SqliteLedger, heads: list[Head]) -> None:
    for number in range(100):
        large = draft(0, text="x" * 3_000)
        forced = number % 2 == 0
        heads.append(ledger.append(RUN, [large], expected=heads[-1], fence=1, forced=forced))


def test_a_full_disk_stops_the_run_and_loses_nothing_that_was_acknowledged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, SqliteLedger(path) as ledger:
        set_pragma(patch, "PRAGMA max_page_count = 64")
        heads = [filled(ledger)]
        with pytest.raises(LedgerFull, match=r"ledger\.db cannot grow: the disk is full"):
            append_until_it_fails(ledger, heads)

        assert ledger.runs()[0].head == heads[-1]
        assert verify_ledger(ledger).entries == heads[-1].count > 4

    with SqliteLedger(path) as ledger:
        ledger.append(RUN, drafts(1), expected=heads[-1], fence=1, forced=True)
        assert verify_ledger(ledger).ok


def test_a_ledger_that_another_process_writes_is_locked_for_writers_only(
    ledger: SqliteLedger,
) -> None:
    head = filled(ledger)
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(LedgerLocked, match=r"written by another process for 0\.05 s"):
            ledger.append(RUN, drafts(1), expected=head, fence=1, forced=False)
        with SqliteLedger(ledger.path) as reader:
            assert len(bodies(reader)) == 4

        other.execute("ROLLBACK")
        assert ledger.append(RUN, drafts(1), expected=head, fence=1, forced=False).count == 5


def test_a_reader_that_waits_between_entries_does_not_hold_up_a_writer(
    ledger: SqliteLedger,
) -> None:
    head = filled(ledger)
    reading = ledger.read(RUN)
    next(reading)

    ledger.append(RUN, drafts(1), expected=head, fence=1, forced=False)

    assert len(list(reading)) == 4


def test_large_bodies_are_read_a_few_at_a_time(ledger: SqliteLedger) -> None:
    fence = ledger.claim(RUN, create=True)
    large = [draft(0, text="x" * 400_000)] * 8
    ledger.append(RUN, large, expected=EMPTY, fence=fence, forced=False)

    assert len(ledger._batch(RUN, 0)) == 3
    assert len(bodies(ledger)) == 8


@pytest.mark.parametrize("how", ["remove", "erase"])
def test_what_was_removed_is_nowhere_in_the_files(ledger: SqliteLedger, how: str) -> None:
    fence = ledger.claim(RUN, create=True)
    secret = draft(0, text="a-secret-word" * 1_000)
    ledger.append(RUN, [secret], expected=EMPTY, fence=fence, forced=True)

    if how == "remove":
        ledger.remove(RUN)
    else:
        ledger.erase(RUN, [0])

    for file in ledger.path.parent.iterdir():
        assert b"a-secret-word" not in file.read_bytes()


def test_forced_waits_for_the_disk_and_committed_does_not(ledger: SqliteLedger) -> None:
    head = filled(ledger)
    levels = []
    for forced in (True, True, False, True):
        head = ledger.append(RUN, drafts(1), expected=head, fence=1, forced=forced)
        with ledger._file._open_writer().connection.held() as db:
            levels.append(db.execute("PRAGMA synchronous").fetchone()[0])

    normal, full = 1, 2
    assert levels == [full, full, normal, full]


@pytest.mark.skipif(shutil.which("strace") is None, reason="counts system calls with strace")
@pytest.mark.parametrize(("kind", "syncs"), [("committed", 0), ("forced", 10), ("nothing", 10)])
def test_every_forced_append_is_one_sync_and_committed_ones_are_none(
    path: Path, kind: str, syncs: int
) -> None:
    trace = path.parent.parent / "trace"

    traced = ["strace", "-f", "-e", "trace=fsync,fdatasync,write", "-o", str(trace)]
    command = [*traced, sys.executable, str(WORKER), str(path), "syncs", kind]
    subprocess.run(command, check=True, capture_output=True)

    _, counted, _ = trace.read_text().split('"mark\\n"')
    assert counted.count("sync(") == syncs


@pytest.mark.skipif(shutil.which("strace") is None, reason="counts system calls with strace")
def test_runs_that_are_forced_together_are_one_sync(path: Path) -> None:
    trace = path.parent.parent / "trace"

    traced = ["strace", "-f", "-e", "trace=fsync,fdatasync,write", "-o", str(trace)]
    command = [*traced, sys.executable, str(WORKER), str(path), "together", "30"]
    subprocess.run(command, check=True, capture_output=True)

    _, counted, _ = trace.read_text().split('"mark\\n"')
    assert counted.count("sync(") == 1


def test_every_error_of_a_ledger_is_one_line(path: Path) -> None:
    errors: list[LedgerError] = [
        LedgerCorrupt(where=str(path), why="x"),
        LedgerFormatUnknown(where=str(path), found=2, known=1),
        LedgerFull(where=str(path)),
        LedgerLocked(where=str(path), waited_seconds=10),
        LedgerReadOnly(where=str(path)),
        LedgerUnavailable(where=str(path), why="x"),
        NotALedger(where=str(path)),
    ]

    for error in errors:
        assert str(error).startswith(f"{path} ")
        assert "\n" not in str(error)
        assert error.code.startswith("ledger.")


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgres://ann:s3cr:et@x@db.example/runs", "postgres://ann@db.example/runs"),
        ("postgresql+x://:s3cret@db/runs?a=b", "postgresql+x://@db/runs?a=b"),
        ("postgres://ann@db.example/runs", "postgres://ann@db.example/runs"),
        ("/home/ann:x@y/ledger.db", "/home/ann:x@y/ledger.db"),
    ],
)
def test_the_name_of_a_store_is_shown_without_a_password(address: str, shown: str) -> None:
    error = LedgerFull(where=address)

    assert error.where == shown
    assert str(error).startswith(f"{shown} cannot grow")
