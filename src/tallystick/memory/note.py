"""The note: a remembered text with its fields, their checks, and the digest of duplicates.

Rule 1: the content of a note never changes. Its state does (importance, validity, expiry, whether
it may be recalled), each time by an entry of the log.
Rule 2: two clocks. `valid_from` and `valid_to` say when something is true in the world. The
position in the log says when we knew it. Times are milliseconds since 1970.
Rule 3: a note is data. No field of it grants anything to anybody.
"""

from __future__ import annotations

import enum
import hashlib
import math
import re
import unicodedata
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.json_text import canonical
from tallystick.memory.errors import NoteInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTENT_BYTES_MAX = 1 << 20
ENTROPY_BYTES = 10
PROCEDURAL_IMPORTANCE_MIN = 0.8
# The fields that the beginning of a text may say.
FIELDS_READ_OFF = ("author", "created_at")
REDACTED = "[REDACTED]"
SUBJECT_TAG = "subject:"
WORKING_TTL_MS = 3_600_000

_NAME_CHARS_MAX = 128
_TAGS_MAX = 64
_TAG_CHARS_MAX = 256
_RELATED_MAX = 256
_METADATA_BYTES_MAX = 64 << 10
_METADATA_DEPTH_MAX = 16
# The time field of a UUIDv7 has 48 bits.
_TIME_MS_MAX = (1 << 48) - 1
# The largest whole number that every JSON reader reads exactly.
_POSITION_MAX = (1 << 53) - 1
_AGENT = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NAME_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Line ends and tabs are text. The other control characters move cursors or end strings; a surrogate
# is half of a character.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_DECAY = re.compile(
    r"exponential|linear|step:(\d{1,9}(?:\.\d{1,9})?)|power_law:(\d{1,9}(?:\.\d{1,9})?)"
)


class MemoryType(enum.StrEnum):
    """The tier of a note.

    A working note expires; a procedural one is important and does not decay.
    """

    EPISODIC = "episodic"
    SEMANTIC = "semantic"
    PROCEDURAL = "procedural"
    WORKING = "working"


class NoteScope(enum.StrEnum):
    """The visibility of a note.

    A private or shared note is for its owner and for the agents it is shared with. A public or
    global note is for everybody who reads the file.
    """

    PRIVATE = "private"
    SHARED = "shared"
    PUBLIC = "public"
    GLOBAL = "global"


class SourceType(enum.StrEnum):
    """The kind of source that a note came from."""

    AGENT = "agent"
    HUMAN = "human"
    SYSTEM = "system"
    USER_INPUT = "user_input"
    TOOL_OUTPUT = "tool_output"
    MODEL_RESPONSE = "model_response"
    RETRIEVAL = "retrieval"
    CONSOLIDATION = "consolidation"
    IMPORT = "import"


class ConsolidationState(enum.StrEnum):
    """The stage of a note's life. Archived and forgotten notes are not recalled."""

    RAW = "raw"
    ACTIVE = "active"
    PENDING = "pending"
    CONSOLIDATED = "consolidated"
    ARCHIVED = "archived"
    FORGOTTEN = "forgotten"


class Permission(enum.StrEnum):
    """A right to another agent's note. A higher one includes every lower one."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    SHARE = "share"
    DELEGATE = "delegate"
    ADMIN = "admin"

    def satisfies(self, needed: Permission) -> bool:
        """Return True if this permission is `needed`, or a higher one."""
        order = list(Permission)
        return order.index(self) >= order.index(needed)


class NewNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to remember a text.

    `agent_id` owns it, `author` said it, `created_by` wrote it down.

    `thread_id` and `position` are the conversation and the place in it; without a position it is
    the next one. `key` names what the note is about: a later note with the same key and owner ends
    the validity of the earlier one. `related_to` has ids of notes in the same memory. At most one
    of `expires_at` and `ttl_ms` may be given.

    Without `author` or `created_at`, the beginning of the text may say them (`memory.bare`). With
    `as_is`, it is not asked.
    """

    agent_id: str
    content: str
    memory_type: MemoryType = MemoryType.EPISODIC
    scope: NoteScope = NoteScope.PRIVATE
    importance: float = 0.5
    tags: tuple[str, ...] = ()
    metadata: dict[str, object] = msgspec.field(default_factory=dict)
    source_type: SourceType = SourceType.AGENT
    source_id: str | None = None
    org_id: str | None = None
    thread_id: str | None = None
    position: int | None = None
    author: str | None = None
    created_by: str | None = None
    session_id: str | None = None
    key: str | None = None
    related_to: tuple[str, ...] = ()
    created_at: int | None = None
    valid_from: int | None = None
    valid_to: int | None = None
    expires_at: int | None = None
    ttl_ms: int | None = None
    decay_rate: float | None = None
    decay_function: str | None = None
    as_is: bool = False


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A note as it was remembered: the part of it that does not change.

    `read_off` names the fields that nobody said: they were read off the beginning of the text.
    """

    id: str
    agent_id: str
    content: str
    created_at: int
    valid_from: int
    memory_type: MemoryType = MemoryType.EPISODIC
    scope: NoteScope = NoteScope.PRIVATE
    importance: float = 0.5
    tags: tuple[str, ...] = ()
    metadata: dict[str, object] = msgspec.field(default_factory=dict)
    source_type: SourceType = SourceType.AGENT
    source_id: str | None = None
    org_id: str | None = None
    thread_id: str | None = None
    position: int | None = None
    author: str | None = None
    created_by: str | None = None
    session_id: str | None = None
    key: str | None = None
    related_to: tuple[str, ...] = ()
    valid_to: int | None = None
    expires_at: int | None = None
    decay_rate: float | None = None
    decay_function: str | None = None
    read_off: tuple[str, ...] = ()


# -- ids and text ------------------------------------------------------------------------------


def uuid7(*, time_ms: int, entropy: bytes) -> str:
    """Return the UUIDv7 of a time in milliseconds and ten random bytes. Ids sort by time.

    Raise `NoteInvalid` if the time does not fit 48 bits, or if `entropy` has another length.
    """
    if not 0 <= time_ms <= _TIME_MS_MAX:
        raise NoteInvalid(field="time_ms", why="milliseconds since 1970, in 48 bits", given=time_ms)
    if len(entropy) != ENTROPY_BYTES:
        raise NoteInvalid(field="entropy", why=f"{ENTROPY_BYTES} bytes", given=len(entropy))
    # 12 random bits follow the version and 62 the variant: 74 of the 80 are used.
    random = int.from_bytes(entropy, "big")
    high = (time_ms << 16) | 0x7000 | ((random >> 62) & 0xFFF)
    low = (0b10 << 62) | (random & ((1 << 62) - 1))
    digits = f"{high:016x}{low:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def is_note_id(text: str) -> bool:
    """Return True if `text` is a UUIDv7 in its canonical spelling: small letters, with hyphens."""
    return _UUID7.fullmatch(text) is not None


def normalise(text: str) -> str:
    """Normalise a text for comparison: NFKC, case folded, one space between words."""
    if text.isascii():
        return " ".join(text.lower().split())
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


# -- checks ------------------------------------------------------------------------------------


def check_new(new: NewNote) -> None:
    """Raise `NoteInvalid`, naming the field, if a request cannot become a note."""
    check_agent(new.agent_id)
    _check_content(new.content)
    if not _within_one(new.importance):
        raise NoteInvalid(field="importance", why="from 0 to 1", given=new.importance)
    for field, value in (
        ("source_id", new.source_id),
        ("org_id", new.org_id),
        ("thread_id", new.thread_id),
        ("author", new.author),
        ("created_by", new.created_by),
        ("session_id", new.session_id),
        ("key", new.key),
    ):
        if value is not None:
            _check_name(field, value)
    if new.tags:
        _check_tags(new.tags)
    if new.metadata:
        _check_metadata(new.metadata)
    if new.related_to:
        _check_related(new.related_to)
    _check_times(new)
    _check_decay(new)


def check_agent(agent_id: str, *, field: str = "agent_id") -> None:
    """Raise `NoteInvalid` if `agent_id` cannot be an agent's name.

    A name has 1 to 128 characters: letters and digits of ASCII, `-`, `_` and `.`.
    """
    if not _AGENT.fullmatch(agent_id):
        why = "letters, digits, `-`, `_` and `.`, at least one"
        raise NoteInvalid(field=field, why=why, given=agent_id)
    if len(agent_id) > _NAME_CHARS_MAX:
        raise NoteInvalid(field=field, why=f"at most {_NAME_CHARS_MAX} characters", given=agent_id)


def check_time(field: str, value: int | None) -> None:
    """Raise `NoteInvalid` if `value` is not a time: milliseconds since 1970, in 48 bits.

    None passes.
    """
    if value is None:
        return
    if not 0 <= value <= _TIME_MS_MAX:
        raise NoteInvalid(field=field, why="milliseconds since 1970, in 48 bits", given=value)


def _check_content(content: str) -> None:
    if not content.strip():
        raise NoteInvalid(field="content", why="it is blank")
    if found := _CONTROL.search(content):
        why = f"control character U+{ord(found[0]):04X} at {found.start():,}; take it out first"
        raise NoteInvalid(field="content", why=why)
    size = len(content) if content.isascii() else len(content.encode())
    if size > CONTENT_BYTES_MAX:
        why = f"{size:,} bytes, at most {CONTENT_BYTES_MAX:,}: keep it as an attachment"
        raise NoteInvalid(field="content", why=why)


def _check_name(field: str, value: str) -> None:
    if not value.strip():
        raise NoteInvalid(field=field, why="it is blank; leave it out instead")
    if len(value) > _NAME_CHARS_MAX:
        raise NoteInvalid(field=field, why=f"at most {_NAME_CHARS_MAX} characters", given=value)
    if _NAME_CONTROL.search(value):
        raise NoteInvalid(field=field, why="no control characters", given=value)


def _check_tags(tags: tuple[str, ...]) -> None:
    if len(tags) > _TAGS_MAX:
        raise NoteInvalid(field="tags", why=f"at most {_TAGS_MAX}", given=len(tags))
    for tag in tags:
        check_tag(tag)


def check_tag(tag: str) -> None:
    """Raise `NoteInvalid` for a tag that is blank, too long, or has control characters."""
    if len(tag) > _TAG_CHARS_MAX:
        raise NoteInvalid(field="tags", why=f"at most {_TAG_CHARS_MAX} characters", given=tag)
    _check_name("tags", tag[:_NAME_CHARS_MAX])
    _check_name("tags", tag[-_NAME_CHARS_MAX:])


def _check_metadata(metadata: Mapping[str, object]) -> None:
    waiting: list[tuple[object, int]] = [(metadata, 1)]
    while waiting:
        held, depth = waiting.pop()
        if depth > _METADATA_DEPTH_MAX:
            raise NoteInvalid(field="metadata", why=f"deeper than {_METADATA_DEPTH_MAX} levels")
        if isinstance(held, dict):
            waiting.extend((each, depth + 1) for each in (*held, *held.values()))
        elif isinstance(held, list | tuple):
            waiting.extend((each, depth + 1) for each in held)
        elif why := _why_not_json(held):
            raise NoteInvalid(field="metadata", why=why, given=held)
    size = len(msgspec.json.encode(metadata))
    if size > _METADATA_BYTES_MAX:
        why = f"{size:,} bytes, at most {_METADATA_BYTES_MAX:,}"
        raise NoteInvalid(field="metadata", why=why)


def _why_not_json(held: object) -> str | None:
    """Return what a single value has to be instead, or None if every JSON reader reads it alike.

    A list or a mapping is refused too: the caller takes them apart, and passes only their parts.
    """
    match held:
        case str():
            halved = any("\ud800" <= each <= "\udfff" for each in held)
            return "whole characters" if halved else None
        case float():
            return None if math.isfinite(held) else "finite numbers"
        case bool() | None:
            return None
        case int():
            return None if abs(held) <= _POSITION_MAX else "whole numbers of at most 53 bits"
        case _:
            return "values of JSON"


def _check_related(related: tuple[str, ...]) -> None:
    if len(related) > _RELATED_MAX:
        raise NoteInvalid(field="related_to", why=f"at most {_RELATED_MAX}", given=len(related))
    for id in related:
        if not is_note_id(id):
            raise NoteInvalid(field="related_to", why="ids of notes", given=id)


def _check_times(new: NewNote) -> None:
    check_time("created_at", new.created_at)
    check_time("valid_from", new.valid_from)
    check_time("valid_to", new.valid_to)
    check_time("expires_at", new.expires_at)
    if new.position is not None and not 0 <= new.position <= _POSITION_MAX:
        raise NoteInvalid(field="position", why="a whole number of at least 0", given=new.position)
    if new.ttl_ms is not None:
        if new.expires_at is not None:
            raise NoteInvalid(field="ttl_ms", why="`expires_at` says the same thing; give one")
        if not 0 < new.ttl_ms <= _TIME_MS_MAX:
            raise NoteInvalid(field="ttl_ms", why="at least 1", given=new.ttl_ms)
    begin = new.valid_from if new.valid_from is not None else new.created_at
    if begin is not None and new.valid_to is not None and new.valid_to < begin:
        raise NoteInvalid(field="valid_to", why="at or after `valid_from`", given=new.valid_to)


def _check_decay(new: NewNote) -> None:
    if new.decay_rate is not None and not (math.isfinite(new.decay_rate) and new.decay_rate >= 0):
        raise NoteInvalid(field="decay_rate", why="at least 0", given=new.decay_rate)
    if new.decay_function is not None and not _DECAY.fullmatch(new.decay_function):
        why = "exponential, linear, step:<hours> or power_law:<alpha>"
        raise NoteInvalid(field="decay_function", why=why, given=new.decay_function)


def _within_one(value: float) -> bool:
    # NaN compares as False with every number, so it fails here.
    return 0.0 <= value <= 1.0


# The digest by which duplicates are found: one text of one owner, said in one way.


SECRET_BYTES = 32


def duplicate_digest(note: Note | NewNote, *, secret: bytes) -> bytes:
    """Return a digest that is equal for two notes if storing the second would add nothing.

    Type, scope, author, key, organisation, tags, relations, metadata and kind of source are part of
    it: dropping a note that differs in one of them would lose that. Time and conversation are not,
    because the sighting records them. The text is compared as `normalise` gives it.

    An author that was read off the text is no part: the text has it already.

    The digest is keyed with a secret of the store. With an index alone, nobody can find a short
    text by trying. It is a projection: it is erased with the note.
    """
    read = isinstance(note, Note) and "author" in note.read_off
    fields = (
        note.agent_id,
        normalise(note.content),
        note.memory_type.value,
        note.scope.value,
        None if read else note.author,
        note.org_id,
        note.key,
        sorted(set(note.tags)),
        sorted(set(note.related_to)),
        note.metadata,
        note.source_type.value,
    )
    return hashlib.blake2b(canonical(fields), key=secret, digest_size=32).digest()


# Decay: what is left of the importance of a note after some hours.


DECAY_RATE_PER_HOUR = 0.01
_ACCESS_WEIGHT = 0.05
_HOUR_MS = 3_600_000


def effective_importance(
    importance: float,
    *,
    hours: float,
    access_count: int = 0,
    rate: float | None = None,
    function: str | None = None,
) -> float:
    """Return importance × exp(-rate × hours) + 0.05 × ln(1 + accesses), at most 1.

    The rate is 0.01 per hour by default; hours below 0 count as 0. `linear` replaces the
    exponential by 1 - rate × hours, at least 0. `step:<h>` halves every h hours, and
    `power_law:<a>` divides by (1 + hours) to the power of a. Any other name is the exponential.
    Raise `ValueError` if `step` or `power_law` has no number.
    """
    age = max(0.0, hours)
    speed = DECAY_RATE_PER_HOUR if rate is None else rate
    name, _, number = (function or "exponential").partition(":")
    match name:
        case "linear":
            left = max(0.0, 1.0 - speed * age)
        case "step":
            # After a thousand halvings the rest is 0 for every purpose.
            steps = age // float(number) if float(number) > 0 else 1_000.0
            left = 0.5 ** min(steps, 1_000.0)
        case "power_law":
            left = (1.0 + age) ** -float(number)
        case _:
            left = math.exp(-speed * age)
    return min(1.0, importance * left + _ACCESS_WEIGHT * math.log(1 + access_count))


def kept_at(note: Note) -> int:
    """Return since when a note has an age, in milliseconds: its time, unless that was read off.

    Then it is the time of keeping, which its id has. A message of last year that is kept today is
    not a year old here.
    """
    if "created_at" in note.read_off:
        return int(note.id.replace("-", "")[:12], 16)
    return note.created_at


def worth_of(note: Note, importance: float, *, now: int, access_count: int) -> float:
    """Return how much a note still matters at a time, 0 to 1, by its own rate and function.

    `importance` is the present one, `now` is in milliseconds. A procedural note does not decay.
    """
    procedural = note.memory_type is MemoryType.PROCEDURAL
    return effective_importance(
        importance,
        hours=0.0 if procedural else (now - kept_at(note)) / _HOUR_MS,
        access_count=access_count,
        rate=note.decay_rate,
        function=note.decay_function,
    )
