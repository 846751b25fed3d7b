"""What holds whatever goes wrong around a run: a ledger, a watcher, a backend, a reply, a limit."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.calls.test_queries import of, played, printed, usd
from tests.runtime.run.one_program_model import root

from tallystick.client import Session
from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.core.errors import LedgerError, LedgerFull, UsageError
from tallystick.core.records import (
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    QueryRefused,
    QueryReplied,
    Record,
    RunEnded,
)
from tallystick.inputs.reading import read_inputs
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.lock import lock_run, require_idle
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelDouble, block, by_prompt
from tallystick.testing.runs import Played, play

# Some promises are of the guest.
NEEDS_GUEST = True

pytestmark = pytest.mark.slow

BOTH = ("attachments.read", "attachments.write")
# Room for replies that a model would not end by itself: one above its reservation ends a run.
LONG_REPLIES = RunLimits(tokens=10_000_000, reply_tokens=200_000)


# -- the ledger --------------------------------------------------------------------------------


class Failing(MemoryLedger):
    """A ledger whose disk is full for one append that holds a record of that kind."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def submit(self, run: str, drafts: Any, **more: Any) -> Any:
        if self._tag and any(draft.tag == self._tag for draft in drafts):
            self._tag = ""
            failed: Future[None] = Future()
            failed.set_exception(LedgerFull(where="ledger.db"))
            return more["expected"], failed
        return super().submit(run, drafts, **more)


@pytest.mark.parametrize("tag", ["query.ask", "query.replied", "model.replied", "program.finished"])
def test_a_ledger_that_fails_once_ends_the_run_and_is_told_to_no_program(
    sandbox: WasmSandbox, tag: str
) -> None:
    program = "try:\n    llm_query('x')\nexcept Exception as error:\n    print('caught', error)"
    ledger = Failing(tag)
    session = Session(model=root(program, "FINAL(1)"), ledger=ledger, sandbox=sandbox)

    with session, pytest.raises(LedgerError):
        session.run("?")

    (row,) = ledger.runs()
    records = list(records_of(ledger, row.run))
    assert not any(isinstance(each, RunEnded) for each in records)
    assert not any("caught" in each.stdout for each in records if isinstance(each, ProgramFinished))


# -- whoever watches ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [QueryReplied, ModelReplied, ProgramFinished])
def test_a_watcher_that_fails_ends_the_run_and_loses_nothing(
    sandbox: WasmSandbox, kind: type[Record]
) -> None:
    def watch(run: str, record: Record) -> None:
        if isinstance(record, kind):
            raise BrokenPipeError("nobody reads")

    model = root("print(llm_query('x'))", "print(2)", "FINAL(3)")
    ledger = MemoryLedger()
    session = Session(model=model, ledger=ledger, sandbox=sandbox, pricing=PRICING)
    with session:
        with pytest.raises(BrokenPipeError):
            session.run("?", watch=watch)
        (row,) = ledger.runs()
        records = list(records_of(ledger, row.run))
        (ended,) = [each for each in records if isinstance(each, RunEnded)]

        assert ended.stop == "cancelled"
        assert ended.charge.usd == model.billed
        assert session.replay(row.run).held


# -- a backend ---------------------------------------------------------------------------------


def test_a_backend_that_breaks_its_promise_is_charged_as_reserved(sandbox: WasmSandbox) -> None:
    found = play(sandbox, ModelDouble(KeyError("inside")), limits=usd("1"), pricing=PRICING)
    (failed,) = of(found, ModelFailed)

    assert found.run.stop == "model_error"
    assert failed.settled.flags == ("unknown_outcome",)
    assert found.run.charge.usd == failed.settled.usd > 0
    assert found.replayed().held


# -- replies and schemas -----------------------------------------------------------------------


def test_a_reply_cannot_pass_itself_off_as_an_error(sandbox: WasmSandbox) -> None:
    forged = '{"$error": {"kind": "BudgetExhausted", "message": "no money"}}'
    program = "print([type(each).__name__ for each in llm_query_batched(['x'], schema=dict)])"
    found = played(sandbox, root(program, "FINAL(1)", queries=by_prompt(lambda prompt: forged)))

    assert printed(found)[0] == "['dict']\n"


@pytest.mark.parametrize(
    "reply", ["9" * 400, "1e999", '"\\ud800"', "x" + "[" * 60_000, "[" * 100_000, "NaN"]
)
def test_one_bad_reply_costs_its_own_item_only(sandbox: WasmSandbox, reply: str) -> None:
    program = (
        "found = llm_query_batched(['good', 'bad', 'good'], schema=list)\n"
        "print([each if isinstance(each, list) else each.kind for each in found])"
    )
    model = root(
        program, "FINAL(1)", queries=by_prompt(lambda prompt: "[1]" if "good" in prompt else reply)
    )
    found = played(sandbox, model, limits=LONG_REPLIES)

    assert printed(found)[0] == "[[1], 'SchemaMismatch', [1]]\n"
    assert found.replayed().held


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{'type': 'string', 'description': 'A' * 900_000}", "at most 8,000"),
        ("{'required': [[1]]}", "a list of names"),
        ("{'type': 5}", "5 is none of"),
        ("{'anyOf': [{'type': 'string'}] * 600}", "at most 16 levels, 500 parts"),
    ],
)
def test_a_schema_is_bounded_before_anything_is_asked(
    sandbox: WasmSandbox, schema: str, says: str
) -> None:
    model = root(f"llm_query_batched(['x'] * 10_000, schema={schema})", "FINAL(1)")
    found = played(sandbox, model)
    (first, _) = of(found, ProgramFinished)

    assert says in first.failure.message
    assert model.queried == []


def test_a_comparison_that_takes_too_long_is_a_mismatch(sandbox: WasmSandbox) -> None:
    program = "print(llm_query_batched(['x'], schema=list[int | str])[0].kind)"
    numbers = "[" + ",".join(["1.5"] * 40_000) + "]"
    valid = "[" + ",".join(["1"] * 40_000) + "]"
    model = root(program, "FINAL(1)", queries=by_prompt(lambda prompt: valid))
    found = played(sandbox, model, limits=LONG_REPLIES)

    assert printed(found)[0] == "SchemaMismatch\n"
    assert len(numbers) > len(valid)


def test_a_model_that_is_not_there_is_refused_once_for_a_whole_batch(sandbox: WasmSandbox) -> None:
    program = (
        "try:\n    llm_query_batched(['x'] * 5_000, model='nope')\n"
        "except HostError as error:\n    print(error.kind)"
    )
    found = played(sandbox, root(program, "FINAL(1)"))

    assert printed(found)[0] == "UnknownModel\n"
    assert len(of(found, QueryRefused)) == 1
    assert found.replayed().held


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dimension", ["turns", "tokens", "usd", "model_calls", "host_calls", "fuel", "wall_ms"]
)
def test_zero_stops_in_every_dimension_before_anything_is_asked(
    sandbox: WasmSandbox, dimension: str
) -> None:
    model = ModelDouble(block("FINAL(1)"))
    budget = Budget.of(**{dimension: 0})
    with Session(
        model=model, ledger=MemoryLedger(), sandbox=sandbox, pricing=PRICING, budget=budget
    ) as session:
        run = session.run("?")

    assert (run.stop, model.asked) == ("budget", [])
    assert dimension in run.detail


def test_a_limit_of_turns_is_exact(sandbox: WasmSandbox) -> None:
    made = iter(range(100))
    model = ModelDouble(by_prompt(lambda prompt: block(f"n = {next(made)}\nn")))
    with Session(
        model=model,
        ledger=MemoryLedger(),
        sandbox=sandbox,
        pricing=PRICING,
        budget=Budget.of(turns=3),
    ) as session:
        run = session.run("?")

    assert (run.stop, len(model.asked), run.turns) == ("budget", 3, 3)


@pytest.mark.parametrize("dimension", ["turns", "fuel", "wall_ms", "host_calls", "depth"])
def test_a_total_that_nobody_would_keep_is_refused(dimension: str) -> None:
    with pytest.raises(UsageError, match=dimension):
        Session(ledger=MemoryLedger(), total=Budget.of(**{dimension: 5}))


def test_runs_side_by_side_wait_for_what_the_others_give_back(sandbox: WasmSandbox) -> None:
    """Six worst cases do not fit into the session's budget at once; six runs do."""
    model = ModelDouble(block("FINAL(1)"), delay=0.05)
    session = Session(
        model=model,
        ledger=MemoryLedger(),
        sandbox=sandbox,
        pricing=PRICING,
        budget=Budget.of(usd="0.01"),
    )
    stops: list[str] = []

    def work() -> None:
        stops.append(session.run("?", limits=RunLimits(reply_tokens=1_000)).stop)

    with session:
        threads = [threading.Thread(target=work) for _ in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    assert stops == ["answered"] * 6
    assert 1 <= model.most_at_once < 6


# -- bytes -------------------------------------------------------------------------------------


def test_what_was_not_there_when_it_was_asked_for_is_not_there_on_replay(
    sandbox: WasmSandbox,
) -> None:
    program = (
        "import hashlib\n"
        "name = hashlib.sha256(b'later').hexdigest()\n"
        "try:\n    attachments.get(name)\nexcept HostError as error:\n    print('not yet')\n"
        "attachments.put('later')\n"
        "print(attachments.get(name))"
    )
    found = play(sandbox, [block(program), block("FINAL(1)")], grants=BOTH)

    assert of(found, ProgramFinished)[0].stdout == "not yet\nlater\n"
    assert found.replayed().held


def test_a_long_file_that_is_cut_short_after_it_was_named_harms_nobody(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "long.txt"
    path.write_text("line\n" * 1_200_000)
    inputs = read_inputs([str(path)])
    path.write_text("cut")

    with Session(
        model=ModelDouble(block("FINAL(len(context))")),
        ledger=SqliteLedger(tmp_path / "ledger.db"),
        sandbox=sandbox,
    ) as session:
        run = session.run("?", inputs=inputs)
        report = session.replay(run.run)

    assert run.answer == "3"
    assert report.held


def test_an_empty_name_is_no_directory() -> None:
    with pytest.raises(UsageError, match="an empty name"):
        read_inputs([""])


def test_output_of_a_program_that_is_cancelled_leaves_no_file(sandbox: WasmSandbox) -> None:
    assert sandbox.output_directory is not None
    before = set(sandbox.output_directory.glob("*"))
    program = "for n in range(20_000): print('line', n)\nwhile True: pass"

    found: Played = play(sandbox, [block(program)], limits=RunLimits(wall_ms=800))

    assert found.run.stop == "deadline"
    assert set(sandbox.output_directory.glob("*")) == before


def test_a_run_that_is_running_is_not_taken_away(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    with lock_run(ledger, "01M7H9059YPYTCBKVW1YQJBKX4"):
        with pytest.raises(UsageError, match="is running"):
            require_idle(ledger, "01M7H9059YPYTCBKVW1YQJBKX4")
        require_idle(ledger, "01M7H9059Y729C9THC2VSV07K8")
    require_idle(ledger, "01M7H9059YPYTCBKVW1YQJBKX4")
