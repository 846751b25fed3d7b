"""A thesaurus file: what it may say, and the one line that says where it is wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.vocabulary.terms import (
    FILE_BYTES_MAX,
    NAMES_MAX,
    Entry,
    ThesaurusInvalid,
    read_thesaurus,
)


def refusal(text: str | bytes) -> ThesaurusInvalid:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    with pytest.raises(ThesaurusInvalid) as caught:
        read_thesaurus(data, name="terms.jsonl")
    message = str(caught.value)
    assert message.startswith("thesaurus 'terms.jsonl'")
    assert message.isprintable()
    return caught.value


def test_a_line_is_a_term_with_synonyms_and_what_it_is_related_to() -> None:
    text = """\
# What the books are about.
{"term": "invoice", "synonyms": ["bill"], "related": ["customer"]}

{"term": "payroll", "denied": true, "instead": ["invoice"]}
"""

    assert read_thesaurus(text.encode(), name="t").entries == (
        Entry(term="invoice", synonyms=("bill",), related=("customer",), line=2),
        Entry(term="payroll", denied=True, instead=("invoice",), line=4),
    )


def test_a_byte_order_mark_and_other_line_ends_are_taken() -> None:
    data = b'\xef\xbb\xbf{"term": "a"}\r\n{"term": "b"}\r\n'

    assert [entry.term for entry in read_thesaurus(data, name="t").entries] == ["a", "b"]


def test_an_empty_file_is_a_thesaurus_without_terms() -> None:
    assert read_thesaurus(b"", name="t").entries == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "no JSON"),
        ("[]", "a line is an object with a term"),
        ("null", "a line is an object with a term"),
        ("{}", "it has no term"),
        ('{"term": 3}', "3 is no text"),
        ('{"term": ""}', "0 characters"),
        ('{"term": " a"}', "has blanks"),
        ('{"term": "a\\nb"}', "has blanks"),
        ('{"term": "a\\u0000"}', "has blanks"),
        ('{"term": "\\ud800"}', "half of a character"),
        (json.dumps({"term": "x" * 201}), "201 characters"),
        ('{"term": "a", "synonym": ["b"]}', 'unknown key "synonym"'),
        ('{"term": "a", "term": "b"}', '"term" stands twice'),
        ('{"term": "a", "synonyms": "b"}', "synonyms is a list of terms"),
        ('{"term": "a", "related": [null]}', "related: null is no text"),
        ('{"term": "a", "denied": "yes"}', "denied is true or false"),
        ('{"term": "a", "denied": true, "synonyms": ["b"]}', '"a" is denied'),
        ('{"term": "a", "instead": ["b"]}', '"a" is not denied'),
        ("[" * 100_000, "nested"),
        ('"' + "x" * 100_001, "at most 100,000"),
    ],
)
def test_a_malformed_line_is_named_with_its_number(line: str, why: str) -> None:
    error = refusal(f'{{"term": "first"}}\n\n{line}\n')

    assert error.line == 3
    assert "line 3: " in str(error)
    assert why in str(error)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"term": "bill"}, '"bill" is a term here and a synonym of "invoice" on line 1'),
        ({"term": "Invoice"}, '"Invoice" is a term here and a term on line 1'),
        ({"term": "invoice", "denied": True}, '"invoice" is denied here and a term on line 1'),
        (
            {"term": "bill", "denied": True},
            '"bill" is denied here and a synonym of "invoice" on line 1',
        ),
        (
            {"term": "note", "synonyms": ["bill"]},
            '"bill" is a synonym of "note" here and a synonym of "invoice" on line 1',
        ),
        (
            {"term": "note", "synonyms": ["note"]},
            '"note" is a synonym of "note" here and a term on line 2',
        ),
    ],
)
def test_a_name_with_two_meanings_is_refused_with_both(second: dict[str, object], why: str) -> None:
    first = {"term": "invoice", "synonyms": ["bill"]}

    error = refusal(f"{json.dumps(first)}\n{json.dumps(second)}")

    assert error.line == 2
    assert error.why == why


@pytest.mark.parametrize(
    "entry",
    [
        {"term": "a", "related": ["Payroll"]},
        {"term": "a", "denied": True, "instead": ["payroll"]},
    ],
)
def test_nothing_leads_to_what_is_denied(entry: dict[str, object]) -> None:
    error = refusal(f'{json.dumps(entry)}\n{{"term": "payroll", "denied": true}}')

    assert (error.line, error.why.endswith("which is denied on line 2")) == (1, True)


def test_a_file_that_is_not_utf_8_is_named_with_the_line() -> None:
    error = refusal(b'{"term": "a"}\n{"term": "\xff"}')

    assert (error.line, error.why) == (2, "byte 0xff is not UTF-8")


def test_a_file_that_is_too_large_is_refused_as_a_whole() -> None:
    assert refusal(b" " * (FILE_BYTES_MAX + 1)).line == 0


def test_too_many_names_are_refused() -> None:
    line = json.dumps({"term": "a", "related": [f"r{number}" for number in range(9_000)]})

    assert f"more than {NAMES_MAX:,} names" in str(refusal("\n".join([line] * 23)))


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode()))
def test_any_bytes_are_a_thesaurus_or_refused_in_one_line(data: bytes) -> None:
    said = ""
    try:
        read_thesaurus(data, name="t")
    except ThesaurusInvalid as error:
        said = str(error)

    assert said == "" or said.isprintable()
