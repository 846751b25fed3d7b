"""Model calls of programs: `llm_query` and `llm_query_batched`.

A batch keeps its order and runs side by side; each item has its own attempts, its own reservation
and its own end. What is asked and answered goes through a desk: live it is the teller's, on replay
the record's, and everything here is the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from tallystick.core.errors import TallystickError, UsageError
from tallystick.core.prompt import Message
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    RunLimits,
)
from tallystick.core.schema import check_schema, found_in, problem_of
from tallystick.sandbox.host import HostFunction

__all__ = [
    "BATCH_MAX",
    "ITEMS_MAX",
    "MODEL",
    "WHOLE",
    "Fit",
    "Queries",
    "QueryDesk",
    "QueryPlace",
    "QueryProblem",
    "QueryRequest",
    "checked_text",
    "problem_of_refusal",
]

# The item of a refusal that is of a whole batch.
WHOLE = -1
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


class QueryDesk(Protocol):
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

    def __init__(self, desk: QueryDesk, *, limits: RunLimits) -> None:
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
