"""The cache of compiled code: loaded only if it is ours and whole, never a reason to fail."""

import errno
import importlib.metadata
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import wasmtime

from tallystick.sandbox.port import COMPILED, COMPILING
from tallystick.sandbox.wasm.engine import CodeCache, cpu_digest
from tallystick.sandbox.wasm.image import ENGINE

WAT = '(module (func (export "f") (result i32) (i32.const {})))'


class World:
    """A cache over a small module, with what it said and how often it compiled."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engine = wasmtime.Engine()
        self.said: list[str] = []
        self.compiled = 0

    def compile_module(self) -> wasmtime.Module:
        self.compiled += 1
        return wasmtime.Module(self.engine, WAT.format(7))

    def answer(self, key: str = "k") -> Any:
        cache = CodeCache(self.directory, say=self.said.append)
        module = cache.module(self.engine, key=key, compile_module=self.compile_module)
        store = wasmtime.Store(self.engine)
        return wasmtime.Instance(store, module, []).exports(store)["f"](store)  # type: ignore[operator]

    @property
    def file(self) -> Path:
        return self.directory / "guest-k.cwasm"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cache")


def test_the_first_use_compiles_and_says_so_and_how_long_it_took(world: World) -> None:
    assert world.answer() == 7

    assert world.compiled == 1
    begun, ended = world.said
    assert begun.startswith(COMPILING)
    assert "once" in begun
    assert re.fullmatch(rf"{COMPILED} \d+\.\d s", ended)


def test_the_second_use_loads_in_silence(world: World) -> None:
    world.answer()
    world.said.clear()

    assert world.answer() == 7
    assert (world.compiled, world.said) == (1, [])


def test_the_directory_and_files_are_private(world: World) -> None:
    world.answer()

    assert stat.S_IMODE(os.stat(world.directory).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(world.file).st_mode) == 0o600


def test_another_key_is_another_file(world: World) -> None:
    world.answer("k")
    world.answer("other")

    assert world.compiled == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"not code at all",
        lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data + b"\0",
    ],
)
def test_a_changed_file_is_compiled_again(world: World, spoil: Any) -> None:
    world.answer()
    world.file.write_bytes(spoil(world.file.read_bytes()))

    assert world.answer() == 7
    assert world.compiled == 2
    assert world.answer() == 7
    assert world.compiled == 2


def test_a_file_without_its_digest_is_compiled_again(world: World) -> None:
    world.answer()
    world.file.with_suffix(".sha256").unlink()

    assert world.answer() == 7
    assert world.compiled == 2


def test_a_link_in_place_of_the_file_is_not_followed(world: World, tmp_path: Path) -> None:
    world.answer()
    moved = tmp_path / "elsewhere.cwasm"
    world.file.rename(moved)
    world.file.symlink_to(moved)

    assert world.answer() == 7
    assert world.compiled == 2


def test_code_for_another_engine_is_compiled_again(world: World) -> None:
    world.answer()
    config = wasmtime.Config()
    config.consume_fuel = True
    world.engine = wasmtime.Engine(config)
    cache = CodeCache(world.directory, say=world.said.append)

    cache.module(world.engine, key="k", compile_module=world.compile_module)

    assert world.compiled == 2


def test_a_directory_that_others_could_write_is_closed_and_its_code_not_used(world: World) -> None:
    world.answer()
    world.directory.chmod(0o777)

    assert world.answer() == 7
    assert world.compiled == 2
    assert stat.S_IMODE(os.stat(world.directory).st_mode) == 0o700


def test_a_directory_of_another_user_is_not_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.answer()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    assert world.answer() == 7
    assert world.compiled == 2
    assert "another user" in world.said[-2]


def test_a_link_in_place_of_the_directory_is_not_followed(world: World, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    world.directory.symlink_to(tmp_path / "real")

    assert world.answer() == 7
    assert "not a directory" in world.said[-2]
    assert list((tmp_path / "real").iterdir()) == []


def test_a_file_in_place_of_the_directory_costs_time_and_no_more(world: World) -> None:
    world.directory.write_text("in the way")

    assert world.answer() == 7
    assert len(world.said) == 2
    assert "without a cache" in world.said[0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_costs_time_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)

    assert world.answer() == 7
    assert os.strerror(number) in world.said[-1]
    assert [path.suffix for path in world.directory.iterdir()] == [".lock"]


def test_the_processor_is_named_the_same_way_each_time() -> None:
    assert cpu_digest() == cpu_digest()
    assert len(cpu_digest()) == 16


def test_the_engine_is_named_with_the_version_that_is_installed() -> None:
    assert ENGINE.split()[0] == f"wasmtime-{importlib.metadata.version('wasmtime')}"
