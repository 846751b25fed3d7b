"""Reading the binary format: right values, and one kind of error for everything else."""

import pytest
from tools.guest.wasm import binary
from tools.guest.wasm.binary import I32, MODULE_HEADER, BadWasm, Limits, Reader, sections


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x00", 0),
        (b"\x7f", 127),
        (b"\x80\x01", 128),
        (b"\xe5\x8e\x26", 624_485),
        (b"\xff\xff\xff\xff\x0f", 2**32 - 1),
        (b"\x80\x80\x80\x80\x00", 0),
    ],
)
def test_an_unsigned_number_is_read_also_when_it_is_padded(data: bytes, value: int) -> None:
    reader = Reader(data)

    assert reader.unsigned() == value
    assert reader.left == 0


@pytest.mark.parametrize(
    ("data", "bits", "value"),
    [
        (b"\x7f", 32, -1),
        (b"\x3f", 32, 63),
        (b"\x40", 32, -64),
        (b"\xc0\xbb\x78", 32, -123_456),
        (b"\x80\x80\x80\x80\x78", 32, -(2**31)),
        (b"\xff\xff\xff\xff\x07", 32, 2**31 - 1),
        (b"\xff\xff\xff\xff\x0f", 33, 2**32 - 1),
        (b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f", 64, -(2**63)),
    ],
)
def test_a_signed_number_is_read_with_its_sign(data: bytes, bits: int, value: int) -> None:
    assert Reader(data).signed(bits) == value


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_a_number_that_is_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises(BadWasm, match="found the end"):
        Reader(data).unsigned()
    with pytest.raises(BadWasm, match="found the end"):
        Reader(data).signed(32)


@pytest.mark.parametrize("data", [b"\x80\x80\x80\x80\x80\x00", b"\xff" * 100])
def test_a_number_of_too_many_bytes_is_refused_after_the_fifth(data: bytes) -> None:
    with pytest.raises(BadWasm, match="longer than 32 bits"):
        Reader(data).unsigned()
    with pytest.raises(BadWasm, match="longer than 32 bits"):
        Reader(data).signed(32)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x10"])
def test_a_number_with_bits_over_32_is_refused(data: bytes) -> None:
    with pytest.raises(BadWasm, match="larger than 32 bits"):
        Reader(data).unsigned()


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x4f", b"\x80\x80\x80\x80\x08"])
def test_a_signed_number_whose_sign_disagrees_with_its_bits_is_refused(data: bytes) -> None:
    with pytest.raises(BadWasm, match="larger than 32 bits"):
        Reader(data).signed(32)


def test_an_error_says_where_and_what_was_expected() -> None:
    reader = Reader(b"\0" * 20 + b"\x02a", start=20)

    with pytest.raises(BadWasm) as caught:
        reader.name()

    assert caught.value.offset == 21
    assert str(caught.value) == "byte 0x15: expected 2 bytes of a name, found 1"


def test_a_count_is_checked_before_anything_is_made_for_it() -> None:
    reader = Reader(b"\xff\xff\xff\xff\x0f\0\0")

    with pytest.raises(BadWasm, match="4294967295 things in 2 bytes"):
        reader.vector(Reader.byte, "things")


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(BadWasm, match="UTF-8"):
        Reader(b"\x02\xff\xfe").name()


@pytest.mark.parametrize("code", [0x40, 0x60, 0x63, 0x64, 0x00])
def test_a_value_type_of_more_than_one_byte_is_refused(code: int) -> None:
    with pytest.raises(BadWasm, match=f"unsupported value type {code:#04x}"):
        Reader(bytes([code, 0])).value_type()


def test_a_number_type_is_not_a_reference() -> None:
    with pytest.raises(BadWasm, match="unsupported reference type 0x7f"):
        Reader(bytes([I32])).reference_type()


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x00\x05", Limits(minimum=5, maximum=None)),
        (b"\x01\x05\x80\x01", Limits(minimum=5, maximum=128)),
    ],
)
def test_limits_are_read_with_or_without_a_maximum(data: bytes, value: Limits) -> None:
    assert Reader(data).limits() == value
    assert binary.limits(value) == data


@pytest.mark.parametrize("flags", [2, 3, 4, 5, 8])
def test_shared_and_64_bit_memories_are_refused(flags: int) -> None:
    with pytest.raises(BadWasm, match="unsupported limits"):
        Reader(bytes([flags, 1, 1])).limits()


@pytest.mark.parametrize(
    ("wanted", "actual", "admitted"),
    [
        ((1, None), (1, None), True),
        ((1, None), (2, 3), True),
        ((2, None), (1, None), False),
        ((1, 4), (1, 4), True),
        ((1, 4), (1, 5), False),
        ((1, 4), (1, None), False),
    ],
)
def test_an_import_admits_what_is_at_least_as_large_and_as_bounded(
    wanted: tuple[int, int | None], actual: tuple[int, int | None], admitted: bool
) -> None:
    asked = Limits(minimum=wanted[0], maximum=wanted[1])

    assert asked.admits(Limits(minimum=actual[0], maximum=actual[1])) is admitted


def test_a_range_ends_where_it_was_told_to() -> None:
    reader = Reader(b"abcdef")

    inner = reader.within(3, "letters")

    assert inner.take(3) == b"abc"
    with pytest.raises(BadWasm, match="found the end"):
        inner.byte()
    assert reader.take(3) == b"def"


def test_a_range_longer_than_what_is_left_is_refused() -> None:
    with pytest.raises(BadWasm, match="expected 4 bytes of letters, found 3"):
        Reader(b"abc").within(4, "letters")


def test_sections_are_walked_with_offsets_of_the_whole_file() -> None:
    data = MODULE_HEADER + binary.section(1, b"ab") + binary.section(0, b"")

    found = [
        (each.id, each.start, each.content.left)
        for each in sections(Reader(data), header=MODULE_HEADER)
    ]

    assert found == [(1, 8, 2), (0, 12, 0)]


@pytest.mark.parametrize("data", [b"", b"\0asm", b"\0asm\x0d\0\x01\0", b"MZ" * 8])
def test_a_file_with_another_header_is_refused(data: bytes) -> None:
    with pytest.raises(BadWasm):
        list(sections(Reader(data), header=MODULE_HEADER))


def test_a_section_that_reaches_past_the_end_is_refused() -> None:
    data = MODULE_HEADER + b"\x01\x05ab"

    with pytest.raises(BadWasm, match="expected 5 bytes of section 1, found 2"):
        list(sections(Reader(data), header=MODULE_HEADER))
