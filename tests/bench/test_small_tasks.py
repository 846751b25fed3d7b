"""The tasks where small models fail: answerable as asked, and judged by value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

import pytest
from bench.real.small import CONFIGURATIONS, markdown
from bench.real.task import Task
from bench.real.tasks import CARRIED, EVERY, READING, SMALL, TASKS, tasks_of
from tests.bench.test_review_tasks import is_liked

from tallystick.core.records import AIDS

SEEDS = range(4)
every_task = pytest.mark.parametrize("name", CARRIED)


def _only(files: Mapping[str, str]) -> str:
    (text,) = files.values()
    return text


def _found(pattern: str, text: str) -> str:
    (found,) = re.findall(pattern, text)
    return str(found)


def _amount(question: str, text: str) -> str:
    house, place = re.findall(r"the (\w+) at (\w+) sold", question)[0]
    return _found(rf"The {house} at {place} was sold to .*? for (\d+) crowns", text)


def _who(question: str, text: str) -> str:
    place = re.findall(r"at (\w+)\?| of the \w+ at (\w+)|lighthouse at (\w+)", question)[0]
    name = next(each for each in place if each)
    return _found(rf"In those years (\w+ \w+) was the [a-z ]+ at {name}\.", text)


def _named(question: str, text: str) -> str:
    who, what = re.findall(r"What did (.+) call the (\w+)\?", question)[0]
    return _found(rf"{who} bought a {what} and called it (\w+)\.", text)


def _colour(question: str, text: str) -> str:
    door = re.findall(r"the door of (.+) painted", question)[0]
    return _found(rf"The door of {door} was painted (\w+)\.", text)


def _two(question: str, text: str) -> str:
    thing = re.findall(r"the golden (\w+)\.", question)[0]
    who = _found(rf"At the auction the golden {thing} went to (\w+ \w+)\.", text)
    return _found(rf"{who} had been born in (\w+) ", text)


def _count(question: str, text: str) -> str:
    return str(sum(is_liked(json.loads(line)["review"]) for line in text.splitlines()))


def _complaints(question: str, text: str) -> str:
    return str(sum(not is_liked(line) for line in text.splitlines()))


def _top(question: str, text: str) -> str:
    liked: dict[str, int] = {}
    for line in text.splitlines()[1:]:
        product, _, review = line.partition(",")
        liked[product] = liked.get(product, 0) + is_liked(review)
    return max(liked, key=lambda product: liked[product])


def _missing(question: str, text: str) -> str:
    what, price = re.findall(r'"(\w+)\.(\w+)"', question)[0]
    held = [json.loads(line).get(what) for line in text.splitlines()]
    return f"{sum(round(each[price] * 100) for each in held if each) / 100:.2f}"


def _mixed(question: str, text: str) -> str:
    key = re.findall(r'"(\w+)"', question)[0]
    held = [str(json.loads(line)[key]).split()[0] for line in text.splitlines()]
    return f"{sum(round(float(each) * 100) for each in held) / 100:.2f}"


def _last(question: str, text: str) -> str:
    station = re.findall(r"station (\w+) ", question)[0]
    return str(re.findall(rf"station {station} reported (\w+)\.", text)[-1])


_SOLUTIONS: dict[str, Callable[[str, str], str]] = {
    "prose-amount": _amount,
    "prose-who": _who,
    "prose-named": _named,
    "prose-colour": _colour,
    "prose-two": _two,
    "judge-count": _count,
    "judge-top": _top,
    "judge-lines": _complaints,
    "json-missing": _missing,
    "json-mixed": _mixed,
    "last-report": _last,
}


def made(name: str) -> list[Task]:
    return [CARRIED[name](seed) for seed in SEEDS]


@every_task
def test_a_program_that_does_what_the_question_says_gets_the_answer(name: str) -> None:
    for task in made(name):
        answer = _SOLUTIONS[name](task.question, _only(task.files))

        assert task.check(answer), (task.question, answer, task.expected)
        assert task.check(f"The answer is {task.expected}.")


@every_task
def test_a_near_miss_is_refused(name: str) -> None:
    for task in made(name):
        misses = [*task.near_misses, "", "None", "0", task.question, f"{task.expected}7"]

        assert [miss for miss in misses if task.check(miss)] == []


@every_task
def test_a_seed_makes_the_same_task_again_and_another_seed_another_one(name: str) -> None:
    first, again, other = CARRIED[name](0), CARRIED[name](0), CARRIED[name](1)

    assert (first.question, first.files, first.expected) == (
        again.question,
        again.files,
        again.expected,
    )
    assert first.files != other.files


def test_the_answer_of_a_prose_task_is_not_in_a_look_at_the_text() -> None:
    for name in (each for each in CARRIED if each.startswith("prose")):
        for task in made(name):
            text = _only(task.files)
            middle = len(text) // 2
            shown = text[:500] + text[middle - 250 : middle + 250] + text[-500:]

            assert task.expected not in shown
            assert text.count("\n\n") > 20


def test_no_task_about_judging_says_how_it_is_done() -> None:
    for task in (CARRIED[name](0) for name in CARRIED if name.startswith("judge")):
        assert task.strategy == "code"
        assert "model" not in task.question


def test_they_are_taken_by_name_and_at_least_twelve_kinds_are_measured() -> None:
    assert not CARRIED.keys() & (TASKS | READING).keys()
    assert [task.name for task in tasks_of(0, ["csv-sum", "prose-two"])] == ["csv-sum", "prose-two"]
    assert len(SMALL) == len(set(SMALL)) >= 12
    assert set(SMALL) <= EVERY.keys()


def test_each_help_is_measured_alone_and_together() -> None:
    assert CONFIGURATIONS["before"] == ()
    assert CONFIGURATIONS["all"] == AIDS
    assert [CONFIGURATIONS[aid] for aid in AIDS] == [(aid,) for aid in AIDS]


def test_the_tables_say_what_was_solved_and_what_it_cost() -> None:
    def rows(*solved: bool, first: int) -> dict[str, object]:
        return {
            "rows": [
                {"task": "a", "seed": seed, "solved": each, "turns": 2, "tokens_in_first": first}
                for seed, each in enumerate(solved)
            ]
        }

    told = markdown(
        {
            "model": "m",
            "commit": "c",
            "seeds": [0, 1],
            "limits": {"turns": 4, "reply_tokens": 300, "temperature": 0.0},
            "configurations": {
                "before": rows(True, False, first=400),
                "all": rows(True, True, first=412),
            },
        }
    )

    assert "| a | 1 of 2 | 2 of 2 |" in told
    assert "| **all kinds** | 1 of 2 | 2 of 2 |" in told
    assert "| all | 12 | 12.0 | 2 | 2 | 1 of 1 |" in told
