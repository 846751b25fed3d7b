"""Runs componentize-py over the prelude: a directory of Python in, the bytes of a component out."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tallystick.guest.zones import zones_source

__all__ = ["APP", "WIT", "WORLD", "GuestBuildError", "componentize"]

APP = "entry"
WIT = "guest.wit"
WORLD = "guest"

_IGNORED = ("__pycache__", "*.pyc")
_STDERR_LINES_MAX = 12


class GuestBuildError(Exception):
    """The guest could not be built. The message says which step, and why."""


def componentize(prelude: Path) -> bytes:
    """Import the prelude into an interpreter and freeze it there, with the time zones beside it."""
    with tempfile.TemporaryDirectory(prefix="tallystick-guest-") as name:
        scratch = Path(name)
        app = scratch / "app"
        shutil.copytree(prelude, app, ignore=shutil.ignore_patterns(*_IGNORED))
        (app / "zones.py").write_text(zones_source(), encoding="utf-8")
        component = scratch / "component.wasm"
        command = [
            *_tool(),
            *("--quiet", "--wit-path", str(app / WIT), "--world", WORLD),
            *("componentize", "--python-path", str(app), "--output", str(component), APP),
        ]
        done = subprocess.run(
            command,
            cwd=scratch,
            env=_clean_environment(scratch),
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
        if done.returncode != 0 or not component.is_file():
            last = (done.stderr or done.stdout).strip().splitlines()[-_STDERR_LINES_MAX:]
            raise GuestBuildError("\n".join([f"componentize-py gave {done.returncode}:", *last]))
        return component.read_bytes()


def _tool() -> list[str]:
    spec = importlib.util.find_spec("componentize_py")
    if spec is None or spec.origin is None:
        raise GuestBuildError("componentize-py is not installed, and the guest is built with it")
    # In an isolated build the tool may lie on a path that only PYTHONPATH told of, which the
    # subprocess does not get: so its place is handed over.
    place = str(Path(spec.origin).parent.parent)
    script = (
        f"import sys; sys.path.insert(0, {place!r}); import componentize_py; "
        "sys.argv[0] = 'componentize-py'; sys.exit(componentize_py.script())"
    )
    return [sys.executable, "-c", script]


def _clean_environment(scratch: Path) -> dict[str, str]:
    """Keep the builder's packages out of the image.

    The tool adds the packages of a virtual environment and, finding none, those of whatever
    `python3` is first in the path. So it is shown one that is empty.
    """
    (scratch / "empty" / "lib" / "site-packages").mkdir(parents=True)
    dropped = {"PYTHONPATH", "PYTHONHOME"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    # A backtrace of the tool would push the reason for a failure out of the lines we show.
    return kept | {"VIRTUAL_ENV": str(scratch / "empty"), "RUST_BACKTRACE": "0"}
