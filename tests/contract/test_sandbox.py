"""What every sandbox promises, tried on each of them."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, ProgramError, Sandbox
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.scripted import Scripted, ScriptedSandbox
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.sandbox import PlainSandbox


async def _later(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


def _fail() -> None:
    raise LookupError("nothing there")


HOST = HostTable(
    [
        HostFunction(name="local", function=lambda value: value, local=True),
        HostFunction(name="blocking", function=lambda value: value),
        HostFunction(name="later", function=_later),
        HostFunction(name="fail", function=_fail, local=True),
    ]
)
CONTEXT = ExecutionContext(session_id="S")

# Each step as a program, and as the script of a double that does the same.
STEPS: list[tuple[str, Scripted]] = [
    ("print('out')", Scripted(result=ExecutionResult(stdout="out\n"))),
    ("40 + 2", Scripted(result=ExecutionResult(value="42"))),
    (
        "raise KeyError('k')",
        Scripted(
            result=ExecutionResult(
                exit_code=1, error=ProgramError(kind="KeyError", message="'k'", traceback="...")
            )
        ),
    ),
    (
        "local(1); blocking(2); later(3)\nNone",
        Scripted(calls=[("local", [1]), ("blocking", [2]), ("later", [3])]),
    ),
    ("try:\n    fail()\nexcept HostError: pass", Scripted(calls=[("fail", [])])),
]

SandboxMaker = Callable[[pytest.FixtureRequest], Sandbox]
BACKENDS: dict[str, SandboxMaker] = {
    "plain": lambda request: PlainSandbox(),
    "process": lambda request: request.getfixturevalue("process_sandbox"),
    "scripted": lambda request: ScriptedSandbox([script for _, script in STEPS]),
    "wasm": lambda request: request.getfixturevalue("sandbox"),
}


@pytest.fixture(scope="module")
def process_sandbox() -> Iterator[ProcessSandbox]:
    if sys.platform != "linux":
        pytest.skip("the process sandbox needs Linux")
    made = ProcessSandbox(spares=0)
    # Starts its launcher, which then lives as long as the sandbox.
    asyncio.run(made.layers())
    yield made
    asyncio.run(made.close())


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Sandbox:
    return BACKENDS[request.param](request)


def results_of(backend: Sandbox) -> list[ExecutionResult]:
    async def scenario() -> list[ExecutionResult]:
        session = await backend.open(session_id="S")
        results = [
            await session.execute(program, context=CONTEXT, host=HOST) for program, _ in STEPS
        ]
        await session.close()
        await session.close()
        return results

    return asyncio.run(scenario())


def test_output_value_and_error_are_in_the_result(backend: Sandbox) -> None:
    out, value, failed, *_ = results_of(backend)

    assert (out.stdout, out.succeeded) == ("out\n", True)
    assert value.value == "42"
    assert failed.error is not None
    assert (failed.error.kind, failed.exit_code, failed.stop) == ("KeyError", 1, "finished")


def test_calls_are_served_in_order_and_recorded(backend: Sandbox) -> None:
    *_, asked, failed = results_of(backend)

    assert [(call.index, call.name, call.ok) for call in asked.calls] == [
        (0, "local", True),
        (1, "blocking", True),
        (2, "later", True),
    ]
    assert [call.ok for call in failed.calls] == [False]
    assert asked.charge.host_calls == 3


def test_sessions_have_the_id_they_were_opened_with(backend: Sandbox) -> None:
    async def scenario() -> str:
        session = await backend.open(session_id="the id")
        await session.close()
        return session.session_id

    assert asyncio.run(scenario()) == "the id"


def test_a_self_test_gives_a_reason_for_whatever_it_could_not_prove(backend: Sandbox) -> None:
    findings = asyncio.run(_self_test(backend))

    assert all(why is None or why for _, why in findings)
    assert all(why is None for _, why in findings)


async def _self_test(backend: Sandbox) -> Any:
    return await backend.self_test()


def test_the_wasm_self_test_notices_a_sandbox_that_does_not_hold(
    sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.sandbox.wasm import sandbox as self_test

    async def lenient(session: Any, program: str, **more: Any) -> ExecutionResult:
        return ExecutionResult(value="'let through'")

    monkeypatch.setattr(self_test, "_run", lenient)
    findings = dict(asyncio.run(_self_test(sandbox)))

    assert set(findings) == {
        "PythonExecution", "ResourceLimits", "Isolation", "Snapshots", "HostCalls",
    }  # fmt: skip
    assert all(why is not None for why in findings.values())
