"""Plays one paid run, or goes on with it, in a child that may be killed: `run_worker.py [ORDER]`.

Reads a line for each child, a JSON object as `Order` says, and forks: so imports are paid for once.
Says the child's pid; then a line lets it go; then says how it ended. A child writes lines to the
file it was told: what was acknowledged, what is about to be sent, and at its end what came of the
run. With an order on the command line it is the child itself.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
from tests.faults.in_process import die_at
from tests.faults.memory_script import MEMORY_GOAL, open_memory
from tests.faults.paid_server import GOAL, KEY_HEADER
from tests.faults.tracer import stop_at_calls
from tests.faults.tree_script import FAMILY_GOAL

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.chain import Draft, Head
from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.records import InDoubt, Record, RunStarted, tag_of
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.views.open_calls import NOT_RECEIVED, Lookup
from tallystick.ledger.port import Also
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.endpoint import Endpoint
from tallystick.model.http import HttpModel
from tallystick.model.port import Heard, ModelReply, ModelRequest
from tallystick.runtime.calls.functions import RunFunction, effect_key, host_function
from tallystick.runtime.programs import execution
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.steps.decorator import step
from tallystick.testing.models import PRICING

CHILD_SECONDS_MAX = 120
GRANTS = ("attachments.read", "attachments.write", "memory.write")
# What is played: one run, a tree of them, a run that remembers, or one in a session.
Subject = Literal["run", "tree", "memory", "session"]
# Of what was in doubt the most that it can have cost is charged, each time: that has to fit.
_TREE_LIMITS = RunLimits(tokens=10_000_000)


class Order(msgspec.Struct, kw_only=True):
    """What a child is to do."""

    work: Literal["run", "resume"]
    subject: Subject = "run"
    ledger: str
    url: str
    # None is its own output.
    out: str | None = None
    in_doubt: InDoubt = "halt"
    steal: bool = False
    # Whether the provider can be asked what became of a call.
    asked: bool = False
    # Whether the interpreter is kept after every program, and not only after long ones.
    snapshots: bool = False
    traced: bool = False
    # What is to be forced is only committed, and said to be forced.
    unforced: bool = False
    # Where there is no tracer: 0 dies nowhere, and says the calls.
    die_at: int | None = None


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


class TellingLedger(SqliteLedger):
    """Says of each append, once it was acknowledged, where the run stands."""

    forces = True

    def submit(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> tuple[Head, Future[None]]:
        head, future = super().submit(
            run,
            drafts,
            expected=expected,
            fence=fence,
            forced=forced and self.forces,
            also=also,
        )
        future.add_done_callback(partial(_told, run, head, forced))
        return head, future

    def append(
        self,
        run: str,
        drafts: Sequence[Draft],
        *,
        expected: Head,
        fence: int,
        forced: bool,
        also: Also | None = None,
    ) -> Head:
        head, future = self.submit(
            run, drafts, expected=expected, fence=fence, forced=forced, also=also
        )
        future.result()
        return head


def _told(run: str, head: Head, forced: bool, future: Future[None]) -> None:
    if future.exception() is None:
        tell(f"{'forced' if forced else 'committed'} {run} {head.count} {head.hash}")


# -- the world of the run -----------------------------------------------------------------------


def fetched(
    url: str, method: str, place: str, body: str | None = None, key: str = ""
) -> dict[str, Any] | None:
    """What the server says; None if it knows nothing of it."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=10)
    try:
        headers = {KEY_HEADER: key} if key else {}
        connection.request(method, f"{where.path}/{place}", body=body, headers=headers)
        response = connection.getresponse()
        said: dict[str, Any] = json.loads(response.read())
        return said if response.status == 200 else None
    finally:
        connection.close()


def effect(url: str, *, asked: bool) -> RunFunction:
    """An effect that is a request to the server."""

    def look_up(key: str) -> str | Lookup:
        said = fetched(url, "GET", f"effects/{key}")
        return NOT_RECEIVED if said is None else str(said["entered"])

    @host_function(policy="effect", lookup=look_up if asked else None)
    def enter(what: str) -> str:
        """Enter something."""
        tell(f"sends {effect_key()}")
        said = fetched(url, "POST", "effects", json.dumps({"what": what}), effect_key())
        assert said is not None
        return str(said["entered"])

    return enter


class PaidModel(HttpModel):
    """A model that says what it is about to send."""

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda text: None) -> ModelReply:
        tell(f"sends {request.key}")
        return await super().ask(request, heard=heard)


class AskedModel(PaidModel):
    """A model whose provider tells what became of a call."""

    async def lookup(self, key: str) -> ModelReply | Lookup:
        said = await asyncio.to_thread(fetched, self.endpoint.base_url, "GET", f"calls/{key}")
        if said is None:
            return NOT_RECEIVED
        tokens_in, tokens_out = said["prompt_tokens"], said["completion_tokens"]
        usage = ModelUsage(tokens_in=tokens_in, tokens_out=tokens_out, reported=True)
        return ModelReply(text=said["text"], usage=usage, served_by="m", finish="stop")


def opened(order: Order) -> Session:
    where = Endpoint(provider="fake", dialect="openai", base_url=order.url, model="m")
    model = AskedModel(where) if order.asked else PaidModel(where)
    ledger = TellingLedger(Path(order.ledger))
    ledger.forces = not order.unforced
    session = Session(
        config=None,
        # Prompts tell the time to the minute, and a run is compared with one of another minute.
        clock="fixed",
        functions=[effect(order.url, asked=order.asked)],
        ledger=ledger,
        # A cap that processes share: what they hold of it is written down too.
        total=Budget.of(usd=1),
        pricing=PRICING,
        memory=open_memory(Path(order.ledger).parent) if order.subject == "memory" else None,
    )
    session.use(model, owned=True)
    return session


def watched(run: str, record: Record) -> None:
    """Say what whoever watches the run is shown."""
    tell(f"shown {run} {tag_of(record)}")


# -- what a child does --------------------------------------------------------------------------


def play(session: Session, subject: Subject) -> Run:
    """The run, in a step that is in a step; or the tree."""
    if subject == "tree":
        return session.run(FAMILY_GOAL, grants=GRANTS, limits=_TREE_LIMITS, watch=watched)

    if subject == "memory":
        return session.run(MEMORY_GOAL, grants=GRANTS, watch=watched)

    if subject == "session":
        known = session.sessions.book.ids()
        within = known[-1] if known else session.sessions.new().id
        return session.run(GOAL, grants=GRANTS, watch=watched, session=within)

    @step("inner", budget={"max_usd": 1})
    def inner() -> Run:
        return session.run(GOAL, grants=GRANTS, watch=watched)

    @step("outer")
    def outer() -> Run:
        return inner()

    return outer()


def runs_of(session: Session) -> list[tuple[str, RunStarted]]:
    """The runs that came so far as to be one, with their starts."""
    found = []
    for row in session.ledger.runs():
        first = next(records_of(session.ledger, row.run), None) if row.head.count else None
        if isinstance(first, RunStarted):
            found.append((row.run, first))
    return found


def begun(session: Session) -> str | None:
    """The run of an earlier process: the one that no other began."""
    return next((run for run, started in runs_of(session) if started.caller is None), None)


def resumed(session: Session, order: Order) -> Run | None:
    run = begun(session)
    if run is None:
        tell("not begun")
        return play(session, order.subject)
    try:
        return session.resume(run, in_doubt=order.in_doubt, steal=order.steal, watch=watched)
    except RunInDoubt as error:
        opened = [msgspec.to_builtins(each) | {"run": each.run or error.run} for each in error.open]
        tell(f"in_doubt {json.dumps(opened)}")
        return None


def result_of(run: Run, *, replay_held: bool) -> dict[str, Any]:
    charge = msgspec.to_builtins(run.charge)
    del charge["wall_ms"]
    return {
        "answer": run.answer,
        "stop": run.stop,
        "turns": run.turns,
        "charge": charge,
        "replay_held": replay_held,
    }


def child(order: Order) -> None:
    # Whoever waits for one that hangs would wait for ever.
    signal.alarm(CHILD_SECONDS_MAX)
    if order.out is not None:
        os.dup2(os.open(order.out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
    # Output files of programs are part of what is looked at.
    os.environ["TALLYSTICK_DATA_DIR"] = str(Path(order.ledger).parent)
    if order.snapshots:
        execution.SNAPSHOT_FUEL = 0
    if order.traced:
        stop_at_calls()
    if order.die_at is not None:
        die_at(order.die_at or None, lambda name: tell(f"seen {name}"))
    with opened(order) as session:
        run = play(session, order.subject) if order.work == "run" else resumed(session, order)
        if run is not None:
            # A child that is to be killed does not come here before its run has ended.
            held = order.work == "run" or all(
                session.replay(each).held for each, _ in runs_of(session)
            )
            tell(f"result {json.dumps(result_of(run, replay_held=held))}")


def serve() -> None:
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        waits, goes = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(goes)
            os.read(waits, 1)
            code = 0
            try:
                child(order)
            except BaseException as error:
                tell(f"error {type(error).__name__}: {error}")
                code = 1
            os._exit(code)
        os.close(waits)
        print(pid, flush=True)
        sys.stdin.readline()
        os.write(goes, b"1")
        os.close(goes)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        child(msgspec.json.decode(sys.argv[1], type=Order))
    else:
        serve()
