"""Counting characters sixteen bytes at a time agrees with decoding, also where that fails."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.sandbox.utf8 import BLOCK_BYTES_MAX, BLOCKS_MAX, CharacterCount

# Where the rules for a byte change, on both sides.
EDGES = (
    0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED,
    0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF,
)  # fmt: skip
COUNTER = CharacterCount()


def decoded(block: bytes) -> int | None:
    try:
        return len(block.decode())
    except UnicodeDecodeError:
        return None


def check(blocks: list[bytes]) -> None:
    for start in range(0, len(blocks), BLOCKS_MAX):
        batch = blocks[start : start + BLOCKS_MAX]
        assert COUNTER.count(batch) == [decoded(block) for block in batch]


def test_every_kind_of_three_bytes_is_told_right() -> None:
    check([bytes(each) for size in range(4) for each in itertools.product(EDGES, repeat=size)])


def test_every_kind_of_four_bytes_that_begin_as_a_character_is_told_right() -> None:
    heads = (0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4)
    rest = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC2, 0xF0)

    check([bytes(each) for each in itertools.product(heads, rest, rest, rest)])


@pytest.mark.parametrize(
    "character", ["\N{LATIN SMALL LETTER E WITH ACUTE}", "\N{SNOWMAN}", "\U0001f600"]
)
def test_a_character_is_told_whole_or_cut_at_any_place(character: str) -> None:
    whole = character.encode()

    check(
        [
            b"a" * before + whole[:size] + b"b" * after
            for before in range(36)
            for size in range(1, len(whole) + 1)
            for after in (0, 1, 14, 15, 16)
        ]
    )


@given(st.lists(st.binary(max_size=80) | st.text(max_size=40).map(str.encode), max_size=BLOCKS_MAX))
def test_blocks_do_not_see_each_other_nor_those_of_the_last_call(blocks: list[bytes]) -> None:
    assert COUNTER.count(blocks) == [decoded(block) for block in blocks]


def test_the_largest_blocks_have_room() -> None:
    text = "".join(random.Random(1).choices("a\u00e9\u2603\U0001f600", k=40_000)).encode()
    largest = text[: BLOCK_BYTES_MAX - 3].decode(errors="ignore").encode().ljust(BLOCK_BYTES_MAX)

    check([largest] * BLOCKS_MAX)
    check([largest[:-1] + b"\xf0"] * BLOCKS_MAX)


@pytest.mark.parametrize("blocks", [[b""] * (BLOCKS_MAX + 1), [bytes(BLOCK_BYTES_MAX + 1)]])
def test_more_than_there_is_room_for_is_refused(blocks: list[bytes]) -> None:
    with pytest.raises(ValueError, match="room"):
        COUNTER.count(blocks)
