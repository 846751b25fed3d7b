"""Steps: named scopes of a host program, with a budget, a model and a boundary for errors.

The module itself holds no step and no record: a context does, and hands them on to the contexts
that are copied from it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
from tallystick.runtime.run.surroundings import CallSite, find_call_site_by
from tallystick.runtime.runs.result import Run
from tallystick.steps.active import ActiveStep, StepLog, entered
from tallystick.steps.replay import Served, StepReplay

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_CURRENT: ContextVar[ActiveStep | None] = ContextVar("tallystick_step", default=None)
_LOG: ContextVar[StepLog | None] = ContextVar("tallystick_step_log", default=None)
# The step that a program calls host functions in, while one runs.
_CALLED_IN: ContextVar[ActiveStep | None] = ContextVar("tallystick_called_in", default=None)
# What the next outermost step goes on with.
_AGAIN: ContextVar[StepReplay | None] = ContextVar("tallystick_steps_again", default=None)


def current_step() -> ActiveStep | None:
    """The innermost step that is active here."""
    found = _CURRENT.get()
    # A task may outlive the step that began it; then it stands in the next one around.
    while found is not None and found.ended:
        found = found.outer
    return found


def call_around(active: ActiveStep | None) -> str:
    """The host call that runs directly in a step, "" where its own code does, or what it began.

    It has the same name in every life of the run, also if it is made again.
    """
    if active is None or _CALLED_IN.get() is not active:
        return ""
    try:
        run, intent, *_ = effect_key().split("-")
    except UsageError:
        return ""
    return f"{run}-{intent}"


# -- what was left -------------------------------------------------------------------------------


def completed_steps() -> StepLog:
    """Where the steps of this context are written down when they are left.

    Made when it is first needed, so tasks that are begun before then have logs of their own; open
    one with `step_log` around them to have it all in one.
    """
    log = _LOG.get()
    if log is None:
        log = StepLog()
        _LOG.set(log)
    return log


@contextmanager
def step_log() -> Iterator[StepLog]:
    """Have the steps inside written into one log of their own, those of tasks included."""
    before, log = _LOG.get(), StepLog()
    _LOG.set(log)
    try:
        yield log
    finally:
        _LOG.set(before)


def reset_steps(registry: StepRegistry) -> None:
    """Clear the registry, what is active here, and the log, together."""
    registry.reset()
    active = _CURRENT.get()
    for each in [] if active is None else list(active.chain()):
        each.forget()
    _CURRENT.set(None)
    completed_steps().reset()


# -- what an earlier life left -------------------------------------------------------------------


def _call_site_here() -> CallSite | None:
    """The steps around this place, as whoever runs a goal here asks for them; None without any."""
    if current_step() is None and _AGAIN.get() is None:
        return None
    from tallystick.steps.surroundings import StepPlace

    return StepPlace()


@contextmanager
def running_again(again: StepReplay) -> Iterator[None]:
    """Have the next outermost step go on with what an earlier life of it left."""
    before = _AGAIN.get()
    _AGAIN.set(again)
    find_call_site_by(_call_site_here)
    try:
        yield
    finally:
        _AGAIN.set(before)


def refuse_if_replaying(what: str) -> None:
    """Raise `StepsDiverged` where nothing live may happen, and this is no part of the record."""
    active, again = current_step(), _AGAIN.get()
    if active is not None and active.again is not None:
        active.again.refuse(what)
    elif again is not None:
        again.refuse(what)


def run_ref(value: object) -> RunRef | None:
    """What a kept value says instead of a run. Where its ledger is does not belong to it."""
    if type(value) is not Run:
        return None
    told = msgspec.structs.replace(value, ledger="")
    return RunRef(run=value.run, sha256=digest(canonical(told)))


# -- being inside --------------------------------------------------------------------------------


def enter_step(
    definition: StepDefinition | None, *, depth: int | None = None, key: str = ""
) -> AbstractContextManager[ActiveStep | None, bool]:
    """Be inside a step for the length of a `with`. None is no step: nothing is entered.

    `depth` is for hosts that count their own calls. A boundary of `continue` ends the `with`. Such
    a step always runs again when its chain is gone on with.
    """
    return StepFrame(definition, depth=depth, key=key)


def within_step(
    active: ActiveStep | None, function: Callable[Parameters, Result]
) -> Callable[Parameters, Result]:
    """The function as if it were called from inside a step, whichever thread calls it."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*args: Parameters.args, **kwargs: Parameters.kwargs) -> object:
            with _standing_in(active):
                return await function(*args, **kwargs)

        # A coroutine function gives what its wrapper gives; the type of that cannot be said.
        return wait  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with _standing_in(active):
            return function(*args, **kwargs)

    return call


@contextmanager
def _standing_in(active: ActiveStep | None) -> Iterator[None]:
    before, log, called_in = _CURRENT.get(), _LOG.get(), _CALLED_IN.get()
    _CURRENT.set(active)
    find_call_site_by(_call_site_here)
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
    """Inside a step from here to there, for whoever calls a function in it.

    Where an earlier life completed the step with the same arguments it is not entered: `served`
    has what it gave, and the function is not to be called.
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
        # None is a step that no function is: it has no arguments, and gives no value.
        self._kwargs = kwargs
        self._arguments = ""
        self._active: ActiveStep | None = None
        self.served: Served | None = None

    def __enter__(self) -> ActiveStep | None:
        if self._definition is None:
            return None
        outer = current_step()
        if self._kwargs is not None:
            self._arguments = arguments_digest(self._args, self._kwargs)
        found = entered(
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
        find_call_site_by(_call_site_here)
        return found

    def gives(self, value: Result) -> Result:
        """The function has returned. Its value is kept, if it can be and its arguments are as ever.

        A step that changes what it was given gives more than its value.
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
        # A generator that holds a step open may be closed somewhere else than where it was made.
        # What it leaves behind there is passed over, since it has ended.
        if _CURRENT.get() is active:
            _CURRENT.set(active.outer)
        return _left(active, error)


def _again_for(definition: StepDefinition) -> StepReplay | None:
    """What the outermost step that is entered here goes on with."""
    again = _AGAIN.get()
    if again is None or again.take():
        return again
    again.refuse(definition.function)
    return None


def _left(active: ActiveStep, error: BaseException | None) -> bool:
    """Leave a step as its boundary says. True ends the error here.

    Where the caller gets no error of the step, one of the ledger is raised: a record that cannot be
    kept is not hidden. It never takes the place of another error, and is a note on that.
    """
    if error is None:
        active.end("completed")
        return False
    exhausted = budget_error_in(error)
    if exhausted is None:
        _end_raising(active, "failed", _said(error), raised=error)
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


def _said(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# Steps: named scopes of a host program, with a budget, a model and a boundary for errors.
#
# Rule 1: where a step stands is in context variables, so steps in threads, tasks and nested calls
# do not mix. A thread that is started bare begins with an empty context and so outside of any step;
# `asyncio.to_thread` and `contextvars.copy_context().run` take the step along.
# Rule 2: nested steps stand in one tree of scopes, each inside the one that called it. So usage
# counts in every step around, and the tighter limit wins. A step that nothing encloses has a tree
# of its own.
# Rule 3: a boundary sees budget errors only, and only when its own step is left.
#
# `tallystick.steps.surroundings` has what a run does when it is begun inside a step.


# Which of several siblings this is, said or found from what the step is called with.
StepKey = str | Callable[..., str]


# -- what stands around this point ---------------------------------------------------------------


def step_model() -> str | None:
    """The model of a call that names none: the innermost step's, None if it has none."""
    active = current_step()
    return None if active is None else active.model


def charge_step(
    input_tokens: int, output_tokens: int, cost_usd: Money | None, model: str = ""
) -> None:
    """Record a model call that was made without a session, in every step around.

    Raises `StepBudgetError` if a limit is passed by it. A cost of None is not known. Outside of
    steps nothing is recorded.
    """
    charge = charge_of_call(
        input_tokens=input_tokens, output_tokens=output_tokens, cost_usd=cost_usd
    )
    active = current_step()
    if active is not None:
        active.charge(charge, model=model)


# -- declaring -----------------------------------------------------------------------------------


class _Kept(Protocol):
    """Gives a function back with the type it had."""

    def __call__(
        self, function: Callable[Parameters, Result], /
    ) -> Callable[Parameters, Result]: ...


class _Skipped(Protocol):
    """Gives a function back that may return None instead."""

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
) -> _Kept: ...
@overload
def step(
    name: str | None = None,
    *,
    model: str | None = None,
    budget: Mapping[str, object] | None = None,
    error_boundary: ErrorBoundary,
    key: StepKey | None = None,
) -> _Skipped: ...
def step(
    name: object = None,
    *,
    model: object = None,
    budget: object = None,
    error_boundary: object = "fail",
    key: StepKey | None = None,
) -> object:
    """Make a function a named step, with `def` or `async def`.

    `budget` is a dictionary of `max_tokens` and `max_usd`: what everything inside may use in all.
    Exactly at a limit is allowed; zero refuses every call. When it is exhausted, `error_boundary`
    says what the caller gets: the error (`fail`), None (`continue`), or the error marked for
    whoever is above (`escalate`). `model` is for calls that name none. `key` tells siblings apart
    that run side by side: a text, or a function of the step's arguments.
    """
    if callable(name):
        return step()(name)

    def made(function: Callable[..., object]) -> Callable[..., object]:
        definition = StepDefinition.of(
            _name_of(function),
            name=name,
            model=model,
            budget=budget,
            error_boundary=error_boundary,
        )
        if inspect.iscoroutinefunction(function):
            return _awaited(function, definition, key)
        return _called(function, definition, key)

    return made


def _called(
    function: Callable[..., object], definition: StepDefinition, key: StepKey | None
) -> Callable[..., object]:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        frame = StepFrame(definition, key=_key_of(key, args, kwargs), args=args, kwargs=kwargs)
        with frame:
            if frame.served is not None:
                return frame.served.value
            result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result.close()
                why = "it returned a coroutine, which would run outside of the step; use async def"
                raise InvalidStep(field=definition.function, why=why)
            return frame.gives(result)
        return None

    return call


def _awaited(
    function: Callable[..., Coroutine[Any, Any, object]],
    definition: StepDefinition,
    key: StepKey | None,
) -> Callable[..., object]:
    @functools.wraps(function)
    async def call(*args: object, **kwargs: object) -> object:
        frame = StepFrame(definition, key=_key_of(key, args, kwargs), args=args, kwargs=kwargs)
        with frame:
            if frame.served is not None:
                return frame.served.value
            return frame.gives(await function(*args, **kwargs))
        return None

    return call


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise InvalidStep(field="function", why=f"a step is a function with a name: {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        # Its frame would be left and entered again at every value, in whatever context asks.
        why = "a generator has no frame of its own; make a step of what it calls"
        raise InvalidStep(field=name, why=why)
    return name


def _key_of(key: StepKey | None, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    if key is None:
        return ""
    found: object = key if isinstance(key, str) else key(*args, **kwargs)
    if not isinstance(found, str) or not found:
        raise InvalidStep(field="key", why=f"a text that is not empty is needed, not {found!r}")
    return found
