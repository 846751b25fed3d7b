"""Native programs for runs: a session that begins, and one that goes on from what is recorded."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.attachments.errors import AttachmentError
from tallystick.core.attachment import AttachmentRef
from tallystick.core.errors import NotSupported, StoreError
from tallystick.core.records import (
    FilesKept,
    ModelReplied,
    ProgramFinished,
    Record,
    RunProgram,
    RunStarted,
)
from tallystick.core.reply import Snapshot, parse_reply
from tallystick.runtime.backends import Backends
from tallystick.runtime.bridge_folder import BridgeFolder
from tallystick.runtime.native_archive import StatesKept
from tallystick.runtime.native_network import network_of
from tallystick.runtime.native_session import NativeSession
from tallystick.runtime.session_runs import Joined
from tallystick.runtime.shelf import Shelf

if TYPE_CHECKING:
    from tallystick.sandbox.process.sandbox import ProcessSandbox

__all__ = ["GUEST", "NativeBackend", "files_missing", "native_again", "native_for"]

# What a run of native programs records of its sandbox.
GUEST = "process"
_PYTHON = f"cpython-{platform.python_version()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeBackend:
    """The sandbox that native programs of a run have, and where their bridges are."""

    sandbox: ProcessSandbox
    bridges: BridgeFolder | None = None

    @property
    def engine(self) -> str:
        """What is recorded of it: which Python, and which layers it may do without."""
        without = ", ".join(sorted(self.sandbox.settings.accept_without))
        return f"{_PYTHON} without {without}" if without else _PYTHON

    async def begin(
        self, started: RunStarted, shelf: Shelf, records: Sequence[Record] = ()
    ) -> NativeSession:
        """A session for a run: with the files of its session, or of the last program recorded."""
        states = StatesKept()
        image = None if started.session is None else started.session.image
        for intent, ref in [(0, image), *((each.intent, each.archive) for each in kept(records))]:
            if ref is not None:
                states.add(intent, _loader(shelf, ref))
        programs = [each.intent for each in records if isinstance(each, RunProgram)]
        if programs:
            states.forget_variables()
        session = NativeSession(
            self.sandbox,
            session_id=started.session_id,
            seed=started.seed,
            shelf=shelf,
            network=network_of(started.grants),
            states=states,
            begins_after=max(programs, default=0),
            marks=_marks(records),
            bridges=self.bridges,
        )
        try:
            await session.open()
        except BaseException:
            await session.close()
            raise
        return session


async def native_for(backends: Backends | None, joined: Joined | None) -> NativeBackend | None:
    """What runs the programs of a run that begins; None for the WASM sandbox.

    A run in a session has the sandbox of that session.
    """
    if backends is None:
        return None
    name = joined.backend if joined is not None else await backends.chosen()
    if joined is not None and backends.explicit and await backends.chosen() != name:
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


def _loader(shelf: Shelf, ref: AttachmentRef) -> Callable[[], bytes]:
    def load() -> bytes:
        try:
            return shelf.read(ref)
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
