"""Define the errors that several subjects share, sorted by whose fault they are.

    TallystickError
    ├── UsageError            the caller of our API
    │   ├── ContextVariableRefused  a variable that is too long, or one too many
    │   ├── InvalidLimit          a limit that is not a limit
    │   ├── InvalidName           a name that may not be used
    │   └── SnapshotExists        a snapshot of that name is there
    ├── Refused               policy said no, and it is not a fault
    │   ├── CallDenied            a person denied a call of a program
    │   ├── CapabilityDenied      a name that is absent or not granted: the same answer for both
    │   │   └── SkillToolDenied       a function that a loaded skill does not name
    │   ├── InvalidSessionState   the session cannot do that in the state it is in
    │   ├── MaxExtensionsReached  it was extended as often as it may be
    │   ├── MaxSnapshotsReached   the session has as many snapshots as it may
    │   ├── SessionsFull          sessions keep more bytes than they may
    │   ├── NotSupported          this backend cannot do that
    │   ├── NotSupportedHere      this operating system lacks what is needed
    │   └── RecursionDepthExceeded  one level more than a session may have
    ├── BackendError          the world
    │   ├── GuestBroken           a program broke the interpreter of its own session
    │   ├── GuestMissing          the guest image is not there or not what its manifest says
    │   ├── ReplayDiverged        a program asked something else than it did before
    │   ├── ReplayStopped         a replay was stopped before it could say whether the run holds
    │   ├── SandboxError          the sandbox itself broke
    │   ├── SessionBusy           another process holds the session
    │   ├── SessionExpired        its time is over; it can be reopened
    │   ├── SessionNotFound       no session of that id, or it was removed
    │   ├── SessionNotKept        a run ended, and what it left could not be kept
    │   ├── SnapshotMismatch      made by another guest or engine
    │   ├── SnapshotNotFound      no snapshot of that name or id
    │   └── StoreError            stored data cannot be read or written
    │       ├── NotASessionBook       another kind of file
    │       └── SessionFormatUnknown  a store written by a version that this one does not know
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
        ├── RunNotOwned           moved away, or an imported copy: to read, not to resume
        └── TransferRefused       an export that cannot be written, or is not to be believed
    Cancelled                 the user; a BaseException, so that `except Exception` cannot eat it
    CleanUpWarning            a warning: a file that is not needed any more could not be removed

Each class has a stable dotted `code`, which the command line prints. The errors of one subject are
in its own package, drawn below these families where there are several: resuming
(`resume_errors`), budgets, steps, attachments, memory, its receipts and its programs, skills.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import ClassVar, dataclass_transform

# The password in the address of a server: scheme://user:password@host.
_PASSWORD = re.compile(r"^(\w[\w+.-]*://)([^/:@]*):.*@", re.S)


@dataclass_transform(kw_only_default=True, eq_default=False)
class Facts(Exception):
    """Makes an error a dataclass of keywords, so that no caller has to parse its message.

    The message is made of the facts: by `says`, or by a `text` method where that is not enough.
    Raise `TypeError` for a fact that is missing or unknown.

    `dataclasses.dataclass` would write a constructor for each class, which takes 75 µs. For all
    errors of the package, that is half a start of Python, in every command.
    """

    says: ClassVar[str] = ""

    def __init__(self, **facts: object) -> None:
        names = _facts_of(type(self))
        missing = [name for name in names if name not in facts and not hasattr(type(self), name)]
        unknown = [name for name in facts if name not in names]
        if missing or unknown:
            raise TypeError(f"{type(self).__name__}: {missing} missing, {unknown} unknown")
        for name in names:
            value = facts.get(name, getattr(type(self), name, None))
            # A store may be on a server, and its address is shown.
            if name == "where" and isinstance(value, str):
                value = without_password(value)
            setattr(self, name, value)
        super().__init__(self.text())

    def text(self) -> str:
        """Return the message. It is asked once, when the error is made."""
        return self.says.format_map(vars(self))


def _facts_of(error: type) -> tuple[str, ...]:
    annotated = [vars(each).get("__annotations__", {}) for each in error.__mro__]
    return tuple({name: None for each in annotated for name in each if name != "says"})


class TallystickError(Exception):
    """Base of every error that this package raises on purpose."""

    code = "error"


@contextlib.contextmanager
def system_errors(named: object, error: type[TallystickError]) -> Iterator[None]:
    """Translate an `OSError` of the block into one of ours, in one line. Others pass as they are.

    `named` is the file as it may be shown.
    """
    try:
        yield
    except OSError as found:
        raise error(f"{named}: {found.strerror or found}") from found


class UsageError(TallystickError):
    """The caller asked for something that makes no sense."""

    code = "usage"


class ContextVariableRefused(Facts, UsageError):
    """A context variable is too long, has no name, or there are too many."""

    code = "usage.context_variable"

    key: str
    why: str

    def text(self) -> str:
        return f"context variable {self.key[:80]!r}: {self.why}"


class InvalidLimit(Facts, UsageError):
    """A limit is not a whole number of at least its minimum."""

    code = "usage.limit"
    says = "{field}: {why}, not {given!r}"

    field: str
    given: object
    why: str


class InvalidName(Facts, UsageError):
    """A name is empty, too long, or holds what names may not hold."""

    code = "usage.name"

    what: str
    given: str
    why: str

    def text(self) -> str:
        return f"{self.what} {self.given[:80]!r}: {self.why}"


class SnapshotExists(Facts, UsageError):
    """A snapshot of this name is in the session already."""

    code = "usage.snapshot_exists"
    says = "the session has a snapshot {name!r}; delete it first"

    name: str


class Refused(TallystickError):
    """Policy said no. Nothing was done."""

    code = "refused"


class CallDenied(Facts, Refused):
    """A person denied a call of a program. It was not made."""

    code = "refused.denied"
    told_as = "Denied"

    name: str
    by: str
    because: str

    def text(self) -> str:
        why = f": {self.because[:1_000]}" if self.because else ""
        return f"{self.name[:80]} was not called: {self.by or 'a person'} denied it{why}"


class CapabilityDenied(Facts, Refused):
    """A program asked for what it was not given. Absent and not granted look the same."""

    code = "refused.capability"
    says = "{what} needs the capability {capability}, which this program was not given"

    capability: str
    what: str


class SkillToolDenied(CapabilityDenied):
    """A function that is not among the tools of every skill that was loaded."""

    code = "refused.skill.tool"

    def __init__(self, *, name: str) -> None:
        self.name = name
        super().__init__(capability=name[:80], what="a program")

    def text(self) -> str:
        return f"{self.name[:80]!r} is not among the allowed tools of a skill that was loaded"


class InvalidSessionState(Facts, Refused):
    """A session cannot do that in the state it is in. Nothing was changed."""

    code = "refused.session_state"
    says = "session {session} is {state}: {why}"

    session: str
    state: str
    why: str


class MaxExtensionsReached(Facts, Refused):
    """One more extension would pass the session's limit."""

    code = "refused.extensions"
    says = (
        "session {session} was extended {limit} times, the most it may be; once it has expired, "
        "tally session resume {session} reopens it"
    )

    session: str
    limit: int


class MaxSnapshotsReached(Facts, Refused):
    """One more snapshot would pass the session's limit."""

    code = "refused.snapshots"
    says = "the session has {limit} snapshots, the most it may; delete one first"

    limit: int


class SessionsFull(Facts, Refused):
    """Sessions keep more bytes than they may. `used` and `most` are bytes."""

    code = "refused.sessions_full"

    used: int
    most: int

    def text(self) -> str:
        return (
            f"sessions keep {self.used:,} bytes on the disk; at most {self.most:,} are allowed "
            f"(session_mb): tally session prune offers the oldest"
        )


class NotSupported(Facts, Refused):
    """The backend cannot do this, and does not pretend to."""

    code = "refused.not_supported"
    says = "the {backend} sandbox does not support {operation}"

    backend: str
    operation: str


class NotSupportedHere(Facts, Refused):
    """This operating system lacks what is needed, and nothing is done by halves."""

    code = "refused.not_supported_here"

    what: str
    instead: str = ""

    def text(self) -> str:
        hint = f"; {self.instead}" if self.instead else ""
        return (
            f"{self.what} needs file locks and owners of files, which this system does not have"
            f"{hint}"
        )


class RecursionDepthExceeded(Facts, Refused):
    """A session cannot have one more level."""

    code = "refused.depth"
    says = "session {session} is {limit} levels deep, the most it may be"

    session: str
    limit: int


class BackendError(TallystickError):
    """Something outside our code failed."""

    code = "backend"


class GuestBroken(BackendError):
    """A program broke the interpreter of its own session."""

    code = "backend.guest_broken"


class GuestMissing(BackendError):
    """The guest image cannot be used."""

    code = "backend.guest"


class ReplayDiverged(Facts, BackendError):
    """At the same place, a program asked for something else than the record says."""

    code = "backend.diverged"
    says = "host call {index}: {field} was {recorded!r} and is {now!r}"

    index: int = 0
    field: str
    recorded: object
    now: object


class ReplayStopped(Facts, BackendError):
    """A replay was stopped before its end. It says nothing against the record."""

    code = "backend.replay_stopped"
    says = (
        "the replay of run {run} was stopped at entry {seq} of {entries}: {why}; nothing differed "
        "until then. Replay the run again to know whether it holds"
    )

    run: str
    seq: int
    entries: int
    why: str
    timed_out: bool


class SandboxError(BackendError):
    """The sandbox broke. The program is not to blame."""

    code = "backend.sandbox"


class SessionBusy(BackendError):
    """Another process works in this session now."""

    code = "backend.session_busy"


class SessionExpired(Facts, BackendError):
    """The time of a session is over. Its runs, snapshots and variables are kept."""

    code = "backend.session_expired"
    says = (
        "session {session} has expired; its runs, snapshots and variables are kept: tally session "
        "resume {session} reopens it"
    )

    session: str


class SessionNotFound(Facts, BackendError):
    """No session has that id: it was never made here, or it was removed."""

    code = "backend.session_not_found"

    session: str

    def text(self) -> str:
        return f"no session {self.session[:80]!r}; tally session ls lists those there are"


class SessionNotKept(Facts, BackendError):
    """A run has ended and is in the ledger, but what its programs left could not be kept."""

    code = "backend.session_not_kept"
    says = (
        "run {run} has ended and is in the ledger, but session {session} could not keep its "
        "variables ({why}); the session stands as before the run"
    )

    session: str
    run: str
    why: str


class SnapshotMismatch(BackendError):
    """The snapshot belongs to another guest, engine or format."""

    code = "backend.snapshot_mismatch"


class SnapshotNotFound(Facts, BackendError):
    """The session has no such snapshot."""

    code = "backend.snapshot_not_found"
    says = "no snapshot {name!r} in this session"

    name: str


class StoreError(BackendError):
    """A stored file cannot be read or written."""

    code = "backend.store"


class NotASessionBook(Facts, StoreError):
    """A file that is no store of sessions."""

    code = "backend.store.other_file"
    says = "{path} is no book of sessions; nothing was changed in it"

    path: str


class SessionFormatUnknown(Facts, StoreError):
    """A store of sessions that another version wrote."""

    code = "backend.store.format"
    says = "{path} has format {found}; this version reads {known}: use the version that wrote it"

    path: str
    found: int
    known: int


def without_password(where: str) -> str:
    """Return the name of a store without the password that the address of a server may have.

    A name without one is returned as it is.
    """
    return _PASSWORD.sub(r"\1\2@", where)


class LedgerError(TallystickError):
    """The record cannot be kept or believed. Stop; it is never retried and never hidden."""

    code = "ledger"


class IllegalEvent(Facts, LedgerError):
    """An event that cannot come in this phase."""

    code = "ledger.illegal_event"
    says = "{event} while {phase}"

    event: str
    phase: str


class LedgerConflict(Facts, LedgerError):
    """Another writer appended before this one. Nothing was written."""

    code = "ledger.conflict"
    says = (
        "run {run}: another writer came first: its {field} is {found}, not {expected}; this "
        "process no longer owns the run"
    )

    run: str
    field: str
    expected: object
    found: object


class LedgerCorrupt(Facts, LedgerError):
    """A ledger file that is damaged, or was only half written."""

    code = "ledger.corrupt"
    says = "{where} is damaged: {why}; put a good copy in its place"

    where: str
    why: str


class LedgerFormatUnknown(Facts, LedgerError):
    """A ledger file that another version wrote."""

    code = "ledger.format"
    says = "{where} has format {found}; this version reads {known}: use the version that wrote it"

    where: str
    found: int
    known: int | str


class LedgerFull(Facts, LedgerError):
    """A write that the disk has no room for. Nothing of it was written."""

    code = "ledger.full"
    says = "{where} cannot grow: the disk is full; free some space, then go on"

    where: str


class LedgerLocked(Facts, LedgerError):
    """Another process held the write lock for longer than we wait."""

    code = "ledger.locked"
    says = (
        "{where} was being written by another process for {waited_seconds:g} s; try again when it "
        "is done"
    )

    where: str
    waited_seconds: float


class LedgerReadOnly(Facts, LedgerError):
    """The file or its directory may not be written."""

    code = "ledger.read_only"
    says = "{where} is read-only; make it and its directory writable for this user"

    where: str


class LedgerUnavailable(Facts, LedgerError):
    """The file cannot be opened, or the disk under it failed."""

    code = "ledger.unavailable"
    says = "{where} cannot be used: {why}; name another file, or repair the disk of this one"

    where: str
    why: str


class NotALedger(Facts, LedgerError):
    """A file that is no ledger."""

    code = "ledger.not_a_ledger"
    says = "{where} is not a ledger; nothing was changed in it: name another file"

    where: str


class RecordUnreadable(Facts, LedgerError):
    """A record is of a kind, or has a form, that this version does not know."""

    code = "ledger.record"

    run: str
    seq: int
    why: str

    def text(self) -> str:
        return (
            f"entry {self.seq} of run {self.run} cannot be read ({self.why[:200]}); a later "
            "version may have written it"
        )


class RunExists(Facts, LedgerError):
    """A run of that id is already there."""

    code = "ledger.run_exists"
    says = "run {run} is already in the ledger; a new run needs an id of its own"

    run: str


class RunNotFound(Facts, LedgerError):
    """The ledger has no run of that id."""

    code = "ledger.run_not_found"

    run: str
    advice: str = ""

    def text(self) -> str:
        return f"no run {self.run[:80]!r} in the ledger{self.advice and f'; {self.advice}'}"


class RunNotOwned(Facts, LedgerError):
    """A run that may be read here and not be resumed."""

    code = "ledger.not_owned"
    says = "run {run} {why}"

    run: str
    why: str


class TransferRefused(Facts, LedgerError):
    """An export was not written, or an import not believed. The ledger holds what it held."""

    code = "ledger.transfer"
    says = "{file}: {why}"

    file: str
    why: str


class Cancelled(BaseException):
    """The user stopped it."""

    code = "cancelled"


class CleanUpWarning(Facts, UserWarning):
    """A file that is no longer needed could not be removed. What was done is not affected."""

    code = "warning.clean_up"
    says = "{path} could not be removed: {why}; it is not needed any more"

    path: str
    why: str
