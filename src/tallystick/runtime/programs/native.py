"""Native programs of a run: their session begun or resumed, what they leave kept and put back.

Rule 1: before each program its session's state is kept inside the box. A program that is ended from
outside is undone by that: files, variables, the shell's state.
Rule 2: after each program, what it changed of the files and of the shell is kept outside, with the
end of the program, so that another process can go on from there. Python's variables cannot be.
Rule 3: a box that is lost is replaced by one with the files that were kept last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.errors import (
    InvalidName,
    MaxSnapshotsReached,
    NotSupported,
    SandboxError,
    SnapshotNotFound,
    StoreError,
    TallystickError,
    UsageError,
)
from tallystick.core.history import History
from tallystick.core.json_text import digest
from tallystick.core.machine.commands import Snapshot
from tallystick.core.machine.native import RETRIED
from tallystick.core.machine.prompt import ABANDONED
from tallystick.core.machine.reply import parse_reply
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    DOUBTED,
    AttachmentRef,
    ChildBegun,
    ChildEnded,
    FilesKept,
    HostAnswered,
    ModelReplied,
    NetworkAttempted,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    Record,
    RunProgram,
    RunStarted,
)
from tallystick.core.resume_errors import LeftInDoubt
from tallystick.ledger.port import Ledger
from tallystick.model.price_table import CallTerms
from tallystick.runtime.calls.decisions import Decision, Decisions, settled_doubt
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.journal.world import CallLog, cut_off
from tallystick.runtime.programs.backends import Backends, network_of
from tallystick.runtime.programs.files import (
    WORK,
    FilesState,
    Found,
    StatesKept,
    contents_of,
    fitting,
    lay_out,
    listed,
    packed,
    state_of,
)
from tallystick.runtime.runs.history import spent_so_far
from tallystick.runtime.spend.door import ModelDoor
from tallystick.sandbox.host import HostTable, error_reply
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host, ProgramError, Programs
from tallystick.sandbox.snapshot import SNAPSHOT_TYPE, check_snapshot_name
from tallystick.storage import system
from tallystick.storage.lock import FileLock, proven_free

if TYPE_CHECKING:
    from tallystick.sandbox.process.proxy import Attempt, NetworkGrant
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.process.session import ProcessSession, Saved
    from tallystick.sessions.runs import SessionLease


# Directories that a box begins with: made private, and gone with their process, however it ends.
#
# Each holds a lock while somebody uses it. A process that was killed cannot remove its own; the
# next one that makes a directory removes those whose lock nobody holds.


_PREFIX = "tallystick-native-"
_LOCK = "lock"


class NativeFolder:
    """One directory. Removing it twice is harmless."""

    def __init__(self) -> None:
        system.require_posix("a native program")
        _remove_left(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = FileLock(self.path / _LOCK)
        self._lock.take(wait_seconds=None)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _remove_left(parent: Path) -> None:
    """Remove what processes left that are gone. One without a lock is just being made."""
    for each in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), proven_free(each / _LOCK) as left:
            if left and os.lstat(each / _LOCK).st_uid == system.user_id():
                shutil.rmtree(each, ignore_errors=True)


# The session that the native programs of one run have: what they leave is kept, and put back.


OnAttempt = Callable[[NetworkAttempted], None]
# Of the state inside the box that a program can be undone by.
_BEFORE = "tally.before"
# For all of what is looked at after a program, however many files it says it has.
_KEEPING_SECONDS = 60.0


class NativeSession:
    """Runs the programs of one run. `begins_after` is the program whose state it begins with.

    `marks` are the snapshots that programs of earlier processes took, by the program that did.
    """

    def __init__(
        self,
        sandbox: ProcessSandbox,
        *,
        session_id: str,
        seed: int,
        run_attachments: RunAttachments,
        network: NetworkGrant | None = None,
        states: StatesKept | None = None,
        begins_after: int = 0,
        marks: Mapping[str, int] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._session_id = session_id
        self._seed = seed
        self._run_attachments = run_attachments
        self._network = network
        self._states = StatesKept() if states is None else states
        self._state = self._states.after(begins_after)
        self._given = self._state
        self._state = self._begun = msgspec.structs.replace(self._state, variables={}, imported={})
        self._known = self._states.known
        self._marks = {} if marks is None else dict(marks)
        self._box: ProcessSession | None = None
        self._folder: NativeFolder | None = None
        self._has_before = False
        self._seen: dict[bytes, tuple[Found, tuple[str, int]]] = {}
        self._program = 0
        self._on_attempt: OnAttempt = _nobody

    @property
    def repeatable(self) -> bool:
        """False: what a program did to files and the network cannot be done again."""
        return False

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def state(self) -> FilesState:
        """The files and the shell as they were kept last."""
        return self._state

    @property
    def changed(self) -> bool:
        """Whether a program has run, or files are other than those it began with."""
        return self._program > 0 or self._state != self._begun

    async def saved(self) -> Saved:
        """The variables that the interpreter has now, and those that cannot be kept."""
        folder = await asyncio.to_thread(NativeFolder)
        try:
            return await self._open_box().save(folder.path / "saved")
        finally:
            await asyncio.to_thread(folder.remove)

    def archive(self, saved: Saved | None = None) -> bytes:
        """All of the state that was kept last, by itself, with variables."""
        state = self._state
        if saved is not None:
            state = msgspec.structs.replace(state, variables=saved.kept, imported=saved.imported)
        return packed(state, self._states.contents(state))

    async def open(self) -> None:
        """Make the box, with the files that it begins with, and the variables of its session."""
        await self._opened(self._given)

    async def close(self) -> None:
        """End everything in the box. Closing twice is harmless."""
        box, self._box = self._box, None
        folder, self._folder = self._folder, None
        if box is not None:
            await box.close()
        if folder is not None:
            await asyncio.to_thread(folder.remove)

    # -- programs ------------------------------------------------------------------------------

    async def restore(self, history: History) -> int:
        """Return the last program: all are served, and the box began with the files of the last."""
        return max(history.programs, default=0)

    async def execute(
        self,
        program: RunProgram,
        source: str,
        *,
        context: ExecutionContext,
        host: Host,
        attempted: OnAttempt,
    ) -> ExecutionResult:
        """Run a program of any kind. `attempted` hears of what it tries to reach."""
        self._program, self._on_attempt = program.intent, attempted
        if program.kind == "snapshot":
            return await self._told(self._snapshot(source.strip()))
        if program.kind == "rollback":
            return await self._told(self._rollback(source.strip()))
        await self._keep_before()
        box = self._open_box()
        try:
            if program.kind == "bash":
                result = await box.command(source, context=context, host=host)
            else:
                result = await box.execute(source, context=context, host=host)
        except UsageError as error:
            # It was not begun: there is something in it that nobody can run.
            return ExecutionResult(
                exit_code=2, error=ProgramError(kind="UsageError", message=str(error))
            )
        if result.stop != "finished":
            return _said_too(result, await self._put_back())
        if result.metadata.get("namespace_lost"):
            lost = "[an earlier program had ended the interpreter: its variables were lost]"
            result = msgspec.structs.replace(result, stderr=f"{result.stderr}{lost}\n")
        return result

    async def _keep_before(self) -> None:
        """Keep the state as it is, inside. Where that is refused, there is nothing to go back to.

        A process in the background that has a file open for writing is enough for that.
        """
        box = self._open_box()
        if self._has_before:
            await box.delete_snapshot(_BEFORE)
            self._has_before = False
        with contextlib.suppress(UsageError, SandboxError, MaxSnapshotsReached):
            await box.snapshot(_BEFORE)
            self._has_before = True

    async def _put_back(self) -> str:
        """Undo what a program did that was ended from outside. Says what it came to."""
        if self._has_before:
            try:
                await self._open_box().restore(_BEFORE)
            except SandboxError:
                pass
            else:
                return "its files were put back"
        elif await self._alive():
            return "its files stay as they are"
        await self._opened(self._state)
        return "the machine was started again: variables are gone, files are as they were kept last"

    async def _alive(self) -> bool:
        try:
            await listed(self._open_box())
        except SandboxError:
            return False
        return True

    # -- states by name ------------------------------------------------------------------------

    async def _told(self, work: Awaitable[str]) -> ExecutionResult:
        try:
            return ExecutionResult.success(f"{await work}\n")
        except (
            UsageError,
            InvalidName,
            MaxSnapshotsReached,
            SnapshotNotFound,
            SandboxError,
        ) as error:
            failure = ProgramError(kind=type(error).__name__, message=str(error))
            return ExecutionResult(exit_code=1, error=failure)

    async def _snapshot(self, name: str) -> str:
        check_snapshot_name(name)
        if name == _BEFORE:
            raise InvalidName(what="snapshot name", given=name, why="it is the run's own")
        box = self._open_box()
        if any(each.name == name for each in box.snapshots()):
            await box.delete_snapshot(name)
        await box.snapshot(name)
        self._marks.pop(name, None)
        return f"kept as {name!r}: files and variables"

    async def _rollback(self, name: str) -> str:
        box = self._open_box()
        if name != _BEFORE and any(each.name == name for each in box.snapshots()):
            await box.restore(name)
            return f"back at {name!r}: files and variables are as they were"
        if name not in self._marks:
            known = [each.name for each in box.snapshots() if each.name != _BEFORE]
            there = ", ".join(sorted({*known, *self._marks})) or "none"
            raise SnapshotNotFound(name=f"{name} (there are: {there})")
        # It was taken by an earlier process: its files are there, its variables are not.
        await self._opened(self._states.after(self._marks[name]))
        return f"back at {name!r}: files are as they were, variables are gone"

    # -- keeping -------------------------------------------------------------------------------

    async def keep(self, finished: ProgramFinished, *, fuel_saved: int) -> FilesKept | None:
        """Keep what a program left of files and of the shell; None if it is as it was.

        `fuel_saved` is for what can be run again, and nothing here can.
        """
        try:
            async with asyncio.timeout(_KEEPING_SECONDS):
                found = await self._found()
        except (SandboxError, TimeoutError) as error:
            return self._not_kept(finished, str(error) or "it took too long")
        state, contents = found
        if state == self._state:
            return None
        fresh = {sha256: raw for sha256, raw in contents.items() if sha256 not in self._known}
        try:
            raw = packed(state, fresh)
            ref = await asyncio.to_thread(
                lambda: self._run_attachments.keep(
                    raw, media_type=SNAPSHOT_TYPE, label=f"files after program {finished.intent}"
                )
            )
        except (AttachmentError, StoreError) as error:
            return self._not_kept(finished, str(error))
        self._states.add(finished.intent, lambda: self._run_attachments.read(ref), raw)
        self._state, self._known = state, self._known | set(fresh)
        return FilesKept(
            intent=finished.intent,
            turn=finished.turn,
            archive=ref,
            left_out=state.left_out,
            left_out_of=state.left_out_of,
        )

    def _not_kept(self, finished: ProgramFinished, why: str) -> FilesKept:
        return FilesKept(intent=finished.intent, turn=finished.turn, archive=None, problem=why)

    async def _found(self) -> tuple[FilesState, dict[str, bytes]]:
        """The state now, and the contents of what has changed since it was looked at last."""
        box = self._open_box()
        kept, out = fitting(await listed(box))
        files = [each for each in kept if each.kind == "file"]
        changed = [each for each in files if self._seen.get(each.path, (None,))[0] != each]
        read = await contents_of(box, changed)
        contents = {digest(raw): raw for raw in read.values()}
        seen = {}
        for each in files:
            if each.path in read:
                seen[each.path] = each, (digest(read[each.path]), len(read[each.path]))
            elif each.path in self._seen and self._seen[each.path][0] == each:
                seen[each.path] = self._seen[each.path]
        self._seen = seen
        digests = {path: known for path, (_, known) in seen.items()}
        shell = box.shell
        state = state_of(kept, out, digests, where=shell.where, exported=shell.exported)
        return state, contents

    # -- the box -------------------------------------------------------------------------------

    def _open_box(self) -> ProcessSession:
        assert self._box is not None, "the session is open"
        return self._box

    async def _opened(self, state: FilesState) -> None:
        """Make a box with the files of a state, and put the shell where it stood."""
        await self.close()
        files = saved = None
        if state.entries or state.variables or state.imported:
            self._folder = await asyncio.to_thread(NativeFolder)
            contents = await asyncio.to_thread(self._states.contents, state)
            files = self._folder.path / "files"
            try:
                await asyncio.to_thread(lay_out, state, contents, files)
            except (OSError, OverflowError, ValueError) as error:
                raise StoreError(f"kept files: they cannot be laid out: {error}") from error
        if self._folder is not None and (state.variables or state.imported):
            saved = self._folder.path / "saved"
            await asyncio.to_thread(_lay_variables, state, saved)
        self._box = await self._sandbox.open(
            session_id=self._session_id,
            seed=self._seed,
            files=files,
            network=self._network,
            record=self._attempted,
            saved=saved,
        )
        self._has_before, self._seen = False, {}
        await self._shell_to(state)

    async def _shell_to(self, state: FilesState) -> None:
        where = os.fsdecode(state.where) if state.where is not None else WORK
        exported = [(os.fsdecode(name), os.fsdecode(value)) for name, value in state.exported]
        lines = [f"export {name}={_quoted(value)}" for name, value in exported if _plain(name)]
        if where != WORK:
            # It may have been outside of what is kept.
            lines.append(f"cd -- {_quoted(where)} 2>/dev/null || cd {WORK}")
        if lines:
            context = ExecutionContext(session_id=self._session_id)
            await self._open_box().command("\n".join(lines), context=context, host=HostTable())

    def _attempted(self, attempt: Attempt) -> None:
        self._on_attempt(
            NetworkAttempted(
                program=self._program,
                host=attempt.host,
                port=attempt.port,
                method=attempt.method,
                outcome=attempt.outcome,
                why=attempt.why,
                address=attempt.address,
            )
        )


_: type[Programs] = NativeSession


def _lay_variables(state: FilesState, folder: Path) -> None:
    """What a box takes variables from. Its files are there already."""
    import tarfile

    from tallystick.sandbox.process.session import Saved

    folder.mkdir()
    tarfile.open(folder / "files.tar", "w").close()
    saved = Saved(kept=state.variables, imported=state.imported)
    (folder / "session.json").write_bytes(msgspec.json.encode(saved))


def _quoted(text: str) -> str:
    """A text for a shell, byte by byte: it may be none."""
    return "$'" + "".join(f"\\x{each:02x}" for each in os.fsencode(text)) + "'"


def _plain(name: str) -> bool:
    """Whether a shell can be given a variable of this name."""
    return name.isascii() and name.isidentifier()


def _said_too(result: ExecutionResult, what: str) -> ExecutionResult:
    """A result whose failure says what became of the files."""
    error = result.error or ProgramError(kind="Stopped", message=result.stop)
    told = msgspec.structs.replace(error, message=f"{error.message}; {what}")
    return msgspec.structs.replace(result, error=told)


def _nobody(attempt: NetworkAttempted) -> None:
    raise TallystickError("nobody writes down what is reached for")


# Native programs for runs: a session that begins, and one that goes on from what is recorded.


# What a run of native programs records of its sandbox.
GUEST = "process"
_PYTHON = f"cpython-{platform.python_version()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeBackend:
    """The sandbox that native programs of a run have, and where their bridges are."""

    sandbox: ProcessSandbox
    bridges: Path | None = None

    @property
    def engine(self) -> str:
        """What is recorded of it: which Python, and which layers it may do without."""
        without = ", ".join(sorted(self.sandbox.settings.accept_without))
        return f"{_PYTHON} without {without}" if without else _PYTHON

    async def begin(
        self, started: RunStarted, run_attachments: RunAttachments, records: Sequence[Record] = ()
    ) -> NativeSession:
        """A session for a run: with the files of its session, or of the last program recorded."""
        states = StatesKept()
        image = None if started.session is None else started.session.image
        for intent, ref in [(0, image), *((each.intent, each.archive) for each in kept(records))]:
            if ref is not None:
                states.add(intent, _loader(run_attachments, ref))
        programs = [each.intent for each in records if isinstance(each, RunProgram)]
        if programs:
            states.forget_variables()
        session = NativeSession(
            self.sandbox,
            session_id=started.session_id,
            seed=started.seed,
            run_attachments=run_attachments,
            network=network_of(started.grants),
            states=states,
            begins_after=max(programs, default=0),
            marks=_marks(records),
        )
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        return session


async def native_for(backends: Backends | None, lease: SessionLease | None) -> NativeBackend | None:
    """What runs the programs of a run that begins; None for the WASM sandbox.

    A run in a session has the sandbox of that session.
    """
    if backends is None:
        return None
    name = lease.backend if lease is not None else await backends.chosen()
    if lease is not None and backends.explicit and await backends.chosen() != name:
        raise NotSupported(
            backend=await backends.chosen(), operation=f"a session of the {name} sandbox"
        )
    return await _native(backends, name)


async def native_again(backends: Backends | None, started: RunStarted) -> NativeBackend | None:
    """What runs the programs of a run that is gone on with; None for the WASM sandbox."""
    return None if backends is None else await _native(backends, started.backend)


async def _native(backends: Backends, name: str) -> NativeBackend | None:
    if name == "wasm":
        return None
    if name != GUEST:
        raise NotSupported(backend=name, operation="a run in a sandbox that is not known here")
    await backends.ensure(name)
    return NativeBackend(sandbox=backends.process(), bridges=backends.bridges_of_process())


def _loader(run_attachments: RunAttachments, ref: AttachmentRef) -> Callable[[], bytes]:
    def load() -> bytes:
        try:
            return run_attachments.read(ref)
        except AttachmentError as error:
            raise StoreError(f"the files of the run cannot be read: {error}") from error

    return load


def kept(records: Sequence[Record]) -> list[FilesKept]:
    return [each for each in records if isinstance(each, FilesKept)]


def files_missing(records: Sequence[Record]) -> tuple[str, ...]:
    """The files that whoever goes on with these records does not have, by name."""
    found = kept(records)
    if not found:
        return ()
    last = found[-1]
    if last.archive is None:
        return (f"all that was changed since ({last.problem})",)
    return last.left_out


def _marks(records: Sequence[Record]) -> dict[str, int]:
    """The snapshots that programs took, by name: each as the program that did."""
    ended = {each.intent: each for each in records if isinstance(each, ProgramFinished)}
    marks: dict[str, int] = {}
    commands: tuple[object, ...] = ()
    for record in records:
        if isinstance(record, ModelReplied):
            commands = parse_reply(record.text, cut=record.cut).commands
        elif isinstance(record, RunProgram) and record.kind == "snapshot":
            command = commands[record.part] if record.part < len(commands) else None
            finished = ended.get(record.intent)
            if isinstance(command, Snapshot) and finished is not None and not finished.failure:
                marks[command.name.strip()] = record.intent
    return marks


# A native program that was cut off: what it had under way is ended, and it with that.
#
# It cannot be run again on its record. So its calls that nobody answered are settled, as far as
# they may have been paid, and it has an end that says what was decided: it is begun once more, as
# another program, or it is given up. Its files are those from before it in either case.


_RETRIED = "the process that ran it ended; it is begun once more, with the files from before it"
_ABANDONED = (
    "The program was left in the middle: the process that ran it ended, and how far it came is not "
    "known. The files, the shell's directory and its exported variables are as they were before it."
)
_LEFT = "its program was cut off"


class CutOff:
    """Ends native programs that were cut off, as was decided."""

    def __init__(
        self,
        history: History,
        decisions: Decisions,
        *,
        model_door: ModelDoor,
        terms_of: Callable[[str], CallTerms],
        ledger: Ledger,
    ) -> None:
        self._history = history
        self._decisions = decisions
        self._model_door = model_door
        self._terms_of = terms_of
        self._ledger = ledger

    def is_open(self, intent: RunProgram) -> bool:
        """Whether a program was begun, natively, and has no end."""
        known, ended = self._history.programs, self._history.finished
        return intent.effect and intent.intent in known and intent.intent not in ended

    def ended(self, intent: RunProgram, asked: CallLog) -> ProgramFinished:
        """End a program whose recorded calls are noted by now."""
        ended = {
            (each.intent, each.item, each.attempt)
            for each in self._history.inside(intent.intent)
            if not isinstance(each, QueryAsked | ChildBegun)
        }
        for each in self._history.inside(intent.intent):
            if (each.intent, each.item, each.attempt) in ended:
                continue
            if isinstance(each, QueryAsked):
                asked.queries.now(self._query(each))
            elif isinstance(each, ChildBegun):
                asked.queries.now(self._child(each))
        for call in self._history.unanswered.get(intent.intent, ()):
            asked.answered(
                HostAnswered(
                    intent=call.intent,
                    program=call.program,
                    index=call.index,
                    name=call.name,
                    request_sha256=call.request_sha256,
                    fuel=0,
                    reply=error_reply(LeftInDoubt(f"{call.name}: {_LEFT}")),
                    ok=False,
                )
            )
        calls = len(self._history.answers.get(intent.intent, ()))
        again = self._decisions.effects[intent.intent] is not Decision.ABANDON
        stop, why = (RETRIED, _RETRIED) if again else (ABANDONED, _ABANDONED)
        return cut_off(intent, stop, why, host_calls=calls)

    def _query(self, asked: QueryAsked) -> QueryFailed:
        found = self._decisions.paid[asked.intent, asked.item]
        settled, failure = settled_doubt(
            self._model_door, self._terms_of(asked.model), asked.reserved, found
        )
        return QueryFailed(
            intent=asked.intent,
            item=asked.item,
            attempt=asked.attempt,
            reason=DOUBTED,
            message=failure or _LEFT,
            settled=settled,
            kind="terminal",
            billed=found is not Decision.AGAIN,
        )

    def _child(self, begun: ChildBegun) -> ChildEnded:
        row = self._ledger.row(begun.run)
        ended = ChildEnded(
            intent=begun.intent,
            item=begun.item,
            run=begun.run,
            stop="cancelled",
            detail=_LEFT,
            answer="",
            partial=False,
            charge=spent_so_far(self._ledger, begun.run),
            count=0 if row is None else row.head.count,
            hash="" if row is None else row.head.hash,
            attempt=begun.attempt,
        )
        self._model_door.recalled("", charge_of(ended))
        return ended
