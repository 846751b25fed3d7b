"""Whole runs against a server in every misfortune: reasons, attempts, exit codes, and no key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import pytest
from tests.model import fake_server as fake
from tests.model.fake_server import DIALECTS, KEY, FakeServer, endpoint
from tests.model.misfortunes import MISFORTUNES, Misfortune

from tallystick.cli.exit_codes import exit_code_of_stop
from tallystick.cli.show import transcript_lines
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.machine import machine
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelReplied,
    Record,
    RunEnded,
    encode_record,
)
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.endpoint import Dialect, Endpoint
from tallystick.model.http import HttpModel
from tallystick.model.pacing import Gate
from tallystick.model.port import Heard, ModelReason, ModelReply, ModelRequest
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block

pytestmark = pytest.mark.slow

ANSWER = fake.ok(block("FINAL(6 * 7)"))
PROVIDER = 5


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited between attempts is decided elsewhere; here it would be waited for."""
    monkeypatch.setattr(machine, "_WAIT_MS", 1)


class _Unhurried:
    """A clock for a gate, which goes on by being slept on."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class _OneByOne(HttpModel):
    """Closes after every attempt, so that no connection outlives the loop of its run."""

    def __init__(self, where: Endpoint) -> None:
        time = _Unhurried()
        super().__init__(where, Gate(concurrency=2, clock=time.clock, sleep=time.sleep))

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda text: None) -> ModelReply:
        try:
            return await super().ask(request, heard=heard)
        finally:
            await self.close()


@dataclass
class Played:
    run: Run
    records: list[Record]

    @property
    def attempts(self) -> list[tuple[AskModel, ModelFailed | ModelReplied]]:
        """Every attempt with what came of it. Raises unless the two alternate."""
        asked = [each for each in self.records if isinstance(each, AskModel)]
        came = [each for each in self.records if isinstance(each, ModelFailed | ModelReplied)]
        pairs = list(zip(asked, came, strict=True))
        assert all(one.intent == other.intent for one, other in pairs)
        assert all(self.records.index(other) == self.records.index(one) + 1 for one, other in pairs)
        return pairs

    @property
    def failures(self) -> list[ModelFailed]:
        return [each for _, each in self.attempts if isinstance(each, ModelFailed)]


def play(sandbox: WasmSandbox, where: Endpoint, *, retries: int) -> Played:
    ledger = MemoryLedger()
    with Session(model=_OneByOne(where), ledger=ledger, sandbox=sandbox) as session:
        run = session.run(
            "what is six times seven?", limits=RunLimits(retries=retries), strategy="code"
        )
    return Played(run=run, records=list(records_of(ledger, run.run)))


def outputs(records: Sequence[Record]) -> str:
    """Everything of a run that is stored or shown."""
    stored = [encode_record(record).decode() for record in records]
    return "\n".join([*stored, *(line for each in records for line in transcript_lines(each))])


def attempts_of(misfortune: Misfortune, *, retries: int) -> int:
    return 1 + retries if misfortune.kind == "transient" else 1


@pytest.mark.parametrize("name", MISFORTUNES)
def test_a_run_ends_with_the_reason_after_every_attempt_is_written_down(
    server: FakeServer, sandbox: WasmSandbox, name: str
) -> None:
    misfortune = MISFORTUNES[name]
    server.always(misfortune.does)
    dialect = DIALECTS[sum(name.encode()) % 2]

    played = play(sandbox, endpoint(server, dialect, **misfortune.endpoint), retries=1)

    count = attempts_of(misfortune, retries=1)
    assert [each.reason for each in played.failures] == [misfortune.reason] * count
    assert [each.kind for each in played.failures] == [misfortune.kind] * count
    assert [each.billed for each in played.failures] == [misfortune.billed] * count
    assert len(server.seen) == len(played.attempts) == count
    assert [asked.attempt for asked, _ in played.attempts] == list(range(1, count + 1))
    assert (played.run.stop, exit_code_of_stop(played.run.stop)) == ("model_error", PROVIDER)
    assert played.run.detail.startswith(f"{misfortune.reason}: fake:m at ")
    assert misfortune.says in played.run.detail
    assert isinstance(played.records[-1], RunEnded)
    assert KEY not in outputs(played.records)


@pytest.mark.parametrize(
    "name", [name for name, each in MISFORTUNES.items() if each.kind == "transient"]
)
def test_what_may_be_gone_next_time_is_asked_again_and_the_run_is_answered(
    server: FakeServer, sandbox: WasmSandbox, name: str
) -> None:
    misfortune = MISFORTUNES[name]
    server.will(misfortune.does, ANSWER)

    played = play(sandbox, endpoint(server, **misfortune.endpoint), retries=2)

    assert (played.run.stop, played.run.answer) == ("answered", "42")
    assert [type(came) for _, came in played.attempts] == [ModelFailed, ModelReplied]
    assert [asked.turn for asked, _ in played.attempts] == [1, 1]
    assert played.run.charge.model_calls == 2
    if misfortune.retry_after_ms is not None:
        assert played.attempts[1][0].wait_ms == misfortune.retry_after_ms


def test_attempts_end_with_the_retries(server: FakeServer, sandbox: WasmSandbox) -> None:
    server.always(fake.status(500))

    played = play(sandbox, endpoint(server), retries=3)

    assert len(server.seen) == len(played.failures) == 4
    assert "(4 attempts)" in played.run.detail


def test_where_nothing_listens_a_run_says_so(sandbox: WasmSandbox) -> None:
    with FakeServer() as gone:
        where = endpoint(gone)

    played = play(sandbox, where, retries=1)

    assert [(each.reason, each.billed) for each in played.failures] == [
        ("network_error", False)
    ] * 2
    assert exit_code_of_stop(played.run.stop) == PROVIDER
    assert "nothing listens at" in played.run.detail


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_run_over_either_format_is_answered_and_charged_as_reported(
    server: FakeServer, sandbox: WasmSandbox, dialect: Dialect
) -> None:
    server.will(fake.ok(block("x = 6 * 7\nprint(x)")), fake.ok(block("FINAL(x)")))

    played = play(
        sandbox, endpoint(server, "openai" if dialect == "openai" else "anthropic"), retries=0
    )

    assert (played.run.stop, played.run.answer) == ("answered", "42")
    assert (played.run.charge.tokens_in, played.run.charge.tokens_out) == (22, 6)
    assert len(server.seen[1].json["messages"]) == len(server.seen[0].json["messages"]) + 2


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "usage",
    [
        None,
        "many",
        {"prompt_tokens": 0, "completion_tokens": 0, "input_tokens": 0, "output_tokens": 0},
        {"prompt_tokens": -5, "completion_tokens": 3, "input_tokens": -5, "output_tokens": 3},
        {"prompt_tokens": 10**40, "completion_tokens": 1, "input_tokens": 10**40},
    ],
)
def test_a_wrong_report_of_usage_is_charged_as_reserved_and_says_so(
    server: FakeServer, sandbox: WasmSandbox, dialect: Dialect, usage: object
) -> None:
    server.always(fake.ok(block("FINAL(6 * 7)"), usage=usage))

    played = play(sandbox, endpoint(server, dialect), retries=0)

    ((_, came),) = played.attempts
    assert isinstance(came, ModelReplied)
    assert played.run.stop == "answered"
    assert came.usage.reported is False
    assert came.settled is not None
    assert (came.settled.figures, came.settled.flags) == ("reserved", ("usage_missing",))
    assert played.run.charge.tokens_in == came.settled.tokens_in > came.usage.tokens_in > 50


def test_a_server_that_echoes_the_key_gets_it_into_no_record(
    server: FakeServer, sandbox: WasmSandbox
) -> None:
    server.will(
        fake.status(500, f"your key {KEY} is fine"),
        fake.in_stream({"type": "api_error", "message": f"Bearer {KEY}"}),
        fake.ok(block(f"key = {KEY!r}\nFINAL('done')"), model=KEY, usage={"key": KEY}),
    )

    played = play(sandbox, endpoint(server), retries=2)

    assert played.run.stop == "answered"
    assert [seen.key for seen in server.seen] == [KEY] * 3
    assert KEY not in outputs(played.records)
    assert KEY[:12] not in outputs(played.records)


def test_every_reason_is_met_by_some_misfortune() -> None:
    assert {each.reason for each in MISFORTUNES.values()} == set(get_args(ModelReason))
