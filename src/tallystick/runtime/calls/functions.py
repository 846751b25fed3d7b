"""Define host functions: the decorator, the policy, and the capability that each needs.

The model reads the signature and the docstring. The policy says how a call is recorded. A `read` is
answered from the ledger on replay. An `effect` is on disk before it begins: after a crash, nothing
else could tell that it may have happened.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tallystick.core.errors import UsageError
from tallystick.runtime.context.namespace import check_function
from tallystick.sandbox.host import HostFunction, is_async
from tallystick.sandbox.port import DEPTH

# Returns True if a call needs a person's word: called with the name of the function, and with the
# arguments and the named arguments as the program gave them.
Ask = Callable[[str, list[Any], dict[str, Any]], bool]
FunctionPolicy = Literal["pure", "read", "effect"]
_POLICIES: tuple[FunctionPolicy, ...] = get_args(FunctionPolicy)
_KNOWN = f"{', '.join(_POLICIES[:-1])} or {_POLICIES[-1]}"
_KEY: ContextVar[str | None] = ContextVar("tallystick_effect_key", default=None)
# The number of runs above the run whose program calls the function.
_DEPTH: ContextVar[int | None] = ContextVar("tallystick_depth", default=None)
_DEPTH_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFunction:
    """A function with its policy. Calling it calls the function.

    With `handed`, its first argument is the `Call` that it serves, and not one of the program. With
    `narrowed`, loaded skills may take it away. With `ask`, calls need a person's word: all, or
    those for which it returns True.
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
    ask: bool | Ask = False

    def __post_init__(self) -> None:
        if self.policy not in _POLICIES:
            raise UsageError(
                f"{str(self.name)[:80]}: policy must be {_KNOWN}, not {str(self.policy)[:40]!r}"
            )
        if not isinstance(self.ask, bool) and not callable(self.ask):
            raise UsageError(
                f"{str(self.name)[:80]}: ask must be True, False or a function, not "
                f"{type(self.ask).__name__}"
            )
        if not callable(self.function):
            raise UsageError(f"{str(self.name)[:80]}: not a function")
        check_function(self.name)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)

    def hosted(self) -> HostFunction:
        """Return the function as the sandbox calls it."""
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
    ask: bool | Ask = False,
) -> Callable[[Callable[..., Any]], RunFunction]:
    """Make a function callable from programs.

    `policy` is `effect` by default: an effect that is recorded as a `read` could happen twice.
    `needs` names the capability that a run must be granted. `local` is for a function that is quick
    and does not wait: it is called in the thread of the program.

    After a crash, the outcome of an effect in progress is unknown. An `idempotent` effect is
    repeated. For another one, `lookup` is called with the key that `effect_key()` returned inside
    it. It returns what the function returned then, `NOT_RECEIVED`, or `UNKNOWN`.

    With `ask=True`, no call is made without a person's word: the run ends as `waiting`, and `tally
    approve` or `tally deny` resumes it. `ask` may also be a function that is given the name, the
    arguments and the named arguments, and returns True if this call needs one.

    The decorator raises `UsageError` for an unknown policy, for what cannot be called, and for a
    name that programs cannot call or that is taken. `name` is that of the function by default.
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
            ask=ask,
        )

    return made


def check_functions(functions: Iterable[object]) -> set[str]:
    """Return the names of functions.

    Raise `UsageError` for one that is not a host function, and for two with one name. The same for
    a name that is also the group of another, as with `a` and `a.b`.
    """
    names: set[str] = set()
    for each in functions:
        if not isinstance(each, RunFunction):
            called = getattr(each, "__name__", type(each).__name__)
            raise UsageError(
                f"functions: {str(called)[:80]} is no host function; use @host_function"
            )
        if each.name in names:
            raise UsageError(f"tools: two are called {each.name}; give one another name")
        names.add(each.name)
    groups = {name.partition(".")[0] for name in names if "." in name}
    for name in sorted(names & groups):
        raise UsageError(f"tools: {name} is a tool and a group of others; rename one")
    return names


def on_loop(
    functions: Iterable[RunFunction], loop: asyncio.AbstractEventLoop | None
) -> tuple[RunFunction, ...]:
    """Return functions whose coroutines, and those of their lookups, run on the caller's loop.

    The connections, locks and tasks of such a function belong to the loop that they were made on.
    Functions that are not async stay as they are.
    Without a loop, return the functions as they are.
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
    """A `SystemExit` of a function, as the program that called it sees it."""

    told_as = "SystemExit"


def _on_loop(function: Callable[..., Any], loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
    if not is_async(function):
        return function
    # The context variables of the caller. The thread of a program, which calls, does not have them.
    context = copy_context()

    @functools.wraps(function)
    async def elsewhere(*args: object, **kwargs: object) -> object:
        own = context.copy()
        own.run(_KEY.set, _KEY.get())
        own.run(_DEPTH.set, _DEPTH.get())

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
    """Return the key of the effect in progress, by which its outcome can be looked up later.

    Raise `UsageError` outside of an effect.
    """
    key = _KEY.get()
    if key is None:
        raise UsageError("effect_key: no effect is under way here")
    return key


def depth_here() -> int:
    """Return the number of runs above this place: a run that starts here counts from there.

    In a function that a program calls, these are its run and those above. Elsewhere it is what the
    environment of this process says (`TALLYSTICK_DEPTH`), which programs of runs have; 0 without
    it. Raise `UsageError` if that is no whole number.
    """
    depth = _DEPTH.get()
    if depth is not None:
        return depth + 1
    given = os.environ.get(DEPTH)
    if not given:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) <= _DEPTH_DIGITS_MAX):
        raise UsageError(f"{DEPTH} is {given[:80]!r}; a whole number is needed, or none at all")
    return int(given)


@contextmanager
def under_key(key: str, *, depth: int) -> Iterator[None]:
    """Set the key that `effect_key` returns, and the run's depth; reset both on the way out."""
    token, before = _KEY.set(key), _DEPTH.set(depth)
    try:
        yield
    finally:
        _KEY.reset(token)
        _DEPTH.reset(before)
