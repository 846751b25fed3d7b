"""Identifiers: ULIDs from a time and randomness."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.ids import ULID_CHARS, is_ulid, ulid

times = st.integers(min_value=0, max_value=(1 << 48) - 1)
entropies = st.binary(min_size=10, max_size=10)


@given(time_ms=times, entropy=entropies)
def test_every_ulid_is_one(time_ms: int, entropy: bytes) -> None:
    made = ulid(time_ms=time_ms, entropy=entropy)

    assert len(made) == ULID_CHARS
    assert is_ulid(made)


@given(first=st.tuples(times, entropies), second=st.tuples(times, entropies))
def test_ulids_sort_as_their_times_and_then_their_randomness(
    first: tuple[int, bytes], second: tuple[int, bytes]
) -> None:
    left = ulid(time_ms=first[0], entropy=first[1])
    right = ulid(time_ms=second[0], entropy=second[1])

    assert (left < right) == (first < second)


def test_the_greatest_ulid_is_the_greatest_of_the_alphabet() -> None:
    assert ulid(time_ms=(1 << 48) - 1, entropy=b"\xff" * 10) == "7" + "Z" * 25


@pytest.mark.parametrize("time_ms", [-1, 1 << 48])
def test_a_time_that_does_not_fit_is_refused(time_ms: int) -> None:
    with pytest.raises(ValueError, match="48 bits"):
        ulid(time_ms=time_ms, entropy=bytes(10))


@pytest.mark.parametrize("text", ["", "8" + "0" * 25, "0" * 25, "0" * 25 + "I", "0" * 25 + "u"])
def test_what_is_not_a_ulid_is_not_taken_for_one(text: str) -> None:
    assert not is_ulid(text)
