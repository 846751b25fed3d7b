"""Make the model call of a turn as an effect: reserve it, record it, send it, settle it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.budget.amount import Amount, BudgetExhausted, BudgetUnpriced
from tallystick.core.charge import Charge, Settled
from tallystick.core.history import Key, spent_by
from tallystick.core.machine.prompt import Message, request_digest
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    AskModel,
    AttachmentRef,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    Record,
)
from tallystick.core.views.open_calls import call_key
from tallystick.model.port import Model, ModelError, ModelReply, ModelRequest
from tallystick.runtime.calls.decisions import ABANDONED, settle_doubt, settle_unsent
from tallystick.runtime.calls.deltas import HearDelta, hear_nothing, heard_of
from tallystick.runtime.context.attachments import with_pictures
from tallystick.runtime.journal.effects import Decision, EffectScope, Found, Refused
from tallystick.runtime.spend.door import (
    ModelDoor,
    RefusedCall,
    ReservedCall,
    WaitedTooLong,
    refused_call,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModel:
    """The model that the turns of a run ask. Without a `door` it is not asked: a replay."""

    run: str
    model: Model | None
    door: ModelDoor | None
    read: Callable[[AttachmentRef], bytes]
    heard: HearDelta = hear_nothing


class TurnCall:
    """One attempt at the model call of a turn. `name` is the model's, as the run has it now."""

    def __init__(
        self,
        asked: AskedModel,
        intent: AskModel,
        messages: tuple[Message, ...],
        *,
        name: str,
        wall_ms_left: int,
    ) -> None:
        self._asked = asked
        self._name = name
        self._intent = intent
        self._messages = messages
        self._wall_ms_left = wall_ms_left
        self._reserved: ReservedCall | None = None
        self._since = time.monotonic()
        self.key = Key("turn", intent.intent)
        self.scope: EffectScope | None = None
        # The call that no budget paid for, if this was refused now.
        self.refused: RefusedCall | None = None

    @property
    def _ends_at(self) -> float:
        return self._since + self._wall_ms_left / 1000

    @property
    def _door(self) -> ModelDoor:
        assert self._asked.door is not None, "a replay asks nobody"
        return self._asked.door

    @property
    def _model(self) -> Model:
        assert self._asked.model is not None, "a replay asks nobody"
        return self._asked.model

    def begin_again(self, begun: AskModel) -> AskModel:
        return self._with_limit(
            begun.tokens_out_max, msgspec.structs.replace(self._intent, reserved=begun.reserved)
        )

    def _with_limit(self, cap: int, intent: AskModel) -> AskModel:
        """Return the intent with the reply limit that is sent, and the digest of that request."""
        if cap == intent.tokens_out_max:
            return intent
        sha256 = request_digest(
            self._name, self._messages, tokens_out_max=cap, temperature=intent.temperature
        )
        return msgspec.structs.replace(intent, tokens_out_max=cap, request_sha256=sha256)

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[AskModel]:
        intent = self._intent
        try:
            async with self._door.admit(
                self._model,
                self._messages,
                tokens_out_max=intent.tokens_out_max,
                turns=1,
                wait_ms=intent.wait_ms,
                ends_at=self._ends_at,
            ) as reserved:
                self._reserved = reserved
                held = msgspec.structs.replace(intent, reserved=reserved.reserved)
                yield self._with_limit(reserved.tokens_out_max, held)
        except WaitedTooLong:
            # With the figure that is also there on replay: the time of the wait would differ.
            said = f"{self._wall_ms_left:,} ms passed before the model was free"
            raise WaitedTooLong(said) from None
        except (BudgetExhausted, BudgetUnpriced) as error:
            raise Refused(self._refusal(error)) from error

    def _refusal(self, error: BudgetExhausted | BudgetUnpriced) -> ModelRefused:
        terms = self._door.terms(self._model)
        self.refused = refused_call(
            error, terms, self._messages, tokens_out_max=self._intent.tokens_out_max
        )
        message, dimension = f"usd: {terms.decision.why}", "usd"
        if isinstance(error, BudgetExhausted):
            message, dimension = str(error), error.dimension
        return ModelRefused(
            intent=self._intent.intent,
            turn=self._intent.turn,
            message=message,
            dimension=dimension,
            scope=str(error.scope),
        )

    async def send(self, begun: AskModel) -> Sequence[Record]:
        assert self._reserved is not None
        try:
            messages = with_pictures(self._messages, self._asked.read)
        except AttachmentError as error:
            # Nothing was sent. As a failure of the call it is recorded, and costs nothing.
            missing = ModelError(reason="invalid_request", message=str(error), billed=False)
            return [
                self._failure_record(missing, self._door.settle_failure(self._reserved, missing))
            ]
        request = ModelRequest(
            messages=messages,
            tokens_out_max=begun.tokens_out_max,
            temperature=begun.temperature,
            key=call_key(self._asked.run, begun.intent),
        )
        reply = await self._door.ask(
            self._model,
            request,
            heard=heard_of(self._asked.heard, self._asked.run, "turn", self._intent.intent),
            ends_at=self._ends_at,
        )
        if isinstance(reply, ModelError):
            return [self._failure_record(reply, self._door.settle_failure(self._reserved, reply))]
        settled = self._door.settle_reply(self._reserved, reply)
        return [self._reply_record(reply, settled, wall_ms=self._count_time())]

    def leave(self, begun: AskModel, *, sent: bool) -> ModelFailed:
        assert self._reserved is not None
        said = "left in the middle by a cancel" if sent else "left by a cancel before it was sent"
        error = ModelError(reason="unknown", message=said, billed=sent)
        failed = self._failure_record(error, self._door.settle_cancelled(self._reserved, sent=sent))
        return msgspec.structs.replace(failed, reason=LEFT)

    async def settle_doubt(
        self, begun: AskModel, found: Found | None
    ) -> ModelReplied | ModelFailed:
        terms = self._door.terms(self._model)
        settled, said = settle_doubt(self._door, terms, begun.reserved, found)
        if isinstance(found, ModelReply):
            return self._reply_record(found, settled)
        return self._doubt_record(
            settled, said, ends=found is Decision.ABANDON, billed=found is not Decision.AGAIN
        )

    def record_unsent(self, found: Found) -> tuple[AskModel, ModelReplied | ModelFailed]:
        settled = settle_unsent(self._door, self._door.terms(self._model))
        if isinstance(found, ModelReply):
            return self._intent, self._reply_record(found, settled)
        return self._intent, self._doubt_record(settled, ABANDONED, ends=True, billed=False)

    def count_served(
        self, begun: AskModel | None, ended: ModelReplied | ModelFailed | ModelRefused
    ) -> None:
        if self._asked.door is None or isinstance(ended, ModelRefused):
            return
        turns = int(isinstance(ended, ModelReplied))
        self._asked.door.count_recorded(
            self._name, spent_by(ended) + Charge(turns=turns, wall_ms=ended.wall_ms)
        )

    async def completed(
        self, ended: ModelReplied | ModelFailed | ModelRefused
    ) -> ModelReplied | ModelFailed | ModelRefused:
        return ended

    # -- what is written -----------------------------------------------------------------------

    def _count_time(self) -> int:
        """Count the time of the attempt in the scopes, and return it in milliseconds.

        Nothing is reserved for time, so the settlement does not count it.
        """
        wall_ms = round((time.monotonic() - self._since) * 1000)
        self._door.run_scopes.spend(Amount(wall_ms=wall_ms))
        return wall_ms

    def _reply_record(
        self, reply: ModelReply, settled: Settled, *, wall_ms: int = 0
    ) -> ModelReplied:
        return ModelReplied(
            intent=self._intent.intent,
            turn=self._intent.turn,
            text=reply.text,
            usage=reply.usage,
            cut=reply.cut,
            wall_ms=wall_ms,
            served_by=reply.served_by,
            finish=reply.finish,
            settled=settled,
        )

    def _failure_record(self, error: ModelError, settled: Settled) -> ModelFailed:
        return ModelFailed(
            intent=self._intent.intent,
            turn=self._intent.turn,
            reason=error.reason,
            message=error.message,
            wall_ms=self._count_time(),
            kind=error.kind,
            status=error.status,
            retry_after_ms=error.retry_after_ms,
            billed=error.billed,
            usage=error.usage,
            settled=settled,
        )

    def _doubt_record(
        self, settled: Settled, said: str, *, ends: bool, billed: bool
    ) -> ModelFailed:
        return ModelFailed(
            intent=self._intent.intent,
            turn=self._intent.turn,
            reason=DOUBTED,
            message=said,
            kind="terminal" if ends else "transient",
            billed=billed,
            settled=settled,
        )
