"""Recall programs: reading them from strangers, their budget, what ends them, what they gather."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import InvalidLimit, Refused, UsageError
from tallystick.memory.code_mode.operations import (
    FUEL_MAX,
    HOST_CALL_FUEL,
    OPERATIONS_MAX,
    PAGE_BYTES,
    PROGRAM_BYTES_MAX,
    Budget,
    Bundle,
    Cite,
    EmptyProgram,
    Halted,
    InvalidProgram,
    Operation,
    OperationFailed,
    Program,
    Recall,
    RecallHit,
    SandboxViolation,
    Score,
    WallTimeExceeded,
    bundle_of,
    charge_call,
    first_difference,
    read_program,
    run,
)


class WordStore:
    """A host with a few notes. It writes down what it was asked."""

    def __init__(self, *contents: str) -> None:
        self.contents = contents or ("tea is at four", "the key is under the mat")
        self.asked: list[str] = []

    def recall(self, query: str, k: int) -> list[RecallHit]:
        self.asked.append(f"recall {query} {k}")
        return [
            RecallHit(id=f"m{n}", content=content, score=1.0 - n / 10)
            for n, content in enumerate(self.contents[:k])
        ]

    def score(self, memory_id: str) -> float:
        self.asked.append(f"score {memory_id}")
        return 0.25 if memory_id == "m0" else 0.75

    def cite(self, memory_id: str) -> str:
        self.asked.append(f"cite {memory_id}")
        if memory_id == "m9":
            raise Refused("note m9 was not recalled here")
        return f"receipt of {memory_id}"


class Words:
    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


def still() -> float:
    return 7.0


def ticking(*readings: float) -> Callable[[], float]:
    """A clock that gives these readings, one at each look."""
    left: Iterator[float] = iter(readings)
    return lambda: next(left)


RECALL = Recall(query="tea", k=2)
operations = st.lists(
    st.one_of(
        st.builds(Recall, query=st.sampled_from(["tea", "key"]), k=st.integers(1, 100)),
        st.builds(Score, memory_id=st.sampled_from(["m0", "m1"])),
        st.builds(Cite, memory_id=st.sampled_from(["m0", "m1"])),
    ),
    min_size=1,
    max_size=14,
)


def program(*operations: Operation) -> Program:
    return Program(operations=operations)


def document(*operations: object) -> bytes:
    return json.dumps({"operations": operations}).encode()


# -- running ------------------------------------------------------------------------------------


def test_operations_are_done_in_order_and_their_results_are_kept() -> None:
    host = WordStore()

    bundle = run(
        program(RECALL, Score(memory_id="m0"), Cite(memory_id="m1"), RECALL), host, clock=still
    )

    assert host.asked == ["recall tea 2", "score m0", "cite m1", "recall tea 2"]
    assert [hit.id for hit in bundle.recalled] == ["m0", "m1", "m0", "m1"]
    assert bundle.scores == {"m0": 0.25}
    assert bundle.receipts == ("receipt of m1",)
    assert bundle.fuel_used == 4 * HOST_CALL_FUEL
    assert (bundle.records_seen, bundle.records_emitted) == (4, 4)


def test_scores_put_notes_in_another_order_and_each_of_them_once() -> None:
    bundle = run(
        program(RECALL, RECALL, Score(memory_id="m0"), Score(memory_id="m1")),
        WordStore(),
        clock=still,
    )

    assert [hit.id for hit in bundle.best_first()] == ["m1", "m0"]
    assert [hit.id for hit in bundle.recalled] == ["m0", "m1", "m0", "m1"]


def test_the_answer_is_counted_by_the_tokenizer_that_is_named() -> None:
    bundle = run(program(RECALL), WordStore(), clock=still, tokenizer=Words())

    assert bundle.answer_tokens is not None
    assert (bundle.answer_tokens.tokens, bundle.answer_tokens.tokenizer) == (12, "words")
    assert bundle.guest_token_cost_by == "estimated_reference"


def ended(program: Program, host: WordStore, budget: Budget) -> Bundle | Halted:
    try:
        return run(program, host, clock=still, budget=budget)
    except Halted as halted:
        return halted


@given(operations=operations, fuel=st.integers(0, 16_000_000))
def test_fuel_pays_for_whole_operations_and_no_more(operations: list[Operation], fuel: int) -> None:
    host = WordStore()
    paid = min(len(operations), fuel // HOST_CALL_FUEL)

    end = ended(Program(operations=tuple(operations)), host, Budget(fuel=fuel))

    assert len(host.asked) == paid
    if paid == len(operations):
        assert end.fuel_used == paid * HOST_CALL_FUEL
        assert isinstance(end, Bundle)
    else:
        assert end.fuel_used == (paid + 1) * HOST_CALL_FUEL
        assert isinstance(end, Halted)
        assert end.partial is not None
        assert end.partial.records_seen == sum(
            min(each.k, 2) for each in operations[:paid] if isinstance(each, Recall)
        )


def test_no_fuel_halts_at_the_first_operation() -> None:
    host = WordStore()

    with pytest.raises(Halted) as raised:
        run(program(RECALL), host, clock=still, budget=Budget(fuel=0))

    assert host.asked == []
    assert raised.value.partial is not None
    assert raised.value.partial.final_answer == "(no relevant memories)"


def test_fuel_stays_at_its_end() -> None:
    assert charge_call(FUEL_MAX - 1) == FUEL_MAX
    assert charge_call(FUEL_MAX) == FUEL_MAX
    assert charge_call(0) == HOST_CALL_FUEL


def test_fuel_is_looked_at_before_time() -> None:
    with pytest.raises(Halted):
        run(program(RECALL), WordStore(), clock=still, budget=Budget(fuel=0, wall_ms=0))


def test_exactly_the_time_is_allowed() -> None:
    bundle = run(program(RECALL), WordStore(), clock=ticking(100, 150, 150))

    assert len(bundle.recalled) == 2


def test_more_than_the_time_ends_it_before_the_next_operation() -> None:
    host = WordStore()

    with pytest.raises(WallTimeExceeded) as raised:
        run(program(RECALL, Score(memory_id="m0")), host, clock=ticking(100, 100, 150.5))

    assert host.asked == ["recall tea 2"]
    assert raised.value.partial is not None
    assert len(raised.value.partial.recalled) == 2


def test_time_is_looked_at_behind_the_last_operation_too() -> None:
    with pytest.raises(WallTimeExceeded) as raised:
        run(program(RECALL), WordStore(), clock=ticking(0, 0, 51))

    assert raised.value.partial is not None
    assert raised.value.partial.final_answer.startswith("- tea is at four")


def test_no_time_is_no_time_for_every_clock() -> None:
    host = WordStore()

    for clock in (still, ticking(5, 4), ticking(0, 1)):
        with pytest.raises(WallTimeExceeded):
            run(program(RECALL), host, clock=clock, budget=Budget(wall_ms=0))

    assert host.asked == []


def test_a_host_that_gives_up_in_time_ends_the_program_as_time_does() -> None:
    class Slow(WordStore):
        def score(self, memory_id: str) -> float:
            raise TimeoutError

    with pytest.raises(WallTimeExceeded) as raised:
        run(program(RECALL, Score(memory_id="m0")), Slow(), clock=still)

    assert raised.value.partial is not None
    assert len(raised.value.partial.recalled) == 2


def milliseconds() -> float:
    return time.monotonic() * 1000


def test_a_call_that_takes_too_long_is_left_and_what_it_gives_is_not_used() -> None:
    let, over = threading.Event(), threading.Event()

    class Slow(WordStore):
        def score(self, memory_id: str) -> float:
            let.wait(30)
            over.set()
            return super().score(memory_id)

    host, began = Slow(), time.monotonic()
    with pytest.raises(WallTimeExceeded) as raised:
        run(
            program(RECALL, Score(memory_id="m0"), RECALL),
            host,
            clock=milliseconds,
            budget=Budget(wall_ms=300),
        )
    took = time.monotonic() - began
    let.set()

    assert 0.3 <= took < 10
    assert over.wait(10)
    assert raised.value.fuel_used == 2 * HOST_CALL_FUEL
    assert raised.value.partial is not None
    assert raised.value.partial.scores == {}
    assert len(raised.value.partial.recalled) == 2
    assert [asked for asked in host.asked if asked.startswith("recall")] == ["recall tea 2"]


def test_only_the_clock_that_is_given_says_that_time_is_over() -> None:
    class Slow(WordStore):
        def score(self, memory_id: str) -> float:
            time.sleep(0.05)
            return super().score(memory_id)

    bundle = run(program(Score(memory_id="m0")), Slow(), clock=still, budget=Budget(wall_ms=1))

    assert bundle.scores == {"m0": 0.25}


def test_an_error_of_the_host_is_raised_as_it_is_and_no_thread_is_left() -> None:
    class Broken(WordStore):
        def score(self, memory_id: str) -> float:
            raise ZeroDivisionError("a fault of the store")

    # Threads that earlier tests left may end meanwhile.
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        run(program(RECALL, Score(memory_id="m0")), Broken(), clock=still)

    until = time.monotonic() + 10
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before


def test_no_notes_may_be_asked_for() -> None:
    host = WordStore()

    bundle = run(program(Recall(query="tea", k=0)), host, clock=still)

    assert (host.asked, bundle.recalled) == (["recall tea 0"], ())
    assert bundle.final_answer == "(no relevant memories)"
    assert bundle.fuel_used == HOST_CALL_FUEL


def test_pages_bound_what_a_program_gathers() -> None:
    # Id and content of the first fill the page to its last byte.
    host = WordStore("x" * (PAGE_BYTES - 2), "y")

    with pytest.raises(SandboxViolation) as raised:
        run(program(RECALL), host, clock=still, budget=Budget(mem_pages=1))

    assert str(raised.value) == (
        "guest tried to access memory beyond 1 pages which is stripped from the sandbox"
    )
    assert raised.value.partial is not None
    assert [hit.id for hit in raised.value.partial.recalled] == ["m0"]
    fits = run(program(Recall(query="x", k=1)), host, clock=still, budget=Budget(mem_pages=1))
    assert len(fits.recalled) == 1


def test_receipts_take_room_as_well() -> None:
    with pytest.raises(SandboxViolation):
        run(program(Cite(memory_id="m0")), WordStore(), clock=still, budget=Budget(mem_pages=0))


def test_what_the_store_refuses_names_the_operation_and_keeps_what_there_is() -> None:
    with pytest.raises(OperationFailed) as raised:
        run(program(RECALL, Cite(memory_id="m9")), WordStore(), clock=still)

    assert str(raised.value) == "operation 2 (cite): note m9 was not recalled here"
    assert isinstance(raised.value.__cause__, Refused)
    assert raised.value.partial is not None
    assert len(raised.value.partial.recalled) == 2
    assert raised.value.fuel_used == 2 * HOST_CALL_FUEL


def test_an_empty_program_is_refused_before_its_budget_is_looked_at() -> None:
    with pytest.raises(EmptyProgram):
        run(program(), WordStore(), clock=still, budget=Budget(fuel=0, wall_ms=0))


@pytest.mark.parametrize("field", ["fuel", "mem_pages", "wall_ms"])
@pytest.mark.parametrize("given", [-1, 1.5, True, "10", None, 1 << 64])
def test_a_limit_that_is_none_is_an_error(field: str, given: object) -> None:
    with pytest.raises(InvalidLimit, match=field):
        Budget(**{field: given})  # type: ignore[arg-type]


# -- bundles ------------------------------------------------------------------------------------


def test_a_bundle_is_data_and_comes_back_the_same() -> None:
    bundle = run(
        program(RECALL, Score(memory_id="m1"), Cite(memory_id="m0")),
        WordStore(),
        clock=still,
        tokenizer=Words(),
    )

    assert msgspec.json.decode(msgspec.json.encode(bundle), type=Bundle) == bundle


def test_a_program_that_answers_itself_emits_only_what_its_answer_holds() -> None:
    hits = WordStore().recall("tea", 2)

    bundle = bundle_of(hits, operations=1, fuel_used=9, answer="Tea: tea is at four.")

    assert bundle.final_answer == "Tea: tea is at four."
    assert (bundle.records_seen, bundle.records_emitted) == (2, 1)


@pytest.mark.parametrize(
    ("contents", "operations", "said"),
    [
        (("tea is at five", "the key is under the mat"), (RECALL,), "hit 1 was m0 (1.0) and is m0"),
        (("tea is at four",), (RECALL,), "2 hits were recalled and 1 are"),
        ((), (RECALL, Score(memory_id="m0")), "guest_token_cost differs"),
        ((), (RECALL,), None),
    ],
)
def test_a_program_run_again_says_where_it_differs(
    contents: Sequence[str], operations: tuple[Operation, ...], said: str | None
) -> None:
    recorded = run(program(RECALL), WordStore(), clock=still)

    found = first_difference(recorded, run(program(*operations), WordStore(*contents), clock=still))

    assert found is None if said is None else (found or "").startswith(said)


# -- reading ------------------------------------------------------------------------------------


def test_a_program_is_read_from_a_file() -> None:
    raw = document(
        {"op": "recall", "query": 'where\'s the "key"?', "k": 3},
        {"op": "score", "memory_id": "m0"},
        {"memory_id": "m0", "op": "cite"},
    )

    assert read_program(raw) == program(
        Recall(query='where\'s the "key"?', k=3), Score(memory_id="m0"), Cite(memory_id="m0")
    )


@given(operations=operations)
def test_a_program_written_down_is_read_the_same(operations: list[Operation]) -> None:
    written = Program(operations=tuple(operations))

    assert read_program(msgspec.json.encode(written)) == written


def test_an_empty_program_can_be_read_and_is_refused_when_it_runs() -> None:
    read = read_program(document())

    with pytest.raises(EmptyProgram):
        run(read, WordStore(), clock=still)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "no JSON"),
        (b"recall('tea')", "no JSON"),
        (b"\xff{}", "byte 1 is not UTF-8"),
        (b"[]", "not an object with a list"),
        (b'{"operations": {}}', "not an object with a list"),
        (b'{"operations": [], "budget": {"fuel": 9}}', 'unknown field "budget"'),
        (b'{"operations": [], "operations": []}', "stands twice"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"operations": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper"),
        (document("recall"), 'operation 1: it is not an object with an "op"'),
        (document({"query": "tea", "k": 1}), 'operation 1: it is not an object with an "op"'),
        (document({"op": "open", "path": "a"}), 'operation 1: unknown operation "open"'),
        (document({"op": "x\n" * 999}), "operation 1: unknown operation"),
        (document({"op": "recall", "query": "tea"}), "operation 1: recall: .*`k`"),
        (document({"op": "recall", "query": 7, "k": 1}), "operation 1: recall: .*query"),
        (document({"op": "recall", "query": "t", "k": "1"}), "operation 1: recall: .*k"),
        (document({"op": "recall", "query": "t", "k": 1.5}), "operation 1: recall: .*k"),
        (document({"op": "recall", "query": "t", "k": 1, "x": 1}), "operation 1: recall: .*x"),
        (document({"op": "recall", "query": "t", "k": 10**30}), "operation 1"),
        (document({"op": "recall", "query": " \n", "k": 1}), "operation 1: query is blank"),
        (document({"op": "cite", "memory_id": ""}), "operation 1: memory_id is blank"),
        (document({"op": "cite", "memory_id": "m" * 201}), "memory_id has 201 characters"),
        (b'{"operations": [{"op": "recall", "query": "\\ud800", "k": 1}]}', "half of a character"),
        (document({"op": "recall", "query": "t" * (10 << 20), "k": 1}), "bytes; a program has"),
        (document(*[{"op": "cite", "memory_id": "m"}] * 10_001), "10,001 operations"),
    ],
)
def test_what_is_no_program_is_refused_in_one_line(raw: bytes, said: str) -> None:
    with pytest.raises(InvalidProgram, match=said) as raised:
        read_program(raw)

    text = str(raised.value)
    assert "\n" not in text
    assert len(text) < 320
    assert isinstance(raised.value, UsageError)


@pytest.mark.parametrize("k", [-1, 101, 10_000])
def test_k_is_from_0_to_100_however_a_program_comes(k: int) -> None:
    said = rf"operation 2: k is {k}; it is a whole number from 0 to 100"
    fine, bad = ({"op": "recall", "query": "t", "k": each} for each in (1, k))
    host = WordStore()

    with pytest.raises(InvalidProgram, match=said):
        read_program(document(fine, bad))
    with pytest.raises(InvalidProgram, match=said):
        run(program(RECALL, Recall(query="t", k=k)), host, clock=still)

    assert host.asked == []


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (Recall(query="t" * 10_000_000, k=1), "query has 10,000,000 characters; at most 10,000"),
        (Recall(query="\udc00", k=1), "half of a character"),
        (Recall(query="t", k=True), "k is true"),
        (Score(memory_id=" "), "memory_id is blank"),
    ],
)
def test_a_program_made_in_python_is_checked_like_one_from_a_file(
    operation: Operation, said: str
) -> None:
    host = WordStore()

    with pytest.raises(InvalidProgram, match=said):
        run(program(operation), host, clock=still)

    assert host.asked == []


def test_a_file_may_be_as_long_as_it_may_be() -> None:
    raw = document({"op": "cite", "memory_id": "m"})

    assert read_program(raw + b" " * (PROGRAM_BYTES_MAX - len(raw))) == program(Cite(memory_id="m"))
    with pytest.raises(InvalidProgram):
        read_program(raw + b" " * (PROGRAM_BYTES_MAX - len(raw) + 1))


def test_a_program_may_have_as_many_operations_as_it_may() -> None:
    raw = document(*[{"op": "cite", "memory_id": "m"}] * OPERATIONS_MAX)

    assert len(read_program(raw).operations) == OPERATIONS_MAX


def refusal(raw: bytes) -> str:
    """Why bytes are no program; nothing if they are one."""
    try:
        read_program(raw)
    except InvalidProgram as error:
        return str(error)
    return ""


@given(raw=st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_a_program_or_be_refused(raw: bytes) -> None:
    said = refusal(raw)

    assert said.startswith("recall program")
    assert "\n" not in said
