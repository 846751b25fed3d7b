"""Private directories: each stays while somebody uses it, and is removed by the next one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tallystick.storage import system
from tallystick.storage.private_folder import PrivateFolder


def test_a_folder_of_a_process_that_is_gone_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = PrivateFolder("native")
    left = tmp_path / "tallystick-native-left"
    left.mkdir()
    (left / "lock").touch()
    made_now = tmp_path / "tallystick-native-now"
    made_now.mkdir()

    other = PrivateFolder("native")

    assert not left.exists()
    # One that is used stays, and one that is just being made.
    assert mine.path.exists()
    assert made_now.exists()
    for each in (mine, other, other):
        each.remove()
    assert [each.name for each in tmp_path.iterdir()] == ["tallystick-native-now"]


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock = system.lock
    removed: list[Path] = []

    def remove_then_lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
        if not removed:
            removed.extend(tmp_path.iterdir())
            shutil.rmtree(removed[0])
        lock(descriptor, shared=shared, wait=wait)

    monkeypatch.setattr(system, "lock", remove_then_lock)
    mine = PrivateFolder("native")
    assert mine.path.is_dir()
    assert mine.path not in removed
    mine.remove()
