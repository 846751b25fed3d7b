"""BM25 over any set of notes, and the postings that give the same for large ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.memory.recall import shortlist
from tallystick.memory.recall.postings import Postings
from tallystick.memory.recall.words import (
    Bm25,
    Statistics,
    asked_terms,
    bm25_scores,
    count_statistics,
    count_terms,
)

np = pytest.importorskip("numpy")

_TERMS = st.sampled_from(["lake", "camp", "tent", "rain", "boat"])
counts = st.dictionaries(_TERMS, st.integers(1, 5), max_size=5)
queries = st.lists(_TERMS, unique=True, max_size=4)


def scored(asked: list[str], notes: list[dict[str, int]]) -> list[float]:
    return bm25_scores(asked, notes, count_statistics(asked, notes), Bm25())


def test_scores_are_those_of_the_formula() -> None:
    notes = [{"lake": 2, "camp": 1}, {"camp": 1}, {"boat": 5}]

    found = scored(["lake"], notes)

    rarity = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    held = 0.9 * (1 - 0.4 + 0.4 * 3 / 3)
    assert found == [pytest.approx(rarity * 2 * 1.9 / (2 + held) / (rarity * 1.9)), 0.0, 0.0]


def test_a_rare_term_counts_more_than_a_common_one() -> None:
    notes = [{"lake": 1, "x": 1}, {"camp": 1, "x": 1}, {"camp": 1, "y": 1}, {"camp": 1, "z": 1}]

    lake, camp, *_ = scored(["lake", "camp"], notes)

    assert lake > camp > 0


def test_a_term_that_no_note_has_is_not_held_against_any() -> None:
    notes = [{"lake": 1}, {"camp": 1}]

    assert scored(["lake", "unheard"], notes) == scored(["lake"], notes)


@pytest.mark.parametrize("notes", [[], [{}], [{}, {}], [{"lake": 1}], [{"lake": 1}] * 3])
def test_degenerate_sets_have_finite_scores(notes: list[dict[str, int]]) -> None:
    found = scored(["lake", "camp"], notes)

    assert len(found) == len(notes)
    assert all(math.isfinite(score) and 0 <= score <= 1 for score in found)


def test_a_query_without_words_scores_nothing() -> None:
    assert scored([], [{"lake": 1}]) == [0.0]


def test_a_query_has_each_term_once_and_not_too_many() -> None:
    assert asked_terms("lake lakes LAKE camp") == ("lake", "camp")
    assert len(asked_terms(" ".join(f"w{number}" for number in range(5_000)))) == 256


@given(queries, st.lists(counts, max_size=6))
def test_every_score_is_a_share(asked: list[str], notes: list[dict[str, int]]) -> None:
    found = scored(asked, notes)

    assert all(0 <= score <= 1 for score in found)
    for score, note in zip(found, notes, strict=True):
        assert (score > 0) == bool(set(asked) & note.keys())


# -- postings -------------------------------------------------------------------------------------


def posted(notes: list[dict[str, int]]) -> Postings:
    postings = Postings()
    for note in notes:
        postings.add(note)
    return postings


@given(st.data())
def test_postings_under_a_mask_are_exact_for_the_masked_set(data: st.DataObject) -> None:
    notes = data.draw(st.lists(counts, max_size=8))
    mask = data.draw(st.lists(st.booleans(), min_size=len(notes), max_size=len(notes)))
    asked = data.draw(queries)
    kept = [number for number, there in enumerate(mask) if there]

    numbers, statistics = posted(notes).best(asked, count=100, mask=np.array(mask, dtype=bool))

    only = [notes[number] for number in kept]
    assert statistics == count_statistics(asked, only)
    scores = dict(zip(kept, scored(asked, only), strict=True))
    assert numbers == [number for number in kept if scores[number] > 0]


@given(st.lists(counts, max_size=8), queries, st.integers(0, 5))
def test_the_best_do_not_depend_on_the_order_of_notes(
    notes: list[dict[str, int]], asked: list[str], count: int
) -> None:
    ids = list(range(len(notes)))
    back_ids = ids[::-1]

    def best(order: list[int]) -> set[int]:
        def first(places: Any, wanted: int) -> Any:
            return np.array(sorted(places.tolist(), key=order.__getitem__)[:wanted], dtype=int)

        found, _ = posted([notes[id] for id in order]).best(asked, count=count, first=first)
        return {order[place] for place in found}

    assert best(ids) == best(back_ids)
    assert len(best(ids)) <= count


@given(st.lists(counts, min_size=1, max_size=8), queries)
def test_counts_of_postings_score_as_the_notes_do(
    notes: list[dict[str, int]], asked: list[str]
) -> None:
    found: list[Mapping[str, int]] = list(posted(notes).counts(range(len(notes)), asked))

    statistics = count_statistics(asked, notes)
    assert bm25_scores(asked, found, statistics, Bm25()) == scored(asked, notes)


def test_among_very_many_notes_a_common_term_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shortlist, "GUARDED_NOTES", 99)
    postings = posted([{"common": 1} for _ in range(100)] + [{"common": 1, "rare": 1}])

    assert postings.best(["common", "rare"], count=200)[0] == [100]
    assert len(postings.best(["common"], count=200)[0]) == 101


def test_the_guard_leaves_small_sets_alone() -> None:
    postings = posted([{"common": 1}] * 10 + [{"common": 1, "rare": 1}])

    assert len(postings.best(["common", "rare"], count=50)[0]) == 11


def test_a_mask_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="mask of 2 for 1"):
        posted([{"lake": 1}]).best(["lake"], count=1, mask=np.array([True, False]))


def test_statistics_of_nothing_are_harmless() -> None:
    nothing = Statistics(notes=0, terms=0, frequency={})

    assert nothing.length == 1.0
    assert math.isfinite(nothing.rarity("lake"))
    assert count_terms("") == {}
