"""Sessions that another guest left: named by `session ls` and `doctor`, their values exported."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.cli.test_resume import Tally, tally
from tests.cli.test_session import asked, process
from tests.opened_sessions import open_sessions

from tallystick.sandbox.snapshot import pack_snapshot, unpack_snapshot

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

__all__ = ["tally"]

OTHER = "f" * 64


def left_by_another_guest(tally: Tally, session: str, *, with_values: bool = True) -> None:
    """Have the interpreter of a session be one that another guest made."""
    with open_sessions(tally.path) as sessions:
        left = sessions.get(session).left
        assert left.image is not None
        snapshot, image = unpack_snapshot([sessions.images.read(session, left.image)])
        other = msgspec.structs.replace(image, guest=OTHER)
        assert b"".join(pack_snapshot(snapshot, other))
        ref = sessions.images.keep(session, run=left.run or "", image=other)
        values = left.values if with_values else None
        changed = msgspec.structs.replace(left, image=ref, values=values)
        sessions.book.kept.start_from(session, changed)


def exported(tally: Tally, session: str, to: Path) -> dict[str, object]:
    done = tally("session", "export", session)
    assert done.code == 0, done.err
    to.write_text(done.out)
    found: dict[str, object] = json.loads(done.out)
    return found


def test_a_session_of_another_guest_is_named_with_what_can_be_done(tally: Tally) -> None:
    mine, other = (process(tally, "session", "new") for _ in range(2))
    for each in (mine, other):
        asked(tally, each, "x = [1]\nFINAL(x)")
    assert "another" not in tally("session", "ls").out
    left_by_another_guest(tally, other)

    done = tally("session", "ls")

    assert done.code == 0
    assert [each for each in done.out.splitlines() if "of another guest" in each] == [
        next(each for each in done.out.splitlines() if each.startswith(other))
    ]
    said, kept = done.err.splitlines()
    assert said.startswith("1 session was stored by another version of the sandbox")
    assert f"tally session export {other} >values.json" in said
    assert "tally session new --from values.json" in said
    assert kept.startswith("sessions keep ")
    found = json.loads(tally("session", "ls", "--json").out)["sessions"]
    assert [each["sandbox"]["differs"] for each in found] == [None, "guest"]
    assert found[1]["sandbox"]["guest"] == OTHER
    assert found[1]["values_recorded"]
    shown = tally("session", "show", other)
    assert "left by   another guest, ffffffffffff" in shown.out
    assert "answered  'what is it?'" in shown.out  # its runs stay readable
    assert tally("inspect", "last").code == 0


def test_the_doctor_names_sessions_of_another_guest(tally: Tally) -> None:
    assert json.loads(tally("doctor", "--json").out)["left_by_another_sandbox"] == {
        "sessions": [], "exec_sessions": [],
    }  # fmt: skip
    assert not tally.path.exists()  # it makes no file
    session = process(tally, "session", "new")
    asked(tally, session, "x = [1]\nFINAL(x)")
    left_by_another_guest(tally, session)

    told, report = tally("doctor"), json.loads(tally("doctor", "--json").out)

    assert told.code == 0
    assert f"sessions {session} was stored by another version of the sandbox" in told.out
    assert f"tally session export {session} >values.json" in told.out
    assert report["left_by_another_sandbox"]["sessions"] == [session]
    assert report["sessions_unreadable"] is None


def test_the_doctor_names_namespaces_of_exec_that_another_engine_left(
    tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tally.folder / "p.py").write_text("x = 1\n")
    assert tally("exec", "p.py", "--session", "mine", "--quiet").code == 0
    assert "tally exec --session mine" not in tally("doctor").out
    monkeypatch.setattr("tallystick.sessions.sessions.ENGINE", "another 1.0")

    assert "tally exec --session mine: stored by another version" in tally("doctor").out
    found = json.loads(tally("doctor", "--json").out)["left_by_another_sandbox"]
    assert found == {"sessions": [], "exec_sessions": ["mine"]}


def test_a_new_session_starts_from_the_values_of_one_that_another_guest_left(
    tally: Tally,
) -> None:
    old = process(tally, "session", "new", "--set", "region=EU")
    source = (
        "rows = [['ä', 1.5], None]\npair = (1, 2)\ndef f(): return 1\nn = float('nan')\nFINAL(1)"
    )
    asked(tally, old, source)
    left_by_another_guest(tally, old)
    refused = tally("run", "and now?", "-m", "scripted:demo.jsonl", "--session", old)
    assert refused.code == 4
    assert f"tally session export {old} >values.json" in refused.err

    found = exported(tally, old, tally.folder / "values.json")
    new = process(tally, "session", "new", "--from", "values.json")

    assert found["values"] == {"rows": [["ä", 1.5], None], "pair": [1, 2]}
    assert found["tuples"] == ["pair"]
    assert found["refused"] == {"f": "function", "n": "a number that JSON cannot hold"}
    said = "FINAL([rows, pair, context_variables['region'], 'f' in dir()])"
    assert asked(tally, new, said) == '[[["ä",1.5],null],[1,2],"EU",false]'
    assert json.loads(process(tally, "replay", "last", "--json"))["held"]
    assert tally("verify").code == 0
    # What was started from is recorded again, and can be exported again.
    assert exported(tally, new, tally.folder / "again.json")["values"] == found["values"]


def test_values_that_are_not_exported_are_named_on_stderr(tally: Tally) -> None:
    session = process(tally, "session", "new")
    source = (
        "import re\nbig = 'x' * 2_000_000\nkeys = {1: 2}\nloop = []\nloop.append(loop)\n"
        "half = '\\ud800'\nsmall = 'kept'\nFINAL(1)"
    )
    asked(tally, session, source)

    done = tally("session", "export", session)

    assert json.loads(done.out)["values"] == {"small": "kept"}
    assert done.err.splitlines() == [
        "not exported: re (module)",
        "not exported: big (too long)",
        "not exported: keys (a dict with keys that are not texts)",
        "not exported: loop (nested too deep, or holds itself)",
        "not exported: half (a text that is not Unicode)",
    ]


def test_a_snapshot_is_exported_by_its_name(tally: Tally) -> None:
    session = process(tally, "session", "new")
    asked(tally, session, "x = 1\nFINAL(x)")
    process(tally, "snapshot", "create", session, "one")
    asked(tally, session, "x = 2\nFINAL(x)")

    done = tally("session", "export", session, "--snapshot", "one")

    assert json.loads(done.out)["values"] == {"x": 1}
    assert tally("session", "export", session, "--snapshot", "nosuch").code == 4


def test_values_that_were_never_recorded_are_said_to_be(tally: Tally) -> None:
    session = process(tally, "session", "new")
    assert json.loads(tally("session", "export", session).out)["values"] == {}
    asked(tally, session, "x = 1\nFINAL(x)")
    left_by_another_guest(tally, session, with_values=False)

    done = tally("session", "export", session)

    assert (done.code, done.out) == (4, "")
    assert "its values were not recorded" in done.line
    assert "only the version of the sandbox that stored them can read them" in done.line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "these are no values of a session"),
        ('{"format": 2, "values": {}}', "has format 2; this version reads 1"),
        ('{"format": 1, "values": {"a b": 1}}', "'a b' is no name for a variable"),
        ('{"format": 1, "values": {"FINAL": 1}}', "FINAL is taken"),
        ('{"format": 1, "values": {"x": NaN}}', "these are no values of a session"),
        ('{"format": 1, "values": {"x": ' + "[" * 5000 + "]" * 5000 + "}}", "no values"),
    ],
)
def test_a_file_that_holds_no_values_is_refused_and_makes_no_session(
    tally: Tally, text: str, why: str
) -> None:
    (tally.folder / "values.json").write_text(text)

    done = tally("session", "new", "--from", "values.json")

    assert done.code == 2
    assert why in done.line
    assert json.loads(tally("session", "ls", "--json").out)["sessions"] == []


def test_values_that_are_erased_leave_no_copy(tally: Tally) -> None:
    session = process(tally, "session", "new")
    note = "the key of the shed is under the blue pot"
    process(tally, "remember", note)
    asked(tally, session, f"kept = {note!r}\nFINAL(1)")
    assert json.loads(tally("session", "export", session).out)["values"] == {"kept": note}

    id = json.loads(tally("memory", "ls", "--json").out)["notes"][0]["id"]
    done = tally("forget", id, "--strategy", "hard_delete", "--yes")

    assert done.code == 0, done.err
    assert json.loads(tally("session", "export", session).out)["values"] == {}
