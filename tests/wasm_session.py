"""A session of the WASM sandbox for tests, without async in the test's way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host, Limits
from tallystick.sandbox.wasm.sandbox import CLOCK_NS, WasmInterpreter, WasmSandbox
from tallystick.storage.clock import new_id

Result = TypeVar("Result")
MIB = 1024 * 1024


def echo(value: object) -> object:
    """Return what was given."""
    return value


ECHO = HostTable([HostFunction(name="echo", function=echo, local=True)])
# Enough for any honest test program, little enough that a runaway one ends in a second or two.
FUEL = 20_000_000_000


class TestSession:
    """Runs programs to their end, one call each."""

    __test__ = False

    def __init__(self, sandbox: WasmSandbox, *, seed: int = 0, clock_ns: int = CLOCK_NS) -> None:
        self.runner = asyncio.Runner()
        self.session: WasmInterpreter = self.do(
            sandbox.open(session_id=new_id(), seed=seed, clock_ns=clock_ns)
        )

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    def run(
        self,
        program: str | bytes,
        *,
        host: Host = ECHO,
        wall_ms: int = 10_000,
        max_output_bytes: int = 65_536,
        context: dict[str, Any] | None = None,
        **limits: int,
    ) -> ExecutionResult:
        limits.setdefault("fuel", FUEL)
        return self.do(
            self.session.execute(
                program,
                context=ExecutionContext(
                    session_id=self.session.session_id,
                    timeout_ms=wall_ms,
                    max_output_bytes=max_output_bytes,
                    limits=Limits(**limits),
                    **(context or {}),
                ),
                host=host,
            )
        )

    def value(self, program: str, **more: Any) -> str | None:
        """The value of a program that must end well."""
        result = self.run(program, **more)
        assert result.error is None, result.error.traceback or result.error
        return result.value

    def close(self) -> None:
        self.do(self.session.close())
        self.runner.close()


@contextmanager
def open_session(
    sandbox: WasmSandbox, *, seed: int = 0, clock_ns: int = CLOCK_NS
) -> Iterator[TestSession]:
    session = TestSession(sandbox, seed=seed, clock_ns=clock_ns)
    try:
        yield session
    finally:
        session.close()
