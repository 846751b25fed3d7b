"""Define the client: one object that holds ledger, models and sandboxes, and starts runs.

The driver is async. It runs on an event loop of the client's own, in a thread of its own. So the
plain methods work anywhere, also inside a running loop or a notebook. `arun` and `aresume` are for
callers that await.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import datetime
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.core.errors import LedgerError, UsageError
from tallystick.core.history import History
from tallystick.runtime.programs.backends import Backends
from tallystick.sandbox.port import AUTO
from tallystick.settings.client import ClientSettings, Config
from tallystick.settings.paths import ledger_path
from tallystick.storage.clock import new_id
from tallystick.stores import is_in_file, open_stores, stores_of

# The code that drives a run is most of this package. The methods below that drive or read a run
# import it. A program that names `tallystick.Session` may end before it starts a run, and some
# commands only read the ledger: they start faster so.
if TYPE_CHECKING:
    from tallystick.attachments.collect import CollectableAttachments
    from tallystick.attachments.port import Attachments
    from tallystick.bridge.sockets import BridgeFolder
    from tallystick.core.clock import RunClock
    from tallystick.core.records import InDoubt, PersonDecision, Record, RunStarted
    from tallystick.core.strategy import AskedStrategy
    from tallystick.ledger.port import Ledger, TransferLedger
    from tallystick.memory.memory import Memory
    from tallystick.model.port import Model
    from tallystick.model.price_table import Pricing
    from tallystick.runtime.calls.capability import Capability
    from tallystick.runtime.calls.decisions import FindReply
    from tallystick.runtime.calls.deltas import HearDelta
    from tallystick.runtime.calls.functions import RunFunction
    from tallystick.runtime.calls.queries import FindModel
    from tallystick.runtime.context.attachments import RunAttachments
    from tallystick.runtime.context.inputs import Input
    from tallystick.runtime.run.assembly import RunContext, RunRequest, Watch
    from tallystick.runtime.run.fork import ForkRequest
    from tallystick.runtime.run.replay import ReplayReport
    from tallystick.runtime.run.resume import ResumeRequest
    from tallystick.runtime.run.surroundings import PlacedRun, Surroundings
    from tallystick.runtime.runs.result import Run
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.sessions.sessions import Sessions
    from tallystick.skills.skills import Skills
    from tallystick.steps.replay import StepsReport
    from tallystick.stores import Stores
    from tallystick.vocabulary.capability import VocabularyAsked


# -- the event loop -----------------------------------------------------------------------------


Result = TypeVar("Result")
_CANCEL_SECONDS = 10.0


async def _cancel_all() -> None:
    """Cancel every other task that was not cancelled yet, and wait for all of them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LoopThread:
    """One event loop in a thread of its own, for callers that have none or may not block theirs.

    The thread starts with the first work, and ends with `close`.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def submit(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run a coroutine on the loop, and return its future at once.

        Cancelling the future cancels the coroutine. The first call starts the thread.
        """
        with self._guard:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop, and return its result.

        Ctrl-C cancels the coroutine, and its result is still returned: a run that is cancelled has
        one. Raise `KeyboardInterrupt` if the cancel leaves none, or none within 10 seconds. Its own
        errors are raised.
        Do not call this on the loop: it waits.
        """
        tasks: list[asyncio.Task[Result]] = []

        async def run_as_task() -> Result:
            tasks.append(asyncio.ensure_future(work))
            return await tasks[0]

        future = self.submit(run_as_task())
        try:
            return future.result()
        except KeyboardInterrupt:
            if tasks and self._loop is not None:
                self._loop.call_soon_threadsafe(tasks[0].cancel)
            try:
                return future.result(timeout=_CANCEL_SECONDS)
            except (concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
                raise KeyboardInterrupt from None

    def close(self) -> None:
        """Cancel all work, wait for it up to 10 seconds, and end the thread.

        Work that takes longer is left unfinished. Closing twice is harmless. Work that comes later
        starts a new thread. Do not call this on the loop.
        """
        with self._guard:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            # Wait for the cancelled work: each run still records how it ended.
            ended = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
            with contextlib.suppress(concurrent.futures.TimeoutError):
                ended.result(timeout=_CANCEL_SECONDS)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tally-loop", daemon=True
        )
        # It serves all later work, so it takes nothing of the first caller's context along.
        contextvars.Context().run(self._thread.start)


# -- models -------------------------------------------------------------------------------------


def models_for_programs(
    own: Model,
    others: Mapping[str, Model],
    sub: Callable[[], Model] | None = None,
    full_name: Callable[[str], str] = str,
) -> FindModel:
    """Return the function that finds the models for programs.

    A call without a name asks `sub`, which is opened when it is first needed, or else the run's
    own model. By name, the run's own, `others` and `sub` are tried in this order, first by the name
    as it is given and then by its `full_name`, which an alias stands for. It raises `UsageError`
    for any other name. `sub` may be opened to learn its name, and its errors are raised.
    """

    def find_known(name: str) -> Model | None:
        if name == own.name:
            return own
        if name in others:
            return others[name]
        recorded = next((each for each in others.values() if each.name == name), None)
        if recorded is None and sub is not None and name == sub().name:
            return sub()
        return recorded

    def find(name: str | None) -> Model:
        if name is None:
            return own if sub is None else sub()
        found = find_known(name) or find_known(full_name(name))
        if found is not None:
            return found
        known = ", ".join([own.name, *([] if sub is None else [sub().name]), *others])
        raise UsageError(f"model {name[:80]!r} is not for programs; known are: {known}")

    return find


# -- the client ---------------------------------------------------------------------------------


_NO_MODELS: Mapping[str, Model] = {}
_NO_LIMIT = Budget()
_Loop = asyncio.AbstractEventLoop


class Session:
    """The client: runs goals with one model, in one sandbox, on one ledger.

    `model` is a backend, or a name such as `"ollama:qwen2.5-coder"`, which is opened when it is
    needed. `functions` are tools that programs may call. Attachments are stored beside the ledger;
    `attachments` stores them for a ledger that has no file. `models` are further models that
    programs may ask by name, and that skills may name for them.

    `budget` limits all runs of this object together, `total` all runs of all processes on this
    ledger's file. `pricing` are the prices of calls. `lookup` asks a provider, by model and key of
    the call, for the outcome of a call that was interrupted by a crash.

    `skills` are those that programs may load. `memory` holds the notes that they recall; the caller
    closes it. `vocabulary` is the check of programs before they run. `backend` is the sandbox of
    new runs: `wasm`, or `process` for native Python and bash with files. `accept_without` names the
    layers of isolation that the process sandbox may lack. `sandbox` is an open sandbox, to be used
    instead of a new one. `say` is called with warnings for a person.

    A setting that is not given comes from the configuration, which `tally config` shows: model,
    limits, total, prices, strategy, providers and aliases. With `config=None`, no configuration is
    read. `clock` and `timezone` are for runs that are not given their own.

    Raise `UsageError` if an argument is wrong: a clock, a limit that nothing would enforce, a tool
    that is no host function, a sandbox or layer without a meaning. The same for `attachments` with
    a ledger in a file. Nothing is opened until it is needed.
    """

    def __init__(
        self,
        *,
        model: Model | str | None = None,
        functions: Sequence[RunFunction] = (),
        ledger: Ledger | None = None,
        attachments: Attachments | None = None,
        sandbox: WasmSandbox | ProcessSandbox | None = None,
        backend: str = AUTO,
        accept_without: Collection[str] = (),
        models: Mapping[str, Model] = _NO_MODELS,
        budget: Budget = _NO_LIMIT,
        total: Budget | None = None,
        pricing: Pricing | None = None,
        lookup: FindReply | None = None,
        skills: Skills | None = None,
        memory: Memory | None = None,
        vocabulary: VocabularyAsked | None = None,
        clock: str | datetime.datetime | None = None,
        timezone: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        config: Config = "auto",
    ) -> None:
        from tallystick.model.pacing import Pacing
        from tallystick.runtime.calls.functions import check_functions
        from tallystick.runtime.run.clock import run_clock
        from tallystick.runtime.spend.client_scopes import PRICING, ClientScopes

        self._client_settings = ClientSettings(config, total=total, pricing=pricing, say=say)
        run_clock(clock, timezone)
        self._clock, self._timezone = clock, timezone
        self._lookup = lookup
        self._skills = skills
        self._memory = memory
        self._vocabulary = vocabulary
        self._client_scopes = ClientScopes(
            budget=budget, total=total or _NO_LIMIT, pricing=pricing or PRICING
        )
        self._models = dict(models)
        if attachments is not None and (ledger is None or is_in_file(ledger)):
            raise UsageError("attachments: a ledger in a file keeps them itself, beside it")
        self._attachments = attachments
        self._model = None if isinstance(model, str) else model
        self._model_name = model if isinstance(model, str) else None
        self._model_given = model is not None
        self._functions = tuple(functions)
        check_functions(self._functions)
        self._ledger = ledger
        self._stores: Stores | None = None
        self._backends = Backends(
            given=sandbox,
            preference=backend,
            accept_without=accept_without,
            say=say,
            sockets=_bridge_folder,
        )
        self._owned: list[Model] = []
        self._pacing = Pacing()
        self._by_name: dict[str, Model] = {}
        # Further capabilities, added after those of the client.
        self.capabilities: list[Capability] = []
        self._loop = LoopThread()
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exc: object) -> None:
        # In a thread: work in progress may need the caller's loop to finish.
        await asyncio.to_thread(self.close)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the runs. If none was given, the default one is opened on first use.

        One that was opened here is closed by `close`.
        """
        if self._ledger is None:
            self._ledger = self._open_stores.ledger
        return self._ledger

    @property
    def attachments(self) -> Attachments:
        """The store for the attachments of the runs."""
        return self._open_stores.attachments if self._attachments is None else self._attachments

    @property
    def sessions(self) -> Sessions:
        """The sessions of the ledger.

        For a ledger in a file they last, and other processes share them. Else they are in memory.
        """
        return self._open_stores.sessions

    @property
    def _open_stores(self) -> Stores:
        """The stores of the ledger. They are opened when the first one is needed."""
        if self._stores is None and self._ledger is None:
            self._stores = open_stores(ledger_path())
        elif self._stores is None:
            self._stores = stores_of(
                cast("TransferLedger", self._ledger),
                attachments=cast("CollectableAttachments | None", self._attachments),
            )
        return self._stores

    def use(self, model: Model, *, owned: bool = False, configured: bool = False) -> None:
        """Use another model for the next runs.

        An `owned` model is closed with this object, also after another one has replaced it.
        `configured` says that it is the model of the configuration, opened by the caller.
        """
        self._model, self._model_name = model, None
        self._model_given = not configured
        if owned:
            self._owned.append(model)

    def run(
        self,
        goal: str,
        *,
        inputs: Sequence[Input] = (),
        limits: RunLimits | None = None,
        grants: Sequence[str] = (),
        seed: int = 0,
        temperature: float | None = None,
        watch: Watch = lambda run, record: None,
        heard: HearDelta = lambda delta: None,
        model: str | None = None,
        strategy: AskedStrategy | None = None,
        compact_at: int | None = None,
        schema: Mapping[str, object] | None = None,
        skills: Sequence[str] = (),
        session: str | None = None,
        clock: str | datetime.datetime | None = None,
        timezone: str | None = None,
        sub_model: str | None = None,
    ) -> Run:
        """Run a goal to its end, and return the result. Ctrl-C ends the run and is recorded.

        `model` is the name of a model. Without it, the model of the step around this call is asked,
        or else the client's. `sub_model` is the model that programs ask if they name none, and that
        of child runs; without it that is the run's own. `strategy` is "code", "direct",
        "recursive", or "auto" for the one that fits the texts and the budget. None is "code", or
        "direct" if a program would have nothing to read. `compact_at` is the number of prompt
        tokens from which old turns are shortened: 0 for never, None for a number that suits the
        model. `inputs` are the texts and pictures, `grants` the capabilities that its programs
        have, and `seed` that of the programs' interpreter. `limits` and `temperature` of None are
        those of the configuration.

        With a JSON `schema`, the answer is JSON that matches it, and `Run.value` is that JSON
        decoded. `skills` are put into the prompt: each is a name, then its arguments. This includes
        skills that models may not load. `session` names one of `sessions`, whose variables programs
        find. `clock` is the time at which the clock of programs starts: "now", "fixed" (2026-01-01)
        or a time; the model is shown it, in `timezone`. `watch` is called with the run and each
        record of it and of its child runs, and `heard` with each `TextDelta` while a reply arrives.
        If `watch` raises, the run is ended and that error is raised.

        A run that stops at a limit, or for another reason, is returned too: see `Run.stop`. Raise
        `UsageError` if the request is wrong, and errors of the ledger and of the sandbox.

        With `session`, raise `SessionNotFound`, `SessionExpired`, `InvalidSessionState` or
        `SessionBusy` if it cannot be used. Raise `BudgetExhausted` if its budget is used up, and
        `SessionNotKept` if variables of it were lost. Inside a step, raise `StepBudgetError`, with
        the partial answer, if a budget around the run is exhausted. Raise `StepsDiverged` if a
        recorded step asked for another run here. The steps have a chain of their own, `Run.parent`.
        """
        request = self._request(
            goal,
            limits=limits,
            clock=clock,
            timezone=timezone,
            strategy=strategy,
            schema=schema,
            inputs=inputs,
            grants=grants,
            seed=seed,
            temperature=temperature,
            watch=watch,
            heard=heard,
            model=model,
            compact_at=compact_at,
            put_skills=skills,
            session=session,
            sub_model=sub_model,
        )
        placed = self._place_of_request(request)
        run = self._loop.do(self._run(request, placed))
        return run if placed is None else placed.result_for_caller(run)

    async def arun(
        self,
        goal: str,
        *,
        inputs: Sequence[Input] = (),
        limits: RunLimits | None = None,
        grants: Sequence[str] = (),
        seed: int = 0,
        temperature: float | None = None,
        watch: Watch = lambda run, record: None,
        heard: HearDelta = lambda delta: None,
        model: str | None = None,
        strategy: AskedStrategy | None = None,
        compact_at: int | None = None,
        schema: Mapping[str, object] | None = None,
        skills: Sequence[str] = (),
        session: str | None = None,
        clock: str | datetime.datetime | None = None,
        timezone: str | None = None,
        sub_model: str | None = None,
    ) -> Run:
        """Run a goal as `run` does, for callers that await.

        Async functions of the caller run on the caller's loop. If the waiting task is cancelled,
        the run is cancelled too. It records its end, which this does not wait for.
        """
        request = self._request(
            goal,
            limits=limits,
            clock=clock,
            timezone=timezone,
            strategy=strategy,
            schema=schema,
            inputs=inputs,
            grants=grants,
            seed=seed,
            temperature=temperature,
            watch=watch,
            heard=heard,
            model=model,
            compact_at=compact_at,
            put_skills=skills,
            session=session,
            sub_model=sub_model,
        )
        placed = self._place_of_request(request)
        work = self._run(request, placed, asyncio.get_running_loop())
        run = await asyncio.wrap_future(self._loop.submit(work))
        return run if placed is None else placed.result_for_caller(run)

    def replay(self, run: str, *, timeout_ms: int | None = None) -> ReplayReport:
        """Run a recorded run again, without a model or network, and report the first difference.

        Nothing is written. Raise `ReplayStopped` if it takes longer than `timeout_ms` without a
        difference; None means no limit. Raise `RunNotFound`, `ResumeRefused`, `StepsNotReplayed` or
        `RecordUnreadable` if there is no record that can be replayed, and `AttachmentError` if an
        attachment of the run is gone or damaged.
        """
        self._check_open()
        return self._loop.do(self._replay(run, timeout_ms=timeout_ms))

    def resume(
        self,
        run: str,
        *,
        in_doubt: InDoubt = "halt",
        limits: RunLimits | None = None,
        steal: bool = False,
        decision: PersonDecision | None = None,
        by: str = "",
        sub_model: str | None = None,
        watch: Watch = lambda run, record: None,
        heard: HearDelta = lambda delta: None,
    ) -> Run:
        """Resume a run that was interrupted or stopped without an answer, and return its result.

        Its programs run again on their recorded answers, so nothing is paid or done twice. After
        the last record, the run is live. `limits` are for the whole run, with what it has spent. A
        run that has its answer is returned as it is.

        Raise `RunInDoubt` if the outcome of a call is unknown, and `in_doubt` is "halt". With
        "retry" such calls are repeated, and with "abandon" they are given up. Raise `UsageError` if
        another process works on the run, unless `steal`: the further work of that process is then
        lost. A run that waits for a person needs a `decision`; `by` is the name of that person.
        `sub_model` says where the model of its sub-calls is, if the recorded name does not.
        Raise `RunNotFound`, `ResumeRefused` if the run cannot be resumed, and `ResumeDiverged` if
        it does not repeat its record. Raise `NoBackendAvailable` if its sandbox does not work here,
        and `AttachmentError` if an attachment that it needs is gone or damaged.

        For a run in a session, raise `SessionBusy`, `SessionNotKept` if variables were lost, or
        `BudgetExhausted` if its other runs used the budget up. Inside a step, raise
        `StepBudgetError` as `run` does; inside `replay_steps`, raise `StepsDiverged`.
        """
        from tallystick.runtime.run.resume import ResumeRequest

        request = ResumeRequest(in_doubt, limits, steal, watch, heard, decision, by, sub_model)
        return self._loop.do(self._resume(run, request, self._place_of_run(run)))

    async def aresume(
        self,
        run: str,
        *,
        in_doubt: InDoubt = "halt",
        limits: RunLimits | None = None,
        steal: bool = False,
        decision: PersonDecision | None = None,
        by: str = "",
        sub_model: str | None = None,
        watch: Watch = lambda run, record: None,
        heard: HearDelta = lambda delta: None,
    ) -> Run:
        """Resume a run as `resume` does, for callers that await. A cancel is as in `arun`."""
        from tallystick.runtime.run.resume import ResumeRequest

        request = ResumeRequest(in_doubt, limits, steal, watch, heard, decision, by, sub_model)
        caller = asyncio.get_running_loop()
        future = self._loop.submit(self._resume(run, request, self._place_of_run(run), caller))
        return await asyncio.wrap_future(future)

    def fork(
        self,
        run: str,
        *,
        turn: int,
        limits: RunLimits | None = None,
        temperature: float | None = None,
        watch: Watch = lambda run, record: None,
        heard: HearDelta = lambda delta: None,
    ) -> Run:
        """Start a run that shares the first `turn` turns of another, and return its result.

        The shared part is not paid again. With 0, only the start is shared. The next turns ask this
        client's model. `limits` are for the whole run, with the shared part; None keeps those of
        the other run, and so for `temperature`. Raise `RunNotFound`,
        or `UsageError` or `ResumeRefused` if the run cannot be forked after that turn. Raise
        `NoBackendAvailable`, `AttachmentError`, and the errors inside steps as `resume` does.
        """
        from tallystick.runtime.run.fork import ForkRequest

        request = ForkRequest(
            turn=turn, limits=limits, temperature=temperature, watch=watch, heard=heard
        )
        fork = new_id()
        return self._loop.do(self._fork(run, fork, request, self._place_of_run(fork)))

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

        return resume_steps(self._context(), chain, in_doubt=in_doubt)

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

        return replay_steps(self._context(), chain)

    def close(self) -> None:
        """Close the models, sandboxes and stores that were opened here; cancel what still runs.

        What was given stays open, except models given as `owned`. Stores opened beside a ledger in
        memory stay open too: closing them would lose their data. Each run that is cancelled records
        its end, for which this waits up to 10 seconds. Closing twice is harmless. Afterwards `run`,
        `resume`, `fork` and `replay` raise `UsageError`.
        """
        self._closed = True
        self._by_name.clear()
        while self._owned:
            self._loop.do(self._owned.pop().close())
        if self._backends.made_any:
            self._loop.do(self._backends.close())
        if self._stores is not None and (self._ledger is None or is_in_file(self._ledger)):
            # The stores of a ledger in memory stay open: closing them would lose their data.
            self._stores.close()
            self._stores = None
        self._client_scopes.close()
        self._loop.close()

    def _request(
        self,
        goal: str,
        *,
        limits: RunLimits | None,
        strategy: AskedStrategy | None,
        schema: Mapping[str, object] | None,
        clock: str | datetime.datetime | None,
        timezone: str | None,
        **asked: Any,  # noqa: ANN401 (fields of the request, given by `run` and `arun`)
    ) -> RunRequest:
        """Return the request for a run. Settings that it lacks come from the configuration.

        Raise `UsageError` if the request is wrong, or if this object is closed.
        """
        from tallystick.core.machine.answer import schema_text
        from tallystick.runtime.run.assembly import RunRequest

        self._check_open()
        request = RunRequest(
            goal, limits=RunLimits(), strategy=strategy, schema=schema_text(schema), **asked
        )
        chosen = self._client_settings.for_run(
            limits=limits,
            strategy=strategy,
            temperature=request.temperature,
            compact_at=request.compact_at,
            model_given=self._model_given or request.model is not None,
        )
        said: object = goal
        if not isinstance(said, str) or not said.strip():
            raise UsageError("goal: it is empty; say what is to be answered")
        return dataclasses.replace(
            request,
            limits=chosen.limits,
            strategy=chosen.strategy,
            temperature=chosen.temperature,
            compact_at=chosen.compact_at,
            settings=chosen.sources,
            clock=self._run_clock(clock, timezone),
        )

    def _run_clock(self, clock: str | datetime.datetime | None, timezone: str | None) -> RunClock:
        from tallystick.runtime.run.clock import run_clock

        configured = self._client_settings.settings
        asked = self._clock if clock is None else clock
        zone = self._timezone if timezone is None else timezone
        asked = configured.clock if asked is None else asked
        return run_clock(asked, configured.timezone if zone is None else zone)

    def _place_of_request(self, request: RunRequest) -> PlacedRun | None:
        """Return the run of the step around this call, new or recorded; None outside of steps.

        The caller enters it. Raise `StepsDiverged` if the step asked for another run here. If the
        step is recorded, raise `UsageError` too if an input cannot be read, a model cannot be
        opened, or the ledger is another one.
        """
        from tallystick.runtime.run.surroundings import call_site_here

        place = call_site_here()
        return None if place is None else place.for_request(request, self)

    def _place_of_run(self, run: str) -> PlacedRun | None:
        from tallystick.runtime.run.surroundings import call_site_here

        self._check_open()
        place = call_site_here()
        return None if place is None else place.here(run)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the session is closed; open another one")

    # -- on the loop ---------------------------------------------------------------------------

    async def _run(
        self, request: RunRequest, placed: PlacedRun | None, caller: _Loop | None = None
    ) -> Run:
        from tallystick.runtime.run.children import ChildRuns
        from tallystick.runtime.run.start import start
        from tallystick.runtime.run.surroundings import NOTHING_AROUND, Within

        context = self._context(caller, request=request)
        with contextlib.ExitStack() as stack:
            around: Surroundings = NOTHING_AROUND
            if placed is not None:
                around = stack.enter_context(placed).around
            run = new_id() if placed is None else placed.run
            # The record of a run of an earlier process names its session.
            if request.session is not None and (placed is None or not placed.is_recorded):
                from tallystick.sessions.surroundings import enter_session

                lease = stack.enter_context(enter_session(self.sessions, request.session, run))
                around = lease if placed is None else Within(lease, around)
            if placed is not None:
                return await placed.work(context, request, around)
            children = ChildRuns(context, watch=request.watch, heard=request.heard)
            return await start(context, request, run=run, children=children, around=around)

    def model_of(self, name: str | None) -> Model:
        """Return a model by its name; the client's own for None.

        A model that was not given is opened, and closed with this object. Raise `UsageError` if the
        name cannot be opened, or if there is no own model.
        """
        return self._model_of(name)

    def models_of_programs(self, sub_model: str | None = None) -> FindModel:
        """Return the function that finds the models which programs of a new run may ask.

        `sub_model` is that of the run. Raise `UsageError` if there is no own model, or if it cannot
        be opened.
        """
        return self._models_for(self._model_of(None), self._sub_model_of(sub_model, None, None))

    def _models_for(self, own: Model, sub: Callable[[], Model] | None) -> FindModel:
        return models_for_programs(own, self._models, sub, self._full_name)

    def _model_of(self, name: str | None) -> Model:
        if name is None or (self._model is not None and self._model.name == name):
            if self._model is None:
                own = self._model_name or self._client_settings.settings.model
                if own is None:
                    raise UsageError("the session has no model")
                self._model = self._named_model(own)
            return self._model
        if name in self._models:
            return self._models[name]
        if name not in self._by_name:
            self._by_name[name] = self._named_model(name)
        return self._by_name[name]

    def _sub_model_of(
        self, named: str | None, run: str | None, recorded: RunStarted | None
    ) -> Callable[[], Model] | None:
        """Return the function that opens the model of sub-calls; None if it is the run's own.

        A recorded run says which it was; `named` says where that is found. A recorded run that
        cannot be read counts as having none. Raise `UsageError` if one is named for a recorded run
        that had none.
        """
        was = None if recorded is None else recorded.sub_model
        if run is not None and not isinstance(was, str):
            if named is not None:
                raise UsageError(f"run {run} was begun without a model for its sub-calls")
            return None
        name = named or (was if isinstance(was, str) else None)
        if name is None:
            return None

        def open_sub_model() -> Model:
            known = [*self._models.values(), *self._by_name.values()]
            return next((each for each in known if each.name == name), None) or self._model_of(name)

        return open_sub_model

    def _recorded_model(self, name: str | None, sub: Callable[[], Model] | None = None) -> Model:
        """Return the model that a recorded run names, or the client's own if it is unknown here.

        If the client was given no model of its own, and has not opened the configured one, the
        named one is opened. The caller compares the name of what is returned. Raise `UsageError` if
        a model cannot be opened, or if there is none.
        """
        known = [*self._models.values(), *self._by_name.values()]
        if sub is not None and name is not None and (own := sub()).name == name:
            return own
        if self._model is None and self._model_name is None:
            found = next((each for each in known if each.name == name), None)
            return found or self._model_of(name)
        own = self._model_of(None)
        return next((each for each in (own, *known) if each.name == name), own)

    def _named_model(self, name: str) -> Model:
        """Return a model that is opened by the settings. It is closed with this object.

        Raise `UsageError` if it cannot be opened.
        """
        from tallystick.runtime.runs.history import recorded_model
        from tallystick.settings.models import open_model

        opened = open_model(
            name,
            self._client_settings.settings,
            pacing=self._pacing,
            recorded=lambda run: recorded_model(self.ledger, run),
        )
        self._owned.append(opened)
        return opened

    def _full_name(self, name: str) -> str:
        """Return the name that a run records for a model, by the aliases of the settings."""
        from tallystick.settings.models import recorded_name

        return recorded_name(name, self._client_settings.settings)

    def _configure_scopes(self) -> None:
        """Set the total and the prices of the scopes that pay for runs.

        A configured tokenizer needs the configured model, which is opened then. Raise the errors of
        `load_settings`, and `UsageError` if that model cannot be opened.
        """
        chosen = self._client_settings
        counted = ""
        # A configured tokenizer belongs to the configured model, and to no other.
        if not self._model_given and chosen.settings.pricing.tokenizer is not None:
            counted = self._model_of(None).name
        self._client_scopes.configure(
            total=chosen.total, total_given=chosen.total_given, pricing=chosen.pricing(counted)
        )

    async def _resume(
        self,
        run: str,
        request: ResumeRequest,
        placed: PlacedRun | None,
        caller: _Loop | None = None,
    ) -> Run:
        from tallystick.runtime.run.children import ChildRuns
        from tallystick.runtime.run.resume import resume

        context = self._context(caller, run=run, sub_model=request.sub_model)
        children = ChildRuns(context, watch=request.watch, heard=request.heard, resuming=request)
        with _enter(placed) as around:
            return await resume(context, run, request, children=children, around=around)

    async def _fork(
        self, run: str, forked: str, request: ForkRequest, placed: PlacedRun | None
    ) -> Run:
        from tallystick.runtime.run.children import ChildRuns
        from tallystick.runtime.run.fork import fork

        context = self._context(run=run)
        children = ChildRuns(context, watch=request.watch, heard=request.heard)
        with _enter(placed) as around:
            return await fork(context, run, forked, request, children=children, around=around)

    async def _replay(self, run: str, *, timeout_ms: int | None = None) -> ReplayReport:
        from tallystick.runtime.run.replay import replay

        return await replay(self._context(run=run), run, timeout_ms=timeout_ms)

    def _context(
        self,
        caller: _Loop | None = None,
        *,
        request: RunRequest | None = None,
        run: str | None = None,
        sub_model: str | None = None,
    ) -> RunContext:
        """Return the context for a new run (`request`), or for a recorded one (`run`).

        Raise what `_configure_scopes`, `_start_of` and `_sub_model_of` raise.
        """
        from tallystick.runtime.run.assembly import RunContext

        self._configure_scopes()
        recorded = None if run is None else self._start_of(run)
        named = sub_model if request is None else request.sub_model
        sub = self._sub_model_of(named, run, recorded)
        return RunContext(
            ledger=self.ledger,
            client_scopes=self._client_scopes,
            capabilities=self._capabilities_of(caller, request=request, recorded=recorded),
            model=self._model_of,
            recorded_model=lambda name: self._recorded_model(name, sub),
            models=lambda own: self._models_for(own, sub),
            sub_model=sub,
            backends=self._backends,
            run_attachments=self._run_attachments,
            lookup=self._lookup,
            leases=_Leases(self),
        )

    def _capabilities_of(
        self, caller: _Loop | None, *, request: RunRequest | None, recorded: RunStarted | None
    ) -> list[Capability]:
        """Return the capabilities of a run, in the order in which programs find their names.

        A capability is imported only if the run has it: most runs have only their data.
        """
        from tallystick.inputs.capability import InputsCapability
        from tallystick.runtime.calls.capability import Tools
        from tallystick.runtime.calls.functions import on_loop

        # A recorded run has those of its record too, also where this client lacks them: they answer
        # from the record, and refuse by name what is not on it.
        made: list[Capability] = [InputsCapability()]
        put = request is not None and bool(request.put_skills)
        if self._skills is not None or put or (recorded and recorded.skills):
            from tallystick.skills.capability import SkillsCapability

            made.append(SkillsCapability(self._skills))
        made.append(Tools(on_loop(self._functions, caller)))
        if self._memory is not None or (recorded and recorded.memory):
            from tallystick.memory.capability import MemoryCapability

            made.append(MemoryCapability(self._memory))
        if self._vocabulary is not None or (recorded and recorded.vocabulary):
            from tallystick.vocabulary.capability import VocabularyCapability

            cards = () if self._skills is None else self._skills.registry.cards()
            made.append(VocabularyCapability(self._vocabulary, [each.id for each in cards]))
        if self._backends.may_be_native(recorded):
            from tallystick.bridge.capability import BridgeCapability

            made.append(BridgeCapability())
        return [*made, *self.capabilities]

    def _start_of(self, run: str) -> RunStarted | None:
        """Return the start of a recorded run; None if it is not there or cannot be read.

        For a fork, this is the start of its first ancestor. Raise `ResumeRefused` if a body of the
        run was removed.
        """
        from tallystick.core.records import RunStarted
        from tallystick.runtime.runs.history import whole_records

        try:
            first = next(iter(whole_records(self.ledger, run)), None)
        except LedgerError:
            return None
        return first if isinstance(first, RunStarted) else None

    def attachments_of(self, records: Sequence[Record]) -> RunAttachments:
        """Return the attachments of a recorded run, for reading.

        Raise `LedgerError` if the records do not begin with a start.
        """
        started = History(records).started
        return self._run_attachments(History(records).holder, started.grants)

    def _run_attachments(self, session_id: str, grants: Sequence[str]) -> RunAttachments:
        from tallystick.attachments.session import SessionAttachments
        from tallystick.attachments.session import snapshots_holder as snapshots_of
        from tallystick.runtime.context.attachments import RunAttachments

        return RunAttachments(
            SessionAttachments(self.attachments, session_id=session_id),
            grants=grants,
            snapshots=SessionAttachments(self.attachments, session_id=snapshots_of(session_id)),
        )


def _bridge_folder() -> BridgeFolder:
    """Return the folder for the sockets on which native programs ask models of this process."""
    from tallystick.bridge.sockets import BridgeFolder

    return BridgeFolder()


class _Leases:
    """The leases on the sessions of recorded runs.

    The package of sessions is imported only for a run that is in one.
    """

    def __init__(self, client: Session) -> None:
        self._client = client

    @contextlib.contextmanager
    def again(self, run: str, records: Sequence[Record], *, steal: bool) -> Iterator[Surroundings]:
        if _has_no_session(records):
            from tallystick.runtime.run.surroundings import NOTHING_AROUND

            yield NOTHING_AROUND
            return
        from tallystick.sessions.surroundings import SessionLeases

        leases = SessionLeases(lambda: self._client.sessions)
        with leases.again(run, records, steal=steal) as lease:
            yield lease

    def finish(self, run: str, records: Sequence[Record]) -> bool:
        if _has_no_session(records):
            return False
        from tallystick.sessions.surroundings import SessionLeases

        return SessionLeases(lambda: self._client.sessions).finish(run, records)


def _has_no_session(records: Sequence[Record]) -> bool:
    return getattr(records[0], "session", None) is None


@contextlib.contextmanager
def _enter(placed: PlacedRun | None) -> Iterator[Surroundings]:
    from tallystick.runtime.run.surroundings import NOTHING_AROUND

    if placed is None:
        yield NOTHING_AROUND
        return
    with placed:
        yield placed.around
