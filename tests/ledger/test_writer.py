"""One writer for each file of a process: what it puts together, what fails alone, when it ends."""

import gc
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.descriptors import new_descriptors, open_descriptors
from tests.ledger.builders import EMPTY, OTHER, RUN, bodies, draft, drafts, filled, run_id

from tallystick.core.chain import Head
from tallystick.core.errors import (
    LedgerConflict,
    LedgerCorrupt,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    NotALedger,
    UsageError,
)
from tallystick.ledger import writer as writers
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.ledger.writer import Writer


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db", busy_seconds=0.05) as opened:
        yield opened


def writer_of(ledger: SqliteLedger) -> Writer:
    return ledger.file._open_writer()


def watched(ledger: SqliteLedger) -> list[str]:
    """Every statement that is written from now on."""
    said: list[str] = []
    with writer_of(ledger).connection.held() as db:
        db.set_trace_callback(said.append)
    return said


def writer_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "tally-writer"]


class Crowd:
    """Runs of one entry each, submitted while the writer cannot begin."""

    def __init__(self, ledger: SqliteLedger, count: int) -> None:
        self.ledger = ledger
        self.fences = {run_id(n): ledger.claim(run_id(n), create=True) for n in range(1, count + 1)}
        self.futures: dict[str, Future[None]] = {}

    def submit(self, *, forced: bool = False, **also: writers.Work) -> None:
        """Submit all of them. `also` has a run's number behind its name."""
        extra = {run_id(int(name[3:])): work for name, work in also.items()}
        with self.ledger.file.writing(forced=False):
            for run, fence in self.fences.items():
                _, self.futures[run] = self.ledger.submit(
                    run,
                    drafts(1),
                    expected=EMPTY,
                    fence=fence,
                    forced=forced,
                    also=extra.get(run),  # type: ignore[arg-type]
                )

    def failures(self) -> dict[int, type[BaseException]]:
        found = {n: self.futures[run].exception() for n, run in enumerate(self.fences, start=1)}
        return {number: type(error) for number, error in found.items() if error is not None}


# -- together ------------------------------------------------------------------------------------


@pytest.mark.parametrize("forced", [False, True])
def test_what_waits_is_written_in_one_transaction(ledger: SqliteLedger, forced: bool) -> None:
    crowd = Crowd(ledger, 40)
    said = watched(ledger)

    crowd.submit(forced=forced)

    assert crowd.failures() == {}
    held, together = 1, 1
    assert said.count("COMMIT") == held + together
    assert verify_ledger(ledger).entries == 40


def test_threads_that_force_at_the_same_time_wait_for_the_disk_together(
    ledger: SqliteLedger,
) -> None:
    crowd = Crowd(ledger, 16)
    said = watched(ledger)
    together = threading.Barrier(17)

    def force(run: str) -> None:
        _, written = ledger.submit(
            run, drafts(1), expected=EMPTY, fence=crowd.fences[run], forced=True
        )
        together.wait()
        written.result()

    threads = [threading.Thread(target=force, args=(run,)) for run in crowd.fences]
    with ledger.file.writing(forced=False):
        for thread in threads:
            thread.start()
        together.wait()
    for thread in threads:
        thread.join()

    assert said.count("COMMIT") == 2
    assert said.count("PRAGMA synchronous = FULL") == 1
    assert verify_ledger(ledger).entries == 16


def test_a_transaction_is_bounded_in_count_and_bytes(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(ledger, 20)
    monkeypatch.setattr(writers, "_BATCH_MAX", 8)
    said = watched(ledger)
    crowd.submit()
    by_count = (crowd.failures(), said.count("COMMIT") - 1)

    monkeypatch.setattr(writers, "_BATCH_BYTES_MAX", 1)
    said.clear()
    head, futures = ledger.runs()[0].head, []
    with ledger.file.writing(forced=False):
        for number in range(3):
            head, written = ledger.submit(
                RUN, [draft(number)], expected=head, fence=1, forced=False
            )
            futures.append(written)
    by_bytes = ([written.exception() for written in futures], said.count("COMMIT") - 1)

    assert by_count == ({}, 3)
    assert by_bytes == ([None] * 3, 3)


def test_a_run_that_is_refused_fails_alone(ledger: SqliteLedger) -> None:
    crowd = Crowd(ledger, 5)
    for number in (2, 5):
        ledger.claim(run_id(number), create=False)

    crowd.submit(forced=True)

    assert crowd.failures() == {2: LedgerConflict, 5: LedgerConflict}
    assert [row.head.count for row in ledger.runs()] == [1, 0, 1, 1, 0]


def raising(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM run")
    raise UsageError("no")


def twice(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO body SELECT * FROM body LIMIT 1")


def nonsense(db: sqlite3.Connection) -> None:
    db.execute("SELECT nothing FROM nowhere")


def test_what_goes_with_a_submission_fails_with_it_alone(ledger: SqliteLedger) -> None:
    crowd = Crowd(ledger, 5)

    crowd.submit(run2=raising, run3=twice, run4=nonsense)

    assert crowd.failures() == {2: UsageError, 3: LedgerCorrupt, 4: LedgerCorrupt}
    assert [row.head.count for row in ledger.runs()] == [1, 0, 0, 0, 1]
    assert verify_ledger(ledger).ok


def test_when_all_are_refused_nothing_is_committed(ledger: SqliteLedger) -> None:
    crowd = Crowd(ledger, 3)
    said = watched(ledger)

    crowd.submit(run1=raising, run2=raising, run3=raising)

    assert crowd.failures() == dict.fromkeys((1, 2, 3), UsageError)
    assert (said.count("COMMIT"), said.count("ROLLBACK")) == (1, 1)


# -- disks ---------------------------------------------------------------------------------------


def test_a_full_disk_fails_all_of_a_transaction_and_the_next_one_works(
    ledger: SqliteLedger,
) -> None:
    crowd = Crowd(ledger, 4)
    with writer_of(ledger).connection.held() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")

    def large(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO body VALUES ('x', 0, NULL, ?)", (bytes(100_000),))

    said = watched(ledger)
    crowd.submit(run3=large)

    assert crowd.failures() == dict.fromkeys((1, 2, 3, 4), LedgerFull)
    assert len({id(each.exception()) for each in crowd.futures.values()}) == 4
    assert said.count("BEGIN IMMEDIATE") == 2
    assert [row.head.count for row in ledger.runs()] == [0] * 4
    with writer_of(ledger).connection.held() as db:
        db.execute("PRAGMA max_page_count = 1000000")
    crowd.submit()
    assert crowd.failures() == {}
    assert verify_ledger(ledger).entries == 4


def test_a_file_that_may_not_be_written_fails_all_of_a_transaction(ledger: SqliteLedger) -> None:
    crowd = Crowd(ledger, 3)

    with writer_of(ledger).connection.held() as db:
        db.execute("PRAGMA query_only = ON")
    with pytest.raises(LedgerReadOnly):
        ledger.append(RUN, drafts(1), expected=EMPTY, fence=1, forced=True)
    with writer_of(ledger).connection.held() as db:
        db.execute("PRAGMA query_only = OFF")
    crowd.submit()

    assert crowd.failures() == {}


def test_while_another_process_writes_all_of_a_transaction_fails_and_nothing_is_tried_again(
    ledger: SqliteLedger,
) -> None:
    crowd = Crowd(ledger, 3)
    said = watched(ledger)
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        entered = threading.Event()
        free = threading.Event()

        def hold() -> None:
            with writer_of(ledger).connection.held():
                entered.set()
                free.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        entered.wait()
        for run, fence in crowd.fences.items():
            _, crowd.futures[run] = ledger.submit(
                run, drafts(1), expected=EMPTY, fence=fence, forced=False
            )
        other.execute("BEGIN IMMEDIATE")
        free.set()
        holder.join()

        assert crowd.failures() == dict.fromkeys((1, 2, 3), LedgerLocked)
        other.execute("ROLLBACK")

    assert said.count("BEGIN IMMEDIATE") == 1
    assert [row.head.count for row in ledger.runs()] == [0] * 3
    crowd.submit()
    assert crowd.failures() == {}


def test_a_file_that_is_no_ledger_fails_what_was_submitted(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"hello" * 200)

    with SqliteLedger(tmp_path / "plain") as ledger:
        _, refused = ledger.submit(RUN, drafts(1), expected=EMPTY, fence=1, forced=False)
        with pytest.raises(NotALedger):
            refused.result()

    assert (tmp_path / "plain").read_bytes() == b"hello" * 200


# -- room ----------------------------------------------------------------------------------------


class Waiting:
    """Counts those who wait for room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Semaphore(0)
        waited = Writer._wait_for_room

        def wait_for_room(writer: Writer, size: int) -> None:
            self._changed.release()
            waited(writer, size)

        monkeypatch.setattr(Writer, "_wait_for_room", wait_for_room)

    def one_more(self) -> bool:
        return self._changed.acquire(timeout=10)


def submitting(ledger: SqliteLedger, run: str, count: int, text: str = "x") -> threading.Thread:
    fence = ledger.claim(run, create=True)

    def submit() -> None:
        head: Head = EMPTY
        for _ in range(count):
            head, _ = ledger.submit(
                run, [draft(0, text=text)], expected=head, fence=fence, forced=False
            )

    return threading.Thread(target=submit)


def test_whoever_submits_more_than_the_queue_holds_waits_until_there_is_room(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "QUEUE_MAX", 4)
    waiting = Waiting(monkeypatch)
    thread = submitting(ledger, RUN, 11)

    with ledger.file.writing(forced=False):
        thread.start()
        assert waiting.one_more()
        queued = writer_of(ledger)._open
    thread.join()
    ledger.close()

    assert queued == 4
    assert verify_ledger(ledger).entries == 11


def test_bytes_fill_the_queue_too_and_nobody_comes_before_those_who_wait(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "QUEUE_BYTES_MAX", 2_000)
    waiting = Waiting(monkeypatch)
    first, large, late = (
        submitting(ledger, run_id(number), 1, text="x" * size)
        for number, size in ((1, 1), (2, 10_000), (3, 1))
    )

    with ledger.file.writing(forced=False):
        first.start()
        first.join()
        large.start()
        assert waiting.one_more()
        late.start()
        assert waiting.one_more()
        queued = writer_of(ledger)._open
    large.join()
    late.join()
    ledger.close()

    assert queued == 1
    assert verify_ledger(ledger).entries == 3


def test_a_submission_larger_than_the_queue_is_let_through_alone(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "QUEUE_BYTES_MAX", 10)

    assert filled(ledger).count == 4


# -- waiting for oneself -------------------------------------------------------------------------


def test_who_would_wait_for_himself_is_told_so(ledger: SqliteLedger) -> None:
    head = filled(ledger)

    with ledger.file.writing(forced=False), pytest.raises(UsageError, match="in a transaction"):
        ledger.append(RUN, drafts(1), expected=head, fence=1, forced=False)
    with ledger.file.writing(forced=False), pytest.raises(UsageError, match="in a transaction"):
        ledger.claim(RUN, create=False)
    with ledger.file.writing(forced=False), pytest.raises(UsageError, match="in a transaction"):
        ledger.close()

    ledger.close()
    assert verify_ledger(ledger).entries == 4


def test_what_goes_with_an_append_cannot_use_the_ledger_to_write(ledger: SqliteLedger) -> None:
    head = filled(ledger)

    def also(db: object) -> None:
        ledger.append(OTHER, drafts(1), expected=EMPTY, fence=1, forced=False)

    with pytest.raises(UsageError, match="in a transaction"):
        ledger.append(RUN, drafts(1), expected=head, fence=1, forced=False, also=also)

    assert ledger.runs()[0].head == head


def test_a_callback_may_submit_but_not_wait(ledger: SqliteLedger) -> None:
    fence = ledger.claim(RUN, create=True)
    refused: list[str] = []
    submitted: list[Future[None]] = []
    done = threading.Event()

    def called(written: Future[None]) -> None:
        head = ledger.runs()[0].head
        submitted.append(ledger.submit(RUN, drafts(1), expected=head, fence=fence, forced=False)[1])
        for action in (
            lambda: ledger.append(RUN, [], expected=head, fence=fence, forced=False),
            ledger.close,
        ):
            try:
                action()
            except UsageError as error:
                refused.append(str(error))
        done.set()

    with ledger.file.writing(forced=False):
        _, written = ledger.submit(RUN, drafts(1), expected=EMPTY, fence=fence, forced=False)
        written.add_done_callback(called)
    assert done.wait(timeout=10)
    submitted[0].result()

    assert refused == [f"{ledger.path}: its writer cannot wait for itself"] * 2
    assert verify_ledger(ledger).entries == 2


def test_a_callback_that_fails_is_nothing_to_the_others(ledger: SqliteLedger) -> None:
    fence = ledger.claim(RUN, create=True)

    def called(written: Future[None]) -> None:
        raise SystemExit

    with ledger.file.writing(forced=False):
        head, written = ledger.submit(RUN, drafts(1), expected=EMPTY, fence=fence, forced=False)
        written.add_done_callback(called)
        head, behind = ledger.submit(RUN, drafts(1), expected=head, fence=fence, forced=False)
    behind.result()

    assert ledger.append(RUN, drafts(1), expected=head, fence=fence, forced=True).count == 3


# -- sharing and ending --------------------------------------------------------------------------


def test_ledgers_on_one_file_share_its_writer(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "ledger.db")
    with (
        SqliteLedger(tmp_path / "ledger.db") as first,
        SqliteLedger(tmp_path / "link.db") as second,
        SqliteLedger(tmp_path / "other.db") as other,
    ):
        head = filled(first)
        second.append(RUN, drafts(1), expected=head, fence=1, forced=False)
        filled(other)

        assert writer_of(first) is writer_of(second)
        assert writer_of(first) is not writer_of(other)
        assert len(bodies(first)) == 5


def test_the_thread_starts_with_the_first_append_and_ends_with_the_last_ledger(
    tmp_path: Path,
) -> None:
    before = writer_threads()
    first, second = (SqliteLedger(tmp_path / "ledger.db") for _ in range(2))
    first.claim(RUN, create=True)
    assert second.runs()[0].head == EMPTY
    second.claim(OTHER, create=True)
    quiet = writer_threads()

    head = first.append(RUN, drafts(1), expected=EMPTY, fence=1, forced=False)
    (thread,) = set(writer_threads()) - set(before)
    first.close()
    head = second.append(RUN, drafts(1), expected=head, fence=1, forced=False)
    lives = thread.is_alive()
    second.close()
    thread.join(timeout=10)

    assert quiet == before
    assert lives
    assert not thread.is_alive()
    assert first.append(RUN, drafts(1), expected=head, fence=1, forced=True).count == 3
    first.close()


def test_a_ledger_that_was_forgotten_open_lets_go_of_its_thread(tmp_path: Path) -> None:
    before = writer_threads()
    ledger = SqliteLedger(tmp_path / "ledger.db")
    filled(ledger)
    (thread,) = set(writer_threads()) - set(before)

    del ledger
    gc.collect()
    thread.join(timeout=10)

    assert not thread.is_alive()


def test_a_forgotten_ledger_is_let_go_of_also_if_its_last_write_was_to_call_it(
    tmp_path: Path,
) -> None:
    before = writer_threads()
    ledger = SqliteLedger(tmp_path / "ledger.db")
    fence = ledger.claim(RUN, create=True)
    descriptors = open_descriptors()
    _, written = ledger.submit(RUN, drafts(1), expected=EMPTY, fence=fence, forced=False)
    written.add_done_callback(partial(lambda ledger, _: ledger.path, ledger))
    written.result()
    (thread,) = set(writer_threads()) - set(before)

    del ledger, written
    gc.collect()
    thread.join(timeout=2)

    assert not thread.is_alive()
    assert new_descriptors(descriptors) == {}


def test_closing_waits_for_what_is_queued(ledger: SqliteLedger) -> None:
    crowd = Crowd(ledger, 30)

    crowd.submit(forced=True)
    ledger.close()

    assert all(written.done() for written in crowd.futures.values())
    assert crowd.failures() == {}
    assert not ledger.path.with_name("ledger.db-wal").exists()


def test_threads_that_close_while_others_write_lose_nothing(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    writing = True

    def close() -> None:
        while writing:
            ledger.close()

    threads = [submitting(ledger, run_id(number), 60) for number in (1, 2, 3)]
    closer = threading.Thread(target=close)
    for thread in (*threads, closer):
        thread.start()
    for thread in threads:
        thread.join()
    writing = False
    closer.join()
    ledger.close()

    report = verify_ledger(ledger)
    ledger.close()
    assert (report.ok, report.entries) == (True, 180)


def test_a_file_that_took_the_place_of_another_has_a_writer_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as old:
        filled(old)
        assert len(bodies(old)) == 4
        path.rename(tmp_path / "moved.db")
        for log in ("-wal", "-shm"):
            (tmp_path / f"ledger.db{log}").rename(tmp_path / f"moved.db{log}")
        with SqliteLedger(path) as new:
            filled(new, run=OTHER)

            assert [row.run for row in new.runs()] == [OTHER]
            assert [row.run for row in old.runs()] == [RUN]


def test_readers_do_not_wait_for_a_writer_of_the_same_process(ledger: SqliteLedger) -> None:
    filled(ledger)

    with ledger.file.writing(forced=True) as db:
        db.execute("DELETE FROM body")

        assert len(bodies(ledger)) == 4
        assert len(ledger.runs()) == 1


def test_a_reading_connection_does_not_write(ledger: SqliteLedger) -> None:
    filled(ledger)

    with pytest.raises(LedgerReadOnly), ledger.file.reading() as db:
        db.execute("DELETE FROM body")

    assert verify_ledger(ledger).ok
