"""What every store of large bytes promises, tried on each of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.attachments.builders import LARGE, digest

from tallystick.attachments.files import BlobFiles
from tallystick.attachments.memory import MemoryBlobs
from tallystick.attachments.port import AttachmentNotFound, BlobReader, Blobs
from tallystick.core.errors import InvalidName

BlobsMaker = Callable[[Path], Blobs]
BLOBS: dict[str, BlobsMaker] = {
    "files": lambda folder: BlobFiles(folder / "blobs"),
    "memory": lambda folder: MemoryBlobs(),
}
OTHER = LARGE[::-1]


@pytest.fixture(params=sorted(BLOBS))
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return BLOBS[request.param](tmp_path)


def whole(reader: BlobReader, size: int = 1 << 16) -> bytes:
    try:
        return b"".join(iter(lambda: reader.read(size), b""))
    finally:
        reader.close()


def staged(folder: Path, data: bytes) -> Path:
    """A file on the disk of the blobs, as a store stages it."""
    path = folder / "blobs" / "staging" / f"x.{os.urandom(4).hex()}"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("way", ["bytes", "file"])
def test_what_was_put_is_opened_under_its_digest(blobs: Blobs, tmp_path: Path, way: str) -> None:
    id = digest(LARGE)
    source = LARGE if way == "bytes" else staged(tmp_path, LARGE)

    blobs.put(id, source)

    assert whole(blobs.open(id)) == LARGE
    assert blobs.open(id).byte_len == blobs.size(id) == len(LARGE)
    assert list(blobs.ids()) == [id]
    assert isinstance(source, bytes) or not source.exists()


def test_a_put_of_what_is_there_changes_nothing_for_who_reads(blobs: Blobs) -> None:
    id = digest(LARGE)
    blobs.put(id, LARGE)
    reader = blobs.open(id)
    first = reader.read(10)

    blobs.put(id, LARGE)

    assert first + whole(reader) == whole(blobs.open(id)) == LARGE
    assert list(blobs.ids()) == [id]


def test_what_was_opened_is_read_to_its_end_though_it_was_removed(blobs: Blobs) -> None:
    id = digest(LARGE)
    blobs.put(id, LARGE)
    reader = blobs.open(id)

    blobs.remove(id)
    blobs.remove(id)

    assert whole(reader) == LARGE
    assert (blobs.size(id), list(blobs.ids())) == (None, [])
    with pytest.raises(AttachmentNotFound):
        blobs.open(id)


def test_ids_come_in_their_order(blobs: Blobs) -> None:
    made = sorted(digest(bytes([number])) for number in range(20))
    for number in range(20):
        blobs.put(digest(bytes([number])), bytes([number]))

    assert list(blobs.ids()) == made


def test_there_are_none_before_the_first_and_looking_makes_nothing(
    blobs: Blobs, tmp_path: Path
) -> None:
    id = digest(LARGE)

    assert (blobs.size(id), list(blobs.ids())) == (None, [])
    blobs.remove(id)
    with pytest.raises(AttachmentNotFound), blobs.local(id):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", sorted(BLOBS))
@given(start=st.integers(0, 300), length=st.none() | st.integers(0, 300), size=st.integers(1, 300))
def test_a_part_is_read_as_it_is_asked_for(
    kind: str, start: int, length: int | None, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    blobs, data = BLOBS[kind](tmp_path_factory.mktemp("blobs")), bytes(range(256))
    blobs.put(digest(data), data)

    reader = blobs.open(digest(data), start, length)

    stop = None if length is None else start + length
    assert reader.byte_len == 256
    assert whole(reader, size) == data[start:stop]


def test_a_reader_that_is_closed_twice_gives_nothing_more(blobs: Blobs) -> None:
    blobs.put(digest(LARGE), LARGE)
    reader = blobs.open(digest(LARGE))

    reader.close()
    reader.close()

    assert reader.read(10) == b""


def test_a_blob_is_in_a_file_while_inside_or_in_memory_anyway(blobs: Blobs) -> None:
    id = digest(LARGE)
    blobs.put(id, LARGE)

    with blobs.local(id) as path:
        assert (path is None) is isinstance(blobs, MemoryBlobs)
        assert path is None or path.read_bytes() == LARGE
    assert blobs.size(id) == len(LARGE)


@pytest.mark.parametrize("id", ["a" * 63, "A" * 64, "z" * 64, "not an id"])
def test_what_is_no_digest_is_not_found(blobs: Blobs, id: str) -> None:
    with pytest.raises(AttachmentNotFound):
        blobs.open(id)
    with pytest.raises(AttachmentNotFound):
        blobs.put(id, LARGE)
    assert list(blobs.ids()) == []


@pytest.mark.parametrize("id", ["../x", "", "a/b", "\0"])
def test_a_path_trick_is_refused_before_a_path_is_made(blobs: Blobs, id: str) -> None:
    for attempt in (blobs.open, lambda id: blobs.put(id, LARGE)):
        with pytest.raises(InvalidName):
            attempt(id)


@pytest.fixture
def files(tmp_path: Path) -> BlobFiles:
    return BlobFiles(tmp_path / "blobs")


def test_a_put_mends_a_file_that_was_changed(files: BlobFiles) -> None:
    id = digest(LARGE)
    files.put(id, LARGE)
    files.path(id).write_bytes(OTHER)

    files.put(id, LARGE)

    assert whole(files.open(id)) == LARGE
    assert list(files.staged()) == []
