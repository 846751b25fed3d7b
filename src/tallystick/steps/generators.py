"""Keep a step open for as long as the generator that it returned can still be asked.

Each time the generator is asked, its body runs in the step, in whichever thread or task that is;
between two values the caller is outside of it. The step ends with the generator: when it is
exhausted, raises, is closed, or is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

# Iterators of these modules run the code of the step when they are asked: `map`, `filter`, `zip`,
# and those of itertools. A file is an iterator too, but has no code of the step.
_LAZY = frozenset({"builtins", "itertools"})


class Frame(Protocol):
    """The frame of a step, which is suspended between two values."""

    def resumed(self) -> AbstractContextManager[None]:
        """Go on in the frame while inside."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Leave the step. Return True if the error ends here."""


def lasting_result(frame: Frame, result: object) -> StepGenerator | StepAsyncGenerator | None:
    """Return a generator that keeps the step open; None if the result is none.

    That is so for generators and async generators, and for lazy iterators such as `map`.
    """
    if isinstance(result, AsyncGenerator):
        return StepAsyncGenerator(frame, result)
    if isinstance(result, Generator):
        return StepGenerator(frame, result)
    if isinstance(result, Iterator) and type(result).__module__ in _LAZY:
        return StepGenerator(frame, (each for each in result))
    return None


class StepGenerator(Generator[Any, Any, Any]):
    """A generator that a step returned. The step lasts until it is over."""

    def __init__(self, frame: Frame, values: Generator[Any, Any, Any]) -> None:
        self._frame: Frame | None = frame
        self._values = values

    def send(self, value: object) -> Any:  # noqa: ANN401 (a generator of anything)
        return self._ask(lambda: self._values.send(value), ended=StopIteration())

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 (as a generator takes it)
        return self._ask(lambda: self._values.throw(*error), ended=None)

    def close(self) -> None:
        if self._frame is not None:
            with contextlib.suppress(StopIteration):
                self._ask(self._close, ended=None)

    def __del__(self) -> None:
        """Close the generator, as every generator that is dropped is closed."""
        self.close()

    def _close(self) -> None:
        self._values.close()
        raise StopIteration

    def _ask(self, ask: Callable[[], object], *, ended: StopIteration | None) -> object:
        """Run the body up to its next value, in the step. Its end, or an error, ends the step.

        Once it is over, raise `ended`, or what `ask` raises.
        """
        frame = self._frame
        if frame is None:
            if ended is not None:
                raise ended
            return ask()
        # One that is asked while it runs refuses that itself, and goes on.
        if getattr(self._values, "gi_running", False):
            return ask()
        with frame.resumed():
            try:
                return ask()
            except StopIteration:
                self._frame = None
                frame.__exit__(None, None, None)
                raise
            except BaseException as error:
                self._frame = None
                if frame.__exit__(type(error), error, error.__traceback__):
                    raise StopIteration from None
                raise


class StepAsyncGenerator(AsyncGenerator[Any, Any]):
    """An async generator that a step returned. The step lasts until it is over."""

    def __init__(self, frame: Frame, values: AsyncGenerator[Any, Any]) -> None:
        self._frame: Frame | None = frame
        self._values = values

    async def asend(self, value: object) -> Any:  # noqa: ANN401 (a generator of anything)
        return await self._ask(lambda: self._values.asend(value))

    async def athrow(self, *error: Any) -> Any:  # noqa: ANN401 (as a generator takes it)
        return await self._ask(lambda: self._values.athrow(*error))

    async def aclose(self) -> None:
        if self._frame is not None:
            with contextlib.suppress(StopAsyncIteration):
                await self._ask(self._close)

    def __del__(self) -> None:
        """End the step. The event loop closes the generator itself, when it can."""
        frame, self._frame = self._frame, None
        if frame is not None:
            with frame.resumed():
                frame.__exit__(None, None, None)

    async def _close(self) -> None:
        await self._values.aclose()
        raise StopAsyncIteration

    async def _ask(self, ask: Callable[[], Awaitable[object]]) -> object:
        """Run the body up to its next value, in the step. Its end, or an error, ends the step."""
        frame = self._frame
        # One that is asked while it runs refuses that itself, and goes on.
        if frame is None or getattr(self._values, "ag_running", False):
            return await ask()
        with frame.resumed():
            try:
                return await ask()
            except StopAsyncIteration:
                self._frame = None
                frame.__exit__(None, None, None)
                raise
            except BaseException as error:
                self._frame = None
                if frame.__exit__(type(error), error, error.__traceback__):
                    raise StopAsyncIteration from None
                raise
