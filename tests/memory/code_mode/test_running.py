"""Recall programs against a memory: made ready first, cut at the wall, from Python in one line."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.memory.memory_store import quick_folder

import tallystick
import tallystick.memory
from tallystick.memory import (
    Budget,
    Bundle,
    EmptyProgram,
    Halted,
    InvalidProgram,
    Program,
    Recall,
    WallTimeExceeded,
)
from tallystick.memory.memory import Memory
from tallystick.memory.recall import shortlist
from tallystick.memory.recall.recall import OpenScope, Strategy
from tallystick.sandbox.wasm.sandbox import WasmInterpreter
from tallystick.settings.paths import cache_directory

LISTED = '{"operations": [{"op": "recall", "query": "ferry", "k": 1}]}'
PYTHON = "print(recall('ferry', 1)[0]['content'])"
# Of the program's own time nothing is to be tested here, on a machine that others use as well.
PATIENT = Budget(fuel=1_000_000_000, mem_pages=1_024, wall_ms=60_000)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    cache = cache_directory()
    with quick_folder() as folder:
        monkeypatch.setenv("TALLYSTICK_CACHE_DIR", str(cache))
        with opened(folder) as made:
            made.remember("the ferry leaves at nine")
            made.remember("bread is in the cellar")
            yield made


def opened(folder: Path) -> Memory:
    return tallystick.Memory.open(
        owner=True, embedder=None, directory=folder, environ={"HOME": str(folder)}
    )


def receipts(memory: Memory) -> int:
    with memory.store.reading() as db:
        return int(db.execute("SELECT count(*) FROM receipt").fetchone()[0])


@pytest.mark.parametrize(
    "program",
    [
        LISTED,
        LISTED.encode(),
        Program(operations=(Recall(query="ferry", k=1),)),
        pytest.param(PYTHON, marks=pytest.mark.slow),
    ],
)
def test_a_program_is_one_line_of_python(memory: Memory, program: str | bytes | Program) -> None:
    bundle = memory.run_program(program, budget=PATIENT)

    assert bundle.final_answer.endswith("the ferry leaves at nine")
    assert bundle.answer_tokens is not None
    assert bundle.answer_tokens.tokenizer == "tallystick-pieces-1"
    assert (bundle.records_seen, receipts(memory)) == (1, 1)


@pytest.mark.slow
def test_a_program_in_python_runs_where_a_loop_is_running_too(memory: Memory) -> None:
    async def inside() -> Bundle:
        return memory.run_program(PYTHON, budget=PATIENT)

    assert asyncio.run(inside()).final_answer == "the ferry leaves at nine"


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("", InvalidProgram),
        ("for", InvalidProgram),
        ("{}", InvalidProgram),
        ("\ud800", InvalidProgram),
        (b"\xff", InvalidProgram),
        ('{"operations": []}', EmptyProgram),
    ],
)
def test_what_is_no_program_is_refused_before_anything_is_done(
    memory: Memory, program: str | bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        memory.run_program(program)
    assert receipts(memory) == 0


def test_a_program_by_words_loads_no_model(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Memory] = []
    monkeypatch.setattr(Memory, "_load_embedder", lambda self: loaded.append(self))

    strategies: tuple[Strategy, ...] = ("lexical", "exact", "auto")
    for strategy in strategies:
        made = memory.run_program(LISTED, budget=PATIENT, strategy=strategy)
        assert made.records_seen == 1 or strategy == "exact"
        assert bool(loaded) is (strategy == "auto")


def test_an_error_has_what_was_gathered(memory: Memory) -> None:
    operation = Recall(query="ferry", k=1)

    with pytest.raises(Halted) as raised:
        memory.run_program(
            Program(operations=(operation, operation)),
            budget=Budget(fuel=1_000_000, wall_ms=60_000),
        )

    assert raised.value.partial is not None
    assert raised.value.partial.final_answer == "- the ferry leaves at nine"


def test_the_index_and_the_counts_are_made_before_the_time_begins(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    monkeypatch.setattr(shortlist, "LARGE", 10)
    memory.remember_all([f"note {number} of a ferry" for number in range(50)])
    counted: list[int] = []
    usual = shortlist.content_tokens

    def counting(db: object, numbers: list[int], count: object) -> object:
        counted.append(len(numbers))
        return usual(db, numbers, count)  # type: ignore[arg-type]

    monkeypatch.setattr("tallystick.memory.recall.contents.content_tokens", counting)

    memory.prepare()
    made_ready = sum(counted)
    counted.clear()
    bundle = memory.run_program(LISTED, budget=PATIENT)

    assert bundle.records_seen == 1
    assert (made_ready, sum(counted)) == (52, 0)


@pytest.mark.parametrize("program", [LISTED, pytest.param(PYTHON, marks=pytest.mark.slow)])
def test_making_ready_is_not_counted(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    wall_ms = 2_000
    prepare, of_session = Memory.prepare, WasmInterpreter.prepare

    def slowly(self: Memory, *, strategy: Strategy = "auto") -> None:
        prepare(self, strategy=strategy)
        time.sleep(2.5)

    async def slow_session(self: WasmInterpreter) -> None:
        await of_session(self)
        await asyncio.sleep(2.5)

    monkeypatch.setattr(Memory, "prepare", slowly)
    monkeypatch.setattr(WasmInterpreter, "prepare", slow_session)
    budget = Budget(fuel=1_000_000_000, mem_pages=1_024, wall_ms=wall_ms)

    assert memory.run_program(program, budget=budget).records_seen == 1


@pytest.mark.parametrize(
    "program",
    [
        '{"operations": [{"op": "recall", "query": "slow", "k": 1}]}',
        pytest.param("recall('slow', 1)", marks=pytest.mark.slow),
    ],
)
def test_a_call_that_was_cut_ends_soon_and_writes_nothing(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """It holds the file while it reads, so whoever closes the memory would wait for it."""
    left = threading.Event()
    usual = OpenScope.whole

    def endless(self: OpenScope) -> object:
        try:
            self._db.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
                "SELECT count(*) FROM n"
            ).fetchall()
            return usual(self)
        finally:
            left.set()

    monkeypatch.setattr(OpenScope, "whole", endless)
    monkeypatch.setattr(OpenScope, "of_all", lambda self, *_, **__: self.whole())
    budget = Budget(fuel=1_000_000_000, mem_pages=1_024, wall_ms=200)
    began = time.monotonic()

    with pytest.raises(WallTimeExceeded):
        memory.run_program(program, budget=budget)

    assert left.wait(20)
    memory.close()
    assert time.monotonic() - began < 30
    assert receipts(memory) == 0
