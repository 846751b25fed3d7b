"""The guest image that ships with the package: where it is, and that it is what it says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from tallystick.core.errors import GuestMissing

__all__ = ["FORMAT", "GuestImage", "load_image"]

FORMAT = 1
_IMAGE_DIRECTORY = Path(__file__).parents[2] / "guest" / "_image"


class GuestImage(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest beside `guest.wasm`."""

    format: int
    sha256: str
    state: tuple[str, ...]
    path: Path = Path()

    def read(self) -> bytes:
        """Return the module's bytes, checked against the manifest."""
        data = self.path.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            raise GuestMissing(f"{self.path} is not the guest its manifest names; install again")
        return data


def load_image(directory: Path = _IMAGE_DIRECTORY) -> GuestImage:
    """Read the manifest. The module itself is read only if it has to be compiled."""
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
