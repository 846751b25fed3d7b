"""The time zones, packed for a guest that has no files to read them from."""

from __future__ import annotations

import marshal
from importlib import resources

__all__ = [
    "MARSHAL_VERSION",
    "zones_files",
]

# What every Python from 2.4 on can read: the builder and the guest are not the same version.
MARSHAL_VERSION = 2

# Compressed where it is imported, because not every builder's zlib gives the same bytes; and in
# small pieces, because what the interpreter has read and freed stays in the image. The file is read
# as the import system reads its own: for programs `open` is closed by then.
_SOURCE = '''"""Time zones: zlib over marshal of a dict, name to TZif."""

import _io
import zlib

_packer = zlib.compressobj(9)
with _io.FileIO(__file__.removesuffix(".py") + ".bin") as _file:
    ZONES = b"".join(_packer.compress(piece) for piece in iter(lambda: _file.read(16384), b""))
ZONES += _packer.flush()
'''


def zones_files() -> dict[str, bytes]:
    """Write a module `zones` whose `ZONES` is a compressed dict of zone name to TZif file."""
    root = resources.files("tzdata")
    names = root.joinpath("zones").read_text(encoding="utf-8").split()
    zones = {
        name: root.joinpath("zoneinfo", *name.split("/")).read_bytes() for name in sorted(names)
    }
    return {
        "zones.py": _SOURCE.encode(),
        "zones.bin": marshal.dumps(zones, MARSHAL_VERSION),
    }
