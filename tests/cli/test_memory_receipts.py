"""Receipts at the command line: written, checked offline, and what is said if they fail."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator

import msgspec
import pytest
from tests.cli.test_memory import Here
from tests.memory.memory_store import quick_folder

from tallystick.memory.memory import Memory
from tallystick.memory.recall.scope import DEFAULT
from tallystick.memory.receipts.receipt import HmacMismatch, QueryHashMismatch, ReceiptUnreadable

QUERY = "when does the ferry leave?"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with quick_folder() as folder:
        made = Here(folder, monkeypatch)
        made.remember("the ferry leaves at nine")
        made.remember("the ferry was late in May")
        made.remember("bread is in the cellar")
        yield made


def written(here: Here, *words: str) -> dict[str, object]:
    """The receipt of a recall, in a file of that name as well."""
    here.text("recall", QUERY, "--receipt", "it.receipt", *words)
    receipt: dict[str, object] = json.loads((here.path / "it.receipt").read_bytes())
    return receipt


def test_a_receipt_holds_by_its_file_and_by_its_id_after_later_notes(here: Here) -> None:
    receipt = written(here)
    here.remember("the ferry is red")

    by_file = here.json("recall", "--verify", "it.receipt", "--query", QUERY)
    by_id = here.json("recall", "--verify", str(receipt["read_id"]), "--query", QUERY)
    without = here.json("recall", "--verify", "it.receipt")

    assert by_file == by_id
    assert (by_file["held"], by_file["ranking"], by_file["query"]) == (True, "same", "same")
    assert [note["state"] for note in by_file["notes"]] == ["held", "held"]
    assert (without["ranking"], without["query"]) == ("not_recomputed", "not_given")
    text = here.text("recall", "--verify", "it.receipt", "--query", QUERY)
    assert text.splitlines()[0].startswith("held: recall ")
    assert "to the last digit" in text


def test_a_receipt_with_filters_and_a_budget_is_made_again_with_them(here: Here) -> None:
    here.remember("a ferry of Ann's", "--author", "Ann", "--tag", "trip")

    for words in (("--author", "Ann"), ("--tag", "trip"), ("--tokens", "9"), ("-k", "1")):
        written(here, *words)
        assert here.json("recall", "--verify", "it.receipt", "--query", QUERY)["ranking"] == "same"


def test_a_receipt_of_another_query_does_not_hold(here: Here) -> None:
    written(here)

    said = here.json("recall", "--verify", "it.receipt", "--query", "bread", code=6)
    error = here.tally("recall", "--verify", "it.receipt", "--query", "bread").exception

    assert (said["held"], said["code"]) == (False, "ledger.receipt.query")
    assert isinstance(error, QueryHashMismatch)


def test_a_changed_receipt_does_not_hold(here: Here) -> None:
    written(here)
    file = here.path / "it.receipt"
    file.write_bytes(file.read_bytes().replace(b'"k":10', b'"k":11'))

    result = here.tally("recall", "--verify", "it.receipt")

    assert isinstance(result.exception, HmacMismatch)
    assert here.json("recall", "--verify", "it.receipt", code=6)["held"] is False


@pytest.mark.parametrize("bytes_", [b"", b"{}", b"\xff\xfe", b"null", b"[" * 100_000])
def test_what_is_no_receipt_is_said_to_be_none(here: Here, bytes_: bytes) -> None:
    (here.path / "it.receipt").write_bytes(bytes_)

    result = here.tally("recall", "--verify", "it.receipt")

    assert isinstance(result.exception, ReceiptUnreadable)
    assert str(result.exception).isprintable()


def test_an_id_of_no_recall_and_a_file_that_is_not_there_are_told_apart(here: Here) -> None:
    assert "no recall" in here.error("recall", "--verify", "nosuch", code=6)
    assert "No such file" in here.error("recall", "--verify", "./nosuch", code=2)


def test_a_ranking_that_comes_to_something_else_is_a_divergence(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(here)
    other = msgspec.structs.replace(DEFAULT, lexical=DEFAULT.lexical / 2)
    usual = Memory.__init__.__kwdefaults__
    assert usual is not None
    monkeypatch.setitem(usual, "profile", other)

    said = here.json("recall", "--verify", "it.receipt", "--query", QUERY, code=8)

    assert (said["held"], said["code"]) == (False, "ledger.receipt.differs")
    assert "profile" in said["message"]


def test_a_note_that_was_changed_in_the_file_is_found(here: Here) -> None:
    written(here)
    db = sqlite3.connect(here.file)
    with db:
        db.execute("UPDATE log SET body = CAST(replace(body, 'nine', 'ten') AS BLOB) WHERE seq = 1")
    db.close()

    said = here.json("recall", "--verify", "it.receipt", code=6)

    assert said["code"] == "ledger.receipt.content"
    assert here.json("memory", "verify", code=6)["log"]["first_broken_at"] == 1


def test_a_receipt_of_erased_notes_holds_and_says_so(here: Here) -> None:
    written(here)
    (first, *_) = here.json("recall", QUERY)["hits"]
    here.text("forget", first["id"], "--strategy", "hard_delete", "--yes")

    said = here.json("recall", "--verify", "it.receipt", "--query", QUERY)
    text = here.text("recall", "--verify", "it.receipt", "--query", QUERY)

    assert said["held"] is True
    assert {"id": first["id"], "state": "erased"} in said["notes"]
    assert f"erased: note {first['id']}" in text


def test_a_receipt_of_another_memory_does_not_hold_here(here: Here) -> None:
    written(here)
    here.remember("something else", "--memory", "other")

    said = here.json("recall", "--verify", "it.receipt", "--memory", "other", code=6)

    assert said["held"] is False


def test_a_citation_is_shown_as_the_text_that_was_recalled(here: Here) -> None:
    found = here.json("recall", QUERY)
    hit = found["receipt"]["derived_from"][0]
    citation = f"note:{hit['id']}@{found['receipt']['read_id']}#{hit['content_hash'][:16]}"

    shown = here.json("memory", "show", citation)

    assert shown["content"] == found["hits"][0]["content"]
    wrong = f"{citation[:-1]}{'0' if citation[-1] != '0' else '1'}"
    assert "does not say" in here.error("memory", "show", wrong, code=6)
    assert "not a citation" in here.error("memory", "show", "note:x", code=2)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("q", "--verify", "x"),
        ("q", "--program", "x"),
        ("q", "--query", "x"),
        ("q", "--fuel", "1"),
        ("--query", "x"),
    ],
)
def test_what_contradicts_itself_is_wrong_usage(here: Here, words: tuple[str, ...]) -> None:
    here.error("recall", *words, code=2)


# -- receipts for somebody else ----------------------------------------------------------------


@pytest.fixture
def there(here: Here, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Another machine: a home of its own, and nothing of the first but what is copied."""
    (here.path.parent / "there").mkdir()
    return Here(here.path.parent / "there", monkeypatch)


def given_away(here: Here, there: Here, *words: str) -> str:
    """Give a signed receipt, the public key and a copy of the memory away. Return the head."""
    here.text("recall", QUERY, "--receipt", "it.receipt", "--sign", *words)
    head = str(here.json("memory", "verify")["head"])
    here.text("memory", "export", "notes.jsonl")
    for name in ("it.receipt", "notes.jsonl", ".config/tallystick/signing.pub"):
        shutil.copy(here.path / name, there.path)
    shutil.copy(here.file, there.path / "copy.db")
    return head


def test_a_receipt_made_on_one_machine_is_checked_on_another_without_a_secret(
    here: Here, there: Here
) -> None:
    head = given_away(here, there)
    shutil.rmtree(here.path)
    check = ("recall", "--verify", "it.receipt", "--query", QUERY)

    by_key = there.json(*check, "--against", "copy.db", "--key", "signing.pub")
    by_head = there.json(*check, "--against", "copy.db", "--head", head)
    alone = there.json(*check, "--against", "copy.db")
    export = there.json(*check, "--against", "notes.jsonl", "--key", "signing.pub")

    for said in (by_key, by_head, alone):
        assert (said["held"], said["ranking"]) == (True, "same")
        assert [note["state"] for note in said["notes"]] == ["held", "held"]
    assert [said["by"] for said in (by_key, by_head, alone)] == ["public_key", "head", "own_head"]
    assert (export["held"], export["ranking"]) == (True, "not_recomputed")
    text = there.text(*check, "--against", "copy.db")
    assert "compare it with one that its owner gives" in text
    assert not list(there.path.rglob("*.key*"))


def test_a_copy_in_the_checkers_own_place_is_checked_too(here: Here, there: Here) -> None:
    head = given_away(here, there)
    there.file.parent.mkdir(parents=True)
    shutil.copy(there.path / "copy.db", there.file.with_name("anns.db"))
    memory = ("--memory", "anns")

    said = there.json("recall", "--verify", "it.receipt", *memory, "--key", "signing.pub")
    with_head = there.json("memory", "verify", *memory, "--head", head)
    text = there.text("memory", "verify", *memory, "--head", head)
    without = there.json("memory", "verify", *memory, code=6)

    assert said["by"] == "public_key"
    assert with_head["receipts"]["unknown_keys"] == 1
    assert "1: all hold; 1 of them signed with a key that is not here" in text
    assert without["receipts"]["valid"] is False
    # A receipt after the head could be of anybody who has the copy.
    forger_home = {"HOME": str(there.path / "forger")}
    with Memory.open(
        "anns", directory=there.file.parent, owner=True, embedder=None, environ=forger_home
    ) as forger:
        forger.recall(QUERY)
    later = there.json("memory", "verify", *memory, "--head", head, code=6)
    assert later["receipts"]["first_broken_at"] == 1


def test_a_changed_receipt_of_another_is_refused_with_code_6(here: Here, there: Here) -> None:
    given_away(here, there)
    file = there.path / "it.receipt"
    file.write_bytes(file.read_bytes().replace(rb"\"k\":10", rb"\"k\":11"))
    check = ("recall", "--verify", "it.receipt", "--against", "copy.db")

    assert there.json(*check, "--key", "signing.pub", code=6)["code"] == "ledger.receipt.signature"
    assert there.json(*check, code=6)["code"] == "ledger.receipt.not_on_log"


def test_a_receipt_is_given_away_later_with_its_query(here: Here, there: Here) -> None:
    id = here.json("recall", QUERY)["receipt"]["read_id"]
    given_away(here, there)
    said = here.tally("memory", "receipt", id, "--sign", "--query", QUERY, "-o", "it.receipt")
    assert said.stdout == ""
    assert "signed by" in said.stderr
    shutil.copy(here.path / "it.receipt", there.path)

    check = ("recall", "--verify", "it.receipt", "--against", "copy.db", "--key", "signing.pub")
    held = there.json(*check)

    assert (held["query"], held["ranking"]) == ("same", "same")
    assert here.json("recall", "--verify", "it.receipt")["query"] == "same"
    assert there.json(*check, "--query", "bread", code=6)["code"] == "ledger.receipt.query"


def test_what_contradicts_itself_about_others_receipts_is_wrong_usage(
    here: Here, there: Here
) -> None:
    head = given_away(here, there)
    verify = ("recall", "--verify", "it.receipt")
    (there.path / "bad").write_text("x")

    assert "--verify" in there.error("recall", "x", "--against", "copy.db", code=2)
    assert "--receipt" in there.error("recall", "x", "--sign", code=2)
    assert "COUNT:HASH" in there.error(*verify, "--against", "copy.db", "--head", "7", code=2)
    assert "two memories" in there.error(*verify, "--against", "copy.db", "--memory", "x", code=2)
    assert "neither" in there.error(*verify, "--against", "bad", code=2)
    assert "No such file" in there.error(*verify, "--against", "nosuch", code=2)
    assert "no log" in there.error(*verify, "--against", "notes.jsonl", "--head", head, code=2)
    assert "public key" in there.error(*verify, "--against", "copy.db", "--key", "bad", code=2)
    assert "no recall" in here.error("memory", "receipt", "nosuch", code=6)
    assert "--against FILE" in there.error(*verify, "--key", "signing.pub", code=2)
    private = here.path / ".config/tallystick/signing.key"
    assert "private key" in here.error(*verify, "--key", str(private), code=2)


def test_without_the_extra_for_signatures_nothing_is_recalled(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.settings.signing.signing_available", lambda: False)

    said = here.error("recall", QUERY, "--receipt", "it.receipt", "--sign", code=2)

    assert "tallystick[sign]" in said
    assert not (here.path / "it.receipt").exists()
    assert here.json("memory", "stats")["receipts"] == 0
