"""Terms: what ranking counts of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.memory.recall.words import CHARS_MAX, STOP, stem, terms, words


@pytest.mark.parametrize(
    ("word", "root"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("cats", "cat"), ("agreed", "agre"),
        ("plastered", "plaster"), ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"),
        ("troubled", "troubl"), ("sized", "size"), ("hopping", "hop"), ("falling", "fall"),
        ("hissing", "hiss"), ("failing", "fail"), ("filing", "file"), ("happy", "happi"),
        ("sky", "sky"), ("relational", "relat"), ("conditional", "condit"), ("digitizer", "digit"),
        ("vietnamization", "vietnam"), ("feudalism", "feudal"), ("decisiveness", "decis"),
        ("hopefulness", "hope"), ("triplicate", "triplic"), ("electrical", "electr"),
        ("goodness", "good"), ("revival", "reviv"), ("adjustment", "adjust"), ("adoption", "adopt"),
        ("probate", "probat"), ("rate", "rate"), ("cease", "ceas"), ("controlling", "control"),
        ("roll", "roll"), ("yes", "ye"), ("yellow", "yellow"),
    ],
)  # fmt: skip
def test_endings_go_as_porter_gave_them(word: str, root: str) -> None:
    assert stem(word) == root


def test_words_of_one_family_are_one_term() -> None:
    assert len(set(terms("connect connected connecting connection connections"))) == 1


def test_case_possessives_and_stop_words_do_not_count() -> None:
    assert terms("What was CAROLINE’s plan?") == ["carolin", "plan"]
    assert terms("Caroline's plans") == ["carolin", "plan"]


def test_operators_quotes_and_control_characters_are_no_words() -> None:
    assert terms('"camp" OR (NEAR* lake)\x00 -tent:^ \x1b[31m') == terms("camp near lake tent 31m")


def test_wide_and_combined_forms_are_the_plain_ones() -> None:
    assert words("ｃａｆé") == words("caf\u00e9") == words("CAFE\u0301") == ["caf\u00e9"]


def test_scripts_without_spaces_give_pairs() -> None:
    assert words("東京タワーabc") == ["東京", "京タ", "タワ", "ワー", "abc"]
    assert words("山") == ["山"]


def test_a_very_long_text_is_read_up_to_a_limit() -> None:
    assert words("a" * 10_000_000) == ["a" * 64]
    assert len(words("ab " * CHARS_MAX)) == CHARS_MAX // 3 + 1


@given(st.text())
def test_terms_are_words_without_stop_words_and_come_in_any_text(text: str) -> None:
    found = words(text)

    assert all(found)
    assert len(terms(text)) == sum(word not in STOP for word in found)
    assert words(" ".join(found)) == found or not " ".join(found).isascii()
