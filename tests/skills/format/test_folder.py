"""Folders: nothing outside a skill's folder is ever opened, however the path to it is written."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.skills.errors import SkillNotFound, SkillPathRefused, SkillUnreadable
from tallystick.skills.format import folder as folder_module
from tallystick.skills.format.folder import FILES_MAX, FileEntry, Folder

SECRET = b"the secret outside"
INSIDE = b"an ordinary file"

_opens: list[tuple[object, int]] | None = None


def _note_open(event: str, arguments: tuple[object, ...]) -> None:
    if _opens is not None and event == "open":
        flags = arguments[2]
        _opens.append((arguments[0], flags if isinstance(flags, int) else 0))


# A hook cannot be taken away again; it does nothing while nobody listens.
sys.addaudithook(_note_open)


@contextmanager
def only_inside(root: Path) -> Iterator[None]:
    """Check every open of the interpreter: the folder, or one component that is not followed."""
    global _opens
    noted: list[tuple[object, int]] = []
    _opens = noted
    try:
        yield
    finally:
        _opens = None
    for path, flags in noted:
        if path == str(root):
            assert flags & os.O_DIRECTORY
            continue
        assert isinstance(path, str)
        assert "/" not in path
        assert path not in {"", ".", ".."}
        assert flags & os.O_NOFOLLOW, path


def planted(base: Path) -> Path:
    """A skill's folder with every kind of way out of it, beside files that nobody may read."""
    (base / "secret").write_bytes(SECRET)
    (base / "outside").mkdir()
    (base / "outside" / "secret").write_bytes(SECRET)
    skill = base / "skill"
    (skill / "a" / "b").mkdir(parents=True)
    for path in ("SKILL.md", "a/file", "a/b/file", "a/b/secret", "données.txt", ".hidden"):
        (skill / path).write_bytes(INSIDE)
    for name, target in {
        "link": "../secret",
        "link-absolute": str(base / "secret"),
        "link-directory": "../outside",
        "link-directory-absolute": str(base / "outside"),
        "link-root": "/",
        "link-chain": "link-chain-2",
        "link-chain-2": "a/link-3",
        "a/link-3": "../../secret",
        "link-loop": "link-loop-2",
        "link-loop-2": "link-loop",
        "link-self": "link-self",
        "link-here": ".",
        "link-up": "..",
        "a/link-up": "../..",
        "link-inside": "a/file",
        "link-directory-inside": "a",
        "link-dangling": "nowhere",
        "link-process": "/proc/self/root",
        "link-descriptor": "/dev/fd/0",
    }.items():
        (skill / name).symlink_to(target)
    os.mkfifo(skill / "pipe")
    (skill / ".git").mkdir()
    (skill / ".git" / "config").write_bytes(INSIDE)
    (skill / "a" / "__pycache__").mkdir()
    (skill / "a" / "__pycache__" / "file.pyc").write_bytes(INSIDE)
    (skill / "new\nline").write_bytes(INSIDE)
    with open(os.fsencode(skill) + b"/not-utf8-\xff", "wb") as file:
        file.write(INSIDE)
    return skill


@pytest.fixture(scope="module")
def skill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted(tmp_path_factory.mktemp("folder"))


READABLE = (".hidden", "SKILL.md", "a/b/file", "a/b/secret", "a/file", "données.txt")
REFUSED = (
    "", ".", "./", "/", "//", "..", "../", "../secret", "a/..", "a/../file", "a/../../secret",
    "a/b/../../../secret", "./../secret", "a/./../../secret", "/etc/passwd", "//etc/passwd",
    "a/", "a/.", "SKILL.md/", "SKILL.md/.", "a", "a/b", "\0", "a\0", "SKILL.md\0", "a/file\0/../x",
    "link", "link/", "link-absolute", "link-directory/secret", "link-directory-absolute/secret",
    "link-root/etc/passwd", "link-chain", "link-loop", "link-self", "link-self/x", "link-loop/x",
    "link-here/SKILL.md", "link-here/link-here/SKILL.md", "link-up/secret", "a/link-up/secret",
    "link-inside", "link-directory-inside/file", "link-dangling", "link-process/etc/passwd",
    "link-descriptor", "pipe", ".git/config", ".GIT/config", ".Git/x", "a/__pycache__/file.pyc",
    "new\nline", "a\x1b[2J", "\u202eelif/a", "not-utf8-\udcff", "\ud800", "a/" * 600 + "x",
    "x" * 256, "é" * 128, "/".join("x" * 40), "...//" + "../" * 20 + "etc/passwd", "..\0/secret",
)  # fmt: skip
MISSING = (
    "nowhere", "a/nowhere", "nowhere/file", "SKILL.md/file", "a/file/b", "...", "..a", "a..", "~",
    "~/secret", "%2e%2e/secret", "..%2fsecret", "..\\secret", "\uff0e\uff0e/secret",
    "\u2024\u2024/secret", "..\u2215secret", "C:\\secret", "file:secret", "$HOME", " ..",
    ".. /secret", "skill.md ", "données.txt/x", "é" * 127,
)  # fmt: skip


@pytest.mark.parametrize("relative", [*READABLE, "./SKILL.md", "a//file", "./a/./b/file"])
def test_an_ordinary_file_is_read(skill: Path, relative: str) -> None:
    with only_inside(skill):
        assert Folder(skill).read(relative) == INSIDE


@pytest.mark.parametrize("relative", REFUSED, ids=ascii)
def test_a_path_that_is_no_ordinary_file_inside_is_refused(skill: Path, relative: str) -> None:
    with only_inside(skill), pytest.raises(SkillPathRefused) as refused:
        Folder(skill).read(relative)

    assert not Folder(skill).exists(relative) or relative.rstrip("/.") in {"a", "a/b", "SKILL.md"}
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("relative", MISSING, ids=ascii)
def test_a_path_that_leads_to_nothing_is_not_found(skill: Path, relative: str) -> None:
    with only_inside(skill), pytest.raises(SkillNotFound):
        Folder(skill).read(relative)

    assert not Folder(skill).exists(relative)


COMPONENTS = st.sampled_from([
    "", ".", "..", "...", "a", "b", "file", "secret", "SKILL.md", "skill", "outside", "link",
    "link-absolute", "link-directory", "link-directory-absolute", "link-root", "link-chain", "etc",
    "link-loop", "link-self", "link-here", "link-up", "link-directory-inside", "passwd", "pipe",
    ".git", "link-process", "\0", "\u2024\u2024", "\uff0e\uff0e", "..\\", "x" * 300, "\ud800", "\n",
])  # fmt: skip
PATHS = st.lists(COMPONENTS | st.text(max_size=3), max_size=9).map("/".join)


@given(PATHS)
def test_no_path_at_all_reads_anything_outside(skill: Path, relative: str) -> None:
    folder = Folder(skill)
    with only_inside(skill):
        try:
            data = folder.read(relative)
        except (SkillPathRefused, SkillNotFound):
            return

    assert data == INSIDE
    assert os.path.normpath(relative) in [each.path for each in folder.files()]


@given(PATHS)
def test_a_folder_below_a_root_is_as_tight(skill: Path, relative: str) -> None:
    with only_inside(skill.parent):
        try:
            assert Folder(skill, skill.parent).read(relative) == INSIDE
        except (SkillPathRefused, SkillNotFound):
            return


@pytest.mark.parametrize("inner", ["link-directory", "link-up", "link-here/a", "a/../../outside"])
def test_a_folder_that_is_reached_through_a_link_below_its_root_is_refused(
    skill: Path, inner: str
) -> None:
    folder = Folder(skill / inner, skill)

    with only_inside(skill), pytest.raises(SkillPathRefused):
        folder.read("secret")
    with pytest.raises(SkillPathRefused):
        folder.files()


def test_the_listing_is_what_can_be_read_and_nothing_through_links(skill: Path) -> None:
    folder = Folder(skill)

    with only_inside(skill):
        listing = folder.listing()

    assert listing.files == tuple(FileEntry(path=path, bytes=len(INSIDE)) for path in READABLE)
    assert all(folder.read(each.path) == INSIDE for each in folder.files())
    assert {"link", "pipe", ".git", "a/__pycache__", "a/link-up", "link-loop"} <= set(
        listing.left_out
    )


def test_sockets_and_devices_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The path of a socket may not be long.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")

    with pytest.raises(SkillPathRefused, match="not an ordinary file"):
        Folder(tmp_path).read("socket")
    with pytest.raises(SkillPathRefused, match="not an ordinary file"):
        Folder(Path("/dev")).read("null")
    assert Folder(tmp_path).files() == ()


def test_a_limit_is_what_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)

    assert Folder(tmp_path).read("file", bytes_max=10) == b"x" * 10
    with pytest.raises(SkillPathRefused, match="10 bytes; at most 9 are read"):
        Folder(tmp_path).read("file", bytes_max=9)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(SkillPathRefused):
        Folder(tmp_path).read("huge")
    assert Folder(tmp_path).files() == (FileEntry(path="huge", bytes=1 << 40),)


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    monkeypatch.setattr(folder_module, "_check_ordinary", lambda status, bytes_max: None)

    with pytest.raises(SkillPathRefused, match="more than 5"):
        Folder(tmp_path).read("file", bytes_max=5)


@pytest.mark.parametrize("kind", ["file", "directory", "pipe"])
def test_what_takes_a_place_between_look_and_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    skill = planted(tmp_path)
    swapped = skill / "a" / "b" if kind == "directory" else skill / "a" / "b" / "secret"
    real = os.open

    def racing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == swapped.name:
            swapped.rename(tmp_path / "away")
            if kind == "pipe":
                os.mkfifo(swapped)
            else:
                swapped.symlink_to(tmp_path / ("outside" if kind == "directory" else "secret"))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", racing)

    with pytest.raises(SkillPathRefused):
        Folder(skill).read("a/b/secret")


def test_a_folder_that_is_moved_while_it_is_read_gives_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill = planted(tmp_path)
    real = os.open

    def racing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened = real(path, flags, mode, dir_fd=dir_fd)
        if path == "b":
            (skill / "a").rename(tmp_path / "moved")
            (skill / "a").symlink_to(tmp_path / "outside")
        return opened

    monkeypatch.setattr(os, "open", racing)

    assert Folder(skill).read("a/b/secret") == INSIDE


def test_a_folder_that_is_not_there_or_closed_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(INSIDE)

    for path in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(SkillUnreadable):
            Folder(path).read("file")
        with pytest.raises(SkillUnreadable):
            Folder(path).files()
        assert not Folder(path).exists("file")


def test_a_listing_is_whole_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "FILES_MAX", 5)
    (tmp_path / "a").mkdir()
    for number in range(5):
        (tmp_path / "a" / str(number)).touch()

    assert len(Folder(tmp_path).files()) == 5
    (tmp_path / "one more").touch()
    with pytest.raises(SkillUnreadable, match="more than 5 files"):
        Folder(tmp_path).files()
    assert FILES_MAX == 5_000


def test_folders_that_are_too_deep_are_refused(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*"abcdefghijklmnop")
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(INSIDE)

    assert len(Folder(tmp_path).files()) == 1
    assert Folder(tmp_path).read(Folder(tmp_path).files()[0].path) == INSIDE
    (deep / "q").mkdir()
    with pytest.raises(SkillUnreadable, match="deeper than 16"):
        Folder(tmp_path).files()


def test_every_descriptor_is_closed(skill: Path) -> None:
    before = len(os.listdir("/dev/fd"))

    for relative in (*READABLE, *REFUSED, *MISSING):
        Folder(skill).exists(relative)
        try:
            Folder(skill).read(relative)
        except (SkillPathRefused, SkillNotFound):
            continue
    Folder(skill).files()

    assert len(os.listdir("/dev/fd")) == before
