"""Owners in files: a death is proven across processes, and a name is on the disk at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.descriptors import new_descriptors, open_descriptors

from tallystick.core.errors import StoreError
from tallystick.storage.owner import FileOwners

HOLDS = """
import sys
from pathlib import Path
from tallystick.storage.owner import FileOwners
owner = FileOwners(Path(sys.argv[1]), failed=OSError).hold()
print(owner.id, flush=True)
sys.stdin.read()
"""


def failed(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path.parent.name}: {error.strerror}")


@pytest.fixture
def owners(tmp_path: Path) -> FileOwners:
    return FileOwners(tmp_path / "owners", failed=failed)


def test_a_process_that_was_killed_is_proven_dead(owners: FileOwners, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "owners")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        id = process.stdout.readline().strip()
        before = owners.proven_dead(id)
        process.kill()

    assert (before, owners.proven_dead(id)) == (False, True)


def test_an_owner_lives_as_long_as_the_child_of_a_fork_has_its_lock(owners: FileOwners) -> None:
    owner = owners.hold()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    owner.release(remove=False)
    before = owners.proven_dead(owner.id)
    os.close(writing)
    os.close(reading)
    os.waitpid(child, 0)

    assert (before, owners.proven_dead(owner.id)) == (False, True)


def test_the_name_of_an_owner_is_forced_with_its_folder(
    owners: FileOwners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    owners.hold().release(remove=True)

    assert {str(tmp_path), str(tmp_path / "owners")} <= set(forced)


def test_a_failure_of_the_disk_is_the_stores_error_and_leaves_no_descriptor(
    owners: FileOwners, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    owners.hold().release(remove=True)
    before = open_descriptors()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="owners: No space left on device"):
        owners.hold()

    assert new_descriptors(before) == {}


def test_a_link_in_the_place_of_a_lock_proves_nothing(owners: FileOwners, tmp_path: Path) -> None:
    owner = owners.hold()
    owner.release(remove=False)
    path = tmp_path / "owners" / f"{owner.id}.lock"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    assert not owners.proven_dead(owner.id)
