"""Settings and where each came from: a flag, the environment, or the default."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from tallystick.core.records import RunLimits
from tallystick.runtime.paths import cache_directory, data_directory

__all__ = ["Setting", "settings"]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as it is in force."""

    name: str
    value: str
    source: str


def settings(environ: Mapping[str, str] = os.environ) -> list[Setting]:
    """Every setting, in order."""
    limits = RunLimits()
    return [
        _of(environ, "model", "TALLYSTICK_MODEL", ""),
        _placed(
            environ, "cache", "TALLYSTICK_CACHE_DIR", "XDG_CACHE_HOME", cache_directory(environ)
        ),
        _placed(environ, "data", "TALLYSTICK_DATA_DIR", "XDG_DATA_HOME", data_directory(environ)),
        Setting(name="max_turns", value=str(limits.turns), source="default"),
        Setting(name="max_tokens", value=str(limits.tokens), source="default"),
        Setting(name="timeout_ms", value=str(limits.wall_ms), source="default"),
        Setting(name="max_host_calls", value=str(limits.host_calls), source="default"),
    ]


def _of(environ: Mapping[str, str], name: str, variable: str, default: str) -> Setting:
    if environ.get(variable):
        return Setting(name=name, value=environ[variable], source=f"environment {variable}")
    return Setting(name=name, value=default, source="default")


def _placed(environ: Mapping[str, str], name: str, own: str, xdg: str, value: object) -> Setting:
    source = next((each for each in (own, xdg) if environ.get(each)), None)
    return Setting(
        name=name, value=str(value), source=f"environment {source}" if source else "default"
    )
