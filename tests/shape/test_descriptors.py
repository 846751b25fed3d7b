"""Descriptors that are left open are found, and those that were open before are not counted."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.descriptors import (
    closed_descriptors,
    new_descriptors,
    open_descriptors,
)

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc")
OPENERS: dict[str, tuple[Callable[[], int], str]] = {
    "a file": (lambda: os.open(__file__, os.O_RDONLY), __file__),
    "a directory": (lambda: os.open("/", os.O_RDONLY), "'/'"),
    "a file without a name": (lambda: os.memfd_create("left-open"), "/memfd:left-open"),
    "an event": (lambda: os.eventfd(0), "anon_inode:"),
}


@pytest.mark.parametrize("name", OPENERS)
def test_a_descriptor_that_is_left_open_fails_the_test_and_is_named(name: str) -> None:
    opened, target = OPENERS[name]

    with pytest.raises(pytest.fail.Exception) as caught, closed_descriptors(closing_seconds=0):
        left = opened()

    assert f"{left}: " in str(caught.value)
    assert target in str(caught.value)
    os.close(left)


def test_a_descriptor_that_closes_meanwhile_does_not_hide_one_that_is_new() -> None:
    old = os.open("/", os.O_RDONLY)
    before = open_descriptors()

    new = os.memfd_create("new")
    os.close(old)

    assert len(open_descriptors()) == len(before)
    assert new_descriptors(before) == {new: "/memfd:new"}
    os.close(new)


def test_another_file_under_the_number_of_a_closed_one_is_new() -> None:
    old = os.memfd_create("old")
    before = open_descriptors()

    os.close(old)
    new = os.memfd_create("new")

    assert new == old
    assert new_descriptors(before) == {new: "/memfd:new"}
    os.close(new)


def test_what_was_open_before_is_not_new_when_it_is_closed_or_its_file_deleted() -> None:
    closed = os.open("/", os.O_RDONLY)
    with tempfile.NamedTemporaryFile(delete=False) as kept:
        before = open_descriptors()

        os.close(closed)
        os.unlink(kept.name)

        assert new_descriptors(before) == {}


def test_what_a_cycle_of_references_keeps_open_is_no_leak() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.socket = socket.socket()
            self.me = self

    with pytest.warns(ResourceWarning, match="unclosed"), closed_descriptors():
        Cycle()


def test_a_thread_that_is_about_to_close_a_descriptor_is_waited_for() -> None:
    with closed_descriptors():
        late = os.memfd_create("late")
        thread = threading.Timer(0.05, os.close, [late])
        thread.start()
    thread.join()


CONFTEST = "from tests.conftest import descriptors_closed, pytest_configure"
LEAKY = """
import os
import pytest

def opened(name):
    number = os.memfd_create(name)
    yield number
    os.close(number)

@pytest.fixture(scope="session")
def of_session():
    yield from opened("session")

@pytest.fixture(scope="module")
def of_module():
    later = []
    yield later
    for number in later:
        os.close(number)

@pytest.fixture(scope="module")
def eager(of_session):
    yield from opened("module")

@pytest.fixture
def own():
    yield from opened("own")

def test_clean(own, request):
    request.getfixturevalue("eager")

def test_leaks():
    os.memfd_create("leaked")

def test_leaks_later(of_module):
    of_module.append(os.memfd_create("later"))

def test_after(of_session):
    pass
"""


@pytest.mark.slow
def test_a_run_names_the_tests_that_leave_a_descriptor_open_and_no_other(tmp_path: Path) -> None:
    # Below the root, as it is here: pytest treats the conftest.py of the root differently.
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (folder / "test_leaky.py").write_text(LEAKY, encoding="utf-8")

    # Without the summary (-rN): it repeats the errors, cut short or whole as CI is set or not.
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [*command, "-rN", "-c", ROOT / "pyproject.toml", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 1, done.stdout
    assert "4 passed, 2 errors" in done.stdout
    assert re.findall(r"ERROR at teardown of (\w+)", done.stdout) == [
        "test_leaks",
        "test_leaks_later",
    ]
    assert re.findall(r"'/memfd:(\w+)'", done.stdout) == ["leaked", "later"]
