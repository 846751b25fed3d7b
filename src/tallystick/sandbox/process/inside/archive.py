"""A session's files and variables as bytes, and back: done in the box, in the rights of a program.

Whoever made such bytes was a program; so they are taken apart nowhere but in a box.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import socket
import stat
import sys
import tarfile
import types
from collections.abc import Mapping
from typing import Any

from tallystick.sandbox.process.inside import messages
from tallystick.sandbox.process.inside.layers import WORK

_KINDS = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
_NAMES_MAX = 10_000


def pack_files(control: socket.socket) -> None:
    """Write the working directory to the descriptor that comes, as a tar."""
    _, descriptors = messages.receive(control)
    left_out = 0
    with (
        open(descriptors[0], "wb") as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for where, directories, names in os.walk(WORK):
            for name in sorted(directories + names):
                path = os.path.join(where, name)
                try:
                    if any(is_kind(os.lstat(path).st_mode) for is_kind in _KINDS):
                        tar.add(path, os.path.relpath(path, WORK), recursive=False)
                    else:
                        left_out += 1
                except OSError:
                    # Closed, gone by now, or too deep to be named.
                    left_out += 1
    messages.send(control, {"packed": True, "left_out": left_out})


def unpack_files(control: socket.socket) -> None:
    """Fill the working directory from a tar."""
    _, descriptors = messages.receive(control)
    try:
        with (
            open(descriptors[0], "rb") as given,
            tarfile.open(fileobj=given, mode="r|") as tar,
        ):
            # Nothing is outside that a name could lead to.
            tar.extraction_filter = lambda member, path: member
            tar.extractall(WORK)
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        messages.send(control, {"unpacked": False, "why": str(error)[:200]})
        return
    messages.send(control, {"unpacked": True})


def packed_variables(names: Mapping[str, Any], injected: Mapping[str, Any]) -> bytes:
    """The variables of a namespace that can be kept, and the names of those that cannot."""
    kept, imported, refused = {}, {}, {}
    for name, value in names.items():
        if name.startswith("_") or name in injected:
            continue
        if isinstance(value, types.ModuleType):
            imported[name] = value.__name__
            continue
        try:
            kept[name] = base64.b64encode(_pickled(value)).decode()
        except BaseException as error:
            refused[name] = f"{type(error).__name__}: {error}"[:200]
    return json.dumps({"kept": kept, "imported": imported, "refused": refused}).encode()


class _Pickler(pickle.Pickler):
    """Refuses what would be found by its name in a namespace that is no more."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as its base says
        of_program = getattr(value, "__module__", None) == "__main__"
        if of_program and isinstance(value, (type, types.FunctionType)):
            raise pickle.PicklingError("what a program defined is not kept")
        return NotImplemented


def _pickled(value: object) -> bytes:
    out = io.BytesIO()
    _Pickler(out, protocol=5).dump(value)
    return out.getvalue()


def unpacked_variables(data: bytes, names: dict[str, Any]) -> None:
    """Put kept variables into a namespace. What cannot be made again is left out."""
    found = json.loads(data)
    for name, module in found["imported"].items():
        try:
            __import__(module)
            names[name] = sys.modules[module]
        except ImportError:
            continue
    for name, value in found["kept"].items():
        try:
            names[name] = pickle.loads(base64.b64decode(value))
        except Exception:
            continue
