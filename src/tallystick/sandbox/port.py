"""The port between runs and sandboxes: its protocols, and the values that cross it.

A program goes in with its limits; an `ExecutionResult` comes out. A backend knows nothing of
ledgers, models or budgets. A program's own failure is a result. The backend raises only if it is
itself broken, or if it was asked for something that it cannot do.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import msgspec

from tallystick.core.errors import InvalidLimit, UsageError
from tallystick.core.history import History
from tallystick.core.records import (
    AttachmentRef,
    FilesKept,
    NetworkAttempted,
    ProgramFinished,
    RunProgram,
    SnapshotTaken,
    ViewRef,
)
from tallystick.sandbox.snapshot import SessionImage

# The backend name that lets tallystick choose the backend.
AUTO = "auto"

# The first words of the two lines that report a compilation: one when it starts, one when it has
# ended. It takes five to twenty seconds, so a client may show progress between the two lines.
COMPILING = "compiling the sandbox"
COMPILED = "the sandbox was compiled in"

# How a program ended. `finished` is its own end, with or without an error. The others stopped it
# from outside; the variables are then those from before the program.
Stop = Literal[
    "finished",
    "fuel",
    "memory",
    "wall",
    "deadline",
    "output",
    "host_calls",
    "cancelled",
    "trap",
]


# The variables in which a program finds the token of the bridge, and where its own runs count from.
SESSION_TOKEN = "TALLYSTICK_BRIDGE_TOKEN"
DEPTH = "TALLYSTICK_DEPTH"
_TOKEN = re.compile(r"[!-~]{16,256}")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_STEM_CHARS_MAX = 64


def _check_limit(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidLimit(field=field, given=value, why="a limit is a whole number")
    if value < 0:
        raise InvalidLimit(field=field, given=value, why="a limit is not negative")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one program. Exactly at a limit is allowed; zero means none at all.

    Raises `InvalidLimit` for a limit that is not a whole number, or is negative.
    """

    fuel: int = 200_000_000_000
    memory_bytes: int = 256 * 1024 * 1024
    host_calls: int = 10_000
    output_bytes: int = 16 * 1024 * 1024
    request_bytes: int = 1024 * 1024
    reply_bytes: int = 64 * 1024 * 1024
    source_bytes: int = 1024 * 1024

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            _check_limit(field, getattr(self, field))


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded part of a program that is run again.

    `fuel` is what the program had used at the end of that part: if it uses more, it has diverged.
    `calls` is the number of recorded answers it gets before it continues live; None if its end is
    recorded too. Until then no time limit counts: a repeated program does not depend on the clock.
    `lost` says, for stdout and stderr, why output over the inline limit was not kept; "" if it was
    kept, or if there was none.
    """

    fuel: int
    calls: int | None = None
    lost: tuple[str, str] = ("", "")


class ExecutionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The surroundings and the limits of one program.

    `session_id` is the session that the program runs for: files with long output are named after
    it. `timeout_ms` limits the time that the program itself is active; waiting for the host does
    not count. `deadline_ms` counts everything. `max_output_bytes` of each stream are kept inline. A
    longer stream goes to a file, up to `limits.output_bytes` for both streams together.
    `outputs_before` is the number of such files that the program finds in `outputs`; None if it has
    no such name. `rerun` is set for a program that is run again from its record; only some backends
    can do that.

    `session_token` is a token of the bridge (`Bridge.issue`), which the program finds in the
    environment. It opens the bridge of one session. The id of a session is refused as a token: it
    is no secret. `recursion_depth` is where a run that the program starts, in a process of its own,
    begins to count: the number of runs above that one.

    Raises `InvalidLimit` for a limit that is not a whole number, or is negative, and `UsageError`
    for a token that is none.
    """

    session_id: str
    timeout_ms: int = 30_000
    deadline_ms: int = 300_000
    working_dir: str | None = None
    env_vars: Mapping[str, str] = {}
    capture_stdout: bool = True
    capture_stderr: bool = True
    max_output_bytes: int = 65_536
    cancellation_token: str | None = None
    session_token: str | None = None
    recursion_depth: int = 0
    outputs_before: int | None = None
    program_name: str = "<program>"
    limits: Limits = Limits()
    rerun: Rerun | None = None

    def __post_init__(self) -> None:
        for field in ("timeout_ms", "deadline_ms", "max_output_bytes", "recursion_depth"):
            _check_limit(field, getattr(self, field))
        token = self.session_token
        if token is not None and (not _TOKEN.fullmatch(token) or token == self.session_id):
            raise UsageError(
                "session_token: this is no token of a bridge; issue one for the session "
                "(Bridge.issue)"
            )

    @property
    def file_stem(self) -> str:
        """The beginning of the names of files with output: the session's id, fit for a file."""
        return _NOT_IN_A_NAME.sub("_", self.session_id)[:_STEM_CHARS_MAX]

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the program: its variables, the token and the depth."""
        found = dict(self.env_vars)
        if self.session_token is not None:
            found[SESSION_TOKEN] = self.session_token
        if self.recursion_depth:
            found[DEPTH] = str(self.recursion_depth)
        return found

    def with_env(self, more: Mapping[str, str]) -> ExecutionContext:
        """Return the same context with `more` merged into its environment; later wins."""
        return msgspec.structs.replace(self, env_vars={**self.env_vars, **more})


class ProgramError(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a program failed or was stopped, in terms that its author can use.

    `line` is the line that failed, with a line for each value in it; empty if none is known.
    """

    kind: str
    message: str
    traceback: str = ""
    line: str = ""


class ProgramCharge(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts that a program used.

    The process sandbox counts no `fuel`, and no `memory_bytes` of commands of a shell: both are 0.
    """

    fuel: int = 0
    wall_ms: int = 0
    memory_bytes: int = 0
    host_calls: int = 0
    output_bytes: int = 0


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One host call as it happened: enough to compare it, not to repeat it.

    `gc=False`, like the other records made for each call: thousands of tracked objects would make
    the garbage collector scan the whole process again and again.
    """

    index: int
    name: str
    request_sha256: str
    request_bytes: int
    reply_bytes: int
    fuel: int
    ok: bool


class ExecutionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a program: its output, its error or value, and what it used."""

    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    exit_code: int = 0
    timed_out: bool = False
    output_truncated: bool = False
    output_file_path: str | None = None
    error: ProgramError | None = None
    stop: Stop = "finished"
    charge: ProgramCharge = ProgramCharge()
    calls: tuple[CallRecord, ...] = ()
    execution_time_ms: int = 0
    metadata: Mapping[str, object] = {}

    @property
    def succeeded(self) -> bool:
        """True if the exit code is 0 and the program was not stopped by a time limit."""
        return self.exit_code == 0 and not self.timed_out

    @classmethod
    def success(cls, stdout: str) -> ExecutionResult:
        """Return the result of a program that ended well and printed `stdout`."""
        return cls(stdout=stdout)

    @classmethod
    def failure(cls, stderr: str, exit_code: int) -> ExecutionResult:
        """Return the result of a program that ended by itself with this exit code."""
        return cls(stderr=stderr, exit_code=exit_code)

    @classmethod
    def timeout(cls, partial_stdout: str, partial_stderr: str) -> ExecutionResult:
        """Return the result of a program that was stopped by its time limit, with exit code -1."""
        return cls(
            stdout=partial_stdout, stderr=partial_stderr, exit_code=-1, timed_out=True, stop="wall"
        )


class HostName(msgspec.Struct, frozen=True, kw_only=True):
    """A host function as the program sees it."""

    name: str
    doc: str = ""


class HostTextName(msgspec.Struct, frozen=True, kw_only=True):
    """A text as the program sees it: under a name, or as an entry `key` of a dictionary `name`."""

    name: str
    key: str | None = None
    id: int
    bytes: int


class HostNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names a program finds in its namespace.

    `values` are JSON values, copied into the guest. `texts` stay on the host; several with the same
    name and a key each are a dictionary of texts. With `answering`, a program also has `answer`,
    `FINAL`, `FINAL_VAR` and `SHOW_VARS`; its answer is in the result's metadata. `views` are
    computed in the guest from the values, when a program first uses them. `files` are values that
    a program can open: file name, variable, and key if the variable is a dictionary. `key` is the
    digest by which two sets of names are compared.
    """

    key: str = ""
    functions: tuple[HostName, ...] = ()
    texts: tuple[HostTextName, ...] = ()
    values: Mapping[str, object] = {}
    answering: bool = False
    views: tuple[ViewRef, ...] = ()
    files: tuple[tuple[str, str, str | None], ...] = ()


class HostCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One call from a program to a function of the host.

    `index` counts from zero in each program. `fuel` is what the program had used at the call. A
    replay compares the request and the fuel.
    """

    index: int
    name: str
    request: bytes
    fuel: int


class Host(Protocol):
    """Answer host calls with encoded replies (`tallystick.sandbox.host` encodes them).

    `names` is read before each program. `serve` is called for each call, in the program's own
    thread. If it returns bytes, they are the answer. An awaitable is awaited on the event loop,
    while the program waits without holding a slot. What either raises ends the program, and is
    raised by `SandboxInterpreter.execute`.
    """

    @property
    def names(self) -> HostNames: ...

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        """Return the encoded reply to a call, or an awaitable of it."""
        ...


class SandboxInterpreter(Protocol):
    """An interpreter that keeps its variables from program to program, and runs one at a time."""

    @property
    def session_id(self) -> str: ...

    async def execute(
        self, program: str | bytes, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult:
        """Run one program, and return its result, whether it succeeded or not.

        Raise only if the sandbox itself fails, or was asked for something that it cannot do; and
        what `host` raises.
        """
        ...

    def cancel(self) -> None:
        """Stop the running program, if there is one."""
        ...

    async def close(self) -> None:
        """Free the interpreter. Closing twice is harmless."""
        ...


class Sandbox(Protocol):
    """A backend that opens interpreters and tests its own capabilities."""

    @property
    def name(self) -> str: ...

    async def open(self, *, session_id: str, seed: int = 0) -> SandboxInterpreter:
        """Open a new interpreter, whose random numbers come from `seed`."""
        ...

    async def self_test(self) -> Sequence[tuple[str, str | None]]:
        """Try each capability on this machine. Return (capability, None or why it failed)."""
        ...

    async def close(self) -> None:
        """Free what all interpreters of the sandbox share."""
        ...


class Identity(NamedTuple):
    """The backend of a run as the run records it: its name, its guest and its engine."""

    backend: str
    guest: str
    engine: str


class Keeper(Protocol):
    """Store what the programs of a run leave. Each method raises `BackendError` if it cannot."""

    def keep(self, source: bytes, /, *, media_type: str, label: str) -> AttachmentRef:
        """Store bytes as an attachment, for the next records of the run to refer to."""
        ...

    def read(self, ref: AttachmentRef, /) -> bytes:
        """Return the bytes of an attachment of the run."""
        ...

    def keep_snapshot(self, pieces: Iterable[bytes], /) -> AttachmentRef | None:
        """Store an interpreter in place of the last one; return None if the run keeps none."""
        ...

    def read_snapshot(self, ref: AttachmentRef, /) -> AbstractContextManager[Iterable[bytes], None]:
        """Open a stored interpreter, to be read piece by piece. The context closes it."""
        ...


class Programs(Protocol):
    """Run the programs of one run, in any backend.

    If `repeatable` is True, a recorded program is run again on its recorded answers and does the
    same. Otherwise each program is an effect: a recorded one is served from its record, whole.
    `identity` and `session_id` are recorded with the run.
    """

    @property
    def identity(self) -> Identity: ...

    @property
    def repeatable(self) -> bool: ...

    @property
    def session_id(self) -> str: ...

    async def restore(self, history: History) -> int:
        """Load the state after the last program whose state was kept and can be loaded.

        Return the number (the intent) of that program, 0 if there is none. A backend that is not
        repeatable was opened in its last state: it loads nothing, and returns the last recorded
        program.
        """
        ...

    async def execute(
        self,
        program: RunProgram,
        source: str,
        *,
        context: ExecutionContext,
        host: Host,
        attempted: Callable[[NetworkAttempted], None],
    ) -> ExecutionResult:
        """Run a program. Call `attempted` for each connection it tries, before it is allowed.

        The program's own failure is a result. Raise `SandboxError` if the sandbox itself fails, and
        what `host` or `attempted` raises.
        """
        ...

    async def keep(
        self, finished: ProgramFinished, *, fuel_saved: int
    ) -> SnapshotTaken | FilesKept | None:
        """Store what a program left, for a resume by another process; None if nothing is stored.

        A repeatable backend stores its interpreter only if repeating the programs since the last
        snapshot would take at least `fuel_saved`. Raise `BackendError` if that fails; another
        backend tells it in the record.
        """
        ...

    async def image(self) -> SessionImage | None:
        """Return the state that the next run of a session starts from; None if unchanged.

        Call it after the last program: it may run code of its own. Raise `BackendError` if it
        cannot be read.
        """
        ...

    async def close(self) -> None:
        """Free the interpreter or the box. Closing twice is harmless."""
        ...


# The report of an interpreter on a program that it ran, as both sandboxes read it.
#
# A program can forge this report, so it is not trusted: types are checked and lengths are cut.


# The error kind of a program that was stopped from outside.
KINDS: dict[Stop, str] = {
    "fuel": "FuelExhausted",
    "memory": "MemoryExhausted",
    "wall": "WallExceeded",
    "deadline": "DeadlineExceeded",
    "output": "OutputExceeded",
    "host_calls": "HostCallsExhausted",
    "cancelled": "Cancelled",
    "trap": "InterpreterTrap",
}
# The exit code of a program that did not reach its own end.
NOT_RUN = -1
_NAMES_MAX = 100
_NAME_CHARS_MAX = 200
_ASSIGNED_CHARS_MAX = 4_000


class ProgramReport(msgspec.Struct, kw_only=True):
    """The report of an interpreter on one program. A program can forge it."""

    ok: bool
    value: str | None = None
    kind: str = ""
    message: str = ""
    traceback: str = ""
    line: str = ""
    exit: int = 0
    restored: list[str] = []
    kept: list[str] = []
    assigned: tuple[str, str] | None = None
    capability: str = ""
    answer: str | None = None


class _LongReport(ProgramReport, kw_only=True):
    """The same report, if it is long. Its lists stay encoded until their length is known."""

    restored: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    kept: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


_LISTS_BYTES_MAX = 65_536
_LONG_BYTES_MIN = 1024 * 1024
_decode = msgspec.json.Decoder(ProgramReport).decode
_decode_long = msgspec.json.Decoder(_LongReport).decode
_decode_names = msgspec.json.Decoder(list[str]).decode


def _read(result: bytes) -> ProgramReport:
    """Decode a report. In a long one, a list of over 65,536 bytes is dropped.

    A decoded item takes many times its encoded bytes, so a forged list could fill the host's
    memory.
    """
    if len(result) < _LONG_BYTES_MIN:
        return _decode(result)
    said = _decode_long(result)
    lists = {
        name: _decode_names(raw) if len(raw) <= _LISTS_BYTES_MAX else []
        for name, raw in (("restored", said.restored), ("kept", said.kept))
    }
    whole = {name: getattr(said, name) for name in ProgramReport.__struct_fields__}
    return ProgramReport(**whole | lists)


def read_report(result: bytes | None, *, bytes_max: int | None = None) -> ProgramReport | None:
    """Read the report of the interpreter; return None if the bytes are no such report.

    A program can forge it, so its texts are cut to the length that the interpreter itself would
    send: about 256 KiB of a value, and 64 KiB of an error. With `bytes_max`, the rest of the output
    limit, they are cut to that as well; an error always keeps its first kilobyte. The answer is not
    cut.
    """
    try:
        said = _read(result or b"")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    room = _VALUE_BYTES_MAX if bytes_max is None else min(bytes_max, _VALUE_BYTES_MAX)
    error_room = min(max(room, _ERROR_BYTES_LEAST), _ERROR_BYTES_MAX)
    said.kind = _cut_text(said.kind, _ERROR_BYTES_LEAST)
    said.capability = _cut_text(said.capability, _ERROR_BYTES_LEAST)
    said.message = _cut_text(said.message, error_room)
    said.traceback = _cut_text(said.traceback, error_room)
    said.line = _cut_text(said.line, _ERROR_BYTES_LEAST)
    if said.value is not None:
        said.value = _cut_text(said.value, room)
    if said.assigned is not None:
        name, value = said.assigned
        said.assigned = (_cut_text(name, room), _cut_text(value, room))
    return said


def _cut_text(text: str, bytes_max: int) -> str:
    """Cut a text to at most `bytes_max` bytes of UTF-8; "..." marks the place."""
    if 4 * len(text) <= bytes_max:
        return text
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= bytes_max:
        return text
    kept = raw[: max(0, bytes_max - len(_MARK))].decode("utf-8", "ignore")
    return (kept + _MARK)[: max(0, bytes_max)]


_MARK = "..."
# The interpreter cuts a value at 65,536 characters and the texts of an error at 16,384.
_VALUE_BYTES_MAX = 4 * 65_536 + 100
_ERROR_BYTES_LEAST, _ERROR_BYTES_MAX = 1_024, 4 * 16_384 + 100


def metadata_of(said: ProgramReport | None, *, finished: bool) -> dict[str, object]:
    """Return the metadata of a result from the interpreter's report; empty without a report.

    Lists have at most 100 names of 200 characters, the assigned variable 4,000 characters of each.
    The assigned variable and the answer count only if the program reached its own end, `finished`.
    """
    metadata: dict[str, object] = {}
    if said is None:
        return metadata
    if said.restored:
        metadata["names_restored"] = [name[:_NAME_CHARS_MAX] for name in said.restored[:_NAMES_MAX]]
    if said.kept:
        metadata["names_kept"] = [name[:_NAME_CHARS_MAX] for name in said.kept[:_NAMES_MAX]]
    if said.assigned is not None and finished:
        metadata["assigned"] = tuple(part[:_ASSIGNED_CHARS_MAX] for part in said.assigned)
    if said.capability:
        metadata["capability"] = said.capability
    if said.answer is not None and finished:
        metadata["answer"] = said.answer
    return metadata
