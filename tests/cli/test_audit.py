"""`tally head`, `tally prove` and what `tally verify` says of them, as a user calls them."""

import json
import sqlite3
import stat
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally
from tests.ledger.builders import OTHER, RUN, drafts, filled

from tallystick.core.chain import Head
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.settings.signing import signing_available

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

# A reference of somebody else, without which a sweep finds nothing held at all and refuses.
X = "0" * 64
REF = json.dumps({"id": X, "media_type": "text/plain", "byte_len": 1}).encode()


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    """The command, with a run of four entries in the user's ledger."""
    made = Tally(tmp_path)
    with SqliteLedger(tmp_path / "data" / "ledger.db") as ledger:
        filled(ledger)
    return made


def goes_on(tally: Tally, head: dict[str, object]) -> None:
    with SqliteLedger(tally.directory / "data" / "ledger.db") as ledger:
        expected = Head(count=int(str(head["count"])), hash=str(head["hash"]))
        ledger.append(RUN, drafts(2, start=4), expected=expected, fence=1, forced=False)


def cut_back(tally: Tally) -> None:
    """Put a ledger in the place of the user's that ends two entries earlier."""
    for file in (tally.directory / "data").glob("ledger.db*"):
        if file.is_file():
            file.unlink()
    with SqliteLedger(tally.directory / "data" / "ledger.db") as ledger:
        filled(ledger, count=2)


def test_a_head_is_one_line_and_holds_while_the_run_goes_on(tally: Tally) -> None:
    made = tally("head", "last")
    written = tally("head", "last", "--output", "kept.head", "--json")
    document = json.loads(made.stdout)
    goes_on(tally, document)

    named = tally("verify", RUN, "--head", "kept.head")
    unnamed = tally("verify", "--head", "kept.head", "--json")

    assert made.stderr == f"head of {RUN}: 4 entries, unsigned\n"
    assert (document["run"], document["count"], document["signature"]) == (RUN, 4, "unsigned")
    assert written.stdout == (tally.directory / "kept.head").read_text()
    assert stat.S_IMODE((tally.directory / "kept.head").stat().st_mode) == 0o600
    assert (named.returncode, named.stdout) == (0, "1 run, 6 entries: all hold\n")
    assert named.stderr.endswith(": unsigned\n")
    assert json.loads(unnamed.stdout)["head"]["signature"] == "unsigned"


def test_a_run_cut_back_is_found_by_a_kept_head_of_any_form(tally: Tally) -> None:
    document = json.loads(tally("head", "last", "--output", "kept.head", "--json").stdout)
    bare = {"count": document["count"], "hash": document["hash"]}
    (tally.directory / "bare.head").write_text(json.dumps(bare, indent=2))
    assert tally("verify", RUN, "--head", "bare.head").returncode == 0
    cut_back(tally)

    assert tally("verify").returncode == 0
    for words in (
        ("--head", "kept.head"),
        (RUN, "--head", "kept.head"),
        (RUN, "--head", "bare.head"),
    ):
        found = tally("verify", *words)
        assert found.returncode == 6
        assert found.stdout.startswith(f"run {RUN}, entry 2: it is missing")


def test_a_proof_needs_a_head_and_no_ledger(tally: Tally, tmp_path: Path) -> None:
    tally("head", "last", "--output", "kept.head")
    made = tally("prove", "last", "2", "--body", "--output", "entry.proof")
    elsewhere = {"TALLYSTICK_DATA_DIR": str(tmp_path / "nothing")}

    told = tally("verify", "--proof", "entry.proof", "--head", "kept.head", **elsewhere)
    report = tally("verify", "--proof", "entry.proof", "--head", "kept.head", "--json", **elsewhere)

    assert made.stderr == f"entry 2 of {RUN}, with its body, under 4 entries\n"
    assert told.stdout == f"run {RUN}, entry 2: model.replied, with its body, holds\n"
    assert json.loads(report.stdout)["ok"] is True
    assert not (tmp_path / "nothing").exists()


def test_a_proof_that_does_not_hold_is_exit_code_6_and_named(tally: Tally) -> None:
    head = json.loads(tally("head", "last", "--output", "kept.head", "--json").stdout)
    proof = tally("prove", "last", "1").stdout
    (tally.directory / "false.proof").write_text(proof.replace("program.run", "program.ran"))
    goes_on(tally, head)
    tally("prove", "last", "1", "--output", "late.proof")
    tally("prove", "last", "1", "--head", "kept.head", "--output", "good.proof")

    false, late, good = (
        tally("verify", "--proof", f"{name}.proof", "--head", "kept.head", "--json")
        for name in ("false", "late", "good")
    )

    assert [done.returncode for done in (false, late, good)] == [6, 6, 0]
    bad = json.loads(false.stdout)["first_bad"]
    assert bad == {"run": RUN, "seq": 1, "why": "its proof does not lead to the head"}
    assert "ends at 6 entries, the head at 4" in late.stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("head", OTHER), 6, "no run"),
        (("prove", "last", "4"), 2, "no entry 4"),
        (("prove", "last", "--", "-1"), 2, "no entry -1"),
        (("prove", "last", "1", "--head", "text"), 2, "--head text: not a head"),
        (("prove", "last", "1", "--output", "no/such/place"), 2, "No such file"),
        (("verify", "--proof", "text"), 2, "need --head"),
        (("verify", "--key", "text"), 2, "need --head"),
        (("verify", "--head", "bare"), 2, "this head does not name its run"),
        (("verify", "--head", "bare", "--proof", "text"), 2, "--proof text: not a proof"),
        (("verify", RUN, "--head", "bare", "--proof", "text"), 2, "leave out RUN"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    tally: Tally, words: tuple[str, ...], code: int, says: str
) -> None:
    (tally.directory / "text").write_text("text")
    (tally.directory / "bare").write_text(json.dumps({"count": 0, "hash": "00" * 32}))

    done = tally(*words)

    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_extra_it_is_named_and_nothing_is_signed(tally: Tally) -> None:
    tally("head", "last", "--output", "kept.head")
    # Python reads this when it starts: the extra is not to be found, wherever it is.
    hidden = tally.directory / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys; sys.modules['cryptography'] = None")
    tally.env["PYTHONPATH"] = str(hidden)

    for words in (
        ("head", "last", "--sign"),
        ("verify", "--head", "kept.head", "--key", "kept.head"),
    ):
        done = tally(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert "pip install 'tallystick[sign]'" in done.stderr


@pytest.mark.skipif(
    not signing_available(), reason="the extra `sign` is not installed: signatures cannot be made"
)
def test_a_signed_head_is_checked_with_the_key_that_is_named(tally: Tally) -> None:
    made = tally("head", "last", "--sign", "--output", "kept.head")
    again = tally("head", "last", "--sign")
    public = str(tally.directory / ".config" / "tallystick" / "signing.pub")

    checked = tally("verify", "--head", "kept.head", "--key", public)
    unchecked = tally("verify", "--head", "kept.head")
    tally("head", "last", "--output", "unsigned.head")
    unsigned = tally("verify", "--head", "unsigned.head", "--key", public)

    assert public in made.stderr
    assert again.stderr.startswith("head of")
    assert (checked.returncode, unchecked.returncode, unsigned.returncode) == (0, 0, 6)
    assert "signed by" in checked.stderr
    assert "not checked: name its public key with --key FILE" in unchecked.stderr
    assert unsigned.stdout.startswith(f"run {RUN}, entry 3: the head given is unsigned")


def test_a_deleted_reference_is_named_and_collection_leaves_the_input_there(
    tmp_path: Path,
) -> None:
    tally = Tally(tmp_path)
    examples = Path(__file__).parents[2] / "examples"
    ran = tally(
        *("run", "which are overdue?", "-f", str(examples / "books.csv")),
        *("-m", f"scripted:{examples / 'overdue.jsonl'}", "--quiet"),
    )
    assert ran.returncode == 0, ran.stderr
    assert tally("verify").returncode == tally("attach", "verify").returncode == 0
    (line,) = tally("attach", "ls", "--run", "last").stdout.splitlines()
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as db:
        assert db.execute("DELETE FROM attachment_reference").rowcount == 1
        db.execute("INSERT INTO attachment_reference VALUES ('cli', ?, NULL, 1, 1, ?)", (X, REF))
    db.close()

    verified, attached = tally("verify"), tally("attach", "verify")
    collected = tally("attach", "gc", "--grace", "0")

    assert verified.returncode == attached.returncode == collected.returncode == 6
    assert f"attachment {line.split()[0]}" in verified.stdout
    assert "names it, and its session does not hold it" in attached.stdout
    assert "deleted 0" in collected.stdout
    assert "tally attach verify" in collected.stderr
    with sqlite3.connect(tmp_path / "data" / "ledger.db") as db:
        assert db.execute("SELECT count(*) FROM attachment_blob").fetchone() == (1,)
    db.close()
