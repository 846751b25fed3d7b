"""Host functions of a run: a decorator, a policy, and the right each needs.

The signature and the docstring are what the model reads. The policy says what is written of a call
and when: a `read` is answered from the ledger on replay; an `effect` is on disk before it is begun,
since after a crash nobody could tell whether it was.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tallystick.core.errors import UsageError
from tallystick.runtime.context.namespace import check_function
from tallystick.sandbox.host import HostFunction, is_async

FunctionPolicy = Literal["pure", "read", "effect"]
_POLICIES: tuple[FunctionPolicy, ...] = get_args(FunctionPolicy)
_KNOWN = f"{', '.join(_POLICIES[:-1])} or {_POLICIES[-1]}"
_KEY: ContextVar[str | None] = ContextVar("tallystick_effect_key", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFunction:
    """A function and what a run has to know of it. It can still be called as it was.

    `handed` says that its first argument is the `Call` that it serves, and not the program's.
    `narrowed` says that skills which are loaded may take it away.
    """

    function: Callable[..., Any]
    name: str
    policy: FunctionPolicy
    needs: str
    local: bool
    idempotent: bool = False
    lookup: Callable[[str], Any] | None = None
    handed: bool = False
    narrowed: bool = True

    def __post_init__(self) -> None:
        if self.policy not in _POLICIES:
            raise UsageError(
                f"{str(self.name)[:80]}: policy must be {_KNOWN}, not {str(self.policy)[:40]!r}"
            )
        if not callable(self.function):
            raise UsageError(f"{str(self.name)[:80]}: not a function")
        check_function(self.name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)

    def hosted(self) -> HostFunction:
        return HostFunction(
            name=self.name,
            function=self.function,
            local=self.local,
            needs=self.needs,
            handed=self.handed,
        )


def host_function(
    *,
    policy: FunctionPolicy = "effect",
    needs: str = "",
    local: bool = False,
    name: str | None = None,
    idempotent: bool = False,
    lookup: Callable[[str], Any] | None = None,
) -> Callable[[Callable[..., Any]], RunFunction]:
    """Make a function callable from programs.

    `policy` is `effect` unless it is said to only read: an effect that is not recorded as one could
    happen twice. `needs` names the capability a run must be granted. `local` is for what is quick
    and waits for nothing.

    After a crash nobody knows whether an effect that was under way happened. One that is
    `idempotent` is made again. For another, `lookup` is asked by the key that `effect_key()` gave
    it while it was under way: it returns what the function returned then, `NOT_RECEIVED`, or
    `UNKNOWN`.
    """

    def made(function: Callable[..., Any]) -> RunFunction:
        return RunFunction(
            function=function,
            name=function.__name__ if name is None else name,
            policy=policy,
            needs=needs,
            local=local,
            idempotent=idempotent,
            lookup=lookup,
        )

    return made


def check_functions(functions: Iterable[object]) -> set[str]:
    """Return the names of functions. Raises `UsageError` for two that share one."""
    names: set[str] = set()
    for each in functions:
        if not isinstance(each, RunFunction):
            called = getattr(each, "__name__", type(each).__name__)
            raise UsageError(
                f"functions: {str(called)[:80]} is no host function; use @host_function"
            )
        if each.name in names:
            raise UsageError(f"functions: two are called {each.name}; give one another name")
        names.add(each.name)
    groups = {name.partition(".")[0] for name in names if "." in name}
    for name in sorted(names & groups):
        raise UsageError(f"functions: {name} is a function and a group of others; rename one")
    return names


def on_loop(
    functions: Iterable[RunFunction], loop: asyncio.AbstractEventLoop | None
) -> tuple[RunFunction, ...]:
    """Return functions whose coroutines run on a loop, that of a caller who awaits the run.

    What such a function uses (connections, locks, tasks) belongs to the loop that it was made on.
    Without a loop they are returned as they are.
    """
    if loop is None:
        return tuple(functions)
    return tuple(
        dataclasses.replace(
            each,
            function=_on_loop(each.function, loop),
            lookup=None if each.lookup is None else _on_loop(each.lookup, loop),
        )
        for each in functions
    )


class _Exited(Exception):
    """The exit that a function raised, for the program that called it."""

    told_as = "SystemExit"


def _on_loop(function: Callable[..., Any], loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    if not is_async(function):
        return function
    # Of the caller. A call comes from the thread of a program, which has none of it.
    context = copy_context()

    @functools.wraps(function)
    async def elsewhere(*args: object, **kwargs: object) -> object:
        own = context.copy()
        own.run(_KEY.set, _KEY.get())

        async def guarded() -> object:
            try:
                return await function(*args, **kwargs)
            except SystemExit as error:
                # In a task, it would end the caller's loop instead of the call.
                raise _Exited(error) from error

        async def called() -> object:
            return await asyncio.create_task(guarded(), context=own)

        # A cancel of the wait cancels the call.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), loop))

    return elsewhere


def effect_key() -> str:
    """The key of the effect under way, for whoever can tell later whether it arrived."""
    key = _KEY.get()
    if key is None:
        raise UsageError("effect_key: no effect is under way here")
    return key


@contextmanager
def under_key(key: str) -> Iterator[None]:
    """Have an effect find its key while inside."""
    token = _KEY.set(key)
    try:
        yield
    finally:
        _KEY.reset(token)
