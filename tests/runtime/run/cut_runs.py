"""Runs that were cut off: a world that goes on where a record ends, and ledgers that stop anywhere.

What a planned model says follows from what is recorded: the n-th reply is always the same, and so
is the n-th outcome of a call that a program makes. So a run that is gone on with can be held
against the one that was never cut off.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import Attachments, Transaction
from tallystick.client import Session
from tallystick.core.chain import Draft, Head
from tallystick.core.charge import Charge, ModelUsage, RunLimits
from tallystick.core.records import (
    DOUBTED,
    LEFT,
    AskModel,
    CallHost,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.core.views.open_calls import call_key, open_calls
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger, RunRow
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.port import Heard, ModelError, ModelReply, ModelRequest
from tallystick.runtime.calls.functions import RunFunction, effect_key, host_function
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, block

GOAL = "what is it, in the end of all this?"
ROOMY = RunLimits(tokens=10_000_000)
# Of a call that a program makes: the run, its intent, its place, perhaps the attempt.
_QUERY = re.compile(r".*-(\d+)\.(\d+)(-\d+)?")


@dataclass(frozen=True)
class Planned:
    """A reply, and how often it is asked for in vain before."""

    text: str
    failures: int = 0


def program(*lines: str, failures: int = 0) -> Planned:
    return Planned(block("\n".join(lines)), failures)


@dataclass
class PlannedModel:
    """Says what is planned, from where a record ends.

    What it says to programs their prompts decide: `fails N` comes after N failures in passing,
    `never` always fails, `number` is no number at first, `long` is long.
    """

    plan: Sequence[Planned]
    recorded: Sequence[Record] = ()
    name: str = "fake:model"
    keys: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    temperatures: list[float | None] = field(default_factory=list)
    # Called before anything is said; what it raises is raised.
    before: Callable[[ModelRequest], Any] = lambda request: None

    def __post_init__(self) -> None:
        self._replies = self._failures = 0
        self._outcomes: Counter[tuple[int, int]] = Counter()
        for record in self.recorded:
            if isinstance(record, ModelReplied):
                self._replies, self._failures = self._replies + 1, 0
            elif isinstance(record, ModelFailed):
                self._failures += record.reason not in (LEFT, DOUBTED)
            elif isinstance(record, QueryReplied):
                self._outcomes[record.intent, record.item] += 1
            elif isinstance(record, QueryFailed):
                known = record.reason not in (LEFT, DOUBTED)
                self._outcomes[record.intent, record.item] += known

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        self.keys.append(request.key)
        self.texts.append(request.messages[-1].text)
        self.temperatures.append(request.temperature)
        waits = self.before(request)
        if waits is not None:
            await waits
        if request.messages[0].role == "system":
            return self._turn(request)
        # Calls of a batch end in another order than they were begun in.
        for _ in range(len(request.messages[0].text) * 7 % 5):
            await asyncio.sleep(0)
        return self._query(request)

    async def close(self) -> None: ...

    def say_one(self) -> None:
        """Count a reply as said: somebody else has found it."""
        self._replies, self._failures = self._replies + 1, 0

    def _turn(self, request: ModelRequest) -> ModelReply:
        planned = self.plan[self._replies] if self._replies < len(self.plan) else LAST
        if self._failures < planned.failures:
            self._failures += 1
            raise ModelError(reason="server_error", message=f"not yet, {self._failures}")
        self.say_one()
        return replied(request, planned.text)

    def _query(self, request: ModelRequest) -> ModelReply:
        found = _QUERY.fullmatch(request.key)
        assert found is not None
        place = int(found[1]), int(found[2])
        before, self._outcomes[place] = self._outcomes[place], self._outcomes[place] + 1
        prompt = request.messages[0].text
        if prompt.startswith("never"):
            raise ModelError(reason="content_policy", message="not this")
        if prompt.startswith("fails") and before < int(prompt.split()[1]):
            raise ModelError(reason="rate_limit", message="later", billed=before % 2 == 0)
        if prompt.startswith("number"):
            return replied(request, str(len(prompt)) if before else "no number")
        if prompt.startswith("long"):
            return replied(request, "long " * 20_000)
        return replied(request, f"said {prompt}")


LAST = program("FINAL(n)")


def replied(request: ModelRequest, text: str) -> ModelReply:
    sent = sum(len(message.text.encode()) for message in request.messages)
    # A provider bills no more than the cap that it was sent.
    tokens_out = min(request.tokens_out_max, max(1, len(text) // 4))
    usage = ModelUsage(tokens_in=max(1, sent // 4), tokens_out=tokens_out, reported=True)
    return ModelReply(text=text, usage=usage)


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


class KeptAttachments(MemoryAttachments):
    """Forgets no snapshot: so it has the last of any prefix, as a store had when that was all."""

    def forget(self, session_id: str, id: str, *, within: Transaction = None) -> None:
        if not session_id.endswith("/snapshots"):
            super().forget(session_id, id, within=within)

    def forget_session(self, session_id: str, *, within: Transaction = None) -> None:
        if not session_id.endswith("/snapshots"):
            super().forget_session(session_id, within=within)


# -- records ------------------------------------------------------------------------------------


def ledger_of(run: str, records: Sequence[Record]) -> MemoryLedger:
    """A ledger that has these records of a run, as if its process had died behind them."""
    ledger = MemoryLedger()
    begin(ledger, run, records)
    return ledger


def begin(ledger: MemoryLedger, run: str, records: Sequence[Record]) -> None:
    """Write the first records of a run."""
    fence = ledger.claim(run, create=True)
    drafts = [
        Draft(tag=tag_of(each), intent=intent_of(each), body=encode_record(each))
        for each in records
    ]
    ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=False)


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
    model: PlannedModel
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
    model = PlannedModel(plan, recorded, name)
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
    return World(session, model, effects)


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

    def watch(self, request: ModelRequest) -> None:
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
    when: Callable[[ModelRequest], bool] = lambda request: False,
    limits: RunLimits = ROOMY,
    **more: Any,
) -> Dead:
    """Run a plan on a disk until a request comes that is never answered, or `hang` is called.

    Nothing is written then, so a copy of the files is what a kill would have left.
    """
    reached = threading.Event()

    def before(request: ModelRequest) -> Any:
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
