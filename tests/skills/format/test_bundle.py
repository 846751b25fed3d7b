"""Bundles: one digest for all files of a skill, which any change of any of them changes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import TallystickError
from tallystick.skills.errors import SkillUnreadable
from tallystick.skills.format.bundle import (
    SIGNATURE_NAME,
    Bundle,
    BundledFile,
    bundle_of,
    differences,
)
from tallystick.skills.format.folder import Folder

names = st.text("abcXYZ-_. 0", min_size=1, max_size=6).filter(lambda name: name.strip(". ") == name)
trees = st.dictionaries(
    st.lists(names, min_size=1, max_size=3).map("/".join), st.binary(max_size=40), max_size=6
)


def written(directory: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """Write what can be written: a name may stand for a file or for a folder, and not for both."""
    kept = {}
    for path, data in files.items():
        target = directory / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError:
            continue
        kept[path] = data
    return kept


def test_every_file_is_in_it_with_its_digest_in_order(tmp_path: Path) -> None:
    written(tmp_path, {"scripts/b.py": b"2", "SKILL.md": b"1", "a.txt": b""})

    found = bundle_of(Folder(tmp_path))

    assert [(each.path, each.bytes) for each in found.files] == [
        ("SKILL.md", 1), ("a.txt", 0), ("scripts/b.py", 1),
    ]  # fmt: skip
    assert found.files[0].sha256 == hashlib.sha256(b"1").hexdigest()
    assert found.find("a.txt") == found.files[1]
    assert found.find("nosuch") is None


def test_the_digest_stays_what_it_is_in_every_version() -> None:
    file = BundledFile(path="SKILL.md", bytes=1, sha256="0" * 64)

    assert Bundle(files=(file,)).sha256 == (
        hashlib.sha256(
            b'{"files":[{"bytes":1,"path":"SKILL.md","sha256":"' + b"0" * 64 + b'"}],'
            b'"format":"tallystick-bundle@1"}'
        ).hexdigest()
    )


def test_the_signature_is_left_out_and_only_at_the_top(tmp_path: Path) -> None:
    written(tmp_path, {"SKILL.md": b"1"})
    before = bundle_of(Folder(tmp_path))
    written(tmp_path, {SIGNATURE_NAME: b"x"})

    assert bundle_of(Folder(tmp_path)) == before

    written(tmp_path, {f"inner/{SIGNATURE_NAME}": b"x"})

    assert differences(before, bundle_of(Folder(tmp_path))).added == (f"inner/{SIGNATURE_NAME}",)


@given(files=trees)
def test_equal_files_have_equal_digests_wherever_they_are(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        kept = written(Path(one), files)
        written(Path(other), dict(reversed(kept.items())))

        assert bundle_of(Folder(Path(one))) == bundle_of(Folder(Path(other)))


@given(before=trees, now=trees)
def test_the_digest_tells_trees_apart_and_the_difference_names_each_file(
    before: dict[str, bytes], now: dict[str, bytes]
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        before, now = written(Path(one), before), written(Path(other), now)
        first, second = bundle_of(Folder(Path(one))), bundle_of(Folder(Path(other)))

    found = differences(first, second)

    assert (first.sha256 == second.sha256) == (before == now) == found.is_none
    assert set(found.added) == now.keys() - before.keys()
    assert set(found.removed) == before.keys() - now.keys()
    both = before.keys() & now.keys()
    assert set(found.changed) == {path for path in both if before[path] != now[path]}


def test_what_is_outside_is_no_part_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "skill"
    written(folder, {"SKILL.md": b"1"})
    (tmp_path / "secret").write_text("s")
    before = bundle_of(Folder(folder))
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(folder / "pipe")

    assert bundle_of(Folder(folder)) == before


def test_a_folder_over_its_bounds_has_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, {"SKILL.md": b"12345"})
    monkeypatch.setattr("tallystick.skills.format.bundle.BUNDLE_BYTES_MAX", 4)

    with pytest.raises(SkillUnreadable, match="more than 4 bytes"):
        bundle_of(Folder(tmp_path))


def test_a_folder_that_is_not_there_has_none_either(tmp_path: Path) -> None:
    with pytest.raises(TallystickError):
        bundle_of(Folder(tmp_path / "nosuch"))
