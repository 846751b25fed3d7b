"""Run the programs of a run in the WASM sandbox: live, repeated, or after a loaded snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.clock import FIXED_CLOCK_NS
from tallystick.core.errors import BackendError, SnapshotMismatch, StoreError
from tallystick.core.history import History
from tallystick.core.records import (
    NetworkAttempted,
    ProgramFinished,
    RunProgram,
    RunStarted,
    SnapshotTaken,
)
from tallystick.sandbox.port import (
    ExecutionContext,
    ExecutionResult,
    Host,
    Identity,
    Keeper,
    Programs,
)
from tallystick.sandbox.snapshot import SessionImage, SnapshotId, pack_snapshot, unpack_snapshot
from tallystick.sandbox.wasm.image import ENGINE
from tallystick.sandbox.wasm.variables import record_values, variable_names

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmInterpreter, WasmSandbox

# The name under which a run records this backend.
_NAME = "wasm"


class WasmPrograms:
    """Run the programs of one run in `session`, and store its interpreter from time to time."""

    def __init__(self, session: WasmInterpreter, files: Keeper, *, identity: Identity) -> None:
        self._session = session
        self._files = files
        self._identity = identity
        self._fuel_since_kept = 0
        self._has_run = False

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def repeatable(self) -> bool:
        """True: we supply clock, randomness and answers, so a repeated program does the same."""
        return True

    @property
    def session_id(self) -> str:
        return self._session.session_id

    async def restore(self, history: History) -> int:
        """Load the last snapshot that can be loaded.

        Return the intent of the program after which it was taken, 0 if none can be loaded.
        """
        self._has_run = any(each.fuel for each in history.finished.values())
        for intent, taken in sorted(history.snapshots.items(), reverse=True):
            try:
                with self._files.read_snapshot(taken.image) as chunks:
                    _, image = unpack_snapshot(chunks)
                await self._session.load(image)
            except BackendError:
                # The snapshot is missing, damaged, or from another guest. An earlier one may load;
                # without one, all programs are run again.
                continue
            return intent
        return 0

    async def execute(
        self,
        program: RunProgram,
        source: str,
        *,
        context: ExecutionContext,
        host: Host,
        attempted: Callable[[NetworkAttempted], None],
    ) -> ExecutionResult:
        """Run a program. It has no network, so `attempted` is never called."""
        result = await self._session.execute(source, context=context, host=host)
        self._has_run = self._has_run or result.charge.fuel > 0
        return result

    async def keep(self, finished: ProgramFinished, *, fuel_saved: int) -> SnapshotTaken | None:
        """Store the interpreter, and return the record of it; None if it is not stored.

        It is stored after a program that ended by itself, once the programs since the last snapshot
        used at least `fuel_saved`, unless the run keeps none. Raise `BackendError` if it cannot be
        copied or stored.
        """
        self._fuel_since_kept += finished.fuel
        if finished.stop != "finished" or self._fuel_since_kept < fuel_saved:
            return None
        image = await self._session.image()
        snapshot = SnapshotId(
            id=f"{finished.intent}", name="run", session_id=self.session_id, created_at=0
        )
        # In a thread, so that compression does not block this event loop.
        ref = await asyncio.to_thread(
            lambda: self._files.keep_snapshot(pack_snapshot(snapshot, image))
        )
        if ref is None:
            return None
        self._fuel_since_kept = 0
        return SnapshotTaken(
            intent=finished.intent, turn=finished.turn, fuel=finished.fuel, image=ref
        )

    async def image(self) -> SessionImage | None:
        """Return the interpreter and its variables; None if no program of the run used fuel.

        Two programs of our own run after the copy, to list and to record the variables. Raise
        what `WasmInterpreter.image` and `WasmInterpreter.execute` raise.
        """
        if not self._has_run:
            return None
        image = await self._session.image()
        # These two run programs of our own, so they come after the image.
        names = await variable_names(self._session)
        return SessionImage(image=image, names=names, values=await record_values(self._session))

    async def close(self) -> None:
        """Free the interpreter. Closing twice is harmless."""
        await self._session.close()


_: type[Programs] = WasmPrograms


def identity_of(sandbox: WasmSandbox) -> Identity:
    """Return the identity that a run records: the guest's digest, and the engine's settings."""
    return Identity(backend=_NAME, guest=sandbox.guest.image.sha256, engine=ENGINE)


async def open_wasm(sandbox: WasmSandbox, started: RunStarted, files: Keeper) -> WasmPrograms:
    """Open an interpreter for the programs of a run, in its state when the run began.

    Raise `StoreError` if the stored interpreter cannot be read, and `SnapshotMismatch` if another
    version made it or it does not fit this one. Raise `InvalidLimit` if the run's clock is negative
    or too late.
    """
    session = await sandbox.open(
        session_id=started.session_id, seed=started.seed, clock_ns=started.clock_ns
    )
    try:
        await _load_image(session, started, files)
    except BaseException:
        await session.close()
        raise
    return WasmPrograms(session, files, identity=identity_of(sandbox))


async def _load_image(session: WasmInterpreter, started: RunStarted, files: Keeper) -> None:
    """Load the interpreter with which the run's session started the run, if there is one.

    Raise `StoreError` if it cannot be read. Raise `SnapshotMismatch` if another version made it, or
    if it does not fit this one.
    """
    given = started.session
    ref = None if given is None else given.image
    if given is None or ref is None:
        return
    try:
        raw = await asyncio.to_thread(files.read, ref)
    except BackendError as error:
        raise StoreError(
            f"the interpreter that the run began with, of session {given.session}, cannot be "
            f"read: {error}"
        ) from error
    _, image = await asyncio.to_thread(unpack_snapshot, [raw])
    if started.clock_ns != FIXED_CLOCK_NS:
        # The image has the clock of the last run. A run with a fixed start time continues from
        # that; any other run starts at its own time.
        image = msgspec.structs.replace(image, state={**image.state, "clock": started.clock_ns})
    try:
        await session.load(image)
    except SnapshotMismatch as error:
        raise SnapshotMismatch(
            f"session {given.session} was left by another version ({error}); its runs are kept. "
            f"Continue it with that version, or start a new session from its values (tally session "
            f"export {given.session} >values.json, tally session new --from values.json)"
        ) from error
