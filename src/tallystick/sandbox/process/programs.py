"""Run the native programs of a run: open or resume their session, keep and restore its state.

Rule 1: before each program, the state of the session is saved inside the box. If the program is
stopped from outside, that state is restored: files, variables, and the state of the shell.
Rule 2: after each program, its changes of files and of the shell are stored outside, with the end
of the program. So another process can resume from there. Python's variables are not stored.
Rule 3: a box that is lost is replaced by one with the files that were stored last.
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
    KeptStates,
    ListedEntry,
    known_line,
    list_files,
    pack_state,
    select_entries,
    state_of,
    write_files,
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
    from tallystick.sandbox.process.session import ProcessInterpreter, Saved


# The session of the native programs of one run.


OnAttempt = Callable[[NetworkAttempted], None]
# The name of the guest that a run of native programs records.
GUEST = "process"
_PYTHON = f"cpython-{platform.python_version()}"
_FOLDER = "native"
# The name of the snapshot inside the box that undoes a program.
_BEFORE = "tally.before"
# The time limit for reading the files after a program; a program decides how many there are.
_KEEPING_SECONDS = 60.0
# Two ticks of the slowest usual kernel, which has 100 a second.
_CLOCK_STEP_NS = 20_000_000


class ProcessPrograms:
    """Run the native programs of one run in one box.

    The box starts with the state in `states` after the program `begins_after`. `marks` gives, for
    each snapshot that a program took in an earlier process, its name and the intent of the program.
    """

    def __init__(
        self,
        sandbox: ProcessSandbox,
        *,
        session_id: str,
        seed: int,
        files: Keeper,
        network: NetworkGrant | None = None,
        states: KeptStates | None = None,
        begins_after: int = 0,
        marks: Mapping[str, int] | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._session_id = session_id
        self._seed = seed
        self._files = files
        self._network = network
        self._states = KeptStates() if states is None else states
        self._state = self._states.after(begins_after)
        self._given = self._state
        self._state = self._begun = msgspec.structs.replace(self._state, variables={}, imported={})
        self._known = self._states.known
        self._marks = {} if marks is None else dict(marks)
        self._box: ProcessInterpreter | None = None
        self._folder: PrivateFolder | None = None
        self._has_before = False
        # The files whose content is known, by their `known_line`, each with digest and length.
        self._seen: dict[bytes, tuple[ListedEntry, tuple[str, int]]] = {}
        self._program = 0
        self._on_attempt: OnAttempt = _refuse_attempt

    @property
    def identity(self) -> Identity:
        return identity_of(self._sandbox)

    @property
    def repeatable(self) -> bool:
        """False: the effects of a program on files and network cannot be repeated."""
        return False

    @property
    def session_id(self) -> str:
        return self._session_id

    async def open(self) -> None:
        """Open the box, with its first files and the Python variables of its session.

        A variable that cannot be loaded is left out. Raise `StoreError` if the files cannot be
        restored, and what `ProcessSandbox.open` raises.
        """
        await self._open_with(self._given)

    async def image(self) -> SessionImage | None:
        """Return all files as stored last, with the current variables; None if nothing changed.

        That is if no program ran and the state is the first one. Raise `SandboxError` or
        `StoreError` if they cannot be read.
        """
        if self._program == 0 and self._state == self._begun:
            return None
        saved = await self._save_variables()
        raw = await asyncio.to_thread(self._archive, saved)
        return SessionImage(image=raw, names=_names_of(saved))

    async def _save_variables(self) -> Saved:
        """Return the current variables of the interpreter, and those that cannot be kept.

        The session can save itself only to a directory, so one is made for that, and removed.
        """
        folder = await asyncio.to_thread(PrivateFolder, _FOLDER)
        try:
            return await self._open_box().save(folder.path / "saved")
        finally:
            await asyncio.to_thread(folder.remove)

    def _archive(self, saved: Saved) -> bytes:
        """Encode the state that was stored last, with all its contents and these variables."""
        state = msgspec.structs.replace(self._state, variables=saved.kept, imported=saved.imported)
        return pack_state(state, self._states.contents(self._state))

    async def close(self) -> None:
        """End every process in the box, and remove its files. Closing twice is harmless."""
        box, self._box = self._box, None
        folder, self._folder = self._folder, None
        if box is not None:
            await box.close()
        if folder is not None:
            await asyncio.to_thread(folder.remove)

    # -- programs ------------------------------------------------------------------------------

    async def restore(self, history: History) -> int:
        """Return the intent of the last recorded program, 0 if there is none.

        Nothing is loaded here: recorded programs are served from their records, and the box was
        opened with the files after the last of them.
        """
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
        """Run a program: Python, bash, or one that takes or restores a snapshot.

        `attempted` is called for each connection that it tries. If the program is stopped from
        outside, its changes are undone as far as possible, and the error says what was. A program
        that cannot be started, as a command with a NUL, is a result too. So is a snapshot that
        cannot be taken or restored. Otherwise, raise `SandboxError` if the sandbox fails. Raise
        what `host` raises, and what `open` raises if the box is replaced.
        """
        self._program, self._on_attempt = program.intent, attempted
        if program.kind == "snapshot":
            return await self._command_result(self._snapshot(source.strip()))
        if program.kind == "rollback":
            return await self._command_result(self._rollback(source.strip()))
        await self._keep_before()
        box = self._open_box()
        try:
            if program.kind == "bash":
                result = await box.command(source, context=context, host=host)
            else:
                result = await box.execute(source, context=context, host=host)
        except UsageError as error:
            # The program was not started, because of what it contains.
            return ExecutionResult(
                exit_code=2, error=ProgramError(kind="UsageError", message=str(error))
            )
        if result.stop != "finished":
            return _with_note(result, await self._put_back())
        if result.metadata.get("namespace_lost"):
            lost = "[an earlier program had ended the interpreter: its variables were lost]"
            result = msgspec.structs.replace(result, stderr=f"{result.stderr}{lost}\n")
        return result

    async def _keep_before(self) -> None:
        """Save the state inside the box, in place of the last one, to undo the next program.

        If the box refuses, the program cannot be undone. That happens, for example, if a background
        process has a file open for writing. Raise `SandboxError` if the last one cannot be deleted.
        """
        box = self._open_box()
        if self._has_before:
            await box.delete_snapshot(_BEFORE)
            self._has_before = False
        with contextlib.suppress(UsageError, SandboxError, MaxSnapshotsReached):
            await box.snapshot(_BEFORE)
            self._has_before = True

    async def _put_back(self) -> str:
        """Undo the changes of a program that was stopped from outside; return what happened.

        Without a saved state, the files stay as they are. If the box no longer works, open a new
        one with the files that were stored last. Raise what `_open_with` raises.
        """
        if self._has_before:
            try:
                await self._open_box().restore(_BEFORE)
            except SandboxError:
                pass
            else:
                return "its files were put back"
        elif await self._is_alive():
            return "its files stay as they are"
        await self._open_with(self._state)
        return "the machine was started again: variables are gone, files are as they were kept last"

    async def _is_alive(self) -> bool:
        try:
            await list_files(self._open_box())
        except SandboxError:
            return False
        return True

    # -- states by name ------------------------------------------------------------------------

    async def _command_result(self, work: Awaitable[str]) -> ExecutionResult:
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
        """Take a snapshot, in place of one with this name. Return the text for the program.

        Raise `InvalidName` for an unusable name. Raise what `ProcessInterpreter.snapshot` raises;
        the old snapshot is gone then.
        """
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
        """Restore a snapshot of this box, or the files of one that an earlier process took.

        Return the text for the program. Raise `SnapshotNotFound` if there is none of this name,
        `SandboxError` if the box fails, and what `_open_with` raises.
        """
        box = self._open_box()
        if name != _BEFORE and any(each.name == name for each in box.snapshots()):
            await box.restore(name)
            return f"back at {name!r}: files and variables are as they were"
        if name not in self._marks:
            known = [each.name for each in box.snapshots() if each.name != _BEFORE]
            there = ", ".join(sorted({*known, *self._marks})) or "none"
            raise SnapshotNotFound(name=f"{name} (there are: {there})")
        # An earlier process took it: its files are stored, its variables are not.
        await self._open_with(self._states.after(self._marks[name]))
        return f"back at {name!r}: files are as they were, variables are gone"

    # -- keeping -------------------------------------------------------------------------------

    async def keep(self, finished: ProgramFinished, *, fuel_saved: int) -> FilesKept | None:
        """Store the files and the shell's state after a program; None if they have not changed.

        If they cannot be read within 60 s, or not stored, the record says why and has no archive.
        `fuel_saved` is not used: it is for programs that can be run again.
        """
        try:
            async with asyncio.timeout(_KEEPING_SECONDS):
                found = await self._read_state()
        except (SandboxError, TimeoutError) as error:
            return self._not_kept(finished, str(error) or "it took too long")
        state, contents = found
        if state == self._state:
            return None
        fresh = {sha256: raw for sha256, raw in contents.items() if sha256 not in self._known}
        try:
            raw = pack_state(state, fresh)
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

    async def _read_state(self) -> tuple[FilesState, dict[str, bytes]]:
        """Return the current state, and the contents of files that may have changed.

        The files are noted, so that the next call need not read those that are the same then.
        Raise `SandboxError` if the box does not list its files.
        """
        box = self._open_box()
        looked_ns = time.time_ns()
        listing = await list_files(box, (file for file, _ in self._seen.values()))
        kept, out = select_entries(listing)
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
            # The kernel's clock for file times advances only every few milliseconds. So a file that
            # changed a moment ago may change again and keep its times: read it again next time.
            if each.path in digests and each.ctime_ns < looked_ns - _CLOCK_STEP_NS:
                seen[line] = each, digests[each.path]
        self._seen = seen
        shell = box.shell
        state = state_of(kept, out, digests, where=shell.where, exported=shell.exported)
        return state, contents

    # -- the box -------------------------------------------------------------------------------

    def _open_box(self) -> ProcessInterpreter:
        assert self._box is not None, "the session is open"
        return self._box

    async def _open_with(self, state: FilesState) -> None:
        """Replace the box by a new one with the files, variables and shell of a state.

        The old box is closed first, and its snapshots are lost. Raise `StoreError` if the files
        cannot be read or written, and what `ProcessSandbox.open` raises; then there is no box.
        """
        await self.close()
        files = saved = None
        if state.entries or state.variables or state.imported:
            self._folder = await asyncio.to_thread(PrivateFolder, _FOLDER)
            contents = await asyncio.to_thread(self._states.contents, state)
            files = self._folder.path / "files"
            try:
                await asyncio.to_thread(write_files, state, contents, files)
            except (OSError, OverflowError, ValueError) as error:
                raise StoreError(f"kept files: they cannot be written: {error}") from error
        if self._folder is not None and (state.variables or state.imported):
            saved = self._folder.path / "saved"
            await asyncio.to_thread(_write_variables, state, saved)
        self._box = await self._sandbox.open(
            session_id=self._session_id,
            seed=self._seed,
            files=files,
            network=self._network,
            record=self._record_attempt,
            saved=saved,
        )
        self._has_before, self._seen = False, {}
        await self._restore_shell(state)

    async def _restore_shell(self, state: FilesState) -> None:
        """Set the shell's directory and its exported variables, by a command of our own.

        A name that a shell cannot export is left out. If the directory is gone, it is the working
        directory. The result of the command is not looked at.
        """
        where = os.fsdecode(state.where) if state.where is not None else WORK
        exported = [(os.fsdecode(name), os.fsdecode(value)) for name, value in state.exported]
        lines = [
            f"export {name}={_quote(value)}" for name, value in exported if _is_variable_name(name)
        ]
        if where != WORK:
            # The directory may be missing, because only the working directory is kept.
            lines.append(f"cd -- {_quote(where)} 2>/dev/null || cd {WORK}")
        if lines:
            context = ExecutionContext(session_id=self._session_id)
            await self._open_box().command("\n".join(lines), context=context, host=HostTable())

    def _record_attempt(self, attempt: Attempt) -> None:
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


def _write_variables(state: FilesState, folder: Path) -> None:
    """Make `folder`, with the variables as a saved session without files, for a new box to load.

    Raise `FileExistsError` if it is there. The files come another way: they are the first files of
    the box.
    """
    import tarfile

    from tallystick.sandbox.process.session import Saved

    folder.mkdir()
    tarfile.open(folder / "files.tar", "w").close()
    saved = Saved(kept=state.variables, imported=state.imported)
    (folder / "session.json").write_bytes(msgspec.json.encode(saved))


def _quote(text: str) -> str:
    """Quote a text for bash, byte by byte, because it may not be valid UTF-8."""
    return "$'" + "".join(f"\\x{each:02x}" for each in os.fsencode(text)) + "'"


def _is_variable_name(name: str) -> bool:
    """Return True if a shell can export a variable of this name."""
    return name.isascii() and name.isidentifier()


def _with_note(result: ExecutionResult, what: str) -> ExecutionResult:
    """Return the result of a stopped program, with what happened to its files in the error."""
    error = result.error or ProgramError(kind="Stopped", message=result.stop)
    noted = msgspec.structs.replace(error, message=f"{error.message}; {what}")
    return msgspec.structs.replace(result, error=noted)


def _refuse_attempt(attempt: NetworkAttempted) -> None:
    raise TallystickError("a connection was tried before the first program, so it is not allowed")


def _names_of(saved: Saved) -> str:
    kept = ", ".join(sorted({*saved.kept, *saved.imported}))[:SESSION_NAMES_CHARS_MAX]
    refused = ", ".join(sorted(saved.refused))[:SESSION_NAMES_CHARS_MAX]
    return f"{kept or 'no variables'}; not kept: {refused}" if refused else kept


# Open the programs of a run, new or resumed.


def identity_of(sandbox: ProcessSandbox) -> Identity:
    """Return the identity that a run records: the Python version, and layers accepted to miss."""
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
    """Open a box with the files of the run's session, or of the last recorded program.

    Python variables come back only if the run has no recorded program. Raise `StoreError` if an
    archive cannot be read, and what `ProcessSandbox.open` raises.
    """
    states = KeptStates()
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
    """Return the snapshots that recorded programs took: each name with the program's intent.

    The name is in the reply of the model, so the reply is parsed again. Only programs that ended
    without a failure count; of several with one name, the last.
    """
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
