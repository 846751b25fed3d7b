"""Records that are not all alike: fields that are missing, amounts written as text, last values.

A program that takes them all for alike fails, and fails again in the same way.
"""

from __future__ import annotations

import datetime
import json

from bench.real.draw import coined, identifiers, people, source
from bench.real.task import Task, money, name_check, number_check

__all__ = ["json_missing", "json_mixed", "last_report"]


def json_missing(seed: int) -> Task:
    """A sum over a field inside a field that some records do not have."""
    rng = source("json-missing", seed)
    who = rng.choice(["customer", "guest", "member"])
    what = rng.choice(["order", "booking", "rental"])
    price = rng.choice(["total", "price", "paid"])
    names = people(rng, 40)
    lines, right, held = [], 0, 0
    for place, number in enumerate(identifiers(rng, rng.randint(300, 700))):
        cents = rng.randint(500, 80_000)
        record: dict[str, object] = {"id": number, who: rng.choice(names)}
        # The first ones have it, so that a look at the data does not show the others.
        if place < 3 or rng.random() < 0.8:
            record[what] = {"items": rng.randint(1, 9), price: cents / 100}
            right += cents
            held += 1
        elif rng.random() < 0.5:
            record[what] = None
        lines.append(json.dumps(record))
    question = (
        f'Each line is a JSON object. What is the sum of "{what}.{price}" over the objects that '
        "have it?"
    )
    return Task(
        name="json-missing",
        kind="uneven",
        seed=seed,
        question=question,
        files={f"{what}s.jsonl": "\n".join(lines) + "\n"},
        expected=money(right),
        check=number_check(money(right), question=question),
        near_misses=(money(right + 1), str(held), str(len(lines))),
    )


def json_mixed(seed: int) -> Task:
    """A sum of amounts, of which some are written as text with a unit."""
    rng = source("json-mixed", seed)
    key = rng.choice(["paid", "amount", "fee"])
    unit = rng.choice(["EUR", "USD", "CHF"])
    lines, right, plain = [], 0, 0
    for place, number in enumerate(identifiers(rng, rng.randint(300, 700))):
        cents = rng.randint(150, 60_000)
        as_text = place >= 3 and rng.random() < 0.25
        written = f"{money(cents)} {unit}" if as_text else cents / 100
        lines.append(json.dumps({"id": number, key: written}))
        right += cents
        plain += 0 if as_text else cents
    question = (
        f'Each line is a JSON object. What is the sum of "{key}" over all of them? '
        f"All amounts are in {unit}."
    )
    return Task(
        name="json-mixed",
        kind="uneven",
        seed=seed,
        question=question,
        files={"payments.jsonl": "\n".join(lines) + "\n"},
        expected=money(right),
        check=number_check(money(right), question=question),
        near_misses=(money(plain), money(right + 1), str(len(lines))),
    )


def last_report(seed: int) -> Task:
    """The last state that one station reported, in a log with many stations."""
    rng = source("last-report", seed)
    stations = coined(rng, 9)
    states = coined(rng, 12)
    at = datetime.datetime(2024, rng.randint(1, 9), rng.randint(1, 28), tzinfo=datetime.UTC)
    lines, said = [], []
    for _ in range(rng.randint(500, 900)):
        at += datetime.timedelta(minutes=rng.randint(1, 40))
        station, state = rng.choice(stations), rng.choice(states)
        lines.append(f"{at:%Y-%m-%d %H:%M} station {station} reported {state}.")
        said.append((station, state))
    own = [state for station, state in said if station == stations[0]]
    right = own[-1]
    question = f"What did station {stations[0]} report last?"
    return Task(
        name="last-report",
        kind="last",
        seed=seed,
        question=question,
        files={"stations.log": "\n".join(lines) + "\n"},
        expected=right,
        check=name_check(right, rivals=states),
        near_misses=(*(each for each in states if each != right), str(len(own))),
    )
