"""Share notes with other agents, and relate notes to each other.

Rule 1: a private or shared note is seen by its owner and by the agents it is shared with; a public
or global one by everybody. The owner of the file sees all.
Rule 2: each permission is an entry of the log about one note, so that a recall as of an earlier
position obeys the permissions of then.
Rule 3: the notes of an agent can also be shared by a rule: all of them, or those with a tag. A rule
holds for later notes too, and each of them gets its own entry when it is remembered.
Rule 4: a relation has a type and a weight. Recording it again replaces the weight, and the weight 0
takes it back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tallystick.memory.errors import MemoryPermissionDenied, NoteInvalid, NoteNotFound
from tallystick.memory.note import (
    SUBJECT_TAG,
    NoteScope,
    Permission,
    check_agent,
    check_tag,
)
from tallystick.memory.store.projection import OPEN
from tallystick.memory.store.records import NoteRelated, NoteShared, NotesShared
from tallystick.memory.store.sqlite import LogWriter, SqliteMemory

_RELATION_CHARS_MAX = 64


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A permission that an agent has on notes of another one, as of a position.

    `id` is the note; None for a rule, which is about all notes of `owner`, or those with `tag`.
    `by` gave it: None is the owner of the file. `rule` is the position of the rule that a note's
    permission follows from, if it follows from one.
    """

    owner: str
    agent_id: str
    permission: Permission
    seq: int
    id: str | None = None
    tag: str | None = None
    by: str | None = None
    rule: int | None = None


class Relation(msgspec.Struct, frozen=True, kw_only=True):
    """A relation between two notes, by their ids."""

    source: str
    relation: str
    target: str
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRule:
    """An open rule: notes of an owner are shared with an agent as they are remembered."""

    seq: int
    agent_id: str
    permission: Permission
    by: str | None


def share(
    memory: SqliteMemory,
    id: str,
    *,
    actor: str | None,
    with_agent: str,
    permission: Permission | None,
) -> int:
    """Give an agent a permission on a note; None takes it back. Return the position.

    `actor` None is the owner of the file. Raise `NoteNotFound` or `MemoryPermissionDenied` if the
    actor may not share it. Raise `NoteInvalid` for a name that no agent can have, for the note's
    own agent, and if there is nothing to take back.
    """
    check_agent(with_agent, field="with_agent")
    with memory.writing() as writer:
        check_may(writer.db, id, actor=actor, needs=Permission.SHARE)
        number, owner = writer.db.execute(
            "SELECT number, agent_id FROM note WHERE id = ?", (id,)
        ).fetchone()
        if with_agent == owner:
            raise NoteInvalid(field="with_agent", why="another agent; it is its own", given=owner)
        if permission is None and _open_share(writer.db, number, with_agent) is None:
            raise NoteInvalid(
                field="with_agent", why="one that the note is shared with", given=with_agent
            )
        record = NoteShared(agent_id=with_agent, permission=permission, by=actor)
        seq, _ = writer.append(record, note=id)
        return seq


def share_notes(
    memory: SqliteMemory,
    *,
    owner: str,
    actor: str | None,
    with_agent: str,
    permission: Permission | None,
    tag: str | None = None,
) -> int:
    """Share all notes of `owner` with an agent, or those with a tag, and later ones too.

    None as `permission` takes the rule back, and what notes have by it. A note that was shared with
    the agent by itself keeps its own permission. Return how many notes this changed, in one
    transaction. Deleted notes are among them.

    Raise `MemoryPermissionDenied` if the actor is neither `owner` nor the owner of the file. Raise
    `NoteInvalid` for a name or a tag that cannot be one, for a `subject:` tag, since the rule would
    outlive the erasure of the subject, and if there is no such rule to take back.
    """
    check_agent(with_agent, field="with_agent")
    check_agent(owner, field="owner")
    if tag is not None:
        check_tag(tag)
        if tag.startswith(SUBJECT_TAG):
            why = "another tag: a rule is kept for ever, and subjects can be erased"
            raise NoteInvalid(field="tag", why=why, given=tag)
    if actor not in (None, owner):
        raise MemoryPermissionDenied(id=f"notes of {owner}", actor=str(actor), needs="share")
    if with_agent == owner:
        raise NoteInvalid(field="with_agent", why="another agent; they are its own", given=owner)
    with memory.writing() as writer:
        old = _open_rule(writer.db, owner=owner, agent_id=with_agent, tag=tag)
        if permission is None and old is None:
            raise NoteInvalid(field="with_agent", why="one with such a rule", given=with_agent)
        changed = {} if old is None else _end_rule(writer, old, by=actor)
        record = NotesShared(
            owner=owner, agent_id=with_agent, permission=permission, tag=tag, by=actor
        )
        seq, _ = writer.append(record)
        if permission is not None:
            given = NoteShared(agent_id=with_agent, permission=permission, by=actor, rule=seq)
            for number, id in _notes_of(writer.db, owner, tag):
                if _open_share(writer.db, number, with_agent) is None:
                    writer.append(given, note=id)
                    changed[id] = None
        return len(changed)


def shares_at(
    memory: SqliteMemory, *, reader: str | None, seq: int, id: str | None = None
) -> tuple[Share, ...]:
    """Return the permissions and rules as of a position that concern a reader, in their order.

    They concern the owner of the note, the agent that has the permission, and the owner of the
    file, who is the reader None. With `id`, return those of one note.
    """
    where = "seq_from <= :seq AND :seq < seq_to"
    only = "" if reader is None else " AND (owner = :reader OR share.agent_id = :reader)"
    given = {"seq": seq, "reader": reader, "id": id}
    with memory.reading() as db:
        rows = db.execute(
            "SELECT note.agent_id AS owner, share.agent_id, permission, seq_from, id, NULL, by, "
            f"rule FROM share JOIN note USING (number) WHERE {where}{only}"
            f"{'' if id is None else ' AND id = :id'}",
            given,
        ).fetchall()
        if id is None:
            rows += db.execute(
                "SELECT owner, share.agent_id, permission, seq_from, NULL, tag, by, NULL "
                f"FROM share_rule AS share WHERE {where}{only}",
                given,
            ).fetchall()
    found = [
        Share(
            owner=owner,
            agent_id=agent_id,
            permission=Permission(permission),
            seq=begin,
            id=note,
            tag=tag,
            by=by,
            rule=rule,
        )
        for owner, agent_id, permission, begin, note, tag, by, rule in rows
    ]
    return tuple(sorted(found, key=lambda each: (each.seq, each.id or "")))


def rules_for(db: sqlite3.Connection, *, owner: str, tags: Sequence[str]) -> list[ShareRule]:
    """Return the open rules by which a new note is shared: one for each agent, the widest."""
    rows = db.execute(
        "SELECT seq_from, agent_id, permission, by, tag FROM share_rule "
        "WHERE owner = ? AND seq_to = ? ORDER BY seq_from",
        (owner, OPEN),
    )
    best: dict[str, ShareRule] = {}
    for seq, agent_id, permission, by, tag in rows:
        rule = ShareRule(seq=seq, agent_id=agent_id, permission=Permission(permission), by=by)
        before = best.get(agent_id)
        if (tag is None or tag in tags) and (
            before is None or rule.permission.satisfies(before.permission)
        ):
            best[agent_id] = rule
    return list(best.values())


def _notes_of(db: sqlite3.Connection, owner: str, tag: str | None) -> list[tuple[int, str]]:
    tagged = "" if tag is None else " AND number IN (SELECT number FROM tag WHERE tag = :tag)"
    return db.execute(
        f"SELECT number, id FROM note WHERE agent_id = :owner{tagged} ORDER BY number",
        {"owner": owner, "tag": tag},
    ).fetchall()


def _open_rule(
    db: sqlite3.Connection, *, owner: str, agent_id: str, tag: str | None
) -> ShareRule | None:
    row = db.execute(
        "SELECT seq_from, permission, by FROM share_rule "
        "WHERE owner = ? AND agent_id = ? AND tag IS ? AND seq_to = ?",
        (owner, agent_id, tag, OPEN),
    ).fetchone()
    if row is None:
        return None
    return ShareRule(seq=row[0], agent_id=agent_id, permission=Permission(row[1]), by=row[2])


def _open_share(db: sqlite3.Connection, number: int, agent_id: str) -> str | None:
    row = db.execute(
        "SELECT permission FROM share WHERE number = ? AND agent_id = ? AND seq_to = ?",
        (number, agent_id, OPEN),
    ).fetchone()
    return None if row is None else str(row[0])


def _end_rule(writer: LogWriter, rule: ShareRule, *, by: str | None) -> dict[str, None]:
    """Take back what notes have by a rule; return their ids."""
    ids = writer.db.execute(
        "SELECT id FROM share JOIN note USING (number) "
        "WHERE share.agent_id = ? AND rule = ? AND seq_to = ? ORDER BY number",
        (rule.agent_id, rule.seq, OPEN),
    ).fetchall()
    record = NoteShared(agent_id=rule.agent_id, permission=None, by=by)
    for (id,) in ids:
        writer.append(record, note=id)
    return dict.fromkeys(id for (id,) in ids)


# Relations.


def relate(
    memory: SqliteMemory,
    id: str,
    to: str,
    *,
    actor: str | None,
    relation: str = "related_to",
    weight: float = 1.0,
) -> int:
    """Add a relation from a note to another one that the actor can see. Return the position.

    A relation of this type between the two gets the new weight; 0 takes it back. Raise
    `NoteInvalid` as `check_relation` does, and for a note with itself. Raise `NoteNotFound` for a
    note that the actor may not see, and `MemoryPermissionDenied` if it may not write the first one.
    """
    check_relation(relation, weight)
    if id == to:
        raise NoteInvalid(field="to", why="another note", given=to)
    with memory.writing() as writer:
        check_may(writer.db, id, actor=actor, needs=Permission.WRITE)
        check_may(writer.db, to, actor=actor, needs=Permission.READ)
        record = NoteRelated(to=to, relation=relation, weight=weight)
        seq, _ = writer.append(record, note=id)
        return seq


def check_relation(relation: str, weight: float) -> None:
    """Raise `NoteInvalid` if a relation cannot be recorded.

    `relation` is an identifier of at most 64 characters, `weight` from 0 to 1.
    """
    if not relation.isidentifier() or len(relation) > _RELATION_CHARS_MAX:
        why = f"one word of letters, digits and `_`, at most {_RELATION_CHARS_MAX} characters"
        raise NoteInvalid(field="relation", why=why, given=relation)
    if not 0.0 <= weight <= 1.0:
        raise NoteInvalid(field="weight", why="from 0 to 1", given=weight)


def relations_at(db: sqlite3.Connection, id: str, *, seq: int) -> tuple[Relation, ...]:
    """Return the relations of a note as of a position, in both directions, whoever sees the others.

    Of one that was recorded several times, the last weight counts.
    """
    rows = db.execute(
        "SELECT note.id, relation, target, weight FROM relation JOIN note USING (number) "
        "WHERE (note.id = :id OR target = :id) AND seq_from <= :seq "
        "ORDER BY seq_from",
        {"id": id, "seq": seq},
    )
    last = {(source, relation, target): float(weight) for source, relation, target, weight in rows}
    found = [
        Relation(source=source, relation=relation, target=target, weight=weight)
        for (source, relation, target), weight in last.items()
        if weight > 0
    ]
    return tuple(sorted(found, key=lambda each: (each.source != id, each.relation, each.target)))


# Permissions.


def check_may(db: sqlite3.Connection, id: str, *, actor: str | None, needs: Permission) -> None:
    """Raise an error if an actor lacks a permission on a note. None is the owner, who has all.

    The error is `MemoryPermissionDenied`, or `NoteNotFound` for a note that the actor may not see:
    it looks like one that does not exist.
    """
    held = held_permission(db, id, actor)
    if held is None:
        raise NoteNotFound(id=id)
    if not held.satisfies(needs):
        raise MemoryPermissionDenied(id=id, actor=str(actor), needs=needs.value)


def held_permission(db: sqlite3.Connection, id: str, actor: str | None) -> Permission | None:
    """Return an actor's permission on a note now.

    Return None if the actor may not even see it, or if there is no such note. The owner of the file
    (None) and that of the note have `admin`.
    """
    row = db.execute("SELECT number, agent_id, scope FROM note WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    number, owner, scope = row
    if actor is None or actor == owner:
        return Permission.ADMIN
    shared = _open_share(db, number, actor)
    if shared is not None:
        return Permission(shared)
    return Permission.READ if scope in (NoteScope.PUBLIC, NoteScope.GLOBAL) else None


def check_visible(db: sqlite3.Connection, id: str, agent_id: str, *, field: str) -> None:
    """Raise `NoteInvalid` if an agent names a note that it cannot see."""
    if held_permission(db, id, agent_id) is None:
        raise NoteInvalid(field=field, why="the id of a note that exists here", given=id)
