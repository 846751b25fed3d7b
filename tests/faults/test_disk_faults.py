"""A ledger that fails in the midst of a run: the run stops with the right error, and pays no more.

Once the disk is well again, the run goes on: by itself if no call was under way, and if one was, as
soon as somebody says that it may be made again.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tallystick.client import Session
from tallystick.core.errors import (
    LedgerError,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
    LedgerUnavailable,
)
from tallystick.core.records import RunStarted
from tallystick.core.resume_errors import RunInDoubt
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelDouble, by_prompt, programs

pytestmark = pytest.mark.slow

BUSY_SECONDS = 0.05
PROGRAMS = (
    "first = look('a') + llm_query('one')\nprint(first)",
    "second = look('b') + llm_query('two')\nprint(second)",
    "FINAL(first + second + look('c'))",
)
ANSWER = "aONEbTWOc"
# Calls of the model: a turn, its query, and so on. Looks: one in each program.
CALLS, LOOKS = 5, 3
Fault = Callable[[SqliteLedger], contextlib.AbstractContextManager[None]]


class World:
    """A ledger, a model that is paid, a function that only looks, and a fault that comes once."""

    def __init__(self, path: Path, sandbox: WasmSandbox) -> None:
        self.ledger = SqliteLedger(path / "ledger.db", busy_seconds=BUSY_SECONDS)
        self.looked: list[str] = []
        self.at_look: dict[int, Callable[[], None]] = {}
        # What happens after a call of the model, by its number from 1.
        self.at_call: dict[int, Callable[[], None]] = {}
        self.model = ModelDouble(
            programs(*PROGRAMS),
            queries=by_prompt(str.upper),
            after=lambda call: self.at_call.pop(call.number + 1, lambda: None)(),
        )
        self.session = Session(
            model=self.model,
            functions=[host_function(policy="read", name="look")(self._look)],
            ledger=self.ledger,
            sandbox=sandbox,
            pricing=PRICING,
        )

    def _look(self, what: str) -> str:
        self.looked.append(what)
        self.at_look.pop(len(self.looked), lambda: None)()
        return what

    def run(self) -> Run:
        return self.session.run("what is it?")

    def resume(self, **more: Any) -> Run:
        (run,) = [
            row.run
            for row in self.ledger.runs()
            if isinstance(next(records_of(self.ledger, row.run)), RunStarted)
        ]
        return self.session.resume(run, **more)


@pytest.fixture
def world(tmp_path: Path, sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    connect = functools.partial(sqlite3.connect, factory=Connection)
    monkeypatch.setattr(sqlite3, "connect", connect)
    made = World(tmp_path, sandbox)
    with made.ledger, made.session:
        yield made


# -- faults -------------------------------------------------------------------------------------


class Connection(sqlite3.Connection):
    """A connection whose disk fails as it is told, when something is committed."""

    fails: ClassVar[Callable[[Callable[[str], object]], None] | None] = None

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and Connection.fails is not None:
            Connection.fails(super().execute)
        return super().execute(sql, *rest)


def failure(code: int, *, written: bool = False) -> Fault:
    """A commit that fails: before it is written, or when it is already."""

    def fail(execute: Callable[[str], object]) -> None:
        execute("COMMIT" if written else "ROLLBACK")
        error = sqlite3.OperationalError("so it was told")
        error.sqlite_errorcode = code
        raise error

    @contextlib.contextmanager
    def failing(ledger: SqliteLedger) -> Iterator[None]:
        Connection.fails = staticmethod(fail)
        try:
            yield
        finally:
            Connection.fails = None

    return failing


@contextlib.contextmanager
def locked(ledger: SqliteLedger) -> Iterator[None]:
    """Another process writes, for longer than anybody waits."""
    program = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('BEGIN IMMEDIATE'); print('has it', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(ledger.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "has it\n"
        yield


FAULTS: dict[str, tuple[Fault, type[LedgerError]]] = {
    "full": (failure(sqlite3.SQLITE_FULL), LedgerFull),
    "broken": (failure(sqlite3.SQLITE_IOERR_FSYNC), LedgerUnavailable),
    "read-only": (failure(sqlite3.SQLITE_READONLY), LedgerReadOnly),
    "locked": (locked, LedgerLocked),
}


@contextlib.contextmanager
def begun_at(
    world: World, fault: Fault, places: dict[int, Callable[[], None]], place: int
) -> Iterator[None]:
    """Let a fault begin at a place, and be over with the block."""
    with contextlib.ExitStack() as stack:
        places[place] = lambda: stack.enter_context(fault(world.ledger))
        yield


# -- what must hold -----------------------------------------------------------------------------


def test_without_a_fault_everything_is_asked_for_once(world: World) -> None:
    run = world.run()

    assert run.answer == ANSWER
    assert (len(world.model.asked), len(world.looked)) == (CALLS, LOOKS)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_a_fault_while_a_call_is_under_way_ends_the_run_and_leaves_that_call_in_doubt(
    name: str, call: int, world: World
) -> None:
    fault, error = FAULTS[name]

    with begun_at(world, fault, world.at_call, call), pytest.raises(error):
        world.run()

    assert len(world.model.asked) == call
    with pytest.raises(RunInDoubt) as doubt:
        world.resume()
    (intent,) = doubt.value.open
    assert intent.items in ((), (0,))
    assert len(world.model.asked) == call
    assert world.resume(in_doubt="retry").answer == ANSWER
    assert len(world.model.asked) == CALLS + 1
    assert verify_ledger(world.ledger).ok


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("look", range(1, LOOKS + 1))
def test_a_fault_between_calls_ends_the_run_before_anything_more_is_paid_for(
    name: str, look: int, world: World
) -> None:
    fault, error = FAULTS[name]
    paid = 2 * look - 1

    with begun_at(world, fault, world.at_look, look), pytest.raises(error):
        world.run()

    assert len(world.model.asked) == paid
    assert world.resume().answer == ANSWER
    assert len(world.model.asked) == CALLS
    assert verify_ledger(world.ledger).ok


@pytest.mark.parametrize("look", range(1, LOOKS + 1))
def test_a_write_that_failed_and_is_there_all_the_same_is_not_built_upon(
    look: int, world: World
) -> None:
    """The intent stands on the disk, the call was not made: nobody can know that afterwards."""
    fault = failure(sqlite3.SQLITE_IOERR_FSYNC, written=True)
    paid = 2 * look - 1

    with begun_at(world, fault, world.at_look, look), pytest.raises(LedgerUnavailable):
        world.run()

    assert len(world.model.asked) == paid
    if look < LOOKS:
        with pytest.raises(RunInDoubt):
            world.resume()
    assert world.resume(in_doubt="retry").answer == ANSWER
    assert len(world.model.asked) == CALLS
    assert verify_ledger(world.ledger).ok


@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_a_clock_that_is_set_back_changes_nothing(
    call: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns
    day = 86_400_000_000_000

    def set_back() -> None:
        monkeypatch.setattr(time, "time_ns", lambda: now() - day)

    world.at_call[call] = set_back
    run = world.run()

    assert run.answer == ANSWER
    assert 0 <= run.charge.wall_ms < 60_000
    assert verify_ledger(world.ledger).ok
    assert world.session.replay(run.run).held


def test_a_run_goes_on_on_a_clock_that_is_a_day_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begun_at(world, FAULTS["full"][0], world.at_look, 2), pytest.raises(LedgerFull):
        world.run()
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 86_400_000_000_000)

    run = world.resume()

    assert run.answer == ANSWER
    assert len(world.model.asked) == CALLS
    assert verify_ledger(world.ledger).ok
    assert world.session.replay(run.run).held
