"""`tally run -f`: names and encodings, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    (tmp_path / "orders.csv").write_text("id,tons\nA-1,10\nA-2,7\n")
    (tmp_path / "notes.txt").write_bytes("Größe über alles\n".encode("cp1252"))
    (tmp_path / "broken.txt").write_bytes(b"\xff\xfea")
    program = "FINAL([sum(row['tons'] for row in orders_rows), notes.strip()])"
    (tmp_path / "demo.jsonl").write_text(json.dumps({"text": f"```repl\n{program}\n```"}))
    return Tally(tmp_path)


def test_contexts_by_name_and_a_line_for_what_was_not_utf_8(tally: Tally) -> None:
    asked = ("run", "what?", "-m", "scripted:demo.jsonl", "-f", "orders=orders.csv",
             "-f", "notes=notes.txt")  # fmt: skip

    quiet = tally(*asked, "--quiet")
    events = tally(*asked, "--events")
    begun = json.loads(tally("inspect", "last", "--json").stdout)["records"][0]

    assert (quiet.returncode, quiet.stdout) == (0, '[17,"Größe über alles"]\n'), quiet.stderr
    assert quiet.stderr == ""
    assert events.stderr.startswith("notes.txt: not UTF-8; read as cp1252\n")
    assert begun["encodings"] == [["notes.txt", "cp1252"]]
    assert [each["name"] for each in begun["contexts"]] == ["orders", "notes"]
    # What is kept is what programs see.
    kept = {each["name"]: each["attachment"]["byte_len"] for each in begun["inputs"]}
    assert kept["notes"] == len("Größe über alles\n".encode())


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("broken.txt", "broken.txt: begins as utf-16-le, but cannot be decoded so"),
        ("print=notes.txt", "print is taken"),
    ],
)
def test_what_cannot_be_read_ends_with_2_and_writes_nothing(
    tally: Tally, tmp_path: Path, named: str, says: str
) -> None:
    done = tally("run", "what?", "-m", "scripted:demo.jsonl", "-f", named)

    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("ledger.db"))
