"""A real build, from Python files to a guest that runs Python."""

import hashlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import wasmtime
from tests.descriptors import closed_descriptors
from tools.guest import build
from tools.guest.build import PRELUDE, build_guest
from tools.guest.componentize import GuestBuildError, prelude_files
from tools.guest.wasm.module import parse_module
from tools.guest.wasm.state import memory_image

pytestmark = pytest.mark.slow

# Takes a program from the host, runs it, and hands back what it left in `answer`.
ENTRY = """
import select, sys, time, os
import wit_world
import zones
from wit_world.imports import host

OFFSET = bytes.__basicsize__ - 1

class WitWorld(wit_world.WitWorld):
    def run(self, kind: int, length: int) -> int:
        program = bytes(length)
        host.take(id(program) + OFFSET)
        names = {}
        try:
            exec(program, names)
        except BaseException as error:
            names["answer"] = type(error).__name__
        answer = str(names.get("answer")).encode()
        host.stdio(3, id(answer) + OFFSET, len(answer))
        return 0
"""


@pytest.fixture(autouse=True)
def descriptors_closed() -> Iterator[None]:
    """Allow the memory that the engine keeps for a module until the module itself is freed.

    Here a fixture, or the traceback of a refused build, refers to it when a test ends.
    """
    with closed_descriptors(but="/memfd:wasm-memory-image"):
        yield


class Guest:
    """One compiled guest; each session is a store of its own."""

    def __init__(self, data: bytes) -> None:
        config = wasmtime.Config()
        config.wasm_exceptions = True
        config.cranelift_opt_level = "none"
        self.engine = wasmtime.Engine(config)
        self.module = wasmtime.Module(self.engine, data)


class Session:
    def __init__(self, guest: Guest) -> None:
        self.store = wasmtime.Store(guest.engine)
        self.program = b""
        self.answer = ""
        linker = wasmtime.Linker(guest.engine)
        i32 = wasmtime.ValType.i32()
        linker.define_func("host", "call", wasmtime.FuncType([i32] * 4, [i32]), lambda *_: 0)
        linker.define_func("host", "take", wasmtime.FuncType([i32], []), self._take)
        linker.define_func("host", "stdio", wasmtime.FuncType([i32] * 3, []), self._stdio)
        self.exports = linker.instantiate(self.store, guest.module).exports(self.store)
        memory = self.exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        self.memory = memory

    def _take(self, start: int) -> None:
        self.memory.write(self.store, self.program, start)

    def _stdio(self, handle: int, start: int, length: int) -> None:
        self.answer = self.memory.read(self.store, start, start + length).decode()

    def run(self, program: str) -> str:
        self.program = program.encode()
        run = self.exports["run"]
        assert isinstance(run, wasmtime.Func)
        run(self.store, 0, len(self.program))
        return self.answer

    def variable(self, name: str) -> wasmtime.Global:
        found = self.exports[name]
        assert isinstance(found, wasmtime.Global)
        return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prelude = write_prelude(tmp_path_factory.mktemp("prelude"), ENTRY)
    out = tmp_path_factory.mktemp("image")
    build_guest(out, prelude=prelude)
    return out


@pytest.fixture(scope="module")
def guest(image: Path) -> Guest:
    return Guest((image / "guest.wasm").read_bytes())


def write_prelude(root: Path, entry: str) -> Path:
    (root / "entry.py").write_text(entry, encoding="utf-8")
    (root / "guest.wit").write_bytes((PRELUDE / "guest.wit").read_bytes())
    return root


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("answer = sum(range(10))", "45"),
        ("answer = 1 / 0", "ZeroDivisionError"),
        ("import os; answer = dict(os.environ)", "{}"),
        ("answer = open('/etc/passwd')", "FileNotFoundError"),
        ("answer = input()", "EOFError"),
        ("import wasmtime", "ModuleNotFoundError"),
        ("import pytest", "ModuleNotFoundError"),
        ("import select; answer = select.select([0], [1], [], 5)", "([0], [1], [])"),
        ("import zones; answer = len(zones.ZONES) > 10_000", "True"),
        (
            "import time; start = time.time(); time.sleep(60); answer = round(time.time() - start)",
            "60",
        ),
        ("import sys; answer = sys.version_info[0]", "3"),
    ],
)
def test_a_program_runs_in_a_world_without_the_builder(
    guest: Guest, program: str, answer: str
) -> None:
    assert Session(guest).run(program) == answer


def test_a_program_that_meets_the_memory_limit_sees_a_memory_error(guest: Guest) -> None:
    session = Session(guest)
    session.variable("memory_pages_max").set_value(session.store, 600)

    assert session.run("answer = len(bytearray(1 << 27))") == "MemoryError"
    assert session.variable("grow_refused").value(session.store) != 0
    assert session.run("answer = len(bytearray(1 << 20))") == "1048576"


def test_equal_state_gives_equal_runs(guest: Guest) -> None:
    program = "import os, time; answer = (os.urandom(8), time.time_ns(), hash('a'))"
    answers = []
    for seed in (1, 1, 2):
        session = Session(guest)
        session.variable("rng").set_value(session.store, seed)
        answers.append(session.run(program))

    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_the_image_is_a_module_of_the_first_version(image: Path) -> None:
    magic, version = struct.unpack("<4sI", (image / "guest.wasm").read_bytes()[:8])

    assert (magic, version) == (b"\0asm", 1)


def start_build(root: Path, *, turned: bool, **environment: str) -> subprocess.Popen[str]:
    """Build the guest of this package from a copy, in a directory and a world of its own."""
    source = Path(build.__file__).parents[2]
    shutil.copytree(source / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    prelude = root / "other" / "prelude"
    files = list(prelude_files(PRELUDE))
    # A directory lists its files in an order that depends on when they came, or on their names.
    for name, path in reversed(files) if turned else files:
        copy = prelude / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        if turned:
            os.utime(copy, (1_000_000_000, 1_000_000_000))
            copy.chmod(0o600)
    (root / "temporary").mkdir()
    world = {"PYTHONPATH": str(root), "TMPDIR": str(root / "temporary"), "HOME": str(root)}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tools.guest.build"),
            *("--out", str(root / "out"), "--prelude", str(prelude)),
        ],
        cwd=root,
        env={**os.environ, **world, **environment},
        umask=0o077 if turned else 0o022,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_builds_give_one_guest_wherever_and_whenever_they_are_made(tmp_path: Path) -> None:
    one_root, two_root = tmp_path / "one", tmp_path / "another directory" / "far below" / "two"
    started = {
        one_root: start_build(one_root, turned=False, PYTHONHASHSEED="1", LANG="C", TZ="UTC"),
        two_root: start_build(
            two_root,
            turned=True,
            PYTHONHASHSEED="2",
            LANG="de_DE.UTF-8",
            TZ="Asia/Tokyo",
            SOURCE_DATE_EPOCH="1",
        ),
    }
    for process in started.values():
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output

    one, two = ((root / "out" / "guest.wasm").read_bytes() for root in started)
    assert one == two, first_difference(one, two)
    installed = build.read_manifest(build.IMAGE)
    if installed is not None and installed.inputs == build.inputs_digest():
        assert hashlib.sha256(one).hexdigest() == installed.sha256


def first_difference(one: bytes, two: bytes) -> str:
    """Say where two guests differ: which is in memory, and so has an address, or is code."""
    memories = [memory_image(parse_module(data)) for data in (one, two)]
    if memories[0] == memories[1]:
        return "memory is equal; code, globals or tables differ"
    pairs = enumerate(zip(*memories, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(map(len, memories)))
    near = [bytes(each[max(place - 64, 0) : place + 64]) for each in memories]
    return f"memory differs from address {place:#x} on: {near[0]!r} against {near[1]!r}"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("import nothing_of_that_name\n", "nothing_of_that_name"),
        (
            "from wit_world.imports import host\nhost.take(0)\n",
            "the program called the host while it was imported",
        ),
    ],
)
def test_a_prelude_that_can_not_be_imported_is_refused_with_the_reason(
    tmp_path: Path, entry: str, reason: str
) -> None:
    (tmp_path / "prelude").mkdir()
    prelude = write_prelude(tmp_path / "prelude", entry)

    with pytest.raises(GuestBuildError, match=reason):
        build_guest(tmp_path / "out", prelude=prelude)

    assert not (tmp_path / "out").exists()
