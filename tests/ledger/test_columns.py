"""A file of an earlier version: read as it is, given its columns with the first write, once."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.ledger.builders import (
    as_before_columns,
    draft,
    drafted,
    filled,
    grown,
    made,
    run_id,
)

from tallystick.core.chain import Head
from tallystick.core.errors import LedgerCorrupt, LedgerFormatUnknown
from tallystick.core.records import RunPruned, RunResumed
from tallystick.ledger import columns
from tallystick.ledger.file import FORMAT, LEDGER
from tallystick.ledger.port import RunFilter
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

FILTERS = [
    RunFilter(),
    RunFilter(outermost=True),
    RunFilter(inside=True),
    RunFilter(open_only=True),
    RunFilter(unerased=True),
    RunFilter(caller=run_id(3)),
    RunFilter(prefix=run_id(3)[:9]),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of each kind of run."""
    path = tmp_path / "data" / "ledger.db"
    with SqliteLedger(path) as ledger:
        filled(ledger)
        grown(ledger)
        outer = made(ledger, 3, stop=None)
        made(ledger, 4, caller=outer, stop="in_doubt")
        made(ledger, 5, caller=outer, parent=run_id(90))
        ledger.claim(run_id(6), create=True)
        pruned = made(ledger, 7, caller=outer)
        (row,) = [row for row in ledger.runs() if row.run == pruned]
        mark = RunPruned(at=9, before=5, removed=3, bytes=9, why="a test", caller=outer)
        ledger.append(pruned, [drafted(mark)], expected=row.head, fence=row.fence, forced=False)
        ledger.erase(pruned, [0, 1, 2, 4])
        going_on = made(ledger, 8, stop="max_turns")
        resumed = [drafted(RunResumed(at=9, fence=1)), draft(1), draft(2)]
        (row,) = [row for row in ledger.runs() if row.run == going_on]
        ledger.append(going_on, resumed, expected=row.head, fence=row.fence, forced=False)
        ledger.release(made(ledger, 9))
    return path


@pytest.fixture
def old(path: Path) -> Path:
    as_before_columns(path)
    return path


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        (found,) = db.execute("PRAGMA user_version").fetchone()
    return int(found)


def touched(path: Path) -> None:
    """Make the first write of this version."""
    with SqliteLedger(path) as ledger:
        ledger.claim(run_id(3), create=False)


def test_reading_finds_the_same_with_and_without_columns(path: Path, tmp_path: Path) -> None:
    older = tmp_path / "older.db"
    shutil.copyfile(path, older)
    as_before_columns(older)

    with SqliteLedger(path) as now, SqliteLedger(older) as then:
        for which in FILTERS:
            assert then.runs(which) == now.runs(which), which
            assert then.runs(which, newest_first=True, most=2) == now.runs(
                which, newest_first=True, most=2
            )
        assert [then.row(row.run) for row in now.runs()] == list(now.runs())
        assert then.forks_of(run_id(1)) == now.forks_of(run_id(1)) == [run_id(2)]


def test_reading_changes_nothing_of_an_older_file(old: Path) -> None:
    before = old.read_bytes()

    with SqliteLedger(old) as ledger:
        ledger.runs(RunFilter(outermost=True))
        ledger.row(run_id(3))
        assert verify_ledger(ledger).ok

    assert old.read_bytes() == before


@pytest.mark.parametrize("format", [1, 2])
def test_the_first_write_gives_an_older_file_what_a_new_one_has(path: Path, format: int) -> None:
    with SqliteLedger(path) as ledger:
        expected = ledger.runs()
    as_before_columns(path, version=format)

    with SqliteLedger(path) as reader:
        assert list(reader.runs()) == list(expected)
        touched(path)
        # One that had looked before finds the columns too.
        found = [(row.run, columns.values_of(row)) for row in reader.runs()]

    assert found == [(row.run, columns.values_of(row)) for row in expected]
    assert version(path) == FORMAT


def test_a_write_that_fails_leaves_the_file_older_and_whole(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(columns, "with_facts", lambda db, row: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            touched(old)
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("SELECT count(*) FROM pragma_table_info('run')").fetchone() == (7,)
    assert (version(old), len(old.read_bytes())) == (1, len(before))

    touched(old)

    assert version(old) == FORMAT


def test_the_version_before_refuses_a_file_with_columns_by_its_format(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The formats that it read, and what it said of others: `ledger/file.py` of then.
    before = dataclasses.replace(
        LEDGER,
        versions=(1, 2),
        upgrade=None,
        newer=lambda path, found: LedgerFormatUnknown(where=path, found=found, known="1 and 2"),
    )

    def as_before(act: Callable[[SqliteLedger], object]) -> None:
        with monkeypatch.context() as patch, SqliteLedger(old) as ledger:
            patch.setattr("tallystick.ledger.sqlite.LEDGER", before)
            patch.setattr("tallystick.ledger.writer.LEDGER", before)
            patch.setattr(ledger.file._reader, "kind", before)
            act(ledger)

    as_before(lambda ledger: list(ledger.read(run_id(1))))
    touched(old)
    bytes_now = old.read_bytes()

    for act in (
        lambda ledger: list(ledger.read(run_id(1))),
        lambda ledger: ledger.claim(run_id(1), create=False),
    ):
        with pytest.raises(LedgerFormatUnknown, match="has format 3; this version reads 1 and 2"):
            as_before(act)
    assert old.read_bytes() == bytes_now


def test_a_newer_format_is_refused_with_those_that_are_known(old: Path) -> None:
    with closing(sqlite3.connect(old)) as db:
        db.execute("PRAGMA user_version = 4")

    with pytest.raises(LedgerFormatUnknown, match="has format 4; this version reads 1, 2 and 3"):
        SqliteLedger(old).runs()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE run SET count = 'x' WHERE id = ?",
        "UPDATE run SET hash = 7 WHERE id = ?",
        "UPDATE entry SET header = x'00' WHERE run = ?",
        "UPDATE body SET body = 'no bytes' WHERE run = ?",
        "DELETE FROM body WHERE run = ?",
        "DELETE FROM entry WHERE run = ?",
    ],
)
def test_a_damaged_run_does_not_keep_the_others_from_being_written(old: Path, damage: str) -> None:
    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        db.execute(damage, (run_id(1),))

    touched(old)

    with SqliteLedger(old) as ledger:
        row = ledger.row(run_id(4))
        assert row is not None
        assert (row.caller, row.stop) == (run_id(3), "in_doubt")


@pytest.mark.parametrize("column", ["steps", "parent", "stop", "ended_at", "erased"])
def test_a_column_that_holds_what_none_does_is_damage(path: Path, column: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"UPDATE run SET {column} = x'00' WHERE id = ?", (run_id(3),))

    with SqliteLedger(path) as ledger, pytest.raises(LedgerCorrupt, match="never written there"):
        ledger.row(run_id(3))


def test_a_time_that_fits_no_column_is_left_out(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        import msgspec
        from tests.ledger.builders import start_record

        start = msgspec.structs.replace(start_record(1), started_at=1 << 63)
        fence = ledger.claim(run_id(1), create=True)
        ledger.append(
            run_id(1), [drafted(start)], expected=Head.of_nothing(), fence=fence, forced=False
        )

        row = ledger.row(run_id(1))

    assert row is not None
    assert row.started_at is None


READ_ONLY = """
import sys
from pathlib import Path
from tallystick.core.errors import LedgerReadOnly
from tallystick.ledger.sqlite import SqliteLedger
with SqliteLedger(Path(sys.argv[1])) as ledger:
    print(len(ledger.runs()), sum(1 for row in ledger.runs() for _ in ledger.read(row.run)))
    try:
        ledger.claim(ledger.runs()[2].run, create=False)
    except LedgerReadOnly:
        print("refused")
"""


@pytest.fixture
def read_only(old: Path) -> list[str]:
    """The beginning of a command for which the folder of the ledger is a disk without writing."""
    folder = old.parent
    mounted = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    command = ["unshare", "-rm", "sh", "-c", f'{mounted} && exec "$@"', "sh"]
    try:
        able = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        pytest.skip("this system lets no test mount anything")
    return command


def test_an_older_file_is_read_on_a_disk_that_cannot_be_written(
    old: Path, read_only: list[str]
) -> None:
    before = old.read_bytes()
    with SqliteLedger(old) as ledger:
        entries = sum(row.head.count for row in ledger.runs())

    command = [*read_only, sys.executable, "-c", READ_ONLY, str(old)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"9 {entries}", "refused"]
    assert old.read_bytes() == before


def test_nothing_is_asked_of_the_whole_table(path: Path) -> None:
    with SqliteLedger(path) as ledger, ledger.file.reading() as db:
        for which in (
            RunFilter(outermost=True),
            RunFilter(inside=True),
            RunFilter(open_only=True),
            RunFilter(unerased=True),
            RunFilter(parent="x"),
            RunFilter(caller="x"),
            RunFilter(session="x"),
            RunFilter(grown_from="x"),
            RunFilter(prefix="x"),
        ):
            asked, values = columns.selection_sql(
                which, after="", skip=0, most=5, newest_first=True
            )
            plan = db.execute(f"EXPLAIN QUERY PLAN SELECT id FROM {asked}", values).fetchall()
            said = " ".join(str(row[3]) for row in plan)
            assert "INDEX run_" in said or "SEARCH run USING PRIMARY KEY" in said, (which, said)
            assert "B-TREE" not in said, (which, said)


FIRST_WRITE = """
import sys
from pathlib import Path
from tallystick.ledger.sqlite import SqliteLedger
with SqliteLedger(Path(sys.argv[1])) as ledger:
    sys.stdin.readline()
    print(ledger.claim(sys.argv[2], create=False))
"""


def test_of_several_processes_that_write_first_one_adds_the_columns(old: Path) -> None:
    with SqliteLedger(old) as ledger:
        before = ledger.runs()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_WRITE, old, run_id(3)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]

    fences = [int(worker.communicate("go\n", timeout=60)[0]) for worker in workers]

    assert sorted(fences) == [2, 3, 4, 5]
    with SqliteLedger(old) as ledger:
        after = [(row.run, row.head, row.caller, row.stop) for row in ledger.runs()]
    assert after == [(row.run, row.head, row.caller, row.stop) for row in before]
    assert version(old) == FORMAT
