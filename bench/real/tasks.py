"""The tasks: each is made from a seed, and the same seed makes the same task anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.real.joins import join_sum, join_top
from bench.real.json_lines import json_condition, json_nested
from bench.real.listings import count_lines, distinct, frequent, kth_largest, longest
from bench.real.needles import needle_key, needle_prose
from bench.real.prose import PROSE
from bench.real.reviews import judge_count, judge_lines, judge_top, review_count, review_top
from bench.real.skilled import skill_search
from bench.real.spans import date_count, date_sum
from bench.real.tables import average, csv_filter, csv_group, csv_sum
from bench.real.task import Task
from bench.real.uneven import json_missing, json_mixed, last_report

__all__ = ["CARRIED", "EVERY", "PEER_TASKS", "READING", "SMALL", "TASKS", "tasks_of"]

TASKS: dict[str, Callable[[int], Task]] = {
    "needle-prose": needle_prose,
    "needle-key": needle_key,
    "count-lines": count_lines,
    "csv-sum": csv_sum,
    "csv-filter": csv_filter,
    "csv-group": csv_group,
    "average": average,
    "json-condition": json_condition,
    "json-nested": json_nested,
    "longest": longest,
    "frequent": frequent,
    "kth-largest": kth_largest,
    "distinct": distinct,
    "date-count": date_count,
    "date-sum": date_sum,
    "join-sum": join_sum,
    "join-top": join_top,
}

# Where weak models fail in ways that a runtime can see: taken when they are named.
CARRIED: dict[str, Callable[[int], Task]] = {
    **PROSE,
    "judge-count": judge_count,
    "judge-top": judge_top,
    "judge-lines": judge_lines,
    "json-missing": json_missing,
    "json-mixed": json_mixed,
    "last-report": last_report,
}

# For programs that ask models or load skills: taken when they are named.
READING: dict[str, Callable[[int], Task]] = {
    "review-count": review_count,
    "review-top": review_top,
    "skill-search": skill_search,
}

# What the helps for small models are measured on, named before any of it was run on the seeds that
# are reported: seven kinds that most models solve, and nine where small ones fail.
SMALL = (
    *("needle-prose", "count-lines", "csv-group", "json-nested", "kth-largest", "date-sum"),
    *("join-top", "prose-amount", "prose-who", "prose-named", "prose-two", "judge-count"),
    *("judge-top", "json-missing", "json-mixed", "last-report"),
)

EVERY = TASKS | CARRIED | READING

# What the peers are given too: one of each of four kinds, named before any of them was run.
PEER_TASKS = ("needle-prose", "csv-sum", "json-condition", "join-sum")


def tasks_of(seed: int, names: Sequence[str] = ()) -> list[Task]:
    """The tasks of a seed, in the order of the table: the named ones, or all for code."""
    known = EVERY if names else TASKS
    return [make(seed) for name, make in known.items() if not names or name in names]
