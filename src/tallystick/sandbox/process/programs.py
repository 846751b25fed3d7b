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
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import (
    BackendError,
    InvalidName,
    MaxSnapshotsReached,
    SandboxError,
    SnapshotNotFound,
    StoreError,
    TallystickError,
    UsageError,
)
from tallystick.core.history import History
from tallystick.core.json_text import digest
from tallystick.core.machine.commands import Snapshot
from tallystick.core.machine.reply import parse_reply
from tallystick.core.records import (
    AttachmentRef,
    FilesKept,
    ModelReplied,
    NetworkAttempted,
    ProgramFinished,
    Record,
    RunProgram,
    RunStarted,
)
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    Host,
    Identity,
    Keeper,
    ProgramError,
    Programs,
)
from tallystick.sandbox.process.files import (
    WORK,
    FilesState,
    Found,
    StatesKept,
    fitting,
    known_line,
    lay_out,
    list_files,
    packed,
    state_of,
)
from tallystick.sandbox.snapshot import (
    SESSION_NAMES_CHARS_MAX,
    SNAPSHOT_TYPE,
    SessionImage,
    check_snapshot_name,
)
from tallystick.storage.private_folder import PrivateFolder

if TYPE_CHECKING:
    from tallystick.sandbox.process.proxy import Attempt, NetworkGrant
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.process.session import ProcessSession, Saved


# The session that the native programs of one run have: what they leave is kept, and put back.


OnAttempt = Callable[[NetworkAttempted], None]
# What a run of native programs records of its sandbox.
GUEST = "process"
_PYTHON = f"cpython-{platform.python_version()}"
_FOLDER = "native"
# Of the state inside the box that a program can be undone by.
_BEFORE = "tally.before"
# For all of what is looked at after a program, however many files it says it has.
_KEEPING_SECONDS = 60.0
# Longer than a tick of the slowest usual kernel (100 a second), twice.
_CLOCK_STEP_NS = 20_000_000


class ProcessPrograms:
    """Runs the programs of one run. `begins_after` is the program whose state it begins with.

    `marks` are the snapshots that programs of earlier processes took, by the program that did.
    """

    def __init__(
        self,
        sandbox: ProcessSandbox,
        *,
        session_id: str,
        seed: int,
        files: Keeper,
        network: NetworkGrant | None = None,
        states: StatesKept | None = None,
        begins_after: int = 0,
        marks: Mapping[str, int] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._session_id = session_id
        self._seed = seed
        self._files = files
        self._network = network
        self._states = StatesKept() if states is None else states
        self._state = self._states.after(begins_after)
        self._given = self._state
        self._state = self._begun = msgspec.structs.replace(self._state, variables={}, imported={})
        self._known = self._states.known
        self._marks = {} if marks is None else dict(marks)
        self._box: ProcessSession | None = None
        self._folder: PrivateFolder | None = None
        self._has_before = False
        # The files whose contents are known, by what the box knows them by, with digest and length.
        self._seen: dict[bytes, tuple[Found, tuple[str, int]]] = {}
        self._program = 0
        self._on_attempt: OnAttempt = _nobody

    @property
    def identity(self) -> Identity:
        return identity_of(self._sandbox)

    @property
    def repeatable(self) -> bool:
        """False: what a program did to files and the network cannot be done again."""
        return False

    @property
    def session_id(self) -> str:
        return self._session_id

    async def open(self) -> None:
        """Make the box, with the files that it begins with, and the variables of its session."""
        await self._opened(self._given)

    async def image(self) -> SessionImage | None:
        """Return all files as they were kept last, with the variables; None if nothing changed."""
        if self._program == 0 and self._state == self._begun:
            return None
        saved = await self._saved()
        raw = await asyncio.to_thread(self._archive, saved)
        return SessionImage(image=raw, names=_names_of(saved))

    async def _saved(self) -> Saved:
        """Return the variables that the interpreter has now, and those that cannot be kept."""
        folder = await asyncio.to_thread(PrivateFolder, _FOLDER)
        try:
            return await self._open_box().save(folder.path / "saved")
        finally:
            await asyncio.to_thread(folder.remove)

    def _archive(self, saved: Saved) -> bytes:
        """Pack all of the state that was kept last, by itself, with variables."""
        state = msgspec.structs.replace(self._state, variables=saved.kept, imported=saved.imported)
        return packed(state, self._states.contents(self._state))

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
            await list_files(self._open_box())
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
                lambda: self._files.keep(
                    raw, media_type=SNAPSHOT_TYPE, label=f"files after program {finished.intent}"
                )
            )
        except BackendError as error:
            return self._not_kept(finished, str(error))
        self._states.add(finished.intent, lambda: self._files.read(ref), raw)
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
        """Return the state now, and the contents of what has changed since the last look."""
        box = self._open_box()
        looked_ns = time.time_ns()
        listing = await list_files(box, (file for file, _ in self._seen.values()))
        kept, out = fitting(listing)
        contents: dict[str, bytes] = {}
        digests: dict[bytes, tuple[str, int]] = {}
        seen = {}
        for each in kept:
            if each.kind != "file":
                continue
            content = listing.contents.get(each.path)
            line = known_line(each)
            if content is not None:
                digests[each.path] = digest(content), len(content)
                contents[digests[each.path][0]] = content
            elif line in self._seen:
                digests[each.path] = self._seen[line][1]
            # The kernel stamps changes with a clock that stands still for some milliseconds: a file
            # that changed a moment ago may change again and look the same.
            if each.path in digests and each.ctime_ns < looked_ns - _CLOCK_STEP_NS:
                seen[line] = each, digests[each.path]
        self._seen = seen
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
            self._folder = await asyncio.to_thread(PrivateFolder, _FOLDER)
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


_: type[Programs] = ProcessPrograms


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


def _names_of(saved: Saved) -> str:
    kept = ", ".join(sorted({*saved.kept, *saved.imported}))[:SESSION_NAMES_CHARS_MAX]
    refused = ", ".join(sorted(saved.refused))[:SESSION_NAMES_CHARS_MAX]
    return f"{kept or 'no variables'}; not kept: {refused}" if refused else kept


# The programs of a run that begins, and of one that is resumed from what is recorded.


def identity_of(sandbox: ProcessSandbox) -> Identity:
    """Return what a run records of its sandbox: which Python, and which layers it may lack."""
    without = ", ".join(sorted(sandbox.settings.accept_without))
    engine = f"{_PYTHON} without {without}" if without else _PYTHON
    return Identity(backend=sandbox.name, guest=GUEST, engine=engine)


async def open_process(
    sandbox: ProcessSandbox,
    started: RunStarted,
    history: History,
    files: Keeper,
    *,
    network: NetworkGrant | None = None,
) -> ProcessPrograms:
    """Open a box with the files of the run's session, or of the last program recorded."""
    states = StatesKept()
    image = None if started.session is None else started.session.image
    kept = [(intent, each.archive) for intent, each in sorted(history.files.items())]
    for intent, ref in [(0, image), *kept]:
        if ref is not None:
            states.add(intent, _loader(files, ref))
    if history.programs:
        states.forget_variables()
    programs = ProcessPrograms(
        sandbox,
        session_id=started.session_id,
        seed=started.seed,
        files=files,
        network=network,
        states=states,
        begins_after=max(history.programs, default=0),
        marks=_marks(history.records),
    )
    try:
        await programs.open()
    except BaseException:
        await programs.close()
        raise
    return programs


def _loader(files: Keeper, ref: AttachmentRef) -> Callable[[], bytes]:
    def load() -> bytes:
        try:
            return files.read(ref)
        except BackendError as error:
            raise StoreError(f"the files of the run cannot be read: {error}") from error

    return load


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
