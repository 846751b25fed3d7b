"""Joins: one file says how much, another says who or where."""

from __future__ import annotations

import json
from collections import Counter

from bench.real.draw import NOUNS, coined, csv_text, identifiers, people, source
from bench.real.task import Task, money, name_check, number_check

__all__ = ["join_sum", "join_top"]


def join_sum(seed: int) -> Task:
    """What the customers of one city ordered for."""
    rng = source("join-sum", seed)
    customers = identifiers(rng, rng.randint(120, 220))
    cities = coined(rng, 8)
    city_of = {customer: rng.choice(cities) for customer in customers}
    names = people(rng, len(customers))
    column = rng.choice(["amount", "total", "value"])
    key = rng.choice(["customer_id", "customer", "client_id"])
    count = rng.randint(900, 1_600)
    rows, right, everything, matched = [], 0, 0, 0
    for number in rng.sample(range(100_000, 999_999), count):
        customer, cents = rng.choice(customers), rng.randint(300, 90_000)
        rows.append([number, customer, rng.choice(NOUNS), money(cents)])
        everything += cents
        if city_of[customer] == cities[0]:
            right += cents
            matched += 1
    known = [
        [customer, name, city_of[customer]] for customer, name in zip(customers, names, strict=True)
    ]
    rng.shuffle(known)
    question = (
        f"orders.csv has one order per row with its {key}; customers.csv has the city of each "
        f'customer under the same {key}. What is the sum of "{column}" over all orders of '
        f"customers from {cities[0]}?"
    )
    return Task(
        name="join-sum",
        kind="join",
        seed=seed,
        question=question,
        files={
            "orders.csv": csv_text(["order_id", key, "item", column], rows),
            "customers.csv": csv_text([key, "name", "city"], known),
        },
        expected=money(right),
        check=number_check(money(right), question=question),
        near_misses=(money(everything), money(right + 1), str(matched), money(right // 100)),
    )


def join_top(seed: int) -> Task:
    """Who has most in total: not who is listed most often, nor with the largest single entry."""
    rng = source("join-top", seed)
    unit = rng.choice(["points", "parcels", "minutes", "pages", "miles"])
    role = rng.choice(["seller", "driver", "agent", "worker", "member"])
    count_people = rng.randint(25, 60)
    ids = identifiers(rng, count_people)
    names = people(rng, count_people)
    count = rng.randint(1_000, 2_000)
    while True:
        scales = [rng.uniform(0.7, 1.5) for _ in ids]
        shares = [rng.uniform(0.6, 1.4) for _ in ids]
        drawn = [
            (at, int(rng.randint(10, 2_000) * scales[at]))
            for at in rng.choices(range(count_people), weights=shares, k=count)
        ]
        totals: Counter[int] = Counter()
        for at, amount in drawn:
            totals[at] += amount
        (winner, most), (second, less) = totals.most_common(2)
        by_rows = Counter(at for at, _ in drawn).most_common(1)[0][0]
        by_row = max(drawn, key=lambda row: row[1])[0]
        if winner not in (by_rows, by_row) and most > less * 1.01:
            break
    rows = [[day % 365 + 1, ids[at], amount] for day, (at, amount) in enumerate(drawn)]
    entries = csv_text(["day", role, unit], rows)
    known = list(zip(ids, names, strict=True))
    rng.shuffle(known)
    if rng.random() < 0.5:
        staff = "".join(json.dumps({"id": i, "name": name}) + "\n" for i, name in known)
        file, form = "staff.jsonl", "a JSON object per line with id and name"
    else:
        staff = csv_text(["id", "name"], known)
        file, form = "staff.csv", f"the id and the name of each {role}"
    question = (
        f"{unit}.csv lists {unit} by {role} id; {file} has {form}. Which {role} has the most "
        f"{unit} in total? Give the name."
    )
    return Task(
        name="join-top",
        kind="join",
        seed=seed,
        question=question,
        files={f"{unit}.csv": entries, file: staff},
        expected=names[winner],
        check=name_check(names[winner], rivals=names),
        near_misses=(names[second], names[by_rows], names[by_row], ids[winner], str(most)),
    )
