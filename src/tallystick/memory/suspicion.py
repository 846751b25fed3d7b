"""Quarantine: hold back notes that look like poison, with reasons, until a person reviews them.

A note is data and can grant nothing, so quarantine is not what keeps a run safe; it keeps texts of
strangers out of the ranking. Each sign has a weight; at 0.5 a note is held back. It is stored
whole, and a review, which the log records, releases or confirms it.

No sign finds a note that reads like any other and is wrong. Statistics of embeddings do not find it
either, so there is no such sign here.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tallystick.memory.errors import NoteInvalid, NoteNotFound
from tallystick.memory.note import Note, SourceType
from tallystick.memory.store.projection import OPEN, note_at
from tallystick.memory.store.records import NoteClosed, NoteReviewed, Verdict
from tallystick.memory.store.sqlite import LogWriter, SqliteMemory

QUARANTINE_AT = 0.5
SIGNS = {
    "importance_outlier": 0.3,
    "length_outlier": 0.3,
    "burst": 0.4,
    "injection_phrase": 0.5,
    "hidden_characters": 0.5,
    "self_referential": 0.6,
}

_SAMPLE_MIN = 20
_SAMPLE_MAX = 200
_IMPORTANCE_OFF = 0.4
_LENGTH_TIMES_MAX = 5.0
_LENGTH_TIMES_MIN = 0.1
_BURST_MS = 1_000
_BURST_MAX = 50
_READ_CHARS_MAX = 100_000

# Sources that an outsider may have written, and that no person has read.
_INDIRECT = frozenset(
    {SourceType.TOOL_OUTPUT, SourceType.RETRIEVAL, SourceType.IMPORT, SourceType.MODEL_RESPONSE}
)
# At most three words between fixed words: no text makes the search slow.
_W = r"(?:\W{1,4}\w{1,20}){0,3}\W{1,4}"
_INJECTION = re.compile(
    rf"\b(?:ignore|disregard|forget|override|bypass){_W}(?:instructions?|prompts?|rules|guidelines)\b"
    r"|\byou are now (?:an?|the|in)\b"
    r"|\b(?:new|updated|real) system prompt\b"
    r"|\bsystem prompt (?:is|was|has)\b"
    rf"|\b(?:reveal|print|repeat|show){_W}(?:system prompt|api keys?|passwords?|secrets?)\b"
    r"|\bdo not (?:tell|inform|alert) the (?:user|human|operator)\b"
    r"|<\|?(?:im_start|im_end|system|endoftext)\|?>|\[/?inst\]",
)
_SELF = re.compile(
    rf"\b(?:remember|store|save|memori[sz]e|keep){_W}"
    r"(?:for (?:all )?future|always|permanently|from now on)\b"
    rf"|\b(?:in|for) (?:all )?future (?:conversations|sessions|queries|tasks|requests)\b"
    rf"|\bwhenever{_W}(?:asked?|asks|recall\w*|retriev\w*)\b"
    r"|\bthis (?:memory|note|record) (?:must|should|overrides|supersedes|takes)\b"
    r"|\b(?:as|when) an? (?:ai|agent|assistant),? you (?:must|should|will)\b",
)
# Every text that a pattern finds has one of these, and most texts have none: a cheap test first.
_WORDS_OF_INJECTION = (
    *("ignore", "disregard", "forget", "override", "bypass", "you are now", "system", "reveal"),
    *("print", "repeat", "show", "do not", "<|", "<im_", "<endof", "[inst]", "[/inst]"),
)
_WORDS_OF_SELF = ("future", "always", "permanently", "from now on", "whenever", "this ", " you ")
# Invisible characters that change how others are read: overrides of direction, tags.
_HIDDEN = re.compile("[\u202a-\u202e\u2066-\u2069\u200b\u2060\U000e0000-\U000e007f]")


class Screening(Protocol):
    """A check of notes before they are written.

    `look` is called once for each new note, inside the transaction, and not for one that is only
    sighted; `now` is the time of that. It returns signs and their sum. With any sign the note is
    held back.
    """

    def look(
        self, db: sqlite3.Connection, note: Note, *, now: int
    ) -> tuple[tuple[str, ...], float]: ...


class TextScreen:
    """A screening of the text alone. For imports, where the habits of an agent mean nothing."""

    def look(
        self, db: sqlite3.Connection, note: Note, *, now: int
    ) -> tuple[tuple[str, ...], float]:
        """Return the signs of the text and their sum; no signs, but the sum, if that is below 0.5.

        Only the first 100,000 characters are read.
        """
        return _verdict(_text_signs(note))


@dataclass(slots=True)
class _Habit:
    """Sums over the last notes of an agent. `recent` counts those of the last second."""

    count: int
    importance: float
    chars: float
    recent: int


class Screen:
    """A screening of the text, and of how it differs from its agent's habits.

    For one transaction.
    """

    def __init__(self) -> None:
        self._habits: dict[str, _Habit] = {}

    def look(
        self, db: sqlite3.Connection, note: Note, *, now: int
    ) -> tuple[tuple[str, ...], float]:
        """Return the signs of text and habits and their sum; no signs, but the sum, if below 0.5.

        Only the first 100,000 characters are read. Habits are those of the agent's last 200 notes,
        read at its first note; with fewer than 20 there are none.
        """
        habit = self._habits.get(note.agent_id)
        if habit is None:
            habit = self._habits[note.agent_id] = _habit(db, note.agent_id, now)
        signs = _text_signs(note)
        if habit.count >= _SAMPLE_MIN:
            mean = habit.chars / habit.count
            if abs(note.importance - habit.importance / habit.count) > _IMPORTANCE_OFF:
                signs.append("importance_outlier")
            if not mean * _LENGTH_TIMES_MIN <= len(note.content) <= mean * _LENGTH_TIMES_MAX:
                signs.append("length_outlier")
        # `recent` counts notes from before this transaction: those of one call are one act. An
        # agent that loads its own notes is no stranger, so only indirect sources count.
        if habit.recent > _BURST_MAX and note.source_type in _INDIRECT:
            signs.append("burst")
        return _verdict(signs)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A note in quarantine that waits for a review."""

    note: Note
    reasons: tuple[str, ...]
    seq: int


def review_queue(memory: SqliteMemory) -> list[Held]:
    """Return the notes in quarantine, the oldest first. Deleted ones are left out."""
    with memory.reading() as db:
        rows = db.execute(
            "SELECT seq_from, body_seq, quarantine FROM state WHERE seq_to = ? "
            "AND quarantine != '' AND deleted_at IS NULL ORDER BY number",
            (OPEN,),
        ).fetchall()
        held: list[Held] = []
        for seq, body_seq, reasons in rows:
            note = note_at(db, body_seq)
            if note is not None:
                held.append(Held(note=note, reasons=tuple(reasons.split()), seq=seq))
        return held


def review(memory: SqliteMemory, id: str, verdict: Verdict, *, by: str) -> int:
    """Release a note from quarantine, or confirm that it stays. Return the position of the verdict.

    A released note then counts among those of its key, as it would have at once: it ends earlier
    ones, and a later one ends it. Raise `NoteNotFound` if there is no such note, and `NoteInvalid`
    if it is not in quarantine or `by` is blank.
    """
    if not by.strip():
        raise NoteInvalid(field="by", why="who reviews is part of the record")
    with memory.writing() as writer:
        row = writer.db.execute(
            "SELECT quarantine FROM note JOIN state USING (number) WHERE id = ? AND seq_to = ?",
            (id, OPEN),
        ).fetchone()
        if row is None:
            raise NoteNotFound(id=id)
        if not row[0]:
            raise NoteInvalid(field="id", why="the id of a note in quarantine", given=id)
        seq, _ = writer.append(NoteReviewed(verdict=verdict, by=by), note=id)
        if verdict is Verdict.RELEASED:
            _apply_supersession(writer, id)
        return seq


def _apply_supersession(writer: LogWriter, id: str) -> None:
    """End earlier notes with the key of a released note, and itself where a later one begins.

    Nothing is done for a deleted note, or one without a key.
    """
    from tallystick.memory.remember import supersession  # It imports this module.

    body_seq, valid_to, deleted_at = writer.db.execute(
        "SELECT body_seq, valid_to, deleted_at FROM note JOIN state USING (number) "
        "WHERE id = ? AND seq_to = ?",
        (id, OPEN),
    ).fetchone()
    note = note_at(writer.db, body_seq)
    if note is None or deleted_at is not None:
        return
    note = msgspec.structs.replace(note, valid_to=valid_to)
    ended, end = supersession(writer.db, note)
    for other, at in ended:
        if other != id:
            writer.append(NoteClosed(valid_to=at, by=id), note=other)
    if end is not None and end != valid_to:
        (following,) = writer.db.execute(
            "SELECT id FROM note JOIN state USING (number) WHERE agent_id = ? AND key = ? "
            "AND valid_from = ? AND seq_to = ? AND deleted_at IS NULL AND quarantine = '' "
            "ORDER BY number DESC LIMIT 1",
            (note.agent_id, note.key, end, OPEN),
        ).fetchone()
        writer.append(NoteClosed(valid_to=end, by=following), note=id)


def _verdict(signs: list[str]) -> tuple[tuple[str, ...], float]:
    score = round(sum(SIGNS[sign] for sign in signs), 6)
    return (tuple(signs), score) if score >= QUARANTINE_AT else ((), score)


def _text_signs(note: Note) -> list[str]:
    text = note.content[:_READ_CHARS_MAX]
    small = text.lower()
    signs: list[str] = []
    if any(word in small for word in _WORDS_OF_INJECTION) and _INJECTION.search(small):
        signs.append("injection_phrase")
    if not text.isascii() and _HIDDEN.search(text):
        signs.append("hidden_characters")
    if note.source_type in _INDIRECT and _is_self_referential(small):
        signs.append("self_referential")
    return signs


def _is_self_referential(small: str) -> bool:
    said = any(word in small for word in _WORDS_OF_SELF)
    return said and _SELF.search(small) is not None


def _habit(db: sqlite3.Connection, agent_id: str, now: int) -> _Habit:
    rows = db.execute(
        "SELECT importance, chars, created_at FROM (SELECT number, chars, created_at FROM note "
        "WHERE agent_id = ? ORDER BY number DESC LIMIT ?) JOIN state USING (number) "
        "WHERE seq_to = ?",
        (agent_id, _SAMPLE_MAX, OPEN),
    ).fetchall()
    return _Habit(
        count=len(rows),
        importance=sum(row[0] for row in rows),
        chars=sum(row[1] for row in rows),
        recent=sum(now - _BURST_MS < row[2] <= now for row in rows),
    )
