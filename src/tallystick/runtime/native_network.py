"""What of the network native programs are granted: `net:HOST`, `net:HOST:PORT`, and no more.

`net:private:HOST:PORT` may be at an address that is not public, `net:none` says that nothing is
granted. Grants that contradict each other are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError
from tallystick.core.native_prompt import NET

if TYPE_CHECKING:
    from tallystick.sandbox.process.proxy import NetworkGrant

__all__ = ["check_grants", "network_of", "without_network"]

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
