"""A session of the process sandbox for tests, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host, Limits
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.process.session import ProcessInterpreter
from tallystick.sandbox.process.settings import BoxSettings, IsolationMissing, require_layers
from tallystick.storage.clock import new_id

Result = TypeVar("Result")


def echo(value: object) -> object:
    """Return what was given."""
    return value


ECHO = HostTable([HostFunction(name="echo", function=echo, local=True)])


class ProcessTestSession:
    """Runs programs and commands to their end, one call each."""

    def __init__(self, sandbox: ProcessSandbox, **more: Any) -> None:
        self.runner = asyncio.Runner()
        self.sandbox = sandbox
        self.session: ProcessInterpreter = self.do(sandbox.open(session_id=new_id(), **more))
        self.namespace = pid_namespace_of(self.session.box_pid)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    def context(
        self, *, wall_ms: int = 10_000, context: dict[str, Any] | None = None, **limits: int
    ) -> ExecutionContext:
        return ExecutionContext(
            session_id=self.session.session_id,
            timeout_ms=wall_ms,
            limits=Limits(**limits),
            **(context or {}),
        )

    def run(self, program: str | bytes, *, host: Host = ECHO, **more: Any) -> ExecutionResult:
        return self.do(self.session.execute(program, context=self.context(**more), host=host))

    def command(self, text: str | bytes, **more: Any) -> ExecutionResult:
        return self.do(self.session.command(text, context=self.context(**more), host=ECHO))

    def value(self, program: str, **more: Any) -> str | None:
        """The value of a program that must end well."""
        result = self.run(program, **more)
        assert result.error is None, result.error.traceback or result.error
        return result.value

    def said(self, text: str, **more: Any) -> str:
        """What a command that must end well printed."""
        result = self.command(text, **more)
        assert (result.exit_code, result.stop) == (0, "finished"), result
        return result.stdout

    def close(self) -> None:
        self.do(self.session.close())
        self.runner.close()


@contextmanager
def opened(sandbox: ProcessSandbox, **more: Any) -> Iterator[ProcessTestSession]:
    session = ProcessTestSession(sandbox, **more)
    try:
        yield session
    finally:
        session.close()


def made_sandbox(output: Path | None = None, *, spares: int = 1, **settings: Any) -> ProcessSandbox:
    """A sandbox on a host that has every layer; the test is skipped on another, by its name.

    One that many tests share takes no spares: a box that a thread makes in advance, for the next
    test, would count as a descriptor that this test has left open.
    """
    sandbox = ProcessSandbox(
        settings=BoxSettings(**settings), output_directory=output, spares=spares
    )
    try:
        require_layers(BoxSettings(), asyncio.run(sandbox.layers()))
    except IsolationMissing as error:
        asyncio.run(sandbox.close())
        pytest.skip(str(error))
    return sandbox


def pid_namespace_of(waiter: int) -> str:
    """The pid namespace that the process which waits for a box has made for it."""
    return os.readlink(f"/proc/{waiter}/ns/pid_for_children")


def living_in(namespace: str) -> list[int]:
    """Processes of the machine that are in a pid namespace. The dead are not, buried or not."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                state = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()[0]
                if os.readlink(f"/proc/{name}/ns/pid") == namespace and state != b"Z":
                    found.append(int(name))
            except OSError:
                continue
    return found


def names_in(namespace: str) -> list[str]:
    """What the processes in a pid namespace are called."""
    return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in living_in(namespace)]
