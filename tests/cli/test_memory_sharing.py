"""Sharing, relating, consolidating, decaying and weighing, from the command line."""

from __future__ import annotations

import pytest
from tests.cli.test_memory import Here, here

__all__ = ["here"]


@pytest.fixture
def note(here: Here) -> str:
    return here.remember("the ferry leaves at nine", "--agent", "ada", "--tag", "trip")


def test_a_note_is_shared_listed_shown_and_taken_back(here: Here, note: str) -> None:
    assert here.json("recall", "ferry", "--agent", "ben")["hits"] == []
    assert here.text("memory", "share", note, "--with", "ben", "--permission", "write").startswith(
        "1 note shared (write) with ben"
    )
    place = str(here.json("memory", "stats")["head"]["count"])
    assert [hit["id"] for hit in here.json("recall", "ferry", "--agent", "ben")["hits"]] == [note]
    assert here.text("memory", "share") == f"{note}  ben  write\n"
    shown = here.text("memory", "show", note)
    assert "shared_with       ben (write)" in shown
    assert "seen_by           ada, ben" in shown

    here.text("memory", "share", note, "--with", "ben", "--take-back")

    assert here.json("recall", "ferry", "--agent", "ben")["hits"] == []
    then = here.json("recall", "ferry", "--agent", "ben", "--as-of", place)
    assert [hit["id"] for hit in then["hits"]] == [note]
    assert here.json("memory", "share")["shares"] == []
    (listed,) = here.json("memory", "share", "--as-of", place)["shares"]
    assert (listed["id"], listed["agent_id"], listed["permission"]) == (note, "ben", "write")
    assert here.json("memory", "show", note)["shared_with"] == []


def test_a_tag_is_shared_also_for_later_notes(here: Here, note: str) -> None:
    said = here.json("memory", "share", "--tag", "trip", "--with", "ben", "--agent", "ada")
    assert said == {
        "id": None, "tag": "trip", "agent_id": "ben", "permission": "read", "notes": 1,
    }  # fmt: skip
    later = here.remember("the ferry is red", "--agent", "ada", "--tag", "trip")
    found = here.json("recall", "ferry", "--agent", "ben")["hits"]
    assert {hit["id"] for hit in found} == {note, later}
    assert "notes with the tag trip of ada, also later ones  ben  read, by ada" in here.text(
        "memory", "share"
    )
    everything = here.json("memory", "share", "--all", "--with", "eve", "--agent", "ada")
    assert everything["notes"] == 2


def test_a_relation_is_shown_followed_and_taken_back(here: Here, note: str) -> None:
    other = here.remember("bread is in the cellar", "--agent", "ada")
    said = here.text("memory", "relate", note, other, "--as", "supports", "--weight", "0.5")
    assert said == f"{note}  supports  {other}\n"
    assert f"relations         supports {other} (0.5)" in here.text("memory", "show", note)
    assert f"relations         {note} supports it (0.5)" in here.text("memory", "show", other)
    found = here.json("recall", "ferry", "--strategy", "graph")["hits"]
    assert [hit["lanes"]["related"] for hit in found] == [0.5, 0.125]

    here.text("memory", "relate", note, other, "--as", "supports", "--take-back")

    assert here.json("memory", "show", note)["relations"] == []
    found = here.json("recall", "ferry", "--strategy", "graph")["hits"]
    assert [hit["id"] for hit in found] == [note]


def test_notes_are_consolidated_into_one(here: Here, note: str) -> None:
    other = here.remember("the ferry is red", "--agent", "ada")
    made = here.json("memory", "consolidate", note, other, "--text", "-", say="the red ferry, nine")
    assert made["superseded"] == [note, other]
    assert [hit["id"] for hit in here.json("recall", "ferry")["hits"]] == [made["id"]]
    shown = here.json("memory", "show", note)
    assert (shown["state"], shown["standing"]) == ("consolidated", "superseded")


def test_weights_of_a_recall_are_in_its_receipt(here: Here, note: str) -> None:
    low = here.remember("the ferry leaves at ten", "--importance", "0.1")
    high = here.remember("the ferry leaves at ten or so", "--importance", "1")
    words = ("recall", "ferry at ten", "--weigh", "importance=9", "--receipt", "it.receipt")
    found = here.json(*words)

    assert [hit["id"] for hit in found["hits"]] == [high, note, low]
    assert found["receipt"]["scope"]["weights"] == {"importance": 9.0}
    assert "and the same to the last digit" in here.text(
        "recall", "--verify", "it.receipt", "--query", "ferry at ten"
    )


def test_notes_that_hardly_matter_are_put_away(here: Here) -> None:
    faint = here.remember("the ferry is green", "--importance", "0.1", "--decay", "linear")
    assert "would be archived" in here.text("memory", "decay", "--dry-run")
    assert here.json("memory", "decay") == {
        "archived": [faint], "forgotten": [], "dry_run": False,
    }  # fmt: skip
    assert here.json("recall", "ferry")["hits"] == []


def test_without_expired_notes_nothing_is_erased(here: Here, note: str) -> None:
    assert here.json("forget", "--expired", "--yes")["forgotten"] == []
    assert here.json("memory", "show", note)["standing"] == "current"


@pytest.mark.parametrize(
    "words",
    [
        ("share", "0199d3a1-7c2e", "--with", "ben"), ("share", "0199d3a1-7c2e"),
        ("relate", "0199d3a1-7c2e", "0199d3a1-7c2e"),
        ("consolidate", "0199d3a1-7c2e", "0199d3a1-7c2f", "--text", "x"),
    ],
)  # fmt: skip
def test_a_note_that_is_not_here_is_named(here: Here, note: str, words: tuple[str, ...]) -> None:
    assert "'0199d3a1-7c2e' was not found" in here.error("memory", *words, code=1)


def test_author_and_time_are_read_off_and_said(here: Here) -> None:
    made = here.json("remember", "[12 May 2024] Ann: I moved to Bern")
    assert made["read_off"] == {"author": "Ann", "created_at": "2024-05-12T00:00:00Z"}
    shown = here.text("memory", "show", made["id"])
    assert "author            Ann" in shown
    assert "read_off          author, created_at" in shown
    assert shown.endswith("\n[12 May 2024] Ann: I moved to Bern\n")
    assert here.json("remember", "Ann: I left", "--as-is")["read_off"] == {}
    said = here.json("remember", "[12 May 2024] Ann: I stayed", "--at", "2025-01-01T00:00:00Z")
    assert said["read_off"] == {"author": "Ann"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("memory", "share", "--with", "ben"), "say what to share"),
        (("memory", "share", "--all", "--tag", "x", "--with", "ben"), "one of them"),
        (("memory", "share", "--all"), "--with AGENT"),
        (("memory", "share", "--as-of", "1", "--all", "--with", "ben"), "--as-of"),
        (("memory", "share", "--all", "--with", "b b"), "with_agent"),
        (("memory", "share", "--all", "--with", "ben", "--take-back"), "rule"),
        (("memory", "decay", "--forget-below", "0.5"), "forget_below"),
        (("recall", "x", "--weigh", "importance"), "LANE=NUMBER"),
        (("recall", "x", "--weigh", "rules=1"), "no lane 'rules'"),
        (("recall", "x", "--weigh", "decay=nan"), "decay"),
        (("recall", "--verify", "x", "--weigh", "decay=1"), "--weigh"),
        (("forget", "--expired", "--tag", "x"), "cannot be combined"),
        (("remember", "x", "--decay", "never"), "decay_function"),
        (("remember", "x", "--decay-rate", "-1"), "decay_rate"),
        (("remember", "x", "--at", "soon"), "soon"),
    ],
)
def test_bad_input_is_one_line_and_says_what_to_do(
    here: Here, note: str, words: tuple[str, ...], says: str
) -> None:
    head = here.json("memory", "stats")["head"]
    assert says in here.error(*words, code=2)
    assert here.json("memory", "stats")["head"] == head
