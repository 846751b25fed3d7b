"""Runs that programs begin, `rlm_query` and `rlm_query_batched`: live, from the record, resumed."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.budget.amount import BudgetExhausted, BudgetUnpriced
from tallystick.core.chain import Head
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.clock import RunClock
from tallystick.core.errors import BackendError, ReplayDiverged, UsageError
from tallystick.core.history import WHOLE, History
from tallystick.core.json_text import canonical, digest
from tallystick.core.machine.turn import charge_of_child
from tallystick.core.records import (
    CUT_OFF,
    Caller,
    ChildBegun,
    ChildEnded,
    QueryRefused,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.model.port import Model
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.queries import (
    BATCH_MAX,
    MODEL,
    CallJournal,
    Queries,
    QueryPlace,
    QueryProblem,
    checked_text,
    problem_of_refusal,
)
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import ModelDoor
from tallystick.runtime.spend.slots import ChildSlots
from tallystick.sandbox.host import HostFunction
from tallystick.storage.clock import new_id

# Runs that programs begin: `rlm_query` and `rlm_query_batched`.
#
# Each is a real run: its own model turns, programs, namespace and chain, under what its parent has
# left. At the greatest depth the question goes to the model directly instead, and the program is
# told so. What is begun and what it came to goes through a desk: live, on replay and on resume
# everything here is the same.


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


class ChildCalls(Protocol):
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
    written: CallJournal | None
    ends_at: float


class Children:
    """The children of one run's programs."""

    def __init__(self, desk: ChildCalls, queries: Queries) -> None:
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


# What a run hands on to its children, and who drives them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """What a run hands on to its children."""

    run: str
    model_door: ModelDoor
    limits: RunLimits
    grants: Sequence[str]
    seed: int
    temperature: float | None
    functions: Sequence[RunFunction]
    model: Model
    depth: int
    compact_at: int | None = None
    clock: RunClock | None = None


class ChildRunner(Protocol):
    """Drives children to their end; the session's part."""

    @property
    def slots(self) -> ChildSlots: ...

    def check_model(self, parent: Parent, name: str | None) -> None:
        """Raise `UsageError` if programs may not ask a model of this name."""
        ...

    def refusal(
        self, parent: Parent, request: ChildRequest
    ) -> BudgetExhausted | BudgetUnpriced | None:
        """Why what the parent has left does not even pay for a child's first call."""
        ...

    def waits(self, parent: str, change: int) -> None:
        """So many more children of a run wait for a place; fewer, if it is negative."""
        ...

    async def begin(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller, *, wall_ms: int
    ) -> tuple[Run, Head]: ...

    async def resume(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller, *, wall_ms: int
    ) -> tuple[Run, Head]:
        """Go on with a child that was begun; also if nothing of it was written."""
        ...


# Where children are begun, served from the record, or gone on with.


_CallKey = tuple[int, int]
# Each time that a child was begun or gone on with, and what came of it.
_Attempts = list[tuple[ChildBegun, ChildEnded | None]]


class LiveChildCalls:
    """Begins the children of one run. `ends_at` is when the run's time is over."""

    def __init__(
        self, parent: Parent, runner: ChildRunner, run_attachments: RunAttachments
    ) -> None:
        self._parent = parent
        self._runner = runner
        self._slots = runner.slots
        self._run_attachments = run_attachments
        self._depth = parent.depth
        self._under_way: set[asyncio.Task[object]] = set()
        self.ends_at = 0.0
        self.written: CallJournal | None = None

    @property
    def depth(self) -> int:
        return self._depth

    async def over(self) -> None:
        # Whoever waited for them has left, and so they were cancelled.
        await until_ended(list(self._under_way))

    def waiting(self) -> AbstractAsyncContextManager[None]:
        return self._slots.lent(depth=self._depth)

    async def begin(self, requests: Sequence[ChildRequest]) -> None:
        try:
            self._runner.check_model(self._parent, requests[0].model)
        except UsageError as error:
            batch = dataclasses.replace(requests[0], item=WHOLE)
            refused = _refused(batch, message=str(error), dimension=MODEL, attempt=0)
            assert self.written is not None
            await self.written.ended(refused)
            raise problem_of_refusal(refused) from error

    async def run(self, request: ChildRequest) -> ChildEnded | QueryRefused:
        async with self._place():
            refused = self._runner.refusal(self._parent, request)
            assert self.written is not None
            if refused is not None:
                told = _refused(
                    request,
                    message=str(refused),
                    dimension=refused.dimension if isinstance(refused, BudgetExhausted) else "usd",
                    scope=str(refused.scope),
                )
                await self.written.ended(told)
                return told
            begun = ChildBegun(
                intent=request.place.intent,
                program=request.place.program,
                item=request.item,
                run=new_id(),
                request_sha256=request_sha256(request),
            )
            await self.written.begun(begun)
            try:
                run, head = await self._runner.begin(
                    self._parent,
                    begun.run,
                    request,
                    self._caller(request),
                    wall_ms=self._wall_ms_left(),
                )
            except BackendError as error:
                run, head = _never_begun(begun.run, error), Head.of_nothing()
        return await self._ended(begun, run, head)

    async def go_on(
        self, request: ChildRequest, begun: ChildBegun, charged: Charge, *, again: bool
    ) -> ChildEnded:
        """Go on with a child that was cut off; `again` if that is to be written.

        `charged` is what of its cost its parent has on record already.
        """
        async with self._place():
            if again:
                assert self.written is not None
                await self.written.begun(begun)
            run, head = await self._runner.resume(
                self._parent,
                begun.run,
                request,
                self._caller(request),
                wall_ms=self._wall_ms_left(),
            )
        return await self._ended(begun, run, head, charged)

    def _enter(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """A place among the live children of the tree, while inside."""
        waiting = True
        self._enter()
        self._runner.waits(self._parent.run, 1)
        try:
            async with self._slots.held(depth=self._depth + 1):
                waiting = False
                self._runner.waits(self._parent.run, -1)
                yield
        finally:
            if waiting:
                self._runner.waits(self._parent.run, -1)

    def _wall_ms_left(self) -> int:
        return max(0, round((self.ends_at - time.monotonic()) * 1000))

    def _caller(self, request: ChildRequest) -> Caller:
        return Caller(
            run=self._parent.run,
            intent=request.place.intent,
            item=request.item,
            depth=self._depth + 1,
            tools=request.place.tools,
        )

    async def _ended(
        self, begun: ChildBegun, run: Run, head: Head, charged: Charge | None = None
    ) -> ChildEnded:
        answer, ref = run.answer or "", None
        if len(answer) > INLINE_BYTES_MAX:
            raw = answer.encode("utf-8", "surrogatepass")
            ref = self._run_attachments.keep(
                raw, media_type="text/plain", label="answer of a child"
            )
        ended = ChildEnded(
            intent=begun.intent,
            item=begun.item,
            run=run.run,
            stop=run.stop,
            detail=run.detail,
            answer=answer if ref is None else "",
            answer_ref=ref,
            partial=run.partial,
            charge=run.charge if charged is None else _more_than(charged, run.charge),
            count=head.count,
            hash=head.hash,
            attempt=begun.attempt,
        )
        assert self.written is not None
        await self.written.ended(ended)
        return msgspec.structs.replace(ended, answer=answer)


class RecordedChildCalls:
    """Serves the children of a recorded run."""

    def __init__(self, history: History, run_attachments: RunAttachments) -> None:
        self.ends_at = 0.0
        self._history = history
        self._run_attachments = run_attachments
        caller = history.started.caller
        self.depth = 0 if caller is None else caller.depth
        self.written: CallJournal | None = None

    def waiting(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def over(self) -> None:
        """None is under way."""

    def found(self, request: ChildRequest) -> _Attempts:
        """Return every time that a child was begun, and what came of it."""
        return self._history.child(request.place.intent, request.item)

    def refusal(self, request: ChildRequest) -> QueryRefused | None:
        """Return that a child was not begun, if that is recorded."""
        return self._history.child_refusal(request.place.intent, request.item)

    def refused_whole(self, requests: Sequence[ChildRequest]) -> bool:
        """Whether a batch was refused as a whole."""
        return self._history.child_refusal(requests[0].place.intent, WHOLE) is not None

    def is_told(self, request: ChildRequest) -> bool:
        """Whether the program had the outcome of its call."""
        return self._history.is_answered(request.place.intent)

    async def begin(self, requests: Sequence[ChildRequest]) -> None:
        refused = self._history.child_refusal(requests[0].place.intent, WHOLE)
        if refused is not None:
            assert self.written is not None
            await self.written.ended(refused)
            raise problem_of_refusal(refused)

    async def run(self, request: ChildRequest) -> ChildEnded | QueryRefused:
        refused = self.refusal(request)
        if refused is not None:
            assert self.written is not None
            await self.written.ended(refused)
            return refused
        ended = await self.note(request)
        if ended is None:
            raise ReplayDiverged(
                index=request.item, field="child", recorded=None, now=request.prompt[:80]
            )
        if ended.answer_ref is not None:
            answer = self._run_attachments.read(ended.answer_ref).decode("utf-8", "surrogatepass")
            return msgspec.structs.replace(ended, answer=answer)
        return ended

    async def note(self, request: ChildRequest) -> ChildEnded | None:
        """Note what is recorded of a child, as it would be written now. Gives its last end."""
        assert self.written is not None
        last: ChildEnded | None = None
        for begun, last in self.found(request):
            now = msgspec.structs.replace(begun, request_sha256=request_sha256(request))
            await self.written.begun(now)
            if last is not None:
                await self.written.ended(last)
        return last


class ResumedChildCalls:
    """Serves recorded children, goes on with one that was cut off, begins others."""

    def __init__(
        self, recorded: RecordedChildCalls, live: LiveChildCalls, model_door: ModelDoor
    ) -> None:
        self._recorded = recorded
        self._live = live
        self._model_door = model_door

    @property
    def written(self) -> CallJournal | None:
        return self._live.written

    @written.setter
    def written(self, written: CallJournal | None) -> None:
        self._live.written = self._recorded.written = written

    @property
    def ends_at(self) -> float:
        return self._live.ends_at

    @ends_at.setter
    def ends_at(self, ends_at: float) -> None:
        self._live.ends_at = ends_at

    @property
    def depth(self) -> int:
        return self._live.depth

    def waiting(self) -> AbstractAsyncContextManager[None]:
        return self._live.waiting()

    async def over(self) -> None:
        await self._live.over()

    async def begin(self, requests: Sequence[ChildRequest]) -> None:
        if self._recorded.refused_whole(requests):
            await self._recorded.begin(requests)
        elif not any(self._recorded.found(each) for each in requests):
            await self._live.begin(requests)

    async def run(self, request: ChildRequest) -> ChildEnded | QueryRefused:
        if self._recorded.refusal(request) is not None:
            return await self._recorded.run(request)
        attempts = self._recorded.found(request)
        if not attempts:
            return await self._live.run(request)
        begun, ended = attempts[-1]
        charged = Charge()
        for _, each in attempts:
            charged += Charge() if each is None else each.charge
        if ended is not None and (ended.stop not in CUT_OFF or self._recorded.is_told(request)):
            self._model_door.recalled("", charge_of_child(charged))
            return await self._recorded.run(request)
        # What it has spent is counted by the child, which runs again on its record.
        await self._recorded.note(request)
        if ended is not None:
            begun = msgspec.structs.replace(begun, attempt=begun.attempt + 1)
        try:
            return await self._live.go_on(request, begun, charged, again=ended is not None)
        except AttachmentError as error:
            # Not the program's to handle: the run stays as it is.
            why = f"cannot be gone on with: {error}"
            raise ResumeRefused(run=begun.run, why=why) from error


def _refused(
    request: ChildRequest, *, message: str, dimension: str, scope: str = "", attempt: int = 1
) -> QueryRefused:
    """What is written of a child that is not begun."""
    return QueryRefused(
        intent=request.place.intent,
        item=request.item,
        attempt=attempt,
        message=message,
        dimension=dimension,
        scope=scope,
    )


def _never_begun(run: str, error: BackendError) -> Run:
    """What a child came to whose interpreter could not be had."""
    return Run(
        run=run,
        answer=None,
        stop="sandbox_error",
        detail=str(error),
        partial=True,
        turns=0,
        charge=Charge(),
        citations=(),
        ledger="",
    )


def _more_than(before: Charge, now: Charge) -> Charge:
    """What a charge has grown by."""
    known = now.usd is not None
    return Charge(
        usd=(now.usd or 0) - (before.usd or 0) if known else None,
        tokens_in=now.tokens_in - before.tokens_in,
        tokens_out=now.tokens_out - before.tokens_out,
        model_calls=now.model_calls - before.model_calls,
        turns=now.turns - before.turns,
        host_calls=now.host_calls - before.host_calls,
        fuel=now.fuel - before.fuel,
        wall_ms=now.wall_ms - before.wall_ms,
    )


_live: type[ChildCalls] = LiveChildCalls
_recorded: type[ChildCalls] = RecordedChildCalls
_resuming: type[ChildCalls] = ResumedChildCalls
