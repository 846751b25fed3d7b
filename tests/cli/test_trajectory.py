"""`tally export --format trajectory`, and logs of another runtime, as a user calls them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.cli.test_exec import Tally
from tests.interop.test_rlms_log import DEEP, GOAL, SMALL, log, metadata
from tests.interop.test_trajectory import TAGS

from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.client import Session
from tallystick.core.errors import UsageError
from tallystick.core.records import StopReason
from tallystick.interop.trajectory import export_trajectory
from tallystick.interop.trajectory_events import Termination
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.decorator import step
from tallystick.testing.models import block

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

# So long that it is kept apart from the records.
LONG = "so very long " * 6_000
REPLIES = (
    block("rlm_query('the part')\nsaid = llm_query('a question')\nprint(len(said))"),
    block("FINAL('seven')"),
    LONG,
    block("FINAL(len(said))"),
)


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path)


def ledger_of(tally: Tally) -> SqliteLedger:
    return SqliteLedger(Path(tally.env["TALLYSTICK_DATA_DIR"]) / "ledger.db")


def ran(tally: Tally, sandbox: WasmSandbox) -> str:
    """A run with a child, on the user's own ledger."""
    model = ScriptedModel([ScriptedReply(text=each) for each in REPLIES])
    with (
        ledger_of(tally) as ledger,
        Session(model=model, ledger=ledger, sandbox=sandbox) as session,
    ):
        run = session.run("what is it?")
    assert run.answer == str(len(LONG))
    return run.run


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_event_stands_in_the_ledger_where_it_says(
    tally: Tally, sandbox: WasmSandbox, tmp_path: Path
) -> None:
    run = ran(tally, sandbox)

    done = tally("export", run, "--format", "trajectory")

    file = tmp_path / f"{run}.trajectory.jsonl"
    found = events(file.read_text())
    assert done.stderr == f"exported {len(found)} events of {run} to {file.name}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with ledger_of(tally) as ledger:
        hashes = {row.run: [each.hash for each in ledger.read(row.run)] for row in ledger.runs()}
    assert len(hashes) == 2
    assert {each["run"] for each in found} == set(hashes)
    assert all(each["hash"] == hashes[each["run"]][each["seq"]] for each in found)
    kinds = [each["event_type"] for each in found]
    assert (kinds[0], kinds[-1]) == ("session_start", "session_end")
    assert kinds.count("query_start") == kinds.count("query_complete") == 2
    assert {each["depth"] for each in found} == {0, 1}


def test_content_is_cut_given_whole_or_left_out(tally: Tally, sandbox: WasmSandbox) -> None:
    run = ran(tally, sandbox)

    plain, full, redacted = (
        tally("export", run, "-", "--format", "trajectory", *more).stdout
        for more in ((), ("--full",), ("--redact",))
    )

    def said(text: str) -> dict[str, Any]:
        (found,) = [
            each["text"]
            for each in events(text)
            if each["event_type"] == "llm_response" and each["call"] == "query"
        ]
        return dict(found)

    assert said(plain)["text"] == LONG[:10_000]
    assert said(plain)["cut"]
    assert said(full)["text"] == LONG
    assert said(redacted) == {**said(full), "text": "<redacted>", "chars": None}
    for secret in ("seven", "question", "the part", "what is it"):
        assert secret in plain
        assert secret not in redacted
    assert len(events(plain)) == len(events(redacted))


@pytest.mark.parametrize(
    "words",
    [
        ("--redact",),
        ("--full",),
        ("--format", "trajectory", "--move"),
        ("--format", "trajectory", "--redact", "--full"),
        ("--format", "csv"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(
    tally: Tally, words: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "log.jsonl").write_bytes(SMALL)
    tally("import", "log.jsonl")

    done = tally("export", "last", "out", *words)

    assert done.returncode == 2
    assert done.stderr.startswith("usage")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_there_stays_as_it_is(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(SMALL)
    tally("import", "log.jsonl")

    done = tally("export", "last", "log.jsonl", "--format", "trajectory")

    assert done.returncode == 6
    assert "log.jsonl: it is there already" in done.stderr
    assert (tmp_path / "log.jsonl").read_bytes() == SMALL


def test_a_chain_of_steps_has_no_trajectory_and_leaves_no_file(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    @step
    def outer(session: Session) -> str | None:
        return session.run("what is it?").parent

    model = ScriptedModel([ScriptedReply(text=block("FINAL(3)"))])
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        with Session(model=model, ledger=ledger, sandbox=sandbox) as session:
            chain = outer(session)
        assert chain is not None
        with SqliteAttachments(ledger.file) as kept, pytest.raises(UsageError, match="holds steps"):
            export_trajectory(ledger, kept, chain, tmp_path / "out")

    assert not (tmp_path / "out").exists()


# -- logs of another runtime -----------------------------------------------------------------------


def test_a_log_is_taken_in_and_can_be_looked_at(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(DEEP)

    first = tally("import", "log.jsonl")
    again = tally("import", "log.jsonl")

    run = first.stderr.split()[1]
    told = f"imported {run} from a log of rlms with 2 runs inside it"
    assert (first.returncode, first.stderr) == (0, f"{told}\n")
    assert (again.returncode, again.stderr) == (0, f"{told}, which is here already\n")
    assert tally("verify").stdout == "3 runs, 30 entries: all hold\n"
    listed = json.loads(tally("ls", "--json").stdout)[-1]
    assert (listed["run"], listed["goal"], listed["stop"]) == (run, GOAL, "answered")
    assert (listed["model"], listed["answer"]) == ("openai:gpt-x", "42")
    assert "rlms-log=" in tally("inspect", run, "--records").stdout
    assert "answered: from a log of rlms" in tally("receipt", run).stdout


def test_a_log_is_not_replayed(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(SMALL)
    tally("import", "log.jsonl")

    done = tally("replay", "last")

    assert done.returncode != 0
    assert "rlms" in done.stdout + done.stderr


def test_a_log_comes_through_a_pipe_too(tally: Tally, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(SMALL)
    command = f"cat log.jsonl | {sys.executable} -m tallystick.cli.main import /dev/stdin"

    done = subprocess.run(
        ["bash", "-c", command],
        env=tally.env, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.stderr.startswith("imported ")
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{nothing}", "line 1: "),
        (log(metadata()) + b'{"a":' * 99_999, "line 2: it is nested too deep"),
        (b"neither", "it is no export of a run"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(
    tally: Tally, data: bytes, said: str, tmp_path: Path
) -> None:
    (tmp_path / "log.jsonl").write_bytes(data)

    done = tally("import", "log.jsonl")

    assert done.returncode == 6
    assert done.stderr.count("\n") == 1
    assert f"log.jsonl: {said}" in done.stderr
    assert json.loads(tally("ls", "--json").stdout) == []


# -- the page --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [get_args(StopReason), get_args(Termination), sorted(TAGS)],
    ids=["stop reasons", "terminations", "events"],
)
def test_the_page_has_every_name(names: Sequence[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "events.md").read_text(
        encoding="utf-8"
    )

    assert [name for name in names if f"`{name}`" not in page] == []
