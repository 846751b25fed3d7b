"""The part of an agent that starts runs: what all its runs share, opened when it is needed.

The driver is async. It runs on an event loop of the engine's own, in a thread of its own. So the
plain methods of an agent work anywhere, also inside a running loop or a notebook.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tallystick.agent.loop import LoopThread
from tallystick.agent.models import AgentModels
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.core.errors import InvalidLimit, LedgerError, UsageError
from tallystick.core.history import History
from tallystick.runtime.programs.backends import Backends
from tallystick.sandbox.port import AUTO
from tallystick.settings.client import ClientSettings, Config
from tallystick.settings.paths import ledger_path
from tallystick.storage.clock import new_id
from tallystick.stores import is_in_file, open_stores, stores_of

# The code that drives a run is most of this package. The methods below that drive or read a run
# import it. A program that names `tallystick.Agent` may end before it starts a run, and some
# commands only read the ledger: they start faster so.
if TYPE_CHECKING:
    from tallystick.attachments.collect import CollectableAttachments
    from tallystick.attachments.port import Attachments
    from tallystick.bridge.sockets import BridgeFolder
    from tallystick.core.clock import RunClock
    from tallystick.core.records import Record, RunStarted
    from tallystick.core.strategy import AskedStrategy
    from tallystick.ledger.port import Ledger, TransferLedger
    from tallystick.memory.memory import Memory
    from tallystick.model.port import Model
    from tallystick.model.price_table import Pricing
    from tallystick.runtime.calls.capability import Capability
    from tallystick.runtime.calls.decisions import FindReply
    from tallystick.runtime.calls.functions import Ask, RunFunction
    from tallystick.runtime.context.attachments import RunAttachments
    from tallystick.runtime.run.assembly import RunContext, RunRequest
    from tallystick.runtime.run.fork import ForkRequest
    from tallystick.runtime.run.replay import ReplayReport
    from tallystick.runtime.run.resume import ResumeRequest
    from tallystick.runtime.run.surroundings import PlacedRun, Surroundings
    from tallystick.runtime.runs.result import Run
    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.sessions.sessions import Sessions
    from tallystick.skills.skills import Skills
    from tallystick.stores import Stores
    from tallystick.vocabulary.capability import VocabularyAsked

_NO_LIMIT = Budget()
_Loop = asyncio.AbstractEventLoop


class Engine:
    """Everything that the runs of one agent share, and the coroutines that drive them on its loop.

    The arguments are those of `Agent`, read and checked. Nothing is opened until it is needed. Any
    thread may use it; `close` ends it.
    """

    def __init__(
        self,
        *,
        model: object,
        models: Mapping[str, object],
        tools: Sequence[RunFunction],
        ledger: Ledger | str | os.PathLike[str] | None,
        attachments: Attachments | None,
        sandbox: WasmSandbox | ProcessSandbox | None,
        backend: str = AUTO,
        accept_without: Collection[str] = (),
        budget: Budget = _NO_LIMIT,
        total: Budget | None = None,
        pricing: Pricing | None = None,
        lookup: FindReply | None = None,
        skills: Skills | None = None,
        memory: Memory | str | None = None,
        vocabulary: VocabularyAsked | None = None,
        instructions: str | None = None,
        ask: Ask | None = None,
        clock: str | datetime.datetime | None = None,
        timezone: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        config: Config = "auto",
    ) -> None:
        from tallystick.runtime.run.clock import run_clock
        from tallystick.runtime.spend.client_scopes import PRICING, ClientScopes

        self.settings = ClientSettings(config, total=total, pricing=pricing, say=say)
        run_clock(clock, timezone)
        self._clock, self._timezone = clock, timezone
        self._lookup = lookup
        self.skills = skills
        self._memory = None if isinstance(memory, str) else memory
        self._memory_name = memory if isinstance(memory, str) else None
        self._vocabulary = vocabulary
        self._instructions = instructions
        self._ask = ask
        self._say = say
        self.scopes = ClientScopes(
            budget=budget, total=total or _NO_LIMIT, pricing=pricing or PRICING
        )
        if attachments is not None and _keeps_attachments(ledger):
            raise UsageError("attachments: a ledger in a file keeps them itself, beside it")
        self._attachments = attachments
        self.models = AgentModels(model, models, settings=self.settings, ledger=lambda: self.ledger)
        self.tools = tuple(tools)
        # The stores at a place that was named are opened, and closed, here.
        self._where = os.fspath(ledger) if isinstance(ledger, str | os.PathLike) else None
        self._ledger = None if isinstance(ledger, str | os.PathLike) else ledger
        self._ledger_given = self._ledger is not None
        self._stores: Stores | None = None
        self.backends = Backends(
            given=sandbox,
            preference=backend,
            accept_without=accept_without,
            say=say,
            sockets=_bridge_folder,
        )
        # Further capabilities, added after those of the agent.
        self.capabilities: list[Capability] = []
        self.loop = LoopThread()
        self._opened_memory: Memory | None = None
        self._closed = False
        # Two threads that start the first runs must not open the stores twice.
        self._guard = threading.RLock()

    @property
    def ledger(self) -> Ledger:
        """The ledger of the runs. If none was given, the default one is opened on first use.

        One that was opened here is closed by `close`.
        """
        with self._guard:
            if self._ledger is None:
                self._ledger = self.stores.ledger
            return self._ledger

    @property
    def attachments(self) -> Attachments:
        """The store for the attachments of the runs."""
        return self.stores.attachments if self._attachments is None else self._attachments

    @property
    def sessions(self) -> Sessions:
        """The sessions of the ledger.

        For a ledger in a file they last, and other processes share them. Else they are in memory.
        What they may keep on the disk is set by the configuration. Raise the errors of
        `load_settings`.
        """
        sessions = self.stores.sessions
        sessions.bytes_max = self.settings.settings.session_bytes
        return sessions

    @property
    def stores(self) -> Stores:
        """The stores of the ledger. They are opened when the first one is needed."""
        with self._guard:
            if self._stores is None and self._ledger is None:
                self._stores = open_stores(self._where or ledger_path())
            elif self._stores is None:
                self._stores = stores_of(
                    cast("TransferLedger", self._ledger),
                    attachments=cast("CollectableAttachments | None", self._attachments),
                )
            return self._stores

    def close(self) -> None:
        """Close the models, sandboxes and stores that were opened here; cancel what still runs.

        What was given stays open, except models given as `owned`. Stores opened beside a ledger in
        memory stay open too: closing them would lose their data. Each run that is cancelled records
        its end, for which this waits up to 10 seconds. Closing twice is harmless. Afterwards `run`,
        `resume`, `fork` and `replay` raise `UsageError`.
        """
        self._closed = True
        for model in self.models.owned():
            self.loop.do(model.close())
        if self.backends.made_any:
            self.loop.do(self.backends.close())
        if self._opened_memory is not None:
            self._opened_memory.close()
            self._opened_memory = None
        if self._stores is not None and (not self._ledger_given or is_in_file(self.ledger)):
            # The stores of a given ledger in memory stay open: closing would lose their data.
            self._stores.close()
            self._stores = None
        self.scopes.close()
        self.loop.close()

    def request(
        self,
        goal: str,
        *,
        limits: RunLimits | None = None,
        strategy: AskedStrategy | None = None,
        schema: Mapping[str, object] | None = None,
        clock: str | datetime.datetime | None = None,
        timezone: str | None = None,
        instructions: str | None = None,
        temperature: float | None = None,
        recursion_depth: int | None = None,
        **asked: Any,  # noqa: ANN401 (fields of the request, given by `run` and `arun`)
    ) -> RunRequest:
        """Return the request for a run. Settings that it lacks come from the configuration.

        Raise `UsageError` if the request is wrong, or if this object is closed, and the errors of
        `load_settings`.
        """
        from tallystick.core.machine.answer import schema_text
        from tallystick.runtime.run.assembly import RunRequest

        self.check_open()
        said: object = goal
        if not isinstance(said, str) or not said.strip():
            raise UsageError("goal: it is empty; say what is to be answered")
        request = RunRequest(
            goal,
            limits=RunLimits(),
            strategy=strategy,
            schema=schema_text(schema),
            temperature=temperature,
            recursion_depth=_checked_depth(recursion_depth),
            instructions="\n".join(filter(None, (self._instructions, instructions))) or None,
            **asked,
        )
        chosen = self.settings.for_run(
            limits=limits,
            strategy=strategy,
            temperature=request.temperature,
            compact_at=request.compact_at,
            model_given=self.models.own_given or request.model is not None,
        )
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

        configured = self.settings.settings
        asked = self._clock if clock is None else clock
        zone = self._timezone if timezone is None else timezone
        asked = configured.clock if asked is None else asked
        return run_clock(asked, configured.timezone if zone is None else zone)

    def place_of_request(self, request: RunRequest) -> PlacedRun | None:
        """Return the run of the step around this call, new or recorded; None outside of steps.

        The caller enters it. Raise `StepsDiverged` if the step asked for another run here. If the
        step is recorded, raise `UsageError` too if an input cannot be read, a model cannot be
        opened, or the ledger is another one.
        """
        from tallystick.runtime.run.surroundings import call_site_here

        place = call_site_here()
        return None if place is None else place.for_request(request, self)

    def place_of_run(self, run: str) -> PlacedRun | None:
        from tallystick.runtime.run.surroundings import call_site_here

        self.check_open()
        place = call_site_here()
        return None if place is None else place.here(run)

    def model_of(self, name: str | None) -> Model:
        """Return a model by its name; the agent's own for None. Raise as `AgentModels.of` does."""
        return self.models.of(name)

    def check_open(self) -> None:
        if self._closed:
            raise UsageError("the agent is closed; make another one")

    async def run(
        self,
        request: RunRequest,
        placed: PlacedRun | None,
        caller: _Loop | None = None,
        *,
        run: str | None = None,
    ) -> Run:
        """Run a goal to its end. `run` is the id of a new run, made here if there is none.

        Raise what `context`, `enter_session` and `start` raise.
        """
        from tallystick.runtime.run.children import ChildRuns
        from tallystick.runtime.run.start import start
        from tallystick.runtime.run.surroundings import NOTHING_AROUND, Within

        context = self.context(caller, request=request)
        with contextlib.ExitStack() as stack:
            around: Surroundings = NOTHING_AROUND
            if placed is not None:
                around = stack.enter_context(placed).around
            run = (run or new_id()) if placed is None else placed.run
            # The record of a run of an earlier process names its session.
            if request.session is not None and (placed is None or not placed.is_recorded):
                from tallystick.sessions.surroundings import enter_session

                lease = stack.enter_context(
                    enter_session(self.sessions, request.session, run, say=self._say)
                )
                around = lease if placed is None else Within(lease, around)
            if placed is not None:
                return await placed.work(context, request, around)
            children = ChildRuns(context, watch=request.watch, heard=request.heard)
            return await start(context, request, run=run, children=children, around=around)

    def _configure_scopes(self) -> None:
        """Set the total and the prices of the scopes that pay for runs.

        A configured tokenizer needs the configured model, which is opened then. Raise the errors of
        `load_settings`, and `UsageError` if that model cannot be opened.
        """
        chosen = self.settings
        counted = ""
        # A configured tokenizer belongs to the configured model, and to no other.
        if not self.models.own_given and chosen.settings.pricing.tokenizer is not None:
            counted = self.models.of(None).name
        self.scopes.configure(
            total=chosen.total, total_given=chosen.total_given, pricing=chosen.pricing(counted)
        )

    async def resume(
        self,
        run: str,
        request: ResumeRequest,
        placed: PlacedRun | None,
        caller: _Loop | None = None,
    ) -> Run:
        from tallystick.runtime.run.children import ChildRuns
        from tallystick.runtime.run.resume import resume

        context = self.context(caller, run=run, sub_model=request.sub_model)
        children = ChildRuns(context, watch=request.watch, heard=request.heard, resuming=request)
        with _enter(placed) as around:
            return await resume(context, run, request, children=children, around=around)

    async def fork(
        self, run: str, forked: str, request: ForkRequest, placed: PlacedRun | None
    ) -> Run:
        from tallystick.runtime.run.children import ChildRuns
        from tallystick.runtime.run.fork import fork

        context = self.context(run=run)
        children = ChildRuns(context, watch=request.watch, heard=request.heard)
        with _enter(placed) as around:
            return await fork(context, run, forked, request, children=children, around=around)

    async def replay(self, run: str, *, timeout_ms: int | None = None) -> ReplayReport:
        from tallystick.runtime.run.replay import replay

        return await replay(self.context(run=run), run, timeout_ms=timeout_ms)

    def context(
        self,
        caller: _Loop | None = None,
        *,
        request: RunRequest | None = None,
        run: str | None = None,
        sub_model: str | None = None,
    ) -> RunContext:
        """Return the context for a new run (`request`), or for a recorded one (`run`).

        Raise `UsageError` as `AgentModels.sub_model_of` does, and `ResumeRefused` if a body of the
        recorded run was removed. A memory that was named is opened: raise what that raises.
        """
        from tallystick.runtime.run.assembly import RunContext

        self._configure_scopes()
        recorded = None if run is None else self._start_of(run)
        named = sub_model if request is None else request.sub_model
        sub = self.models.sub_model_of(named, run, recorded)
        return RunContext(
            ledger=self.ledger,
            client_scopes=self.scopes,
            capabilities=self._capabilities_of(caller, request=request, recorded=recorded),
            model=self.models.of,
            recorded_model=lambda name: self.models.recorded(name, sub),
            models=lambda own: self.models.for_programs(own, sub),
            sub_model=sub,
            backends=self.backends,
            run_attachments=self._run_attachments,
            lookup=self._lookup,
            leases=_Leases(self),
            ask=self._ask,
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
        if self.skills is not None or put or (recorded and recorded.skills):
            from tallystick.skills.capability import SkillsCapability

            made.append(SkillsCapability(self.skills))
        made.append(Tools(on_loop(self.tools, caller)))
        memory = self._memory_of()
        if memory is not None or (recorded and recorded.memory):
            from tallystick.memory.capability import MemoryCapability

            made.append(MemoryCapability(memory))
        if self._vocabulary is not None or (recorded and recorded.vocabulary):
            from tallystick.vocabulary.capability import VocabularyCapability

            cards = () if self.skills is None else self.skills.registry.cards()
            made.append(VocabularyCapability(self._vocabulary, [each.id for each in cards]))
        if self.backends.may_be_native(recorded):
            from tallystick.bridge.capability import BridgeCapability

            made.append(BridgeCapability())
        return [*made, *self.capabilities]

    def _memory_of(self) -> Memory | None:
        """Return the memory of the runs, None if there is none.

        One that was named is opened on first use. Raise what `Memory.open` raises.
        """
        with self._guard:
            if self._memory_name is not None and self._opened_memory is None:
                from tallystick.upkeep.memory import Memory

                self._opened_memory = Memory.open(self._memory_name)
            return self._opened_memory or self._memory

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


def _keeps_attachments(ledger: Ledger | str | os.PathLike[str] | None) -> bool:
    """Return True if a ledger keeps attachments itself: in a file, or at a place to be opened."""
    return ledger is None or isinstance(ledger, str | os.PathLike) or is_in_file(ledger)


def _bridge_folder() -> BridgeFolder:
    """Return a new folder for sockets on which native programs ask models of this process.

    Its directory is made on first use.
    """
    from tallystick.bridge.sockets import BridgeFolder

    return BridgeFolder()


class _Leases:
    """The leases on the sessions of recorded runs.

    The package of sessions is imported only for a run that is in one.
    """

    def __init__(self, client: Engine) -> None:
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


def _checked_depth(asked: int | None) -> int:
    """Return the number of runs above a new one: as asked, or those above this place.

    Raise `InvalidLimit` for what is no whole number from 0 up, and the errors of `depth_here`.
    """
    if asked is None:
        from tallystick.runtime.calls.functions import depth_here

        return depth_here()
    if type(asked) is not int or asked < 0:
        raise InvalidLimit(field="recursion_depth", given=asked, why="a whole number from 0 up")
    return asked


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
