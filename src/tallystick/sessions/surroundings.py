"""A session around a run: who may begin one in it, its interpreter, and what the book notes.

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

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.budget.amount import BudgetExhausted, Dimension, Scope
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.errors import (
    BackendError,
    InvalidSessionState,
    LedgerError,
    SessionBusy,
    SessionNotFound,
    SessionNotKept,
    StoreError,
    UsageError,
)
from tallystick.core.machine.state import RunState
from tallystick.core.records import CONTEXT_VARIABLES, Record, RunForked, RunStarted, SessionGiven
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.run.surroundings import NOTHING_AROUND, Surroundings
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.port import Programs
from tallystick.sandbox.snapshot import Image

# Most runs are in no session: what keeps sessions is imported for those that are in one.
if TYPE_CHECKING:
    from tallystick.sessions.rows import BudgetStatus, Left, SessionInfo
    from tallystick.sessions.sessions import Sessions

# What a native session carries over, and what it cannot.
_FILES_STAY = (
    "The files that earlier programs of this session left in the working directory are still "
    "there, and so are the shell's directory and exported variables."
)
_LOOK_SECONDS = 0.5
_KEYS_CHARS_MAX = 400
# How many runs are looked at for those that are told.
_EARLIER_MAX = 20


class SessionLease(Surroundings):
    """A run inside its session, which is held as long.

    `began_with` is what the start of a new run says of the session, None of a run that is resumed.
    `left` is what the session still pays for, None without a limit.
    """

    def __init__(
        self,
        sessions: Sessions,
        *,
        session: str,
        run: str,
        began_with: SessionGiven | None = None,
        variables: Mapping[str, str] | None = None,
        backend: str | None = None,
        left: BudgetStatus | None = None,
    ) -> None:
        self.backend = backend
        self._sessions = sessions
        self.session = session
        self.run = run
        self._began_with = began_with
        self._variables = dict(variables or {})
        self._left = left
        # What the run has spent, once that is known.
        self.charge: Charge | None = None
        # Why what its programs left could not be kept, and whether something newer is there.
        self.not_kept: SessionNotKept | None = None
        self.session_lost = False
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

        `values` are its variables as JSON, see `tallystick.sandbox.wasm.variables`.
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
            self.session_lost = not self._sessions.book.kept.leave(self.session, self._prepared)
        except SessionNotFound:
            pass  # It was removed, and is let go of here.
        finally:
            # Also what an earlier process left half done.
            self._sessions.free(self.session)

    # -- what stands around the run ------------------------------------------------------------

    def limits(self, asked: RunLimits) -> RunLimits:
        """Return the limits, at most what the session has left."""
        return asked if self._left is None else _within(asked, self._left, self.session)

    def start_fields(self, taken: Iterable[str]) -> Mapping[str, Any]:
        """Give the variables and the session of the start."""
        if self._began_with is None:
            return {}
        if CONTEXT_VARIABLES in set(taken):
            raise UsageError(
                f"{CONTEXT_VARIABLES}: a run in a session has its variables under that name; use "
                f"another"
            )
        # In the order in which the record gives them back.
        values: dict[str, object] = {CONTEXT_VARIABLES: dict(sorted(self._variables.items()))}
        return {"values": values, "session": self._began_with}

    def share(self, run_attachments: RunAttachments) -> None:
        """Have the run hold the interpreter that it goes on with, with its first records."""
        if self._began_with is None or self._began_with.image is None:
            return
        try:
            run_attachments.share([self._began_with.image])
        except AttachmentError as error:
            raise StoreError(
                f"session {self.session}: its interpreter cannot be read ({error}); restore one of "
                f"its snapshots (tally snapshot ls {self.session})"
            ) from error

    async def before_end(self, state: RunState, programs: Programs) -> None:
        """Keep the interpreter: whoever dies before the end is written loses nothing.

        That it cannot be kept does not take the run its end; `after_end` says it after that.
        """
        try:
            image = await programs.image()
            if image is not None:
                await asyncio.to_thread(
                    lambda: self.prepare(image.image, names=image.names, values=image.values)
                )
        except asyncio.CancelledError:
            self.not_kept = SessionNotKept(
                session=self.session, run=self.run, why="the client was closed"
            )
            raise
        except (BackendError, LedgerError) as error:
            self.not_kept = SessionNotKept(
                session=self.session, run=self.run, why=str(error)
            ).with_traceback(error.__traceback__)

    async def after_end(self, state: RunState) -> None:
        """Leave to the session what was prepared: the run has its end.

        A run without programs has changed nothing. Raises `SessionNotKept` if it could not be kept.
        """
        self.charge = state.charge
        if self.not_kept is not None:
            raise self.not_kept
        # Nothing is lost if this fails: whoever uses the session next does it.
        with contextlib.suppress(LedgerError):
            await asyncio.to_thread(self.keep)

    async def during(self, work: Coroutine[Any, Any, Run]) -> Run:
        """Do the work, and cancel it if somebody removes the session: it writes that down."""
        task = asyncio.ensure_future(work)
        cancelled = False
        while not task.done():
            try:
                await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            except asyncio.CancelledError:
                # Whoever cancels us means the work. What it makes of that is returned.
                task.cancel()
            if not cancelled and not task.done() and self.gone:
                cancelled = True
                task.cancel()
        return task.result()

    def over(self) -> None:
        """The run is left. What it spent is noted, also if it died of something."""
        lost = self.session_lost or self.not_kept is not None
        self._sessions.end_run(self.session, self.run, charge=self.charge, lost=lost)


@contextlib.contextmanager
def entered_session(sessions: Sessions, named: str, run: str) -> Iterator[SessionLease]:
    """Hold the session of a run that begins. What is refused is refused before it is written."""
    session = sessions.find(named)
    book = sessions.book
    book.validate(session)
    with book.hold(session):
        sessions.check_kept(session)
        info = book.validate(session)
        _within(RunLimits(), info.budget_status, session)
        lease = SessionLease(
            sessions,
            session=session,
            run=run,
            began_with=_given(sessions, info),
            variables=info.context_variables,
            backend=info.backend,
            left=info.budget_status,
        )
        book.kept.begin_run(session, run)
        try:
            yield lease
        finally:
            lease.over()


class SessionLeases:
    """The sessions of recorded runs, for whoever resumes them."""

    def __init__(self, sessions: Callable[[], Sessions]) -> None:
        self._sessions = sessions

    @contextlib.contextmanager
    def again(self, run: str, records: Sequence[Record], *, steal: bool) -> Iterator[Surroundings]:
        """Hold the session of a run that is resumed, if it has one that is here.

        An expired one is reopened. Raises `BudgetExhausted` if its other runs have used it up.
        """
        given = _session_of(records)
        if given is None:
            yield NOTHING_AROUND
            return
        try:
            kept = self._sessions()
            kept.book.reopen(given.session)
        except (SessionNotFound, InvalidSessionState, UsageError):
            # Removed since, or the run was imported: it can be resumed all the same.
            yield NOTHING_AROUND
            return
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(kept.book.hold(given.session))
            except SessionBusy:
                if not steal:
                    raise
                yield NOTHING_AROUND
                return
            kept.check_kept(given.session)
            _check_others(kept, given.session, run)
            kept.book.kept.begin_run(given.session, run)
            lease = SessionLease(kept, session=given.session, run=run)
            stack.callback(lease.over)
            yield lease

    def finish(self, run: str, records: Sequence[Record]) -> bool:
        """Finish in its session a run that has its end. Tell whether its variables are lost there.

        Raises `SessionNotKept` where nobody has said so yet.
        """
        given = _session_of(records)
        if given is None:
            return False
        try:
            kept = self._sessions()
            if kept.is_unfinished(given.session):
                with kept.book.hold(given.session):
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
