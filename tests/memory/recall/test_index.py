"""The standing index: what it answers follows from the log, and from nothing else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.large_world import (
    QUERIES,
    READERS,
    Act,
    World,
    a_world,
    acts,
    filters,
    low_limits,
)
from tests.memory.memory_store import Clock, a_note, open_memory

from tallystick.core.errors import UsageError
from tallystick.memory.forget import forget
from tallystick.memory.recall.contents import Contents
from tallystick.memory.recall.index import StandingIndex
from tallystick.memory.recall.scope import Profile
from tallystick.memory.recall.selection import EVERYTHING, NOW, select_notes
from tallystick.memory.recall.shortlist import Scan, Shortlist, shortlist
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.store.records import ForgetStrategy

pytestmark = pytest.mark.slow

pytest.importorskip("numpy")

profiles = st.sampled_from([Profile(), Profile(lexical=0), Profile(dense=0, token=0)])


def listed(
    world: World, index: StandingIndex | None, query: str, profile: Profile, **look: object
) -> Shortlist:
    """The short list by an index, or without one."""
    given: dict[str, object] = {"reader": None, "filters": NOW, "at": world.clock.now, **look}
    with world.memory.reading() as db:
        seq = given.setdefault("seq", world.memory.head().count)
        assert isinstance(seq, int)
        if index is None:
            whole = Scan(db, **given)  # type: ignore[arg-type]
            return shortlist(query, whole, profile=profile, embedder=world.embedder())
        with index.at(**given) as standing:  # type: ignore[arg-type]
            return shortlist(query, standing, profile=profile, embedder=world.embedder())


looks = st.lists(st.booleans(), min_size=9, max_size=9)


def followed(world: World, steps: list[Act], looked: list[bool]) -> StandingIndex:
    """An index that was asked now and then while things happened."""
    index = StandingIndex(world.memory)
    index.keep()
    index.follow()
    for at, (step, there) in enumerate(zip(steps, looked, strict=False)):
        world.do(step)
        if there:
            if at % 2:
                index.keep()
            assert index.follow() == world.memory.head().count
    return index


@given(acts(), looks, st.data())
def test_the_mask_is_what_the_store_selects(
    steps: list[Act], looked: list[bool], data: st.DataObject
) -> None:
    with a_world() as world:
        index = followed(world, steps, looked)
        head = world.memory.head().count

        for reader in READERS:
            for chosen in (NOW, EVERYTHING, data.draw(filters())):
                seq = data.draw(st.just(head) | st.integers(0, head))
                at = data.draw(st.integers(-50, 50)) + world.clock.now
                with world.memory.reading() as db:
                    rows = select_notes(db, reader=reader, filters=chosen, seq=seq, at=at)
                with index.at(reader=reader, filters=chosen, seq=seq, at=at) as standing:
                    assert sorted(standing.numbers) == [row.number for row in rows]
                    assert standing.notes == len(rows)


@given(acts(), looks, profiles, st.data())
def test_an_index_a_new_one_and_none_make_the_same_short_list(
    steps: list[Act], looked: list[bool], profile: Profile, data: st.DataObject
) -> None:
    with a_world() as world, low_limits():
        old = followed(world, steps, looked)
        new = StandingIndex(world.memory)
        head = world.memory.head().count

        for query in QUERIES[:5]:
            look = {
                "reader": data.draw(st.sampled_from(READERS)),
                "filters": data.draw(st.just(EVERYTHING) | filters()),
                "seq": data.draw(st.just(head) | st.integers(0, head)),
            }
            none = listed(world, None, query, profile, **look)
            assert listed(world, old, query, profile, **look) == none
            assert listed(world, new, query, profile, **look) == none


def numbers(index: StandingIndex, *, at: int) -> list[int]:
    with index.memory.reading():
        seq = index.memory.head().count
        with index.at(reader=None, filters=NOW, seq=seq, at=at) as standing:
            return standing.numbers


def test_an_index_follows_another_process_that_writes(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as one, open_memory(tmp_path, clock=clock) as other:
        index = StandingIndex(one)
        assert numbers(index, at=clock.now) == []

        made = remember(other, a_note("tea"))

        assert numbers(index, at=clock.now) == [made.seq]
        assert index.follow() == 1


def test_a_log_that_is_another_one_is_read_from_its_beginning(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        remember_all(memory, [a_note("tea"), a_note("coffee")])
        index = StandingIndex(memory)
        index.follow()
        memory.close()
        for file in tmp_path.iterdir():
            file.unlink()
        with open_memory(tmp_path, clock=clock, seed=5) as other:
            remember_all(other, [a_note(f"water {n}") for n in range(3)])

        assert numbers(index, at=clock.now) == [1, 2, 3]
        with memory.reading(), index.at(reader=None, filters=NOW, seq=3, at=clock.now) as whole:
            assert whole.best(["tea", "water"], count=9, bm25=Profile().bm25)[0] == [1, 2, 3]


def test_an_index_of_mostly_erased_notes_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.memory.recall.index._DEAD_MIN", 1)
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        made = remember_all(memory, [a_note(f"secret{n}") for n in range(3)])
        index = StandingIndex(memory)
        index.follow()

        gone = [each.id for each in made[:2]]
        forget(memory, gone, actor=None, strategy=ForgetStrategy.HARD_DELETE, scrub=False)

        assert numbers(index, at=clock.now) == [made[2].seq]
        held = index._held.postings._held
        assert list(held) == ["secret2"]


def test_a_note_that_is_not_in_the_index_is_refused(tmp_path: Path) -> None:
    with open_memory(tmp_path) as memory:
        remember(memory, a_note("tea"))
        index = StandingIndex(memory)
        with index.at(reader=None, filters=NOW, seq=1, at=0) as whole:
            assert whole.within([1, 2]) == []
            with pytest.raises(UsageError, match="note 9"):
                whole.counts([9], ["tea"])


def test_threads_share_an_index(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        remember_all(memory, [a_note(f"tea {n}") for n in range(50)])
        index = StandingIndex(memory)
        found: list[int] = []

        def look() -> None:
            for _ in range(10):
                found.append(len(numbers(index, at=clock.now)))

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        remember_all(memory, [a_note(f"coffee {n}") for n in range(50)])
        for thread in threads:
            thread.join()

        assert len(found) == 40
        assert set(found) <= {50, 100}


def test_an_index_that_was_interrupted_is_whole_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        remember_all(memory, [a_note("tea"), a_note("coffee")])
        index = StandingIndex(memory)
        with monkeypatch.context() as patch:
            patch.setattr(Contents, "add_vectors", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                index.follow()

        assert numbers(index, at=clock.now) == [1, 2]
        remember(memory, a_note("water"))
        assert numbers(index, at=clock.now) == [1, 2, 3]
