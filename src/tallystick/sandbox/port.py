"""The sandbox port: what runs a program, under which limits, and what came of it.

A backend knows nothing of ledgers, models or budgets. A program's own failure is a result; the
backend raises only when it is itself broken or was asked for what it cannot do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import msgspec

from tallystick.core.errors import InvalidLimit
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

# The name that leaves the choice of a backend to us.
AUTO = "auto"

# How the lines begin that say that the compilation of a sandbox starts, and that it has ended. It
# takes five to twenty seconds; whoever shows the lines may show in between that something happens.
COMPILING = "compiling the sandbox"
COMPILED = "the sandbox was compiled in"

# How a program ended. `finished` is its own end, with or without an error; the others came from
# outside, and the namespace is then the one before the program.
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


def _check_limit(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidLimit(field=field, given=value, why="a limit is a whole number")
    if value < 0:
        raise InvalidLimit(field=field, given=value, why="a limit is not negative")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one program may use. Exactly at a limit is allowed; zero means none at all."""

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
    """How far a program is run again from its record.

    `fuel` is what the program had used there: past it, the program has diverged. `calls` is how
    many recorded answers it gets before it continues live; None if its end is on the record. No
    time limit counts until then: what a program does again does not depend on the clock.
    `lost` is why the rest of stdout and of stderr was not kept then, "" if it was or was not long.
    """

    fuel: int
    calls: int | None = None
    lost: tuple[str, str] = ("", "")


class ExecutionContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where and how one program runs.

    `timeout_ms` is the time the program itself may be active; waiting for the host does not count.
    `deadline_ms` counts everything. `max_output_bytes` is what is kept inline of each stream; the
    rest goes to a file, up to `limits.output_bytes` for both streams together. `outputs_before` is
    how many such files of earlier programs are kept in `outputs`; None if there is no such name.
    `rerun` is given for a program that is run again from its record, by a backend that can do so.
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

    def with_env(self, more: Mapping[str, str]) -> ExecutionContext:
        """Return the same context with `more` merged into its environment; later wins."""
        return msgspec.structs.replace(self, env_vars={**self.env_vars, **more})


class ProgramError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a program did not end well, in terms its author can use."""

    kind: str
    message: str
    traceback: str = ""


class ProgramCharge(msgspec.Struct, frozen=True, kw_only=True):
    """What a program did use."""

    fuel: int = 0
    wall_ms: int = 0
    memory_bytes: int = 0
    host_calls: int = 0
    output_bytes: int = 0


class CallRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One host call as it happened: enough to compare it, not to repeat it.

    Not tracked by the collector, like the other records made for each call: thousands of them
    would have it look at the whole process again and again.
    """

    index: int
    name: str
    request_sha256: str
    request_bytes: int
    reply_bytes: int
    fuel: int
    ok: bool


class ExecutionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a program."""

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
        """True for exit code 0 without a timeout."""
        return self.exit_code == 0 and not self.timed_out

    @classmethod
    def success(cls, stdout: str) -> ExecutionResult:
        return cls(stdout=stdout)

    @classmethod
    def failure(cls, stderr: str, exit_code: int) -> ExecutionResult:
        return cls(stderr=stderr, exit_code=exit_code)

    @classmethod
    def timeout(cls, partial_stdout: str, partial_stderr: str) -> ExecutionResult:
        return cls(
            stdout=partial_stdout, stderr=partial_stderr, exit_code=-1, timed_out=True, stop="wall"
        )


class HostName(msgspec.Struct, frozen=True, kw_only=True):
    """A host function as the program sees it."""

    name: str
    doc: str = ""


class HostTextName(msgspec.Struct, frozen=True, kw_only=True):
    """A text as the program sees it: under a name, or under a key of a dictionary of that name."""

    name: str
    key: str | None = None
    id: int
    bytes: int


class HostNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names a program finds in its namespace.

    `values` are JSON values, copied into the guest. `texts` stay on the host; several with one name
    and a key each are a dictionary of texts. With `answering` a program also has `answer`, `FINAL`,
    `FINAL_VAR` and `SHOW_VARS`; what it answers is in the result's metadata. `views` are made in
    the guest from the values when a program names them; `files` are values that can be opened:
    file name, variable, and key if the variable is a dictionary. `key` is the digest by which two
    sets of names are compared.
    """

    key: str = ""
    functions: tuple[HostName, ...] = ()
    texts: tuple[HostTextName, ...] = ()
    values: Mapping[str, object] = {}
    answering: bool = False
    views: tuple[ViewRef, ...] = ()
    files: tuple[tuple[str, str, str | None], ...] = ()


class HostCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A program asking the host for something.

    `index` counts from zero in each program. `fuel` is what the program had used by then: together
    with the request it is what a replay is compared by.
    """

    index: int
    name: str
    request: bytes
    fuel: int


class Host(Protocol):
    """Answers host calls with encoded replies (`tallystick.sandbox.host` makes them).

    `serve` is called in the program's own thread. Bytes are the answer; an awaitable is awaited on
    the event loop while the program waits without holding a slot.
    """

    @property
    def names(self) -> HostNames: ...

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]: ...


class SandboxSession(Protocol):
    """A namespace that lives from program to program. One program at a time."""

    @property
    def session_id(self) -> str: ...

    async def execute(
        self, program: str | bytes, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult: ...

    def cancel(self) -> None: ...

    async def close(self) -> None: ...


class Sandbox(Protocol):
    """A backend: opens sessions and says what it can do."""

    @property
    def name(self) -> str: ...

    async def open(self, *, session_id: str, seed: int = 0) -> SandboxSession: ...

    async def self_test(self) -> Sequence[tuple[str, str | None]]:
        """Try each capability here and now: (capability, None if proven or why not)."""
        ...

    async def close(self) -> None: ...


class Identity(NamedTuple):
    """What a run records of where its programs run: the backend, its guest, its engine."""

    backend: str
    guest: str
    engine: str


class Keeper(Protocol):
    """Keeps for a run what its programs leave. What cannot be kept or read is a `BackendError`."""

    def keep(self, source: bytes, /, *, media_type: str, label: str) -> AttachmentRef:
        """Keep bytes, which the next records of the run refer to."""
        ...

    def read(self, ref: AttachmentRef, /) -> bytes: ...

    def keep_snapshot(self, pieces: Iterable[bytes], /) -> AttachmentRef | None:
        """Keep an interpreter in place of the last one; None where the run keeps none."""
        ...

    def read_snapshot(
        self, ref: AttachmentRef, /
    ) -> AbstractContextManager[Iterable[bytes], None]: ...


class Programs(Protocol):
    """Where the programs of one run are run, whichever backend that is.

    With `repeatable`, a program is run again on its record and does the same; else each is an
    effect, and is served whole wherever it is recorded.
    """

    @property
    def identity(self) -> Identity: ...

    @property
    def repeatable(self) -> bool: ...

    @property
    def session_id(self) -> str: ...

    async def restore(self, history: History) -> int:
        """Stand after the last program that can be gone on from. Return its number, 0 for none."""
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
        """Run a program. `attempted` hears of what it tries to reach, before it is let through."""
        ...

    async def keep(
        self, finished: ProgramFinished, *, fuel_saved: int
    ) -> SnapshotTaken | FilesKept | None:
        """Keep what a program left, so that another process can go on from it; None if nothing is.

        What can be had by running programs again is kept once that would take `fuel_saved`.
        """
        ...

    async def image(self) -> SessionImage | None:
        """Return what the next run of a session goes on from; None if nothing has changed."""
        ...

    async def close(self) -> None: ...


# What an interpreter says of a program that it ran, as both sandboxes read it.
#
# It is the program's word: types are checked, lengths are cut, and nothing more is believed.


# What a program that was ended from outside is told to have failed by.
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
# The exit code of what did not come to its end.
NOT_RUN = -1
_NAMES_MAX = 100
_NAME_CHARS_MAX = 200
_ASSIGNED_CHARS_MAX = 4_000


class Said(msgspec.Struct, kw_only=True):
    """The result of a program."""

    ok: bool
    value: str | None = None
    kind: str = ""
    message: str = ""
    traceback: str = ""
    exit: int = 0
    restored: list[str] = []
    kept: list[str] = []
    assigned: tuple[str, str] | None = None
    capability: str = ""
    answer: str | None = None


class _LongSaid(Said, kw_only=True):
    """The same of a long result. Its lists are read only if they are short."""

    restored: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]
    kept: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]


_LISTS_BYTES_MAX = 65_536
_LONG_BYTES_MIN = 1024 * 1024
_decode = msgspec.json.Decoder(Said).decode
_decode_long = msgspec.json.Decoder(_LongSaid).decode
_decode_names = msgspec.json.Decoder(list[str]).decode


def _read(result: bytes) -> Said:
    """Decode a result. In a long one, lists are bounded: an item takes many times its bytes."""
    if len(result) < _LONG_BYTES_MIN:
        return _decode(result)
    said = _decode_long(result)
    lists = {
        name: _decode_names(raw) if len(raw) <= _LISTS_BYTES_MAX else []
        for name, raw in (("restored", said.restored), ("kept", said.kept))
    }
    whole = {name: getattr(said, name) for name in Said.__struct_fields__}
    return Said(**whole | lists)


def read_said(result: bytes | None, *, bytes_max: int | None = None) -> Said | None:
    """Read the interpreter's result; None if it is none.

    A program can forge it. So its texts are cut to what the interpreter itself would send, and with
    `bytes_max` to what is left of the output limit; an error keeps its first kilobyte in any case.
    """
    try:
        said = _read(result or b"")
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    room = _VALUE_BYTES_MAX if bytes_max is None else min(bytes_max, _VALUE_BYTES_MAX)
    told = min(max(room, _ERROR_BYTES_LEAST), _ERROR_BYTES_MAX)
    said.kind = _cut(said.kind, _ERROR_BYTES_LEAST)
    said.capability = _cut(said.capability, _ERROR_BYTES_LEAST)
    said.message, said.traceback = _cut(said.message, told), _cut(said.traceback, told)
    if said.value is not None:
        said.value = _cut(said.value, room)
    if said.assigned is not None:
        name, value = said.assigned
        said.assigned = (_cut(name, room), _cut(value, room))
    return said


def _cut(text: str, bytes_max: int) -> str:
    """Return as much of a text as fits into so many bytes of UTF-8, marked where it is cut."""
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


def metadata_of(said: Said | None, *, finished: bool) -> dict[str, object]:
    """What goes with a result beside its output; an answer only of what came to its own end."""
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
