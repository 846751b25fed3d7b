"""Power is lost in the midst of a run: what was sent is on the disk, and the run goes on.

The run is recorded once, with a word before everything that is sent. Then the disk is built as it
could be found, and another process goes on from there.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from tests.faults.call_places import Places, named_in, place_of
from tests.faults.disk_trace import Change, record
from tests.faults.killed_runs import (
    Ended,
    Outcome,
    Workers,
    check_kept,
    check_written,
)
from tests.faults.paid_server import PaidServer
from tests.faults.power_loss import Image, images, said_before
from tests.faults.run_worker import Order
from tests.faults.soak_record import noted, outcome_table

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
IMAGES_SLOW, RESUMED_SLOW = 100, 8
IMAGES_SOAK, RESUMED_SOAK = (10_000, 500) if FULL else (200, 6)
pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None, reason="system calls are recorded with strace"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run, and everything it did to the disk.

    By its key, what each thing that it sent said, and what it was replied.
    """

    changes: list[Change]
    result: dict[str, object]
    contents: dict[str, str]
    replies: dict[str, bytes]


def recorded(workers: Workers, *, unforced: bool = False) -> Recorded:
    workers.begin_anew()
    server = workers.server
    order = Order(
        work="run", ledger=str(workers.data / "ledger.db"), url=server.url, unforced=unforced
    )
    changes = record(
        [sys.executable, "-m", "tests.faults.run_worker", msgspec.json.encode(order).decode()],
        root=workers.data,
        trace=workers.folder / "trace",
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
    )
    ended = Ended(code=0, lines=said_before(changes, sys.maxsize))
    assert ended.result is not None
    contents = {key: content for content, keys in server.keys_of.items() for key in keys}
    return Recorded(
        changes=changes, result=ended.result, contents=contents, replies=dict(server.replies)
    )


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with PaidServer() as server, Workers(tmp_path_factory.mktemp("runs"), server) as made:
        yield made


@pytest.fixture(scope="module")
def run(workers: Workers) -> Recorded:
    return recorded(workers)


def before(run: Recorded, image: Image) -> tuple[Ended, list[str]]:
    """What was forced when power was lost, and the keys of what may have been sent."""
    said = said_before(run.changes, image.point)
    forced = Ended(code=0, lines=[line for line in said if not line.startswith("committed")])
    return forced, [line.split()[1] for line in said if line.startswith("sends ")]


def check(run: Recorded, image: Image, workers: Workers) -> None:
    """The chain holds, what was forced is there, and so is the intent of all that was sent."""
    shutil.rmtree(workers.data)
    image.write(workers.data)
    forced, sent = before(run, image)
    check_kept(workers.data, forced.heads)
    check_written(workers.data, sent)


def go_on(run: Recorded, image: Image, workers: Workers, *, asked: bool) -> Outcome:
    """Go on from an image. Nothing that was sent is sent again, but for the one call in doubt."""
    server = workers.server
    _, sent = before(run, image)
    check(run, image, workers)
    server.forget(but={key: run.replies[key] for key in sent})
    ended = workers.resumed("halt", asked=asked)
    doubt = ended.in_doubt
    doubtful: Places = frozenset()
    if doubt is not None:
        assert not asked
        assert not server.contents
        assert len(doubt) == 1
        doubtful = named_in(doubt)
        ended = workers.resumed("retry")
    assert ended.result is not None, ended.lines[-3:]
    assert ended.result["answer"] == run.result["answer"]
    assert ended.result["replay_held"]
    again = {run.contents[key] for key in sent} & server.contents.keys()
    assert again <= {run.contents[key] for key in sent if place_of(key) in doubtful}
    paid = server.contents + Counter({run.contents[key] for key in sent} - again)
    assert paid == Counter(run.contents.values())
    if "not begun" in ended.lines:
        return "not begun"
    return "went on" if doubt is None else "in doubt"


def failures(run: Recorded, workers: Workers, *, count: int, seed: int) -> dict[str, str]:
    """What is wrong with each image that something is wrong with."""
    found = {}
    for image in images(run.changes, count=count, seed=seed):
        try:
            check(run, image, workers)
        except AssertionError as error:
            found[str(image)] = str(error)
    return found


def resumed(
    run: Recorded, workers: Workers, *, count: int, seed: int, asked: bool
) -> Counter[tuple[str, Outcome]]:
    outcomes: Counter[tuple[str, Outcome]] = Counter()
    for image in images(run.changes, count=count, seed=seed):
        try:
            outcomes[image.fate, go_on(run, image, workers, asked=asked)] += 1
        except AssertionError as error:
            error.add_note(str(image))
            raise
    return outcomes


@pytest.mark.slow
def test_whatever_was_sent_has_its_intent_on_the_disk(run: Recorded, workers: Workers) -> None:
    assert failures(run, workers, count=IMAGES_SLOW, seed=0) == {}


@pytest.mark.slow
def test_a_run_that_forces_nothing_sends_what_is_not_on_the_disk(workers: Workers) -> None:
    """The control: images that do not show this show nothing."""
    unforced = recorded(workers, unforced=True)

    found = failures(unforced, workers, count=IMAGES_SLOW, seed=0)

    assert len(found) > IMAGES_SLOW // 10


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_after_a_loss_of_power_a_run_goes_on_and_sends_nothing_twice(
    asked: bool, run: Recorded, workers: Workers
) -> None:
    outcomes = resumed(run, workers, count=RESUMED_SLOW, seed=2, asked=asked)

    assert outcomes.total() == RESUMED_SLOW


@pytest.mark.soak
def test_whatever_was_sent_has_its_intent_in_any_of_many_images(
    run: Recorded, workers: Workers
) -> None:
    assert failures(run, workers, count=IMAGES_SOAK, seed=1) == {}

    noted(
        "runs that lost power: what was sent and what was forced is there",
        [f"{IMAGES_SOAK:,} images"],
    )


@pytest.mark.soak
@pytest.mark.parametrize("asked", [False, True])
def test_after_a_loss_of_power_anywhere_a_run_goes_on(
    asked: bool, run: Recorded, workers: Workers
) -> None:
    outcomes = resumed(run, workers, count=RESUMED_SOAK, seed=3, asked=asked)

    provider = "can be asked" if asked else "cannot be asked"
    noted(f"runs that lost power and went on; the provider {provider}", outcome_table(outcomes))
    assert asked is not any(outcome == "in doubt" for _, outcome in outcomes)
