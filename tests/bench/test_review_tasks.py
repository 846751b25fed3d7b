"""The tasks that are to be read: answerable as asked, and by no word that gives them away."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter

import pytest
from bench.real.reviews import _DISLIKED, _LIKED, review_count, review_top
from bench.real.tasks import READING, TASKS, tasks_of

SEEDS = range(12)


def is_liked(review: str) -> bool:
    """By whoever wrote the sentences: each review has some of one kind, and none of the other."""

    def has(sentences: tuple[str, ...]) -> bool:
        parts = [each.split("{thing}") for each in sentences]
        return any(all(part in review for part in each) for each in parts)

    assert has(_LIKED) != has(_DISLIKED), review
    return has(_LIKED)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_satisfied_customers_are_counted(seed: int) -> None:
    task = review_count(seed)
    (text,) = task.files.values()
    reviews = [json.loads(line)["review"] for line in text.splitlines()]

    assert task.expected == str(sum(map(is_liked, reviews)))
    assert task.check(task.expected)
    assert not any(map(task.check, task.near_misses))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_liked_product_is_not_the_one_with_most_reviews(seed: int) -> None:
    task = review_top(seed)
    (text,) = task.files.values()
    rows = list(csv.DictReader(io.StringIO(text)))
    liked = Counter(row["product"] for row in rows if is_liked(row["review"]))
    (first, most), (_, less) = liked.most_common(2)

    assert (task.expected, most > less) == (first, True)
    assert Counter(row["product"] for row in rows).most_common(1)[0][0] != first
    assert task.check(first)
    assert not any(map(task.check, task.near_misses))


def test_they_are_taken_by_name_only_and_are_for_programs_that_ask() -> None:
    named = tasks_of(3, ["review-count", "csv-sum"])

    assert not READING.keys() & TASKS.keys()
    assert {task.name for task in tasks_of(3, ["csv-sum"])} == {"csv-sum"}
    assert {task.name: task.strategy for task in named} == {
        "csv-sum": "code",
        "review-count": "recursive",
    }
