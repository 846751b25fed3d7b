"""Find the directories of this user's data and caches, by the XDG conventions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of compiled code and other things that can be computed again.

    TALLYSTICK_CACHE_DIR names it. Else it is in XDG_CACHE_HOME if that is absolute, or in
    `~/.cache`.
    """
    return _directory(
        environ, own="TALLYSTICK_CACHE_DIR", xdg="XDG_CACHE_HOME", home=(".cache", "tallystick")
    )


def data_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of the ledger, its attachments, sessions and program output.

    TALLYSTICK_DATA_DIR names it. Else it is in XDG_DATA_HOME if that is absolute, or in
    `~/.local/share`.
    """
    return _directory(
        environ,
        own="TALLYSTICK_DATA_DIR",
        xdg="XDG_DATA_HOME",
        home=(".local", "share", "tallystick"),
    )


def ledger_path() -> Path:
    """Return the path of this user's ledger: `ledger.db` in the data directory."""
    return data_directory() / "ledger.db"


def _directory(environ: Mapping[str, str], *, own: str, xdg: str, home: tuple[str, ...]) -> Path:
    if environ.get(own):
        return Path(environ[own])
    # The XDG convention says to ignore a relative path.
    if Path(environ.get(xdg, "")).is_absolute():
        return Path(environ[xdg]) / home[-1]
    return Path(environ.get("HOME") or Path.home()).joinpath(*home)
