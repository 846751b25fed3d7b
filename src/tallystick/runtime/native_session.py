"""The session that the native programs of one run have: what they leave is kept, and put back.

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
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tallystick.attachments.errors import AttachmentError
from tallystick.core.canonical import digest
from tallystick.core.errors import (
    InvalidName,
    MaxSnapshotsReached,
    SandboxError,
    SnapshotNotFound,
    StoreError,
    TallystickError,
    UsageError,
)
from tallystick.core.native_records import FilesKept, NetworkAttempted
from tallystick.core.records import ProgramFinished, RunProgram
from tallystick.runtime.bridge_folder import BridgeFolder
from tallystick.runtime.native_archive import FilesState, StatesKept, lay_out, packed
from tallystick.runtime.native_folder import NativeFolder
from tallystick.runtime.native_listing import WORK, Found, contents_of, fitting, listed, state_of
from tallystick.runtime.shelf import SNAPSHOT_TYPE, Shelf
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host, ProgramError
from tallystick.sandbox.snapshot import check_snapshot_name

if TYPE_CHECKING:
    from tallystick.sandbox.process.proxy import Attempt, NetworkGrant
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.process.saved import Saved
    from tallystick.sandbox.process.session import ProcessSession

__all__ = ["NativeSession", "OnAttempt"]

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
        shelf: Shelf,
        network: NetworkGrant | None = None,
        states: StatesKept | None = None,
        begins_after: int = 0,
        marks: Mapping[str, int] | None = None,
        bridges: BridgeFolder | None = None,
    ) -> None:
        self.bridges = bridges
        self._sandbox = sandbox
        self._session_id = session_id
        self._seed = seed
        self._shelf = shelf
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
        # Hears of what programs try to reach, before they are let through.
        self.on_attempt: OnAttempt = _nobody

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

    async def execute(
        self, intent: RunProgram, source: str, *, context: ExecutionContext, host: Host
    ) -> ExecutionResult:
        """Run a program of any kind."""
        self._program = intent.intent
        if intent.kind == "snapshot":
            return await self._told(self._snapshot(source.strip()))
        if intent.kind == "rollback":
            return await self._told(self._rollback(source.strip()))
        await self._keep_before()
        box = self._open_box()
        try:
            if intent.kind == "bash":
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

    async def kept(self, finished: ProgramFinished) -> FilesKept | None:
        """What a program left of files and of the shell, kept; None if it is as it was."""
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
                lambda: self._shelf.keep(
                    raw, media_type=SNAPSHOT_TYPE, label=f"files after program {finished.intent}"
                )
            )
        except (AttachmentError, StoreError) as error:
            return self._not_kept(finished, str(error))
        self._states.add(finished.intent, lambda: self._shelf.read(ref), raw)
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
        self.on_attempt(
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


def _lay_variables(state: FilesState, folder: Path) -> None:
    """What a box takes variables from. Its files are there already."""
    import tarfile

    from tallystick.sandbox.process.saved import Saved

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
