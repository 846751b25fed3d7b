"""Search: the right skill comes first, however a model puts it."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.skills.library import library
from tests.skills.sets import plain, sets

from tallystick.skills.format.manifest import Card
from tallystick.skills.match import search, stem

LIBRARY = library()

QUERIES = {
    "fill in a PDF form": "pdf-forms",
    "filling pdf fields": "pdf-forms",
    "extracting a table from a pdf": "pdf-tables",
    "get tables out of pdf documents": "pdf-tables",
    "clean csv": "csv-cleaning",
    "the CSV file has duplicated rows and messy dates": "csv-cleaning",
    "csvCleaning": "csv-cleaning",
    "csv_cleaning": "csv-cleaning",
    "check an invoice from a supplier": "invoice-check",
    "does this vendor's bill agree with the purchase order?": "invoice-check",
    "receipts": "expense-report",
    "report my expenses by category": "expense-report",
    "query is slow": "sql-tuning",
    "SQL index": "sql-tuning",
    "migrate a database table": "schema-migration",
    "changelog": "release-notes",
    "release notes from pull requests": "release-notes",
    "review my code": "code-review",
    "commit message": "commit-messages",
    "post-mortem of an outage": "incident-report",
    "production went down": "incident-report",
    "summarise the meeting": "meeting-minutes",
    "action items from a transcript": "meeting-minutes",
    "reply to a customer's email": "email-reply",
    "announce a product launch to the press": "press-release",
    "logo and fonts": "brand-guidelines",
    "make a powerpoint": "slide-deck",
    "presentation slides": "slide-deck",
    "excel formulas": "spreadsheet-model",
    "edit a Word document with tracked changes": "word-document",
    "resizing images": "image-resize",
    "convert png to jpeg": "image-resize",
    "read text in a scanned page": "ocr-scans",
    "transcribing a recording of speech": "audio-transcript",
    "subtitle": "video-subtitles",
    "translate with approved terms": "translation-memory",
    "rewriting without jargon": "tone-of-voice",
    "is the feedback angry or happy": "sentiment-labels",
    "confidence interval": "survey-statistics",
    "forecasting sales": "time-series",
    "draw a chart": "chart-style",
    "distance between two addresses": "geocoding",
    "miles to kilometres": "unit-conversion",
    "exchange rates": "currency-rates",
    "VAT": "tax-rules",
    "risky clause in contracts": "contract-clauses",
    "redact personal data": "privacy-redaction",
    "anonymize phone numbers, personal names": "privacy-redaction",
    "rotate secrets": "password-policy",
    "deploying to kubernetes": "kubernetes-deploy",
    "errors in the server logs": "log-analysis",
    "http api authentication": "api-client",
    "pytest": "unit-tests",
    "regular expression": "regex-help",
    "regexes": "regex-help",
    "scheduling a tournament": "schedule-tournaments",
    "how do I merge two itineraries?": "merge-itineraries",
    "exported vehicle": "export-vehicles",
    "Compare   LEASES!!": "compare-leases",
    "kubern": "kubernetes-deploy",
}


@pytest.mark.parametrize(("query", "id"), QUERIES.items())
def test_the_skill_that_is_meant_comes_first_of_three_hundred(query: str, id: str) -> None:
    assert len(LIBRARY) == 300

    found = search(LIBRARY, query)

    assert found[0].id == id


@pytest.mark.parametrize("card", LIBRARY[::25], ids=lambda card: card.id)
def test_a_skill_is_found_by_its_id_whatever_the_case(card: Card) -> None:
    assert search(LIBRARY, card.id, k=1)[0].id == card.id
    assert search(LIBRARY, f"  {card.id.upper()} ", k=1)[0].id == card.id
    assert search(LIBRARY, card.id.replace("-", " "), k=1)[0].id == card.id


@pytest.mark.parametrize(
    "query", ["", "  ", "?!", "all", "list all skills", "what skills are there?"]
)
def test_a_query_that_asks_for_nothing_lists_everything_by_id(query: str) -> None:
    found = search(LIBRARY, query, k=1_000)

    assert [each.id for each in found] == sorted(card.id for card in LIBRARY)


def test_nothing_is_found_by_words_that_no_skill_has() -> None:
    assert search(LIBRARY, "xylophone quokka") == ()


def test_a_word_that_no_skill_has_does_no_harm() -> None:
    with_it = search(LIBRARY, "subtitles zzgrbl")

    assert [each.id for each in with_it] == [each.id for each in search(LIBRARY, "subtitles")]
    assert with_it[0].reason == "1 of 2 words: subtitles"


def test_at_most_k_are_found() -> None:
    assert len(search(LIBRARY, "company report")) == 10
    assert len(search(LIBRARY, "company report", k=3)) == 3
    assert search(LIBRARY, "company report", k=0) == search(LIBRARY, "", k=-1) == ()
    assert search([], "pdf") == search([], "") == ()


def test_skills_that_models_may_not_load_are_not_found() -> None:
    cards = plain("auto", "manual", disabled=["manual"])

    assert [each.id for each in search(cards, "")] == ["auto"]
    assert search(cards, "manual") == ()


def test_ties_are_in_the_order_of_ids() -> None:
    twins = [
        Card(id=id, name="same", source="user", description="the same") for id in ("b", "c", "a")
    ]

    assert [each.id for each in search(twins, "same thing")] == ["a", "b", "c"]


def test_a_name_in_one_namespace_does_not_hide_its_namesake() -> None:
    cards = plain("one/pdf", "two/pdf")

    assert {each.id for each in search(cards, "pdf")} == {"one/pdf", "two/pdf"}
    assert search(cards, "two/pdf", k=1)[0].id == "two/pdf"


def test_a_skill_that_names_every_word_does_not_win_by_it() -> None:
    greedy = Card(
        id="everything",
        name="everything",
        source="user",
        description=" ".join(f"{card.description} {card.name}" for card in LIBRARY),
    )

    for query, id in list(QUERIES.items())[::6]:
        assert search([*LIBRARY, greedy], query)[0].id == id


def test_words_are_found_in_texts_without_spaces() -> None:
    cards = [*LIBRARY, Card(id="zh", name="zh", source="user", description="清理发票和表格数据")]

    assert search(cards, "发票")[0].id == "zh"


@given(sets(), st.text(max_size=40))
def test_any_query_is_answered_the_same_way_whatever_the_order_of_the_cards(
    cards: list[Card], query: str
) -> None:
    found = search(cards, query, k=5)

    assert search(cards[::-1], query, k=5) == found
    assert len({each.id for each in found}) == len(found) <= 5
    assert list(found) == sorted(found, key=lambda each: (-each.score, each.id))


def test_a_long_query_and_long_texts_are_done_with_in_a_moment() -> None:
    heavy = [msgspec.structs.replace(card, description="word " * 20_000) for card in LIBRARY[:50]]
    began = time.perf_counter()

    search([*heavy, *LIBRARY], "word " * 100_000 + " ".join(map(str, range(9_999))))

    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    "family",
    [
        "invoice invoices invoicing invoiced",
        "plan plans planning planned planner",
        "query queries querying queried",
        "translate translates translating translation translations translator",
        "organize organise organizing organisation organization",
        "analyze analyse analyzing analysis",
        "convert converts converting conversion converter",
        "box boxes",
        "class classes",
        "process processes processing processor",
        "deploy deploys deploying deployment deployed",
        "document documents documentation documenting",
    ],
)
def test_words_of_one_family_have_one_stem(family: str) -> None:
    assert len({stem(word) for word in family.split()}) == 1


@pytest.mark.parametrize(
    "word", ["pdf", "csv", "string", "status", "speed", "sql", "字幕", "a", "s"]
)
def test_words_without_an_ending_stay_as_they_are(word: str) -> None:
    assert stem(word) == word
