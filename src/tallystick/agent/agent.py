"""Define `Agent`: a model with its tools, instructions and limits, which starts runs.

It needs no `with`: what it opened is closed by `close`, with the object, or when Python ends. It
may be shared between threads, and drives any number of runs at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from tallystick.agent.engine import Engine
from tallystick.agent.handle import Handle, Stream
from tallystick.agent.options import (
    AskedAnswer,
    DecideOptions,
    Dollars,
    ForkOptions,
    ResumeOptions,
    RunOptions,
    asked_answer,
    asked_budget,
    asked_inputs,
    asked_limits,
    check_options,
    shows,
)
from tallystick.core.budget.amount import Budget
from tallystick.core.errors import UsageError
from tallystick.sandbox.port import AUTO
from tallystick.settings.client import Config
from tallystick.storage.clock import new_id
from tallystick.tools.tool import tools_of

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import TypeForm

    from tallystick.agent.chat import Chat
    from tallystick.agent.model_function import ModelFunction
    from tallystick.attachments.port import Attachments
    from tallystick.core.records import InDoubt, PersonDecision, Record
    from tallystick.ledger.port import Ledger
    from tallystick.memory.memory import Memory
    from tallystick.model.port import Model
    from tallystick.model.price_table import Pricing
    from tallystick.runtime.calls.capability import Capability
    from tallystick.runtime.calls.decisions import FindReply
    from tallystick.runtime.calls.deltas import TextDelta
    from tallystick.runtime.calls.functions import Ask
    from tallystick.runtime.calls.queries import FindModel
    from tallystick.runtime.context.attachments import RunAttachments
    from tallystick.runtime.run.assembly import RunRequest, Watch
    from tallystick.runtime.run.replay import ReplayReport
    from tallystick.runtime.runs.decided import Decided
    from tallystick.runtime.runs.result import Run
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.sessions.sessions import Sessions
    from tallystick.skills.skills import Skills
    from tallystick.steps.replay import StepsReport
    from tallystick.vocabulary.capability import VocabularyAsked

T = TypeVar("T")
_NO_MODELS: Mapping[str, Any] = {}


def _watch_nothing(run: str, record: Record) -> None:
    """Take a record and do nothing."""


def _logged(watch: Watch) -> Watch:
    from tallystick.runtime.log import logged

    return logged(watch)


def _hear_nothing(heard: Any) -> None:  # noqa: ANN401 (what the driver tells of a reply)
    """Take what was heard of a reply and do nothing."""


class Agent:
    """A model with its tools, instructions and limits. It starts runs.

    `model` is a name such as `"openai:gpt-5-mini"`, a model, or a function from messages to the
    reply. Without it, the configured one is asked. `tools` are functions that programs may call,
    plain or marked by `tool`. `instructions` are for every run, and `skills` those that programs
    may load: a `Skills`, or directories. `memory` holds the notes that they recall: a `Memory`,
    which the caller closes, or the name of one.

    `budget` limits all runs of this object together: a `Budget`, or a dictionary such as
    `{"usd": "5", "tokens": 200_000}`. `max_usd` and `max_tokens` are short for one. `total` limits
    all runs of all processes on this ledger's file. `pricing` are the prices of calls. `lookup`
    asks a provider, by model and key of the call, for the outcome of a call that was interrupted by
    a crash.

    `models` are further models by name, which programs may ask and skills may name. `ledger` is
    where runs are recorded: a ledger, the path of one, or "memory:". Attachments are stored beside
    it; `attachments` stores them for a ledger that has no file. `vocabulary` is the check of
    programs before they run. `ask` says which calls of tools need a person's word, beside those of
    tools that say so themselves: it is given the name, the arguments and the named arguments.

    `backend` is the sandbox of new runs: `wasm`, or `process` for native Python and bash with
    files. `accept_without` names the layers of isolation that the process sandbox may lack.
    `sandbox` is an open sandbox, to be used instead of a new one. `say` is called with warnings for
    a person.

    A setting that is not given comes from the configuration, which `tally config` shows: model,
    limits, total, prices, strategy, providers and aliases. With `config=None`, no configuration is
    read. `clock` and `timezone` are for runs that are not given their own.

    Raise `UsageError` if an argument is wrong: a tool that cannot be one, a clock, a limit that
    nothing would enforce, a sandbox or layer without a meaning. The same for `attachments` with a
    ledger in a file. Nothing is opened until it is needed.
    """

    def __init__(
        self,
        model: Model | ModelFunction | str | None = None,
        *,
        tools: Iterable[object] = (),
        instructions: str | None = None,
        skills: Skills | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        memory: Memory | str | None = None,
        budget: Budget | Mapping[str, object] | None = None,
        max_usd: Dollars | None = None,
        max_tokens: int | None = None,
        models: Mapping[str, Model | ModelFunction] = _NO_MODELS,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        attachments: Attachments | None = None,
        sandbox: WasmSandbox | ProcessSandbox | None = None,
        backend: str = AUTO,
        accept_without: Collection[str] = (),
        total: Budget | None = None,
        pricing: Pricing | None = None,
        lookup: FindReply | None = None,
        vocabulary: VocabularyAsked | None = None,
        ask: Ask | None = None,
        clock: str | datetime.datetime | None = None,
        timezone: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        config: Config = "auto",
    ) -> None:
        self._engine = Engine(
            model=model,
            models=models,
            tools=tools_of(tools),
            ledger=ledger,
            attachments=attachments,
            sandbox=sandbox,
            backend=backend,
            accept_without=accept_without,
            budget=asked_budget(budget, max_usd, max_tokens),
            total=total,
            pricing=pricing,
            lookup=lookup,
            skills=_skills_of(skills),
            memory=memory,
            vocabulary=vocabulary,
            instructions=_instructions_of(instructions),
            ask=ask,
            clock=clock,
            timezone=timezone,
            say=say,
            config=config,
        )
        # Closes what was opened when this object is gone, or at the end of Python.
        self._finalizer = weakref.finalize(self, _close_left, self._engine, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        tools = ", ".join(each.name for each in self._engine.tools)
        return f"<Agent {self._engine.models.name}{f', tools {tools}' if tools else ''}>"

    # -- runs ----------------------------------------------------------------------------------

    @overload
    def run(self, goal: str, *, answer: None = None, **options: Unpack[RunOptions]) -> Run[str]: ...
    @overload
    def run(self, goal: str, *, answer: TypeForm[T], **options: Unpack[RunOptions]) -> Run[T]: ...
    @overload
    def run(
        self, goal: str, *, answer: Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> Run[Any]: ...
    @shows(RunOptions)
    def run(self, goal: str, *, answer: Any = None, **options: Unpack[RunOptions]) -> Run[Any]:
        """Run a goal to its end, and return the result. Ctrl-C ends the run and is recorded.

        `answer` is the type of `Run.value`: a class such as a dataclass or a pydantic model, a list
        or union of them, or a JSON Schema. An answer that does not fit is asked for again. Without
        it, the answer is text. The options are those of `RunOptions`; another raises `TypeError`.

        A run that stops at a limit, or for another reason, is returned too: see `Run.stop`. Raise
        `UsageError` if the request is wrong, before anything is written, and errors of the ledger
        and of the sandbox. If `watch` raises, the run is ended and that error is raised.

        With `session`, raise `SessionNotFound`, `SessionExpired`, `InvalidSessionState` or
        `SessionBusy` if it cannot be used. Raise `BudgetExhausted` if its budget is used up, and
        `SessionNotKept` if variables of it were lost. Inside a step, raise `StepBudgetError`, with
        the partial answer, if a budget around the run is exhausted. Raise `StepsDiverged` if a
        recorded step asked for another run here. The steps have a chain of their own, `Run.parent`.
        """
        asked, request = self._request(goal, answer, options, of="run")
        placed = self._engine.place_of_request(request)
        run = self._engine.loop.do(self._engine.run(request, placed))
        return asked.of(run if placed is None else placed.result_for_caller(run))

    @overload
    async def arun(
        self, goal: str, *, answer: None = None, **options: Unpack[RunOptions]
    ) -> Run[str]: ...
    @overload
    async def arun(
        self, goal: str, *, answer: TypeForm[T], **options: Unpack[RunOptions]
    ) -> Run[T]: ...
    @overload
    async def arun(
        self, goal: str, *, answer: Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> Run[Any]: ...
    @shows(RunOptions)
    async def arun(
        self,
        goal: str,
        *,
        answer: Any = None,
        **options: Unpack[RunOptions],
    ) -> Run[Any]:
        """Run a goal as `run` does, for callers that await.

        Async functions of the caller run on the caller's loop. If the waiting task is cancelled,
        the run is cancelled too. It records its end, which this does not wait for.
        """
        asked, request = self._request(goal, answer, options, of="arun")
        placed = self._engine.place_of_request(request)
        work = self._engine.run(request, placed, asyncio.get_running_loop())
        run = await asyncio.wrap_future(self._engine.loop.submit(work))
        return asked.of(run if placed is None else placed.result_for_caller(run))

    @overload
    def start(
        self, goal: str, *, answer: None = None, **options: Unpack[RunOptions]
    ) -> Handle[str]: ...
    @overload
    def start(
        self, goal: str, *, answer: TypeForm[T], **options: Unpack[RunOptions]
    ) -> Handle[T]: ...
    @overload
    def start(
        self, goal: str, *, answer: Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> Handle[Any]: ...
    @shows(RunOptions)
    def start(self, goal: str, *, answer: Any = None, **options: Unpack[RunOptions]) -> Handle[Any]:
        """Start a run, and return at once with a handle to follow it, stop it and wait for it.

        The arguments are those of `run`. Raise `UsageError` if the request is wrong or the agent is
        closed, and `TypeError` for an unknown option. `Handle.result` raises other errors.
        """
        asked, request = self._request(goal, answer, options, of="start")
        return self._started(asked, request, None)

    @overload
    async def astart(
        self, goal: str, *, answer: None = None, **options: Unpack[RunOptions]
    ) -> Handle[str]: ...
    @overload
    async def astart(
        self, goal: str, *, answer: TypeForm[T], **options: Unpack[RunOptions]
    ) -> Handle[T]: ...
    @overload
    async def astart(
        self, goal: str, *, answer: Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> Handle[Any]: ...
    @shows(RunOptions)
    async def astart(
        self,
        goal: str,
        *,
        answer: Any = None,
        **options: Unpack[RunOptions],
    ) -> Handle[Any]:
        """Start a run as `start` does. Async functions of the caller run on the caller's loop."""
        asked, request = self._request(goal, answer, options, of="astart")
        return self._started(asked, request, asyncio.get_running_loop())

    @overload
    def stream(
        self, goal: str, *, answer: None = None, deltas: bool = False, **options: Unpack[RunOptions]
    ) -> Stream[str]: ...
    @overload
    def stream(
        self, goal: str, *, answer: TypeForm[T], deltas: bool = False, **options: Unpack[RunOptions]
    ) -> Stream[T]: ...
    @overload
    def stream(
        self,
        goal: str,
        *,
        answer: Mapping[str, Any],
        deltas: bool = False,
        **options: Unpack[RunOptions],
    ) -> Stream[Any]: ...
    @shows(RunOptions)
    def stream(
        self,
        goal: str,
        *,
        answer: Any = None,
        deltas: bool = False,
        **options: Unpack[RunOptions],
    ) -> Stream[Any]:
        """Return the events of a new run, to iterate over with `for` or `async for`.

        The run starts with the loop. Each event was recorded before it is shown. With `deltas`, the
        text of replies is among them while it comes, as `TextDelta`s: the recorded reply is what
        counts. Leaving the loop early stops the run, which is recorded. `Stream.run` is the result
        after the loop. The other arguments are those of `run`. Raise `UsageError` if the request is
        wrong, and `TypeError` for an unknown option; the loop raises other errors.
        """
        asked, request = self._request(goal, answer, options, of="stream")
        return Stream(lambda loop: self._started(asked, request, loop, deltas=deltas))

    def chat(self, session: str | None = None, /, **options: Unpack[RunOptions]) -> Chat:
        """Return a conversation, in which each question continues from what the last one left.

        It is kept in a session of the ledger: a new one, or the one that is named, which is looked
        up on first use. The options are those of each of its runs. Raise `TypeError` for another.
        """
        from tallystick.agent.chat import Chat

        given = check_options(options, RunOptions, of="chat")
        named = given.pop("session", None)
        return Chat(self, session or named, given)

    # -- recorded runs -------------------------------------------------------------------------

    def replay(self, run: Run[Any] | str, *, timeout_ms: int | None = None) -> ReplayReport:
        """Run a recorded run again, without a model or network, and report the first difference.

        Nothing is written. Raise `ReplayStopped` if it takes longer than `timeout_ms` without a
        difference; None means no limit. Raise `RunNotFound`, `ResumeRefused`, `StepsNotReplayed` or
        `RecordUnreadable` if there is no record that can be replayed, and `AttachmentError` if an
        attachment of the run is gone or damaged.
        """
        self._engine.check_open()
        return self._engine.loop.do(self._engine.replay(_id_of(run), timeout_ms=timeout_ms))

    async def areplay(self, run: Run[Any] | str, *, timeout_ms: int | None = None) -> ReplayReport:
        """Replay a run as `replay` does, for callers that await."""
        self._engine.check_open()
        work = self._engine.replay(_id_of(run), timeout_ms=timeout_ms)
        return await asyncio.wrap_future(self._engine.loop.submit(work))

    @overload
    def resume(self, run: Run[T], **options: Unpack[ResumeOptions]) -> Run[T]: ...
    @overload
    def resume(self, run: str, **options: Unpack[ResumeOptions]) -> Run[Any]: ...
    @shows(ResumeOptions)
    def resume(self, run: Run[Any] | str, **options: Unpack[ResumeOptions]) -> Run[Any]:
        """Resume a run that was interrupted or stopped without an answer, and return its result.

        Its programs run again on their recorded answers, so nothing is paid or done twice. After
        the last record, the run is live. Limits are for the whole run, with what it has spent. A
        run that has its answer is returned as it is. The options are those of `ResumeOptions`; for
        another, raise `TypeError`.

        Raise `RunInDoubt` if the outcome of a call is unknown, and `in_doubt` is "halt". With
        "retry" such calls are repeated, and with "abandon" they are given up. Raise `UsageError` if
        another process works on the run, unless `steal`: the further work of that process is then
        lost. Raise `RunNotFound`, `ResumeRefused` if the run cannot be resumed, and
        `ResumeDiverged` if it does not repeat its record. Raise `NoBackendAvailable` if its sandbox
        does not work here, and `AttachmentError` if an attachment that it needs is gone or damaged.

        For a run in a session, raise `SessionBusy`, `SessionNotKept` if variables were lost, or
        `BudgetExhausted` if its other runs used the budget up. Inside a step, raise
        `StepBudgetError` as `run` does; inside `replay_steps`, raise `StepsDiverged`.
        """
        work = self._resumed(run, options, None)
        return _typed_as(run, self._engine.loop.do(work))

    @overload
    async def aresume(self, run: Run[T], **options: Unpack[ResumeOptions]) -> Run[T]: ...
    @overload
    async def aresume(self, run: str, **options: Unpack[ResumeOptions]) -> Run[Any]: ...
    @shows(ResumeOptions)
    async def aresume(self, run: Run[Any] | str, **options: Unpack[ResumeOptions]) -> Run[Any]:
        """Resume a run as `resume` does, for callers that await. A cancel is as in `arun`."""
        work = self._resumed(run, options, asyncio.get_running_loop())
        return _typed_as(run, await asyncio.wrap_future(self._engine.loop.submit(work)))

    @shows(DecideOptions)
    def approve(
        self,
        run: Run[Any] | str,
        *,
        all: bool = False,
        by: str = "",
        **options: Unpack[DecideOptions],
    ) -> Run[Any] | None:
        """Approve what a run waits for, resume it, and return its result.

        The approval is of the call or program that waits now, by its digest: another one is not
        made with it. With `all`, it is of everything that waits in the run and inside it, and of
        every later call of the run. `by` is the name of who decides, by default the user and the
        machine. The options are those of `resume`. Return None if the process of the run waits for
        the decision, and goes on itself.

        Raise `UsageError` if nothing waits, and `ResumeRefused` if several calls wait, or somebody
        else was first. Raise what `resume` raises.
        """
        bound = self._decided(run, "approve", by=by, all=all)
        return None if bound is None else self._continued(run, bound, options)

    @shows(DecideOptions)
    async def aapprove(
        self,
        run: Run[Any] | str,
        *,
        all: bool = False,
        by: str = "",
        **options: Unpack[DecideOptions],
    ) -> Run[Any] | None:
        """Approve what a run waits for as `approve` does, for callers that await."""
        bound = self._decided(run, "approve", by=by, all=all)
        return None if bound is None else await self._acontinued(run, bound, options)

    @shows(DecideOptions)
    def deny(
        self,
        run: Run[Any] | str,
        *,
        because: str = "",
        all: bool = False,
        by: str = "",
        **options: Unpack[DecideOptions],
    ) -> Run[Any] | None:
        """Deny what a run waits for, resume it, and return its result.

        A program gets an exception with the reason `because`. For a program that waited itself, the
        model is told so, and writes another. The rest is as for `approve`.
        """
        bound = self._decided(run, "deny", by=by, because=because, all=all)
        return None if bound is None else self._continued(run, bound, options)

    @shows(DecideOptions)
    async def adeny(
        self,
        run: Run[Any] | str,
        *,
        because: str = "",
        all: bool = False,
        by: str = "",
        **options: Unpack[DecideOptions],
    ) -> Run[Any] | None:
        """Deny what a run waits for as `deny` does, for callers that await."""
        bound = self._decided(run, "deny", by=by, because=because, all=all)
        return None if bound is None else await self._acontinued(run, bound, options)

    @overload
    def fork(self, run: Run[T], *, turn: int, **options: Unpack[ForkOptions]) -> Run[T]: ...
    @overload
    def fork(self, run: str, *, turn: int, **options: Unpack[ForkOptions]) -> Run[Any]: ...
    @shows(ForkOptions)
    def fork(self, run: Run[Any] | str, *, turn: int, **options: Unpack[ForkOptions]) -> Run[Any]:
        """Start a run that shares its first turns with another, and return its result.

        `turn` is the number of turns that are shared.

        The shared part is not paid again. With 0, only the start is shared. The next turns ask this
        agent's model. Limits are for the whole run, with the shared part; without any, those of the
        other run are kept, and so is the `temperature`. Raise `RunNotFound`, or `UsageError` or
        `ResumeRefused` if the run cannot be forked after that turn. Raise `NoBackendAvailable`,
        `AttachmentError`, and the errors inside steps as `resume` does.
        """
        return _typed_as(run, self._engine.loop.do(self._forked(run, turn, options)))

    @overload
    async def afork(self, run: Run[T], *, turn: int, **options: Unpack[ForkOptions]) -> Run[T]: ...
    @overload
    async def afork(self, run: str, *, turn: int, **options: Unpack[ForkOptions]) -> Run[Any]: ...
    @shows(ForkOptions)
    async def afork(
        self, run: Run[Any] | str, *, turn: int, **options: Unpack[ForkOptions]
    ) -> Run[Any]:
        """Fork a run as `fork` does, for callers that await. A cancel is as in `arun`."""
        work = self._forked(run, turn, options)
        return _typed_as(run, await asyncio.wrap_future(self._engine.loop.submit(work)))

    def resume_steps(
        self, chain: str, *, in_doubt: InDoubt = "halt"
    ) -> AbstractContextManager[None]:
        """Return a context in which the next outermost step resumes a chain of steps.

        `chain` is the `Run.parent` of one of its runs. Completed steps return their recorded
        results, and interrupted runs are resumed. Earlier spending counts. Inside, `StepsDiverged`
        is raised for another outermost step, or if a step asks for another run than is recorded
        next. `in_doubt` is for its runs, as for `resume`.

        The chain is locked while inside. Entering raises `UsageError` inside a step, or while a
        living process holds the chain. It raises that too if `chain` is no chain of steps. It
        raises `RunNotFound`, `RunNotOwned` if the chain was moved away or imported, or
        `LedgerError` if one of its entries is not valid.
        """
        from tallystick.steps.resume import resume_steps

        return resume_steps(self._engine.context(), chain, in_doubt=in_doubt)

    def replay_steps(self, chain: str) -> AbstractContextManager[StepsReport]:
        """Return a context in which the next outermost step runs again on a recorded chain.

        No model is asked, and nothing is written. The context yields a report, which is complete at
        its end: what ran again, and the first divergence. A `StepsDiverged` of this chain ends at
        the end of the context.

        Entering raises `UsageError` inside a step, or if `chain` is no chain of steps. It raises
        `RunNotFound`, or `LedgerError` if an entry of the chain is not valid. Inside,
        `StepsDiverged` is raised for another outermost step, for a run that is not recorded, and
        for one that was interrupted. `ResumeRefused` is raised for a recorded run if an entry of it
        is not valid, or a body was removed. An inner step that is not recorded is only reported.
        """
        from tallystick.steps.resume import replay_steps

        return replay_steps(self._engine.context(), chain)

    # -- what it holds -------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """The ledger of the runs. If none was given, the default one is opened on first use."""
        return self._engine.ledger

    @property
    def attachments(self) -> Attachments:
        """The store for the attachments of the runs."""
        return self._engine.attachments

    @property
    def sessions(self) -> Sessions:
        """The sessions of the ledger.

        For a ledger in a file they last, and other processes share them. Else they are in memory.
        """
        return self._engine.sessions

    @property
    def capabilities(self) -> list[Capability]:
        """Further capabilities of its runs, after those of the agent."""
        return self._engine.capabilities

    @property
    def engine(self) -> Engine:
        """The part that starts runs, for the command line and for tests."""
        return self._engine

    def use(self, model: Model, *, owned: bool = False, configured: bool = False) -> None:
        """Use another model for the next runs.

        An `owned` model is closed with this object, also after another one has replaced it.
        `configured` says that it is the model of the configuration, opened by the caller.
        """
        self._engine.models.use(model, owned=owned, configured=configured)

    def model_of(self, name: str | None) -> Model:
        """Return a model by its name; the agent's own for None.

        A model that was not given is opened, and closed with this object. Raise `UsageError` if the
        name cannot be opened, or if there is no own model.
        """
        return self._engine.models.of(name)

    def models_of_programs(self, sub_model: str | None = None) -> FindModel:
        """Return the function that finds the models which programs of a new run may ask.

        `sub_model` is that of the run. Raise `UsageError` if there is no own model, or if it cannot
        be opened.
        """
        models = self._engine.models
        return models.for_programs(models.of(None), models.sub_model_of(sub_model, None, None))

    def attachments_of(self, records: Sequence[Record]) -> RunAttachments:
        """Return the attachments of a recorded run, for reading.

        Raise `LedgerError` if the records do not begin with a start.
        """
        return self._engine.attachments_of(records)

    def close(self) -> None:
        """Close the models, sandboxes and stores that were opened here; cancel what still runs.

        What was given stays open, except models given as `owned`. Stores opened beside a ledger in
        memory that was given stay open too: closing them would lose their data. Each run that is
        cancelled records its end, for which this waits up to 10 seconds. Closing twice is harmless.
        Afterwards `run`, `resume`, `fork` and `replay` raise `UsageError`.
        """
        self._finalizer.detach()
        self._engine.close()

    async def aclose(self) -> None:
        """Close as `close` does, for callers that await."""
        # In a thread: work in progress may need the caller's loop to finish.
        await asyncio.to_thread(self.close)

    # -- inside --------------------------------------------------------------------------------

    def _started(
        self,
        asked: AskedAnswer,
        request: RunRequest,
        caller: asyncio.AbstractEventLoop | None,
        *,
        deltas: bool = False,
    ) -> Handle[Any]:
        buffer = None
        if deltas:
            from tallystick.live.deltas import DeltaBuffer

            buffer, heard = DeltaBuffer(), request.heard

            def hear(delta: TextDelta) -> None:
                buffer(delta)
                heard(delta)

            request = dataclasses.replace(request, heard=hear)
        placed = self._engine.place_of_request(request)
        run = new_id() if placed is None else placed.run

        def finish(ended: Run[Any]) -> Run[Any]:
            return asked.of(ended if placed is None else placed.result_for_caller(ended))

        work = self._engine.run(request, placed, caller, run=run)
        return Handle(self, self._engine, run, self._engine.loop.submit(work), finish, buffer)

    def _request(
        self, goal: str, answer: object, options: Mapping[str, object], *, of: str
    ) -> tuple[AskedAnswer, RunRequest]:
        """Return what a caller asks for. Raise `UsageError`, or `TypeError` for an unknown name."""
        given = check_options(options, RunOptions, of=of)
        asked = asked_answer(answer)
        model = given.pop("model", None)
        if model is not None and not isinstance(model, str):
            model = self._engine.models.named(model)
        request = self._engine.request(
            goal,
            inputs=asked_inputs(given),
            limits=_limits_in(given),
            schema=asked.schema,
            model=model,
            put_skills=given.pop("skills", ()),
            watch=_logged(given.pop("watch", _watch_nothing)),
            heard=given.pop("heard", _hear_nothing),
            grants=given.pop("grants", ()),
            seed=given.pop("seed", 0),
            instructions=_instructions_of(given.pop("instructions", None)),
            **given,
        )
        return asked, request

    def _resumed(
        self,
        run: Run[Any] | str,
        options: Mapping[str, object],
        caller: asyncio.AbstractEventLoop | None,
    ) -> Any:  # noqa: ANN401 (a coroutine)
        from tallystick.runtime.run.resume import ResumeRequest
        from tallystick.runtime.runs.decided import as_decided

        given = check_options(options, ResumeOptions, of="resume")
        decided = as_decided(given.pop("decision", None), by=given.pop("by", ""))
        request = ResumeRequest(
            given.pop("in_doubt", "halt"),
            _limits_in(given),
            given.pop("steal", False),
            _logged(given.pop("watch", _watch_nothing)),
            given.pop("heard", _hear_nothing),
            decided,
            given.pop("sub_model", None),
        )
        found = _id_of(run)
        return self._engine.resume(found, request, self._engine.place_of_run(found), caller)

    def _decided(
        self,
        run: Run[Any] | str,
        decision: PersonDecision,
        *,
        by: str,
        because: str = "",
        all: bool = False,
    ) -> tuple[str, Decided] | None:
        """Return the run to resume, and the decision that is bound to what waits in it.

        Return None if the process of the run waits for the decision: it has it then. Raise what
        `pending`, `bind` and `submit` raise.
        """
        from tallystick.live.decide import bind, pending, submit
        from tallystick.live.stop import person_here
        from tallystick.runtime.runs.decided import Decided

        self._engine.check_open()
        found = pending(self.ledger, _id_of(run))
        word = Decided(decision=decision, by=by or person_here(), because=because, all=all)
        bound = bind(found, word)
        if found.inside:
            submit(self.ledger, found, bound)
            return None
        return found.run, bound

    def _continued(
        self, run: Run[Any] | str, bound: tuple[str, Decided], options: Mapping[str, object]
    ) -> Run[Any]:
        outermost, decided = bound
        work = self._resumed(outermost, {**options, "decision": decided}, None)
        return _typed_as(run, self._engine.loop.do(work))

    async def _acontinued(
        self, run: Run[Any] | str, bound: tuple[str, Decided], options: Mapping[str, object]
    ) -> Run[Any]:
        outermost, decided = bound
        caller = asyncio.get_running_loop()
        work = self._resumed(outermost, {**options, "decision": decided}, caller)
        return _typed_as(run, await asyncio.wrap_future(self._engine.loop.submit(work)))

    def _forked(self, run: Run[Any] | str, turn: int, options: Mapping[str, object]) -> Any:  # noqa: ANN401
        from tallystick.runtime.run.fork import ForkRequest

        given = check_options(options, ForkOptions, of="fork")
        request = ForkRequest(
            turn=turn,
            limits=_limits_in(given),
            temperature=given.pop("temperature", None),
            watch=_logged(given.pop("watch", _watch_nothing)),
            heard=given.pop("heard", _hear_nothing),
        )
        fork = new_id()
        return self._engine.fork(_id_of(run), fork, request, self._engine.place_of_run(fork))


def _id_of(run: Run[Any] | str) -> str:
    """Return the id of a run. Raise `UsageError` for what is neither a run nor an id."""
    found = run if isinstance(run, str) else getattr(run, "run", None)
    if not isinstance(found, str):
        raise UsageError(f"run: a run or its id is needed, not {type(run).__name__}")
    return found


def _typed_as(run: Run[Any] | str, made: Run[Any]) -> Run[Any]:
    """Return a run that continues another, with the type of answer that the other was asked for."""
    from tallystick.runtime.runs.result import as_type, decoder_of

    return as_type(made, decoder_of(run))


def _limits_in(given: dict[str, Any]) -> Any:  # noqa: ANN401 (`RunLimits`, or None)
    return asked_limits(
        given.pop("limits", None), given.pop("max_usd", None), given.pop("max_tokens", None)
    )


def _instructions_of(given: object) -> str | None:
    """Return instructions without blanks around them. Raise `UsageError` for what is no text."""
    if given is None:
        return None
    if not isinstance(given, str):
        raise UsageError(f"instructions: text is needed, not {type(given).__name__}")
    return given.strip() or None


def _skills_of(given: object) -> Skills | None:
    """Return skills, or those in the directories that were given; None for None.

    Raise `UsageError` for anything else, and what `Skills.of` raises.
    """
    if given is None:
        return None
    from tallystick.skills.skills import Skills

    if isinstance(given, Skills):
        return given
    directories = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(directories, list | tuple):
        raise UsageError(f"skills: give Skills or directories, not {type(given).__name__}")
    return Skills.of(*directories)


def _close_left(engine: Engine, process: int) -> None:
    """Close an engine whose agent is gone, or was left open at the end of Python.

    Nothing is done in a process that was forked from that of the agent, `process`.
    """
    # After a fork, the threads and the connections belong to the other process.
    if os.getpid() != process:
        return
    if engine.loop.is_here():
        # Collected in a thread that `close` waits for.
        threading.Thread(target=engine.close, name="tally-close", daemon=True).start()
        return
    engine.close()
