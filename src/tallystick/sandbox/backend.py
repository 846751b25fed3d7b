"""The port of backends, the table of those there are, and how one is made by its name.

A backend is one package of the sandbox with a module `backend`, and one row of `BACKENDS`. No code
outside its package asks which backend it is: the row, or the backend itself, says what differs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tallystick.core.errors import NotSupported
from tallystick.core.history import History
from tallystick.core.records import RunStarted
from tallystick.sandbox.port import Identity, Keeper, Programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """The directories, options and callbacks that this process gives to a backend.

    `cache` is the directory for compiled code, `output` that for long output. `packages` returns
    the directories that native programs may import from. `accept_without` names the layers of
    isolation that may be missing. `say` is called with each line for the user. `sockets` makes
    the directory where programs find sockets of this process; None gives them none.
    """

    cache: Path
    output: Path
    packages: Callable[[], Sequence[Path]] = tuple
    accept_without: frozenset[str] = frozenset()
    say: Callable[[str], None] = lambda line: None
    sockets: Callable[[], Path] | None = None


class Backend(Protocol):
    """Run programs in one way. What a backend needs is created when it is first needed."""

    @property
    def identity(self) -> Identity:
        """The backend as a run records it: its name, its guest and its engine."""
        ...

    @property
    def repeatable(self) -> bool:
        """True if a program does the same when it is run again on recorded answers."""
        ...

    @property
    def text_bytes_max(self) -> int | None:
        """The longest text that programs can read, None for any."""
        ...

    @property
    def sockets(self) -> Path | None:
        """The directory where programs find sockets of this process, None if there is none."""
        ...

    @property
    def sandbox(self) -> Any:  # noqa: ANN401 (each backend has a sandbox of its own)
        """The sandbox itself, for a caller who chose this backend by name.

        It is made at the first use. Raises `GuestMissing` if the WASM guest cannot be loaded.
        """
        ...

    def check_grants(self, grants: Sequence[str]) -> None:
        """Raise `UsageError` for a grant that this backend cannot give to programs."""
        ...

    async def prove(self) -> None:
        """Raise `SandboxError` if programs cannot run here. Report layers that are left out.

        Raise `IsolationMissing` if a layer is missing that is required, `NotSupported` on a system
        that the backend does not run on, and `GuestMissing` if the WASM guest cannot be loaded.
        Called before the first run in this backend, and again after a failure. For a repeatable
        backend that a session or a record names, it may not be called at all.
        """
        ...

    async def open(self, started: RunStarted, history: History, files: Keeper) -> Programs:
        """Open the programs of a run, new or recorded, as they were when the run began.

        `Programs.restore` loads a later state. The caller closes the result. Raise `BackendError`
        if the state of the run's session cannot be read or loaded, `UsageError` for grants as in
        `check_grants`, and what `prove` raises.
        """
        ...

    async def close(self) -> None:
        """Close what this backend made. A sandbox that was passed in stays open for its owner.

        A later use makes a new sandbox.
        """
        ...


class BackendKind(NamedTuple):
    """The facts about a backend that are known before it is imported."""

    module: str
    repeatable: bool
    # True if the backend has layers of isolation that a host may lack.
    has_layers: bool = False
    # True if programs run in the host's own Python, so that they have its syntax.
    host_python: bool = False


# The first is the default.
BACKENDS: Mapping[str, BackendKind] = {
    "wasm": BackendKind("tallystick.sandbox.wasm.backend", repeatable=True),
    "process": BackendKind(
        "tallystick.sandbox.process.backend", repeatable=False, has_layers=True, host_python=True
    ),
}
DEFAULT = next(iter(BACKENDS))


def kind_of(name: str) -> BackendKind:
    """Return the kind of a backend by its name. Raise `NotSupported` if this version has none."""
    if name not in BACKENDS:
        raise NotSupported(backend=name, operation="a run in a sandbox that is not known here")
    return BACKENDS[name]


def make_backend(
    name: str,
    surface: Surface,
    given: Any = None,  # noqa: ANN401 (each backend has a sandbox of its own)
) -> Backend:
    """Return a backend by its name. With `given`, it uses that sandbox and makes none of its own.

    The package of the backend is imported here. Raise `NotSupported` for an unknown name, and
    `UsageError` if `surface.accept_without` names a layer that the backend cannot do without.
    """
    # Most processes need one backend, and the engine of another takes a while to import.
    module = importlib.import_module(kind_of(name).module)
    backend: Backend = module.make(surface, given)
    return backend
