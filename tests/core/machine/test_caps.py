"""When a run has to stop, as laws over limits and what was used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.charge import Charge, RunLimits
from tallystick.core.machine.turn import limit_reached, tokens_out_max, turn_is_last

numbers = st.integers(0, 50)
limits = st.builds(
    RunLimits,
    turns=numbers,
    tokens=numbers,
    host_calls=numbers,
    wall_ms=numbers,
    reply_tokens=st.integers(1, 50),
)
charges = st.builds(
    Charge, turns=numbers, tokens_in=numbers, tokens_out=numbers, host_calls=numbers,
    wall_ms=numbers,
)  # fmt: skip
MANY = RunLimits(turns=10, tokens=1_000, host_calls=10, wall_ms=1_000)


@pytest.mark.parametrize(
    ("used", "stop", "says"),
    [
        (Charge(turns=10), "max_turns", "10 turns"),
        (Charge(wall_ms=1_000), "deadline", "1,000 ms"),
        (Charge(host_calls=11), "budget", "host_calls: 10"),
        (Charge(tokens_in=600, tokens_out=400), "budget", "tokens: 1,000"),
    ],
)
def test_every_limit_stops_a_run_by_its_name(used: Charge, stop: str, says: str) -> None:
    cap = limit_reached(MANY, used)

    assert cap is not None
    assert cap[0] == stop
    assert says in cap[1]


@pytest.mark.parametrize(
    "used",
    [
        Charge(turns=9),
        Charge(wall_ms=999),
        Charge(host_calls=10),
        Charge(tokens_in=600, tokens_out=399),
        Charge(fuel=10**12, model_calls=99),
    ],
)
def test_a_run_below_its_limits_may_go_on(used: Charge) -> None:
    assert limit_reached(MANY, used) is None


@given(limits=limits, used=charges, more=charges)
def test_using_more_never_lets_a_stopped_run_go_on(
    limits: RunLimits, used: Charge, more: Charge
) -> None:
    if limit_reached(limits, used) is not None:
        assert limit_reached(limits, used + more) is not None


@given(limits=limits, used=charges)
def test_a_reply_that_may_be_asked_for_has_room_and_no_more_than_is_left(
    limits: RunLimits, used: Charge
) -> None:
    room = tokens_out_max(limits, used)

    assert room <= limits.reply_tokens
    assert used.tokens_in + used.tokens_out + room <= max(
        limits.tokens, used.tokens_in + used.tokens_out
    )
    if limit_reached(limits, used) is None:
        assert room >= 1


@given(limits=limits, used=charges)
def test_the_turn_after_which_none_is_allowed_is_called_the_last(
    limits: RunLimits, used: Charge
) -> None:
    after = limit_reached(limits, used + Charge(turns=1))

    if limit_reached(limits, used) is None and after is not None:
        assert turn_is_last(limits, used)


@given(limits=limits, used=charges)
def test_turns_that_cost_as_much_as_those_before_end_with_one_that_was_called_the_last(
    limits: RunLimits, used: Charge
) -> None:
    spent = used.tokens_in + used.tokens_out
    another = Charge(turns=1, tokens_in=spent // max(1, used.turns))

    if limit_reached(limits, used) is None and limit_reached(limits, used + another) is not None:
        assert turn_is_last(limits, used)


@pytest.mark.parametrize(
    ("used", "last"),
    [
        (Charge(turns=8), False),
        (Charge(turns=9), True),
        (Charge(turns=1, wall_ms=800), False),
        (Charge(turns=1, wall_ms=801), True),
        (Charge(turns=2, tokens_in=498), False),
        (Charge(turns=2, tokens_in=500), True),
        (Charge(), False),
    ],
)
def test_the_last_turn_is_the_one_before_a_limit_as_far_as_can_be_told(
    used: Charge, last: bool
) -> None:
    assert turn_is_last(MANY, used) is last
