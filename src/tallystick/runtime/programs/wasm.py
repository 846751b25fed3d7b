"""Run programs of a run in the WASM sandbox: again on their record, or on from a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.attachments.port import AttachmentError
from tallystick.core.errors import BackendError
from tallystick.core.history import History
from tallystick.core.records import (
    NetworkAttempted,
    ProgramFinished,
    RunProgram,
    SnapshotTaken,
)
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.sandbox.port import ExecutionContext, ExecutionResult, Host, Programs
from tallystick.sandbox.snapshot import SnapshotId, packed, unpacked

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSession


class WasmPrograms:
    """Runs the programs of one run in `session`, and keeps its interpreter now and then."""

    def __init__(self, session: WasmSession, run_attachments: RunAttachments) -> None:
        self.session = session
        self._run_attachments = run_attachments
        self._fuel_since_kept = 0

    @property
    def repeatable(self) -> bool:
        """True: clock, randomness and answers are ours, so a program does the same again."""
        return True

    @property
    def session_id(self) -> str:
        return self.session.session_id

    async def restore(self, history: History) -> int:
        """Load the last snapshot. Return the program it was taken after, 0 if none loads."""
        for intent, taken in sorted(history.snapshots.items(), reverse=True):
            try:
                with self._run_attachments.read_snapshot(taken.image) as chunks:
                    _, image = unpacked(chunks)
                await self.session.load(image)
            except (AttachmentError, BackendError):
                # Gone, damaged, or of another sandbox: the programs are run again.
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
        """Run a program. It has no network: `attempted` hears of nothing."""
        return await self.session.execute(source, context=context, host=host)

    async def keep(self, finished: ProgramFinished, *, fuel_saved: int) -> SnapshotTaken | None:
        """Keep the interpreter when running again what it has run would take `fuel_saved`."""
        self._fuel_since_kept += finished.fuel
        if finished.stop != "finished" or self._fuel_since_kept < fuel_saved:
            return None
        image = await self.session.image()
        snapshot = SnapshotId(
            id=f"{finished.intent}", name="run", session_id=self.session_id, created_at=0
        )
        # Compressed elsewhere: others on this loop need not wait for it.
        ref = await asyncio.to_thread(
            lambda: self._run_attachments.keep_snapshot(packed(snapshot, image))
        )
        if ref is None:
            return None
        self._fuel_since_kept = 0
        return SnapshotTaken(
            intent=finished.intent, turn=finished.turn, fuel=finished.fuel, image=ref
        )

    async def close(self) -> None:
        """Free the interpreter. Closing twice is harmless."""
        await self.session.close()


_: type[Programs] = WasmPrograms
