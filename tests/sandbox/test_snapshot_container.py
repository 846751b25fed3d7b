"""The bytes of a snapshot: what is written is read, and everything else is refused."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.test_snapshot_store import an_image, images, named

from tallystick.core.errors import StoreError
from tallystick.core.json_text import canonical
from tallystick.sandbox.snapshot import (
    FORMAT,
    HEADER_BYTES_MAX,
    MAGIC,
    PAGE_BYTES,
    Image,
    pack_snapshot,
    unpack_snapshot,
)

# Pages that are stored, pages that are deflated, and more than one group of each.
MIXED = msgspec.structs.replace(
    an_image(),
    memory_bytes=400 * PAGE_BYTES,
    indices=list(range(0, 400, 2)),
    pages=[Random(n).randbytes(PAGE_BYTES) if n < 100 else b"ab" * 2_048 for n in range(200)],
)
A_HEADER: dict[str, Any] = {
    "snapshot": {"id": "1", "name": "a", "session_id": "S", "created_at": 7},
    "guest": "g",
    "engine": "e",
    "memory_bytes": 16 * PAGE_BYTES,
    "state": {"clock": 1},
    "session": "e30=",
    "indices": [0, 1],
}


def written(image: Image) -> bytes:
    return b"".join(pack_snapshot(named("a"), image))


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def forged(
    header: bytes, pages: bytes, *, magic: bytes = MAGIC, number: int = FORMAT, tail: bytes = b""
) -> list[bytes]:
    return [magic + struct.pack(">II", number, len(header)) + header + pages + tail]


def in_pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    for start, end in zip([0, *ends], ends, strict=False):
        yield data[start:end]


@given(image=images(), cuts=st.lists(st.integers(0, 60_000), max_size=6))
def test_what_is_packed_is_what_is_unpacked_however_it_is_cut(
    image: Image, cuts: list[int]
) -> None:
    assert unpack_snapshot(in_pieces(written(image), cuts)) == (named("a"), image)


@given(cuts=st.lists(st.integers(0, 500_000), max_size=6))
def test_groups_that_are_stored_and_groups_that_are_deflated_are_one_stream(
    cuts: list[int],
) -> None:
    data = written(MIXED)

    assert len(data) < 600_000
    assert unpack_snapshot(in_pieces(data, cuts)) == (named("a"), MIXED)


def test_an_image_without_pages_is_kept_too() -> None:
    assert unpack_snapshot([written(an_image(count=0))]) == (named("a"), an_image(count=0))


@given(data=st.binary(max_size=4_096), prefix=st.sampled_from([b"", MAGIC, MAGIC + b"\0\0\0\1"]))
def test_arbitrary_bytes_are_refused(data: bytes, prefix: bytes) -> None:
    with pytest.raises(StoreError):
        unpack_snapshot([prefix + data])


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    data = bytearray(written(an_image(count=draw(st.integers(0, 3)))))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(start + 8, len(data))))
        data[start:end] = draw(st.binary(max_size=8))
    return bytes(data)


@given(data=mutations())
def test_a_changed_container_is_refused_or_is_another_whole_one(data: bytes) -> None:
    try:
        found = unpack_snapshot([data])
    except StoreError:
        return
    assert unpack_snapshot(pack_snapshot(*found)) == found


@given(keep=st.integers(0, 5_000))
def test_a_container_that_is_cut_short_is_refused(keep: int) -> None:
    data = written(an_image())

    with pytest.raises(StoreError):
        unpack_snapshot([data[: min(keep, len(data) - 1)]])


def test_what_is_no_snapshot_is_refused() -> None:
    with pytest.raises(StoreError, match="no snapshot"):
        unpack_snapshot(forged(canonical(A_HEADER), b"", magic=b"SQLite format 3\0"))


@pytest.mark.parametrize("number", [0, 2, 2**32 - 1])
def test_an_unknown_format_is_refused_by_name(number: int) -> None:
    with pytest.raises(StoreError, match=f"format {number}; this version reads 1"):
        unpack_snapshot(forged(b"what a later version writes", b"", number=number))


@pytest.mark.parametrize(
    "change",
    [
        {"indices": [1, 0]},
        {"indices": [0, 0]},
        {"indices": [-1, 0]},
        {"indices": [0, 16]},
        {"indices": [0, 1.5]},
        {"indices": "01"},
        {"memory_bytes": -1},
        {"memory_bytes": 2**32 + 1},
        {"memory_bytes": True},
        {"state": {"clock": "1"}},
        {"state": []},
        {"session": "not base64"},
        {"session": None},
        {"snapshot": {"id": "1"}},
        {"guest": None},
        {"more": 1},
    ],
)
def test_a_forged_header_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        unpack_snapshot(forged(canonical({**A_HEADER, **change}), deflated(bytes(2 * PAGE_BYTES))))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff" * 20,
        b"[" * 100_000,
        canonical(A_HEADER) + b" ",
        canonical(A_HEADER).replace(b'"g"', b'"\\u0067"'),
        canonical(A_HEADER).replace(b'"engine":"e",', b'"engine":"e","engine":"e",'),
        canonical(A_HEADER).replace(b"[0,1]", b"[0,%d]" % 2**70),
        canonical(A_HEADER).replace(b"[0,1]", b"[0,%s]" % (b"1" * 5_000)),
        canonical(A_HEADER).replace(b'"e30="', b'"e31="'),
    ],
    ids=range(10),
)
def test_a_header_that_is_not_canonical_is_refused(header: bytes) -> None:
    with pytest.raises(StoreError):
        unpack_snapshot(forged(header, deflated(bytes(2 * PAGE_BYTES))))


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        (deflated(bytes(PAGE_BYTES)), "fewer"),
        (deflated(bytes(2 * PAGE_BYTES - 1)), "fewer"),
        (deflated(bytes(2 * PAGE_BYTES + 1)), "more"),
        (deflated(bytes(3 * PAGE_BYTES)), "more"),
        (deflated(bytes(2 * PAGE_BYTES))[:-1], "fewer"),
        (deflated(bytes(2 * PAGE_BYTES)) + b"\0", "after its end"),
        (deflated(bytes(2 * PAGE_BYTES)) * 2, "after its end"),
        (zlib.compress(bytes(2 * PAGE_BYTES)), "cannot be unpacked"),
        (b"", "fewer"),
    ],
)
def test_pages_that_are_not_those_of_the_header_are_refused(pages: bytes, why: str) -> None:
    with pytest.raises(StoreError, match=why):
        unpack_snapshot(forged(canonical(A_HEADER), pages))


def test_bytes_in_a_later_piece_are_after_its_end_too() -> None:
    with pytest.raises(StoreError, match="after its end"):
        unpack_snapshot([written(an_image()), b"", b"\0"])


def test_a_bomb_is_not_unpacked() -> None:
    bomb = forged(canonical(A_HEADER), deflated(bytes(256 << 20)))
    tracemalloc.start()

    with pytest.raises(StoreError, match="more than the 2 pages"):
        unpack_snapshot(bomb)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_header_that_is_too_long_is_refused_before_it_is_read() -> None:
    def endless() -> Iterator[bytes]:
        yield MAGIC + struct.pack(">II", FORMAT, HEADER_BYTES_MAX + 1)
        raise AssertionError("it was read")

    with pytest.raises(StoreError, match="header of 16,777,217 bytes"):
        unpack_snapshot(endless())


@pytest.mark.parametrize(
    "change",
    [
        {"indices": [0, 1]},
        {"indices": [2, 1, 0]},
        {"indices": [0, 1, 16]},
        {"pages": [b"short"] * 3},
        {"memory_bytes": -1},
        {"guest": "\ud800"},
    ],
)
def test_an_image_that_could_not_be_read_again_is_not_written(change: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        pack_snapshot(named("a"), msgspec.structs.replace(an_image(), **change))


def test_packing_holds_a_piece_or_two_beside_the_image() -> None:
    page = bytes(range(256)) * 16
    count = 8_192
    large = msgspec.structs.replace(
        an_image(), memory_bytes=count * PAGE_BYTES, indices=range(count), pages=[page] * count
    )
    tracemalloc.start()

    length = sum(map(len, pack_snapshot(named("a"), large)))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20 < count * PAGE_BYTES
    assert length < count * PAGE_BYTES
