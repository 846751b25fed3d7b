"""Ends, states and sizes of sessions, as users of the command line meet them."""

from __future__ import annotations

import json

import pytest
from tests.cli.test_resume import Tally, tally

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow

__all__ = ["tally"]

UNKNOWN = "01M7H9059YPYTCBKVW1YQJBKX4"


def made(tally: Tally, *words: str) -> str:
    return tally("session", "new", *words).out.strip()


def test_a_session_has_no_end_unless_it_is_given_one(tally: Tally) -> None:
    made(tally)
    made(tally, "--expires", "12h")
    made(tally, "--expires", "reference")

    endless, timed, reference = tally("session", "ls").out.splitlines()

    assert endless.endswith("no end")
    assert timed.endswith("(11 hours left)")
    assert reference.endswith("(29 min left)")
    fields = json.loads(tally("session", "ls", "--json").out)
    assert [each["expires_at"] is None for each in fields["sessions"]] == [True, False, False]
    assert [each["period"] for each in fields["sessions"]] == [
        None,
        {"lifetime_ms": 43_200_000, "extensions_max": None},
        {"lifetime_ms": 1_800_000, "extensions_max": 3},
    ]
    assert (fields["bytes"], fields["bytes_max"]) == (0, 2_048 * 2**20)


def test_another_end_is_set_later(tally: Tally) -> None:
    session = made(tally)

    refused = tally("session", "extend", session)
    assert (refused.code, refused.out) == (4, "")
    assert "it has no end" in refused.line
    assert "(1 hours left)" not in tally("session", "resume", session, "--expires", "2h").out
    assert "extended  1 times" not in tally("session", "show", session).out
    assert tally("session", "extend", session).code == 0
    assert "extended  1 times" in tally("session", "show", session).out
    assert tally("session", "resume", session, "--expires", "never").out.strip().endswith("no end")


def test_a_paused_session_refuses_runs_until_it_is_resumed(tally: Tally) -> None:
    session = made(tally)
    tally.script("x = 1\nFINAL(x)")

    assert "  paused  " in tally("session", "pause", session).out
    refused = tally.run("--session", session)

    assert refused.code == 4
    assert refused.line.endswith(f"until it is resumed: tally session resume {session}")
    assert tally("session", "set", session, "a=b").code == 4
    assert tally("session", "export", session).code == 0
    assert "  ready  " in tally("session", "resume", session).out
    assert tally.run("--session", session).code == 0


def test_a_terminated_session_keeps_its_list_of_runs(tally: Tally) -> None:
    session = made(tally)
    tally.script("x = 1\nFINAL(x)")
    assert tally.run("--session", session).code == 0
    assert tally("snapshot", "create", session, "s").code == 0

    assert tally("session", "terminate", session).code == 1  # nobody answers the question
    over = tally("session", "terminate", session, "--yes")

    assert "  terminated  " in over.out
    assert " 0 B  for good" in over.out
    shown = tally("session", "show", session).out
    assert "run       " in shown
    assert "snapshot" not in shown
    for words in (("session", "resume", session), ("session", "pause", session)):
        assert tally(*words).code == 4
    assert tally.run("--session", session).code == 4
    assert tally("session", "rm", session, "--yes").code == 0


@pytest.mark.slow
def test_the_sizes_are_shown_and_the_oldest_are_offered(
    tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = made(tally), made(tally)
    tally.script("x = 1\nFINAL(x)")
    tally.run("--session", first)

    listed = tally("session", "ls")
    assert "MiB" in listed.out.splitlines()[0]
    assert listed.err.strip().endswith("of 2.0 GiB")
    planned = tally("session", "prune", "--keep", "1", "--dry-run")
    assert planned.out.startswith(second)
    assert "would be removed: 1 session" in planned.err
    monkeypatch.setenv("TALLYSTICK_SESSION_MB", "0")
    full = tally("session", "new")
    assert (full.code, full.out) == (4, "")
    assert "tally session prune offers the oldest" in full.line
    assert "tally session prune offers the oldest" in tally("session", "ls").err
    assert "at most 0 are allowed" in tally.run("--session", first).err

    asked = tally("session", "prune")
    assert asked.code == 1
    assert "remove 2 sessions" in asked.err
    removed = json.loads(tally("session", "prune", "--json").out)

    assert removed["removed"] == [second, first]
    assert (removed["bytes"], removed["dry_run"]) == (0, False)
    assert tally("session", "ls").out == ""
    assert "nothing to prune" in tally("session", "prune", "--yes").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("new", "--expires", "soon"), "a duration such as 90s, 30m, 12h, 7d or 2w"),
        (("new", "--expires", "0s"), "from a second to 1,000 years"),
        (("prune", "--unused", "1.5h"), "a duration such as 30m, 12h, 30d or 2w"),
        (("pause", UNKNOWN), "tally session ls lists"),
        (("terminate", UNKNOWN, "--yes"), "tally session ls lists"),
        (("resume", UNKNOWN, "--expires", "1h"), "tally session ls lists"),
    ],
)
def test_bad_input_is_one_line_and_makes_nothing(
    tally: Tally, words: tuple[str, ...], said: str
) -> None:
    done = tally("session", *words)

    assert done.code in (2, 4)
    assert said in done.line
    assert done.out == ""
    assert tally("session", "ls").out == ""
