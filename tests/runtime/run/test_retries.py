"""Runs whose model fails: every attempt is on the ledger, and the run can be played again."""

from __future__ import annotations

import pytest

from tallystick.core.charge import RunLimits
from tallystick.core.machine import machine
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelReplied,
    ReceiptIssued,
    RunEnded,
    RunStarted,
    intent_of,
)
from tallystick.ledger.verify import verify_ledger
from tallystick.model.scripted import ScriptedReply
from tallystick.runtime.runs.history import recorded_model
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import ModelDouble, block
from tallystick.testing.runs import Played, play

BUSY = ScriptedReply(error="slow down", reason="rate_limit", retry_after_ms=1)
ANSWER = ScriptedReply(text=block("FINAL(6 * 7)"))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited at the least is decided elsewhere; here it would be waited for."""
    monkeypatch.setattr(machine, "_WAIT_MS", 1)


def attempts(played: Played) -> list[tuple[int, int, str]]:
    """Turn, attempt, and what came of each, in their order on the ledger."""
    asked = {each.intent: each for each in played.records if isinstance(each, AskModel)}
    return [
        (asked[each.intent].turn, asked[each.intent].attempt, type(each).__name__)
        for each in played.records
        if isinstance(each, ModelFailed | ModelReplied)
    ]


def test_every_attempt_is_on_the_ledger_before_and_after_it_is_made(sandbox: WasmSandbox) -> None:
    played = play(sandbox, [BUSY, BUSY, ANSWER])

    assert (played.run.stop, played.run.answer, played.run.turns) == ("answered", "42", 1)
    assert attempts(played) == [
        (1, 1, "ModelFailed"),
        (1, 2, "ModelFailed"),
        (1, 3, "ModelReplied"),
    ]
    tags = [type(each) for each in played.records[:7]]
    assert tags == [RunStarted, *[AskModel, ModelFailed] * 2, AskModel, ModelReplied]
    assert verify_ledger(played.ledger).ok


def test_a_run_with_failures_replays_without_its_model(sandbox: WasmSandbox) -> None:
    played = play(sandbox, [BUSY, ScriptedReply(text=block("x = 6")), BUSY, BUSY, ANSWER])

    report = played.replayed()

    assert report.held
    assert report.entries == len(played.records)
    assert report.programs == 2


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ([BUSY] * 3, "rate_limit: slow down (3 attempts)"),
        ([ScriptedReply(error="no", reason="auth_failure")], "auth_failure: no"),
    ],
)
def test_a_run_that_ends_in_failures_says_why_and_replays(
    sandbox: WasmSandbox, script: list[ScriptedReply], detail: str
) -> None:
    played = play(sandbox, script)

    assert (played.run.stop, played.run.detail) == ("model_error", detail)
    assert played.replayed().held


def test_a_recorded_model_repeats_the_failures_too(sandbox: WasmSandbox) -> None:
    first = play(sandbox, [BUSY, ANSWER])
    model = recorded_model(first.ledger, first.run.run)

    again = play(sandbox, model)

    assert attempts(again) == attempts(first)
    assert model.drift == []
    (failed,) = [each for each in again.records if isinstance(each, ModelFailed)]
    assert (failed.reason, failed.message, failed.kind) == ("rate_limit", "slow down", "transient")
    assert failed.retry_after_ms == 1


def crowded(*, let_in: int = 0) -> ModelDouble:
    """A model whose provider admits so many calls, and then none."""
    model = ModelDouble(block("print('so far')"))
    model.admit = lambda before: None if before < let_in else model.hang()
    return model


def test_a_run_whose_time_is_over_before_it_is_let_in_ends_by_its_deadline(
    sandbox: WasmSandbox,
) -> None:
    model = crowded()

    played = play(sandbox, model, limits=RunLimits(wall_ms=50))

    assert played.run.stop == "deadline"
    assert played.run.detail == "50 ms passed before the model was free"
    assert [type(each) for each in played.records] == [RunStarted, ReceiptIssued, RunEnded]
    assert model.waiting == 0
    assert played.replayed().held


def test_a_run_that_waits_too_long_later_has_nothing_open_gives_what_it_has_and_replays(
    sandbox: WasmSandbox,
) -> None:
    played = play(sandbox, crowded(let_in=1), limits=RunLimits(wall_ms=500))

    assert (played.run.stop, played.run.answer, played.run.partial) == ("deadline", "so far", True)
    intents = [each for each in map(intent_of, played.records) if each is not None]
    assert all(intents.count(each) == 2 for each in intents)
    assert verify_ledger(played.ledger).ok
    report = played.replayed()
    assert report.held
    assert report.entries == len(played.records)
