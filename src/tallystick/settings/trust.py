"""Trust in a project's file: what it may set without trust, and the record of trusted files.

A cloned project's file may restrict what a run does and never widen it. Without trust, it may lower
limits, choose among the user's own providers, set the temperature or name models. The rest is
ignored, and a warning says so. Trust is for one path and one content: any change of the bytes ends
it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from tallystick.core.errors import StoreError, system_errors
from tallystick.settings.files import ConfigFile
from tallystick.settings.providers import bare_provider
from tallystick.settings.schema import FILE_KINDS, SETTINGS, Value, one_line
from tallystick.storage import system
from tallystick.storage.lock import FileLock
from tallystick.storage.private_file import write_whole

TrustState = Literal["trusted", "changed", "untrusted"]

_FORMAT = 1
_BYTES_MAX = 4 * 1024 * 1024


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored record: digests by path."""

    format: int
    files: dict[str, str]


class Noted(msgspec.Struct, frozen=True):
    """The content of a store when it was read."""

    _digests: Mapping[str, str]

    def __contains__(self, path: Path) -> bool:
        return _key(path) in self._digests

    def state(self, path: Path, sha256: str) -> TrustState:
        """Return the trust in a content with this digest at this path.

        "untrusted" if the path was never noted, "changed" if it was noted with another digest.
        """
        noted = self._digests.get(_key(path))
        if noted is None:
            return "untrusted"
        return "trusted" if noted == sha256 else "changed"


class TrustStore:
    """The files that this user trusts, recorded in a file of the configuration directory.

    `trusted.json` is for projects' files; other kinds of things have files of their own. Methods
    raise `StoreError` if the record cannot be read or written, is damaged, or may be written by
    others. Without POSIX owners of files nothing is trusted, and writing raises `NotSupportedHere`.
    """

    def __init__(self, directory: Path, *, name: str = "trusted.json") -> None:
        self._directory = directory
        self._path = directory / name

    def noted(self) -> Noted:
        """Read all that is trusted, once. Later changes of the record do not show in the result."""
        return Noted(self._read())

    def state(self, file: ConfigFile) -> TrustState:
        """Return the trust in these bytes at this path, from the record as it is now."""
        return self.noted().state(file.path, file.sha256)

    def trust(self, file: ConfigFile) -> None:
        """Record the digest of the bytes that were read, which the path may not have any more."""
        self.note({file.path: file.sha256})

    def note(self, digests: Mapping[Path, str]) -> None:
        """Record digests of what was read and shown, by path; all of them or none. Others stay."""
        with self._lock_record():
            new = {_key(path): sha256 for path, sha256 in digests.items()}
            self._write({**self._read(), **new})

    def untrust(self, path: Path) -> bool:
        """Remove a path from the record, whatever its content. Return False if it was not there."""
        with self._lock_record():
            files = self._read()
            found = files.pop(_key(path), None) is not None
            if found:
                self._write(files)
        return found

    def _read(self) -> dict[str, str]:
        if not system.is_posix():
            # Without POSIX owners it is unknown who wrote the file, so nothing is trusted.
            return {}
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_uid != system.user_id() or status.st_mode & 0o022:
                    raise StoreError(
                        f"{self._shown} may be written by others; delete it, and trust again"
                    )
                record = msgspec.json.decode(file.read(_BYTES_MAX), type=_Record)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StoreError(f"{self._shown}: {error.strerror or error}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"{self._shown} is damaged; delete it, and trust again") from error
        if record.format != _FORMAT:
            raise StoreError(
                f"{self._shown} has format {record.format}; this version reads {_FORMAT}"
            )
        return record.files

    def _write(self, files: Mapping[str, str]) -> None:
        record = _Record(format=_FORMAT, files=dict(sorted(files.items())))
        data = msgspec.json.format(msgspec.json.encode(record)) + b"\n"
        with system_errors(self._shown, StoreError):
            write_whole(self._path, data)

    @contextlib.contextmanager
    def _lock_record(self) -> Iterator[None]:
        """Hold the lock of the record: two writers at once would each undo the other's change.

        All records of the directory have one lock. Waits for it without a limit.
        """
        system.require_posix("the list of trusted files")
        lock = FileLock(self._directory / "trusted.lock")
        with system_errors(self._shown, StoreError):
            lock.take(wait_seconds=None)
        try:
            yield
        finally:
            lock.release()

    @property
    def _shown(self) -> str:
        return one_line(str(self._path))


def _key(path: Path) -> str:
    # A path need not be UTF-8. Two paths with the same key still differ by their digests.
    return os.fsencode(os.path.realpath(path)).decode("utf-8", "backslashreplace")


class Restricted(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs trust. `why` explains it if the name alone does not."""

    name: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


class Narrowed(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a file that counts without trust, and what was left out."""

    values: Mapping[str, Value]
    aliases: Mapping[str, str]
    restricted: tuple[Restricted, ...]


def narrow(
    file: ConfigFile,
    *,
    below: Mapping[str, Value],
    aliases: Mapping[str, str],
    leaves_machine: Callable[[str, Mapping[str, str]], bool],
) -> Narrowed:
    """Return the part of a file that may take effect without trust, and what was left out.

    `below` are the settings without this file, `aliases` the user's own. `leaves_machine` is called
    with a model and the aliases that count. It returns True if the model would be asked on another
    machine.
    """
    restricted: list[Restricted] = []
    kept: dict[str, str] = {}
    for name, target in file.aliases.items():
        # A user who types `-m fast` means the `fast` they know, so it may not be redefined.
        if name in aliases or bare_provider(name) or _kind(target) in FILE_KINDS:
            restricted.append(Restricted(name=f"aliases.{name}"))
        else:
            kept[name] = target
    known = {**kept, **aliases}
    values: dict[str, Value] = {}
    for name, value in file.values.items():
        found = _restriction_of(name, value, below, lambda model: leaves_machine(model, known))
        if found is None:
            values[name] = value
        else:
            restricted.append(found)
    restricted += [Restricted(name=f"providers.{name}") for name in file.providers]
    restricted += [Restricted(name=f"prices.{name}") for name in file.prices.prices]
    restricted += [Restricted(name=name) for name in file.unsupported]
    return Narrowed(values=values, aliases=kept, restricted=tuple(restricted))


# Settings that give rights or remove a limit. The total belongs to the user, not to a project.
_NEED_TRUST = frozenset(
    {"grants", "allow_unpriced", "memory", "skills_paths", "total_usd", "tokenizer"}
)


def _restriction_of(
    name: str, value: Value, below: Mapping[str, Value], leaves_machine: Callable[[str], bool]
) -> Restricted | None:
    if SETTINGS[name].limit:
        present = below.get(name)
        assert isinstance(value, int | float)
        # Without a present limit, any limit is lower.
        if isinstance(present, int | float) and value > present:
            return Restricted(name=name, why=f"more than {present:,.15g}")
    elif name == "skills_require_signature":
        # Requiring signatures restricts. Not requiring them, although the user does, would widen.
        if value is False and below.get(name) is True:
            return Restricted(name=name, why="yours asks for them")
    elif name in _NEED_TRUST or (name == "model" and _kind(str(value)) in FILE_KINDS):
        return Restricted(name=name)
    # A user without a model has not asked for one that stays on this machine. Then the project's
    # model may be one at a provider of the user's.
    elif name == "model" and "model" in below and leaves_machine(str(value)):
        own = str(below["model"])
        if not leaves_machine(own):
            return Restricted(name=name, why="yours stays on this machine")
    return None


def _kind(model: str) -> str:
    return model.partition(":")[0]
