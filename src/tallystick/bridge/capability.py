"""Give shell commands of a run access to models, over the bridge.

A program in Python has `llm_query`; what a shell starts has not. For as long as a command runs,
`python3 "$TALLYSTICK_ASK" "a question"` asks through the run's own door: reserved, recorded and
settled as every call is. The token belongs to that command, and ends with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from tallystick.bridge.door import BridgeDoor
from tallystick.bridge.server import ADDRESS, Bridge
from tallystick.bridge.sockets import CLIENT
from tallystick.bridge.tokens import TokenScope
from tallystick.core.history import History
from tallystick.core.machine.state import RunState
from tallystick.core.records import RunStarted
from tallystick.runtime.calls.capability import (
    CapabilityBase,
    ProgramGiven,
    RunCapability,
    RunServices,
)
from tallystick.runtime.calls.scope import CallScope
from tallystick.storage.clock import new_id

_VARIABLE = "TALLYSTICK_ASK"
# The user id of programs in a sandbox that root made.
_NOBODY = 65_534


class BridgeCapability(CapabilityBase):
    """Gives native programs of a run a bridge, if their sandbox has a place for its sockets."""

    name = "bridge"

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        """Return the bridge of a run.

        Return None for a replay, and for a run whose programs cannot reach sockets of this process.
        """
        if services.sockets is None or services.door is None:
            return None
        return ShellBridge(services, services.sockets, session_id=started.session_id)


class ShellBridge(RunCapability):
    """The bridge of one run. It is opened for one command after the other."""

    def __init__(self, services: RunServices, folder: Path, *, session_id: str) -> None:
        self._services = services
        self._folder = folder
        self._session_id = session_id

    def around(
        self, scope: CallScope, state: RunState
    ) -> AbstractAsyncContextManager[ProgramGiven]:
        """Open the bridge while a command of a shell runs; for other programs do nothing.

        It yields the token, and variables that name the bridge and the client.
        If a question broke the record, its error is raised at the end, unless the command raised
        one of its own. Raise `UsageError` if the socket cannot be made.
        """
        if scope.program.kind != "bash":
            return nullcontext(ProgramGiven())
        return self._open_bridge(scope, state.started.temperature)

    @contextlib.asynccontextmanager
    async def _open_bridge(
        self, scope: CallScope, temperature: float | None
    ) -> AsyncIterator[ProgramGiven]:
        door = self._services.door
        assert door is not None, "a replay has no bridge"
        asking = BridgeDoor(
            self._services.queries,
            scope,
            door.run_scopes,
            self._services.run_attachments,
            temperature=temperature,
        )
        # Only the random end of an id, because the path of a socket has to be short.
        sockets = self._folder / new_id()[-10:]
        try:
            async with Bridge() as bridge:
                uid = _NOBODY if os.geteuid() == 0 else None
                listener = bridge.listen_unix(sockets / "b", session=self._session_id, uid=uid)
                program = TokenScope(
                    session=self._session_id,
                    run=self._services.run,
                    program=scope.program.intent,
                    depth=scope.depth,
                    depth_max=scope.limits.depth,
                )
                issued = bridge.issue(program, ask=asking.ask)
                client = {_VARIABLE: str(self._folder / CLIENT), ADDRESS: listener.address}
                yield ProgramGiven(client, issued.text)
        finally:
            shutil.rmtree(sockets, ignore_errors=True)
        if scope.failed is not None:
            raise scope.failed
