"""What commands say of money: unknown is not zero, a bound is not a bill, and advice works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally
from tests.model.fake_server import FakeServer, ok, status

from tallystick.testing.models import block

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

ANSWER = block("FINAL(7)")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        running.always(ok(ANSWER))
        yield running


@pytest.fixture
def tally(tmp_path: Path, server: FakeServer) -> Tally:
    made = Tally(tmp_path)
    made.env["TALLYSTICK_MODEL_URL"] = server.url
    return made


def config(tally: Tally, text: str) -> None:
    path = tally.directory / ".config" / "tallystick" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_a_model_without_a_price_shows_no_dollars_also_after_a_rate_limit(
    tally: Tally, server: FakeServer
) -> None:
    server.will(status(429, "slow down", retry_after="0.05"))

    done = tally("run", "how many?", "-m", "local:m", "--strategy", "code")
    receipt = tally("receipt", "last")

    assert done.returncode == 0, done.stderr
    assert len(server.seen) == 2
    for shown in (done.stderr, receipt.stdout):
        assert "price unknown" in shown
        assert "$" not in shown


def test_the_line_of_the_refusal_makes_the_run_pass(tally: Tally, server: FakeServer) -> None:
    words = ("run", "how many?", "-m", "local:m", "--max-usd", "0.01", "--strategy", "code")

    refused = tally(*words)
    found = re.search(r'prices\."local:\*" = "free"', refused.stderr)
    assert found is not None
    config(tally, f"{found.group()}\n\n[aliases]\nmine = 'local:m'\n")
    done = tally(*words)

    assert refused.returncode == 3
    assert "--max-usd DOLLARS" not in refused.stderr
    assert "raise" not in refused.stderr
    assert done.returncode == 0, done.stderr
    assert "$0.00" in done.stderr
    assert len(server.seen) == 1


def test_a_dry_run_does_not_advise_a_higher_cap_where_the_price_is_unknown(tally: Tally) -> None:
    done = tally("run", "how many?", "-m", "local:m", "--max-usd", "0.01", "--dry-run")

    assert "the price is unknown" in done.stdout
    assert "raise --max-usd" not in done.stdout


def test_a_cost_that_holds_reservations_is_shown_as_at_most(
    tally: Tally, server: FakeServer
) -> None:
    config(tally, '[prices."local:*"]\ninput = 1\noutput = 4\n')
    words = ("run", "how many?", "-m", "local:m", "--strategy", "code")

    reported = tally(*words), tally("receipt", "last")
    server.will(ok(ANSWER, usage=None))
    reserved = tally(*words), tally("receipt", "last")

    assert "at most $" not in reported[0].stderr
    assert "at most" not in reported[1].stdout
    assert "at most $" in reserved[0].stderr
    assert re.search(r"^cost      at most \$", reserved[1].stdout, re.MULTILINE)
    listed = json.loads(tally("ls", "--json").stdout)
    assert [each["at_most"] for each in listed] == [False, True]
    assert ["<= $" in line for line in tally("ls").stdout.splitlines()] == [False, True]
    inspected = [tally("inspect", each["run"]).stdout.splitlines()[-1] for each in listed]
    assert ["at most" in line for line in inspected] == [False, True]


def test_steps_around_a_run_whose_cost_holds_reservations_are_marked_too(
    tally: Tally, server: FakeServer
) -> None:
    config(tally, '[prices."local:*"]\ninput = 1\noutput = 4\n')
    script = (
        "import tallystick\n"
        "from tallystick.ledger import SqliteLedger\n"
        "from tallystick.settings import ledger_path\n"
        "with SqliteLedger(ledger_path()) as ledger:\n"
        "    with tallystick.Agent('local:m', ledger=ledger) as session:\n"
        "        @tallystick.step\n"
        "        def ask():\n"
        "            return session.run('how many?', strategy='code').answer\n"
        "        ask()\n"
    )

    tally.python(script)
    server.will(ok(ANSWER, usage=None))
    tally.python(script)

    listed = json.loads(tally("ls", "--json").stdout)
    marks = [(each["kind"], each["at_most"]) for each in listed]
    assert sorted(marks) == [("run", False), ("run", True), ("steps", False), ("steps", True)]


def test_progress_says_at_most_while_a_cost_holds_reservations(
    tally: Tally, server: FakeServer
) -> None:
    config(tally, '[prices."local:*"]\ninput = 1\noutput = 4\n')
    server.will(ok(block("print('so far')"), usage=None), ok(ANSWER))

    done = tally("run", "how many?", "-m", "local:m", "--strategy", "code")

    assert re.search(r"^turn 1 .*\n {9}at most \$[0-9.]+ so far  ", done.stderr, re.MULTILINE)


def test_a_run_that_the_total_stops_is_not_sent_to_another_cap(tally: Tally) -> None:
    config(tally, '[prices."local:*"]\ninput = 1\noutput = 4\n')
    tally("total", "0")

    done = tally("run", "how many?", "-m", "local:m", "--max-usd", "1")

    assert done.returncode == 3
    assert "--max-usd" not in done.stderr
    assert re.search(
        r"^next     tally total USD --raise\n         tally resume \w+$", done.stderr, re.M
    )
