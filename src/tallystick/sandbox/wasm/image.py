"""The guest image that ships with the package: find it, and check it against its manifest.

This module does not import the engine. Commands that only read use it to learn which guest and
engine a session would continue with.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import msgspec

from tallystick.core.errors import GuestMissing

# The engine settings that change the code or its behaviour. They are part of the cache key and of
# the engine name in every snapshot: fuel and results are equal only between equal settings.
_SETTINGS = "fuel=1 epoch=1 nan=1 exceptions=1 opt=speed stack=2097152"


def _version() -> str:
    """Return the version of the engine, without importing it.

    The directory that pip writes beside the package has the version in its name. The standard
    reader, `importlib.metadata`, takes 9 ms; it is used only if that directory is not found.
    """
    found = importlib.util.find_spec("wasmtime")
    if found is not None and found.origin is not None:
        beside = Path(found.origin).parents[1]
        names = [each.name for each in beside.glob("wasmtime-*.dist-info")]
        if len(names) == 1:
            return names[0].removeprefix("wasmtime-").removesuffix(".dist-info")
    from importlib import metadata

    return metadata.version("wasmtime")


ENGINE = f"wasmtime-{_version()} {_SETTINGS}"

FORMAT = 1
_IMAGE_DIRECTORY = Path(__file__).parents[2] / "guest" / "_image"


class GuestImage(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest beside `guest.wasm`. `state` names the guest's mutable globals."""

    format: int
    sha256: str
    state: tuple[str, ...]
    path: Path = Path()

    def read(self) -> bytes:
        """Return the module's bytes. Raise `GuestMissing` if their digest is another.

        Raise `OSError` if the file cannot be read.
        """
        data = self.path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise GuestMissing(f"{self.path} is not the guest its manifest names; install again")
        return data


def load_image(directory: Path = _IMAGE_DIRECTORY) -> GuestImage:
    """Read the manifest, and not the module, which is needed only to compile it.

    Raise `GuestMissing` if the manifest is missing, unreadable or of another format.
    """
    manifest = directory / "guest.json"
    try:
        image = msgspec.json.decode(manifest.read_bytes(), type=GuestImage, strict=True)
    except FileNotFoundError:
        raise GuestMissing(
            f"the guest image is not built ({manifest}); install the package again"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise GuestMissing(f"{manifest} cannot be read: {error}") from error
    if image.format != FORMAT:
        raise GuestMissing(f"{manifest} has format {image.format}; this version reads {FORMAT}")
    return msgspec.structs.replace(image, path=directory / "guest.wasm")
