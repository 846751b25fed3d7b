"""Codes: a scan of all notes for those that may be near."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.memory import codes as codes_module
from tallystick.memory.bm25 import count_terms
from tallystick.memory.codes import Codes
from tallystick.memory.postings import Postings
from tallystick.memory.shortlist import shortlist

np = pytest.importorskip("numpy")

_DIMENSIONS = 128


def vectors(count: int, *, seed: int = 1) -> bytes:
    drawn = np.random.default_rng(seed).integers(-32_767, 32_767, (count, _DIMENSIONS))
    data: bytes = drawn.astype("<i2").tobytes()
    return data


def row(data: bytes, number: int) -> bytes:
    return data[number * 2 * _DIMENSIONS : (number + 1) * 2 * _DIMENSIONS]


def coded(data: bytes) -> Codes:
    codes = Codes(dimensions=_DIMENSIONS)
    codes.add(data)
    return codes


def distances(query: bytes, data: bytes) -> list[int]:
    rows = np.frombuffer(data, dtype="<i2").reshape(-1, _DIMENSIONS) > 0
    asked = np.frombuffer(query, dtype="<i2") > 0
    found: list[int] = (rows != asked).sum(axis=1).tolist()
    return found


@given(st.integers(0, 60), st.integers(1, 12), st.integers(0, 5), st.data())
def test_the_nearest_under_the_mask_are_found_with_all_that_are_as_near(
    notes: int, count: int, seed: int, data: st.DataObject
) -> None:
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=notes, max_size=notes)), dtype=bool)
    drawn, query = vectors(notes, seed=seed), vectors(1, seed=99)
    with pytest.MonkeyPatch.context() as patch:
        # Blocks so small that a set has several.
        patch.setattr(codes_module, "_ROWS", 7)

        found = coded(drawn).near(query, count=count, mask=mask)

    kept = {at: far for at, far in enumerate(distances(query, drawn)) if mask[at]}
    last = sorted(kept.values())[:count][-1:]
    assert found.tolist() == [at for at, far in kept.items() if last and far <= last[0]]


@given(st.integers(1, 40), st.integers(1, 40))
def test_adding_in_parts_is_adding_at_once(first: int, second: int) -> None:
    drawn, query = vectors(first + second), vectors(1, seed=3)
    parts = coded(drawn[: first * 2 * _DIMENSIONS])

    parts.add(drawn[first * 2 * _DIMENSIONS :])

    assert len(parts) == first + second
    assert parts.near(query, count=5).tolist() == coded(drawn).near(query, count=5).tolist()


def test_more_codes_than_the_first_room_holds_are_kept() -> None:
    drawn = vectors(3_000)

    assert 2_999 in coded(drawn).near(row(drawn, 2_999), count=1)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 64"):
        Codes(dimensions=100)
    with pytest.raises(UsageError, match="mask of 1 for 2"):
        coded(vectors(2)).near(vectors(1), count=1, mask=np.array([True]))
    assert coded(vectors(2)).near(vectors(1), count=0).tolist() == []
    assert Codes(dimensions=64).near(bytes(128), count=3).tolist() == []


def test_a_short_list_has_the_best_of_both_lanes_under_the_mask() -> None:
    drawn, postings = vectors(50), Postings()
    for number in range(50):
        postings.add(f"n{number:02}", count_terms("lake" if number < 3 else "rain"))
    mask = np.ones(50, dtype=bool)
    mask[0] = False

    found = shortlist(
        ["lake"],
        row(drawn, 40),
        postings=postings,
        codes=coded(drawn),
        mask=mask,
        candidates=3,
    )

    assert {"n01", "n02", "n40"} <= set(found.ids)
    assert "n00" not in found.ids
    assert found.statistics.notes == 49
    assert found.statistics.frequency == {"lake": 2}
    assert found.counts["n40"] == {"": 1}


def test_a_short_list_of_unequal_indexes_is_refused() -> None:
    with pytest.raises(UsageError, match="2 codes for 0 notes"):
        shortlist([], vectors(1), postings=Postings(), codes=coded(vectors(2)))


def test_a_short_list_without_vectors_is_lexical() -> None:
    postings = Postings()
    postings.add("a", {"lake": 1})

    assert shortlist(["lake"], None, postings=postings, codes=None).ids == ("a",)
