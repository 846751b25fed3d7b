"""Bad input: each is refused in one line with its exit code, or taken for what it is."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_memory import Here
from tests.memory.memory_store import quick_folder
from tests.memory.store.test_vectors import Toy

from tallystick.memory.memory import Memory
from tallystick.memory.store.file import FORMAT
from tallystick.memory.store.vectors import choose_model

NOWHERE = "0199d3a1-7c2e-7000-8000-000000000000"
MIB = 1 << 20


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with quick_folder() as folder:
        yield Here(folder, monkeypatch)


# -- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", "\t\n", "\u2003"])
def test_a_blank_text_is_refused(here: Here, text: str) -> None:
    assert here.error("remember", text, code=2) == "content: it is blank"
    assert here.error("remember", "-", say=text, code=2) == "content: it is blank"


def test_ten_megabytes_are_refused_and_a_mebibyte_is_kept(here: Here) -> None:
    huge = "word " * (2 * MIB)

    assert "at most 1,048,576: keep it as an attachment" in here.error("remember", huge, code=2)
    assert "more than 1,048,576 bytes" in here.error("remember", "-", say=huge, code=2)
    assert here.text("remember", "-", say=huge[: MIB - 1] + "\n")


@pytest.mark.parametrize("text", ["a\x00b", "a\x1b[31mb", "a\x07b", "a\x9bb", "half \udc80 of it"])
def test_control_characters_are_refused_by_name(here: Here, text: str) -> None:
    assert "control character U+" in here.error("remember", text, code=2)


def test_what_is_no_text_is_refused(here: Here) -> None:
    said = here.error("remember", "-", say=b"good\xff", code=2)

    assert said == "standard input: byte 5 is not UTF-8"


def test_texts_that_terminals_would_obey_are_shown_harmlessly(here: Here) -> None:
    id = here.remember("left \u202eright ferry")
    here.text("memory", "review", id, "--release")

    for words in (("recall", "ferry"), ("memory", "ls"), ("memory", "show", id)):
        assert "\u202e" not in here.text(*words)


def test_no_text_at_all_is_wrong_usage(here: Here) -> None:
    assert "there is no text" in here.error("remember", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("--importance", "1.5"),
        ("--importance", "nan"),
        ("--importance", "much"),
        ("--ttl", "0h"),
        ("--ttl", "soon"),
        ("--ttl", "-1h"),
        ("--key", "a\nb"),
        ("--key", " "),
        ("--tag", ""),
        ("--author", "x" * 200),
        ("--thread", "\x1b"),
        ("--agent", "a b"),
        ("--agent", ""),
        ("--related", NOWHERE),
        ("--type", "dream"),
        ("--memory", "a/b"),
        ("--memory", "../x"),
        ("--memory", "x" * 65),
    ],
)
def test_fields_that_may_not_be_so_are_refused_and_nothing_is_kept(
    here: Here, words: tuple[str, ...]
) -> None:
    here.remember("one")

    here.error("remember", "two", *words, code=2)

    assert here.json("memory", "ls", "--all")["total"] == 1


# -- queries -------------------------------------------------------------------------------------


HARD_QUERIES = (
    "it's", '"quoted"', "a AND b OR NOT c", "NEAR(a, b)", "x*", "col:x", "(", ")", "-x", "^x",
    "'; DROP TABLE log; --", "%", "\\", "a\x00b", "\x1b[31m", "", " ", "ferry" * 30_000,
    "{}", "名前", "🛶",
)  # fmt: skip


def test_quotes_and_operators_in_queries_are_words(here: Here) -> None:
    id = here.remember("it's the ferry's captain")

    for query in HARD_QUERIES:
        made = here.json("recall", "--", query)
        assert [hit["id"] for hit in made["hits"]] in ([], [id]), query
    found = here.json("recall", "it's the captain' OR")
    assert [hit["id"] for hit in found["hits"]] == [id]
    assert here.json("memory", "verify")["valid"] is True


def test_bytes_that_are_no_text_are_wrong_usage(here: Here) -> None:
    here.remember("the ferry leaves at nine")

    for words in (
        ("recall", "\udc80"), ("recall", "--verify", "x", "--query", "\udc80"),
        ("recall", "x", "--author", "\udc80"), ("recall", "x", "--tag", "\udc80"),
        ("memory", "ls", "--thread", "\udc80"), ("forget", "--subject", "\udc80"),
        ("forget", "--principal", "\udc80"), ("memory", "review", "x", "--by", "\udc80"),
    ):  # fmt: skip
        assert "not UTF-8" in here.error(*words, code=2)
    assert here.json("memory", "export", "\udc80.jsonl")["notes"] == 1


@pytest.mark.parametrize("k", ["-1", "101", "10000", "x", "1e3", "99999999999999999999"])
def test_a_k_that_is_none_is_wrong_usage(here: Here, k: str) -> None:
    here.remember("the ferry leaves at nine")

    assert "-k" in here.error("recall", "ferry", "-k", k, code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("--as-of", "99"),
        ("--as-of", "-1"),
        ("--as-of", "yesterday"),
        ("--after", "soon"),
        ("--min-importance", "2"),
        ("--min-importance", "nan"),
        ("--strategy", "luck"),
        ("--tokens", "-1"),
        ("--type", "dream"),
        ("--receipt", "nowhere/it.receipt"),
        ("--memory", "nosuch"),
    ],
)
def test_options_of_recall_that_cannot_be_meant_are_wrong_usage(
    here: Here, words: tuple[str, ...]
) -> None:
    here.remember("the ferry leaves at nine")

    here.error("recall", "ferry", *words, code=2)


def test_a_place_before_everything_has_nothing(here: Here) -> None:
    here.remember("the ferry leaves at nine")

    assert here.json("recall", "ferry", "--as-of", "0")["hits"] == []
    assert here.json("recall", "ferry", "--as-of", "2020-01-01")["hits"] == []


@pytest.mark.parametrize("id", [NOWHERE, "", "x", "0199", "%", "a" * 10_000, "0199d3a1-\x00"])
def test_an_unknown_id_is_not_found(here: Here, id: str) -> None:
    here.remember("the ferry leaves at nine")

    for words in (("memory", "show"), ("memory", "review", "--release")):
        assert "was not found" in here.error(*words, "--", id, code=1)
    assert here.json("forget", "--", id, code=1)["forgotten"] == []


# -- files ---------------------------------------------------------------------------------------


def _each(here: Here) -> Iterator[str]:
    for words in (
        ("recall", "x"), ("remember", "x"), ("memory", "ls"), ("memory", "stats"),
        ("memory", "verify"), ("forget", NOWHERE),
    ):  # fmt: skip
        yield here.error(*words, code=6)


@pytest.mark.parametrize(
    "held", [b"not a database at all" * 100, b"SQLite format 3\0" + b"x" * 999]
)
def test_a_file_that_is_no_memory_is_left_as_it_is(here: Here, held: bytes) -> None:
    here.file.parent.mkdir(parents=True)
    here.file.write_bytes(held)

    assert all("is not a memory file" in said or "is damaged" in said for said in _each(here))
    assert here.file.read_bytes() == held


def test_a_database_of_somebody_else_is_left_as_it_is(here: Here) -> None:
    here.file.parent.mkdir(parents=True)
    db = sqlite3.connect(here.file)
    db.execute("CREATE TABLE log (seq INTEGER)")
    db.close()
    held = here.file.read_bytes()

    assert all("is not a memory file" in said for said in _each(here))
    assert here.file.read_bytes() == held


def test_a_memory_of_a_future_version_is_refused(here: Here) -> None:
    here.remember("the ferry leaves at nine")
    db = sqlite3.connect(here.file)
    db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    db.close()

    assert all("use the version that wrote it" in said for said in _each(here))


def test_a_memory_that_is_not_there_is_not_made_by_looking(here: Here) -> None:
    for words in (("recall", "x"), ("memory", "ls"), ("memory", "verify"), ("forget", NOWHERE)):
        assert "tally remember makes it" in here.error(*words, code=2)

    assert not here.file.parent.exists()


def test_what_cannot_be_written_to_is_said_before_anything_is_on_the_record(here: Here) -> None:
    here.remember("the ferry leaves at nine")

    assert "nowhere" in here.error("memory", "export", "nowhere/notes.jsonl", code=2)

    assert here.json("memory", "stats")["exports"] == 0


@pytest.mark.parametrize("given", [b"", b"{}\n", b"\xff\n", b"null\n", b"x" * (9 * MIB)])
def test_what_is_no_export_is_refused(here: Here, given: bytes) -> None:
    assert "nothing was imported" in here.error("memory", "import", "-", say=given, code=2)


def test_keys_that_others_can_read_are_not_used(here: Here) -> None:
    here.remember("the ferry leaves at nine")
    (here.path / ".config/tallystick/memory.keys").chmod(0o644)

    assert "chmod 600" in here.error("recall", "ferry", code=4)


# -- another model -------------------------------------------------------------------------------


@pytest.fixture
def toy(here: Here, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """An embedder in place of the real one."""
    made = Toy()
    monkeypatch.setattr("tallystick.memory.memory.missing", lambda: "")
    monkeypatch.setattr("tallystick.memory.memory.MiniLm.load", lambda **_: made)
    return made


def test_a_memory_of_another_model_is_never_mixed_and_embedding_again_is_offered(
    here: Here, toy: Toy
) -> None:
    here.remember("my automobile is red")
    with Memory.open(directory=here.file.parent, environ=here.environ, embedder=None) as memory:
        choose_model(memory.store, "a" * 64, dimensions=384)

    auto = here.json("recall", "vehicle red")
    refused = here.error("recall", "vehicle", "--strategy", "hybrid", code=1)
    not_replaced = here.error("memory", "embed", code=1)
    replaced = here.json("memory", "embed", "--replace")
    found = here.json("recall", "vehicle", "--strategy", "hybrid")

    assert auto["receipt"]["model"] is None
    assert any("tally memory embed --replace" in each for each in auto["remarks"])
    assert "embeds its notes again" in refused
    assert "embeds its notes again" in not_replaced
    assert replaced["embedded_now"] == 1
    assert replaced["model"]["digest"] == toy.digest
    assert [hit["content"] for hit in found["hits"]] == ["my automobile is red"]
    assert found["receipt"]["model"] == toy.digest


def test_what_has_no_vector_yet_is_embedded_on_the_way(here: Here, toy: Toy) -> None:
    here.remember("my automobile is red")

    found = here.json("recall", "vehicle")

    assert [hit["content"] for hit in found["hits"]] == ["my automobile is red"]
    assert here.json("memory", "stats")["embedded"] == 1
    receipt = found["receipt"]["read_id"]
    assert here.json("recall", "--verify", receipt, "--query", "vehicle")["ranking"] == "same"


def test_embedding_without_a_model_says_what_is_missing(here: Here) -> None:
    here.remember("my automobile is red")

    assert "weights are not here" in here.error("memory", "embed", code=2)


# -- processes -----------------------------------------------------------------------------------


def _tally(home: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli.main", *words],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    writers = [_tally(tmp_path, "remember", f"note number {each}") for each in range(8)]
    done = [each.communicate(timeout=60) for each in writers]

    assert [each.returncode for each in writers] == [0] * 8, done
    listed, _ = _tally(tmp_path, "memory", "ls").communicate(timeout=60)
    assert {out.strip() for out, _ in done} == {line.split()[0] for line in listed.splitlines()}
    checked = _tally(tmp_path, "memory", "verify")
    checked.communicate(timeout=60)
    assert checked.returncode == 0


@pytest.mark.slow
def test_an_error_is_one_line_with_its_code(tmp_path: Path) -> None:
    for words, code in (
        (("remember", " "), 2), (("recall", "x"), 2), (("recall", "x", "-k", "0"), 2),
        (("memory", "show", "x", "--memory", "a/b"), 2),
    ):  # fmt: skip
        called = _tally(tmp_path, *words)
        out, err = called.communicate(timeout=60)
        assert (called.returncode, out, err.count(b"\n")) == (code, b"", 1), err
