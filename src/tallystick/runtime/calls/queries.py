"""Model calls of programs, `llm_query` and `llm_query_batched`: live, from the record, in doubt."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from tallystick.core.budget.amount import BudgetExhausted, BudgetUnpriced
from tallystick.core.charge import Reserved, RunLimits, Settled
from tallystick.core.errors import ReplayDiverged, TallystickError, UsageError
from tallystick.core.history import WHOLE, History, spent_by
from tallystick.core.json_text import digest
from tallystick.core.machine.prompt import Message, request_digest
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    ChildBegun,
    ChildEnded,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryRefused,
    QueryReplied,
)
from tallystick.core.schema import check_schema, found_in, problem_of
from tallystick.core.views.open_calls import call_key
from tallystick.model.port import Model, ModelError, ModelReply, ModelRequest
from tallystick.model.price_table import CallTerms
from tallystick.runtime.calls.decisions import (
    ABANDONED,
    Decision,
    Decisions,
    settled_doubt,
    settled_unsent,
)
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments
from tallystick.runtime.spend.door import ModelDoor, ReservedCall
from tallystick.sandbox.host import HostFunction

# Model calls of programs: `llm_query` and `llm_query_batched`.
#
# A batch keeps its order and runs side by side; each item has its own attempts, its own reservation
# and its own end. What is asked and answered goes through a desk: live it is the teller's, on
# replay the record's, and everything here is the same.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlace:
    """The host call that asks: its intent, the program it belongs to, and what that may call."""

    intent: int
    program: int
    tools: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """One attempt at one item."""

    place: QueryPlace
    item: int
    attempt: int
    model: str | None
    messages: tuple[Message, ...]
    tokens_out_max: int
    wait_ms: int = 0


class QueryCalls(Protocol):
    """Where attempts are made."""

    async def begin(self, requests: Sequence[QueryRequest], *, whole: bool) -> None:
        """Find the model of a batch, and with `whole` reserve for all of it, or raise."""
        ...

    async def ask(self, request: QueryRequest) -> QueryReplied | QueryFailed | QueryRefused:
        """Make one attempt, written down before and after."""
        ...

    def let_go(self, place: QueryPlace) -> None:
        """Give back what is held for calls that were not begun and will not be."""
        ...


class Queries:
    """The model calls of one run's programs. `limits` are those that a program was begun under."""

    def __init__(self, desk: QueryCalls, *, limits: RunLimits) -> None:
        self.desk = desk
        self.limits = limits
        self._items = 0
        self.place = QueryPlace(intent=0, program=0)

    def functions(self) -> list[HostFunction]:
        return [
            HostFunction(name="llm_query", function=self.query),
            HostFunction(name="llm_query_batched", function=self.batched),
        ]

    async def query(
        self,
        prompt: str,
        model: str | None = None,
        schema: Any = None,  # noqa: ANN401 (a program's word, checked below)
    ) -> object:
        """Ask a model; returns its text, or with `schema` (bool, int, list[str], ...) a value."""
        (outcome,) = await self._asked([prompt], model, schema, fit="part")
        if isinstance(outcome, QueryProblem):
            raise outcome
        return outcome

    async def batched(
        self,
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
            prompts, model, schema, fit="whole" if fit == "whole" else "part"
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

    async def asked(self, prompts: Sequence[str], model: str | None) -> list[object]:
        """The outcomes of calls that a program makes in another way than by name."""
        return await self._asked(prompts, model, None, fit="part")

    # -- inside --------------------------------------------------------------------------------

    async def _asked(
        self, prompts: Sequence[object], model: object, schema: object, *, fit: Fit
    ) -> list[object]:
        if model is not None and not isinstance(model, str):
            raise UsageError(f"model: a name, not {type(model).__name__}")
        if len(prompts) > BATCH_MAX:
            raise UsageError(f"{len(prompts):,} prompts; at most {BATCH_MAX:,} in a batch")
        self._items += len(prompts)
        if self._items > ITEMS_MAX:
            raise UsageError(f"a run asks at most {ITEMS_MAX:,} times")
        checked = None if schema is None else check_schema(schema)
        place = self.place
        requests = [
            QueryRequest(
                place=place,
                item=item,
                attempt=1,
                model=model,
                messages=(_asking(checked_text(prompt, item), checked),),
                tokens_out_max=self.limits.reply_tokens,
            )
            for item, prompt in enumerate(prompts)
        ]
        if requests:
            await self.desk.begin(requests, whole=fit == "whole")
        tasks = [asyncio.ensure_future(self._one(each, checked)) for each in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            # Each writes down that it was left. One that had not begun never does.
            await asyncio.gather(*tasks, return_exceptions=True)
            self.desk.let_go(place)

    async def _one(self, request: QueryRequest, schema: Mapping[str, Any] | None) -> object:
        repaired = False
        failures = 0
        while True:
            event = await self.desk.ask(request)
            if isinstance(event, QueryRefused):
                return problem_of_refusal(event)
            if isinstance(event, QueryFailed):
                if event.reason == LEFT or (event.reason == DOUBTED and event.kind == "transient"):
                    # It was not the model that failed.
                    request = _again(request)
                    continue
                if event.reason == DOUBTED:
                    return QueryProblem("InDoubt", event.message)
                failures += 1
                if event.kind == "terminal" or failures > self.limits.retries:
                    return QueryProblem("ModelError", f"{event.reason}: {event.message}")
                wait_ms = max(event.retry_after_ms or 0, _WAIT_MS * 2 ** (failures - 1))
                request = _again(request, wait_ms=wait_ms)
                continue
            if schema is None:
                return event.text
            value, problem = _read(event.text, schema, cut=event.cut)
            if problem is None:
                return value
            if repaired:
                return QueryProblem("SchemaMismatch", problem)
            repaired = True
            request = _again(request, more=_repair(request, event.text, problem))


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


def _again(
    request: QueryRequest, *, wait_ms: int = 0, more: tuple[Message, ...] | None = None
) -> QueryRequest:
    return QueryRequest(
        place=request.place,
        item=request.item,
        attempt=request.attempt + 1,
        model=request.model,
        messages=request.messages if more is None else more,
        tokens_out_max=request.tokens_out_max,
        wait_ms=wait_ms,
    )


def checked_text(prompt: object, item: int) -> str:
    """A prompt that a program gave, or what is wrong with it."""
    if not isinstance(prompt, str):
        raise UsageError(f"prompt {item}: text is needed, not {type(prompt).__name__}")
    if len(prompt.encode("utf-8", "surrogatepass")) > _PROMPT_BYTES_MAX:
        raise UsageError(f"prompt {item}: at most {_PROMPT_BYTES_MAX:,} bytes")
    return prompt


# The live desk: attempts of programs' model calls, paid for by the scopes of the run.
#
# Those that are admitted together are written together: one wait for the disk for many.


# A model by the name that a program gives; None is the run's own. Raises what the program sees.
FindModel = Callable[[str | None], Model]


class CallJournal(Protocol):
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


class JournaledCalls(Protocol):
    """A desk that is told, for each program, where what it does is written."""

    written: CallJournal | None


class LiveQueryCalls:
    """Makes the attempts of one run's programs."""

    def __init__(
        self,
        run: str,
        model_door: ModelDoor,
        find_model: FindModel,
        run_attachments: RunAttachments,
        *,
        temperature: float | None = None,
    ) -> None:
        self._run = run
        self._temperature = temperature
        self._model_door = model_door
        self._find_model = find_model
        self._run_attachments = run_attachments
        self._held: dict[tuple[int, int], ReservedCall] = {}
        self.written: CallJournal | None = None

    async def begin(self, requests: Sequence[QueryRequest], *, whole: bool) -> None:
        try:
            terms = self._model_door.terms(self._find_model(requests[0].model))
            if whole:
                reserved = await self._model_door.when_paid(
                    lambda: self._model_door.reserve_all(
                        terms,
                        [each.messages for each in requests],
                        tokens_out_max=requests[0].tokens_out_max,
                    )
                )
                for request, reserved_call in zip(requests, reserved, strict=True):
                    self._held[request.place.intent, request.item] = reserved_call
        except (BudgetExhausted, BudgetUnpriced, UsageError) as error:
            batch = dataclasses.replace(requests[0], item=WHOLE, attempt=0)
            refused = _refused(batch, error)
            await self._written().ended(refused)
            raise problem_of_refusal(refused) from error

    def let_go(self, place: QueryPlace) -> None:
        for key in [key for key in self._held if key[0] == place.intent]:
            self._model_door.release(self._held.pop(key))

    async def ask(self, request: QueryRequest) -> QueryReplied | QueryFailed | QueryRefused:
        try:
            model = self._find_model(request.model)
            async with self._admitted(request, model) as reserved_call:
                return await self._attempt(request, model, reserved_call)
        except (BudgetExhausted, BudgetUnpriced, UsageError) as error:
            return await self._refuse(request, error)

    @asynccontextmanager
    async def _admitted(self, request: QueryRequest, model: Model) -> AsyncIterator[ReservedCall]:
        """Give a call its place and its money, which may be reserved with its batch already."""
        held = self._held.pop((request.place.intent, request.item), None)
        if held is None:
            async with self._model_door.admitted(
                model,
                request.messages,
                tokens_out_max=request.tokens_out_max,
                wait_ms=request.wait_ms,
            ) as reserved_call:
                yield reserved_call
            return
        try:
            async with model.admitted():
                # Another call of the batch may have shown that no cap holds here.
                overrun = self._model_door.run_scopes.overrun()
                if overrun is not None:
                    raise overrun
                yield held
        finally:
            self._model_door.release(held)

    async def _refuse(
        self, request: QueryRequest, error: BudgetExhausted | BudgetUnpriced | UsageError
    ) -> QueryRefused:
        refused = _refused(request, error)
        await self._written().ended(refused)
        return refused

    async def _attempt(
        self, request: QueryRequest, model: Model, reserved_call: ReservedCall
    ) -> QueryReplied | QueryFailed:
        began = time.monotonic()
        sent = False
        try:
            # What cannot be written down is raised, and not sent.
            await self._written().asked(self._asked(request, model, reserved_call))
            sent = True
            reply = await self._model_door.ask(
                model,
                ModelRequest(
                    messages=request.messages,
                    tokens_out_max=reserved_call.tokens_out_max,
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
        except asyncio.CancelledError:
            left = ModelError(reason="unknown", message="left in the middle", billed=sent)
            settled = self._model_door.cancelled(reserved_call, sent=sent)
            self._written().now(_failed(request, left, settled, began, reason=LEFT))
            raise
        event: QueryReplied | QueryFailed
        if isinstance(reply, ModelError):
            event = _failed(request, reply, self._model_door.failed(reserved_call, reply), began)
        else:
            settled = self._model_door.replied(reserved_call, reply)
            event = self.replied(request, reply, settled, wall_ms=_since(began))
        await self._written().ended(event)
        if isinstance(event, QueryReplied) and isinstance(reply, ModelReply):
            # A long one is kept apart, and is not in the event.
            return msgspec.structs.replace(event, text=reply.text)
        return event

    def _asked(
        self, request: QueryRequest, model: Model, reserved_call: ReservedCall
    ) -> QueryAsked:
        asked = asked_of(
            request,
            model.name,
            reserved_call.reserved,
            reserved_call.tokens_out_max,
            temperature=self._temperature,
        )
        prompt = asked.prompt
        if len(prompt) <= INLINE_BYTES_MAX:
            return asked
        raw = prompt.encode("utf-8", "surrogatepass")
        ref = self._run_attachments.keep(raw, media_type="text/plain", label="prompt")
        return msgspec.structs.replace(asked, prompt="", prompt_ref=ref)

    def replied(
        self, request: QueryRequest, reply: ModelReply, settled: Settled, *, wall_ms: int
    ) -> QueryReplied:
        """What is written of a reply. A long one is kept apart."""
        ref = None
        if len(reply.text) > INLINE_BYTES_MAX:
            ref = self._run_attachments.keep(
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

    def _written(self) -> CallJournal:
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


_live_desk_is_a_query_desk: type[QueryCalls] = LiveQueryCalls


# The desk of a replay: what was asked is compared, and what was answered is served.


class RecordedQueryCalls:
    """Serves the model calls of recorded programs."""

    def __init__(self, history: History, run_attachments: RunAttachments) -> None:
        self._history = history
        self._run_attachments = run_attachments
        self.written: CallJournal | None = None

    def found(
        self, request: QueryRequest
    ) -> tuple[QueryAsked | None, QueryReplied | QueryFailed | QueryRefused | None]:
        """Return what is recorded of an attempt: that it was begun, and what came of it."""
        return self._history.query(request.place.intent, request.item, request.attempt)

    def knows(self, request: QueryRequest) -> bool:
        """Whether anything of an item is recorded."""
        return self.found(request) != (None, None)

    def refused_whole(self, place: QueryPlace) -> bool:
        """Whether a batch was refused as a whole."""
        return self._history.query(place.intent, WHOLE, 0)[1] is not None

    async def begin(self, requests: Sequence[QueryRequest], *, whole: bool) -> None:
        _, refused = self._history.query(requests[0].place.intent, WHOLE, 0)
        if isinstance(refused, QueryRefused):
            assert self.written is not None
            await self.written.ended(refused)
            raise problem_of_refusal(refused)

    async def ask(self, request: QueryRequest) -> QueryReplied | QueryFailed | QueryRefused:
        assert self.written is not None
        asked, ended = self.found(request)
        if ended is None:
            raise ReplayDiverged(
                index=request.item, field="query", recorded=None, now=f"attempt {request.attempt}"
            )
        if asked is not None:
            await self.written.asked(self.again(request, asked))
        await self.written.ended(ended)
        if isinstance(ended, QueryReplied) and ended.text_ref is not None:
            text = self._run_attachments.read(ended.text_ref).decode("utf-8", "surrogatepass")
            return msgspec.structs.replace(ended, text=text)
        return ended

    def let_go(self, place: QueryPlace) -> None:
        """Nothing is held: nobody is asked."""

    def again(self, request: QueryRequest, asked: QueryAsked) -> QueryAsked:
        """The attempt as it would be written now. What was reserved was the world's word."""
        now = asked_of(
            request,
            asked.model,
            asked.reserved,
            asked.tokens_out_max,
            temperature=asked.temperature,
        )
        if asked.prompt_ref is None:
            return now
        same = digest(now.prompt.encode("utf-8", "surrogatepass")) == asked.prompt_ref.id
        return msgspec.structs.replace(
            now, prompt="" if same else now.prompt, prompt_ref=asked.prompt_ref
        )


_recorded_desk_is_a_query_desk: type[QueryCalls] = RecordedQueryCalls


# The desk of a run that is gone on with: recorded calls are served, open ones decided.


class ResumedQueryCalls:
    """Serves the model calls of programs, before and after the place where the run was cut off."""

    def __init__(
        self,
        *,
        recorded: RecordedQueryCalls,
        live: LiveQueryCalls,
        decisions: Decisions,
        model_door: ModelDoor,
        terms_of: Callable[[str], CallTerms],
    ) -> None:
        self._recorded = recorded
        self._live = live
        self._decisions = decisions
        self._model_door = model_door
        self._terms_of = terms_of

    @property
    def written(self) -> CallJournal | None:
        return self._live.written

    @written.setter
    def written(self, written: CallJournal | None) -> None:
        self._live.written = self._recorded.written = written

    async def begin(self, requests: Sequence[QueryRequest], *, whole: bool) -> None:
        if self._recorded.refused_whole(requests[0].place):
            await self._recorded.begin(requests, whole=whole)
        if not any(self._recorded.knows(each) for each in requests):
            await self._live.begin(requests, whole=whole)
        # One that was begun is not refused as a whole any more: the rest of it pays by item.

    async def ask(self, request: QueryRequest) -> QueryReplied | QueryFailed | QueryRefused:
        asked, ended = self._recorded.found(request)
        if ended is not None:
            if asked is not None and not isinstance(ended, QueryRefused):
                self._model_door.recalled(asked.model, spent_by(ended))
            return await self._recorded.ask(request)
        if asked is None:
            left = self._decisions.found_left(request.place.intent, request.item)
            if left is not None:
                return await self._instead_of_left(request, left)
            return await self._live.ask(request)
        assert self.written is not None
        await self.written.asked(self._recorded.again(request, asked))
        event = self._doubted(request, asked)
        await self.written.ended(event)
        found = self._decisions.paid[asked.intent, asked.item]
        if isinstance(event, QueryReplied) and isinstance(found, ModelReply):
            # A long one is kept apart, and is not in the event.
            return msgspec.structs.replace(event, text=found.text)
        return event

    def let_go(self, place: QueryPlace) -> None:
        self._live.let_go(place)

    async def _instead_of_left(
        self, request: QueryRequest, found: ModelReply | Decision
    ) -> QueryReplied | QueryFailed:
        """Write the attempt after one that was left, and what came of that. Nothing is sent."""
        assert self.written is not None
        before, _ = self._recorded.found(dataclasses.replace(request, attempt=request.attempt - 1))
        assert before is not None
        unsent = msgspec.structs.replace(
            self._recorded.again(request, before),
            reserved=Reserved(tokens_in=0, tokens_out=0, usd=0, price=before.reserved.price),
        )
        await self.written.asked(unsent)
        settled = settled_unsent(self._model_door, self._terms_of(before.model))
        if isinstance(found, ModelReply):
            replied = self._live.replied(request, found, settled, wall_ms=0)
            await self.written.ended(replied)
            return msgspec.structs.replace(replied, text=found.text)
        failed = QueryFailed(
            intent=unsent.intent,
            item=unsent.item,
            attempt=unsent.attempt,
            reason=DOUBTED,
            message=ABANDONED,
            settled=settled,
            kind="terminal",
            billed=False,
        )
        await self.written.ended(failed)
        return failed

    def _doubted(self, request: QueryRequest, asked: QueryAsked) -> QueryReplied | QueryFailed:
        found = self._decisions.paid[asked.intent, asked.item]
        settled, failure = settled_doubt(
            self._model_door, self._terms_of(asked.model), asked.reserved, found
        )
        if isinstance(found, ModelReply):
            return self._live.replied(request, found, settled, wall_ms=0)
        return QueryFailed(
            intent=asked.intent,
            item=asked.item,
            attempt=asked.attempt,
            reason=DOUBTED,
            message=failure,
            settled=settled,
            kind="terminal" if found is Decision.ABANDON else "transient",
            billed=found is not Decision.AGAIN,
        )


_resuming_desk_is_a_query_desk: type[QueryCalls] = ResumedQueryCalls
