"""JSON lines: a count or a sum under a condition, and fields inside fields."""

from __future__ import annotations

import json

from bench.real.draw import coined, identifiers, people, source, with_blank_lines
from bench.real.task import Task, money, number_check

__all__ = ["json_condition", "json_nested"]


def json_condition(seed: int) -> Task:
    """How many records, or how much in them, where two fields are as asked."""
    rng = source("json-condition", seed)
    count = rng.randint(800, 1_500)
    kind_key = rng.choice(["type", "event", "action"])
    size_key = rng.choice(["ms", "bytes", "latency", "size"])
    kinds = rng.sample(["login", "upload", "search", "delete", "export", "refresh", "share"], 5)
    limit = rng.randint(30, 70) * 10
    records, everything, chosen, at_limit = [], [], [], 0
    users = [name.split()[0].lower() for name in people(rng, 30)]
    for number in identifiers(rng, count):
        kind = rng.choice(kinds)
        # Some lie exactly on the limit, where "more than" and "at least" part.
        size = limit if rng.random() < 0.06 else rng.randint(10, 1_000)
        record = {"id": number, kind_key: kind, "user": rng.choice(users), size_key: size}
        if rng.random() < 0.2:
            record["note"] = f"after {rng.choice(kinds)}"
        records.append(record)
        everything.append(size)
        if kind == kinds[0]:
            at_limit += size == limit
            if size > limit:
                chosen.append(size)
    text = "".join(json.dumps(record) + "\n" for record in records)
    if rng.random() < 0.4:
        text = with_blank_lines(rng, text, count=4)
    where = f'"{kind_key}" is "{kinds[0]}" and "{size_key}" is greater than {limit}'
    if rng.random() < 0.5:
        question = f"Each line is a JSON object. In how many of them {where}?"
        right = len(chosen)
        misses = [right + at_limit, sum(each > limit for each in everything), count]
    else:
        question = f'Each line is a JSON object. What is the sum of "{size_key}" where {where}?'
        right = sum(chosen)
        misses = [right + at_limit * limit, sum(everything), len(chosen)]
    return Task(
        name="json-condition",
        kind="json lines",
        seed=seed,
        question=question,
        files={"events.jsonl": text},
        expected=str(right),
        check=number_check(str(right), question=question),
        near_misses=tuple(str(miss) for miss in [*misses, right + 1, right - 1] if miss != right),
    )


def json_nested(seed: int) -> Task:
    """A sum of a field two levels down, where a field three levels down is as asked."""
    rng = source("json-nested", seed)
    count = rng.randint(500, 1_000)
    who = rng.choice(["customer", "client", "member"])
    home = rng.choice(["address", "home", "location"])
    what = rng.choice(["order", "booking", "purchase"])
    price = rng.choice(["total", "price", "paid"])
    cities = coined(rng, 7)
    names = people(rng, 60)
    lines, right, everything, shipped, matched = [], 0, 0, 0, 0
    for number in identifiers(rng, count):
        city, other = rng.choice(cities), rng.choice(cities)
        cents = rng.randint(500, 80_000)
        # The same cities stand in a second place: a search for the name alone finds too much.
        record = {
            "id": number,
            who: {
                "name": rng.choice(names),
                home: {"city": city, "zip": rng.randint(10_000, 99_999)},
            },
            what: {"items": rng.randint(1, 9), price: cents / 100, "depot": other},
        }
        lines.append(json.dumps(record))
        everything += cents
        right += cents if city == cities[0] else 0
        matched += city == cities[0]
        shipped += cents if cities[0] in (city, other) else 0
    question = (
        f'Each line is a JSON object. What is the sum of "{what}.{price}" over the objects whose '
        f'"{who}.{home}.city" is {cities[0]}?'
    )
    return Task(
        name="json-nested",
        kind="json lines",
        seed=seed,
        question=question,
        files={f"{what}s.jsonl": "\n".join(lines) + "\n"},
        expected=money(right),
        check=number_check(money(right), question=question),
        near_misses=(money(everything), money(shipped), money(right + 1), str(matched)),
    )
