"""The total of a ledger from Python: read, lowered, raised only on purpose, for every process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.client import Session
from tallystick.core.budget.amount import LimitWouldRise
from tallystick.core.errors import InvalidLimit
from tallystick.testing.models import PRICING, ModelDouble, programs
from tallystick.testing.sandbox import PlainSandbox
from tallystick.upkeep import Total, change_total, open_stores, read_total


def test_a_ledger_without_a_total_says_so(tmp_path: Path) -> None:
    with open_stores(tmp_path / "ledger.db") as stores:
        assert read_total(stores) == Total()


def test_a_total_binds_the_next_run_of_another_client(tmp_path: Path) -> None:
    with open_stores(tmp_path / "ledger.db") as stores:
        change_total(stores, "0.000000001")
        with Session(
            model=ModelDouble(programs("FINAL(1)")),
            sandbox=PlainSandbox(),
            ledger=stores.ledger,
            pricing=PRICING,
            config=None,
        ) as session:
            run = session.run("one?", strategy="code")

        assert run.stop == "budget"
        assert read_total(stores).left == 1


def test_a_total_is_raised_only_on_purpose_and_each_change_is_kept(tmp_path: Path) -> None:
    with open_stores(tmp_path / "ledger.db") as stores:
        change_total(stores, "5")
        with pytest.raises(LimitWouldRise, match=r"5\.00"):
            change_total(stores, "20")
        with pytest.raises(LimitWouldRise, match="no limit"):
            change_total(stores, None)

        raised = change_total(stores, "20", may_raise=True)

    assert raised.usd == 20 * 10**9
    assert [each.after.usd for each in raised.changes] == [5 * 10**9, 20 * 10**9]


def test_a_sum_that_is_no_dollars_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with open_stores(tmp_path / "ledger.db") as stores:
        with pytest.raises(InvalidLimit, match="at most nine decimals"):
            change_total(stores, "0.00000000001")

        assert read_total(stores) == Total()
