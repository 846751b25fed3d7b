"""`tally resume`, as a user calls it: what it prints, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.model.fake_server import FakeServer, ok
from tests.runtime.run.cut_runs import died, played

from tallystick.cli.main import main
from tallystick.core.chain import Draft, Head
from tallystick.core.charge import RunLimits
from tallystick.core.records import (
    ProgramFinished,
    Record,
    RunEnded,
    RunResumed,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import whole_records
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory
from tallystick.testing.plans import program

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

REPLIES = [
    "n = 20\nprint(n)",
    "n += 1\nprint(n)",
    "FINAL(n)",
]
RUN = "01M7H9059YPYTCBKVW1YQJBKX4"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """What was said of an error: one line."""
        (line,) = self.err.splitlines()
        return line


Call = Callable[..., Done]


@dataclass
class Tally:
    """The command, called in this process, with data of its own."""

    folder: Path
    call: Call
    env: dict[str, str]

    def __call__(self, *words: str) -> Done:
        return self.call(*words)

    @property
    def path(self) -> Path:
        return self.folder / "data" / "ledger.db"

    def records(self, run: str | None = None) -> list[Record]:
        with SqliteLedger(self.path) as ledger:
            return whole_records(ledger, run or ledger.runs()[-1].run)

    def last(self) -> str:
        with SqliteLedger(self.path) as ledger:
            return ledger.runs()[-1].run

    def script(self, *sources: str, delay_ms: int = 0, name: str = "demo.jsonl") -> None:
        """What the model says. A delay is before the last."""
        lines = [{"text": f"```repl\n{source}\n```", "delay_ms": 0} for source in sources]
        lines[-1]["delay_ms"] = delay_ms
        (self.folder / name).write_text("\n".join(map(json.dumps, lines)))

    def run(self, *words: str) -> Done:
        return self("run", "what is it, after all of this?", "-m", "scripted:demo.jsonl", *words)

    def started(self, *words: str) -> subprocess.Popen[str]:
        """The command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "tallystick.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
            cwd=self.folder,
            # A job in the background has it ignored, and hands that on.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


@pytest.fixture
def tally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Tally:

    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TALLYSTICK_CACHE_DIR": str(cache_directory()),
        "TALLYSTICK_DATA_DIR": str(tmp_path / "data"),
    }
    for name in list(os.environ):
        if name.startswith("TALLYSTICK_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tally", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 1, said.out, said.err)

    made = Tally(tmp_path, call, env)
    made.script(*REPLIES)
    return made


# -- it goes on --------------------------------------------------------------------------------


def test_a_run_at_its_cap_goes_on_to_its_answer(tally: Tally) -> None:
    stopped = tally.run("--max-turns", "1")
    assert stopped.code == 3
    assert f"next     tally resume {tally.last()} --max-turns N" in stopped.err

    done = tally("resume", "last", "--max-turns", "5")

    assert (done.code, done.out) == (0, "21\n")
    assert "turn 2" in done.err
    assert "cost     " in done.err
    assert json.loads(tally("replay", "last", "--json").out)["held"]
    assert tally("verify").code == 0


def test_what_came_before_is_counted_and_not_told_again(tally: Tally) -> None:
    tally.run("--max-turns", "1")

    done = tally("resume", "last", "--max-turns", "5")

    turns = [line.split()[1] for line in done.err.splitlines() if line.startswith("turn")]
    assert turns == ["2", "3"]


def test_a_cap_that_is_raised_too_little_stops_it_again(tally: Tally) -> None:
    tally.run("--max-turns", "1")

    done = tally("resume", "last", "--max-turns", "2", "--quiet")

    assert (done.code, done.err) == (3, "")
    (resumed,) = [each for each in tally.records() if isinstance(each, RunResumed)]
    assert resumed.limits is not None
    assert resumed.limits.turns == 2


def test_an_answer_is_shown_again_and_nothing_is_written(tally: Tally) -> None:
    """Also when the model is not there any more."""
    first = tally.run("--quiet")
    before = tally.records()
    (tally.folder / "demo.jsonl").unlink()

    done = tally("resume", "last", "--quiet")

    assert (done.code, done.out, done.err) == (0, first.out, "")
    assert tally.records() == before


def test_the_result_as_json_and_the_events_that_are_new(tally: Tally) -> None:
    tally.run("--max-turns", "1")
    count = len(tally.records())

    done = tally("resume", "last", "--max-turns", "2", "--events")

    lines = [json.loads(line) for line in done.out.splitlines()]
    assert {line["seq"] for line in lines} <= {*range(count, len(tally.records()))}
    assert (lines[0]["seq"], lines[0]["begun"]) == (count, "resumed")
    assert {line["run"] for line in lines} == {tally.last()}
    assert (done.code, done.err) == (3, "")

    result = json.loads(tally("resume", "last", "--max-turns", "9", "--json").out)
    assert (result["answer"], result["stop"], result["turns"]) == ("21", "answered", 3)
    assert result["run"] == tally.last()


def test_the_beginning_of_an_id_is_enough(tally: Tally) -> None:
    tally.run("--max-turns", "1")

    assert tally("resume", tally.last()[:14].lower(), "--max-turns", "9", "--quiet").out == "21\n"


# -- it does not -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resume", "last"), "is at its cap (all 1 turns used); resume it with a higher one"),
        (("resume", "last", "--max-turns", "1"), "is at its cap"),
        (("resume", "last", "--max-turns", "x"), "--max-turns"),
        (("resume", "last", "--max-turns", "-1"), "--max-turns"),
        (("resume", "last", "--max-usd", "nan"), "finite"),
        (("resume", "last", "--max-usd", "-1"), "not negative"),
        (("resume", "last", "--reply-tokens", "0"), "--reply-tokens"),
        (("resume", "last", "--in-doubt", "maybe"), "--in-doubt"),
        (("resume", "last", "--max-turns", "9", "-m", "scripted:none.jsonl"), "none.jsonl"),
        (
            ("resume", "last", "--max-turns", "9", "-m", "scripted:other.jsonl"),
            "asks scripted:demo.jsonl, and this is scripted:other.jsonl",
        ),
        (("resume",), "RUN"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tally: Tally, words: tuple[str, ...], said: str) -> None:
    tally.run("--max-turns", "1")
    tally.script("FINAL(1)", name="other.jsonl")
    before = tally.records()

    done = tally(*words)

    assert (done.code, done.out) == (2, "")
    assert said in done.line
    assert tally.records() == before


def test_without_a_run_it_says_so(tally: Tally) -> None:
    assert tally("resume", "last").line == "usage: there is no run yet"
    tally.run("--quiet")

    done = tally("resume", "ZZZZ")

    assert done.code == 6
    assert "ZZZZ" in done.line


def test_one_of_which_nothing_was_written_is_said_to_be_so(tally: Tally) -> None:
    with SqliteLedger(tally.path) as ledger:
        ledger.claim(RUN, create=True)

    done = tally("resume", "last")

    assert done.code == 2
    assert "before anything of it was written; run it again" in done.line
    assert "cut off" not in done.line
    listed = json.loads(tally("ls", "--json").out)
    assert [(each["run"], each["stop"]) for each in listed] == [(RUN, "not begun")]
    assert "cut off" not in tally("inspect", RUN, "--tree").out
    assert "was not begun" in tally("inspect", RUN).line
    replayed = tally("replay", RUN)
    assert (replayed.code, replayed.line) == (done.code, done.line)


def test_a_chain_of_steps_is_said_to_be_one(tally: Tally) -> None:
    from tallystick import step
    from tallystick.client import Session
    from tallystick.model import ScriptedModel

    @step
    def ask() -> str | None:
        return session.run("what is it?").parent

    with Session(model=ScriptedModel.of("FINAL(1)"), ledger=SqliteLedger(tally.path)) as session:
        chain = ask()
    assert chain is not None

    done = tally("resume", chain)

    assert done.code == 2
    assert "holds steps" in done.line


@pytest.mark.parametrize("harm", ["x'00'", "x'7b7d'", 'CAST(\'{"type":"new"}\' AS BLOB)'])
def test_a_ledger_that_was_tampered_with_is_not_gone_on_from(tally: Tally, harm: str) -> None:
    tally.run("--max-turns", "1")
    with sqlite3.connect(tally.path) as db:
        db.execute(f"UPDATE body SET body = {harm} WHERE seq = 2")
    db.close()

    done = tally("resume", "last", "--max-turns", "9")

    assert done.code in (2, 6)
    assert "does not hold at entry 2" in done.line


def rewritten(tally: Tally, change: Callable[[Record], Record]) -> None:
    """Write a run again, in a chain that holds, with something else in it."""
    run, records = tally.last(), tally.records()
    with SqliteLedger(tally.path) as ledger:
        ledger.remove(run)
        fence = ledger.claim(run, create=True)
        drafts = [
            Draft(tag=tag_of(each), intent=intent_of(each), body=encode_record(each))
            for each in map(change, records)
        ]
        ledger.append(run, drafts, expected=Head.of_nothing(), fence=fence, forced=True)


def test_a_record_that_programs_do_not_bear_out_is_a_divergence(tally: Tally) -> None:
    import msgspec

    def change(record: Record) -> Record:
        if isinstance(record, ProgramFinished):
            return msgspec.structs.replace(record, stdout="22\n")
        return record

    tally.run("--max-turns", "1")
    rewritten(tally, change)
    before = tally.records()

    done = tally("resume", "last", "--max-turns", "9")

    assert done.code == 8
    assert "entry 4: stdout was '22\\n' and is '20\\n'" in done.line
    assert tally.records() == before


def test_a_run_with_functions_is_resumed_where_they_are(tally: Tally, sandbox: WasmSandbox) -> None:
    with SqliteLedger(tally.path) as ledger:
        made = played(
            sandbox, program("n = send('x')"), ledger=ledger, limits=RunLimits(turns=1),
            name="scripted:demo.jsonl",
        )  # fmt: skip
        made.world.session.close()
    before = tally.records()

    done = tally("resume", "last", "--max-turns", "9")

    assert done.code == 2
    assert "programs that may call send, post, note, page, fetch, hang" in done.line
    assert tally.records() == before


# -- moved -------------------------------------------------------------------------------------


def test_a_moved_run_goes_on_elsewhere_and_not_here(
    tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally.run("--max-turns", "1")
    assert tally("export", "last", "run.tally", "--move").code == 0

    here = tally("resume", "last", "--max-turns", "9")
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tally.folder / "other"))
    assert tally("import", "run.tally").code == 0
    there = tally("resume", "last", "--max-turns", "9", "--quiet")

    assert here.code == 6
    assert "was moved away" in here.line
    assert (there.code, there.out) == (0, "21\n")


# -- in doubt ----------------------------------------------------------------------------------


@pytest.fixture
def doubtful(tally: Tally, sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of a server's model that was killed in its second call."""
    dead = died(
        sandbox, tally.folder / "made", program("n = 20", "print(n)"),
        when=lambda request: len(request.messages) > 2, name="local:m", bare=True,
    )  # fmt: skip
    shutil.copytree(dead.folder, tally.path.parent)
    monkeypatch.setenv("TALLYSTICK_MODEL_URL", "http://127.0.0.1:9/v1")
    return dead.run


def test_a_call_in_doubt_stops_it_with_a_code_of_its_own(tally: Tally, doubtful: str) -> None:
    before = tally.records()

    done = tally("resume", "last")

    assert (done.code, done.out) == (7, "")
    assert "in_doubt: " in done.line
    assert "the model (turn 2, intent 3" in done.line
    assert "--in-doubt retry" in done.line
    assert "--in-doubt abandon" in done.line
    assert tally.records() == before


def test_a_call_in_doubt_that_is_given_up_ends_the_run_in_doubt(
    tally: Tally, doubtful: str
) -> None:
    done = tally("resume", "last", "--in-doubt", "abandon")

    assert done.code == 7
    assert "stopped  in_doubt" in done.err
    assert f"tally resume {doubtful}" in done.err
    ended = tally.records()[-1]
    assert isinstance(ended, RunEnded)
    assert ended.stop == "in_doubt"


def test_a_call_in_doubt_is_made_again_if_that_is_said(
    tally: Tally, doubtful: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeServer() as server:
        server.will(ok("```repl\nFINAL(n + 1)\n```"))
        monkeypatch.setenv("TALLYSTICK_MODEL_URL", server.url)
        done = tally("resume", "last", "--in-doubt", "retry", "--quiet")

        assert (done.code, done.out) == (0, "21\n")
        assert len(server.seen) == 1
        # Under a key that no call had before.
        assert server.seen[0].headers["x-client-request-id"] == f"{doubtful}-4"


# -- while somebody works on it ----------------------------------------------------------------


def test_a_run_that_somebody_works_on_is_refused_unless_it_is_stolen(tally: Tally) -> None:
    tally.script(*REPLIES, delay_ms=20_000)
    with tally.started(
        "run", "what is it, in the end?", "-m", "scripted:demo.jsonl", "--events"
    ) as first:
        wait_for(first, "llm_call", 3)
        tally.script(*REPLIES)

        refused = tally("resume", "last")
        assert refused.code == 2
        assert "is running; wait for its end, or stop it first" in refused.line
        stolen = tally("resume", "last", "--steal")
        first.kill()

    assert (stolen.code, stolen.out) == (0, "21\n")
    assert "warning: run" in stolen.err.splitlines()[0]
    (resumed,) = [each for each in tally.records() if isinstance(each, RunResumed)]
    assert resumed.stolen


def wait_for(process: subprocess.Popen[str], tag: str, times: int = 1) -> None:
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += json.loads(line)["event_type"] == tag
        if seen == times:
            return
    raise AssertionError(process.stderr.read() if process.stderr else "")


# -- interrupted -------------------------------------------------------------------------------


def test_an_interrupt_after_it_went_live_is_written_and_gone_on_from(tally: Tally) -> None:
    tally.run("--max-turns", "2")
    tally.script(*REPLIES, delay_ms=20_000)
    with tally.started("resume", "last", "--max-turns", "9", "--events") as process:
        wait_for(process, "llm_call")
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "Traceback" not in said
    assert json.loads(rest.splitlines()[-1])["stop"] == "cancelled"
    tally.script(*REPLIES)
    assert tally("resume", "last", "--quiet").out == "21\n"
    assert json.loads(tally("replay", "last", "--json").out)["held"]


def test_an_interrupt_while_it_runs_again_what_is_recorded_leaves_it_as_it_was(
    tally: Tally,
) -> None:
    tally.script("n = 20\nfor _ in range(4_000_000):\n    pass\nprint(n)", "FINAL(n + 1)")
    tally.run("--max-turns", "1")
    lock = tally.path.with_name("ledger.db-runs") / f"{tally.last()}.lock"
    for _ in range(5):
        before = tally.records()
        with tally.started("resume", "last", "--max-turns", "9", "--events") as process:
            deadline = time.monotonic() + 30
            while not lock.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=30)
        assert process.returncode == 130
        if not out:
            break
        # On a busy machine the signal may come a second late: once more.

    assert said.strip() == "interrupted"
    assert tally.records() == before
    assert not lock.exists()
    assert tally("resume", "last", "--max-turns", "9", "--quiet").out == "21\n"


def test_an_event_that_is_shown_is_on_the_ledger_however_the_process_ends(tally: Tally) -> None:
    """The program runs for long: what came before it is shown only if it is committed."""
    tally.script("print(1)", "while True: pass")
    with tally.started("run", "what is it?", "-m", "scripted:demo.jsonl", "--events") as process:
        assert process.stdout is not None
        shown = []
        for line in process.stdout:
            shown.append(line)
            if sum('"llm_response"' in each for each in shown) == 2:
                break
        # What follows the second reply is made, and waits for the next write.
        time.sleep(0.5)
        process.send_signal(signal.SIGKILL)
        shown += process.stdout

    recorded = tally("inspect", "last", "--follow", "--json").out.splitlines(keepends=True)
    assert shown == recorded[: len(shown)]
