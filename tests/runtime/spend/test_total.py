"""The total of a ledger: recorded in its file, it binds every process that spends on it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.host_call_sandbox import HostCallSandbox, calling
from tests.ledger.builders import as_before_columns

from tallystick.client import Session
from tallystick.core.budget.amount import Budget, LimitWouldRise
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.errors import LedgerFormatUnknown
from tallystick.ledger.file import FORMAT, LEDGER
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.price_table import Pricing
from tallystick.runtime.runs.result import Run
from tallystick.runtime.spend.client_scopes import NO_LIMIT
from tallystick.runtime.spend.scopes import DEPLOYMENT
from tallystick.testing.models import PRICING, ModelDouble, by_prompt

LIMITS = RunLimits(tokens=10_000_000, reply_tokens=200, turns=3)
TOTAL = Budget.of(usd="0.006")


def counting() -> ModelDouble:
    """Write a program each turn that answers nothing."""
    numbers = itertools.count()
    return ModelDouble(by_prompt(lambda prompt: calling([], note=str(next(numbers)))))


@contextlib.contextmanager
def opened(
    path: Path, model: ModelDouble, total: Budget | None = None, *, pricing: Pricing = PRICING
) -> Iterator[Session]:
    with (
        SqliteLedger(path) as ledger,
        Session(
            model=model,
            ledger=ledger,
            sandbox=HostCallSandbox(),
            pricing=pricing,
            total=NO_LIMIT if total is None else total,
        ) as session,
    ):
        yield session


def spend(
    path: Path, model: ModelDouble, total: Budget | None = None, *, runs: int = 8
) -> list[Run]:
    """Run goals, each as a process of its own would."""
    ended = []
    for _ in range(runs):
        with opened(path, model, total) as session:
            ended.append(session.run("?", limits=LIMITS))
    return ended


def recorded(path: Path) -> Budget | None:
    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        return next((each.limit for each in scopes.rows()), None)


def change(path: Path, usd: str | None, *, may_raise: bool = False) -> None:
    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        scopes.change_total(DEPLOYMENT, lambda _: Budget.of(usd=usd), may_raise=may_raise)


def test_a_recorded_total_binds_a_process_that_sets_none(tmp_path: Path) -> None:
    model = counting()
    spend(tmp_path / "ledger.db", model, TOTAL, runs=1)

    last = spend(tmp_path / "ledger.db", model)[-1]

    assert last.stop == "budget"
    assert "left in this deployment; tally total shows its limit" in last.detail
    assert 0 < model.billed <= nano_usd("0.006")


def test_a_higher_total_of_a_process_does_not_raise_the_recorded_one(tmp_path: Path) -> None:
    model = counting()
    spend(tmp_path / "ledger.db", model, TOTAL, runs=1)

    spend(tmp_path / "ledger.db", model, Budget.of(usd=100))

    assert model.billed <= nano_usd("0.006")
    assert recorded(tmp_path / "ledger.db") == TOTAL


def test_a_process_may_lower_the_total_for_itself_alone(tmp_path: Path) -> None:
    path, careful, other = tmp_path / "ledger.db", counting(), counting()
    spend(path, careful, Budget.of(usd="0.012"), runs=1)
    before = careful.billed

    stopped = spend(path, careful, TOTAL)[-1]
    lowered = careful.billed
    spend(path, other)

    assert "left in this deployment" in stopped.detail
    assert before < lowered <= nano_usd("0.006")
    assert nano_usd("0.006") < careful.billed + other.billed <= nano_usd("0.012")
    assert recorded(path) == Budget.of(usd="0.012")


def test_a_lower_total_of_a_process_counts_what_others_spent(tmp_path: Path) -> None:
    path, other, careful = tmp_path / "ledger.db", counting(), counting()
    spend(path, other, Budget.of(usd="0.014"), runs=10)
    assert other.billed > nano_usd("0.006")

    (stopped,) = spend(path, careful, TOTAL, runs=1)

    assert stopped.stop == "budget"
    assert careful.asked == []


def test_a_lower_total_of_a_process_refuses_a_call_without_a_price(tmp_path: Path) -> None:
    path, model = tmp_path / "ledger.db", counting()
    change(path, None)
    with opened(path, model, TOTAL, pricing=Pricing()) as session:
        ended = session.run("?", limits=LIMITS)

    assert (ended.stop, model.asked) == ("budget", [])


def test_a_total_recorded_while_a_run_goes_binds_its_next_call(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        change(path, "0")
        return calling([])

    (ended,) = spend(path, ModelDouble(by_prompt(answer)), runs=1)

    assert (ended.stop, len(asked)) == ("budget", 1)
    assert "left in this deployment" in ended.detail


def test_what_was_spent_counts_for_the_process_that_sets_no_total_too(tmp_path: Path) -> None:
    path, model = tmp_path / "ledger.db", counting()
    change(path, "100")

    spend(path, model, runs=2)

    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        (row,) = scopes.rows()
        assert scopes.holds() == []
    assert row.spent.usd == model.billed > 0


def test_a_ledger_without_a_total_is_left_without_one(tmp_path: Path) -> None:
    spend(tmp_path / "ledger.db", counting(), runs=1)

    assert recorded(tmp_path / "ledger.db") is None


def test_a_ledger_in_memory_has_no_total(tmp_path: Path) -> None:
    model = counting()
    with Session(
        model=model,
        ledger=MemoryLedger(),
        sandbox=HostCallSandbox(),
        pricing=PRICING,
    ) as session:
        assert session.run("?", limits=LIMITS).stop == "max_turns"


# -- changing it ---------------------------------------------------------------------------------


def test_lowering_the_recorded_total_leaves_a_record(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    change(path, "5")
    change(path, "2")
    change(path, "2")

    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        found = scopes.changes(DEPLOYMENT)

    assert [(each.before, each.after) for each in found] == [
        (NO_LIMIT, Budget.of(usd=5)),
        (Budget.of(usd=5), Budget.of(usd=2)),
    ]
    assert all(each.changed_at_ms > 0 for each in found)


@pytest.mark.parametrize("higher", ["5.000000001", None])
def test_raising_the_recorded_total_has_to_be_asked_for(tmp_path: Path, higher: str | None) -> None:
    path = tmp_path / "ledger.db"
    change(path, "5")

    with pytest.raises(LimitWouldRise, match="--raise"):
        change(path, higher)
    assert recorded(path) == Budget.of(usd=5)

    change(path, higher, may_raise=True)
    assert recorded(path) == Budget.of(usd=higher)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["run", "lower"]), st.sampled_from([None, "0", "0.002", "0.01", "1"])
        ),
        max_size=6,
    )
)
def test_no_process_spends_above_the_lowest_total_recorded(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str | None]]
) -> None:
    path, model = tmp_path_factory.mktemp("law") / "ledger.db", counting()
    lowest = nano_usd("0.004")
    change(path, "0.004")
    for kind, usd in steps:
        before = model.billed
        if kind == "run":
            spend(path, model, None if usd is None else Budget.of(usd=usd), runs=1)
        elif usd is not None and nano_usd(usd) <= lowest:
            lowest = nano_usd(usd)
            change(path, usd)
        assert model.billed <= max(before, lowest)
    assert recorded(path) == Budget(usd=lowest)


# -- other versions ------------------------------------------------------------------------------


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        (found,) = db.execute("PRAGMA user_version").fetchone()
    assert isinstance(found, int)
    return found


def test_a_version_that_does_not_know_the_recorded_total_refuses_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model = tmp_path / "ledger.db", counting()
    change(path, "5")
    # The formats that such a version knows.
    older = dataclasses.replace(LEDGER, versions=(1,))
    monkeypatch.setattr("tallystick.ledger.sqlite.LEDGER", older)
    monkeypatch.setattr("tallystick.ledger.writer.LEDGER", older)

    with pytest.raises(LedgerFormatUnknown):
        spend(path, model, runs=1)
    assert (model.asked, version(path)) == ([], FORMAT)


def test_a_total_of_an_earlier_version_binds_every_process(tmp_path: Path) -> None:
    path, model = tmp_path / "ledger.db", counting()
    with SqliteLedger(path) as ledger, SharedScopes(ledger.file) as scopes:
        scopes.declare(DEPLOYMENT, parent=None, kind="deployment", name="", budget=TOTAL)
    as_before_columns(path)

    spend(path, model)

    assert 0 < model.billed <= nano_usd("0.006")
    assert version(path) == FORMAT
