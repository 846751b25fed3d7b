"""A model of the caller's own: a function from the messages to the reply, async or not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, cast

from tallystick.core.errors import Cancelled, UsageError
from tallystick.model.port import (
    Heard,
    Model,
    ModelError,
    ModelReply,
    ModelRequest,
    estimated_usage,
)

_ERROR_CHARS_MAX = 500


# Returns the reply to messages, each with `role` and `content`: text, or a `ModelReply` with the
# usage that a provider reported. It may be async.
ModelFunction = Callable[[list[dict[str, str]]], Any]


class CallableModel:
    """A function as a model. Its name is that of the function, which the run records.

    A plain function is called in a thread, so it may block. Its exceptions become `ModelError`,
    which ends the run as `model_error`. Without a `ModelReply`, the tokens are estimated.
    """

    def __init__(self, function: ModelFunction, *, name: str | None = None) -> None:
        self._function = function
        called = name or getattr(function, "__name__", None) or type(function).__name__
        self._name = str(called)

    @property
    def name(self) -> str:
        return self._name

    def admitted(self) -> AbstractAsyncContextManager[None]:
        """Wait for nothing: the function limits itself."""
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard) -> ModelReply:
        """Call the function with the messages. Raise `ModelError` if it raises, or returns none."""
        messages = [{"role": each.role, "content": each.text} for each in request.messages]
        try:
            reply = await _called(self._function, messages)
        except (ModelError, Cancelled):
            raise
        except Exception as error:
            raise _failure(f"{type(error).__name__}: {error}") from error
        if isinstance(reply, ModelReply):
            return reply
        if not isinstance(reply, str):
            raise _failure(
                f"{self._name} returned {type(reply).__name__}; it returns the reply as text"
            )
        return ModelReply(text=reply, usage=estimated_usage(request.messages, reply))

    async def close(self) -> None:
        """Do nothing: what the function opened is its own."""


async def _called(function: ModelFunction, messages: Sequence[dict[str, str]]) -> object:
    given = list(messages)
    called = getattr(function, "__call__", None)  # noqa: B004 - its type decides, not whether
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        return await function(given)
    made = await asyncio.to_thread(function, given)
    return await made if inspect.isawaitable(made) else made


def _failure(message: str) -> ModelError:
    return ModelError(reason="unknown", message=message[:_ERROR_CHARS_MAX])


def as_model(given: object) -> Model:
    """Return a model as it is, and a callable as a model.

    Raise `UsageError` for anything else.
    """
    if hasattr(given, "ask") and hasattr(given, "name"):
        return cast("Model", given)
    if callable(given) and not isinstance(given, type):
        return CallableModel(given)
    raise UsageError(
        f'model: {type(given).__name__} is no model; give a name such as "openai:gpt-5-mini", a '
        "function from messages to the reply, or an object with name, admitted, ask and close"
    )


_: type[Model] = CallableModel
