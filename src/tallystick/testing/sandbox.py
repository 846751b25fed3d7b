"""A sandbox for tests: its programs are plain Python in a thread of this process.

It takes the place of the WASM sandbox behind the same ports: what a run records, keeps, repeats and
limits is decided by the real backend around it. Only the interpreter is another one. So a test that
is not about the guest runs its programs without an engine, and they may call functions of the test
(`names`), such as one that waits for an event.

Not for programs that nobody has read: nothing is isolated. Other differences to the guest: fuel is
counted by instructions of the program's own lines; a program that waits in native code is not
stopped; there is no limit for memory; long texts have few of their methods; `random` and `time` are
those of this process.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import concurrent.futures
import contextlib
import functools
import importlib.util
import inspect
import linecache
import sys
import threading
import time
import traceback
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tallystick.core.clock import FIXED_CLOCK_NS
from tallystick.core.errors import ReplayDiverged, SnapshotMismatch, UsageError
from tallystick.sandbox.host import Blocking, call_digest, error_reply
from tallystick.sandbox.output import OutputOverflow, OutputStream, ProgramOutput
from tallystick.sandbox.port import (
    KINDS,
    NOT_RUN,
    CallRecord,
    ExecutionContext,
    ExecutionResult,
    Host,
    HostCall,
    HostNames,
    ProgramCharge,
    ProgramError,
    ProgramReport,
    Sandbox,
    SandboxInterpreter,
    Stop,
    metadata_of,
)
from tallystick.sandbox.snapshot import Image
from tallystick.storage.clock import new_id

# Much for one instruction, so that a program that never ends reaches the usual limit in seconds.
FUEL_PER_STEP = 100_000
_ENGINE = "plain"
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_VALUE = "__tally_value__"
_ERROR_TAG = ord("1")
_ANSWER_NAMES = frozenset({"answer", "FINAL", "FINAL_VAR", "SHOW_VARS"})
_BATCHED = frozenset({"llm_query_batched", "rlm_query_batched", "rlm_query"})


class HostError(Exception):
    """The error of a host function, as programs see it. `kind` is the name of the host's error."""

    __module__ = "builtins"

    def __init__(self, message: str, kind: str = "HostError") -> None:
        super().__init__(message)
        self.kind = kind


class SandboxViolation(Exception):
    """The refusal of a capability, as programs see it."""

    __module__ = "builtins"

    def __init__(self, message: str, capability: str = "") -> None:
        super().__init__(message)
        self.capability = capability


class _Stopped(BaseException):
    """The end of a program that is stopped from outside."""

    def __init__(self, stop: Stop, message: str) -> None:
        super().__init__(message)
        self.stop: Stop = stop
        self.message = message


class _Done(msgspec.Struct, frozen=True):
    """One program that ended by itself: all that is needed to run it again."""

    source: str
    name: str
    names: HostNames
    replies: list[bytes]


_encode_log, _decode_log = msgspec.json.encode, msgspec.json.Decoder(list[_Done]).decode

# Answers a host call of a program: its function and its request to the encoded reply.
_Answering = Callable[[str, bytes], bytes]


class _Namespace:
    """The variables of one interpreter, and how its programs are run."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self._given = given
        self._variables: dict[str, Any] = {"__name__": "__main__"}
        self._injected: dict[str, object] = {}
        self._answer: dict[str, object] = {"content": None, "ready": False}
        self._names: HostNames | None = None
        self._answering: _Answering | None = None
        self._write: Callable[[int, bytes], None] = lambda handle, data: None
        self._seen: set[str] = set()
        self._variables["__builtins__"] = {
            **vars(builtins),
            "HostError": HostError,
            "SandboxViolation": SandboxViolation,
            "print": self._print,
            "exit": sys.exit,
            "quit": sys.exit,
        }

    def run(
        self,
        source: str,
        name: str,
        names: HostNames,
        *,
        answering: _Answering,
        write: Callable[[int, bytes], None],
        trace: Callable[..., Any] | None = None,
    ) -> ProgramReport:
        """Run one program, and return its report, also if the program fails or exits.

        Only `_Stopped` and `_HostFailure` are raised, as `answering`, `write` or `trace` raise
        them. Injected names that an earlier program replaced are put back first.
        """
        self._answering, self._write = answering, write
        self._bind(names)
        self._answer.update(content=None, ready=False)
        restored = self._restore()
        report = ProgramReport(ok=True, restored=restored)
        unique = self._remember(name, source)
        try:
            report.value = self._evaluate(source, unique, report, trace)
        except (_Stopped, _HostFailure):
            raise
        except SystemExit as error:
            report.exit = error.code if isinstance(error.code, int) else int(bool(error.code))
            if report.exit:
                report.ok, report.kind = False, "SystemExit"
                report.message = f"the program ended itself with exit code {report.exit & 0xFF}"
        except BaseException as error:
            self._fail(report, error, unique)
        if self._answer.get("ready"):
            content = self._answer.get("content")
            report.answer = content if isinstance(content, str) else _as_text(content)
        self._variables.pop(_VALUE, None)
        return report

    # -- names -----------------------------------------------------------------------------------

    def _bind(self, names: HostNames) -> None:
        if names == self._names:
            return
        self._names = names
        for each in self._injected:
            self._variables.pop(each, None)
        self._injected = dict(self._given)
        for function in names.functions:
            self._place(function.name, function.doc)
        self._injected.update(names.values)
        for entry in names.texts:
            text = _Text(self, entry.id, entry.bytes, entry.key or entry.name)
            if entry.key is None:
                self._injected[entry.name] = text
            else:
                held = self._injected.setdefault(entry.name, {})
                assert isinstance(held, dict)
                held[entry.key] = text
        if names.answering:
            self._injected |= {
                "answer": self._answer,
                "FINAL": self._final,
                "FINAL_VAR": self._final_var,
                "SHOW_VARS": self._show_vars,
            }
        self._variables.update(self._injected)

    def _place(self, name: str, doc: str) -> None:
        group, dot, short = name.partition(".")
        if group == "outputs":
            self._injected["outputs"] = _Outputs(self)
        elif not dot:
            self._injected[name] = self._proxy(name, doc)
        else:
            held = self._injected.get(group)
            if not isinstance(held, types.SimpleNamespace):
                self._injected[group] = held = types.SimpleNamespace()
            setattr(held, short, self._proxy(name, doc))

    def _proxy(self, name: str, doc: str) -> Callable[..., object]:
        def function(*args: object, **kwargs: object) -> object:
            answer = self.call(name, args, kwargs)
            return self._batch(answer, name) if name in _BATCHED else answer

        function.__name__ = function.__qualname__ = name
        function.__doc__ = doc
        return function

    def _restore(self) -> list[str]:
        """Put injected names back that a program has replaced, and return them."""
        variables = self._variables
        lost = [name for name, each in self._injected.items() if variables.get(name) is not each]
        for name in lost:
            variables[name] = self._injected[name]
        return lost

    # -- host calls ------------------------------------------------------------------------------

    def call(self, name: str, args: object, kwargs: object) -> Any:  # noqa: ANN401
        """Ask the host, and return its answer: a value from JSON, a text, bytes or a `_Text`.

        Raise `HostError` or `SandboxViolation` as the host answers. For an argument that cannot
        cross to the host, raise `TypeError`, `UnicodeEncodeError` if it has half of a surrogate
        pair, or `RecursionError` if it is nested too deep. What the answering function raises, such
        as `_Stopped`, is raised as it is.
        """
        assert self._answering is not None
        request = msgspec.json.encode([name, args, kwargs], enc_hook=_schema_of)
        reply = self._answering(name, request)
        tag, body = reply[:1], reply[1:]
        if tag == b"0":
            return msgspec.json.decode(body)
        if tag == b"2":
            return body.decode("utf-8", "replace")
        if tag == b"3":
            return body
        found = msgspec.json.decode(body)
        if tag == b"4":
            return _Text(self, *found)
        if found.get("capability"):
            raise SandboxViolation(found["message"], found["capability"])
        raise HostError(found["message"], found["kind"])

    def _batch(self, reply: dict[str, Any], name: str) -> object:
        answers: list[object] = reply["answers"]
        for item, kind, message in reply["errors"]:
            answers[item] = HostError(message, kind)
        if reply.get("note"):
            self._write(2, f"{name}: {reply['note']}\n".encode())
        if name != "rlm_query":
            return answers
        if isinstance(answers[0], HostError):
            raise answers[0]
        return answers[0]

    # -- answers and output ----------------------------------------------------------------------

    def _final(self, value: object = None) -> None:
        """Finish with this value as the answer."""
        self._answer.update(content=value, ready=True)

    def _final_var(self, name: object) -> None:
        """Finish with the value of a variable, by its name. Raise `NameError` if there is none.

        Any other value than a text is the answer itself.
        """
        if isinstance(name, str) and name not in self._variables:
            raise NameError(f"FINAL_VAR: there is no variable {name!r}. {self._show_vars()}")
        self._final(self._variables[name] if isinstance(name, str) else name)

    def _show_vars(self) -> str:
        """Return one line with the variables of this session and their types."""
        taken = {*self._injected, *_ANSWER_NAMES}
        found = [
            f"{name}: {type(value).__name__}"
            for name, value in self._variables.items()
            if not name.startswith("_") and name not in taken
        ]
        return "Variables: " + (", ".join(found) if found else "none yet")

    def _print(
        self,
        *values: object,
        sep: str | None = " ",
        end: str | None = "\n",
        file: Any = None,  # noqa: ANN401 (as `print` takes it)
        flush: bool = False,
    ) -> None:
        text = (" " if sep is None else sep).join(map(str, values)) + ("\n" if end is None else end)
        if file is not None and file not in (sys.stdout, sys.stderr):
            file.write(text)
            return
        handle = 2 if file is not None and file is sys.stderr else 1
        self._write(handle, text.encode("utf-8", "backslashreplace"))

    # -- programs --------------------------------------------------------------------------------

    def _remember(self, name: str, source: str) -> str:
        """Keep the source for tracebacks, under a name that no earlier program has. Return it."""
        unique, number = name, 1
        while unique in self._seen:
            number += 1
            unique = f"{name}#{number}"
        self._seen.add(unique)
        linecache.cache[unique] = (len(source), None, source.splitlines(True), unique)
        return unique

    def _evaluate(
        self, source: str, name: str, report: ProgramReport, trace: Callable[..., Any] | None
    ) -> str | None:
        tree = ast.parse(source, name)
        body = tree.body
        last = body[-1] if body else None
        if isinstance(last, ast.Expr):
            value = ast.Assign([ast.Name(_VALUE, ast.Store())], last.value)
            body[-1] = ast.fix_missing_locations(ast.copy_location(value, last))
        code = compile(tree, name, "exec", flags=_FLAGS, dont_inherit=True)
        sys.settrace(trace)
        try:
            outcome = eval(code, self._variables)
            if inspect.iscoroutine(outcome):
                asyncio.run(outcome)
        finally:
            sys.settrace(None)
        named = _assigned_last(last)
        if self._names is not None and self._names.answering and named in self._variables:
            report.assigned = (named, repr(self._variables[named]))
        found = self._variables.get(_VALUE)
        return None if found is None else repr(found)

    def _fail(self, report: ProgramReport, error: BaseException, name: str) -> None:
        report.ok, report.exit = False, 1
        report.kind, report.message = type(error).__name__, str(error)
        if isinstance(error, SandboxViolation):
            report.capability = error.capability
        whole = traceback.TracebackException.from_exception(error)
        frames = [each for each in whole.stack if each.filename in self._seen]
        whole.stack[:] = frames
        lines = whole.format() if frames else whole.format_exception_only()
        report.traceback = "".join(lines)
        report.line = self._line_of(error)

    def _line_of(self, error: BaseException) -> str:
        """Return the line that failed with its values, as the guest tells them; "" for none."""
        found = [
            (frame, number)
            for frame, number in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename in self._seen
        ]
        if not found:
            return ""
        frame, number = found[-1]
        line = linecache.getline(frame.f_code.co_filename, number)
        return str(_guest_describe().describe_line(line, "", frame.f_locals, frame.f_globals))


@functools.cache
def _guest_describe() -> Any:  # noqa: ANN401 (a module that is no part of this package's imports)
    """Return the module of the guest that describes values, loaded beside it as it is."""
    path = Path(__file__).parents[1] / "guest/prelude/tallystick_guest/describe.py"
    spec = importlib.util.spec_from_file_location("tallystick_guest_describe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _assigned_last(last: ast.stmt | None) -> str:
    """Return the plain name that the last statement assigns to, by `=` or as `+=` does.

    Return "" for any other statement, several targets, and a target that is not a name.
    """
    target: ast.expr | None = None
    if isinstance(last, ast.Assign) and len(last.targets) == 1:
        target = last.targets[0]
    elif isinstance(last, ast.AugAssign):
        target = last.target
    return target.id if isinstance(target, ast.Name) else ""


def _as_text(content: object) -> str:
    try:
        return msgspec.json.encode(content).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(content)


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def _schema_of(value: object) -> object:
    """Return a type as the schema of its values, as the guest sends it.

    Raise `TypeError` for anything but `bool`, `int`, `float`, `str`, `NoneType`, `list`, `dict`, a
    generic of these, or a union of them.
    """
    if isinstance(value, types.GenericAlias):
        (first, *_) = value.__args__
        if value.__origin__ is list:
            return {"type": "array", "items": _schema_of(first)}
        return {"type": "object", "additionalProperties": _schema_of(value.__args__[1])}
    if isinstance(value, types.UnionType):
        return {"anyOf": [_schema_of(each) for each in value.__args__]}
    if isinstance(value, type) and value in (list, dict):
        return {"type": "array" if value is list else "object"}
    if isinstance(value, type) and value in _TYPES:
        return {"type": _TYPES[value]}
    raise TypeError(f"{type(value).__name__} cannot cross to the host; pass JSON values")


class _Text:
    """A text that the host holds."""

    def __init__(self, namespace: _Namespace, id: int, size: int, name: str) -> None:
        self._namespace, self._id = namespace, id
        self.bytes_length = size
        self._name = name

    def _call(self, function: str, *args: object) -> Any:  # noqa: ANN401
        return self._namespace.call(f"text.{function}", (self._id, *args), {})

    def __len__(self) -> int:
        length: int = self._call("length")
        return length

    def __getitem__(self, key: slice | int) -> str:
        start, stop, step = key.indices(len(self)) if isinstance(key, slice) else (key, key + 1, 1)
        part: str = self._call("slice", start, max(start, stop))
        return part[::step]

    def __contains__(self, needle: str) -> bool:
        return self.find(needle) >= 0

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def find(self, needle: str, start: int = 0) -> int:
        at: int = self._call("find", needle, start)
        return at

    def count(self, needle: str) -> int:
        found: int = self._call("count", needle)
        return found

    def search(self, pattern: str, *, limit: int = 100) -> list[tuple[object, ...]]:
        return [tuple(each) for each in self._call("search", pattern, 0, limit)]

    def grep(self, pattern: str, *, limit: int = 100) -> list[tuple[object, ...]]:
        return [tuple(each) for each in self._call("grep", pattern, limit)]

    def splitlines(self) -> list[str]:
        return self[:].splitlines()

    def __repr__(self) -> str:
        return f"<HostText {self._name!r}: {self.bytes_length:,} bytes on the host>"


class _Outputs:
    """The long outputs of earlier programs."""

    def __init__(self, namespace: _Namespace) -> None:
        self._namespace = namespace

    def __len__(self) -> int:
        count: int = self._namespace.call("outputs.count", (), {})
        return count

    def __getitem__(self, place: int) -> object:
        return self._namespace.call("outputs.get", (place % len(self),), {})


class _HostFailure(BaseException):
    """Carries an error of the host out of a program, which cannot catch it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class _Execution:
    """One program under way: its limits, its host calls, and how it is stopped."""

    def __init__(
        self, context: ExecutionContext, host: Host, output: ProgramOutput, name: str
    ) -> None:
        self.calls: list[CallRecord] = []
        self.replies: list[bytes] = []
        self.fuel = 0
        self.began = self._active_since = time.monotonic()
        self.task: asyncio.Task[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._host = host
        self._output = output
        self._name = name
        self._rerun = context.rerun
        self._deadline = self.began + context.deadline_ms / 1000
        self._active = 0.0
        self._cancelled = False
        self._stopped: _Stopped | None = None
        self._failed: _HostFailure | None = None
        self._arrived = threading.Event()

    def cancel(self) -> None:
        """Stop the program at its next instruction, or at once if it waits for the host."""
        self._cancelled = True
        self._arrived.set()

    @property
    def wall_ms(self) -> int:
        return round((self._active + time.monotonic() - self._active_since) * 1000)

    # -- called by the program's thread ----------------------------------------------------------

    def trace(self, frame: types.FrameType, event: str, argument: object) -> Any:  # noqa: ANN401
        """Count the instructions of the program itself, and check its limits after each.

        Return the function that does so for this frame, None for a frame of other code. Not the
        lines are counted: a loop on one line is one line, however long it runs.
        """
        if not frame.f_code.co_filename.startswith(self._name):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._on_step

    def _on_step(self, frame: object, event: str, argument: object) -> Any:  # noqa: ANN401
        if event == "opcode":
            self.fuel += FUEL_PER_STEP
            self._check()
        return self._on_step

    def write(self, handle: int, data: bytes) -> None:
        """Write what the program printed. Raise `_Stopped` beyond the limit; what fits is kept."""
        try:
            self._output.write(handle, data)
        except OutputOverflow as overflow:
            limit = self._context.limits.output_bytes
            raise self._stop(
                "output", f"output: {overflow.total:,} bytes printed, {limit:,} allowed"
            ) from None

    def answer(self, name: str, request: bytes) -> bytes:
        """Return the encoded reply to a host call, and record the call.

        A request or a reply over its limit is answered with an error reply. After the last recorded
        answer, the program continues live. Raise `_Stopped` if no host call is left, or a limit or
        a cancel ends the program. Raise `_HostFailure` with what the host raised, or with
        `ReplayDiverged` beyond the recorded fuel.
        """
        limits, index = self._context.limits, len(self.calls)
        if index >= limits.host_calls:
            raise self._stop("host_calls", f"host_calls: all {limits.host_calls:,} used")
        self._check()
        # The function is part of the fuel, so that two different calls do not look alike.
        fuel = self.fuel
        try:
            if len(request) > limits.request_bytes:
                most = f"at most {limits.request_bytes:,}"
                reply = error_reply(UsageError(f"a request of {len(request):,} bytes; {most}"))
                request = b"oversized:%d" % len(request)
            else:
                reply = self._serve(HostCall(index=index, name=name, request=request, fuel=fuel))
        except (_Stopped, _HostFailure):
            raise
        except BaseException as error:
            self._failed = _HostFailure(error)
            raise self._failed from error
        if len(reply) > limits.reply_bytes:
            most = f"at most {limits.reply_bytes:,}"
            reply = error_reply(UsageError(f"a reply of {len(reply):,} bytes; {most}"))
        self.replies.append(reply)
        self.calls.append(
            CallRecord(
                index=index,
                name=name,
                request_sha256=call_digest(request),
                request_bytes=len(request),
                reply_bytes=len(reply),
                fuel=fuel,
                ok=reply[0] != _ERROR_TAG,
            )
        )
        if self._rerun is not None and self._rerun.calls == len(self.calls):
            # From here on the program is live, and its times begin.
            self._rerun = None
            self.began = self._active_since = time.monotonic()
            self._active = 0.0
            self._deadline = self.began + self._context.deadline_ms / 1000
        return reply

    def _serve(self, call: HostCall) -> bytes:
        sys.settrace(None)
        self._active += time.monotonic() - self._active_since
        try:
            reply = self._host.serve(call)
            return reply if isinstance(reply, bytes) else self._wait(reply, call.name)
        finally:
            self._active_since = time.monotonic()
            sys.settrace(self.trace)

    def _wait(self, answer: Awaitable[bytes], name: str) -> bytes:
        arrived, outcome = self._arrived, list[bytes | BaseException]()
        arrived.clear()

        def put(result: bytes | BaseException) -> None:
            outcome.append(result)
            arrived.set()

        if isinstance(answer, Blocking):
            threading.Thread(target=lambda: put(_caught(answer)), daemon=True).start()
        else:
            self._loop.call_soon_threadsafe(self._begin, answer, put)
        if self._cancelled:
            arrived.set()
        seconds = self._deadline - time.monotonic()
        on_time = arrived.wait(threading.TIMEOUT_MAX if self._rerun else max(0.0, seconds))
        if self._cancelled or not on_time:
            self._loop.call_soon_threadsafe(lambda: self.task and self.task.cancel())
            if self._cancelled:
                raise self._stop("cancelled", f"cancelled while waiting for {name!r}")
            passed = f"{self._context.deadline_ms:,} ms passed"
            raise self._stop("deadline", f"deadline: {passed} while {name!r} had not answered")
        (found,) = outcome
        if isinstance(found, BaseException):
            raise found
        return found

    def _begin(
        self, answer: Awaitable[bytes], put: Callable[[bytes | BaseException], None]
    ) -> None:
        if self._stopped is not None and inspect.iscoroutine(answer):
            answer.close()
            return

        def over(done: asyncio.Task[bytes]) -> None:
            cancelled = _Stopped("cancelled", "the host function was cancelled")
            put(cancelled if done.cancelled() else done.exception() or done.result())

        self.task = task = asyncio.ensure_future(answer)
        task.add_done_callback(over)

    def _check(self) -> None:
        """Raise `_Stopped` or `_HostFailure` if the program was stopped, or is to be stopped now.

        While recorded calls are repeated, no time limit counts, and fuel beyond the recorded is a
        `ReplayDiverged` in a `_HostFailure`.
        """
        # Here a program can catch even these, so they are raised again at its next instruction.
        if self._failed is not None:
            raise self._failed
        if self._stopped is not None:
            raise self._stopped
        if self._cancelled:
            raise self._stop("cancelled", "cancelled")
        context, limit = self._context, self._context.limits.fuel
        most = limit if self._rerun is None else min(limit, self._rerun.fuel)
        if self.fuel > most and most < limit:
            raise self._diverged(most)
        if self.fuel > limit:
            raise self._stop("fuel", f"fuel: all {limit:,} units used")
        if self._rerun is not None:
            return
        now = time.monotonic()
        if now > self._deadline or not context.deadline_ms:
            passed = f"{context.deadline_ms:,} ms passed"
            raise self._stop("deadline", f"deadline: {passed} since the start")
        if self.wall_ms > context.timeout_ms or not context.timeout_ms:
            raise self._stop("wall", f"wall: the program was active for {context.timeout_ms:,} ms")

    def _diverged(self, most: int) -> _HostFailure:
        now = f"more than {most:,}"
        self._failed = _HostFailure(
            ReplayDiverged(index=len(self.calls), field="fuel", recorded=most, now=now)
        )
        return self._failed

    def _stop(self, stop: Stop, message: str) -> _Stopped:
        self._stopped = _Stopped(stop, message)
        return self._stopped


def _caught(work: Blocking) -> bytes | BaseException:
    try:
        return work()
    except BaseException as error:
        return error


class PlainSession:
    """One interpreter. It keeps its variables from program to program."""

    def __init__(self, sandbox: PlainSandbox, session_id: str) -> None:
        self._sandbox = sandbox
        self._session_id = session_id
        self._namespace: _Namespace | None = None
        self._log: list[_Done] = []
        self._execution: _Execution | None = None
        self._turn = asyncio.Lock()

    @property
    def session_id(self) -> str:
        return self._session_id

    async def execute(
        self, program: str | bytes, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult:
        """Run one program in a thread. Its own failure is a result; those of the host are raised.

        A program that is stopped leaves no trace, nor does one whose host fails. The programs
        before it are then run again, on the replies that they got, when the next one needs them.
        Raise `UnicodeDecodeError` for bytes that are not UTF-8.
        """
        source = program if isinstance(program, str) else program.decode()
        self._sandbox.programs.append(source)
        async with self._turn:
            output = self._output(context)
            execution = _Execution(context, host, output, context.program_name)
            self._execution = execution
            try:
                return await self._in_thread(
                    lambda: self._run(source, execution, context, host, output)
                )
            except BaseException:
                self._namespace = None
                output.discard()
                raise
            finally:
                self._execution = None
                if execution.task is not None and not execution.task.done():
                    execution.task.cancel()
                    await asyncio.wait({execution.task}, timeout=1.0)

    def cancel(self) -> None:
        """Stop the running program, if there is one."""
        if self._execution is not None:
            self._execution.cancel()

    async def image(self) -> Image:
        """Return the programs that ended by themselves so far, with their replies, as an image."""
        return Image(
            guest=self._sandbox.guest.image.sha256,
            engine=_ENGINE,
            memory_bytes=0,
            state={},
            session=_encode_log(self._log),
            indices=[],
            pages=[],
        )

    async def load(self, image: Image) -> None:
        """Replace the state by an image; its programs are run again at the next use.

        Raise `SnapshotMismatch` if another guest or engine made it.
        """
        if (image.guest, image.engine) != (self._sandbox.guest.image.sha256, _ENGINE):
            raise SnapshotMismatch(f"made by the guest {image.guest[:12]} with {image.engine}")
        self._log, self._namespace = _decode_log(image.session), None

    async def close(self) -> None:
        """Stop the running program, and wait for its end. Closing twice is harmless."""
        self.cancel()
        async with self._turn:
            self._namespace = None

    async def _in_thread(self, work: Callable[[], ExecutionResult]) -> ExecutionResult:
        """Run in a thread and wait for its end, also if this task is cancelled meanwhile.

        Return or raise what `work` does. A cancel stops the program, and is raised after its end.
        Not in the loop's own threads: those are few, and a program may wait for runs that it began.
        """
        begun: concurrent.futures.Future[ExecutionResult] = concurrent.futures.Future()

        def run() -> None:
            try:
                begun.set_result(work())
            except BaseException as error:
                begun.set_exception(error)

        thread = threading.Thread(target=run, name="tally-plain-program", daemon=True)
        thread.start()
        ended = asyncio.wrap_future(begun)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.cancel()
            while not ended.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({ended})
            # Its outcome is not wanted any more.
            ended.exception()
            raise

    def _run(
        self,
        source: str,
        execution: _Execution,
        context: ExecutionContext,
        host: Host,
        output: ProgramOutput,
    ) -> ExecutionResult:
        namespace = self._live()
        said, stopped = None, None
        names = host.names
        try:
            said = namespace.run(
                source,
                context.program_name,
                names,
                answering=execution.answer,
                write=execution.write,
                trace=execution.trace,
            )
        except _Stopped as error:
            stopped = error
            self._namespace = None
        except _HostFailure as failure:
            raise failure.error from None
        if stopped is None:
            kept = msgspec.structs.replace(names)
            self._log.append(_Done(source, context.program_name, kept, execution.replies))
        return _result_of(said, stopped, execution, output, context)

    def _live(self) -> _Namespace:
        """Return the namespace; if it was lost, run the programs again on their replies."""
        if self._namespace is None:
            namespace = _Namespace(self._sandbox.names)
            for done in self._log:
                replies = iter(done.replies)
                namespace.run(
                    done.source,
                    done.name,
                    done.names,
                    answering=lambda name, request, replies=replies: next(replies),  # type: ignore[misc]
                    write=lambda handle, data: None,
                )
            self._namespace = namespace
        return self._namespace

    def _output(self, context: ExecutionContext) -> ProgramOutput:
        folder, rerun = self._sandbox.output_directory, context.rerun
        stem = functools.cache(lambda: f"{self._session_id}-{new_id()}")
        lost = ("", "") if rerun is None else rerun.lost

        def stream(suffix: str, keep: bool, lost: str) -> OutputStream:
            return OutputStream(
                inline_max=context.max_output_bytes,
                place=None if folder is None else lambda: folder / f"{stem()}.{suffix}",
                keep=keep,
                whole=bytearray() if rerun is not None and rerun.calls is None else None,
                lost=lost or None,
            )

        return ProgramOutput(
            stdout=stream("stdout", context.capture_stdout, lost[0]),
            stderr=stream("stderr", context.capture_stderr, lost[1]),
            bytes_max=context.limits.output_bytes,
        )


def _result_of(
    said: ProgramReport | None,
    stopped: _Stopped | None,
    execution: _Execution,
    output: ProgramOutput,
    context: ExecutionContext,
) -> ExecutionResult:
    """Return the result of a program that has ended, and close its streams.

    `said` is its report, None if it was stopped; then `stopped` says by what.
    """
    stop: Stop = "finished" if stopped is None else stopped.stop
    error, exit_code = None, 0
    if stopped is not None:
        error, exit_code = ProgramError(kind=KINDS[stop], message=stopped.message), NOT_RUN
    elif said is not None and not said.ok:
        error = ProgramError(
            kind=said.kind, message=said.message, traceback=said.traceback, line=said.line
        )
        # An exit code has eight bits, as that of a process; that of a failure is never 0.
        exit_code = said.exit & 0xFF or 1
    kept, streams = context.outputs_before, (output.stdout, output.stderr)
    stdout = output.stdout.text(kept)
    # The files of both streams are in `outputs`, that of stdout first.
    if kept is not None and output.stdout.kept:
        kept += 1
    stderr = output.stderr.text(kept)
    path = next((each.path for each in streams if each.path is not None), None)
    metadata: dict[str, Any] = {"backend": "wasm"}
    metadata |= metadata_of(said, finished=stop == "finished")
    if output.stderr.path is not None:
        metadata["stderr_file_path"] = str(output.stderr.path)
    if context.rerun is not None:
        metadata["stdout_whole"] = output.stdout.whole
        metadata["stderr_whole"] = output.stderr.whole
    return ExecutionResult(
        stdout=stdout,
        stderr=stderr,
        value=said.value if said is not None and stop == "finished" else None,
        exit_code=exit_code,
        timed_out=stop in ("wall", "deadline"),
        output_truncated=any(each.truncated for each in streams) or stop == "output",
        output_file_path=None if path is None else str(path),
        error=error,
        stop=stop,
        charge=ProgramCharge(
            # At least 1: a session takes a program without fuel for one that changed nothing.
            fuel=min(max(execution.fuel, 1), context.limits.fuel),
            wall_ms=execution.wall_ms,
            host_calls=len(execution.calls),
            output_bytes=output.bytes_total,
        ),
        calls=tuple(execution.calls),
        execution_time_ms=round((time.monotonic() - execution.began) * 1000),
        metadata=metadata,
    )


class PlainSandbox:
    """Open interpreters whose programs are plain Python. It may stand for any guest.

    `names` are variables and functions of the test that every program finds. `guest` is the digest
    under which runs record it. `programs` has the source of every program that was run. Without
    `output_directory`, output over the inline limit is lost.
    """

    name = "plain"

    def __init__(
        self,
        *,
        names: Mapping[str, object] | None = None,
        guest: str = "0" * 64,
        output_directory: Path | None = None,
    ) -> None:
        self.names = dict(names or {})
        self.guest: Any = types.SimpleNamespace(image=types.SimpleNamespace(sha256=guest))
        self.output_directory = output_directory
        self.programs: list[str] = []

    async def open(
        self, *, session_id: str, seed: int = 0, clock_ns: int = FIXED_CLOCK_NS
    ) -> PlainSession:
        """Open an interpreter. `seed` and `clock_ns` are not used."""
        return PlainSession(self, session_id)

    async def self_test(self) -> Sequence[tuple[str, str | None]]:
        """Return nothing, because there is nothing to test."""
        return []

    async def close(self) -> None:
        """Do nothing."""


_session: type[SandboxInterpreter] = PlainSession
_sandbox: type[Sandbox] = PlainSandbox
