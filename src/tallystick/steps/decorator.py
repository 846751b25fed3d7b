"""Define steps: named parts of a host program, with a budget, a model and an error boundary.

The module has no state: steps and records are in context variables, which contexts copied from it
inherit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, assert_never, overload

import msgspec

from tallystick.core.charge import Money
from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical, digest
from tallystick.core.records import (
    NOT_KEPT,
    ErrorBoundary,
    RunRef,
    StepStatus,
    arguments_digest,
    kept_value,
)
from tallystick.core.step import (
    InvalidStep,
    StepDefinition,
    StepRegistry,
    budget_error_in,
    charge_of_call,
)
from tallystick.runtime.calls.functions import effect_key
from tallystick.runtime.run.surroundings import CallSite, set_call_site_finder
from tallystick.runtime.runs.result import Run
from tallystick.steps.active import ActiveStep, StepLog, enter
from tallystick.steps.generators import lasting_result
from tallystick.steps.replay import Served, StepReplay
from tallystick.steps.threads import follow_threads

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_CURRENT: ContextVar[ActiveStep | None] = ContextVar("tallystick_step", default=None)
_LOG: ContextVar[StepLog | None] = ContextVar("tallystick_step_log", default=None)
# The step for which a host function runs, while it does.
_CALLED_IN: ContextVar[ActiveStep | None] = ContextVar("tallystick_called_in", default=None)
# The record that the next outermost step resumes or replays.
_AGAIN: ContextVar[StepReplay | None] = ContextVar("tallystick_steps_again", default=None)


def current_step() -> ActiveStep | None:
    """Return the innermost step that pays for what is done here; None outside of steps.

    In a task or a thread that outlives its step, that is the step that started it, with `ended`
    True.
    """
    found = _CURRENT.get()
    # A step that was left in another context is still in the variable here: a generator that keeps
    # it open may be closed anywhere. Its own frame is outside of it all the same.
    while found is not None and found.ended and found.left_elsewhere and found.is_here():
        found = found.outer
    return found


def call_around(active: ActiveStep | None) -> str:
    """Return the host call that runs directly in a step; "" for the step's own code.

    "" also in a host call that has no key, because it is no effect. The name is the same in every
    process that runs or resumes the run, even if the call is repeated.
    """
    if active is None or _CALLED_IN.get() is not active:
        return ""
    try:
        run, intent, *_ = effect_key().split("-")
    except UsageError:
        return ""
    return f"{run}-{intent}"


# -- the log of steps ----------------------------------------------------------------------------


def completed_steps() -> StepLog:
    """Return the log of completed steps of this context, created if there is none.

    Tasks that were started before that have logs of their own. Use `step_log` around them to have
    all steps in one log.
    """
    log = _LOG.get()
    if log is None:
        log = StepLog()
        _LOG.set(log)
    return log


@contextmanager
def step_log() -> Iterator[StepLog]:
    """Use a new log for all steps inside, also for those in tasks.

    The earlier log comes back after.
    """
    before, log = _LOG.get(), StepLog()
    _LOG.set(log)
    try:
        yield log
    finally:
        _LOG.set(before)


def reset_steps(registry: StepRegistry) -> None:
    """Clear a registry, the active steps of this context, and the log.

    The steps end without receipts.
    """
    registry.reset()
    active = _CURRENT.get()
    for each in [] if active is None else list(active.chain()):
        each.forget()
    _CURRENT.set(None)
    completed_steps().reset()


# -- records of an earlier process ---------------------------------------------------------------


def _call_site_here() -> CallSite | None:
    """Return the steps around this place for a run that starts here; None if there are none.

    Where a chain is resumed or replayed, there are some outside of its steps too.
    """
    if current_step() is None and _AGAIN.get() is None:
        return None
    from tallystick.steps.surroundings import StepPlace

    return StepPlace()


@contextmanager
def running_on_record(again: StepReplay) -> Iterator[None]:
    """Have the next outermost step inside run on the record of an earlier process.

    Only one step takes the record. A later one runs as new, and raises `StepsDiverged` in a replay.
    """
    before = _AGAIN.get()
    _AGAIN.set(again)
    set_call_site_finder(_call_site_here)
    try:
        yield
    finally:
        _AGAIN.set(before)


def refuse_if_replaying(what: str) -> None:
    """Raise `StepsDiverged` in a replay, for an action that is not recorded. Else do nothing."""
    active, again = current_step(), _AGAIN.get()
    if active is not None and active.again is not None:
        active.again.refuse_new(what)
    elif again is not None:
        again.refuse_new(what)


def run_ref(value: object) -> RunRef | None:
    """Return the reference that is kept for a run as a value; None for anything else.

    The path of the ledger is not part of its digest.
    """
    if type(value) is not Run:
        return None
    portable = msgspec.structs.replace(value, ledger="")
    return RunRef(run=value.run, sha256=digest(canonical(portable)))


# -- entering a step -----------------------------------------------------------------------------


def enter_step(
    definition: StepDefinition | None, *, depth: int | None = None, key: str = ""
) -> AbstractContextManager[ActiveStep | None, bool]:
    """Return a context manager that enters a step. With None, nothing is entered.

    It gives the step, None if nothing was entered. `depth` is for hosts that count their own calls,
    `key` distinguishes siblings. With the boundary `continue`, a budget error ends the block
    silently. A step entered in this way always runs again when its chain is resumed. Entering
    raises `StepsDiverged` if the recorded steps are others.
    """
    return StepFrame(definition, depth=depth, key=key)


def within_step(
    active: ActiveStep | None, function: Callable[Parameters, Result]
) -> Callable[Parameters, Result]:
    """Return the function wrapped so that it runs inside a step, whichever thread calls it.

    With None, it runs outside of steps. After each call the step and the log are as before.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*args: Parameters.args, **kwargs: Parameters.kwargs) -> object:
            with _inside(active):
                return await function(*args, **kwargs)

        # The wrapper returns the same coroutine type, which cannot be expressed in types.
        return wait  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with _inside(active):
            return function(*args, **kwargs)

    return call


def hand_over(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return the function as it is given to another thread: it runs in the step of this place.

    Outside of steps it runs in none, whichever step the other thread was started in.
    """
    return functools.partial(_run_inside, current_step(), function)


def _run_inside(
    active: ActiveStep | None,
    function: Callable[Parameters, Result],
    /,
    *args: Parameters.args,
    **kwargs: Parameters.kwargs,
) -> Result:
    before, log = _CURRENT.get(), _LOG.get()
    _CURRENT.set(active)
    set_call_site_finder(_call_site_here)
    if active is not None:
        _LOG.set(active.log)
    try:
        return function(*args, **kwargs)
    finally:
        _CURRENT.set(before)
        _LOG.set(log)


@contextmanager
def _inside(active: ActiveStep | None) -> Iterator[None]:
    before, log, called_in = _CURRENT.get(), _LOG.get(), _CALLED_IN.get()
    _CURRENT.set(active)
    set_call_site_finder(_call_site_here)
    _CALLED_IN.set(active)
    if active is not None:
        _LOG.set(active.log)
    try:
        yield
    finally:
        _CURRENT.set(before)
        _CALLED_IN.set(called_in)
        _LOG.set(log)


class StepFrame:
    """A context manager for one call of a function inside a step.

    If an earlier process completed the step with the same arguments, it is not entered: `served`
    has the result, and the function must not be called.
    """

    def __init__(
        self,
        definition: StepDefinition | None,
        *,
        depth: int | None = None,
        key: str = "",
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> None:
        self._definition = definition
        self._depth = depth
        self._key = key
        self._args = args
        # None for a step that is a `with` block: it has no arguments and no value.
        self._kwargs = kwargs
        self._arguments = ""
        self._active: ActiveStep | None = None
        # The current step and the log of a suspended frame, in which it goes on.
        self._suspended: tuple[ActiveStep | None, StepLog | None] = None, None
        self.served: Served | None = None

    def __enter__(self) -> ActiveStep | None:
        if self._definition is None:
            return None
        outer = current_step()
        if self._kwargs is not None:
            self._arguments = arguments_digest(self._args, self._kwargs)
        found = enter(
            self._definition,
            outer=outer,
            log=completed_steps(),
            depth=self._depth,
            key=self._key,
            arguments=self._arguments,
            caller=call_around(outer),
            again=_again_for(self._definition) if outer is None else None,
        )
        if isinstance(found, Served):
            self.served = found
            return None
        self._active = found
        _CURRENT.set(found)
        set_call_site_finder(_call_site_here)
        follow_threads(hand_over, is_inside=lambda: current_step() is not None)
        return found

    @property
    def function(self) -> str:
        """The name of the function that is a step; "" if nothing is entered."""
        return "" if self._definition is None else self._definition.function

    def keep_value(self, value: Result) -> Result:
        """Keep the value that the function returned, if possible, and return it.

        Nothing is kept if the value cannot be encoded or is too long, or if the arguments have no
        digest. Nor is it if the function changed its arguments: serving only the value would lose
        that change.
        """
        if self._active is not None and self._arguments:
            kept = kept_value(value, run_ref)
            if kept.kind and arguments_digest(self._args, self._kwargs or {}) != self._arguments:
                kept = NOT_KEPT
            self._active.kept = kept
        return value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        active, self._active = self._active, None
        if active is None or active.ended:
            return False
        # A generator that keeps a step open may be closed in another context than it was made in.
        # A step that is left in the variable there does no harm: `current_step` skips it.
        if _CURRENT.get() is active:
            _CURRENT.set(active.outer)
        else:
            active.left_elsewhere = True
        return _leave(active, error)

    def suspend(self) -> None:
        """Step out of the frame without leaving it. `resumed` steps in again, in any context."""
        self._suspended = _CURRENT.get(), _LOG.get()
        _CURRENT.set(None if self._active is None else self._active.outer)

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Go on in a suspended frame while inside. The context of the caller is as before then."""
        before = _CURRENT.get(), _LOG.get()
        _CURRENT.set(self._suspended[0])
        _LOG.set(self._suspended[1])
        set_call_site_finder(_call_site_here)
        try:
            yield
        finally:
            self._suspended = _CURRENT.get(), _LOG.get()
            _CURRENT.set(before[0])
            _LOG.set(before[1])


def _again_for(definition: StepDefinition) -> StepReplay | None:
    """Return the record that the outermost step entered here runs on; None without one.

    Raise `StepsDiverged` in a replay if another outermost step has taken the record.
    """
    again = _AGAIN.get()
    if again is None or again.claim():
        return again
    again.refuse_new(definition.function)
    return None


def _leave(active: ActiveStep, error: BaseException | None) -> bool:
    """End a step as its boundary says. Return True if the error ends here.

    With the boundary `escalate`, raise the error marked for the steps above. If the caller gets no
    other error, one of the ledger is raised: a record that cannot be written is not hidden.
    Otherwise it becomes a note on the other error.
    """
    if error is None:
        active.end("completed")
        return False
    exhausted = budget_error_in(error)
    if exhausted is None:
        _end_raising(active, "failed", _describe(error), raised=error)
        return False
    boundary = active.definition.error_boundary
    match boundary:
        case "continue":
            active.end("skipped", str(exhausted))
            return True
        case "fail":
            _end_raising(active, "failed", str(exhausted), raised=error)
            return False
        case "escalate":
            marked = exhausted.escalated_by(active.escalation)
            _end_raising(active, "escalated", str(exhausted), raised=marked)
            raise marked from error
        case _:
            assert_never(boundary)


def _end_raising(
    active: ActiveStep, status: StepStatus, said: str, *, raised: BaseException
) -> None:
    try:
        active.end(status, said)
    except Exception as unwritten:
        raised.add_note(f"the receipt of step `{active.name}` was not written: {unwritten}")


def _describe(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# Rule 1: the current step is in context variables, so steps in threads, tasks and nested calls do
# not mix. Tasks, callbacks of the loop and `asyncio.to_thread` take the step along by themselves;
# `tallystick.steps.threads` does it for threads and pools.
# Rule 2: nested steps form one tree of scopes, each inside the one that called it. So usage counts
# in every step around, and the tightest limit applies. An outermost step has a tree of its own.
# Rule 3: a boundary sees budget errors only, and only when its own step is left.
#
# `tallystick.steps.surroundings` has the rules for a run that is begun inside a step.


# A key that distinguishes siblings: a text, or a function that computes it from the arguments.
StepKey = str | Callable[..., str]


# -- the current step ----------------------------------------------------------------------------


def step_model() -> str | None:
    """Return the model of a call that names none: the innermost step's own.

    None if that step has none, or outside of steps.
    """
    active = current_step()
    return None if active is None else active.model


def charge_step(
    input_tokens: int, output_tokens: int, cost_usd: Money | None, model: str = ""
) -> None:
    """Record a model call that was made without an agent, in every step around.

    Raise `StepBudgetError` if a limit is passed then. A cost of None is not known. Negative figures
    count as zero. Raise `InvalidStep` for tokens that are no whole number or a cost that is not
    finite. Outside of steps nothing is recorded.
    """
    charge = charge_of_call(
        input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost_usd
    )
    active = current_step()
    if active is not None:
        active.charge(charge, model=model)


# -- declaring -----------------------------------------------------------------------------------


class _KeepsType(Protocol):
    """A decorator that keeps the type of a function."""

    def __call__(
        self, function: Callable[Parameters, Result], /
    ) -> Callable[Parameters, Result]: ...


class _MayReturnNone(Protocol):
    """A decorator after which a function may also return None."""

    @overload
    def __call__(
        self, function: Callable[Parameters, Coroutine[Any, Any, Result]], /
    ) -> Callable[Parameters, Coroutine[Any, Any, Result | None]]: ...
    @overload
    def __call__(
        self, function: Callable[Parameters, Result], /
    ) -> Callable[Parameters, Result | None]: ...


@overload
def step(name: Callable[Parameters, Result], /) -> Callable[Parameters, Result]: ...
@overload
def step(
    name: str | None = None,
    *,
    model: str | None = None,
    budget: Mapping[str, object] | None = None,
    error_boundary: Literal["fail", "escalate"] = "fail",
    key: StepKey | None = None,
) -> _KeepsType: ...
@overload
def step(
    name: str | None = None,
    *,
    model: str | None = None,
    budget: Mapping[str, object] | None = None,
    error_boundary: ErrorBoundary,
    key: StepKey | None = None,
) -> _MayReturnNone: ...
def step(
    name: object = None,
    *,
    model: object = None,
    budget: object = None,
    error_boundary: object = "fail",
    key: StepKey | None = None,
) -> object:
    """Make a function a named step, with `def` or `async def`.

    `budget` is a dictionary of `max_tokens` and `max_usd`: the limits of everything inside
    together. Exactly at a limit is allowed; zero refuses every call. If it is exhausted,
    `error_boundary` decides what the caller gets: the error (`fail`), None (`continue`), or the
    error marked for the steps above (`escalate`). `model` is for calls that name none. `key`
    distinguishes siblings that run in parallel: a text, or a function of the step's arguments.

    In a resumed chain, a call that was completed with the same arguments returns its recorded
    value, if that was kept.

    A step that is a generator, or returns one, lasts until it is exhausted or closed, and is
    charged until then. What it gives to threads and pools is charged too.

    Raise `InvalidStep` for options that are not valid. A call raises it if its `key` is no text or
    empty, or if the function returns a coroutine. In a resume or replay, a call raises
    `StepsDiverged` if the record has another outermost step.
    """
    if callable(name):
        return step()(name)

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        definition = StepDefinition.of(
            _name_of(function),
            name=name,
            model=model,
            budget=budget,
            error_boundary=error_boundary,
        )
        if inspect.iscoroutinefunction(function):
            return _wrap_coroutine_function(function, definition, key)
        return _wrap_function(function, definition, key)

    return decorate


def _wrap_function(
    function: Callable[..., object], definition: StepDefinition, key: StepKey | None
) -> Callable[..., object]:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        frame = StepFrame(definition, key=_key_of(key, args, kwargs), args=args, kwargs=kwargs)
        # An exit stack, so that a generator can keep the frame open.
        stack = ExitStack()
        result: object = None
        with stack:
            stack.enter_context(frame)
            if frame.served is not None:
                return frame.served.value
            result = _returned(frame, stack, function(*args, **kwargs))
        return result

    return call


def _wrap_coroutine_function(
    function: Callable[..., Coroutine[Any, Any, object]],
    definition: StepDefinition,
    key: StepKey | None,
) -> Callable[..., object]:
    @functools.wraps(function)
    async def call(*args: object, **kwargs: object) -> object:
        frame = StepFrame(definition, key=_key_of(key, args, kwargs), args=args, kwargs=kwargs)
        stack = ExitStack()
        result: object = None
        with stack:
            stack.enter_context(frame)
            if frame.served is not None:
                return frame.served.value
            result = _returned(frame, stack, await function(*args, **kwargs))
        return result

    return call


def _returned(frame: StepFrame, stack: ExitStack, result: object) -> object:
    """Return the result of a step. A generator keeps the step open: `stack` does not leave it then.

    Raise `InvalidStep` for a coroutine.
    """
    if inspect.iscoroutine(result):
        result.close()
        why = "it returned a coroutine, which would run outside of the step; use async def"
        raise InvalidStep(field=frame.function, why=why)
    lasting = lasting_result(frame, result)
    if lasting is None:
        return frame.keep_value(result)
    frame.suspend()
    stack.pop_all()
    return lasting


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise InvalidStep(field="function", why=f"a step is a function with a name: {function!r}")
    return name


def _key_of(key: StepKey | None, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    if key is None:
        return ""
    found: object = key if isinstance(key, str) else key(*args, **kwargs)
    if not isinstance(found, str) or not found:
        raise InvalidStep(field="key", why=f"a text that is not empty is needed, not {found!r}")
    return found
