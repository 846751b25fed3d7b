"""The records of a memory's log: what can happen to a note, and what forgetting is asked.

A record is a fact and is folded into the projections by itself: it says what a field has become,
never how to compute it. A tag is for ever; a field that is added has a default that means "as
before". What is about one note is sealed under its id, so that it can be erased with it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import msgspec

from tallystick.core.json_text import canonical
from tallystick.memory.note import ConsolidationState, MemoryType, Note, Permission

# What forgetting is asked, and what it says of a note that it could not do it to.


class ForgetStrategy(enum.StrEnum):
    """How a note is forgotten. `consolidate` has a name and is not done here."""

    SOFT_DELETE = "soft_delete"
    HARD_DELETE = "hard_delete"
    DECAY = "decay"
    CONSOLIDATE = "consolidate"
    ARCHIVE = "archive"
    REDACT = "redact"

    @property
    def erases(self) -> bool:
        """Whether what a note said is gone afterwards."""
        return self in (ForgetStrategy.HARD_DELETE, ForgetStrategy.REDACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Which notes to forget: those that meet all that is said. Of `tags` one is enough."""

    max_age_hours: float | None = None
    min_importance_below: float | None = None
    memory_type: MemoryType | None = None
    tags: frozenset[str] = frozenset()
    agent_id: str | None = None
    thread_id: str | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A note that was not forgotten, and why."""

    id: str
    code: str
    message: str


# The records of a memory's log: what can happen to a note, one struct each.


class NoteRemembered(msgspec.Struct, frozen=True, kw_only=True, tag="note.remembered"):
    """A note that was not here before."""

    note: Note


class NoteSighted(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="note.sighted"
):
    """The same note was brought again. `importance` and `expires_at` are what they are now."""

    at: int
    importance: float
    expires_at: int | None = None
    thread_id: str | None = None
    position: int | None = None
    session_id: str | None = None
    created_by: str | None = None


class NoteClosed(msgspec.Struct, frozen=True, kw_only=True, tag="note.closed"):
    """From `valid_to` on it is no longer so: `by`, a note with the same key, says otherwise."""

    valid_to: int
    by: str


class NoteRelated(msgspec.Struct, frozen=True, kw_only=True, tag="note.related"):
    """This note has to do with another one."""

    to: str
    relation: str
    weight: float


class NoteShared(msgspec.Struct, frozen=True, kw_only=True, tag="note.shared"):
    """Somebody else may do so much with it. None takes it back."""

    agent_id: str
    permission: Permission | None
    by: str | None = None


class NoteDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="note.deleted"):
    """Not recalled from now on. Its bytes stay, and what was known before can be asked for."""

    at: int
    by: str | None = None


class NoteArchived(msgspec.Struct, frozen=True, kw_only=True, tag="note.archived"):
    """It has become `state`: kept, and not recalled."""

    state: ConsolidationState
    by: str | None = None


class NoteDecayed(msgspec.Struct, frozen=True, kw_only=True, tag="note.decayed"):
    """It matters so much less."""

    importance: float
    by: str | None = None


class NoteState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is thought of a note: the part of it that changes."""

    importance: float
    valid_to: int | None = None
    expires_at: int | None = None
    deleted_at: int | None = None
    state: ConsolidationState = ConsolidationState.RAW
    quarantine: tuple[str, ...] = ()


class NoteRestored(msgspec.Struct, frozen=True, kw_only=True, tag="note.restored"):
    """A note that came from elsewhere stands here as it stood there."""

    state: NoteState


class NoteRedacted(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="note.redacted"
):
    """What it said is gone from `entries`, all earlier ones that said something of it.

    `note` is what is left, and `state` what was thought of it then.
    """

    note: Note
    state: NoteState
    entries: tuple[int, ...]
    by: str | None = None


class NoteErasedRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="note.erased"
):
    """Every byte of it is gone. `entries` are its places in the log, all of them empty now."""

    entries: tuple[int, ...]
    why: str
    by: str | None = None


class NoteQuarantined(msgspec.Struct, frozen=True, kw_only=True, tag="note.quarantined"):
    """Not recalled until somebody looked at it."""

    reasons: tuple[str, ...]
    score: float


class Verdict(enum.StrEnum):
    """What a review came to."""

    RELEASED = "released"
    CONFIRMED = "confirmed"


class NoteReviewed(msgspec.Struct, frozen=True, kw_only=True, tag="note.reviewed"):
    """Somebody looked at a quarantined note. Confirmed, it stays where it is."""

    verdict: Verdict
    by: str


class NoteEmbedded(msgspec.Struct, frozen=True, kw_only=True, tag="note.embedded"):
    """Vectors of a note were kept, one for each of its windows, by their digests."""

    model: str
    vectors: tuple[str, ...]
    tokens: tuple[str | None, ...]


class ModelChosen(msgspec.Struct, frozen=True, kw_only=True, tag="model.chosen"):
    """The vectors from here on are this model's. Those of another one were thrown away."""

    model: str
    dimensions: int


class NotesRecalled(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="notes.recalled"
):
    """Notes were given to somebody. Ids only: it outlives them.

    `receipt` is the one that was given for it, as canonical JSON; it says nothing of what they say.
    """

    ids: tuple[str, ...]
    at: int
    receipt: str = ""


class NotesForgetting(msgspec.Struct, frozen=True, kw_only=True, tag="notes.forgetting"):
    """Notes are about to be erased, with these recorded runs. On disk before the first run goes.

    Whoever asks again after a crash finds here the runs that no longer say themselves that they
    had to do with the notes.
    """

    ids: tuple[str, ...]
    runs: tuple[str, ...]
    at: int


class NotesForgotten(msgspec.Struct, frozen=True, kw_only=True, tag="notes.forgotten"):
    """Notes were forgotten, and this receipt was given for it, as canonical JSON.

    It names them, and says nothing of what they said: it outlives them.
    """

    receipt: str


class NotesExported(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="notes.exported"
):
    """Notes left this file, under a name that says where to. Nobody can call them back.

    `ids` is None if they were too many to name: any note that was here may be among them.
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

# What other systems call these events.
EVENT_TYPES = {
    "note.remembered": "memory_write",
    "note.sighted": "memory_write",
    "note.closed": "memory_revised",
    "note.related": "memory_revised",
    "note.shared": "memory_share",
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

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_decoder: msgspec.json.Decoder[MemoryRecord] = msgspec.json.Decoder(MemoryRecord)


def encode_memory_record(record: MemoryRecord) -> bytes:
    """A record as the bytes that are hashed and kept."""
    return canonical(record)


def decode_memory_record(body: bytes) -> MemoryRecord:
    """The record that bytes are. Raises one of `UNREADABLE`."""
    return _decoder.decode(body)


def tag_of(record: MemoryRecord) -> str:
    """The tag under which a record is kept."""
    tag = type(record).__struct_config__.tag
    assert isinstance(tag, str)
    return tag
