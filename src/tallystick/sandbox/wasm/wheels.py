"""Wheels that a session may be given: pure Python, of sane size, checked before they are read."""

from __future__ import annotations

import io
import struct
import zipfile

from tallystick.core.errors import UsageError

__all__ = ["WHEEL_BYTES_MAX", "check_wheel"]

WHEEL_BYTES_MAX = 64 * 1024 * 1024
_UNPACKED_BYTES_MAX = 256 * 1024 * 1024
_FILES_MAX = 20_000
_DIRECTORY_BYTES_MAX = 4 * 1024 * 1024
# The end record of a zip file: signature, then the size of the directory at offset 12.
_END_SIGNATURE, _END_BYTES, _COMMENT_BYTES_MAX = b"PK\x05\x06", 22, 65_535
_NATIVE = (".so", ".pyd", ".dylib", ".dll")


def check_wheel(data: bytes, *, name: str) -> None:
    """Refuse what is not a pure-Python wheel, with the reason. Nothing is unpacked here."""
    why = _trouble(data)
    if why is not None:
        raise UsageError(f"{name} cannot be added to a session: {why}")


def _trouble(data: bytes) -> str | None:
    if len(data) > WHEEL_BYTES_MAX:
        return f"it is {len(data):,} bytes; at most {WHEEL_BYTES_MAX:,}"
    if _directory_bytes(data) > _DIRECTORY_BYTES_MAX:
        return f"it holds too many files: over {_DIRECTORY_BYTES_MAX:,} bytes of names"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            members = wheel.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, struct.error):
        return "it is not a wheel (not a zip file)"
    if len(members) > _FILES_MAX:
        return f"it holds {len(members):,} files; at most {_FILES_MAX:,}"
    unpacked = sum(member.file_size for member in members)
    if unpacked > _UNPACKED_BYTES_MAX:
        return f"it unpacks to {unpacked:,} bytes; at most {_UNPACKED_BYTES_MAX:,}"
    native = next((each.filename for each in members if each.filename.endswith(_NATIVE)), None)
    if native is not None:
        return f"it holds native code ({native}); only pure-Python wheels run here"
    if not any(each.filename.endswith(".dist-info/WHEEL") for each in members):
        return "it is not a wheel (no .dist-info/WHEEL in it)"
    return None


def _directory_bytes(data: bytes) -> int:
    """The size the file gives for its directory, which is read whole before a name is seen."""
    at = data.rfind(_END_SIGNATURE, max(0, len(data) - _END_BYTES - _COMMENT_BYTES_MAX))
    if at < 0 or at + _END_BYTES > len(data):
        return 0
    return int.from_bytes(data[at + 12 : at + 16], "little")
