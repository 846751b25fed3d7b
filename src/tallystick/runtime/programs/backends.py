"""Choose the sandbox backend for the programs of a run, among those that work on this host.

Rule 1: a backend that is passed over is reported, with the reason. If none is left, the error has
all reasons.
Rule 2: the user never gets less isolation than they asked for. `auto` means the default backend and
no other. A layer that the host lacks is left out only if the user names it.
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

# Every capability that a sandbox may report.
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
    """Raised if no sandbox of the preference works here. `tried` has each name and the reason."""

    code = "backend.none_available"

    def __init__(self, *, tried: tuple[tuple[str, str], ...]) -> None:
        said = "; ".join(f"{name}: {why}" for name, why in tried)
        super().__init__(f"no sandbox can be used here: {said}")
        self.tried = tried


def read_preference(text: str) -> tuple[str, ...]:
    """Return the names of the sandboxes to try, in order.

    `text` is `auto`, a name, or names with commas. Raise `UsageError` for an unknown name, and for
    one that is there twice.
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
    """Return the grants without those for the network."""
    return [each for each in grants if not each.startswith(NET)]


def is_same(backend: Backend, started: RunStarted) -> bool:
    """Return True if the backend has the guest and engine of the run: its programs can repeat.

    The name of the backend is not compared.
    """
    return (started.guest, started.engine) == backend.identity[1:]


class SocketFolder(Protocol):
    """A private directory where native programs find sockets of this process."""

    @property
    def path(self) -> Path: ...

    def close(self) -> None: ...


class Backends:
    """The backends of one client, each created when it is needed.

    `given` is a sandbox of the caller, which is used for the backend of its name, or else for the
    default. `sockets` creates the directory where native programs find sockets of this process, at
    most once; None gives them none. `say` is called with a line for each backend that is passed
    over. Raise `UsageError` for a preference that cannot be, and for unknown layers.
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
        """Raise `UsageError` now, not at the first program, for unknown layers to do without."""
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
        """Return the backend of this name, whether or not it is in the preference.

        It is created on the first call, and not proven to work here. Raise `NotSupported` for an
        unknown name, and `UsageError` for a layer that it cannot do without.
        """
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
        """Return the WASM sandbox, which scripts of skills use as well."""
        sandbox: WasmSandbox = self.named("wasm").sandbox
        return sandbox

    def _socket_folder(self) -> Path:
        """Return the directory of sockets, and create it on the first call."""
        if self._sockets is None:
            assert self._make_sockets is not None
            self._sockets = self._make_sockets()
        return self._sockets.path

    # -- of a run ------------------------------------------------------------------------------

    async def for_new(self, needed: str | None) -> Backend:
        """Return the backend of a new run.

        `needed` is the backend of the session that the run is in, None without one. Raise
        `NoBackendAvailable`, or `NotSupported` if the user named another than the session has.
        """
        name = needed if needed is not None else await self.choose()
        if needed is not None and self._explicit and await self.choose() != name:
            raise NotSupported(
                backend=await self.choose(), operation=f"a session of the {name} sandbox"
            )
        return await self._usable(name)

    def for_child(self) -> Backend:
        """Return the backend of a child run: always the default."""
        return self.named(DEFAULT)

    async def for_resumed(self, started: RunStarted) -> Backend:
        """Return the backend of a resumed or forked run: the one on its record.

        Raise `NoBackendAvailable` if it does not work here, and what `kind_of` raises for a name
        that this version does not know.
        """
        kind_of(started.backend)
        return await self._usable(started.backend)

    async def to_repeat(self, started: RunStarted) -> Backend | None:
        """Return the backend that repeats the programs of a recorded run.

        Return None if they cannot be repeated here: then they are served from the record.
        """
        kind = BACKENDS.get(started.backend)
        if kind is None or not kind.repeatable:
            return None
        backend = self.named(started.backend)
        return backend if is_same(backend, started) else None

    async def _usable(self, name: str) -> Backend:
        # A repeatable backend needs nothing from the host, so there is nothing to prove.
        if not BACKENDS[name].repeatable:
            await self.ensure(name)
        return self.named(name)

    def may_be_native(self, recorded: RunStarted | None) -> bool:
        """Return True if a new run, or the recorded one, may have native programs."""
        names = {*self._preference}
        if self._given is not None:
            names.add(self._given_name)
        if recorded is not None:
            names.add(recorded.backend)
        return any(name not in BACKENDS or not BACKENDS[name].repeatable for name in names)

    # -- choosing ------------------------------------------------------------------------------

    async def ensure(self, name: str) -> None:
        """Prove once that a backend works here. Raise `NoBackendAvailable` if it does not.

        A failure is not remembered: the next call tries again.
        """
        if name not in self._proven:
            try:
                await self._try(name)
            except (TallystickError, OSError) as error:
                raise NoBackendAvailable(tried=((name, _why(error)),)) from error
            self._proven.add(name)

    async def _try(self, name: str) -> None:
        await self.named(name).prove()

    async def choose(self) -> str:
        """Return the first backend of the preference that works here, the same at each call.

        Each one that is passed over is reported by `say`, if others were named too. Raise
        `NoBackendAvailable`, with every reason, if none works.
        """
        if self._chosen is None:
            self._chosen = await self._first_usable()
        return self._chosen

    async def _first_usable(self) -> str:
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
        """True if a backend was created, and `close` has something to do."""
        return bool(self._made)

    async def close(self) -> None:
        """Close every backend that was created here, and remove the directory of sockets.

        A sandbox of the caller stays open. Closing twice is harmless.
        """
        made, self._made = self._made, {}
        for backend in made.values():
            await backend.close()
        if self._sockets is not None:
            self._sockets.close()


def _packages() -> tuple[Path, ...]:
    """Return the folders of this Python's packages, which native programs may import."""
    found = dict.fromkeys(Path(sysconfig.get_path(each)) for each in ("purelib", "platlib"))
    return tuple(each for each in found if each.is_dir() and each.is_absolute())


def _why(error: Exception) -> str:
    return f"{error.code}: {error}" if isinstance(error, TallystickError) else str(error)
