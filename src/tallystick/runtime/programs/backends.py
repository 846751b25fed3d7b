"""Which sandbox a run has, of those that work here, and what network it is granted.

Rule 1: what is passed over is said, with the reason. Where nothing is left, all reasons are told.
Rule 2: nobody gets less isolation than they asked for. `auto` is the WASM sandbox and no other; a
layer that the host lacks is done without only if it is named.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tallystick.core.errors import SandboxError, TallystickError, UsageError
from tallystick.core.machine.prompt import NET
from tallystick.sandbox.port import AUTO, BACKENDS
from tallystick.settings.paths import cache_directory, data_directory
from tallystick.storage.clock import new_id

if TYPE_CHECKING:
    from tallystick.sandbox.process.proxy import NetworkGrant
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.wasm.sandbox import WasmSandbox


# What of the network native programs are granted: `net:HOST`, `net:HOST:PORT`, and no more.
#
# `net:private:HOST:PORT` may be at an address that is not public, `net:none` says that nothing is
# granted. Grants that contradict each other are refused by name.


# Where a host is asked without a port.
_PORTS = (80, 443)
_NONE, _PRIVATE = "none", "private:"


def check_grants(grants: Sequence[str], *, native: bool) -> None:
    """Refuse grants of the network that mean nothing here, or contradict each other."""
    given = [each for each in grants if each.startswith(NET)]
    if given and not native and given != [f"{NET}{_NONE}"]:
        raise UsageError(
            f"{', '.join(given)}: programs of the wasm sandbox have no network; it is for those "
            "of the process sandbox (--sandbox process)"
        )
    network_of(grants)


def network_of(grants: Sequence[str]) -> NetworkGrant | None:
    """What may be reached under these grants; None if nothing may."""
    given = list(dict.fromkeys(each for each in grants if each.startswith(NET)))
    if f"{NET}{_NONE}" in given:
        if len(given) > 1:
            raise UsageError(f"{', '.join(given)}: contradictory grants")
        return None
    public: dict[str, str] = {}
    private: dict[str, str] = {}
    for grant in given:
        named = grant.removeprefix(NET)
        kind = private if named.startswith(_PRIVATE) else public
        for place in _places(named.removeprefix(_PRIVATE), grant):
            kind[place] = grant
    for place in public.keys() & private.keys():
        raise UsageError(f"{public[place]}, {private[place]}: contradictory grants")
    if not given:
        return None
    # Most runs have none: it takes a while to import.
    from tallystick.sandbox.process.proxy import NetworkGrant

    return NetworkGrant(allow=frozenset(public) | frozenset(private), private=frozenset(private))


def _places(named: str, grant: str) -> list[str]:
    """The hosts with ports that a grant names."""
    host, colon, port = named.rpartition(":")
    if not colon:
        host = named
    if not host or host != host.strip() or (colon and not port.isdecimal()):
        raise UsageError(f"{grant[:80]}: a grant of the network is {NET}HOST or {NET}HOST:PORT")
    return [named] if colon else [f"{host}:{each}" for each in _PORTS]


def without_network(grants: Sequence[str]) -> list[str]:
    """The grants of a run that has no network whatever."""
    return [each for each in grants if not each.startswith(NET)]


# Which sandbox a run has: the first of those that were asked for that this host can give.


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
_DEFAULT = "wasm"


class NoBackendAvailable(SandboxError):
    """None of the sandboxes that were asked for is to be had here. `tried` says why, of each."""

    code = "backend.none_available"

    def __init__(self, *, tried: tuple[tuple[str, str], ...]) -> None:
        said = "; ".join(f"{name}: {why}" for name, why in tried)
        super().__init__(f"no sandbox can be used here: {said}")
        self.tried = tried


def read_preference(text: str) -> tuple[str, ...]:
    """The sandboxes to try, in their order: `auto`, a name, or several with commas between."""
    if text == AUTO:
        return (_DEFAULT,)
    names = tuple(each.strip() for each in text.split(","))
    for name in names:
        if name not in BACKENDS:
            raise UsageError(f"sandbox {name[:40]!r}: there are {AUTO}, {', '.join(BACKENDS)}")
    if len(set(names)) < len(names):
        raise UsageError(f"sandbox {text[:80]!r}: one stands there twice")
    return names


class SocketFolder(Protocol):
    """A private directory where native programs find sockets of this process."""

    @property
    def path(self) -> Path: ...

    def close(self) -> None: ...


class Backends:
    """The sandboxes of one caller, each made when it is needed.

    `sockets` makes the directory where native programs find sockets; None gives them none.
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
        self._make_sockets = sockets
        self._preference = read_preference(preference)
        self._explicit = preference != AUTO
        self._proven: set[str] = set()
        if accept_without and preference != AUTO and "process" not in self._preference:
            raise UsageError(
                f"accept without {', '.join(sorted(accept_without))}: only the process sandbox "
                "has layers to do without"
            )
        self._sockets: SocketFolder | None = None
        self._accept_without = frozenset(accept_without)
        if self._accept_without:
            from tallystick.sandbox.process.settings import BoxSettings

            # Refused here, and not when a box is made.
            BoxSettings(accept_without=self._accept_without)
        self._given = given
        # By name: what is not imported yet cannot have been given. Whatever else it is takes the
        # place of the WASM sandbox.
        is_process = getattr(given, "name", "") == "process"
        self._process = cast("ProcessSandbox | None", given if is_process else None)
        self._wasm = cast("WasmSandbox | None", None if is_process else given)
        self._say = say
        self._chosen: str | None = None

    def wasm(self) -> WasmSandbox:
        if self._wasm is None:
            # Not before a program is to run: the engine takes a while to import.
            from tallystick.sandbox.wasm.sandbox import WasmSandbox

            self._wasm = WasmSandbox.load(
                cache=cache_directory(),
                output_directory=data_directory() / "output",
                say=self._say,
            )
        return self._wasm

    def process(self) -> ProcessSandbox:
        if self._process is None:
            # Most runs do without: it takes a while to import.
            from tallystick.sandbox.process.sandbox import ProcessSandbox
            from tallystick.sandbox.process.settings import BoxSettings

            settings = BoxSettings(
                accept_without=self._accept_without,
                packages=_packages(),
                readable=() if self._make_sockets is None else (self._socket_folder().path,),
            )
            self._process = ProcessSandbox(
                settings=settings, output_directory=data_directory() / "output"
            )
        return self._process

    def _socket_folder(self) -> SocketFolder:
        """Make the directory when the first process sandbox is."""
        if self._sockets is None:
            assert self._make_sockets is not None
            self._sockets = self._make_sockets()
        return self._sockets

    def sockets_of_process(self) -> Path | None:
        """Return where programs of the process sandbox find sockets; None for one given here."""
        if self._process is self._given or self._make_sockets is None:
            return None
        return self._socket_folder().path

    @property
    def may_be_native(self) -> bool:
        """Whether a run here can have native programs, so far as that was asked for."""
        return "process" in self._preference or self._process is not None

    @property
    def explicit(self) -> bool:
        """Whether a sandbox was asked for by name."""
        return self._explicit

    async def ensure(self, name: str) -> None:
        """Raise `NoBackendAvailable` unless one can be used here, asked for or not."""
        if name not in self._proven:
            try:
                await self._try(name)
            except (TallystickError, OSError) as error:
                raise NoBackendAvailable(tried=((name, _why(error)),)) from error
            self._proven.add(name)

    async def chosen(self) -> str:
        """The sandbox of the runs that follow. Raises `NoBackendAvailable`."""
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

    async def _try(self, name: str) -> None:
        """Have a session of it: what a host lacks shows then and not before."""
        if name == "wasm":
            self.wasm()
            return
        session = await self.process().open(session_id=new_id())
        await session.close()
        for layer, why in (await self.process().layers()).items():
            if why is not None and layer in self._accept_without:
                self._say(f"warning: the process sandbox does without {layer}: {why}")

    @property
    def owns_any(self) -> bool:
        """Whether there is anything to close that was not given."""
        return any(each not in (None, self._given) for each in (self._wasm, self._process))

    async def close(self) -> None:
        """Close what was made here. Closing twice is harmless."""
        if self._wasm is not None and self._wasm is not self._given:
            await self._wasm.close()
            self._wasm = None
        if self._process is not None and self._process is not self._given:
            await self._process.close()
            self._process = None
        if self._sockets is not None:
            self._sockets.close()


def _packages() -> tuple[Path, ...]:
    """Where the packages of this Python are, which native programs may import."""
    found = dict.fromkeys(Path(sysconfig.get_path(each)) for each in ("purelib", "platlib"))
    return tuple(each for each in found if each.is_dir() and each.is_absolute())


def _why(error: Exception) -> str:
    return f"{error.code}: {error}" if isinstance(error, TallystickError) else str(error)
