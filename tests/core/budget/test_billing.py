"""What an attempt is charged, for everything that can become of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.budget.amount import Amount, Budget
from tallystick.core.budget.billing import (
    UNBILLED,
    AttemptCancelled,
    AttemptFailed,
    AttemptReplied,
    Outcome,
    Settlement,
    UsageDetails,
    settlement,
)
from tallystick.core.budget.tree import BudgetTree
from tallystick.core.charge import Charge, ModelUsage
from tallystick.core.records import ModelFailed
from tallystick.testing.strategies import usages

WORST = Charge(usd=1_000, tokens_in=100, tokens_out=50, model_calls=1)
NOTHING = Charge(usd=0)


def used(tokens_in: int, tokens_out: int, *, reported: bool = True) -> ModelUsage:
    return ModelUsage(tokens_in=tokens_in, tokens_out=tokens_out, reported=reported)


def priced(usage: ModelUsage, details: UsageDetails | None) -> int:
    """Two for input, ten for output, nothing for what was cached."""
    cached = 0 if details is None else details.cache_read
    return 2 * (usage.tokens_in - cached) + 10 * usage.tokens_out


def settled(outcome: Outcome, worst: Charge = WORST) -> Settlement:
    return settlement(worst, outcome, priced=priced)


def failed(
    reason: str = "server_error",
    *,
    billed: bool = True,
    status: int | None = None,
    usage: ModelUsage | None = None,
) -> AttemptFailed:
    event = ModelFailed(
        intent=1, turn=1, reason=reason, message="m", billed=billed, status=status, usage=usage
    )
    return AttemptFailed.of(event)


# -- replies -------------------------------------------------------------------------------------


def test_a_reply_is_charged_as_reported() -> None:
    assert settled(AttemptReplied(usage=used(80, 20))) == Settlement(
        figures="reported", charge=Charge(usd=360, tokens_in=80, tokens_out=20, model_calls=1)
    )


def test_details_reach_the_price() -> None:
    found = settled(AttemptReplied(usage=used(80, 20), details=UsageDetails(cache_read=70)))

    assert found.charge.usd == 220


@pytest.mark.parametrize(
    ("usage", "flag"),
    [
        (None, "usage_missing"),
        (used(80, 20, reported=False), "usage_missing"),
        (used(-1, 20), "usage_negative"),
        (used(80, -1), "usage_negative"),
        (used(0, 0), "usage_zero"),
    ],
)
def test_a_report_that_cannot_be_true_is_charged_as_reserved_and_flagged(
    usage: ModelUsage | None, flag: str
) -> None:
    found = settled(AttemptReplied(usage=usage))

    assert (found.figures, found.charge, found.flags) == ("reserved", WORST, (flag,))


@pytest.mark.parametrize("usage", [used(80, 0), used(0, 20)])
def test_one_zero_is_a_report(usage: ModelUsage) -> None:
    assert settled(AttemptReplied(usage=usage)).figures == "reported"


@pytest.mark.parametrize(
    "details",
    [
        UsageDetails(cache_read=-1),
        UsageDetails(cache_read=50, cache_written=31),
        UsageDetails(reasoning=21),
    ],
)
def test_details_that_are_more_than_their_total_are_no_report(details: UsageDetails) -> None:
    found = settled(AttemptReplied(usage=used(80, 20), details=details))

    assert (found.charge, found.flags) == (WORST, ("usage_impossible",))


@pytest.mark.parametrize(
    "usage", [used(101, 1), used(1, 51), used(101, 51), used(50, 100), used(10**12, 10**12)]
)
def test_a_report_above_a_bound_is_charged_at_the_larger_of_reserved_and_reported(
    usage: ModelUsage,
) -> None:
    found = settled(AttemptReplied(usage=usage))

    assert found.charge == Charge(
        usd=max(1_000, priced(usage, None)),
        tokens_in=max(100, usage.tokens_in),
        tokens_out=max(50, usage.tokens_out),
        model_calls=1,
    )
    assert found.flags == ("over_reserved",)


@pytest.mark.parametrize("usage", [used(101, 90), used(10**12, 10**12)])
def test_a_report_above_every_bound_is_charged_as_reported(usage: ModelUsage) -> None:
    assert settled(AttemptReplied(usage=usage)).figures == "reported"


@pytest.mark.parametrize("usage", [used(101, 1), used(1, 51)])
def test_a_report_above_one_bound_only_takes_the_rest_from_the_reservation(
    usage: ModelUsage,
) -> None:
    assert settled(AttemptReplied(usage=usage)).figures == "reserved"


def test_a_price_above_the_reserved_one_is_flagged_too() -> None:
    found = settlement(WORST, AttemptReplied(usage=used(1, 1)), priced=lambda usage, _: 1_001)

    assert (found.charge.usd, found.flags) == (1_001, ("over_reserved",))


def test_an_unknown_price_stays_unknown_and_one_that_was_known_is_the_reserved_one() -> None:
    waived = Charge(usd=None, tokens_in=100, tokens_out=50, model_calls=1)
    reply = AttemptReplied(usage=used(80, 20))

    assert settlement(waived, reply, priced=lambda usage, _: None).charge.usd is None
    assert settlement(WORST, reply, priced=lambda usage, _: None).charge.usd == 1_000


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [None, *sorted(UNBILLED)])
def test_what_is_known_not_to_be_billed_is_returned_in_full(status: int | None) -> None:
    found = settled(failed(billed=False, status=status))

    assert found == Settlement(figures="returned", charge=NOTHING)


@pytest.mark.parametrize(
    "outcome",
    [
        failed("timeout"),
        failed("network_error"),
        failed("server_error", status=500),
        failed("server_error", status=529),
        failed("unknown", status=302),
        failed("rate_limit", status=429),
        failed("server_error", status=500, billed=False),
        failed("server_error", usage=used(0, 0)),
    ],
)
def test_what_may_have_been_billed_is_charged_as_reserved_and_flagged(outcome: Outcome) -> None:
    found = settled(outcome)

    assert (found.figures, found.charge, found.flags) == ("reserved", WORST, ("unknown_outcome",))


def test_the_statuses_that_are_not_billed_are_those_of_the_transport() -> None:
    assert {400, 401, 403, 404, 429} == UNBILLED


def test_a_filtered_reply_with_usage_is_charged_as_reported() -> None:
    found = settled(failed("content_policy", status=200, usage=used(80, 5)))

    assert (found.figures, found.charge.tokens_out, found.flags) == ("reported", 5, ())


def test_a_failure_that_was_free_and_yet_has_usage_is_charged_and_flagged() -> None:
    found = settled(failed(billed=False, status=429, usage=used(80, 5)))

    assert (found.figures, found.charge.tokens_in) == ("reported", 80)
    assert found.flags == ("billed_after_all",)


def test_a_cut_stream_costs_what_was_reserved_or_what_it_said_if_that_is_more() -> None:
    less = settled(failed("network_error", usage=used(80, 5)))
    more = settled(failed("network_error", usage=used(80, 90)))

    assert (less.charge, less.flags) == (WORST, ("unknown_outcome",))
    assert more.charge == Charge(usd=1_060, tokens_in=100, tokens_out=90, model_calls=1)
    assert more.flags == ("unknown_outcome", "over_reserved")


# -- cancelled, in doubt -------------------------------------------------------------------------


def test_cancelling_costs_nothing_before_sending_and_everything_after() -> None:
    assert settled(AttemptCancelled(sent=False)).figures == "returned"
    sent = settled(AttemptCancelled(sent=True))
    assert (sent.charge, sent.flags) == (WORST, ("cancelled",))


# -- laws ----------------------------------------------------------------------------------------

numbers = st.one_of(st.integers(-5, 120), st.just(10**15))
some_usages = st.none() | usages(numbers)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(AttemptReplied, usage=some_usages),
    st.builds(
        AttemptFailed,
        reason=st.sampled_from(["timeout", "content_policy", "rate_limit"]),
        billed=st.booleans(),
        status=st.none() | st.sampled_from([200, 400, 429, 500]),
        usage=some_usages,
    ),
    st.builds(AttemptCancelled, sent=st.booleans()),
)


@given(outcome=outcomes)
def test_an_attempt_is_charged_less_than_was_reserved_only_if_somebody_said_so(
    outcome: Outcome,
) -> None:
    found = settled(outcome)
    charge = found.charge

    assert min(charge.usd or 0, charge.tokens_in, charge.tokens_out, charge.model_calls) >= 0
    match found.figures:
        case "returned":
            assert isinstance(outcome, AttemptFailed | AttemptCancelled)
        case "reserved":
            assert charge.tokens_in >= WORST.tokens_in
            assert charge.tokens_out >= WORST.tokens_out
            assert (charge.usd or 0) >= (WORST.usd or 0)
            assert found.flags
        case _:
            usage = getattr(outcome, "usage", None)
            assert isinstance(usage, ModelUsage)
            assert usage.reported
            assert charge.usd == priced(usage, None)


@given(outcome=outcomes)
def test_when_an_attempt_is_over_nothing_is_reserved_and_its_charge_is_spent(
    outcome: Outcome,
) -> None:
    tree = BudgetTree()
    tree.enter("run", parent=None, budget=Budget(tokens=150, usd=1_000), kind="run", name="r")
    held = tree.reserve("run", Amount.of_charge(WORST))
    found = settled(outcome)

    if found.figures == "returned":
        breaches = []
        tree.release(held)
    else:
        breaches = tree.settle(held, Amount.of_charge(found.charge))

    (row,) = tree.rows()
    assert row.reserved == Amount()
    assert row.spent == Amount.of_charge(found.charge)
    # Beyond the cap only by a provider's own word.
    assert not breaches or "over_reserved" in found.flags
