"""Files that are named for a run, found and opened: as UTF-8 text, or as pictures."""

from __future__ import annotations

import glob
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallystick.attachments.media import HEAD_BYTES, image_size, sniffed
from tallystick.core.errors import UsageError
from tallystick.runtime.decode import PIECE_BYTES, UTF_8, Pieces, encoding_of, recoded
from tallystick.sandbox.text import HostText

__all__ = ["PICTURES", "Opened", "expanded", "is_there", "opened", "opened_bytes"]

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_READ_BYTES_MAX = 1024 * 1024
_PICTURE_BYTES_MAX = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A file that was opened. `path` is set for a text that is the file itself.

    A text has no `media_type`; `encoding` is what it was in, `UTF_8` if it was not decoded.
    """

    text: HostText
    media_type: str | None = None
    path: Path | None = None
    encoding: str = UTF_8


def is_there(named: str) -> bool:
    """Whether there is a file or a directory of that name, or one that matches it."""
    return os.path.lexists(named) or (glob.has_magic(named) and bool(glob.glob(named)))


def expanded(named: str) -> Iterator[Path]:
    """The files of a name: the file itself, those below a directory, those that match."""
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
    """Files below a folder, in order. Hidden ones are passed over, links that lead out refused."""
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


def opened(path: Path) -> Opened:
    """Open a file. Raises `UsageError` for what is neither text nor a picture."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{path}: not a regular file")
        # Short files are read at once; long ones are only copied, and read from the copy.
        if found.st_size <= _READ_BYTES_MAX:
            return opened_bytes(path.read_bytes(), name=str(path))
        with path.open("rb") as file:
            picture = _picture(file.read(HEAD_BYTES), found.st_size, str(path))
        if picture is not None:
            return Opened(text=HostText.open(path), media_type=picture, path=path)
        return _long(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def opened_bytes(data: bytes, *, name: str) -> Opened:
    """The same for bytes that are there already."""
    picture = _picture(data[:HEAD_BYTES], len(data), name)
    if picture is not None:
        return Opened(text=HostText(data), media_type=picture)

    def pieces() -> Iterator[bytes]:
        return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))

    encoding = encoding_of(pieces, name=name)
    text = data if encoding == UTF_8 else b"".join(recoded(pieces, encoding))
    return Opened(text=HostText(text), encoding=encoding)


def _long(path: Path) -> Opened:
    """A long file. Read as a file: a mapped one that is cut short would end the process."""

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    encoding = encoding_of(pieces, name=str(path))
    if encoding == UTF_8:
        return Opened(text=HostText.open(path), path=path)
    return Opened(text=_copied(pieces, encoding), encoding=encoding)


def _copied(pieces: Pieces, encoding: str) -> HostText:
    """The text of a long file in UTF-8, in a file that has no name and goes with the text."""
    with tempfile.TemporaryFile() as file:
        for piece in recoded(pieces, encoding):
            file.write(piece)
        file.flush()
        if not file.tell():
            return HostText(b"")
        return HostText(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _picture(head: bytes, size: int, name: str) -> str | None:
    """The media type of a picture; None for anything else."""
    media_type = sniffed(head, whole=len(head) == size)
    if media_type not in PICTURES:
        return None
    if size > _PICTURE_BYTES_MAX:
        raise UsageError(f"{name}: a picture of {size:,} bytes; at most {_PICTURE_BYTES_MAX:,}")
    if image_size(head) is None:
        raise UsageError(f"{name}: a picture that is cut off, or larger than any can be")
    return media_type
