"""Which backend the programs of a run have, of those that work here.

Rule 1: what is passed over is said, with the reason. Where nothing is left, all reasons are told.
Rule 2: nobody gets less isolation than they asked for. `auto` is the default backend and no other;
a layer that the host lacks is done without only if it is named.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tallystick.core.errors import NotSupported, SandboxError, TallystickError, UsageError
from tallystick.core.machine.prompt import NET
from tallystick.core.records import RunStarted
from tallystick.sandbox.backend import (
    BACKENDS,
    DEFAULT,
    Backend,
    Surface,
    kind_of,
    make_backend,
)
from tallystick.sandbox.port import AUTO
from tallystick.settings.paths import cache_directory, data_directory

if TYPE_CHECKING:
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

# What a sandbox may be able to do. No other names are used.
CAPABILITIES = (
    "VmIsolation",
    "ContainerIsolation",
    "Snapshots",
    "NetworkAudit",
    "OverlayFs",
    "LlmBridge",
    "DnsAllowlist",
    "ResourceLimits",
    "PythonExecution",
    "BashExecution",
    "FileOperations",
)


class NoBackendAvailable(SandboxError):
    """None of the sandboxes that were asked for is to be had here. `tried` says why, of each."""

    code = "backend.none_available"

    def __init__(self, *, tried: tuple[tuple[str, str], ...]) -> None:
        said = "; ".join(f"{name}: {why}" for name, why in tried)
        super().__init__(f"no sandbox can be used here: {said}")
        self.tried = tried


def read_preference(text: str) -> tuple[str, ...]:
    """Return the sandboxes to try, in order: of `auto`, a name, or several with commas between.

    Raises `UsageError` for a name that is none, or that is there twice.
    """
    if text == AUTO:
        return (DEFAULT,)
    names = tuple(each.strip() for each in text.split(","))
    for name in names:
        if name not in BACKENDS:
            raise UsageError(f"sandbox {name[:40]!r}: there are {AUTO}, {', '.join(BACKENDS)}")
    if len(set(names)) < len(names):
        raise UsageError(f"sandbox {text[:80]!r}: one stands there twice")
    return names


def without_network(grants: Sequence[str]) -> list[str]:
    """Return the grants of a run that has no network whatever."""
    return [each for each in grants if not each.startswith(NET)]


def is_same(backend: Backend, started: RunStarted) -> bool:
    """Tell whether programs of this run mean the same here: same guest, same engine."""
    return (started.guest, started.engine) == backend.identity[1:]


class SocketFolder(Protocol):
    """A private directory where native programs find sockets of this process."""

    @property
    def path(self) -> Path: ...

    def close(self) -> None: ...


class Backends:
    """The backends of one caller, each made when it is needed.

    `given` is a sandbox of the caller's own, in place of that of the backend of its name; one
    without a name takes the place of the default. `sockets` makes the directory where native
    programs find sockets; None gives them none.
    """

    def __init__(
        self,
        *,
        given: WasmSandbox | ProcessSandbox | None = None,
        preference: str = AUTO,
        accept_without: Collection[str] = (),
        say: Callable[[str], None] = lambda line: None,
        sockets: Callable[[], SocketFolder] | None = None,
    ) -> None:
        self._preference = read_preference(preference)
        self._explicit = preference != AUTO
        self._given = given
        name = getattr(given, "name", "")
        self._given_name = name if name in BACKENDS else DEFAULT
        self._make_sockets = sockets
        self._sockets: SocketFolder | None = None
        self._say = say
        self._accept_without = frozenset(accept_without)
        self._proven: set[str] = set()
        self._chosen: str | None = None
        self._made: dict[str, Backend] = {}
        if self._accept_without:
            self._check_layers(BACKENDS if preference == AUTO else self._preference)

    def _check_layers(self, names: Collection[str]) -> None:
        """Refuse layers to do without that no backend has, now and not when a box is made."""
        layered = [name for name in names if BACKENDS[name].has_layers]
        if not layered:
            known = ", ".join(name for name, kind in BACKENDS.items() if kind.has_layers)
            raise UsageError(
                f"accept without {', '.join(sorted(self._accept_without))}: only the {known} "
                "sandbox has layers to do without"
            )
        for name in layered:
            self.named(name)

    def named(self, name: str) -> Backend:
        """Return a backend by its name, which need not be one that was asked for."""
        if name not in self._made:
            surface = Surface(
                cache=cache_directory(),
                output=data_directory() / "output",
                packages=_packages,
                accept_without=self._accept_without,
                say=self._say,
                sockets=None if self._make_sockets is None else self._socket_folder,
            )
            given = self._given if name == self._given_name else None
            self._made[name] = make_backend(name, surface, given)
        return self._made[name]

    def wasm(self) -> WasmSandbox:
        """Return the WASM sandbox, which what is no program of a run may use too."""
        sandbox: WasmSandbox = self.named("wasm").sandbox
        return sandbox

    def _socket_folder(self) -> Path:
        """Return the directory of sockets, made when the first native sandbox is."""
        if self._sockets is None:
            assert self._make_sockets is not None
            self._sockets = self._make_sockets()
        return self._sockets.path

    # -- of a run ------------------------------------------------------------------------------

    async def for_new(self, needed: str | None) -> Backend:
        """Return what runs the programs of a run that begins.

        `needed` is the backend that the run has to have: a run in a session has that of the
        session. Raises `NoBackendAvailable`, and `NotSupported` if another was asked for by name.
        """
        name = needed if needed is not None else await self.chosen()
        if needed is not None and self._explicit and await self.chosen() != name:
            raise NotSupported(
                backend=await self.chosen(), operation=f"a session of the {name} sandbox"
            )
        return await self._usable(name)

    def for_child(self) -> Backend:
        """Return what runs the programs of a run that a program begins: the default."""
        return self.named(DEFAULT)

    async def for_resumed(self, started: RunStarted) -> Backend:
        """Return what runs the programs of a run that is resumed or forked: the same as before."""
        kind_of(started.backend)
        return await self._usable(started.backend)

    async def to_repeat(self, started: RunStarted) -> Backend | None:
        """Return what runs the programs of a recorded run again; None where they are served."""
        kind = BACKENDS.get(started.backend)
        if kind is None or not kind.repeatable:
            return None
        backend = self.named(started.backend)
        return backend if is_same(backend, started) else None

    async def _usable(self, name: str) -> Backend:
        # What can be repeated needs nothing of a host, and is loaded when a program runs.
        if not BACKENDS[name].repeatable:
            await self.ensure(name)
        return self.named(name)

    def may_be_native(self, recorded: RunStarted | None) -> bool:
        """Tell whether a run here, or a recorded one, can have programs that are not repeatable."""
        names = {*self._preference}
        if self._given is not None:
            names.add(self._given_name)
        if recorded is not None:
            names.add(recorded.backend)
        return any(name not in BACKENDS or not BACKENDS[name].repeatable for name in names)

    # -- choosing ------------------------------------------------------------------------------

    async def ensure(self, name: str) -> None:
        """Raise `NoBackendAvailable` unless one can be used here, asked for or not."""
        if name not in self._proven:
            try:
                await self._try(name)
            except (TallystickError, OSError) as error:
                raise NoBackendAvailable(tried=((name, _why(error)),)) from error
            self._proven.add(name)

    async def _try(self, name: str) -> None:
        await self.named(name).prove()

    async def chosen(self) -> str:
        """Return the sandbox of the runs that follow. Raises `NoBackendAvailable`."""
        if self._chosen is None:
            self._chosen = await self._walked()
        return self._chosen

    async def _walked(self) -> str:
        tried: list[tuple[str, str]] = []
        for name in self._preference:
            try:
                await self.ensure(name)
            except NoBackendAvailable as error:
                tried += error.tried
                if len(self._preference) > 1:
                    self._say(f"sandbox {name} passed over: {error.tried[0][1]}")
            else:
                return name
        raise NoBackendAvailable(tried=tuple(tried))

    @property
    def made_any(self) -> bool:
        """True if there may be anything to close."""
        return bool(self._made)

    async def close(self) -> None:
        """Close what was made here. Closing twice is harmless."""
        made, self._made = self._made, {}
        for backend in made.values():
            await backend.close()
        if self._sockets is not None:
            self._sockets.close()


def _packages() -> tuple[Path, ...]:
    """Return where the packages of this Python are, which native programs may import."""
    found = dict.fromkeys(Path(sysconfig.get_path(each)) for each in ("purelib", "platlib"))
    return tuple(each for each in found if each.is_dir() and each.is_absolute())


def _why(error: Exception) -> str:
    return f"{error.code}: {error}" if isinstance(error, TallystickError) else str(error)
