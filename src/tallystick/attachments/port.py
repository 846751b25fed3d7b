"""Define attachments, the ports of their stores, and their errors.

Rule 1: an attachment is named by the lowercase hex SHA-256 of its bytes, and nothing else names it.
Rule 2: a label and a media type belong to a reference, never to the bytes: two holders may keep the
same bytes under two labels.
Rule 3: an attachment intent is recorded before bytes appear under their name. A reference is
committed in the transaction of the event that makes it reachable.
Rule 4: bytes are read only by a holder that keeps them, and checked against their name.
"""

from __future__ import annotations

import contextlib
import enum
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from tallystick.core.errors import (
    BackendError,
    Facts,
    InvalidLimit,
    InvalidName,
    Refused,
    UsageError,
)
from tallystick.core.records import AttachmentRef
from tallystick.storage import transaction

# The errors of attachments, in the families of `tallystick.core.errors`.
#
#     BackendError
#     └── AttachmentError           attachments, and not one of the kinds below
#         ├── AttachmentCorrupt         the bytes or the row are not what was written
#         ├── AttachmentIoFailed        the file system refused
#         ├── AttachmentMetaMissing     bytes are there, and nothing is known of them
#         ├── AttachmentNotFound        no such bytes, or this session does not hold them
#         ├── AttachmentSourceFailed    what was to be put could not be read to its end
#         ├── ManifestRecordFailed      the intent could not be written, so no bytes were
#         └── ReclamationInFlight       a sweep is deleting these bytes; put them again
#     UsageError
#     └── AttachmentTooLong         more bytes than the caller, or a source without end, may have
#     Refused
#     └── ReclamationRefused        a sweep that cannot know what is alive


class AttachmentError(BackendError):
    """Attachments cannot be kept or given back."""

    code = "backend.attachment"


class AttachmentCorrupt(Facts, AttachmentError):
    """Stored bytes, or a row, are not what was written."""

    code = "backend.attachment.corrupt"
    says = "attachment `{id}` is damaged: {why}; put the same bytes again"

    id: str
    why: str


class AttachmentIoFailed(Facts, AttachmentError):
    """The file system did not do what it was asked."""

    code = "backend.attachment.io"
    says = "attachment store I/O failed at {path}: {source}"

    path: str
    source: str

    @classmethod
    def of(cls, path: Path, error: OSError) -> AttachmentIoFailed:
        """Return the error for a path that the system failed on."""
        return cls(path=str(path), source=error.strerror or str(error))


class AttachmentMetaMissing(Facts, AttachmentError):
    """The bytes are there and their row is not."""

    code = "backend.attachment.meta"
    says = "attachment store metadata is unavailable for `{id}`"

    id: str


class AttachmentNotFound(Facts, AttachmentError):
    """There are no such bytes. To a holder that does not keep them it looks the same."""

    code = "backend.attachment.not_found"
    says = "attachment `{id}` was not found"

    id: str


class AttachmentSourceFailed(Facts, AttachmentError):
    """The file or stream that bytes came from broke off. Nothing of it was kept."""

    code = "backend.attachment.source"
    says = "{name} could not be read to its end: {source}; nothing of it was kept"

    name: str
    source: str

    @classmethod
    def of(cls, given: object, error: OSError) -> AttachmentSourceFailed:
        """Return the error for a source that the system failed to read.

        It names the source by its `name`, if that is text.
        """
        name = getattr(given, "name", None)
        return cls(
            name=name if isinstance(name, str) else "the source of an attachment",
            source=error.strerror or str(error),
        )


class AttachmentTooLong(Facts, UsageError):
    """More bytes came than may be put. Nothing of them was kept."""

    code = "usage.attachment_too_long"
    says = (
        "{name} has more than {bytes_max:,} bytes; nothing of it was kept: raise {how} to keep it"
    )

    name: str
    bytes_max: int
    how: str = "bytes_max"


class ManifestRecordFailed(AttachmentError):
    """The manifest could not be written."""

    code = "backend.attachment.manifest"

    def __init__(self, message: str) -> None:
        super().__init__(f"attachment manifest write failed: {message}")
        self.message = message

    @classmethod
    def of_intent(cls, id: str, error: Exception) -> ManifestRecordFailed:
        """Return the error for an attachment intent that could not be written."""
        return cls(f"failed to record attachment intent for `{id}`: {error}")


class ReclamationInFlight(Facts, AttachmentError):
    """A sweep is already deleting these bytes. They can be put again afterwards."""

    code = "backend.attachment.reclamation"
    says = "attachment `{id}` is being deleted by a sweep; put it again"

    id: str


class ReclamationRefused(Facts, Refused):
    """A sweep stopped before it deleted anything, because it cannot know what is alive.

    `report` is what was found until then.
    """

    code = "refused.reclamation"
    says = "nothing was deleted: {why}"

    why: str
    report: object


# Attachments, and the ports of the stores that keep them.


CHUNK_BYTES = 1 << 20
ID_CHARS_MAX = 128
_DIGEST = re.compile(r"[0-9a-f]{64}")

# Where bytes come from: whole, from an open file, or piece by piece.
Source = bytes | bytearray | memoryview | BinaryIO | Iterable[bytes]
# The transaction that something is to be a part of. None: one of its own, or, in memory, none.
Transaction = transaction.Transaction | None


class DurabilityTier(enum.StrEnum):
    """The durability of attachments that a recorded effect may rely on."""

    INLINE = "inline"
    DURABLE = "durable"


class Persistence(enum.StrEnum):
    """The lifetime of bytes: that of the process, or longer. A contract test proves `DURABLE`."""

    EPHEMERAL = "ephemeral"
    DURABLE = "durable"

    @property
    def tier(self) -> DurabilityTier:
        """The durability tier of this persistence: `INLINE` for bytes that end with the process."""
        return DurabilityTier.DURABLE if self is Persistence.DURABLE else DurabilityTier.INLINE


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """A caller's description of bytes: optional, and never believed against the bytes."""

    media_type: str | None = None
    width: int | None = None
    height: int | None = None
    label: str | None = None


NOTHING_DECLARED = Declared()


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A write-ahead row: this holder is about to keep an attachment.

    While the process `owner` may be alive, the row stays. Without an owner only its age counts.
    """

    session_id: str
    attachment_id: str
    intent_at_epoch_ms: int
    owner: str | None = None

    @property
    def canonical_uri(self) -> str:
        """The attachment as a URI, `sha256:` and its digest."""
        return f"sha256:{self.attachment_id}"


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the manifest: an intent, its attachment, and the time of its commit or None."""

    intent: Intent
    ref: AttachmentRef
    committed_at_epoch_ms: int | None = None


@dataclass(slots=True)
class Staged:
    """Bytes that are stored and have no name in the store yet.

    Small ones are `data`; large ones are a `blob`: a file on this machine, or bytes in memory.
    """

    ref: AttachmentRef
    data: bytes | None = None
    blob: Path | bytes | None = None

    def discard(self) -> None:
        """Release the bytes, and remove their file. Harmless after they were kept, and twice.

        A file that cannot be removed stays, until a sweep finds its owner dead.
        """
        self.data = None
        if isinstance(self.blob, Path):
            with contextlib.suppress(OSError):
                self.blob.unlink(missing_ok=True)
        self.blob = None


class BlobReader(Protocol):
    """An open blob. It can be read to its end, even if it is removed meanwhile."""

    @property
    def byte_len(self) -> int:
        """The length of the whole blob, whatever part of it is read."""

    @property
    def where(self) -> str:
        """The place of the bytes, for messages."""

    def read(self, size: int) -> bytes:
        """Return up to `size` more bytes, none at the end.

        Raise `AttachmentIoFailed` if that fails.
        """

    def close(self) -> None:
        """Close the blob. Closing twice is harmless."""


class Blobs(Protocol):
    """Large bytes, each under its digest. Nothing else is known of them here.

    They are never changed in place: a put over an existing blob puts the same bytes, or repairs
    them. `put`, `open` and `local` raise `AttachmentNotFound` for an id that is no digest, and
    `InvalidName` for one that is not safe as a file name. Callers of `size` and `remove` pass
    digests only. Any method may raise `AttachmentIoFailed`.
    """

    def put(self, id: str, source: Path | bytes) -> None:
        """Keep bytes, whole and durable before they can be found.

        A staged file is taken over: nothing is left at its path. The caller vouches for the digest.
        Raise `AttachmentIoFailed` if the bytes cannot be written.
        """

    def open(self, id: str, start: int = 0, length: int | None = None) -> BlobReader:
        """Open a blob, or `length` bytes from `start`, unchecked. None is the rest of it.

        Raise `AttachmentNotFound` if there is no such blob.
        """

    def size(self, id: str) -> int | None:
        """Return the length of a blob in bytes, None if there is none."""

    def remove(self, id: str) -> None:
        """Remove a blob. It is harmless if there is none."""

    def ids(self) -> Iterator[str]:
        """Yield the ids of all blobs in their order, with or without a row."""

    def local(self, id: str) -> contextlib.AbstractContextManager[Path | None]:
        """Give the path of a blob on this machine while inside, to be mapped and never written.

        None if it is in memory anyway. What was mapped stays mapped outside too. Raise
        `AttachmentNotFound` if there is no such blob.
        """


class Chunks(Protocol):
    """Bytes, piece by piece. The last piece comes only if the digest of all of them is right."""

    def __iter__(self) -> Iterator[bytes]: ...

    def __next__(self) -> bytes: ...

    def __enter__(self) -> Chunks: ...

    def __exit__(self, *raised: object) -> None: ...


class Store(Protocol):
    """Bytes by their digest.

    A method with an id raises `InvalidName` for one that is not safe as a file name. Rows are
    changed in the transaction `within`; with None, in one of their own that is not forced. Errors
    of the backend that has the rows are raised as they are.
    """

    @property
    def persistence(self) -> Persistence:
        """The lifetime of what is kept here."""

    def stage(self, source: Source, declared: Declared = NOTHING_DECLARED) -> Staged:
        """Take in bytes, with bounded memory, and detect their media type and size.

        They have no name yet: call `keep`, and `discard` on the result in any case. Raise
        `AttachmentSourceFailed` if the source cannot be read, `InvalidName` or `InvalidLimit` for a
        declaration that is not valid, and `AttachmentIoFailed` if they cannot be written. Any other
        error of the source is raised as it is.
        """

    def keep(self, staged: Staged, *, within: Transaction = None) -> None:
        """Make staged bytes findable by their id, and release them.

        Bytes that are there already are stored once. Raise `ReclamationInFlight` if a sweep is
        deleting the same large bytes, and `AttachmentIoFailed` if they cannot be written. Discard
        the staged ones then, and stage them again. Discarded ones are passed over.
        """

    def chunks(self, id: str) -> Chunks:
        """Read an attachment. If it is missing, that is raised at once; damage before the end.

        Raise `AttachmentNotFound`, `AttachmentMetaMissing` if there are bytes without a row,
        `AttachmentCorrupt`, or `AttachmentIoFailed` if a file cannot be read.
        """

    def byte_len(self, id: str) -> int:
        """Return the length of an attachment in bytes, by its row: the bytes are not read.

        Raise `AttachmentNotFound` if there is none, `AttachmentMetaMissing` if its row is missing.
        """


class Manifest(Protocol):
    """The holders of attachments, and those that are about to hold: a row per holder and id.

    Rows are changed in the transaction `within`; with None, in one of their own that is not forced.
    """

    def record_intent(
        self, intent: Intent, ref: AttachmentRef, *, within: Transaction = None
    ) -> None:
        """Insert a row, and withdraw a sweep's decision to delete those bytes.

        A row that is there keeps its time and gets the new `ref`; until it is committed, it gets
        this owner too. If a sweep is deleting the bytes, this waits for it. Raise
        `ReclamationInFlight` if that takes too long, or at once inside the transaction `within`.
        """

    def commit_refs(
        self, session_id: str, ids: Sequence[str], *, within: Transaction = None
    ) -> Sequence[str]:
        """Commit the rows of this holder. Return which of the ids it holds and has the bytes of.

        A row is committed also if its bytes are not there; one that was swept is not inserted
        again. The order of the result is not defined.
        """

    def list_uncommitted(self, cutoff_epoch_ms: int) -> Sequence[Intent]:
        """Return the intents of the cutoff or before that were not committed, oldest first."""

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None:
        """Delete the row of one holder, and no other row. It is harmless if there is none."""

    def references(
        self, session_id: str | None = None, id: str | None = None, *, within: Transaction = None
    ) -> Sequence[Reference]:
        """Return rows in the order they came: of a holder, of an id, of both, or all there are."""


class Attachments(Store, Manifest, Protocol):
    """A store and its manifest, which can be written together."""

    def clock(self) -> int:
        """Return the time of intents and commits, in milliseconds since 1970."""

    def owner(self) -> str | None:
        """Return the owner of this process's intents, None in a store without owners.

        The first call may make it. Raise `AttachmentIoFailed` if it cannot be made.
        """

    def keep_committed(
        self, session_id: str, staged: Sequence[Staged], *, within: Transaction = None
    ) -> None:
        """Write intent, bytes and commit of staged bytes that are in memory, all at once.

        Those without `data` are passed over: large ones, and those that were discarded.
        """

    def forget_session(self, session_id: str, *, within: Transaction = None) -> None:
        """Delete all rows of a holder. Its bytes stay until a sweep finds no other holder."""

    def local(self, id: str) -> contextlib.AbstractContextManager[Path | None]:
        """Give the path of an attachment's file while inside; None for a small one, or in memory.

        Raise as `byte_len` does.
        """

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[Transaction]:
        """Give one transaction over both, for `within`. It is undone if the block raises.

        A forced one is on the disk when it ends, if there is a disk.
        """


def check_storage_id(id: str) -> str:
    """Return an id that is safe as a file name. Raise `InvalidName` for any other.

    It has 1 to 128 characters of printable ASCII without slashes, and is not `.` or `..`.
    """
    if not 1 <= len(id) <= ID_CHARS_MAX:
        why = f"an id has 1 to {ID_CHARS_MAX} characters"
    elif not all(" " <= char <= "~" for char in id):
        why = "an id is printable ASCII"
    elif "/" in id or "\\" in id:
        why = "an id has no slash or backslash"
    elif id in (".", ".."):
        why = "an id is not a directory"
    else:
        return id
    raise InvalidName(what="attachment", given=id, why=why)


def is_digest(id: str) -> bool:
    """Return True if an id is a digest, 64 lowercase hex digits. Other safe ids are never found.

    Raise `InvalidName` for an id that is not safe as a file name.
    """
    return _DIGEST.fullmatch(check_storage_id(id)) is not None


def in_chunks(source: Source) -> Iterator[bytes | memoryview]:
    """Yield a source in pieces of at most `CHUNK_BYTES`, whatever its own pieces are.

    Nothing is yielded for an empty one. An `OSError` of the source is raised as
    `AttachmentSourceFailed`, any other of its exceptions as it is.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        yield from _pieces(source)
        return
    pieces = _read(source.read) if hasattr(source, "read") else iter(source)
    while True:
        try:
            piece = next(pieces, None)
        except OSError as error:
            # An error of its own: the user has to look at the source and not at the store.
            raise AttachmentSourceFailed.of(source, error) from error
        if piece is None:
            return
        yield from _pieces(piece)


def has_end(source: Source) -> bool:
    """Return True for bytes, `BytesIO` and an open regular file: they come to an end.

    A closed file, a device, a pipe, a socket or an iterator gives False: it may go on for ever.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return True
    if isinstance(source, io.BytesIO):
        return True
    descriptor = getattr(source, "fileno", None)
    try:
        return descriptor is not None and stat.S_ISREG(os.fstat(descriptor()).st_mode)
    except (OSError, ValueError):
        # It is closed, or not a file of the system.
        return False


class CappedSource:
    """A source that raises `AttachmentTooLong` when it gives more than `bytes_max` bytes.

    Raise `InvalidLimit` for a limit that is not a whole number, or is negative.
    """

    def __init__(self, source: Source, *, bytes_max: int) -> None:
        if type(bytes_max) is not int or bytes_max < 0:
            why = "a whole number, 0 or more"
            raise InvalidLimit(field="bytes_max", given=bytes_max, why=why)
        name = getattr(source, "name", None)
        self.name = name if isinstance(name, str) else "the source of an attachment"
        self._source = source
        self._bytes_max = bytes_max

    def __iter__(self) -> Iterator[bytes]:
        count = 0
        for piece in in_chunks(self._source):
            count += len(piece)
            if count > self._bytes_max:
                raise AttachmentTooLong(name=self.name, bytes_max=self._bytes_max)
            yield bytes(piece)


def _read(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while piece := read(CHUNK_BYTES):
        yield piece


def _pieces(data: bytes | bytearray | memoryview) -> Iterator[bytes | memoryview]:
    view = memoryview(data).cast("B") if data else memoryview(b"")
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]
