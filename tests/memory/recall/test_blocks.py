"""The index in the memory's file: it gives what an index made anew gives, or it is not used."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.large_world import (
    KEY,
    READERS,
    Act,
    World,
    a_world,
    acts,
    filters,
    low_limits,
    small_blocks,
)
from tests.memory.memory_store import Clock, a_note, open_memory, raw_bytes

from tallystick.memory.forget import forget
from tallystick.memory.recall.index import StandingIndex
from tallystick.memory.recall.packing import pack, unpack
from tallystick.memory.recall.recall import Asking, Recalled, recall
from tallystick.memory.recall.scope import Profile
from tallystick.memory.recall.selection import NOW
from tallystick.memory.recall.words import TOKENIZER, count_tokens
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.store.blocks import BLOCK_FORMAT, Block, stored_blocks, write_block
from tallystick.memory.store.records import ForgetStrategy
from tallystick.memory.store.sqlite import SqliteMemory, head_row
from tallystick.memory.store.verify import verify_memory

np = pytest.importorskip("numpy")

ROOT = Path(__file__).parents[3]


def blocks_of(memory: SqliteMemory) -> list[Block]:
    with memory.reading() as db:
        return sorted(stored_blocks(db))


@contextmanager
def in_file(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, to be changed by hand."""
    with closing(sqlite3.connect(path)) as db, db:
        yield db


def answers(
    index: StandingIndex, world: World, seq: int, reader: str | None, chosen: Any
) -> list[object]:
    """All that an index says of one view."""
    memory, at = index.memory, world.clock.now
    with (
        memory.reading() as db,
        index.at(reader=reader, filters=chosen, seq=seq, at=at) as standing,
    ):
        numbers = sorted(standing.numbers)
        words = ["lake", "boat", "rain", "tent", "zoë", "tea", "coffe", "absent"]
        said: list[object] = [
            numbers,
            standing.counts(numbers, words),
            standing.fields(numbers),
            standing.best(words, count=3, bm25=Profile().bm25),
            sorted(standing.authors(frozenset({"ann", "lee", "x1"}))),
            standing.tokens(db, count_tokens, tokenizer=TOKENIZER),
        ]
        if (embedder := world.embedder()) is not None:
            said.append(sorted(standing.near(embedder.embed("lake boat").vector, count=4)))
        return said


@pytest.mark.slow
@given(acts(), acts(), st.data())
def test_an_index_from_the_file_says_what_one_made_anew_says(
    steps: list[Act], later: list[Act], data: st.DataObject
) -> None:
    with a_world() as world, low_limits():
        warm = StandingIndex(world.memory)
        world.do_all(steps)
        warm.keep()
        warm.follow()
        world.do_all(later)
        if data.draw(st.booleans()):
            warm.keep()
        assert blocks_of(world.memory)
        cold = StandingIndex(world.memory)
        head = world.memory.head().count

        looks = [
            (data.draw(st.just(head) | st.integers(0, head)), reader, data.draw(filters()))
            for reader in READERS
        ]
        said = [
            [answers(index, world, *look) for look in [(head, None, NOW), *looks]]
            for index in (warm, cold)
        ]
        with in_file(world.memory.path) as db:
            db.execute("DELETE FROM block")
        anew = StandingIndex(world.memory)

        assert not blocks_of(world.memory)
        expected = [answers(anew, world, *look) for look in [(head, None, NOW), *looks]]
        assert said == [expected, expected]


def filled(folder: Path, clock: Clock, count: int = 20) -> SqliteMemory:
    memory = open_memory(folder, clock=clock)
    remember_all(memory, [a_note(f"tea {n} lake", author=f"x{n % 3}") for n in range(count)])
    return memory


def asked(memory: SqliteMemory, index: StandingIndex | None, query: str = "tea 7") -> Recalled:
    asking = Asking(agent_id="ada", k=3, as_of=20, at=memory.clock())
    return recall(memory, query, asking, key=KEY, count=count_tokens, index=index)


def found(made: Recalled) -> object:
    assert made.receipt.tokens is not None
    return made.hits, made.notes, made.receipt.tokens.whole_scope, made.remarks


@pytest.mark.parametrize(
    ("small", "large", "spans"),
    [
        (3, 6, [(1, 6), (7, 12), (13, 18)]),
        (4, 16, [(1, 16), (17, 20)]),
        (7, 70, [(1, 7), (8, 14)]),
        (50, 100, []),
    ],
)
def test_ranges_are_fixed_and_the_last_entries_have_none(
    tmp_path: Path, small: int, large: int, spans: list[tuple[int, int]]
) -> None:
    with filled(tmp_path, Clock()) as memory, small_blocks(small=small, large=large):
        StandingIndex(memory).keep()

        assert [block.span for block in blocks_of(memory)] == spans


def test_new_notes_rewrite_no_block_and_a_large_one_takes_the_place_of_small_ones(
    tmp_path: Path,
) -> None:
    with filled(tmp_path, Clock(), 7) as memory, small_blocks(small=3, large=9):
        index = StandingIndex(memory)
        index.keep()
        before = blocks_of(memory)
        remember(memory, a_note("one"))
        index.keep()

        assert before == [Block(1, 3, 7, BLOCK_FORMAT), Block(4, 6, 7, BLOCK_FORMAT)]
        assert blocks_of(memory) == before

        remember(memory, a_note("two"))
        remember(memory, a_note("three"))
        index.keep()

        assert blocks_of(memory) == [Block(1, 9, 10, BLOCK_FORMAT)]


def test_a_block_is_made_again_only_when_many_of_its_notes_were_touched(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as memory, small_blocks(small=5, large=10, touched=2):
        index = StandingIndex(memory)
        index.keep()
        with memory.reading() as db:
            ids = [id for (id,) in db.execute("SELECT id FROM note ORDER BY number")]

        def archive(number: int) -> None:
            forget(memory, [ids[number]], actor=None, strategy=ForgetStrategy.ARCHIVE)
            StandingIndex(memory).keep()

        archive(0)
        archive(1)
        assert {block.seq for block in blocks_of(memory)[:2]} == {20}
        archive(2)

        assert [block.seq for block in blocks_of(memory)[:2]] == [memory.head().count, 20]
        with StandingIndex(memory).at(reader=None, filters=NOW, seq=25, at=clock.now) as standing:
            assert standing.notes == 17


# -- what is not what was written --------------------------------------------------------------


def flip(db: sqlite3.Connection, where: str) -> None:
    for part, data in db.execute(f"SELECT rowid, data FROM block WHERE {where}").fetchall():
        changed = bytes([*data[:-1], data[-1] ^ 1])
        db.execute("UPDATE block SET data = ? WHERE rowid = ?", (changed, part))


DAMAGE: dict[str, Callable[[sqlite3.Connection], object]] = {
    "a bit of the notes": lambda db: flip(db, "part = 'notes'"),
    "a bit of the terms": lambda db: flip(db, "part LIKE 'terms%'"),
    "cut": lambda db: db.execute("UPDATE block SET data = substr(data, 1, 9)"),
    "empty": lambda db: db.execute("UPDATE block SET data = x''"),
    "no bytes": lambda db: db.execute("UPDATE block SET data = 'text', code = 7"),
    "the terms are gone": lambda db: db.execute("DELETE FROM block WHERE part != 'notes'"),
    "the notes are gone": lambda db: db.execute("DELETE FROM block WHERE part = 'notes'"),
    "exchanged": lambda db: db.execute(
        "UPDATE block SET data = other.data, code = other.code FROM block AS other "
        "WHERE other.part = block.part AND other.first != block.first"
    ),
    "another position": lambda db: db.execute("UPDATE block SET seq = seq - 1"),
    "a position beyond the log": lambda db: db.execute("UPDATE block SET seq = 1000000"),
    "another range": lambda db: db.execute(
        "UPDATE block SET first = first + 100, last = last + 100"
    ),
    "the table is another": lambda db: db.execute("DROP TABLE block"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_block_changed_by_hand_changes_no_recall_and_is_made_again(
    how: str, tmp_path: Path
) -> None:
    with filled(tmp_path, Clock()) as memory, small_blocks(small=5, large=10):
        expected = found(asked(memory, StandingIndex(memory)))
        written = [
            (block.span, data) for block, data in zip(blocks_of(memory), parts(memory), strict=True)
        ]
        with in_file(memory.path) as db:
            DAMAGE[how](db)

        assert found(asked(memory, StandingIndex(memory))) == expected
        assert found(asked(memory, None))[:3] == expected[:3]  # type: ignore[index]
        again = [
            (block.span, data) for block, data in zip(blocks_of(memory), parts(memory), strict=True)
        ]
        assert [each for each in again if each[0].last <= 20] == written


def parts(memory: SqliteMemory) -> list[dict[str, bytes]]:
    """The bytes of all parts, block by block."""
    with memory.reading() as db:
        select = "SELECT part, data FROM block WHERE first = ? AND last = ?"
        return [dict(db.execute(select, block.span)) for block in sorted(stored_blocks(db))]


def test_a_block_that_was_made_to_look_right_is_found_by_a_check_of_the_memory(
    tmp_path: Path,
) -> None:
    with filled(tmp_path, Clock()) as memory, small_blocks(small=5, large=10):
        StandingIndex(memory).keep()
        assert verify_memory(memory).valid
        with memory.writing() as writer:
            row, (block, *_) = head_row(writer.db, memory.path), stored_blocks(writer.db)
            select = "SELECT part, data FROM block WHERE first = ? AND last = ?"
            said = dict(writer.db.execute(select, block.span))
            said["terms0"] = said["terms0"].replace(b"tea", b"sea")
            write_block(writer.db, row, block.span, said)

        report = verify_memory(memory)

        assert not report.valid
        assert "the index of entries 1 to 10 is damaged" in str(report.error_message)


def test_a_block_changed_by_hand_is_found_by_a_check_of_the_memory(tmp_path: Path) -> None:
    with filled(tmp_path, Clock()) as memory, small_blocks(small=5, large=10):
        StandingIndex(memory).keep()
        with memory.reading() as db:
            (id,) = db.execute("SELECT id FROM note LIMIT 1").fetchone()
        forget(memory, [id], actor=None, strategy=ForgetStrategy.ARCHIVE)
        assert verify_memory(memory).valid
        with in_file(memory.path) as db:
            flip(db, "part = 'notes'")

        assert not verify_memory(memory).valid


def test_a_block_of_an_older_version_is_made_again(tmp_path: Path) -> None:
    with filled(tmp_path, Clock()) as memory, small_blocks(small=5, large=10):
        StandingIndex(memory).keep()
        with in_file(memory.path) as db:
            db.execute("UPDATE block SET format = 1, data = x'00'")

        made = asked(memory, StandingIndex(memory))

        assert [hit.lanes[0][0] for hit in made.hits] == ["lexical"] * 3
        assert {block.format for block in blocks_of(memory)} == {BLOCK_FORMAT}


def test_blocks_of_a_newer_version_are_neither_used_nor_replaced_and_named(tmp_path: Path) -> None:
    with filled(tmp_path, Clock()) as memory, small_blocks(small=5, large=10):
        expected = asked(memory, StandingIndex(memory))
        with in_file(memory.path) as db:
            db.execute("UPDATE block SET format = 9, data = x'00'")
        before = blocks_of(memory)
        index = StandingIndex(memory)

        made = asked(memory, index)

        assert (made.hits, made.notes) == (expected.hits, expected.notes)
        assert blocks_of(memory) == before
        (remark,) = index.remarks
        assert "has format 9, of a newer version; this version reads 2" in remark
        # A note that is erased leaves nothing in them either.
        gone = made.hits[0].id
        forget(memory, [gone], actor=None, strategy=ForgetStrategy.HARD_DELETE)
        assert len(blocks_of(memory)) < len(before)


def test_a_block_of_another_log_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    clock = Clock()
    with small_blocks(small=5, large=10):
        with open_memory(tmp_path / "other", clock=clock, seed=4) as other:
            remember_all(other, [a_note(f"foreign {n}") for n in range(20)])
            StandingIndex(other).keep()
        with filled(tmp_path, clock) as memory:
            StandingIndex(memory).keep()
            expected = found(asked(memory, None))
            memory.close()
            with in_file(memory.path) as db:
                db.execute("ATTACH ? AS other", (str(tmp_path / "other" / "memory.db"),))
                db.execute("DELETE FROM block")
                db.execute("INSERT INTO block SELECT * FROM other.block")

            made = asked(memory, StandingIndex(memory))

            assert found(made)[:3] == expected[:3]  # type: ignore[index]


def test_codes_of_vectors_are_read_by_the_first_who_needs_them(tmp_path: Path) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as memory, small_blocks(small=5, large=10), low_limits():
        world = World(memory, clock)
        world.do(("model", 0, 0, 0))
        world.embed(12)
        index, embedder = StandingIndex(memory), world.embedder()
        assert embedder is not None
        index.keep()

        asked(memory, index)
        assert index._held.codes is None
        asking = Asking(agent_id="ada", as_of=memory.head().count, at=clock.now)
        made = recall(memory, "tea 3", asking, key=KEY, embedder=embedder, index=index)
        assert index._held.codes is not None
        again = recall(memory, "tea 3", asking, key=KEY, embedder=embedder)

        assert made.hits == again.hits
        assert any(name == "dense" for hit in made.hits for name, _ in hit.lanes)


# -- erasure -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [ForgetStrategy.HARD_DELETE, ForgetStrategy.REDACT])
def test_an_erased_note_leaves_no_byte_in_the_index(
    tmp_path: Path, strategy: ForgetStrategy
) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as memory, small_blocks(small=5, large=10):
        secret = remember(
            memory,
            a_note("zanzibar xylophone", author="quetzal", thread_id="yttrium", tags=("vuvuzela",)),
        )
        remember_all(memory, [a_note(f"coffee {n}") for n in range(9)])
        index = StandingIndex(memory)
        index.keep()
        index.follow()
        with memory.reading() as db:
            kept = b"".join(data for (data,) in db.execute("SELECT data FROM block"))
        words = [b"zanzibar", b"xylophon", b"quetzal", b"yttrium", b"vuvuzela"]
        assert all(word in kept for word in words)
        if strategy is ForgetStrategy.REDACT:
            # Its conversation and its tags stay.
            words = words[:3]

        forget(memory, [secret.id], actor=None, strategy=strategy)

        raw = raw_bytes(tmp_path)
        assert not [word for word in words if word in raw]
        for by in (index, StandingIndex(memory)):
            made = recall(memory, "zanzibar", Asking(agent_id="ada"), key=KEY, index=by)
            assert not [hit for hit in made.hits if dict(hit.lanes).get("lexical")]
        raw = raw_bytes(tmp_path)
        assert not [word for word in words if word in raw]
        # Nothing of it is in the memory of the process either.
        assert "zanzibar" not in index._held.postings._held
        assert not [block for block in index._held.postings._blocks if block.find("zanzibar")]


# -- other processes, other disks --------------------------------------------------------------


def test_another_process_reads_the_blocks_of_this_one_and_reads_no_row_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path, Clock()) as memory, small_blocks(small=5, large=10):
        StandingIndex(memory).keep()
        with open_memory(tmp_path) as other:
            index = StandingIndex(other)
            read: list[object] = []
            monkeypatch.setattr(
                "tallystick.memory.recall.contents.Contents._add",
                lambda self, rows, **_: read.extend(rows),
            )

            assert index.follow() == 20
            with index.at(reader=None, filters=NOW, seq=20, at=other.clock()) as standing:
                assert standing.notes == 20
                with other.reading() as db:
                    counted = standing.tokens(db, count_tokens, tokenizer=TOKENIZER)

            assert read == []
            assert counted == sum(count_tokens(f"tea {n} lake") for n in range(20))


def test_an_index_whose_block_another_process_replaced_is_loaded_again(tmp_path: Path) -> None:
    clock = Clock()
    with (
        filled(tmp_path, clock) as one,
        open_memory(tmp_path, clock=clock) as other,
        small_blocks(small=5, large=10),
    ):
        index = StandingIndex(one)
        index.keep()
        index.follow()
        with other.reading() as db:
            ids = [id for (id,) in db.execute("SELECT id FROM note ORDER BY number LIMIT 4")]
        forget(other, ids, actor=None, strategy=ForgetStrategy.HARD_DELETE, scrub=False)
        StandingIndex(other).keep()

        made = recall(one, "tea lake", Asking(agent_id="ada", k=20), key=KEY, index=index)

        assert len(made.hits) == 16
        assert not set(ids) & {hit.id for hit in made.hits}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    with filled(tmp_path, Clock()) as memory:
        memory.close()
        tmp_path.chmod(0o500)
        (tmp_path / "memory.db").chmod(0o400)
        try:
            with small_blocks(small=5, large=10):
                index = StandingIndex(memory)
                index.keep()
                assert index.follow() == 20
        finally:
            tmp_path.chmod(0o700)


@pytest.mark.parametrize("kept", [True, False])
def test_a_file_that_cannot_be_written_is_read_with_the_blocks_it_has(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with filled(tmp_path, clock) as memory, small_blocks(small=5, large=10):
        if kept:
            StandingIndex(memory).keep()
        remember(memory, a_note("later tea"))
        memory.close()
        monkeypatch.setattr("tallystick.storage.system.is_read_only", lambda path: True)
        with open_memory(tmp_path, clock=clock) as frozen:
            index = StandingIndex(frozen)
            index.keep()

            with index.at(reader=None, filters=NOW, seq=21, at=clock.now) as standing:
                assert standing.notes == 21
                assert len(standing.best(["tea"], count=30, bm25=Profile().bm25)[0]) == 21
            assert bool(blocks_of(frozen)) is kept


def test_a_locked_file_is_read_and_its_block_is_made_by_a_later_recall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.memory.recall.index._BUSY_SECONDS", 0.01)
    with filled(tmp_path, Clock()) as memory, small_blocks(small=5, large=10):
        index = StandingIndex(memory)
        with closing(sqlite3.connect(memory.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            index.keep()
            assert index.follow() == 20
            assert blocks_of(memory) == []
            other.execute("COMMIT")

        remember_all(memory, [a_note(f"coffee {n}") for n in range(5)])
        index.keep()

        assert blocks_of(memory)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_goes_on_with_the_index(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from tallystick.memory.store import blocks
blocks.SMALL, blocks.LARGE = 5, 10
from tests.memory.recall.test_blocks import asked, filled, found
from tests.memory.memory_store import Clock
from tallystick.memory.recall.index import StandingIndex
with filled(Path(sys.argv[1]), Clock()) as memory:
    index = StandingIndex(memory)
    index.keep()
    index.follow()
    child = os.fork()
    said = found(asked(memory, index, "tea 3"))
    same = said == found(asked(memory, StandingIndex(memory), "tea 3"))
    if not child:
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    print(same, os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("True 0\n", "")


# -- numbers as bytes --------------------------------------------------------------------------

_WHOLE = st.one_of(
    st.integers(0, 300), st.integers(-1, 1 << 33), st.integers(-(1 << 61), (1 << 62) - 1)
)


@given(st.lists(_WHOLE, max_size=20))
def test_whole_numbers_come_back_as_they_were(values: list[int]) -> None:
    assert unpack(pack(np.array(values, dtype=np.int64)), np.int64).tolist() == values


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=20))
def test_large_whole_numbers_come_back_as_they_were(values: list[int]) -> None:
    assert unpack(pack(np.array(values, dtype=np.uint64)), np.uint64).tolist() == values


@given(st.lists(st.floats(allow_nan=False), max_size=20))
def test_floats_come_back_as_they_were(values: list[float]) -> None:
    again = unpack(pack(np.array(values, dtype=np.float64)), np.float64)
    assert again.tolist() == values


def test_equal_numbers_take_the_room_of_one() -> None:
    assert len(pack(np.full(1_000, 77)).data) == 0
    assert len(pack(np.full(1_000, 0.5)).data) == 8
    assert len(pack(np.arange(1 << 40, (1 << 40) + 200)).data) == 200
