"""Check a program outside of runs: read it as the sandbox does, and return the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from tallystick.core.errors import UsageError
from tallystick.vocabulary.check import NORMAL, Rules, ValidationResult, validate
from tallystick.vocabulary.program import Program
from tallystick.vocabulary.shell import read_shell
from tallystick.vocabulary.terms import Vocabulary

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

ProgramKind = Literal["python", "bash"]


def check_program(
    source: str,
    vocabulary: Vocabulary,
    rules: Rules = NORMAL,
    *,
    kind: ProgramKind = "python",
    given: Iterable[str] = (),
    retry_count: int = 0,
    sandbox: WasmSandbox | None = None,
) -> ValidationResult:
    """Return the verdict on a program, as in a run; no part of the program is run.

    `given` are names of data that the program finds, and `retry_count` says how many programs
    before it were refused. A Python program is parsed by the Python of `sandbox`, or of one that
    is opened for this call. Raise `UsageError` for a source that is not a text, and for another
    kind; `SandboxError` or `GuestMissing` if there is no sandbox.
    """
    if not isinstance(source, str):
        raise UsageError(f"a program to check is a text, not {type(source).__name__}")
    if kind not in ("python", "bash"):
        raise UsageError(f"program kind {kind!r:.80}: there are python, bash")
    if kind == "bash":
        program = read_shell(source)
    else:
        names = dict.fromkeys(given, "")
        # In a thread of its own: the caller may be in an event loop.
        with ThreadPoolExecutor(1) as threads:
            program = threads.submit(
                lambda: asyncio.run(_read_python(source, names, sandbox))
            ).result()
    return validate(program, vocabulary, rules, retry_count=retry_count)


async def _read_python(source: str, given: dict[str, str], sandbox: WasmSandbox | None) -> Program:
    from tallystick.vocabulary.guest_python import read_python_in

    if sandbox is not None:
        return await read_python_in(sandbox, source, given=given)
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.settings.paths import cache_directory

    opened = WasmSandbox.load(cache=cache_directory())
    try:
        return await read_python_in(opened, source, given=given)
    finally:
        await opened.close()
