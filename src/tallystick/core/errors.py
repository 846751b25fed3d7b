"""Every error of the package that is not of one subject alone, sorted by whose fault it is.

    TallystickError
    ├── UsageError            the caller of our API
    │   ├── InvalidLimit          a limit that is not a limit
    │   └── InvalidName           a name that may not be used
    ├── Refused               nobody: policy said no
    │   ├── CapabilityDenied      a name that is absent or not granted: the same answer for both
    │   ├── MaxSnapshotsReached   the session has as many snapshots as it may
    │   ├── NotSupported          this backend cannot do that
    │   └── NotSupportedHere      this operating system lacks what is needed
    ├── BackendError          the world
    │   ├── GuestBroken           a program broke the interpreter of its own session
    │   ├── GuestMissing          the guest image is not there or not what its manifest says
    │   ├── ReplayDiverged        a program asked something else than it did before
    │   ├── ReplayStopped         a replay was stopped before it could say whether the run holds
    │   ├── SandboxError          the sandbox itself broke
    │   ├── SessionBusy           another process holds the session
    │   ├── SnapshotMismatch      made by another guest or engine
    │   ├── SnapshotNotFound      no snapshot of that name or id
    │   └── StoreError            stored data cannot be read or written
    └── LedgerError           the record
        ├── IllegalEvent          an event that cannot come now: the record or the driver is wrong
        ├── LedgerConflict        another writer came first: another head, or a newer claim
        ├── LedgerCorrupt         damaged, or half-written
        ├── LedgerFormatUnknown   written by a version that this one does not know
        ├── LedgerFull            no room on the disk
        ├── LedgerLocked          another process is writing
        ├── LedgerReadOnly        it may not be written
        ├── LedgerUnavailable     it cannot be opened, or its disk failed
        ├── NotALedger            another kind of file
        ├── RecordUnreadable      a record of a kind that this version does not know
        ├── RunExists             a run of that id is there
        ├── RunNotFound           no run of that id
        ├── RunNotOwned           moved away, or an imported copy: to read, not to go on with
        └── TransferRefused       an export that cannot be written, or is not to be believed
    Cancelled                 the user; a BaseException, so that `except Exception` cannot eat it
    CleanUpWarning            a warning: a file that is not needed any more could not be removed

Each class has a stable dotted `code`, which the command line prints.

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
"""

from __future__ import annotations


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


class NotSupportedHere(Refused):
    """This operating system lacks what is needed, and nothing is done by halves."""

    code = "refused.not_supported_here"

    def __init__(self, *, what: str, instead: str = "") -> None:
        hint = f"; {instead}" if instead else ""
        super().__init__(
            f"{what} needs file locks and owners of files, which this system does not have{hint}"
        )
        self.what = what


class BackendError(TallystickError):
    """Something outside our code failed."""

    code = "backend"


class GuestBroken(BackendError):
    """A session's interpreter no longer does what it must; its programs have seen to that."""

    code = "backend.guest_broken"


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


class CleanUpWarning(UserWarning):
    """A file that is no longer needed could not be removed. What was done is not affected."""

    code = "warning.clean_up"

    def __init__(self, *, path: str, why: str) -> None:
        super().__init__(f"{path} could not be removed: {why}; it is not needed any more")


class ReplayStopped(BackendError):
    """A replay was stopped before its end. It says nothing against the record."""

    code = "backend.replay_stopped"

    def __init__(self, *, run: str, seq: int, entries: int, why: str, timed_out: bool) -> None:
        super().__init__(
            f"the replay of run {run} was stopped at entry {seq} of {entries}: {why}; nothing "
            "differed until then. Replay the run again to know whether it holds"
        )
        self.run = run
        self.seq = seq
        self.entries = entries
        self.timed_out = timed_out


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


class LedgerError(TallystickError):
    """The record cannot be kept or believed. Stop; it is never retried and never hidden."""

    code = "ledger"


class LedgerConflict(LedgerError):
    """An append that another writer came before. Nothing was written."""

    code = "ledger.conflict"

    def __init__(self, *, run: str, field: str, expected: object, found: object) -> None:
        super().__init__(
            f"run {run}: another writer came first: its {field} is {found}, not {expected}; "
            f"this process no longer owns the run"
        )
        self.run = run
        self.field = field
        self.expected = expected
        self.found = found


class LedgerCorrupt(LedgerError):
    """The file is not what was written."""

    code = "ledger.corrupt"

    def __init__(self, *, path: str, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}; put a good copy in its place")
        self.path = path
        self.why = why


class RecordUnreadable(LedgerError):
    """A record is of a kind, or has a form, that this version does not know."""

    code = "ledger.record"

    def __init__(self, *, run: str, seq: int, why: str) -> None:
        super().__init__(
            f"entry {seq} of run {run} cannot be read ({why[:200]}); a later version may have "
            "written it"
        )
        self.run = run
        self.seq = seq
        self.why = why


class LedgerFormatUnknown(LedgerError):
    """The file was written by another version."""

    code = "ledger.format"

    def __init__(self, *, path: str, found: int, known: int | str) -> None:
        super().__init__(
            f"{path} has format {found}; this version reads {known}: use the version that wrote it"
        )
        self.path = path
        self.found = found
        self.known = known


class LedgerFull(LedgerError):
    """There is no room for what was to be written. Nothing of it was."""

    code = "ledger.full"

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} cannot grow: the disk is full; free some space, then go on")
        self.path = path


class LedgerLocked(LedgerError):
    """Another process held the write lock for longer than we wait."""

    code = "ledger.locked"

    def __init__(self, *, path: str, waited_seconds: float) -> None:
        super().__init__(
            f"{path} was being written by another process for {waited_seconds:g} s; "
            f"try again when it is done"
        )
        self.path = path
        self.waited_seconds = waited_seconds


class LedgerReadOnly(LedgerError):
    """The file or its directory may not be written."""

    code = "ledger.read_only"

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} is read-only; make it and its directory writable for this user")
        self.path = path


class LedgerUnavailable(LedgerError):
    """The file cannot be opened, or the disk under it failed."""

    code = "ledger.unavailable"

    def __init__(self, *, path: str, why: str) -> None:
        super().__init__(
            f"{path} cannot be used: {why}; name another file, or mend this one's disk"
        )
        self.path = path
        self.why = why


class NotALedger(LedgerError):
    """The file is something else."""

    code = "ledger.not_a_ledger"

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} is not a ledger; nothing was changed in it: name another file")
        self.path = path


class RunExists(LedgerError):
    """A run of that id is already there."""

    code = "ledger.run_exists"

    def __init__(self, *, run: str) -> None:
        super().__init__(f"run {run} is already in the ledger; a new run needs an id of its own")
        self.run = run


class RunNotFound(LedgerError):
    """The ledger has no run of that id."""

    code = "ledger.run_not_found"

    def __init__(self, *, run: str, advice: str = "") -> None:
        super().__init__(f"no run {run[:80]!r} in the ledger{advice and f'; {advice}'}")
        self.run = run


class RunNotOwned(LedgerError):
    """The run may be read here and not be gone on with."""

    code = "ledger.not_owned"

    def __init__(self, *, run: str, why: str) -> None:
        super().__init__(f"run {run} {why}")
        self.run = run
        self.why = why


class TransferRefused(LedgerError):
    """An export was not written, or an import not believed. The ledger holds what it held."""

    code = "ledger.transfer"

    def __init__(self, *, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}")
        self.file = file
        self.why = why


class IllegalEvent(LedgerError):
    """An event that cannot come in this phase."""

    code = "ledger.illegal_event"

    def __init__(self, *, event: str, phase: str) -> None:
        super().__init__(f"{event} while {phase}")
        self.event = event
        self.phase = phase


class Cancelled(BaseException):
    """The user stopped it."""

    code = "cancelled"


# What goes wrong with sessions, sorted as in `tallystick.core.errors`.


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
