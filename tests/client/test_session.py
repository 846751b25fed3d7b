"""Sessions: from anywhere, cancelled or broken, a run is written down and gives what it has."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import RunNotFound, SandboxError, UsageError
from tallystick.core.records import CallHost, HostAnswered, RunEnded, RunStarted
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of, resolve_run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import ModelDouble, block
from tallystick.testing.runs import play


def test_the_plain_call_works_inside_a_running_loop(sandbox: WasmSandbox) -> None:
    async def notebook_cell() -> str | None:
        return play(sandbox, [block("FINAL('from a cell')")]).run.answer

    assert asyncio.run(notebook_cell()) == "from a cell"


def test_a_model_can_be_given_by_its_name(
    sandbox: WasmSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replies.jsonl").write_text(json.dumps({"text": block("FINAL('by name')")}))

    with Session(model="scripted:replies.jsonl", ledger=MemoryLedger(), sandbox=sandbox) as session:
        assert session.run("?").answer == "by name"
    with (
        Session(model="nosuch:x", ledger=MemoryLedger(), sandbox=sandbox) as session,
        pytest.raises(UsageError, match="nosuch"),
    ):
        session.run("?")


def test_many_runs_are_awaited_at_once(sandbox: WasmSandbox) -> None:
    async def scenario() -> list[str | None]:
        model = ScriptedModel(lambda position, messages: block("FINAL(context)"))
        session = Session(model=model, ledger=MemoryLedger(), sandbox=sandbox)
        runs = await asyncio.gather(
            *(session.arun("?", inputs=[given_text(f"n{number}")]) for number in range(8))
        )
        session.close()
        return [run.answer for run in runs]

    assert asyncio.run(scenario()) == [f"n{number}" for number in range(8)]


def test_a_cancelled_run_is_written_as_cancelled(sandbox: WasmSandbox) -> None:
    async def scenario() -> list[Any]:
        ledger = MemoryLedger()
        session = Session(model=ModelDouble(None), ledger=ledger, sandbox=sandbox)
        running = asyncio.ensure_future(session.arun("?"))
        for _ in range(500):
            if ledger.runs() and ledger.runs()[0].head.count:
                break
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        run = ledger.runs()[0].run
        for _ in range(200):
            records = list(records_of(ledger, run))
            if isinstance(records[-1], RunEnded):
                break
            await asyncio.sleep(0.01)
        session.close()
        return records

    records = asyncio.run(scenario())
    assert isinstance(records[-1], RunEnded)
    assert records[-1].stop == "cancelled"


def test_a_model_that_does_not_answer_in_time_ends_the_run(sandbox: WasmSandbox) -> None:
    began = time.monotonic()

    run = play(sandbox, ModelDouble(None), limits=RunLimits(wall_ms=200)).run

    assert run.stop == "deadline"
    assert "timeout" in run.detail
    assert time.monotonic() - began < 3


def test_a_sandbox_that_breaks_ends_the_run_with_what_it_has(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.sandbox.wasm.sandbox import WasmInterpreter

    real = WasmInterpreter.execute

    async def breaks(self: Any, program: str, **more: Any) -> Any:
        if "boom" in program:
            raise SandboxError("the engine is gone")
        return await real(self, program, **more)

    monkeypatch.setattr(WasmInterpreter, "execute", breaks)
    run = play(sandbox, [block("'so far'"), block("boom")]).run

    assert (run.stop, run.answer, run.partial) == ("sandbox_error", "'so far'", True)


def test_an_effect_is_forced_to_disk_before_it_is_begun(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    seen: list[list[str]] = []

    class Watching:
        def __getattr__(self, name: str) -> Any:
            return getattr(ledger, name)

    @host_function(policy="effect")
    def pay(amount: int) -> str:
        """Pay."""
        run = ledger.runs()[-1].run
        seen.append([type(record).__name__ for record in records_of(ledger, run)])
        return "paid"

    model = ScriptedModel.of(block("FINAL(pay(3))"))
    with Session(model=model, functions=[pay], ledger=ledger, sandbox=sandbox) as session:
        run = session.run("pay")

    assert run.answer == "paid"
    assert seen[0][-1] == "CallHost"
    records = list(records_of(ledger, run.run))
    call = next(record for record in records if isinstance(record, CallHost))
    answered = next(record for record in records if isinstance(record, HostAnswered))
    assert call.intent == answered.intent


def test_a_read_is_not_written_before_it_is_answered(sandbox: WasmSandbox) -> None:
    @host_function(policy="read", local=True)
    def look() -> int:
        """Look."""
        return 1

    played = play(sandbox, [block("FINAL(look())")], functions=[look])

    assert not any(isinstance(record, CallHost) for record in played.records)
    assert sum(isinstance(record, HostAnswered) for record in played.records) == 1


def test_a_function_that_was_left_behind_is_not_heard(sandbox: WasmSandbox) -> None:
    release = threading.Event()

    @host_function(policy="read")
    def hangs() -> str:
        """Hang."""
        release.wait(10)
        return "too late"

    played = play(sandbox, [block("hangs()")], functions=[hangs], limits=RunLimits(wall_ms=300))
    release.set()
    time.sleep(0.05)

    assert played.run.stop == "deadline"
    assert not any(isinstance(record, HostAnswered) for record in played.records)


def test_a_reply_of_five_megabytes_is_read(sandbox: WasmSandbox) -> None:
    long = "so " * 1_700_000
    run = play(sandbox, [f"{long}\n{block('FINAL(1)')}"], limits=RunLimits(tokens=10**9)).run

    assert run.answer == "1"


def test_runs_are_named_by_id_prefix_or_last(sandbox: WasmSandbox) -> None:
    ledger: Ledger = MemoryLedger()
    model = ScriptedModel(lambda position, messages: block("FINAL(1)"))
    with Session(model=model, ledger=ledger, sandbox=sandbox) as session:
        first, second = session.run("a"), session.run("b")

    assert resolve_run(ledger, "last") == second.run
    assert resolve_run(ledger, first.run) == first.run
    assert resolve_run(ledger, first.run.lower()) == first.run
    with pytest.raises(UsageError, match="2 runs"):
        resolve_run(ledger, first.run[:4])
    with pytest.raises(RunNotFound):
        resolve_run(ledger, "ZZZZ")


def test_the_start_of_a_run_names_its_inputs_and_holds_none_of_them(sandbox: WasmSandbox) -> None:
    played = play(sandbox, [block("FINAL(context)")], inputs=[given_text("the text", name="a.txt")])
    begun = played.records[0]
    assert isinstance(begun, RunStarted)

    (given,) = begun.inputs
    assert (given.name, given.key) == ("context", None)
    assert given.attachment.id == hashlib.sha256(b"the text").hexdigest()
    assert (given.attachment.label, given.attachment.byte_len) == ("a.txt", 8)
    assert begun.values == {}
    assert played.replayed().held


def test_a_session_without_a_model_says_so(sandbox: WasmSandbox) -> None:
    with Session(ledger=MemoryLedger(), sandbox=sandbox) as session, pytest.raises(UsageError):
        session.run("?")


def test_entries_of_a_turn_do_not_grow_with_the_run(sandbox: WasmSandbox) -> None:
    """Bytes per turn stay the same, though the prompt gets longer."""
    replies = [block(f"value = {number}\nvalue") for number in range(1, 21)]
    played = play(sandbox, replies, limits=RunLimits(turns=20))
    entries = played.ledger.read(played.run.run)
    sizes = [len(sealed.body or b"") + len(sealed.header) for sealed in entries]
    early, late = sum(sizes[5:25]), sum(sizes[-21:-1])

    assert late < early * 1.1


def test_a_scripted_error_is_a_model_error(sandbox: WasmSandbox) -> None:
    run = play(sandbox, [ScriptedReply(error="no credit")]).run

    assert (run.stop, run.answer) == ("model_error", None)
    assert "no credit" in run.detail


def test_a_cancel_in_the_middle_of_an_effect_is_in_doubt_and_replays(sandbox: WasmSandbox) -> None:
    release, begun = threading.Event(), threading.Event()

    @host_function(policy="effect")
    def pay() -> str:
        """Pay."""
        begun.set()
        release.wait(10)
        return "paid"

    async def scenario() -> tuple[str, bool]:
        ledger = MemoryLedger()
        model = ScriptedModel.of(block("pay()"))
        session = Session(model=model, functions=[pay], ledger=ledger, sandbox=sandbox)
        running = asyncio.ensure_future(session.arun("?"))
        await asyncio.to_thread(begun.wait, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        run = ledger.runs()[0].run
        records: list[Any] = []
        for _ in range(300):
            records = list(records_of(ledger, run))
            if isinstance(records[-1], RunEnded):
                break
            await asyncio.sleep(0.01)
        release.set()
        held = await asyncio.to_thread(lambda: session.replay(run).held)
        session.close()
        return records[-1].stop, held

    assert asyncio.run(scenario()) == ("in_doubt", True)


def test_stores_that_were_opened_for_attachments_alone_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path))
    session = Session(config=None)
    assert list(session.attachments.references()) == []
    stores, closed = session.engine._stores, []
    monkeypatch.setattr(stores, "close", lambda: closed.append(True))

    session.close()

    assert closed == [True]
