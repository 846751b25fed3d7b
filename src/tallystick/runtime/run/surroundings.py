"""Define the port of surroundings: a session or a step that a run is in.

Surroundings lower the limits of a run, pay for it, add fields to its start, and are called at its
end. A session leases its interpreter to a run; a step pays for it. Both live in packages of their
own. A run outside of both enters no file of theirs: a step sets a context variable, by which runs
that start inside it find it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.core.budget.amount import ScopeRow
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.machine.state import RunState
from tallystick.core.records import Record
from tallystick.ledger.port import Ledger
from tallystick.model.port import Model
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import RefusedCall
from tallystick.runtime.spend.scopes import ScopeRef
from tallystick.sandbox.port import Programs

if TYPE_CHECKING:
    from tallystick.runtime.run.assembly import RunContext, RunRequest


class Surroundings:
    """The surroundings of a run. These methods are those of a run that has none.

    For a new run they are called in this order: `limits`, `scopes`, `start_fields`, `share`, `wrap`
    for each function, `begin`, `before_end`, `after_end`, `result_of`. All of that is inside
    `during`. For a resume or a fork, `limits`, `start_fields`, `share` and `begin` are not called.
    A replay has no surroundings.
    """

    # The name of the sandbox that the run must have, None for any.
    backend: str | None = None
    # True if a session could not keep the variables of the run.
    session_lost = False

    @property
    def scopes(self) -> Sequence[ScopeRef]:
        """The scopes that pay for the run besides those of its client."""
        return ()

    def note_settled(self, model: str, charge: Charge) -> None:
        """Count a settled model call of the run: the name of the model, and the charge.

        Called for each call of the run and of its children, also for recorded ones of a resume. A
        child that had ended before the resume is one charge, with "" for the model.
        """

    def limits(self, asked: RunLimits) -> RunLimits:
        """Return the limits of the run, each at most what was asked for."""
        return asked

    def start_fields(self, taken: Iterable[str]) -> Mapping[str, Any]:
        """Return fields of the start of a new run. `taken` are the names of its data and tools."""
        return {}

    def share(self, run_attachments: RunAttachments) -> None:
        """Let a new run hold the attachments that it continues from, such as a snapshot."""

    def begin(self, ledger: Ledger) -> Mapping[str, Any]:
        """Return more fields of the start. Called just before the run is written."""
        return {}

    def wrap(self, function: RunFunction) -> RunFunction:
        """Return the function to call for a function of the caller."""
        return function

    def deeper(self, depth: int) -> AbstractContextManager[None]:
        """Return a context around a child run that is live at a depth, at any level below."""
        return nullcontext()

    async def before_end(self, state: RunState, programs: Programs) -> None:
        """Keep the variables or files of the run. Called before its end is written.

        A cancel does not interrupt it, so it has to end by itself. An error of it is raised to the
        caller, and the end is not written.
        """

    async def after_end(self, state: RunState) -> None:
        """Release what the run used. Called when its end is written, and before programs close.

        It is not called if driving the run raised an error, or a cancel before the run was live.
        """

    async def during(self, work: Coroutine[Any, Any, Run]) -> Run:
        """Await the work of the run. A session cancels it here if it loses its lease."""
        return await work

    def result_of(
        self, run: Run, *, refused: RefusedCall | None, rows: Callable[[], list[ScopeRow]]
    ) -> Run:
        """Return the result of the run, or raise what it means here, such as `StepBudgetError`.

        `refused` is the model call whose refusal ended the run, None if it ended otherwise. `rows`
        returns the rows of the client's scopes, for the error.
        """
        return run


NOTHING_AROUND = Surroundings()


class Within(Surroundings):
    """Two surroundings of one run: a session, and the steps around it."""

    def __init__(self, inner: Surroundings, outer: Surroundings) -> None:
        self._inner, self._outer = inner, outer
        self.backend = inner.backend or outer.backend

    @property
    def session_lost(self) -> bool:  # type: ignore[override]
        """True if a session could not keep the variables of the run."""
        return self._inner.session_lost or self._outer.session_lost

    @property
    def scopes(self) -> Sequence[ScopeRef]:
        """The scopes of both surroundings."""
        return (*self._inner.scopes, *self._outer.scopes)

    def note_settled(self, model: str, charge: Charge) -> None:
        """Count the call in both."""
        self._inner.note_settled(model, charge)
        self._outer.note_settled(model, charge)

    def limits(self, asked: RunLimits) -> RunLimits:
        """Return the limits that both allow."""
        return self._outer.limits(self._inner.limits(asked))

    def start_fields(self, taken: Iterable[str]) -> Mapping[str, Any]:
        """Return the fields of both."""
        names = list(taken)
        return {**self._outer.start_fields(names), **self._inner.start_fields(names)}

    def share(self, run_attachments: RunAttachments) -> None:
        """Let the run hold what both share."""
        self._inner.share(run_attachments)
        self._outer.share(run_attachments)

    def begin(self, ledger: Ledger) -> Mapping[str, Any]:
        """Return the fields of both."""
        return {**self._outer.begin(ledger), **self._inner.begin(ledger)}

    def wrap(self, function: RunFunction) -> RunFunction:
        """Wrap by both."""
        return self._outer.wrap(self._inner.wrap(function))

    @contextmanager
    def deeper(self, depth: int) -> Iterator[None]:
        """Count the child run in both."""
        with self._outer.deeper(depth), self._inner.deeper(depth):
            yield

    async def before_end(self, state: RunState, programs: Programs) -> None:
        """Keep what both keep, the inner first."""
        await self._inner.before_end(state, programs)
        await self._outer.before_end(state, programs)

    async def after_end(self, state: RunState) -> None:
        """Release what both used, the inner first."""
        await self._inner.after_end(state)
        await self._outer.after_end(state)

    async def during(self, work: Coroutine[Any, Any, Run]) -> Run:
        """Await the work inside both."""
        return await self._outer.during(self._inner.during(work))

    def result_of(
        self, run: Run, *, refused: RefusedCall | None, rows: Callable[[], list[ScopeRow]]
    ) -> Run:
        """Return the result that the outer makes of the result of the inner."""
        run = self._inner.result_of(run, refused=refused, rows=rows)
        return self._outer.result_of(run, refused=refused, rows=rows)


class PlacedRun(Protocol):
    """A run that is started inside a step. A context manager around the run."""

    @property
    def run(self) -> str:
        """The id of the run, new or recorded."""
        ...

    @property
    def is_recorded(self) -> bool:
        """True for a run of an earlier process, whose record names its session."""
        ...

    @property
    def around(self) -> Surroundings: ...

    def __enter__(self) -> PlacedRun: ...

    def __exit__(self, *exc: object) -> None: ...

    async def work(self, context: RunContext, request: RunRequest, around: Surroundings) -> Run:
        """Run it, or return the recorded result of an earlier process.

        `around` are the surroundings, with those of a session.
        """
        ...

    def result_for_caller(self, run: Run) -> Run:
        """Return the result for the caller. A step records a result that has no answer.

        If the step runs again, its code then gets the same result. Called after the `with`.
        """
        ...


class CallSite(Protocol):
    """A place in a program where runs are started: a step, or a chain of steps that is resumed."""

    def for_request(self, request: RunRequest, client: Asking) -> PlacedRun:
        """Return the place of a run that is started here: new, or one of an earlier process.

        The steps around it stay open until the `with` of the place ends, so the caller has to enter
        it. Raise `StepsDiverged` if the steps run again and asked for another run here, or, in a
        replay, for one that is not recorded.
        """
        ...

    def here(self, run: str) -> PlacedRun:
        """Return the place of a run that is resumed or forked here.

        The steps around it stay open until the `with` of the place ends. Raise `StepsDiverged` if
        the steps are replayed: a resume or fork is not recorded in them.
        """
        ...


class Asking(Protocol):
    """The part of a client that a call site needs."""

    @property
    def ledger(self) -> Ledger: ...

    def model_of(self, name: str | None) -> Model:
        """Return a model by its name; the client's own for None.

        Raise `UsageError` if there is none, or it cannot be opened.
        """
        ...


# Set inside a step. The function returns its call site, None once the step was left.
_HERE: ContextVar[Callable[[], CallSite | None] | None] = ContextVar(
    "tallystick_place_of_runs", default=None
)


def call_site_here() -> CallSite | None:
    """Return the call site of this context, None outside of steps."""
    find = _HERE.get()
    return None if find is None else find()


def set_call_site_finder(find: Callable[[], CallSite | None]) -> None:
    """Set the function that finds the call site for runs of this context."""
    _HERE.set(find)


class Leases(Protocol):
    """The leases on the sessions of recorded runs."""

    def again(
        self, run: str, records: Sequence[Record], *, steal: bool
    ) -> AbstractContextManager[Surroundings]:
        """Lease the session of a run that is resumed, and release it on the way out.

        Yield `NOTHING_AROUND` for a run in no session, and with `steal` also for a session that a
        living process works in. Without `steal`, raise `SessionBusy` for that one.
        """
        ...

    def finish(self, run: str, records: Sequence[Record]) -> bool:
        """Hand the variables of an ended run to its session. Return True if they are lost.

        Return False for a run in no session, or if a living process still has to finish it there.
        Raise `SessionNotKept` if a loss was not reported yet.
        """
        ...
