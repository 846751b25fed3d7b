"""Many programs at once: short ones are not starved by long ones, and a wall is a program's own."""

import asyncio
import time
from typing import Any

import pytest
from tests.wasm_session import ECHO

from tallystick.sandbox.port import ExecutionContext, Limits
from tallystick.sandbox.wasm.sandbox import WasmSandbox


@pytest.mark.slow
def test_a_short_program_gets_its_turn_among_long_ones(sandbox: WasmSandbox) -> None:
    narrow = WasmSandbox(sandbox.guest, store=sandbox.store, output_directory=None, active_max=1)
    context = ExecutionContext(session_id="S", timeout_ms=1_000, limits=Limits(fuel=10**12))

    async def scenario() -> tuple[float, list[Any]]:
        long = [await narrow.open(session_id=f"L{n}") for n in range(3)]
        short = await narrow.open(session_id="S")
        await short.execute("1", context=context, host=ECHO)
        running = [
            asyncio.ensure_future(each.execute("while True: pass", context=context, host=ECHO))
            for each in long
        ]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        result = await short.execute("1 + 1", context=context, host=ECHO)
        took = time.monotonic() - began
        assert result.value == "2"
        ends = [(await each).stop for each in running]
        for each in (*long, short):
            await each.close()
        return took, ends

    took, ends = asyncio.run(scenario())

    assert took < 1.5
    assert ends == ["wall"] * 3
