"""Recall programs in Python: what they see, what comes of them, their limits, their two forms."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory.code_mode.recall_programs import NOTES, WordStore, ends, partial, play

from tallystick.core.errors import LedgerError, Refused
from tallystick.memory.code_mode import python
from tallystick.memory.code_mode.form import PYTHON_BYTES_MAX, form_of
from tallystick.memory.code_mode.operations import (
    FUEL_MAX,
    HOST_CALL_FUEL,
    PAGE_BYTES,
    PROGRAM_BYTES_MAX,
    PYTHON_FORM,
    Budget,
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
    first_difference,
    run,
)
from tallystick.memory.code_mode.python import (
    ANSWER_BYTES_MAX,
    Calls,
    Gathered,
    ProgramFailed,
    run_python,
)
from tallystick.sandbox.port import HostCall, ProgramCharge
from tallystick.sandbox.wasm.execution import Stopped
from tallystick.sandbox.wasm.sandbox import WasmSandbox

pytestmark = pytest.mark.slow

HOPS = """
person = recall("where does Ada work", 1)[0]["content"]
employer = person.split()[-1]
place = recall(employer + " office", 1)[0]["content"]
FINAL(place.split()[-1])
"""
MANY_CALLS = "for n in range(8):\n    recall('tea', 1)\n"


class Words:
    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


class Slow(WordStore):
    """A store whose scores come when they are let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = threading.Event()
        self.over = threading.Event()

    def score(self, memory_id: str) -> float:
        self.let.wait(30)
        self.over.set()
        return super().score(memory_id)


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.let.set()


def fuelled(fuel: int) -> Budget:
    return msgspec.structs.replace(PYTHON_FORM, fuel=fuel)


# -- what a program sees, and what comes of it ---------------------------------------------------


def test_what_one_recall_gave_is_the_query_of_the_next(sandbox: WasmSandbox) -> None:
    host = WordStore()

    bundle = play(sandbox, HOPS, host)

    assert host.asked == ["recall where does Ada work 1", "recall Brunel office 1"]
    assert bundle.final_answer == "Leeds"
    assert [hit.content for hit in bundle.recalled] == list(NOTES[:2])
    assert (bundle.records_seen, bundle.records_emitted) == (2, 0)


def test_a_program_has_three_functions_and_the_names_that_answer(sandbox: WasmSandbox) -> None:
    bundle = play(
        sandbox, "recall('tea')\nprint(*sorted(n for n in globals() if not n.startswith('_')))"
    )

    assert bundle.final_answer == "FINAL FINAL_VAR SHOW_VARS answer cite recall score"


def test_a_recall_gives_dictionaries_and_ten_unless_told(sandbox: WasmSandbox) -> None:
    host = WordStore(*(f"tea {n}" for n in range(20)))

    bundle = play(sandbox, "notes = recall('tea')\nprint(len(notes), notes[0])", host)

    assert bundle.final_answer == "10 {'id': 'm0', 'content': 'tea 0', 'score': 0.5}"
    assert host.asked == ["recall tea 10"]


@pytest.mark.parametrize(
    ("answering", "answer"),
    [
        ("FINAL('four')", "four"),
        ("print('five')\nFINAL('four')", "four"),
        ("FINAL(4)", "4"),
        ("FINAL('')", ""),
        ("FINAL([1, None])", "[1,null]"),
        ("answer['content'] = 'four'\nanswer['ready'] = True", "four"),
        ("print('\\n four \\n')", "four"),
        ("import sys\nprint('four')\nprint('not this', file=sys.stderr)", "four"),
        ("print(' ')", "- tea is at four"),
        ("answer['content'] = 'not ready'", "- tea is at four"),
        ("'not printed'", "- tea is at four"),
    ],
)
def test_an_answer_is_what_was_given_else_printed_else_assembled(
    sandbox: WasmSandbox, answering: str, answer: str
) -> None:
    bundle = play(sandbox, f"recall('tea', 1)\n{answering}")

    assert bundle.final_answer == answer
    assert bundle.records_emitted == (NOTES[3] in answer)


def test_nothing_recalled_is_said(sandbox: WasmSandbox) -> None:
    class Nothing(WordStore):
        def recall(self, query: str, k: int) -> list[RecallHit]:
            return []

    assert play(sandbox, "recall('tea')", Nothing()).final_answer == "(no relevant memories)"


def test_a_bundle_has_all_that_the_calls_gave(sandbox: WasmSandbox) -> None:
    host = WordStore()
    source = """
first = recall("tea key", 2)
again = recall("tea", 1)
print(score("m3"), score("m0"), cite("m3"))
"""

    bundle = play(sandbox, source, host, tokenizer=Words())

    assert [hit.id for hit in bundle.recalled] == ["m2", "m3", "m3"]
    assert bundle.scores == {"m3": 0.75, "m0": 0.25}
    assert bundle.receipts == ("receipt of m3",)
    assert bundle.final_answer == "0.75 0.25 receipt of m3"
    assert bundle.guest_token_cost == 6 + 4 * 5
    assert bundle.answer_tokens is not None
    assert (bundle.answer_tokens.tokens, bundle.answer_tokens.tokenizer) == (5, "words")
    assert bundle.fuel_used > 5 * HOST_CALL_FUEL
    assert (bundle.records_seen, bundle.records_emitted) == (3, 0)


def test_every_hit_whose_text_stands_in_the_answer_counts_each_time(sandbox: WasmSandbox) -> None:
    source = "recall('tea', 2)\nrecall('tea', 1)\nprint(recall('tea', 1)[0]['content'])"

    bundle = play(sandbox, source)

    assert (bundle.records_seen, bundle.records_emitted) == (4, 3)


def test_a_program_can_go_on_from_a_refusal(sandbox: WasmSandbox) -> None:
    source = """
for id in ("m9", recall("tea", 1)[0]["id"]):
    try:
        print(cite(id))
    except HostError as error:
        print(error.kind, "-", error)
"""

    bundle = play(sandbox, source)

    assert bundle.final_answer == "Refused - note m9 was not recalled here\nreceipt of m3"
    assert bundle.receipts == ("receipt of m3",)


contents = st.text(alphabet="ab ", max_size=24)


@given(contents=st.lists(contents, max_size=8), answer=st.none() | contents, long=st.booleans())
def test_hits_in_an_answer_are_counted_alike_in_few_and_in_many(
    contents: list[str], answer: str | None, long: bool
) -> None:
    hits = [RecallHit(id="m", content=each, score=1.0) for each in contents]
    final = None if answer is None else f"{answer} {' '.join(contents[::2])}"
    gathered = Gathered(bytes_max=0, answer_bytes_max=9_999, recalled=hits, operations=1)

    with pytest.MonkeyPatch.context() as patch:
        if long:
            patch.setattr(python, "_LOOKED_THROUGH_CHARS_MAX", 0)
        bundle = gathered.bundle(final, fuel_used=7, tokenizer=None)

    assert bundle == bundle_of(hits, operations=1, fuel_used=7, answer=final)
    assert not gathered.answer_cut


operations = st.lists(
    st.one_of(
        st.builds(
            Recall,
            query=st.sampled_from(["tea", 'the "key"', "Ada\n\\'s"]),
            k=st.integers(1, 100),
        ),
        st.builds(Score, memory_id=st.sampled_from(["m0", "m1"])),
    ),
    min_size=1,
    max_size=6,
)


def as_python(operations: list[Operation]) -> str:
    def line(operation: Operation) -> str:
        match operation:
            case Recall(query=query, k=k):
                return f"recall({query!r}, {k})"
            case Score(memory_id=id):
                return f"score({id!r})"
            case Cite(memory_id=id):
                return f"cite({id!r})"

    return "\n".join(map(line, operations))


@given(operations=operations)
def test_operations_written_in_python_gather_what_they_do_as_operations(
    sandbox: WasmSandbox, operations: list[Operation]
) -> None:
    by_list = run(Program(operations=tuple(operations)), WordStore(), clock=lambda: 0.0)

    by_python = play(sandbox, as_python(operations))

    assert by_python.fuel_used > by_list.fuel_used
    same_fuel = msgspec.structs.replace(by_python, fuel_used=by_list.fuel_used)
    assert first_difference(by_list, same_fuel) is None


@given(operations=operations, seed=st.integers(0, 3))
def test_a_program_run_again_gives_the_same_bytes(
    sandbox: WasmSandbox, operations: list[Operation], seed: int
) -> None:
    source = (
        f"import random, time\n{as_python(operations)}\n"
        "print({str(n) for n in range(9)}, random.random(), time.time(), id(recall))"
    )

    one, other = (play(sandbox, source, seed=seed) for _ in range(2))

    assert msgspec.json.encode(one) == msgspec.json.encode(other)


def test_another_seed_is_other_luck(sandbox: WasmSandbox) -> None:
    source = "import random\nrecall('tea')\nprint(random.random())"

    assert play(sandbox, source).final_answer != play(sandbox, source, seed=1).final_answer


# -- fuel ---------------------------------------------------------------------------------------


def test_exactly_the_fuel_is_allowed_and_one_less_halts(sandbox: WasmSandbox) -> None:
    used = play(sandbox, HOPS).fuel_used

    assert play(sandbox, HOPS, budget=fuelled(used)).fuel_used == used
    halted = ends(Halted, sandbox, HOPS, budget=fuelled(used - 1))
    assert str(halted) == f"guest fuel exhausted ({used - 1} units consumed)"
    assert (halted.budget, halted.fuel_used) == (used - 1, used)
    assert partial(halted).records_seen == 2


def test_a_call_that_cannot_be_paid_is_charged_and_not_done(sandbox: WasmSandbox) -> None:
    host = WordStore()

    halted = ends(Halted, sandbox, MANY_CALLS, host, budget=fuelled(5_500_000))

    assert len(host.asked) == 4
    assert 5 * HOST_CALL_FUEL < halted.fuel_used < 6 * HOST_CALL_FUEL + 500_000
    assert halted.fuel_used > 5_500_000
    assert partial(halted).records_seen == 4
    assert partial(halted).guest_token_cost == -(-len(partial(halted).final_answer) // 4) + 4 * 4


@pytest.fixture(scope="module")
def whole(sandbox: WasmSandbox) -> int:
    """What many calls take."""
    return play(sandbox, MANY_CALLS).fuel_used


@given(fuel=st.integers(0, 12_000_000))
def test_no_program_ends_well_that_used_more_fuel_than_it_had(
    sandbox: WasmSandbox, whole: int, fuel: int
) -> None:
    host = WordStore()

    if fuel < whole:
        ends(Halted, sandbox, MANY_CALLS, host, budget=fuelled(fuel))
        assert len(host.asked) <= fuel // HOST_CALL_FUEL
    else:
        assert play(sandbox, MANY_CALLS, host, budget=fuelled(fuel)).fuel_used == whole


def test_what_a_program_does_after_its_last_call_is_paid_too(
    sandbox: WasmSandbox, whole: int
) -> None:
    source = f"{MANY_CALLS}for n in range(1_000): pass"

    halted = ends(Halted, sandbox, source, budget=fuelled(whole + 200_000))

    assert halted.fuel_used > whole + 200_000
    assert partial(halted).records_seen == 8


@pytest.mark.parametrize("fuel", [1, 100_000])
def test_a_program_without_the_fuel_to_begin_halts(sandbox: WasmSandbox, fuel: int) -> None:
    host = WordStore()

    assert ends(Halted, sandbox, HOPS, host, budget=fuelled(fuel)).fuel_used == fuel
    assert host.asked == []


def test_a_loop_halts_at_the_same_fuel_every_time(sandbox: WasmSandbox) -> None:
    source = "while True:\n    recall('tea', 1)"

    used = {ends(Halted, sandbox, source, budget=fuelled(20_000_000)).fuel_used for _ in range(3)}

    assert len(used) == 1


def test_the_largest_fuel_is_a_limit_too(sandbox: WasmSandbox) -> None:
    assert play(sandbox, HOPS, budget=fuelled(FUEL_MAX)).final_answer == "Leeds"


# -- time ---------------------------------------------------------------------------------------


def test_no_time_is_over_before_the_first_operation(sandbox: WasmSandbox) -> None:
    host = WordStore()

    over = ends(
        WallTimeExceeded,
        sandbox,
        HOPS,
        host,
        budget=msgspec.structs.replace(PYTHON_FORM, wall_ms=0),
    )

    assert str(over) == "guest exceeded wall-time budget 0ns"
    assert (over.fuel_used, host.asked) == (0, [])
    assert partial(over).recalled == ()


def test_no_fuel_is_found_before_no_time(sandbox: WasmSandbox) -> None:
    host = WordStore()

    halted = ends(Halted, sandbox, HOPS, host, budget=Budget(fuel=0, wall_ms=0))

    assert str(halted) == "guest fuel exhausted (0 units consumed)"
    assert host.asked == []


def test_time_interrupts_a_program_that_asks_nothing(sandbox: WasmSandbox) -> None:
    budget = Budget(fuel=FUEL_MAX, wall_ms=200)

    over = ends(
        WallTimeExceeded, sandbox, "recall('tea', 1)\nprint('so far')\nwhile True: pass",
        budget=budget,
    )  # fmt: skip

    assert str(over) == "guest exceeded wall-time budget 200ms"
    assert partial(over).final_answer == "so far"
    assert partial(over).records_seen == 1


def test_time_interrupts_a_store_that_does_not_answer(sandbox: WasmSandbox, slow: Slow) -> None:
    budget = Budget(fuel=FUEL_MAX, wall_ms=200)

    over = ends(WallTimeExceeded, sandbox, "recall('tea', 1)\nscore('m1')", slow, budget=budget)
    gathered = partial(over)
    slow.let.set()

    assert slow.over.wait(10)
    assert over.partial == gathered
    assert gathered.scores == {}
    assert gathered.records_seen == 1


@pytest.mark.parametrize(
    ("fuel", "ends_at", "stop"), [(0, 0.0, "fuel"), (10**9, 0.0, "deadline"), (0, 1e18, "fuel")]
)
def test_fuel_then_time_is_looked_at_before_a_call_is_done(
    fuel: int, ends_at: float, stop: str
) -> None:
    host = WordStore()
    gathered = Gathered(bytes_max=9_999, answer_bytes_max=9_999)
    calls = Calls(host, gathered, fuel=fuel, ends_at=ends_at)

    with pytest.raises(Stopped) as raised:
        calls.serve(HostCall(index=0, name="recall", request=b'["recall",["tea",1],{}]', fuel=5))

    assert raised.value.stop == stop
    assert (host.asked, gathered.operations) == ([], 0)
    assert calls.fuel_used(ProgramCharge(fuel=5)) == HOST_CALL_FUEL + 5


def test_a_store_that_gives_up_in_time_ends_the_program_as_time_does(sandbox: WasmSandbox) -> None:
    class GivesUp(WordStore):
        def score(self, memory_id: str) -> float:
            raise TimeoutError

    source = "recall('tea', 1)\ntry:\n    score('m1')\nexcept BaseException:\n    print('caught')"

    over = ends(WallTimeExceeded, sandbox, source, GivesUp())

    assert partial(over).records_seen == 1
    assert "caught" not in partial(over).final_answer


def test_a_run_that_is_cancelled_ends_at_once(sandbox: WasmSandbox, slow: Slow) -> None:
    async def cancelled() -> None:
        budget = msgspec.structs.replace(PYTHON_FORM, wall_ms=60_000)
        running = asyncio.ensure_future(
            run_python("score('m1')", slow, sandbox=sandbox, budget=budget)
        )
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(cancelled(), 10))


# -- memory -------------------------------------------------------------------------------------


def test_pages_count_above_the_interpreters_own(sandbox: WasmSandbox) -> None:
    source = "notes = recall('tea')\nx = bytes(4_000_000)\nprint(len(x))"

    tight = play(sandbox, HOPS, budget=Budget(fuel=10**9, mem_pages=1, wall_ms=2_000))
    assert tight.final_answer == "Leeds"
    assert play(sandbox, source).final_answer == "4000000"
    over = ends(
        SandboxViolation, sandbox, source, budget=Budget(fuel=10**9, mem_pages=16, wall_ms=2_000)
    )
    assert str(over) == (
        "guest tried to access memory beyond 16 pages which is stripped from the sandbox"
    )
    assert over.capability == "memory beyond 16 pages"
    assert partial(over).records_seen == 4


def test_what_the_store_gives_takes_room_as_well(sandbox: WasmSandbox) -> None:
    # Id and content of the first fill the page to its last byte.
    host = WordStore("x" * (PAGE_BYTES - 2), "y")
    budget = Budget(fuel=10**9, mem_pages=1, wall_ms=2_000)
    source = "try:\n    recall('x', {})\nexcept BaseException: pass\nprint(1)"

    over = ends(SandboxViolation, sandbox, source.format(2), host, budget=budget)

    assert over.capability == "memory beyond 1 pages"
    assert [hit.id for hit in partial(over).recalled] == ["m0"]
    assert play(sandbox, source.format(1), host, budget=budget).final_answer == "1"


def test_more_pages_than_there_can_be_are_as_many_as_there_can(sandbox: WasmSandbox) -> None:
    budget = Budget(fuel=10**9, mem_pages=65_536, wall_ms=2_000)

    assert play(sandbox, HOPS, budget=budget).final_answer == "Leeds"


# -- other ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["print('hello')", "FINAL('hello')", "recall", "# recall()"])
def test_a_program_that_recalls_nothing_is_refused_after_it_ran(
    sandbox: WasmSandbox, source: str
) -> None:
    empty = ends(EmptyProgram, sandbox, source)

    assert str(empty) == "guest emitted no recall steps — refusing an empty bundle"
    assert 0 < empty.fuel_used < HOST_CALL_FUEL
    assert partial(empty).final_answer == (
        "hello" if "hello" in source else "(no relevant memories)"
    )


@pytest.mark.parametrize("source", ["", " \n\t"])
def test_a_program_of_nothing_is_refused_before_its_budget_is_looked_at(
    sandbox: WasmSandbox, source: str
) -> None:
    empty = ends(EmptyProgram, sandbox, source, budget=Budget(fuel=0, wall_ms=0))

    assert (empty.partial, empty.fuel_used) == (None, 0)


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("nosuch", ", line 2: NameError: name 'nosuch' is not defined"),
        ("def f():\n    return 1 / 0\nf()", ", line 3: ZeroDivisionError: division by zero"),
        ("raise ValueError('a\\nb\\x1b[0m')", ", line 2: ValueError: a b [0m"),
        ("raise OSError('mine')", ", line 2: OSError: mine"),
        ("raise FileNotFoundError(2, 'mine')", ", line 2: FileNotFoundError: [Errno 2] mine"),
        ("{}['HOME']", ", line 2: KeyError: 'HOME'"),
        ("exec('(')", ", line 2: SyntaxError: '(' was never closed (<string>, line 1)"),
        ("import nosuch", ", line 2: ModuleNotFoundError: No module named 'nosuch'"),
        ("raise SystemExit(3)", ": SystemExit: the program ended itself with exit code 3"),
        ("recall()", ", line 2: HostError: TypeError: recall() missing 1 required positional"),
        ("raise ValueError('x' * 9_999)", ", line 2: ValueError: xxx"),
    ],
)
def test_a_program_that_fails_says_where_and_keeps_what_it_had(
    sandbox: WasmSandbox, failing: str, said: str
) -> None:
    failed = ends(ProgramFailed, sandbox, f"FINAL(recall('tea', 1)[0]['content'])\n{failing}")

    assert str(failed).startswith(f"guest program failed{said}")
    assert len(str(failed)) < 300
    assert "\n" not in str(failed)
    assert partial(failed).records_seen == 1
    assert partial(failed).final_answer == "tea is at four"


def test_a_program_may_end_itself(sandbox: WasmSandbox) -> None:
    assert play(sandbox, "print(len(recall('tea')))\nraise SystemExit").final_answer == "4"


def test_what_the_store_refuses_names_the_operation_as_in_the_other_form(
    sandbox: WasmSandbox,
) -> None:
    failed = ends(OperationFailed, sandbox, "recall('tea', 1)\ncite('m9')")

    assert str(failed) == "operation 2 (cite): note m9 was not recalled here"
    assert isinstance(failed.__cause__, Refused)
    assert partial(failed).records_seen == 1


def test_another_error_after_a_refusal_is_that_error(sandbox: WasmSandbox) -> None:
    source = "try:\n    cite('m9')\nexcept HostError:\n    raise HostError('mine')"

    assert ends(ProgramFailed, sandbox, source).why == "HostError: mine"


@pytest.mark.parametrize("error", [ZeroDivisionError("a fault"), LedgerError("gone")])
def test_a_fault_of_the_store_is_not_the_programs_to_handle(
    sandbox: WasmSandbox, error: Exception
) -> None:
    class Faulty(WordStore):
        def score(self, memory_id: str) -> float:
            raise error

    raised = ends(
        type(error), sandbox, "try:\n    score('m1')\nexcept BaseException: pass", Faulty()
    )

    assert raised is error


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("recall('tea')\ndef (:", "no Python: line 2: invalid syntax"),
        ("recall('tea')\n  x = 1", "no Python: line 2: unexpected indent"),
        ("return 1", "no Python: line 1: 'return' outside function"),
        ("x = '\0'", "no Python: source code string cannot contain null bytes"),
        ("(" * 5_000, "no Python: Parser stack overflowed"),
        ("x = '\ud800'", "it holds half of a character"),
        ("#" * (PYTHON_BYTES_MAX + 1), "it has 65,537 bytes; a program has at most 65,536"),
    ],
)
def test_what_is_no_python_is_not_run(sandbox: WasmSandbox, source: str, said: str) -> None:
    host = WordStore()

    invalid = ends(InvalidProgram, sandbox, source, host)

    assert invalid.why.startswith(said)
    assert host.asked == []


def test_an_answer_is_bounded_in_whatever_way_it_is_given(sandbox: WasmSandbox) -> None:
    note = "é" * 1_000
    host = WordStore(*(f"{note}{n:03}" for n in range(100)))
    long = f"x = 'x' * {ANSWER_BYTES_MAX}"
    programs = [
        f"recall('a', 1)\n{long}\nFINAL(x + 'x')",
        f"recall('a', 1)\n{long}\nFINAL(x * 5)",
        f"recall('a', 1)\n{long}\nprint(x)",
        "recall('a', 100)\nrecall('a', 100)",
    ]

    for source in programs:
        over = ends(SandboxViolation, sandbox, source, host)

        assert over.capability == "output beyond 262,144 bytes"
        assert len(partial(over).final_answer.encode()) <= ANSWER_BYTES_MAX
    assert partial(over).final_answer.count("\n") == 129
    assert partial(over).records_emitted == 200
    assert len(play(sandbox, f"recall('a', 1)\n{long}\nFINAL(x)", host).final_answer) == (
        ANSWER_BYTES_MAX
    )


# -- which form a file has ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "form"),
    [
        (b'{"operations": []}', "operations"),
        (b'\n {"operations": [{"op": "recall", "query": "tea", "k": 3}]}\n', "operations"),
        (b'\xef\xbb\xbf{"operations": []}', "operations"),
        (b'{"budget": 1}', "operations"),
        (b'{"operations": [], "operations": []}', "operations"),
        (b'{"operations": [1e999]}', "operations"),
        (b'{"operations": ' + b"[" * 100_000, "operations"),
        (b'{"operations": "' + b"x" * (PYTHON_BYTES_MAX + 9) + b'"}', "operations"),
        (b"print(recall('tea'))", "python"),
        (b"\xef\xbb\xbfprint(recall('tea'))", "python"),
        (b"{recall('tea')[0]['id']}", "python"),
        (b"# only a comment", "python"),
        (b"[]", "python"),
        (b"x = '\\d'", "python"),
        ("print('größer')".encode(), "python"),
        # What a newer Python reads is the guest's to judge.
        (b'd = {}\nprint(f"{d["a"]}")', "python"),
        (b"type Note = dict[str, object]", "python"),
        (b"def first[T](notes: list[T]) -> T: return notes[0]", "python"),
        (b"try:\n    pass\nexcept KeyError, IndexError:\n    pass", "python"),
        (b"x = " + b"-" * 20_000 + b"1", "python"),
    ],
)
def test_a_file_is_in_one_of_two_forms(raw: bytes, form: str) -> None:
    assert form_of(raw) == form


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "recall program: it is empty"),
        (b" \n\t", "recall program: it is empty"),
        (b"\xef\xbb\xbf", "recall program: it is empty"),
        (b"ab\xff", "recall program: byte 3 is not UTF-8"),
        (b"x = 1\ndef (:\n", "recall program: no Python: line 2: invalid syntax"),
        (b"x = 1\n  y = 2", "recall program: no Python: line 2: unexpected indent"),
        (b"please recall the tea", "recall program: no Python: line 1: invalid syntax"),
        (b"x = '\0'", "recall program: no Python: source code string cannot contain null bytes"),
        (
            b'{"operations": [}',
            "recall program: no JSON: Expecting value at character 17; no Python",
        ),
        (b"#" * (PYTHON_BYTES_MAX + 1), "recall program: it has 65,537 bytes; a program has at"),
        (b" " * (PROGRAM_BYTES_MAX + 1), "recall program: it has 1,048,577 bytes; a program has"),
    ],
)
def test_a_file_in_neither_form_is_refused_in_one_line(raw: bytes, said: str) -> None:
    with pytest.raises(InvalidProgram) as raised:
        form_of(raw)

    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_what_a_newer_python_reads_runs(sandbox: WasmSandbox) -> None:
    source = 'notes = recall("tea", 1)\nprint(f"{notes[0]["content"]}")'

    assert form_of(source.encode()) == "python"
    assert play(sandbox, source).final_answer == "tea is at four"


def said_of(raw: bytes) -> str:
    """The form of bytes, or why they have none."""
    try:
        return form_of(raw)
    except InvalidProgram as error:
        return str(error)


@given(raw=st.one_of(st.binary(max_size=200), st.text(max_size=80).map(str.encode)))
def test_any_bytes_have_a_form_or_are_refused_in_one_line(raw: bytes) -> None:
    said = said_of(raw)

    assert said in ("operations", "python") or said.startswith("recall program: ")
    assert said.isprintable()
