"""`tally attach`: what is put is got, listed, collected and verified; mistakes are one line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
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
