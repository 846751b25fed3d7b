"""Tools that are coroutines, of a caller who awaits the run: they run on the caller's loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from tallystick.client import Session
from tallystick.core.errors import UsageError
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import effect_key, host_function
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block

ASKED: contextvars.ContextVar[str] = contextvars.ContextVar("asked", default="nobody")


def model(*sources: str) -> ScriptedModel:
    return ScriptedModel([ScriptedReply(text=block(each)) for each in sources])


class Tools:
    """A tool that uses what belongs to one loop, and notes where it ran."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.seen: list[Any] = []
        self.function = host_function(policy="effect", name="look")(self.look)

    async def look(self, key: str) -> str:
        """Look."""
        async with self.lock:
            await asyncio.sleep(0)
            seen = (asyncio.get_running_loop(), threading.get_ident(), ASKED.get(), effect_key())
            self.seen.append(seen)
        return key.upper()


def test_an_async_tool_runs_on_the_loop_of_a_caller_who_awaits(sandbox: WasmSandbox) -> None:
    async def main() -> None:
        tools = Tools()
        held = asyncio.Lock()
        ASKED.set("me")
        async with (
            held,
            Session(
                model=model("FINAL(look('a') + look('b'))"),
                functions=[tools.function],
                ledger=MemoryLedger(),
                sandbox=sandbox,
            ) as session,
        ):
            result = await session.arun("what is it?")

        assert result.answer == "AB"
        loops, threads, asked, keys = zip(*tools.seen, strict=True)
        assert set(loops) == {asyncio.get_running_loop()}
        assert set(threads) == {threading.get_ident()}
        assert set(asked) == {"me"}
        assert len(set(keys)) == 2
        assert session.ledger is not None

    asyncio.run(main())


def test_many_runs_of_one_loop_share_their_tools(sandbox: WasmSandbox) -> None:
    async def main() -> list[str | None]:
        tools = Tools()
        async with Session(
            model=model(*["FINAL(look('a'))"] * 6),
            functions=[tools.function],
            ledger=MemoryLedger(),
            sandbox=sandbox,
        ) as session:
            runs = await asyncio.gather(*(session.arun(f"what is {n}?") for n in range(6)))
            return [each.answer for each in runs]

    assert asyncio.run(main()) == ["A"] * 6


def test_an_async_tool_of_a_caller_who_blocks_still_works(sandbox: WasmSandbox) -> None:
    @host_function(policy="read")
    async def look(key: str) -> str:
        """Look."""
        await asyncio.sleep(0)
        return key.upper()

    with Session(
        model=model("FINAL(look('a'))"), functions=[look], ledger=MemoryLedger(), sandbox=sandbox
    ) as session:
        assert session.run("what is it?").answer == "A"


def test_what_an_async_tool_raises_reaches_the_program(sandbox: WasmSandbox) -> None:
    @host_function(policy="read")
    async def look(key: str) -> str:
        """Look."""
        raise KeyError(key)

    async def main() -> str | None:
        source = "try:\n    look('a')\nexcept HostError as error:\n    FINAL(error.kind)"
        async with Session(
            model=model(source), functions=[look], ledger=MemoryLedger(), sandbox=sandbox
        ) as session:
            return (await session.arun("what is it?")).answer

    assert asyncio.run(main()) == "KeyError"


def test_an_async_tool_that_exits_does_not_end_the_loop_of_its_caller(
    sandbox: WasmSandbox,
) -> None:
    @host_function(policy="read")
    async def look(key: str) -> str:
        """Look."""
        raise SystemExit(2)

    async def main() -> str | None:
        source = (
            "try:\n    look('a')\nexcept HostError as error:\n    FINAL(f'{error.kind}|{error}')"
        )
        async with Session(
            model=model(source), functions=[look], ledger=MemoryLedger(), sandbox=sandbox
        ) as session:
            return (await session.arun("what is it?")).answer

    assert asyncio.run(main()) == "SystemExit|SystemExit: 2"


class Looker:
    """An object that is called, as clients of services are."""

    def __init__(self) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def __call__(self, key: str) -> str:
        """Look."""
        self.loops.append(asyncio.get_running_loop())
        return key.upper()


def test_an_object_whose_call_is_async_is_an_async_tool(sandbox: WasmSandbox) -> None:
    looker = Looker()
    look = host_function(policy="read", name="look")(looker)

    async def main() -> str | None:
        async with Session(
            model=model("FINAL(look('a'))"),
            functions=[look],
            ledger=MemoryLedger(),
            sandbox=sandbox,
        ) as session:
            answer = (await session.arun("what is it?")).answer
        assert looker.loops == [asyncio.get_running_loop()]
        return answer

    assert asyncio.run(main()) == "A"


def test_leaving_the_session_ends_a_tool_that_waits(sandbox: WasmSandbox) -> None:
    ended = []

    @host_function(policy="read")
    async def wait() -> str:
        """Wait."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(asyncio.get_running_loop())
        return "late"

    async def main() -> None:
        async with Session(
            model=model("FINAL(wait())"), functions=[wait], ledger=MemoryLedger(), sandbox=sandbox
        ) as session:
            going = asyncio.ensure_future(session.arun("what is it?"))
            await asyncio.sleep(1)
        await asyncio.wait([going], timeout=20)
        assert going.done()
        await asyncio.sleep(0)
        assert ended == [asyncio.get_running_loop()]
        with pytest.raises(UsageError, match="the agent is closed"):
            await session.arun("what is it?")

    asyncio.run(main())
