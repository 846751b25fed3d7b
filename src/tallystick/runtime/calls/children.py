"""Serve the child runs of programs: `rlm_query` and `rlm_query_batched`.

A child is a real run, with its own turns, programs, variables and chain, and the limits that its
parent has left. At the maximum depth the question goes to the model directly, and the program is
told so. A child is an effect, so this module does the same for a new child, one that is on record,
and one that was cut off.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tallystick.attachments.port import AttachmentError
from tallystick.core.budget.amount import BudgetExhausted, BudgetUnpriced
from tallystick.core.chain import Head
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.clock import RunClock
from tallystick.core.errors import BackendError, UsageError
from tallystick.core.history import WHOLE, Key
from tallystick.core.json_text import canonical, digest
from tallystick.core.machine.turn import charge_of_child
from tallystick.core.records import (
    CUT_OFF,
    Caller,
    ChildBegun,
    ChildEnded,
    QueryRefused,
    Record,
    SkillModel,
)
from tallystick.core.resume_errors import NeedsPerson, ResumeRefused
from tallystick.model.port import Model
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.queries import (
    BATCH_MAX,
    MODEL,
    AskedName,
    Queries,
    QueryProblem,
    asked_name,
    check_text,
    problem_of_refusal,
)
from tallystick.runtime.calls.scope import Call, Tools
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX, RunAttachments
from tallystick.runtime.journal.effects import Effects, Found, Refused
from tallystick.runtime.runs.decided import Decided
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import ModelDoor
from tallystick.runtime.spend.slots import ChildSlots
from tallystick.sandbox.host import HostFunction
from tallystick.storage.clock import new_id

_CONTEXT_BYTES_MAX = 4_000_000
# Each text is an input of its own, which takes memory in the interpreter of the child.
_CONTEXT_TEXTS_MAX = 10_000
Context = str | Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRequest:
    """One child run that a program asks for.

    `skill_model` and `tools` are those of the child's own programs. `identity` is what its digest
    is made of, None for prompt, context and model.
    """

    call: Call
    item: int
    prompt: str
    context: Context
    model: AskedName
    tools: Tools
    skill_model: SkillModel | None = None
    identity: object = None

    @property
    def ends_at(self) -> float:
        """The end of the time of the program that asks, by the monotonic clock."""
        return self.call.scope.times.ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The part of a run that its children share.

    `wrap` wraps functions of the caller, and `deeper` is entered around a live child.
    """

    run: str
    model_door: ModelDoor
    limits: RunLimits
    grants: Sequence[str]
    seed: int
    temperature: float | None
    wrap: Callable[[RunFunction], RunFunction]
    deeper: Callable[[int], AbstractContextManager[None]]
    model: Model
    depth: int
    compact_at: int | None = None
    clock: RunClock | None = None


class ChildRunner(Protocol):
    """Drives child runs to their end."""

    @property
    def slots(self) -> ChildSlots: ...

    def decide(self, decided: Decided | None) -> None:
        """Take in what a person decided about what the children wait for."""
        ...

    def check_model(self, parent: Parent, asked: AskedName) -> None:
        """Raise `UsageError` if programs may not ask this model."""
        ...

    def refusal(
        self, parent: Parent, request: ChildRequest
    ) -> BudgetExhausted | BudgetUnpriced | None:
        """Return why the parent cannot even pay for the first call of a child, None if it can."""
        ...

    def waits(self, parent: str, change: int) -> None:
        """Change the number of children of a run that wait for a place."""
        ...

    async def begin(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller
    ) -> tuple[Run, Head]:
        """Start a child with the id `run`, and return its result and head when it has ended.

        Raise `BackendError` if it gets no interpreter, and `UsageError` if it gets no model.
        """
        ...

    async def resume(
        self, parent: Parent, run: str, request: ChildRequest, caller: Caller
    ) -> tuple[Run, Head]:
        """Resume a child that was started, even if it has no record yet.

        Return its result and head, recorded ones if it had ended. Raise `ResumeRefused` if it
        cannot be resumed, and `RunInDoubt` if it has a call that nobody decided about.
        """
        ...


class Children:
    """The children of one run. A replay has no `runner`: it drives none."""

    def __init__(
        self,
        effects: Effects,
        queries: Queries,
        run_attachments: RunAttachments,
        *,
        depth: int,
        is_root: bool = False,
        parent: Parent | None = None,
        runner: ChildRunner | None = None,
    ) -> None:
        self._effects = effects
        self._queries = queries
        self._run_attachments = run_attachments
        self._depth = depth
        self._is_root = is_root
        self._parent = parent
        self._runner = runner
        self._under_way: set[asyncio.Task[object]] = set()

    def functions(self) -> list[HostFunction]:
        return [
            HostFunction(name="rlm_query", function=self.query, handed=True),
            HostFunction(name="rlm_query_batched", function=self.query_batch, handed=True),
        ]

    async def query(
        self, call: Call, prompt: str, context: object = None, model: str | None = None
    ) -> dict[str, object]:
        """Have a run of its own answer, over `context` (text, or texts by name); returns text."""
        return await self._ask_batch(call, [prompt], [context], model)

    async def query_batch(
        self, call: Call, prompts: list[str], contexts: object = None, model: str | None = None
    ) -> dict[str, object]:
        """Many at once, each over its own context; answers in order, HostErrors for failures."""
        if not isinstance(prompts, list):
            raise UsageError(f"prompts: a list of texts, not {type(prompts).__name__}")
        if contexts is not None and not isinstance(contexts, list):
            raise UsageError(f"contexts: a list, not {type(contexts).__name__}")
        given = [None] * len(prompts) if contexts is None else contexts
        if len(given) != len(prompts):
            raise UsageError(f"{len(prompts):,} prompts and {len(given):,} contexts")
        return await self._ask_batch(call, prompts, given, model)

    def may_begin(self, call: Call) -> bool:
        """Return True if this run may have children: it is live, and not at its maximum depth."""
        return self._runner is not None and self._depth < call.scope.limits.depth

    def has_begun(self, call: Call) -> bool:
        """Return True if the record has a child that this call began."""
        return bool(self._effects.history.child(call.intent, 0))

    async def follow(
        self,
        call: Call,
        prompt: str,
        *,
        context: Context,
        tools: Tools,
        model: SkillModel | None,
        identity: object,
    ) -> str:
        """Have a child run follow instructions, and return its answer. Only for a live run.

        `tools` and `model` are for its programs. After a crash, a child with this `identity` is
        resumed with the instructions that it began with. Raise `QueryProblem` if the child is
        refused or ends without an answer, and `UsageError` if a text is too long.
        """
        request = ChildRequest(
            call=call,
            item=0,
            prompt=check_text(prompt, 0),
            context=_context(context, 0),
            model=model,
            tools=tools,
            skill_model=model,
            identity=identity,
        )
        await self._let_in([request])
        (answer,) = await self._at_once([self._one(request)])
        if isinstance(answer, QueryProblem):
            raise answer
        return str(answer or "")

    async def wait_until_ended(self) -> None:
        """Wait until every child has ended: none outlives the program that started it.

        A cancel that comes meanwhile is raised after that.
        """
        # No need to cancel: the call that waited for them was cancelled, and cancelled them.
        await until_ended(list(self._under_way))

    # -- inside --------------------------------------------------------------------------------

    async def _ask_batch(
        self, call: Call, prompts: Sequence[object], contexts: Sequence[object], model: object
    ) -> dict[str, object]:
        if model is not None and not isinstance(model, str):
            raise UsageError(f"model: a name, not {type(model).__name__}")
        if len(prompts) > BATCH_MAX:
            raise UsageError(f"{len(prompts):,} prompts; at most {BATCH_MAX:,} in a batch")
        requests = [
            ChildRequest(
                call=call,
                item=item,
                prompt=check_text(prompt, item),
                context=_context(context, item),
                model=asked_name(call, model),
                tools=call.scope.tools,
                # A model that the call names is also that of the child's own calls.
                skill_model=call.scope.skill_model if model is None else None,
            )
            for item, (prompt, context) in enumerate(zip(prompts, contexts, strict=True))
        ]
        note = None
        if not requests:
            answers: list[object] = []
        elif self._depth >= call.scope.limits.depth:
            note = "no run may stand deeper here: the model was asked directly, as by llm_query"
            texts = [_with_context(each) for each in requests]
            answers = await self._queries.query_directly(call, texts, model)
        else:
            await self._let_in(requests)
            answers = await self._at_once([self._one(each) for each in requests])
        errors = [
            [item, each.kind, str(each)]
            for item, each in enumerate(answers)
            if isinstance(each, QueryProblem)
        ]
        told = [None if isinstance(each, QueryProblem) else each for each in answers]
        return {"answers": told, "errors": errors, "note": note}

    async def _let_in(self, requests: Sequence[ChildRequest]) -> None:
        """Check the model of a batch. Raise `QueryProblem` if programs may not ask it.

        A batch that is partly on record was let in before, and is not checked again.
        """
        first = requests[0]
        if any(self._attempts(each) or self._refusal(each) for each in requests):
            return

        async def refuse() -> QueryRefused | None:
            parent, runner = self.live()
            try:
                runner.check_model(parent, first.model)
            except UsageError as error:
                batch = dataclasses.replace(first, item=WHOLE)
                return _refusal_of(batch, message=str(error), dimension=MODEL, attempt=0)
            return None

        key = Key("query", first.call.intent, WHOLE, 0)
        refused = await self._effects.refusal(key, refuse)
        if isinstance(refused, QueryRefused):
            raise problem_of_refusal(refused)

    async def _at_once(self, work: Sequence[Awaitable[object]]) -> list[object]:
        tasks = [asyncio.ensure_future(each) for each in work]
        # The parent waits, so it lends its place: its children may need it.
        waiting: AbstractAsyncContextManager[None] = nullcontext()
        if self._runner is not None:
            # The root of the tree has no place to lend, at whatever depth it counts.
            lent = 0 if self._is_root else self._depth
            waiting = self._runner.slots.lend(depth=lent)
        try:
            async with waiting:
                answers = list(await asyncio.gather(*tasks))
                # Only now: the others of the batch have ended, and are not asked again.
                for each in answers:
                    if isinstance(each, NeedsPerson):
                        raise each
                return answers
        finally:
            for task in tasks:
                task.cancel()
            # Wait: each child that was cancelled records its end.
            await until_ended(tasks)

    async def _one(self, request: ChildRequest) -> object:
        ended = await self._run(request)
        if isinstance(ended, QueryRefused):
            return problem_of_refusal(ended)
        if ended.stop == "answered":
            return ended.answer
        if ended.stop == "waiting":
            return NeedsPerson(f"run {ended.run}: {ended.detail}")
        said = f"{ended.stop}: {ended.detail}"
        if ended.partial and ended.answer:
            said += f". What it had: {ended.answer[:1_000]}"
        return QueryProblem("ChildStopped", said)

    async def _run(self, request: ChildRequest) -> ChildEnded | QueryRefused:
        """Return the end of a child. One that was cut off is resumed, as another attempt.

        Every attempt on record is performed again, in order, so that each is compared and counted.
        A refusal is returned at once.
        """
        attempts = self._attempts(request)
        last = attempts[-1][1] if attempts else None
        told = self._effects.history.is_answered(request.call.intent)
        # A child that will be resumed counts its own charges while it repeats its record. One that
        # is over is not driven again, so its charges are counted here.
        is_over = last is not None and (last.stop not in CUT_OFF or told)
        charged, run = Charge(), None
        for attempt in range(1, len(attempts) + 2):
            ended = await self._effects.perform(
                ChildCall(self, request, attempt=attempt, run=run, charged=charged, counts=is_over)
            )
            is_last = attempt > len(attempts) or attempts[attempt - 1][1] is None
            if isinstance(ended, QueryRefused) or is_last:
                return ended
            if attempt == len(attempts) and is_over:
                # It ended by itself, or its program had its end as the answer: never another one.
                return ended
            charged, run = charged + ended.charge, ended.run
        raise AssertionError("the last attempt is returned")

    def _attempts(self, request: ChildRequest) -> Sequence[tuple[ChildBegun, ChildEnded | None]]:
        return self._effects.history.child(request.call.intent, request.item)

    def _refusal(self, request: ChildRequest) -> QueryRefused | None:
        return self._effects.history.child_refusal(request.call.intent, request.item)

    # -- for one child -------------------------------------------------------------------------

    def live(self) -> tuple[Parent, ChildRunner]:
        """Return the parent and the runner of a live run. Never called in a replay."""
        assert self._parent is not None, "a replay drives nothing"
        assert self._runner is not None, "a replay drives nothing"
        return self._parent, self._runner

    @property
    def door(self) -> ModelDoor | None:
        return None if self._parent is None else self._parent.model_door

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Take a place among the live children of the tree, and give it back on the way out.

        While it waits, the runner is shown one more waiting child of this run.
        """
        parent, runner = self.live()
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        waiting = True
        runner.waits(parent.run, 1)
        try:
            async with runner.slots.hold(depth=self._depth + 1):
                waiting = False
                runner.waits(parent.run, -1)
                yield
        finally:
            if waiting:
                runner.waits(parent.run, -1)

    def caller(self, request: ChildRequest) -> Caller:
        """Return what a child records about the call that started it. Only for a live run."""
        return Caller(
            run=self.live()[0].run,
            intent=request.call.intent,
            item=request.item,
            depth=self._depth + 1,
            tools=request.tools,
            skill_model=request.skill_model,
        )

    @property
    def run_attachments(self) -> RunAttachments:
        return self._run_attachments


class ChildCall:
    """One attempt at a child run: a new one, or `run`, which an earlier attempt started.

    `charged` is the part of its cost that the record of its parent has already. With `counts`, its
    record is complete, and the cost on record is counted.
    """

    def __init__(
        self,
        children: Children,
        request: ChildRequest,
        *,
        attempt: int,
        run: str | None,
        charged: Charge,
        counts: bool,
    ) -> None:
        self._children = children
        self._request = request
        self._run = run
        self._charged = charged
        self._counts = counts
        # The text of a long answer: it is stored as an attachment, and not in its record.
        self._answer: str | None = None
        self.key = Key("child", request.call.intent, request.item, attempt)
        self.scope = request.call.scope

    def begin_again(self, begun: ChildBegun) -> ChildBegun:
        return msgspec.structs.replace(begun, request_sha256=request_sha256(self._request))

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[ChildBegun]:
        request = self._request
        parent, runner = self._children.live()
        async with self._children.place():
            refused = None if self._run is not None else runner.refusal(parent, request)
            if refused is not None:
                raise Refused(
                    _refusal_of(
                        request,
                        message=str(refused),
                        dimension=refused.dimension
                        if isinstance(refused, BudgetExhausted)
                        else "usd",
                        scope=str(refused.scope),
                    )
                )
            yield ChildBegun(
                intent=request.call.intent,
                program=request.call.program,
                item=request.item,
                run=self._run or new_id(),
                request_sha256=request_sha256(request),
                attempt=self.key.attempt,
            )

    async def send(self, begun: ChildBegun) -> Sequence[Record]:
        parent, runner = self._children.live()
        if self._run is not None:
            return [await self._resume(begun)]
        try:
            run, head = await runner.begin(
                parent, begun.run, self._request, self._children.caller(self._request)
            )
        except BackendError as error:
            run, head = _failed_start(begun.run, error), Head.of_nothing()
        return [self._end_record(begun, run, head)]

    def leave(self, begun: ChildBegun, *, sent: bool) -> ChildEnded:
        """Return the end of a child that was cancelled before it recorded anything new.

        A child that is live ends by itself at a cancel, and `send` returns its end.
        """
        return ChildEnded(
            intent=begun.intent,
            item=begun.item,
            run=begun.run,
            stop="cancelled",
            detail="left before it began",
            answer="",
            partial=False,
            charge=Charge(),
            count=0,
            hash="",
            attempt=begun.attempt,
        )

    async def settle_doubt(self, begun: ChildBegun, found: Found | None) -> ChildEnded:
        async with self._children.place():
            return await self._resume(begun)

    def record_unsent(self, found: Found) -> tuple[ChildBegun, ChildEnded]:
        raise AssertionError("a child that was left is resumed")

    def count_served(self, begun: ChildBegun | None, ended: ChildEnded | QueryRefused) -> None:
        door = self._children.door
        if self._counts and door is not None and isinstance(ended, ChildEnded):
            door.count_recorded("", charge_of_child(ended.charge))

    async def completed(self, ended: ChildEnded | QueryRefused) -> ChildEnded | QueryRefused:
        if not isinstance(ended, ChildEnded) or ended.answer_ref is None:
            return ended
        if self._answer is None:
            raw = self._children.run_attachments.read(ended.answer_ref)
            self._answer = raw.decode("utf-8", "surrogatepass")
        return msgspec.structs.replace(ended, answer=self._answer)

    async def _resume(self, begun: ChildBegun) -> ChildEnded:
        parent, runner = self._children.live()
        try:
            run, head = await runner.resume(
                parent, begun.run, self._request, self._children.caller(self._request)
            )
        except AttachmentError as error:
            # Do not give this to the program as an error: it would continue without the child.
            why = f"cannot be gone on with: {error}"
            raise ResumeRefused(run=begun.run, why=why) from error
        return self._end_record(begun, run, head)

    def _end_record(self, begun: ChildBegun, run: Run, head: Head) -> ChildEnded:
        answer, ref = run.answer or "", None
        if len(answer) > INLINE_BYTES_MAX:
            raw = answer.encode("utf-8", "surrogatepass")
            ref = self._children.run_attachments.keep(
                raw, media_type="text/plain", label="answer of a child"
            )
            self._answer = answer
        return ChildEnded(
            intent=begun.intent,
            item=begun.item,
            run=run.run,
            stop=run.stop,
            detail=run.detail,
            answer=answer if ref is None else "",
            answer_ref=ref,
            partial=run.partial,
            charge=_growth(self._charged, run.charge),
            count=head.count,
            hash=head.hash,
            attempt=begun.attempt,
        )


async def until_ended(tasks: Collection[asyncio.Future[object]]) -> None:
    """Wait until all tasks have ended, and then raise a cancel that came meanwhile.

    The tasks still record how they ended, so they must not be left.
    """
    left: asyncio.CancelledError | None = None
    while any(not each.done() for each in tasks):
        try:
            await asyncio.wait([each for each in tasks if not each.done()])
        except asyncio.CancelledError as error:
            left = error
    for each in tasks:
        if not each.cancelled():
            # Read the error, or asyncio logs it as never retrieved. The caller has seen it.
            each.exception()
    if left is not None:
        raise left


def request_sha256(request: ChildRequest) -> str:
    """Return the digest of a request: prompt, context and model, or else its identity."""
    if request.identity is not None:
        return digest(canonical(request.identity))
    model = request.model.name if isinstance(request.model, SkillModel) else request.model
    return digest(canonical([request.prompt, request.context, model]))


def _with_context(request: ChildRequest) -> str:
    """Return the question and its context in one text."""
    if request.context is None:
        return request.prompt
    texts = (
        request.context
        if isinstance(request.context, str)
        else "\n\n".join(f"{name}:\n{text}" for name, text in request.context.items())
    )
    return f"{request.prompt}\n\n{texts}"


def _context(given: object, item: int) -> Context:
    """Return the context of a child: None, one text, or texts by name.

    The texts of a list are named by their position. Raise `UsageError` for anything else, for more
    than 10,000 texts, and for more than 4,000,000 bytes in all.
    """
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
    # UTF-8 refuses half of a surrogate pair, which a program may hand over.
    size = sum(len(each.encode("utf-8", "surrogatepass")) for each in texts)
    if size > _CONTEXT_BYTES_MAX:
        raise UsageError(f"context {item}: {size:,} bytes; at most {_CONTEXT_BYTES_MAX:,}")
    return held


def _refusal_of(
    request: ChildRequest, *, message: str, dimension: str, scope: str = "", attempt: int = 1
) -> QueryRefused:
    """Return the record of a child that is not started."""
    return QueryRefused(
        intent=request.call.intent,
        item=request.item,
        attempt=attempt,
        message=message,
        dimension=dimension,
        scope=scope,
    )


def _failed_start(run: str, error: BackendError) -> Run:
    """Return the result of a child that got no interpreter."""
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


def _growth(before: Charge, now: Charge) -> Charge:
    """Return the difference of two charges. Its money is None if that of `now` is unknown."""
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
