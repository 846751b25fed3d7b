"""What an answer claims, and what only looks like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.citation.claims import Names, claims_in, without_claims

NAMES = Names(["logs/harbour.log", "vessels.csv", "old/vessels.csv", "my notes.txt", "context"])
QUESTION = 'which vessel "was towed in with a damaged propeller", and when?'


def claims(answer: str) -> list[tuple[str | None, str | None]]:
    """Each claim as its words and its place."""
    found = claims_in(answer, question=QUESTION, names=NAMES)
    return [
        (each.words, None if (p := each.place) is None else f"{p.name}:{p.first}-{p.last}")
        for each in found
    ]


@pytest.mark.parametrize(
    "answer",
    [
        'The log says "lost its rudder at dawn".',
        "The log says \u201clost its rudder at dawn\u201d.",
        "The log says \u201elost its rudder at dawn\u201c.",
        "The log says \u00ablost its rudder at dawn\u00bb.",
        "The log says `lost its rudder at dawn`.",
        '"lost its rudder at dawn"',
        'So the "5" is wrong ("lost its rudder at dawn"), by 3" or so.',
    ],
)
def test_a_quotation_of_four_words_is_a_claim(answer: str) -> None:
    assert claims(answer) == [("lost its rudder at dawn", None)]


@pytest.mark.parametrize(
    ("answer", "place"),
    [
        ("[vessels.csv:12]", "vessels.csv:12-12"),
        ("see [vessels.csv:12-14].", "vessels.csv:12-14"),
        ("[vessels.csv:12\u201314]", "vessels.csv:12-14"),
        ("(vessels.csv, line 12)", "vessels.csv:12-12"),
        ("(see vessels.csv, lines 12-14)", "vessels.csv:12-14"),
        ("(vessels.csv:12)", "vessels.csv:12-12"),
        ("vessels.csv L12-L14", "vessels.csv:12-14"),
        ("vessels.csv#L12-L14", "vessels.csv:12-14"),
        ("vessels.csv:L12", "vessels.csv:12-12"),
        ("`vessels.csv:12`", "vessels.csv:12-12"),
        ("[`vessels.csv:12`]", "vessels.csv:12-12"),
        ("vessels.csv (line 12)", "vessels.csv:12-12"),
        ("in vessels.csv at line 12", "vessels.csv:12-12"),
        ("It is line 12 of vessels.csv.", "vessels.csv:12-12"),
        ("harbour.log L3", "harbour.log:3-3"),
        ("logs/harbour.log L3", "logs/harbour.log:3-3"),
        ("[my notes.txt:2]", "my notes.txt:2-2"),
        ("(my notes.txt, line 2)", "my notes.txt:2-2"),
        ("[context:7]", "context:7-7"),
        ("[nothing.csv:7]", "nothing.csv:7-7"),
        ("(nothing.csv, line 7)", "nothing.csv:7-7"),
    ],
)
def test_the_places_that_models_write_are_claims(answer: str, place: str) -> None:
    assert claims(answer) == [(None, place)]


@pytest.mark.parametrize(
    "answer",
    [
        'It "left" [vessels.csv:2].',
        'It "left" (vessels.csv, line 2).',
        'It "left", vessels.csv L2.',
        "It `left` (see vessels.csv L2).",
        'In vessels.csv L2: "left"',
        '[vessels.csv:2] says "left".',
    ],
)
def test_a_place_belongs_to_the_quotation_beside_it(answer: str) -> None:
    assert claims(answer) == [("left", "vessels.csv:2-2")]


def test_several_places_belong_to_one_quotation_and_each_to_one() -> None:
    assert claims('"left" [vessels.csv:2], [context:9]') == [
        ("left", "vessels.csv:2-2"),
        ("left", "context:9-9"),
    ]
    assert claims('"left" [vessels.csv:2], "came" [context:9]') == [
        ("left", "vessels.csv:2-2"),
        ("came", "context:9-9"),
    ]
    assert claims("[vessels.csv:2, context:9]") == [
        (None, "vessels.csv:2-2"),
        (None, "context:9-9"),
    ]


def test_what_a_quotation_leaves_out_makes_two_of_it() -> None:
    assert claims('"it lost its rudder [...] and was towed in late"') == [
        ("it lost its rudder", None),
        ("and was towed in late", None),
    ]


# An answer that cites nothing must not be told that it does.
@pytest.mark.parametrize(
    "answer",
    [
        "",
        "42",
        "3.5 %",
        "yes",
        "Marble Wren",
        '"Marble Wren"',
        'The "best" vessel is the `Marble Wren`.',
        'It "was towed in" twice.',
        'The one that "was towed in with a damaged propeller" is V-2764.',
        "the one that \u201cWas towed in with a\ndamaged propeller\u201d",
        "at 12:30, or [12:30], ratio 3:1",
        "[INFO:12] ok",
        "[example.com:443] and (10.0.0.1:80) and http://localhost:8080/a",
        "[1] and [2:3] and rows[3:12]",
        'File "main.py", line 12, in f',
        "vessels.csv: 12, harbour.log: 7",
        "vessels.csv:12",
        "vessels.csv has 12 lines, line 12 is last",
        "level L3, line 12",
        "12 lines of 14",
        "`SELECT name FROM vessels WHERE port = 'Hull'`",
        '```sql\nselect "a b c d e f" from t -- [vessels.csv:12]\n```',
        '```\n"never closed is this quotation"',
        'a 5" pipe is not a 6" pipe and not 7" either',
        "it's the captain's, isn't it, or the pilots'?",
        '"my notes.txt"',
        '" " and "" and "\n\n"',
    ],
)
def test_what_is_no_claim_is_let_alone(answer: str) -> None:
    assert claims(answer) == []


def test_a_name_that_several_documents_share_is_still_a_claim() -> None:
    names = Names(["a/x.csv", "b/x.csv"])

    (claim,) = claims_in("[x.csv:1]", question="", names=names)

    assert claim.place is not None
    assert names.is_known("x.csv")
    assert names.whose("x.csv") is None
    assert names.whose("a/x.csv") == "a/x.csv"


def test_an_answer_without_its_claims_keeps_the_rest_in_place() -> None:
    answer = 'V-2764 "lost its rudder at dawn" [vessels.csv:2] and left'
    found = claims_in(answer, question="", names=NAMES)

    rest = without_claims(answer, found)

    assert len(rest) == len(answer)
    assert rest.split() == ["V-2764", "and", "left"]


@given(answer=st.text(st.sampled_from('"`\u201c\u201d[](): \n.,L12ab-'), max_size=60))
def test_any_text_is_read_and_what_is_claimed_stands_in_it(answer: str) -> None:
    for claim in claims_in(answer, question="", names=Names(["a", "b.csv"])):
        low, high = claim.span
        assert claim.said == answer[low:high] != ""
        assert claim.words is None or claim.words in answer


@pytest.mark.parametrize(
    "answer",
    ["\u201c" * 50_000, '"a ' * 20_000, "`" * 50_001, "[a L1 " * 9_000, "b.csv:1," * 9_000],
)
def test_a_hostile_answer_takes_no_time(answer: str) -> None:
    claims_in(answer, question="", names=NAMES)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("See [vessels.csv:2].", "[vessels.csv:2]"),
        ("See (vessels.csv, line 2).", "(vessels.csv, line 2)"),
        ("See vessels.csv L2.", "vessels.csv L2"),
        ('It "left" [vessels.csv:2].', '"left" [vessels.csv:2]'),
        ("It `left` (see `vessels.csv:2`)", "`left` (see `vessels.csv:2`"),
    ],
)
def test_a_claim_is_shown_with_the_brackets_around_it(answer: str, said: str) -> None:
    (claim,) = claims_in(answer, question="", names=NAMES)

    assert claim.said == said
