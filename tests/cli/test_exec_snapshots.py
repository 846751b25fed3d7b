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
    shown = json.loads(tally("session", "show", "work", "--json").stdout)
    return f"{shown['id']}/snapshots"


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
    assert done.stderr.startswith("backend.store: session 'work': ")
    assert done.stderr.count("\n") == 1


def test_a_snapshot_file_of_an_earlier_version_is_left_alone(tally: Tally) -> None:
    old = tally.directory / "data" / "snapshots.db"
    old.parent.mkdir(mode=0o700)
    old.write_bytes(b"whatever it holds")

    done = tally("exec", "--session", "work", program=COUNT)

    assert (done.returncode, done.stdout) == (0, "1\n")
    assert old.read_bytes() == b"whatever it holds"


def test_a_run_goes_on_in_a_named_session_and_a_program_after_it(tally: Tally) -> None:
    tally("exec", "--session", "work", program="hosts = ['ada', 'bob']")
    line = json.dumps({"text": "```repl\nhosts.append('eve')\nFINAL(len(hosts))\n```"})
    (tally.directory / "demo.jsonl").write_text(line)

    done = tally("run", "how many?", "-m", "scripted:demo.jsonl", "--session", "work", "--quiet")

    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert tally.result("--session", "work", program="hosts[-1]")["value"] == "'eve'"
    assert tally("verify").returncode == 0


def test_a_named_session_is_listed_shown_kept_brought_back_and_removed(tally: Tally) -> None:
    tally("exec", "--session", "work", program="x = 1")
    other = tally("session", "new").stdout.strip()

    listed = tally("session", "ls").stdout.splitlines()
    fields = json.loads(tally("session", "ls", "--json").stdout)["sessions"]

    assert [each["id"] == other for each in fields] == [False, True]
    assert fields[0]["name"] == "work"
    assert "name" not in fields[1]
    assert listed[0].endswith("MiB  no end, named work")
    assert tally("session", "show", "last").stdout.startswith(f"session   {other}")
    tally("snapshot", "create", "work", "one")
    tally("exec", "--session", "work", program="x = 2")
    tally("snapshot", "restore", "work", "one")
    assert tally.result("--session", "work", program="x")["value"] == "1"
    assert tally("session", "extend", "work").returncode == 4
    assert tally("session", "rm", "work", "--yes").returncode == 0
    assert tally.result("--session", "work", program="'x' in globals()")["value"] == "False"


def test_a_session_of_an_earlier_version_is_brought_over(tally: Tally) -> None:
    """Files as the version before wrote them, with an interpreter that is loaded here."""
    tally("exec", "--session", "new", "--seed", "3", program="x = 41")
    tally.python(AS_BEFORE)
    old = tally.directory / "data" / "sessions" / "work.json"
    assert old.exists()

    assert tally.result("--session", "work", program="x + 1")["value"] == "42"

    assert not old.parent.exists()
    assert "has seed 3" in tally("exec", "--session", "work", "--seed", "4", program="1").stderr
    assert json.loads(tally("attach", "verify", "--json").stdout)["ok"]
    assert tally("verify").returncode == 0


AS_BEFORE = """
import json
from tallystick.sandbox.snapshot import SnapshotId
from tallystick.settings.paths import data_directory, ledger_path
from tallystick.storage.clock import new_id, now_ms
from tallystick.stores import open_stores
with open_stores(ledger_path()) as stores:
    sessions = stores.sessions
    made = sessions.get(sessions.find("new"))
    image = sessions.images.load_image(made.id, made.left.image)
    id = new_id()
    old = SnapshotId(id=new_id(), name="current", session_id=f"{id}/current", created_at=now_ms())
    sessions.images.save(old, image)
folder = data_directory() / "sessions"
folder.mkdir(mode=0o700)
record = {"format": 1, "name": "work", "session_id": id, "seed": 3, "clock_ns": 0,
          "created_at": now_ms()}
(folder / "work.json").write_text(json.dumps(record))
"""
