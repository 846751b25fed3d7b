"""Terms are found by name and by phrase, and those that look alike are near."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.vocabulary.terms import Closeness, Vocabulary, count_slips, read_thesaurus, words_of

FILE = b"""\
{"term": "Invoice", "synonyms": ["bill"], "related": ["customer", "send_mail"]}
{"term": "customer"}
{"term": "purchase order", "related": ["nowhere"]}
{"term": "boat", "related": ["harbour"]}
{"term": "harbour"}
{"term": "os.system", "denied": true, "instead": ["send_mail", "nowhere"]}
{"term": "eval", "denied": true}
"""
WORDS = Vocabulary(
    functions=["send_mail", "skills.load", "eval"],
    tools=["crm.find"],
    skills=["shelf-codes"],
    thesaurus=read_thesaurus(FILE, name="t"),
)


@pytest.mark.parametrize(
    ("path", "term"),
    [
        ("send_mail", "send_mail"),
        ("Send_mail", None),
        ("skills.load", "skills.load"),
        ("skills", None),
        ("skills.lod", None),
        ("crm.find.more", "crm.find"),
        ("invoice", "Invoice"),
        ("BILL", "Invoice"),
        ("invoice.total", "Invoice"),
        ("nothing", None),
        ("", None),
    ],
)
def test_a_path_is_known_by_its_longest_beginning(path: str, term: str | None) -> None:
    assert WORDS.find(path) == term


@pytest.mark.parametrize(
    ("path", "denied"),
    [
        ("eval", "eval"),
        ("os.system", "os.system"),
        ("os.system.x", "os.system"),
        ("os.*", "os.*"),
        ("os", None),
        ("os.path", None),
        ("evaluate", None),
    ],
)
def test_what_is_denied_is_denied_with_all_that_begins_with_it(
    path: str, denied: str | None
) -> None:
    assert WORDS.find_denied(path) == denied


def test_a_denied_term_is_not_known_even_if_it_is_a_function() -> None:
    assert not WORDS.is_known("eval")
    assert "eval" not in WORDS.near("evall")


def test_phrases_are_found_in_a_text_also_inside_each_other() -> None:
    vocabulary = Vocabulary(functions=["purchase order", "order", "or", "purchase order form"])

    found = [
        (phrase.term, phrase.words)
        for phrase in vocabulary.phrases(words_of("a Purchase-less PURCHASE order, or not"))
    ]

    assert found == [("purchase order", ("purchase", "order")), ("order", ("order",))]


def test_related_terms_are_of_one_group_and_those_without_relations_of_none() -> None:
    groups = {term: WORDS.group(term) for term in ("Invoice", "customer", "send_mail")}

    assert set(groups.values()) == {"Invoice"}
    assert WORDS.group("boat") == WORDS.group("harbour") == "boat"
    assert WORDS.group("purchase order") is None
    assert WORDS.group("crm.find") is None


@pytest.mark.parametrize(
    ("written", "first"),
    [
        ("send_mial", "send_mail"),
        ("skills.lod", "skills.load"),
        ("load", "skills.load"),
        ("crm.fnd", "crm.find"),
        ("invoices", "Invoice"),
        ("mail_send", "send_mail"),
        ("os.system", "send_mail"),
    ],
)
def test_what_was_meant_is_suggested_first(written: str, first: str) -> None:
    assert WORDS.near(written)[0] == first


def test_nothing_is_suggested_for_what_looks_like_nothing() -> None:
    assert WORDS.near("zzzzqqq") == ()
    assert Vocabulary().near("anything") == ()


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "acb", 1), ("abc", "ab", 1), ("abc", "abcd", 1),
     ("abc", "axc", 1), ("kitten", "sitting", 3), ("abcd", "wxyz", 4), ("a", "abcdef", 4)],
)  # fmt: skip
def test_slips_are_counted_up_to_a_bound(one: str, other: str, count: int) -> None:
    assert count_slips(one, other, most=3) == count


def exact(one: str, other: str) -> int:
    """The same by the whole table."""
    table = [
        [i + j if not i * j else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)
    ]
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            table[i][j] = min(
                table[i - 1][j] + 1,
                table[i][j - 1] + 1,
                table[i - 1][j - 1] + (one[i - 1] != other[j - 1]),
            )
            if i > 1 and j > 1 and one[i - 2 : i] == other[j - 2 : j][::-1]:
                table[i][j] = min(table[i][j], table[i - 2][j - 2] + 1)
    return table[-1][-1]


@given(st.text("abc", max_size=9), st.text("abc", max_size=9), st.integers(1, 3))
@example("abab", "baba", 2)
def test_bounded_slips_are_those_of_the_whole_table(one: str, other: str, most: int) -> None:
    assert count_slips(one, other, most=most) == min(exact(one, other), most + 1)


@given(st.sets(st.text("abcdefgh_", min_size=5, max_size=14), min_size=1, max_size=20), st.data())
def test_a_term_is_near_to_itself_with_one_slip(terms: set[str], data: st.DataObject) -> None:
    meant = data.draw(st.sampled_from(sorted(terms)))
    place = data.draw(st.integers(0, len(meant) - 1))
    written = meant[:place] + meant[place + 1 :]

    assert meant in Closeness(terms).near(written, count=len(terms))


def test_rare_pairs_of_a_slip_do_not_hide_what_was_meant() -> None:
    closeness = Closeness(["send_mail", "nz", "z_", *(f"send_{letter}" for letter in "bcdefgh")])

    assert closeness.near("senz_mail")[0] == "send_mail"
