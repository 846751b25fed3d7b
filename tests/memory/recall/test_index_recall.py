"""Recall from a large memory: with an index, without one, and without the extra: the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.large_world import (
    KEY,
    KEYS,
    QUERIES,
    READERS,
    SOFT,
    Act,
    Signs,
    World,
    a_world,
    acts,
    low_limits,
)
from tests.memory.memory_store import Clock, a_note, open_memory, quick_folder

from tallystick.core.errors import UsageError
from tallystick.memory.errors import ModelMismatch
from tallystick.memory.forget import forget
from tallystick.memory.recall import shortlist
from tallystick.memory.recall.index import StandingIndex
from tallystick.memory.recall.recall import Asking, Recalled, recall, verify_recall
from tallystick.memory.recall.scope import Profile
from tallystick.memory.recall.selection import Filters
from tallystick.memory.receipts.receipt import RecallDiffers, receipt_bytes, sign
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.sharing import relate
from tallystick.memory.store.records import ForgetStrategy
from tallystick.memory.store.sqlite import SqliteMemory

pytestmark = pytest.mark.slow

pytest.importorskip("numpy")

ROOT = Path(__file__).parents[3]


def asked(
    world: World, query: str, index: StandingIndex | None, embedder: Signs | None, **asking: Any
) -> Recalled:
    given = {"agent_id": "ada", "at": world.clock.now, **asking}
    return recall(world.memory, query, Asking(**given), key=KEY, embedder=embedder, index=index)


def checked(
    world: World, made: Recalled, query: str, index: StandingIndex | None, embedder: Signs | None
) -> str:
    verified = verify_recall(
        world.memory, made.receipt, keys=KEYS, query=query, embedder=embedder, index=index
    )
    return verified.ranking


def same(one: Recalled, other: Recalled) -> bool:
    """Whether two recalls found the same, for the same scope."""
    return (one.hits, one.notes, one.receipt.scope) == (
        other.hits,
        other.notes,
        other.receipt.scope,
    )


@given(acts(without=frozenset({"model"})), acts(), st.sampled_from(QUERIES), st.data())
def test_a_receipt_by_an_old_index_holds_for_whoever_comes_later(
    steps: list[Act], later: list[Act], query: str, data: st.DataObject
) -> None:
    with a_world(SOFT) as world, low_limits():
        index = StandingIndex(world.memory)
        index.follow()
        world.do_all(steps)
        embedder = world.embedder()
        reader = data.draw(st.sampled_from(READERS))
        made = asked(world, query, index, embedder, reader=reader, k=3)
        again = asked(world, query, None, embedder, reader=reader, k=3, as_of=made.receipt.as_of)
        world.do_all([step for step in later if step[0] != "model"])

        then = asked(world, query, index, embedder, reader=reader, k=3, as_of=made.receipt.as_of,
                     at=made.receipt.scope["at"])  # fmt: skip

        assert same(made, again)
        assert same(made, then)
        assert "shortlist" in made.receipt.scope or not made.hits
        for checker in (index, StandingIndex(world.memory), None):
            assert checked(world, made, query, checker, embedder) == "same"


@given(acts(), st.sampled_from(QUERIES), st.integers(0, 12), st.data())
def test_which_way_is_taken_does_not_depend_on_the_index(
    steps: list[Act], query: str, large: int, data: st.DataObject
) -> None:
    with a_world() as world, low_limits(large=large):
        index = StandingIndex(world.memory)
        world.do_all(steps)
        embedder = world.embedder()
        reader = data.draw(st.sampled_from(READERS))

        with_index = asked(world, query, index, embedder, reader=reader)
        without = asked(world, query, None, embedder, reader=reader, as_of=with_index.receipt.as_of)

        assert same(with_index, without)


@given(acts(), st.sampled_from(QUERIES), st.data())
def test_a_scope_that_is_not_large_is_ranked_as_ever(
    steps: list[Act], query: str, data: st.DataObject
) -> None:
    with a_world() as world:
        index = StandingIndex(world.memory)
        world.do_all(steps)
        embedder = world.embedder()
        reader = data.draw(st.sampled_from(READERS))
        seq = world.memory.head().count
        profile = data.draw(st.sampled_from([Profile(), Profile(related=1, importance=1)]))
        made = asked(world, query, None, embedder, reader=reader, profile=profile)

        quick = asked(world, query, index, embedder, reader=reader, profile=profile, as_of=seq)

        assert (quick.hits, quick.notes) == (made.hits, made.notes)
        assert quick.remarks == made.remarks
        assert "shortlist" not in quick.receipt.scope


def test_a_large_scope_says_so_and_finds_what_ranking_everything_finds(tmp_path: Path) -> None:
    clock = Clock()
    texts = [f"boat{n % 7} lake{n % 11} day{n}" for n in range(40)]
    with open_memory(tmp_path, clock=clock) as memory:
        remember_all(memory, [a_note(text) for text in texts])
        world = World(memory, clock)
        index = StandingIndex(memory)
        whole = asked(world, "boat3 lake5 day27", index, None)
        with low_limits(large=10, candidates=20, guarded=1_000):
            made = asked(world, "boat3 lake5 day27", index, None)

    assert made.hits[:3] == whole.hits[:3]
    assert made.receipt.scope["shortlist"] == shortlist.RULES
    assert any("of 40 notes are ranked" in remark for remark in made.remarks)
    assert "shortlist" not in whole.receipt.scope


def test_relations_lead_out_of_a_short_list(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory, low_limits(candidates=3, guarded=1_000):
        found, tied, *_ = remember_all(memory, [a_note(f"word{n}") for n in range(20)])
        hidden = remember(memory, a_note("of bob", agent_id="bob"))
        relate(memory, found.id, tied.id, actor=None)
        relate(memory, tied.id, hidden.id, actor=None)
        world = World(memory, clock)

        for index in (StandingIndex(memory), None):
            made = asked(world, "word0", index, None, reader="ada", strategy="graph")

            assert [hit.id for hit in made.hits] == [found.id, tied.id]
            assert checked(world, made, "word0", None, None) == "same"


def test_what_was_erased_is_not_found_and_said_to_be_gone(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory, low_limits(candidates=5):
        made = remember_all(memory, [a_note(f"tea {n}") for n in range(9)])
        world, index = World(memory, clock), StandingIndex(memory)
        before = asked(world, "tea", index, None)
        gone = before.hits[0].id
        forget(memory, [gone], actor=None, strategy=ForgetStrategy.HARD_DELETE, scrub=False)

        after = asked(world, "tea", index, None)

        assert gone in {each.id for each in made}
        assert gone not in {hit.id for hit in after.hits}
        for checker in (index, None):
            said = verify_recall(memory, before.receipt, keys=KEYS, query="tea", index=checker)
            assert said.erased == (gone,)
            assert checked(world, after, "tea", checker, None) == "same"


def test_tokens_of_the_whole_scope_are_counted_with_and_without_an_index(tmp_path: Path) -> None:
    clock = Clock()
    counted: list[str] = []

    def words(text: str) -> int:
        counted.append(text)
        return len(text.split())

    with open_memory(tmp_path, clock=clock) as memory, low_limits():
        remember_all(memory, [a_note(f"tea {n}") for n in range(9)])
        remember(memory, a_note("three words here", agent_id="bob"))
        index = StandingIndex(memory)

        def whole(by: StandingIndex | None) -> int:
            asking = Asking(agent_id="ada", reader="ada", k=1)
            made = recall(
                memory, "tea", asking, key=KEY, count=words, tokenizer="words@1", index=by
            )
            assert made.receipt.tokens is not None
            return made.receipt.tokens.whole_scope

        assert [whole(None), whole(index), whole(index)] == [18, 18, 18]
        counted.clear()
        assert whole(index) == 18
        # What was given and its form as JSON: the others were counted before.
        assert len(counted) == 3


def test_an_index_of_another_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    asking = Asking(agent_id="ada")
    with (
        open_memory(tmp_path) as one,
        open_memory(tmp_path / "a") as other,
        pytest.raises(UsageError, match="another memory"),
    ):
        recall(one, "x", asking, key=KEY, index=StandingIndex(other))


def test_a_receipt_of_other_rules_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory:
        remember(memory, a_note("tea"))
        made = asked(World(memory, clock), "tea", None, None)
        for rules in ("words-codes-0", 7, None):
            scope = {**made.receipt.scope, "shortlist": rules}
            other = sign(msgspec.structs.replace(made.receipt, scope=scope), KEY)
            with pytest.raises(UsageError, match="other rules"):
                verify_recall(memory, other, keys=KEYS, query="tea")


@pytest.mark.parametrize("query", ['a" OR NEAR(b', "\x00\x1b[2J", "x" * 50_000, "\ud800 tea", "*"])
def test_any_text_is_a_query_of_a_large_memory(query: str, tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory, low_limits():
        remember_all(memory, [a_note(f"tea {n}", author=f"x{n}") for n in range(5)])
        world, index = World(memory, clock), StandingIndex(memory)

        made = asked(world, query.encode("utf-8", "replace").decode(), index, None)

        assert same(made, asked(world, query.encode("utf-8", "replace").decode(), None, None,
                                as_of=made.receipt.as_of))  # fmt: skip


def test_filters_and_the_threshold_are_of_the_scope_and_not_of_the_store(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory, low_limits(large=5, guarded=1_000):
        remember_all(memory, [a_note(f"tea {n}", tags=("few",) * (n < 4)) for n in range(9)])
        world, index = World(memory, clock), StandingIndex(memory)
        few = Filters(tags=frozenset({"few"}))

        narrow = asked(world, "tea", index, None, filters=few)
        wide = asked(world, "tea", index, None)

        assert "shortlist" not in narrow.receipt.scope
        assert "shortlist" in wide.receipt.scope
        assert len(narrow.hits) == 4
        assert checked(world, narrow, "tea", index, None) == "same"
        assert checked(world, narrow, "tea", None, None) == "same"


def test_without_the_extra_a_large_memory_is_searched_and_receipts_are_checked() -> None:
    program = """
import sys
for name in ("numpy", "onnxruntime", "tokenizers"):
    sys.modules[name] = None
from pathlib import Path
from tallystick.memory.recall import recall as finding, shortlist
shortlist.LARGE, shortlist.CANDIDATES = 5, 4
from tallystick.memory.recall.recall import Asking, recall, verify_recall
from tallystick.memory.receipts.receipt import Key, read_receipt
from tallystick.memory.store.sqlite import SqliteMemory
with SqliteMemory(Path(sys.argv[1]) / "memory.db") as memory:
    receipt = read_receipt((Path(sys.argv[1]) / "receipt.json").read_bytes())
    keys = {"k1": b"s" * 32}
    print(verify_recall(memory, receipt, keys=keys, query="tea 3").ranking)
    made = recall(memory, "tea 3", Asking(agent_id="ada"), key=Key(id="k1", secret=b"s" * 32))
    print([hit.id for hit in made.hits] == [hit.id for hit in receipt.derived_from])
    print(*made.remarks, sep="; ")
"""
    limits = low_limits(large=5, candidates=4, guarded=50_000)
    with quick_folder() as folder:
        with SqliteMemory(folder / "memory.db") as memory, limits:
            remember_all(memory, [a_note(f"tea {n}") for n in range(9)])
            made = recall(
                memory, "tea 3", Asking(agent_id="ada"), key=KEY, index=StandingIndex(memory)
            )
            (folder / "receipt.json").write_bytes(receipt_bytes(made.receipt))

        done = subprocess.run(
            [sys.executable, "-c", program, str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.stderr == ""
    ranking, equal, remarks = done.stdout.splitlines()
    assert (ranking, equal) == ("same", "True")
    assert "found by reading the file" in remarks
    assert "dense: left out, there is no embedder" in remarks


def test_a_profile_without_words_has_candidates_by_vectors_alone(tmp_path: Path) -> None:
    clock = Clock()
    with open_memory(tmp_path, clock=clock) as memory, low_limits(candidates=3):
        remember_all(memory, [a_note(f"tea {n}") for n in range(12)])
        world = World(memory, clock)
        world.do(("model", 0, 0, 0))
        world.embed(12)
        index, embedder = StandingIndex(memory), world.embedder()

        made = asked(world, "tea 3", index, embedder, profile=Profile(lexical=0))

        assert 0 < len(made.hits) <= 3
        assert all(name != "lexical" for hit in made.hits for name, _ in hit.lanes)
        # A model that is chosen later throws the vectors away, for whoever looks.
        world.do(("model", 1, 0, 0))
        for by in (index, None):
            with pytest.raises(ModelMismatch):
                asked(world, "tea 3", by, embedder, profile=Profile(lexical=0))
            with pytest.raises(RecallDiffers, match="model was"):
                verify_recall(
                    memory, made.receipt, keys=KEYS, query="tea 3", profile=Profile(lexical=0),
                    embedder=embedder, index=by,
                )  # fmt: skip
