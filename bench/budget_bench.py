"""Budgets: what reserving costs, what a fan-out costs, and what is billed beside the cap.

Question: does a call that is reserved and settled in four scopes cost at most 30 us of processor
time; do 1,000 calls of 100 ms in one batch take at most 0.6 s; over HTTP, at most half as long
again as bare httpx; and is no more billed than the cap, there and elsewhere?

Sketch before measuring. Reserving and settling touch eight lists four times each: 15 us. A batch of
a thousand waits 0.1 s once; each call is a price, a bound, two records sealed and stored, and six
turns of the loop: 0.2 to 0.3 ms, so 0.3 to 0.4 s in all. httpx takes 1 ms a call for a connection
of its own, so beside it that is a fifth to a third more. A cap of a dollar pays for 99 or 100 calls
of a cent; who counts what was spent before lets all thousand through, and bills ten dollars.

Of HTTP the guess was wrong: httpx looks through all its connections for each request, so that 1,000
at once take it half a minute, most of which it computes. The row is for 200 at once, where it is a
few milliseconds a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import httpx
from bench.fan_out_server import CALLS, SECONDS, USAGE, USD_EACH, program
from bench.measure import ROOT, Bench, Row, World, now

from tallystick.client import Session
from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.budget.tree import BudgetTree
from tallystick.core.charge import ModelUsage, RunLimits, nano_usd
from tallystick.core.machine.prompt import Message
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model import openai
from tallystick.model.endpoint import Endpoint
from tallystick.model.http import HttpModel
from tallystick.model.port import Heard, Model, ModelReply, ModelRequest
from tallystick.model.price_table import PriceTable, Pricing
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.door import ModelDoor
from tallystick.runtime.spend.scopes import RunScopes, ScopeRef, ScopeTree

__all__ = ["BENCHES"]

_ROUNDS = 7
_PAIRS = 20_000
_HTTP_CALLS = 200
_USD_CAP = "1"
_ROOMY = 1_000_000_000
_PEER_SECONDS_MAX = 180
_PRICING = Pricing(
    declared=PriceTable.of_user({"bench:*": {"input": "0", "output": "100"}}),
)
_USAGE = ModelUsage(
    tokens_in=USAGE["prompt_tokens"],
    tokens_out=USAGE["completion_tokens"],
    reported=True,
    raw=USAGE,
)
_SUM = "print(len([each for each in found if each == 'ok']))"


# -- reserve and settle -------------------------------------------------------------------------


def _four_scopes() -> BudgetTree:
    tree = BudgetTree()
    budget = Budget(usd=_ROOMY * 10**9, tokens=_ROOMY * 10**6, model_calls=_ROOMY)
    tree.enter("deployment", parent=None, budget=budget, kind="deployment", name="")
    tree.enter("session", parent="deployment", budget=budget, kind="session", name="")
    tree.enter("run", parent="session", budget=budget, kind="run", name="")
    tree.enter("step", parent="run", budget=budget, kind="step", name="")
    return tree


def reserve(world: World) -> Iterable[Row]:
    worst = Amount(tokens=500, usd=20_000_000, model_calls=1)
    used = Amount(tokens=110, usd=10_000_000, model_calls=1)
    found = []
    for _ in range(_ROUNDS):
        tree = _four_scopes()
        began = time.process_time()
        for _ in range(_PAIRS):
            tree.settle(tree.reserve("step", worst), used)
        found.append((time.process_time() - began) * 1e6 / _PAIRS)
    yield Row(
        bench="reserve",
        name="reserve and settle, 4 nested scopes",
        unit="us",
        samples=found,
        target=30.0,
        against="processor time, in memory",
    )
    yield Row(
        bench="reserve",
        name="the same with bound, price and clamp",
        unit="us",
        samples=[_told() for _ in range(_ROUNDS)],
        against="processor time of the teller's part of a call",
    )


def _told() -> float:
    """Microseconds of processor time for a call's part at the teller's."""
    model = _Cent()
    model_door = ModelDoor(RunScopes([ScopeRef(ScopeTree(tree=_four_scopes()), "step")]), _PRICING)
    messages = (Message(role="user", part="query", text="item 7"),)
    reply = ModelReply(text="ok", usage=_USAGE)
    count = _PAIRS // 10
    began = time.process_time()
    for _ in range(count):
        reserved_call = model_door.reserve(model_door.terms(model), messages, tokens_out_max=200)
        model_door.settle_reply(reserved_call, reply)
    return (time.process_time() - began) * 1e6 / count


# -- a fan-out in this process ------------------------------------------------------------------


class _Cent:
    """A model in this process: 100 ms and a cent for a call, and it keeps the bill."""

    name = "bench:cent"

    def __init__(self) -> None:
        self.calls = 0

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        if request.messages[0].role == "system":
            return ModelReply(text=_turn(CALLS), usage=_USAGE)
        await asyncio.sleep(SECONDS)
        self.calls += 1
        return ModelReply(text="ok", usage=_USAGE)

    async def close(self) -> None: ...


def _turn(calls: int) -> str:
    """A reply whose program makes the fan-out and answers how many came back."""
    return program(calls).replace(_SUM, f"FINAL({_SUM[6:-1]})")


def _ran(world: World, ledger: SqliteLedger, model: Model, usd: str) -> tuple[float, Run]:
    """Seconds of a run that makes the fan-out in its one turn."""
    limits = RunLimits(tokens=_ROOMY, usd=nano_usd(usd), reply_tokens=200, turns=2)
    with Session(
        config=None, model=model, ledger=ledger, sandbox=world.sandbox, pricing=_PRICING
    ) as session:
        session.ledger.runs()
        began = now()
        run = session.run("do it", limits=limits)
        return now() - began, run


def fan_out(world: World) -> Iterable[Row]:
    with SqliteLedger(world.directory / "fan-out.db") as ledger:
        _ran(world, ledger, _Cent(), "1000")
        found = []
        for _ in range(_ROUNDS):
            took, run = _ran(world, ledger, _Cent(), "1000")
            if run.answer != str(CALLS):
                raise RuntimeError(f"{run.answer} of {CALLS} calls answered; {run.detail}")
            found.append(took)
        yield Row(
            bench="fan-out",
            name=f"{CALLS:,} calls of 100 ms in one batch",
            unit="s",
            samples=found,
            target=0.6,
            against="WASM program, every attempt on the ledger's disk",
        )
        model = _Cent()
        took, run = _ran(world, ledger, model, _USD_CAP)
    yield _billed(model.calls * USD_EACH, took=took, refused=CALLS - model.calls)


def _billed(
    usd: float, *, took: float, refused: int, who: str = "tallystick", about: str = ""
) -> Row:
    return Row(
        bench="fan-out",
        name=f"billed of a cap of ${_USD_CAP}, {CALLS:,} calls at a cent",
        unit="$",
        samples=[usd],
        # What others do is shown; it is no target of theirs.
        target=float(_USD_CAP) if who == "tallystick" else None,
        against=f"{refused:,} refused, {took:.1f} s{about}",
        who=who,
    )


# -- over HTTP ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _server() -> Iterator[str]:
    """The server in a process of its own, and its address."""
    command = [sys.executable, str(ROOT / "bench" / "fan_out_server.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as begun:
        try:
            assert begun.stdout is not None
            yield f"http://127.0.0.1:{int(begun.stdout.readline())}"
        finally:
            begun.kill()


def _bill(url: str) -> int:
    """The calls that the server billed since it was last asked."""
    with urllib.request.urlopen(f"{url}/bill", timeout=10) as answer:
        return int(json.load(answer)["calls"])


def _endpoint(url: str) -> Endpoint:
    return Endpoint(
        provider="bench", dialect="openai", base_url=f"{url}/v1", model="m", concurrency=CALLS
    )


async def _bare(url: str) -> float:
    """Seconds for the same requests through httpx, with nothing around it."""
    endpoint = _endpoint(url)
    wires = [
        openai.wire(
            endpoint,
            ModelRequest(
                messages=(Message(role="user", part="query", text=f"item {number}"),),
                tokens_out_max=200,
            ),
        )
        for number in range(_HTTP_CALLS)
    ]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    began = now()
    async with httpx.AsyncClient(timeout=60.0, limits=limits, trust_env=False) as client:

        async def one(path: str, body: bytes) -> None:
            headers = {"content-type": "application/json"}
            where = f"{endpoint.base_url}{path}"
            async with client.stream("POST", where, content=body, headers=headers) as answer:
                read = b"".join([piece async for piece in answer.aiter_bytes()])
            assert b"[DONE]" in read

        await asyncio.gather(*(one(wire.path, wire.body) for wire in wires))
    return now() - began


class _Turns:
    """A model whose turns are told here, and whose calls go over HTTP."""

    def __init__(self, url: str, calls: int) -> None:
        self._http = HttpModel(_endpoint(url))
        self._calls = calls
        self.name = self._http.name

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return self._http.admitted()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        if request.messages[0].role == "system":
            return ModelReply(text=_turn(self._calls), usage=_USAGE)
        return await self._http.ask(request, heard=heard)

    async def close(self) -> None:
        await self._http.close()


def fan_out_http(world: World) -> Iterable[Row]:
    pairs = []
    with _server() as url, SqliteLedger(world.directory / "fan-out-http.db") as ledger:
        # In turn, so that a busy moment falls on both. The first pair imports.
        for _ in range(_ROUNDS):
            plain = world.do(_bare(url))
            took, run = _ran(world, ledger, _Turns(url, _HTTP_CALLS), "1000")
            if run.answer != str(_HTTP_CALLS):
                raise RuntimeError(f"{run.answer} of {_HTTP_CALLS} answered; {run.detail}")
            pairs.append((plain, took))
        _bill(url)
        took, run = _ran(world, ledger, _Turns(url, CALLS), _USD_CAP)
        billed = _bill(url)
    bare = sorted(pair[0] for pair in pairs[1:])[(_ROUNDS - 1) // 2]
    yield Row(
        bench="fan-out-http",
        name=f"{_HTTP_CALLS} calls over loopback HTTP, to bare httpx",
        unit="x",
        samples=[took / plain for plain, took in pairs[1:]],
        target=1.5,
        against=f"bare httpx: {bare:.2f} s",
    )
    yield _billed(billed * USD_EACH, took=took, refused=CALLS - billed, about=", over HTTP")


# -- elsewhere ----------------------------------------------------------------------------------


def fan_out_peers(world: World) -> Iterable[Row]:
    yield from _peer("rlms", "TALLYSTICK_BENCH_RLMS", _rlms)
    yield from _peer("pydantic-ai", "TALLYSTICK_BENCH_PYDANTIC_AI", _pydantic_ai)


def _peer(who: str, variable: str, measured: Any) -> Iterable[Row]:  # noqa: ANN401
    python = os.environ.get(variable, "")
    if not python or not Path(python).exists():
        why = f"set {variable} to a Python that has it"
        yield Row(bench="fan-out", name=who, unit="", samples=[], skipped=why, who=who)
        return
    yield measured(python)


def _pydantic_ai(python: str) -> Row:
    asked = {
        "calls": CALLS,
        "seconds": SECONDS,
        "usd_each": str(USD_EACH),
        "usd_cap": _USD_CAP,
    }
    found = _driven(python, "pydantic_ai_budget.py", asked)
    return _billed(
        found["billed"],
        took=found["seconds"],
        refused=found["refused"],
        who="pydantic-ai",
        about=f"; {found['version']}",
    )


def _rlms(python: str) -> Row:
    with _server() as url:
        asked = {"url": f"{url}/v1", "usd_cap": float(_USD_CAP)}
        found = _driven(python, "rlms_budget.py", asked)
        billed = _bill(url)
    return _billed(
        billed * USD_EACH,
        took=found["seconds"],
        refused=CALLS - billed,
        who="rlms",
        about=f"; {found['version']}, {found['ended'][:40]}",
    )


def _driven(python: str, driver: str, asked: dict[str, object]) -> dict[str, Any]:
    # Away from the repository: a peer's own imports must not find our modules.
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [python, str(ROOT / "bench" / "peers" / driver)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            cwd=directory,
            timeout=_PEER_SECONDS_MAX,
        )
    if done.returncode:
        raise RuntimeError(f"{driver} failed: {done.stderr.strip()[-500:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


BENCHES: dict[str, Bench] = {
    "reserve": reserve,
    "fan-out": fan_out,
    "fan-out-http": fan_out_http,
    "fan-out-peers": fan_out_peers,
}
