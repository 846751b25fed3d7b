"""A run is stopped from any thread or process: soon, on record, with its children."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.worlds import GOAL, ROOMY, opened

import tallystick
from tallystick.core.errors import RunNotFound, UsageError
from tallystick.core.records import RunEnded
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import TransferLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.live.stop import Stopped, stop
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.lock import lock_run, request_stop, stop_requested
from tallystick.runtime.runs.result import Run
from tallystick.testing.models import ModelCall, ModelDouble, block

RUN = "01M7H9059YPYTCBKVW1YQJBKX4"


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TransferLedger]:
    if request.param == "memory":
        yield MemoryLedger()
        return
    with SqliteLedger(tmp_path / "ledger.db") as kept:
        yield kept


def never_answered(call: ModelCall) -> str | None:
    """A model whose child waits for ever, and so does a root that has no other line."""
    if "leaf" in call.text and GOAL not in call.text:
        return None
    if "children" in call.text and call.turn == 0:
        return block("print(rlm_query_batched(['leaf', 'leaf']))")
    if "computes" in call.text and call.turn == 0:
        return block("while True: pass")
    return None


class Working:
    """A run in a thread of its own, with what came of it."""

    def __init__(self, session: Any, goal: str, inside: int = 0) -> None:
        self.runs: list[str] = []
        self.ended: list[Run] = []
        self._thread = threading.Thread(target=self._work, args=(session, goal))
        self._thread.start()
        deadline = time.monotonic() + 20
        while len(set(self.runs)) < 1 + inside:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(0.05)

    def _work(self, session: Any, goal: str) -> None:
        watch: Callable[[str, object], None] = lambda run, _: self.runs.append(run)  # noqa: E731
        self.ended.append(session.run(goal, limits=ROOMY, watch=watch))

    def join(self) -> Run:
        self._thread.join(20)
        return self.ended[0]


@pytest.mark.parametrize(("goal", "inside"), [("waits", 0), ("computes", 0), ("children", 2)])
def test_a_run_that_is_stopped_ends_as_cancelled_and_says_by_whom(
    sandbox: Any, ledger: TransferLedger, goal: str, inside: int
) -> None:
    with opened(ledger, ModelDouble(never_answered), sandbox) as session:
        working = Working(session, f"{GOAL}, which {goal}", inside)
        run, began = working.runs[0], time.monotonic()

        done = stop(run, ledger=ledger, by="ann@desk")

        assert time.monotonic() - began < 2.0  # 0.5 s on a quiet machine
        assert done == Stopped(run=run, stop="cancelled")
        ended = working.join()
        assert (ended.stop, ended.detail) == ("cancelled", "stopped by ann@desk")
        for each in {run, *working.runs}:
            assert isinstance(last := whole_records(ledger, each)[-1], RunEnded)
            assert last.stop == "cancelled"
        assert len(set(working.runs)) == 1 + inside


def test_a_run_that_was_stopped_is_resumed_and_replays(
    sandbox: Any, ledger: TransferLedger
) -> None:
    answers = [block("n = 20\nprint(n)"), None]
    with opened(ledger, ModelDouble(answers), sandbox) as session:
        working = Working(session, GOAL)
        time.sleep(0.2)
        stop(working.runs[0], ledger=ledger)
        run = working.join().run
        assert session.replay(run).held
    with opened(ledger, ModelDouble([block("FINAL(n + 1)")]), sandbox) as session:
        ended = session.resume(run, in_doubt="retry")
        assert (ended.stop, ended.answer) == ("answered", "21")
        assert session.replay(run).held


def test_what_is_not_running_is_not_stopped(sandbox: Any, ledger: TransferLedger) -> None:
    with opened(ledger, ModelDouble([block("FINAL(1)")]), sandbox) as session:
        run = session.run(GOAL).run
        before = ledger.row(run)

        with pytest.raises(UsageError, match=r"is not running \(has ended: answered\); nothing"):
            tallystick.stop(run, ledger=ledger)

    assert ledger.row(run) == before
    with pytest.raises(RunNotFound):
        tallystick.stop(RUN, ledger=ledger)


def test_a_run_inside_another_is_not_stopped_alone(sandbox: Any, ledger: TransferLedger) -> None:
    with opened(ledger, ModelDouble(never_answered), sandbox) as session:
        working = Working(session, f"{GOAL}, which children", inside=2)
        child = next(each for each in working.runs if each != working.runs[0])

        with pytest.raises(UsageError, match=f"is inside run .*: tally stop {working.runs[0]}"):
            stop(child, ledger=ledger)

        assert not working.ended
        stop(working.runs[0], ledger=ledger)
        working.join()


def test_a_request_that_is_older_than_the_lock_has_no_effect(ledger: TransferLedger) -> None:
    with lock_run(ledger, RUN):
        assert request_stop(ledger, RUN, by="ann")
        assert stop_requested(ledger, RUN) == "ann"

    assert stop_requested(ledger, RUN) is None
    assert not request_stop(ledger, RUN, by="ann")
    with lock_run(ledger, RUN):
        assert stop_requested(ledger, RUN) is None


def test_no_file_is_left_behind_by_a_stop(sandbox: Any, tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        with opened(ledger, ModelDouble(never_answered), sandbox) as session:
            working = Working(session, GOAL)
            stop(working.runs[0], ledger=ledger)
            working.join()

        assert list(ledger.lock_folder.iterdir()) == []
