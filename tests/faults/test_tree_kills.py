"""A process killed at any system call of a tree of runs: another goes on with the whole of it.

The runs inside are children of programs, side by side and inside each other. After a death as many
calls may be in doubt as there were runs under way: all of them are named. What is recorded anywhere
in the tree is not asked again, and in the end it is one tree, which replays.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.faults.killed_runs import (
    Whole,
    Workers,
    check_kept,
    check_paid,
    check_shared,
    played_whole,
)
from tests.faults.paid_server import PaidServer
from tests.faults.run_shape import Shape, shape_of
from tests.faults.soak_record import noted, outcome_table
from tests.faults.sweeps import die_again_and_again, of, provider, sweep
from tests.faults.tracer import available
from tests.faults.tree_script import FAMILY_GOAL, QUERIES

FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
POINTS_SLOW, POINTS_SOAK = 8, (None if FULL else 3)
DEATHS_SLOW, DEATHS_SOAK = 2, (100 if FULL else 2)
needs_tracer = pytest.mark.skipif(not available(), reason="system calls are traced with ptrace")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("trees")
    with PaidServer() as server, Workers(folder, server, subject="tree") as made:
        yield made


@pytest.fixture(scope="module")
def whole(workers: Workers) -> Whole:
    """The tree with nothing happening to it."""
    return played_whole(workers)


def test_a_tree_is_the_same_each_time_and_pays_for_everything_once(
    workers: Workers, whole: Whole
) -> None:
    workers.begin_anew()
    again = workers.run()

    assert again.result == whole.result
    assert workers.server.contents == whole.paid
    assert set(whole.paid.values()) == {1}
    assert shape_of(workers.data) == whole.shape
    # Of the root and of both children two turns, of the two below one each; three effects.
    kinds = Counter(content.split()[0] for content in whole.paid)
    assert kinds == {"completions": 3 * 2 + 2 + QUERIES, "effects": 3}
    check_kept(workers.data, again.heads)
    billed = workers.server.billed
    assert billed == whole.result["charge"]["usd"]
    check_shared(workers.data, billed=billed, charged=billed)


def test_the_tree_has_four_levels_and_all_of_it_is_answered(whole: Whole) -> None:
    goal, _, answer, (oak, elm) = whole.shape

    assert (goal, answer) == (FAMILY_GOAL, whole.result["answer"])
    assert (depth_of(oak), depth_of(elm)) == (3, 1)
    assert all(stop == "answered" for stop in stops_of(whole.shape))


def depth_of(shape: Shape) -> int:
    return 1 + max(map(depth_of, shape[3]), default=0)


def stops_of(shape: Shape) -> list[str]:
    return [shape[1], *(stop for each in shape[3] for stop in stops_of(each))]


@needs_tracer
@pytest.mark.slow
def test_a_tree_that_is_begun_again_instead_is_seen_to_pay_twice(
    workers: Workers, whole: Whole
) -> None:
    """The control: without a resume, what must hold does not."""
    workers.begin_anew()
    calls = len(workers.traced(kill_at=None).seen)
    workers.begin_anew()
    workers.traced(kill_at=calls * 3 // 4)

    workers.run()

    with pytest.raises(AssertionError, match="was paid for twice"):
        check_paid(workers.server, whole, frozenset())
    with pytest.raises(ValueError, match="too many values"):
        shape_of(workers.data)


@needs_tracer
@pytest.mark.slow
def test_after_a_death_at_a_system_call_a_tree_goes_on_or_names_all_calls_in_doubt(
    workers: Workers, whole: Whole
) -> None:
    outcomes = sweep(workers, whole, count=POINTS_SLOW, asked=False, each_kind=False)

    assert of(outcomes, "went on") > 0
    assert of(outcomes, "in doubt") > 0


@needs_tracer
@pytest.mark.slow
def test_with_a_provider_that_can_be_asked_no_death_leaves_a_doubt_in_a_tree(
    workers: Workers, whole: Whole
) -> None:
    outcomes = sweep(workers, whole, count=POINTS_SLOW, asked=True, each_kind=False)

    assert of(outcomes, "went on") > 5


@needs_tracer
@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_deaths_of_those_who_go_on_with_a_tree_are_made_good_too(
    asked: bool, workers: Workers, whole: Whole
) -> None:
    outcomes = die_again_and_again(workers, whole, count=DEATHS_SLOW, seed=4, asked=asked)

    assert any(call != "1 deaths" for call, _ in outcomes)


@needs_tracer
@pytest.mark.soak
@pytest.mark.parametrize("asked", [False, True])
def test_after_a_death_at_every_system_call_a_tree_goes_on(
    asked: bool, workers: Workers, whole: Whole
) -> None:
    outcomes = sweep(workers, whole, count=POINTS_SOAK, asked=asked, each_kind=FULL)

    noted(f"trees of runs killed at system calls; {provider(asked)}", outcome_table(outcomes))
    assert not (asked and of(outcomes, "in doubt"))
    # A few points need not hit a call under way; the slow sweep has one of each kind.
    assert asked or not FULL or of(outcomes, "in doubt")


@needs_tracer
@pytest.mark.soak
@pytest.mark.parametrize("asked", [False, True])
def test_any_number_of_deaths_of_a_tree_is_made_good(
    asked: bool, workers: Workers, whole: Whole
) -> None:
    outcomes = die_again_and_again(workers, whole, count=DEATHS_SOAK, seed=5, asked=asked)

    noted(f"trees of runs killed again and again; {provider(asked)}", outcome_table(outcomes))
    assert outcomes.total() == DEATHS_SOAK
