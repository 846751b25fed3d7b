"""The WASM sandbox: the compiled guest and what its sessions share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tallystick.sandbox.cancels import Cancels
from tallystick.sandbox.memory_store import MemorySnapshotStore
from tallystick.sandbox.port import Sandbox
from tallystick.sandbox.slots import Slots
from tallystick.sandbox.snapshot import SnapshotStore
from tallystick.sandbox.threads import ProgramThreads
from tallystick.sandbox.wasm.engine import Guest, load_guest
from tallystick.sandbox.wasm.image import load_image
from tallystick.sandbox.wasm.instance import Instance
from tallystick.sandbox.wasm.self_test import run_self_test
from tallystick.sandbox.wasm.session import WasmSession

__all__ = ["CLOCK_NS", "WasmSandbox"]

# Where a session's clock starts unless it is told otherwise: 2026-01-01T00:00:00Z. A program sees
# the same times whenever it is run.
CLOCK_NS = 1_767_225_600_000_000_000
_MEMORY_BYTES_MAX = 2 * 1024 * 1024 * 1024


class WasmSandbox:
    """Opens sessions, which share nothing but code. One sandbox per process is enough."""

    name = "wasm"

    def __init__(
        self,
        guest: Guest,
        *,
        store: SnapshotStore,
        output_directory: Path | None,
        active_max: int,
    ) -> None:
        self.guest = guest
        self.store = store
        self.output_directory = output_directory
        self.memory_bytes_max = _MEMORY_BYTES_MAX
        self.slots = Slots(active_max)
        self.cancels = Cancels()
        self.threads = ProgramThreads()
        # Never run: what a fresh memory looks like, to compare with.
        self.pristine = self.new_instance()
        self.memory_bytes_least = self.pristine.memory_size()

    @classmethod
    def load(
        cls,
        *,
        cache: Path,
        store: SnapshotStore | None = None,
        output_directory: Path | None = None,
        active_max: int | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> WasmSandbox:
        """Load the guest that ships with the package, compiling it if this machine never did."""
        return cls(
            load_guest(load_image(), cache=cache, say=say),
            store=store if store is not None else MemorySnapshotStore(),
            output_directory=output_directory,
            active_max=active_max or max(2, os.cpu_count() or 1),
        )

    async def open(
        self, *, session_id: str, seed: int = 0, clock_ns: int = CLOCK_NS
    ) -> WasmSession:
        """Open a session. Its interpreter is made when the first program comes."""
        return WasmSession(self, session_id=session_id, seed=seed, clock_ns=clock_ns)

    def cancel(self, cancellation_token: str) -> bool:
        """End the program whose context has this token. Says whether there was one."""
        return self.cancels.cancel(cancellation_token)

    async def self_test(self) -> Sequence[tuple[str, str | None]]:
        return await run_self_test(self)

    def new_instance(self) -> Instance:
        return Instance(self.guest, memory_bytes_max=self.memory_bytes_max)

    async def close(self) -> None:
        self.threads.close()
        self.pristine.close()
        self.guest.close()


_: type[Sandbox] = WasmSandbox
