"""Files and directories of one user: private, and whole or not there at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.storage.clock import new_id, now_ms
from tallystick.storage.private_file import make_private, open_new, whole_file, write_whole

# Dies at the system call that it is told: nothing is cleaned up.
DIES = """
import os, signal, sys
from pathlib import Path
from tallystick.storage.private_file import write_whole
def dies(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, sys.argv[2], dies)
write_whole(Path(sys.argv[1]), b"new")
"""


@pytest.fixture(autouse=True)
def _open_by_default() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    return [str(each) for each in folder.rglob("*") if each.stat().st_mode & 0o077]


def test_what_is_missing_above_a_directory_is_private_too(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b" / "c")

    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert open_to_others(tmp_path) == []


def test_what_is_there_keeps_its_rights_and_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    (tmp_path / "file").write_text("")

    make_private(tmp_path / "there")

    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o755
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")


def test_a_file_is_written_whole_and_private(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"one")
    write_whole(tmp_path / "a", b"two")

    assert (tmp_path / "a").read_bytes() == b"two"
    assert open_to_others(tmp_path) == []
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_file_for_others_has_the_rights_that_the_user_gives_by_default(tmp_path: Path) -> None:
    with whole_file(tmp_path / "a", mode=0o666) as file:
        file.write(b"one")

    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_a_name_that_is_taken_is_kept_if_it_is_not_to_be_replaced(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"one", replace=False)

    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a", b"two", replace=False)
    with pytest.raises(FileExistsError):
        open_new(tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"theirs")
    (tmp_path / "a").symlink_to(tmp_path / "other")

    write_whole(tmp_path / "a", b"mine")

    assert (tmp_path / "other").read_bytes() == b"theirs"
    assert not (tmp_path / "a").is_symlink()


def test_what_is_raised_while_a_file_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", b"one")

    def parts() -> Iterator[bytes]:
        yield b"two"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "a") as file:
        file.writelines(parts())

    assert (tmp_path / "a").read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_file_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write_whole(tmp_path / "a", b"one")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            write_whole(tmp_path / "a", b"two")

    assert (tmp_path / "a").read_bytes() == b"one"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("call", ["fsync", "replace", "unlink"])
def test_a_process_killed_while_it_writes_leaves_a_whole_file(tmp_path: Path, call: str) -> None:
    write_whole(tmp_path / "a", b"old")
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "a"), call], timeout=60)

    assert done.returncode == -signal.SIGKILL
    # Between the rename and the end there is nothing left to do but to remove the other name.
    assert (tmp_path / "a").read_bytes() == (b"new" if call == "unlink" else b"old")
    assert open_to_others(tmp_path) == []


def test_ids_are_in_the_order_of_their_times() -> None:
    earlier, later = new_id(time_ms=now_ms() - 1_000), new_id()

    assert earlier < later
