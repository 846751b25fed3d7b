"""`tally diff`, as a user calls it: what is the same in a line, what differs in full."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.test_step_chains import Tally, entered, left, made_of
from tests.core.views.test_run_difference import DIES, FAILS, LONG, a_run, code, of
from tests.ledger.builders import drafted, run_id
from tests.runtime.run.one_program_model import opened, writer

from tallystick.cli.main import cli
from tallystick.client import Session
from tallystick.core.records import (
    AskModel,
    ModelReplied,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunResumed,
)
from tallystick.core.views.difference import RunDifference, difference_of
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

A, B = run_id(1), run_id(2)
# What a terminal acts on: titles, colours, a cleared line, text that runs backwards, a bell.
HOSTILE = "\x1b]0;gone\x07\x1b[2K\r\u202egnp\u0085\x9b31m\x00"


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path / "data")


def keep(tally: Tally, a: Sequence[Record], b: Sequence[Record]) -> None:
    for run, records in ((A, a), (B, b)):
        made_of(tally, [drafted(record) for record in records], run)


def shown(tally: Tally, *words: str) -> list[str]:
    done = tally("diff", A, B, *words)

    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def line_of(lines: Sequence[str], name: str) -> str:
    (line,) = [each for each in lines if each.startswith(name)]
    return line[10:]


def played(tally: Tally, sandbox: WasmSandbox, *replies: str) -> str:
    with (
        SqliteLedger(tally.folder / "ledger.db") as ledger,
        Session(model=ScriptedModel.of(*replies), ledger=ledger, sandbox=sandbox) as session,
    ):
        return session.run("what is it?").run


def test_two_runs_that_did_the_same_take_a_line_for_each_turn(
    tally: Tally, sandbox: WasmSandbox
) -> None:
    replies = (block("x = 6\nprint(x)"), block("FINAL(x * 7)"))
    a, b = played(tally, sandbox, *replies), played(tally, sandbox, *replies)

    lines = tally("diff", a, "last").stdout.splitlines()

    assert lines[0].startswith(f"A  -      {a}  answered  scripted")
    assert lines[1].startswith(f"B  +      {b}  answered  scripted")
    assert line_of(lines, "given") == "the same"
    for turn in ("turn 1", "turn 2"):
        assert line_of(lines, turn).startswith("same program, same output  $0.00 / $0.00, ")
    assert line_of(lines, "end") == "the same: answered, same answer"
    assert line_of(lines, "parted") == "nowhere"
    assert len(lines) == 8


def test_a_run_that_went_another_way_is_shown_from_where_it_did(
    tally: Tally, sandbox: WasmSandbox
) -> None:
    first = block("x = 6\nprint(x)")
    a = played(tally, sandbox, first, block("y = x * 7\nprint(y)"), block("FINAL(y)"))
    b = played(tally, sandbox, first, block("y = x * 8\nprint(y)"), block("FINAL(y)"))

    lines = tally("diff", a[:24], b).stdout.splitlines()

    assert line_of(lines, "turn 1").startswith("same program, same output")
    assert line_of(lines, "turn 2").startswith("other program, other output")
    assert line_of(lines, "turn 3").startswith(
        "other prompt (reply of turn 2, result of turn 2), same program, other output"
    )
    assert "          | -y = x * 7" in lines
    assert "          | +y = x * 8" in lines
    at = lines.index("          stdout")
    assert lines[at + 2 : at + 4] == ["          | -42", "          | +48"]
    assert line_of(lines, "end") == "answered, other answer"
    assert line_of(lines, "parted") == (
        "at turn 2: reply, program, output; prompts differ first at turn 3"
    )
    # The answers are in what the last program came to already.
    assert lines.count("          answer") == 1


def test_the_figures_of_real_turns_make_up_those_of_their_run(sandbox: WasmSandbox) -> None:
    @host_function(policy="read", local=True)
    def rate(name: str) -> int:
        """A rate."""
        return len(name)

    ledger = MemoryLedger()
    program = "print(llm_query('a'), llm_query_batched(['b', 'c']), rate('x'))\nFINAL(1)"
    with opened(sandbox, writer(program), ledger=ledger, functions=[rate]) as session:
        records = list(records_of(ledger, session.run("what is it?").run))
    (ended,) = of(records, RunEnded)
    unended = [each for each in records if type(each).__name__ not in ("RunEnded", "ReceiptIssued")]

    found = difference_of(unended, records)
    (turn,) = found.turns

    assert (turn.queries.count.a, turn.host_calls.count.a) == (3, 3)
    assert found.spend.a.charge == ended.charge
    assert found.spend.a == found.spend.b
    assert ended.charge.usd


def test_another_model_that_writes_the_same_is_said_to_do_the_same(tally: Tally) -> None:
    keep(tally, a_run(*LONG), a_run(*LONG, model="other:model"))

    lines = shown(tally)

    assert line_of(lines, "given") == "model  some:model / other:model"
    assert line_of(lines, "turn 2").startswith("other prompt (model), same program, same output")
    assert line_of(lines, "parted") == "nowhere; prompts differ first at turn 1"


def test_a_run_that_died_is_compared_as_far_as_it_came(tally: Tally) -> None:
    whole = a_run(*LONG)
    keep(tally, whole, whole[:DIES])

    lines = shown(tally)

    assert lines[1] == f"B  +      {B}  has not ended  some:model"
    assert line_of(lines, "turn 1").startswith("same program, same output")
    assert line_of(lines, "turn 2") == "only in A: 1 program  $0.000001 / $0.00, 12 / 0 tokens"
    assert "          | -look(2)" in lines
    assert line_of(lines, "end") == "answered / has not ended"
    assert line_of(lines, "parted") == "at turn 2, which is only in A"


def test_a_fork_is_compared_with_what_it_shares(tally: Tally) -> None:
    whole, other = a_run(*LONG), a_run(*LONG[:2], code("FINAL(4)"))
    at = next(at for at, each in enumerate(whole) if isinstance(each, AskModel) and each.turn == 3)
    forked = RunForked(parent=A, count=at, hash="", turn=2, at=1, session_id="F")
    keep(tally, whole, [forked, *other[at:]])

    lines = shown(tally)

    assert line_of(lines, "B         ") == "forked after turn 2"
    assert line_of(lines, "given") == "the same"
    assert line_of(lines, "turn 2").startswith("same program, same output")
    assert line_of(lines, "parted") == "at turn 3: reply, program, output"


def test_acts_upon_a_run_are_said_under_its_name(tally: Tally) -> None:
    whole = a_run(*LONG)
    resumed = [*whole[:DIES], RunResumed(at=1, fence=2), *whole[DIES:]]
    keep(tally, resumed, [RunPruned(at=1, before=9, removed=7, bytes=70, why="old")])

    lines = shown(tally)

    assert lines[1] == "A         resumed after turn 1"
    assert lines[3] == "B         pruned: 7 records have no content, and are not compared"
    assert line_of(lines, "given") == "only in A"


def test_runs_of_which_nothing_is_left_are_not_called_the_same(tally: Tally) -> None:
    pruned = [RunPruned(at=1, before=9, removed=7, bytes=70, why="old")]
    keep(tally, pruned, pruned)

    lines = shown(tally)

    assert line_of(lines, "given") == "neither"
    assert line_of(lines, "end") == "has not ended / has not ended"
    assert line_of(lines, "parted") == "there is nothing to compare"


def test_a_program_whose_text_is_gone_is_said_to_be(tally: Tally) -> None:
    gone = [each for each in a_run(code("look(7)")) if not isinstance(each, ModelReplied)]
    keep(tally, gone, a_run(code("look(8)")))

    assert "          program: its text is not in the records" in shown(tally)


def test_calls_are_counted_and_the_first_that_differs_is_named(tally: Tally) -> None:
    keep(tally, a_run(code("ask(1)\nlook(2)")), a_run(code("ask(1)\nfind(2)\nlook(3)")))

    assert "2 / 3 host calls, of which number 2 (look / find) has another request" in line_of(
        shown(tally), "turn 1"
    )


def test_why_there_is_no_reply_is_shown_for_each(tally: Tally) -> None:
    keep(tally, a_run(FAILS, LONG[2]), a_run())

    lines = shown(tally)

    assert "          B failed: unknown: it is down" in lines
    assert "2 / 1 attempts" in line_of(lines, "turn 1")


def test_long_differences_are_cut_and_said_to_be(tally: Tally) -> None:
    a, b = ("\n".join(f"{name}{at}" for at in range(300)) for name in "ab")
    keep(tally, a_run(code(a)), a_run(code(b)))

    cut, whole = shown(tally), shown(tally, "--full")

    assert "          | ... 581 more lines; --full shows them" in cut
    assert "          | -a30" not in cut
    assert "          | -a299" in whole
    assert "          | +b299" in whole
    assert not any("more lines" in line for line in whole)


def test_a_long_line_is_cut_around_its_first_difference(tally: Tally) -> None:
    row = "x" * 1_000
    keep(tally, a_run(code(f"{row}a{row}")), a_run(code(f"{row}b{row}")))

    cut, whole = shown(tally), shown(tally, "--full")

    for mark, other in ("-a", "+b"):
        line = (
            f"          | {mark}[980 the same] {'x' * 20}{other}{'x' * 139} [861 more characters]"
        )
        assert line in cut
        assert f"          | {mark}{row}{other}{row}" in whole


def test_what_was_given_is_cut_and_shown_whole_on_demand(tally: Tally) -> None:
    many = tuple((f"f{at:02}", "doc") for at in range(30))
    goal = "which? " * 100
    keep(tally, a_run(*LONG, functions=many, goal=f"{goal}a"), a_run(*LONG, goal=f"{goal}b"))

    cut = [line for line in shown(tally) if line.startswith("given")]
    whole = [line for line in shown(tally, "--full") if line.startswith("given")]

    assert cut[-1] == "given     20 more differ; --full shows them"
    assert len(cut) == 13
    assert f"given     goal  {goal}a / {goal}b" in whole
    assert len(whole) == 32


def test_nothing_that_models_or_programs_wrote_acts_on_the_terminal(tally: Tally) -> None:
    a = a_run(code(f"{HOSTILE}\nask(1)"), f"{HOSTILE}", goal=HOSTILE, model=f"m:{HOSTILE}")
    b = a_run(code(f"{HOSTILE}!\nask(1)"), answers=HOSTILE, functions=((HOSTILE, HOSTILE),))
    keep(tally, a, b)

    for words in ((), ("--full",)):
        done = tally("diff", A, B, *words)
        assert done.returncode == 0
        assert {each for each in done.stdout if not each.isprintable()} == {"\n"}
    assert "\\x1b]0;gone\\x07\\x1b[2K\\r\\u202egnp\\x85\\x9b31m\\x00!" in done.stdout


def test_as_json_it_is_the_whole_comparison(tally: Tally) -> None:
    a, b = a_run(*LONG), a_run(code(HOSTILE), *LONG[1:])
    keep(tally, a, b)

    printed = json.loads(tally("diff", A, B, "--json").stdout)

    assert (printed["a"], printed["b"]) == (A, B)
    assert set(printed["difference"]) == set(RunDifference.__struct_fields__)
    assert printed["difference"]["parted"] == 1
    assert printed["difference"]["turns"][0]["programs"][0]["diff"] == [
        "@@ -1,1 +1,1 @@", "-look(1)", f"+{HOSTILE}",
    ]  # fmt: skip


@pytest.mark.parametrize("steps_first", [True, False])
def test_steps_are_refused_in_one_line(tally: Tally, steps_first: bool) -> None:
    made_of(tally, [drafted(each) for each in a_run(*LONG)], A)
    made_of(tally, [entered("x"), left("x")], B)

    done = tally("diff", *((B, A) if steps_first else (A, B)))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"usage: {B} is a chain of steps, which has no turns; name one of its runs "
        f"(tally receipt {B} lists the steps)\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((A, "ZZZ"), 6, "no run 'ZZZ'"),
        ((A[:9], B), 2, "matches 2 runs"),
    ],
)
def test_a_run_that_is_not_found_is_one_clear_line(
    tally: Tally, words: tuple[str, ...], code: int, says: str
) -> None:
    keep(tally, a_run(*LONG), a_run(*LONG))

    done = tally("diff", *words)

    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [(), (A,), (A, B, A), (A, B, "--colour")])
def test_two_runs_are_named_and_no_more(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(cli, ["diff", *words]).exit_code == 2


def test_a_record_that_cannot_be_read_is_one_clear_line(tally: Tally) -> None:
    keep(tally, a_run(*LONG), a_run(*LONG))
    with sqlite3.connect(tally.folder / "ledger.db") as db:
        db.execute("UPDATE body SET body = 'nothing' WHERE seq = 2")
    db.close()

    done = tally("diff", A, B)

    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr.count("\n") == 1
    assert A in done.stderr
