"""Private directories: each stays while somebody uses it, and is removed by the next one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

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
