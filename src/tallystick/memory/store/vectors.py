"""The vectors of notes: what an embedding model made of their windows, stored and erased with them.

The store keeps bytes and does not interpret them. There is one model at a time: vectors of two
models are never compared, so another model's are refused until it is chosen, which deletes the old
ones. The log has a digest of each vector, sealed as the note is, so a changed vector is found. It
also has the vector's position, so a recall as of an earlier position does not use later vectors.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tallystick.memory.errors import ModelMismatch, NoteInvalid, NoteNotFound
from tallystick.memory.recall.scope import Embedder
from tallystick.memory.recall.selection import in_batches
from tallystick.memory.store.projection import OPEN, note_at
from tallystick.memory.store.records import ModelChosen, NoteEmbedded
from tallystick.memory.store.sqlite import SqliteMemory

# Windows: a long note as overlapping pieces that a small model can read whole.
#
# A window has at most 200 pieces of words and shares 40 with the next. The count of pieces is on
# the high side of what the models' own tokenizers count: a model that reads 256 tokens reads all of
# a window. Short notes have one window, the whole text. These rules are as old as the stored
# vectors: a change would make other windows of the same note, and needs a version of them.


WINDOW_PIECES = 200
OVERLAP_PIECES = 40

# Runs of plain letters and digits, five at a time; any other character that is no space, alone.
_PIECE = re.compile(r"[A-Za-z0-9]{1,5}|[^A-Za-z0-9\s]")


def windows(text: str) -> tuple[tuple[int, int], ...]:
    """Return where the windows of a text begin and end, in characters.

    A text of at most 200 pieces is one window, also an empty one.
    """
    # No piece is shorter than a character: most notes need no counting.
    if len(text) <= WINDOW_PIECES:
        return ((0, len(text)),)
    starts = [found.start() for found in _PIECE.finditer(text)]
    if len(starts) <= WINDOW_PIECES:
        return ((0, len(text)),)
    step = WINDOW_PIECES - OVERLAP_PIECES
    made: list[tuple[int, int]] = []
    for first in range(0, len(starts) - OVERLAP_PIECES, step):
        last = first + WINDOW_PIECES
        begin = 0 if first == 0 else _word_start(text, starts[first], made[-1][1])
        made.append((begin, len(text) if last >= len(starts) else starts[last]))
    return tuple(made)


def _word_start(text: str, at: int, end: int) -> int:
    """Return the start of the next word from `at`, or `at` itself if none starts before `end`.

    Up to `end` the text is shared with the window before, so nothing is lost.
    """
    if text[at - 1].isspace():
        return at
    space = re.compile(r"\s+").search(text, at, end)
    return at if space is None else space.end()


_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIMENSIONS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vector of a window, and its token vectors if the model gives them, as bytes."""

    vector: bytes
    tokens: bytes | None = None


def model_of(memory: SqliteMemory) -> tuple[str, int] | None:
    """Return the digest and dimensions of the store's model, or None if none was chosen."""
    with memory.reading() as db:
        return model_at(db, OPEN)


def choose_model(
    memory: SqliteMemory, model: str, *, dimensions: int, replace: bool = False
) -> int:
    """Choose the model whose vectors the store keeps; return the position of the entry about it.

    Choosing the present model again writes nothing. Another one, or other dimensions, needs
    `replace`, and deletes all vectors; without it, raise `ModelMismatch`. Raise `NoteInvalid` if
    `model` is not a SHA-256 in hex, or if `dimensions` is not from 1 to 65,536.
    """
    if not _DIGEST.fullmatch(model):
        raise NoteInvalid(field="model", why="the SHA-256 of a model in hex", given=model)
    if not 1 <= dimensions <= _DIMENSIONS_MAX:
        raise NoteInvalid(
            field="dimensions", why=f"from 1 to {_DIMENSIONS_MAX:,}", given=dimensions
        )
    with memory.writing() as writer:
        found = writer.db.execute(
            "SELECT seq, digest, dimensions FROM model ORDER BY seq DESC LIMIT 1"
        )
        row = found.fetchone()
        if row is not None and row[1:] == (model, dimensions):
            return int(row[0])
        if row is not None and not replace:
            raise ModelMismatch(found=row[1], given=model)
        writer.db.execute("DELETE FROM vector")
        seq, _ = writer.append(ModelChosen(model=model, dimensions=dimensions))
        return seq


def keep_vectors(
    memory: SqliteMemory, made: Iterable[tuple[str, Sequence[Vectors]]], *, model: str
) -> int:
    """Store the vectors of notes, one for each window in order. Return how many notes got them.

    A note that has vectors keeps those it has. Nothing is stored if an error is raised:
    `ModelMismatch` for another model than the store's; `NoteNotFound` for a note that is not here;
    `NoteInvalid` if no model was chosen, or if the number of vectors is not that of the windows.
    """
    kept = 0
    with memory.writing() as writer:
        found = model_at(writer.db, OPEN)
        if found is None:
            raise NoteInvalid(field="model", why="choose the store's model first")
        if found[0] != model:
            raise ModelMismatch(found=found[0], given=model)
        for id, vectors in made:
            row = writer.db.execute(
                "SELECT number, body_seq FROM note JOIN state USING (number) "
                "WHERE id = ? AND seq_to = ?",
                (id, OPEN),
            ).fetchone()
            note = None if row is None else note_at(writer.db, row[1])
            if row is None or note is None:
                raise NoteNotFound(id=id)
            if len(vectors) != len(windows(note.content)):
                why = f"one for each of the {len(windows(note.content))} windows of {id}"
                raise NoteInvalid(field="vectors", why=why, given=len(vectors))
            if writer.db.execute("SELECT 1 FROM vector WHERE number = ?", (row[0],)).fetchone():
                continue
            record = NoteEmbedded(
                model=model,
                vectors=tuple(_digest(each.vector) for each in vectors),
                tokens=tuple(
                    None if each.tokens is None else _digest(each.tokens) for each in vectors
                ),
            )
            seq, _ = writer.append(record, note=id)
            writer.db.executemany(
                "INSERT INTO vector VALUES (?, ?, ?, ?, ?)",
                [
                    (row[0], window, seq, each.vector, each.tokens)
                    for window, each in enumerate(vectors)
                ],
            )
            kept += 1
    return kept


_WITHOUT_VECTORS = (
    "FROM note JOIN state USING (number) WHERE seq_to = ? AND redacted = 0 "
    "AND NOT EXISTS (SELECT 1 FROM vector WHERE vector.number = note.number)"
)


def count_notes_without_vectors(memory: SqliteMemory) -> int:
    """Return how many notes have no vectors. Redacted notes need none and are not counted."""
    with memory.reading() as db:
        return int(db.execute(f"SELECT count(*) {_WITHOUT_VECTORS}", (OPEN,)).fetchone()[0])


def notes_without_vectors(memory: SqliteMemory, *, limit: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return up to `limit` ids of notes without vectors, each with the texts of its windows.

    The oldest are first. Redacted notes need none and are left out.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    with memory.reading() as db:
        rows = db.execute(
            f"SELECT id, body_seq {_WITHOUT_VECTORS} ORDER BY note.number LIMIT ?",
            (OPEN, limit),
        ).fetchall()
        for id, body_seq in rows:
            note = note_at(db, body_seq)
            if note is not None:
                cut = windows(note.content)
                found.append((id, tuple(note.content[begin:end] for begin, end in cut)))
    return found


def model_at(db: sqlite3.Connection, seq: int) -> tuple[str, int] | None:
    """Return the digest and dimensions of the model as of a position, or None before any."""
    row = db.execute(
        "SELECT digest, dimensions FROM model WHERE seq <= ? ORDER BY seq DESC LIMIT 1", (seq,)
    ).fetchone()
    return None if row is None else (row[0], row[1])


def vectors_of(
    db: sqlite3.Connection, seq: int, numbers: Collection[int]
) -> dict[int, tuple[bytes, ...]]:
    """Return the vectors of some notes as of a position, by the number of the note.

    Those of a note are in the order of its windows. Notes without vectors at that position are left
    out. The result is empty if no model was chosen by then, or if it was replaced since.
    """
    found: dict[int, tuple[bytes, ...]] = {}
    if _is_latest_model(db, seq):
        select = f"SELECT number, vector FROM vector WHERE seq <= {int(seq)} AND number"
        for number, vector in in_batches(db, select, numbers, order="number, window"):
            found[number] = (*found.get(number, ()), vector)
    return found


def tokens_at(db: sqlite3.Connection, seq: int, number: int) -> bytes | None:
    """Return the token vectors of all windows of a note as of a position, one after the other.

    Return None if the note was not embedded by then, if one of its windows has none, or if the
    model of that position was replaced since.
    """
    if not _is_latest_model(db, seq):
        return None
    rows = db.execute(
        "SELECT tokens FROM vector WHERE number = ? AND seq <= ? ORDER BY window", (number, seq)
    )
    parts = [tokens for (tokens,) in rows]
    return b"".join(parts) if parts and None not in parts else None


def vector_rows_at(db: sqlite3.Connection, seq: int) -> Iterator[tuple[int, bytes]]:
    """Yield each vector as of a position with the number of its note, window by window.

    Yield nothing if no model was chosen by that position, or if it was replaced since.
    """
    if _is_latest_model(db, seq):
        yield from db.execute(
            "SELECT number, vector FROM vector WHERE seq <= ? ORDER BY number, window", (seq,)
        )


def _is_latest_model(db: sqlite3.Connection, seq: int) -> bool:
    """Return True if no model was chosen after a position, and one was by then.

    The vectors of earlier models are deleted, so there are none for an earlier position.
    """
    chosen, latest = db.execute(
        "SELECT (SELECT max(seq) FROM model WHERE seq <= ?), (SELECT max(seq) FROM model)", (seq,)
    ).fetchone()
    return chosen is not None and chosen == latest


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Notes of one transaction: vectors that were stored before a crash stay.
_BATCH = 200


def embed_missing(
    memory: SqliteMemory, embedder: Embedder, *, dimensions: int, replace: bool = False
) -> int:
    """Embed every note that has no vectors yet, window by window; redacted notes are left out.

    Return how many were embedded. They are stored 200 at a time: an error leaves earlier ones.

    Raise `ModelMismatch` if the store has another model, or the same with other dimensions. With
    `replace`, delete its vectors instead, and embed every note again; with the store's own model
    `replace` changes nothing. Errors of `choose_model` and of the embedder are passed on. Raise
    `NoteNotFound` if a note is erased by another process while it is embedded.
    """
    if model_of(memory) != (embedder.digest, dimensions):
        choose_model(memory, embedder.digest, dimensions=dimensions, replace=replace)
    count = 0
    while found := notes_without_vectors(memory, limit=_BATCH):
        made = [(id, [_vectors(embedder, each) for each in texts]) for id, texts in found]
        count += keep_vectors(memory, made, model=embedder.digest)
    return count


def _vectors(embedder: Embedder, text: str) -> Vectors:
    made = embedder.embed(text)
    return Vectors(made.vector, made.tokens)
