"""Trust in a project's file: what it may set without, and the record of who was given it.

A cloned project's file may narrow what a run does and never widen it. It takes effect without
trust as far as it lowers limits, chooses among the user's own providers, sets the temperature or
names models; the rest is left out, and said to be. Trust is for one path and one content: any
change of the bytes ends it.
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
    """Digests by path."""

    format: int
    files: dict[str, str]


class Noted(msgspec.Struct, frozen=True):
    """What a store held when it was read."""

    _digests: Mapping[str, str]

    def __contains__(self, path: Path) -> bool:
        return _key(path) in self._digests

    def state(self, path: Path, sha256: str) -> TrustState:
        """Whether what has this digest, at this path, was trusted."""
        noted = self._digests.get(_key(path))
        if noted is None:
            return "untrusted"
        return "trusted" if noted == sha256 else "changed"


class TrustStore:
    """What this user trusts, in a file of the configuration directory.

    `trusted.json` is for projects' files; other kinds of things have files of their own.
    """

    def __init__(self, directory: Path, *, name: str = "trusted.json") -> None:
        self._directory = directory
        self._path = directory / name

    def noted(self) -> Noted:
        """Everything that was trusted, read once."""
        return Noted(self._read())

    def state(self, file: ConfigFile) -> TrustState:
        """Whether these bytes, at this path, were trusted."""
        return self.noted().state(file.path, file.sha256)

    def trust(self, file: ConfigFile) -> None:
        """Note the digest of the bytes that were read, not of what the path holds by now."""
        self.note({file.path: file.sha256})

    def note(self, digests: Mapping[Path, str]) -> None:
        """Note digests of what was read and shown, by path; all of them or none."""
        with self._locked():
            new = {_key(path): sha256 for path, sha256 in digests.items()}
            self._write({**self._read(), **new})

    def untrust(self, path: Path) -> bool:
        """Forget a path, whatever it holds by now. False if there was nothing to forget."""
        with self._locked():
            files = self._read()
            found = files.pop(_key(path), None) is not None
            if found:
                self._write(files)
        return found

    def _read(self) -> dict[str, str]:
        if not system.is_posix():
            return {}  # Nobody can say who wrote it, so it makes nothing trusted.
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
    def _locked(self) -> Iterator[None]:
        """Two writers at once would each undo what the other did."""
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
    # A path need not be text. Two that come out alike are still told apart by what they hold.
    return os.fsencode(os.path.realpath(path)).decode("utf-8", "backslashreplace")


class Restricted(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs trust; `why`, where the name alone does not say it."""

    name: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


class Narrowed(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of a file without trust, and what does not."""

    values: Mapping[str, Value]
    aliases: Mapping[str, str]
    restricted: tuple[Restricted, ...]


def narrowed(
    file: ConfigFile,
    *,
    below: Mapping[str, Value],
    aliases: Mapping[str, str],
    leaves: Callable[[str, Mapping[str, str]], bool],
) -> Narrowed:
    """Take from a file what it may set without trust.

    `below` is what would hold without it, `aliases` are the user's own, and `leaves` says whether a
    model would be given to another machine, with the aliases that count.
    """
    restricted: list[Restricted] = []
    kept: dict[str, str] = {}
    for name, target in file.aliases.items():
        # Who says `-m fast` means the `fast` they know.
        if name in aliases or bare_provider(name) or _kind(target) in FILE_KINDS:
            restricted.append(Restricted(name=f"aliases.{name}"))
        else:
            kept[name] = target
    known = {**kept, **aliases}
    values: dict[str, Value] = {}
    for name, value in file.values.items():
        found = _restricted(name, value, below, lambda model: leaves(model, known))
        if found is None:
            values[name] = value
        else:
            restricted.append(found)
    restricted += [Restricted(name=f"providers.{name}") for name in file.providers]
    restricted += [Restricted(name=f"prices.{name}") for name in file.prices.prices]
    restricted += [Restricted(name=name) for name in file.unsupported]
    return Narrowed(values=values, aliases=kept, restricted=tuple(restricted))


# What gives rights, or takes a limit away; the total is this user's, and no project's.
_NEED_TRUST = frozenset(
    {"grants", "allow_unpriced", "memory", "skills_paths", "total_usd", "tokenizer"}
)


def _restricted(
    name: str, value: Value, below: Mapping[str, Value], leaves: Callable[[str], bool]
) -> Restricted | None:
    if SETTINGS[name].limit:
        present = below.get(name)
        assert isinstance(value, int | float)
        # Where there is no limit, any is less.
        if isinstance(present, int | float) and value > present:
            return Restricted(name=name, why=f"more than {present:,.15g}")
    elif name == "skills_require_signature":
        # To ask for signatures narrows; not to ask, where the user does, would widen.
        if value is False and below.get(name) is True:
            return Restricted(name=name, why="yours asks for them")
    elif name in _NEED_TRUST or (name == "model" and _kind(str(value)) in FILE_KINDS):
        return Restricted(name=name)
    elif name == "model" and "model" in below and leaves(str(value)):
        own = str(below["model"])
        if not leaves(own):
            return Restricted(name=name, why="yours stays on this machine")
    return None


def _kind(model: str) -> str:
    return model.partition(":")[0]
