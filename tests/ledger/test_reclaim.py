"""Room that was freed is given back: the file gets smaller, and what is left is whole."""

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.ledger.builders import EMPTY, OTHER, RUN, bodies, draft, drafts, filled

from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.errors import LedgerLocked
from tallystick.ledger.file import APPLICATION_ID
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

LARGE = 300_000
RECLAIM = """
import sys
from pathlib import Path
from tallystick.core.errors import LedgerError
from tallystick.ledger.sqlite import SqliteLedger
with SqliteLedger(Path(sys.argv[1])) as ledger:
    try:
        ledger.reclaim()
        print("whole")
    except LedgerError as error:
        print(error.code)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db", busy_seconds=0.05) as opened:
        yield opened


def bulky(ledger: SqliteLedger, *, run: str = RUN, count: int = 6) -> None:
    fence = ledger.claim(run, create=True)
    large = [draft(number, text=chr(97 + number) * LARGE) for number in range(count)]
    ledger.append(run, large, expected=EMPTY, fence=fence, forced=True)


def test_the_file_gets_smaller_by_what_was_erased_and_the_chain_holds(
    ledger: SqliteLedger,
) -> None:
    bulky(ledger)
    filled(ledger, run=OTHER)
    ledger.erase(RUN, [0, 1, 2, 3])
    size = ledger.path.stat().st_size

    before, after = ledger.reclaim()

    assert before >= size > 6 * LARGE
    assert after == ledger.path.stat().st_size < 2 * LARGE + 100_000
    report = verify_ledger(ledger)
    assert (report.ok, report.entries, report.erased) == (True, 10, 4)
    head = ledger.runs()[1].head
    assert ledger.append(OTHER, drafts(1), expected=head, fence=1, forced=True).count == 5


def test_there_is_nothing_to_give_back_twice(ledger: SqliteLedger) -> None:
    bulky(ledger)
    ledger.remove(RUN)

    _, first = ledger.reclaim()
    again = ledger.reclaim()

    assert first < 100_000
    assert again == (first, first)


def test_the_file_is_still_a_ledger_and_its_other_tables_keep_their_order(
    ledger: SqliteLedger,
) -> None:
    with SqliteAttachments(ledger.file) as attachments:
        held = SessionAttachments(attachments, session_id="s")
        ids = [held.put(bytes([number]) * 50_000).id for number in (3, 1, 2, 5)]
        held.commit(ids)
        held.delete(ids[1])
        bulky(ledger)
        ledger.erase(RUN, range(6))

        ledger.reclaim()

        assert [each.ref.id for each in held.references()] == [ids[0], ids[2], ids[3]]
        assert held.read(ids[2]) == bytes([2]) * 50_000
    with closing(sqlite3.connect(ledger.path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_others_read_now_is_not_taken_from_them(ledger: SqliteLedger) -> None:
    bulky(ledger)
    ledger.erase(RUN, [0, 1, 2, 3])
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        seen = reader.execute("SELECT count(*) FROM entry").fetchone()

        with pytest.raises(LedgerLocked, match="try again when it is done"):
            ledger.reclaim()
        assert reader.execute("SELECT count(*) FROM entry").fetchone() == seen
        reader.execute("ROLLBACK")

        # One that is open and reads nothing now is no hindrance.
        before, after = ledger.reclaim()

        assert before > after < 2 * LARGE + 100_000
        assert reader.execute("SELECT count(*) FROM entry").fetchone() == seen
    assert verify_ledger(ledger).ok


def test_while_another_process_writes_it_is_locked(ledger: SqliteLedger) -> None:
    bulky(ledger)
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("DELETE FROM body WHERE run = 'x'")

        with pytest.raises(LedgerLocked):
            ledger.reclaim()

        other.execute("COMMIT")
    assert verify_ledger(ledger).ok


def test_runs_that_go_on_meanwhile_wait_and_lose_nothing(ledger: SqliteLedger) -> None:
    bulky(ledger)
    ledger.erase(RUN, [0, 1, 2, 3, 4])
    head = filled(ledger, run=OTHER)
    failed: list[BaseException] = []

    def write() -> None:
        nonlocal head
        try:
            for number in range(40):
                head = ledger.append(
                    OTHER, [draft(number)], expected=head, fence=1, forced=number % 9 == 0
                )
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    _, after = ledger.reclaim()
    thread.join()

    assert failed == []
    assert after < LARGE + 400_000
    assert verify_ledger(ledger, heads={OTHER: head}).entries == 6 + 44


def reclaimed(path: Path, failure: str) -> str:
    """Reclaim in a process whose writes to the file and its log fail. How it ended."""
    calls = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64,fdatasync,ftruncate"]
    files = ["-P", str(path), "-P", f"{path}-wal", "-e", f"inject={failure}"]
    work = [sys.executable, "-c", RECLAIM, str(path)]
    done = subprocess.run([*calls, *files, *work], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "killed"


def swept(tmp_path: Path, failure: str, places: Iterable[int]) -> list[str]:
    """Let it fail at each of these places, and see that nothing is lost."""
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as ledger:
        bulky(ledger, count=3)
        filled(ledger, run=OTHER, count=60)
        ledger.erase(RUN, [1])
        heads = {row.run: row.head for row in ledger.runs()}
    whole = path.read_bytes()
    ended = []
    for place in places:
        path.write_bytes(whole)
        ended.append(reclaimed(path, f"{failure}:when={place}"))
        with SqliteLedger(path) as ledger:
            report = verify_ledger(ledger, heads=heads)
            assert (report.ok, report.entries, report.erased) == (True, 63, 1), report.first_bad
            assert len(bodies(ledger)) == 3
    return ended


WITH_STRACE = pytest.mark.skipif(shutil.which("strace") is None, reason="fails with strace")


@WITH_STRACE
def test_killed_in_the_middle_it_loses_nothing(tmp_path: Path) -> None:
    ended = swept(tmp_path, "pwrite64:signal=SIGKILL", (1, 40, 320, 5_000))

    assert ended == ["killed", "killed", "killed", "whole"]


@WITH_STRACE
def test_a_disk_that_is_full_in_the_middle_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    ended = swept(tmp_path, "pwrite64:error=ENOSPC", (40,))

    assert ended == ["ledger.full"]


@pytest.mark.slow
@WITH_STRACE
@pytest.mark.parametrize(
    ("failure", "places"),
    [
        ("pwrite64:signal=SIGKILL", range(1, 520, 40)),
        ("pwrite64:error=ENOSPC", range(1, 520, 60)),
        ("fdatasync:signal=SIGKILL", range(1, 8)),
        ("fdatasync:error=EIO", range(1, 8)),
        ("ftruncate:signal=SIGKILL", range(1, 5)),
    ],
)
def test_wherever_it_fails_nothing_is_lost(tmp_path: Path, failure: str, places: range) -> None:
    ended = swept(tmp_path, failure, places)

    assert ended.count("whole") < len(ended)
