"""The log of a memory: any change of a stored row, body, hash or vector is found."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.memory_store import Clock, a_note, open_memory, record_access

from tallystick.core.chain import GENESIS, SALT_BYTES, Head, body_hash
from tallystick.memory.errors import MemoryCorrupt
from tallystick.memory.exchange import export_notes
from tallystick.memory.forget import begin_forgetting, forget
from tallystick.memory.note import Note, NoteScope, Permission
from tallystick.memory.recall.recall import Asking, recall
from tallystick.memory.receipts.receipt import Key
from tallystick.memory.remember import remember
from tallystick.memory.sharing import relate, share, share_notes
from tallystick.memory.store.projection import PROJECTION_TABLES
from tallystick.memory.store.records import (
    EVENT_TYPES,
    ForgetStrategy,
    MemoryRecord,
    NoteClosed,
    NoteEmbedded,
    NoteRemembered,
    NoteSighted,
    NotesRecalled,
    decode_memory_record,
    encode_memory_record,
    tag_of,
)
from tallystick.memory.store.sqlite import (
    Entry,
    SqliteMemory,
    check_entry,
    empty_head,
    read_entry_header,
    seal_entry,
)
from tallystick.memory.store.vectors import Vectors, choose_model, keep_vectors
from tallystick.memory.store.verify import VerifyReport, verify_memory

STORE = "018bcfe5-6800-7000-8000-000000000000"
ID = "018bcfe5-6800-7000-8000-000000000001"
RECORD = NoteClosed(valid_to=5, by=ID)


def sealed(record: MemoryRecord = RECORD, *, head: Head | None = None, at: int = 7) -> Entry:
    entry, _ = seal_entry(
        head=head or empty_head(),
        store=STORE,
        at=at,
        tag=tag_of(record),
        note=ID,
        origin=None,
        body=encode_memory_record(record),
        salt=b"s" * SALT_BYTES,
    )
    return entry


def checked(entry: Entry, *, previous: str = GENESIS.hex(), at_min: int = 0) -> object:
    found = check_entry(entry, store=STORE, previous=previous, at_min=at_min)
    return found if isinstance(found, str) else found[1]


# -- entries -----------------------------------------------------------------------------------


def test_an_entry_holds_at_its_place_behind_the_one_before() -> None:
    first = sealed()
    second = sealed(head=Head(count=1, hash=first.hash))

    assert checked(first) == RECORD
    assert checked(second, previous=first.hash) == RECORD
    assert checked(second) == "its hash is not that of its header and the entry before"


def test_an_entry_without_body_and_salt_holds_and_has_no_record() -> None:
    entry = sealed()

    assert checked(_with(entry, salt=None, body=None)) is None
    assert checked(_with(entry, body=None)) == "only one of salt and body is there"


def test_a_header_says_nothing_of_what_the_note_says() -> None:
    note = Note(id=ID, agent_id="ada", content="zanzibar", created_at=1, valid_from=1)
    body = encode_memory_record(NoteRemembered(note=note))

    entry = sealed(NoteRemembered(note=note))

    assert b"zanzibar" not in entry.header
    assert b"ada" not in entry.header
    header = read_entry_header(entry.header, store=STORE, seq=1)
    assert not isinstance(header, str)
    assert header.body_sha256 == body_hash(b"s" * SALT_BYTES, body)


def test_a_time_that_goes_back_is_found() -> None:
    assert checked(sealed(at=6), at_min=7) == "its time is before that of the entry before"


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"{}", "cannot be read"),
        (b"\xff", "cannot be read"),
        (sealed().header.replace(b'"v":1', b'"v":2'), "has format 2"),
        (sealed().header.replace(STORE.encode(), ID.encode(), 1), "canonical|another memory"),
        (sealed().header + b" ", "not in canonical form"),
        (sealed().header.replace(b'"seq":1', b'"seq":2'), "has place 2"),
    ],
)
def test_what_is_no_header_of_this_place_says_why(header: bytes, why: str) -> None:
    found = checked(_with(sealed(), header=header))

    assert isinstance(found, str)
    assert any(each in found for each in why.split("|"))


def test_a_record_of_another_kind_than_its_header_says_is_found() -> None:
    other = NoteSighted(at=1, importance=0.5)
    entry, _ = seal_entry(
        head=empty_head(),
        store=STORE,
        at=7,
        tag="note.closed",
        note=ID,
        origin=None,
        body=encode_memory_record(other),
        salt=b"s" * SALT_BYTES,
    )

    assert checked(entry) == "its body is another record than its header says"


def test_every_record_has_a_name_in_other_systems() -> None:
    tags = {kind.__struct_config__.tag for kind in MemoryRecord.__args__}

    assert tags == EVENT_TYPES.keys()


@given(st.integers(0, 2**40), st.floats(0, 1), st.none() | st.integers(0, 2**40))
def test_a_record_read_back_is_the_record(at: int, importance: float, expires: int | None) -> None:
    record = NoteSighted(at=at, importance=importance, expires_at=expires)

    assert decode_memory_record(encode_memory_record(record)) == record


def _with(entry: Entry, **fields: object) -> Entry:
    values = {name: getattr(entry, name) for name in Entry.__struct_fields__}
    return Entry(**{**values, **fields})


# -- tampering ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory in which every table has rows."""
    folder = tmp_path_factory.mktemp("written")
    clock = Clock()
    with open_memory(folder, clock=clock) as memory:
        one = remember(memory, a_note("the first", tags=("a",), scope=NoteScope.SHARED)).id
        clock.now += 5
        remember(memory, a_note("the first", tags=("a",), scope=NoteScope.SHARED))
        two = remember(memory, a_note("Paris", key="city", related_to=(one,)), origin="run:1").id
        three = remember(memory, a_note("London", key="city")).id
        share(memory, one, actor=None, with_agent="bob", permission=Permission.READ)
        everything = {"owner": "ada", "actor": "ada", "with_agent": "eve"}
        share_notes(memory, **everything, permission=Permission.READ, tag="a")
        relate(memory, one, two, actor=None, relation="supports", weight=0.5)
        record_access(memory, [one, two])
        recall(memory, "first", Asking(agent_id="ada"), key=Key(id="k", secret=b"s" * 32))
        choose_model(memory, "a" * 64, dimensions=4)
        made = Vectors(b"vector", b"tokens")
        keep_vectors(memory, [(one, [made]), (three, [made])], model="a" * 64)
        gone = remember(memory, a_note("gone")).id
        begin_forgetting(memory, [gone], runs=["R"])
        key = Key(id="k", secret=b"s" * 32)
        forget(memory, [gone], actor=None, strategy=ForgetStrategy.HARD_DELETE, key=key)
        forget(memory, [two], actor=None)
        list(export_notes(memory, reader=None, label="copy"))
    return folder


def tampered(written: Path, folder: Path, statement: str) -> VerifyReport:
    """Change a copy behind the store's back, and verify it."""
    shutil.copytree(written, folder, dirs_exist_ok=True)
    db = sqlite3.connect(folder / "memory.db", isolation_level=None)
    db.execute("PRAGMA foreign_keys = OFF")
    assert db.execute(statement).rowcount != 0, statement
    db.close()
    with SqliteMemory(folder / "memory.db") as memory:
        return verify_memory(memory)


def cells(path: Path) -> Iterator[tuple[str, str, str, object]]:
    """One cell of each column of each table, with how to find it."""
    db = sqlite3.connect(path)
    tables = {**PROJECTION_TABLES, "log": "seq", "vector": "number, window", "head": "one"}
    for table in tables:
        names = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        keys = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[5]]
        for name in names:
            if (table, name) in UNCHECKED:
                continue
            row = db.execute(
                f"SELECT {name}, {', '.join(keys)} FROM {table} WHERE {name} IS NOT NULL LIMIT 1"
            ).fetchone()
            if row is not None:
                where = [f"{key} = {value!r}" for key, value in zip(keys, row[1:], strict=True)]
                yield table, name, " AND ".join(where), row[0]
    db.close()


# What says only what is to be done when the file is opened. See `verify`.
UNCHECKED = {("head", "projection"), ("head", "projected"), ("head", "scrub"), ("head", "one")}


def test_a_memory_that_nobody_touched_is_valid(written: Path) -> None:
    with SqliteMemory(written / "memory.db") as memory:
        report = verify_memory(memory)

    assert (report.valid, report.error_message) == (True, None)
    assert report.total_records == report.verified_records == 20
    assert report.erased == 1


def test_vectors_of_a_note_that_was_never_remembered_are_no_error(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        with memory.writing() as writer:
            writer.append(NoteEmbedded(model="0" * 64, vectors=(), tokens=()), note=ID)

        assert verify_memory(memory).valid


def test_a_receipt_that_cannot_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write the file can make a chain that holds, with anything in it."""
    with open_memory(tmp_path) as memory:
        with monkeypatch.context() as patched:
            patched.setattr("tallystick.memory.store.sqlite.fold", lambda *args, **kwargs: None)
            with memory.writing() as writer:
                writer.append(NotesRecalled(ids=(), at=writer.at, receipt="{"))
        report = verify_memory(memory)
        with pytest.raises(MemoryCorrupt, match="entry 1: its receipt cannot be read"):
            memory.rebuild()

    assert (report.valid, report.first_broken_at) == (False, 1)
    assert "cannot follow" in str(report.error_message)


def test_a_change_in_any_column_of_any_table_is_found(written: Path, tmp_path: Path) -> None:
    seen = set()
    for number, (table, name, where, value) in enumerate(cells(written / "memory.db")):
        match value:
            case bytes():
                changed = bytes([value[0] ^ 1]) + value[1:]
                new = f"x'{changed.hex()}'"
            case int() | float():
                new = f"{value} + 1000"
            case str():
                new = f"'{value}x'"
            case _:
                raise AssertionError(value)
        statement = f"UPDATE {table} SET {name} = {new} WHERE {where}"

        report = tampered(written, tmp_path / str(number), statement)

        assert not report.valid, statement
        seen.add(table)
    assert seen == {*PROJECTION_TABLES, "log", "vector", "head"}


@given(data=st.data())
def test_one_changed_byte_of_any_entry_is_found(
    data: st.DataObject, written: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    column = data.draw(st.sampled_from(["header", "hash", "salt", "body"]))
    db = sqlite3.connect(written / "memory.db")
    rows = db.execute(f"SELECT seq, {column} FROM log WHERE {column} IS NOT NULL").fetchall()
    db.close()
    seq, value = data.draw(st.sampled_from(rows))
    place = data.draw(st.integers(0, len(value) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = bytearray(value)
    changed[place] ^= 1 << bit

    report = tampered(
        written,
        tmp_path_factory.mktemp("tampered"),
        f"UPDATE log SET {column} = x'{changed.hex()}' WHERE seq = {seq}",
    )

    assert not report.valid
    assert report.first_broken_at == seq


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM log WHERE seq = 3", "it is missing"),
        ("DELETE FROM log WHERE seq = 15", "it is missing"),
        ("UPDATE log SET salt = NULL, body = NULL WHERE seq = 4", "no entry erased it"),
        ("UPDATE log SET body = NULL WHERE seq = 4", "only one of salt and body"),
        ("UPDATE head SET count = 14", "another than the log's end"),
        ("UPDATE log SET seq = 99 WHERE seq = 2", "it is missing"),
        ("DELETE FROM state WHERE number = 1", "`state` is not what follows"),
        ("INSERT INTO tag VALUES ('b', 1)", "`tag` is not what follows"),
        ("UPDATE note SET position = '' WHERE number = 1", "`note` is not what follows"),
        ("DELETE FROM vector", "the vectors of note"),
        ("INSERT INTO vector VALUES (3, 0, 1, x'00', NULL)", "no entry of them"),
        ("INSERT INTO words (rowid, terms) VALUES (77, 'planted')", "damaged"),
        ("INSERT INTO words (words, rowid, terms) VALUES ('delete', 1, 'first')", "damaged"),
    ],
)
def test_what_was_done_behind_the_stores_back_is_named(
    statement: str, why: str, written: Path, tmp_path: Path
) -> None:
    report = tampered(written, tmp_path / "copy", statement)

    assert not report.valid
    assert any(each in (report.error_message or "") for each in why.split("|"))


def test_an_end_cut_off_with_its_head_is_found_with_a_head_kept_elsewhere(
    written: Path, tmp_path: Path
) -> None:
    with SqliteMemory(written / "memory.db") as memory:
        kept = memory.head()
        hashes = [entry.hash for entry in memory.entries()]
    shutil.copytree(written, tmp_path / "cut")
    db = sqlite3.connect(tmp_path / "cut" / "memory.db")
    db.execute("DELETE FROM log WHERE seq > 4")
    db.execute("DELETE FROM vector")
    db.execute("UPDATE head SET count = 4, hash = ?, projected = 0", (bytes.fromhex(hashes[3]),))
    db.execute("UPDATE head SET at = (SELECT json_extract(header, '$.at') FROM log WHERE seq = 4)")
    db.commit()
    db.close()

    with SqliteMemory(tmp_path / "cut" / "memory.db") as memory:
        alone = verify_memory(memory)
        with_head = verify_memory(memory, head=kept)

    assert alone.valid
    assert not with_head.valid
    assert "4 entries are there, the kept head counts 20" in (with_head.error_message or "")


def test_a_log_written_anew_is_found_with_a_head_kept_elsewhere(
    written: Path, tmp_path: Path
) -> None:
    with SqliteMemory(written / "memory.db") as memory:
        kept = Head(count=2, hash="0" * 64)

        report = verify_memory(memory, head=kept)

    assert (report.valid, report.first_broken_at) == (False, 2)


def test_an_empty_memory_is_valid(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        report = verify_memory(memory, head=empty_head())

    assert report == VerifyReport(valid=True, total_records=0, verified_records=0, erased=0)
