"""Recall programs in Python: run one in the sandbox, and charge its calls.

The program has `recall`, `score` and `cite`, the names that answer, and nothing else of ours. Its
recalls stay in its own variables; only what it answers or prints leaves the sandbox.

Rule 1: the fuel of a program is what the guest used and 1,000,000 for each host call. Before each
call, in this order: the call is charged; the program ends if it has used more than its fuel, or
more than its time; only then the call is done.
Rule 2: time counts the program and its calls, from when its interpreter is there. It interrupts
everything, a call of the host too; such a call is abandoned, and what it may still give is not
used.
Rule 3: the same program over the same store gives the same bundle to the byte, fuel included.

The guest's own fuel is limited by the whole budget, not by what the calls have left of it. A
program that exceeds its budget between two calls is stopped at the next one or at its end, and has
halted either way.
"""

from __future__ import annotations

import re
import time
from asyncio import to_thread
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tallystick.core.errors import SandboxError, TallystickError, UsageError
from tallystick.memory.code_mode.form import PYTHON_BYTES_MAX, one_line, too_long
from tallystick.memory.code_mode.operations import (
    FUEL_MAX,
    HOST_CALL_FUEL,
    PAGE_BYTES,
    PYTHON_FORM,
    Budget,
    Bundle,
    Cite,
    CodeModeError,
    EmptyProgram,
    Halted,
    Host,
    InvalidProgram,
    OperationFailed,
    Program,
    Recall,
    RecallHit,
    SandboxViolation,
    Score,
    Tokenizer,
    WallTimeExceeded,
    assembled_answer,
    bundle_of,
    check_program,
)
from tallystick.sandbox.host import Blocking, HostFunction, HostTable
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    HostCall,
    HostNames,
    Limits,
    ProgramCharge,
    ProgramError,
)
from tallystick.sandbox.wasm.execution import Stopped
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.storage.clock import new_id

# The host calls of a recall program, and the data they gather.


Result = TypeVar("Result")
# Bytes of one hit in an assembled answer beside its content: the dash, the blank and the newline.
_LINE_BYTES = 3
_ERROR_CHARS_MAX = 2_000
_LOOKED_THROUGH_CHARS_MAX = 50_000_000
_END_CHARS = 16


@dataclass(slots=True)
class Gathered:
    """The data that a program has gathered so far.

    Calls add to it in threads of their own, one at a time; a bundle is made of copies, so that a
    call that was abandoned changes nothing.
    """

    bytes_max: int
    answer_bytes_max: int
    recalled: list[RecallHit] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    receipts: list[str] = field(default_factory=list)
    operations: int = 0
    bytes_held: int = 0
    answer_cut: bool = False

    def hold(self, *texts: str) -> None:
        """Count the bytes of texts. Raise `Stopped`, and count none, if they do not fit."""
        size = sum(map(_bytes, texts))
        if self.bytes_held + size > self.bytes_max:
            raise Stopped("memory", f"memory: over {self.bytes_max:,} bytes were recalled")
        self.bytes_held += size

    def bundle(self, answer: str | None, *, fuel_used: int, tokenizer: Tokenizer | None) -> Bundle:
        """Return the bundle of a program with this answer, or without one.

        An answer that is too long counts as none, and an assembled one has the lines that fit; then
        `answer_cut` is set.
        """
        recalled = tuple(self.recalled)
        if answer is not None and _bytes(answer) > self.answer_bytes_max:
            answer, self.answer_cut = None, True
        if answer is None:
            final, count = _assemble_answer(recalled, self.answer_bytes_max)
            whole = count == len(recalled)
            self.answer_cut = self.answer_cut or not whole
        else:
            final, whole = answer, False
        answered = bundle_of(
            (),
            operations=self.operations,
            fuel_used=fuel_used,
            answer=final,
            receipts=self.receipts,
            scores=dict(self.scores),
            tokenizer=tokenizer,
        )
        # Thousands of hits may be in one long answer. Equal texts are searched for once; if the
        # answer was assembled from all hits, none is searched for.
        emitted = len(recalled) if whole else _count_emitted(recalled, final)
        return msgspec.structs.replace(
            answered, recalled=recalled, records_seen=len(recalled), records_emitted=emitted
        )


def _assemble_answer(recalled: Sequence[RecallHit], bytes_max: int) -> tuple[str, int]:
    """Return the assembled answer of as many hits as fit, and how many those are.

    Without hits it is a line that says so; if not even the first fits, it is "".
    """
    size = -1
    for count, hit in enumerate(recalled):
        size += _bytes(hit.content) + _LINE_BYTES
        if size > bytes_max:
            return (assembled_answer(recalled[:count]) if count else ""), count
    return assembled_answer(recalled), len(recalled)


def _count_emitted(recalled: Sequence[RecallHit], text: str) -> int:
    """Return how many of the hits are in a text with their whole content.

    One search of a long text takes a fraction of a millisecond, and there may be a hundred thousand
    contents. If all searches would take long, a content is skipped without one when its first or
    last 16 characters are nowhere in the text.
    """
    counted = Counter(hit.content for hit in recalled)
    looked_for = list(counted)
    if len(counted) * len(text) > _LOOKED_THROUGH_CHARS_MAX:
        parts = {text[at : at + _END_CHARS] for at in range(len(text) - _END_CHARS + 1)}
        looked_for = [
            each
            for each in counted
            if len(each) < _END_CHARS
            or (each[:_END_CHARS] in parts and each[-_END_CHARS:] in parts)
        ]
    return sum(counted[each] for each in looked_for if each in text)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A call that was refused or failed; `why` is the message that the program got."""

    number: int
    operation: str
    why: str
    error: TallystickError


class Calls:
    """The host functions of one program. Used once."""

    def __init__(self, host: Host, gathered: Gathered, *, fuel: int, ends_at: float) -> None:
        self._host = host
        self._fuel = fuel
        self._ends_at = ends_at
        self._charged = 0
        self._end: BaseException | None = None
        self.gathered = gathered
        self.failed: Failed | None = None
        self._table = HostTable(
            [HostFunction(name=each.__name__, function=each) for each in self._functions()],
            answering=True,
        )

    @property
    def names(self) -> HostNames:
        """The names of the functions, for the guest."""
        return self._table.names

    def fuel_used(self, charge: ProgramCharge) -> int:
        """Return the fuel of a program and its calls, also of one that was charged and not done.

        Set `gathered.operations` to the number of calls if it was lower.
        """
        # A request that was too long to read never got here, and counts as a call all the same.
        self._charged = max(self._charged, charge.host_calls)
        self.gathered.operations = max(self.gathered.operations, charge.host_calls)
        return min(charge.fuel + self._charged * HOST_CALL_FUEL, FUEL_MAX)

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        """Charge a call, and do it; return its reply, or work that makes it in another thread.

        Raise `Stopped` if there is no fuel or time left for it. The work raises it too if the host
        gave up by `TimeoutError` or there was no room, and any error of the host that is not ours.
        Our errors are replies, which the program may catch; the last is kept in `failed`.
        """
        self._charged = call.index + 1
        if call.fuel + self._charged * HOST_CALL_FUEL > self._fuel:
            raise Stopped("fuel", f"fuel: all {self._fuel:,} units used")
        if time.monotonic() > self._ends_at:
            raise Stopped("deadline", "deadline: it passed before the call")
        self.gathered.operations = call.index + 1
        reply = self._table.serve(call)
        return Blocking(lambda: self._finish_call(reply)) if isinstance(reply, Blocking) else reply

    def _finish_call(self, work: Blocking) -> bytes:
        reply = work()
        # The table returns every error to the program, but some of them must end it.
        if self._end is not None:
            raise self._end
        return reply

    def _functions(self) -> tuple[Callable[..., object], ...]:
        """Return the functions that the program can call. It can read their docstrings."""
        gathered = self.gathered

        def recall(query: str, k: int = 10) -> list[dict[str, object]]:
            """Recall the best notes for a query: a list of {"id", "content", "score"}, best first.

            `k` is from 0 to 100; a query has at most 10,000 characters.
            Example: for note in recall("when is tea?", 3): print(note["content"])
            """

            def work() -> list[dict[str, object]]:
                asked = _operation_of(Recall, query=query, k=k)
                given: list[dict[str, object]] = []
                for hit in self._host.recall(asked.query, asked.k):
                    # Counted before it is kept: what is gathered never exceeds its room.
                    gathered.hold(hit.id, hit.content)
                    gathered.recalled.append(hit)
                    given.append({"id": hit.id, "content": hit.content, "score": hit.score})
                return given

            return self._perform("recall", work)

        def score(id: str) -> float:
            """Say how well a note does, by its id.

            Example: score(notes[0]["id"])
            """

            def work() -> float:
                asked = _operation_of(Score, memory_id=id)
                gathered.scores[asked.memory_id] = given = self._host.score(asked.memory_id)
                return given

            return self._perform("score", work)

        def cite(id: str) -> str:
            """Get the receipt of a note that was recalled, by its id.

            Example: cite(notes[0]["id"])
            """

            def work() -> str:
                asked = _operation_of(Cite, memory_id=id)
                receipt = self._host.cite(asked.memory_id)
                gathered.hold(receipt)
                gathered.receipts.append(receipt)
                return receipt

            return self._perform("cite", work)

        functions: tuple[Callable[..., object], ...] = (recall, score, cite)
        for each in functions:
            # Errors about wrong arguments use this name.
            each.__qualname__ = each.__name__
        return functions

    def _perform(self, operation: str, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except TimeoutError:
            self._end = Stopped("deadline", f"deadline: {operation} gave up")
            raise
        except TallystickError as error:
            self.failed = Failed(
                number=self.gathered.operations,
                operation=operation,
                why=str(error)[:_ERROR_CHARS_MAX],
                error=error,
            )
            raise
        except Exception as error:
            # No room left, or a fault of the store: the program must not handle either.
            self._end = error
            raise


Operation = TypeVar("Operation", Recall, Score, Cite)


def _operation_of(kind: type[Operation], **fields: object) -> Operation:
    """Return the operation that a program asked for. Raise `UsageError` if it is not allowed."""
    try:
        made = msgspec.convert({"op": kind.__name__.lower(), **fields}, type=kind)
        check_program(Program(operations=(made,)))
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from None
    except InvalidProgram as error:
        raise UsageError(error.why) from None
    return made


# Running a program in the sandbox.


# Large for something that enters a context; and each hit is searched for in it.
ANSWER_BYTES_MAX = 1 << 18
# A query of 10,000 characters fits, however its characters are written.
_REQUEST_BYTES_MAX = 1 << 17
# No program uses that much in a day, and the engine's counter has room above it.
_GUEST_FUEL_MAX = 1 << 62
_CAPABILITY_CHARS_MAX = 80

_PLACE = re.compile(r'File "<program>", line (\d{1,9})\b')
_SYNTAX_PLACE = re.compile(r" \(<program>, line (\d{1,9})\)$")
_SYNTAX_KINDS = frozenset({"SyntaxError", "IndentationError", "TabError"})
_NESTED = "Parser stack overflowed"
# Errors of the interpreter's own code beneath the functions that name a capability. The error
# numbers are the guest's: a program that raises such an error itself has other ones.
_MISSING = (
    ("FileNotFoundError", re.compile(r"\AFileNotFoundError: \[Errno 44\] "), "files"),
    ("PermissionError", re.compile(r"\APermissionError: \[Errno 2\] "), "network"),
    ("OperationalError", re.compile(r"\Asqlite3\.OperationalError: unable to open "), "files"),
)
_NO_VARIABLE = re.compile(r'  File "<frozen os>", line \d+, in __(?:get|del)item__\nKeyError: ')


class ProgramFailed(CodeModeError):
    """The program raised an error that it did not catch, or ended itself with an exit code.

    `line` is the last line of the program that was reached, or None if it is unknown.
    """

    code = "refused.code_mode.program"

    why: str
    line: int | None = None

    def text(self) -> str:
        place = "" if self.line is None else f", line {self.line}"
        return f"guest program failed{place}: {self.why}"


# -- running ------------------------------------------------------------------------------------


async def run_python(
    source: str,
    host: Host,
    *,
    sandbox: WasmSandbox,
    budget: Budget = PYTHON_FORM,
    tokenizer: Tokenizer | None = None,
    seed: int = 0,
) -> Bundle:
    """Run a program to its end in a sandbox of its own, and return its bundle.

    `host` is called in other threads than this one, one call at a time; a call that exceeded the
    time may still be running there afterwards. If the host refuses a call, the program gets an
    error, which it may catch.

    Raise `InvalidProgram` for a source that is not Python or is too long, of which nothing was run.
    Raise a `CodeModeError` if the program ends early: `Halted`, `WallTimeExceeded`,
    `SandboxViolation`, `OperationFailed` or `ProgramFailed`; and `EmptyProgram` if it is blank or
    made no host call. Raise `SandboxError` if the sandbox could not start it. An error of the host
    that is not ours is passed on.
    """
    try:
        size = len(source.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidProgram(why="it holds half of a character") from None
    if size > PYTHON_BYTES_MAX:
        raise too_long(size, PYTHON_BYTES_MAX)
    if not source.strip():
        raise EmptyProgram
    room_pages = (sandbox.memory_bytes_max - sandbox.memory_bytes_least) // PAGE_BYTES
    pages = min(budget.mem_pages, room_pages)
    gathered = Gathered(bytes_max=pages * PAGE_BYTES, answer_bytes_max=ANSWER_BYTES_MAX)
    nothing = gathered.bundle(None, fuel_used=0, tokenizer=tokenizer)
    if not budget.fuel:
        raise Halted(budget=0, partial=nothing)
    if not budget.wall_ms:
        raise WallTimeExceeded(budget=0, partial=nothing)
    context = ExecutionContext(
        session_id=new_id(),
        timeout_ms=budget.wall_ms,
        deadline_ms=budget.wall_ms,
        capture_stderr=False,
        max_output_bytes=ANSWER_BYTES_MAX,
        limits=Limits(
            fuel=min(budget.fuel, _GUEST_FUEL_MAX),
            memory_bytes=sandbox.memory_bytes_least + pages * PAGE_BYTES,
            # One more than the fuel pays for: that one is charged, and halts the program.
            host_calls=budget.fuel // HOST_CALL_FUEL + 1,
            output_bytes=ANSWER_BYTES_MAX,
            request_bytes=_REQUEST_BYTES_MAX,
            source_bytes=PYTHON_BYTES_MAX,
        ),
    )
    session = await sandbox.open(session_id=context.session_id, seed=seed)
    try:
        await session.prepare()
        ends_at = time.monotonic() + budget.wall_ms / 1000
        calls = Calls(host, gathered, fuel=budget.fuel, ends_at=ends_at)
        result = await session.execute(source, context=context, host=calls)
        late = time.monotonic() > ends_at
    finally:
        await session.close()
    # In a thread, because searching a long answer for many hits takes a while and would block this
    # loop.
    return await to_thread(
        _finish, result, calls, budget=budget, pages=pages, late=late, tokenizer=tokenizer
    )


def _finish(
    result: ExecutionResult,
    calls: Calls,
    *,
    budget: Budget,
    pages: int,
    late: bool,
    tokenizer: Tokenizer | None,
) -> Bundle:
    """Return the bundle of a program that ended well. Otherwise raise as `run_python` does."""
    _check_started(result)
    gathered = calls.gathered
    answer = result.metadata.get("answer")
    if not isinstance(answer, str):
        answer = result.stdout.strip() or None
    used = calls.fuel_used(result.charge)
    bundle = gathered.bundle(answer, fuel_used=used, tokenizer=tokenizer)
    # Fuel before time, as before each call: a program that exceeds both ends by the same one. Then
    # what it lacked, which explains its own failure.
    if result.stop in ("fuel", "host_calls") or used > budget.fuel:
        raise Halted(budget=budget.fuel, partial=bundle, fuel_used=used)
    if result.stop in ("wall", "deadline") or late:
        raise WallTimeExceeded(budget=budget.wall_ms, partial=bundle, fuel_used=used)
    capability = _missing_capability(result, pages=pages)
    if capability is None and result.error is None and gathered.answer_cut:
        capability = _OUTPUT
    if capability is not None:
        raise SandboxViolation(capability=capability, partial=bundle, fuel_used=used)
    if result.error is not None:
        raise _failure(result.error, calls, bundle)
    if not gathered.operations:
        empty = EmptyProgram()
        empty.partial, empty.fuel_used = bundle, used
        raise empty
    return bundle


_OUTPUT = f"output beyond {ANSWER_BYTES_MAX:,} bytes"
# The sandbox's message for an answer that is too long for it.
_RESULT_TOO_LONG = "the program forged a result that is too long"


def _check_started(result: ExecutionResult) -> None:
    """Raise `InvalidProgram` for a source that is not Python.

    Raise `SandboxError` if the guest trapped before it used any fuel.
    """
    error = result.error
    if error is None:
        return
    if result.stop == "trap" and not result.charge.fuel:
        raise SandboxError(error.message)
    # If its traceback has frames, the error came from something that the program did.
    began = result.charge.host_calls > 0 or error.traceback.startswith("Traceback")
    if began or result.stop != "finished":
        return
    if error.kind in _SYNTAX_KINDS or error.message.startswith(_NESTED):
        place = _SYNTAX_PLACE.search(error.message)
        message = error.message if place is None else error.message[: place.start()]
        line = "" if place is None else f"line {place[1]}: "
        raise InvalidProgram(why=one_line(f"no Python: {line}{message}"))


def _missing_capability(result: ExecutionResult, *, pages: int) -> str | None:
    """Return what the program used that the sandbox does not have; None if it used no such thing.

    It is told by the stop, by what the guest reports, or by the last line of the traceback.
    """
    if result.stop == "memory":
        return f"memory beyond {pages} pages"
    error = result.error
    if error is None:
        return None
    if result.stop == "output" or (result.stop, error.message) == ("trap", _RESULT_TOO_LONG):
        return _OUTPUT
    if result.stop != "finished":
        return None
    named = result.metadata.get("capability")
    if isinstance(named, str):
        return one_line(named)[:_CAPABILITY_CHARS_MAX]
    # The last line is of the error that ended the program; those before may be of its causes.
    last = error.traceback.rstrip("\n").rpartition("\n")[2]
    for kind, pattern, capability in _MISSING:
        if error.kind == kind and pattern.match(last) is not None:
            return capability
    if error.kind == "KeyError" and _NO_VARIABLE.search(error.traceback) is not None:
        return "environment"
    return None


def _failure(error: ProgramError, calls: Calls, bundle: Bundle) -> CodeModeError:
    """Return the error for a program's own failure: the host's refusal, if it let one through.

    That is `OperationFailed`, with the refusal as its cause; any other failure is `ProgramFailed`.
    """
    failed = calls.failed
    if failed is not None and error.kind == "HostError" and error.message == failed.why:
        refused = OperationFailed(
            number=failed.number,
            operation=failed.operation,
            why=one_line(failed.why),
            partial=bundle,
            fuel_used=bundle.fuel_used,
        )
        refused.__cause__ = failed.error
        return refused
    lines = _PLACE.findall(error.traceback)
    return ProgramFailed(
        why=one_line(f"{error.kind}: {error.message}"),
        line=int(lines[-1]) if lines else None,
        partial=bundle,
        fuel_used=bundle.fuel_used,
    )
