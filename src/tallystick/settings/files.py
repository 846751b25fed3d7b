"""Read configuration files: find them, read their bytes, and check what those bytes say.

A project's file comes with the project, so its author may be anyone. It is opened and read once.
The same bytes are parsed, shown and hashed, so the file cannot change in between.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tallystick.core.errors import UsageError
from tallystick.model.price_table import PriceTable
from tallystick.settings.provider_tables import body_table, header_table, query_table
from tallystick.settings.schema import (
    ALIAS,
    ALIAS_NAME,
    FILE_KINDS,
    PROVIDER_KEYS,
    PROVIDER_NAME,
    SETTINGS,
    UNSUPPORTED,
    Value,
    check_value,
    one_line,
    quote,
    unknown_key,
)
from tallystick.storage import system

PROJECT_FILE = "tallystick.toml"

# The TOML parser takes time and memory quadratic in the parts of a dotted key: a megabyte of
# `a.a.a…` takes all memory. With these two limits the worst file takes a second.
_BYTES_MAX = 64 * 1024
_DOTS_IN_A_LINE_MAX = 100
_TABLES = ("aliases", "prices", "providers")


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration file as it was when it was read."""

    path: Path
    sha256: str
    values: Mapping[str, Value]
    aliases: Mapping[str, str]
    providers: Mapping[str, Mapping[str, Value]]
    prices: PriceTable
    unsupported: tuple[str, ...]

    @property
    def shown_path(self) -> str:
        """The path, fit to be printed."""
        return one_line(str(self.path))

    def require_supported(self) -> None:
        """Raise `UsageError` if the file has a table that is reserved for later versions."""
        if self.unsupported:
            raise UsageError(
                f"{self.shown_path}: {self.unsupported[0]} are not supported by this version; "
                f"take the table out"
            )


def config_directory(environ: Mapping[str, str]) -> Path:
    """Return the directory of this user's own file and of the record of trust.

    It is in XDG_CONFIG_HOME if that is an absolute path, else in `~/.config`.
    """
    if Path(environ.get("XDG_CONFIG_HOME", "")).is_absolute():
        return Path(environ["XDG_CONFIG_HOME"]) / "tallystick"
    return _home(environ) / ".config" / "tallystick"


def user_file_path(environ: Mapping[str, str]) -> Path:
    """Return the path of this user's own file, whether it exists or not.

    TALLYSTICK_CONFIG names it, if that is set.
    """
    if environ.get("TALLYSTICK_CONFIG"):
        return Path(environ["TALLYSTICK_CONFIG"])
    return config_directory(environ) / "config.toml"


def find_project_file(cwd: Path, environ: Mapping[str, str]) -> Path | None:
    """Search this directory and its parents for a project's file; None if there is none.

    The search ends at the home directory, at the root of a checkout, and at the root of the file
    system; these are searched too. A link that leads nowhere is returned as well.
    """
    home = os.path.realpath(_home(environ))
    here = Path(os.path.realpath(cwd))
    for directory in (here, *here.parents):
        # `lexists`, so that a broken link is found too: reading it then reports what is wrong.
        if os.path.lexists(directory / PROJECT_FILE):
            return directory / PROJECT_FILE
        if str(directory) == home or os.path.lexists(directory / ".git"):
            return None
    return None


def read_config(path: Path) -> ConfigFile:
    """Read and check a file that must exist.

    Raise `UsageError` if it cannot be read, is no regular file, has more than 64 KiB, or is not
    valid as in `parse_config`.
    """
    return parse_config(_bytes_of(path), path=path)


def parse_config(data: bytes, *, path: Path) -> ConfigFile:
    """Check the bytes of a file, including the parts that count only with trust.

    Relative paths in the values are resolved from the directory of `path`. Raise `UsageError` for
    anything that is not valid, also for a line with more than 100 dots. A table of a later version
    is kept in `unsupported`, without an error.
    """
    where = f"{one_line(str(path))}: "
    values: dict[str, Value] = {}
    aliases: dict[str, str] = {}
    providers: dict[str, Mapping[str, Value]] = {}
    prices = PriceTable(prices={})
    unsupported: list[str] = []
    # Everything is checked, whatever trust the file has: a user is to decide about a file that can
    # be read.
    for key, value in _toml(data, where).items():
        if key == "aliases":
            aliases = _aliases(_table(value, where, key), where, path.parent)
        elif key == "providers":
            providers = _providers(_table(value, where, key), where)
        elif key == "prices":
            prices = PriceTable.of_user(_table(value, where, key), where=where)
        elif key in UNSUPPORTED:
            unsupported.append(key)
        elif key in SETTINGS:
            values[key] = check_value(SETTINGS[key].kind, value, where=where, key=key)
        else:
            raise unknown_key(key, [*SETTINGS, *_TABLES], where=where)
    if isinstance(values.get("model"), str):
        values["model"] = _resolve_beside(str(values["model"]), path.parent)
    if isinstance(paths := values.get("skills_paths"), tuple):
        # Relative to the directory of the file, except `~`, the home of the user who reads it.
        values["skills_paths"] = tuple(
            each if each.startswith("~") else str(path.parent.absolute() / each) for each in paths
        )
    return ConfigFile(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        values=values,
        aliases=aliases,
        providers=providers,
        prices=prices,
        unsupported=tuple(unsupported),
    )


def _bytes_of(path: Path) -> bytes:
    try:
        # Without blocking: a named pipe in this place would stop every command in the directory.
        flags = os.O_RDONLY | system.CLOEXEC | system.NONBLOCK | system.NOCTTY
        descriptor = os.open(path, flags)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError(f"{one_line(str(path))}: not a regular file")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"{one_line(str(path))}: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"{one_line(str(path))}: not a path") from error
    if len(data) > _BYTES_MAX:
        raise UsageError(f"{one_line(str(path))}: longer than {_BYTES_MAX:,} bytes")
    return data


def _toml(data: bytes, where: str) -> dict[str, object]:
    import tomllib

    for number, line in enumerate(data.split(b"\n"), 1):
        if line.count(b".") > _DOTS_IN_A_LINE_MAX:
            raise UsageError(f"{where}line {number}: more than {_DOTS_IN_A_LINE_MAX} dots")
    try:
        # "utf-8-sig": some editors begin a file with a byte order mark, which is not TOML.
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}not UTF-8 at byte {error.start:,}") from error
    except RecursionError as error:
        raise UsageError(f"{where}nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"{where}not TOML: {one_line(str(error))}") from error


def _table(value: object, where: str, key: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}{one_line(key)}: must be a table")
    return value


def _aliases(table: Mapping[str, object], where: str, directory: Path) -> dict[str, str]:
    aliases = {}
    for name, target in table.items():
        if not ALIAS_NAME.fullmatch(name):
            raise UsageError(
                f"{where}aliases: {quote(name)} is not a name: letters, digits and . _ - only"
            )
        found = check_value(ALIAS, target, where=where, key=f"aliases.{name}")
        aliases[name] = _resolve_beside(str(found), directory)
    return aliases


def _providers(table: Mapping[str, object], where: str) -> dict[str, Mapping[str, Value]]:
    providers: dict[str, Mapping[str, Value]] = {}
    for name, fields in table.items():
        if not PROVIDER_NAME.fullmatch(name):
            raise UsageError(
                f"{where}providers: {quote(name)} is not a name: small letters, digits, _ - only"
            )
        if name in FILE_KINDS:
            raise UsageError(f"{where}providers.{name}: this name is taken, choose another")
        prefix = f"providers.{name}."
        found = {}
        for key, value in _table(fields, where, prefix[:-1]).items():
            if key not in PROVIDER_KEYS:
                raise unknown_key(key, PROVIDER_KEYS, where=where, prefix=prefix)
            if key in _TABLE_KEYS:
                value = _text_of_table(key, _table(value, where, prefix + key), where, prefix)
            found[key] = check_value(PROVIDER_KEYS[key], value, where=where, key=prefix + key)
        providers[name] = found
    return providers


def _text_of_table(key: str, table: Mapping[str, object], where: str, prefix: str) -> str:
    """Return a table of a provider as text. Raise `UsageError`, with its place, if it is wrong."""
    try:
        return _TABLE_KEYS[key](table)
    except UsageError as error:
        raise UsageError(f"{where}{prefix}{key}: {error}") from None


_TABLE_KEYS: Mapping[str, Callable[[Mapping[str, object]], str]] = {
    "headers": header_table,
    "query": query_table,
    "body": body_table,
}


def _resolve_beside(model: str, directory: Path) -> str:
    """Return a model's name, with a relative path resolved from the file's directory."""
    kind, _, rest = model.partition(":")
    if kind not in ("gguf", "scripted") or not rest or rest.startswith("~"):
        return model
    return f"{kind}:{directory.absolute() / rest}"


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())
