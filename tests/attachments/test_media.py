"""Media types and image sizes, from honest headers and from others."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.attachments.media import (
    HEAD_BYTES,
    canonical_media_type,
    image_size,
    media_type_of,
    reference_to,
)
from tallystick.attachments.port import Declared
from tallystick.core.errors import InvalidName
from tallystick.core.records import AttachmentRef


def png(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + header
        + struct.pack(">I", zlib.crc32(header))
    )


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def jpeg(width: int, height: int, *, before: bytes = b"") -> bytes:
    thumbnail = b"\xff\xe1" + struct.pack(">H", 2 + 60_000) + bytes(60_000)
    size = b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + bytes(10)
    return b"\xff\xd8" + thumbnail + before + b"\xff\xff" + size + b"\xff\xda\0\2" + b"\xff\xd9"


def webp(form: bytes, body: bytes) -> bytes:
    chunk = form + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def webp_extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", bytes(4) + sides)


def webp_lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little"))


def webp_lossy(width: int, height: int) -> bytes:
    return webp(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height))


IMAGES = {
    "image/png": png,
    "image/gif": gif,
    "image/jpeg": jpeg,
    "image/webp extended": webp_extended,
    "image/webp lossless": webp_lossless,
    "image/webp lossy": webp_lossy,
}


def ref_to(data: bytes, media_type: str | None = None, *, side: int | None = None) -> AttachmentRef:
    declared = Declared(media_type=media_type, width=side, height=side)
    return reference_to(id="x", byte_len=len(data), head=data[:HEAD_BYTES], declared=declared)


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_tells_its_type_and_size(kind: str) -> None:
    image = IMAGES[kind](640, 480)

    ref = ref_to(image)

    assert (ref.media_type, ref.width, ref.height) == (kind.split()[0], 640, 480)


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_cut_off_anywhere_has_a_size_or_none_and_nothing_breaks(kind: str) -> None:
    image = IMAGES[kind](640, 480)

    sizes = {image_size(image[:length]) for length in range(len(image))}

    assert sizes <= {None, (640, 480)}


@pytest.mark.parametrize("width", [0, 65_536, 2**31 - 1])
def test_a_size_that_no_picture_has_is_no_size(width: int) -> None:
    ref = ref_to(png(width, 10))

    assert (ref.media_type, ref.width, ref.height) == ("image/png", None, None)


def test_more_pixels_than_a_picture_has_are_no_size() -> None:
    assert image_size(png(65_535, 65_535)) is None
    assert image_size(jpeg(65_535, 65_535)) is None
    assert image_size(png(16_384, 16_384)) == (16_384, 16_384)


@pytest.mark.parametrize(
    "segment", [b"\xff\xe0\x00\x00", b"\xff\xe0\x00\x01", b"\xff\xe0\xff\xff", b"\xff\xd0"]
)
def test_a_jpeg_with_a_strange_segment_ends_the_search(segment: bytes) -> None:
    assert image_size(jpeg(64, 48, before=segment)) in (None, (64, 48))


def test_what_a_header_says_goes_before_what_the_caller_says() -> None:
    ref = ref_to(png(640, 480), side=1)

    assert (ref.width, ref.height) == (640, 480)


@given(
    st.binary(max_size=200), st.sampled_from([b"", *(make(9, 7)[:30] for make in IMAGES.values())])
)
def test_any_bytes_behind_any_signature_are_described(rest: bytes, signature: bytes) -> None:
    ref = ref_to(signature + rest)

    assert ref.width is None or 0 < ref.width <= 65_535
    assert (ref.width is None) == (ref.height is None)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "application/octet-stream"),
        (b"hello", "text/plain"),
        ("gr\u00fc\u00df".encode(), "text/plain"),
        (b'{"a": [1, 2]}', "application/json"),
        (b" [1]\n", "application/json"),
        (b"{not json", "text/plain"),
        (b"a\0b", "application/octet-stream"),
        (b"\x01\x02\x03", "application/octet-stream"),
        (b"\xff\xfe\xfd", "application/octet-stream"),
        (b"caf\xe9", "application/octet-stream"),
        (b"%PDF-1.7\n", "application/pdf"),
        (b"PK\x03\x04more", "application/zip"),
        (b"\x1b[1mbold\x1b[0m\r\n", "text/plain"),
        (b"[" * 100_000, "text/plain"),
    ],
)
def test_bytes_tell_what_they_are(data: bytes, kind: str) -> None:
    assert media_type_of(data, whole=True) == kind


def test_text_that_is_cut_inside_a_character_is_still_text() -> None:
    head = "\u20ac".encode() * 10

    assert media_type_of(head[:-1], whole=False) == "text/plain"
    assert media_type_of(head[:-1], whole=True) == "application/octet-stream"


@pytest.mark.parametrize(
    ("data", "declared", "believed"),
    [
        (png(1, 1), "image/png", "image/png"),
        (png(1, 1), "application/pdf", "image/png"),
        (png(1, 1), "text/plain", "image/png"),
        (b"<html>404</html>", "image/png", "text/plain"),
        (b"<html>404</html>", "text/html", "text/html"),
        (b"# title", "text/markdown", "text/markdown"),
        (b"\x01\x02\x03", "image/png", "image/png"),
        (b"PK\x03\x04", "application/epub+zip", "application/epub+zip"),
        (b'{"a":1}', "application/geo+json", "application/geo+json"),
        (b"", "text/plain", "text/plain"),
    ],
)
def test_a_declared_type_stands_unless_the_bytes_show_another(
    data: bytes, declared: str, believed: str
) -> None:
    ref = ref_to(data, declared)

    assert ref.media_type == believed
    assert ref.declared == (declared if declared != believed else None)


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("IMAGE/PNG", "image/png"),
        ("image/jpg", "image/jpeg"),
        ("text/plain; charset=utf-8", "text/plain"),
        ("application/vnd.ms-excel", "application/vnd.ms-excel"),
    ],
)
def test_a_media_type_has_one_spelling(given: str, canonical: str) -> None:
    assert canonical_media_type(given) == canonical


@pytest.mark.parametrize("label", ["x" * 1_001, "\ud800"])
def test_a_label_is_text_of_a_bounded_length(label: str) -> None:
    with pytest.raises(InvalidName):
        reference_to(id="x", byte_len=0, head=b"", declared=Declared(label=label))
