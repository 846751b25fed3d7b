"""The reference vectors of code-mode recall, value for value, and the texts around them."""

from __future__ import annotations

import pytest

from tallystick.memory.code_mode.operations import (
    PYTHON_FORM,
    Budget,
    EmptyProgram,
    Halted,
    Program,
    Recall,
    RecallHit,
    SandboxViolation,
    WallTimeExceeded,
    code_mode_estimate,
    json_mode_estimate,
    run,
)


class ThreeHits:
    """Answers every query with at most three hits."""

    def __init__(self) -> None:
        self.calls = 0

    def recall(self, query: str, k: int) -> list[RecallHit]:
        self.calls += 1
        return [
            RecallHit(id=f"m{i}", content=f"answer to '{query}' #{i}", score=score)
            for i, score in enumerate((1.0, 0.9, 0.8)[:k])
        ]

    def score(self, memory_id: str) -> float:
        raise AssertionError("nothing asks for a score")

    def cite(self, memory_id: str) -> str:
        raise AssertionError("nothing is cited")


def still() -> float:
    return 0.0


def recalls(count: int, *, query: str = "x", k: int = 1) -> Program:
    return Program(operations=(Recall(query=query, k=k),) * count)


def test_r1_an_empty_program_is_refused() -> None:
    host = ThreeHits()

    with pytest.raises(EmptyProgram) as raised:
        run(Program(operations=()), host, clock=still)

    assert str(raised.value) == "guest emitted no recall steps — refusing an empty bundle"
    assert (raised.value.partial, raised.value.fuel_used, host.calls) == (None, 0, 0)


def test_r2_twelve_recalls_halt_on_the_eleventh_with_the_default_budget() -> None:
    host = ThreeHits()

    with pytest.raises(Halted) as raised:
        run(recalls(12), host, clock=still)

    assert str(raised.value) == "guest fuel exhausted (10000000 units consumed)"
    assert (raised.value.budget, raised.value.fuel_used) == (10_000_000, 11_000_000)
    assert host.calls == 10
    assert raised.value.partial is not None
    assert len(raised.value.partial.recalled) == 10


def test_r3_one_recall_of_three_gives_an_answer_of_three_lines() -> None:
    bundle = run(recalls(1, query="patient fatigue", k=3), ThreeHits(), clock=still)

    assert [hit.score for hit in bundle.recalled] == [1.0, 0.9, 0.8]
    assert bundle.final_answer == (
        "- answer to 'patient fatigue' #0\n"
        "- answer to 'patient fatigue' #1\n"
        "- answer to 'patient fatigue' #2"
    )
    assert bundle.guest_token_cost == 25 + 4


def test_r4_no_wall_time_lets_nothing_begin_whatever_the_clock() -> None:
    host = ThreeHits()

    with pytest.raises(WallTimeExceeded) as raised:
        run(recalls(2), host, clock=still, budget=Budget(wall_ms=0))

    assert str(raised.value) == "guest exceeded wall-time budget 0ns"
    assert (raised.value.budget, raised.value.fuel_used, host.calls) == (0, 1_000_000, 0)


def test_the_budgets_are_those_of_the_two_forms() -> None:
    plain = Budget()

    assert (plain.fuel, plain.mem_pages, plain.wall_ms) == (10_000_000, 64, 50)
    assert (PYTHON_FORM.fuel, PYTHON_FORM.mem_pages) == (1_000_000_000, 1_024)
    assert PYTHON_FORM.wall_ms == 2_000


@pytest.mark.parametrize(
    ("wall_ms", "said"),
    [(1, "1ms"), (50, "50ms"), (2_000, "2s"), (1_500, "1.5s"), (1_050, "1.05s")],
)
def test_a_wall_time_is_spelled_as_in_the_reference(wall_ms: int, said: str) -> None:
    error = WallTimeExceeded(budget=wall_ms)

    assert str(error) == f"guest exceeded wall-time budget {said}"


def test_a_violation_names_the_capability() -> None:
    error = SandboxViolation(capability="sockets")

    assert str(error) == "guest tried to access sockets which is stripped from the sandbox"
    assert error.capability == "sockets"


def test_nothing_recalled_is_said_in_the_words_of_the_reference() -> None:
    class Nothing(ThreeHits):
        def recall(self, query: str, k: int) -> list[RecallHit]:
            return []

    bundle = run(recalls(1), Nothing(), clock=still)

    assert bundle.final_answer == "(no relevant memories)"
    assert bundle.guest_token_cost == 6 + 4


def test_the_estimates_give_the_figures_of_the_reference_for_texts_of_its_lengths() -> None:
    # Query and five records come to 122 tokens, by one host call: 58.3 % less, not 96 %.
    query, records = "q" * 28, ["r" * 92] * 5

    by_json = json_mode_estimate(query, records)
    by_code = code_mode_estimate(query, records, host_calls=1)

    assert (by_json, by_code) == (302, 126)
    assert round(100 * (1 - by_code / by_json), 1) == 58.3


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("é" * 4, 2)]
)
def test_an_estimate_rounds_bytes_up(text: str, tokens: int) -> None:
    assert code_mode_estimate(text, [], host_calls=0) == tokens
    assert json_mode_estimate(text, [text]) == 120 + tokens + 12 + tokens
