"""Have threads and thread pools run what they are given in the step that gave it.

A context variable does not reach a thread, nor a pool whose threads are older than the step. So the
places where the standard library takes work for other threads are wrapped once, when the first step
is entered: `threading.Thread` (and with it `Timer`), `ThreadPoolExecutor.submit` (and with it
`map`, `loop.run_in_executor` and `asyncio.to_thread`), the methods of
`multiprocessing.pool.ThreadPool`, and callbacks of `concurrent.futures.Future`. What is given to
them outside of steps runs outside of steps, even if their threads were started inside one.

Only the step is handed over: other context variables are as the standard library has them.

Rejected: refusing work for threads inside a step, because libraries start threads of their own; and
an audit hook, which sees a thread that starts, but not the work that an older one is given.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

# Returns a function as it has to be given to another thread.
HandOver = Callable[[Callable[..., Any]], Callable[..., Any]]

_guard = threading.Lock()
_followed: list[HandOver] = []
# Its work runs in another interpreter, which has neither the step nor its module. From Python 3.14.
_INTERPRETERS: Any = getattr(futures, "InterpreterPoolExecutor", ())
# The positions of the functions that each method takes.
_TAKES: tuple[tuple[type, str, dict[str, int]], ...] = (
    (ThreadPoolExecutor, "submit", {"fn": 0}),
    (Future, "add_done_callback", {"fn": 0}),
    (ThreadPool, "apply_async", {"func": 0, "callback": 3, "error_callback": 4}),
    (ThreadPool, "map_async", {"func": 0, "callback": 3, "error_callback": 4}),
    (ThreadPool, "starmap_async", {"func": 0, "callback": 3, "error_callback": 4}),
    (ThreadPool, "map", {"func": 0}),
    (ThreadPool, "starmap", {"func": 0}),
    (ThreadPool, "imap", {"func": 0}),
    (ThreadPool, "imap_unordered", {"func": 0}),
)


def follow_threads(hand_over: HandOver, *, is_inside: Callable[[], bool]) -> None:
    """Wrap the places where threads are given work, with the function that hands it over.

    Only the first call does it, for as long as the process lives. A thread that is started where
    `is_inside` returns False is left as it is: it begins outside of steps anyway.
    """
    if _followed:
        return
    with _guard:
        if _followed:
            return
        _followed.append(hand_over)
    for owner, name, takes in _TAKES:
        setattr(owner, name, _handing_over(getattr(owner, name), takes, hand_over))
    start = threading.Thread.start

    @functools.wraps(start)
    def start_inside(self: threading.Thread) -> None:
        if is_inside():
            run = hand_over(self.run)

            def run_inside() -> None:
                # Without this, the thread would refer to itself, and with it to all of the step.
                del self.run
                run()

            self.run = run_inside  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = start_inside  # type: ignore[method-assign]


def _handing_over(
    method: Callable[..., Any], takes: dict[str, int], hand_over: HandOver
) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (as the method has it)
        if isinstance(self, _INTERPRETERS):
            return method(self, *args, **kwargs)
        given = list(args)
        for name, place in takes.items():
            if place < len(given) and callable(given[place]):
                given[place] = hand_over(given[place])
            elif callable(kwargs.get(name)):
                kwargs[name] = hand_over(kwargs[name])
        return method(self, *given, **kwargs)

    return call
