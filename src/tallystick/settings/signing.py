"""Sign and verify with Ed25519 keys, by the library of the extra `sign`.

Rule 1: the key is in the configuration directory, created on first use, readable by the user only,
and never beside the ledger: someone who can change the ledger should not find the key there.
Rule 2: a signature is checked with a key that the user names, and with no other.

Keys are PEM files as other tools write and read them, so a signature can be checked without
tallystick. A key's id is the SHA-256 of its 32 public bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.core.errors import StoreError, UsageError, system_errors
from tallystick.core.json_text import digest
from tallystick.settings.schema import one_line
from tallystick.storage import system
from tallystick.storage.private_file import make_private, write_whole

_LIBRARY = "cryptography"
_PRIVATE_NAME = "signing.key"
_PUBLIC_NAME = "signing.pub"
_PEM_BYTES_MAX = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A key that verifies signatures."""

    id: str
    _key: Any

    def signed(self, data: bytes, signature: bytes) -> bool:
        """Return True if the holder of this key signed `data`; False for any other signature."""
        invalid: Any = importlib.import_module("cryptography.exceptions").InvalidSignature
        try:
            self._key.verify(signature, data)
        except invalid:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A key that signs. `made` is True if it was created just now."""

    id: str
    public_path: Path
    made: bool
    _key: Any

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`."""
        signature: bytes = self._key.sign(data)
        return signature


def signing_available() -> bool:
    """Return True if the extra is installed."""
    return importlib.util.find_spec(_LIBRARY) is not None


def open_signing_key(directory: Path, *, ledger: Path) -> SigningKey:
    """Return this user's key, created if there is none. Its public half is written beside it.

    Raise `UsageError` if the extra is missing, or if `directory` is the one of the file `ledger`.
    Raise `StoreError` if the key cannot be read or written, is damaged or no Ed25519 key, belongs
    to another user, or others can read it.
    """
    _require_library()
    if os.path.realpath(directory) == os.path.realpath(ledger.parent):
        raise UsageError(
            f"{_show(directory)} holds the ledger: someone who changes the ledger would find the "
            f"key beside it; set XDG_CONFIG_HOME to another directory"
        )
    path = directory / _PRIVATE_NAME
    with system_errors(_show(path), StoreError):
        made = not os.path.lexists(path) and _make(directory, path)
        key = _private(path)
        public = key.public_key()
        public_path = directory / _PUBLIC_NAME
        _publish(public, public_path)
    return SigningKey(id=_id(public), public_path=public_path, made=made, _key=key)


def read_public_key(path: Path) -> PublicKey:
    """Return a public key from a PEM file.

    Raise `UsageError` if the extra is missing, if the file cannot be read, or if it is a private
    key or no Ed25519 key.
    """
    _require_library()
    with system_errors(_show(path), UsageError), path.open("rb") as file:
        data = file.read(_PEM_BYTES_MAX + 1)
    if b"PRIVATE KEY" in data:
        raise UsageError(
            f"{_show(path)} is a private key: name its public half, and keep the private one secret"
        )
    try:
        key = _serialization().load_pem_public_key(data[:_PEM_BYTES_MAX])
    # The library raises several kinds of errors for a file that is no key, or an unusable one.
    except Exception as error:
        raise UsageError(f"{_show(path)} is not a public key in a PEM file") from error
    if not isinstance(key, _ed25519().Ed25519PublicKey):
        raise UsageError(f"{_show(path)} is a key of another kind; signatures here are Ed25519")
    return PublicKey(id=_id(key), _key=key)


def _require_library() -> None:
    if not signing_available():
        raise UsageError("signatures need an extra: pip install 'tallystick[sign]'")


def _make(directory: Path, path: Path) -> bool:
    """Write a new key, whole or not at all. Return False if another process was faster.

    `directory` is made if it is missing. Raise `OSError` if the key cannot be written.
    """
    make_private(directory)
    serialization = _serialization()
    pem: bytes = (
        _ed25519()
        .Ed25519PrivateKey.generate()
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    try:
        # Without `replace`, so that two processes end up with the same key. The write is forced to
        # the disk, because a signature must not survive a power cut that loses its key.
        write_whole(path, pem, replace=False)
    except FileExistsError:
        return False
    return True


def _private(path: Path) -> Any:  # noqa: ANN401 (of an extra that may not be here)
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != system.user_id() or status.st_mode & 0o077:
            raise StoreError(
                f"{_show(path)} is readable or writable by others; if it was not misused, restrict "
                f"it: chmod 600"
            )
        data = file.read(_PEM_BYTES_MAX)
    try:
        key = _serialization().load_pem_private_key(data, password=None)
    except Exception as error:
        raise StoreError(
            f"{_show(path)} is damaged; move it away, and the next signature makes a new key"
        ) from error
    if not isinstance(key, _ed25519().Ed25519PrivateKey):
        raise StoreError(f"{_show(path)} is a key of another kind; signatures here are Ed25519")
    return key


def _publish(public: Any, path: Path) -> None:  # noqa: ANN401 (of the extra)
    serialization = _serialization()
    pem: bytes = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == pem:
            return
    write_whole(path, pem)


def _id(public: Any) -> str:  # noqa: ANN401 (of the extra)
    return digest(public.public_bytes_raw())


def _ed25519() -> Any:  # noqa: ANN401 (a module of the extra)
    return importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")


def _serialization() -> Any:  # noqa: ANN401 (a module of the extra)
    return importlib.import_module("cryptography.hazmat.primitives.serialization")


def _show(path: Path) -> str:
    return one_line(str(path))
