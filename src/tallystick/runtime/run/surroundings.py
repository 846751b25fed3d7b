"""The port of surroundings: what stands around a run, and has a word on its limits and its end.

A session leases its interpreter to a run, and steps of a host program pay for it and hear of it.
Both live in packages of their own. A run that has neither enters no file of theirs: what stands
around a place in a program says so by a context variable that it sets itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
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
    """What stands around a run. Each method has the answer where nothing does."""

    # The sandbox that the run has to have, None for any.
    backend: str | None = None
    # Whether a session does not keep what the run left.
    session_lost = False

    @property
    def scopes(self) -> Sequence[ScopeRef]:
        """The scopes that pay for the run beside its client's."""
        return ()

    def settled(self, model: str, charge: Charge) -> None:
        """Hear of a model call that was settled."""

    def limits(self, asked: RunLimits) -> RunLimits:
        """Return the limits of the run, at most those that were asked for."""
        return asked

    def given(self, taken: Iterable[str]) -> Mapping[str, Any]:
        """Return fields of the start of a new run. `taken` are names that its programs find."""
        return {}

    def share(self, run_attachments: RunAttachments) -> None:
        """Have a run that begins hold what it goes on with, with its first records."""

    def begin(self, ledger: Ledger) -> Mapping[str, Any]:
        """Hear that the run is about to be written. Gives more fields of its start."""
        return {}

    def wrap(self, function: RunFunction) -> RunFunction:
        """Return a function of the caller's as programs call it here."""
        return function

    async def before_end(self, state: RunState, programs: Programs) -> None:
        """Keep what the run leaves, before its end is written."""

    async def left(self, state: RunState) -> None:
        """Hear that the run has its end."""

    async def during(self, work: Coroutine[Any, Any, Run]) -> Run:
        """Do the work of the run, which may be cancelled from here."""
        return await work

    def ended(
        self, run: Run, *, refused: RefusedCall | None, rows: Callable[[], list[ScopeRow]]
    ) -> Run:
        """Return the run, or raise what it means here. `refused` is the call it ended by."""
        return run


NOTHING_AROUND = Surroundings()


class Within(Surroundings):
    """Two surroundings of one run: a session, and the steps around it."""

    def __init__(self, inner: Surroundings, outer: Surroundings) -> None:
        self._inner, self._outer = inner, outer
        self.backend = inner.backend or outer.backend

    @property
    def session_lost(self) -> bool:  # type: ignore[override]
        """Whether a session does not keep what the run left."""
        return self._inner.session_lost or self._outer.session_lost

    @property
    def scopes(self) -> Sequence[ScopeRef]:
        """The scopes of both."""
        return (*self._inner.scopes, *self._outer.scopes)

    def settled(self, model: str, charge: Charge) -> None:
        """Tell both."""
        self._inner.settled(model, charge)
        self._outer.settled(model, charge)

    def limits(self, asked: RunLimits) -> RunLimits:
        """Return what both leave."""
        return self._outer.limits(self._inner.limits(asked))

    def given(self, taken: Iterable[str]) -> Mapping[str, Any]:
        """Return the fields of both."""
        names = list(taken)
        return {**self._outer.given(names), **self._inner.given(names)}

    def share(self, run_attachments: RunAttachments) -> None:
        """Have both share."""
        self._inner.share(run_attachments)
        self._outer.share(run_attachments)

    def begin(self, ledger: Ledger) -> Mapping[str, Any]:
        """Tell both."""
        return {**self._outer.begin(ledger), **self._inner.begin(ledger)}

    def wrap(self, function: RunFunction) -> RunFunction:
        """Wrap by both."""
        return self._outer.wrap(self._inner.wrap(function))

    async def before_end(self, state: RunState, programs: Programs) -> None:
        """Have both keep."""
        await self._inner.before_end(state, programs)
        await self._outer.before_end(state, programs)

    async def left(self, state: RunState) -> None:
        """Tell both."""
        await self._inner.left(state)
        await self._outer.left(state)

    async def during(self, work: Coroutine[Any, Any, Run]) -> Run:
        """Do the work inside both."""
        return await self._outer.during(self._inner.during(work))

    def ended(
        self, run: Run, *, refused: RefusedCall | None, rows: Callable[[], list[ScopeRow]]
    ) -> Run:
        """Ask the inner first."""
        run = self._inner.ended(run, refused=refused, rows=rows)
        return self._outer.ended(run, refused=refused, rows=rows)


class PlacedRun(Protocol):
    """A run that is asked for inside something, which has a word on it; held until it is left."""

    @property
    def run(self) -> str: ...

    @property
    def is_recorded(self) -> bool:
        """Whether it is a run of an earlier process, which knows its session itself."""
        ...

    @property
    def around(self) -> Surroundings: ...

    def __enter__(self) -> PlacedRun: ...

    def __exit__(self, *exc: object) -> None: ...

    async def work(self, context: RunContext, request: RunRequest, around: Surroundings) -> Run:
        """Run it, or give what an earlier process came to. `around` has a session's word too."""
        ...

    def heard(self, run: Run) -> Run:
        """Return the run, about to be told to whoever asked."""
        ...


class CallSite(Protocol):
    """Where runs are asked for: inside a step, or where steps run again."""

    def asked(self, request: RunRequest, client: Asking) -> PlacedRun:
        """Take in a run that is asked for here: a new one, or one of an earlier process."""
        ...

    def here(self, run: str) -> PlacedRun:
        """Take in a run that is resumed or forked here."""
        ...


class Asking(Protocol):
    """The client that asks, as far as a place has to know it."""

    @property
    def ledger(self) -> Ledger: ...

    def model_of(self, name: str | None) -> Model:
        """Return the model by its name, or the client's own."""
        ...


# Set inside of what has a word on runs: finds the place, None if that was left meanwhile.
_HERE: ContextVar[Callable[[], CallSite | None] | None] = ContextVar(
    "tallystick_place_of_runs", default=None
)


def call_site_here() -> CallSite | None:
    """Return the place where a run is asked for here, None outside of any."""
    find = _HERE.get()
    return None if find is None else find()


def find_call_site_by(find: Callable[[], CallSite | None]) -> None:
    """Have runs that are asked for in this context find their place by this."""
    _HERE.set(find)


class Leases(Protocol):
    """The sessions of recorded runs."""

    def again(
        self, run: str, records: Sequence[Record], *, steal: bool
    ) -> AbstractContextManager[Surroundings]:
        """Hold the session of a run that is resumed, if it has one that is here."""
        ...

    def finish(self, run: str, records: Sequence[Record]) -> bool:
        """Finish in its session a run that has its end. Tell whether its variables are lost."""
        ...
