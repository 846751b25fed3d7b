"""Read a program with the Python of the WASM sandbox, so that host and sandbox read the same.

A program is parsed in an interpreter of its own, and none of it is run there: the interpreter gets
the source as a text, and this package's own reading (`program`, `python_names`) to read it with.

Two ways were rejected. To parse with the host's Python first, and ask the sandbox only about what
fails: what both can parse, they may still read differently (f-strings before 3.12), and a verdict
would depend on the host. To refuse what the host cannot parse: then a program may not use what the
Python that runs it has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tallystick.storage.clock import new_id
from tallystick.vocabulary import program as reading
from tallystick.vocabulary import python_names
from tallystick.vocabulary.program import (
    PROGRAM_CHARS_MAX,
    READING,
    Argument,
    Name,
    Problem,
    Program,
    Uncovered,
    too_long,
)

if TYPE_CHECKING:
    from tallystick.sandbox.port import ExecutionContext, ExecutionResult
    from tallystick.sandbox.snapshot import Image
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

# A program of the longest length takes below a tenth of this.
_FUEL_MAX = 100_000_000_000
_MEMORY_BYTES_MAX = 512 * 1024 * 1024
_OUTPUT_BYTES_MAX = 16 * 1024 * 1024
# Fuel ends a reading that takes too long, at the same place on every machine. The time is for a
# machine that stands still.
_WALL_MS_MAX = 120_000
# The interpreter of each sandbox with the reading loaded: that takes ten times as long as a
# program of usual length.
_loaded: WeakKeyDictionary[WasmSandbox, Image] = WeakKeyDictionary()


async def read_python_in(sandbox: WasmSandbox, source: str, *, given: Mapping[str, str]) -> Program:
    """Read a Python program as `program.read_python` does, with the syntax of the sandbox's Python.

    `given` is as there. Raise `SandboxError` if the sandbox fails. A source that its parser cannot
    finish within the limits of a reading has that as its problem.
    """
    if (problem := too_long(source)) is not None:
        return Program(chars=len(source), problem=problem, reading=READING)
    try:
        source.encode("utf-8")
    except UnicodeEncodeError:
        problem = Problem("syntax", "it has characters that no program has")
        return Program(chars=len(source), problem=problem, reading=READING)
    result = await _execute(sandbox, _asking(source, given))
    if result.stop != "finished" or result.error is not None or result.output_truncated:
        why = "the sandbox's Python takes too much to read it"
        return Program(chars=len(source), problem=Problem("unread", why), reading=READING)
    return _program_of(json.loads(result.stdout))


async def _execute(sandbox: WasmSandbox, asking: str) -> ExecutionResult:
    from tallystick.core.errors import SandboxError
    from tallystick.sandbox.host import HostTable

    session = await sandbox.open(session_id=new_id())
    try:
        host, context = HostTable(), _context(session.session_id)
        image = _loaded.get(sandbox)
        if image is None:
            loading = await session.execute(_loading(), context=context, host=host)
            if loading.error is not None:
                raise SandboxError(f"the check of programs failed: {loading.error.message}")
            _loaded[sandbox] = await session.image()
        else:
            await session.load(image)
        return await session.execute(asking, context=context, host=host)
    finally:
        await session.close()


def _context(session_id: str) -> ExecutionContext:
    from tallystick.sandbox.port import ExecutionContext, Limits

    return ExecutionContext(
        session_id=session_id,
        timeout_ms=_WALL_MS_MAX,
        deadline_ms=_WALL_MS_MAX,
        max_output_bytes=_OUTPUT_BYTES_MAX,
        limits=Limits(
            fuel=_FUEL_MAX, memory_bytes=_MEMORY_BYTES_MAX, output_bytes=_OUTPUT_BYTES_MAX
        ),
    )


def _loading() -> str:
    """Return the program that loads this package's reading, as the modules that they are here."""
    lines = ["import sys, types"]
    for module in (python_names, reading):
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        name = module.__name__
        lines += [
            f"module = sys.modules[{name!r}] = types.ModuleType({name!r})",
            f"exec(compile({source!r}, {name!r}, 'exec'), module.__dict__)",
        ]
    return "\n".join(lines)


def _asking(source: str, given: Mapping[str, str]) -> str:
    """Return the program that prints what the reading finds in a source, as JSON."""
    assert len(source) <= PROGRAM_CHARS_MAX
    return (
        "import dataclasses, json, sys\n"
        f"reading = sys.modules[{reading.__name__!r}]\n"
        f"read = reading.read_python({source!r}, given={dict(given)!r})\n"
        "print(json.dumps(dataclasses.asdict(read)))"
    )


def _program_of(found: Mapping[str, Any]) -> Program:
    problem = found["problem"]
    return Program(
        chars=found["chars"],
        names=tuple(Name(*each) for each in found["names"]),
        arguments=tuple(Argument(*each) for each in found["arguments"]),
        uncovered=tuple(Uncovered(*each) for each in found["uncovered"]),
        values=found["values"],
        computed=found["computed"],
        reading=found["reading"],
        kept=found["kept"],
        problem=None if problem is None else Problem(problem["kind"], problem["why"]),
    )
