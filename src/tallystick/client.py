"""The client: one object that holds ledger, models and sandboxes, for callers sync and async.

The driver is async and runs on a loop of the session's own, in a thread of its own. So the plain
methods work anywhere, also inside a running loop or a notebook; `arun` is the same for those who
would rather await.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
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

# What drives a run is most of this package. It is imported by the methods below that drive one, or
# read one: `tallystick.Session` is named by programs that may end before they ask anything, and by
# commands that only read the ledger.
if TYPE_CHECKING:
    from tallystick.attachments.collect import CollectableAttachments
    from tallystick.attachments.port import Attachments
    from tallystick.bridge.sockets import BridgeFolder
    from tallystick.core.clock import RunClock
    from tallystick.core.records import InDoubt, PersonDecision, Record, RunStarted
    from tallystick.core.strategy import AskedStrategy
    from tallystick.ledger.port import Ledger, TransferLedger
    from tallystick.memory.memory import Memory
    from tallystick.model.port import Heard, Model
    from tallystick.model.price_table import Pricing
    from tallystick.runtime.calls.capability import Capability
    from tallystick.runtime.calls.decisions import FindReply
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


# One event loop in a thread of its own, for callers that have none or may not block theirs.


Result = TypeVar("Result")
_CANCEL_SECONDS = 10.0


async def _all_ended() -> None:
    """Cancel every other task that was not cancelled yet, and wait for all of them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        if not task.cancelling():
            task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class LoopThread:
    """Starts with its first work, ends with `close`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()

    def submit(self, work: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        """Run a coroutine on the loop."""
        with self._guard:
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and wait for it here.

        An interrupt cancels the coroutine, not the wait: what it makes of the cancel is returned.
        """
        tasks: list[asyncio.Task[Result]] = []

        async def held() -> Result:
            tasks.append(asyncio.ensure_future(work))
            return await tasks[0]

        future = self.submit(held())
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
        with self._guard:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            # What still runs gets to write down how it ended.
            ended = asyncio.run_coroutine_threadsafe(_all_ended(), loop)
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
        self._thread.start()


# The models of a session's runs: those that programs may ask, and those opened by name.


def models_for_programs(
    own: Model, others: Mapping[str, Model], sub: Callable[[], Model] | None = None
) -> FindModel:
    """The models that programs may ask: the run's own, `sub`, and those that were given by name.

    A call that names none asks `sub`, which is opened when it is first needed.
    """

    def find(name: str | None) -> Model:
        if name is None:
            return own if sub is None else sub()
        if name == own.name:
            return own
        if name in others:
            return others[name]
        if sub is not None and name == sub().name:
            return sub()
        known = ", ".join([own.name, *([] if sub is None else [sub().name]), *others])
        raise UsageError(f"model {name[:80]!r} is not for programs; known are: {known}")

    return find


# Sessions: where everything is put together, for one caller.


_NO_MODELS: Mapping[str, Model] = {}
_NO_LIMIT = Budget()
_Loop = asyncio.AbstractEventLoop


class Session:
    """Runs goals with one model, in one sandbox, on one ledger.

    `model` is a backend, or a name such as `"ollama:qwen2.5-coder"`, opened when it is needed.
    Attachments are kept beside the ledger; `attachments` says where for a ledger that has no file.
    `models` are those that programs may ask by name, beside the run's own. `budget` is for all runs
    of the session together, `total` for all runs of all processes on this ledger's file; `pricing`
    says what calls cost. `lookup` is asked, by model and key, what came of a call that a process
    died in, where its provider can be asked. `skills` are those that programs may load, `memory` is
    what they recall (it stays the caller's to close), `vocabulary` what they are checked against.
    `backend` is the sandbox of new runs: wasm, or process, for native Python and bash with files.
    What is not given comes from the configuration, which `tally config` shows: model, limits and
    caps, total, prices, strategy, providers and aliases. With `config=None` none is read.
    `clock` and `timezone` are those of runs that are not given their own.
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
        # More that is given to programs, behind what the client gives itself.
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
        # In a thread: what still runs may need the caller's loop to come to its end.
        await asyncio.to_thread(self.close)

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = self._kept_in.ledger
        return self._ledger

    @property
    def attachments(self) -> Attachments:
        """Where the runs of this session keep their bytes."""
        return self._kept_in.attachments if self._attachments is None else self._attachments

    @property
    def sessions(self) -> Sessions:
        """The sessions beside the ledger, which runs go on in and other processes share."""
        return self._kept_in.sessions

    @property
    def _kept_in(self) -> Stores:
        """The stores of the ledger, opened when one is needed."""
        if self._stores is None and self._ledger is None:
            self._stores = open_stores(ledger_path())
        elif self._stores is None:
            self._stores = stores_of(
                cast("TransferLedger", self._ledger),
                attachments=cast("CollectableAttachments | None", self._attachments),
            )
        return self._stores

    def use(self, model: Model, *, owned: bool = False, configured: bool = False) -> None:
        """Take another model for the runs that follow. One that is owned is closed with this.

        `configured` says that it is the one of the configuration, opened by the caller.
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
        heard: Heard = lambda chars: None,
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
        """Run a goal to its end and return what it came to. Ctrl-C ends it, written down.

        `model` is one by name; without it the step's is asked, if this is inside a step that has
        one, else the session's. `sub_model` is the one that programs ask if they name none, and
        that of child runs; without it that is the run's own. `strategy` is how it is answered,
        "auto" by what fits its texts and the budget; None is "code", or "direct" where a program
        would find nothing to read. `compact_at` is how many tokens a prompt has before old turns
        are shortened, 0 for never, None for what suits the model. Under a JSON `schema` the answer
        is JSON that fits, and `Run.value` what it says. `skills` are put into the prompt, each by
        its name with its arguments behind it, also those that models may not load. `session` is one
        of `sessions`, whose variables programs find. `clock` says where the clock of its programs
        starts: "now", "fixed" (2026-01-01) or a time; the model is told it, in `timezone`. Inside a
        step, raises `StepBudgetError`, with what the run came to, if a budget around it is
        exhausted; steps have their own chain, `Run.parent`.
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
        placed = self._placed(request)
        run = self._loop.do(self._run(request, placed))
        return run if placed is None else placed.heard(run)

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
        heard: Heard = lambda chars: None,
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
        """Run a goal to its end, for callers that await: async functions run on their loop."""
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
        placed = self._placed(request)
        work = self._run(request, placed, asyncio.get_running_loop())
        run = await asyncio.wrap_future(self._loop.submit(work))
        return run if placed is None else placed.heard(run)

    def replay(self, run: str, *, timeout_ms: int | None = None) -> ReplayReport:
        """Run it again from its record, with no model and no network, and compare.

        Raise `ReplayStopped` if it takes longer than `timeout_ms`; None is no limit.
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
        heard: Heard = lambda chars: None,
    ) -> Run:
        """Go on with a run that was cut off, or ended without an answer, where it was.

        Its programs run again on the answers that are recorded, so nothing is paid or done twice;
        from there on it is live. `limits` are for the whole of the run. Raises `RunInDoubt` if a
        call was begun whose outcome nobody knows: `in_doubt` says to make such calls again
        (`retry`) or to do without them (`abandon`). A run that another process works on is refused
        unless `steal`: what that process still does is then lost. A run that has its answer is
        returned as it is. One that waits for a person needs a `decision`, and `by` says whose.
        `sub_model` says where the model of its sub-calls is, if the recorded name does not.
        """
        from tallystick.runtime.run.resume import ResumeRequest

        request = ResumeRequest(in_doubt, limits, steal, watch, heard, decision, by, sub_model)
        return self._loop.do(self._resume(run, request, self._placed_here(run)))

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
        heard: Heard = lambda chars: None,
    ) -> Run:
        """Go on with a run, for callers that await."""
        from tallystick.runtime.run.resume import ResumeRequest

        request = ResumeRequest(in_doubt, limits, steal, watch, heard, decision, by, sub_model)
        caller = asyncio.get_running_loop()
        going = self._loop.submit(self._resume(run, request, self._placed_here(run), caller))
        return await asyncio.wrap_future(going)

    def fork(
        self,
        run: str,
        *,
        turn: int,
        limits: RunLimits | None = None,
        temperature: float | None = None,
        watch: Watch = lambda run, record: None,
        heard: Heard = lambda chars: None,
    ) -> Run:
        """Grow another run from one, after a turn, with this session's model, and drive it on.

        What came before is shared and not paid again. `limits` are for the whole of it.
        """
        from tallystick.runtime.run.fork import ForkRequest

        request = ForkRequest(
            turn=turn, limits=limits, temperature=temperature, watch=watch, heard=heard
        )
        fork = new_id()
        return self._loop.do(self._fork(run, fork, request, self._placed_here(fork)))

    def resume_steps(
        self, chain: str, *, in_doubt: InDoubt = "halt"
    ) -> AbstractContextManager[None]:
        """Inside, the outermost step that is entered next goes on with a chain, `Run.parent`.

        Steps that had completed are served, runs that were cut off are gone on with, and what was
        spent counts. Raises `StepsDiverged` where the program asks for something else.
        """
        from tallystick.steps.resume import resumed_steps

        return resumed_steps(self._context(), chain, in_doubt=in_doubt)

    def replay_steps(self, chain: str) -> AbstractContextManager[StepsReport]:
        """Inside, the outermost step that is entered next runs again on a chain, nothing live.

        Gives a report, whole at the end: whether all was asked for and came to what is recorded.
        """
        from tallystick.steps.resume import replayed_steps

        return replayed_steps(self._context(), chain)

    def close(self) -> None:
        """Free everything. Closing twice is harmless; nothing can be run after it."""
        self._closed = True
        self._by_name.clear()
        while self._owned:
            self._loop.do(self._owned.pop().close())
        if self._backends.made_any:
            self._loop.do(self._backends.close())
        if self._stores is not None and self._ledger is not None and is_in_file(self._ledger):
            # Those of a ledger in memory are all that there is of them.
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
        """Return what was asked for, with what is configured where nothing was asked.

        Raises `UsageError` for what cannot be run.
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

    def _placed(self, request: RunRequest) -> PlacedRun | None:
        """Return the run as the place has it in which it is asked for; None outside of any."""
        from tallystick.runtime.run.surroundings import call_site_here

        place = call_site_here()
        return None if place is None else place.asked(request, self)

    def _placed_here(self, run: str) -> PlacedRun | None:
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
            # One of an earlier process knows its session itself.
            if request.session is not None and (placed is None or not placed.is_recorded):
                from tallystick.sessions.surroundings import entered_session

                lease = stack.enter_context(entered_session(self.sessions, request.session, run))
                around = lease if placed is None else Within(lease, around)
            if placed is not None:
                return await placed.work(context, request, around)
            children = ChildRuns(context, watch=request.watch, heard=request.heard)
            return await start(context, request, run=run, children=children, around=around)

    def model_of(self, name: str | None) -> Model:
        """Return the model to ask: the session's own, or one by a name, given or opened."""
        return self._model_of(name)

    def _model_of(self, name: str | None) -> Model:
        """The model to ask: the session's own, or one by a name that was given or is opened."""
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
        """Return what opens the model of sub-calls; None if it is the run's own.

        A recorded run says which it was; `named` says where that is found.
        """
        was = None if recorded is None else recorded.sub_model
        if run is not None and not isinstance(was, str):
            if named is not None:
                raise UsageError(f"run {run} was begun without a model for its sub-calls")
            return None
        name = named or (was if isinstance(was, str) else None)
        if name is None:
            return None

        def opened() -> Model:
            known = [*self._models.values(), *self._by_name.values()]
            return next((each for each in known if each.name == name), None) or self._model_of(name)

        return opened

    def _recorded_as(self, name: str | None, sub: Callable[[], Model] | None = None) -> Model:
        """The model that a run names; the session's own, if it has none of that name."""
        known = [*self._models.values(), *self._by_name.values()]
        if sub is not None and name is not None and (own := sub()).name == name:
            return own
        if self._model is None and self._model_name is None:
            found = next((each for each in known if each.name == name), None)
            return found or self._model_of(name)
        own = self._model_of(None)
        return next((each for each in (own, *known) if each.name == name), own)

    def _named_model(self, name: str) -> Model:
        """A model that is opened as the settings say, and closed with the session."""
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

    def _configure_scopes(self) -> None:
        """Tell what pays for runs which total and prices are in force."""
        chosen = self._client_settings
        counted = ""
        # A tokenizer that is configured is that of the configured model, and of no other.
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
        with _entered(placed) as around:
            return await resume(context, run, request, children=children, around=around)

    async def _fork(
        self, run: str, forked: str, request: ForkRequest, placed: PlacedRun | None
    ) -> Run:
        from tallystick.runtime.run.children import ChildRuns
        from tallystick.runtime.run.fork import fork

        context = self._context(run=run)
        children = ChildRuns(context, watch=request.watch, heard=request.heard)
        with _entered(placed) as around:
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
        """Return what the runs of this call share: a new run, or a recorded one."""
        from tallystick.runtime.run.assembly import RunContext

        self._configure_scopes()
        recorded = None if run is None else self._started(run)
        named = sub_model if request is None else request.sub_model
        sub = self._sub_model_of(named, run, recorded)
        return RunContext(
            ledger=self.ledger,
            client_scopes=self._client_scopes,
            capabilities=self._capabilities_of(caller, request=request, recorded=recorded),
            model=self._model_of,
            recorded_model=lambda name: self._recorded_as(name, sub),
            models=lambda own: models_for_programs(own, self._models, sub),
            sub_model=sub,
            backends=self._backends,
            run_attachments=self._run_attachments,
            lookup=self._lookup,
            leases=_Leases(self),
        )

    def _capabilities_of(
        self, caller: _Loop | None, *, request: RunRequest | None, recorded: RunStarted | None
    ) -> list[Capability]:
        """Return what is given to programs, in the order in which they find it.

        Beside the data of runs, only what a run has is imported: most have none of it.
        """
        from tallystick.inputs.capability import InputsCapability
        from tallystick.runtime.calls.capability import Tools
        from tallystick.runtime.calls.functions import on_loop

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

    def _started(self, run: str) -> RunStarted | None:
        """Return the start of a recorded run, None if there is none to be read."""
        from tallystick.core.records import RunStarted
        from tallystick.runtime.runs.history import whole_records

        try:
            first = next(iter(whole_records(self.ledger, run)), None)
        except LedgerError:
            return None
        return first if isinstance(first, RunStarted) else None

    def shelf_of(self, records: Sequence[Record]) -> RunAttachments:
        """What a recorded run keeps, to be read."""
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
    """Make the place where native programs ask models of this process."""
    from tallystick.bridge.sockets import BridgeFolder

    return BridgeFolder()


class _Leases:
    """The sessions of a client's recorded runs, imported for those that are in one."""

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
def _entered(placed: PlacedRun | None) -> Iterator[Surroundings]:
    from tallystick.runtime.run.surroundings import NOTHING_AROUND

    if placed is None:
        yield NOTHING_AROUND
        return
    with placed:
        yield placed.around
