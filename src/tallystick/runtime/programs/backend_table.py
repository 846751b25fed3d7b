"""Which backend runs the programs of a run, by its name, and how its programs are opened.

A backend is one package of the sandbox and one row of `_BACKENDS`. Nothing else here asks for the
name of a backend: programs that are `repeatable` are run again on their record, others are served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tallystick.core.errors import NotSupported
from tallystick.core.history import History
from tallystick.core.records import FilesKept, Record, RunStarted
from tallystick.runtime.programs.backends import Backends, network_of
from tallystick.sandbox.port import Identity, Keeper, Programs

if TYPE_CHECKING:
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

    OpenSandbox = Callable[[], WasmSandbox]

_PROCESS = "process"


class Backend(Protocol):
    """Opens the programs of a run. `sockets` is where they find sockets of this process."""

    @property
    def repeatable(self) -> bool:
        """Tell whether programs of the backend do the same when they are run again."""
        ...

    @property
    def sockets(self) -> Path | None: ...

    @property
    def identity(self) -> Identity: ...

    async def open(self, started: RunStarted, history: History, files: Keeper) -> Programs:
        """Open the programs of a run, new or recorded, as they stand before the next of them."""
        ...


class WasmBackend:
    """The WASM sandbox, which is loaded when it is first needed."""

    repeatable = True
    sockets: Path | None = None

    def __init__(self, sandbox: OpenSandbox) -> None:
        self._sandbox = sandbox

    @classmethod
    async def here(cls, backends: Backends | None, sandbox: OpenSandbox) -> Backend:
        return cls(sandbox)

    @property
    def identity(self) -> Identity:
        from tallystick.sandbox.wasm.programs import identity_of

        return identity_of(self._sandbox())

    async def open(self, started: RunStarted, history: History, files: Keeper) -> Programs:
        from tallystick.sandbox.wasm.programs import open_wasm

        return await open_wasm(self._sandbox(), started, files)


class ProcessBackend:
    """The sandbox of native programs, with the network that the run was granted."""

    repeatable = False

    def __init__(self, sandbox: ProcessSandbox, sockets: Path | None) -> None:
        self._sandbox = sandbox
        self.sockets = sockets

    @classmethod
    async def here(cls, backends: Backends | None, sandbox: OpenSandbox) -> Backend:
        """Return it if one can be used here. Raises `NoBackendAvailable`."""
        assert backends is not None, "without a choice, programs run in the WASM sandbox"
        await backends.ensure(_PROCESS)
        return cls(backends.process(), backends.sockets_of_process())

    @property
    def identity(self) -> Identity:
        from tallystick.sandbox.process.programs import identity_of

        return identity_of(self._sandbox)

    async def open(self, started: RunStarted, history: History, files: Keeper) -> Programs:
        from tallystick.sandbox.process.programs import open_process

        network = network_of(started.grants)
        return await open_process(self._sandbox, started, history, files, network=network)


_BACKENDS: Mapping[str, type[WasmBackend | ProcessBackend]] = {
    "wasm": WasmBackend,
    _PROCESS: ProcessBackend,
}


async def backend_for(
    backends: Backends | None, sandbox: OpenSandbox, needed: str | None
) -> Backend:
    """Return what runs the programs of a run that begins.

    `needed` is the sandbox that the run has to have: a run in a session has that of the session.
    """
    if backends is None:
        return WasmBackend(sandbox)
    name = needed if needed is not None else await backends.chosen()
    if needed is not None and backends.explicit and await backends.chosen() != name:
        raise NotSupported(
            backend=await backends.chosen(), operation=f"a session of the {name} sandbox"
        )
    return await _named(backends, sandbox, name)


async def backend_again(
    backends: Backends | None, sandbox: OpenSandbox, started: RunStarted
) -> Backend:
    """Return what runs the programs of a run that is resumed or forked."""
    if backends is None:
        return WasmBackend(sandbox)
    return await _named(backends, sandbox, started.backend)


async def _named(backends: Backends, sandbox: OpenSandbox, name: str) -> Backend:
    kind = _BACKENDS.get(name)
    if kind is None:
        raise NotSupported(backend=name, operation="a run in a sandbox that is not known here")
    return await kind.here(backends, sandbox)


async def backend_to_repeat(
    backends: Backends | None, sandbox: OpenSandbox, started: RunStarted
) -> Backend | None:
    """Return what runs the programs of a recorded run again; None where they are served."""
    kind = _BACKENDS.get(started.backend)
    if kind is None or not kind.repeatable:
        return None
    backend = await kind.here(backends, sandbox)
    return backend if is_same(backend, started) else None


def is_same(backend: Backend, started: RunStarted) -> bool:
    """Tell whether programs of this run mean the same here: same guest, same engine."""
    return (started.guest, started.engine) == backend.identity[1:]


def files_missing(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the files that whoever resumes from these records does not have, by name."""
    kept = [each for each in records if isinstance(each, FilesKept)]
    if not kept:
        return ()
    if kept[-1].archive is None:
        return (f"all that was changed since ({kept[-1].problem})",)
    return kept[-1].left_out
