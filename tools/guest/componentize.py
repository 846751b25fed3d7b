"""From a directory of Python to a component with it imported, the same wherever it is made.

componentize-py makes the component: the interpreter, its libraries and the functions of the WIT
world. It also starts the interpreter to import a program, and what the machine gives it meanwhile
(random bytes, times, the order of directories) stays in the image. So its start is undone
(`rewind`), and done again in a world that is computed (`freeze`).

The files of the standard library are inside the tool and nowhere else. The program that it imports
in the first start has them written down; that is all it is for.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import wasmtime

from tools.guest.freeze import ProgramFailed, World, freeze
from tools.guest.link import HOST_INTERFACE
from tools.guest.rewind import SAVER_FILE, rewind, saver
from tools.guest.wasm.binary import BadWasm
from tools.guest.zones import zones_files

__all__ = ["APP", "WIT", "WORLD", "GuestBuildError", "componentize", "prelude_files"]

APP = "entry"
WIT = "guest.wit"
WORLD = "guest"

_ERROR_LINES_MAX = 12

# Where the interpreter finds what, as componentize-py has it. The program is in the directory 0.
_PROGRAM = "/0"
_LIBRARIES = ("/python", "/world", "/bundled")
_ROOTS = {"python": "/python", "bundled": "/bundled", "0": _PROGRAM, "world": "/world"}
_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONHOME": "/python",
    "PYTHONPATH": f"/python:/world:{_PROGRAM}:/bundled",
}

_COPY = "files"
_COPIER = f'''"""Write down the files that the interpreter can read."""

import os


class WitWorld:
    pass


with open("{_PROGRAM}/{_COPY}", "wb") as out:
    for root in {_LIBRARIES!r}:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in names:
                path = folder + "/" + name
                with open(path, "rb") as file:
                    content = file.read()
                out.write(f"{{len(content)}} {{path}}\\n".encode())
                out.write(content)
'''


class GuestBuildError(Exception):
    """The guest could not be built. The message says which step, and why."""


def componentize(prelude: Path) -> bytes:
    """Import the prelude into an interpreter and freeze it there, with the time zones beside it."""
    component, files = _compile(prelude / WIT)
    program = {name: path.read_bytes() for name, path in prelude_files(prelude)} | zones_files()
    files |= {f"{_PROGRAM}/{name}": content for name, content in program.items()}
    world = World(files=files, roots=_ROOTS, environment=_ENVIRONMENT)
    try:
        component = rewind(component, host_interface=HOST_INTERFACE)
        return freeze(component, world, app=APP, host_interface=HOST_INTERFACE)
    except BadWasm as error:
        raise GuestBuildError(f"the component cannot be started: {error}") from error
    except ProgramFailed as error:
        raise GuestBuildError(_last_lines("the prelude cannot be imported:", str(error))) from error
    except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
        raise GuestBuildError(f"the interpreter stopped while it was built: {error}") from error


def prelude_files(prelude: Path) -> Iterator[tuple[str, Path]]:
    """Return the files that go into an image, by their names below `prelude`, in order."""
    for path in sorted(prelude.rglob("*")):
        name = path.relative_to(prelude)
        if path.is_file() and "__pycache__" not in name.parts and path.suffix != ".pyc":
            yield name.as_posix(), path


def _compile(wit: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return the component, and the files that its interpreter can read."""
    with tempfile.TemporaryDirectory(prefix="tallystick-guest-") as name:
        scratch = Path(name)
        app = scratch / "app"
        app.mkdir()
        (app / f"{APP}.py").write_text(_COPIER, encoding="utf-8")
        (app / SAVER_FILE).write_bytes(saver())
        component = scratch / "component.wasm"
        command = [
            *_tool(),
            *("--quiet", "--wit-path", str(wit.resolve()), "--world", WORLD),
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
            said = done.stderr or done.stdout
            raise GuestBuildError(_last_lines(f"componentize-py gave {done.returncode}:", said))
        return component.read_bytes(), _copied((app / _COPY).read_bytes())


def _copied(data: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    position = 0
    while position < len(data):
        end = data.index(b"\n", position)
        length, _, path = data[position:end].decode().partition(" ")
        position = end + 1 + int(length)
        files[path] = data[end + 1 : position]
    return files


def _last_lines(head: str, text: str) -> str:
    return "\n".join([head, *text.strip().splitlines()[-_ERROR_LINES_MAX:]])


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
