"""The reference behaviour of skill catalogs, value for value: texts, fit, evidence."""

from __future__ import annotations

import math

import msgspec
import pytest

from tallystick.skills.catalog import ListedCard
from tallystick.skills.format.manifest import Card
from tallystick.skills.reference import (
    REFERENCE_HEADER,
    ReferenceCatalog,
    reference_catalog,
    reference_suffix,
)

TOP = {
    "schema_version", "budget_chars", "used_chars", "budget_tokens", "used_tokens", "shown",
    "omitted", "cards",
}  # fmt: skip
ROW = {
    "id", "name", "source", "description", "when_to_use", "disable_model_invocation", "selected",
    "omitted_reason", "char_estimate", "token_estimate", "lifecycle", "matched",
}  # fmt: skip


def card(id: str, *, disabled: bool = False) -> Card:
    return Card(
        id=id,
        name=id,
        source="project",
        description=f"does {id}",
        when_to_use=f"when {id}",
        disable_model_invocation=disabled,
    )


GREEK = [card("alpha"), card("beta"), card("gamma")]


def small(count: int) -> list[Card]:
    return [Card(id=f"s{n:03}", name=f"s{n:03}", source="project") for n in range(count)]


def row(catalog: ReferenceCatalog, id: str) -> ListedCard:
    return next(each for each in catalog.evidence.cards if each.id == id)


def test_the_header_is_the_one_of_the_reference() -> None:
    lines = REFERENCE_HEADER.split("\n")

    assert len(REFERENCE_HEADER.encode()) == 151
    assert lines[0] == "## Available skills"
    assert lines[1] == lines[3] == lines[4] == ""
    assert lines[2] == (
        'These skills are available. Call `load_skill({ name: "<skill-id>" })` to load the full '
        "body of a skill when it becomes relevant."
    )


@pytest.mark.parametrize(("omitted", "size"), [(1, 52), (9, 52), (10, 53), (99, 53), (100, 54)])
def test_the_suffix_counts_what_was_left_out(omitted: int, size: int) -> None:
    suffix = reference_suffix(omitted)

    assert len(suffix.encode()) == size
    assert suffix == f"\n\n... {omitted} more skill(s) omitted to stay within budget."


@pytest.mark.parametrize(("id", "size"), [("alpha", 40), ("beta", 37), ("gamma", 40)])
def test_a_card_is_a_line_with_its_text_and_a_line_with_its_occasion(id: str, size: int) -> None:
    catalog = reference_catalog([card(id)], budget=10_000)

    assert catalog.rendered == f"{REFERENCE_HEADER}- `{id}`: does {id}\n  when: when {id}"
    assert row(catalog, id).char_estimate == size


@pytest.mark.parametrize(
    ("budget", "shown", "size", "omitted"),
    [
        (0, 0, 203, 3),
        (203, 0, 203, 3),
        (242, 0, 203, 3),
        (243, 1, 243, 2),
        (269, 1, 243, 2),
        (270, 3, 270, 0),
        (10_000, 3, 270, 0),
    ],
)
def test_three_cards_are_fitted_as_in_the_reference(
    budget: int, shown: int, size: int, omitted: int
) -> None:
    catalog = reference_catalog(GREEK, budget=budget)

    assert catalog.evidence.shown == ("alpha", "beta", "gamma")[:shown]
    assert catalog.evidence.used_chars == len(catalog.rendered.encode()) == size
    assert catalog.rendered.endswith(reference_suffix(omitted)) is (omitted > 0)
    assert catalog.evidence.budget_chars == budget


@pytest.mark.parametrize(
    ("count", "budget", "size", "said"),
    [
        (9, 0, 203, True),
        (9, 203, 203, True),
        (10, 0, 151, False),
        (10, 203, 151, False),
        (10, 204, 204, True),
        (100, 204, 151, False),
    ],
)
def test_many_small_cards_are_fitted_as_in_the_reference(
    count: int, budget: int, size: int, said: bool
) -> None:
    catalog = reference_catalog(small(count), budget=budget)

    assert catalog.evidence.shown == ()
    assert catalog.rendered == REFERENCE_HEADER + (reference_suffix(count) if said else "")
    assert catalog.evidence.used_chars == len(catalog.rendered.encode()) == size


def test_one_long_card_hides_all_after_it() -> None:
    long = Card(id="a", name="a", source="project", description="x" * 3_000)
    catalog = reference_catalog([long, *small(2)], budget=2_000)

    assert row(catalog, "a").char_estimate == 3_007
    assert catalog.evidence.shown == ()
    assert catalog.rendered == REFERENCE_HEADER + reference_suffix(3)
    assert catalog.evidence.used_chars == 203


def test_vector_7_the_budget_leaves_cards_out() -> None:
    catalog = reference_catalog(GREEK, budget=260)
    alpha, beta = row(catalog, "alpha"), row(catalog, "beta")

    assert catalog.evidence.shown == ("alpha",)
    assert catalog.evidence.omitted == ("beta", "gamma")
    assert (alpha.selected, alpha.lifecycle, alpha.omitted_reason) == (True, "shown", None)
    assert (beta.selected, beta.lifecycle, beta.omitted_reason) == (False, "omitted", "budget")


def test_vector_8_a_disabled_skill_is_omitted_with_the_reason() -> None:
    catalog = reference_catalog([card("manual", disabled=True), card("auto")], budget=10_000)
    manual = row(catalog, "manual")

    assert (manual.selected, manual.omitted_reason) == (False, "disable_model_invocation")
    assert manual.disable_model_invocation
    assert row(catalog, "auto").selected


def test_vector_9_a_skill_beyond_the_limit_is_omitted_with_the_reason() -> None:
    both = [card("kept"), card("trimmed")]
    by_name = reference_catalog(both, budget=10_000, catalog=["kept"])
    by_number = reference_catalog(both, budget=10_000, limit=1)
    trimmed = row(by_name, "trimmed")

    assert (trimmed.selected, trimmed.omitted_reason) == (False, "catalog_limit")
    assert not trimmed.disable_model_invocation
    assert by_number == by_name


def test_vector_10_what_was_loaded_or_used_says_so() -> None:
    catalog = reference_catalog(GREEK[:2], budget=10_000, loaded=["alpha"], used=["beta"])

    assert [each.lifecycle for each in catalog.evidence.cards] == ["loaded", "used"]


def test_vector_11_sizes_are_estimated() -> None:
    catalog = reference_catalog(GREEK[:1], budget=10_000)
    alpha = row(catalog, "alpha")

    assert alpha.char_estimate > 0
    assert alpha.token_estimate == math.ceil(alpha.char_estimate / 4)
    assert catalog.evidence.used_chars >= 151
    assert catalog.evidence.budget_tokens == 2_500


def test_vector_12_only_a_disabled_skill_leaves_the_header_alone() -> None:
    catalog = reference_catalog([card("manual", disabled=True)], budget=2_000)

    assert catalog.evidence.used_chars == 151
    assert catalog.evidence.shown == ()
    assert catalog.rendered == f"{REFERENCE_HEADER}(none)"


def test_the_payload_has_the_fields_of_the_reference_and_no_others() -> None:
    payload = msgspec.to_builtins(reference_catalog(GREEK).evidence)

    assert set(payload) == TOP
    assert payload["schema_version"] == 1
    assert payload["budget_chars"] == 2_000
    assert all(set(each) == ROW for each in payload["cards"])
