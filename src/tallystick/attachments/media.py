"""Detect the media type of bytes from their first bytes, and the size of an image.

Headers are read, pixels never. The size in a header is a claim: zero, or more than a picture can
have, is no size.

A type that a caller declares stands unless the bytes show another. Bytes show a type by a
signature, or by being text under a name that only binary files have. Other bytes contradict no
declaration: most formats have no signature that is known here.
"""

from __future__ import annotations

import codecs
import re
import struct

import msgspec

from tallystick.attachments.port import NOTHING_DECLARED, Declared
from tallystick.core.errors import InvalidLimit, InvalidName
from tallystick.core.records import AttachmentRef

# The bytes that are read. A JPEG has its size after its thumbnails, of up to 64 KiB each.
HEAD_BYTES = 256 << 10
SIDE_MAX = 65_535
_PIXELS_MAX = 1 << 28
LABEL_CHARS_MAX = 1_000
_OCTETS, _TEXT, _JSON = "application/octet-stream", "text/plain", "application/json"
_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,126}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "text/json": _JSON,
    "application/x-pdf": "application/pdf",
    "application/x-zip-compressed": "application/zip",
    "application/x-gzip": "application/gzip",
}
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"\x00asm", "application/wasm"),
)
_ANY_SIGNATURE = tuple(signature for signature, _ in _SIGNATURES)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}
# Many formats are one of these inside, so these do not contradict another declaration.
_CONTAINERS = frozenset({"application/zip", "application/gzip", "audio/ogg"})
_BINARY_ONLY = frozenset({*(kind for _, kind in _SIGNATURES), *_RIFF.values()})
# Of the control characters, text has tab, line feed, form feed, carriage return and escape.
_NOT_TEXT = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


def canonical_media_type(given: str) -> str:
    """Return a media type in one spelling: lower case, no parameters, the usual name of an alias.

    Raise `InvalidName` if the text is no media type.
    """
    plain = given.split(";", 1)[0].strip().lower()
    if not _TYPE.fullmatch(plain):
        raise InvalidName(what="media type", given=given, why="a media type looks like text/plain")
    return _ALIASES.get(plain, plain)


def reference_to(
    *, id: str, byte_len: int, head: bytes, declared: Declared = NOTHING_DECLARED
) -> AttachmentRef:
    """Return the reference to bytes of which `head` is the beginning, or all.

    The declared type stands unless the bytes contradict it; then it is in `declared`. The size in
    an image's header goes before the declared one. Raise `InvalidName` for a label or media type
    that is not valid, and `InvalidLimit` for a width or height outside 1 to 65,535.
    """
    _check_label(declared.label)
    for field, side in (("width", declared.width), ("height", declared.height)):
        _check_side(field, side)
    shown = media_type_of(head, whole=byte_len == len(head))
    said = None if declared.media_type is None else canonical_media_type(declared.media_type)
    believed = shown if said is None or _contradicts(shown, said) else said
    size = image_size(head) or (declared.width, declared.height)
    return AttachmentRef(
        id=id,
        media_type=believed,
        byte_len=byte_len,
        width=size[0],
        height=size[1],
        label=declared.label,
        declared=said if said != believed else None,
    )


def media_type_of(head: bytes, *, whole: bool) -> str:
    """Return the media type that the first bytes show.

    Bytes that show none, or are not text, are `application/octet-stream`. JSON is detected only if
    `head` is `whole`, and is an object or a list. Other text is `text/plain`.
    """
    if head.startswith(_ANY_SIGNATURE):
        return next(kind for signature, kind in _SIGNATURES if head.startswith(signature))
    if head[:4] == b"RIFF" and head[8:12] in _RIFF:
        return _RIFF[head[8:12]]
    if not head or not _is_text(head, whole=whole):
        return _OCTETS
    if whole and head.lstrip()[:1] in (b"{", b"[") and _is_json(head):
        return _JSON
    return _TEXT


def image_size(head: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, JPEG or WebP.

    None for other bytes, if the header is cut off, and for a size that no picture can have: a side
    of 0 or above 65,535, or more than 2**28 pixels.
    """
    try:
        size = _claimed_size(head)
    except (struct.error, IndexError):
        return None  # cut off inside its header
    if size is None or not all(0 < side <= SIDE_MAX for side in size):
        return None
    return size if size[0] * size[1] <= _PIXELS_MAX else None


def _claimed_size(head: bytes) -> tuple[int, int] | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _two_numbers(">II", head, 16) if head[12:16] == b"IHDR" else None
    if head.startswith((b"GIF87a", b"GIF89a")):
        return _two_numbers("<HH", head, 6)
    if head.startswith(b"\xff\xd8\xff"):
        return _jpeg_size(head)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _webp_size(head)
    return None


def _jpeg_size(head: bytes) -> tuple[int, int] | None:
    """Return the size in the header, None if the pixels come before one or a segment has no mark.

    Each segment has its length, so the walk ends with the head: it raises `IndexError` or
    `struct.error` there.
    """
    at = 2
    while True:
        if head[at] != 0xFF:
            return None
        kind = head[at + 1]
        if kind == 0xFF:  # padding
            at += 1
        elif kind in _JPEG_BARE:
            at += 2
        elif kind in _JPEG_SIZES:
            height, width = _two_numbers(">HH", head, at + 5)
            return width, height
        elif kind in (0xD9, 0xDA):  # the end, or the pixels: no size came before them
            return None
        else:
            (length,) = struct.unpack_from(">H", head, at + 2)
            at += 2 + max(length, 2)


def _webp_size(head: bytes) -> tuple[int, int] | None:
    form = head[12:16]
    if form == b"VP8X":
        return (
            1 + int.from_bytes(_at(head, 24, 3), "little"),
            1 + int.from_bytes(_at(head, 27, 3), "little"),
        )
    if form == b"VP8L" and head[20:21] == b"\x2f":
        bits = int.from_bytes(_at(head, 21, 4), "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if form == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = _two_numbers("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _two_numbers(form: str, head: bytes, at: int) -> tuple[int, int]:
    first, second = struct.unpack_from(form, head, at)
    return first, second


def _at(head: bytes, at: int, count: int) -> bytes:
    if len(head) < at + count:
        raise IndexError
    return head[at : at + count]


def _is_text(head: bytes, *, whole: bool) -> bool:
    if _NOT_TEXT.search(head):
        return False
    if head.isascii():
        return True
    try:
        codecs.utf_8_decode(head, "strict", whole)
    except UnicodeDecodeError:
        return False
    return True


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _contradicts(shown: str, said: str) -> bool:
    if shown in (_TEXT, _JSON):
        return said in _BINARY_ONLY
    return shown not in (said, _OCTETS) and shown not in _CONTAINERS


def _check_label(label: str | None) -> None:
    if label is None:
        return
    if len(label) > LABEL_CHARS_MAX:
        raise InvalidName(
            what="label", given=label, why=f"a label has at most {LABEL_CHARS_MAX} characters"
        )
    try:
        label.encode()
    except UnicodeEncodeError:
        raise InvalidName(what="label", given=label, why="a label is Unicode text") from None


def _check_side(field: str, side: int | None) -> None:
    if side is not None and not 0 < side <= SIDE_MAX:
        raise InvalidLimit(field=field, given=side, why=f"1 to {SIDE_MAX} pixels")
