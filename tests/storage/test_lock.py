"""The lock on a file: one holder, released by a death, and never held on a name that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.descriptors import new_descriptors, open_descriptors

from tallystick.storage import lock as module
from tallystick.storage.lock import FileLock, is_locked, proven_free

HOLDS = """
import sys
from pathlib import Path
from tallystick.storage.lock import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "one.lock"


def free(path: Path) -> bool:
    with proven_free(path) as found:
        return found


def test_a_lock_excludes_others_until_it_is_released(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)

    assert first.take()
    assert not second.take()
    assert not first.take()
    assert (is_locked(path), free(path), first.is_current) == (True, False, True)
    first.release()
    first.release()

    assert (is_locked(path), free(path), first.is_current) == (False, True, False)
    assert second.take()
    second.release()


def test_a_lock_is_private_and_so_is_its_directory(path: Path) -> None:
    lock = FileLock(path)
    lock.take()
    lock.release()

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_lock_that_was_never_made_is_neither_held_nor_proven_free(path: Path) -> None:
    assert not is_locked(path)
    assert not free(path)
    assert not path.parent.exists()


def test_a_lock_removes_its_name_and_not_that_of_another(path: Path) -> None:
    mine, theirs = FileLock(path), FileLock(path)
    mine.take()
    path.unlink()
    theirs.take()

    assert not mine.is_current
    mine.release(remove=True)
    assert theirs.is_current
    theirs.release(remove=True)

    assert not path.exists()


def test_a_name_that_goes_between_opening_and_locking_is_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder has just left: the lock would be on a file that nobody finds."""
    tries: list[int] = []
    locked = module._try_lock

    def once_gone(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
        tries.append(descriptor)
        if len(tries) == 1:
            path.unlink()
        return locked(descriptor, shared=shared, wait=wait)

    monkeypatch.setattr(module, "_try_lock", once_gone)
    lock = FileLock(path)
    assert lock.take()

    assert len(tries) == 2
    assert lock.is_current
    assert os.path.samestat(path.stat(), os.fstat(tries[1]))
    lock.release()


def test_a_waiting_taker_gets_the_lock_when_it_is_released(path: Path) -> None:
    first, second = FileLock(path), FileLock(path)
    first.take()
    taken: list[bool] = []
    waiting = threading.Thread(target=lambda: taken.append(second.take(wait_seconds=None)))
    waiting.start()
    first.release(remove=True)
    waiting.join()

    assert taken == [True]
    assert second.is_current
    second.release()


def test_a_lock_is_released_when_its_process_is_killed(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        held = (is_locked(path), free(path))
        process.kill()

    assert held == (True, False)
    assert (is_locked(path), free(path)) == (False, True)


def test_the_child_of_a_fork_shares_the_lock_until_both_have_closed_it(path: Path) -> None:
    lock = FileLock(path)
    lock.take()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    lock.release()
    shared = is_locked(path)
    os.close(writing)
    os.close(reading)
    os.waitpid(child, 0)

    assert shared
    assert not is_locked(path)


def test_a_lock_that_cannot_be_made_is_the_systems_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(FileExistsError):
        FileLock(tmp_path / "file" / "one.lock").take()
    with pytest.raises(IsADirectoryError):
        FileLock(tmp_path).take()


def test_a_lock_that_the_system_refuses_leaves_no_descriptor(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("tallystick.storage.system.lock", refused)
    before = open_descriptors()

    assert not FileLock(path).take()
    with pytest.raises(OSError, match="No locks available"):
        FileLock(path).take(wait_seconds=None)

    assert new_descriptors(before) == {}
