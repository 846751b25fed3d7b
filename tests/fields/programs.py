"""Rows for what surrounds one program, and for its limits, in the WASM sandbox."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.fields.table import Row, World

from tallystick.sandbox import (
    ExecutionContext,
    ExecutionResult,
    HostFunction,
    HostTable,
    Limits,
    Rerun,
)

HOST = HostTable(
    [
        HostFunction(name="twice", function=lambda text: text * 2, local=True),
        HostFunction(name="long", function=lambda: "x" * 10_000, local=True),
    ]
)


def result(world: World, source: str, context: ExecutionContext) -> ExecutionResult:
    """Run one program in an interpreter of its own."""

    async def execute() -> ExecutionResult:
        session = await world.wasm.open(session_id="mine")
        try:
            return await session.execute(source, context=context, host=HOST)
        finally:
            await session.close()

    return asyncio.run(execute())


def look(source: str, *, of: str) -> Any:
    """Return a look at the end of a program whose context has a field, or at its refusal."""

    def see(world: World, value: object) -> object:
        given: dict[str, Any] = {"session_id": "mine", of: value}
        try:
            found = result(world, source, ExecutionContext(**given))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        said = found.error.traceback if found.error is not None else ""
        return found.stdout, found.stderr, found.stop, found.output_truncated, said

    return see


def limited(source: str, *, of: str) -> Any:
    """Return a look at the end of a program under a limit."""

    def see(world: World, value: int) -> object:
        return look(source, of="limits")(world, Limits(**{of: value}))

    return see


def spilled(world: World, value: str) -> object:
    """Look at the name of the file with a long output, which is named after a session."""
    context = ExecutionContext(session_id=value, max_output_bytes=10)
    path = result(world, "print('x' * 1_000)", context).output_file_path
    assert path is not None
    return "yours" in Path(path).name


def cancelled(world: World, value: str | None) -> object:
    """Look at the end of a program that is cancelled by a token."""

    async def execute() -> str:
        session = await world.wasm.open(session_id="mine")
        context = ExecutionContext(session_id="mine", cancellation_token=value, timeout_ms=300)
        running = asyncio.ensure_future(
            session.execute("while True: pass", context=context, host=HOST)
        )
        try:
            while not running.done():
                await asyncio.sleep(0.01)
                world.wasm.cancel("stop it")
            return (await running).stop
        finally:
            await session.close()

    return asyncio.run(execute())


PRINT = "import sys\nprint('out')\nprint('err', file=sys.stderr)"

ENVIRONMENT = "import os\nprint(sorted(os.environ.items()))"

ROWS = [
    Row("ExecutionContext.session_id", "result", "mine", "yours", spilled),
    Row("ExecutionContext.session_token", "output", "tb-" + "1" * 40, None, look(
        ENVIRONMENT, of="session_token")),
    Row("ExecutionContext.recursion_depth", "output", 3, 0, look(
        ENVIRONMENT, of="recursion_depth")),
    Row("ExecutionContext.timeout_ms", "result", 0, 30_000, look("print(1)", of="timeout_ms")),
    Row("ExecutionContext.deadline_ms", "result", 0, 30_000, look("print(1)", of="deadline_ms")),
    Row("ExecutionContext.working_dir", "refusal", "/tmp", None, look(
        "print(1)", of="working_dir")),
    Row("ExecutionContext.env_vars", "output", {"A": "b"}, {}, look(
        "import os\nprint(os.environ.get('A'))", of="env_vars")),
    Row("ExecutionContext.capture_stdout", "output", True, False, look(PRINT, of="capture_stdout")),
    Row("ExecutionContext.capture_stderr", "output", True, False, look(PRINT, of="capture_stderr")),
    Row("ExecutionContext.max_output_bytes", "output", 5, 5_000, look(
        "print('x' * 1_000)", of="max_output_bytes")),
    Row("ExecutionContext.cancellation_token", "result", "stop it", None, cancelled),
    Row("ExecutionContext.outputs_before", "output", 0, None, look(
        "print('x' * 100_000)", of="outputs_before")),
    Row("ExecutionContext.program_name", "result", "<one>", "<two>", look(
        "1 / 0", of="program_name")),
    Row("ExecutionContext.limits", "result", Limits(fuel=1_000), Limits(), look(
        "print(1)", of="limits")),
    Row("ExecutionContext.rerun", "result", Rerun(fuel=1), None, look(
        "print(sum(range(10_000)))", of="rerun")),
    Row("Limits.fuel", "result", 1_000, 10**9, limited("print(1)", of="fuel")),
    Row("Limits.memory_bytes", "result", 40 << 20, 256 << 20, limited(
        "x = bytes(100 << 20)\nprint(len(x))", of="memory_bytes")),
    Row("Limits.host_calls", "result", 0, 1, limited("print(twice('a'))", of="host_calls")),
    Row("Limits.output_bytes", "result", 10, 10_000, limited(
        "print('x' * 100)", of="output_bytes")),
    Row("Limits.request_bytes", "result", 10, 10_000, limited(
        "print(len(twice('x' * 100)))", of="request_bytes")),
    Row("Limits.reply_bytes", "result", 10, 100_000, limited(
        "print(len(long()))", of="reply_bytes")),
    Row("Limits.source_bytes", "result", 5, 100, limited("print(1 + 1)", of="source_bytes")),
]  # fmt: skip
