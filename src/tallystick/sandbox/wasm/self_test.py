"""Tries here and now what the WASM sandbox says it can do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from tallystick.core.errors import TallystickError
from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.identity import new_id
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Limits

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.sandbox.wasm.session import WasmSession

__all__ = ["run_self_test"]

_LIMITS = Limits()
_Probe = Callable[["WasmSession"], Awaitable[str | None]]


async def run_self_test(sandbox: WasmSandbox) -> Sequence[tuple[str, str | None]]:
    """Return each capability with None if it is proven, or with what went wrong."""
    outcomes = []
    for capability, probe in _PROBES:
        session = await sandbox.open(session_id=new_id())
        try:
            why = await probe(session)
        except TallystickError as error:
            why = f"{error.code}: {error}"
        finally:
            await session.close()
        outcomes.append((capability, why))
    return outcomes


async def _run(
    session: WasmSession, program: str, *, limits: Limits = _LIMITS, **more: int
) -> ExecutionResult:
    context = ExecutionContext(
        session_id=session.session_id, limits=limits, timeout_ms=more.get("timeout_ms", 10_000)
    )
    return await session.execute(program, context=context, host=_ECHO)


async def _python(session: WasmSession) -> str | None:
    result = await _run(
        session, "import json, asyncio\nawait asyncio.sleep(1)\njson.dumps([6 * 7])"
    )
    return None if result.value == "'[42]'" else f"gave {result.value!r}"


async def _limits(session: WasmSession) -> str | None:
    await _run(session, "kept = 1")
    stops = [
        (await _run(session, "while True: pass", limits=Limits(fuel=50_000_000))).stop,
        (await _run(session, "while True: pass", timeout_ms=50)).stop,
        (await _run(session, "x = []\nwhile True: x.append(bytes(1 << 20))")).stop,
        (await _run(session, "kept")).value,
    ]
    return None if stops == ["fuel", "wall", "memory", "1"] else f"gave {stops}"


async def _isolation(session: WasmSession) -> str | None:
    tried = (
        "def tried(f):\n    try:\n        f()\n"
        "    except OSError as error:\n        return type(error).__name__\n"
        "import os, socket, subprocess\n"
        "[tried(lambda: open('/etc/passwd')), tried(lambda: socket.socket()),"
        " tried(lambda: subprocess.run(['id'])), dict(os.environ)]"
    )
    result = await _run(session, tried)
    wanted = "['SandboxViolation', 'SandboxViolation', 'SandboxViolation', {}]"
    return None if result.value == wanted else f"gave {result.value or result.error}"


async def _snapshots(session: WasmSession) -> str | None:
    await _run(session, "value = 1")
    image = await session.image()
    await _run(session, "value = 2")
    await session.load(image)
    result = await _run(session, "value")
    return None if result.value == "1" else f"gave {result.value!r}"


async def _bridge(session: WasmSession) -> str | None:
    result = await _run(session, "echo({'a': [1, None, 'ü']})")
    return None if result.value == "{'a': [1, None, 'ü']}" else f"gave {result.value!r}"


def _echo(value: object) -> object:
    """Return what was given."""
    return value


_ECHO = HostTable([HostFunction(name="echo", function=_echo, local=True)])

_PROBES: tuple[tuple[str, _Probe], ...] = (
    ("PythonExecution", _python),
    ("ResourceLimits", _limits),
    ("Isolation", _isolation),
    ("Snapshots", _snapshots),
    ("HostCalls", _bridge),
)
