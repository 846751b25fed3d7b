"""Runs of native programs from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.escape.process.boxes import made_sandbox

from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli
from tallystick.core.resume_errors import RunInDoubt

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHELL = f"scripted:{ROOT / 'examples' / 'shell.jsonl'}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    asyncio.run(made_sandbox().close())
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def tally(*words: str) -> Result:
    return CliRunner().invoke(cli, [*words], standalone_mode=False)


def run(*words: str) -> Result:
    return tally("run", "which name?", "-m", SHELL, "--no-skills", *words)


def test_a_run_with_a_shell_answers_and_replays(home: Path) -> None:
    ran = run("--sandbox", "process", "--json")
    replayed = tally("replay", "last")
    inspected = tally("inspect", "last", "--records")

    assert json.loads(ran.stdout)["answer"] == "ada"
    assert replayed.return_value == 0
    assert "0 programs run again, 2 programs taken from the record" in replayed.stdout
    assert "program    part=0  bash" in inspected.stdout
    assert "files      " in inspected.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--net", "example.com"], "programs of the wasm sandbox have no network"),
        (["--sandbox", "docker"], "sandbox 'docker'"),
        (["--sandbox", "process", "--net", "none", "--net", "a.test"], "contradictory grants"),
        (["--sandbox", "wasm", "--accept-without", "seccomp"], "only the process sandbox"),
        (["--sandbox", "process", "--accept-without", "everything"], "everything"),
    ],
)
def test_what_contradicts_itself_is_wrong_usage(home: Path, words: list[str], said: str) -> None:
    result = CliRunner().invoke(
        cli, ["run", "q", "-m", SHELL, "--no-skills", *words], standalone_mode=False
    )

    assert said in str(result.exception or result.output)
    listed = tally("ls", "--json")
    assert json.loads(listed.stdout) == []


def test_a_session_says_what_it_keeps_and_what_it_cannot(home: Path) -> None:
    script = home / "s.jsonl"
    program = "def f(): return 1\nn = [1]\nopen('kept', 'w').write('x')\nFINAL(2)"
    script.write_text(json.dumps({"text": f"```python\n{program}\n```"}), encoding="utf-8")

    made = tally("session", "new", "--sandbox", "process")
    first = tally(
        "run", "q", "-m", f"scripted:{script}", "--no-skills", "--session", "last", "--quiet"
    )
    shown = tally("session", "show", "last")

    assert made.return_value == 0
    assert first.stdout == "2\n"
    assert "backend   process" in shown.stdout
    assert "has       n; not kept: f" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "answer"), [("retry", "1 2"), ("abandon", "1")])
def test_a_killed_run_is_in_doubt_and_goes_on_as_it_is_told(
    home: Path, policy: str, answer: str
) -> None:
    marker = f"sleep 2.{os.getpid()}"
    slow = f"echo 2 >> a; {marker}"
    replies = [
        "```bash\necho 1 > a\n```",
        f"```bash\n{slow}\n```",
        "```python\nFINAL(' '.join(open('a').read().split()))\n```",
    ]
    script = home / "s.jsonl"
    script.write_text("\n".join(json.dumps({"text": each}) for each in replies), encoding="utf-8")
    words = ["run", "q", "-m", f"scripted:{script}", "--no-skills", "--sandbox", "process"]
    going = subprocess.Popen([sys.executable, "-m", "tallystick.cli.main", *words, "--quiet"])
    try:
        _until(lambda: marker in _commands())
    finally:
        going.kill()
        going.wait()
    # Nothing of the box outlives its host.
    _until(lambda: marker not in _commands())

    refused = tally("resume", "last", "-m", f"scripted:{script}")
    listed = tally("ls", "--in-doubt")
    gone_on = tally("resume", "last", "-m", f"scripted:{script}", "--in-doubt", policy, "--quiet")
    replayed = tally("replay", "last")

    assert isinstance(refused.exception, RunInDoubt)
    assert exit_code_of(refused.exception) == 7
    assert "program (bash)" in listed.stdout
    assert gone_on.stdout == f"{answer}\n"
    assert replayed.return_value == 0


def _until(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not done():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.05)


def _commands() -> str:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" "))
    return b"\n".join(found).decode("utf-8", "replace")
