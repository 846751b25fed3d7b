"""Models that behave badly: each run ends, for the right reason, within its caps, and replays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_exec import Tally

from tallystick.core.charge import RunLimits
from tallystick.core.records import ProgramFinished, QueryRefused, StopReason
from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import ModelError
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelCall, ModelDouble, block
from tallystick.testing.runs import Played, play

# Bad models write programs that only the guest can stop.
NEEDS_GUEST = True

pytestmark = pytest.mark.slow

slow = pytest.mark.slow
Says = Callable[[int], str | Exception]
WIDE = RunLimits(tokens=100_000_000)
FEW = RunLimits(tokens=100_000_000, turns=4)
ONE = RunLimits(turns=1)
FEW_CALLS = RunLimits(host_calls=50, turns=3)


def played(
    sandbox: WasmSandbox, says: Says, limits: RunLimits = WIDE, *, inside: Says | None = None
) -> Played:
    """Play a model, and check what holds of every run, however it was ended."""

    def said(call: ModelCall) -> str | Exception:
        own = "The task: what is it?" in call.text
        return (says if own or inside is None else inside)(call.number)

    model = ModelDouble(said)
    found = play(sandbox, model, limits=limits, pricing=PRICING)
    charge = found.run.charge
    assert charge.turns <= limits.turns
    assert charge.tokens_in + charge.tokens_out <= limits.tokens
    assert limits.usd is None or (charge.usd or 0) <= limits.usd
    assert model.billed <= (charge.usd or 0)
    assert verify_ledger(found.ledger).ok
    for row in found.ledger.runs():
        report = found.session.replay(row.run)
        assert report.held, report.divergence
    return found


def repeated(source: str) -> Says:
    """A program each time, never the same one twice."""
    return lambda number: block(f"{source}  # {number}")


def once(first: str, then: str = "FINAL('done')") -> Says:
    return lambda number: first if number == 0 else block(then)


# -- it never finishes, always fails, or only talks ----------------------------------------------


@pytest.mark.parametrize(
    ("says", "limits", "stop", "detail"),
    [
        (lambda number: block(f"print({number})"), RunLimits(), "max_turns", "all 30 turns"),
        (repeated("print('x' * 4_000)"), RunLimits(), "budget", "tokens: "),
        (repeated("print('x' * 4_000)"), RunLimits(usd=20_000_000), "budget", "usd: "),
        (repeated("while True: pass"), RunLimits(wall_ms=300), "deadline", "300 ms passed"),
        (repeated("while True: print('x' * 9_000)"), ONE, "max_turns", "all 1 turns"),
        (repeated("while 1: budget.remaining()"), FEW_CALLS, "max_turns", "all 3 turns"),
        (repeated("x = 'x' * 10**10"), FEW, "max_turns", "all 4 turns"),
        pytest.param(repeated("(f := lambda: f())()"), ONE, "max_turns", "all 1", marks=slow),
        (repeated("raise ValueError('no')"), FEW, "max_turns", "all 4 turns"),
        (repeated("import sys; sys.exit(3)"), FEW, "max_turns", "all 4 turns"),
        (lambda number: block("raise ValueError"), WIDE, "no_progress", "the same result again"),
        (lambda number: f"It is {number}, I think.", WIDE, "no_progress", "nothing to run"),
        (lambda number: "", WIDE, "no_progress", "nothing to run"),
        (lambda number: "```\n" * 10_000, WIDE, "no_progress", "nothing to run"),
        (lambda number: "RUN(ls)", WIDE, "refused", "is not available"),
        (
            lambda number: ModelError(reason="auth_failure", message="no key"),
            WIDE,
            "model_error",
            "auth_failure: no key",
        ),
        (
            lambda number: ModelError(reason="server_error", message="later", billed=False),
            RunLimits(retries=1),
            "model_error",
            "server_error: later (2 attempts)",
        ),
        (
            lambda number: ModelError(reason="rate_limit", message="later", retry_after_ms=10**9),
            WIDE,
            "model_error",
            "would be too late",
        ),
        (lambda number: RuntimeError("a bug"), WIDE, "model_error", "broke (RuntimeError)"),
    ],
)  # fmt: skip
def test_a_run_ends_for_its_own_reason(
    sandbox: WasmSandbox, says: Says, limits: RunLimits, stop: StopReason, detail: str
) -> None:
    found = played(sandbox, says, limits)

    assert found.run.stop == stop
    assert detail in found.run.detail
    assert found.run.partial is (found.run.answer is not None)


def test_what_it_had_is_kept_where_it_never_finishes(sandbox: WasmSandbox) -> None:
    found = played(sandbox, lambda number: block(f"print('found', {number})"), FEW)

    assert (found.run.answer, found.run.partial) == ("found 3", True)


def test_a_program_that_fails_at_last_does_not_take_away_what_was_found(
    sandbox: WasmSandbox,
) -> None:
    found = played(sandbox, once(block("print('found it')"), "1 / 0"), FEW)

    assert found.run.answer == "found it"


# -- it says too much, or what cannot be said ----------------------------------------------------

MEGABYTES = 10_000_000
BLOCKS = "".join(f"{block(f'n{n} = {n}')}\n\n" for n in range(999))


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        pytest.param("word " * (MEGABYTES // 5), "done", marks=slow),
        pytest.param(block(f"a = '{'x' * MEGABYTES}'\nFINAL(len(a))"), "done", marks=slow),
        pytest.param("FINAL(" + "y" * MEGABYTES + ")", "done", marks=slow),
        pytest.param(BLOCKS + block("FINAL(n7)"), "7", marks=slow),
        (BLOCKS + BLOCKS, "done"),
        (block("FINAL('x' * 5_000_000)"), "x" * 5_000_000),
        (block("FINAL('a\\0b')"), "a\0b"),
        (block("x = 'a\0b'\nFINAL(x)"), "done"),
        (block("FINAL('a\\ud800b')"), "a?b"),
        (block("a = []; a.append(a)\nFINAL(a)"), "[[...]]"),
        (block("print('\\ud800\\0')"), "done"),
    ],
    ids=[
        "10 MB of prose", "10 MB of program", "10 MB of answer", "1,000 blocks", "2,000 blocks",
        "5 MB from a program", "NUL", "NUL in a program", "half a pair", "a ring", "printed",
    ],
)  # fmt: skip
def test_too_much_or_unreadable_is_no_end_of_a_run(
    sandbox: WasmSandbox, first: str, answer: str
) -> None:
    assert played(sandbox, once(first)).run.answer == answer


@slow
def test_an_answer_of_a_hundred_megabytes_is_refused_to_the_program(sandbox: WasmSandbox) -> None:
    found = played(sandbox, once(block("FINAL('x' * 100_000_000)")))

    assert found.run.answer == "done"
    first = next(each for each in found.records if isinstance(each, ProgramFinished))
    assert first.failure is not None


def test_what_a_model_says_to_a_program_may_be_long_or_hold_a_nul(sandbox: WasmSandbox) -> None:
    said = "a\0" * (MEGABYTES // 2)
    program = "got = llm_query('a\\0b')\nFINAL([len(got), got[:2] == 'a\\0'])"

    found = played(sandbox, once(block(program)), inside=lambda number: said)

    assert found.run.answer == f"[{MEGABYTES},true]"


def test_what_no_model_can_read_is_told_to_the_program(sandbox: WasmSandbox) -> None:
    program = (
        "try:\n    llm_query('\\ud800')\nexcept Exception as error:\n    FINAL(repr(error)[:18])"
    )

    assert played(sandbox, once(block(program))).run.answer == "UnicodeEncodeError"


# -- it asks for too much ------------------------------------------------------------------------

COUNTED = "FINAL([len(found), sum(isinstance(each, str) for each in found)])"


@pytest.mark.parametrize("call", ["llm_query_batched", "rlm_query_batched"])
def test_more_than_a_batch_holds_is_refused_as_a_whole(sandbox: WasmSandbox, call: str) -> None:
    program = f"try:\n    {call}(['q'] * 10_001)\nexcept HostError as error:\n    FINAL(str(error))"

    assert "at most 10,000" in (played(sandbox, once(block(program))).run.answer or "")


@slow
def test_ten_thousand_calls_are_made_as_far_as_the_budget_pays(sandbox: WasmSandbox) -> None:
    program = block(f"found = llm_query_batched(['q'] * 10_000)\n{COUNTED}")

    found = played(
        sandbox, once(program), RunLimits(tokens=20_000), inside=lambda number: "said" * 20
    )

    asked, answered = eval(found.run.answer or "")
    assert asked == 10_000
    assert 0 < answered < 1_000
    refused = [each for each in found.records if isinstance(each, QueryRefused)]
    assert len(refused) == asked - answered


@slow
def test_ten_thousand_children_are_begun_as_far_as_the_budget_pays(sandbox: WasmSandbox) -> None:
    program = block(f"found = rlm_query_batched(['q'] * 10_000)\n{COUNTED}")

    found = played(
        sandbox, once(program), RunLimits(tokens=20_000), inside=lambda number: block("FINAL('a')")
    )

    asked, answered = eval(found.run.answer or "")
    assert asked == 10_000
    assert 0 < answered < 200
    # What nothing is left for is refused and not begun: it would cost an interpreter to say so.
    assert len(found.ledger.runs()) < answered + 100


def test_a_run_that_asks_for_itself_for_ever_is_asked_directly_in_the_end(
    sandbox: WasmSandbox,
) -> None:
    def inside(number: int) -> str:
        return block("FINAL(rlm_query('deeper'))") if number < 11 else "the ground"

    found = played(sandbox, inside, inside=inside)

    assert found.run.answer == "the ground"
    runs = [row.run for row in found.ledger.runs()]
    assert len(runs) == 11
    said = [
        each for each in records_of(found.ledger, runs[-1]) if isinstance(each, ProgramFinished)
    ]
    assert "asked directly" in said[0].stderr


@pytest.mark.parametrize(
    "limits",
    [
        RunLimits(tokens=6_000),
        RunLimits(usd=4_000_000),
        pytest.param(RunLimits(tokens=20_000), marks=slow),
        pytest.param(RunLimits(tokens=10**9, wall_ms=3_000), marks=slow),
    ],
)
# A call that a deadline comes before is never begun, and Python says so.
@pytest.mark.filterwarnings("ignore:coroutine '.*_awaited' was never awaited:RuntimeWarning")
def test_a_run_that_asks_for_itself_ten_times_over_comes_to_an_end(
    sandbox: WasmSandbox, limits: RunLimits
) -> None:
    def says(number: int) -> str:
        return block(f"FINAL(len(rlm_query_batched(['deeper'] * 10)))  # {number}")

    found = played(sandbox, says, limits)

    assert found.run.stop in ("answered", "budget", "deadline")


# -- children that behave badly ------------------------------------------------------------------

TRIED = (
    "try:\n    FINAL({call})\nexcept HostError as error:\n    FINAL(f'{{error.kind}}: {{error}}')"
)


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        (repeated("x = 1"), "ChildStopped: max_turns: all 4 turns used"),
        (repeated("raise ValueError('no')"), "ChildStopped: max_turns: all 4 turns used"),
        (lambda number: f"Well, {number}.", "ChildStopped: no_progress: 3 replies in a row"),
        (
            lambda number: ModelError(reason="content_policy", message="not this"),
            "ChildStopped: model_error: content_policy: not this",
        ),
        (lambda number: RuntimeError("a bug"), "ChildStopped: model_error: unknown: the backend"),
        (lambda number: block("FINAL('')"), ""),
        (lambda number: block("print('half of it')"), "What it had: half of it"),
    ],
)
def test_a_child_that_comes_to_nothing_is_an_error_that_the_program_sees(
    sandbox: WasmSandbox, inside: Says, told: str
) -> None:
    program = block(TRIED.format(call="rlm_query('q', context='c')"))

    found = played(sandbox, lambda number: program, FEW, inside=inside)

    assert found.run.stop == "answered"
    assert told in (found.run.answer or "")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("rlm_query('q', context='')", "'str' 0"),
        ("rlm_query('q', context='a\\0b')", "'str' 3"),
        ("rlm_query('q' * 100_000, context='c')", "'str' 1"),
        ("rlm_query('', context='c')", "'str' 1"),
        ("rlm_query('q', context=['a', 'b', 'a'])", "3"),
        ("rlm_query('q', context={1: 'a', 2: 'b'})", "2"),
        ("rlm_query('q', context={'../x': '', 'a\\0b': '', '__init__': '', 'n' * 5_000: ''})", "4"),
        ("rlm_query('q', context=['a'] * 10_001)", "UsageError: context 0: 10,001 texts"),
        ("rlm_query('q', context={'a': {'b': 'c'}})", "UsageError: context 0: a text"),
        ("rlm_query('q', context=b'bytes')", "UsageError: context 0: a text"),
        ("rlm_query('q', context=7)", "UsageError: context 0: a text"),
        pytest.param("rlm_query('q', context='x' * 10_000_000)", "request of 10,000,0", marks=slow),
        ("rlm_query('q', model='other')", "UnknownModel: model 'other' is not for programs"),
        ("rlm_query_batched(['q', 'q'], model='other')", "UnknownModel: model 'other'"),
    ],
)  # fmt: skip
def test_whatever_a_child_is_given_is_read_or_refused(
    sandbox: WasmSandbox, call: str, told: str
) -> None:
    reads = block("FINAL(f'{type(context).__name__!r} {len(context)}')")

    found = played(
        sandbox, lambda number: block(TRIED.format(call=call)), inside=lambda number: reads
    )

    assert found.run.stop == "answered"
    assert told in (found.run.answer or "")


def test_one_of_a_batch_that_comes_to_nothing_leaves_the_others(sandbox: WasmSandbox) -> None:
    program = (
        "found = rlm_query_batched(['q'] * 4, contexts=['1', 'x', '3', 'y'])\n"
        "FINAL([each if isinstance(each, str) else each.kind for each in found])"
    )

    found = played(
        sandbox,
        once(block(program)),
        RunLimits(tokens=10_000_000, turns=3),
        inside=lambda number: block(f"FINAL(int(context) * 2)  # {number}"),
    )

    assert found.run.answer == '["2","ChildStopped","6","ChildStopped"]'


# -- as a user meets them ------------------------------------------------------------------------


@slow
@pytest.mark.parametrize(
    ("reply", "words", "code"),
    [
        ({"text": ""}, ("--strategy", "code"), 1),
        ({"text": block("print(1)\nraise ValueError")}, ("--max-turns", "2"), 3),
        ({"text": block("while True: pass")}, ("--timeout", "1"), 3),
        ({"text": "", "error": "no key", "reason": "auth_failure"}, (), 5),
    ],
)
def test_the_exit_code_says_whose_fault_it_was(
    tmp_path: Path, reply: dict[str, Any], words: tuple[str, ...], code: int
) -> None:
    (tmp_path / "bad.jsonl").write_text("\n".join([json.dumps(reply)] * 10))
    tally = Tally(tmp_path)

    done = tally("run", "what is it?", "-m", "scripted:bad.jsonl", *words)

    assert done.returncode == code, done.stderr
    assert tally("verify").returncode == 0
    assert tally("replay", "last").returncode == 0
