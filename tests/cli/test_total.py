"""`tally total`: the recorded total is shown, lowered with a record, and raised when asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tallystick.cli.main import cli
from tallystick.core.budget.amount import LimitWouldRise
from tallystick.core.errors import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "config", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path / "work")


def total(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["total", *arguments], standalone_mode=False)


def recorded() -> object:
    return json.loads(total("--json").stdout)["total"]


def test_a_ledger_begins_without_a_total() -> None:
    assert total().stdout == "total     none\n"


def test_a_total_is_set_lowered_and_shown_with_its_changes() -> None:
    total("5")
    total("2.50")

    lines = total().stdout.splitlines()

    assert lines[:4] == [
        "total     $2.50", "spent     $0.00", "reserved  $0.00", "left      $2.50",
    ]  # fmt: skip
    assert [each.split("  ")[-1] for each in lines[4:]] == ["none to $5.00", "$5.00 to $2.50"]


@pytest.mark.parametrize("higher", ["5.01", "none"])
def test_raising_needs_its_option(higher: str) -> None:
    total("5")

    assert isinstance(total(higher).exception, LimitWouldRise)
    assert recorded() == 5_000_000_000

    assert total(higher, "--raise").exception is None
    assert recorded() == (None if higher == "none" else 5_010_000_000)


@pytest.mark.parametrize("wrong", ["abc", "nan", "inf", "1e400", "0.0000000001", ""])
def test_what_is_no_sum_of_dollars_is_refused(wrong: str) -> None:
    refused = total(wrong).exception

    assert isinstance(refused, UsageError)
    assert "at most nine decimals" in str(refused)
    assert recorded() is None


def test_the_option_alone_changes_nothing() -> None:
    assert "tally total USD --raise" in str(total("--raise").exception)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("1", "lower: it is the limit for runs with that configuration"),
        ("9", "the recorded total is lower, and is the limit"),
    ],
)
def test_a_configured_total_beside_the_recorded_one_is_explained(
    monkeypatch: pytest.MonkeyPatch, own: str, said: str
) -> None:
    monkeypatch.setenv("TALLYSTICK_TOTAL_USD", own)

    shown = total("5")

    assert f"total_usd is ${own}.00 (environment TALLYSTICK_TOTAL_USD)" in shown.stderr
    assert said in shown.stderr
