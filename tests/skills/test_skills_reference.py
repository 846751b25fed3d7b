"""The reference mode against a second implementation, and where it is known to be odd."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.skills.oracle import HEADER, expected
from tests.skills.sets import plain, sets

from tallystick.core.json_text import canonical
from tallystick.skills.format.manifest import Card
from tallystick.skills.match import Match
from tallystick.skills.reference import (
    REFERENCE_HEADER,
    ReferenceCatalog,
    reference_catalog,
)

BUDGETS = st.one_of(
    st.integers(0, 400), st.sampled_from([202, 203, 204, 205, 2_000]), st.integers(0, 20_000)
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[list[Card], dict[str, Any]]:
    cards = draw(sets())
    if draw(st.booleans()) and cards:
        cards[0] = msgspec.structs.replace(cards[0], name="")
    ids = st.sampled_from([*(card.id for card in cards), "unknown"])
    some = st.lists(ids, max_size=5)
    return cards, {
        "budget": draw(BUDGETS),
        "catalog": draw(st.one_of(st.none(), some)),
        "limit": draw(st.one_of(st.none(), st.integers(0, 12))),
        "loaded": draw(some),
        "used": draw(some),
    }


def built(catalog: ReferenceCatalog) -> Any:
    """As plain values; tuples are lists, as in JSON."""
    return msgspec.json.decode(canonical(catalog))


@given(asked())
def test_any_set_is_fitted_as_a_second_implementation_fits_it(
    case: tuple[list[Card], dict[str, Any]],
) -> None:
    cards, options = case

    catalog = reference_catalog(cards, **options)

    assert built(catalog) == expected(cards, **options)


@given(st.integers(0, 130), st.integers(190, 800))
def test_any_number_of_small_cards_is_fitted_as_a_second_implementation_fits_it(
    count: int, budget: int
) -> None:
    cards = plain(*(f"s{n}" for n in range(count)))

    assert built(reference_catalog(cards, budget=budget)) == expected(cards, budget=budget)


@given(asked())
def test_evidence_survives_json(case: tuple[list[Card], dict[str, Any]]) -> None:
    catalog = reference_catalog(case[0], **case[1])

    assert msgspec.json.decode(canonical(catalog), type=ReferenceCatalog) == catalog


def test_the_two_implementations_have_one_header() -> None:
    assert REFERENCE_HEADER.encode() == HEADER


def test_no_entries_print_none_but_count_the_header_alone() -> None:
    catalog = reference_catalog([])

    assert catalog.rendered == f"{REFERENCE_HEADER}(none)"
    assert catalog.evidence.used_chars == 151


def test_a_disabled_skill_that_is_named_for_the_catalog_takes_room_though_it_is_omitted() -> None:
    cards = plain("auto", "manual", disabled=["manual"])

    catalog = reference_catalog(cards, catalog=["auto", "manual"])

    assert catalog.evidence.shown == ("auto",)
    assert "`manual`" in catalog.rendered
    assert catalog.evidence.used_chars == len(catalog.rendered)


def test_a_short_text_stands_in_for_the_description() -> None:
    card = Card(id="pdf", name="pdf", source="user", description="long", short="brief")

    assert reference_catalog([card]).rendered == f"{REFERENCE_HEADER}- `pdf`: brief"


def test_a_card_without_texts_is_its_name() -> None:
    card = Card(id="pdf", name="pdf", source="user")

    assert reference_catalog([card]).rendered == f"{REFERENCE_HEADER}- `pdf`"


def test_cards_are_fitted_by_id_and_told_of_in_the_order_they_were_given() -> None:
    catalog = reference_catalog(plain("gamma", "alpha", "beta"), budget=260)

    assert catalog.evidence.shown == ("alpha",)
    assert catalog.evidence.omitted == ("gamma", "beta")
    assert [each.id for each in catalog.evidence.cards] == ["gamma", "alpha", "beta"]


def test_a_namespace_counts_in_the_order_but_is_not_printed() -> None:
    catalog = reference_catalog(plain("zoo/ant", "ape/yak"), budget=10_000)

    assert catalog.rendered.index("- `yak`") < catalog.rendered.index("- `ant`")
    assert catalog.evidence.shown == ("zoo/ant", "ape/yak")


def test_lengths_are_bytes() -> None:
    card = Card(id="a", name="a", source="user", description="é" * 10)

    catalog = reference_catalog([card])

    assert catalog.evidence.cards[0].char_estimate == len("- `a`: ") + 20


def test_what_was_matched_is_told() -> None:
    match = Match(id="alpha", score=2.5, reason="name")

    catalog = reference_catalog(plain("alpha", "beta"), matched={"alpha": match})
    rows = built(catalog)["evidence"]["cards"]

    assert [row["matched"] for row in rows] == [{"score": 2.5, "reason": "name"}, None]
