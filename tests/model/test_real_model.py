"""A real model, if TALLYSTICK_MODEL_URL names one: it may be wrong, but the run may not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

URL = os.environ.get("TALLYSTICK_MODEL_URL", "")
KEY = os.environ.get("TALLYSTICK_MODEL_KEY", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not URL, reason="TALLYSTICK_MODEL_URL names no server of a real model"),
]


@pytest.fixture(scope="module")
def name() -> str:
    headers = {"Authorization": f"Bearer {KEY}"} if KEY else {}
    return str(httpx.get(f"{URL}/models", headers=headers).json()["data"][0]["id"])


def tally(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tallystick.cli.main", *words],
        cwd=folder,
        env={**os.environ, "TALLYSTICK_DATA_DIR": str(folder / "data")},
        capture_output=True,
        text=True,
        timeout=400,
    )


def test_a_run_over_a_table_ends_by_itself_and_can_be_replayed(tmp_path: Path, name: str) -> None:
    rows = "".join(f"T{n},{'north' if n % 3 else 'south'},{n * 7 % 101}.50\n" for n in range(400))
    (tmp_path / "sales.csv").write_text(f"ticket,region,paid\n{rows}")

    done = tally(
        tmp_path, "run", "What is the sum of paid where region is south?", "-f", "sales.csv",
        "-m", f"local:{name}", "--max-turns", "4", "--reply-tokens", "300", "--timeout", "360",
        "--temperature", "0", "--json",
    )  # fmt: skip

    assert done.returncode in (0, 1, 3), done.stderr
    result = json.loads(done.stdout)
    assert result["stop"] in ("answered", "max_turns", "no_progress", "deadline")
    assert 1 <= result["turns"] <= 4
    assert result["charge"]["tokens_in"] > 0
    replayed = tally(tmp_path, "replay", "last")
    assert replayed.returncode == 0, replayed.stdout
    assert tally(tmp_path, "verify").returncode == 0
    assert not KEY or KEY not in done.stdout + done.stderr + tally(
        tmp_path, "inspect", "last", "--json"
    ).stdout  # fmt: skip


def test_a_wrong_key_is_an_auth_failure_that_does_not_show_it(tmp_path: Path, name: str) -> None:
    if not KEY:
        pytest.skip("the server wants no key")
    done = subprocess.run(
        [sys.executable, "-m", "tallystick.cli.main", "run", "?", "-m", f"local:{name}"],
        cwd=tmp_path,
        env={
            **os.environ,
            "TALLYSTICK_DATA_DIR": str(tmp_path / "data"),
            "TALLYSTICK_MODEL_KEY": "not-the-key-of-this-server",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 5
    assert "auth_failure" in done.stderr
    assert "not-the-key" not in done.stderr
