"""The door behind the bridge: what is asked from outside is paid for and recorded as any query."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.bridge.environment import environment_of
from tests.bridge.test_bridge import Client, Reply, place, ran, request
from tests.call_scopes import ProgramCalls
from tests.escape.process.boxes import made_sandbox
from tests.laws.costed_world import charged_quietly

from tallystick.attachments.port import AttachmentIoFailed
from tallystick.bridge.door import BridgeDoor
from tallystick.bridge.inside import ask
from tallystick.bridge.server import ADDRESS, Bridge, BridgeLimits
from tallystick.bridge.tokens import IssuedToken, TokenScope
from tallystick.client import Session
from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.errors import LedgerUnavailable, UsageError
from tallystick.core.history import History
from tallystick.core.records import (
    AttachmentRef,
    CallHost,
    HostAnswered,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    Record,
    RunStarted,
    SkillModel,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.port import Model, ModelError, ModelReply
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.calls.capability import CapabilityBase, RunCapability, RunServices
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.scope import Call
from tallystick.runtime.context.attachments import INLINE_BYTES_MAX
from tallystick.runtime.journal.writer import PendingWrite
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run as Ended
from tallystick.runtime.spend.door import ModelDoor
from tallystick.runtime.spend.scopes import RunScopes, ScopeRef, ScopeTree
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext, ExecutionResult
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelDouble, block, by_prompt

__all__ = ["place"]
CLIENT = Path(ask.__file__)


class Run:
    """A run that pays for what is asked over a bridge, without a session around it."""

    def __init__(
        self,
        model: Model,
        *,
        tokens: int = 100_000,
        wall_ms: int = 60_000,
        models: dict[str, Model] | None = None,
        temperature: float | None = None,
        calls_max: int | None = None,
        limits: BridgeLimits | None = None,
        retries: int = 0,
    ) -> None:
        self.scope_tree = ScopeTree()
        budget = Budget(tokens=tokens)
        self.scope_tree.tree.enter("run", parent=None, budget=budget, kind="run", name="")
        self.run_scopes = RunScopes([ScopeRef(self.scope_tree, "run")])
        self.model_door = ModelDoor(self.run_scopes, PRICING)
        self._known: dict[str | None, Model] = {None: model}
        self._known.update(models or {})
        self.bridge = Bridge(limits=limits)
        of_run = RunLimits(reply_tokens=500, retries=retries, tokens=tokens)
        self.calls = ProgramCalls(
            self.model_door,
            self._find,
            limits=of_run,
            temperature=temperature,
            program=2,
            first=10,
            seconds=wall_ms / 1000,
            host_calls_left=of_run.host_calls if calls_max is None else calls_max,
        )
        self.door = BridgeDoor(
            self.calls.queries,
            self.calls.scope,
            self.run_scopes,
            self.calls.run_attachments,
            temperature=temperature,
        )

    def _find(self, name: str | None) -> Model:
        if name not in self._known:
            raise UsageError(f"{name} is not for programs")
        return self._known[name]

    @property
    def left(self) -> Amount:
        """What is still held."""
        return self.scope_tree.tree.rows()[0].reserved

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[IssuedToken]:
        async with self.bridge:
            scope = TokenScope(session="S", run="RUN", program=2)
            yield self.bridge.issue(scope, ask=self.door.ask)
        self.check_calls()

    def check_calls(self) -> None:
        """Check that each host call has the name of a query, and is not an effect."""
        assert {each.name for each in self.of(HostAnswered)} <= {"llm_query"}
        assert self.of(CallHost) == []

    async def ask(self, token: IssuedToken, body: object, path: str = "/query") -> Reply:
        sock = self.bridge.pair(session="S")
        client = Client(*await asyncio.open_connection(sock=sock))
        try:
            return await client.ask(path, body, token.text)
        finally:
            client.writer.close()

    def of(self, kind: type) -> list[Any]:
        return self.calls.of(kind)


def one(run: Run, body: object, path: str = "/query") -> Reply:
    async def play() -> Reply:
        async with run.open() as token:
            return await run.ask(token, body, path)

    found: Reply = ran(play())
    return found


# -- one call ----------------------------------------------------------------------------------


def test_a_query_is_reserved_written_settled_and_answered() -> None:
    run = Run(ModelDouble("r" * 40))
    reply = one(run, {"prompt": "x" * 400})

    (asked,), (replied,), (answered,) = (
        run.of(QueryAsked), run.of(QueryReplied), run.of(HostAnswered),
    )  # fmt: skip
    assert [type(each) for each in run.calls.records] == [QueryAsked, QueryReplied, HostAnswered]
    assert (asked.intent, asked.program, asked.item, asked.prompt) == (10, 2, 0, "x" * 400)
    assert asked.reserved.tokens_in >= 100
    assert (replied.settled.tokens_in, replied.settled.tokens_out) == (100, 10)
    assert (answered.intent, answered.name, answered.ok) == (10, "llm_query", True)
    assert answered.reply == b'0"' + b"r" * 40 + b'"'
    assert (reply.status, reply.body["response"]) == (200, "r" * 40)
    assert reply.body["tokens_used"] == 110
    assert reply.body["tokens_remaining"] == 100_000 - 110
    assert 50_000 < reply.body["time_remaining_ms"] <= 60_000
    assert run.left == Amount()
    assert run.scope_tree.tree.rows()[0].spent.host_calls == 1


def test_what_the_provider_reported_is_told_as_it_came() -> None:
    raw = {"prompt_tokens": 12, "completion_tokens": 5, "their_own": {"nested": [1, None]}}

    used = ModelUsage(tokens_in=12, tokens_out=5, reported=True, raw=raw)
    run = Run(ModelDouble(ModelReply(text="ok", usage=used, cut=True)))
    reply = one(run, {"prompt": "x"})

    assert reply.body["usage"] == {
        "tokens_in": 12, "tokens_out": 5, "reported": True, "raw": raw,
    }  # fmt: skip
    assert run.of(QueryReplied)[0].usage.raw == raw
    assert (reply.body["tokens_used"], reply.body["figures"]) == (17, "reported")
    assert reply.body["cut"] is True


def test_a_figure_that_nobody_reported_says_so() -> None:
    run = Run(ModelDouble(usage=ModelUsage(tokens_in=0, tokens_out=0, reported=False)))
    reply = one(run, {"prompt": "x"})

    reserved = run.of(QueryAsked)[0].reserved
    assert reply.body["figures"] == "reserved"
    assert reply.body["tokens_used"] == reserved.tokens_in + reserved.tokens_out


def test_a_batch_is_asked_side_by_side_each_in_a_place_of_its_own() -> None:
    run = Run(ModelDouble(by_prompt(str.upper), delay=0.01))
    body = {"queries": [{"prompt": f"p{n}"} for n in range(10)]}
    reply = one(run, body, "/query_batched")

    told = [each["Ok"]["response"] for each in reply.body["responses"]]
    assert told == [f"P{n}" for n in range(10)]
    places = [(each.intent, each.item, each.attempt) for each in run.of(QueryAsked)]
    assert len(set(places)) == 10
    assert {intent for intent, _, _ in places} == set(range(10, 20))
    total = sum(each["Ok"]["tokens_used"] for each in reply.body["responses"])
    assert (reply.body["total_tokens_used"], run.scope_tree.tree.rows()[0].spent.tokens) == (
        total, total,
    )  # fmt: skip
    assert reply.body["tokens_remaining"] == 100_000 - total
    assert charged_quietly(run.calls.records)[1] == total
    assert len(run.of(HostAnswered)) == 10


# -- what is asked for -------------------------------------------------------------------------


def test_the_model_and_the_length_that_are_asked_for_are_kept() -> None:
    small = ModelDouble(name="fake:small", answers="small")
    run = Run(ModelDouble(), models={"small": small})
    reply = one(run, {"prompt": "x", "model": "small", "max_tokens": 33})

    assert reply.body["response"] == "small"
    assert small.caps == [33]
    assert (run.of(QueryAsked)[0].model, run.of(QueryAsked)[0].tokens_out_max) == ("fake:small", 33)


@pytest.mark.parametrize(
    ("asked", "skill", "answer"),
    [({}, None, "own"), ({}, "small", "small"), ({"model": "large"}, "small", "large")],
)
def test_a_question_without_a_model_asks_that_of_the_loaded_skill(
    asked: dict[str, str], skill: str | None, answer: str
) -> None:
    models: dict[str, Model] = {
        each: ModelDouble(name=f"fake:{each}", answers=each) for each in ("small", "large")
    }
    run = Run(ModelDouble(answers="own"), models=models)
    if skill is not None:
        run.calls.scope.skill_model = SkillModel(name=skill, skill="shelves")

    assert one(run, {"prompt": "x", **asked}).body["response"] == answer


def test_a_token_caps_a_reply_that_did_not_ask_for_a_length() -> None:
    for cap, sent in ((20, 20), (9_999, 500)):
        model = ModelDouble()
        run = Run(model)

        async def play(run: Run = run, cap: int = cap) -> None:
            async with run.bridge:
                scope = TokenScope(session="S", tokens_out_max=cap)
                token = run.bridge.issue(scope, ask=run.door.ask)
                await run.ask(token, {"prompt": "x"})
            run.check_calls()

        ran(play())
        assert model.caps == [sent]


@pytest.mark.parametrize(
    ("asked", "kind", "status", "says"),
    [
        ({"model": "gpt-99"}, "ConfigError", 400, "gpt-99 is not for programs"),
        ({"max_tokens": 501}, "ConfigError", 400, "max_tokens: 501; at most 500"),
        ({"temperature": 0.7}, "NotSupported", 501, "temperature: this run asks with 0.2"),
        ({"prompt": "x" * 1_000_001}, "ConfigError", 400, "at most 1,000,000 bytes"),
    ],
)
def test_what_the_door_cannot_do_it_refuses_by_name(
    asked: dict[str, object], kind: str, status: int, says: str
) -> None:
    model = ModelDouble()
    run = Run(model, temperature=0.2)
    reply = one(run, {"prompt": "x", **asked})

    assert (reply.status, reply.error["type"]) == (status, kind)
    assert says in reply.error["message"]
    assert model.asked == []
    assert run.of(QueryAsked) == []
    assert run.left == Amount()


# -- what goes wrong ---------------------------------------------------------------------------


def test_a_budget_that_is_used_up_refuses_and_says_what_is_left() -> None:
    model = ModelDouble()
    run = Run(model, tokens=900)
    body = {"prompt": "x" * 600}

    async def play() -> list[Reply]:
        async with run.open() as token:
            return [await run.ask(token, body) for _ in range(4)]

    *good, last = ran(play())
    spent = run.scope_tree.tree.rows()[0].spent.tokens
    assert good[0].status == 200
    assert (last.status, last.error["type"], last.error["code"]) == (
        402, "TokenBudgetExceeded", -32010,
    )  # fmt: skip
    assert not last.error["retryable"]
    assert last.body["tokens_remaining"] == 900 - spent >= 0
    assert last.body["time_remaining_ms"] > 0
    assert run.of(QueryRefused)[-1].dimension == "tokens"
    assert not run.of(HostAnswered)[-1].ok
    assert run.left == Amount()
    assert 0 < spent <= 900


def test_a_batch_that_is_not_paid_for_runs_the_part_that_is() -> None:
    run = Run(ModelDouble(delay=0.001), tokens=1_400)
    body = {"queries": [{"prompt": "x" * 600}] * 10}
    reply = one(run, body, "/query_batched")

    kinds = [each and each["type"] for each in reply.body["errors"]]
    assert 0 < kinds.count("TokenBudgetExceeded") < 10
    assert kinds.count(None) == len(run.of(QueryReplied))
    assert reply.body["tokens_remaining"] == 1_400 - run.scope_tree.tree.rows()[0].spent.tokens
    assert run.left == Amount()


def test_a_run_whose_time_is_over_asks_nobody() -> None:
    model = ModelDouble()
    reply = one(Run(model, wall_ms=0), {"prompt": "x"})

    assert (reply.status, reply.error["type"]) == (402, "TimeBudgetExceeded")
    assert reply.body["time_remaining_ms"] == 0
    assert model.asked == []


def test_a_call_that_is_under_way_when_the_runs_time_ends_is_settled() -> None:
    run = Run(ModelDouble(delay=30), wall_ms=60)
    reply = one(run, {"prompt": "x"})

    assert (reply.status, reply.error["type"]) == (402, "TimeBudgetExceeded")
    (failed,) = run.of(QueryFailed)
    assert (failed.reason, failed.settled.figures) == ("cancelled", "reserved")
    assert not run.of(HostAnswered)[0].ok
    assert run.left == Amount()


def test_host_calls_that_are_used_up_refuse() -> None:
    run = Run(ModelDouble(), calls_max=2)
    reply = one(run, {"queries": [{"prompt": "x"}] * 3}, "/query_batched")

    kinds = [each and each["type"] for each in reply.body["errors"]]
    assert kinds == [None, None, "TokenBudgetExceeded"]
    assert "host_calls" in reply.body["responses"][2]["Err"]


def test_a_model_that_fails_is_a_call_that_failed_with_what_it_cost() -> None:
    down = [ModelError(reason="server_error", message="down", retry_after_ms=1)] * 2
    run = Run(ModelDouble(failures=down), retries=1)
    reply = one(run, {"prompt": "x"})

    assert (reply.status, reply.error["type"]) == (502, "LlmCallFailed")
    assert reply.error["retryable"]
    assert len(run.of(QueryFailed)) == 2
    charged = sum(each.settled.tokens_in + each.settled.tokens_out for each in run.of(QueryFailed))
    assert reply.error["tokens_used"] == charged > 0
    assert reply.body["tokens_remaining"] == 100_000 - charged


def test_attempts_that_failed_in_passing_are_in_what_was_used() -> None:
    passing = [ModelError(reason="server_error", message="later", retry_after_ms=1)]
    run = Run(ModelDouble(failures=passing), retries=1)
    reply = one(run, {"prompt": "x"})

    assert reply.status == 200
    assert reply.body["figures"] == "reserved"
    assert reply.body["tokens_used"] == run.scope_tree.tree.rows()[0].spent.tokens


@pytest.mark.parametrize("how", ["revoked", "timeout", "closed"])
def test_a_call_that_is_cancelled_is_settled_and_told(how: str) -> None:
    model = ModelDouble(delay=30)
    run = Run(model, limits=BridgeLimits(request_ms=60 if how == "timeout" else 30_000))

    async def play() -> tuple[int, str] | None:
        async with run.open() as token:
            asking = asyncio.ensure_future(run.ask(token, {"prompt": "x"}))
            while not model.asked:  # noqa: ASYNC110 (its event is one of threads)
                await asyncio.sleep(0.001)
            if how == "revoked":
                run.bridge.revoke(token.grant)
            elif how == "closed":
                await run.bridge.close()
            try:
                reply = await asking
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            return reply.status, reply.error["type"]

    told = ran(play())
    (failed,) = run.of(QueryFailed)
    wanted = {"revoked": (410, "Cancelled"), "timeout": (504, "ExecutionTimeout"), "closed": None}
    assert told == wanted[how]
    assert (failed.reason, failed.settled.figures) == ("cancelled", "reserved")
    assert [each.ok for each in run.of(HostAnswered)] == [False]
    assert run.left == Amount()
    charged_quietly(run.calls.records)


def test_a_program_that_is_over_asks_nobody_any_more() -> None:
    """Its queries are not written, and so they are not made."""
    model = ModelDouble()
    run = Run(model)
    run.calls.scope.close()
    reply = one(run, {"queries": [{"prompt": "x"}, {"prompt": "y"}]}, "/query_batched")

    assert [each["type"] for each in reply.body["errors"]] == ["Cancelled", "Cancelled"]
    assert model.asked == []
    assert run.calls.records == []
    assert run.left == Amount()


def test_a_record_that_fails_is_not_the_programs_to_handle() -> None:
    run = Run(ModelDouble())
    broken = LedgerUnavailable(where="x", why="the disk is gone")

    def fails(*args: object, **more: object) -> Any:
        raise broken

    run.calls.ledger.submit = fails  # type: ignore[method-assign]
    reply = one(run, {"prompt": "x"})

    assert (reply.status, reply.error["type"]) == (500, "Io")
    assert run.calls.scope.failed is broken
    assert run.left == Amount()


# -- the client inside -------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, {where!r})
from ask import BridgeError, llm_query, llm_query_batched, query
print(llm_query("one"))
print([each if isinstance(each, str) else each.type for each in llm_query_batched(
    [f"p{{n}}" for n in range(23)])] == [f"P{{n}}" for n in range(23)])
print(query("two", max_tokens=5)["tokens_used"])
print([each if isinstance(each, str) else each.type for each in llm_query_batched(
    ["a", "bad", "c"], model="small")])
try:
    llm_query("x", model="none")
except BridgeError as error:
    print(error.type, error.code, error.retryable, error.tokens_remaining is not None)
assert "tallystick" not in sys.modules
"""


async def inside(script: str, environment: dict[str, str], **more: Any) -> str:
    """Run a program in a Python of its own, without anything that is installed."""

    def run() -> str:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [sys.executable, "-I", "-S", "-c", script],
            env=environment, capture_output=True, text=True, timeout=20, check=False, **more,
        )  # fmt: skip
        return done.stdout + done.stderr

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("kind", ["unix", "tcp", "fd"])
def test_a_native_program_asks_by_the_client(place: Path, kind: str) -> None:
    def answer(prompt: str) -> str:
        if prompt == "bad":
            raise ModelError(reason="content_policy", message="no", billed=False)
        return prompt.upper()

    run = Run(
        ModelDouble(by_prompt(answer)),
        models={"small": ModelDouble(name="fake:small", answers=by_prompt(answer))},
    )
    shutil.copy(CLIENT, place)

    async def play() -> str:
        async with run.open() as token:
            more: dict[str, Any] = {}
            sock = run.bridge.pair(session="S")
            if kind == "fd":
                address, more["pass_fds"] = f"fd:{sock.fileno()}", [sock.fileno()]
            elif kind == "tcp":
                address = run.bridge.listen_tcp(session="S").address
            else:
                address = run.bridge.listen_unix(place / "b", session="S").address
            script = SCRIPT.format(where=str(place))
            try:
                return await inside(script, environment_of(address, token), **more)
            finally:
                sock.close()

    assert ran(play()).splitlines() == [
        "ONE",
        "True",
        "2",
        "['A', 'LlmCallFailed', 'C']",
        "ConfigError -32602 False True",
    ]
    assert run.left == Amount()


def test_the_client_waits_where_it_asked_too_often(place: Path) -> None:
    run = Run(ModelDouble(), limits=BridgeLimits(burst=10, queries_per_second=100))
    shutil.copy(CLIENT, place)
    script = (
        f"import sys; sys.path.insert(0, {str(place)!r}); import ask\n"
        "print(ask.llm_query_batched(['x'] * 30) == ['ok'] * 30)"
    )

    async def play() -> str:
        async with run.open() as token:
            address = run.bridge.listen_unix(place / "b", session="S").address
            return await inside(script, environment_of(address, token))

    assert ran(play()) == "True\n"


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", "TALLYSTICK_BRIDGE is not set"),
        ("http://x", "unix:PATH, tcp:HOST:PORT or fd:N"),
        ("unix:/nowhere/at/all", "cannot be used"),
        ("tcp:127.0.0.1:x", "cannot be used"),
        ("fd:999", "cannot be used"),
    ],
)
def test_a_client_without_a_bridge_says_so(
    address: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_BRIDGE", address)
    with pytest.raises(ask.BridgeError, match=says) as caught:
        ask.llm_query("x")

    assert caught.value.type == "Io"


# -- in a run ----------------------------------------------------------------------------------


class NativeCapability(CapabilityBase):
    """Gives runs `outside`, which is connected to a bridge of its own."""

    name = "native"

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        return NativeOfRun(services)


class NativeOfRun(RunCapability):
    def __init__(self, services: RunServices) -> None:
        self._services = services

    def functions(self) -> Sequence[RunFunction]:
        return [
            RunFunction(
                function=self.outside,
                name="outside",
                policy="read",
                needs="",
                local=False,
                handed=True,
            )
        ]

    async def outside(self, call: Call, script: str) -> str:
        """Run a native program with a bridge."""
        model_door = self._services.door
        assert model_door is not None, "a replay asks nobody"
        door = BridgeDoor(
            self._services.queries,
            call.scope,
            model_door.run_scopes,
            self._services.run_attachments,
        )
        async with Bridge() as bridge:
            token = bridge.issue(TokenScope(session="S"), ask=door.ask)
            with bridge.pair(session="S") as sock:
                given = environment_of(f"fd:{sock.fileno()}", token)
                return await inside(script, given, pass_fds=[sock.fileno()])


ASKS = (
    f"import sys; sys.path.insert(0, {str(CLIENT.parent)!r}); import ask\n"
    "print(ask.llm_query('six?'), *ask.llm_query_batched(['a', 'b']))"
)


def in_a_run(sandbox: WasmSandbox, *programs: str) -> tuple[Session, Ended, list[Record]]:
    """Play a run whose programs are given; everything else that is asked is told back."""
    left = [block(each) for each in programs]
    model = ScriptedModel(
        lambda position, messages: (
            left.pop(0) if messages[0].role == "system" else f"<{messages[-1].text}>"
        )
    )
    ledger = MemoryLedger()
    session = Session(model=model, ledger=ledger, sandbox=sandbox)
    session.capabilities.append(NativeCapability())
    run = session.run("what is it?")
    return session, run, list(records_of(ledger, run.run))


def test_the_model_calls_of_a_native_program_are_the_runs_own(sandbox: WasmSandbox) -> None:
    _, run, records = in_a_run(sandbox, f"FINAL(outside({ASKS!r}))")

    assert (run.answer or "").strip() == "<six?> <a> <b>"
    asked = [each for each in records if isinstance(each, QueryAsked)]
    replied = [each for each in records if isinstance(each, QueryReplied)]
    answered = [each for each in records if isinstance(each, HostAnswered)]
    assert sorted(each.prompt for each in asked) == ["a", "b", "six?"]
    assert len({each.intent for each in asked}) == 3
    assert {each.intent for each in asked} == {each.intent for each in replied}
    assert [each.name for each in answered].count("llm_query") == 3
    assert run.charge.model_calls == 4
    turns = [each for each in records if isinstance(each, ModelReplied)]
    usages = [each.usage for each in turns] + [each.usage for each in replied]
    assert run.charge.tokens_in == sum(each.tokens_in for each in usages)
    position = {id(each): number for number, each in enumerate(records)}
    for each in asked:
        (ended,) = [other for other in replied if other.intent == each.intent]
        assert position[id(each)] < position[id(ended)]


def test_a_program_that_is_served_is_replayed_with_what_it_asked(
    sandbox: WasmSandbox,
) -> None:
    """A native program is never run again; one that ended by a trap is not either."""
    trapped = f"outside({ASKS!r})\nimport os\nos.abort()"
    session, run, records = in_a_run(sandbox, trapped, "FINAL(llm_query('last'))")
    report = session.replay(run.run)

    assert len([each for each in records if isinstance(each, QueryAsked)]) == 4
    assert (run.answer, report.divergence, report.served) == ("<last>", None, 1)


def test_a_shell_in_the_process_sandbox_asks_with_the_token_of_its_session(
    place: Path,
) -> None:
    sockets, packages = place / "sockets", place / "packages"
    packages.mkdir(mode=0o755)
    place.chmod(0o755)
    shutil.copy(CLIENT, packages)
    box = made_sandbox(packages=(packages,), readable=(sockets,))
    run = Run(ModelDouble(by_prompt(str.upper)))
    # There, programs of root's are nobody's.
    uid = 65_534 if os.geteuid() == 0 else None

    async def play() -> list[ExecutionResult]:
        async with run.open() as token:
            listener = run.bridge.listen_unix(sockets / "b", session="S", uid=uid)
            session = await box.open(session_id="0" * 26)
            of_another = run.bridge.issue(TokenScope(session="another"), ask=None)
            results = []
            try:
                for each in (token, of_another):
                    context = ExecutionContext(
                        session_id="0" * 26,
                        env_vars={ADDRESS: listener.address},
                        session_token=each.text,
                    )
                    results.append(
                        await session.command(
                            f"cd / && python3 {packages}/ask.py from a shell",
                            context=context,
                            host=HostTable(),
                        )
                    )
                return results
            finally:
                await session.close()
                await box.close()

    result, refused = ran(play())
    assert (result.stdout, result.stderr) == ("FROM A SHELL\n", "")
    assert refused.exit_code != 0
    assert "of another session" in refused.stderr
    assert len(run.of(QueryReplied)) == 1


def test_a_request_can_be_written_by_hand(place: Path) -> None:
    """The protocol is plain: any client that speaks HTTP will do."""
    run = Run(ModelDouble(by_prompt(str.upper)))

    async def play() -> bytes:
        async with run.open() as token:
            run.bridge.listen_unix(place / "b", session="S")
            reader, writer = await asyncio.open_unix_connection(place / "b")
            writer.write(request("/query", {"prompt": "hand"}, token.text, "Connection: close"))
            told = await reader.read()
            writer.close()
            return told

    head, _, body = ran(play()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
    assert json.loads(body)["response"] == "HAND"


def test_an_answer_that_the_ledger_refuses_ends_the_run_and_not_only_the_call() -> None:
    run = Run(ModelDouble("r"))
    broken = LedgerUnavailable(where="ledger.db", why="the disk is full")

    def refuse(answered: HostAnswered) -> PendingWrite:
        raise broken

    run.calls.scope.note_answer = refuse  # type: ignore[method-assign]
    reply = one(run, {"prompt": "x"})

    assert reply.status >= 500
    assert run.calls.scope.failed is broken


def test_a_long_answer_that_cannot_be_kept_ends_the_run_and_not_only_the_call() -> None:
    """The call would stand without an end, and the program would continue behind it."""
    run = Run(ModelDouble("r" * (INLINE_BYTES_MAX + 1)))
    broken = AttachmentIoFailed(path="blobs", source="the disk is full")

    keep = run.calls.run_attachments.keep

    def refuse(source: Any, **more: Any) -> AttachmentRef:
        if more["label"] == "answer of llm_query":
            raise broken
        return keep(source, **more)

    run.calls.run_attachments.keep = refuse  # type: ignore[method-assign]
    reply = one(run, {"prompt": "x"})

    assert reply.status >= 500
    assert run.calls.scope.failed is broken
