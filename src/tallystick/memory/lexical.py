"""The lexical lane of a store: which notes have a word of a query, from the index.

Every word is spelled in letters and digits and quoted: a query cannot be read as anything but
words. A word that is in a large part of a large store finds nearly every note and says little, so
it is left out, and the answer says which were. How many notes have a word is counted up to the
place that is asked about: the same candidates come out whatever is remembered later.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.memory.projection import spelled
from tallystick.memory.sqlite import SqliteMemory

__all__ = ["GUARD_NOTES_MIN", "GUARD_SHARE_MAX", "Candidates", "candidates"]

GUARD_NOTES_MIN = 50_000
GUARD_SHARE_MAX = 0.02
_TERMS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Numbers of notes that have one of `terms`. `dropped` are terms that too many notes have.

    `frequencies` says how many notes had each term, of `notes` that there were.
    """

    numbers: tuple[int, ...]
    terms: tuple[str, ...]
    dropped: tuple[str, ...]
    frequencies: dict[str, int]
    notes: int


def candidates(
    memory: SqliteMemory,
    terms: Sequence[str],
    *,
    as_of: int | None = None,
    share_max: float = GUARD_SHARE_MAX,
    notes_min: int = GUARD_NOTES_MIN,
) -> Candidates:
    """Look words up, terms as `terms.terms` makes them; erased notes are not found.

    In a store of more than `notes_min` notes, terms of more than `share_max` of them are left out;
    if all are, the rarest is kept. Whether a note may be seen is not asked here.
    """
    asked = tuple(dict.fromkeys(terms))[:_TERMS_MAX]
    with memory.reading() as db:
        seq = memory.resolve(as_of)
        notes = _notes_up_to(db, seq)
        frequencies = {term: _frequency(db, term, seq) for term in asked}
        known = [term for term in asked if frequencies[term]]
        chosen = known
        if notes > notes_min:
            chosen = [term for term in known if frequencies[term] <= share_max * notes]
            if known and not chosen:
                chosen = [min(known, key=lambda term: (frequencies[term], term))]
        numbers: tuple[int, ...] = ()
        if chosen:
            rows = db.execute(
                "SELECT rowid FROM words WHERE words MATCH ? AND rowid <= ? ORDER BY rowid",
                (" OR ".join(map(_quoted, chosen)), seq),
            )
            numbers = tuple(number for (number,) in rows)
    return Candidates(
        numbers=numbers,
        terms=tuple(chosen),
        dropped=tuple(term for term in known if term not in chosen),
        frequencies=frequencies,
        notes=notes,
    )


def _quoted(term: str) -> str:
    return f'"{spelled(term)}"'


def _frequency(db: sqlite3.Connection, term: str, seq: int) -> int:
    question = "SELECT count(*) FROM words WHERE words MATCH ? AND rowid <= ?"
    (count,) = db.execute(question, (_quoted(term), seq)).fetchone()
    return int(count)


def _notes_up_to(db: sqlite3.Connection, seq: int) -> int:
    # Erased ones are counted: what is left out must not depend on what is erased later.
    (count,) = db.execute(
        "SELECT (SELECT count(*) FROM note INDEXED BY note_agent WHERE number <= :seq) + "
        "(SELECT count(*) FROM erased WHERE number <= :seq)",
        {"seq": seq},
    ).fetchone()
    return int(count)
