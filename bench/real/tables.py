"""Comma-separated tables: a sum, a sum of some rows, the largest group, an average."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal

from bench.real.draw import (
    NOUNS,
    coined,
    csv_text,
    dates,
    identifiers,
    people,
    recased,
    source,
    with_blank_lines,
)
from bench.real.task import Task, money, name_check, number_check

__all__ = ["average", "csv_filter", "csv_group", "csv_sum"]

_AMOUNTS = ["Amount", "Unit Price", "Net Total", "Line Cost", "Fee Paid", "amount", "total_due"]


def csv_sum(seed: int) -> Task:
    """The total of one column."""
    rng = source("csv-sum", seed)
    count = rng.randint(500, 1_200)
    column = rng.choice(_AMOUNTS)
    cents = [rng.randint(99, 499_999) for _ in range(count)]
    pieces = [rng.randint(1, 40) for _ in range(count)]
    grouped = rng.random() < 0.3
    columns: dict[str, list[object]] = {
        rng.choice(["id", "Invoice No", "ref"]): [*identifiers(rng, count)],
        rng.choice(["date", "Booked On"]): [*_days(rng, count)],
        rng.choice(["item", "Article"]): [*rng.choices(NOUNS, k=count)],
        rng.choice(["qty", "Pieces"]): [*pieces],
        column: [f"{cent / 100:,.2f}" if grouped else money(cent) for cent in cents],
        rng.choice(["buyer", "Sold To"]): [*rng.choices(people(rng, 30), k=count)],
    }
    header = list(columns)
    rng.shuffle(header)
    rows = list(zip(*(columns[name] for name in header), strict=True))
    text = csv_text(header, rows)
    if rng.random() < 0.4:
        text = with_blank_lines(rng, text, count=rng.randint(3, 12))
    question = rng.choice(
        [
            f'What is the sum of the column "{column}" in this CSV file?',
            f'Add up "{column}" over all rows of this table. What is the total?',
        ]
    )
    total = sum(cents)
    return Task(
        name="csv-sum",
        kind="csv",
        seed=seed,
        question=question,
        files={"table.csv": text},
        expected=money(total),
        check=number_check(money(total), question=question),
        near_misses=(
            money(total - cents[-1]),
            money(total - cents[0]),
            money(total + 1),
            str(sum(pieces)),
            str(count),
            str(sum(cent // 100 for cent in cents)),
        ),
    )


def _days(rng: random.Random, count: int) -> list[str]:
    first = datetime.date(rng.randint(2019, 2024), 1, 1)
    return [day.isoformat() for day in dates(rng, count, first=first, days=365)]


def csv_filter(seed: int) -> Task:
    """The total of one column over the rows with one state."""
    rng = source("csv-filter", seed)
    count = rng.randint(700, 1_600)
    states = rng.sample(["paid", "open", "overdue", "refunded", "cancelled", "disputed"], 4)
    column = rng.choice(_AMOUNTS)
    state_column = rng.choice(["status", "State", "Payment Status"])
    mixed = rng.random() < 0.5
    rows, total, everything, exact, matched = [], 0, 0, 0, 0
    buyers = [" ".join(reversed(name.split())).replace(" ", ", ", 1) for name in people(rng, 40)]
    days = _days(rng, count)
    for number, day in zip(identifiers(rng, count), days, strict=True):
        state, cent = rng.choice(states), rng.randint(199, 299_999)
        shown = recased(rng, state) if mixed else state
        rows.append([number, rng.choice(buyers), shown, money(cent), day])
        everything += cent
        if state == states[0]:
            matched += 1
            total += cent
            exact += cent if shown == state else 0
    case = " The case of the letters does not matter." if mixed else ""
    question = rng.choice(
        [
            f'What is the sum of "{column}" over the rows whose "{state_column}" is '
            f"{states[0]}?{case}",
            f'Add up "{column}", but only for rows where "{state_column}" is {states[0]}.{case}',
        ]
    )
    misses = [money(everything), money(total + 100), str(matched), money(everything - total)]
    return Task(
        name="csv-filter",
        kind="csv",
        seed=seed,
        question=question,
        files={"invoices.csv": csv_text(["id", "buyer", state_column, column, "date"], rows)},
        expected=money(total),
        check=number_check(money(total), question=question),
        near_misses=(*misses, *([money(exact)] if mixed else [])),
    )


def csv_group(seed: int) -> Task:
    """The group with the largest total: not the one with most rows, nor with the largest row."""
    rng = source("csv-group", seed)
    groups = coined(rng, rng.randint(6, 9))
    count = rng.randint(900, 1_800)
    group_column = rng.choice(["region", "Branch", "Cost Center", "Depot"])
    column = rng.choice(_AMOUNTS)
    while True:
        shares = [rng.uniform(0.5, 1.6) for _ in groups]
        scales = [rng.uniform(0.6, 1.6) for _ in groups]
        drawn = [
            (at, int(rng.randint(500, 90_000) * scales[at]))
            for at in rng.choices(range(len(groups)), weights=shares, k=count)
        ]
        totals: Counter[int] = Counter()
        for at, cent in drawn:
            totals[at] += cent
        (winner, most), (second, less) = totals.most_common(2)
        by_rows = Counter(at for at, _ in drawn).most_common(1)[0][0]
        by_row = max(drawn, key=lambda row: row[1])[0]
        if winner not in (by_rows, by_row) and most > less * 1.01:
            break
    rows = [
        [number, groups[at], rng.choice(NOUNS), money(cent), rng.randint(1, 50)]
        for number, (at, cent) in zip(identifiers(rng, count), drawn, strict=True)
    ]
    header = ["id", group_column, "item", column, "pieces"]
    question = rng.choice(
        [
            f'Which "{group_column}" has the largest total "{column}"?',
            f'Group the rows by "{group_column}" and add up "{column}". Which {group_column} '
            "comes out highest?",
        ]
    )
    return Task(
        name="csv-group",
        kind="csv",
        seed=seed,
        question=question,
        files={"sales.csv": csv_text(header, rows)},
        expected=groups[winner],
        check=name_check(groups[winner], rivals=groups),
        near_misses=(groups[second], groups[by_rows], groups[by_row], money(most)),
    )


def average(seed: int) -> Task:
    """A mean, rounded to two decimals, of measurements written in lines."""
    rng = source("average", seed)
    count = rng.randint(280, 400)
    measure = rng.choice(["temperature", "pressure", "humidity", "voltage", "load"])
    sensors = [name.lower() for name in coined(rng, 8)]
    base = rng.randint(150, 900)
    while True:
        tenths = [base + rng.randint(-120, 120) for _ in range(count)]
        mean = Decimal(sum(tenths)) / 10 / count
        # Far from a tie: every way of rounding agrees, in decimals and in floats.
        if Decimal("0.1") < abs((mean * 100) % 1 - Decimal("0.5")):
            break
    form = rng.choice(
        ["{day} {sensor} {measure}={value}", "{sensor};{day};{measure};{value}", "{day},{value}"]
    )
    lines = [
        form.format(day=day, sensor=rng.choice(sensors), measure=measure, value=f"{ten / 10:.1f}")
        for day, ten in zip(_days(rng, count), tenths, strict=True)
    ]
    if form == "{day},{value}":
        lines.insert(0, f"date,{measure}")
        lines[1:] = [f"{line},{rng.choice(sensors)}" for line in lines[1:]]
        lines[0] += ",sensor"
    text = "\n".join(lines) + "\n"
    right = str(mean.quantize(Decimal("0.01"), ROUND_HALF_UP))
    question = (
        f"What is the average {measure} over all measurements in this file? Round to two decimals."
    )
    value, cent = Decimal(right), Decimal("0.01")
    near = {value + cent, value - cent, mean.quantize(cent, ROUND_DOWN)}
    near |= {mean.quantize(Decimal(1)), Decimal(count)}
    return Task(
        name="average",
        kind="average",
        seed=seed,
        question=question,
        files={"measurements.txt": text},
        expected=right,
        check=number_check(right, question=question),
        near_misses=tuple(str(miss) for miss in sorted(near) if miss != value),
    )
