"""Find the file descriptors that a piece of code opened in this process and left open.

A count before and after is not enough: garbage collection may close in between what earlier code
had left open, and then the count falls, or hides one that is new.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_DIRECTORY = Path("/proc/self/fd")
_DELETED = " (deleted)"
_CLOSING_SECONDS = 5.0
# onnxruntime opens this database of its own when it is first used, and closes it when the process
# ends. No test can close it earlier.
_ONNXRUNTIME = "/.onnxruntime/onnxruntime.db"
_of_wider_fixtures: dict[int, str] = {}


def open_descriptors() -> dict[int, str]:
    """Return what each open descriptor of this process points to. Without /proc, nothing."""
    found: dict[int, str] = {}
    if not _DIRECTORY.is_dir():
        return found
    for name in os.listdir(_DIRECTORY):
        try:
            target = os.readlink(_DIRECTORY / name)
        except FileNotFoundError:
            # The descriptor of the listing itself, or one that another thread has just closed.
            continue
        # A file that is deleted while it is open keeps its descriptor: it is not a new one.
        found[int(name)] = target.removesuffix(_DELETED)
    return found


def new_descriptors(before: dict[int, str]) -> dict[int, str]:
    """Return the open descriptors that were not in `before`, and what they point to."""
    return {
        number: target
        for number, target in open_descriptors().items()
        if before.get(number) != target
    }


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Allow what a fixture of a module or session opens in its setup: it outlives the test.

    What such a fixture opens later, while a test uses it, is not allowed.
    """
    if fixturedef.scope == "function":
        return (yield)
    before = open_descriptors()
    value = yield
    _of_wider_fixtures.update(new_descriptors(before))
    return value


@contextmanager
def closed_descriptors(
    closing_seconds: float = _CLOSING_SECONDS, *, but: str | None = None
) -> Iterator[None]:
    """Fail the test if descriptors that were opened inside are still open at the end.

    Those that point to `but` may stay open.
    """
    # What wider fixtures have opened until now is in `before`.
    _of_wider_fixtures.clear()
    before = open_descriptors()
    yield
    if not _left_open(before, but):
        return
    # What only a cycle of references keeps open is closed by the next collection: it is no leak.
    gc.collect()
    # Threads that were told to end close theirs a little later. What only they kept alive may be
    # a cycle as well, so collect again.
    give_up = time.monotonic() + closing_seconds
    while (left := _left_open(before, but)) and time.monotonic() < give_up:
        time.sleep(0.01)
        gc.collect()
    if left:
        pytest.fail(f"the test left descriptors open: {left}", pytrace=False)


def _left_open(before: dict[int, str], but: str | None) -> dict[int, str]:
    return {
        number: target
        for number, target in new_descriptors(before).items()
        if _of_wider_fixtures.get(number) != target and _ONNXRUNTIME not in target and target != but
    }
