"""Sessions: where everything is put together, for one caller.

The driver is async and runs on a loop of the session's own, in a thread of its own. So the plain
methods work anywhere, also inside a running loop or a notebook; `arun` is the same for those who
would rather await.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tallystick.core.chain import Head
from tallystick.core.citation import Citation, checked, citations_of
from tallystick.core.errors import RunNotFound, UsageError
from tallystick.core.machine import RunState
from tallystick.core.prompt import TEMPLATE
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelReplied,
    Record,
    RunLimits,
    RunStarted,
    TextRef,
    decode_record,
    encode_record,
)
from tallystick.ledger.port import Ledger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify
from tallystick.model.port import Heard, Model
from tallystick.model.recorded import RecordedModel
from tallystick.runtime.driver import Driver
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.inputs import CONTEXT, Input, layout_of
from tallystick.runtime.live import LiveWorld
from tallystick.runtime.loop_thread import LoopThread
from tallystick.runtime.names import names_of
from tallystick.runtime.paths import cache_directory, data_directory
from tallystick.runtime.pen import LedgerPen
from tallystick.runtime.replay import (
    ReplayReport,
    broken_chain,
    replay_records,
    rerunnable,
)
from tallystick.runtime.run import Run, run_of
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.identity import new_id, now_ms
from tallystick.sandbox.wasm.engine import ENGINE
from tallystick.sandbox.wasm.sandbox import CLOCK_NS, WasmSandbox

__all__ = ["Session", "ledger_path", "recorded_model", "records_of", "resolve_run"]

Watch = Callable[[str, Record], None]
_LIMITS = RunLimits()


class Session:
    """Runs goals with one model, in one sandbox, on one ledger.

    `model` is a backend, or a name such as `"ollama:qwen2.5-coder"`, opened when it is needed.
    """

    def __init__(
        self,
        *,
        model: Model | str | None = None,
        functions: Sequence[RunFunction] = (),
        ledger: Ledger | None = None,
        sandbox: WasmSandbox | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._model = None if isinstance(model, str) else model
        self._model_name = model if isinstance(model, str) else None
        self._functions = tuple(functions)
        self._ledger = ledger
        self._sandbox = sandbox
        self._owns_sandbox = sandbox is None
        self._say = say
        self._owned: list[Model] = []
        self._loop = LoopThread()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = SqliteLedger(ledger_path())
        return self._ledger

    def use(self, model: Model, *, owned: bool = False) -> None:
        """Take another model for the runs that follow. One that is owned is closed with this."""
        self._model, self._model_name = model, None
        if owned:
            self._owned.append(model)

    def run(
        self,
        goal: str,
        *,
        inputs: Sequence[Input] = (),
        limits: RunLimits = _LIMITS,
        grants: Sequence[str] = (),
        seed: int = 0,
        temperature: float | None = None,
        watch: Watch = lambda run, record: None,
        heard: Heard = lambda chars: None,
    ) -> Run:
        """Run a goal to its end and return what it came to. Ctrl-C ends it, written down."""
        work = self._run(goal, inputs, limits, grants, seed, temperature, watch, heard)
        return self._loop.do(work)

    async def arun(
        self,
        goal: str,
        *,
        inputs: Sequence[Input] = (),
        limits: RunLimits = _LIMITS,
        grants: Sequence[str] = (),
        seed: int = 0,
        temperature: float | None = None,
        watch: Watch = lambda run, record: None,
        heard: Heard = lambda chars: None,
    ) -> Run:
        """Run a goal to its end, for callers that await."""
        work = self._run(goal, inputs, limits, grants, seed, temperature, watch, heard)
        return await asyncio.wrap_future(self._loop.submit(work))

    def replay(self, run: str) -> ReplayReport:
        """Run it again from its record, with no model and no network, and compare."""
        return self._loop.do(self._replay(run))

    def close(self) -> None:
        """Free everything. Closing twice is harmless."""
        while self._owned:
            self._loop.do(self._owned.pop().close())
        if self._owns_sandbox and self._sandbox is not None:
            self._loop.do(self._sandbox.close())
            self._sandbox = None
        self._loop.close()

    # -- on the loop ---------------------------------------------------------------------------

    async def _run(
        self,
        goal: str,
        inputs: Sequence[Input],
        limits: RunLimits,
        grants: Sequence[str],
        seed: int,
        temperature: float | None,
        watch: Watch,
        heard: Heard,
    ) -> Run:
        model = self._named_model()
        sandbox = self._opened()
        run_id = new_id()
        layout = layout_of(inputs, question=goal)
        hosted = [each.hosted() for each in self._functions]
        table = HostTable(hosted, texts=layout.texts, granted=frozenset(grants), answering=True)
        started = _canonical(
            RunStarted(
                goal=goal,
                model=model.name,
                limits=limits,
                grants=tuple(grants),
                contexts=layout.contexts,
                functions=tuple((each.name, each.doc) for each in table.names.functions),
                values=layout.values,
                texts=tuple(
                    TextRef(name=each.name, key=each.key, id=each.id, bytes=each.bytes)
                    for each in table.names.texts
                ),
                seed=seed,
                clock_ns=CLOCK_NS,
                session_id=new_id(),
                template=TEMPLATE,
                guest=sandbox.guest.image.sha256,
                engine=ENGINE,
                started_at=now_ms(),
                temperature=temperature,
                views=layout.views,
                files=layout.files,
            )
        )
        ledger = self.ledger
        fence = ledger.claim(run_id, create=True)
        pen = LedgerPen(ledger, run=run_id, fence=fence, head=Head.of_nothing())
        session = await sandbox.open(
            session_id=started.session_id, seed=seed, clock_ns=started.clock_ns
        )
        world = LiveWorld(
            model=model,
            session=session,
            table=table,
            names=names_of(started),
            policies={each.name: each.policy for each in self._functions},
            heard=heard,
        )
        driver = Driver(started, world=world, pen=pen, watch=lambda record: watch(run_id, record))
        try:
            await driver.drive()
        except asyncio.CancelledError:
            if driver.state.ended is None:
                raise
        finally:
            await session.close()
        return run_of(
            run_id,
            driver.state,
            ledger=_path_of(ledger),
            citations=_cited(driver.state, started),
        )

    def _named_model(self) -> Model:
        """The model to ask; one that was given by name is opened as the settings say."""
        if self._model is None and self._model_name is not None:
            # Names are resolved above this module, which recorded models read.
            from tallystick.model.pacing import Pacing
            from tallystick.runtime.models import open_model
            from tallystick.runtime.settings import load_settings

            settings = load_settings(flags={"model": self._model_name})
            self.use(
                open_model(settings.model, settings, pacing=Pacing(), ledger=lambda: self.ledger),
                owned=True,
            )
        if self._model is None:
            raise UsageError("the session has no model")
        return self._model

    async def _replay(self, run: str) -> ReplayReport:
        # The chain first: records that are not the ones that were sealed prove nothing.
        broken = verify(self.ledger, [run])
        if broken.first_bad is not None:
            return broken_chain(run, entries=broken.entries, bad=broken.first_bad)
        records = list(records_of(self.ledger, run))
        if not records or not isinstance(records[0], RunStarted):
            raise RunNotFound(run=run)
        started = records[0]
        sandbox = self._opened()
        if not rerunnable(started, sandbox.guest.image.sha256):
            return await replay_records(run, records, session=None, names=names_of(started))
        session = await sandbox.open(
            session_id=started.session_id, seed=started.seed, clock_ns=started.clock_ns
        )
        try:
            return await replay_records(run, records, session=session, names=names_of(started))
        finally:
            await session.close()

    def _opened(self) -> WasmSandbox:
        if self._sandbox is None:
            self._sandbox = WasmSandbox.load(
                cache=cache_directory(),
                output_directory=data_directory() / "output",
                say=self._say,
            )
        return self._sandbox


def ledger_path() -> Path:
    """Where this user's ledger is."""
    return data_directory() / "ledger.db"


def records_of(ledger: Ledger, run: str) -> Iterator[Record]:
    """The records of a run, as far as their bodies are still there."""
    for sealed in ledger.read(run):
        if sealed.body is not None:
            yield decode_record(sealed.body)


def resolve_run(ledger: Ledger, named: str) -> str:
    """A run by its id, the beginning of it, or `last`."""
    runs = [row.run for row in ledger.runs()]
    if named == "last":
        if not runs:
            raise UsageError("there is no run yet")
        return runs[-1]
    found = [run for run in runs if run == named.upper()] or [
        run for run in runs if run.startswith(named.upper())
    ]
    if len(found) > 1:
        raise UsageError(f"{named!r} is the beginning of {len(found)} runs; give more of it")
    if not found:
        raise RunNotFound(run=named)
    return found[0]


def recorded_model(ledger: Ledger, named: str) -> RecordedModel:
    """A model that says what the model of a recorded run said."""
    run = resolve_run(ledger, named)
    records = list(records_of(ledger, run))
    asked = {record.intent: record for record in records if isinstance(record, AskModel)}
    exchanges = [
        (asked[record.intent], record)
        for record in records
        if isinstance(record, ModelReplied | ModelFailed)
    ]
    started = next((record for record in records if isinstance(record, RunStarted)), None)
    return RecordedModel(
        exchanges,
        name=f"recorded:{run}",
        recorded_name=started.model if started is not None else "",
    )


def _canonical(started: RunStarted) -> RunStarted:
    """The start as the ledger will give it back."""
    read = decode_record(encode_record(started))
    assert isinstance(read, RunStarted)
    return read


def _cited(state: RunState, started: RunStarted) -> tuple[Citation, ...]:
    """Where the answer stands in the texts that the run holds. Each place was read again."""
    if state.ended is None or state.ended.answer is None:
        return ()
    held = started.values.get(CONTEXT)
    names = [name for name, _, _ in started.files]
    texts = {names[0]: held} if isinstance(held, str) and names else held
    if not isinstance(texts, dict):
        return ()
    found = citations_of(state.ended.answer, question=started.goal, texts=texts)
    return tuple(
        each for each in found if checked(each, texts[each.name].encode("utf-8", "surrogatepass"))
    )


def _path_of(ledger: Ledger) -> str:
    return str(getattr(ledger, "path", "memory"))
