"""A run that two processes want, and a disk that fails under a whole process.

A second process is refused while the first lives. Where it steals the run all the same, the first
is a zombie: what it writes is refused, it ends with an error, and it pays for nothing more.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.faults.killed_runs import (
    Whole,
    Workers,
    check_kept,
    check_shared,
    check_written,
    go_on,
    played_whole,
)
from tests.faults.paid_server import ITEMS, PaidServer

pytestmark = pytest.mark.slow
# Places among what is paid for: a turn, an effect; a turn, the batch, a query; a turn, an effect,
# a query.
EFFECT = 3 + ITEMS + 3
PAID = EFFECT + 1
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="calls fail by strace")


@pytest.fixture(scope="module")
def server() -> Iterator[PaidServer]:
    with PaidServer() as made:
        yield made


@pytest.fixture(scope="module")
def first(server: PaidServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("runs"), server) as made:
        yield made


@pytest.fixture(scope="module")
def second(first: Workers) -> Iterator[Workers]:
    with Workers(first.folder, first.server, name="said by the second") as made:
        yield made


@pytest.fixture(scope="module")
def whole(first: Workers) -> Whole:
    return played_whole(first)


@pytest.mark.parametrize("number", [1, 2, PAID])
def test_a_run_that_a_living_process_works_on_is_refused_to_another(
    number: int, first: Workers, second: Workers, whole: Whole
) -> None:
    first.begin_anew()
    held = first.server.hold(number)
    first.start()
    assert held.arrived.wait(10)
    before = Counter(first.server.contents)

    refused = second.resumed("retry")
    paid = first.server.contents - before
    held.released.set()
    ended = first.finish()

    assert refused.error == "UsageError", refused.lines
    assert not paid
    assert ended.result == whole.result
    assert first.server.contents == whole.paid


@pytest.mark.parametrize("number", [1, 2, 3, 5, EFFECT, PAID])
def test_a_zombie_writes_nothing_and_pays_for_nothing_more(
    number: int, first: Workers, second: Workers, whole: Whole
) -> None:
    """The first is kept waiting for an answer while the second takes the run and ends it."""
    server = first.server
    first.begin_anew()
    held = server.hold(number)
    first.start()
    assert held.arrived.wait(10)

    thief = second.resumed("retry", steal=True)
    between = Counter(server.contents)
    held.released.set()
    zombie = first.finish()

    assert thief.result is not None, thief.lines[-3:]
    assert thief.result["answer"] == whole.result["answer"]
    assert zombie.error == "LedgerConflict", zombie.lines[-3:]
    assert server.contents == between
    assert server.contents.keys() == whole.paid.keys()
    check_kept(first.data, zombie.heads | thief.heads)
    check_written(first.data, server.keys)


@pytest.mark.parametrize("number", [1, 2, 3, EFFECT])
def test_a_zombie_takes_nothing_from_whoever_has_the_run_now(
    number: int, first: Workers, second: Workers, whole: Whole
) -> None:
    """Both wait for an answer; the zombie gets its own first, and ends while the other waits."""
    server = first.server
    first.begin_anew()
    held = server.hold(number)
    first.start()
    assert held.arrived.wait(10)
    # What is made again comes first, and then the next thing.
    held_too = server.hold(number + 2)
    second.start("resume", in_doubt="retry", steal=True)
    assert held_too.arrived.wait(10)

    held.released.set()
    zombie = first.finish()
    held_too.released.set()
    thief = second.finish()

    assert zombie.error == "LedgerConflict", zombie.lines[-3:]
    assert thief.result is not None, thief.lines[-3:]
    assert thief.result["answer"] == whole.result["answer"]
    charged = thief.result["charge"]["usd"]
    check_shared(first.data, billed=server.billed, charged=charged)
    check_kept(first.data, zombie.heads | thief.heads)


DISKS = [
    ("pwrite64", "ENOSPC", "LedgerFull"),
    ("pwrite64", "EIO", "LedgerUnavailable"),
    ("fdatasync", "EIO", "LedgerUnavailable"),
]


@needs_strace
@pytest.mark.parametrize(("call", "error", "told"), DISKS)
@pytest.mark.parametrize("part", [0.1, 0.4, 0.7])
def test_a_process_whose_disk_fails_stops_and_another_goes_on_when_it_is_well(
    part: float, call: str, error: str, told: str, first: Workers, whole: Whole
) -> None:
    first.begin_anew()
    listed = first.failing(call, error, on="ledger.db-wal", since=60_000)
    # strace counts by thread; nearly all is written by one.
    threads = Counter(line.split("]")[0] for line in listed.seen if f"{call}(" in line)
    since = max(1, round(part * max(threads.values())))

    first.begin_anew()
    failed = first.failing(call, error, on="ledger.db-wal", since=since)

    assert failed.error == told, failed.lines[-3:]
    assert failed.code == 1
    go_on(first, failed, whole, asked=False)


@needs_strace
def test_a_process_whose_ledger_is_on_a_read_only_disk_pays_for_nothing(
    first: Workers, whole: Whole
) -> None:
    first.begin_anew()

    failed = first.failing("openat", "EROFS", on="ledger.db", since=1)

    assert failed.error == "LedgerReadOnly", failed.lines[-3:]
    assert not first.server.contents
    assert go_on(first, failed, whole, asked=False) == "not begun"
