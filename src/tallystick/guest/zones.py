"""The time zones, packed for a guest that has no files to read them from."""

from __future__ import annotations

import marshal
import zlib
from importlib import resources

__all__ = [
    "MARSHAL_VERSION",
    "zones_source",
]

# What every Python from 2.4 on can read: the builder and the guest are not the same version.
MARSHAL_VERSION = 2


def zones_source() -> str:
    """Write a module whose `ZONES` is a compressed dict of zone name to TZif file."""
    root = resources.files("tzdata")
    names = root.joinpath("zones").read_text(encoding="utf-8").split()
    zones = {
        name: root.joinpath("zoneinfo", *name.split("/")).read_bytes() for name in sorted(names)
    }
    packed = zlib.compress(marshal.dumps(zones, MARSHAL_VERSION), 9)
    return f'"""Time zones: zlib over marshal of a dict, name to TZif."""\n\nZONES = {packed!r}\n'
