"""The live desk: attempts of programs' model calls, paid for by the run's purse.

Those that are admitted together are written together: one wait for the disk for many. While
something is under way, one that is not paid for yet waits until something is settled; what is
refused with nothing under way is refused for good. Those who wait stand in line, and one at a time
is called: to wake them all for each that ends would be a million looks at the budget for a thousand
calls.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tallystick.core.budget_errors import BudgetExhausted, BudgetUnpriced
from tallystick.core.errors import UsageError
from tallystick.core.lookup import call_key
from tallystick.core.prompt import request_digest
from tallystick.core.records import (
    LEFT,
    ChildBegun,
    ChildEnded,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryRefused,
    QueryReplied,
    Reserved,
    Settled,
)
from tallystick.model.port import Model, ModelError, ModelReply, ModelRequest, readable
from tallystick.runtime.queries import (
    MODEL,
    WHOLE,
    QueryDesk,
    QueryPlace,
    QueryRequest,
    problem_of_refusal,
)
from tallystick.runtime.shelf import INLINE_BYTES_MAX, Shelf
from tallystick.runtime.teller import REPLY_TOKENS_LEAST, Teller, Ticket

__all__ = ["FindModel", "LiveDesk", "Written", "WrittenDesk", "asked_of"]

# A model by the name that a program gives; None is the run's own. Raises what the program sees.
FindModel = Callable[[str | None], Model]


class Written(Protocol):
    """How a desk writes down what it does; the driver's part."""

    async def asked(self, record: QueryAsked) -> None:
        """On disk, before it is sent."""
        ...

    async def begun(self, record: ChildBegun) -> None:
        """On disk, before the child is."""
        ...

    async def ended(self, record: QueryReplied | QueryFailed | QueryRefused | ChildEnded) -> None:
        """Committed, before anybody hears of it."""
        ...

    def now(self, record: QueryRecord) -> None:
        """At once: whoever asked is being cancelled."""
        ...


class WrittenDesk(Protocol):
    """A desk that is told, for each program, where what it does is written."""

    written: Written | None


class LiveDesk:
    """Makes the attempts of one run's programs."""

    def __init__(
        self,
        run: str,
        teller: Teller,
        find_model: FindModel,
        shelf: Shelf,
        *,
        temperature: float | None = None,
    ) -> None:
        self._run = run
        self._temperature = temperature
        self._teller = teller
        self._find_model = find_model
        self._shelf = shelf
        self._under_way = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._called: asyncio.Future[None] | None = None
        self._held: dict[tuple[int, int], Ticket] = {}
        self.written: Written | None = None

    async def begin(self, requests: Sequence[QueryRequest], *, whole: bool) -> None:
        made: dict[tuple[int, int], Ticket] = {}
        try:
            terms = self._teller.terms(self._find_model(requests[0].model))
            for request in requests if whole else ():
                made[request.place.intent, request.item] = self._teller.reserve(
                    terms,
                    request.messages,
                    tokens_out_max=request.tokens_out_max,
                    tokens_out_min=request.tokens_out_max,
                )
        except BaseException as error:
            for ticket in made.values():
                self._teller.release(ticket)
            if not isinstance(error, BudgetExhausted | BudgetUnpriced | UsageError):
                raise
            batch = dataclasses.replace(requests[0], item=WHOLE, attempt=0)
            refused = _refused(batch, error)
            await self._written().ended(refused)
            raise problem_of_refusal(refused) from error
        self._held |= made

    def let_go(self, place: QueryPlace) -> None:
        for key in [key for key in self._held if key[0] == place.intent]:
            self._teller.release(self._held.pop(key))
        self._call()

    async def ask(self, request: QueryRequest) -> QueryReplied | QueryFailed | QueryRefused:
        try:
            model = self._find_model(request.model)
        except UsageError as error:
            return await self._refuse(request, error)
        if request.wait_ms:
            await asyncio.sleep(request.wait_ms / 1000)
        async with model.admitted():
            try:
                ticket = await self._reserved(request, model)
            except (BudgetExhausted, BudgetUnpriced) as error:
                return await self._refuse(request, error)
            self._under_way += 1
            try:
                return await self._attempt(request, model, ticket)
            finally:
                self._under_way -= 1
                self._teller.release(ticket)
                self._call()

    async def _refuse(
        self, request: QueryRequest, error: BudgetExhausted | BudgetUnpriced | UsageError
    ) -> QueryRefused:
        refused = _refused(request, error)
        await self._written().ended(refused)
        return refused

    async def _reserved(self, request: QueryRequest, model: Model) -> Ticket:
        held = self._held.pop((request.place.intent, request.item), None)
        if held is not None:
            return held
        terms = self._teller.terms(model)
        called = False
        try:
            while True:
                if called or not self._line:
                    # While others are under way, what they give back may pay for a whole reply.
                    least = request.tokens_out_max if self._under_way else REPLY_TOKENS_LEAST
                    try:
                        return self._teller.reserve(
                            terms,
                            request.messages,
                            tokens_out_max=request.tokens_out_max,
                            tokens_out_min=least,
                        )
                    except BudgetExhausted:
                        if not self._under_way:
                            raise
                await self._turn(first=called)
                called = True
        finally:
            # What is left may pay for the next one too; or this one does not need it.
            self._call()

    async def _turn(self, *, first: bool) -> None:
        """Wait to be called; who was called in vain stays ahead of the others."""
        turn = asyncio.get_running_loop().create_future()
        if first:
            self._line.appendleft(turn)
        else:
            self._line.append(turn)
        try:
            await turn
        finally:
            if self._called is turn:
                self._called = None
            else:
                self._line.remove(turn)

    def _call(self) -> None:
        """Call the first in line, unless one is called already and on its way."""
        if self._called is None and self._line:
            self._called = self._line.popleft()
            if not self._called.done():
                self._called.set_result(None)

    async def _attempt(
        self, request: QueryRequest, model: Model, ticket: Ticket
    ) -> QueryReplied | QueryFailed:
        began = time.monotonic()
        sent = False
        try:
            await self._written().asked(self._asked(request, model, ticket))
            sent = True
            said = await model.ask(
                ModelRequest(
                    messages=request.messages,
                    tokens_out_max=ticket.tokens_out_max,
                    temperature=self._temperature,
                    key=call_key(
                        self._run,
                        request.place.intent,
                        item=request.item,
                        attempt=request.attempt,
                    ),
                ),
                heard=lambda chars: None,
            )
            reply = readable(said)
        except Exception as error:
            if not sent:
                # It could not be written down.
                raise
            failure = error if isinstance(error, ModelError) else _broken(error)
            event: QueryReplied | QueryFailed = _failed(
                request, failure, self._teller.failed(ticket, failure), began
            )
        except asyncio.CancelledError:
            left = ModelError(reason="unknown", message="left in the middle", billed=sent)
            settled = self._teller.cancelled(ticket, sent=sent)
            self._written().now(_failed(request, left, settled, began, reason=LEFT))
            raise
        else:
            settled = self._teller.replied(ticket, reply)
            event = self.replied(request, reply, settled, wall_ms=_since(began))
        await self._written().ended(event)
        if isinstance(event, QueryReplied) and event.text_ref is not None:
            return msgspec.structs.replace(event, text=reply.text)
        return event

    def _asked(self, request: QueryRequest, model: Model, ticket: Ticket) -> QueryAsked:
        asked = asked_of(
            request,
            model.name,
            ticket.reserved,
            ticket.tokens_out_max,
            temperature=self._temperature,
        )
        prompt = asked.prompt
        if len(prompt) <= INLINE_BYTES_MAX:
            return asked
        raw = prompt.encode("utf-8", "surrogatepass")
        ref = self._shelf.keep(raw, media_type="text/plain", label="prompt")
        return msgspec.structs.replace(asked, prompt="", prompt_ref=ref)

    def replied(
        self, request: QueryRequest, reply: ModelReply, settled: Settled, *, wall_ms: int
    ) -> QueryReplied:
        """What is written of a reply. A long one is kept apart."""
        ref = None
        if len(reply.text) > INLINE_BYTES_MAX:
            ref = self._shelf.keep(
                reply.text.encode("utf-8", "surrogatepass"), media_type="text/plain", label="reply"
            )
        return QueryReplied(
            intent=request.place.intent,
            item=request.item,
            attempt=request.attempt,
            text=reply.text if ref is None else "",
            text_ref=ref,
            usage=reply.usage,
            settled=settled,
            cut=reply.cut,
            wall_ms=wall_ms,
            served_by=reply.served_by,
            finish=reply.finish,
        )

    def _written(self) -> Written:
        assert self.written is not None, "programs run under a driver"
        return self.written


def asked_of(
    request: QueryRequest,
    model: str,
    reserved: Reserved,
    tokens_out_max: int,
    *,
    temperature: float | None,
) -> QueryAsked:
    """What is written of an attempt, its prompt whole."""
    return QueryAsked(
        intent=request.place.intent,
        program=request.place.program,
        item=request.item,
        attempt=request.attempt,
        model=model,
        request_sha256=request_digest(
            model, request.messages, tokens_out_max=tokens_out_max, temperature=temperature
        ),
        tokens_out_max=tokens_out_max,
        reserved=reserved,
        prompt=request.messages[-1].text,
        wait_ms=request.wait_ms,
        temperature=temperature,
    )


def _broken(error: Exception) -> ModelError:
    """A backend that broke by a fault of its own. What it was doing may have been paid for."""
    return ModelError(reason="unknown", message=f"the backend broke ({type(error).__name__})")


def _failed(
    request: QueryRequest,
    error: ModelError,
    settled: Settled,
    began: float,
    *,
    reason: str | None = None,
) -> QueryFailed:
    return QueryFailed(
        intent=request.place.intent,
        item=request.item,
        attempt=request.attempt,
        reason=reason or error.reason,
        message=error.message,
        settled=settled,
        kind=error.kind,
        status=error.status,
        retry_after_ms=error.retry_after_ms,
        billed=error.billed,
        usage=error.usage,
        wall_ms=_since(began),
    )


def _refused(
    request: QueryRequest, error: BudgetExhausted | BudgetUnpriced | UsageError
) -> QueryRefused:
    dimension, scope = MODEL, ""
    if not isinstance(error, UsageError):
        dimension = error.dimension if isinstance(error, BudgetExhausted) else "usd"
        scope = str(error.scope)
    return QueryRefused(
        intent=request.place.intent,
        item=request.item,
        attempt=request.attempt,
        message=str(error),
        dimension=dimension,
        scope=scope,
    )


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


_: type[QueryDesk] = LiveDesk
