"""Directories that are private to the user, and those above them that had to be made for it."""

from __future__ import annotations

from pathlib import Path


def make_private(directory: Path) -> None:
    """Make a directory and what is missing above it, each with the mode 0700.

    `Path.mkdir(parents=True, mode=0o700)` gives the mode to the last one only: the first command
    would leave the data directory itself open to others.
    """
    if directory.is_dir():
        return
    make_private(directory.parent)
    # Another process may just have made it. What is there and is no directory is refused.
    directory.mkdir(mode=0o700, exist_ok=True)
