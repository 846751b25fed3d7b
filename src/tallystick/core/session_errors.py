"""What goes wrong with sessions, sorted as in `tallystick.core.errors`.

    BackendError
    ├── SessionNotFound       no session of that id, or it was removed
    ├── SessionExpired        its time is over; it can be reopened
    ├── SessionNotKept        a run ended, and what it left could not be kept
    ├── StoreError
    │   ├── NotASessionBook       another kind of file
    │   └── SessionFormatUnknown  a book written by a version that this one does not know
    Refused
    ├── InvalidSessionState   the session cannot do that in the state it is in
    ├── MaxExtensionsReached  it was extended as often as it may be
    └── RecursionDepthExceeded  one level more than a session may have
    UsageError
    ├── ContextVariableRefused  a variable that is too long, or one too many
    └── SnapshotExists        a snapshot of that name is there

They stand here and not in the core's file because that one is full. `SessionBusy`,
`SnapshotNotFound` and `MaxSnapshotsReached` are there.
"""

from __future__ import annotations

from tallystick.core.errors import BackendError, Refused, StoreError, UsageError

__all__ = [
    "ContextVariableRefused",
    "InvalidSessionState",
    "MaxExtensionsReached",
    "NotASessionBook",
    "RecursionDepthExceeded",
    "SessionExpired",
    "SessionFormatUnknown",
    "SessionNotFound",
    "SessionNotKept",
    "SnapshotExists",
]


class SessionNotFound(BackendError):
    """There is no such session: it was never made here, or it was removed."""

    code = "backend.session_not_found"

    def __init__(self, *, session: str) -> None:
        super().__init__(f"no session {session[:80]!r}; tally session ls lists those there are")
        self.session = session


class SessionExpired(BackendError):
    """The time of a session is over. Its runs, snapshots and variables are still there."""

    code = "backend.session_expired"

    def __init__(self, *, session: str) -> None:
        super().__init__(
            f"session {session} has expired; its runs, snapshots and variables are kept: "
            f"tally session resume {session} reopens it"
        )
        self.session = session


class SessionNotKept(BackendError):
    """A run has ended and is in the ledger; what its programs left could not be kept."""

    code = "backend.session_not_kept"

    def __init__(self, *, session: str, run: str, why: str) -> None:
        super().__init__(
            f"run {run} has ended and is in the ledger, but session {session} could not keep its "
            f"variables ({why}); the session stands as before the run"
        )
        self.session = session
        self.run = run
        self.why = why


class NotASessionBook(StoreError):
    """The file is something else."""

    code = "backend.store.other_file"

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} is no book of sessions; nothing was changed in it")
        self.path = path


class SessionFormatUnknown(StoreError):
    """The book was written by another version."""

    code = "backend.store.format"

    def __init__(self, *, path: str, found: int, known: int) -> None:
        super().__init__(
            f"{path} has format {found}; this version reads {known}: use the version that wrote it"
        )
        self.path = path
        self.found = found
        self.known = known


class InvalidSessionState(Refused):
    """A session cannot do that in the state it is in. Nothing was changed."""

    code = "refused.session_state"

    def __init__(self, *, session: str, state: str, why: str) -> None:
        super().__init__(f"session {session} is {state}: {why}")
        self.session = session
        self.state = state


class MaxExtensionsReached(Refused):
    """One more extension would pass the session's limit."""

    code = "refused.extensions"

    def __init__(self, *, session: str, limit: int) -> None:
        super().__init__(
            f"session {session} was extended {limit} times, the most it may be; once it has "
            f"expired, tally session resume {session} reopens it"
        )
        self.session = session
        self.limit = limit


class RecursionDepthExceeded(Refused):
    """One level more than a session may have."""

    code = "refused.depth"

    def __init__(self, *, session: str, limit: int) -> None:
        super().__init__(f"session {session} is {limit} levels deep, the most it may be")
        self.session = session
        self.limit = limit


class ContextVariableRefused(UsageError):
    """A context variable is too long, has no name, or there are too many."""

    code = "usage.context_variable"

    def __init__(self, *, key: str, why: str) -> None:
        super().__init__(f"context variable {key[:80]!r}: {why}")
        self.key = key
        self.why = why


class SnapshotExists(UsageError):
    """A session's snapshots have names of their own."""

    code = "usage.snapshot_exists"

    def __init__(self, *, name: str) -> None:
        super().__init__(f"the session has a snapshot {name!r}; delete it first")
        self.name = name
