"""The backend of the WASM sandbox. A program does the same each time it is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError
from tallystick.core.history import History
from tallystick.core.machine.prompt import NET, NO_NETWORK
from tallystick.core.records import RunStarted
from tallystick.sandbox.backend import Backend, Surface
from tallystick.sandbox.port import Identity, Keeper, Programs

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox


class WasmBackend:
    """A backend that loads the WASM sandbox when it is first needed."""

    repeatable = True
    # The guest counts with 32 bits: a longer text has no `len`, and no positions beyond.
    text_bytes_max: int | None = (1 << 31) - 1
    sockets: Path | None = None

    def __init__(self, surface: Surface, given: WasmSandbox | None = None) -> None:
        self._surface = surface
        self._given = given
        self._made: WasmSandbox | None = None

    @property
    def sandbox(self) -> WasmSandbox:
        """The sandbox. The first use may compile the guest, once for each machine and version.

        Raises `GuestMissing` if the guest image is missing or cannot be used.
        """
        if self._given is not None:
            return self._given
        if self._made is None:
            # Imported here and not above, because the import of the engine takes a while.
            from tallystick.sandbox.wasm.sandbox import WasmSandbox

            self._made = WasmSandbox.load(
                cache=self._surface.cache,
                output_directory=self._surface.output,
                say=self._surface.say,
            )
        return self._made

    @property
    def identity(self) -> Identity:
        from tallystick.sandbox.wasm.programs import identity_of

        return identity_of(self.sandbox)

    def check_grants(self, grants: Sequence[str]) -> None:
        """Raise `UsageError` if the grants give network access: this sandbox has none."""
        given = [each for each in grants if each.startswith(NET)]
        if given and given != [NO_NETWORK]:
            raise UsageError(
                f"{', '.join(given)}: programs of the wasm sandbox have no network; give this "
                "grant to those of the process sandbox (--sandbox process)"
            )

    async def prove(self) -> None:
        """Load the sandbox; it needs nothing else of a host. Raise what the loading raises."""
        _ = self.sandbox

    async def open(self, started: RunStarted, history: History, files: Keeper) -> Programs:
        """Open the programs of a run, with the interpreter as it was when the run began.

        Raise `BackendError` if the interpreter of its session cannot be read or loaded.
        """
        from tallystick.sandbox.wasm.programs import open_wasm

        return await open_wasm(self.sandbox, started, files)

    async def close(self) -> None:
        """Close the sandbox that this backend made. Closing twice is harmless."""
        made, self._made = self._made, None
        if made is not None:
            await made.close()


def make(surface: Surface, given: WasmSandbox | None = None) -> Backend:
    """Return a backend that uses the sandbox `given`, or else one that it makes."""
    return WasmBackend(surface, given)
