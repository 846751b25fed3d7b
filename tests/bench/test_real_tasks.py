"""The tasks given to real models: answerable as asked, judged by value, different by seed."""

from __future__ import annotations

import calendar
import csv
import datetime
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from functools import cache

import pytest
from bench.real.outcome import Outcome
from bench.real.table import Row, stored
from bench.real.task import Task, name_check, number_check
from bench.real.tasks import PEER_TASKS, TASKS, tasks_of

pytestmark = pytest.mark.slow

# Making a million characters takes a while; the rest is tried more often.
_MANY = {name: 2 if name.startswith("needle") else 6 for name in TASKS}
_CHARS_MIN = 5_000
_CHARS_MAX = 1_010_000

every_task = pytest.mark.parametrize("name", TASKS)


@cache
def made(name: str, seed: int) -> Task:
    return TASKS[name](seed)


def each_seed(name: str) -> list[Task]:
    return [made(name, seed) for seed in range(_MANY[name])]


# -- what each task promises -----------------------------------------------------------------------


@every_task
def test_a_program_that_does_what_the_question_says_gets_the_answer(name: str) -> None:
    for task in each_seed(name):
        answer = _SOLUTIONS[name](task.question, task.files)

        assert task.check(answer), (task.question, answer, task.expected)


@every_task
def test_the_answer_is_taken_in_any_form(name: str) -> None:
    for task in each_seed(name):
        refused = [form for form in _forms(task) if not task.check(form)]

        assert refused == [], task.question


def _forms(task: Task) -> list[str]:
    right = task.expected
    forms = [right, f" {right}\n", f"'{right}'", f'"{right}"', f"[{right}]", f"['{right}']"]
    forms += [f"{right}.", f"**{right}**", f"The answer is {right}.", f"({right!r},)"]
    if not _is_number(right):
        return [*forms, right.lower(), right.upper()]
    value = Decimal(right)
    forms += [f"{value:,}", f"{value}0" if "." in right else f"{right}.0", f"${value:,}"]
    return [*forms, repr(float(right)), f"{task.question} {right}"]


@every_task
def test_a_near_miss_is_refused(name: str) -> None:
    for task in each_seed(name):
        misses = [*task.near_misses, "", "None", "0", "no answer", f"{task.expected}7"]
        misses += [f"{task.expected} or {task.near_misses[0]}", task.question]
        misses += [task.expected + " " * 400]

        taken = [miss for miss in misses if task.check(miss)]

        assert taken == [], (task.question, task.expected)


@pytest.mark.parametrize("name", ["needle-prose", "needle-key", "longest"])
def test_the_answer_is_not_in_what_a_look_at_the_text_shows(name: str) -> None:
    for task in each_seed(name):
        text = _only(task.files)
        middle = len(text) // 2

        shown = text[:1_000] + text[middle - 500 : middle + 500] + text[-1_000:]

        assert task.expected not in shown


@every_task
def test_sizes_are_as_promised(name: str) -> None:
    for task in each_seed(name):
        assert _CHARS_MIN <= task.chars <= _CHARS_MAX
        assert task.kind != "needle" or task.chars >= 1_000_000
        assert (len(task.files) == 2) == (task.kind == "join")


@every_task
def test_seeds_differ_in_question_text_and_answer(name: str) -> None:
    tasks = each_seed(name)

    first_lines = {next(iter(task.files.values())).splitlines()[0] for task in tasks}
    assert len({tuple(task.files.values()) for task in tasks}) == len(tasks)
    assert len({task.expected for task in tasks}) > len(tasks) * 3 // 4
    assert len({task.question for task in tasks} | first_lines) > len(tasks) // 2


@pytest.mark.parametrize("name", [name for name in TASKS if not name.startswith("needle")])
def test_a_seed_makes_the_same_task_again(name: str) -> None:
    again = TASKS[name](0)

    first = made(name, 0)
    assert (again.question, again.files, again.expected) == (
        first.question,
        first.files,
        first.expected,
    )


def test_every_kind_that_is_promised_is_there() -> None:
    kinds = {made(name, 0).kind for name in TASKS}

    assert len(TASKS) >= 14
    assert kinds == {
        "average", "count", "csv", "date range", "distinct", "frequent", "join", "json lines",
        "k-th largest", "longest", "needle",
    }  # fmt: skip
    assert {made(name, 0).kind for name in PEER_TASKS} == {"needle", "csv", "json lines", "join"}


def test_tasks_can_be_chosen_by_name() -> None:
    chosen = tasks_of(2, ["kth-largest", "average"])

    assert [(task.name, task.seed) for task in chosen] == [("average", 2), ("kth-largest", 2)]


# -- how answers are judged ------------------------------------------------------------------------


def test_a_number_in_a_sentence_counts_only_if_it_is_the_only_new_one() -> None:
    check = number_check("37", question="How many from 2024-01-05 on are greater than 250?")

    assert check("There are 37 greater than 250 since 2024-01-05.")
    assert check("the 5th count: 37.0")
    assert not check("37 of 90")
    assert not check("between 36 and 37")
    assert not check("370")
    assert not check("-37")
    assert not check("37.5")
    assert not check("x37")


def test_a_number_is_right_to_the_last_digit_but_for_the_noise_of_floats() -> None:
    check = number_check("1234.50", question="")

    assert check("1234.5000000000002")
    assert check("$1,234.50")
    assert check("1.2345e3")
    assert not check("1234.51")
    assert not check("1234")
    assert not check("12,34.50")


def test_a_name_counts_only_whole_and_alone() -> None:
    check = name_check("Ana Silva", rivals=["Ana Silva", "Ana", "Bo Li"])

    assert check("ana silva")
    assert check("It is Ana Silva, with 12 points")
    assert not check("Ana")
    assert not check("Ana Silvas")
    assert not check("Ana Silva and Bo Li")
    assert not check("{'Ana Silva': 3, 'Ana': 2}")


def test_a_right_value_that_was_only_shown_is_not_solved() -> None:
    task = made("average", 0)

    def verdict(answer: str | None, *, answered: bool) -> object:
        outcome = Outcome(
            answer=answer,
            answered=answered,
            stop="max_turns",
            turns=6,
            tokens_in=1,
            tokens_out=1,
            seconds=1.0,
        )
        return stored(Row(runtime="tallystick", task=task, outcome=outcome))["verdict"]

    assert verdict(task.expected, answered=True) == "yes"
    assert verdict(task.expected, answered=False) == "shown"
    assert verdict("0", answered=True) == "no"
    assert verdict(None, answered=False) == "no"


# -- solutions: what a person would write who has read the question and looked at the file ---------

Files = Mapping[str, str]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


def _asked(pattern: str, question: str) -> str:
    found = re.search(pattern, question)
    assert found is not None, question
    return found[1]


def _only(files: Files) -> str:
    (text,) = files.values()
    return text


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def _amount(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _json(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _needle_prose(question: str, files: Files) -> str:
    thing = _asked(r"the ([a-z]+ [a-z]+ for \w+)[?.]", question)
    return _asked(rf"the {thing} is (\S+)\.", _only(files))


def _needle_key(question: str, files: Files) -> str:
    key = _asked(r'(?:key |")([a-z]\S+?)(?: in|")', question)
    return _asked(rf"(?m)^{re.escape(key)}(?: = |=|: )(\d+)$", _only(files))


def _count_lines(question: str, files: Files) -> str:
    lines = _only(files).splitlines()
    if "level" in question:
        level = _asked(r"level ([A-Z]+)", question)
        return str(sum(re.search(rf"\b{level}\b", line) is not None for line in lines))
    word = _asked(r'the word "(\w+)"', question)
    return str(sum(word in line.lower() for line in lines))


def _csv_sum(question: str, files: Files) -> str:
    column = _asked(r'"(.+?)"', question)
    return str(sum(_amount(row[column]) for row in _rows(_only(files))))


def _csv_filter(question: str, files: Files) -> str:
    column, state_column = re.findall(r'"(.+?)"', question)
    state = _asked(r'" is (\w+)', question)
    rows = [row for row in _rows(_only(files)) if row[state_column].lower() == state]
    return str(sum(_amount(row[column]) for row in rows))


def _csv_group(question: str, files: Files) -> str:
    group, column = re.findall(r'"(.+?)"', question)
    totals: dict[str, Decimal] = defaultdict(Decimal)
    for row in _rows(_only(files)):
        totals[row[group]] += _amount(row[column])
    return max(totals, key=lambda name: totals[name])


def _average(question: str, files: Files) -> str:
    found = [Decimal(each) for each in re.findall(r"\d+\.\d", _only(files))]
    return str((sum(found, Decimal()) / len(found)).quantize(Decimal("0.01"), ROUND_HALF_UP))


def _json_condition(question: str, files: Files) -> str:
    *summed, kind_key, kind, size_key = re.findall(r'"(\w+)"', question)
    limit = int(_asked(r"greater than (\d+)", question))
    sizes = [int(str(each[size_key])) for each in _json(_only(files)) if each[kind_key] == kind]
    chosen = [size for size in sizes if size > limit]
    return str(sum(chosen) if summed else len(chosen))


def _json_nested(question: str, files: Files) -> str:
    paths = [path.split(".") for path in re.findall(r'"([\w.]+)"', question)]
    city = _asked(r" is (\w+)\?", question)

    def at(record: object, path: list[str]) -> object:
        for key in path:
            assert isinstance(record, dict)
            record = record[key]
        return record

    records = [each for each in _json(_only(files)) if at(each, paths[1]) == city]
    return str(sum(Decimal(str(at(each, paths[0]))) for each in records))


def _longest(question: str, files: Files) -> str:
    text = _only(files)
    if re.search(r"\bid\b", question):
        return _asked(r"^([\w-]*\w)", max(text.splitlines(), key=len))
    words: list[str] = re.findall(r"[A-Za-z]+", text)
    return max(words, key=len)


def _frequent(question: str, files: Files) -> str:
    text = _only(files).lower()
    if "colon" in question:
        text = "\n".join(line.partition(": ")[2].replace(", ", "\n") for line in text.splitlines())
    return Counter(text.split()).most_common(1)[0][0]


def _kth_largest(question: str, files: Files) -> str:
    k = int(_asked(r"the (\d+)(?:st|nd|rd|th) largest", question))
    numbers = [Decimal(each) for each in re.findall(r"-?\d+(?:\.\d+)?", _only(files))]
    return str(sorted(numbers, reverse=True)[k - 1])


def _distinct(question: str, files: Files) -> str:
    return str(len({mail.lower() for mail in re.findall(r"[\w.]+@[\w.]+", _only(files))}))


def _date_count(question: str, files: Files) -> str:
    if "day.month.year" not in question:
        start, end = re.findall(r"\d{4}-\d\d-\d\d", question)
        days = re.findall(r"\d{4}-\d\d-\d\d", _only(files))
        return str(sum(start <= day <= end for day in days))

    def dotted(text: str) -> list[datetime.date]:
        found = re.findall(r"(\d\d)\.(\d\d)\.(\d{4})", text)
        return [datetime.date(int(year), int(month), int(day)) for day, month, year in found]

    first, last = dotted(question)
    return str(sum(first <= day <= last for day in dotted(_only(files))))


def _date_sum(question: str, files: Files) -> str:
    column = _asked(r'"(.+?)"', question)
    rows = _rows(_only(files))
    day_column = list(rows[0])[1]
    month = re.search(r"in ([A-Z][a-z]+ \d{4})", question)
    if month is not None:
        name, year = month[1].split()
        start = f"{year}-{list(calendar.month_name).index(name):02d}"
        chosen = [row for row in rows if row[day_column].startswith(start)]
    else:
        first, last = re.findall(r"\d{4}-\d\d-\d\d", question)
        chosen = [row for row in rows if first <= row[day_column] <= last]
    return str(sum(_amount(row[column]) for row in chosen))


def _join_sum(question: str, files: Files) -> str:
    key = _asked(r"with its (\w+);", question)
    column = _asked(r'"(\w+)"', question)
    city = _asked(r"from (\w+)\?", question)
    wanted = {row[key] for row in _rows(files["customers.csv"]) if row["city"] == city}
    rows = [row for row in _rows(files["orders.csv"]) if row[key] in wanted]
    return str(sum(_amount(row[column]) for row in rows))


def _join_top(question: str, files: Files) -> str:
    unit, role = _asked(r"lists (\w+) by", question), _asked(r"by (\w+) id", question)
    totals: dict[str, int] = defaultdict(int)
    for row in _rows(files[f"{unit}.csv"]):
        totals[row[role]] += int(row[unit])
    best = max(totals, key=lambda each: totals[each])
    if "staff.jsonl" in files:
        return next(str(each["name"]) for each in _json(files["staff.jsonl"]) if each["id"] == best)
    return next(row["name"] for row in _rows(files["staff.csv"]) if row["id"] == best)


_SOLUTIONS: dict[str, Callable[[str, Files], str]] = {
    "needle-prose": _needle_prose,
    "needle-key": _needle_key,
    "count-lines": _count_lines,
    "csv-sum": _csv_sum,
    "csv-filter": _csv_filter,
    "csv-group": _csv_group,
    "average": _average,
    "json-condition": _json_condition,
    "json-nested": _json_nested,
    "longest": _longest,
    "frequent": _frequent,
    "kth-largest": _kth_largest,
    "distinct": _distinct,
    "date-count": _date_count,
    "date-sum": _date_sum,
    "join-sum": _join_sum,
    "join-top": _join_top,
}
