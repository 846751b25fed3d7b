"""A process killed at any system call of a run in a session: no variable is lost without a word.

Where the ledger has the end of the run, the next run of the session finds all that it left. Where
it has not, the session stands as before, until the run was gone on with.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.faults.killed_runs import Whole, Workers, played_whole
from tests.faults.paid_server import PaidServer
from tests.faults.soak_record import noted, outcome_table
from tests.faults.sweeps import of, provider, spread, sweep
from tests.faults.tracer import available

from tallystick.client import Session
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block

FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
POINTS_SLOW, POINTS_SOAK = 3, (None if FULL else 3)
# Around the end of the run, where a session takes over what it left. Not the last calls of all:
# the number of calls differs a little each time, and a shorter run does not come so far.
LAST_CALLS, LAST_BUT, LAST_SLOW, LAST_SOAK = 260, 60, 12, 6
NAMES = ("items", "first", "sizes", "total", "word", "second", "last", "text")
needs_tracer = pytest.mark.skipif(not available(), reason="system calls are traced with ptrace")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("runs in sessions")
    with PaidServer() as server, Workers(folder, server, subject="session") as made:
        yield made


@pytest.fixture(scope="module")
def whole(workers: Workers) -> Whole:
    """The run with nothing happening to it."""
    return played_whole(workers)


class Lookout:
    """Looks what the next run of the session would find, in a copy of all that is there."""

    def __init__(self, data: Path, sandbox: WasmSandbox) -> None:
        self._data, self._sandbox = data, sandbox
        self._copy = data.with_name("copy")
        self.expected = self.found()
        assert self.expected is not None
        self.seen: Counter[str] = Counter()

    def found(self) -> str | None:
        """Return the variables that the next run has; None while no run of the session ended."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._data, self._copy)
        said = f"FINAL(repr([{', '.join(NAMES)}]))"
        with (
            SqliteLedger(self._copy / "ledger.db") as ledger,
            Session(
                model=ScriptedModel([ScriptedReply(text=block(said))]),
                ledger=ledger,
                sandbox=self._sandbox,
            ) as client,
        ):
            known = client.sessions.book.ids()
            if not known:
                return None
            shown = client.sessions.get(known[0])
            stops = [each.stop for each in client.sessions.history(known[0])]
            assert stops in ([], [None], ["answered"])
            if stops != ["answered"]:
                assert shown.left.image is None
                return None
            assert "items" in shown.left.names
            return client.run("what is there?", session=known[0]).answer

    def check(self) -> None:
        found = self.found()
        assert found in (None, self.expected), "variables were lost"
        self.seen["not ended" if found is None else "kept"] += 1


@pytest.fixture
def lookout(workers: Workers, whole: Whole, sandbox: WasmSandbox) -> Lookout:
    assert whole.result["stop"] == "answered"
    workers.begin_anew()
    workers.run()
    return Lookout(workers.data, sandbox)


def last_calls(count: int) -> Callable[[Sequence[str]], Iterable[int]]:
    def places(seen: Sequence[str]) -> Iterable[int]:
        before = max(0, len(seen) - LAST_CALLS)
        return [before + each for each in spread(seen[before:-LAST_BUT], count, each_kind=False)]

    return places


@needs_tracer
@pytest.mark.slow
def test_no_death_at_a_system_call_loses_the_variables_of_a_session(
    workers: Workers, whole: Whole, lookout: Lookout
) -> None:
    sweep(
        workers,
        whole,
        count=POINTS_SLOW,
        asked=True,
        each_kind=False,
        also=last_calls(LAST_SLOW),
        check=lookout.check,
    )

    # Once after each death, and once after each resume: some deaths were after the end.
    assert lookout.seen["not ended"] > 2
    assert lookout.seen["kept"] > lookout.seen["not ended"] + 2


@needs_tracer
@pytest.mark.soak
@pytest.mark.parametrize("asked", [False, True])
def test_no_death_at_any_system_call_loses_the_variables_of_a_session(
    asked: bool, workers: Workers, whole: Whole, lookout: Lookout
) -> None:
    outcomes = sweep(
        workers,
        whole,
        count=POINTS_SOAK,
        asked=asked,
        each_kind=FULL,
        also=last_calls(LAST_SOAK),
        check=lookout.check,
    )

    title = f"runs in sessions killed at system calls; {provider(asked)}"
    noted(title, [*outcome_table(outcomes), f"variables lost: 0 of {lookout.seen['kept']} times"])
    assert not (asked and of(outcomes, "in doubt"))
