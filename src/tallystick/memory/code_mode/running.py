"""Run a recall program of either form against a memory, prepared before its time begins.

Rule 1: what a program may not be charged for is done first: the file is open, the index follows the
log, the embedder is loaded, and for Python the interpreter is there.
Rule 2: a call that exceeded the time ends soon by itself. It writes nothing any more, so the memory
can be closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING

from tallystick.memory.code_mode.form import form_of
from tallystick.memory.code_mode.operations import (
    PYTHON_FORM,
    Budget,
    Bundle,
    Host,
    InvalidProgram,
    Program,
    RecallHit,
    Tokenizer,
    read_program,
    run,
)
from tallystick.memory.recall.recall import Strategy
from tallystick.memory.recall.selection import NOW, Filters
from tallystick.memory.recall.words import TOKENIZER, count_tokens
from tallystick.memory.receipts.receipt import RecallReceipt
from tallystick.memory.receipts.receipts import cite
from tallystick.settings.paths import cache_directory, data_directory

if TYPE_CHECKING:
    from tallystick.memory.memory import Memory
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

_MS_PER_SECOND = 1_000


class Pieces:
    """The tokenizer that receipts count by."""

    name = TOKENIZER

    def count(self, text: str) -> int:
        return count_tokens(text)


class MemoryHost:
    """Serves one program from a memory. The program can cite only what it recalled."""

    def __init__(
        self,
        memory: Memory,
        *,
        as_of: int | str | None = None,
        strategy: Strategy = "auto",
        filters: Filters = NOW,
    ) -> None:
        self._memory = memory
        self._as_of = as_of
        self.strategy: Strategy = strategy
        self._filters = filters
        self._receipts: list[RecallReceipt] = []
        self._ended = threading.Event()
        # Kept in order, and each said once.
        self.remarks: dict[str, None] = {}

    def end(self) -> None:
        """End the call that is still running, if there is one: nobody waits for it any more."""
        self._ended.set()

    def recall(self, query: str, k: int) -> Sequence[RecallHit]:
        with self._memory.store.interruptible(self._ended.is_set):
            made = self._memory.recall(
                query, k, as_of=self._as_of, strategy=self.strategy, filters=self._filters
            )
        self._receipts.append(made.receipt)
        self.remarks.update(dict.fromkeys(made.remarks))
        return [
            RecallHit(id=hit.id, content=made.notes[hit.id].content, score=hit.score)
            for hit in made.hits
        ]

    def score(self, memory_id: str) -> float:
        with self._memory.store.interruptible(self._ended.is_set):
            return self._memory.score(memory_id)

    def cite(self, memory_id: str) -> str:
        return cite(memory_id, self._receipts).text


_: type[Host] = MemoryHost
__: type[Tokenizer] = Pieces


def run_recall_program(
    memory: Memory,
    program: str | bytes | Program,
    *,
    budget: Budget | None = None,
    host: MemoryHost | None = None,
    sandbox: Callable[[], WasmSandbox] | None = None,
) -> Bundle:
    """Run a program, and return its bundle. Raise a `CodeModeError` if it ends early.

    A text is a list of operations as JSON, or Python. `budget` is by default the one of its form.
    Python runs in the sandbox that `sandbox` opens, and that is closed afterwards. `host` is ended
    afterwards, so it serves one program. Raise `InvalidProgram` if it is no program, and
    `SandboxError` if the sandbox could not start it.
    """
    host = MemoryHost(memory) if host is None else host
    source = _read(program)
    try:
        memory.prepare(strategy=host.strategy)
        if isinstance(source, Program):
            return run(
                source,
                host,
                clock=lambda: time.monotonic() * _MS_PER_SECOND,
                budget=budget,
                tokenizer=Pieces(),
            )
        return _run_python(source, host, budget or PYTHON_FORM, sandbox)
    finally:
        host.end()


def _read(program: str | bytes | Program) -> str | Program:
    """Return a list of operations, or the text of a Python program.

    Raise `InvalidProgram` if it is neither.
    """
    if isinstance(program, Program):
        return program
    if isinstance(program, str):
        try:
            program = program.encode()
        except UnicodeEncodeError:
            raise InvalidProgram(why="it holds half of a character") from None
    if form_of(program) == "python":
        return program.decode("utf-8-sig")
    return read_program(program)


def _run_python(
    source: str, host: MemoryHost, budget: Budget, sandbox: Callable[[], WasmSandbox] | None
) -> Bundle:
    # A list of operations does without the engine, whose import takes as long as all the rest.
    from tallystick.memory.code_mode.python import run_python

    async def in_sandbox() -> Bundle:
        opened = open_sandbox() if sandbox is None else sandbox()
        try:
            return await run_python(source, host, sandbox=opened, budget=budget, tokenizer=Pieces())
        finally:
            await opened.close()

    return _run_alone(in_sandbox)


def open_sandbox() -> WasmSandbox:
    """Load the sandbox in which a program runs unless the caller opens another.

    Raise `GuestMissing` if the guest image cannot be used.
    """
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

    return WasmSandbox.load(cache=cache_directory(), output_directory=data_directory() / "output")


def _run_alone(work: Callable[[], Coroutine[None, None, Bundle]]) -> Bundle:
    """Run a coroutine to its end, also where a loop is running: then in a thread of its own."""
    # A list of operations does without these too.
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result()
