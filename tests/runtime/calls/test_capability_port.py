"""The port of capabilities carries what is not built in: a clock, approvals, notes, a listener."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.runtime.calls.clock_capability import Clock

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import TallystickError
from tallystick.core.history import History
from tallystick.core.records import HostAnswered, Record, RunEnded, RunStarted
from tallystick.core.resume_errors import NeedsPerson
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.calls.capability import CapabilityBase, RunCapability, RunServices
from tallystick.runtime.calls.functions import RunFunction, host_function
from tallystick.runtime.calls.scope import Call
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block

ASKING = block("first = now()\nsecond = now()\nFINAL(f'{first} {second}')")


def client(sandbox: WasmSandbox, ledger: Ledger, *replies: str, **more: Any) -> Session:
    model = ScriptedModel.of(*replies)
    return Session(config=None, model=model, ledger=ledger, sandbox=sandbox, **more)


def records(ledger: Ledger, run: str) -> list[Record]:
    return list(records_of(ledger, run))


def test_a_clock_is_one_file_and_one_line(sandbox: WasmSandbox) -> None:
    ledger, ticks = MemoryLedger(), itertools.count(100)
    with client(sandbox, ledger, ASKING) as session:
        session.capabilities.append(Clock(lambda: next(ticks)))
        run = session.run("what time is it?", strategy="code")

    assert run.answer == "100 101"
    assert "now" in dict(_started(ledger, run.run).functions)


def test_what_the_clock_said_is_replayed_without_it(sandbox: WasmSandbox) -> None:
    ledger, ticks = MemoryLedger(), itertools.count(100)
    with client(sandbox, ledger, ASKING) as session:
        session.capabilities.append(Clock(lambda: next(ticks)))
        run = session.run("what time is it?", strategy="code")

    with client(sandbox, ledger) as silent:
        report = silent.replay(run.run)

    assert (report.held, report.programs) == (True, 1)
    assert next(ticks) == 102


def test_a_run_with_a_clock_is_not_resumed_without_it(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with client(sandbox, ledger, block("print(now())")) as session:
        session.capabilities.append(Clock(lambda: 7))
        run = session.run("what time is it?", strategy="code", limits=RunLimits(turns=1))
        assert run.stop == "max_turns"

    with (
        client(sandbox, ledger, block("FINAL(1)")) as other,
        pytest.raises(TallystickError, match="may call now"),
    ):
        other.resume(run.run, limits=RunLimits(turns=2))


# -- what is recorded under a name ---------------------------------------------------------------


class Noting(CapabilityBase, RunCapability):
    """Says something of the run, and of each call."""

    name = "noting"

    def start_fields(self, asked: Any, run_attachments: Any) -> Mapping[str, Any]:
        return {"given": {"noting": msgspec.Raw(b'{"level":3}')}}

    def look(self, call: Call, key: str) -> str:
        """Look a key up."""
        call.notes.append(_Looked(key=key))
        call.notes.append(_Looked(key=key.upper()))
        return key * 2

    def functions(self) -> Sequence[RunFunction]:
        return [
            RunFunction(
                function=self.look, name="look", policy="read", needs="", local=False, handed=True
            )
        ]

    def fields_of(self, notes: Sequence[msgspec.Struct]) -> Mapping[str, Any]:
        keys = [each.key for each in notes if isinstance(each, _Looked)]
        return {"notes": {"noting": msgspec.Raw(msgspec.json.encode(keys))}}

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        return self


class _Looked(msgspec.Struct, frozen=True, kw_only=True):
    key: str


def test_what_a_capability_says_stands_under_its_name(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with client(sandbox, ledger, block("FINAL(look('a'))")) as session:
        session.capabilities.append(Noting())
        run = session.run("look", strategy="code")

    (answer,) = [each for each in records(ledger, run.run) if isinstance(each, HostAnswered)]
    given = _started(ledger, run.run).given
    assert isinstance(given, Mapping)
    assert bytes(given["noting"]) == b'{"level":3}'
    assert isinstance(answer.notes, Mapping)
    # All that the call touched, and not the last alone.
    assert msgspec.json.decode(answer.notes["noting"]) == ["a", "A"]
    with client(sandbox, ledger) as silent:
        assert silent.replay(run.run).held


def test_the_first_argument_of_a_function_that_is_handed_its_call_is_not_told(
    sandbox: WasmSandbox,
) -> None:
    ledger = MemoryLedger()
    with client(sandbox, ledger, block("FINAL(1)")) as session:
        session.capabilities.append(Noting())
        run = session.run("look", strategy="code")

    assert dict(_started(ledger, run.run).functions)["look"].startswith("look(key: str) -> str")


# -- a person's word -------------------------------------------------------------------------


class Approvals(CapabilityBase, RunCapability):
    """A sketch: calls of `pay` wait for a person, who has said yes to the numbers given."""

    name = "approvals"

    def __init__(self, *approved: int) -> None:
        self._approved = approved

    def refuse(self, call: Call) -> TallystickError | None:
        if call.name == "pay" and call.intent not in self._approved:
            raise NeedsPerson(f"pay (intent {call.intent}) waits for a person")
        return None

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        return self


PAYING = block("before = look()\nreceipt = pay(5)\nFINAL(f'{before} {receipt} {look()}')")


def paying(sandbox: WasmSandbox, ledger: Ledger, done: list[str], *approved: int) -> Session:
    @host_function(policy="effect")
    def pay(amount: int) -> str:
        """Pay."""
        done.append(f"paid {amount}")
        return f"receipt {amount}"

    @host_function(policy="read")
    def look() -> int:
        """Look."""
        done.append("looked")
        return len(done)

    session = client(sandbox, ledger, PAYING, functions=[pay, look])
    session.capabilities.append(Approvals(*approved))
    return session


def test_a_call_waits_in_the_middle_of_a_program_and_is_made_once_approved(
    sandbox: WasmSandbox,
) -> None:
    ledger, done = MemoryLedger(), list[str]()
    with paying(sandbox, ledger, done) as session:
        waits = session.run("pay", strategy="code")
    assert (waits.stop, done) == ("waiting", ["looked"])
    assert waits.detail == "pay (intent 4) waits for a person"
    with paying(sandbox, ledger, done) as session:
        assert session.replay(waits.run).held

    # Nobody has said anything yet: it waits again, and nothing is done.
    with paying(sandbox, ledger, done) as session:
        assert session.resume(waits.run).stop == "waiting"
    assert done == ["looked"]

    with paying(sandbox, ledger, done, 4) as session:
        run = session.resume(waits.run)
        assert (run.answer, done) == ("1 receipt 5 3", ["looked", "paid 5", "looked"])
    with paying(sandbox, ledger, done) as session:
        assert session.replay(waits.run).held
    assert isinstance(records(ledger, waits.run)[-1], RunEnded)


_OTHER_PROCESS = """
import sys
from pathlib import Path
from tests.runtime.calls.test_capability_port import paying
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory

done = []
sandbox = WasmSandbox.load(cache=cache_directory(), output_directory=Path(sys.argv[3]))
with paying(sandbox, SqliteLedger(Path(sys.argv[1])), done, 4) as session:
    print(session.resume(sys.argv[2]).answer, done)
"""


def test_another_process_resumes_a_run_that_waits(
    wasm_sandbox: WasmSandbox, tmp_path: Path
) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    done: list[str] = []
    with paying(wasm_sandbox, ledger, done) as session:
        waits = session.run("pay", strategy="code")
    assert waits.stop == "waiting"

    command = [sys.executable, "-c", _OTHER_PROCESS, str(ledger.path), waits.run, str(tmp_path)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert said.strip() == "1 receipt 5 2 ['paid 5', 'looked']"


# -- telemetry listens ---------------------------------------------------------------------------


def test_every_new_record_is_told_once_in_the_order_of_the_ledger(sandbox: WasmSandbox) -> None:
    ledger, heard = MemoryLedger(), list[Record]()
    with client(sandbox, ledger, ASKING) as session:
        session.capabilities.append(Clock(lambda: 1))
        run = session.run(
            "what time is it?", strategy="code", watch=lambda _, record: heard.append(record)
        )

    assert heard == records(ledger, run.run)


def _started(ledger: Ledger, run: str) -> RunStarted:
    started = records(ledger, run)[0]
    assert isinstance(started, RunStarted)
    return started
