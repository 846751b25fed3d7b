"""`tally attach`: what is put is got, listed, collected and verified; mistakes are one line."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

Attach = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def attach(tmp_path: Path) -> Attach:
    def call(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "tallystick.cli.main", "attach", *words],
            cwd=tmp_path,
            env={**os.environ, "TALLYSTICK_DATA_DIR": str(tmp_path / "data")},
            input=given,
            capture_output=True,
            timeout=60,
        )

    return call


def put(attach: Attach, given: bytes, *words: str) -> str:
    done = attach("put", "-", "--json", *words, given=given)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)[0]["id"])


@pytest.mark.parametrize("data", [b"hello\n", b"", bytes(range(256)) * 2_000], ids=len)
def test_what_is_put_is_got(attach: Attach, data: bytes, tmp_path: Path) -> None:
    id = put(attach, data)

    assert id == hashlib.sha256(data).hexdigest()
    assert attach("get", id[:12]).stdout == data
    assert attach("get", id, "-o", "copy").returncode == 0
    assert (tmp_path / "copy").read_bytes() == data


def test_a_session_reads_what_it_holds_and_nothing_else(attach: Attach) -> None:
    id = put(attach, b"mine", "--session", "a", "--label", "the \x1b[31mlabel")

    other = attach("get", id, "--session", "b")

    assert other.returncode == 6
    assert f"attachment `{id}` was not found" in other.stderr.decode()
    listed = attach("ls", "--session", "a").stdout
    assert b"the ?[31mlabel" in listed
    assert b"\x1b" not in listed
    assert attach("ls", "--session", "b").stdout == b""


def test_what_is_held_is_not_collected_and_what_is_damaged_is_named(
    attach: Attach, tmp_path: Path
) -> None:
    id = put(attach, b"x" * 200_000)

    report = json.loads(attach("gc", "--grace", "0", "--json").stdout)
    (file,) = [each for each in tmp_path.rglob(f"*{id[4:]}*") if each.is_file()]
    file.chmod(0o600)
    file.write_bytes(b"y" * 200_000)
    damaged = attach("verify", "--json")

    assert report["reclaimed_count"] == 0
    assert report["scanned_blob_count"] == 1
    assert damaged.returncode == 6
    assert json.loads(damaged.stdout)["bad"][0]["id"] == id
    assert attach("get", id, "-o", "never").returncode == 6
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("put", "nosuch"), 2, "nosuch: No such file"),
        (("get", "../../etc/passwd"), 2, "passwd"),
        (("get", "feed"), 6, "was not found"),
        (("gc", "--grace", "-1"), 2, "--grace"),
    ],
)
def test_mistakes_are_one_line(
    attach: Attach, words: tuple[str, ...], code: int, says: str
) -> None:
    done = attach(*words)

    assert done.returncode == code, done.stderr
    assert says in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_what_is_removed_is_freed_unless_another_session_holds_it(attach: Attach) -> None:
    alone = put(attach, b"x" * 100_000)
    shared = put(attach, b"shared")
    put(attach, b"shared", "--session", "b")

    removed = attach("rm", alone[:12], shared, "--json")

    assert removed.returncode == 0, removed.stderr
    assert json.loads(removed.stdout) == [
        {"id": alone, "freed": True, "freed_bytes": 100_000, "holders": 0},
        {"id": shared, "freed": False, "freed_bytes": 0, "holders": 1},
    ]
    assert attach("ls").stdout == b""
    assert attach("get", shared, "--session", "b").stdout == b"shared"
    assert json.loads(attach("gc", "--dry-run", "--json").stdout)["scanned_blob_count"] == 1
    again = attach("rm", alone)
    assert again.returncode == 6
    assert again.stderr.decode().count("\n") == 1


def test_if_one_id_is_not_held_nothing_is_removed(attach: Attach) -> None:
    id = put(attach, b"kept")

    assert attach("rm", id, "0" * 64).returncode == 6
    assert attach("get", id).stdout == b"kept"


def test_what_a_run_names_is_not_removed_from_under_it(attach: Attach, tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("a line\n" * 20_000)
    reply = '{"text": "```python\\nFINAL(len(context))\\n```"}\n'
    (tmp_path / "script.jsonl").write_text(reply * 3)
    environ = {**os.environ, "TALLYSTICK_DATA_DIR": str(tmp_path / "data")}
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "tallystick.cli.main", "run", "how long?", "-f", "big.txt"),
            *("-m", "scripted:script.jsonl", "--json"),
        ],
        cwd=tmp_path, env=environ, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    run = json.loads(ran.stdout)["run"]
    ((holder, id),) = {
        (each["intent"]["session_id"], each["ref"]["id"])
        for each in json.loads(attach("ls", "--run", run, "--json").stdout)
    }

    refused = attach("rm", id, "--session", holder)

    assert refused.returncode == 2
    assert b"is named by the records of a run" in refused.stderr
    assert attach("verify").returncode == 0


def test_gc_says_what_it_freed(attach: Attach, tmp_path: Path) -> None:
    id = put(attach, b"y" * 100_000)
    put(attach, b"kept")
    # As if its session had gone with the reference.
    (ledger,) = tmp_path.rglob("ledger.db")
    with contextlib.closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("DELETE FROM attachment_reference WHERE attachment_id = ?", (id,))

    dry = attach("gc", "--grace", "0", "--dry-run").stdout.decode().splitlines()
    done = attach("gc", "--grace", "0").stdout.decode().splitlines()

    assert dry[1:] == [f"would free  {id[:16]}  100,000 bytes"]
    assert done[1:] == [f"freed       {id[:16]}  100,000 bytes"]
    assert attach("gc", "--grace", "0").stdout.decode().count("\n") == 1


def test_a_device_without_end_stops_at_the_cap_and_leaves_nothing(
    attach: Attach, tmp_path: Path
) -> None:
    began = time.monotonic()
    endless = attach("put", "/dev/zero", "--max-bytes", "5000000")

    assert time.monotonic() - began < 20
    assert endless.returncode == 2
    assert endless.stderr.decode() == (
        "usage.attachment_too_long: /dev/zero has more than 5,000,000 bytes; "
        "nothing of it was kept: raise --max-bytes to keep it\n"
    )
    assert attach("ls").stdout == b""
    assert not [each for each in (tmp_path / "data").rglob("staging/*") if each.is_file()]
    exactly = attach("put", "-", "--max-bytes", "3", given=b"abc")
    assert exactly.returncode == 0
    assert attach("put", "-", "--max-bytes", "2", given=b"abc").returncode == 2
