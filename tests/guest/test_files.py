"""The files of a build, called as the guest's C library calls them."""

import posixpath
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.guest.files import FILE_FUNCTIONS, FileFunctions

NO_ENTRY, NOT_DIRECTORY, IS_DIRECTORY, READ_ONLY, BAD_DESCRIPTOR = 20, 24, 14, 33, 3
CLOSED = 1
RESULT = 64

names = st.text(st.sampled_from("ab.é"), min_size=1, max_size=3).filter(
    lambda name: name not in (".", "..")
)
# No name is both a file and a directory: files end in a letter that no directory has.
paths = st.builds(
    lambda folders, name: "/".join(["/top", *folders, name + "x"]),
    st.lists(names, max_size=3),
    names,
)
trees = st.dictionaries(paths, st.binary(max_size=50), max_size=8)


class Guest:
    """Memory with an allocator that never frees, and calls with the results read back."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.bytes = bytearray(1 << 18)
        self.free = 4096
        made = FileFunctions(files, roots={"top": "/top"}, memory=self)
        self.functions = {
            name.rpartition("]")[2].rpartition("#")[2]: function
            for name, function in made.functions().items()
        }
        self.functions["get-directories"](RESULT)
        place, count = struct.unpack_from("<II", self.bytes, RESULT)
        assert count == 1
        self.root, name, length = struct.unpack_from("<III", self.bytes, place)
        assert self.read(name, length) == b"top"

    def read(self, start: int, length: int) -> bytes:
        return bytes(self.bytes[start : start + length])

    def write(self, start: int, content: bytes) -> None:
        self.bytes[start : start + len(content)] = content

    def allocate(self, length: int, align: int) -> int:
        place = -(-self.free // align) * align
        self.free = place + length
        return place

    def text(self, text: str) -> tuple[int, int]:
        raw = text.encode()
        place = self.allocate(len(raw), 1)
        self.write(place, raw)
        return place, len(raw)

    def call(self, name: str, *arguments: int, align: int = 4) -> tuple[int, bytes]:
        """Return the error code, or -1 and what the result holds."""
        self.write(RESULT, bytes([0xEE] * 128))
        self.functions[name](*arguments, RESULT)
        payload = self.read(RESULT + align, 100)
        return (payload[0], b"") if self.bytes[RESULT] else (-1, payload)

    def number(self, name: str, *arguments: int) -> int:
        error, payload = self.call(name, *arguments)
        assert error == -1
        return int.from_bytes(payload[:4], "little")

    def open(self, path: str, *, how: int = 0, flags: int = 1) -> tuple[int, int]:
        error, payload = self.call("descriptor.open-at", self.root, 0, *self.text(path), how, flags)
        return error, int.from_bytes(payload[:4], "little")

    def content(self, path: str, piece: int) -> bytes:
        stream = self.number("descriptor.read-via-stream", self.open(path)[1], 0)
        content = b""
        while True:
            error, payload = self.call("input-stream.read", stream, piece)
            if error != -1:
                assert error == CLOSED
                return content
            place, length = struct.unpack_from("<II", payload)
            content += self.read(place, length)

    def listing(self, path: str) -> list[tuple[str, int]]:
        stream = self.number("descriptor.read-directory", self.open(path)[1])
        rows: list[tuple[str, int]] = []
        while True:
            error, payload = self.call("directory-entry-stream.read-directory-entry", stream)
            assert error == -1
            some, kind, place, length = struct.unpack_from("<IBxxxII", payload)
            if not some:
                return rows
            rows.append((self.read(place, length).decode(), kind))


@given(trees, st.integers(1, 60))
def test_what_is_read_is_what_the_files_hold(tree: dict[str, bytes], piece: int) -> None:
    guest = Guest(tree)

    for path, content in tree.items():
        assert guest.content(path.removeprefix("/top/"), piece) == content


@given(trees, st.randoms())
def test_directories_and_numbers_depend_on_the_paths_and_not_on_their_order(
    tree: dict[str, bytes], random: object
) -> None:
    folders = {posixpath.dirname(path) for path in tree}
    shuffled = list(tree.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    guests = [Guest(tree), Guest(dict(shuffled))]

    for folder in folders:
        name = posixpath.relpath(folder, "/top")
        first, second = (guest.listing(name) for guest in guests)
        assert first == second == sorted(first)
        assert {posixpath.join(folder, each) for each, kind in first if kind == 6} == {
            path for path in tree if posixpath.dirname(path) == folder
        }
    for path in tree:
        text = path.removeprefix("/top/")
        found = [
            guest.call("descriptor.metadata-hash-at", guest.root, 0, *guest.text(text), align=8)
            for guest in guests
        ]
        assert found[0] == found[1]


@given(trees)
def test_two_paths_never_have_one_number(tree: dict[str, bytes]) -> None:
    guest = Guest(tree)
    found = set()
    for path in tree:
        text = guest.text(path.removeprefix("/top/"))
        found.add(guest.call("descriptor.metadata-hash-at", guest.root, 0, *text, align=8)[1][:16])

    assert len(found) == len(tree)


def test_a_file_has_a_kind_and_a_size_and_no_time() -> None:
    guest = Guest({"/top/a/b": b"12345"})
    _, handle = guest.open("a/b")

    by_handle = guest.call("descriptor.stat", handle, align=8)
    by_name = guest.call("descriptor.stat-at", guest.root, 1, *guest.text("a/b"), align=8)

    assert by_handle == by_name
    kind, links, size = struct.unpack_from("<B7xQQ", by_name[1])
    assert (kind, links, size) == (6, 1, 5)
    assert [by_name[1][24 + 24 * i] for i in range(3)] == [0, 0, 0]
    _, folder = guest.call("descriptor.stat-at", guest.root, 1, *guest.text("a"), align=8)
    assert folder[0] == 3


@pytest.mark.parametrize(
    ("path", "how", "flags", "error"),
    [
        ("a/b", 0, 1, -1),
        ("a/../a/./b", 0, 1, -1),
        ("a", 2, 1, -1),
        ("a/b", 2, 1, NOT_DIRECTORY),
        ("a/c", 0, 1, NO_ENTRY),
        ("../etc/passwd", 0, 1, NO_ENTRY),
        ("/etc/passwd", 0, 1, NO_ENTRY),
        ("a/b", 0, 2, READ_ONLY),
        ("a/b", 8, 1, READ_ONLY),
        ("a/b", 4, 1, READ_ONLY),
        ("a/b", 1, 1, READ_ONLY),
    ],
)
def test_opening_changes_nothing_and_finds_only_what_is_there(
    path: str, how: int, flags: int, error: int
) -> None:
    assert Guest({"/top/a/b": b""}).open(path, how=how, flags=flags)[0] == error


def test_what_cannot_be_done_is_refused_with_the_reason() -> None:
    guest = Guest({"/top/a/b": b""})
    _, file = guest.open("a/b")
    _, folder = guest.open("a")

    assert guest.call("descriptor.read-directory", file)[0] == NOT_DIRECTORY
    assert guest.call("descriptor.read-via-stream", folder, 0)[0] == IS_DIRECTORY
    assert guest.call("descriptor.stat", 77, align=8)[0] == BAD_DESCRIPTOR
    assert guest.call("descriptor.readlink-at", guest.root, *guest.text("a"))[0] == 12
    made = guest.call("descriptor.create-directory-at", guest.root, *guest.text("n"), align=1)
    assert made[0] == READ_ONLY
    assert guest.call("input-stream.read", 0, 10)[0] == CLOSED
    assert guest.call("descriptor.get-flags", file, align=1)[1][0] == 1


def test_every_function_has_a_name_of_wasi() -> None:
    assert set(FileFunctions({}, roots={}, memory=Guest({})).functions()) == FILE_FUNCTIONS
