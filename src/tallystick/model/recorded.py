"""A model that repeats the replies of a recorded run, and reports prompts that differ."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import get_args

import msgspec

from tallystick.core.machine.prompt import request_digest
from tallystick.core.records import AskModel, ModelFailed, ModelReplied, QueryFailed
from tallystick.model.port import Heard, Model, ModelError, ModelReason, ModelReply, ModelRequest

# A record from elsewhere may contain a reason that this version does not know.
_REASONS: dict[str, ModelReason] = {reason: reason for reason in get_args(ModelReason)}


def failure_of(recorded: ModelFailed | QueryFailed) -> ModelError:
    """Return a recorded failure as the error that it was.

    Its reason is `unknown` if this version does not know the recorded one.
    """
    return ModelError(
        reason=_REASONS.get(recorded.reason, "unknown"),
        message=recorded.message,
        kind=recorded.kind,
        status=recorded.status,
        retry_after_ms=recorded.retry_after_ms,
        billed=recorded.billed,
        usage=recorded.usage,
    )


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that differs from the one of the recorded reply."""

    position: int
    recorded: str
    now: str


class RecordedModel:
    """Replies by position. A changed prompt is added to `drift`, and is not an error.

    A recorded failure is raised again. After the last reply, `ask` raises `ModelError`.
    """

    def __init__(
        self,
        exchanges: Sequence[tuple[AskModel, ModelReplied | ModelFailed]],
        *,
        name: str,
        recorded_name: str,
    ) -> None:
        self._exchanges = exchanges
        self._name = name
        self._recorded_name = recorded_name
        self._asked = 0
        self.drift: list[Drift] = []

    @property
    def name(self) -> str:
        return self._name

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda text: None) -> ModelReply:
        position, self._asked = self._asked, self._asked + 1
        if position >= len(self._exchanges):
            raise ModelError(
                reason="unknown",
                message=f"the recording has no reply after number {len(self._exchanges)}",
            )
        asked, reply = self._exchanges[position]
        now = request_digest(
            self._recorded_name,
            request.messages,
            tokens_out_max=request.tokens_out_max,
            temperature=request.temperature,
        )
        if now != asked.request_sha256:
            self.drift.append(Drift(position=position, recorded=asked.request_sha256, now=now))
        if isinstance(reply, ModelFailed):
            raise failure_of(reply)
        return ModelReply(
            text=reply.text,
            usage=reply.usage,
            cut=reply.cut,
            served_by=reply.served_by,
            finish=reply.finish,
        )

    def skip(self, calls: int) -> None:
        """Continue after this many calls, which were answered before, maybe by another process.

        It never goes back.
        """
        self._asked = max(self._asked, calls)

    async def close(self) -> None:
        """Do nothing: no resource is open."""


_: type[Model] = RecordedModel
