"""`tally session` and `tally snapshot`, as users call them: one process after another, and two."""

from __future__ import annotations

import io
import json
import signal
import sqlite3
import subprocess
import time

import pytest
from tests.cli.test_resume import Tally, tally

from tallystick.sessions.file import book_in
from tallystick.sessions.rows import DURATION_MS
from tallystick.storage.clock import now_ms

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

__all__ = ["tally"]

UNKNOWN = "01M7H9059YPYTCBKVW1YQJBKX4"


def process(tally: Tally, *words: str) -> str:
    """A command in a process of its own, that ends well; what it printed."""
    done = tally.started(*words)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    return out.strip()


def asked(tally: Tally, session: str, *sources: str) -> str:
    """A run of a session, in a process of its own."""
    tally.script(*sources)
    return process(
        tally, "run", "what is it?", "-m", "scripted:demo.jsonl", "--session", session, "--quiet"
    )


def begun(tally: Tally, session: str) -> subprocess.Popen[str]:
    """A run of a session that has run its first program and waits for the model."""
    tally.script("x = 'half done'\nprint(x)", "FINAL(x)", delay_ms=60_000)
    words = ("run", "wait", "-m", "scripted:demo.jsonl", "--session", session, "--events")
    running = tally.started(*words)
    assert running.stdout is not None
    for line in running.stdout:
        if '"command_executed"' in line:
            break
    time.sleep(0.3)  # until the next call is on the disk
    return running


def expire(tally: Tally, session: str) -> None:
    """Have a session's time be over: it was made an hour ago."""
    with sqlite3.connect(tally.path.with_name("sessions.db")) as db:
        db.execute("UPDATE session SET expires_at = ? WHERE id = ?", (now_ms() - 1_000, session))


def test_made_in_one_process_used_in_another_and_brought_back_in_a_third(tally: Tally) -> None:
    session = process(tally, "session", "new", "--set", "region=EU")
    assert asked(tally, session, "x = 20\nFINAL(context_variables['region'])") == "EU"
    shown = process(tally, "snapshot", "create", session, "test-snapshot")
    assert asked(tally, session, "x += 1\nprint(x)", "FINAL(x)") == "21"

    process(tally, "snapshot", "restore", session, shown)

    assert asked(tally, session, "FINAL(x)") == "20"
    told = process(tally, "session", "show", session)
    assert shown.startswith("test-snapshot:")
    assert shown in told
    assert "answered  'what is it?': 21" in told
    assert json.loads(process(tally, "replay", "last", "--json"))["held"]


def test_a_process_that_is_killed_leaves_the_session_as_it_was(tally: Tally) -> None:
    session = process(tally, "session", "new", "--max-tokens", "100000")
    asked(tally, session, "x = 'whole'\nFINAL(x)")
    running = begun(tally, session)
    cut = tally.last()
    running.kill()
    running.communicate(timeout=60)

    assert json.loads(tally("session", "show", session, "--json").out)["state"] == "ready"
    before = json.loads(tally("session", "show", session, "--json").out)
    assert asked(tally, session, "FINAL(x)") == "whole"
    after = json.loads(tally("session", "show", session, "--json").out)
    assert [each["stop"] for each in after["runs"]] == ["answered", None, "answered"]
    # What the killed run had spent is counted, with what is held for the call it died in.
    spent = [each["budget_status"]["tokens_used"] for each in (before, after)]
    assert spent[1] > 2 * spent[0]

    tally.script("x = 'half done'\nprint(x)", "FINAL(x)")
    done = tally("resume", cut, "-m", "scripted:demo.jsonl", "--quiet")
    assert (done.code, done.out) == (0, "half done\n")
    assert asked(tally, session, "FINAL(x)") == "whole"  # it was overtaken


def test_a_killed_run_that_is_gone_on_with_is_the_session_s_again(tally: Tally) -> None:
    session = process(tally, "session", "new")
    asked(tally, session, "x = 'whole'\nFINAL(x)")
    running = begun(tally, session)
    running.kill()
    running.communicate(timeout=60)

    tally.script("x = 'half done'\nprint(x)", "FINAL(x)")
    assert tally("resume", "last", "-m", "scripted:demo.jsonl", "--quiet").code == 0

    assert asked(tally, session, "FINAL(x)") == "half done"


def test_of_two_processes_the_second_is_refused(tally: Tally) -> None:
    session = process(tally, "session", "new")
    running = begun(tally, session)

    try:
        tally.script("FINAL(1)", name="other.jsonl")
        run = ("run", "me too", "-m", "scripted:other.jsonl", "--session", session)
        for words in (run, ("snapshot", "create", session, "s")):
            done = tally(*words)
            assert done.code == 4
            assert done.line.startswith(f"backend.session_busy: session {session} is in use")
        assert json.loads(tally("session", "show", session, "--json").out)["state"] == "executing"
    finally:
        running.kill()
        running.communicate(timeout=60)
    assert asked(tally, session, "FINAL(1)") == "1"


def test_a_run_that_is_interrupted_leaves_what_it_came_to(tally: Tally) -> None:
    session = process(tally, "session", "new")
    running = begun(tally, session)

    running.send_signal(signal.SIGINT)

    running.communicate(timeout=60)
    assert running.returncode == 130
    assert asked(tally, session, "FINAL(x)") == "half done"


def test_removing_a_session_stops_its_run_in_another_process(tally: Tally) -> None:
    session = process(tally, "session", "new")
    running = begun(tally, session)

    done = tally("session", "rm", session, "--yes")

    running.communicate(timeout=60)
    assert (done.code, done.line) == (0, f"removed {session}; its runs are kept")
    assert running.returncode == 130
    assert json.loads(tally("ls", "--json").out)[-1]["stop"] == "cancelled"
    assert json.loads(tally("session", "ls", "--json").out)["stats"] == {
        "total_created": 1, "active": 0, "with_vm": 0,
    }  # fmt: skip


def test_an_expired_session_says_how_it_is_reopened(tally: Tally) -> None:
    session = process(tally, "session", "new")
    asked(tally, session, "x = 1\nFINAL(x)")
    process(tally, "snapshot", "create", session, "s")
    expire(tally, session)
    tally.script("FINAL(x)")

    for words in (
        ("run", "what?", "-m", "scripted:demo.jsonl", "--session", session),
        ("session", "extend", session),
        ("session", "set", session, "a=b"),
        ("snapshot", "create", session, "t"),
        ("snapshot", "restore", session, "s"),
    ):
        done = tally(*words)
        assert done.code == 4
        assert done.line.startswith("backend.session_expired: ")
        assert f"tally session resume {session} reopens it" in done.line
    assert "expired" in tally("session", "ls").out
    assert "s:" in tally("snapshot", "ls", session).out

    assert tally("session", "resume", session).code == 0
    assert asked(tally, session, "FINAL(x)") == "1"
    left = book_in(tally.path.with_name("sessions.db")).get(session).expires_at - now_ms()
    assert DURATION_MS - 60_000 < left <= DURATION_MS


@pytest.mark.parametrize(
    ("words", "code", "kind", "number"),
    [
        (("session", "show", UNKNOWN), 4, "SessionNotFound", -32001),
        (("session", "show", "../../etc/passwd"), 4, "SessionNotFound", -32001),
        (("session", "show", ""), 4, "SessionNotFound", -32001),
        (("session", "extend", UNKNOWN), 4, "SessionNotFound", -32001),
        (("session", "rm", UNKNOWN, "--yes"), 4, "SessionNotFound", -32001),
        (("session", "new", "--set", "a"), 2, "ConfigError", -32602),
        (("session", "new", "--set", "=b"), 2, "ConfigError", -32602),
        (("session", "set", "last", "--unset", "nosuch"), 2, "ConfigError", -32602),
        (("snapshot", "restore", "last", "nosuch"), 4, "SnapshotNotFound", -32040),
        (("snapshot", "rm", "last", "nosuch:1"), 4, "SnapshotNotFound", -32040),
        (("snapshot", "create", "last", "a/b"), 2, "ConfigError", -32602),
        (("snapshot", "create", "last", ".."), 2, "ConfigError", -32602),
        (("snapshot", "create", "last", "x" * 257), 2, "ConfigError", -32602),
        (("snapshot", "ls", UNKNOWN), 4, "SessionNotFound", -32001),
    ],
)
def test_what_goes_wrong_is_one_line_and_one_object(
    tally: Tally, words: tuple[str, ...], code: int, kind: str, number: int
) -> None:
    assert tally("session", "new").code == 0

    done = tally(*words, "--json")

    error = json.loads(done.out)["error"]
    assert (done.code, error["type"], error["code"]) == (code, kind, number)
    assert done.line == f"{error['kind']}: {error['message']}"


def test_a_set_that_is_refused_sets_nothing(tally: Tally) -> None:
    tally("session", "new", "--set", "kept=1")

    refused = tally("session", "set", "last", "region=EU", "--unset", "kept", "--unset", "nosuch")

    assert refused.code == 2
    assert tally("session", "set", "last", "--unset", "kept", "a=b").out == "a=b\n"


def test_the_fourth_extension_and_the_eleventh_snapshot_are_refused(tally: Tally) -> None:
    tally("session", "new", "--expires", "reference")
    for _ in range(3):
        assert tally("session", "extend", "last").code == 0
    for number in range(10):
        assert tally("snapshot", "create", "last", f"s{number}").code == 0

    extended, taken = tally("session", "extend", "last"), tally("snapshot", "create", "last", "x")

    assert (extended.code, taken.code) == (4, 4)
    assert "extended 3 times, the most it may be" in extended.line
    assert "10 snapshots, the most it may" in taken.line
    assert tally("snapshot", "rm", "last", "s0").code == 0
    assert tally("snapshot", "create", "last", "x").code == 0


def test_a_session_that_is_asked_about_is_kept_when_nobody_says_yes(
    tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally("session", "new")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))

    done = tally("session", "rm", "last")

    assert done.code == 130
    assert len(tally("session", "ls").out.splitlines()) == 1


def test_a_dry_run_knows_nothing_of_a_session(tally: Tally) -> None:
    tally("session", "new")
    tally.script("FINAL(1)")

    done = tally.run("--session", "last", "--dry-run")

    assert (done.code, done.line.split(":")[0]) == (2, "usage")
