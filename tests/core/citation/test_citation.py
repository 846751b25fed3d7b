"""Citations as laws: whatever is cited stands where it is said to, and could not by chance."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.citation.correct import is_correct

from tallystick.core.citation.cited import Citation, citation_of, citations_of
from tallystick.core.citation.claims import Documents
from tallystick.sandbox.text import HostText

# Half of what the profile says, so that the folder takes seconds.
EXAMPLES = settings().max_examples // 2
QUESTION = "which vessel was towed in, and who owns it?"
LOG = "2031-05-06 | V-2764 was towed in.\n2031-05-07 | V-1000 left.\n2031-05-08 | V-2764 left.\n"
REGISTER = "vessel,owner\nV-1000,Dorn Shipping\nV-2764,Coastwise Freight\nV-2767,Dorn Shipping\n"
TEXTS = {"harbour.log": LOG, "vessels.csv": REGISTER}

# Every kind of character there is: several bytes long, line ends of other sorts, halves of pairs.
texts = st.text(
    st.one_of(
        st.sampled_from("AbÄ1\n\r \u2028\u00a0\U0001f600\ud800,."),
        st.characters(),
    ),
    max_size=120,
)
corpora = st.dictionaries(st.sampled_from(["a.txt", "b.txt"]), texts, max_size=2)


def documents(corpus: dict[str, str]) -> Documents:
    return Documents({name: HostText(raw(text)) for name, text in corpus.items()})


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def cited(answer: str, *, question: str = QUESTION) -> list[tuple[str, int]]:
    found = citations_of(answer, question=question, documents=documents(TEXTS))
    return [(each.name, each.line) for each in found]


def assert_sound(found: tuple[Citation, ...], corpus: dict[str, str]) -> None:
    """Every citation is a line of its text: number, bytes and words agree."""
    assert len(found) <= 3
    assert len({(each.name, each.start) for each in found}) == len(found)
    for each in found:
        whole = raw(corpus[each.name])
        assert whole[each.start : each.end].decode("utf-8", "replace") == each.quote
        assert whole[: each.start].count(b"\n") + 1 == each.line
        assert each.line_end is None
        assert is_correct(each, documents(corpus))
        assert whole[each.start : each.end] in whole.split(b"\n")[each.line - 1]
        assert each.quote


@settings(max_examples=EXAMPLES)
@given(corpus=corpora, answer=texts, question=texts)
def test_the_cited_bytes_of_any_text_are_the_quote(
    corpus: dict[str, str], answer: str, question: str
) -> None:
    assert_sound(citations_of(answer, question=question, documents=documents(corpus)), corpus)


@settings(max_examples=EXAMPLES)
@given(corpus=corpora.filter(lambda corpus: any(corpus.values())), data=st.data())
def test_the_cited_bytes_are_the_quote_for_answers_taken_from_the_text(
    corpus: dict[str, str], data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from([each for each in corpus.values() if each]))
    start = data.draw(st.integers(0, len(text) - 1))
    answer = text[start : data.draw(st.integers(start + 1, len(text)))]

    assert_sound(citations_of(answer, question="", documents=documents(corpus)), corpus)


@settings(max_examples=EXAMPLES)
@given(before=texts, after=texts)
def test_a_telling_line_is_cited_wherever_it_stands(before: str, after: str) -> None:
    line = "Quist and Daughters of Østerbro 4711"
    corpus = {"a.txt": f"{before}\n{line}\n{after}"}

    (found,) = citations_of(line, question="who?", documents=documents(corpus))

    assert found.quote == line
    assert found.line == before.count("\n") + 2
    assert_sound((found,), corpus)


def test_a_claim_on_one_line_is_cited_with_its_place() -> None:
    (found,) = citations_of("Coastwise Freight", question=QUESTION, documents=documents(TEXTS))

    assert (found.name, found.line) == ("vessels.csv", 3)
    assert found.quote == "V-2764,Coastwise Freight"
    assert REGISTER[found.start : found.end] == found.quote


def test_the_line_that_has_two_of_the_claims_wins_over_those_that_have_one() -> None:
    assert cited("V-2764") == [("harbour.log", 1)]  # It has the question's words too.
    assert cited("Vessel: V-2764, Owner: Coastwise Freight") == [("vessels.csv", 3)]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("42", "it is a number of few digits"),
        ("2764", "it is a number of few digits, even if it stands there"),
        ("9164.25", "it was computed and stands nowhere"),
        ("towed in", "it has neither a capital nor a digit"),
        ("left.", "it has neither a capital nor a digit"),
        ("It", "it is too short"),
        ("No Such Vessel", "it does not stand in the data"),
        ("", "there is nothing in it"),
        (" .,;:!?'\"()[]{}`*\n", "there is nothing in it but marks"),
    ],
)
def test_what_could_stand_there_by_chance_is_not_cited(answer: str, why: str) -> None:
    assert cited(answer) == [], why


@settings(max_examples=EXAMPLES)
@given(number=st.integers(0, 9_999))
def test_a_number_of_less_than_five_digits_is_never_cited(number: int) -> None:
    corpus = {"a.csv": f"id,tons\nx,{number}\n"}

    assert citations_of(str(number), question="how many?", documents=documents(corpus)) == ()


def test_a_number_of_five_digits_is_cited_where_it_stands() -> None:
    corpus = {"a.csv": "id,tons\nx,12345\ny,54321\n"}

    (found,) = citations_of("54321", question="how many?", documents=documents(corpus))

    assert found.quote == "y,54321"


def test_what_the_question_says_itself_is_not_cited_in_any_case_of_letters() -> None:
    question = "who owns V-2764, and is it coastwise freight?"

    assert cited("V-2764", question=question) == []
    assert cited("Coastwise Freight", question=question) == []


def test_a_claim_that_stands_on_many_lines_alone_points_nowhere() -> None:
    lines = "".join(f"{place},Dorn Shipping\n" for place in range(4))

    assert (
        citations_of("Dorn Shipping", question="who?", documents=documents({"a.csv": lines})) == ()
    )
    assert len(citations_of("Dorn Shipping", question="who?", documents=documents(TEXTS))) == 2


def test_a_claim_on_many_lines_still_counts_beside_another() -> None:
    lines = "".join(f"V-{place},Dorn Shipping\n" for place in range(100, 140))

    corpus = documents({"a.csv": lines})
    (found,) = citations_of("V-117 of Dorn Shipping", question="who?", documents=corpus)

    assert found.quote == "V-117,Dorn Shipping"


def test_of_lines_with_as_much_of_the_answer_the_one_that_speaks_of_the_question_is_cited() -> None:
    lines = "Marble Wren left\nMarble Wren was towed in, damaged\nMarble Wren took on fuel\n"
    question = "which vessel was towed in with a damaged propeller?"

    (found,) = citations_of("Marble Wren", question=question, documents=documents({"a.txt": lines}))

    assert found.line == 2


@settings(max_examples=EXAMPLES)
@given(count=st.integers(1, 8))
def test_at_most_three_lines_are_cited(count: int) -> None:
    corpus = {"a.txt": "Quist and Daughters\n" * count}

    found = citations_of("Quist and Daughters", question="who?", documents=documents(corpus))

    assert len(found) == (count if count <= 3 else 0)


def test_a_long_line_is_quoted_in_part() -> None:
    corpus = {"a.txt": "V-2764 was towed in. " + "é" * 1_000}

    (found,) = citations_of("V-2764", question="which?", documents=documents(corpus))

    assert len(found.quote) == 300
    assert_sound((found,), corpus)


def test_the_quote_of_a_long_line_has_the_words_it_is_quoted_for() -> None:
    corpus = {"a.txt": "é" * 1_000 + " V-2764 was towed in. " + "é" * 1_000}

    (found,) = citations_of("V-2764", question="which?", documents=documents(corpus))

    assert "V-2764" in found.quote
    assert_sound((found,), corpus)


@settings(max_examples=EXAMPLES)
@given(start=st.integers(-1, 80), end=st.integers(-1, 80), line=st.integers(1, 4))
def test_a_citation_that_is_off_by_any_byte_or_line_does_not_check(
    start: int, end: int, line: int
) -> None:
    whole = REGISTER.encode()
    quote = whole[max(0, start) : max(0, end)].decode()
    made = Citation(name="vessels.csv", line=line, start=start, end=end, quote=quote)
    right = 0 <= start <= end <= len(whole) and "\n" not in quote
    right = right and REGISTER.count("\n", 0, start) + 1 == line

    assert is_correct(made, documents(TEXTS)) == right


@settings(max_examples=EXAMPLES)
@given(text=texts, data=st.data())
def test_any_bytes_of_any_document_are_cited_with_their_lines(
    text: str, data: st.DataObject
) -> None:
    whole = raw(text)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))

    made = citation_of(documents({"a.txt": text}), "a.txt", start, end)

    assert made.quote == whole[start:end].decode("utf-8", "replace")
    assert made.line == whole.count(b"\n", 0, start) + 1
    assert (made.line_end or made.line) == whole.count(b"\n", 0, end) + 1
    assert is_correct(made, documents({"a.txt": text}))


def test_a_citation_of_one_line_is_written_as_before_and_read_as_before() -> None:
    made = Citation(name="a", line=2, start=0, end=1, quote="x")

    assert msgspec.json.encode(made) == b'{"name":"a","line":2,"start":0,"end":1,"quote":"x"}'
    assert msgspec.json.decode(msgspec.json.encode(made), type=Citation) == made
    assert (made.lines, msgspec.structs.replace(made, line_end=4).lines) == ("2", "2-4")


@pytest.mark.parametrize("place", [0, 9_000, 25_000, 49_000])
def test_a_line_without_end_is_quoted_in_part_wherever_the_words_stand(place: int) -> None:
    text = "\u20ac" * place + " V-2764 was towed in. " + "\u20ac" * (50_000 - place)

    (found,) = citations_of("V-2764", question="which?", documents=documents({"a.txt": text}))

    assert "V-2764" in found.quote
    assert "\ufffd" not in found.quote
    assert_sound((found,), {"a.txt": text})


def test_where_looking_takes_too_long_nothing_is_cited() -> None:
    held = {"a.txt": HostText(LOG.encode())}

    enough, little = (Documents(held, looked_bytes_max=count) for count in (100_000, 10))

    assert citations_of("V-2764", question="?", documents=enough)
    assert citations_of("V-2764", question="?", documents=little) == ()
