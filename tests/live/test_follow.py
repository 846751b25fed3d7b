"""A run is followed from its record or live, by any number of readers: always the same events."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live.worlds import (
    GOAL,
    ROOMY,
    lines,
    model,
    on_record,
    opened,
    programs,
    told,
)

import tallystick
from tallystick.core.errors import RunNotFound, UsageError
from tallystick.interop.trajectory_events import (
    LlmResponse,
    QueryComplete,
    QueryStart,
    TrajectoryEvent,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.live.deltas import DeltaBuffer
from tallystick.live.follow import Followed, follow
from tallystick.live.order import EntriesInOrder
from tallystick.runtime.calls.deltas import TextDelta
from tallystick.stores import stores_of
from tallystick.testing.ledgers import CutLedger
from tallystick.testing.models import ModelDouble, block

BATCH = ["pay('INV-1')\nprint(rlm_query_batched(['leaf', 'branch', 'fails', 'leaf']))"]


class Growing(Followed):
    """A reader of a ledger that grows by one write before each look, or by none."""

    def __init__(self, whole: CutLedger, run: str, grows: list[bool]) -> None:
        self.ledger = MemoryLedger(salts=bytes)
        self._acts = list(whole.acts)
        self._grows = iter(grows)
        super().__init__(stores_of(self.ledger), run, is_going=self._grow)

    def _grow(self) -> bool:
        if not self._acts:
            return False
        if next(self._grows, True):
            self._acts.pop(0)(self.ledger)
        return True

    def _wait(self) -> None:
        self._looks = 0


@settings(max_examples=25)
@given(programs(), st.data())
def test_live_and_on_record_the_numbered_events_are_equal(
    sandbox: Any, sources: list[str], data: st.DataObject
) -> None:
    ledger = CutLedger()
    with opened(ledger, model(sources), sandbox) as session:
        run = session.run(GOAL, limits=ROOMY).run
    whole = on_record(ledger, run)

    live = told(Growing(ledger, run, data.draw(st.lists(st.booleans(), max_size=40))))

    assert lines(live) == lines(whole)
    assert [each.number for each in whole] == [*range(1, len(whole) + 1)]
    after = data.draw(st.integers(0, len(whole) + 2))
    assert lines(on_record(ledger, run, after=after)) == lines(whole)[after:]


def test_the_events_of_children_are_in_the_order_in_which_they_happened(sandbox: Any) -> None:
    ledger = MemoryLedger()
    with opened(ledger, model(BATCH), sandbox) as session:
        run = session.run(GOAL, limits=ROOMY).run

    events = on_record(ledger, run)

    begun = [each.query for each in events if isinstance(each, QueryStart)]
    ended = [each.query for each in events if isinstance(each, QueryComplete)]
    # The batch has four, one of which has one more.
    assert len(begun) == len(set(begun)) == 6
    assert sorted(ended) == sorted(begun)
    assert (begun[0], ended[-1]) == (run, run)
    seqs: dict[str, int] = {}
    for each in events:
        assert each.seq >= seqs.get(each.run, 0)
        seqs[each.run] = each.seq


def test_a_file_and_a_ledger_in_memory_have_the_same_order(sandbox: Any, tmp_path: Path) -> None:
    found = []
    with SqliteLedger(tmp_path / "ledger.db") as kept:
        for ledger in (kept, MemoryLedger()):
            with opened(ledger, model(BATCH[:1]), sandbox) as session:
                run = session.run(GOAL, limits=ROOMY).run
            found.append([type(each).__name__ for each in on_record(ledger, run)])

        before = lines(on_record(kept, kept.runs()[0].run))
        kept.reclaim()
        # Rewriting the file does not change the order.
        assert lines(on_record(kept, kept.runs()[0].run)) == before

    assert sorted(found[0]) == sorted(found[1])


def test_a_run_of_this_process_is_followed_while_it_goes_on(sandbox: Any) -> None:
    go, ledger = threading.Event(), MemoryLedger()

    def before(call: Any) -> Any:
        return asyncio.to_thread(go.wait, 10) if call.number == 1 else None

    double = ModelDouble([block("print(1)"), block("FINAL(2)")], before=before)
    with opened(ledger, double, sandbox) as session:
        ids: list[str] = []
        working = threading.Thread(
            target=session.run, args=(GOAL,), kwargs={"watch": lambda run, _: ids.append(run)}
        )
        working.start()
        while not ids or not ledger.runs():
            time.sleep(0.005)
        seen: list[TrajectoryEvent] = []
        for event in follow(ids[0], ledger=ledger):
            assert not isinstance(event, TextDelta)
            seen.append(event)
            if isinstance(event, LlmResponse):
                # It is here before the run has ended.
                assert go.is_set() or len(double.replies) == 1
                go.set()
        working.join()

    assert isinstance(seen[-1], QueryComplete)
    assert lines(seen) == lines(on_record(ledger, ids[0]))


def test_sync_and_async_readers_get_the_same(sandbox: Any) -> None:
    ledger = MemoryLedger()
    with opened(ledger, model(BATCH), sandbox) as session:
        run = session.run(GOAL, limits=ROOMY).run

    async def read() -> list[Any]:
        return [each async for each in follow(run, ledger=ledger)]

    assert asyncio.run(read()) == list(follow(run, ledger=ledger)) == on_record(ledger, run)


def test_a_reader_that_stops_is_taken_up_where_it_was(sandbox: Any) -> None:
    ledger = MemoryLedger()
    with opened(ledger, model(BATCH), sandbox) as session:
        run = session.run(GOAL, limits=ROOMY).run
    whole = on_record(ledger, run)

    reader = follow(run, ledger=ledger)
    first = []
    for each in reader:
        first.append(each)
        if len(first) == 5:
            break
    rest = list(follow(run, ledger=ledger, after=reader.number))

    assert [*first, *rest] == whole


def test_a_reader_that_never_reads_holds_nothing_up(sandbox: Any) -> None:
    ledger = MemoryLedger()
    with opened(ledger, model(BATCH), sandbox) as session:
        readers: list[Any] = []

        def watch(run: str, record: object) -> None:
            if not readers:
                readers.append(iter(follow(run, ledger=ledger)))

        run = session.run(GOAL, limits=ROOMY, watch=watch)

    assert run.stop == "answered"


def test_the_text_of_a_reply_comes_before_it_is_recorded_and_has_no_number(sandbox: Any) -> None:
    ledger, deltas = MemoryLedger(), DeltaBuffer()
    with opened(ledger, model(["print(1)"]), sandbox) as session:
        run = session.run(GOAL, limits=ROOMY, heard=deltas).run
    followed = Followed(stores_of(ledger), run, deltas=deltas, is_going=lambda: False)

    # All replies are on record, so their deltas are of no use any more.
    assert not [each for each in followed if isinstance(each, TextDelta)]
    late = TextDelta(run=run, call="turn", intent=99, text="And ", chars=4)
    deltas(late)
    deltas(TextDelta(run=run, call="turn", intent=99, text="so", chars=6))
    again = Followed(stores_of(ledger), run, deltas=deltas, is_going=lambda: False)
    (delta,) = [each for each in again if isinstance(each, TextDelta)]
    assert (delta.text, delta.chars) == ("And so", 6)


def test_a_fork_is_followed_with_what_it_shares(sandbox: Any) -> None:
    ledger = MemoryLedger()
    with opened(ledger, model(["print(1)", "print(rlm_query('leaf'))"]), sandbox) as session:
        run = session.run(GOAL, limits=ROOMY).run
        fork = session.fork(run, turn=2).run

    events = on_record(ledger, fork)

    shared = [each for each in events if each.run == run]
    assert lines(shared) == [
        each for each in lines(on_record(ledger, run)) if each in lines(shared)
    ]
    assert [each.begun for each in events if isinstance(each, QueryStart)][-1] == "forked"
    assert isinstance(events[-1], QueryComplete)
    assert events[-1].run == fork


def test_a_child_whose_chain_is_gone_is_told_from_its_parent(sandbox: Any) -> None:
    ledger = MemoryLedger()
    with opened(ledger, model(["print(rlm_query('leaf'))"]), sandbox) as session:
        run = session.run(GOAL, limits=ROOMY).run
    (child,) = [each.run for each in ledger.runs() if each.caller]
    ledger.remove(child)

    events = on_record(ledger, run)

    (begun,) = [each for each in events if isinstance(each, QueryStart) and each.query == child]
    assert begun.begun == "elsewhere"
    (ended,) = [each for each in events if isinstance(each, QueryComplete) and each.query == child]
    assert ended.stop == "answered"


def test_what_cannot_be_followed_is_refused_in_one_line(sandbox: Any) -> None:
    ledger = MemoryLedger()

    with pytest.raises(RunNotFound):
        tallystick.follow("01M7H9059YPYTCBKVW1YQJBKX4", ledger=ledger)
    with pytest.raises(UsageError, match=r"^after=-1: the number of an event"):
        tallystick.follow("last", after=-1, ledger=ledger)


def test_a_forged_record_makes_a_reader_neither_endless_nor_wrong() -> None:
    from tests.core.views.test_run_difference import a_run, code
    from tests.interop.test_trajectory import with_child

    from tallystick.testing.ledgers import append_records

    ledger, run = MemoryLedger(), "01M7H9059YPYTCBKVW1YQJBKX4"
    # A run that says that it began itself.
    append_records(ledger, run, with_child(a_run(code("look(1)"), code("FINAL(3)")), run))

    events = on_record(ledger, run)

    assert [each.query for each in events if isinstance(each, QueryStart)] == [run]
    assert list(EntriesInOrder(ledger, run).read())
