"""Connect a run to its session: who may start one, its interpreter, and what the book notes.

Rule 1: what a run has from its session is in its first record: the image, the variables, the
summary of earlier runs. Replay, resume and fork read it there, and never in the book.
Rule 2: one run at a time. A second one is refused with `SessionBusy`.
Rule 3: a resumed run leaves its interpreter to the session only if the one it began with was not
replaced since. Otherwise its variables are noted as lost. A fork leaves none, because it is a
different course of events.
Rule 4: what a run leaves is on the disk before its end is recorded. If the process dies in between,
the next client of the session, or a resume of the run, finishes the work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.budget.amount import BudgetExhausted, Dimension, Scope
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.errors import (
    BackendError,
    LedgerError,
    RecursionDepthExceeded,
    SessionBusy,
    SessionNotFound,
    SessionNotKept,
    SessionsFull,
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

# Most runs are in no session, so the modules of sessions are imported only for those that are.
if TYPE_CHECKING:
    from tallystick.sessions.rows import BudgetStatus, Left, SessionInfo
    from tallystick.sessions.sessions import Sessions

# Shown to the model, for sessions of native programs.
_FILES_STAY = (
    "The files that earlier programs of this session left in the working directory are still "
    "there, and so are the shell's directory and exported variables."
)
# How often a run checks that its session still exists. It polls, because the session may be removed
# by another process, which cannot signal this one.
_LOOK_SECONDS = 0.5
_KEYS_CHARS_MAX = 400
# The number of last runs from which the summary for the model is made.
_EARLIER_MAX = 20


class SessionLease(Surroundings):
    """A run inside its session, which is locked meanwhile.

    `began_with` is the part of a new run's first record about the session, None for a resumed run.
    `left` is what the session can still pay for, None without a limit.
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
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.backend = backend
        self._sessions = sessions
        self.session = session
        self.run = run
        self._began_with = began_with
        self._variables = dict(variables or {})
        self._remaining = left
        self._say = say
        self._said = False
        # How many child runs are live at each depth, and the depth that the book has.
        self._live: Counter[int] = Counter()
        self._depth = 0
        # The spending of the run, once it is known.
        self.charge: Charge | None = None
        # The error if the interpreter could not be stored; and whether a newer one is there.
        self.not_kept: SessionNotKept | None = None
        self.session_lost = False
        self._prepared: Left | None = None

    @property
    def gone(self) -> bool:
        """True if the session was removed or terminated; False if the book cannot be read."""
        try:
            return self._sessions.book.get(self.session).state == "terminated"
        except SessionNotFound:
            return True
        except StoreError:
            return False

    def prepare(self, image: Image | bytes, *, names: str, values: bytes | None = None) -> None:
        """Store an interpreter that becomes the session's once the run has its end.

        `values` are its variables as JSON, see `tallystick.sandbox.wasm.variables`. If the session
        was removed, the image is released again and nothing is raised.
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
            # The session was removed, so the image has to go too.
            self._sessions.free(self.session)

    def keep(self) -> None:
        """Make what was prepared the session's, if still allowed. The run must have its end.

        `session_lost` is True after it if that was not allowed. A session that was removed raises
        nothing.
        """
        if self._prepared is None:
            return
        try:
            self.session_lost = not self._sessions.book.kept.leave(self.session, self._prepared)
        except SessionNotFound:
            pass  # The session was removed: `free` releases the image.
        finally:
            # Also releases what an earlier process left behind.
            self._sessions.free(self.session)

    # -- the port of surroundings --------------------------------------------------------------

    def limits(self, asked: RunLimits) -> RunLimits:
        """Return the limits, with tokens and time at most what the session has left.

        Nor is the depth greater than that of a session.
        Raise `BudgetExhausted` if nothing is left.
        """
        return asked if self._remaining is None else _within(asked, self._remaining, self.session)

    def start_fields(self, taken: Iterable[str]) -> Mapping[str, Any]:
        """Return the variables and the session for the first record; nothing for a resumed run.

        Raise `UsageError` if an input has the name of the variables.
        """
        if self._began_with is None:
            return {}
        if CONTEXT_VARIABLES in set(taken):
            raise UsageError(
                f"{CONTEXT_VARIABLES}: a run in a session has its variables under that name; use "
                f"another"
            )
        # Sorted, because a replay reads them from the record in this order.
        values: dict[str, object] = {CONTEXT_VARIABLES: dict(sorted(self._variables.items()))}
        return {"values": values, "session": self._began_with}

    def share(self, run_attachments: RunAttachments) -> None:
        """Have the run hold the interpreter that it begins with, together with its first records.

        Raise `StoreError` if the interpreter cannot be read.
        """
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
        """Store the interpreter, so that a crash before the end is recorded loses nothing.

        A failure of the backend or a store does not prevent the end of the run: `after_end` raises
        it after that, as `SessionNotKept`. A cancellation is raised here.
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
        """Make the stored interpreter the session's, now that the run has its end.

        Note what the run has spent. A run without programs has changed nothing. Raise
        `SessionNotKept` if it could not be stored. A ledger that fails here is ignored: the next
        client of the session does the rest.
        """
        self.charge = state.charge
        if self.not_kept is not None:
            raise self.not_kept
        # Nothing is lost if this fails: the next client of the session does it.
        with contextlib.suppress(LedgerError):
            await asyncio.to_thread(self.keep)

    async def during(self, work: Coroutine[Any, Any, Run]) -> Run:
        """Do the work, and cancel it if the session is removed; the work records that itself.

        The session is looked up every 0.5 s. A cancellation of this call cancels the work, and the
        result of the work is returned or raised.
        """
        task = asyncio.ensure_future(work)
        cancelled = False
        while not task.done():
            try:
                await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            except asyncio.CancelledError:
                # A cancellation of this call is meant for the work, and its result is returned.
                task.cancel()
            if not cancelled and not task.done() and self.gone:
                cancelled = True
                task.cancel()
        return task.result()

    @contextlib.contextmanager
    def deeper(self, depth: int) -> Iterator[None]:
        """Count a child run as live at a depth while inside. The session has the greatest one."""
        self._live[depth] += 1
        self._note_depth()
        try:
            yield
        finally:
            self._live[depth] -= 1
            self._note_depth()

    def _note_depth(self) -> None:
        deepest = max((depth for depth, live in self._live.items() if live), default=0)
        # The depth is for people who look at the session: a book that cannot be written, or a
        # session that is gone, does not end the run.
        with contextlib.suppress(RecursionDepthExceeded, SessionNotFound, StoreError):
            while self._depth != deepest:
                if self._depth < deepest:
                    self._sessions.book.increase_depth(self.session)
                    self._depth += 1
                else:
                    self._sessions.book.decrease_depth(self.session)
                    self._depth -= 1

    def say_if_ending(self) -> None:
        """Tell the person once that the session is in the last tenth of its period."""
        with contextlib.suppress(SessionNotFound, StoreError):
            book = self._sessions.book
            info, now = book.get(self.session), book.now()
            if info.is_ending(now) and not self._said:
                self._said = True
                left = max(0, info.expires_at - now) // 1_000
                how = f"tally session extend {self.session}"
                if info.period is not None and info.extension_count == info.period.extensions_max:
                    how = f"tally session resume {self.session} --expires never"
                self._say(
                    f"session {self.session} expires in {left // 60} min {left % 60} s; what it "
                    f"keeps stays; for more time: {how}"
                )

    def over(self) -> None:
        """Note what the run spent, also if it failed. Called when the run is left."""
        lost = self.session_lost or self.not_kept is not None
        self._sessions.end_run(self.session, self.run, charge=self.charge, lost=lost)
        self._sessions.free_if_terminated(self.session)
        self.say_if_ending()


@contextlib.contextmanager
def enter_session(
    sessions: Sessions, named: str, run: str, *, say: Callable[[str], None] = lambda line: None
) -> Iterator[SessionLease]:
    """Lock the session of a new run. Whatever refuses the run is checked before it is recorded.

    `named` is as in `Sessions.find`, whose errors are raised. Raise `SessionBusy` if another run is
    in it, and `BudgetExhausted` if its budget is used up. Raise `SessionNotKept`, once, if an
    earlier run's variables are lost. A session that cannot be used raises the errors of
    `require_usable`. At the end, what the run spent is noted. `say` is told if the session is in
    the last tenth of its period, or if sessions keep more on the disk than they may.
    """
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
            began_with=_describe_session(sessions, info),
            variables=info.context_variables,
            backend=info.backend,
            left=info.budget_status,
            say=say,
        )
        book.kept.begin_run(session, run)
        lease.say_if_ending()
        try:
            sessions.check_room()
        except SessionsFull as full:
            # The run replaces what its session keeps, so it may go on. A new session may not.
            say(str(full))
        try:
            yield lease
        finally:
            lease.over()


class SessionLeases:
    """The sessions of recorded runs that are resumed."""

    def __init__(self, sessions: Callable[[], Sessions]) -> None:
        self._sessions = sessions

    @contextlib.contextmanager
    def again(self, run: str, records: Sequence[Record], *, steal: bool) -> Iterator[Surroundings]:
        """Lock the session of a run that is resumed, if it has one here, and yield its lease.

        Yield `NOTHING_AROUND` for a fork, a run in no session, or a session that was removed or
        terminated. With `steal`, yield it also for a session that is in use. An expired session is
        reopened. Raise `InvalidSessionState` if it is paused, `BudgetExhausted` if its other runs
        have used it up, `SessionNotKept` as `check_kept` does, and `SessionBusy` if it is in use.
        """
        given = _session_of(records)
        if given is None:
            yield NOTHING_AROUND
            return
        try:
            kept = self._sessions()
            state = kept.book.get(given.session).state
        except (SessionNotFound, UsageError):
            # The session was removed, or the run was imported: it is resumed without a session.
            state = "terminated"
        if state == "terminated":
            yield NOTHING_AROUND
            return
        if state == "expired":
            kept.book.reopen(given.session)
        else:
            # Raises if it is paused: what was paused by a person is resumed by one.
            kept.book.validate(given.session)
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
        """Finish an ended run in its session. Return True if its variables are lost there.

        Return False for a run in no session, or in one that was removed or is not here. If runs of
        the session are not noted as ended, return it also while a client works there: that client
        finishes this run itself. Raise `SessionNotKept` if a loss was not reported yet.
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
            # The session was removed, the run was imported, or a client works in the session and
            # finishes this run itself.
            return False


def _session_of(records: Sequence[Record]) -> SessionGiven | None:
    """Return the session that a run leaves its interpreter to; None if there is none."""
    started = records[0]
    if not isinstance(started, RunStarted) or any(isinstance(each, RunForked) for each in records):
        return None
    return started.session


def _describe_session(sessions: Sessions, info: SessionInfo) -> SessionGiven:
    from tallystick.sessions.sessions import summary_of

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
        told=summary_of(sessions.history(info.id)[-_EARLIER_MAX:]),
        has="\n".join(has),
    )


def _check_others(sessions: Sessions, session: str, run: str) -> None:
    """Raise `BudgetExhausted` if the other runs have used up the budget of the session."""
    status = sessions.book.get(session).budget_status
    others = [each for each in sessions.runs(session) if each.run != run]
    _remaining(sum(each.tokens for each in others), status.token_budget, "tokens", session)
    _remaining(sum(each.wall_ms for each in others), status.time_budget_ms, "wall_ms", session)


def _within(limits: RunLimits, status: BudgetStatus, session: str) -> RunLimits:
    """Return the limits of a run, with tokens and time at most what its session has left.

    Raise `BudgetExhausted` if nothing is left.
    """
    tokens = _remaining(status.tokens_used, status.token_budget, "tokens", session)
    wall_ms = _remaining(status.time_used_ms, status.time_budget_ms, "wall_ms", session)
    return msgspec.structs.replace(
        limits,
        depth=min(limits.depth, status.max_recursion_depth),
        tokens=limits.tokens if tokens is None else min(limits.tokens, tokens),
        wall_ms=limits.wall_ms if wall_ms is None else min(limits.wall_ms, wall_ms),
    )


def _remaining(used: int, budget: int | None, dimension: Dimension, session: str) -> int | None:
    if budget is None:
        return None
    if used >= budget:
        scope = Scope(id=session, parent=None, kind="session", name=session)
        raise BudgetExhausted(dimension=dimension, scope=scope, needed=1, left=0)
    return budget - used
