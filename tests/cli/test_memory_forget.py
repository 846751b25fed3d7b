"""`tally forget`: by id, subject, provenance and criteria; receipts, failures, questions."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from tests.cli.test_memory import Here
from tests.memory.memory_store import quick_folder, raw_bytes

from tallystick.settings.paths import cache_directory

NOWHERE = "0199d3a1-7c2e-7000-8000-000000000000"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with quick_folder() as folder:
        yield Here(folder, monkeypatch)


def contents(here: Here, *words: str) -> set[str]:
    return {note["content"] for note in here.json("memory", "ls", *words)["notes"]}


def test_a_deleted_note_is_not_recalled_and_can_still_be_asked_for(here: Here) -> None:
    made = here.json("remember", "the ferry leaves at nine")

    said = here.json("forget", made["id"])

    assert (said["forgotten"], said["strategy"], said["errors"]) == (
        [made["id"]], "soft_delete", [],
    )  # fmt: skip
    assert said["receipt"]["forgotten"][0]["id"] == made["id"]
    assert here.json("recall", "ferry")["hits"] == []
    then = here.json("recall", "ferry", "--as-of", str(made["seq"]))
    assert [hit["id"] for hit in then["hits"]] == [made["id"]]


@pytest.mark.parametrize("strategy", ["soft_delete", "archive", "decay", "redact", "hard_delete"])
def test_every_strategy_has_a_receipt_that_holds(here: Here, strategy: str) -> None:
    id = here.remember("the ferry leaves at nine")

    here.text("forget", id, "--strategy", strategy, "--yes", "--receipt", "it.receipt")

    said = here.json("recall", "--verify", "it.receipt")
    assert (said["held"], said["kind"]) == (True, "forgotten")
    gone = strategy in ("redact", "hard_delete")
    assert said["notes"] == [{"id": id, "state": "erased" if gone else "held"}]
    assert here.json("recall", "--verify", said["id"]) == said
    assert here.json("memory", "verify")["valid"] is True


@pytest.mark.parametrize("strategy", ["redact", "hard_delete"])
def test_erased_text_is_in_no_file_of_the_memory(here: Here, strategy: str) -> None:
    id = here.remember("the wombat leaves at nine")
    here.text("recall", "wombat")

    here.text("forget", id, "--strategy", strategy, "--yes")

    assert b"wombat" not in raw_bytes(here.file.parent)


def test_what_cannot_be_brought_back_is_asked_for_first(here: Here) -> None:
    id = here.remember("the ferry leaves at nine")

    no = here.tally("forget", id, "--strategy", "hard_delete", say="n\n")
    yes = here.tally("forget", id, "--strategy", "hard_delete", say="y\n")

    assert isinstance(no.exception, click.Abort)
    assert "erase 1 note? This cannot be undone" in no.stderr
    assert yes.stdout == f"{id}  erased\n"


def test_a_dry_run_says_what_would_go_and_changes_nothing(here: Here) -> None:
    id = here.remember("the ferry leaves at nine", "--tag", "subject:ann")

    said = here.json("forget", "--subject", "ann", "--dry-run")

    assert (said["forgotten"], said["receipt"], said["strategy"]) == ([id], None, "redact")
    assert len(here.json("recall", "ferry")["hits"]) == 1


def test_partial_failures_are_listed_and_the_rest_is_done(here: Here) -> None:
    id = here.remember("the ferry leaves at nine")

    said = here.json("forget", id, NOWHERE, "zzz", code=1)
    text = here.tally("forget", NOWHERE)

    assert said["forgotten"] == [id]
    assert {each["id"]: each["code"] for each in said["errors"]} == {
        NOWHERE: "backend.memory.not_found", "zzz": "backend.memory.not_found",
    }  # fmt: skip
    assert text.return_value == 1
    assert text.stderr == f"not forgotten: note '{NOWHERE}' was not found\n"


def test_notes_are_forgotten_by_subject_principal_and_criteria(here: Here) -> None:
    here.remember("about Ann", "--tag", "subject:ann")
    here.remember("of the bot", "--agent", "bot")
    here.remember("unimportant", "--importance", "0.1")
    here.remember("a habit", "--type", "procedural")
    here.remember("tagged", "--tag", "old")
    here.remember("kept")

    here.text("forget", "--subject", "ann", "--strategy", "soft_delete")
    here.text("forget", "--principal", "bot")
    here.text("forget", "--below", "0.2")
    here.text("forget", "--type", "procedural", "--tag", "old")
    assert contents(here) == {"a habit", "tagged", "kept"}
    here.text("forget", "--type", "procedural")
    here.text("forget", "--tag", "old", "--tag", "other")
    nothing = here.tally("forget", "--older-than", "1h")

    assert contents(here) == {"kept"}
    assert (nothing.return_value, nothing.stderr) == (0, "nothing to forget\n")
    assert here.json("forget", "--older-than", "0")["forgotten"] != []


def test_an_agent_forgets_its_own_and_learns_of_no_others(here: Here) -> None:
    other = here.remember("of the owner", "--tag", "subject:ann")
    own = here.remember("of the bot", "--agent", "bot", "--tag", "subject:ann")

    said = here.json("forget", "--subject", "ann", "--agent", "bot", "--yes")

    assert (said["forgotten"], said["errors"]) == ([own], [])
    assert here.json("forget", other, "--agent", "bot", code=1)["forgotten"] == []
    assert "of the owner" in contents(here)


def test_exports_from_before_are_named(here: Here) -> None:
    id = here.remember("the ferry leaves at nine")
    here.text("memory", "export", "notes.jsonl", "--label", "for Mia")

    done = here.tally("forget", id, "--strategy", "hard_delete", "--yes")

    assert "exported before, and not erased there: for Mia (entry 2)" in done.stderr
    report = here.json("memory", "import", "notes.jsonl")
    assert report["erased"] == [id]


@pytest.mark.slow
def test_what_is_erased_goes_out_of_recorded_runs_too(here: Here) -> None:
    here.environ["TALLYSTICK_CACHE_DIR"] = str(cache_directory())
    id = here.remember("the wombat sleeps until nine")
    programs = ["print(recall('when does the wombat sleep?')[0]['content'])", "FINAL('done')"]
    lines = [json.dumps({"text": f"```python\n{each}\n```"}) for each in programs]
    (here.path / "model.jsonl").write_text("\n".join(lines))
    run = here.json("run", "what sleeps?", "-m", "scripted:model.jsonl", "--memory", "default")
    assert b"wombat" in raw_bytes(here.file.parent.parent)

    would = here.json("forget", id, "--strategy", "hard_delete", "--dry-run")
    asked = here.tally("forget", id, "--strategy", "hard_delete", say="n\n")
    done = here.json("forget", id, "--strategy", "hard_delete", "--yes")

    assert [(each["run"], each["how"]) for each in would["runs"]] == [(run["run"], "pruned")]
    assert "erase 1 note, and prune 1 run that may contain them?" in asked.stderr
    assert [each["run"] for each in done["runs"]] == [run["run"]]
    # The program that asked is the model's, and has gone with the run.
    assert b"wombat" not in raw_bytes(here.file.parent.parent)
    assert here.json("verify")["ok"] is True
    assert here.json("memory", "verify")["valid"] is True


@pytest.mark.parametrize(
    "words",
    [
        (),
        (NOWHERE, "--tag", "x"),
        ("--subject", "x", "--principal", "y"),
        ("--subject", " "),
        ("--older-than", "soon"),
        ("--strategy", "consolidate", NOWHERE),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(here: Here, words: tuple[str, ...]) -> None:
    here.remember("kept")

    here.error("forget", *words, code=2)

    assert contents(here) == {"kept"}
