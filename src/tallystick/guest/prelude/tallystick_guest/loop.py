"""asyncio without sockets: a loop whose idle step is a sleep in virtual time."""

import asyncio
import asyncio.events
import selectors
import sys

from tallystick_guest import threads, twins, violations


class _Selector(selectors._BaseSelectorImpl):
    """Nothing outside can ever become ready, so waiting is moving the clock."""

    woken = False

    def select(self, timeout: float | None = None) -> list[object]:
        threads.select(timeout, self._is_woken)
        self.woken = False
        return []

    def _is_woken(self) -> bool:
        return self.woken


class Loop(asyncio.SelectorEventLoop):
    """The only event loop of a guest."""

    def __init__(self, selector: object = None) -> None:
        super().__init__(_Selector())

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None
        self._internal_fds = 0

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self._selector.woken = True

    async def subprocess_exec(self, *args: object, **kwargs: object) -> object:
        raise violations._violation("a subprocess", violations.PROCESS)

    async def subprocess_shell(self, *args: object, **kwargs: object) -> object:
        raise violations._violation("a subprocess", violations.PROCESS)


class _Policy(asyncio.events._BaseDefaultEventLoopPolicy):
    _loop_factory = Loop


def install() -> None:
    """Make it the loop of `asyncio.run`, `new_event_loop` and top-level await."""
    twins.store_module(sys.modules[__name__])
    asyncio.events._event_loop_policy = _Policy()
    # `set_event_loop_policy(None)` has the next use make one of these.
    asyncio._DefaultEventLoopPolicy = asyncio.unix_events._DefaultEventLoopPolicy = _Policy
    asyncio.unix_events._UnixDefaultEventLoopPolicy._loop_factory = Loop
    asyncio.SelectorEventLoop = asyncio.EventLoop = Loop
    asyncio.unix_events.SelectorEventLoop = Loop
