"""Puts, commits, crashes and sweeps of several processes and sessions, in any order.

The law: what a living owner intends or a session committed can be read, whatever sweeps do; and
when everybody has died, one sweep leaves exactly what was committed.

Processes are stores of their own on one ledger, in one process: a crash gives up an owner's lock
and tidies up nothing. Puts and sweeps stop between any two of their steps.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.attachments.builders import (
    EVERYTHING,
    Kept,
    Ticks,
    crash,
    digest,
    in_memory_beside,
    intent,
    session,
    stored,
)

from tallystick.attachments.collect import (
    EmptyRootSet,
    ReclaimPolicy,
    Sweep,
    reclaim,
    verify_attachments,
)
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import AttachmentNotFound, ReclamationInFlight, Staged
from tallystick.attachments.sqlite import SqliteAttachments

FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
SHM = Path("/dev/shm")
GRACE_MS = 10
# Few of each, so that they get in each other's way.
DATA = {"s": b"small", "L": b"L" * 70_000}
PATIENT = ReclaimPolicy(grace_period_ms=GRACE_MS, empty_root_set=EmptyRootSet.AUTHORIZE_DELETE_ALL)
processes = st.integers(0, 1)
sessions = st.sampled_from(["a", "b"])
datas = st.sampled_from(sorted(DATA))


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=SHM if SHM.is_dir() else None))
        self.ticks = Ticks()
        self.first = MemoryAttachments()
        self.processes = [self.started() for _ in range(2)]
        # The model: what each session committed, and what living processes hold for it.
        self.committed: set[tuple[str, str]] = set()
        self.intended: dict[tuple[str, str], set[Kept]] = {}
        self.halves: list[tuple[Kept, str, str, Staged]] = []
        self.sweeps: list[tuple[Kept, Sweep, Iterator[str]]] = []

    def started(self) -> Kept:
        return stored(self.folder, self.ticks, wait_seconds=0)

    # -- sessions ------------------------------------------------------------------------------

    @rule(process=processes, name=sessions, data=datas)
    def put(self, process: int, name: str, data: str) -> None:
        kept = self.processes[process]
        with contextlib.suppress(ReclamationInFlight):
            session(kept, name).put(DATA[data])
            self.intended.setdefault((name, data), set()).add(kept)

    @rule(process=processes, name=sessions, data=datas)
    def begin_to_put(self, process: int, name: str, data: str) -> None:
        kept = self.processes[process]
        staged = kept.stage(DATA[data])
        described = intent(name, staged.ref.id, at=self.ticks.now, owner=kept.owner())
        try:
            kept.record_intent(described, staged.ref)
        except ReclamationInFlight:
            staged.discard()
        else:
            self.halves.append((kept, name, data, staged))

    @precondition(lambda self: self.halves)
    @rule()
    def end_a_put(self) -> None:
        kept, name, data, staged = self.halves.pop(0)
        intended = self.owns(kept, name, staged.ref.id)
        try:
            kept.keep(staged)
        except ReclamationInFlight:
            assert not intended
        if intended:
            self.intended.setdefault((name, data), set()).add(kept)

    @rule(process=processes, name=sessions, data=datas)
    def commit(self, process: int, name: str, data: str) -> None:
        try:
            session(self.processes[process], name).commit([digest(DATA[data])], forced=False)
        except AttachmentNotFound:
            assert (name, data) not in self.committed
            assert not self.intended.get((name, data))
        else:
            self.committed.add((name, data))

    @rule(process=processes, names=st.lists(st.tuples(sessions, datas), max_size=3))
    def commit_a_batch(self, process: int, names: list[tuple[str, str]]) -> None:
        for name, data in names:
            batch = session(self.processes[process], name).batch()
            with contextlib.suppress(ReclamationInFlight):
                batch.add(DATA[data])
                batch.commit()
                self.committed.add((name, data))

    @rule(process=processes, name=sessions, data=datas)
    def forget(self, process: int, name: str, data: str) -> None:
        session(self.processes[process], name).delete(digest(DATA[data]))
        self.committed.discard((name, data))
        self.intended.pop((name, data), None)

    @rule(process=processes, name=sessions, count=st.integers(1, 5))
    def let_go_of_a_file_and_begin_to_collect(self, process: int, name: str, count: int) -> None:
        self.put(process, name, "L")
        self.forget(process, name, "L")
        self.begin_to_collect(1 - process, count)

    # -- the world -----------------------------------------------------------------------------

    @rule(process=processes)
    def kill(self, process: int) -> None:
        dead = self.processes[process]
        self.processes[process] = self.started()
        self.bury(dead)

    @rule(ms=st.integers(0, 2 * GRACE_MS))
    def wait(self, ms: int) -> None:
        self.ticks.now += ms

    # -- sweeps --------------------------------------------------------------------------------

    @rule(process=processes, at_once=st.booleans())
    def collect(self, process: int, at_once: bool) -> None:
        report = reclaim(self.processes[process], policy=EVERYTHING if at_once else PATIENT)
        assert report.deleted_while_referenced == []

    @rule(process=processes, count=st.integers(1, 5))
    def begin_to_collect(self, process: int, count: int) -> None:
        kept = self.processes[process]
        sweep = Sweep(kept, policy=EVERYTHING, group=2)
        self.sweeps.append((kept, sweep, sweep.steps()))
        self.go_on(len(self.sweeps) - 1, count)

    @precondition(lambda self: self.sweeps)
    @rule(which=st.integers(0, 3), count=st.integers(1, 3))
    def go_on_collecting(self, which: int, count: int) -> None:
        self.go_on(which % len(self.sweeps), count)

    def go_on(self, which: int, count: int) -> None:
        _, sweep, steps = self.sweeps[which]
        for _ in range(count):
            if next(steps, None) is None:
                assert sweep.report.deleted_while_referenced == []
                del self.sweeps[which]
                return

    # -- what holds ----------------------------------------------------------------------------

    def owns(self, kept: Kept, name: str, id: str) -> bool:
        """Whether a process's intent stands. Its session may have forgotten it in another process.

        That one may have put the same again since. The row is then its own, and dies with it.
        """
        with kept.looking() as rows:
            return rows is not None and any(
                kept.owner() in rows.holders(each.intent)
                for each in rows.references(session_id=name, id=id)
            )

    @invariant()
    def whatever_is_held_can_be_read(self) -> None:
        kept = self.processes[0]
        for name, data in self.committed | {key for key, owners in self.intended.items() if owners}:
            assert session(kept, name).read(digest(DATA[data])) == DATA[data]

    def teardown(self) -> None:
        try:
            for each in self.processes:
                self.bury(each)
            self.ticks.now += GRACE_MS
            last = self.started()
            report = reclaim(last, policy=PATIENT)
            self.exactly_what_was_committed_is_left(last)
            assert report.failed_ids == report.condemn_deferred_ids == []
            last.close()
        finally:
            shutil.rmtree(self.folder)

    def exactly_what_was_committed_is_left(self, kept: Kept) -> None:
        left = {digest(DATA[data]) for _, data in self.committed}
        with kept.looking() as rows:
            if rows is not None:
                assert {blob.id for blob in rows.blobs()} == left
        assert set(kept.blobs.ids()) == {
            digest(DATA[data]) for _, data in self.committed if len(DATA[data]) > 1_000
        }
        assert list(kept.staged_files()) == []
        assert list(kept.list_uncommitted(1 << 60)) == []
        assert kept.owners.ids() == []
        report = verify_attachments(kept)
        assert report.ok
        assert report.references == len(self.committed)

    def bury(self, dead: Kept) -> None:
        """What is left when a process is gone: its rows and files, and none of its locks."""
        crash(dead)
        for owners in self.intended.values():
            owners.discard(dead)
        self.halves = [half for half in self.halves if half[0] is not dead]
        for kept, _, steps in self.sweeps:
            if kept is dead:
                steps.close()  # type: ignore[attr-defined]
        self.sweeps = [each for each in self.sweeps if each[0] is not dead]
        if isinstance(dead, SqliteAttachments):
            dead._database.close()  # type: ignore[attr-defined]


class Small(Interleavings):
    """The same, in a size that fits a default run."""


class InMemory(Interleavings):
    """The same in memory, where processes are clients with owners of their own."""

    def started(self) -> Kept:
        return in_memory_beside(self.first, self.ticks, wait_seconds=0)


class Large(Interleavings):
    """The same, ten thousand times."""


TestInterleavings = Small.TestCase
TestInterleavings.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestInterleavingsInMemory = InMemory.TestCase
TestInterleavingsInMemory.settings = TestInterleavings.settings
TestTenThousandInterleavings = pytest.mark.soak(Large.TestCase)
TestTenThousandInterleavings.settings = settings(
    max_examples=10_000 if FULL else 60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
