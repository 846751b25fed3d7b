"""Export and import of notes as lines of JSON.

The first line names the format. The last line has the number of notes and the SHA-256 of the lines
before: a file that was cut off or changed on the way is refused whole. An export has the present
state of notes, not their history. The export itself is an entry of the log: a later erasure can say
where copies may be.

An import is hostile until it was read: every field is checked as if it were new, and texts are
screened as those of a stranger. With `trusted`, for an export of your own, the reviews in it are
accepted. Notes keep their ids. A note that was erased here is not imported again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from tallystick.core.chain import SALT_BYTES, body_hash
from tallystick.core.json_text import canonical, read_json
from tallystick.memory.errors import ImportRefused, NoteInvalid
from tallystick.memory.note import (
    FIELDS_READ_OFF,
    REDACTED,
    NewNote,
    Note,
    Permission,
    SourceType,
    check_agent,
    check_new,
    check_time,
    is_note_id,
)
from tallystick.memory.recall.selection import Filters, Row, select_notes
from tallystick.memory.remember import supersession
from tallystick.memory.sharing import check_relation
from tallystick.memory.store.projection import OPEN, note_at
from tallystick.memory.store.records import (
    NoteClosed,
    NoteRelated,
    NoteRemembered,
    NoteRestored,
    NotesExported,
    NoteShared,
    NoteSighted,
    NoteState,
    encode_memory_record,
)
from tallystick.memory.store.sqlite import LogWriter, SqliteMemory
from tallystick.memory.suspicion import SIGNS, TextScreen

_T = TypeVar("_T")

EXPORT_FORMAT = "tallystick-memory@2"
# Without salts. It is read as before; receipts cannot be checked against it.
_WITHOUT_SALTS = "tallystick-memory@1"
_NAMED_IDS_MAX = 10_000
_SALT = re.compile(f"[0-9a-f]{{{2 * SALT_BYTES}}}")
# All notes that are not deleted. The importing side removes those that expired meanwhile.
_EXPORTED = Filters(current=False, quarantined=True, archived=True, expired=True)


class _FirstLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    store: str
    seq: int
    hash: str


class _NoteLine(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A note with its state, the times of its sightings, its relations and its shares.

    `salt` is that of its entry in the log, in hex. `related_to` is what the note itself says there,
    if some of those notes are not exported. Both are missing of a redacted note.
    """

    note: Note
    state: NoteState
    sightings: tuple[int, ...] = ()
    relations: tuple[tuple[str, str, float], ...] = ()
    shares: tuple[tuple[str, Permission], ...] = ()
    salt: str | None = None
    related_to: tuple[str, ...] | None = None


class _LastLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    notes: int
    sha256: str


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an import. `present` notes existed here already, and were not changed.

    `erased` notes were erased here once, and were left out. `quarantined` ones are held back for a
    review.
    """

    notes: int
    imported: tuple[str, ...]
    present: tuple[str, ...]
    erased: tuple[str, ...]
    quarantined: tuple[str, ...]


def export_notes(
    memory: SqliteMemory, *, reader: str | None, label: str, filters: Filters = _EXPORTED
) -> Iterator[bytes]:
    """Append the entry about an export, and return its lines, each with its newline.

    `label` says where they go, and is kept for ever. The entry comes first, since an export that is
    cut off has still taken notes out; it does not name more than 10,000 notes. Shares are exported
    for the owner only (`reader` None). Raise `NoteInvalid` if the label is blank.
    """
    if not label.strip():
        raise NoteInvalid(field="label", why="say where it goes, for whoever must erase it")
    # One transaction: no note can change between the reading and the entry that names it.
    with memory.writing() as writer:
        rows = select_notes(
            writer.db, reader=reader, filters=filters, seq=writer.head.count, at=writer.at
        )
        head, store = writer.head, writer.store
        lines = _lines(writer, rows, private=reader is None)
        ids = tuple(row.note.id for row in rows)
        record = NotesExported(
            at=writer.at,
            label=label,
            count=len(ids),
            ids=ids if len(ids) <= _NAMED_IDS_MAX else None,
        )
        writer.append(record)
    return _encode_lines(
        _FirstLine(format=EXPORT_FORMAT, store=store, seq=head.count, hash=head.hash), lines
    )


def import_notes(
    memory: SqliteMemory, lines: Iterable[bytes], *, trusted: bool = False
) -> Imported:
    """Import the notes of an export: all of them, or with an error none.

    With `trusted`, notes are not screened, and keep the quarantine that they had. Raise
    `ImportRefused`, with the line, if one cannot be read, was changed, or could not have been
    written here. Raise it too for the id of a note that has another text or owner here.
    """
    taken = _Import(trusted=trusted)
    # One transaction: the digest of the lines is checked after the last note, and undoes them all.
    with memory.writing() as writer:
        for number, line in enumerate(_decode_lines(lines), start=2):
            try:
                taken.add(writer, line, number)
            except NoteInvalid as error:
                raise ImportRefused(line=number, why=str(error)) from error
        taken.append_relations(writer)
    return taken.report()


# -- out ---------------------------------------------------------------------------------------


def _lines(writer: LogWriter, rows: list[Row], *, private: bool) -> list[_NoteLine]:
    there = {row.note.id for row in rows}
    made: list[_NoteLine] = []
    for row in rows:
        # The importer refuses a relation to a note that it does not have, so name only exported
        # notes.
        note = msgspec.structs.replace(
            row.note, related_to=tuple(id for id in row.note.related_to if id in there)
        )
        made.append(
            _NoteLine(
                note=note,
                state=row.state,
                sightings=_column(
                    writer, "SELECT at FROM sighting WHERE number = ? ORDER BY seq", row
                ),
                relations=_relations(writer, row, there),
                shares=_shares(writer, row) if private else (),
                salt=_salt(writer, row),
                related_to=row.note.related_to if note != row.note else None,
            )
        )
    return made


def _salt(writer: LogWriter, row: Row) -> str | None:
    """Return the salt of a note's entry, or None if other bytes than the note's are bound there."""
    (salt, body) = writer.db.execute(
        "SELECT salt, body FROM log WHERE seq = ?", (row.body_seq,)
    ).fetchone()
    # A redacted note has an entry of another kind.
    same = body == encode_memory_record(NoteRemembered(note=row.note))
    return bytes(salt).hex() if same else None


def _column(writer: LogWriter, question: str, row: Row) -> tuple[int, ...]:
    return tuple(value for (value,) in writer.db.execute(question, (row.number,)))


def _relations(writer: LogWriter, row: Row, there: set[str]) -> tuple[tuple[str, str, float], ...]:
    found = writer.db.execute(
        "SELECT relation, target, weight FROM relation WHERE number = ? AND seq_from != ? "
        "ORDER BY seq_from",
        (row.number, row.body_seq),
    )
    return tuple(each for each in found if each[1] in there)


def _shares(writer: LogWriter, row: Row) -> tuple[tuple[str, Permission], ...]:
    found = writer.db.execute(
        "SELECT agent_id, permission FROM share WHERE number = ? AND seq_to = ? ORDER BY agent_id",
        (row.number, OPEN),
    )
    return tuple((agent, Permission(permission)) for agent, permission in found)


def _encode_lines(first: _FirstLine, lines: list[_NoteLine]) -> Iterator[bytes]:
    hashed = hashlib.sha256()
    for each in (first, *lines):
        line = canonical(each) + b"\n"
        hashed.update(line)
        yield line
    yield canonical(_LastLine(notes=len(lines), sha256=hashed.hexdigest())) + b"\n"


# -- looking -----------------------------------------------------------------------------------


class ExportedNotes(msgspec.Struct, frozen=True, kw_only=True):
    """An export as it can be checked: its memory, its position, and the digest of each note.

    A digest is the one by which the log binds the note; it is None if the note was redacted.
    """

    store: str
    seq: int
    digests: dict[str, str | None]


def read_export(lines: Iterable[bytes]) -> ExportedNotes:
    """Read an export without importing it.

    Raise `ImportRefused` if it cannot be read, was changed, or has no salts.
    """
    first: list[_FirstLine] = []
    digests = {line.note.id: _digest_of(line) for line in _decode_lines(lines, first)}
    if first[0].format == _WITHOUT_SALTS:
        why = f"it is {_WITHOUT_SALTS!r}, without salts: no receipt can be checked against it"
        raise ImportRefused(line=1, why=f"{why}; export again")
    return ExportedNotes(store=first[0].store, seq=first[0].seq, digests=digests)


def _digest_of(line: _NoteLine) -> str | None:
    if line.salt is None:
        return None
    note = line.note
    if line.related_to is not None:
        note = msgspec.structs.replace(note, related_to=line.related_to)
    body = encode_memory_record(NoteRemembered(note=note))
    return body_hash(bytes.fromhex(line.salt), body)


# -- in ----------------------------------------------------------------------------------------


def _decode_lines(
    lines: Iterable[bytes], begun: list[_FirstLine] | None = None
) -> Iterator[_NoteLine]:
    """Yield the notes of an export. Raise `ImportRefused` if a line cannot be read or was changed.

    The first line is appended to `begun`. The digest of all lines is checked after the last note.
    So the caller must not keep anything before the generator has ended.
    """
    hashed = hashlib.sha256()
    # The last line is no note, and which one is the last is known at the end only. So each line
    # waits until another follows.
    waiting: bytes | None = None
    number = 0
    for raw in lines:
        line = raw.rstrip(b"\r\n")
        if number == 0:
            first = _struct(line, _FirstLine, 1)
            if first.format not in (EXPORT_FORMAT, _WITHOUT_SALTS):
                why = f"it is {first.format[:80]!r}; this version reads {EXPORT_FORMAT!r}"
                raise ImportRefused(line=1, why=why)
            if begun is not None:
                begun.append(first)
            hashed.update(line + b"\n")
        elif waiting is not None:
            hashed.update(waiting + b"\n")
            yield _note_line(waiting, number)
            waiting = line
        else:
            waiting = line
        number += 1
    if waiting is None:
        raise ImportRefused(line=number + 1, why="it ends before its last line")
    last = _struct(waiting, _LastLine, number)
    if last != _LastLine(notes=number - 2, sha256=hashed.hexdigest()):
        raise ImportRefused(line=number, why="its lines are not those that were written")


def _note_line(line: bytes, number: int) -> _NoteLine:
    read = _struct(line, _NoteLine, number)
    if read.salt is not None and not _SALT.fullmatch(read.salt):
        raise ImportRefused(line=number, why=f"its salt is not {2 * SALT_BYTES} hexadecimal digits")
    return read


def _struct(line: bytes, kind: type[_T], number: int) -> _T:
    try:
        return msgspec.convert(read_json(line.decode("utf-8")), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise ImportRefused(line=number, why=str(error)) from error


class _Import:
    """The notes that an import has taken so far, by what became of each."""

    def __init__(self, *, trusted: bool) -> None:
        self._trusted = trusted
        self._screen = TextScreen()
        self._pending_relations: list[tuple[int, str, NoteRelated]] = []
        self.notes = 0
        self.imported: list[str] = []
        self.present: list[str] = []
        self.erased: list[str] = []
        self.quarantined: list[str] = []

    def report(self) -> Imported:
        return Imported(
            notes=self.notes,
            imported=tuple(self.imported),
            present=tuple(self.present),
            erased=tuple(self.erased),
            quarantined=tuple(self.quarantined),
        )

    def add(self, writer: LogWriter, line: _NoteLine, number: int) -> None:
        """Import one note, unless it exists here already or was erased here.

        It is counted, and its id is added to `imported`, `present` or `erased`. Its relations wait
        for `append_relations`. Raise `NoteInvalid` if it could not have been written here, or if
        another note here has its id.
        """
        self.notes += 1
        note = line.note
        _check(line)
        if _was_erased(writer, note):
            self.erased.append(note.id)
            return
        if _is_present(writer, note):
            self.present.append(note.id)
            return
        here = tuple(id for id in note.related_to if _can_be_related(writer, id))
        self._append(writer, msgspec.structs.replace(note, related_to=here), line)
        for relation, to, weight in line.relations:
            record = NoteRelated(to=to, relation=relation, weight=weight)
            self._pending_relations.append((number, note.id, record))
        self.imported.append(note.id)

    def append_relations(self, writer: LogWriter) -> None:
        """Append the relations. They may point forward, so they come after all notes.

        One to a note that was erased here is passed over. Raise `ImportRefused` for one to a note
        that never was here.
        """
        for number, id, record in self._pending_relations:
            try:
                if _can_be_related(writer, record.to):
                    writer.append(record, note=id)
            except NoteInvalid as error:
                raise ImportRefused(line=number, why=str(error)) from error

    def _append(self, writer: LogWriter, note: Note, line: _NoteLine) -> None:
        state = self._state(writer, note, line.state)
        ended, valid_to = supersession(
            writer.db, msgspec.structs.replace(note, valid_to=state.valid_to)
        )
        if state.quarantine:
            ended = []  # A note in quarantine ends no other note until it is released.
        if valid_to != state.valid_to:
            state = msgspec.structs.replace(state, valid_to=valid_to)
        writer.append(NoteRemembered(note=note), note=note.id)
        for at in line.sightings:
            record = NoteSighted(at=at, importance=state.importance, expires_at=state.expires_at)
            writer.append(record, note=note.id)
        for agent, permission in line.shares:
            writer.append(NoteShared(agent_id=agent, permission=permission), note=note.id)
        writer.append(NoteRestored(state=state), note=note.id)
        for id, end in ended:
            writer.append(NoteClosed(valid_to=end, by=note.id), note=id)
        if state.quarantine:
            self.quarantined.append(note.id)

    def _state(self, writer: LogWriter, note: Note, state: NoteState) -> NoteState:
        if self._trusted:
            return state
        stranger = msgspec.structs.replace(note, source_type=SourceType.IMPORT)
        signs, _ = self._screen.look(writer.db, stranger, now=writer.at)
        held = tuple(dict.fromkeys((*state.quarantine, *signs)))
        return msgspec.structs.replace(state, quarantine=held)


def _check(line: _NoteLine) -> None:
    """Raise `NoteInvalid` for a note that could not have been written here."""
    note, state = line.note, line.state
    if not is_note_id(note.id):
        raise NoteInvalid(field="id", why="the id of a note", given=note.id)
    # A note has no `ttl_ms`: it became `expires_at` when the note was remembered.
    kept = set(Note.__struct_fields__).intersection(NewNote.__struct_fields__)
    check_new(NewNote(**{name: getattr(note, name) for name in kept}))
    if not {*note.read_off} <= {*FIELDS_READ_OFF}:
        raise NoteInvalid(field="read_off", why=" and ".join(FIELDS_READ_OFF), given=note.read_off)
    if not 0.0 <= state.importance <= 1.0:
        raise NoteInvalid(field="importance", why="from 0 to 1", given=state.importance)
    if state.deleted_at is not None:
        raise NoteInvalid(field="deleted_at", why="deleted notes are not exported")
    for field in ("valid_to", "expires_at"):
        check_time(field, getattr(state, field))
    for at in line.sightings:
        check_time("sightings", at)
    for reason in state.quarantine:
        if reason not in SIGNS:
            raise NoteInvalid(field="quarantine", why="a known reason", given=reason)
    _check_relations(line)


def _check_relations(line: _NoteLine) -> None:
    for agent, _ in line.shares:
        check_agent(agent, field="shares")
    for relation, to, weight in line.relations:
        check_relation(relation, weight)
        if not is_note_id(to):
            raise NoteInvalid(field="relations", why="ids of notes", given=to)


def _was_erased(writer: LogWriter, note: Note) -> bool:
    if writer.db.execute("SELECT 1 FROM erased WHERE id = ?", (note.id,)).fetchone():
        return True
    row = writer.db.execute("SELECT redacted FROM note WHERE id = ?", (note.id,)).fetchone()
    return row is not None and row[0] > 0 and note.content != REDACTED


def _is_present(writer: LogWriter, note: Note) -> bool:
    """Return True if the note is here.

    Raise `NoteInvalid` if it is, with another owner or content.
    """
    row = writer.db.execute(
        "SELECT body_seq FROM note JOIN state USING (number) WHERE id = ? AND seq_to = ?",
        (note.id, OPEN),
    ).fetchone()
    if row is None:
        return False
    found = note_at(writer.db, row[0])
    if found is None or (found.agent_id, found.content) != (note.agent_id, note.content):
        raise NoteInvalid(field="id", why=f"note {note.id} exists here with another text or owner")
    return True


def _can_be_related(writer: LogWriter, id: str) -> bool:
    """Return True if a note is here, and False if it was erased here.

    Raise `NoteInvalid` otherwise.
    """
    if writer.db.execute("SELECT 1 FROM note WHERE id = ?", (id,)).fetchone():
        return True
    if writer.db.execute("SELECT 1 FROM erased WHERE id = ?", (id,)).fetchone():
        return False
    raise NoteInvalid(field="related_to", why="the id of a note that exists here", given=id)
