"""Models that fail as providers do: late, overloaded, broken, without a right, or cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from tallystick.core.errors import UsageError
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest

_FAILURES: dict[str, Callable[[], ModelError]] = {
    "timeout": lambda: ModelError(reason="timeout", message="no reply in time"),
    "429": lambda: ModelError(
        reason="rate_limit",
        message="answered 429; too many requests",
        status=429,
        retry_after_ms=1,
        billed=False,
    ),
    "500": lambda: ModelError(
        reason="server_error", message="answered 500; ask again later", status=500
    ),
    "401": lambda: ModelError(
        reason="auth_failure", message="answered 401; check the key", status=401, billed=False
    ),
}
# The reply arrives, and ends at its token limit.
_CUT = "cut"


class FailingModel:
    """Fails in the given ways, one call after the other; then it asks another model."""

    def __init__(self, model: Any, kinds: Sequence[str]) -> None:  # noqa: ANN401 (any model)
        for kind in kinds:
            if kind not in (*_FAILURES, _CUT):
                known = ", ".join([*_FAILURES, _CUT])
                raise UsageError(f"faults: there is no {kind!r}; there are: {known}")
        self._model: Model = model
        self._kinds = list(kinds)

    @property
    def name(self) -> str:
        return self._model.name

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return self._model.admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        """Fail, or ask the model. A cut reply is the first half of that of the model."""
        kind = self._kinds.pop(0) if self._kinds else None
        if kind in _FAILURES:
            raise _FAILURES[kind]()
        reply = await self._model.ask(request, heard=heard)
        if kind != _CUT:
            return reply
        return ModelReply(
            text=reply.text[: len(reply.text) // 2],
            usage=reply.usage,
            cut=True,
            served_by=reply.served_by,
            finish="length",
        )

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()


_: type[Model] = FailingModel
