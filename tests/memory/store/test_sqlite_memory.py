"""The file of a memory: private, of one format, shared by writers, and able to mend itself."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.memory.memory_store import START, Clock, a_note, open_memory, tables
from tests.unprivileged import unprivileged

from tallystick.memory.errors import (
    MemoryCorrupt,
    MemoryFormatUnknown,
    MemoryLocked,
    MemoryReadOnly,
    MemoryUnavailable,
    ModelMismatch,
    NotAMemory,
    NoteInvalid,
    NoteNotFound,
)
from tallystick.memory.note import NoteScope
from tallystick.memory.recall.shortlist import notes_having
from tallystick.memory.recall.view import view
from tallystick.memory.recall.words import terms
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import (
    Vectors,
    choose_model,
    keep_vectors,
    model_of,
    notes_without_vectors,
)
from tallystick.memory.store.verify import verify_memory

ROOT = Path(__file__).parents[3]
MODEL, OTHER = "a" * 64, "b" * 64


# -- the file ----------------------------------------------------------------------------------


def test_the_files_are_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "memory.db"
    with SqliteMemory(path) as memory:
        remember(memory, a_note())

        modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}

    assert modes == {"memory.db": 0o600, "memory.db-wal": 0o600, "memory.db-shm": 0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700


def test_another_kind_of_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    text, other = tmp_path / "text.db", tmp_path / "other.db"
    text.write_bytes(b"not a database at all, and longer than a header " * 30)
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE somebodys (x)")
    db.close()

    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(NotAMemory), SqliteMemory(path) as memory:
            memory.head()
        assert path.read_bytes() == before


def test_a_file_of_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        memory.head()
    db = sqlite3.connect(tmp_path / "memory.db")
    db.execute("PRAGMA user_version = 7")
    db.close()

    with pytest.raises(MemoryFormatUnknown, match="format 7; this version reads 1") as refused:
        open_memory(tmp_path).head()

    assert (refused.value.found, refused.value.known) == (7, 1)
    assert (refused.value.kind, refused.value.code) == ("Storage", "backend.memory.format")


def test_a_directory_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(MemoryUnavailable, match="directory"):
        SqliteMemory(tmp_path / "file" / "memory.db").head()


def test_a_directory_that_may_not_be_written_says_so() -> None:
    with unprivileged() as folder:
        (folder / "locked").mkdir(mode=0o500)

        with pytest.raises(MemoryReadOnly, match="cannot be written"):
            SqliteMemory(folder / "locked" / "memory.db").head()


def test_a_head_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember(memory, a_note())
    db = sqlite3.connect(tmp_path / "memory.db")
    db.execute("UPDATE head SET hash = x'00'")
    db.commit()
    db.close()

    with pytest.raises(MemoryCorrupt, match="head"):
        open_memory(tmp_path).head()


def test_a_memory_closed_is_opened_again_when_it_is_used(tmp_path: Path) -> None:
    memory = open_memory(tmp_path)
    made = remember(memory, a_note())
    memory.close()
    memory.close()

    assert view(memory, reader="ada").ids == (made.id,)
    memory.close()


def test_a_child_of_a_fork_opens_for_itself_what_its_parent_opened(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember(memory, a_note())
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.write(writing, str(memory.head()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(reading, 1_000).decode()
        os.close(reading)
        os.close(writing)

        assert said == str(memory.head())
        remember(memory, a_note("the parent goes on"))


# -- places and times --------------------------------------------------------------------------


def test_a_time_is_the_last_place_that_is_not_after_it(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        for n, wait in enumerate([0, 0, 10, -50, 5]):
            clock.now += wait
            remember(memory, a_note(f"{n}"))

        found = [memory.seq_at(START + n) for n in (-1, 0, 9, 10, 11, 1000)]

    # The clock went back after the third, and the log did not.
    assert found == [0, 2, 2, 5, 5, 5]


@pytest.mark.parametrize("place", [-1, 2, 10**12])
def test_a_place_that_is_not_there_is_refused(place: int, tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember(memory, a_note())

        with pytest.raises(NoteInvalid, match="as_of: a place from 0 to 1"):
            view(memory, reader="ada", as_of=place)


# -- projections -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE head SET projection = 'an older version'",
        "UPDATE head SET projected = 1",
        "DROP TABLE state",
        "DROP TABLE words",
        "DROP TABLE told",
    ],
)
def test_projections_that_are_not_the_logs_are_made_again(damage: str, tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember_all(memory, [a_note(f"note {n}", tags=("t",)) for n in range(5)])
    before = tables(tmp_path / "memory.db")
    db = sqlite3.connect(tmp_path / "memory.db")
    db.execute(damage)
    db.commit()
    db.close()

    with open_memory(tmp_path) as memory:
        assert len(view(memory, reader="ada")) == 5
        assert verify_memory(memory).valid

    assert tables(tmp_path / "memory.db") == before


def test_projections_are_not_made_again_from_a_log_that_does_not_hold(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember(memory, a_note())
    db = sqlite3.connect(tmp_path / "memory.db")
    db.execute("UPDATE log SET body = x'7b7d'")
    db.execute("UPDATE head SET projected = 0")
    db.commit()
    db.close()

    with pytest.raises(MemoryCorrupt, match="entry 1: its body is not the one"):
        open_memory(tmp_path).head()


# -- writers -----------------------------------------------------------------------------------


def test_threads_that_write_make_one_chain(tmp_path: Path) -> None:
    memories = [open_memory(tmp_path, seed=n) for n in range(2)]

    def write(name: str, memory: SqliteMemory) -> None:
        for n in range(10):
            remember(memory, a_note(f"{name} {n}", agent_id=name))

    threads = [
        threading.Thread(target=write, args=(f"agent{n}", memories[n % 2])) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    report = verify_memory(memories[0])
    assert (report.valid, report.total_records) == (True, 40)
    for memory in memories:
        memory.close()


def test_processes_that_write_make_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    command = [sys.executable, "-m", "tests.memory.append_notes", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen([*command, f"agent{n}", "15"], cwd=ROOT, env=environment) for n in range(2)
    ]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]

    with SqliteMemory(path) as memory:
        report = verify_memory(memory)
        seen = view(memory, reader=None)
        places = sorted(seen.fields(id).position or 0 for id in seen.ids)

    assert (report.valid, report.total_records) == (True, 30)
    assert places == list(range(30))


def test_a_writer_that_waits_too_long_is_told_who_waits(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember(memory, a_note())
        impatient = SqliteMemory(tmp_path / "memory.db", busy_seconds=0.05)
        with memory.writing(), pytest.raises(MemoryLocked, match=r"for 0\.05 s; try again"):
            remember(impatient, a_note("other"))
        impatient.close()


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory, open_memory(tmp_path) as other:
        made = remember(memory, a_note())
        with memory.writing():
            assert view(other, reader="ada").ids == (made.id,)
            assert view(memory, reader="ada").ids == (made.id,)


# -- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        'tea"',
        "tea AND NOT tea",
        "tea OR *",
        "NEAR(tea cup)",
        "terms : tea",
        "^tea",
        "tea's",
        "(tea",
        "tea -- ; DROP TABLE note",
        "_746561 tea",
    ],
)
def test_operators_and_quotes_in_a_query_are_words(query: str, tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note("a cup of tea"))
        remember(memory, a_note("nothing of it"))

        with memory.reading() as db:
            found = {number for term in terms(query) for number in notes_having(db, term)}

        assert found == {made.seq}
        assert len(view(memory, reader="ada")) == 2


def test_words_of_every_script_are_found(tmp_path: Path) -> None:
    texts = ["naïve café", "東京タワー", "Straße", "don't", "O’Brien", "ไทย", "under_score"]
    with open_memory(tmp_path) as memory:
        made = remember_all(memory, [a_note(text) for text in texts])
        seen = view(memory, reader="ada")

        for each, text in zip(made, texts, strict=True):
            for term in terms(text):
                with memory.reading() as db:
                    assert each.seq in notes_having(db, term)
            assert sorted(seen.counts(each.id).elements()) == sorted(terms(text))  # type: ignore[attr-defined]


def test_a_view_among_candidates_has_the_same_notes_and_no_others(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember_all(memory, [a_note(f"tea {n}") for n in range(3)])
        remember(memory, a_note("tea of bob", agent_id="bob"))
        remember(memory, a_note("tea for all", agent_id="bob", scope=NoteScope.PUBLIC))
        remember(memory, a_note("coffee"))
        with memory.reading() as db:
            found = list(notes_having(db, "tea"))

        some = view(memory, reader="ada", among=found)

        assert [some.note(id).content for id in some.ids] == [
            "tea 0",
            "tea 1",
            "tea 2",
            "tea for all",
        ]


# -- vectors -----------------------------------------------------------------------------------


def test_vectors_are_kept_by_window_and_known_from_their_place_on(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        short = remember(memory, a_note("short")).id
        long = remember(memory, a_note("word " * 300)).id
        choose_model(memory, MODEL, dimensions=2)
        waiting = notes_without_vectors(memory, limit=10)
        before = memory.head().count
        made = [Vectors(b"0", b"aa"), Vectors(b"1", b"b")]

        kept = keep_vectors(memory, [(short, [Vectors(b"s")]), (long, made)], model=MODEL)

        seen, then = view(memory, reader="ada"), view(memory, reader="ada", as_of=before)
        assert [(id, len(parts)) for id, parts in waiting] == [(short, 1), (long, 2)]
        assert kept == 2
        assert (seen.vectors(short), seen.tokens(short)) == ((b"s",), None)
        assert (seen.vectors(long), seen.tokens(long)) == ((b"0", b"1"), b"aab")
        assert (then.vectors(long), then.tokens(long)) == ((), None)
        assert (seen.model, view(memory, reader="ada", as_of=2).model) == (MODEL, None)
        assert notes_without_vectors(memory, limit=10) == []
        assert keep_vectors(memory, [(long, made)], model=MODEL) == 0
        assert verify_memory(memory).valid


def test_vectors_of_another_model_are_refused_until_it_is_chosen_anew(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note()).id
        with pytest.raises(NoteInvalid, match="model"):
            keep_vectors(memory, [(made, [Vectors(b"v")])], model=MODEL)
        choose_model(memory, MODEL, dimensions=2)
        keep_vectors(memory, [(made, [Vectors(b"v")])], model=MODEL)
        place = memory.head().count

        with pytest.raises(ModelMismatch, match="embeds its notes again") as refused:
            keep_vectors(memory, [(made, [Vectors(b"w")])], model=OTHER)
        with pytest.raises(ModelMismatch):
            choose_model(memory, OTHER, dimensions=2)
        assert choose_model(memory, MODEL, dimensions=2) == 2
        assert view(memory, reader="ada").vectors(made) == (b"v",)
        choose_model(memory, OTHER, dimensions=2, replace=True)

        assert (refused.value.found, refused.value.given) == (MODEL, OTHER)
        assert model_of(memory) == (OTHER, 2)
        assert notes_without_vectors(memory, limit=1)[0][0] == made
        # What an older model made was thrown away, also for a look back.
        assert view(memory, reader="ada", as_of=place).vectors(made) == ()
        assert verify_memory(memory).valid


def test_vectors_need_a_note_and_one_for_each_window(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        made = remember(memory, a_note()).id
        choose_model(memory, MODEL, dimensions=2)
        head = memory.head()

        with pytest.raises(NoteNotFound):
            keep_vectors(
                memory, [(made, [Vectors(b"v")]), ("unknown", [Vectors(b"v")])], model=MODEL
            )
        with pytest.raises(NoteInvalid, match="windows"):
            keep_vectors(memory, [(made, [])], model=MODEL)
        with pytest.raises(NoteInvalid, match="model"):
            choose_model(memory, "MiniLM", dimensions=2)
        with pytest.raises(NoteInvalid, match="dimensions"):
            choose_model(memory, OTHER, dimensions=0)

        assert memory.head() == head
