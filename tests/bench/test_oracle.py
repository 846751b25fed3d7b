"""The oracle bench: it knows what it is shown, its checks can fail, its bill is what is charged."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re

import pytest
from bench.oracle.oracle import (
    JUDGE,
    SETTINGS,
    Curve,
    Faults,
    OracleModel,
    Reader,
    tokens_of,
)
from bench.oracle.root import Habits, written
from bench.oracle.run import cases_of, measured, rows_of
from bench.oracle.runs import Case, Outcome, cap_of, ran
from bench.oracle.table import Check, Row, checks_of, row_of, shown, stored
from bench.oracle.tasks import KINDS, LABELS, Task, task_of
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.machine.prompt import Message
from tallystick.core.strategy import AskedStrategy
from tallystick.model.port import ModelError, ModelRequest
from tallystick.sandbox.wasm.sandbox import WasmSandbox

NONE = Faults(wrong=0.0, refused=0.0, failed=0.0, garbled=0.0, cut=0.0)
PERFECT = SETTINGS["perfect"]
OOLONG = task_of("oolong", 2**12, 1)
LINES = OOLONG.text.splitlines()
LABEL = OOLONG.question.removesuffix("?").rpartition(" ")[2]


def reader(task: Task, faults: Faults = NONE) -> Reader:
    return Reader(meanings=task.meanings, setting=PERFECT, faults=faults)


def answer(task: Task, prompt: str) -> str:
    return reader(task).answer(prompt, random.Random(0), tokens=len(prompt) // 4)


def case(kind: str = "oolong", strategy: AskedStrategy = "auto", **changes: object) -> Case:
    made = Case(
        kind=kind, tokens=2**13, seed=0, strategy=strategy, setting="fading", usd=cap_of(2**13)
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


# -- tasks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_comes_from_its_seed_and_is_as_long_as_it_says(kind: str) -> None:
    task, other = task_of(kind, 2**13, 3), task_of(kind, 2**13, 4)

    assert KINDS[kind](2**13, 3).text == task.text != other.text
    assert abs(len(task.text) / 4 - 2**13) < 2**13 * 0.02
    assert task.score(task.expected) == 1.0
    assert task.score("it cannot be said") == (1.0 if task.expected == "" else 0.0)


def test_right_answers_are_those_of_the_texts() -> None:
    needle, log = task_of("needle", 2**13, 0), task_of("counting", 2**13, 0)
    name = needle.question.removesuffix("?").rpartition(" ")[2]
    level, service = re.findall(r"level (\w+) and are of the service (\w+)", log.question)[0]

    assert re.findall(rf"code of {name} is (\d+)\.", needle.text) == [needle.expected]
    assert str(len(re.findall(rf"(?m)^\S+ \S+ {level} {service}: ", log.text))) == log.expected


@pytest.mark.parametrize("kind", ["oolong", "pairs"])
def test_no_text_says_what_its_messages_are(kind: str) -> None:
    task = task_of(kind, 2**13, 0)

    assert not any(label in task.text for label in LABELS)
    assert set(task.meanings.values()) == set(LABELS)


def test_an_answer_is_worth_less_the_further_it_is_off() -> None:
    task, right = OOLONG, int(OOLONG.expected)
    scores = [task.score(str(right + off)) for off in (0, 1, right)]

    assert scores[0] == 1.0 > scores[1] > scores[2] == 0.0
    assert task.score(f"{right} or {right + 1}") == 0.0


# -- what it can know --------------------------------------------------------------------------


@given(taken=st.sets(st.integers(0, len(LINES) - 1)))
def test_it_counts_the_messages_before_it_and_no_others(taken: set[int]) -> None:
    shown_lines = [LINES[at] for at in sorted(taken)]
    kinds = [OOLONG.meanings[line.rpartition("Instance: ")[2]] for line in shown_lines]

    said = answer(OOLONG, f"{OOLONG.question}\n" + "\n".join(shown_lines))

    assert said == str(kinds.count(LABEL))


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_text_it_has_no_answer(kind: str) -> None:
    task = task_of(kind, 2**13, 2)

    assert task.score(answer(task, task.text + task.question)) == 1.0
    assert task.score(answer(task, task.question)) == 0.0


def test_what_a_message_means_is_a_guess_once_it_is_cut() -> None:
    cut = [line[:-5] for line in LINES]
    said = {
        reader(OOLONG).answer("\n".join([OOLONG.question, *cut]), random.Random(seed), tokens=1)
        for seed in range(8)
    }

    assert len(said) > 1


def test_it_overlooks_more_of_a_longer_prompt_and_nothing_if_it_is_perfect() -> None:
    fading = SETTINGS["fading"].curve

    assert fading.missed(4_096) == 0.0 < fading.missed(8_192) < fading.missed(2**17) < 0.2
    assert PERFECT.curve == Curve(per_doubling=0.0)
    assert PERFECT.curve.missed(2**20) == 0.0


def test_it_judges_orders_by_the_messages_it_is_given() -> None:
    task = task_of("pairs", 2**12, 0)
    line = next(line for line in task.text.splitlines() if "Order: " in line)
    kind = task.meanings[line.rpartition("Instance: ")[2]]
    other = next(label for label in LABELS if label != kind)
    order = re.findall(r"K-\d+", line)[0]

    assert answer(task, f"{JUDGE.format(kind, other)}\n{line}") == f'["{order} {kind}"]'
    assert answer(task, JUDGE.format(kind, other)) == "[]"


# -- the root ----------------------------------------------------------------------------------


def _asked(*, told: bool) -> tuple[Message, ...]:
    system = "You solve a task by writing Python." + (" llm_query_batched" if told else "")
    task = f"The data:\n...\n\nThe task: {OOLONG.question}\n\nWrite one ```python block."
    return (
        Message(role="system", part="system", text=system),
        Message(role="user", part="task", text=task),
    )


def test_the_root_calls_models_only_if_it_was_told_of_them() -> None:
    steady = Habits(breaks=0.0, breaks_late=0.0, looks=0.0)

    def program(*, told: bool) -> str:
        return written(_asked(told=told), reader(OOLONG), random.Random(0), steady)

    assert "llm_query_batched(" in program(told=True)
    assert "llm_query" not in program(told=False)


def test_the_root_may_err() -> None:
    broken = Habits(breaks=1.0)

    assert "lnes" in written(_asked(told=True), reader(OOLONG), random.Random(0), broken)


# -- the bill ----------------------------------------------------------------------------------


def _ask(model: OracleModel, text: str) -> str:
    request = ModelRequest(messages=(Message(role="user", part="query", text=text),))
    return asyncio.run(model.ask(request)).text


def test_its_bill_is_its_prices_and_a_refusal_is_free() -> None:
    prompt = f"How many of these messages are a {LABEL}?\n{LINES[0]}"
    tokens = tokens_of((Message(role="user", part="query", text=prompt),))
    model = OracleModel(reader=reader(OOLONG), root=written, seed=0)
    refusing = OracleModel(
        reader=reader(OOLONG, dataclasses.replace(NONE, refused=1.0)), root=written, seed=0
    )

    _ask(model, prompt)
    with pytest.raises(ModelError, match="rate_limit"):
        _ask(refusing, prompt)

    assert model.billed == tokens * 250 + 2_000
    assert (refusing.billed, refusing.unknown, refusing.calls) == (0, 0, 1)


@pytest.mark.parametrize(
    ("kind", "strategy", "took"),
    [
        ("needle", "auto", "direct"),
        ("counting", "auto", "code"),
        ("oolong", "auto", "direct"),
        ("oolong", "recursive", "recursive"),
        ("pairs", "recursive", "recursive"),
    ],
)
def test_a_run_is_charged_what_was_billed(
    sandbox: WasmSandbox, kind: str, strategy: AskedStrategy, took: str
) -> None:
    came = ran(case(kind, strategy, seed=1), sandbox)

    assert (came.stop, came.strategy) == ("answered", took)
    assert came.score > 0.5
    assert 0 < came.charged == came.billed < came.case.usd
    assert came.calls >= came.turns >= 1
    assert came.virtual_ms > 400 * came.turns


def test_the_same_case_comes_to_the_same(sandbox: WasmSandbox) -> None:
    assert ran(case("pairs", "recursive"), sandbox) == ran(case("pairs", "recursive"), sandbox)


def test_a_text_that_no_prompt_holds_is_not_read_at_once(sandbox: WasmSandbox) -> None:
    came = ran(case("counting", "direct", tokens=2**18), sandbox)

    assert "do not fit the model" in came.refused
    assert row_of([came]).runs == 0


def test_a_cap_holds_and_what_nobody_knows_is_charged_as_it_was_reserved(
    sandbox: WasmSandbox,
) -> None:
    failing = dataclasses.replace(NONE, failed=0.3)

    came = ran(case("oolong", "recursive", seed=1), sandbox, faults=failing)

    assert came.charged <= came.case.usd
    assert 0 < came.unknown < came.reserved
    assert came.charged - came.reserved == came.billed
    assert row_of([came]).off == row_of([came]).over_cap == 0


def test_a_cap_that_pays_for_part_of_it_is_not_passed(sandbox: WasmSandbox) -> None:
    came = ran(case("oolong", "recursive", tokens=2**14, usd=4_000_000), sandbox, faults=NONE)

    assert came.case.usd // 2 < came.charged == came.billed <= came.case.usd
    assert came.score < 1.0


# -- checks ------------------------------------------------------------------------------------


def outcome(strategy: AskedStrategy, **changes: object) -> Outcome:
    made = Outcome(case=case(strategy=strategy), strategy="direct", score=0.5, stop="answered")
    usd: dict[str, object] = {"charged": 1_000, "billed": 1_000}
    return dataclasses.replace(made, **{**usd, **changes})  # type: ignore[arg-type]


def found(*outcomes: Outcome) -> dict[str, bool]:
    checks = checks_of(rows_of(outcomes))
    return {each.name.split(" below")[0].split(" in every")[0]: each.met for each in checks}


WORSE, DEARER = "auto is never less accurate than direct", "auto is never dearer than direct"
WIDE = "p95 of the cost is at most 3 times p50"
OVER = "no run passed its cap, by its charge or by the model's bill"
OFF = "what was charged is what the model billed, to the nano-dollar"


def test_what_is_as_it_should_be_is_met() -> None:
    assert set(found(outcome("auto"), outcome("direct")).values()) == {True}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"score": 0.49}, {WORSE}),
        ({"charged": 1_001, "billed": 1_001}, {DEARER}),
        ({"charged": 1_001}, {DEARER, OFF}),
        ({"billed": 999}, {OFF}),
        ({"unknown": 1}, {OFF}),
        ({"charged": 900, "billed": 200, "reserved": 700, "unknown": 701}, {OFF}),
        ({"charged": 900, "billed": 200, "reserved": 700, "unknown": 700}, set()),
        ({"unknown": cap_of(2**13)}, {OVER, OFF}),
    ],
)
def test_what_is_not_is_missed(changes: dict[str, object], missed: set[str]) -> None:
    checks = found(outcome("auto", **changes), outcome("direct"))

    assert {name for name, met in checks.items() if not met} == missed


def test_a_cost_of_more_than_three_times_the_median_is_missed() -> None:
    def code(*charged: int) -> list[Outcome]:
        return [outcome("code", charged=each, billed=each) for each in charged]

    beside = [outcome("auto"), outcome("direct")]

    assert found(*beside, *code(100, 100, 300))[WIDE]
    assert not found(*beside, *code(100, 100, 301))[WIDE]
    # Runs that were all refused cost nothing; one that was not is no tail of theirs.
    assert found(*beside, *code(0, 0, 0))[WIDE]
    assert not found(*beside, *code(0, 0, 1))[WIDE]


def test_a_run_of_one_in_twenty_may_cost_more() -> None:
    charged = [100] * 19
    rows = [
        row_of([outcome("code", charged=each, billed=each) for each in (*charged, *more)])
        for more in ([400], [400, 400])
    ]

    assert [row.p95 for row in rows] == [100, 400]
    assert [row.p50 for row in rows] == [100, 100]


def test_nothing_measured_is_nothing_met() -> None:
    assert not any(check.met for check in checks_of([]))
    assert not found(outcome("auto"))[WORSE]
    assert not found(outcome("auto"), outcome("auto"), outcome("direct"))[WORSE]


def test_longer_texts_may_cost_more_than_reading_at_once() -> None:
    long = case(tokens=2**14)
    dear = outcome("auto", case=long, charged=2_000, billed=2_000)
    read = outcome("direct", case=dataclasses.replace(long, strategy="direct"))

    assert found(outcome("auto"), outcome("direct"), dear, read)[DEARER]


def test_the_table_has_a_line_for_each_row_and_each_check() -> None:
    row = row_of([outcome("auto", charged=2_050_000, billed=2_050_000, calls=1, turns=1)])
    none = Row(kind="needle", tokens=2**18, strategy="direct", setting="fading", refused="no; not")
    checks = [Check(name="it holds", met=False, found="it does not")]

    lines = shown([row, none], checks)

    assert lines[1].split()[:5] == ["oolong", "8,192", "fading", "auto", "direct"]
    assert "$0.00205" in lines[1]
    assert lines[3].split()[-1] == "no"
    assert lines[-1] == "MISSED  it holds: it does not"
    assert stored(row)["usd_nano_p50"] == 2_050_000
    assert stored(none)["refused"] == "no; not"


@pytest.mark.slow
def test_the_quick_bench_shows_what_it_has_to(sandbox: WasmSandbox) -> None:
    rows = rows_of(measured(list(cases_of({2**13: 2, 2**14: 2})), sandbox))
    checks = {check.name: check.met for check in checks_of(rows)}

    assert {row.runs for row in rows} == {2}
    # Two seeds say nothing of a tail.
    assert [met for name, met in checks.items() if not name.startswith("p95")] == [True] * 4
