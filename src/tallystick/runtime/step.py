"""Steps: named scopes of a host program, with a budget, a model and a boundary for errors.

Rule 1: where a step stands is in context variables, so steps in threads, tasks and nested calls do
not mix. A thread that is started bare begins with an empty context and so outside of any step;
`asyncio.to_thread` and `contextvars.copy_context().run` take the step along.
Rule 2: nested steps stand in one tree of scopes, each inside the one that called it. So usage
counts in every step around, and the tighter limit wins. A step that nothing encloses has a tree of
its own.
Rule 3: a boundary sees budget errors only, and only when its own step is left.

`tallystick.runtime.step_run` has what a run does when it is begun inside a step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from tallystick.core.money import Money
from tallystick.core.step import ErrorBoundary, StepDefinition, charge_of_call
from tallystick.core.step_errors import InvalidStep
from tallystick.runtime.purse import Place
from tallystick.runtime.step_frame import (
    StepFrame,
    completed_steps,
    current_step,
    enter_step,
    reset_steps,
    step_log,
    within_step,
)

__all__ = [
    "charge_step",
    "completed_steps",
    "current_step",
    "enter_step",
    "reset_steps",
    "step",
    "step_log",
    "step_model",
    "step_places",
    "within_step",
]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
# Which of several siblings this is, said or found from what the step is called with.
StepKey = str | Callable[..., str]


# -- what stands around this point ---------------------------------------------------------------


def step_places() -> list[Place]:
    """The scopes that what is begun here has to pay from, none outside of steps."""
    active = current_step()
    return [] if active is None else [active.place]


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
