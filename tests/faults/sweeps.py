"""Sweeps: a run killed at one system call after the other, or again and again, and gone on with."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random

from tests.faults.call_places import Places, open_places
from tests.faults.killed_runs import Ended, Outcome, Whole, Workers, go_on

__all__ = ["at_calls", "die_again_and_again", "of", "provider", "spread", "sweep"]


def spread(seen: Sequence[str], count: int | None, *, each_kind: bool = True) -> list[int]:
    """Places among the calls that were seen, counted from 1: all, or some and one of each kind."""
    if count is None:
        return list(range(1, len(seen) + 1))
    kinds: dict[str, list[int]] = {}
    for place, each in enumerate(seen if each_kind else (), start=1):
        kinds.setdefault(each.split()[0], []).append(place)
    rest = range(1, len(seen) + 1, max(1, len(seen) // count))
    return sorted({*rest, *(places[len(places) // 2] for places in kinds.values())})


def sweep(
    workers: Workers,
    whole: Whole,
    *,
    count: int | None,
    asked: bool,
    each_kind: bool = True,
    also: Callable[[Sequence[str]], Iterable[int]] = lambda seen: (),
    check: Callable[[], None] = lambda: None,
) -> Counter[tuple[str, Outcome]]:
    """Kill the run at system calls, each time in a process of its own. Returns what came of it.

    `also` names places that are always among them. `check` looks at what is there after the kill,
    and again when the run was gone on with.
    """
    workers.begin_anew()
    listed = workers.traced(kill_at=None)
    assert listed.result == whole.result
    outcomes: Counter[tuple[str, Outcome]] = Counter()
    places = sorted({*spread(listed.seen, count, each_kind=each_kind), *also(listed.seen)})
    for place in places:
        workers.begin_anew()
        killed = workers.traced(kill_at=place, asked=asked)
        if not killed.killed:
            # What is received in one piece or in two differs: this run made fewer calls.
            assert len(killed.seen) < place
            continue
        with at_calls([killed]):
            check()
            outcome = go_on(workers, killed, whole, asked=asked)
            check()
        outcomes[killed.seen[-1].split()[0], outcome] += 1
    # Hitting nothing must not be the rule. A shorter run never comes to the last place.
    assert outcomes.total() >= 0.9 * (len(places) - 1)
    return outcomes


def die_again_and_again(
    workers: Workers, whole: Whole, *, count: int, seed: int, asked: bool
) -> Counter[tuple[str, Outcome]]:
    """Kill the run, and one to three times the process that goes on with it."""
    chance = Random(seed)
    workers.begin_anew()
    calls = len(workers.traced(kill_at=None).seen)
    outcomes: Counter[tuple[str, Outcome]] = Counter()
    for _ in range(count):
        workers.begin_anew()
        deaths = [workers.traced(kill_at=chance.randrange(calls // 5, calls), asked=asked)]
        doubted: Places = frozenset()
        with at_calls(deaths):
            for _ in range(chance.randint(1, 3)):
                doubted |= frozenset() if asked else open_places(workers.data)
                place = chance.randrange(1, calls // 2)
                deaths.append(workers.traced(kill_at=place, asked=asked, work="resume"))
            said = [line for death in deaths for line in death.lines]
            dead = Ended(code=deaths[-1].code, lines=said)
            outcome = go_on(workers, dead, whole, asked=asked, doubted=doubted)
        outcomes[f"{sum(each.killed for each in deaths)} deaths", outcome] += 1
    return outcomes


@contextlib.contextmanager
def at_calls(deaths: Sequence[Ended]) -> Iterator[None]:
    """Say where the deaths were, if something is wrong after them."""
    try:
        yield
    except AssertionError as error:
        for each in deaths:
            error.add_note(f"killed at call {len(each.seen)}, {each.seen[-1]}")
        raise


def of(outcomes: Counter[tuple[str, Outcome]], wanted: Outcome) -> int:
    return sum(count for (_, outcome), count in outcomes.items() if outcome == wanted)


def provider(asked: bool) -> str:
    return "the provider can be asked" if asked else "the provider cannot be asked"
