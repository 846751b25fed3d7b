"""Runs in sessions: who may begin one, the interpreter it goes on with, and what the book notes.

Rule 1: what a run has from its session is in its start: the image, the variables, what was told. A
replay, a resume and a fork read it there, and never the book.
Rule 2: one run at a time. Whoever comes second is refused by name.
Rule 3: a run that is gone on with leaves its interpreter only where nobody has replaced since what
it began with; else its variables are noted as lost. A fork leaves none: it is another course of
things.
Rule 4: what a run leaves is on the disk before its end is written. Whoever uses the session next,
or resumes the run, finishes what a process left half done that died in between.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.budget.amount import BudgetExhausted, Dimension, Scope
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.clock import FIXED_CLOCK_NS
from tallystick.core.errors import (
    BackendError,
    InvalidSessionState,
    LedgerError,
    SessionBusy,
    SessionNotFound,
    SessionNotKept,
    SnapshotMismatch,
    StoreError,
    UsageError,
)
from tallystick.core.machine.state import RunState
from tallystick.core.records import CONTEXT_VARIABLES, Record, RunForked, RunStarted, SessionGiven
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import Input, RunInputs
from tallystick.runtime.programs.native import NativeSession
from tallystick.runtime.programs.wasm import WasmPrograms
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext, Limits
from tallystick.sandbox.snapshot import Image, unpacked

# Most runs are in no session: what keeps sessions is imported for those that are in one.
if TYPE_CHECKING:
    from tallystick.runtime.run.assembly import RunJob
    from tallystick.sandbox.process.session import Saved
    from tallystick.sandbox.wasm.sandbox import WasmSession
    from tallystick.sessions.rows import BudgetStatus, Left, SessionInfo
    from tallystick.sessions.sessions import Sessions
    from tallystick.steps.runs import RunSteps

# What a native session carries over, and what it cannot.
_FILES_STAY = (
    "The files that earlier programs of this session left in the working directory are still "
    "there, and so are the shell's directory and exported variables."
)
_LOOK_SECONDS = 0.5
_KEYS_CHARS_MAX = 400
# How many runs are looked at for those that are told.
_EARLIER_MAX = 20


class SessionLease:
    """A run inside its session, which is held as long. `charge` is what it has spent, once known.

    `given` is what its start says of the session, None of a run that is gone on with.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        session: str,
        run: str,
        given: SessionGiven | None = None,
        variables: Mapping[str, str] | None = None,
        backend: str = "wasm",
    ) -> None:
        self.backend = backend
        self._sessions = sessions
        self.session = session
        self.run = run
        self.given = given
        self.variables = dict(variables or {})
        self.charge: Charge | None = None
        # Why what its programs left could not be kept, and whether something newer is there.
        self.not_kept: SessionNotKept | None = None
        self.overtaken = False
        self._prepared: Left | None = None

    @property
    def gone(self) -> bool:
        """Whether somebody has removed the session."""
        try:
            self._sessions.book.get(self.session)
        except SessionNotFound:
            return True
        except StoreError:
            return False
        return False

    def prepare(self, image: Image | bytes, *, names: str, values: bytes | None = None) -> None:
        """Put an interpreter on the disk that is the session's once the run has its end.

        `values` are its variables as JSON, see `tallystick.sessions.values`.
        """
        from tallystick.sessions.rows import Left

        images = self._sessions.images
        ref = images.keep(self.session, run=self.run, image=image)
        kept = None if values is None else images.keep_values(self.session, values)
        left = Left(image=ref, run=self.run, names=names, values=kept)
        try:
            self._sessions.book.kept.prepare(self.session, left)
            self._prepared = left
        except SessionNotFound:
            # It was removed, and the image with it.
            self._sessions.free(self.session)

    def keep(self) -> None:
        """Make what was prepared the session's, if it still may be. The run has its end."""
        if self._prepared is None:
            return
        try:
            self.overtaken = not self._sessions.book.kept.leave(self.session, self._prepared)
        except SessionNotFound:
            pass  # It was removed, and is let go of here.
        finally:
            # Also what an earlier process left half done.
            self._sessions.free(self.session)

    def over(self) -> None:
        """The run is left. What it spent is noted, also if it died of something."""
        lost = self.overtaken or self.not_kept is not None
        self._sessions.end_run(self.session, self.run, charge=self.charge, lost=lost)


async def run_in_session(
    sessions: Callable[[], Sessions] | None,
    job: RunJob,
    steps: RunSteps,
    work: Callable[[RunJob], Coroutine[Any, Any, Run]],
) -> Run:
    """Do the work of a run, inside the session that it names, if it names one.

    One of an earlier life knows its session itself. The session is looked for first: what is
    refused is refused before anything is written.
    """
    if job.session is None or steps.recorded is not None:
        return await work(job)
    assert sessions is not None
    with contextlib.ExitStack() as stack:
        try:
            lease, limits = stack.enter_context(_entered(sessions(), job, steps.run))
        except BaseException:
            with steps:  # Whoever does the work would have let go of them.
                raise
        return await watched_by_session(
            lease, work(dataclasses.replace(job, limits=limits, lease=lease))
        )


@contextlib.contextmanager
def lease_again(
    sessions: Callable[[], Sessions] | None, run: str, records: Sequence[Record], *, steal: bool
) -> Iterator[SessionLease | None]:
    """The session of a run that is gone on with, held; None if it has none, or none here.

    An expired one is reopened. Raises `BudgetExhausted` if its other runs have used it up.
    """
    given = _session_of(records)
    if given is None or sessions is None:
        yield None
        return
    try:
        kept = sessions()
        kept.book.reopen(given.session)
    except (SessionNotFound, InvalidSessionState, UsageError):
        # Removed since, or the run was imported: it can be gone on with all the same.
        yield None
        return
    from tallystick.sessions.sessions import held_session

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held_session(kept.book.path, given.session))
        except SessionBusy:
            if not steal:
                raise
            yield None
            return
        kept.check_kept(given.session)
        _check_others(kept, given.session, run)
        kept.book.kept.begin_run(given.session, run)
        lease = SessionLease(kept, session=given.session, run=run)
        stack.callback(lease.over)
        yield lease


@contextlib.contextmanager
def _entered(sessions: Sessions, job: RunJob, run: str) -> Iterator[tuple[SessionLease, RunLimits]]:
    from tallystick.sessions.sessions import held_session

    assert job.session is not None
    session = sessions.find(job.session)
    book = sessions.book
    book.validate(session)
    with held_session(book.path, session):
        sessions.check_kept(session)
        info = book.validate(session)
        limits = _within(job.limits, info.budget_status, session)
        given = _given(sessions, info)
        book.kept.begin_run(session, run)
        lease = SessionLease(
            sessions,
            session=session,
            run=run,
            given=given,
            variables=info.context_variables,
            backend=info.backend,
        )
        try:
            yield lease, limits
        finally:
            lease.over()


def finish_session(
    sessions: Callable[[], Sessions] | None, run: str, records: Sequence[Record]
) -> bool:
    """Finish in its session a run that has its end. Say whether its variables are lost there.

    Raises `SessionNotKept` where nobody has said so yet.
    """
    given = _session_of(records)
    if given is None or sessions is None:
        return False
    from tallystick.sessions.sessions import held_session

    try:
        kept = sessions()
        if kept.is_unfinished(given.session):
            with held_session(kept.book.path, given.session):
                kept.check_kept(given.session)
        return any(each.lost for each in kept.book.kept.runs(given.session) if each.run == run)
    except (SessionNotFound, UsageError, SessionBusy):
        # Removed since, imported, or finished by the client that works in it.
        return False


def _session_of(records: Sequence[Record]) -> SessionGiven | None:
    """Return the session that a run leaves its interpreter to, None for none."""
    started = records[0]
    if not isinstance(started, RunStarted) or any(isinstance(each, RunForked) for each in records):
        return None
    return started.session


def _given(sessions: Sessions, info: SessionInfo) -> SessionGiven:
    from tallystick.sessions.sessions import told_of

    has = []
    if info.backend != "wasm" and info.left.image is not None:
        has.append(_FILES_STAY)
    if info.left.names:
        has.append(
            f"Earlier programs of this session left variables, which are still there: "
            f"{info.left.names}."
        )
    if info.context_variables:
        keys = ", ".join(repr(key) for key in sorted(info.context_variables))
        keys = keys if len(keys) <= _KEYS_CHARS_MAX else f"{keys[:_KEYS_CHARS_MAX]} ..."
        has.append(f"`{CONTEXT_VARIABLES}` is a dict of texts with the keys {keys}.")
    return SessionGiven(
        session=info.id,
        image=info.left.image,
        run=info.left.run,
        told=told_of(sessions.history(info.id)[-_EARLIER_MAX:]),
        has="\n".join(has),
    )


def _check_others(sessions: Sessions, session: str, run: str) -> None:
    """Refuse to go on with a run if the others have used up what its session may spend."""
    status = sessions.book.get(session).budget_status
    others = [each for each in sessions.runs(session) if each.run != run]
    _left(sum(each.tokens for each in others), status.token_budget, "tokens", session)
    _left(sum(each.wall_ms for each in others), status.time_budget_ms, "wall_ms", session)


def _within(limits: RunLimits, status: BudgetStatus, session: str) -> RunLimits:
    """The limits of a run, at most what its session has left."""
    tokens = _left(status.tokens_used, status.token_budget, "tokens", session)
    wall_ms = _left(status.time_used_ms, status.time_budget_ms, "wall_ms", session)
    return msgspec.structs.replace(
        limits,
        tokens=limits.tokens if tokens is None else min(limits.tokens, tokens),
        wall_ms=limits.wall_ms if wall_ms is None else min(limits.wall_ms, wall_ms),
    )


def _left(used: int, budget: int | None, dimension: Dimension, session: str) -> int | None:
    if budget is None:
        return None
    if used >= budget:
        scope = Scope(id=session, parent=None, kind="session", name=session)
        raise BudgetExhausted(dimension=dimension, scope=scope, needed=1, left=0)
    return budget - used


async def watched_by_session(lease: SessionLease | None, work: Coroutine[Any, Any, Run]) -> Run:
    """Do the work, and cancel it if somebody removes the session: it writes that down and ends."""
    if lease is None:
        return await work
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
        except asyncio.CancelledError:
            # Whoever cancels us means the work. What it makes of that is returned.
            task.cancel()
        if not cancelled and not task.done() and lease.gone:
            cancelled = True
            task.cancel()
    return task.result()


# The interpreter of a run in a session: loaded from what its start names, and kept at its end.


_NAMES_CHARS_MAX = 400
_NAMES_MS_MAX = 2_000
_NAMES_FUEL = 5_000_000_000
_LISTED, _NONE = "Variables: ", "none yet"


def given_in_session(
    given: RunInputs,
    lease: SessionLease | None,
    *,
    inputs: Iterable[Input],
    functions: Iterable[RunFunction],
) -> tuple[RunInputs, dict[str, object], SessionGiven | None]:
    """What a run in a session is given: the data, the values and the session of its start."""
    if lease is None:
        return given, {}, None
    taken = {each.variable for each in inputs}
    taken |= {each.name.partition(".")[0] for each in functions}
    if CONTEXT_VARIABLES in taken:
        raise UsageError(
            f"{CONTEXT_VARIABLES}: a run in a session has its variables under that name; use "
            f"another"
        )
    # In the order in which the record gives them back.
    variables = dict(sorted(lease.variables.items()))
    values: dict[str, object] = {CONTEXT_VARIABLES: variables}
    return dataclasses.replace(given, values={**values, **given.values}), values, lease.given


def share_image(lease: SessionLease | None, run_attachments: RunAttachments) -> None:
    """Have a run that begins hold the interpreter that it goes on with, with its first records."""
    if lease is None or lease.given is None or lease.given.image is None:
        return
    try:
        run_attachments.share([lease.given.image])
    except AttachmentError as error:
        raise StoreError(
            f"session {lease.session}: its interpreter cannot be read ({error}); restore one of "
            f"its snapshots (tally snapshot ls {lease.session})"
        ) from error


async def load_image(
    session: WasmSession, started: RunStarted, run_attachments: RunAttachments
) -> None:
    """Put a run's interpreter to where its session stood when it began."""
    given = started.session
    ref = None if given is None else given.image
    if given is None or ref is None:
        return
    try:
        _, image = await asyncio.to_thread(lambda: unpacked([run_attachments.read(ref)]))
    except AttachmentError as error:
        raise StoreError(
            f"the interpreter that the run began with, of session {given.session}, cannot be "
            f"read: {error}"
        ) from error
    if started.clock_ns != FIXED_CLOCK_NS:
        # The image has the time of the last run. One that starts at a fixed time continues it.
        image = msgspec.structs.replace(image, state={**image.state, "clock": started.clock_ns})
    try:
        await session.load(image)
    except SnapshotMismatch as error:
        raise SnapshotMismatch(
            f"session {given.session} was left by another version ({error}); its runs are kept: "
            f"go on with that version, or start a new session from its values (tally session "
            f"export {given.session} >values.json, tally session new --from values.json)"
        ) from error


def keep_before_end(
    lease: SessionLease | None, programs: WasmPrograms | NativeSession
) -> Callable[[RunState], Awaitable[None]] | None:
    """Return what keeps the interpreter of a run that is about to end, None outside of sessions.

    It is on the disk before the end of the run: whoever dies in between loses nothing. That it
    cannot be kept does not take the run its end; `leave_session` says it after that.
    """
    if lease is None:
        return None

    async def prepare(state: RunState) -> None:
        try:
            if isinstance(programs, NativeSession):
                await _prepare_native(lease, programs)
            elif state.charge.fuel:
                session = programs.session
                image = await session.image()
                names = await variable_names(session)
                from tallystick.sessions.values import record_values

                values = await record_values(session)
                await asyncio.to_thread(lambda: lease.prepare(image, names=names, values=values))
        except (BackendError, LedgerError) as error:
            lease.not_kept = SessionNotKept(
                session=lease.session, run=lease.run, why=str(error)
            ).with_traceback(error.__traceback__)

    return prepare


async def leave_session(lease: SessionLease | None, state: RunState) -> None:
    """Leave what a run prepared to the session: the run has its end.

    A run without programs has changed nothing. Raises `SessionNotKept` if it could not be kept.
    """
    if lease is None:
        return
    lease.charge = state.charge
    if lease.not_kept is not None:
        raise lease.not_kept
    # Nothing is lost if this fails: whoever uses the session next does it.
    with contextlib.suppress(LedgerError):
        await asyncio.to_thread(lease.keep)


async def _prepare_native(lease: SessionLease, session: NativeSession) -> None:
    """Keep the files of a run for the next one, the shell's state and variables.

    Variables that cannot be kept are named.
    """
    if not session.changed:
        return
    saved = await session.saved()
    raw = await asyncio.to_thread(session.archive, saved)
    names = _native_names(saved)
    await asyncio.to_thread(lambda: lease.prepare(raw, names=names))


def _native_names(saved: Saved) -> str:
    kept = ", ".join(sorted({*saved.kept, *saved.imported}))[:_NAMES_CHARS_MAX]
    refused = ", ".join(sorted(saved.refused))[:_NAMES_CHARS_MAX]
    return f"{kept or 'no variables'}; not kept: {refused}" if refused else kept


async def variable_names(session: WasmSession) -> str:
    """Return the names and types of the variables, in short. Call it after the image was taken."""
    result = await session.execute(
        "SHOW_VARS()",
        context=ExecutionContext(
            session_id=session.session_id,
            timeout_ms=_NAMES_MS_MAX,
            deadline_ms=_NAMES_MS_MAX,
            limits=Limits(fuel=_NAMES_FUEL, host_calls=0),
        ),
        host=HostTable(answering=True),
    )
    try:
        said = ast.literal_eval(result.value or "''")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ""
    if not isinstance(said, str) or not said.startswith(_LISTED):
        return ""
    listed = " ".join(said.removeprefix(_LISTED).split())
    if listed == _NONE:
        return ""
    if len(listed) > _NAMES_CHARS_MAX:
        return f"{listed[: _NAMES_CHARS_MAX - 4]} ..."
    return listed
