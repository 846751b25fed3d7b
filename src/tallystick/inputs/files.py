"""Find, open and decode the files that are named for a run: as UTF-8 text, or as pictures.

Rule 1: UTF-8 stays as it is. So does text that is nearly all UTF-8: its invalid bytes are read as
U+FFFD. So a few damaged bytes do not change the encoding of the whole text.
Rule 2: a byte order mark decides. Without one, NUL bytes mean UTF-16, UTF-32, or no text at all.
Other bytes that are not UTF-8 mean an older encoding, which is chosen by how the text then looks.
Rule 3: an encoding is used only if all of the bytes can be decoded in it.
"""

from __future__ import annotations

import codecs
import glob
import mmap
import os
import stat
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tallystick.attachments.media import HEAD_BYTES, image_size, media_type_of
from tallystick.core.errors import UsageError
from tallystick.runtime.context.inputs import PICTURES, UTF_8
from tallystick.sandbox.text import HostText

# Yields the bytes of a file in pieces. Each call starts at the beginning again.
Pieces = Callable[[], Iterator[bytes]]

# The encoding of text that is nearly all UTF-8. Its invalid bytes are read as U+FFFD.
DAMAGED = "utf-8, damaged"
_MARKED = "utf-8-sig"
PIECE_BYTES = 1 << 20
_HEAD_BYTES = 8_192
# The order matters: the mark of UTF-32 LE begins with that of UTF-16 LE.
_MARKS = (
    (codecs.BOM_UTF8, (_MARKED,)),
    (codecs.BOM_UTF32_LE, ("utf-32-le", "utf-16-le")),
    (codecs.BOM_UTF32_BE, ("utf-32-be",)),
    (codecs.BOM_UTF16_LE, ("utf-16-le",)),
    (codecs.BOM_UTF16_BE, ("utf-16-be",)),
)
_UTF_32 = ("utf-32-le", "utf-32-be")
# The parity of the positions of NUL bytes in Latin text.
_UTF_16 = (("utf-16-le", 1), ("utf-16-be", 0))
_CONTROLS = frozenset("\t\n\f\r\x1b")
_NO_TEXT = frozenset({"Cc", "Cs", "Cn", "Co"})
_ASCII = bytes(range(128))
# If two fit equally well, the earlier one is used.
_OLDER = (
    *("cp1252", "cp1250", "iso8859_2", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255"),
    *("cp1256", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
_LATIN, _TURKISH = "cp1252", "cp1254"
# Icelandic letters whose bytes are Turkish letters in cp1254, and other letters of Icelandic text.
_EITHER, _ICELANDIC = frozenset("ðþýÐÞÝ"), frozenset("áéíóúæÁÉÍÓÚÆ")
_SAMPLE_BYTES_LEAST = 2_048
_SAMPLE_BYTES_MAX = 65_536
_SAMPLE_OF_PIECE_BYTES = 8_192
# Fewer bytes beyond ASCII are too few for a guess.
_GUESSED_BYTES_LEAST = 4
# Text counts as damaged UTF-8 if it has at least this many valid characters beyond ASCII for each
# invalid byte; or, if no older encoding fits, if at most this share of its bytes is beyond ASCII.
_VALID_TIMES_LEAST = 2
_DAMAGE_SHARE_MAX = 0.05


def encoding_of(pieces: Pieces, *, name: str) -> str:
    """Return the encoding of a text: `UTF_8`, `DAMAGED`, or the name of a codec.

    `name` is for messages. `pieces` is called several times, and must yield the same bytes. Raise
    `UsageError` if it is not text, or cannot be decoded.
    """
    head = next(pieces(), b"")
    for mark, encodings in _MARKS:
        if head.startswith(mark):
            return _encoding_by_mark(pieces, encodings, name=name)
    if b"\0" in head[:_HEAD_BYTES]:
        found = _encoding_without_mark(head[:_HEAD_BYTES], whole=len(head) <= _HEAD_BYTES)
        if found is None:
            raise UsageError(f"{name}: neither text nor a picture; only those can be read")
        _check(pieces, found, name=name)
        return found
    return UTF_8 if _is_utf8(pieces) else _older_encoding(pieces, name=name)


def recode(pieces: Pieces, encoding: str) -> Iterator[bytes]:
    """Yield the text in UTF-8, without a byte order mark. Damaged UTF-8 is yielded as it is.

    Raise `UnicodeDecodeError` if the bytes are not in this encoding, as when they have changed.
    """
    if encoding in (UTF_8, DAMAGED, _MARKED):
        yield from _without_mark(pieces())
        return
    first = True
    for text in _texts(pieces, encoding):
        yield text.removeprefix("\ufeff").encode() if first else text.encode()
        first = False


def _texts(pieces: Pieces, encoding: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    for piece in pieces():
        text = decoder.decode(piece)
        if text:
            yield text
    last = decoder.decode(b"", final=True)
    if last:
        yield last


def _without_mark(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for number, piece in enumerate(pieces):
        yield piece.removeprefix(codecs.BOM_UTF8) if number == 0 else piece


# -- UTF ---------------------------------------------------------------------------------------


def _is_utf8(pieces: Pieces) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        for piece in pieces():
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _encoding_by_mark(pieces: Pieces, encodings: tuple[str, ...], *, name: str) -> str:
    if encodings == (_MARKED,):
        return _MARKED if _is_utf8(pieces) else DAMAGED
    for encoding in encodings[:-1]:
        if _fault(pieces, encoding) is None:
            return encoding
    _check(pieces, encodings[-1], name=name)
    return encodings[-1]


def _check(pieces: Pieces, encoding: str, *, name: str) -> None:
    fault = _fault(pieces, encoding)
    if fault is not None:
        raise UsageError(f"{name}: begins as {encoding}, but cannot be decoded so: {fault}")


def _fault(pieces: Pieces, encoding: str) -> str | None:
    """Return why the bytes are not text in this encoding; None if they are."""
    try:
        for text in _texts(pieces, encoding):
            if "\0" in text and encoding.startswith("utf"):
                return "it has characters that are NUL"
    except UnicodeDecodeError as error:
        return error.reason
    return None


def _encoding_without_mark(head: bytes, *, whole: bool) -> str | None:
    """Return the encoding of a text with NUL bytes and without a mark; None if it is no text.

    With `whole`, `head` is the whole text, and its end may not be cut off. UTF-32 is tried first:
    nearly all bytes that are not UTF-32 fail to decode in it.
    """
    for encoding in _UTF_32:
        if _looks_like_text(head, encoding, unit=4, whole=whole):
            return encoding
    # A few NULs among ASCII bytes are damage in a text, not UTF-16.
    if head.count(0) * 4 < len(head) and _beyond_ascii(head) * 10 < len(head):
        return None
    found = [
        (head[parity::2].count(0), encoding)
        for encoding, parity in _UTF_16
        if _looks_like_text(head, encoding, unit=2, whole=whole)
    ]
    return max(found)[1] if found else None


def _beyond_ascii(head: bytes) -> int:
    return sum(byte >= 0x80 or (0 < byte < 0x20 and chr(byte) not in _CONTROLS) for byte in head)


def _looks_like_text(head: bytes, encoding: str, *, unit: int, whole: bool) -> bool:
    if whole and len(head) % unit:
        return False
    try:
        text = codecs.getincrementaldecoder(encoding)("strict").decode(head, final=whole)
    except UnicodeDecodeError:
        return False
    return bool(text) and not any(
        unicodedata.category(each) in _NO_TEXT and each not in _CONTROLS for each in text
    )


# -- older encodings ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """Lines that are not ASCII, and the share of bytes beyond ASCII in the part that was read."""

    data: bytes
    share: float


def _older_encoding(pieces: Pieces, *, name: str) -> str:
    """Return the encoding of text that is not UTF-8, or `DAMAGED` if it nearly is.

    Raise `UsageError` if no known encoding can decode it all, and more than 5 % is not ASCII.
    """
    sample = _take_sample(pieces)
    text = sample.data.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    valid = sum(not each.isascii() for each in text) - broken
    if valid >= _VALID_TIMES_LEAST * broken:
        return DAMAGED
    few = len(sample.data.translate(None, _ASCII)) < _GUESSED_BYTES_LEAST
    guesses: list[str] = [] if few else _guess_encodings(sample.data)
    for encoding in [*guesses, _LATIN]:
        if _fault(pieces, encoding) is None:
            return encoding
    if sample.share <= _DAMAGE_SHARE_MAX:
        return DAMAGED
    raise UsageError(
        f"{name}: neither UTF-8 nor in another encoding that is known here; convert it to UTF-8"
    )


def _take_sample(pieces: Pieces) -> _Sample:
    lines: list[bytes] = []
    size = seen = beyond = 0
    for piece in pieces():
        seen += len(piece)
        if piece.isascii():
            continue
        beyond += len(piece.translate(None, _ASCII))
        taken = 0
        for line in piece.splitlines(keepends=True):
            if line.isascii():
                continue
            lines.append(line[:_SAMPLE_OF_PIECE_BYTES])
            taken += len(lines[-1])
            if taken >= _SAMPLE_OF_PIECE_BYTES:
                break
        size += taken
        if size >= _SAMPLE_BYTES_MAX:
            break
    return _Sample(data=b"".join(lines), share=beyond / max(1, seen))


def _guess_encodings(sample: bytes) -> list[str]:
    """Return the encodings in which a sample looks like text, the best first; maybe none."""
    # Imported here: few files need it, and the import takes a tenth of a second.
    from charset_normalizer import from_bytes

    # The library finds little in a short text. Repeated, the same letters count as more evidence.
    while len(sample) < _SAMPLE_BYTES_LEAST:
        sample += sample
    matches = from_bytes(sample, cp_isolation=list(_OLDER), preemptive_behaviour=False)
    ranked: dict[str, float] = {}
    for match in matches:
        for encoding in match.could_be_from_charset:
            ranked[encoding] = match.chaos - match.coherence
    found = sorted((each for each in _OLDER if each in ranked), key=lambda each: ranked[each])
    if found[:1] == [_LATIN] and ranked.get(_TURKISH) == ranked[_LATIN] and _is_turkish(sample):
        found.insert(0, _TURKISH)
    return found


def _is_turkish(sample: bytes) -> bool:
    letters = set(sample.decode(_LATIN, "replace"))
    return not letters.isdisjoint(_EITHER) and letters.isdisjoint(_ICELANDIC)


# -- opening files ------------------------------------------------------------------------------

_READ_BYTES_MAX = 1024 * 1024
_PICTURE_BYTES_MAX = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """A file that was opened.

    `path` is set if `text` reads the file itself, not a copy. A text has no `media_type`.
    `encoding` is that of the file, `UTF_8` if it was not decoded.
    """

    text: HostText
    media_type: str | None = None
    path: Path | None = None
    encoding: str = UTF_8


def is_there(named: str) -> bool:
    """Return True if a file or directory has that name, or matches it as a pattern.

    A link whose target is gone counts too.
    """
    return os.path.lexists(named) or (glob.has_magic(named) and bool(glob.glob(named)))


def expand_name(named: str) -> Iterator[Path]:
    """Yield the files of a name: the file itself, those below a directory, or those that match.

    Below a directory, hidden files and folders are skipped, and links to directories are not
    followed. Directories that match a pattern are left out. Raise `UsageError` if the name is
    empty, if there is no file, or if a link to a file leads out of the directory.
    """
    if not named:
        raise UsageError("-f: an empty name; a variable in it may not be set")
    path = Path(named)
    if path.is_dir():
        found = list(_files_below(path))
        if not found:
            raise UsageError(f"{named}: no files in this directory")
        yield from found
    elif path.exists() or path.is_symlink():
        yield path
    elif glob.has_magic(named):
        matches = sorted(Path(match) for match in glob.glob(named, recursive=True))
        files = [match for match in matches if match.is_file()]
        if not files:
            raise UsageError(f"{named}: no file matches")
        yield from files
    else:
        raise UsageError(f"{named}: no such file")


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, sorted by name within each folder.

    Hidden files and folders are skipped, and links to folders are not followed. Raise `UsageError`
    for any other link that leads out.
    """
    root = os.path.realpath(folder)
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(where) / name
            if name.startswith("."):
                continue
            if path.is_symlink() and not os.path.realpath(path).startswith(root + os.sep):
                raise UsageError(f"{path}: a link that leads out of {folder}; name the file itself")
            if path.is_file():
                yield path


def open_file(path: Path) -> OpenedFile:
    """Open a file. Raise `UsageError` if it cannot be read, or is neither text nor a picture.

    Raise it too if the file changes meanwhile, so that it cannot be decoded any more. A file of up
    to 1 MiB is read into memory. A longer UTF-8 text is read from the file itself, a longer text in
    another encoding from a copy. A picture may have 20,000,000 bytes.
    """
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path}: not a regular file")
        # A long file is not read into memory: it is read in place, or decoded into a file.
        if found.st_size <= _READ_BYTES_MAX:
            return open_bytes(path.read_bytes(), name=str(path))
        with path.open("rb") as file:
            picture = _picture(file.read(HEAD_BYTES), found.st_size, str(path))
        if picture is not None:
            return OpenedFile(text=HostText.open(path), media_type=picture, path=path)
        return _open_long(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: it changed while it was read; try again") from error


def open_bytes(data: bytes, *, name: str) -> OpenedFile:
    """Open bytes as `open_file` opens a file. Raise `UsageError` as it does."""
    picture = _picture(data[:HEAD_BYTES], len(data), name)
    if picture is not None:
        return OpenedFile(text=HostText(data), media_type=picture)

    def pieces() -> Iterator[bytes]:
        return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))

    encoding = encoding_of(pieces, name=name)
    text = data if encoding == UTF_8 else b"".join(recode(pieces, encoding))
    return OpenedFile(text=HostText(text), encoding=encoding)


def _open_long(path: Path) -> OpenedFile:
    """Open a long text.

    To find the encoding, the file is read, not mapped: if another process truncates a mapped file,
    ours is killed. Raise `UsageError` if it is not text, `OSError` if it cannot be read, and
    `UnicodeDecodeError` if it changes meanwhile.
    """

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    encoding = encoding_of(pieces, name=str(path))
    if encoding == UTF_8:
        return OpenedFile(text=HostText.open(path), path=path)
    return OpenedFile(text=_copy_recoded(pieces, encoding), encoding=encoding)


def _copy_recoded(pieces: Pieces, encoding: str) -> HostText:
    """Copy a long text in UTF-8 into a nameless file, which is removed with the returned text.

    Raise `UnicodeDecodeError` if the bytes are not in this encoding, as when they have changed.
    """
    with tempfile.TemporaryFile() as file:
        for piece in recode(pieces, encoding):
            file.write(piece)
        file.flush()
        if not file.tell():
            return HostText(b"")
        return HostText(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _picture(head: bytes, size: int, name: str) -> str | None:
    """Return the media type of a picture; None if it is not one.

    Raise `UsageError` for a picture of over 20,000,000 bytes. Raise it too if its width and height
    cannot be read, or are such as no picture can have (see `image_size`).
    """
    media_type = media_type_of(head, whole=len(head) == size)
    if media_type not in PICTURES:
        return None
    if size > _PICTURE_BYTES_MAX:
        raise UsageError(f"{name}: a picture of {size:,} bytes; at most {_PICTURE_BYTES_MAX:,}")
    if image_size(head) is None:
        raise UsageError(f"{name}: a picture that is cut off, or larger than any can be")
    return media_type
