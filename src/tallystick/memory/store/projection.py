"""The projections of a memory: tables that follow from its log alone, entry by entry.

Rule 1: the number of a note is the position of the entry that remembered it, so two folds of one
log give the same rows.
Rule 2: what can change about a note is a row of `state` that begins and ends at a position in the
log; "as of T" is `seq_from <= T < seq_to`.
Rule 3: an entry whose body was erased leaves the note's number and id, and no more. To fold an
erased log, and to erase from a folded log, give the same rows.

The index of words (FTS5) gets the terms that ranking counts, encoded in letters and digits. So no
word of a note or a query is ever an operator of FTS5, and both count the same. The definition of a
term is versioned, and `PROJECTION` includes that version.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, assert_never

import msgspec

from tallystick.memory.note import Note, duplicate_digest
from tallystick.memory.recall import words as ranking_terms
from tallystick.memory.receipts.receipt import Receipt, id_of, receipt_hash
from tallystick.memory.store.blocks import BLOCK_SCHEMA, delete_blocks_of
from tallystick.memory.store.records import (
    MemoryRecord,
    ModelChosen,
    NoteArchived,
    NoteClosed,
    NoteDecayed,
    NoteDeleted,
    NoteEmbedded,
    NoteErasedRecord,
    NoteQuarantined,
    NoteRedacted,
    NoteRelated,
    NoteRemembered,
    NoteRestored,
    NoteReviewed,
    NotesExported,
    NotesForgetting,
    NotesForgotten,
    NoteShared,
    NoteSighted,
    NotesRecalled,
    NotesShared,
    NoteState,
    Verdict,
    decode_memory_record,
)

if TYPE_CHECKING:
    from tallystick.memory.store.sqlite import EntryHeader


# The version of the rows. If it differs from the one in a file, the projections are rebuilt.
PROJECTION = f"4 {ranking_terms.VERSION}"
# The end position of a state or share that has not ended: larger than every position.
OPEN = (1 << 62) - 1

PROJECTION_SCHEMA = (
    """CREATE TABLE note (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL, agent_id TEXT NOT NULL,
        memory_type TEXT NOT NULL, scope TEXT NOT NULL, author TEXT, thread_id TEXT,
        position INTEGER, org_id TEXT, created_by TEXT, session_id TEXT, source_type TEXT NOT NULL,
        key TEXT, created_at INTEGER NOT NULL, valid_from INTEGER NOT NULL, chars INTEGER NOT NULL,
        same BLOB, redacted INTEGER NOT NULL
    )""",
    "CREATE UNIQUE INDEX note_id ON note (id)",
    "CREATE INDEX note_same ON note (same) WHERE same IS NOT NULL",
    "CREATE INDEX note_key ON note (agent_id, key) WHERE key IS NOT NULL",
    "CREATE INDEX note_thread ON note (thread_id, position) WHERE thread_id IS NOT NULL",
    "CREATE INDEX note_agent ON note (agent_id, author)",
    # The entries about a note, except the first one, whose position is the note's number.
    "CREATE TABLE later (number INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (number, seq)) "
    "WITHOUT ROWID",
    """CREATE TABLE state (
        number INTEGER NOT NULL, seq_from INTEGER NOT NULL, seq_to INTEGER NOT NULL,
        body_seq INTEGER NOT NULL, importance REAL NOT NULL, valid_to INTEGER, expires_at INTEGER,
        deleted_at INTEGER, state TEXT NOT NULL, quarantine TEXT NOT NULL,
        PRIMARY KEY (number, seq_from)
    ) WITHOUT ROWID""",
    "CREATE TABLE tag (tag TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (tag, number)) "
    "WITHOUT ROWID",
    "CREATE INDEX tag_number ON tag (number)",
    """CREATE TABLE relation (
        number INTEGER NOT NULL, seq_from INTEGER NOT NULL, relation TEXT NOT NULL,
        target TEXT NOT NULL, weight REAL NOT NULL,
        PRIMARY KEY (number, relation, target, seq_from)
    ) WITHOUT ROWID""",
    "CREATE INDEX relation_target ON relation (target)",
    """CREATE TABLE share (
        number INTEGER NOT NULL, agent_id TEXT NOT NULL, seq_from INTEGER NOT NULL,
        seq_to INTEGER NOT NULL, permission TEXT NOT NULL, by TEXT, rule INTEGER,
        PRIMARY KEY (number, agent_id, seq_from)
    ) WITHOUT ROWID""",
    """CREATE TABLE share_rule (
        seq_from INTEGER PRIMARY KEY, seq_to INTEGER NOT NULL, owner TEXT NOT NULL,
        agent_id TEXT NOT NULL, tag TEXT, permission TEXT NOT NULL, by TEXT
    )""",
    "CREATE INDEX share_rule_owner ON share_rule (owner, seq_to)",
    """CREATE TABLE sighting (
        number INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL,
        PRIMARY KEY (number, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE access (
        number INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL,
        PRIMARY KEY (number, seq)
    ) WITHOUT ROWID""",
    "CREATE TABLE erased (number INTEGER PRIMARY KEY, id TEXT NOT NULL, seq INTEGER)",
    "CREATE UNIQUE INDEX erased_id ON erased (id)",
    "CREATE TABLE origin (origin TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE exported (seq INTEGER PRIMARY KEY)",
    "CREATE TABLE forgetting (seq INTEGER PRIMARY KEY)",
    # Receipts of recalls and forgettings, one chain: the position, the id and the hash of each.
    "CREATE TABLE receipt (number INTEGER PRIMARY KEY, seq INTEGER NOT NULL, read_id TEXT NOT NULL,"
    " hash TEXT NOT NULL)",
    "CREATE INDEX receipt_read_id ON receipt (read_id)",
    "CREATE TABLE model "
    "(seq INTEGER PRIMARY KEY, digest TEXT NOT NULL, dimensions INTEGER NOT NULL)",
    # The terms of each note as ranking counts them, and the full-text index over them.
    "CREATE TABLE told (number INTEGER PRIMARY KEY, terms TEXT NOT NULL)",
    "CREATE VIRTUAL TABLE words USING fts5"
    "(terms, content='told', content_rowid='number', columnsize=0, detail=none, "
    "tokenize=\"ascii tokenchars '_'\")",
    *BLOCK_SCHEMA,
)
# Every table above that has rows of its own, with the order in which rows are compared.
PROJECTION_TABLES = {
    "note": "number",
    "later": "number, seq",
    "state": "number, seq_from",
    "tag": "tag, number",
    "relation": "number, relation, target, seq_from",
    "share": "number, agent_id, seq_from",
    "share_rule": "seq_from",
    "sighting": "number, seq",
    "access": "number, seq",
    "erased": "number",
    "origin": "origin",
    "exported": "seq",
    "forgetting": "seq",
    "receipt": "number",
    "model": "seq",
    "told": "number",
}


_STATE = "importance, valid_to, expires_at, deleted_at, state, quarantine"

_Changing = (
    NoteSighted
    | NoteClosed
    | NoteDeleted
    | NoteArchived
    | NoteDecayed
    | NoteQuarantined
    | NoteReviewed
    | NoteRestored
)
_Later = _Changing | NoteRelated | NoteShared | NoteRedacted | NoteErasedRecord | NoteEmbedded


def drop_projections(db: sqlite3.Connection) -> None:
    """Drop every projection table that exists. Vectors are not projections: they stay."""
    for table in ("words", "block", *PROJECTION_TABLES):
        db.execute(f"DROP TABLE IF EXISTS {table}")


def fold(
    db: sqlite3.Connection,
    header: EntryHeader,
    record: MemoryRecord | None,
    *,
    secret: bytes,
    same: bytes | None = None,
) -> None:
    """Apply one entry to the projections. `record` is None if its body was erased.

    `same` is the digest that `duplicate_digest` returns for the note, if the caller has computed it
    already. An entry about an unknown note changes nothing. Raise `sqlite3.Error` for an entry that
    cannot follow those before it, and `msgspec.MsgspecError` if its receipt is none.
    """
    number = _fold_header(db, header)
    if record is None:
        if header.tag == "note.remembered":
            db.execute("INSERT INTO erased VALUES (?, ?, NULL)", (header.seq, header.note))
        return
    match record:
        case NoteRemembered(note=note):
            state = NoteState(
                importance=note.importance, valid_to=note.valid_to, expires_at=note.expires_at
            )
            same = same or duplicate_digest(note, secret=secret)
            _insert(db, header.seq, note, state, seq=header.seq, same=same)
        case ModelChosen(model=model, dimensions=dimensions):
            db.execute("INSERT INTO model VALUES (?, ?, ?)", (header.seq, model, dimensions))
        case NotesRecalled() | NotesForgotten():
            _fold_receipt(db, header.seq, record)
        case NotesShared():
            _share_rule(db, header.seq, record)
        case NotesExported() | NotesForgetting():
            table = "exported" if isinstance(record, NotesExported) else "forgetting"
            db.execute(f"INSERT INTO {table} VALUES (?)", (header.seq,))
        case _:
            if number is not None:
                _fold_later(db, header, record, number)


def _fold_receipt(db: sqlite3.Connection, seq: int, record: NotesRecalled | NotesForgotten) -> None:
    """Store the receipt of a recall or a forgetting, and count each recalled note as read."""
    if isinstance(record, NotesRecalled):
        for id in record.ids:
            _access(db, id, seq, record.at)
    if record.receipt:
        said: Receipt = msgspec.json.decode(record.receipt, type=Receipt)
        db.execute(
            "INSERT INTO receipt VALUES (?, ?, ?, ?)",
            (said.number, seq, id_of(said), receipt_hash(said)),
        )


def _fold_header(db: sqlite3.Connection, header: EntryHeader) -> int | None:
    """Apply what the header alone says, even if the body was erased.

    Return the number of the note that the entry is about. Return None for the entry that remembers
    it, for an entry about no note, and for a note that was erased.
    """
    if header.origin is not None:
        # One act can have several entries with its origin: only the first one is found by it.
        db.execute("INSERT OR IGNORE INTO origin VALUES (?, ?)", (header.origin, header.seq))
    if header.note is None or header.tag == "note.remembered":
        return None
    number = number_of(db, header.note)
    if number is not None:
        db.execute("INSERT INTO later VALUES (?, ?)", (number, header.seq))
    return number


def _fold_later(db: sqlite3.Connection, header: EntryHeader, record: _Later, number: int) -> None:
    """Apply an entry about a note that was remembered before."""
    seq = header.seq
    match record:
        case NoteRelated(to=to, relation=relation, weight=weight):
            row = (number, seq, relation, to, weight)
            db.execute("INSERT INTO relation VALUES (?, ?, ?, ?, ?)", row)
        case NoteShared():
            _share(db, number, seq, record)
        case NoteRedacted(note=note, state=state):
            _drop(db, number)
            db.execute("DELETE FROM erased WHERE number = ?", (number,))
            # Redacted notes have the same text, and are no duplicates of one another.
            _insert(db, number, note, state, seq=seq, same=None)
        case NoteErasedRecord():
            _erase(db, number, header)
        case NoteEmbedded():
            pass
        case _:
            if isinstance(record, NoteSighted):
                db.execute("INSERT INTO sighting VALUES (?, ?, ?)", (number, seq, record.at))
            _change(db, number, seq, _changed_columns(record))


def _changed_columns(record: _Changing) -> dict[str, float | str | None]:
    """Return the columns of `state` that a record sets, with their new values.

    A review that confirms the quarantine sets none.
    """
    match record:
        case NoteSighted(importance=importance, expires_at=expires_at):
            return {"importance": importance, "expires_at": expires_at}
        case NoteClosed(valid_to=valid_to):
            return {"valid_to": valid_to}
        case NoteDeleted(at=at):
            return {"deleted_at": at}
        case NoteArchived(state=became):
            return {"state": became.value}
        case NoteDecayed(importance=importance):
            return {"importance": importance}
        case NoteQuarantined(reasons=reasons):
            return {"quarantine": " ".join(reasons)}
        case NoteRestored(state=state):
            return dict(zip(_STATE.split(", "), _values(state), strict=True))
        case NoteReviewed(verdict=verdict):
            return {"quarantine": ""} if verdict is Verdict.RELEASED else {}
        case _:
            assert_never(record)


def number_of(db: sqlite3.Connection, id: str) -> int | None:
    """Return the number of a note; None if it is unknown or was erased.

    A note whose body is gone from the log still has one until the entry that erased it is folded.
    """
    row = db.execute("SELECT number FROM note WHERE id = ?", (id,)).fetchone()
    if row is None:
        row = db.execute("SELECT number FROM erased WHERE id = ? AND seq IS NULL", (id,)).fetchone()
    return None if row is None else int(row[0])


def note_at(db: sqlite3.Connection, body_seq: int) -> Note | None:
    """Return the note in the entry at `body_seq`, or None.

    None means that there is no such entry, that its body was erased, or that its record holds no
    note. Raise one of `UNREADABLE` if its body cannot be read.
    """
    row = db.execute("SELECT body FROM log WHERE seq = ?", (body_seq,)).fetchone()
    if row is None or row[0] is None:
        return None
    record = decode_memory_record(row[0])
    return record.note if isinstance(record, NoteRemembered | NoteRedacted) else None


# -- words -------------------------------------------------------------------------------------


def index_terms(text: str) -> str:
    """Return the terms of a text as FTS5 gets them: encoded, with spaces between them."""
    whole = ranking_terms.CHARS_MAX
    parts = [text[at : at + whole] for at in range(0, len(text), whole)]
    found = [term for part in parts for term in ranking_terms.terms(part)]
    joined = " ".join(found)
    # Nearly always so, and then no term has to be encoded.
    if joined.isascii() and "".join(found).isalnum():
        return joined
    return " ".join(map(encode_term, found))


def encode_term(term: str) -> str:
    """Encode a term in letters and digits: as it is, or as `_` and its UTF-8 in hexadecimal."""
    return term if term.isascii() and term.isalnum() else f"_{term.encode().hex()}"


def decode_terms(terms: str) -> list[str]:
    """Decode the terms of a text that `index_terms` made, in their order."""
    found = terms.split()
    if "_" not in terms:
        return found
    return [bytes.fromhex(each[1:]).decode() if each[0] == "_" else each for each in found]


# -- rows --------------------------------------------------------------------------------------


def _insert(
    db: sqlite3.Connection,
    number: int,
    note: Note,
    state: NoteState,
    *,
    seq: int,
    same: bytes | None,
) -> None:
    redacted = seq != number
    db.execute(
        "INSERT INTO note VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            number,
            note.id,
            note.agent_id,
            note.memory_type.value,
            note.scope.value,
            note.author,
            note.thread_id,
            note.position,
            note.org_id,
            note.created_by,
            note.session_id,
            note.source_type.value,
            note.key,
            note.created_at,
            note.valid_from,
            len(note.content),
            same,
            seq if redacted else 0,
        ),
    )
    db.execute(
        f"INSERT INTO state (number, seq_from, seq_to, body_seq, {_STATE}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, seq, OPEN, seq, *_values(state)),
    )
    for tag in set(note.tags):
        db.execute("INSERT INTO tag VALUES (?, ?)", (tag, number))
    for target in dict.fromkeys(note.related_to):
        row = (number, seq, "related_to", target, 1.0)
        db.execute("INSERT INTO relation VALUES (?, ?, ?, ?, ?)", row)
    indexed = (number, index_terms(note.content))
    db.execute("INSERT INTO told VALUES (?, ?)", indexed)
    db.execute("INSERT INTO words (rowid, terms) VALUES (?, ?)", indexed)


def _values(state: NoteState) -> tuple[float | str | None, ...]:
    """Return a state as the values of its columns."""
    return (
        state.importance,
        state.valid_to,
        state.expires_at,
        state.deleted_at,
        state.state.value,
        " ".join(state.quarantine),
    )


def _change(
    db: sqlite3.Connection, number: int, seq: int, fields: dict[str, float | str | None]
) -> None:
    """End the open state of a note, and begin one with `fields` changed.

    Do nothing if no field changes, or if the note has no open state because its body is gone.
    """
    row = db.execute(
        f"SELECT body_seq, {_STATE} FROM state WHERE number = ? AND seq_to = ?", (number, OPEN)
    ).fetchone()
    if row is None:
        return
    body_seq, *values = row
    before = dict(zip(_STATE.split(", "), values, strict=True))
    after = {**before, **fields}
    if after == before:
        return
    db.execute("UPDATE state SET seq_to = ? WHERE number = ? AND seq_to = ?", (seq, number, OPEN))
    db.execute(
        f"INSERT INTO state (number, seq_from, seq_to, body_seq, {_STATE}) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, seq, OPEN, body_seq, *after.values()),
    )


def _access(db: sqlite3.Connection, id: str, seq: int, at: int) -> None:
    if (number := number_of(db, id)) is not None:
        db.execute("INSERT OR IGNORE INTO access VALUES (?, ?, ?)", (number, seq, at))


def _share(db: sqlite3.Connection, number: int, seq: int, record: NoteShared) -> None:
    db.execute(
        "UPDATE share SET seq_to = ? WHERE number = ? AND agent_id = ? AND seq_to = ?",
        (seq, number, record.agent_id, OPEN),
    )
    if record.permission is not None:
        rule = None if record.rule is msgspec.UNSET else record.rule
        said = (record.permission.value, record.by, rule)
        row = (number, record.agent_id, seq, OPEN, *said)
        db.execute("INSERT INTO share VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _share_rule(db: sqlite3.Connection, seq: int, record: NotesShared) -> None:
    db.execute(
        "UPDATE share_rule SET seq_to = ? "
        "WHERE owner = ? AND agent_id = ? AND tag IS ? AND seq_to = ?",
        (seq, record.owner, record.agent_id, record.tag, OPEN),
    )
    if record.permission is not None:
        who = (record.owner, record.agent_id, record.tag)
        row = (seq, OPEN, *who, record.permission.value, record.by)
        db.execute("INSERT INTO share_rule VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def _drop(db: sqlite3.Connection, number: int) -> None:
    """Delete the rows with what a note said. Rows that are gone already are no error.

    Those are its terms, state, tags and sightings, the relations that its content named, and the
    block of the index. Shares, accesses and later relations stay.
    """
    delete_blocks_of(db, number)
    row = db.execute("SELECT terms FROM told WHERE number = ?", (number,)).fetchone()
    if row is not None:
        # An FTS5 table with external content needs the old terms to remove them.
        db.execute(
            "INSERT INTO words (words, rowid, terms) VALUES ('delete', ?, ?)", (number, row[0])
        )
    body = db.execute("SELECT min(body_seq) FROM state WHERE number = ?", (number,)).fetchone()
    db.execute("DELETE FROM relation WHERE number = ? AND seq_from = ?", (number, body[0]))
    for table in ("told", "note", "state", "tag", "sighting"):
        db.execute(f"DELETE FROM {table} WHERE number = ?", (number,))


def _erase(db: sqlite3.Connection, number: int, header: EntryHeader) -> None:
    """Delete every row of a note, and record its number, its id and the position of the erasure."""
    _drop(db, number)
    for table in ("relation", "share", "access"):
        db.execute(f"DELETE FROM {table} WHERE number = ?", (number,))
    db.execute("DELETE FROM relation WHERE target = ?", (header.note,))
    db.execute("DELETE FROM erased WHERE number = ?", (number,))
    db.execute("INSERT INTO erased VALUES (?, ?, ?)", (number, header.note, header.seq))
