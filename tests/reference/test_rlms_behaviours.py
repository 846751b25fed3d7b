"""What programs written for the rlms package find here too: names, answers, calls and blocks.

`docs/compare.md` has the whole table, with what differs. These are the rows that are shared.
"""

from __future__ import annotations

import pytest

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.machine.commands import Code
from tallystick.core.machine.reply import parse_reply
from tallystick.core.records import ChildBegun, ProgramFinished, Record
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.port import ModelError
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelCall, ModelDouble, block
from tallystick.testing.runs import Played, play

DONE = "FINAL('done')"


@host_function(policy="read")
def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


def played(sandbox: WasmSandbox, *programs: str) -> Played:
    given = [given_text("hello world")]
    return play(sandbox, [block(each) for each in programs], inputs=given, functions=[add])


def finished(records: list[Record]) -> list[ProgramFinished]:
    return [each for each in records if isinstance(each, ProgramFinished)]


def printed(sandbox: WasmSandbox, *programs: str) -> list[str]:
    return [each.stdout for each in finished(played(sandbox, *programs, DONE).records)][:-1]


# -- what stays, and what comes back ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then", "out"),
    [
        ("a = 1", "print(a)", "1\n"),
        ("import math", "print(math.floor(2.5))", "2\n"),
        ("def f():\n    return g()\ndef g():\n    return 3", "print(f())", "3\n"),
        ("def f():\n    return add(1, 2)", "print(f())", "3\n"),
        ("a = [1]", "a.append(2)\nprint(a)", "[1, 2]\n"),
    ],
)
def test_what_one_block_makes_the_next_one_finds(
    sandbox: WasmSandbox, first: str, then: str, out: str
) -> None:
    assert printed(sandbox, first, then)[1] == out


@pytest.mark.parametrize(
    "name", ["context", "llm_query", "llm_query_batched", "rlm_query", "SHOW_VARS", "answer", "add"]
)
@pytest.mark.parametrize("how", ["{} = 5", "del {}"])
def test_a_reserved_name_is_back_in_the_next_block(
    sandbox: WasmSandbox, name: str, how: str
) -> None:
    changed, kept = printed(
        sandbox, f"before = {name}\n{how.format(name)}", f"print({name} is before)"
    )

    assert (changed, kept) == ("", "True\n")


def test_a_name_that_is_rebound_is_another_for_the_rest_of_its_block(sandbox: WasmSandbox) -> None:
    assert printed(sandbox, "SHOW_VARS = 5\nprint(SHOW_VARS)") == ["5\n"]


def test_a_block_that_fails_leaves_the_session_usable(sandbox: WasmSandbox) -> None:
    failed, after, _ = finished(played(sandbox, "a = 1\n1 / 0", "b = 2\nprint(b)", DONE).records)

    assert failed.failure is not None
    assert (failed.failure.kind, failed.failure.message) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert after.stdout == "2\n"


def test_the_text_is_context_and_several_are_found_by_name(sandbox: WasmSandbox) -> None:
    (one,) = printed(sandbox, "print(context, type(context) is str)")
    inputs = [given_text("first", name="a.txt"), given_text("second", name="b.txt")]
    several = play(sandbox, [block("print(context['b.txt'])"), block(DONE)], inputs=inputs)

    assert one == "hello world True\n"
    assert finished(several.records)[0].stdout == "second\n"


def test_show_vars_returns_the_variables_and_their_types(sandbox: WasmSandbox) -> None:
    (out,) = printed(sandbox, "zz = 1\n_hidden = 2\nprint(SHOW_VARS())")

    assert "zz" in out
    assert "int" in out
    assert "_hidden" not in out
    assert "answer" not in out


# -- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ('answer["content"] = "hello"\nanswer["ready"] = True', "hello"),
        ('answer["content"] = 42\nanswer["ready"] = True', "42"),
        ('answer["content"] = "hello"\nanswer["ready"] = True\n1 / 0', "hello"),
    ],
)
def test_a_run_ends_when_the_answer_is_ready(
    sandbox: WasmSandbox, program: str, answer: str
) -> None:
    run = played(sandbox, f"print(context)\n{program}").run

    assert (run.stop, run.answer, run.turns) == ("answered", answer, 1)


def test_an_answer_that_is_not_ready_ends_nothing(sandbox: WasmSandbox) -> None:
    run = played(sandbox, 'answer["content"] = "early"', "FINAL('hello')").run

    assert (run.answer, run.turns) == ("hello", 2)


# -- calls -------------------------------------------------------------------------------------


def answering(*sources: str) -> ModelDouble:
    """A model that runs these programs, answers children at once, and refuses some prompts."""
    left = list(sources)

    def turn(call: ModelCall) -> str:
        task = call.messages[1].text
        return block(f"FINAL({task[-40:]!r})" if "The task: child" in task else left.pop(0))

    def query(call: ModelCall) -> str | ModelError:
        if "fail" in call.prompt:
            return ModelError(reason="unknown", message=f"no {call.prompt}", kind="terminal")
        return f"said {call.prompt}"

    return ModelDouble(turn, queries=query)


def asked(
    sandbox: WasmSandbox, program: str, *, limits: RunLimits | None = None
) -> tuple[ProgramFinished, list[Record]]:
    ledger = MemoryLedger()
    model = answering(program, DONE)
    with Session(model=model, ledger=ledger, sandbox=sandbox, pricing=PRICING) as session:
        run = session.run("what is it?", limits=limits or RunLimits())
    records = list(records_of(ledger, run.run))
    return finished(records)[0], records


def test_llm_query_gives_the_text_that_the_model_said(sandbox: WasmSandbox) -> None:
    assert asked(sandbox, "print(llm_query('one'))")[0].stdout == "said one\n"


def test_a_batch_keeps_its_order_and_one_failure_leaves_the_others(sandbox: WasmSandbox) -> None:
    program = (
        "got = llm_query_batched(['c', 'fail', 'a'])\n"
        "print(len(got), got[0], got[2])\nprint('no fail' in str(got[1]))"
    )

    assert asked(sandbox, program)[0].stdout == "3 said c said a\nTrue\n"


def test_an_empty_batch_is_an_empty_list(sandbox: WasmSandbox) -> None:
    program = "print(llm_query_batched([]), rlm_query_batched([]))"

    assert asked(sandbox, program)[0].stdout == "[] []\n"


def test_rlm_query_is_a_run_of_its_own_and_gives_its_answer(sandbox: WasmSandbox) -> None:
    program, records = asked(sandbox, "print(rlm_query('child one'))")

    assert "child one" in program.stdout
    assert len([each for each in records if isinstance(each, ChildBegun)]) == 1


def test_rlm_query_batched_keeps_its_order(sandbox: WasmSandbox) -> None:
    program = (
        "got = rlm_query_batched(['child b', 'child a'])\n"
        "print(['child b' in got[0], 'child a' in got[1]])"
    )

    assert asked(sandbox, program)[0].stdout == "[True, True]\n"


def test_rlm_query_asks_the_model_directly_where_no_run_may_stand_deeper(
    sandbox: WasmSandbox,
) -> None:
    program, records = asked(sandbox, "print(rlm_query('x'))", limits=RunLimits(depth=0))

    assert program.stdout == "said x\n"
    assert not [each for each in records if isinstance(each, ChildBegun)]


# -- blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "sources"),
    [
        ("```repl\nx = 1\n```", ["x = 1"]),
        ("Let me see.\n```repl\nx = 1\n```\nThat is all.", ["x = 1"]),
        ("```repl\na = 1\n```\nand then\n```repl\nb = 2\n```", ["a = 1", "b = 2"]),
        ("  ```repl\nx = 1\n```", ["x = 1"]),
        ("```repl   \nx = 1\n```", ["x = 1"]),
        ("```json\n{}\n```", []),
        ("I will look at it now.", []),
    ],
)
def test_blocks_are_read_as_programs(reply: str, sources: list[str]) -> None:
    commands = parse_reply(reply).commands

    assert [each.source for each in commands if isinstance(each, Code)] == sources
    assert len(commands) == len(sources)


def test_the_blocks_of_a_reply_run_in_their_order(sandbox: WasmSandbox) -> None:
    reply = f"{block('a = 1')}\nand\n{block('print(a + 1)')}"

    first, second, _ = finished(play(sandbox, [reply, block(DONE)]).records)

    assert (first.stdout, second.stdout, second.turn) == ("", "2\n", 1)
