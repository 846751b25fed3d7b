"""The values in the book of sessions, and the port that its rows are stored behind.

`SessionBook` has the rules; a `BookStore` has rows and transactions, and knows none of the rules.
`SessionFile` keeps the rows in a file, `SessionMemory` for as long as the process lives.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from tallystick.core.duration import duration_ms
from tallystick.core.errors import (
    InvalidLimit,
    InvalidSessionState,
    SessionExpired,
    SessionNotFound,
    SnapshotNotFound,
)
from tallystick.core.records import AttachmentRef
from tallystick.sandbox.snapshot import SnapshotId

# The times of the reference: half an hour, extended by as much, three times at most. Sessions that
# were made before there were others have them.
DURATION_MS = 1_800_000
EXTENSIONS_MAX = 3
# The expiry of a session without an end: the last second of the year 9999.
NO_END_MS = 253_402_300_799_000
# A thousand years: an end that is later is none.
LIFETIME_MS_MAX = 1_000 * 365 * 24 * 3_600_000
DEPTH_MAX = 10
CONTEXT_VARIABLES_MAX = 100
CONTEXT_KEY_CHARS_MAX = 256
# The limit of all variables together, names and values: each run of the session records them.
CONTEXT_BYTES_MAX = 65_536
# A budget used above this share is nearly exhausted.
_NEAR = 0.8

# The values of `ended` in a run's row. 0 is a run that is in progress, or whose process died.
ENDED, ENDED_LOST = 1, 2

# `initializing`: it is being made. `ready`: a run can begin. `executing`: one is in progress.
# `paused`: nothing runs in it, and its time stands still, until it is resumed. `expired`: its time
# is over, until it is resumed. `terminated`: it is over for good, and keeps its list of runs only.
SessionState = Literal["initializing", "ready", "executing", "paused", "terminated", "expired"]


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """The time that a session lasts, and how often it can be extended by as much.

    `extensions_max` of None means any number of times.
    """

    lifetime_ms: int
    extensions_max: int | None = None


# The named preset: the times of the reference.
REFERENCE = Period(lifetime_ms=DURATION_MS, extensions_max=EXTENSIONS_MAX)
# A period as callers write it: a duration such as "12h", a `timedelta`, "reference" for the preset,
# and None or "never" for no end.
Expires = str | datetime.timedelta | None


def period_of(expires: Expires) -> Period | None:
    """Return the period that a caller asks for; None for no end.

    Raise `InvalidLimit` for a text that is no duration.
    """
    match expires:
        case None | "never":
            return None
        case "reference":
            return REFERENCE
        case datetime.timedelta():
            return Period(lifetime_ms=round(expires / datetime.timedelta(milliseconds=1)))
        case str():
            return Period(lifetime_ms=duration_ms(expires, field="expires", why=_EXPIRES))
        case _:
            raise InvalidLimit(field="expires", given=expires, why=_EXPIRES)


_EXPIRES = (
    "a duration such as 90s, 30m, 12h, 7d or 2w; never; or reference for 30m with three extensions"
)


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The common spending of a session's runs, and their common limits.

    A limit of None means that each run has its own. `tokens_used` and `time_used_ms` count the runs
    that ended, and the others as far as they are noted.
    """

    tokens_used: int = 0
    token_budget: int | None = None
    time_used_ms: int = 0
    time_budget_ms: int | None = None
    recursion_depth: int = 0
    max_recursion_depth: int = DEPTH_MAX

    @property
    def near_exhaustion(self) -> bool:
        """True if the tokens, the time or the depth are used to more than 80 per cent."""
        pairs = (
            (self.tokens_used, self.token_budget),
            (self.time_used_ms, self.time_budget_ms),
            (self.recursion_depth, self.max_recursion_depth),
        )
        return any(most is not None and used > _NEAR * most for used, most in pairs)


class Left(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An interpreter as a run left it: an image of one backend, which only that backend can read.

    `image` is None for a fresh interpreter. `names` lists its variables in short, to be shown.
    `values` are the variables that JSON can hold: they can be read even if another guest cannot
    load the image. None if they were not recorded. `prepared` belongs to a run that is about to
    end: it replaces this value as soon as the ledger has the end of that run.
    """

    image: AttachmentRef | None = None
    run: str | None = None
    names: str = ""
    values: AttachmentRef | None = None
    prepared: Left | None = None

    @property
    def attachments(self) -> tuple[AttachmentRef, ...]:
        """The attachments that this needs, without those of `prepared`."""
        return tuple(each for each in (self.image, self.values) if each is not None)


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it is now. Times are milliseconds since 1970.

    `vm_instance_id` is the live instance, for backends that have one. `generation` counts how often
    its interpreter was replaced, by a run or a restore. `name` is that of a session of `tally exec
    --session NAME`, None for all others. `period` is how long it lasts, None for one without an
    end. `bytes` is the size of its interpreter and its snapshots, and `used_at` the time at which
    its last run began, or it was made.
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
    name: str | None = None
    period: Period | None = None
    bytes: int = 0
    used_at: int = 0

    @property
    def has_end(self) -> bool:
        """True if the session expires at a time."""
        return self.expires_at != NO_END_MS

    def is_ending(self, now: int) -> bool:
        """Return True in the last tenth of its period, the end included, unless time stands still.

        `now` is in milliseconds since 1970.
        """
        if self.period is None or self.state in ("paused", "terminated"):
            return False
        return 0 <= self.expires_at - now <= self.period.lifetime_ms // 10


class SessionName(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a session without an end, and the settings of its first interpreter."""

    session: str
    name: str
    seed: int
    clock_ns: int


class KeptSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a session: its identity, and the interpreter as it was."""

    snapshot: SnapshotId
    backend: str
    left: Left


class SessionRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a session. `ended` means that its spending is final.

    `lost` means that the session does not keep the interpreter that its programs left.
    """

    run: str
    begun_at: int
    ended: bool = False
    tokens: int = 0
    wall_ms: int = 0
    lost: bool = False


class SessionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The number of sessions ever created, of usable ones, and of those with a live instance."""

    total_created: int
    active: int
    with_vm: int


# The port of the book's rows. It checks no limit, state or time.


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a session. The fields are those of `SessionInfo`, as they are stored.

    `lifetime_ms` and `extensions_max` are its period. Both are None for a session without an end,
    and for one with an end that was made before there were periods. `paused_at` is the time since
    which it is paused, None otherwise.
    """

    id: str
    backend: str
    state: SessionState
    created_at: int
    expires_at: int
    extension_count: int = 0
    recursion_depth: int = 0
    token_budget: int | None = None
    time_budget_ms: int | None = None
    vm_instance_id: str | None = None
    current_snapshot_id: str | None = None
    generation: int = 0
    left: Left = Left()
    lifetime_ms: int | None = None
    extensions_max: int | None = None
    paused_at: int | None = None


class RunOfSession(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a run in a session. `generation` is that of the interpreter it began with."""

    run: str
    begun_at: int
    generation: int
    ended: int = 0
    tokens: int = 0
    wall_ms: int = 0


class BookRows(Protocol):
    """The rows of a book inside one transaction. A session that does not exist has no rows."""

    def session(self, session: str) -> SessionRow | None:
        """Return the row of a session; None if there is none."""

    def sessions(self) -> Sequence[SessionRow]:
        """Return all rows in the order of their ids."""

    def ids(self) -> Sequence[str]:
        """Return the ids of all sessions in order."""

    def add(self, row: SessionRow) -> None:
        """Insert a session, and count it among those ever created.

        There must be none with this id.
        """

    def put(self, session: str, **fields: object) -> None:
        """Change fields of a session, by their names in `SessionRow`.

        Without such a session, do nothing.
        """

    def remove(self, session: str) -> None:
        """Delete a session with its name, variables, snapshots and runs."""

    def created_count(self) -> int:
        """Return the number of sessions ever created."""

    def names(self) -> Mapping[str, str]:
        """Return the names of the sessions that have one, by their ids."""

    def find_named(self, name: str) -> SessionName | None:
        """Return the session of a name; None if there is none."""

    def add_name(self, name: SessionName) -> None:
        """Give a session its name."""

    def variables(self, session: str) -> Mapping[str, str]:
        """Return the context variables of a session in the order of their keys."""

    def set_variables(self, session: str, variables: Mapping[str, str]) -> None:
        """Set some context variables, and leave the others."""

    def delete_variable(self, session: str, key: str) -> bool:
        """Delete a context variable. Return False if there was none."""

    def snapshots(self, session: str) -> Sequence[KeptSnapshot]:
        """Return the snapshots of a session in the order they were taken."""

    def add_snapshot(self, snapshot: KeptSnapshot) -> None:
        """Insert a snapshot."""

    def delete_snapshot(self, session: str, id: str) -> None:
        """Delete a snapshot by its id."""

    def runs(self, session: str) -> Sequence[RunOfSession]:
        """Return the runs of a session in the order they were first put."""

    def run(self, session: str, run: str) -> RunOfSession | None:
        """Return one run of a session; None if it is not there."""

    def put_run(self, session: str, run: RunOfSession) -> None:
        """Insert a run as the last one of a session, or replace its row in place."""

    def delete_run(self, session: str, run: str) -> None:
        """Delete a run of a session."""

    def total_spent(self, session: str) -> tuple[int, int]:
        """Return the tokens and milliseconds of all runs of a session together."""


class SessionLock(Protocol):
    """The exclusive right to work in a session."""

    def take(self, *, wait_seconds: float) -> bool:
        """Take the lock. Return False if another client keeps it for longer than `wait_seconds`."""

    def release(self) -> None:
        """Give the lock back. Harmless if it is not taken."""


class BookStore(Protocol):
    """A store for the rows of a book. Raises `StoreError` if it cannot be read or written."""

    @property
    def where(self) -> str:
        """The name of the store in messages."""

    @property
    def exists(self) -> bool:
        """True if the book exists. It is created when it is first used."""

    def reading(self) -> contextlib.AbstractContextManager[BookRows]:
        """Read one committed state. A reading inside another one sees the same state.

        A store in memory also shows what a writing around it has changed so far.
        """

    def writing(self) -> contextlib.AbstractContextManager[BookRows]:
        """Run one transaction: all of it, as durable as the store is, or nothing after an error."""

    def lock(self, session: str) -> SessionLock:
        """Return the lock of a session. The id must be fit for a file name."""

    def is_locked(self, session: str) -> bool:
        """Return True if a living client has the lock of a session."""

    def damage(self) -> Sequence[str]:
        """Return the faults of the storage itself, not of its content."""

    def scrub(self) -> bool:
        """Remove deleted bytes from the storage. Return False if that could not be done yet."""


# Rows as values.


def is_text(value: object) -> bool:
    """Return True for a text that can be stored and looked up: one without lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def row_of(rows: BookRows, session: str) -> SessionRow:
    """Return the row of a session. Raise `SessionNotFound` if there is none, or it is no text."""
    row = rows.session(session) if is_text(session) else None
    if row is None:
        raise SessionNotFound(session=str(session))
    return row


def info_of(rows: BookRows, row: SessionRow, *, now: int) -> SessionInfo:
    """Return a session as it is at `now`: expired if its time is over. Nothing is written."""
    tokens, wall_ms = rows.total_spent(row.id)
    expires_at = row.expires_at
    if row.paused_at is not None and expires_at != NO_END_MS:
        # Its time stands still: what was left when it was paused is left now.
        expires_at += max(0, now - row.paused_at)
    # A session can still be used at exactly its end.
    over = row.state != "terminated" and now > expires_at
    snapshots, runs = rows.snapshots(row.id), rows.runs(row.id)
    kept = [row.left, row.left.prepared, *(each.left for each in snapshots)]
    held = {ref.id: ref.byte_len for left in kept if left is not None for ref in left.attachments}
    return SessionInfo(
        id=row.id,
        state="expired" if over else row.state,
        created_at=row.created_at,
        expires_at=expires_at,
        extension_count=row.extension_count,
        recursion_depth=row.recursion_depth,
        budget_status=BudgetStatus(
            tokens_used=tokens,
            token_budget=row.token_budget,
            time_used_ms=wall_ms,
            time_budget_ms=row.time_budget_ms,
            recursion_depth=row.recursion_depth,
        ),
        vm_instance_id=row.vm_instance_id,
        context_variables=rows.variables(row.id),
        current_snapshot_id=row.current_snapshot_id,
        snapshot_count=len(snapshots),
        backend=row.backend,
        generation=row.generation,
        left=row.left,
        name=rows.names().get(row.id),
        period=_period_of(row),
        bytes=sum(held.values()),
        used_at=max((each.begun_at for each in runs), default=row.created_at),
    )


def _period_of(row: SessionRow) -> Period | None:
    if row.expires_at == NO_END_MS:
        return None
    if row.lifetime_ms is None:
        return REFERENCE
    return Period(lifetime_ms=row.lifetime_ms, extensions_max=row.extensions_max)


def info_now(rows: BookRows, session: str, *, now: int) -> SessionInfo:
    """Return a session as it is at `now`. Raise `SessionNotFound` if there is none."""
    return info_of(rows, row_of(rows, session), now=now)


def require_usable(rows: BookRows, session: str, *, now: int) -> SessionInfo:
    """Return a session that can be used.

    Raise, checked in this order, `SessionNotFound`, `SessionExpired`, or `InvalidSessionState` if
    it was terminated or is paused.
    """
    info = info_now(rows, session, now=now)
    if info.state == "expired" or now > info.expires_at:
        raise SessionExpired(session=session)
    if info.state == "terminated":
        why = "nothing can be done in it any more"
        raise InvalidSessionState(session=session, state=info.state, why=why)
    if info.state == "paused":
        why = f"nothing runs or changes in it until it is resumed: tally session resume {session}"
        raise InvalidSessionState(session=session, state=info.state, why=why)
    return info


def snapshot_named(rows: BookRows, session: str, name: str) -> KeptSnapshot:
    """Return a snapshot by its name, or by `name:id`. Raise `SnapshotNotFound` if there is none."""
    for each in rows.snapshots(session):
        if name in (each.snapshot.name, str(each.snapshot)):
            return each
    raise SnapshotNotFound(name=name)


def run_of_row(row: RunOfSession) -> SessionRun:
    """Return a run of a session as users see it."""
    return SessionRun(
        run=row.run,
        begun_at=row.begun_at,
        ended=bool(row.ended),
        tokens=row.tokens,
        wall_ms=row.wall_ms,
        lost=row.ended == ENDED_LOST,
    )
