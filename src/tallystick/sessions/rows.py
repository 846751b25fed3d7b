"""Sessions as the book tells them: state, limits and what each keeps, read from its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from tallystick.core.errors import (
    InvalidSessionState,
    SessionExpired,
    SessionNotFound,
    SnapshotNotFound,
    StoreError,
)
from tallystick.core.records import AttachmentRef
from tallystick.sandbox.snapshot import SnapshotId

# What a session is, as the book tells it: its state, its limits, and what it keeps.


DURATION_MS = 1_800_000
EXTENSION_MS = 1_800_000
EXTENSIONS_MAX = 3
DEPTH_MAX = 10
CONTEXT_VARIABLES_MAX = 100
CONTEXT_KEY_CHARS_MAX = 256
# Of all of them together, names and values: each run of the session writes them down.
CONTEXT_BYTES_MAX = 65_536
# Beyond this share of a budget, it is nearly exhausted.
_NEAR = 0.8

# The values of `ended` in a run's row, beside 0 for one that somebody works on or did.
ENDED, ENDED_LOST = 1, 2

SessionState = Literal["initializing", "ready", "executing", "paused", "terminated", "expired"]


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs of a session have spent together, and what they may. None: each its own limits.

    `tokens_used` and `time_used_ms` are those of runs that ended, or as far as they came.
    """

    tokens_used: int = 0
    token_budget: int | None = None
    time_used_ms: int = 0
    time_budget_ms: int | None = None
    recursion_depth: int = 0
    max_recursion_depth: int = DEPTH_MAX

    @property
    def near_exhaustion(self) -> bool:
        """Whether any of them is used to more than 80 per cent."""
        pairs = (
            (self.tokens_used, self.token_budget),
            (self.time_used_ms, self.time_budget_ms),
            (self.recursion_depth, self.max_recursion_depth),
        )
        return any(most is not None and used > _NEAR * most for used, most in pairs)


class Left(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The interpreter as a run left it: an image of one backend, which only that can read.

    `image` is None for a fresh interpreter. `names` are its variables, in short, to be shown.
    `values` are those variables that JSON can hold (`tallystick.sessions.values`): they can be
    read where another guest cannot load the image. None if they were not recorded.
    `prepared` is what a run leaves that is about to end: it replaces this one as soon as the
    ledger has the end of that run.
    """

    image: AttachmentRef | None = None
    run: str | None = None
    names: str = ""
    values: AttachmentRef | None = None
    prepared: Left | None = None

    @property
    def attachments(self) -> tuple[AttachmentRef, ...]:
        """The attachments that this needs, without those of what is prepared."""
        return tuple(each for each in (self.image, self.values) if each is not None)


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session. Times are milliseconds since 1970.

    `vm_instance_id` is what lives for it now, for backends that have such a thing.
    `generation` counts how often its interpreter was replaced, by a run or a restore.
    """

    id: str
    state: SessionState
    created_at: int
    expires_at: int
    extension_count: int = 0
    recursion_depth: int = 0
    budget_status: BudgetStatus = BudgetStatus()
    vm_instance_id: str | None = None
    context_variables: Mapping[str, str] = {}
    current_snapshot_id: str | None = None
    snapshot_count: int = 0
    backend: str = "wasm"
    generation: int = 0
    left: Left = Left()


class KeptSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a session: its identity, and the interpreter as it was."""

    snapshot: SnapshotId
    backend: str
    left: Left


class SessionRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a session, in its place. `ended` says that what it spent is all that it will.

    `lost` says that the session does not keep what its programs left, and never will.
    """

    run: str
    begun_at: int
    ended: bool = False
    tokens: int = 0
    wall_ms: int = 0
    lost: bool = False


class SessionStats(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions there ever were, how many can be used, and how many have an instance."""

    total_created: int
    active: int
    with_vm: int


# Sessions as rows: how each is read from the book's file, and what is looked for there.


_decode = msgspec.json.Decoder(Left).decode


def encoded(left: Left) -> bytes:
    return msgspec.json.encode(left)


def is_text(value: object) -> bool:
    """Whether a value is a text that the file can hold, and be asked for."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def find_row(db: sqlite3.Connection, session: str) -> sqlite3.Row:
    """The row of a session. Raises `SessionNotFound`, also for what is no id at all."""
    if not is_text(session):
        raise SessionNotFound(session=str(session))
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM session WHERE id = ?", (session,)
    ).fetchone()
    if row is None:
        raise SessionNotFound(session=session)
    return row


def info_of(db: sqlite3.Connection, row: sqlite3.Row, *, now: int) -> SessionInfo:
    """A session as it stands at a moment: one whose time is over is expired, whoever noticed."""
    session = row["id"]
    spent = db.execute(
        "SELECT coalesce(sum(tokens), 0), coalesce(sum(wall_ms), 0) FROM run WHERE session = ?",
        (session,),
    ).fetchone()
    variables = db.execute(
        "SELECT key, value FROM variable WHERE session = ? ORDER BY key", (session,)
    ).fetchall()
    (snapshots,) = db.execute(
        "SELECT count(*) FROM snapshot WHERE session = ?", (session,)
    ).fetchone()
    return SessionInfo(
        id=session,
        state=_state(row, now=now),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        extension_count=row["extension_count"],
        recursion_depth=row["recursion_depth"],
        budget_status=BudgetStatus(
            tokens_used=spent[0],
            token_budget=row["token_budget"],
            time_used_ms=spent[1],
            time_budget_ms=row["time_budget_ms"],
            recursion_depth=row["recursion_depth"],
        ),
        vm_instance_id=row["vm_instance_id"],
        context_variables={each["key"]: each["value"] for each in variables},
        current_snapshot_id=row["current_snapshot_id"],
        snapshot_count=snapshots,
        backend=row["backend"],
        generation=row["generation"],
        left=_left(row),
    )


def info_now(db: sqlite3.Connection, session: str, *, now: int) -> SessionInfo:
    """A session as it stands at a moment. Raises `SessionNotFound`."""
    return info_of(db, find_row(db, session), now=now)


def valid(db: sqlite3.Connection, session: str, *, now: int) -> SessionInfo:
    """A session that can be used. Says why not: not found, then expired, then terminated."""
    info = info_now(db, session, now=now)
    if info.state == "expired" or now > info.expires_at:
        raise SessionExpired(session=session)
    if info.state == "terminated":
        why = "nothing can be done in it any more"
        raise InvalidSessionState(session=session, state=info.state, why=why)
    return info


def put(db: sqlite3.Connection, session: str, **columns: object) -> None:
    """Change columns of a session. They are our own words, never a caller's."""
    named = ", ".join(f"{name} = ?" for name in columns)
    db.execute(f"UPDATE session SET {named} WHERE id = ?", (*columns.values(), session))


def snapshots_of(db: sqlite3.Connection, session: str) -> Sequence[KeptSnapshot]:
    """A session's snapshots in the order they were taken."""
    rows = db.execute(
        "SELECT * FROM snapshot WHERE session = ? ORDER BY created_at, id", (session,)
    )
    return [
        KeptSnapshot(
            snapshot=SnapshotId(
                id=row["id"], name=row["name"], session_id=session, created_at=row["created_at"]
            ),
            backend=row["backend"],
            left=_left(row),
        )
        for row in rows.fetchall()
    ]


def snapshot_named(db: sqlite3.Connection, session: str, name: str) -> KeptSnapshot:
    """A snapshot by its name, or by `name:id`. Raises `SnapshotNotFound`."""
    for each in snapshots_of(db, session):
        if name in (each.snapshot.name, str(each.snapshot)):
            return each
    raise SnapshotNotFound(name=name)


def runs_of(db: sqlite3.Connection, session: str) -> Sequence[SessionRun]:
    """The runs of a session in the order they were begun."""
    rows = db.execute("SELECT * FROM run WHERE session = ? ORDER BY place", (session,))
    return [
        SessionRun(
            run=row["run"],
            begun_at=row["begun_at"],
            ended=bool(row["ended"]),
            tokens=row["tokens"],
            wall_ms=row["wall_ms"],
            lost=row["ended"] == ENDED_LOST,
        )
        for row in rows.fetchall()
    ]


def _state(row: sqlite3.Row, *, now: int) -> SessionState:
    try:
        state: SessionState = msgspec.convert(row["state"], SessionState)
    except msgspec.ValidationError as error:
        raise StoreError(f"session {row['id']}: its state cannot be read: {error}") from error
    # Exactly at its end it can still be used.
    return "expired" if state != "terminated" and now > row["expires_at"] else state


def _left(row: sqlite3.Row) -> Left:
    try:
        return _decode(row["kept"])
    except (msgspec.MsgspecError, TypeError) as error:
        raise StoreError(f"what session {row[0]} keeps cannot be read: {error}") from error
