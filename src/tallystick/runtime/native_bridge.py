"""The bridge of a run's native programs: commands of a shell ask models by it, as programs do.

A program in Python has `llm_query`; what a shell starts has not. For as long as a command runs,
`python3 "$TALLYSTICK_ASK" "a question"` asks through the run's own door: reserved, written down and
settled as every call is. The token is that command's, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tallystick.core.records import RunLimits
from tallystick.runtime.bridge import Bridge, environment_of
from tallystick.runtime.bridge_door import BridgeDoor, WrittenCalls
from tallystick.runtime.bridge_folder import CLIENT, BridgeFolder
from tallystick.runtime.bridge_tokens import TokenScope
from tallystick.runtime.purse import Purse
from tallystick.runtime.queries import QueryDesk
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.world import Asked
from tallystick.sandbox.identity import new_id

__all__ = ["ShellBridge"]

_VARIABLE = "TALLYSTICK_ASK"
# Who programs are, in a box that root makes.
_NOBODY = 65_534


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellBridge:
    """Opens the bridge for one command after the other of one run."""

    folder: BridgeFolder
    run: str
    session_id: str
    desk: QueryDesk
    purse: Purse
    shelf: Shelf
    temperature: float | None

    @contextlib.asynccontextmanager
    async def open(
        self, asked: Asked, *, program: int, limits: RunLimits, ends_at: float, calls_max: int
    ) -> AsyncIterator[dict[str, str]]:
        """Inside, what is in these variables asks models. Raises what broke the run's record."""
        door = BridgeDoor(
            self.desk,
            WrittenCalls(asked, self.shelf, program=program, spend=self.purse.spend),
            self.purse,
            limits=limits,
            ends_at=ends_at,
            temperature=self.temperature,
            calls_max=calls_max,
        )
        sockets = self.folder.path / new_id()[-10:]
        try:
            async with Bridge() as bridge:
                uid = _NOBODY if os.geteuid() == 0 else None
                listener = bridge.listen_unix(sockets / "b", session=self.session_id, uid=uid)
                scope = TokenScope(session=self.session_id, run=self.run, program=program)
                issued = bridge.issue(scope, ask=door.ask)
                client = {_VARIABLE: str(self.folder.path / CLIENT)}
                yield {**environment_of(listener.address, issued), **client}
        finally:
            shutil.rmtree(sockets, ignore_errors=True)
        if door.failed is not None:
            raise door.failed
