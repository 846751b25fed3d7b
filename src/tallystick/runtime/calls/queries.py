"""Model calls of programs: `llm_query` and `llm_query_batched`.

A batch keeps its order and runs side by side; each item has its own attempts, its own reservation
and its own end. Each attempt is an effect: from the record or from a model, everything here is the
same.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tallystick.core.budget.amount import BudgetExhausted, BudgetUnpriced
from tallystick.core.charge import Reserved, Settled
from tallystick.core.errors import TallystickError, UsageError
from tallystick.core.history import WHOLE, Key, spent_by
from tallystick.core.json_text import digest
from tallystick.core.machine.prompt import Message, request_digest
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    Record,
)
from tallystick.core.schema import check_schema, found_in, problem_of
from tallystick.core.views.open_calls import call_key
from tallystick.model.port import Model, ModelError, ModelReply, ModelRequest
from tallystick.runtime.calls.decisions import ABANDONED, settled_doubt, settled_unsent
from tallystick.runtime.calls.scope import Call
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments
from tallystick.runtime.journal.effects import Decision, Effects, Found, Refused
from tallystick.runtime.spend.door import ModelDoor, ReservedCall
from tallystick.sandbox.host import HostFunction

# What a call is refused for that asks for a model which is not for programs.
MODEL = "model"
BATCH_MAX = 10_000
ITEMS_MAX = 100_000
_PROMPT_BYTES_MAX = 1_000_000
# Before the second attempt; doubled for each one after it.
_WAIT_MS = 250
_SHOWN_CHARS_MAX = 2_000
_PLAIN = {"boolean": "yes or no.", "integer": "a whole number.", "number": "a number."}
# What becomes of a batch that is not paid for as a whole: the part that is runs, or nothing does.
Fit = Literal["part", "whole"]


class QueryProblem(TallystickError):
    """A model call of a program came to nothing. `kind` says why."""

    code = "query"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = self.told_as = kind


def problem_of_refusal(refused: QueryRefused) -> QueryProblem:
    """What a program is told of a call that was never made."""
    kind = "UnknownModel" if refused.dimension == MODEL else "BudgetExhausted"
    return QueryProblem(kind, refused.message)


# A model by the name that a program gives; None is the run's own. Raises what the program sees.
FindModel = Callable[[str | None], Model]
QueryOutcome = QueryReplied | QueryFailed | QueryRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModels:
    """The models that the programs of a run ask. Without a `door` none is asked: a replay."""

    run: str
    door: ModelDoor | None
    find_model: FindModel
    run_attachments: RunAttachments
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """One attempt at one item."""

    call: Call
    item: int
    model: str | None
    messages: tuple[Message, ...]
    tokens_out_max: int
    attempt: int = 1
    wait_ms: int = 0

    @property
    def key(self) -> Key:
        return Key("query", self.call.intent, self.item, self.attempt)

    def next(
        self, *, wait_ms: int = 0, messages: tuple[Message, ...] | None = None
    ) -> QueryRequest:
        """Return the attempt after this one, with other messages if there are any."""
        return dataclasses.replace(
            self,
            attempt=self.attempt + 1,
            wait_ms=wait_ms,
            messages=self.messages if messages is None else messages,
        )


class Queries:
    """The model calls of one run's programs."""

    def __init__(self, effects: Effects, models: AskedModels) -> None:
        self._effects = effects
        self._models = models
        self._items = 0

    def functions(self) -> list[HostFunction]:
        return [
            HostFunction(name="llm_query", function=self.query, handed=True),
            HostFunction(name="llm_query_batched", function=self.batched, handed=True),
        ]

    async def query(
        self,
        call: Call,
        prompt: str,
        model: str | None = None,
        schema: Any = None,  # noqa: ANN401 (a program's word, checked below)
    ) -> object:
        """Ask a model; returns its text, or with `schema` (bool, int, list[str], ...) a value."""
        (outcome,) = await self._asked(call, [prompt], model, schema)
        if isinstance(outcome, QueryProblem):
            raise outcome
        return outcome

    async def batched(
        self,
        call: Call,
        prompts: list[str],
        model: str | None = None,
        schema: Any = None,  # noqa: ANN401 (a program's word, checked below)
        fit: str = "part",
    ) -> dict[str, object]:
        """Ask many at once; the answers in order, a HostError in the place of one that failed."""
        if not isinstance(prompts, list):
            raise UsageError(f"prompts: a list of texts, not {type(prompts).__name__}")
        if fit not in ("part", "whole"):
            raise UsageError(f"fit: 'part' or 'whole', not {fit!r}")
        outcomes = await self._asked(
            call, prompts, model, schema, fit="whole" if fit == "whole" else "part"
        )
        # Errors stand apart: whatever a model says is an answer.
        return {
            "answers": [None if isinstance(each, QueryProblem) else each for each in outcomes],
            "errors": [
                [item, each.kind, str(each)]
                for item, each in enumerate(outcomes)
                if isinstance(each, QueryProblem)
            ],
        }

    async def directly(self, call: Call, prompts: Sequence[str], model: str | None) -> list[object]:
        """Return the outcomes of calls that a program makes in another way than by name."""
        return await self._asked(call, prompts, model, None)

    async def alone(
        self,
        call: Call,
        prompt: str,
        *,
        model: str | None,
        tokens_out_max: int,
        heard: Callable[[QueryOutcome], None],
    ) -> object:
        """Ask one question from outside of the process; `heard` is told of each attempt.

        A model that is not for programs is refused by its item: refused as a batch, two questions
        of one host call would have one place in the record.
        """
        self._count(1)
        request = QueryRequest(
            call=call,
            item=0,
            model=model,
            messages=(_asking(checked_text(prompt, 0), None),),
            tokens_out_max=tokens_out_max,
        )
        outcome = await self._one(request, None, {}, heard)
        if isinstance(outcome, QueryProblem):
            raise outcome
        return outcome

    # -- inside --------------------------------------------------------------------------------

    def _count(self, items: int) -> None:
        self._items += items
        if self._items > ITEMS_MAX:
            raise UsageError(f"a run asks at most {ITEMS_MAX:,} times")

    async def _asked(
        self,
        call: Call,
        prompts: Sequence[object],
        model: object,
        schema: object,
        *,
        fit: Fit = "part",
    ) -> list[object]:
        if model is not None and not isinstance(model, str):
            raise UsageError(f"model: a name, not {type(model).__name__}")
        if len(prompts) > BATCH_MAX:
            raise UsageError(f"{len(prompts):,} prompts; at most {BATCH_MAX:,} in a batch")
        self._count(len(prompts))
        checked = None if schema is None else check_schema(schema)
        requests = [
            QueryRequest(
                call=call,
                item=item,
                model=model,
                messages=(_asking(checked_text(prompt, item), checked),),
                tokens_out_max=call.scope.limits.reply_tokens,
            )
            for item, prompt in enumerate(prompts)
        ]
        held = await self._let_in(requests, whole=fit == "whole") if requests else {}
        tasks = [asyncio.ensure_future(self._one(each, checked, held)) for each in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            # Each writes down that it was left. One that had not begun never does.
            await asyncio.gather(*tasks, return_exceptions=True)
            for reserved in held.values():
                self._door.release(reserved)

    @property
    def _door(self) -> ModelDoor:
        assert self._models.door is not None, "a replay asks nobody"
        return self._models.door

    async def _let_in(
        self, requests: Sequence[QueryRequest], *, whole: bool
    ) -> dict[int, ReservedCall]:
        """Find the model of a batch, and with `whole` reserve for all of it, by item; or raise.

        One that was begun is not refused as a whole any more: the rest of it pays by item.
        """
        held: dict[int, ReservedCall] = {}
        if any(self._effects.knows(each.key) for each in requests):
            return held
        batch = dataclasses.replace(requests[0], item=WHOLE, attempt=0)

        async def refuse() -> QueryRefused | None:
            try:
                terms = self._door.terms(self._models.find_model(batch.model))
                if whole:
                    reserved = await self._door.when_paid(
                        lambda: self._door.reserve_all(
                            terms,
                            [each.messages for each in requests],
                            tokens_out_max=batch.tokens_out_max,
                        )
                    )
                    held.update(enumerate(reserved))
            except (BudgetExhausted, BudgetUnpriced, UsageError) as error:
                return _refused(batch, error)
            return None

        refused = await self._effects.refusal(batch.key, refuse)
        if isinstance(refused, QueryRefused):
            raise problem_of_refusal(refused)
        return held

    async def _one(
        self,
        request: QueryRequest,
        schema: Mapping[str, Any] | None,
        held: dict[int, ReservedCall],
        heard: Callable[[QueryOutcome], None] = lambda outcome: None,
    ) -> object:
        repaired = False
        failures = 0
        while True:
            event = await self._effects.perform(
                QueryCall(self._effects, self._models, request, held)
            )
            heard(event)
            if isinstance(event, QueryRefused):
                return problem_of_refusal(event)
            if isinstance(event, QueryFailed):
                if event.reason == LEFT or (event.reason == DOUBTED and event.kind == "transient"):
                    # It was not the model that failed.
                    request = request.next()
                    continue
                if event.reason == DOUBTED:
                    return QueryProblem("InDoubt", event.message)
                failures += 1
                if event.kind == "terminal" or failures > request.call.scope.limits.retries:
                    return QueryProblem("ModelError", f"{event.reason}: {event.message}")
                wait_ms = max(event.retry_after_ms or 0, _WAIT_MS * 2 ** (failures - 1))
                request = request.next(wait_ms=wait_ms)
                continue
            if schema is None:
                return event.text
            value, problem = _read(event.text, schema, cut=event.cut)
            if problem is None:
                return value
            if repaired:
                return QueryProblem("SchemaMismatch", problem)
            repaired = True
            request = request.next(messages=_repair(request, event.text, problem))


class QueryCall:
    """One attempt at a model call of a program. What its batch holds for it is in `held`."""

    def __init__(
        self,
        effects: Effects,
        models: AskedModels,
        request: QueryRequest,
        held: dict[int, ReservedCall],
    ) -> None:
        self._effects = effects
        self._models = models
        self._request = request
        self._held = held
        self._model: Model | None = None
        self._reserved: ReservedCall | None = None
        self._since = time.monotonic()
        # A long reply is kept apart, and is not in its record.
        self._text: str | None = None
        self.key = request.key
        self.scope = request.call.scope

    @property
    def _door(self) -> ModelDoor:
        assert self._models.door is not None, "a replay asks nobody"
        return self._models.door

    def again(self, begun: QueryAsked) -> QueryAsked:
        now = self._asked(
            begun.model, begun.reserved, begun.tokens_out_max, temperature=begun.temperature
        )
        if begun.prompt_ref is None:
            return now
        same = digest(now.prompt.encode("utf-8", "surrogatepass")) == begun.prompt_ref.id
        return msgspec.structs.replace(
            now, prompt="" if same else now.prompt, prompt_ref=begun.prompt_ref
        )

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[QueryAsked]:
        request = self._request
        try:
            self._model = model = self._models.find_model(request.model)
            async with self._paid(model) as reserved:
                self._reserved = reserved
                yield self._kept_apart(
                    self._asked(
                        model.name,
                        reserved.reserved,
                        reserved.tokens_out_max,
                        temperature=self._models.temperature,
                    )
                )
        except (BudgetExhausted, BudgetUnpriced, UsageError) as error:
            raise Refused(_refused(request, error)) from error

    @asynccontextmanager
    async def _paid(self, model: Model) -> AsyncIterator[ReservedCall]:
        """Give a call its place and its money, which may be reserved with its batch already."""
        held = self._held.pop(self._request.item, None)
        if held is None:
            async with self._door.admitted(
                model,
                self._request.messages,
                tokens_out_max=self._request.tokens_out_max,
                wait_ms=self._request.wait_ms,
            ) as reserved:
                yield reserved
            return
        try:
            async with model.admitted():
                # Another call of the batch may have shown that no cap holds here.
                overrun = self._door.run_scopes.overrun()
                if overrun is not None:
                    raise overrun
                yield held
        finally:
            self._door.release(held)

    async def send(self, begun: QueryAsked) -> Sequence[Record]:
        assert self._model is not None
        assert self._reserved is not None
        self._since = time.monotonic()
        reply = await self._door.ask(
            self._model,
            ModelRequest(
                messages=self._request.messages,
                tokens_out_max=self._reserved.tokens_out_max,
                temperature=self._models.temperature,
                key=call_key(
                    self._models.run,
                    self._request.call.intent,
                    item=self._request.item,
                    attempt=self._request.attempt,
                ),
            ),
            heard=lambda chars: None,
        )
        if isinstance(reply, ModelError):
            return [self._failed(reply, self._door.failed(self._reserved, reply))]
        settled = self._door.replied(self._reserved, reply)
        return [self._replied(reply, settled, wall_ms=self._wall_ms())]

    def left(self, begun: QueryAsked, *, sent: bool) -> QueryFailed:
        assert self._reserved is not None
        error = ModelError(reason="unknown", message="left in the middle", billed=sent)
        failed = self._failed(error, self._door.cancelled(self._reserved, sent=sent))
        return msgspec.structs.replace(failed, reason=LEFT)

    async def doubted(self, begun: QueryAsked, found: Found | None) -> QueryReplied | QueryFailed:
        terms = self._door.terms(self._models.find_model(begun.model))
        settled, said = settled_doubt(self._door, terms, begun.reserved, found)
        if isinstance(found, ModelReply):
            return self._replied(found, settled)
        return in_doubt(
            begun, settled, said, ends=found is Decision.ABANDON, billed=found is not Decision.AGAIN
        )

    def unsent(self, found: Found) -> tuple[QueryAsked, QueryReplied | QueryFailed]:
        before = self._effects.history.begun(self.key._replace(attempt=self.key.attempt - 1))[0]
        assert isinstance(before, QueryAsked)
        asked = msgspec.structs.replace(
            self.again(before),
            reserved=Reserved(tokens_in=0, tokens_out=0, usd=0, price=before.reserved.price),
        )
        settled = settled_unsent(
            self._door, self._door.terms(self._models.find_model(before.model))
        )
        if isinstance(found, ModelReply):
            return asked, self._replied(found, settled)
        return asked, in_doubt(asked, settled, ABANDONED, ends=True, billed=False)

    def served(self, begun: QueryAsked | None, ended: QueryOutcome) -> None:
        door = self._models.door
        if door is not None and begun is not None and not isinstance(ended, QueryRefused):
            door.recalled(begun.model, spent_by(ended))

    async def told(self, ended: QueryOutcome) -> QueryOutcome:
        if not isinstance(ended, QueryReplied) or ended.text_ref is None:
            return ended
        if self._text is None:
            raw = self._models.run_attachments.read(ended.text_ref)
            self._text = raw.decode("utf-8", "surrogatepass")
        return msgspec.structs.replace(ended, text=self._text)

    # -- what is written -----------------------------------------------------------------------

    def _wall_ms(self) -> int:
        return round((time.monotonic() - self._since) * 1000)

    def _asked(
        self, model: str, reserved: Reserved, tokens_out_max: int, *, temperature: float | None
    ) -> QueryAsked:
        request = self._request
        return QueryAsked(
            intent=request.call.intent,
            program=request.call.program,
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

    def _kept_apart(self, asked: QueryAsked) -> QueryAsked:
        if len(asked.prompt) <= INLINE_BYTES_MAX:
            return asked
        raw = asked.prompt.encode("utf-8", "surrogatepass")
        ref = self._models.run_attachments.keep(raw, media_type="text/plain", label="prompt")
        return msgspec.structs.replace(asked, prompt="", prompt_ref=ref)

    def _replied(self, reply: ModelReply, settled: Settled, *, wall_ms: int = 0) -> QueryReplied:
        ref = None
        if len(reply.text) > INLINE_BYTES_MAX:
            raw = reply.text.encode("utf-8", "surrogatepass")
            ref = self._models.run_attachments.keep(raw, media_type="text/plain", label="reply")
            self._text = reply.text
        return QueryReplied(
            intent=self.key.intent,
            item=self.key.item,
            attempt=self.key.attempt,
            text=reply.text if ref is None else "",
            text_ref=ref,
            usage=reply.usage,
            settled=settled,
            cut=reply.cut,
            wall_ms=wall_ms,
            served_by=reply.served_by,
            finish=reply.finish,
        )

    def _failed(self, error: ModelError, settled: Settled) -> QueryFailed:
        return QueryFailed(
            intent=self.key.intent,
            item=self.key.item,
            attempt=self.key.attempt,
            reason=error.reason,
            message=error.message,
            settled=settled,
            kind=error.kind,
            status=error.status,
            retry_after_ms=error.retry_after_ms,
            billed=error.billed,
            usage=error.usage,
            wall_ms=self._wall_ms(),
        )


def in_doubt(
    asked: QueryAsked, settled: Settled, said: str, *, ends: bool, billed: bool
) -> QueryFailed:
    """Return the end of an attempt whose outcome nobody knew; one that `ends` is not repeated."""
    return QueryFailed(
        intent=asked.intent,
        item=asked.item,
        attempt=asked.attempt,
        reason=DOUBTED,
        message=said,
        settled=settled,
        kind="terminal" if ends else "transient",
        billed=billed,
    )


def _refused(
    request: QueryRequest, error: BudgetExhausted | BudgetUnpriced | UsageError
) -> QueryRefused:
    dimension, scope = MODEL, ""
    if not isinstance(error, UsageError):
        dimension = error.dimension if isinstance(error, BudgetExhausted) else "usd"
        scope = str(error.scope)
    return QueryRefused(
        intent=request.key.intent,
        item=request.item,
        attempt=request.attempt,
        message=str(error),
        dimension=dimension,
        scope=scope,
    )


def _asking(prompt: str, schema: Mapping[str, Any] | None) -> Message:
    if schema is not None:
        prompt = f"{prompt}\n\nReply with only {_wanted(schema)}"
    return Message(role="user", part="query", text=prompt)


def _wanted(schema: Mapping[str, Any]) -> str:
    """What is asked for, in words where it has plain ones: small models copy a schema back."""
    plain = _PLAIN.get(schema["type"]) if schema.keys() == {"type"} else None
    if plain is not None:
        return plain
    return f"a JSON value that matches this schema: {json.dumps(schema, ensure_ascii=False)}"


def _read(text: str, schema: Mapping[str, Any], *, cut: bool) -> tuple[object, str | None]:
    if cut:
        # A number without its last digits is a number too.
        return None, "the reply was cut off at its token limit; make it shorter"
    try:
        value = found_in(text, schema)
        # It has to reach the program: half of a surrogate pair would not.
        msgspec.json.encode(value)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        return None, str(error)[:_SHOWN_CHARS_MAX]
    return value, problem_of(value, schema)


def _repair(request: QueryRequest, text: str, problem: str) -> tuple[Message, ...]:
    return (
        *request.messages,
        Message(role="assistant", part="reply", text=text[:_SHOWN_CHARS_MAX] or "(nothing)"),
        Message(
            role="user",
            part="repair",
            text=f"That does not match: {problem}. Reply with only the corrected JSON value.",
        ),
    )


def checked_text(prompt: object, item: int) -> str:
    """A prompt that a program gave, or what is wrong with it."""
    if not isinstance(prompt, str):
        raise UsageError(f"prompt {item}: text is needed, not {type(prompt).__name__}")
    if len(prompt.encode("utf-8", "surrogatepass")) > _PROMPT_BYTES_MAX:
        raise UsageError(f"prompt {item}: at most {_PROMPT_BYTES_MAX:,} bytes")
    return prompt
