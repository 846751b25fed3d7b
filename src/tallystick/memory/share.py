"""Sharing: what others may do with a note, and what ties notes together.

A private note is its owner's, a public or global one is everybody's to read. Only a shared one has
others named, each with a permission; a higher one satisfies every lower one.
"""

from __future__ import annotations

import sqlite3

from tallystick.memory.errors import MemoryPermissionDenied, NoteInvalid, NoteNotFound
from tallystick.memory.note import NoteScope, Permission, check_agent
from tallystick.memory.projection_schema import OPEN
from tallystick.memory.records import NoteRelated, NoteShared
from tallystick.memory.sqlite import SqliteMemory

__all__ = ["check_may", "check_relation", "held_permission", "relate", "share"]

_RELATION_CHARS_MAX = 64


def share(
    memory: SqliteMemory,
    id: str,
    *,
    actor: str | None,
    with_agent: str,
    permission: Permission | None,
) -> int:
    """Let somebody do so much with a shared note; None takes it back. Returns the place."""
    check_agent(with_agent, field="with_agent")
    with memory.writing() as pen:
        check_may(pen.db, id, actor=actor, needs=Permission.SHARE)
        (scope,) = pen.db.execute("SELECT scope FROM note WHERE id = ?", (id,)).fetchone()
        if scope != NoteScope.SHARED:
            raise NoteInvalid(field="scope", why="only a note of scope shared is", given=scope)
        record = NoteShared(agent_id=with_agent, permission=permission, by=actor)
        seq, _ = pen.append(record, note=id)
        return seq


def relate(
    memory: SqliteMemory,
    id: str,
    to: str,
    *,
    actor: str | None,
    relation: str = "related_to",
    weight: float = 1.0,
) -> int:
    """Tie a note to another one that the actor can see. Returns the place."""
    check_relation(relation, weight)
    with memory.writing() as pen:
        check_may(pen.db, id, actor=actor, needs=Permission.WRITE)
        check_may(pen.db, to, actor=actor, needs=Permission.READ)
        record = NoteRelated(to=to, relation=relation, weight=weight)
        seq, _ = pen.append(record, note=id)
        return seq


def check_relation(relation: str, weight: float) -> None:
    """Refuse what is no name of a relation, or no weight."""
    if not relation.isidentifier() or len(relation) > _RELATION_CHARS_MAX:
        raise NoteInvalid(field="relation", why="one word", given=relation)
    if not 0.0 <= weight <= 1.0:
        raise NoteInvalid(field="weight", why="from 0 to 1", given=weight)


def check_may(db: sqlite3.Connection, id: str, *, actor: str | None, needs: Permission) -> None:
    """Refuse an actor who may not. None is the owner of the file, who may.

    A note that the actor may not even see is not found: it looks like one that is not there.
    """
    held = held_permission(db, id, actor)
    if held is None:
        raise NoteNotFound(id=id)
    if not held.satisfies(needs):
        raise MemoryPermissionDenied(id=id, actor=str(actor), needs=needs.value)


def held_permission(db: sqlite3.Connection, id: str, actor: str | None) -> Permission | None:
    """What an actor may do with a note now, None if not even see it."""
    row = db.execute("SELECT number, agent_id, scope FROM note WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    number, owner, scope = row
    if actor is None or actor == owner:
        return Permission.ADMIN
    if scope in (NoteScope.PUBLIC, NoteScope.GLOBAL):
        return Permission.READ
    shared = db.execute(
        "SELECT permission FROM share WHERE number = ? AND agent_id = ? AND seq_to = ?",
        (number, actor, OPEN),
    ).fetchone()
    return None if shared is None or scope != NoteScope.SHARED else Permission(shared[0])
