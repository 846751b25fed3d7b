"""Systems without `fcntl`: the package is imported and runs in memory; the rest is refused by name.

Windows has neither `fcntl` nor several names of `os`: they are taken away in a new process.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import tallystick
from tallystick.settings.paths import cache_directory

ROOT = Path(__file__).parents[2]
# What Windows does not have. The standard library is imported first: it asks for some of these.
WITHOUT = """
import sys
sys.modules["fcntl"] = None
{names}
"""
NAMES = """
import asyncio, concurrent.futures, ctypes, http.client, logging, multiprocessing, os, secrets
import selectors, shutil, signal, socket, sqlite3, ssl, subprocess, tempfile, threading, zipfile
for name in ("resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in (
    "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_NOCTTY geteuid getuid getegid getgid fork "
    "register_at_fork pipe2 chown fchown lchown fchmod mkfifo statvfs killpg setsid memfd_create "
    "openpty sched_getaffinity posix_fadvise pread pwrite sync confstr"
).split():
    if hasattr(os, name):
        delattr(os, name)
"""
IMPORTED = """
import tallystick
for name in tallystick.__all__:
    getattr(tallystick, name)
"""
RUN = f"""
import asyncio, pathlib
from tallystick.client import Session
from tallystick.inputs import given_text
from tallystick.ledger import MemoryLedger
from tallystick.model import ScriptedModel, ScriptedReply
from tallystick.sandbox import WasmSandbox
sandbox = WasmSandbox.load(cache=pathlib.Path({str(cache_directory())!r}))
program = "print('x' * 100_000)\\nFINAL(len(context))"
model = ScriptedModel([ScriptedReply(text=f"```repl\\n{{program}}\\n```")])
with Session(model=model, ledger=MemoryLedger(), sandbox=sandbox) as session:
    run = session.run("how long?", inputs=[given_text("y" * 5_000_000)])
    assert run.answer == "5000000", run
    assert session.replay(run.run).held
asyncio.run(sandbox.close())
print("answered")
"""
REFUSED = """
import pathlib
from tallystick import TallystickError
from tallystick.ledger import SqliteLedger
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.sessions.file import book_in
from tallystick.sessions.exec_sessions import hold_session
from tallystick.settings.trust import TrustStore
from tallystick.skills.format.folder import search_directory
from tallystick.stores import open_stores
here = pathlib.Path.cwd()
for what in (
    lambda: SqliteLedger(here / "ledger.db").runs(),
    lambda: SqliteMemory(here / "memory.db").reading().__enter__(),
    lambda: book_in(here / "sessions.db").ids(),
    lambda: hold_session(
        open_stores(here / "ledger.db").sessions, "one", folder=here, seed=1, clock_ns=0
    ).__enter__(),
    lambda: TrustStore(here).note({}),
    lambda: search_directory(here, within=None, seen=set(), missed=True),
):
    try:
        what()
    except TallystickError as error:
        print(error.code, error)
    else:
        raise AssertionError("not refused")
"""


def said(source: str, *, names: bool, cwd: Path) -> str:
    """Run a program without what Windows lacks. Returns what it prints."""
    program = WITHOUT.format(names=NAMES if names else "") + source
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


without_names = pytest.mark.parametrize("names", [False, True], ids=["no fcntl", "as on Windows"])


@without_names
def test_the_package_is_imported_with_all_its_names(names: bool, tmp_path: Path) -> None:
    assert said(IMPORTED, names=names, cwd=tmp_path) == ""


@pytest.mark.parametrize(
    "names",
    # Who owns a file is not known there, so nothing compiled is kept: it is compiled again.
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["no fcntl", "as on Windows"],
)
def test_a_run_in_memory_answers_and_replays(names: bool, tmp_path: Path) -> None:
    assert said(RUN, names=names, cwd=tmp_path) == "answered\n"


@without_names
def test_what_needs_locks_is_refused_by_name_and_leaves_nothing(
    names: bool, tmp_path: Path
) -> None:
    told = said(REFUSED, names=names, cwd=tmp_path).splitlines()

    assert [line.partition(" needs ")[0] for line in told] == [
        f"refused.not_supported_here {what}"
        for what in (
            "a ledger in a file",
            "a memory in a file",
            "a session in a file",
            "a session in a file",
            "the list of trusted files",
            "a folder of skills",
        )
    ]
    assert told[0].endswith("; use MemoryLedger() for runs in memory")
    assert list(tmp_path.iterdir()) == []


def test_the_package_says_its_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert tallystick.__version__ == metadata.version("tallystick") == project["version"]


def test_the_package_is_a_command_of_python() -> None:
    words = [sys.executable, "-m", "tallystick", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0
    assert "verify" in done.stdout


@pytest.mark.slow
def test_the_wheel_says_that_it_is_typed(tmp_path: Path) -> None:
    build = f"import hatchling.build; print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        assert {"tallystick/py.typed", "tallystick/__main__.py"} <= set(files.namelist())
