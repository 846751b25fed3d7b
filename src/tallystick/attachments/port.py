"""What attachments are, what keeps them promises, and what can go wrong with them.

Rule 1: an attachment is named by the lowercase hex SHA-256 of its bytes, and nothing else names it.
Rule 2: what it is called and what it is taken for belong to a reference, never to the bytes: two
sessions may hold the same bytes under two labels.
Rule 3: an intent is on record before bytes appear under their name. A reference is committed in the
transaction of the event that makes it reachable.
Rule 4: bytes are read only by a session that holds them, and checked against their name.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from tallystick.core.errors import BackendError, Facts, InvalidName, Refused
from tallystick.core.records import AttachmentRef
from tallystick.storage import transaction

# What can go wrong with attachments, sorted as in `tallystick.core.errors`.
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
#     Refused
#     └── ReclamationRefused        a sweep that cannot know what is alive


class AttachmentError(BackendError):
    """Attachments cannot be kept or given back."""

    code = "backend.attachment"


class AttachmentCorrupt(Facts, AttachmentError):
    """What is stored is not what was put."""

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
        return cls(path=str(path), source=error.strerror or str(error))


class AttachmentMetaMissing(Facts, AttachmentError):
    """The bytes are there and their row is not."""

    code = "backend.attachment.meta"
    says = "attachment store metadata is unavailable for `{id}`"

    id: str


class AttachmentNotFound(Facts, AttachmentError):
    """There are no such bytes. To a session that does not hold them it looks the same."""

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
        name = getattr(given, "name", None)
        return cls(
            name=name if isinstance(name, str) else "the source of an attachment",
            source=error.strerror or str(error),
        )


class ManifestRecordFailed(AttachmentError):
    """The manifest could not be written."""

    code = "backend.attachment.manifest"

    def __init__(self, message: str) -> None:
        super().__init__(f"attachment manifest write failed: {message}")
        self.message = message

    @classmethod
    def of_intent(cls, id: str, error: Exception) -> ManifestRecordFailed:
        return cls(f"failed to record attachment intent for `{id}`: {error}")


class ReclamationInFlight(Facts, AttachmentError):
    """A sweep is past the point where these bytes could be kept. They can be put afterwards."""

    code = "backend.attachment.reclamation"
    says = "attachment `{id}` is being deleted by a sweep; put it again"

    id: str


class ReclamationRefused(Facts, Refused):
    """The sweep stopped before it deleted anything, since it cannot know what is alive.

    `report` is what was found until then.
    """

    code = "refused.reclamation"
    says = "nothing was deleted: {why}"

    why: str
    report: object


# What attachments are, and what keeps them promises.


CHUNK_BYTES = 1 << 20
ID_CHARS_MAX = 128
_DIGEST = re.compile(r"[0-9a-f]{64}")

# Where bytes come from: whole, from an open file, or piece by piece.
Source = bytes | bytearray | memoryview | BinaryIO | Iterable[bytes]
# The transaction that something is to be a part of. None: one of its own, or, in memory, none.
Transaction = transaction.Transaction | None


class DurabilityTier(enum.StrEnum):
    """What a recorded effect may rely on."""

    INLINE = "inline"
    DURABLE = "durable"


class Persistence(enum.StrEnum):
    """Whether bytes outlive the process. The contract suite proves a claim of `DURABLE`."""

    EPHEMERAL = "ephemeral"
    DURABLE = "durable"

    @property
    def tier(self) -> DurabilityTier:
        return DurabilityTier.DURABLE if self is Persistence.DURABLE else DurabilityTier.INLINE


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller says of bytes: all of it optional, none of it believed against the bytes."""

    media_type: str | None = None
    width: int | None = None
    height: int | None = None
    label: str | None = None


NOTHING_DECLARED = Declared()


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """That a session is about to hold an attachment. Without `owner` nothing can prove it dead."""

    session_id: str
    attachment_id: str
    intent_at_epoch_ms: int
    owner: str | None = None

    @property
    def canonical_uri(self) -> str:
        return f"sha256:{self.attachment_id}"


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the manifest: an intent, what it is about, and when it was committed."""

    intent: Intent
    ref: AttachmentRef
    committed_at_epoch_ms: int | None = None


@dataclass(slots=True)
class Staged:
    """Bytes with a name that nobody can find by it yet.

    Small ones are `data`; large ones are a `blob`: a file on this machine, or bytes in memory.
    """

    ref: AttachmentRef
    data: bytes | None = None
    blob: Path | bytes | None = None

    def discard(self) -> None:
        """Let go of them. Harmless when they were kept, and twice."""
        self.data = None
        if isinstance(self.blob, Path):
            with contextlib.suppress(OSError):
                self.blob.unlink(missing_ok=True)
        self.blob = None


class BlobReader(Protocol):
    """A blob that is open. What was opened can be read to its end, whoever removes it."""

    @property
    def byte_len(self) -> int:
        """The length of the whole blob, whatever part of it is read."""

    @property
    def where(self) -> str:
        """Say where the bytes are, for messages."""

    def read(self, size: int) -> bytes:
        """Return at most so many bytes more; none at the end. Raises `AttachmentIoFailed`."""

    def close(self) -> None:
        """Let go of it. Closing twice is harmless."""


class Blobs(Protocol):
    """Large bytes, each under its digest. Nothing else is known of them here.

    They are never changed in place: a put of what is there puts the same bytes, or mends them.
    """

    def put(self, id: str, source: Path | bytes) -> None:
        """Keep bytes, whole and durable before they can be found. A file that was staged is taken.

        That they have this digest is the caller's word. Raises `AttachmentIoFailed`.
        """

    def open(self, id: str, start: int = 0, length: int | None = None) -> BlobReader:
        """Open a blob, or a part of it. Raises `AttachmentNotFound`. Nothing is checked."""

    def size(self, id: str) -> int | None:
        """Return how long a blob is. None if there is none."""

    def remove(self, id: str) -> None:
        """Remove a blob. One that is not there is removed already."""

    def ids(self) -> Iterator[str]:
        """Go through the ids of all blobs in their order, with or without a row."""

    def local(self, id: str) -> contextlib.AbstractContextManager[Path | None]:
        """Have a blob in a file of this machine, to be mapped and never written, while inside.

        None where it is in memory anyway. What was mapped stays mapped outside too.
        """


class Chunks(Protocol):
    """Bytes, piece by piece. The last piece comes only when the digest of all of them is right."""

    def __iter__(self) -> Iterator[bytes]: ...

    def __next__(self) -> bytes: ...

    def __enter__(self) -> Chunks: ...

    def __exit__(self, *raised: object) -> None: ...


class Store(Protocol):
    """Bytes by their digest."""

    @property
    def persistence(self) -> Persistence: ...

    def stage(self, source: Source, declared: Declared = NOTHING_DECLARED) -> Staged:
        """Take bytes in, with bounded memory, and find out what they are."""

    def keep(self, staged: Staged, *, within: Transaction = None) -> None:
        """Make staged bytes findable by their id. Bytes that are there already are there once."""

    def chunks(self, id: str) -> Chunks:
        """Read an attachment. That it is not there is told at once, damage before the end."""

    def byte_len(self, id: str) -> int:
        """How long an attachment is."""


class Manifest(Protocol):
    """Who intends to hold, and who holds, which attachment: one row for each session and id."""

    def record_intent(
        self, intent: Intent, ref: AttachmentRef, *, within: Transaction = None
    ) -> None:
        """Insert a row unless it is there. Revokes the sentence of a sweep over those bytes."""

    def commit_refs(
        self, session_id: str, ids: Sequence[str], *, within: Transaction = None
    ) -> Sequence[str]:
        """Stamp the rows of this session that have no stamp. Returns which of the ids it holds.

        A row that was swept is not made again.
        """

    def list_uncommitted(self, cutoff_epoch_ms: int) -> Sequence[Intent]:
        """Intents of the cutoff or before that were not committed, oldest first."""

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None:
        """Take one session's row out. Nobody else's."""

    def references(
        self, session_id: str | None = None, id: str | None = None, *, within: Transaction = None
    ) -> Sequence[Reference]:
        """Rows in the order they came: of a session, of an id, of both, or all there are."""


class Attachments(Store, Manifest, Protocol):
    """A store and its manifest, which can be written together."""

    def clock(self) -> int:
        """Milliseconds since 1970, for intents and commits."""

    def owner(self) -> str | None:
        """Who the intents of this process belong to."""

    def keep_committed(
        self, session_id: str, staged: Sequence[Staged], *, within: Transaction = None
    ) -> None:
        """Intent, bytes and commit of staged bytes that are in memory, all at once."""

    def forget_session(self, session_id: str, *, within: Transaction = None) -> None:
        """Take all rows of a session out."""

    def local(self, id: str) -> contextlib.AbstractContextManager[Path | None]:
        """Have an attachment in a file of its own while inside; None if it has none."""

    def writing(self, *, forced: bool) -> contextlib.AbstractContextManager[Transaction]:
        """One transaction over both."""


def check_storage_id(id: str) -> str:
    """Refuse what could be anything but one name in a directory, before a path is made of it."""
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
    """Whether an id can be one of ours. Others are well-formed and never found."""
    return _DIGEST.fullmatch(check_storage_id(id)) is not None


def chunked(source: Source) -> Iterator[bytes | memoryview]:
    """A source in pieces of at most `CHUNK_BYTES`, whatever its own pieces are."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield from _pieces(source)
        return
    pieces = _read(source.read) if hasattr(source, "read") else iter(source)
    while True:
        try:
            piece = next(pieces, None)
        except OSError as error:
            # Told apart from the store's own: whoever reads this has to look elsewhere.
            raise AttachmentSourceFailed.of(source, error) from error
        if piece is None:
            return
        yield from _pieces(piece)


def _read(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while piece := read(CHUNK_BYTES):
        yield piece


def _pieces(data: bytes | bytearray | memoryview) -> Iterator[bytes | memoryview]:
    view = memoryview(data).cast("B") if data else memoryview(b"")
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]
