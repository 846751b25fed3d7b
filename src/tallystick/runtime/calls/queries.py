"""Serve the model calls of programs: `llm_query` and `llm_query_batched`.

The items of a batch run side by side and keep their order. Each item has its own attempts,
reservations and outcome. Each attempt is an effect, so this module does the same for a live run and
for one that is served from its record.
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
    SkillModel,
)
from tallystick.core.schema.check import check_schema
from tallystick.core.schema.replies import json_in_reply
from tallystick.core.schema.values import problem_of
from tallystick.core.views.open_calls import call_key
from tallystick.model.port import Model, ModelError, ModelReply, ModelRequest
from tallystick.runtime.calls.decisions import ABANDONED, settle_doubt, settle_unsent
from tallystick.runtime.calls.deltas import HearDelta, hear_nothing, heard_of
from tallystick.runtime.calls.scope import Call
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments
from tallystick.runtime.journal.effects import Decision, Effects, Found, Refused
from tallystick.runtime.spend.door import ModelDoor, ReservedCall
from tallystick.sandbox.host import HostFunction

# The `dimension` of a refusal because the model is not one that programs may ask.
MODEL = "model"
BATCH_MAX = 10_000
ITEMS_MAX = 100_000
_PROMPT_BYTES_MAX = 1_000_000
# The wait before the second attempt, doubled for each further one.
_WAIT_MS = 250
_SHOWN_CHARS_MAX = 2_000
_PLAIN = {"boolean": "yes or no.", "integer": "a whole number.", "number": "a number."}
# If the budget does not pay for a whole batch: run the part that it pays for, or nothing.
Fit = Literal["part", "whole"]


class QueryProblem(TallystickError):
    """The error of a program's model call. Programs see `kind` as its name."""

    code = "query"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = self.told_as = kind


def problem_of_refusal(refused: QueryRefused) -> QueryProblem:
    """Return the error that a program sees for a call that was refused."""
    kind = "UnknownModel" if refused.dimension == MODEL else "BudgetExhausted"
    return QueryProblem(kind, refused.message)


# Finds a model by the name that a program gives, None for the run's own. Raises `UsageError`.
FindModel = Callable[[str | None], Model]
# A model as it is asked for: by the name in the call, by a skill, or None for the run's own.
AskedName = str | SkillModel | None


def no_models(name: str | None) -> Model:
    """Raise `UsageError`: a replay asks no model."""
    raise UsageError("a replay asks no model")


def asked_name(call: Call, model: str | None) -> AskedName:
    """Return the model that a call asks for: the one it names, or that of the skill it follows."""
    return call.scope.skill_model if model is None else model


def find_asked(find_model: FindModel, asked: AskedName) -> Model:
    """Return the model that is asked for. Raise `UsageError` if programs may not ask it."""
    if not isinstance(asked, SkillModel):
        return find_model(asked)
    try:
        return find_model(asked.name)
    except UsageError as error:
        raise UsageError(
            f"{error}; the skill {asked.skill[:80]!r} names it, and a call may name another"
        ) from error


QueryOutcome = QueryReplied | QueryFailed | QueryRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModels:
    """The models that the programs of a run may ask. A replay has no `door`: it asks none."""

    run: str
    door: ModelDoor | None
    find_model: FindModel
    run_attachments: RunAttachments
    temperature: float | None = None
    heard: HearDelta = hear_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """One attempt at one item of a batch."""

    call: Call
    item: int
    model: AskedName
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
        """Return the next attempt, with other messages if given. It waits `wait_ms` before it."""
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
            HostFunction(name="llm_query_batched", function=self.query_batch, handed=True),
        ]

    async def query(
        self,
        call: Call,
        prompt: str,
        model: str | None = None,
        schema: Any = None,  # noqa: ANN401 (a program's word, checked below)
    ) -> object:
        """Ask a model; returns its text, or with `schema` (bool, int, list[str], ...) a value."""
        (outcome,) = await self._ask_batch(call, [prompt], model, schema)
        if isinstance(outcome, QueryProblem):
            raise outcome
        return outcome

    async def query_batch(
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
        outcomes = await self._ask_batch(
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

    async def query_directly(
        self, call: Call, prompts: Sequence[str], model: str | None
    ) -> list[object]:
        """Return the answers to calls that a program made as another function, `rlm_query`.

        A call that failed has its `QueryProblem` in the place of its answer. Raise `QueryProblem`
        if the model is refused, and `UsageError` if there are too many prompts, or one is too long.
        """
        return await self._ask_batch(call, prompts, model, None)

    async def query_alone(
        self,
        call: Call,
        prompt: str,
        *,
        model: str | None,
        tokens_out_max: int,
        heard: Callable[[QueryOutcome], None],
    ) -> object:
        """Ask one question of a native program, and return the answer or raise `QueryProblem`.

        The reply has at most `tokens_out_max` tokens. Raise `UsageError` if the prompt is too long
        or the run has asked too often.

        `heard` is called with the outcome of each attempt. An unknown model is refused as an item,
        not as a batch: two questions of one host call would otherwise have one key on record.
        """
        self._count(1)
        request = QueryRequest(
            call=call,
            item=0,
            model=asked_name(call, model),
            messages=(_message(check_text(prompt, 0), None),),
            tokens_out_max=tokens_out_max,
        )
        outcome = await self._one(request, None, {}, heard)
        if isinstance(outcome, QueryProblem):
            raise outcome
        return outcome

    # -- inside --------------------------------------------------------------------------------

    def _count(self, items: int) -> None:
        """Count items. Raise `UsageError` if the run has asked more than 100,000."""
        self._items += items
        if self._items > ITEMS_MAX:
            raise UsageError(f"a run asks at most {ITEMS_MAX:,} times")

    async def _ask_batch(
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
                model=asked_name(call, model),
                messages=(_message(check_text(prompt, item), checked),),
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
            # Wait: each task that was cancelled records that its call was left.
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
        """Check the model of a batch, and with `whole` reserve all its items; return those by item.

        Raise `QueryProblem` if it is refused. A batch that is partly on record was let in before:
        the rest of it reserves item by item. Without `whole`, and in a replay, return {}.
        """
        held: dict[int, ReservedCall] = {}
        if any(self._effects.knows(each.key) for each in requests):
            return held
        batch = dataclasses.replace(requests[0], item=WHOLE, attempt=0)

        async def refuse() -> QueryRefused | None:
            try:
                terms = self._door.terms(find_asked(self._models.find_model, batch.model))
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
                return _refusal_of(batch, error)
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
        """Return the answer to one item, or its `QueryProblem`.

        A failure that may pass is repeated up to `retries` times. The wait before that is 250 ms,
        doubled each time, or what the provider asks for if that is longer. A reply that does not
        match the schema is repaired once.
        """
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
                    # The model did not fail, so this is not counted as a retry.
                    request = request.next()
                    continue
                if event.reason == DOUBTED:
                    # Abandoned by decision. The program may handle that; it must not ask again.
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
                # Each further repair would be paid for in full, and models repeat their mistakes.
                return QueryProblem("SchemaMismatch", problem)
            repaired = True
            request = request.next(messages=_repair(request, event.text, problem))


class QueryCall:
    """One attempt at a model call of a program. `held` are reservations of its batch, by item."""

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
        # The text of a long reply: it is stored as an attachment, and not in its record.
        self._text: str | None = None
        self.key = request.key
        self.scope = request.call.scope

    @property
    def _door(self) -> ModelDoor:
        assert self._models.door is not None, "a replay asks nobody"
        return self._models.door

    def begin_again(self, begun: QueryAsked) -> QueryAsked:
        now = self._beginning(
            begun.model, begun.reserved, begun.tokens_out_max, temperature=begun.temperature
        )
        if begun.prompt_ref is None:
            return now
        # A long prompt is stored outside of its record, so it is compared by its digest. Another
        # prompt stays in the field, and shows as the difference.
        same = digest(now.prompt.encode("utf-8", "surrogatepass")) == begun.prompt_ref.id
        return msgspec.structs.replace(
            now, prompt="" if same else now.prompt, prompt_ref=begun.prompt_ref
        )

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[QueryAsked]:
        request = self._request
        try:
            self._model = model = find_asked(self._models.find_model, request.model)
            async with self._pay(model) as reserved:
                self._reserved = reserved
                yield self._store_long_prompt(
                    self._beginning(
                        model.name,
                        reserved.reserved,
                        reserved.tokens_out_max,
                        temperature=self._models.temperature,
                    )
                )
        except (BudgetExhausted, BudgetUnpriced, UsageError) as error:
            raise Refused(_refusal_of(request, error)) from error

    @asynccontextmanager
    async def _pay(self, model: Model) -> AsyncIterator[ReservedCall]:
        """Wait for a place, and yield the reservation, which may be one of its batch.

        On the way out it is released, unless it was settled. Raise what `ModelDoor.admit` raises;
        for one of a batch, only `BudgetOverrun` if another call cost more than its reservation.
        """
        held = self._held.pop(self._request.item, None)
        if held is None:
            async with self._door.admit(
                model,
                self._request.messages,
                tokens_out_max=self._request.tokens_out_max,
                wait_ms=self._request.wait_ms,
            ) as reserved:
                yield reserved
            return
        try:
            async with model.admitted():
                # Another call of the batch may have cost more than it reserved. Then no further
                # call may be sent, even one that is reserved.
                overrun = self._door.run_scopes.overrun()
                if overrun is not None:
                    raise overrun
                yield held
        finally:
            self._door.release(held)

    async def send(self, begun: QueryAsked) -> Sequence[Record]:
        assert self._model is not None
        assert self._reserved is not None
        # Anew: the time of the wait for a place is not that of the call.
        self._since = time.monotonic()
        intent = self._request.call.intent
        reply = await self._door.ask(
            self._model,
            ModelRequest(
                messages=self._request.messages,
                tokens_out_max=self._reserved.tokens_out_max,
                temperature=self._models.temperature,
                key=call_key(
                    self._models.run,
                    intent,
                    item=self._request.item,
                    attempt=self._request.attempt,
                ),
            ),
            heard=heard_of(
                self._models.heard, self._models.run, "query", intent, item=self._request.item
            ),
        )
        if isinstance(reply, ModelError):
            return [self._failure_record(reply, self._door.settle_failure(self._reserved, reply))]
        settled = self._door.settle_reply(self._reserved, reply)
        return [self._reply_record(reply, settled, wall_ms=self._wall_ms())]

    def leave(self, begun: QueryAsked, *, sent: bool) -> QueryFailed:
        assert self._reserved is not None
        error = ModelError(reason="unknown", message="left in the middle", billed=sent)
        failed = self._failure_record(error, self._door.settle_cancelled(self._reserved, sent=sent))
        return msgspec.structs.replace(failed, reason=LEFT)

    async def settle_doubt(
        self, begun: QueryAsked, found: Found | None
    ) -> QueryReplied | QueryFailed:
        terms = self._door.terms(self._models.find_model(begun.model))
        settled, said = settle_doubt(self._door, terms, begun.reserved, found)
        if isinstance(found, ModelReply):
            return self._reply_record(found, settled)
        return in_doubt(
            begun, settled, said, ends=found is Decision.ABANDON, billed=found is not Decision.AGAIN
        )

    def record_unsent(self, found: Found) -> tuple[QueryAsked, QueryReplied | QueryFailed]:
        before = self._effects.history.begun(self.key._replace(attempt=self.key.attempt - 1))[0]
        assert isinstance(before, QueryAsked)
        asked = msgspec.structs.replace(
            self.begin_again(before),
            reserved=Reserved(tokens_in=0, tokens_out=0, usd=0, price=before.reserved.price),
        )
        settled = settle_unsent(self._door, self._door.terms(self._models.find_model(before.model)))
        if isinstance(found, ModelReply):
            return asked, self._reply_record(found, settled)
        return asked, in_doubt(asked, settled, ABANDONED, ends=True, billed=False)

    def count_served(self, begun: QueryAsked | None, ended: QueryOutcome) -> None:
        door = self._models.door
        if door is not None and begun is not None and not isinstance(ended, QueryRefused):
            door.count_recorded(begun.model, spent_by(ended))

    async def completed(self, ended: QueryOutcome) -> QueryOutcome:
        if not isinstance(ended, QueryReplied) or ended.text_ref is None:
            return ended
        # A reply that came just now is at hand; a recorded one is read.
        if self._text is None:
            raw = self._models.run_attachments.read(ended.text_ref)
            self._text = raw.decode("utf-8", "surrogatepass")
        return msgspec.structs.replace(ended, text=self._text)

    # -- what is written -----------------------------------------------------------------------

    def _wall_ms(self) -> int:
        return round((time.monotonic() - self._since) * 1000)

    def _beginning(
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

    def _store_long_prompt(self, asked: QueryAsked) -> QueryAsked:
        if len(asked.prompt) <= INLINE_BYTES_MAX:
            return asked
        raw = asked.prompt.encode("utf-8", "surrogatepass")
        ref = self._models.run_attachments.keep(raw, media_type="text/plain", label="prompt")
        return msgspec.structs.replace(asked, prompt="", prompt_ref=ref)

    def _reply_record(
        self, reply: ModelReply, settled: Settled, *, wall_ms: int = 0
    ) -> QueryReplied:
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

    def _failure_record(self, error: ModelError, settled: Settled) -> QueryFailed:
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
    """Return the record of an attempt in doubt. With `ends`, the call is not repeated.

    `billed` says whether the attempt may have been billed, `said` is the message of the record.
    """
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


def _refusal_of(
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


def _message(prompt: str, schema: Mapping[str, Any] | None) -> Message:
    if schema is not None:
        prompt = f"{prompt}\n\nReply with only {_reply_format(schema)}"
    return Message(role="user", part="query", text=prompt)


def _reply_format(schema: Mapping[str, Any]) -> str:
    """Describe the reply that fits a schema, in words if it is simple.

    Small models copy a schema back instead of filling it in.
    """
    plain = _PLAIN.get(schema["type"]) if schema.keys() == {"type"} else None
    if plain is not None:
        return plain
    return f"a JSON value that matches this schema: {json.dumps(schema, ensure_ascii=False)}"


def _read(text: str, schema: Mapping[str, Any], *, cut: bool) -> tuple[object, str | None]:
    if cut:
        # Half of a number is a number too, and would pass the schema.
        return None, "the reply was cut off at its token limit; make it shorter"
    try:
        value = json_in_reply(text, schema)
        # The value is sent to the program as JSON. Half of a surrogate pair cannot be.
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


def check_text(prompt: object, item: int) -> str:
    """Return the prompt of a program.

    Raise `UsageError` if it is no text, or longer than 1,000,000 bytes. `item` is for the message.
    """
    if not isinstance(prompt, str):
        raise UsageError(f"prompt {item}: text is needed, not {type(prompt).__name__}")
    if len(prompt.encode("utf-8", "surrogatepass")) > _PROMPT_BYTES_MAX:
        raise UsageError(f"prompt {item}: at most {_PROMPT_BYTES_MAX:,} bytes")
    return prompt
