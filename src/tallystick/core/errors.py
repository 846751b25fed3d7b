"""Every error of the package, sorted by whose fault it is.

    TallystickError
    ├── UsageError            the caller of our API
    │   ├── InvalidLimit          a limit that is not a limit
    │   └── InvalidName           a name that may not be used
    ├── Refused               nobody: policy said no
    │   ├── CapabilityDenied      a name that is absent or not granted: the same answer for both
    │   ├── MaxSnapshotsReached   the session has as many snapshots as it may
    │   └── NotSupported          this backend cannot do that
    └── BackendError          the world
        ├── GuestMissing          the guest image is not there or not what its manifest says
        ├── ReplayDiverged        a program asked something else than it did before
        ├── SandboxError          the sandbox itself broke
        ├── SessionBusy           another process holds the session
        ├── SnapshotMismatch      made by another guest or engine
        ├── SnapshotNotFound      no snapshot of that name or id
        └── StoreError            stored data cannot be read or written
    Cancelled                 the user; a BaseException, so that `except Exception` cannot eat it

Each class has a stable dotted `code`, which the command line prints.
"""

__all__ = [
    "BackendError",
    "Cancelled",
    "CapabilityDenied",
    "GuestMissing",
    "InvalidLimit",
    "InvalidName",
    "MaxSnapshotsReached",
    "NotSupported",
    "Refused",
    "ReplayDiverged",
    "SandboxError",
    "SessionBusy",
    "SnapshotMismatch",
    "SnapshotNotFound",
    "StoreError",
    "TallystickError",
    "UsageError",
]


class TallystickError(Exception):
    """Anything this package raises on purpose."""

    code = "error"


class UsageError(TallystickError):
    """The caller asked for something that makes no sense."""

    code = "usage"


class InvalidLimit(UsageError):
    """A limit is not a whole number of at least its minimum."""

    code = "usage.limit"

    def __init__(self, *, field: str, given: object, why: str) -> None:
        super().__init__(f"{field}: {why}, not {given!r}")
        self.field = field
        self.given = given


class InvalidName(UsageError):
    """A name is empty, too long, or holds what names may not hold."""

    code = "usage.name"

    def __init__(self, *, what: str, given: str, why: str) -> None:
        super().__init__(f"{what} {given[:80]!r}: {why}")
        self.given = given


class Refused(TallystickError):
    """Policy said no. Nothing was done."""

    code = "refused"


class CapabilityDenied(Refused):
    """A program asked for what it was not given. Absent and not granted look the same."""

    code = "refused.capability"

    def __init__(self, *, capability: str, what: str) -> None:
        super().__init__(
            f"{what} needs the capability {capability}, which this program was not given"
        )
        self.capability = capability


class MaxSnapshotsReached(Refused):
    """One more snapshot would pass the session's limit."""

    code = "refused.snapshots"

    def __init__(self, *, limit: int) -> None:
        super().__init__(f"the session has {limit} snapshots, the most it may; delete one first")
        self.limit = limit


class NotSupported(Refused):
    """The backend cannot do this, and does not pretend to."""

    code = "refused.not_supported"

    def __init__(self, *, backend: str, operation: str) -> None:
        super().__init__(f"the {backend} sandbox does not support {operation}")
        self.backend = backend
        self.operation = operation


class BackendError(TallystickError):
    """Something outside our code failed."""

    code = "backend"


class GuestMissing(BackendError):
    """The guest image cannot be used."""

    code = "backend.guest"


class ReplayDiverged(BackendError):
    """At the same place, a program asked for something else than the record says."""

    code = "backend.diverged"

    def __init__(self, *, index: int, field: str, recorded: object, now: object) -> None:
        super().__init__(f"host call {index}: {field} was {recorded!r} and is {now!r}")
        self.index = index
        self.field = field
        self.recorded = recorded
        self.now = now


class SandboxError(BackendError):
    """The sandbox broke. The program is not to blame."""

    code = "backend.sandbox"


class SessionBusy(BackendError):
    """Another process works in this session now."""

    code = "backend.session_busy"


class SnapshotMismatch(BackendError):
    """The snapshot belongs to another guest, engine or format."""

    code = "backend.snapshot_mismatch"


class SnapshotNotFound(BackendError):
    """The session has no such snapshot."""

    code = "backend.snapshot_not_found"

    def __init__(self, *, name: str) -> None:
        super().__init__(f"no snapshot {name!r} in this session")
        self.name = name


class StoreError(BackendError):
    """A stored file cannot be read or written."""

    code = "backend.store"


class Cancelled(BaseException):
    """The user stopped it."""

    code = "cancelled"
