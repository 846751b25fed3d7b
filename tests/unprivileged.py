"""Tests of what may not be read or written, for those who may do everything."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NOBODY = 65_534


@contextlib.contextmanager
def unprivileged() -> Iterator[Path]:
    """A directory of somebody who may not do everything, as whom the test goes on inside."""
    directory = Path(tempfile.mkdtemp(prefix="tally-nobody-"))
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(directory, _NOBODY, _NOBODY)
            os.seteuid(_NOBODY)
        yield directory
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(directory, ignore_errors=True)
