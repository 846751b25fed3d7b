"""The records of a memory's log: what can happen to a note, and the words of a forgetting.

A record is a fact and is folded into the projections by itself: it says the new value of a field,
never how to compute it. A tag never changes; a field that is added has a default that means "as
before". A record about one note is sealed under the note's id, so that it is erased with the note.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from tallystick.core.json_text import canonical
from tallystick.memory.note import ConsolidationState, MemoryType, Note, Permission

# The request to forget notes, and its failures.


class ForgetStrategy(enum.StrEnum):
    """The way a note is forgotten. Consolidating needs a text, so `forget` refuses it by name."""

    SOFT_DELETE = "soft_delete"
    HARD_DELETE = "hard_delete"
    DECAY = "decay"
    CONSOLIDATE = "consolidate"
    ARCHIVE = "archive"
    REDACT = "redact"

    @property
    def erases(self) -> bool:
        """True for a strategy after which the content of the note is gone."""
        return self in (ForgetStrategy.HARD_DELETE, ForgetStrategy.REDACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """A choice of notes to forget: those that meet every condition given.

    Of `tags`, one is enough.
    """

    max_age_hours: float | None = None
    min_importance_below: float | None = None
    memory_type: MemoryType | None = None
    tags: frozenset[str] = frozenset()
    agent_id: str | None = None
    thread_id: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A note that was not forgotten, with the code and the message of the reason."""

    id: str
    code: str
    message: str


# The records of a memory's log, one struct for each thing that can happen to a note.


class NoteRemembered(msgspec.Struct, frozen=True, kw_only=True, tag="note.remembered"):
    """A new note was stored."""

    note: Note


class NoteSighted(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="note.sighted"
):
    """The same note was brought again.

    `importance` and `expires_at` are their values from now on.
    """

    at: int
    importance: float
    expires_at: int | None = None
    thread_id: str | None = None
    position: int | None = None
    session_id: str | None = None
    created_by: str | None = None


class NoteClosed(msgspec.Struct, frozen=True, kw_only=True, tag="note.closed"):
    """The validity of a note ended at `valid_to`: `by` is a later note with the same key."""

    valid_to: int
    by: str


class NoteRelated(msgspec.Struct, frozen=True, kw_only=True, tag="note.related"):
    """A note got a relation to another one."""

    to: str
    relation: str
    weight: float


class NoteShared(msgspec.Struct, frozen=True, kw_only=True, tag="note.shared"):
    """An agent got a permission on a note. None withdraws it.

    `rule` is the position of the `NotesShared` that it follows from, if it follows from one.
    """

    agent_id: str
    permission: Permission | None
    by: str | None = None
    # Unset is not written: earlier versions wrote the other fields alone.
    rule: int | msgspec.UnsetType = msgspec.UNSET


class NotesShared(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="notes.shared"
):
    """Notes of `owner` are shared with an agent as they are remembered; None ends that.

    With `tag`, it is about notes with that tag. Each note that it concerns has a `NoteShared`.
    """

    owner: str
    agent_id: str
    permission: Permission | None
    tag: str | None = None
    by: str | None = None


class NoteDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="note.deleted"):
    """A note is not recalled from now on.

    Its bytes stay, so recall as of an earlier position finds it.
    """

    at: int
    by: str | None = None


class NoteArchived(msgspec.Struct, frozen=True, kw_only=True, tag="note.archived"):
    """A note got the state `state`: it is kept, and not recalled."""

    state: ConsolidationState
    by: str | None = None


class NoteDecayed(msgspec.Struct, frozen=True, kw_only=True, tag="note.decayed"):
    """A note became less important. `importance` is the new value."""

    importance: float
    by: str | None = None


class NoteState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a note that changes: importance, validity, expiry, deletion and quarantine."""

    importance: float
    valid_to: int | None = None
    expires_at: int | None = None
    deleted_at: int | None = None
    state: ConsolidationState = ConsolidationState.RAW
    quarantine: tuple[str, ...] = ()


class NoteRestored(msgspec.Struct, frozen=True, kw_only=True, tag="note.restored"):
    """An imported note got the state that it had in the memory it came from."""

    state: NoteState


class NoteRedacted(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="note.redacted"
):
    """The content of a note was erased.

    `entries` are the earlier positions with content, now empty.

    `note` is what is left of it, and `state` is its state at that time.
    """

    note: Note
    state: NoteState
    entries: tuple[int, ...]
    by: str | None = None


class NoteErasedRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="note.erased"
):
    """Every byte of a note was erased.

    `entries` are its positions in the log, all of them empty now.
    """

    entries: tuple[int, ...]
    why: str
    by: str | None = None


class NoteQuarantined(msgspec.Struct, frozen=True, kw_only=True, tag="note.quarantined"):
    """A note is not recalled until a person has reviewed it."""

    reasons: tuple[str, ...]
    score: float


class Verdict(enum.StrEnum):
    """The result of a review."""

    RELEASED = "released"
    CONFIRMED = "confirmed"


class NoteReviewed(msgspec.Struct, frozen=True, kw_only=True, tag="note.reviewed"):
    """A quarantined note was reviewed. A confirmed one stays in quarantine."""

    verdict: Verdict
    by: str


class NoteEmbedded(msgspec.Struct, frozen=True, kw_only=True, tag="note.embedded"):
    """Vectors of a note were stored, one for each of its windows. The record has their digests."""

    model: str
    vectors: tuple[str, ...]
    tokens: tuple[str | None, ...]


class ModelChosen(msgspec.Struct, frozen=True, kw_only=True, tag="model.chosen"):
    """The vectors from here on are of this model. Those of another model were deleted."""

    model: str
    dimensions: int


class NotesRecalled(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="notes.recalled"
):
    """Notes were returned to a reader. The record has ids only, because it outlives the notes.

    `receipt` is the receipt of this recall as canonical JSON. It holds no content of a note.
    """

    ids: tuple[str, ...]
    at: int
    receipt: str = ""


class NotesForgetting(msgspec.Struct, frozen=True, kw_only=True, tag="notes.forgetting"):
    """Notes are about to be erased, together with these recorded runs.

    The record is on disk before the first run is deleted. If the request is repeated after a crash,
    it finds here the runs whose own records no longer name the notes.
    """

    ids: tuple[str, ...]
    runs: tuple[str, ...]
    at: int


class NotesForgotten(msgspec.Struct, frozen=True, kw_only=True, tag="notes.forgotten"):
    """Notes were forgotten. `receipt` is the receipt of it, as canonical JSON.

    It names the notes and has none of their content, because it outlives them.
    """

    receipt: str


class NotesExported(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="notes.exported"
):
    """Notes left this file. `label` says where to. No erasure in this file reaches the copies.

    `ids` is None if the notes were too many to name: any note of that time may be among them.
    """

    at: int
    label: str
    count: int
    ids: tuple[str, ...] | None = None


MemoryRecord = (
    NoteRemembered
    | NoteSighted
    | NoteClosed
    | NoteRelated
    | NoteShared
    | NotesShared
    | NoteDeleted
    | NoteArchived
    | NoteDecayed
    | NoteRedacted
    | NoteErasedRecord
    | NoteQuarantined
    | NoteReviewed
    | NoteRestored
    | NoteEmbedded
    | ModelChosen
    | NotesRecalled
    | NotesForgetting
    | NotesForgotten
    | NotesExported
)

# The names of these events in other systems.
EVENT_TYPES = {
    "note.remembered": "memory_write",
    "note.sighted": "memory_write",
    "note.closed": "memory_revised",
    "note.related": "memory_revised",
    "note.shared": "memory_share",
    "notes.shared": "memory_share",
    "note.deleted": "memory_delete",
    "note.archived": "memory_revised",
    "note.decayed": "memory_revised",
    "note.redacted": "memory_redact",
    "note.erased": "memory_delete",
    "note.quarantined": "decision",
    "note.reviewed": "decision",
    "note.restored": "memory_write",
    "note.embedded": "memory_revised",
    "model.chosen": "decision",
    "notes.recalled": "memory_read",
    "notes.forgetting": "memory_delete",
    "notes.forgotten": "memory_delete",
    "notes.exported": "memory_read",
}

# RecursionError: a body from another hand may be nested deeper than Python's stack allows.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_decoder: msgspec.json.Decoder[MemoryRecord] = msgspec.json.Decoder(MemoryRecord)


def encode_memory_record(record: MemoryRecord) -> bytes:
    """Encode a record as canonical JSON: the bytes that are hashed and stored."""
    return canonical(record)


def decode_memory_record(body: bytes) -> MemoryRecord:
    """Decode the body of an entry.

    Raise one of `UNREADABLE` if it is not a record of this version.
    """
    return _decoder.decode(body)


def tag_of(record: MemoryRecord) -> str:
    """Return the tag under which a record is stored."""
    tag = type(record).__struct_config__.tag
    assert isinstance(tag, str)
    return tag
