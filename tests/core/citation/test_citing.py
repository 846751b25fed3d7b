"""Answers against their documents: what is cited is right, what is not is named, and why."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.core.citation.correct import is_correct

from tallystick.core.citation.cited import Citation, Cited, Unchecked, check_answer
from tallystick.core.citation.claims import Documents
from tallystick.sandbox.text import HostText

EXAMPLES = settings().max_examples // 2
NOTE = """\
The pilot reported that the rudder was
lost at dawn near the outer mole.

He saw 12 tons of ballast, then 120 tons of gravel.
"""
LOG = "2031-05-06 | V-2764 was towed in.\n2031-05-07 | V-1000 left.\nat main.c:77 it failed\n"
TEXTS = {"logs/note.txt": NOTE, "harbour.log": LOG}
# Words of a document as models quote them; not marks that would end the quotation.
words = st.text("abcXYZ019\u00e9\u20ac.,;-'", min_size=1, max_size=7)
gaps = st.sampled_from([" ", "  ", "\t", "\n", " \n", "\r\n", "\n\n", "\n  "])


def held(corpus: dict[str, str]) -> Documents:
    return Documents({name: HostText(text.encode()) for name, text in corpus.items()})


def cited(answer: str, corpus: dict[str, str] = TEXTS, *, question: str = "what?") -> Cited:
    found = check_answer(answer, question=question, documents=held(corpus))
    assert_sound(found, corpus)
    return found


def assert_sound(found: Cited, corpus: dict[str, str]) -> None:
    """Every citation is what the bytes say: words, offsets and lines."""
    for each in found.citations:
        whole = corpus[each.name].encode()
        assert whole[each.start : each.end].decode("utf-8", "replace") == each.quote != ""
        assert whole.count(b"\n", 0, each.start) + 1 == each.line
        assert whole.count(b"\n", 0, each.end) + 1 == (each.line_end or each.line)
        assert is_correct(each, held(corpus))


def why(answer: str, corpus: dict[str, str] = TEXTS) -> str:
    (unchecked,) = cited(answer, corpus).unchecked
    return unchecked.why


def places(found: Cited) -> list[tuple[str, str]]:
    return [(each.name, each.lines) for each in found.citations]


# -- laws --------------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(data=st.data(), pieces=st.lists(st.tuples(words, gaps), min_size=5, max_size=12))
def test_any_four_words_of_any_document_are_cited_where_they_stand(
    data: st.DataObject, pieces: list[tuple[str, str]]
) -> None:
    text = "".join(word + gap for word, gap in pieces)
    first = data.draw(st.integers(0, len(pieces) - 4))
    last = data.draw(st.integers(first + 3, len(pieces) - 1))
    quote = "".join(word + gap for word, gap in pieces[first:last]) + pieces[last][0]
    assume(all(any(each.isalnum() for each in word) for word, _ in pieces[first : last + 1]))
    assume("..." not in quote and "\n\n" not in quote)
    corpus = {"other.txt": "nothing\n", "a.txt": text}

    found = cited(f'It says "{quote}".', corpus)

    assert found.unchecked == ()
    assert (found.citations[0].name, found.citations[0].quote) == ("a.txt", quote)


@settings(max_examples=EXAMPLES)
@given(
    data=st.data(),
    written=st.lists(st.tuples(words, gaps), min_size=4, max_size=8),
    said=st.lists(gaps, min_size=8, max_size=8),
)
def test_spaces_may_differ_where_a_line_ends_and_nowhere_else(
    data: st.DataObject, written: list[tuple[str, str]], said: list[str]
) -> None:
    assume(all(any(each.isalnum() for each in word) for word, _ in written))
    text = "".join(word + gap for word, gap in written)
    quote = "".join(word + gap for (word, _), gap in zip(written[:-1], said, strict=False))
    quote += written[-1][0]
    assume("..." not in quote and "\n\n" not in quote)
    pairs = zip((gap for _, gap in written[:-1]), said, strict=False)
    same = all(one == other or "\n" in one + other for one, other in pairs)

    found = cited(f"It says \u201c{quote}\u201d.", {"a.txt": text})

    if same:
        assert found.unchecked == ()
        assert found.citations[0].quote.split() == quote.split()
    else:
        assert [each.why for each in found.unchecked] == ["stands nowhere in the data"]


@settings(max_examples=EXAMPLES)
@given(
    text=st.text("ab1 \n\u20ac", max_size=60),
    first=st.integers(0, 9),
    more=st.integers(-1, 3),
)
def test_named_lines_are_cited_if_there_are_such_and_something_stands_there(
    text: str, first: int, more: int
) -> None:
    lines = text.split("\n")
    lines = lines if lines[-1] else lines[:-1]
    last = max(0, first + more)

    found = cited(f"See [a.txt:{first}-{last}].", {"a.txt": text})

    if not 1 <= first <= last <= len(lines):
        assert [each.why for each in found.unchecked] == [
            f"a.txt has {len(lines)} line{'' if len(lines) == 1 else 's'}"
        ]
    elif not "".join(lines[first - 1 : last]).strip(" "):
        assert [each.why for each in found.unchecked] == ["nothing stands there"]
    else:
        (citation,) = found.citations
        assert citation.quote == "\n".join(lines[first - 1 : last]).strip(" \n")
        assert found.unchecked == ()


@settings(max_examples=EXAMPLES)
@given(answer=st.text(max_size=80), corpus=st.dictionaries(words, st.text(max_size=60), max_size=3))
def test_any_answer_to_any_documents_is_sound(answer: str, corpus: dict[str, str]) -> None:
    corpus = {name: text.encode("utf-8", "ignore").decode() for name, text in corpus.items()}

    assert_sound(check_answer(answer, question="", documents=held(corpus)), corpus)


# -- what is checked ---------------------------------------------------------------------------


def test_a_quotation_over_two_lines_is_cited_with_both() -> None:
    found = cited('"the rudder was lost at dawn near the outer mole"')

    assert found == Cited(
        citations=(
            Citation(
                name="logs/note.txt",
                line=1,
                line_end=2,
                start=24,
                end=71,
                quote="the rudder was\nlost at dawn near the outer mole",
            ),
        )
    )


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        ('"the rudder was lost" (note.txt, line 1)', "1-2"),
        ('"the rudder was lost" [logs/note.txt:1-2]', "1-2"),
        ('"lost at dawn" [note.txt:2]', "2"),
        ('"12 tons" [note.txt:4]', "4"),
        ("note.txt L1-L2", "1-2"),
        ('"the rudder was lost at dawn near the outer mole," they say', "1-2"),
    ],
)
def test_what_stands_where_it_is_said_to_is_cited(answer: str, lines: str) -> None:
    found = cited(answer)

    assert (places(found), found.unchecked) == ([("logs/note.txt", lines)], ())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('"the captain was asleep below"', "stands nowhere in the data"),
        ('"the rudder was  lost at dusk"', "stands nowhere in the data"),
        ('"The Rudder Was Lost At Dawn"', "stands nowhere in the data"),
        ('"asleep" [note.txt:2]', "stands nowhere in the data"),
        ('"lost at dawn" [note.txt:1]', "does not stand there, but on line 2"),
        ('"lost at dawn" [harbour.log:1]', "does not stand there, but in logs/note.txt"),
        ('"20 tons" [note.txt:4]', "stands nowhere in the data"),
        ("[note.txt:5]", "logs/note.txt has 4 lines"),
        ("[note.txt:0]", "logs/note.txt has 4 lines"),
        ("[note.txt:3-2]", "logs/note.txt has 4 lines"),
        ("[note.txt:4-999999999]", "logs/note.txt has 4 lines"),
        ("[note.txt:3]", "nothing stands there"),
        ("[notes.txt:3]", "notes.txt is no document of this run"),
        ('"lost at dawn" (gone.md, line 3)', "gone.md is no document of this run"),
    ],
)
def test_what_does_not_is_marked_with_the_reason(answer: str, reason: str) -> None:
    assert why(answer) == reason
    assert cited(answer).citations == ()


def test_a_name_of_two_documents_says_so() -> None:
    assert why("[x.csv:1]", {"a/x.csv": "1", "b/x.csv": "2"}) == (
        "x.csv is the name of several documents"
    )


def test_a_number_is_not_found_inside_another() -> None:
    corpus = {"a.txt": "sold 120 tons\nsold 12.5 tons\n"}

    assert why('"sold 12" [a.txt:1-2]', corpus) == "stands nowhere in the data"
    assert cited('"sold 12.5" [a.txt:1-2]', corpus).unchecked == ()


def test_what_the_data_itself_says_in_the_form_of_a_place_is_no_claim() -> None:
    assert cited("It failed (main.c:77).").unchecked == ()
    assert why("It failed (main.c:78).") == "main.c is no document of this run"


def test_the_claim_is_shown_as_the_answer_has_it() -> None:
    (unchecked,) = cited('So "he fell asleep at once" [note.txt:2], they say.').unchecked

    assert unchecked == Unchecked(
        claim='"he fell asleep at once" [note.txt:2]', why="stands nowhere in the data"
    )


@pytest.mark.parametrize(
    "answer", ["42", "3.50", "yes", "[1, 2]", "{}", "null", '{"tons": 132}', "it left", "", "\n"]
)
def test_a_computed_answer_is_neither_cited_nor_marked(answer: str) -> None:
    assert cited(answer) == Cited()


def test_the_rest_of_an_answer_is_cited_as_before() -> None:
    found = cited('V-2764, for "the rudder was lost at dawn" (note.txt, line 1)')

    assert places(found) == [("logs/note.txt", "1-2"), ("harbour.log", "1")]


def test_without_documents_there_is_nothing_to_claim() -> None:
    assert check_answer('"a b c d e" [x.csv:1]', question="", documents=Documents({})) == Cited()


def test_what_a_program_printed_last_claims_nothing() -> None:
    said = '"this was printed by a program" V-2764 was towed'

    found = check_answer(said, question="?", documents=held(TEXTS), claimed=False)

    assert (places(found), found.unchecked) == ([("harbour.log", "1")], ())


def test_the_quotes_of_json_are_its_own_and_its_strings_are_read() -> None:
    value = {"vessel": "V-2764", "why": "no such words stand anywhere", "at": ["[note.txt:2]"]}

    found = cited(json.dumps(value, separators=(",", ":")))

    assert found.unchecked == ()
    assert places(found) == [("logs/note.txt", "2"), ("harbour.log", "1")]


def test_a_typed_string_is_not_a_quotation_of_itself() -> None:
    said, documents = '"these words stand nowhere at all"', held(TEXTS)

    assert check_answer(said, question="", documents=documents, typed=True) == Cited()
    assert check_answer(said, question="", documents=documents).unchecked


def test_claims_beyond_a_number_are_marked_together() -> None:
    answer = " ".join(f"[note.txt:{line}]" for line in range(1, 41))

    found = cited(answer)

    assert (len(found.citations), len(found.unchecked)) == (3, 30)
    assert found.unchecked[-1] == Unchecked(claim="8 more claims", why="only 32 are looked at")


def test_where_looking_takes_too_long_a_claim_says_so() -> None:
    documents = Documents({"a.txt": HostText(NOTE.encode())}, looked_bytes_max=10)

    found = check_answer('"lost at dawn near the mole"', question="", documents=documents)

    assert found.unchecked[0].why == "was not looked for: there is too much data"


def test_bytes_that_are_no_text_are_cited_as_they_are_read() -> None:
    whole = b"\xff\xfe the rudder was lost \xe2\x82 at dawn\nV-2764 \xed\xa0\x80 left\n"
    documents = Documents({"a.txt": HostText(whole)})

    found = check_answer(
        '"the rudder was lost" [a.txt:1]; V-2764', question="", documents=documents
    )

    assert [each.quote for each in found.citations] == [
        "the rudder was lost",
        whole.split(b"\n")[1].decode("utf-8", "replace"),
    ]
    assert all(is_correct(each, documents) for each in found.citations)


@pytest.mark.parametrize(
    "whole", [b"a " * 5_000, b"a\n" * 5_000, b"a" + b" " * 400_000, b"\n" * 400_000]
)
def test_a_hostile_document_takes_no_time(whole: bytes) -> None:
    documents = Documents({"a.txt": HostText(whole)})
    quote = " ".join(["a"] * 60)

    check_answer(f'"{quote} b" and [a.txt:19000-20000] Aa', question="", documents=documents)


def test_the_same_words_over_and_over_take_no_more_than_was_allowed() -> None:
    documents = Documents({"a.txt": HostText(b"a\tb\n" * 20_000)}, looked_bytes_max=20_000_000)
    quote = " ".join(["a b"] * 30)

    found = check_answer(f'"{quote}"', question="", documents=documents)

    assert found.unchecked[0].why == "was not looked for: there is too much data"
