"""Ctrl-C while a tree of runs goes: once stops it and says how to go on, twice leaves at once."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pytest
from tests.cli.test_resume import Tally, tally
from tests.model.fake_server import FakeServer, Seen, Step, ok

from tallystick.cli.driving import interruptible
from tallystick.cli.progress import progress_for
from tallystick.core.records import ChildEnded, RunEnded

__all__ = ["tally"]

PROGRAM = "FINAL(rlm_query_batched(['q'] * 3, contexts=['a', 'b', 'c']))"
CHILDREN = 3


@dataclass
class Children:
    """A server that answers the root at once; of its children, the first, until it is let go."""

    server: FakeServer
    waits: bool = True
    asked: int = 0

    def behave(self, seen: Seen) -> Iterable[Step]:
        said = "\n".join(str(each["content"]) for each in seen.json["messages"])
        if "the root" in said:
            yield from ok(f"```repl\n{PROGRAM}\n```")(seen)
            return
        self.asked += 1
        if self.waits and self.asked > 1:
            yield 60.0
        yield from ok("```repl\nFINAL(context.upper())\n```")(seen)

    def wait(self) -> None:
        """Until every child is being answered."""
        deadline = time.monotonic() + 30
        while self.asked < CHILDREN:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def children(tally: Tally, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    with FakeServer() as server:
        made = Children(server)
        server.always(made.behave)
        tally.env["TALLYSTICK_MODEL_URL"] = server.url
        monkeypatch.setenv("TALLYSTICK_MODEL_URL", server.url)
        yield made


def root_of(tally: Tally) -> str:
    return str(json.loads(tally("ls", "--json").out)[0]["run"])


@pytest.mark.slow
def test_once_stops_the_tree_and_says_how_to_go_on(tally: Tally, children: Children) -> None:
    with tally.started("run", "the root", "-m", "local:m", "--strategy", "code") as process:
        children.wait()
        assert process.stderr is not None
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=30)

    run = root_of(tally)
    assert (process.returncode, out) == (130, "")
    assert first.startswith("  run 1   answered")
    assert [line for line in said.splitlines() if "tally resume" in line] == [
        f"next     tally resume {run}"
    ]
    assert "Traceback" not in said
    records = tally.records(run)
    assert isinstance(records[-1], RunEnded)
    assert records[-1].stop == "cancelled"
    stops = [each.stop for each in records if isinstance(each, ChildEnded)]
    assert sorted(stops) == ["answered", "cancelled", "cancelled"]
    tree = json.loads(tally("inspect", run, "--tree", "--json").out)
    assert tree["charge"] == msgspec.to_builtins(records[-1].charge)

    children.waits, children.asked = False, 0
    asked = tally("resume", run)
    assert (asked.code, asked.out, children.asked) == (7, "", 0)
    assert asked.err.count("the model (run ") == CHILDREN - 1
    done = tally("resume", run, "--in-doubt", "retry")

    assert (done.code, done.out) == (0, '["A","B","C"]\n')
    assert children.asked == CHILDREN - 1
    assert json.loads(tally("replay", run, "--json").out)["held"]
    assert tally("verify").code == 0


@pytest.mark.slow
def test_twice_leaves_at_once_and_the_tree_can_be_gone_on_with(
    tally: Tally, children: Children
) -> None:
    with tally.started("run", "the root", "-m", "local:m", "--strategy", "code") as process:
        children.wait()
        process.send_signal(signal.SIGINT)
        # A signal that is pending already is not delivered twice.
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)

    run = root_of(tally)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.splitlines()[-1].endswith(f"next: tally resume {run}")
    children.waits = False
    done = tally("resume", run, "--in-doubt", "retry", "--quiet")
    assert (done.code, done.out) == (0, '["A","B","C"]\n')


PRESSED_AS_IT_ENDS = """
import os, signal, sys
from tallystick.cli.driving import interruptible
from tallystick.cli.progress import progress_for

class Late:
    def __init__(self):
        self.press = os.kill, os.getpid(), signal.SIGINT

    def __del__(self):
        # Python's own handlers are gone by now.
        kill, us, number = self.press
        kill(us, number)

late = Late()
try:
    with interruptible(progress_for(quiet=True), lambda: None, prints=False):
        os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_press_while_the_interpreter_shuts_down_does_not_change_the_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRESSED_AS_IT_ENDS],
        capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.slow
def test_on_a_terminal_the_tree_goes_and_the_cursor_comes_back(
    tally: Tally, children: Children
) -> None:
    leader, follower = pty.openpty()
    words = ["run", "the root", "-m", "local:m"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli.main", *words],
        stdin=follower, stdout=follower, stderr=follower, cwd=tally.folder,
        env={**tally.env, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    os.close(follower)
    said = bytearray()

    def read() -> None:
        while True:
            try:
                piece = os.read(leader, 65_536)
            except OSError:
                return
            said.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    children.wait()
    deadline = time.monotonic() + 20
    while b"1 done" not in said:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code = process.wait(30)
    reader.join(10)
    os.close(leader)

    text = said.decode()
    assert code == 130
    assert "asking the model" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    after = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.rpartition("\x1b[2K")[2])
    assert "asking the model" not in after
    assert f"next     tally resume {root_of(tally)}" in after


# -- signals that are not ours ---------------------------------------------------------------------


def test_a_signal_that_is_ignored_stays_so_and_the_handler_is_put_back() -> None:
    progress = progress_for(quiet=True)
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interruptible(progress, lambda: None, prints=True):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with interruptible(progress, lambda: None, prints=True):
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("prints", "said"), [(True, "next     tally resume R\n"), (False, "")])
def test_one_that_does_not_stop_in_time_says_how_to_go_on(
    prints: bool, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            interruptible(progress_for(quiet=True), lambda: "R", prints=prints),
        ):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)

    assert capfd.readouterr().err == said
