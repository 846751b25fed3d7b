"""Runs that were cut off: models that continue where a record ends, and what a kill leaves."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tallystick.attachments.port import Attachments
from tallystick.client import Session
from tallystick.core.chain import Draft
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.records import (
    DOUBTED,
    AskModel,
    CallHost,
    HostAnswered,
    QueryAsked,
    Record,
)
from tallystick.core.views.open_calls import call_key, open_calls
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger, RunRow
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.calls.functions import RunFunction, effect_key, host_function
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import ledger_of
from tallystick.testing.models import PRICING, ModelCall, ModelDouble
from tallystick.testing.plans import Plan, Planned

GOAL = "what is it, in the end of all this?"
ROOMY = RunLimits(tokens=10_000_000)


@dataclass
class Effects:
    """Functions with an effect, and under which key each was done."""

    keys: list[str] = field(default_factory=list)
    # Set when `hang` was called, which then waits for ever; None lets it pass.
    hanging: threading.Event | None = None

    def functions(self) -> list[RunFunction]:
        @host_function(policy="effect")
        async def hang() -> int:
            """Wait, perhaps."""
            self.keys.append(effect_key())
            if self.hanging is not None:
                self.hanging.set()
                await asyncio.Event().wait()
            return 1

        @host_function(policy="effect")
        def send(what: str) -> int:
            """Send it."""
            self.keys.append(effect_key())
            return len(what)

        @host_function(policy="effect")
        async def post(what: str) -> int:
            """Post it."""
            self.keys.append(effect_key())
            return len(what)

        @host_function(policy="effect", local=True)
        def note(what: str) -> int:
            """Note it."""
            self.keys.append(effect_key())
            raise ValueError(what)

        @host_function(policy="effect")
        def page(number: int) -> str:
            """Take a page, which is long."""
            self.keys.append(effect_key())
            return f"{number}é" * 40_000

        @host_function(policy="read")
        def fetch(key: str) -> int:
            """Fetch a number."""
            return len(key) * 3

        return [send, post, note, page, fetch, hang]


# -- records ------------------------------------------------------------------------------------


def in_doubt(records: Iterable[Record]) -> bool:
    """Whether anything was begun whose outcome is not on the record, or was not at some time."""
    kept = list(records)
    doubted = any(getattr(each, "reason", "") == DOUBTED for each in kept)
    again = any(isinstance(each, CallHost) and each.attempt > 1 for each in kept)
    return doubted or again or bool(open_calls(kept))


def keys_of(run: str, records: Sequence[Record]) -> set[str]:
    """The keys of all calls that were begun; of effects, which keep theirs, if they have ended."""
    answered = {each.intent for each in records if isinstance(each, HostAnswered)}
    found = set()
    for record in records:
        if isinstance(record, AskModel):
            found.add(call_key(run, record.intent))
        elif isinstance(record, QueryAsked):
            found.add(call_key(run, record.intent, item=record.item, attempt=record.attempt))
        elif isinstance(record, CallHost) and record.intent in answered:
            found.add(call_key(run, record.intent))
    return found


def without_time(charge: Charge) -> Charge:
    return msgspec.structs.replace(charge, wall_ms=0)


# -- sessions -----------------------------------------------------------------------------------


@dataclass
class World:
    """A session over a ledger, with what was asked of the world behind it."""

    session: Session
    model: ModelDouble
    plan: Plan
    effects: Effects

    @property
    def ledger(self) -> Ledger:
        return self.session.ledger

    def records(self, run: str) -> list[Record]:
        return whole_records(self.ledger, run)

    @property
    def asked(self) -> list[str]:
        """The keys of everything that was paid for or done."""
        return [*self.model.keys, *self.effects.keys]


def world(
    sandbox: WasmSandbox,
    plan: Sequence[Planned],
    *,
    ledger: Ledger | None = None,
    attachments: Attachments | None = None,
    recorded: Sequence[Record] = (),
    functions: Sequence[RunFunction] = (),
    instead: Sequence[RunFunction] = (),
    bare: bool = False,
    name: str = "fake:model",
    **more: Any,
) -> World:
    """A session with a planned model. `functions` come to those of `Effects`, or `instead`.

    A `bare` one has none of its own.
    """
    said = Plan(plan, recorded)
    model = ModelDouble(said, name=name)
    effects = Effects()
    other = {each.name for each in instead}
    own = [each for each in effects.functions() if not bare and each.name not in other]
    session = Session(
        config=None,
        **{
            "model": model,
            "functions": [*own, *instead, *functions],
            "ledger": MemoryLedger() if ledger is None else ledger,
            "attachments": attachments,
            "sandbox": sandbox,
            "pricing": PRICING,
            # What is written is the same on every day; native programs have the time there is.
            "clock": "now" if more.get("backend") == "process" else "fixed",
            **more,
        },
    )
    return World(session, model, said, effects)


@dataclass
class Whole:
    """A run that was never cut off."""

    world: World
    plan: Sequence[Planned]
    run: Run
    records: list[Record]

    @property
    def id(self) -> str:
        return self.run.run

    def cut(self, sandbox: WasmSandbox, at: int, **more: Any) -> World:
        """A session of another process, over the first records of the run."""
        return reopened(self, sandbox, self.records[:at], **more)


def played(sandbox: WasmSandbox, *plan: Planned, limits: RunLimits = ROOMY, **more: Any) -> Whole:
    """Run a plan to its end."""
    given = {each: more.pop(each) for each in ("inputs", "grants", "temperature") if each in more}
    made = world(sandbox, plan, **more)
    run = made.session.run(GOAL, limits=limits, **given)
    return Whole(made, plan, run, made.records(run.run))


@dataclass
class Cancelling:
    """Cancels a run from inside of it, once it has begun."""

    task: asyncio.Task[Any] | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def watch(self, request: ModelCall) -> None:
        """Given to a model: the run asks it in its own task, and programs in others."""
        if self.task is None and request.messages[0].role == "system":
            self.task, self.loop = asyncio.current_task(), asyncio.get_running_loop()

    def cancel(self) -> None:
        """From any thread."""
        assert self.task is not None
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.task.cancel)


class SlowLedger(MemoryLedger):
    """Cancels the run while one of its appends is on its way to the disk."""

    def __init__(self, number: int, cancelling: Cancelling) -> None:
        super().__init__()
        self._left = number
        self._cancelling = cancelling
        self.tags: list[str] = []

    def submit(self, run: str, drafts: Sequence[Draft], **more: Any) -> Any:
        head, future = super().submit(run, drafts, **more)
        self._left -= 1
        if self._left or self._cancelling.task is None:
            return head, future
        self.tags = [each.tag for each in drafts]
        later: Future[None] = Future()
        later.set_running_or_notify_cancel()
        self._cancelling.cancel()
        threading.Timer(0.01, lambda: later.set_result(None)).start()
        return head, later


@dataclass
class Dead:
    """What a process left that was killed while something was under way."""

    folder: Path
    run: str
    plan: Sequence[Planned]

    def reopened(self, sandbox: WasmSandbox, **more: Any) -> World:
        """A session of another process over what it left."""
        ledger = SqliteLedger(self.folder / "ledger.db")
        recorded = whole_records(ledger, self.run)
        return world(sandbox, self.plan, ledger=ledger, recorded=recorded, **more)


def died(
    sandbox: WasmSandbox,
    folder: Path,
    *plan: Planned,
    when: Callable[[ModelCall], bool] = lambda request: False,
    limits: RunLimits = ROOMY,
    **more: Any,
) -> Dead:
    """Run a plan on a disk until a request comes that is never answered, or `hang` is called.

    Nothing is written then, so a copy of the files is what a kill would have left.
    """
    reached = threading.Event()

    def before(request: ModelCall) -> Any:
        if not when(request):
            return None
        reached.set()
        return asyncio.Event().wait()

    with SqliteLedger(folder / "alive" / "ledger.db") as ledger:
        made = world(sandbox, plan, ledger=ledger, **more)
        made.model.before = before
        made.effects.hanging = reached
        thread = threading.Thread(target=lambda: made.session.run(GOAL, limits=limits))
        thread.start()
        assert reached.wait(20), "it came to its end before"
        row = _at_rest(ledger)
        ignored = shutil.ignore_patterns("*-shm", "*.lock")
        shutil.copytree(folder / "alive", folder / "dead", ignore=ignored)
        made.session.close()
        thread.join()
    return Dead(folder / "dead", row.run, plan)


def _at_rest(ledger: SqliteLedger) -> RunRow:
    """The one run, once nothing was written for a while: others of a batch may still end."""
    (row,), quiet = ledger.runs(), 0
    while quiet < 5:
        time.sleep(0.02)
        (now,) = ledger.runs()
        quiet = quiet + 1 if now == row else 0
        row = now
    return row


def reopened(whole: Whole, sandbox: WasmSandbox, records: Sequence[Record], **more: Any) -> World:
    """A session of another process, over a ledger with these records."""
    return world(
        sandbox,
        whole.plan,
        ledger=ledger_of(whole.id, records),
        recorded=records,
        **{"attachments": whole.world.session.attachments, **more},
    )
