"""A process killed at any system call of a run: another goes on, and nothing is paid for twice.

Two kinds of provider: one that can be asked what became of a call, and one that cannot. With the
first every death is made good. With the second, a death while a call was under way leaves that one
call in doubt, by name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.killed_runs import (
    Whole,
    Workers,
    check_kept,
    check_paid,
    check_shared,
    go_on,
    played_whole,
)
from tests.faults.paid_server import ITEMS, PaidServer
from tests.faults.soak_record import noted, outcome_table
from tests.faults.sweeps import at_calls, die_again_and_again, of, provider, sweep
from tests.faults.tracer import available, run_traced

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
POINTS_SLOW, POINTS_SOAK = 4, (None if FULL else 3)
# What differs with snapshots is between programs: there are many calls, and few of these.
SNAPSHOTS_SOAK = 300 if FULL else 3
DEATHS_SLOW, DEATHS_SOAK = 4, (100 if FULL else 4)
needs_tracer = pytest.mark.skipif(not available(), reason="system calls are traced with ptrace")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with PaidServer() as server, Workers(tmp_path_factory.mktemp("runs"), server) as made:
        yield made


@pytest.fixture
def snapshots(workers: Workers) -> Iterator[None]:
    """Have the interpreter kept after every program: most runs are too short for that."""
    workers.snapshots = True
    yield
    workers.snapshots = False


@pytest.fixture(scope="module")
def whole(workers: Workers) -> Whole:
    """The run with nothing happening to it."""
    return played_whole(workers)


def test_a_run_is_the_same_each_time_and_pays_for_everything_once(
    workers: Workers, whole: Whole
) -> None:
    workers.begin_anew()
    again = workers.run()

    assert again.result == whole.result
    assert workers.server.contents == whole.paid
    assert set(whole.paid.values()) == {1}
    # Three turns, a batch and two more; two effects.
    kinds = Counter(content.split()[0] for content in whole.paid)
    assert kinds == {"completions": 3 + ITEMS + 2, "effects": 2}
    assert whole.result["stop"] == "answered"
    check_kept(workers.data, again.heads)
    billed = workers.server.billed
    assert billed == whole.result["charge"]["usd"]
    check_shared(workers.data, billed=billed, charged=billed)


THREADS = """
import os, sys, threading
from tests.faults.tracer import stop_at_calls

sys.stdin.readline()
stop_at_calls()

def write(name):
    descriptor = os.open(os.path.join(sys.argv[1], name), os.O_WRONLY | os.O_CREAT)
    for _ in range(100):
        os.write(descriptor, b"x")

threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@needs_tracer
@pytest.mark.parametrize("place", [1, 40, 150])
def test_a_process_dies_as_it_enters_the_nth_call_of_all_its_threads(
    place: int, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", THREADS, str(tmp_path)], stdin=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdin is not None
    code, seen = run_traced(process.pid, tmp_path, kill_at=place, go=process.stdin.close)
    process.wait(10)

    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    begun = sum(each.call == "write" for each in seen[:-1])
    assert code == -signal.SIGKILL
    assert len(seen) == place
    # The other thread may have entered one and not have made it.
    assert begun - 1 <= written <= begun


@needs_tracer
@pytest.mark.slow
def test_a_run_that_is_begun_again_instead_is_seen_to_pay_twice(
    workers: Workers, whole: Whole
) -> None:
    """The control: without a resume, what must hold does not."""
    workers.begin_anew()
    calls = len(workers.traced(kill_at=None).seen)
    workers.begin_anew()
    workers.traced(kill_at=calls * 3 // 4)

    workers.run()

    with pytest.raises(AssertionError, match="was paid for twice"):
        check_paid(workers.server, whole, frozenset())


@needs_tracer
@pytest.mark.slow
def test_after_a_death_at_a_system_call_a_run_goes_on_or_names_the_one_call_in_doubt(
    workers: Workers, whole: Whole
) -> None:
    outcomes = sweep(workers, whole, count=POINTS_SLOW, asked=False)

    # Neither of the two may be the rule.
    assert of(outcomes, "went on") > 2
    assert of(outcomes, "in doubt") > 2


@needs_tracer
@pytest.mark.slow
@pytest.mark.usefixtures("snapshots")
def test_with_a_provider_that_can_be_asked_no_death_leaves_a_doubt(
    workers: Workers, whole: Whole
) -> None:
    outcomes = sweep(workers, whole, count=POINTS_SLOW, asked=True)

    assert of(outcomes, "went on") > 5


@needs_tracer
@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_deaths_of_those_who_go_on_with_a_run_are_made_good_too(
    asked: bool, workers: Workers, whole: Whole
) -> None:
    outcomes = die_again_and_again(workers, whole, count=DEATHS_SLOW, seed=4, asked=asked)

    assert any(call != "1 deaths" for call, _ in outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_a_death_at_a_call_of_python_is_made_good_too(
    asked: bool, workers: Workers, whole: Whole
) -> None:
    """Where no system call can be traced, this is what there is; so it has to work everywhere."""
    workers.begin_anew()
    seen = workers.broken(die_at=0).seen

    for quarter in (1, 2, 3):
        workers.begin_anew()
        killed = workers.broken(die_at=len(seen) * quarter // 4, asked=asked)
        assert killed.killed
        with at_calls([killed]):
            go_on(workers, killed, whole, asked=asked)


@needs_tracer
@pytest.mark.soak
@pytest.mark.parametrize("asked", [False, True])
def test_after_a_death_at_every_system_call_a_run_goes_on(
    asked: bool, workers: Workers, whole: Whole
) -> None:
    outcomes = sweep(workers, whole, count=POINTS_SOAK, asked=asked, each_kind=FULL)

    noted(f"runs killed at system calls; {provider(asked)}", outcome_table(outcomes))
    assert not (asked and of(outcomes, "in doubt"))
    # A few points need not hit a call under way; the slow sweep has one of each kind.
    assert asked or not FULL or of(outcomes, "in doubt")


@needs_tracer
@pytest.mark.soak
@pytest.mark.usefixtures("snapshots")
@pytest.mark.parametrize("asked", [False, True])
def test_after_a_death_at_every_system_call_a_run_goes_on_from_a_snapshot(
    asked: bool, workers: Workers, whole: Whole
) -> None:
    outcomes = sweep(workers, whole, count=SNAPSHOTS_SOAK, asked=asked, each_kind=FULL)

    title = f"runs with snapshots killed at system calls; {provider(asked)}"
    noted(title, outcome_table(outcomes))
    assert not (asked and of(outcomes, "in doubt"))
    # A few points need not hit a call under way; the slow sweep has one of each kind.
    assert asked or not FULL or of(outcomes, "in doubt")


@needs_tracer
@pytest.mark.soak
@pytest.mark.parametrize("asked", [False, True])
def test_any_number_of_deaths_is_made_good(asked: bool, workers: Workers, whole: Whole) -> None:
    outcomes = die_again_and_again(workers, whole, count=DEATHS_SOAK, seed=5, asked=asked)

    noted(f"runs killed again and again; {provider(asked)}", outcome_table(outcomes))
    assert outcomes.total() == DEATHS_SOAK
