"""A tree of runs while it goes: rows on a terminal, lines elsewhere, and the tree afterwards."""

from __future__ import annotations

import io
import json
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.test_progress import PROGRAM, asked, replied, terminal
from tests.cli.test_resume import Tally, tally
from tests.core.machine.test_machine import finished, started
from tests.runtime.calls.test_children import WIDE, says, tree
from tests.runtime.runs.test_run_tree import MIXED

from tallystick.cli.commands.inspect import tree_lines
from tallystick.cli.parts import wrap_line
from tallystick.cli.progress import (
    Progress,
    Row,
    budget_lines,
    caps_left,
    fit,
    progress_for,
    row_text,
    rows_of,
)
from tallystick.cli.show import plain, safe
from tallystick.client import Session
from tallystick.core.charge import Charge, RunLimits, shown_usd
from tallystick.core.records import Caller, ChildBegun, ChildEnded, HostAnswered, Record, RunEnded
from tallystick.ledger.memory import MemoryLedger
from tallystick.runtime.runs.result import Run
from tallystick.runtime.runs.tree import Node, RunTree, tree_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING

__all__ = ["tally"]

ROOT = "root"
EVIL = [
    "\x1b]0;gotcha\a",
    "\x1b[2J\x1b[31mred",
    "a\rb\nc\td\x0b\x85\u2028e",
    "\u202egnp.exe\u202c",
    "\u2066\u2067\u2069\u200f",
    "ze\u200bro\u200d\u2060width\ufeff",
    "\u3164\u115f\uffa0",
    "z" + "\u0301" * 200 + "algo",
    "\ud800",
    "\U000e0041tag",
]


def begun(number: int, *, parent: str = ROOT) -> tuple[str, Record]:
    record = ChildBegun(intent=3, program=2, item=number, run=f"run {number}", request_sha256="")
    return parent, record


def inside(number: int, *, goal: str = "", depth: int = 1) -> list[tuple[str, Record]]:
    """What a child writes until it has its answer."""
    run = f"run {number}"
    caller = Caller(run=ROOT, intent=3, item=number, depth=depth)
    end = RunEnded(stop="answered", detail="", answer="A", partial=False, charge=charge_of_one())
    return [
        (run, started(goal=goal or f"part {number}", caller=caller)),
        (run, asked()),
        (run, replied("```repl\nFINAL(1)\n```")),
        (run, PROGRAM),
        (run, finished(answer="A")),
        (run, end),
    ]


def charge_of_one() -> Charge:
    return Charge(tokens_in=1_200, tokens_out=34, model_calls=1, turns=1, fuel=1)


def ended(
    number: int, *, stop: str = "answered", said: str = "A", parent: str = ROOT
) -> tuple[str, Record]:
    return parent, ChildEnded(
        intent=3,
        item=number,
        run=f"run {number}",
        stop=stop,
        detail=said,
        answer=said,
        partial=False,
        charge=charge_of_one(),
        count=1,
        hash="",
    )


def root_begins() -> list[tuple[str, Record]]:
    records: list[Record] = [
        started(goal="the root"),
        asked(),
        replied("```repl\nx\n```"),
        PROGRAM,
    ]
    return [(ROOT, each) for each in records]


class Clock:
    """Time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines_of(records: Iterator[tuple[str, Record]] | list[tuple[str, Record]]) -> list[str]:
    stream = io.StringIO()
    progress = progress_for(quiet=False, stream=stream, environ={}, clock=Clock())
    for run, record in records:
        progress.watch(run, record)
    progress.close()
    return stream.getvalue().splitlines()


def cells(text: str) -> int:
    """What a terminal makes of a text, counted apart from the code."""
    marks = ("Mn", "Me", "Cf")
    return sum(
        0
        if unicodedata.category(each) in marks or unicodedata.combining(each)
        else 2
        if unicodedata.east_asian_width(each) in "WF"
        else 1
        for each in text
    )


# -- where no terminal is --------------------------------------------------------------------------


def test_each_child_that_ended_is_a_line_and_its_turns_are_none() -> None:
    lines = lines_of([*root_begins(), begun(1), *inside(1, goal="count it"), ended(1)])

    (line,) = lines
    assert line == "  run 1   answered    1 turn   1,234 tokens  'count it'  'A'"


def test_a_thousand_children_are_a_few_lines_and_a_sum() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = progress_for(quiet=False, stream=stream, environ={}, clock=clock)
    for run, record in root_begins():
        progress.watch(run, record)
    for number in range(1_000):
        clock.now += 0.02
        stop = "budget" if number % 100 == 99 else "answered"
        for run, record in [begun(number), *inside(number), ended(number, stop=stop)]:
            progress.watch(run, record)
    progress.watch(ROOT, finished())

    lines = stream.getvalue().splitlines()
    assert len([line for line in lines if line.startswith("  run ")]) == 20
    sums = [line for line in lines if line.startswith("  runs inside")]
    assert 4 <= len(sums) <= 6
    assert sums[-1] == "  runs inside: 990 done, 10 failed   1,235,234 tokens, price unknown"
    assert lines[-1].startswith("turn 1   program")


def test_children_that_were_stopped_with_the_whole_have_no_line() -> None:
    records = [*root_begins(), begun(1), *inside(1)[:2], ended(1, stop="cancelled")]

    assert lines_of(records) == []


# -- on a terminal ---------------------------------------------------------------------------------


def tally_of(records: list[tuple[str, Record]]) -> RunTree:
    tally = RunTree(clock=Clock())
    for run, record in records:
        tally.add(run, record)
    return tally


def test_a_row_says_what_a_child_does_and_those_below_stand_under_it() -> None:
    tally = tally_of(
        [
            *root_begins(),
            begun(1),
            *inside(1)[:4],
            begun(11, parent="run 1"),
            *inside(11, goal="deeper", depth=2)[:2],
            begun(2),
            *inside(2)[:1],
            begun(3),
        ]
    )
    tally.waits(ROOT, 7)

    rows = rows_of(tally, rows_max=12, width=79)

    assert [" ".join(row.split()) for row in rows] == [
        "part 1 waits for 1 run turn 1 1,234 tokens",
        "deeper asking the model turn 1 0 tokens",
        "part 2 waiting for a place 0 tokens",
        "run 3 starting 0 tokens",
        "… 7 waiting for a place",
    ]
    assert rows[1].startswith("    deeper")


def test_rows_are_bounded_and_the_others_are_summed_up() -> None:
    records = root_begins()
    for number in range(40):
        records += [begun(number), *inside(number)[:2]]
    records += [ended(number) for number in range(5)]
    records += [ended(5, stop="budget"), ended(6, stop="cancelled")]

    rows = rows_of(tally_of(records), rows_max=12, width=79)

    assert len(rows) == 13
    assert rows[-1] == "  … 21 more live, 5 done, 1 failed, 1 cut off"


@pytest.mark.parametrize(("width", "columns"), [(39, 1), (50, 2), (66, 3), (79, 4), (199, 4)])
def test_a_narrow_terminal_has_fewer_columns(width: int, columns: int) -> None:
    charge = Charge(usd=1_234_000, tokens_in=1_000)
    row = Row(depth=1, name="part 1", state="asking the model", turn=1, charge=charge)

    text = row_text(row, width=width)

    told = ["asking the model", "turn 1", "1,000 tokens", "$0.0012"]
    assert [each in text for each in told] == [n < columns for n in range(4)]
    assert len(text) <= width


@given(
    name=st.one_of(st.text(), st.sampled_from(EVIL)),
    state=st.text(),
    depth=st.integers(0, 2_000),
    width=st.integers(1, 250),
    turn=st.integers(0, 10**6),
    spent=st.integers(0, 10**12),
)
def test_a_row_is_never_wider_than_it_may_be_whoever_wrote_it(
    name: str, state: str, depth: int, width: int, turn: int, spent: int
) -> None:
    charge = Charge(usd=spent, tokens_in=spent)
    row = Row(depth=depth, name=name, state=state, turn=turn, charge=charge)

    text = row_text(row, width=width)

    assert cells(text) <= width
    assert all(each.isprintable() for each in text)


@given(text=st.text(), width=st.integers(0, 60))
def test_what_is_fitted_has_so_many_cells(text: str, width: int) -> None:
    assert cells(fit(safe(text), width)) == width


@pytest.mark.parametrize("evil", EVIL)
def test_what_a_model_calls_a_child_does_nothing_to_the_terminal(evil: str) -> None:
    shown = plain(evil)
    assert shown.isprintable()
    assert not {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    assert sum(unicodedata.combining(each) > 0 for each in shown) <= 2

    long = evil + "x" * 5_000
    lines = lines_of([*root_begins(), begun(1), *inside(1, goal=long), ended(1, said=long)])

    assert 1 <= len(lines) <= 2
    assert all(line.isprintable() and cells(line) <= 80 for line in lines)


def drawn(records: list[tuple[str, Record]]) -> str:
    with terminal() as opened:
        progress = progress_for(quiet=False, stream=opened.stream, environ={"TERM": "xterm"})
        for run, record in records:
            progress.watch(run, record)
        progress.stopping()
        progress.close()
        return opened.close()


@pytest.fixture(autouse=True)
def _xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library that draws is told of the terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "LINES"):
        monkeypatch.delenv(name, raising=False)


def test_the_tree_is_drawn_below_the_lines_of_the_root() -> None:
    records = [*root_begins(), begun(1), *inside(1, goal=f"part {EVIL[0]}")[:2]]

    text = drawn(records)

    assert "part ?]0;gotcha?" in text
    assert "asking the model" in text
    assert "left " in text
    assert "run 1 " not in text
    # Told by the one who asked for it, on the last picture that is drawn.
    assert "stopping; Ctrl-C again leaves at once" in text


def test_on_a_small_terminal_the_tree_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "8")
    records = root_begins()
    for number in range(30):
        records += [begun(number), *inside(number, goal="q")[:2]]

    text = drawn(records)

    last = text.rpartition("turn 1")[2]
    assert last.count("asking the model") == 2
    assert "28 more live" in last


# -- what is used and left -------------------------------------------------------------------------


def test_the_tightest_cap_comes_first_and_the_loosest_goes_first() -> None:
    limits = RunLimits(turns=10, tokens=1_000, wall_ms=100_000, usd=1_000_000_000, model_calls=4)
    used = Charge(usd=500_000_000, tokens_in=900, turns=1, wall_ms=20_000, model_calls=3)

    caps = caps_left(used, limits, seconds=1)
    assert caps == ["100 tokens", "1 model call", "$0.50", "1:19", "9 turns"]

    one = budget_lines(used, limits, seconds=1, width=100)
    assert one == ["used 900 tokens, $0.50   left 100 tokens, 1 model call, $0.50, 1:19, 9 turns"]
    two = budget_lines(used, limits, seconds=1, width=39)
    assert two == ["used 900 tokens, $0.50", "left 100 tokens, 1 model call, $0.50"]


def test_nothing_left_is_nothing_and_not_less() -> None:
    used = Charge(usd=9, tokens_in=9, turns=9, wall_ms=9_000, host_calls=9)
    limits = RunLimits(turns=1, tokens=1, wall_ms=1, usd=1, host_calls=1)

    assert sorted(caps_left(used, limits)) == sorted(
        ["0 turns", "0 tokens", "0:00", "$0.00", "0 host calls"]
    )
    zero = RunLimits(turns=0, tokens=0, wall_ms=0, usd=0, host_calls=0)
    assert sorted(caps_left(Charge(), zero)) == sorted(caps_left(used, limits))


# -- the figures of a real tree --------------------------------------------------------------------


def watched(sandbox: WasmSandbox, model: object, goal: str, progress: Progress) -> Run:
    class Watcher:
        def __call__(self, run: str, record: Record) -> None:
            progress.watch(run, record)

        def waits(self, parent: str, change: int) -> None:
            progress.waits(parent, change)

    session = Session(model=model, ledger=MemoryLedger(), sandbox=sandbox, pricing=PRICING)
    return session.run(goal, limits=WIDE, watch=Watcher())


@pytest.mark.parametrize(
    ("model", "goal"), [(tree(), "count 8 now"), (says(MIXED), "the root")], ids=["tree", "mixed"]
)
def test_what_is_told_last_is_what_the_run_cost(
    sandbox: WasmSandbox, model: object, goal: str
) -> None:
    stream = io.StringIO()
    run = watched(sandbox, model, goal, progress_for(quiet=False, stream=stream, environ={}))

    *_, last, outcome = stream.getvalue().splitlines()
    assert last.endswith(f"{shown_usd(run.charge.usd)} so far")
    assert outcome.startswith("         answer=")


def test_the_picture_on_a_terminal_has_what_the_run_cost(sandbox: WasmSandbox) -> None:
    with terminal() as opened:
        progress = progress_for(quiet=False, stream=opened.stream, environ={"TERM": "xterm"})
        run = watched(sandbox, tree(), "count 4 now", progress)
        progress.close()
        text = opened.close()

    spent = run.charge.tokens_in + run.charge.tokens_out
    assert f"used {spent:,} tokens, {shown_usd(run.charge.usd)}" in text


# -- afterwards ------------------------------------------------------------------------------------


def test_the_tree_afterwards_has_the_same_rows_and_what_is_left(sandbox: WasmSandbox) -> None:
    session = Session(model=tree(), ledger=MemoryLedger(), sandbox=sandbox, pricing=PRICING)
    run = session.run("count 4 now", limits=WIDE)

    lines = tree_lines(tree_of(session.ledger, run.run), whole=False)

    depths = [(len(line) - len(line.lstrip())) // 2 for line in lines[:-1]]
    assert depths == [0, 1, 2, 2, 1, 2, 2]
    assert all("answered" in line and "turn 1" in line for line in lines[:-1])
    assert run.run in lines[0]
    spent = run.charge.tokens_in + run.charge.tokens_out
    used = f"used {spent:,} tokens, {shown_usd(run.charge.usd)}"
    left = f"{WIDE.tokens - spent:,} tokens"
    assert lines[-1].startswith(f"{used}   left 29 turns, ")
    assert left in lines[-1]


@pytest.mark.parametrize("width", [60, 80])
def test_on_a_narrow_terminal_a_run_of_the_tree_has_two_lines(
    sandbox: WasmSandbox, width: int
) -> None:
    session = Session(model=tree(), ledger=MemoryLedger(), sandbox=sandbox, pricing=PRICING)
    run = session.run("count 4 now", limits=WIDE)

    lines = tree_lines(tree_of(session.ledger, run.run), whole=False, width=width)

    assert [line for line in lines if cells(line) > width] == []
    assert "answered" in lines[0]
    assert lines[1].startswith(f"  {run.run}")
    assert sum("answered" in line for line in lines) == 7


def test_a_line_is_broken_between_words_and_a_path_is_not_broken() -> None:
    path = "/a/directory/with/a/long/name/ledger.db"

    assert wrap_line("ledger   run R", indent=9, width=20) == ["ledger   run R"]
    assert wrap_line(f"ledger   run R in {path}", indent=9, width=48) == [
        "ledger   run R in",
        f"         {path}",
    ]
    assert wrap_line(f"in {path}", indent=9, width=20) == ["in", path]


def wide(count: int) -> Node:
    root = Node(run=ROOT, goal="the root", limits=RunLimits(), children=[], standing="running")
    for number in range(count):
        stop, standing = ("answered", "") if number % 3 else ("", "in doubt")
        root.children.append(
            Node(
                run=f"run {number}",
                goal=EVIL[number % len(EVIL)],
                stop=stop,
                standing=standing,
                answer=EVIL[0],
                charge=Charge(tokens_in=5, model_calls=1),
                depth=1,
                turn=1,
            )
        )
    return root


def test_a_long_batch_is_its_beginning_and_a_sum_unless_all_is_asked_for() -> None:
    lines = tree_lines(wide(30), whole=False)

    assert len(lines) == 1 + 20 + 1 + 1
    assert "running" in lines[0]
    assert "in doubt" in lines[1]
    assert lines[21] == "  … 10 more: 7 answered, 3 in doubt   50 tokens, price unknown"
    assert all(line.isprintable() for line in lines)
    assert len(tree_lines(wide(30), whole=True)) == 1 + 30 + 1


def test_a_deep_tree_is_shown_to_its_end() -> None:
    root = Node(run="run", goal="0", limits=RunLimits(), children=[])
    last = root
    for depth in range(1, 3_000):
        last.children = [Node(run="run", goal=f"{depth}", depth=depth, children=[])]
        last = last.children[0]

    assert len(tree_lines(root, whole=False)) == 3_001


def test_inspect_shows_the_tree_and_marks_what_was_cut_off(tally: Tally) -> None:
    tally.script("FINAL(rlm_query('part one', context='c'))", "FINAL(context.upper())")
    assert tally.run().out == "C\n"

    done = tally("inspect", "last", "--tree")
    lines = done.out.splitlines()

    assert (done.code, done.err) == (0, "")
    assert len(lines) == 3
    assert lines[1].startswith("  part one ")
    assert lines[2].startswith("used ")
    tree = json.loads(tally("inspect", "last", "--tree", "--json").out)
    assert tree["children"][0]["goal"] == "part one"
    assert tree["charge"]["model_calls"] == 2
    assert (tree["stop"], tree["standing"]) == ("answered", "")
    whole = tally("inspect", "last", "--tree", "--all").out
    assert whole == done.out


def test_a_host_call_of_another_kind_ends_no_child_that_is_live() -> None:
    """One call at a time: when a program has an answer, it waits for no child."""
    answer = HostAnswered(
        intent=3, program=2, index=0, name="f", request_sha256="", fuel=0, reply=b"0", ok=True
    )
    tally = tally_of([*root_begins(), begun(1), *inside(1), ended(1), (ROOT, answer)])

    assert (tally.live, tally.answered, tally.failed) == (0, 1, 0)
