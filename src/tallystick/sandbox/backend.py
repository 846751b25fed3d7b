"""The port of backends: where programs run, and how those of a run are opened.

A backend is one package of the sandbox with a module `backend`, and one row of `BACKENDS`. Nothing
outside its package asks which backend it is: what differs is said by the row, or by the backend.
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
    """What a backend is given of this process.

    `cache` is where compiled code is kept, `output` where long output goes, and `packages` what
    native programs may import. `accept_without` names layers of isolation to do without. `sockets`
    makes the directory where programs find sockets of this process; None gives them none.
    """

    cache: Path
    output: Path
    packages: Callable[[], Sequence[Path]] = tuple
    accept_without: frozenset[str] = frozenset()
    say: Callable[[str], None] = lambda line: None
    sockets: Callable[[], Path] | None = None


class Backend(Protocol):
    """Runs programs in one way. What it needs is made when it is first needed."""

    @property
    def identity(self) -> Identity:
        """What a run records of it: its name, its guest, its engine."""
        ...

    @property
    def repeatable(self) -> bool:
        """True if a program does the same when it is run again on recorded answers."""
        ...

    @property
    def sockets(self) -> Path | None:
        """Where programs find sockets of this process, None where they find none."""
        ...

    @property
    def sandbox(self) -> Any:  # noqa: ANN401 (each backend has a sandbox of its own)
        """The sandbox itself, for whoever asked for this backend by name."""
        ...

    def check_grants(self, grants: Sequence[str]) -> None:
        """Raise `UsageError` for grants that programs cannot be given here."""
        ...

    async def prove(self) -> None:
        """Raise `SandboxError` if programs cannot run here. Say which layers are done without."""
        ...

    async def open(self, started: RunStarted, history: History, files: Keeper) -> Programs:
        """Open the programs of a run, new or recorded, as they are before the next of them."""
        ...

    async def close(self) -> None:
        """Close what was made here. A sandbox that was handed in is its owner's to close."""
        ...


class BackendKind(NamedTuple):
    """A backend as far as it is known before it is imported."""

    module: str
    repeatable: bool
    # Whether there are layers of isolation that a host may lack.
    has_layers: bool = False


# The first is the default.
BACKENDS: Mapping[str, BackendKind] = {
    "wasm": BackendKind("tallystick.sandbox.wasm.backend", repeatable=True),
    "process": BackendKind("tallystick.sandbox.process.backend", repeatable=False, has_layers=True),
}
DEFAULT = next(iter(BACKENDS))


def kind_of(name: str) -> BackendKind:
    """Return the kind of a recorded run's backend. Raises `NotSupported` for one not known here."""
    if name not in BACKENDS:
        raise NotSupported(backend=name, operation="a run in a sandbox that is not known here")
    return BACKENDS[name]


def make_backend(
    name: str,
    surface: Surface,
    given: Any = None,  # noqa: ANN401 (each backend has a sandbox of its own)
) -> Backend:
    """Return a backend by its name; `given` is a sandbox to use in place of one of its own.

    Its package is imported here. Raises `UsageError` for layers that it cannot do without.
    """
    # Most processes need one backend, and the engine of another takes a while to import.
    module = importlib.import_module(kind_of(name).module)
    backend: Backend = module.make(surface, given)
    return backend
