"""Directories that the first command makes are private to the user, and so are those above."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_resume import Tally, tally
from tests.unprivileged import unprivileged

from tallystick.core.errors import TallystickError
from tallystick.memory.errors import MemoryReadOnly
from tallystick.memory.memory import Memory

__all__ = ["tally"]


@pytest.fixture(autouse=True)
def _open_by_default() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    return [
        str(each.relative_to(folder))
        for each in folder.rglob("*")
        if each.is_dir() and each.stat().st_mode & 0o077
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("exec", "program.py", "--session", "s"),
        ("session", "new"),
        ("remember", "the ferry leaves at nine"),
    ],
    ids=["exec", "session", "remember"],
)
def test_the_first_command_leaves_only_private_directories(
    tally: Tally, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    (tally.folder / "program.py").write_text("for number in range(20_000): print(number)")
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tally.folder / "share" / "data"))

    assert tally(*words).code == 0

    assert (tally.folder / "share" / "data").is_dir()
    assert open_to_others(tally.folder / "share") == []
    assert (tally.folder / "share").stat().st_mode & 0o077 == 0


def test_a_memory_that_may_not_be_made_is_read_only() -> None:
    with unprivileged() as folder:
        (folder / "shut").mkdir(mode=0o500)
        with pytest.raises(TallystickError) as caught, _opened(folder) as memory:
            memory.remember("the ferry leaves at nine")

    assert isinstance(caught.value, MemoryReadOnly)


def _opened(folder: Path) -> Memory:
    return Memory.open(
        directory=folder / "shut" / "memory",
        embedder=None,
        environ={"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")},
    )
