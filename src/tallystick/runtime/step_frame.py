"""Being inside a step: where that is kept, how one is entered, and how it is left.

The module itself holds no step and no record: a context does, and hands them on to the contexts
that are copied from it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import ParamSpec, TypeVar, assert_never

import msgspec

from tallystick.core.canonical import canonical, digest
from tallystick.core.errors import UsageError
from tallystick.core.step import StepDefinition, StepRegistry, StepStatus
from tallystick.core.step_errors import budget_error_in
from tallystick.core.step_value import NOT_KEPT, RunRef, arguments_digest, kept_value
from tallystick.runtime.active_step import ActiveStep, entered
from tallystick.runtime.functions import effect_key
from tallystick.runtime.run import Run
from tallystick.runtime.step_again import Served, StepsAgain
from tallystick.runtime.step_log import StepLog

__all__ = [
    "StepFrame",
    "call_around",
    "completed_steps",
    "current_step",
    "enter_step",
    "refuse_if_replaying",
    "reset_steps",
    "run_ref",
    "running_again",
    "step_log",
    "within_step",
]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_CURRENT: ContextVar[ActiveStep | None] = ContextVar("tallystick_step", default=None)
_LOG: ContextVar[StepLog | None] = ContextVar("tallystick_step_log", default=None)
# The step that a program calls host functions in, while one runs.
_CALLED_IN: ContextVar[ActiveStep | None] = ContextVar("tallystick_called_in", default=None)
# What the next outermost step goes on with.
_AGAIN: ContextVar[StepsAgain | None] = ContextVar("tallystick_steps_again", default=None)


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


@contextmanager
def running_again(again: StepsAgain) -> Iterator[None]:
    """Have the next outermost step go on with what an earlier life of it left."""
    before = _AGAIN.get()
    _AGAIN.set(again)
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


def _again_for(definition: StepDefinition) -> StepsAgain | None:
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
