"""The process sandbox as a backend, with the network that its programs are granted."""

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
from tallystick.sandbox.process.settings import BoxSettings
from tallystick.storage.clock import new_id

if TYPE_CHECKING:
    from tallystick.sandbox.process.proxy import NetworkGrant
    from tallystick.sandbox.process.sandbox import ProcessSandbox


class ProcessBackend:
    """Native programs in boxes of the operating system."""

    repeatable = False

    def __init__(self, surface: Surface, given: ProcessSandbox | None = None) -> None:
        # Layers that cannot be done without are refused here, and not when a box is made.
        BoxSettings(accept_without=surface.accept_without)
        self._surface = surface
        self._given = given
        self._made: ProcessSandbox | None = None

    @property
    def sandbox(self) -> ProcessSandbox:
        """The sandbox; its launcher is started with the first box."""
        if self._given is not None:
            return self._given
        if self._made is None:
            # Most runs do without: it takes a while to import.
            from tallystick.sandbox.process.sandbox import ProcessSandbox

            folder = self.sockets
            settings = BoxSettings(
                accept_without=self._surface.accept_without,
                packages=tuple(self._surface.packages()),
                readable=() if folder is None else (folder,),
            )
            self._made = ProcessSandbox(settings=settings, output_directory=self._surface.output)
        return self._made

    @property
    def sockets(self) -> Path | None:
        """Where programs find sockets of this process. A sandbox handed in cannot see ours."""
        if self._given is not None or self._surface.sockets is None:
            return None
        return self._surface.sockets()

    @property
    def identity(self) -> Identity:
        from tallystick.sandbox.process.programs import identity_of

        return identity_of(self.sandbox)

    def check_grants(self, grants: Sequence[str]) -> None:
        """Refuse grants of the network that mean nothing, or contradict each other."""
        network_of(grants)

    async def prove(self) -> None:
        """Have a session: what a host lacks shows then and not before."""
        session = await self.sandbox.open(session_id=new_id())
        await session.close()
        for layer, why in (await self.sandbox.layers()).items():
            if why is not None and layer in self._surface.accept_without:
                self._surface.say(f"warning: the process sandbox does without {layer}: {why}")

    async def open(self, started: RunStarted, history: History, files: Keeper) -> Programs:
        """Open a box with the files of the run's session, or of its last recorded program."""
        from tallystick.sandbox.process.programs import open_process

        network = network_of(started.grants)
        return await open_process(self.sandbox, started, history, files, network=network)

    async def close(self) -> None:
        """Close the sandbox that was made here. Closing twice is harmless."""
        made, self._made = self._made, None
        if made is not None:
            await made.close()


def make(surface: Surface, given: ProcessSandbox | None = None) -> Backend:
    """Return the process sandbox as a backend."""
    return ProcessBackend(surface, given)


# What of the network native programs are granted: `net:HOST`, `net:HOST:PORT`, and no more.
#
# `net:private:HOST:PORT` may be at an address that is not public, `net:none` says that nothing is
# granted. Grants that contradict each other are refused by name.


# Where a host is asked without a port.
_PORTS = (80, 443)
_PRIVATE = "private:"


def network_of(grants: Sequence[str]) -> NetworkGrant | None:
    """Return what may be reached under these grants; None if nothing may."""
    given = list(dict.fromkeys(each for each in grants if each.startswith(NET)))
    if NO_NETWORK in given:
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
    """Return the hosts with ports that a grant names."""
    host, colon, port = named.rpartition(":")
    if not colon:
        host = named
    if not host or host != host.strip() or (colon and not port.isdecimal()):
        raise UsageError(f"{grant[:80]}: a grant of the network is {NET}HOST or {NET}HOST:PORT")
    return [named] if colon else [f"{host}:{each}" for each in _PORTS]
