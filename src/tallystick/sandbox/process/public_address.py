"""Which addresses are public: what a box may be let to, whatever name leads there."""

from __future__ import annotations

import ipaddress

__all__ = ["is_public"]

# Ways to write an IPv4 address as an IPv6 one: what counts is where they lead.
_TRANSLATED = [
    ipaddress.IPv6Network(each)
    for each in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96", "fec0::/10")
]


def is_public(address: str) -> bool:
    """Whether an address is one of the open network: not private, local, reserved or for many."""
    try:
        # A scope is a name of an interface: link-local by what it is.
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found.scope_id is not None or any(found in network for network in _TRANSLATED):
            return False
    return (
        found.is_global
        and not found.is_multicast
        and not found.is_reserved
        and not found.is_unspecified
        and not found.is_link_local
    )
