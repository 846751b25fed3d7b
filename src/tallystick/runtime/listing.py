"""The settings as they are shown: each value as text, and where it came from. Never a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tallystick.runtime.config_file import ConfigFile
from tallystick.runtime.config_keys import PROVIDER_KEYS, SETTINGS, Value, one_line
from tallystick.runtime.paths import cache_directory, data_directory
from tallystick.runtime.providers import Provider
from tallystick.runtime.trust import Restricted

__all__ = ["Setting", "listed_places", "listed_providers", "listed_values", "restricted_lines"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as it is in force."""

    name: str
    value: str
    source: str


def listed_values(values: Mapping[str, Value], sources: Mapping[str, str]) -> Iterator[Setting]:
    for name in SETTINGS:
        yield Setting(
            name=name,
            value=_text_of(values.get(name, "")),
            source=sources.get(name, "default"),
        )


def listed_places(environ: Mapping[str, str]) -> Iterator[Setting]:
    """Directories, which only the environment sets."""
    places = {
        "cache": (cache_directory(environ), ("TALLYSTICK_CACHE_DIR", "XDG_CACHE_HOME")),
        "data": (data_directory(environ), ("TALLYSTICK_DATA_DIR", "XDG_DATA_HOME")),
    }
    for name, (path, variables) in places.items():
        variable = next((each for each in variables if environ.get(each)), None)
        source = f"environment {variable}" if variable else "default"
        yield Setting(name=name, value=one_line(str(path)), source=source)


def listed_providers(
    providers: Mapping[str, Provider], environ: Mapping[str, str]
) -> Iterator[Setting]:
    for name, provider in sorted(providers.items()):
        for key in PROVIDER_KEYS:
            source = provider.sources[key]
            if key == "key_env":
                yield Setting(
                    name=f"providers.{name}.key", value=_key_text(provider, environ), source=source
                )
            else:
                value = _text_of(provider.value_of(key))
                if key == "base_url" and provider.fault:
                    value = "cannot be used"
                yield Setting(name=f"providers.{name}.{key}", value=value, source=source)


def restricted_lines(
    file: ConfigFile, restricted: Iterable[Restricted], providers: Mapping[str, Provider]
) -> Iterator[str]:
    """What trust in a file would let it set, and which keys would go where. For who decides."""
    for each in restricted:
        table, _, name = each.name.partition(".")
        if table == "providers":
            yield from _provider_lines(file, providers[name])
        elif table == "prices":
            yield f"{each.name} is declared"
        else:
            value = file.aliases[name] if table == "aliases" else file.values[each.name]
            yield f"{each.name} = {_text_of(value)}" + (f"  ({each.why})" if each.why else "")


def _provider_lines(file: ConfigFile, provider: Provider) -> Iterator[str]:
    given = file.providers[provider.name]
    for key, value in given.items():
        yield f"providers.{provider.name}.{key} = {_text_of(value)}"
    if provider.key_env and provider.base_url and {"base_url", "key_env"} & given.keys():
        yield f"  the key in {provider.key_env} would be sent to {provider.base_url}"


def _text_of(value: Value) -> str:
    """A value as a person would write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case tuple():
            return ", ".join(value)
        case str():
            # A path among them may be anything, since directories may be called anything.
            return one_line(value)
        case _:
            return str(value)


def _key_text(provider: Provider, environ: Mapping[str, str]) -> str:
    """Whether there is a key, and in which variable; of the key itself, nothing."""
    if not provider.key_env:
        return "none"
    state = "set" if environ.get(provider.key_env) else "not set"
    return f"{state} ({provider.key_env})"
