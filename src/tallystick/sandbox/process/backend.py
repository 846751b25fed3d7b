"""The backend of the process sandbox, and the network access that grants give to programs."""

from __future__ import annotations

import ipaddress
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
    """A backend that runs native programs in boxes, which the operating system isolates."""

    repeatable = False
    text_bytes_max: int | None = None

    def __init__(self, surface: Surface, given: ProcessSandbox | None = None) -> None:
        # Checked here, so that an impossible `accept_without` is refused before a box is made.
        BoxSettings(accept_without=surface.accept_without)
        self._surface = surface
        self._given = given
        self._made: ProcessSandbox | None = None

    @property
    def sandbox(self) -> ProcessSandbox:
        """The sandbox. Its launcher process starts with the first box."""
        if self._given is not None:
            return self._given
        if self._made is None:
            # Imported here and not above: it takes a while, and most runs do not need it.
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
        """The directory where programs find sockets of this process, None if there is none.

        There is none with a sandbox that was passed in: it cannot see this directory.
        """
        if self._given is not None or self._surface.sockets is None:
            return None
        return self._surface.sockets()

    @property
    def identity(self) -> Identity:
        from tallystick.sandbox.process.programs import identity_of

        return identity_of(self.sandbox)

    def check_grants(self, grants: Sequence[str]) -> None:
        """Raise `UsageError` for network grants that are malformed or contradict each other.

        Raise it too for an address that is not public, granted without saying so: every attempt to
        reach it would be refused.
        """
        network = network_of(grants)
        for place in () if network is None else sorted(network.allow - network.private):
            host, _, port = place.rpartition(":")
            if _is_private_address(host):
                shown = f"[{host}]" if ":" in host else host
                raise UsageError(
                    f"{NET}{shown}:{port}: {host} is not a public address; to grant it, give "
                    f"{NET}{_PRIVATE}{shown}:{port}"
                )

    async def prove(self) -> None:
        """Open and close a session; only that shows which layers this host lacks.

        Raise `IsolationMissing` for a layer that is required, `NotSupported` on other systems than
        Linux, and `SandboxError` if no box can be made. Each missing layer that is accepted is
        reported by `say`, as a warning.
        """
        session = await self.sandbox.open(session_id=new_id())
        await session.close()
        for layer, why in (await self.sandbox.layers()).items():
            if why is not None and layer in self._surface.accept_without:
                self._surface.say(f"warning: the process sandbox does without {layer}: {why}")

    async def open(self, started: RunStarted, history: History, files: Keeper) -> Programs:
        """Open a box with the files of the run's session, or of its last recorded program.

        Raise `UsageError` for bad network grants, `StoreError` if the files cannot be restored, and
        what `ProcessSandbox.open` raises.
        """
        from tallystick.sandbox.process.programs import open_process

        network = network_of(started.grants)
        return await open_process(self.sandbox, started, history, files, network=network)

    async def close(self) -> None:
        """Close the sandbox that this backend made. Closing twice is harmless."""
        made, self._made = self._made, None
        if made is not None:
            await made.close()


def make(surface: Surface, given: ProcessSandbox | None = None) -> Backend:
    """Return a backend that uses the sandbox `given`, or else one that it makes.

    Raise `UsageError` if `surface.accept_without` names a layer that cannot be left out.
    """
    return ProcessBackend(surface, given)


# The network grants of native programs: `net:HOST` or `net:HOST:PORT`, and nothing else.
#
# A host of `net:private:HOST:PORT` may have an address that is not public. `net:none` grants
# nothing. Grants that contradict each other are refused, and the error names them.


# The ports of a grant that names none.
_PORTS = (80, 443)
_PRIVATE = "private:"


def network_of(grants: Sequence[str]) -> NetworkGrant | None:
    """Return what programs may reach under these grants, None if nothing.

    A grant without a port is for 80 and 443. Raise `UsageError` for grants that are malformed or
    contradict each other.
    """
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
    # Imported here and not above: it takes a while, and most runs have no network.
    from tallystick.sandbox.process.proxy import NetworkGrant

    return NetworkGrant(allow=frozenset(public) | frozenset(private), private=frozenset(private))


def _places(named: str, grant: str) -> list[str]:
    """Return the `host:port` entries that a grant names. Raise `UsageError` if it is malformed.

    Without a port, these are two: for 80 and for 443.
    """
    host, colon, port = named.rpartition(":")
    if not colon:
        host = named
    if named.endswith("]"):
        # An IPv6 address without a port: the last colon is its own.
        host, colon, port = named, "", ""
    if not host or host != host.strip() or (colon and not port.isdecimal()):
        raise UsageError(f"{grant[:80]}: a grant of the network is {NET}HOST or {NET}HOST:PORT")
    if host.startswith("["):
        # As the proxy writes it, which takes an address in any spelling.
        try:
            host = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise UsageError(f"{grant[:80]}: an IPv6 address in brackets is needed") from None
    return [f"{host}:{port}"] if colon else [f"{host}:{each}" for each in _PORTS]


def _is_private_address(host: str) -> bool:
    """Return True for an address that is not public, and for `localhost`."""
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    from tallystick.sandbox.process.proxy import is_public

    return not is_public(host)
