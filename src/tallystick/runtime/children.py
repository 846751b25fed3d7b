"""Runs that programs begin: `rlm_query` and `rlm_query_batched`.

Each is a real run: its own model turns, programs, namespace and chain, under what its parent has
left. At the greatest depth the question goes to the model directly instead, and the program is told
so. What is begun and what it came to goes through a desk: live, on replay and on resume everything
here is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tallystick.core.canonical import canonical, digest
from tallystick.core.errors import UsageError
from tallystick.core.records import ChildEnded, QueryRefused
from tallystick.runtime.desk import Written
from tallystick.runtime.queries import (
    BATCH_MAX,
    Queries,
    QueryPlace,
    QueryProblem,
    checked_text,
    problem_of_refusal,
)
from tallystick.sandbox.host import HostFunction

__all__ = ["ChildDesk", "ChildRequest", "Children", "request_sha256", "until_ended"]

_CONTEXT_BYTES_MAX = 4_000_000
# Each is an input of its own, with a name, a shape and a place in the interpreter.
_CONTEXT_TEXTS_MAX = 10_000
Context = str | Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRequest:
    """One child that is asked for."""

    place: QueryPlace
    item: int
    prompt: str
    context: Context
    model: str | None


class ChildDesk(Protocol):
    """Where children are begun."""

    @property
    def depth(self) -> int:
        """How many runs this one stands inside."""
        ...

    async def begin(self, requests: Sequence[ChildRequest]) -> None:
        """Find the model of a batch, or raise."""
        ...

    async def run(self, request: ChildRequest) -> ChildEnded | QueryRefused:
        """Have a child, written down before and after; or say why there is none."""
        ...

    def waiting(self) -> AbstractAsyncContextManager[None]:
        """Be waiting for children while inside."""
        ...

    async def over(self) -> None:
        """Wait until every child has ended: none outlives the program that began it."""
        ...

    # For each program: where what is done is written, and when the run's time is over.
    written: Written | None
    ends_at: float


class Children:
    """The children of one run's programs."""

    def __init__(self, desk: ChildDesk, queries: Queries) -> None:
        self.desk = desk
        self._queries = queries

    def functions(self) -> list[HostFunction]:
        return [
            HostFunction(name="rlm_query", function=self.query),
            HostFunction(name="rlm_query_batched", function=self.batched),
        ]

    async def query(
        self, prompt: str, context: object = None, model: str | None = None
    ) -> dict[str, object]:
        """Have a run of its own answer, over `context` (text, or texts by name); returns text."""
        return await self._asked([prompt], [context], model)

    async def batched(
        self, prompts: list[str], contexts: object = None, model: str | None = None
    ) -> dict[str, object]:
        """Many at once, each over its own context; answers in order, HostErrors for failures."""
        if not isinstance(prompts, list):
            raise UsageError(f"prompts: a list of texts, not {type(prompts).__name__}")
        if contexts is not None and not isinstance(contexts, list):
            raise UsageError(f"contexts: a list, not {type(contexts).__name__}")
        given = [None] * len(prompts) if contexts is None else contexts
        if len(given) != len(prompts):
            raise UsageError(f"{len(prompts):,} prompts and {len(given):,} contexts")
        return await self._asked(prompts, given, model)

    async def _asked(
        self, prompts: Sequence[object], contexts: Sequence[object], model: object
    ) -> dict[str, object]:
        if model is not None and not isinstance(model, str):
            raise UsageError(f"model: a name, not {type(model).__name__}")
        if len(prompts) > BATCH_MAX:
            raise UsageError(f"{len(prompts):,} prompts; at most {BATCH_MAX:,} in a batch")
        place = self._queries.place
        requests = [
            ChildRequest(
                place=place,
                item=item,
                prompt=checked_text(prompt, item),
                context=_context(context, item),
                model=model,
            )
            for item, (prompt, context) in enumerate(zip(prompts, contexts, strict=True))
        ]
        note = None
        if not requests:
            answers: list[object] = []
        elif self.desk.depth >= self._queries.limits.depth:
            note = "no run may stand deeper here: the model was asked directly, as by llm_query"
            answers = await self._directly(requests)
        else:
            await self.desk.begin(requests)
            answers = await self._at_once([self._one(each) for each in requests])
        errors = [
            [item, each.kind, str(each)]
            for item, each in enumerate(answers)
            if isinstance(each, QueryProblem)
        ]
        told = [None if isinstance(each, QueryProblem) else each for each in answers]
        return {"answers": told, "errors": errors, "note": note}

    async def _directly(self, requests: Sequence[ChildRequest]) -> list[object]:
        prompts = [_flat(each) for each in requests]
        return await self._queries.asked(prompts, requests[0].model)

    async def _at_once(self, work: Sequence[Awaitable[object]]) -> list[object]:
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            async with self.desk.waiting():
                return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            # Each writes down how it ended.
            await until_ended(tasks)

    async def _one(self, request: ChildRequest) -> object:
        ended = await self.desk.run(request)
        if isinstance(ended, QueryRefused):
            return problem_of_refusal(ended)
        if ended.stop == "answered":
            return ended.answer
        said = f"{ended.stop}: {ended.detail}"
        if ended.partial and ended.answer:
            said += f". What it had: {ended.answer[:1_000]}"
        return QueryProblem("ChildStopped", said)


async def until_ended(tasks: Collection[asyncio.Future[object]]) -> None:
    """Wait until all have ended. A cancel waits too: what is under way is being written down."""
    left: asyncio.CancelledError | None = None
    while any(not each.done() for each in tasks):
        try:
            await asyncio.wait([each for each in tasks if not each.done()])
        except asyncio.CancelledError as error:
            left = error
    for each in tasks:
        if not each.cancelled():
            # Whoever waited for it has heard of it, or is gone.
            each.exception()
    if left is not None:
        raise left


def request_sha256(request: ChildRequest) -> str:
    """What was asked for, by its digest."""
    return digest(canonical([request.prompt, request.context, request.model]))


def _flat(request: ChildRequest) -> str:
    """A question with its context in one text."""
    if request.context is None:
        return request.prompt
    texts = (
        request.context
        if isinstance(request.context, str)
        else "\n\n".join(f"{name}:\n{text}" for name, text in request.context.items())
    )
    return f"{request.prompt}\n\n{texts}"


def _context(given: object, item: int) -> Context:
    """What a child is to read, checked: it comes from a program."""
    held: Context
    if given is None or isinstance(given, str):
        held = given
    elif isinstance(given, list) and all(isinstance(each, str) for each in given):
        held = {f"{number}": text for number, text in enumerate(given)}
    elif isinstance(given, dict) and all(isinstance(each, str) for each in given.values()):
        held = dict(given)
    else:
        raise UsageError(f"context {item}: a text, a list of texts, or texts by name are needed")
    texts = [held] if isinstance(held, str) else [] if held is None else list(held.values())
    if len(texts) > _CONTEXT_TEXTS_MAX:
        raise UsageError(f"context {item}: {len(texts):,} texts; at most {_CONTEXT_TEXTS_MAX:,}")
    size = sum(len(each.encode("utf-8", "surrogatepass")) for each in texts)
    if size > _CONTEXT_BYTES_MAX:
        raise UsageError(f"context {item}: {size:,} bytes; at most {_CONTEXT_BYTES_MAX:,}")
    return held
