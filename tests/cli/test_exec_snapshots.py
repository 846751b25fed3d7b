"""What `tally exec --session` keeps, as `tally attach` sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally

from tallystick.sandbox.snapshot import SNAPSHOT_TYPE

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

COUNT = "n = globals().get('n', 0) + 1; n"


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path)


def holder(tally: Tally) -> str:
    record = json.loads((tally.directory / "data" / "sessions" / "work.json").read_bytes())
    return f"{record['session_id']}/current/snapshots"


def test_a_session_is_one_attachment_that_is_listed_verified_and_not_collected(
    tally: Tally,
) -> None:
    for _ in range(3):
        tally("exec", "--session", "work", program=COUNT)

    listed = tally("attach", "ls", "--session", holder(tally))
    collected = json.loads(tally("attach", "gc", "--grace", "0", "--json").stdout)
    verified = json.loads(tally("attach", "verify", "--json").stdout)

    assert listed.stdout.count("\n") == 1
    assert listed.stdout.split()[1] == "held"
    assert listed.stdout.split()[3] == SNAPSHOT_TYPE
    assert listed.stdout.split()[4].startswith("current:")
    assert (collected["scanned_blob_count"], collected["reclaimed_count"]) == (1, 0)
    assert (verified["ok"], verified["references"]) == (True, 1)
    assert tally.result("--session", "work", program=COUNT)["value"] == "4"


def test_without_a_session_nothing_is_kept(tally: Tally) -> None:
    tally("exec", program="1")

    assert not (tally.directory / "data").exists()


def test_a_session_whose_bytes_are_damaged_is_one_clear_line(tally: Tally) -> None:
    tally("exec", "--session", "work", program=COUNT)
    listed = json.loads(tally("attach", "ls", "--session", holder(tally), "--json").stdout)
    id = listed[0]["ref"]["id"]
    file = tally.directory / "data" / "ledger.db-attachments" / id[:2] / id
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    done = tally("exec", "--session", "work", program=COUNT)

    assert done.returncode == 4
    assert done.stderr.startswith("backend.store: snapshot 'current': ")
    assert done.stderr.count("\n") == 1


def test_a_snapshot_file_of_an_earlier_version_is_left_alone(tally: Tally) -> None:
    old = tally.directory / "data" / "snapshots.db"
    old.parent.mkdir(mode=0o700)
    old.write_bytes(b"whatever it holds")

    done = tally("exec", "--session", "work", program=COUNT)

    assert (done.returncode, done.stdout) == (0, "1\n")
    assert old.read_bytes() == b"whatever it holds"
