"""Files of long output that are left where programs' output is spilled to.

There are usually none: what a program printed becomes an attachment when it ends. Those of a
process that died are left behind, named by the session that they are of.
"""

from __future__ import annotations

import re
from pathlib import Path

from tallystick.runtime.needles import Needles

__all__ = ["has_text", "spilled_files"]

# As the sandbox names them: anything else in the folder is somebody else's.
_NAME = re.compile(r"([0-9A-Za-z]{26})-[0-9A-Za-z]{26}\.(stdout|stderr)")
_PIECE_BYTES = 1 << 20


def spilled_files(folder: Path) -> list[tuple[Path, str]]:
    """The files that programs printed into, each with its session."""
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []
    matched = [(path, _NAME.fullmatch(path.name)) for path in files]
    return [(path, found[1]) for path, found in matched if found is not None]


def has_text(path: Path, needles: Needles) -> bool:
    """Whether a file has one of the texts."""
    try:
        with path.open("rb") as file:
            return needles.in_pieces(iter(lambda: file.read(_PIECE_BYTES), b""))
    except OSError:
        return False
