"""Wherever a run is cut off, it goes on to the same end, and nothing is paid or done twice.

The sandbox, the session and everything below it are the real ones; only the model is planned. A
ledger holds a prefix of a run's records after a crash, so every prefix is a place to go on from,
also one that ends inside what was gone on with before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.laws.costed_world import WatchedTree
from tests.laws.test_costed_sessions import watched
from tests.runtime.run.cut_runs import (
    Cancelling,
    SlowLedger,
    Whole,
    World,
    in_doubt,
    keys_of,
    played,
    reopened,
    without_time,
    world,
)

from tallystick.core.chain import Head
from tallystick.core.charge import RunLimits
from tallystick.core.machine import machine
from tallystick.core.records import AskModel, QueryRefused, ReceiptIssued, Record, RunEnded
from tallystick.core.resume_errors import ResumeRefused
from tallystick.core.views.open_calls import open_calls
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.calls import queries
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.programs import execution
from tallystick.runtime.run.fork import shared_records
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.ledgers import LastingAttachments, append_records
from tallystick.testing.plans import Planned, program

pytestmark = pytest.mark.slow

EXAMPLES, EXAMPLES_SLOW = 25, 400
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="module", autouse=True)
def at_once() -> Iterator[None]:
    """Attempts after the first wait for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "_WAIT_MS", 0)
        patch.setattr(queries, "_WAIT_MS", 0)
        yield


# -- plans --------------------------------------------------------------------------------------

words = st.sampled_from(["a", "bc", "def", "fails 1 x", "fails 2", "fails 99", "never", "long one"])
lines = st.one_of(
    st.sampled_from(
        [
            "n = n * 3 + 1",
            "import random\nn += int(random.random() * 1000)",
            "import time\nn += int(time.time() * 1000) % 1000",
            "n += fetch('key')",
            "n += send('what')",
            "n += post('it')",
            "try:\n    n += note('no')\nexcept HostError as error:\n    n += len(str(error))",
            "print(budget.remaining())",
            "print(n)",
            "print('x' * 70_000)\nprint(n)",
            "n += len(outputs)",
            "n += len(outputs[0]) if len(outputs) else 1",
            "n += len(attachments.put('kept', label='k')['id'])",
            "n += len(context)",
            "n += len(str(context[:30]))",
            "n += len(context.search('b')) if hasattr(context, 'search') else context.count('b')",
            "n += len(page(7))",
            "n += len(llm_query('y' * 70_000))",
            "n += len(attachments.get(attachments.put('z' * 90_000)))",
            "n += llm_query('number of it', schema=int)",
            "n += nothing_of_that_name",
            "raise ValueError(n)",
            "try:\n    llm_query('a', model='nobody')\n"
            "except HostError as error:\n    n += len(error.kind)",
            "for i in range(3):\n    n += send(str(i)) + fetch(str(i))",
        ]
    ),
    words.map(lambda word: f"r = llm_query_batched([{word!r}])\nn += len(str(r[0]))"),
    words.map(
        lambda word: (
            f"try:\n    n += len(llm_query({word!r}))\n"
            "except HostError as error:\n    n += len(error.kind)"
        )
    ),
    st.tuples(st.lists(words, min_size=2, max_size=5), st.sampled_from(["part", "whole"])).map(
        lambda drawn: (
            f"try:\n    rs = llm_query_batched({drawn[0]!r}, fit={drawn[1]!r})\n"
            "    n += sum(len(str(each)) for each in rs)\n"
            "except HostError as error:\n    n += len(error.kind)"
        )
    ),
)
programs = st.lists(lines, min_size=1, max_size=4).map("\n".join)
texts = st.one_of(
    st.lists(programs, min_size=1, max_size=3).map(
        lambda sources: "\n\n".join(f"```repl\n{source}\n```" for source in sources)
    ),
    st.sampled_from(
        ["I shall think about it.", "RUN(ls)", "FINAL(41)", "```repl\nFINAL(n)\n```", ""]
    ),
)
replies = st.builds(Planned, text=texts, failures=st.sampled_from([0, 0, 0, 1, 2, 3]))
plans = st.lists(replies, min_size=1, max_size=5).map(
    lambda drawn: (program("n = 1", "print(n)"), *drawn)
)
# Calls in doubt are attempts too: there are enough for all that are cut off.
MANY = RunLimits(tokens=10_000_000, retries=9)
caps = st.sampled_from(
    [
        MANY,
        MANY,
        RunLimits(tokens=10_000_000, turns=3),
        RunLimits(tokens=30_000),
        RunLimits(tokens=10_000_000, usd=60_000_000),
        RunLimits(tokens=10_000_000, model_calls=6),
        RunLimits(tokens=10_000_000, host_calls=4, retries=0),
    ]
)


# Where a run is cut off, in thousandths: how many records it has may differ by who came first.
shares = st.integers(0, 999)
cuts = st.lists(shares, min_size=1, max_size=3)


# -- the law ------------------------------------------------------------------------------------


def check_resumed(
    whole: Whole, before: Sequence[Record], made: World, tree: WatchedTree, again: Run
) -> list[Record]:
    """What holds of every run that was gone on with, wherever it was cut off."""
    run = whole.id
    records = made.records(run)
    assert records[: len(before)] == list(before)
    assert verify_ledger(made.ledger, [run]).first_bad is None
    # Nothing that is recorded is asked or done again; what is in doubt has a key of its own.
    assert not set(made.asked) & keys_of(run, before)
    assert len(set(made.asked)) == len(made.asked)
    assert set(made.asked) <= keys_of(run, records)
    ended = records[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.stop, ended.charge) == (again.stop, again.charge)
    assert open_calls(records) == []
    tree.quiet()
    if len(records) > len(before):
        spent = tree.spent[run]
        assert spent["usd"] == (again.charge.usd or 0)
        assert spent["tokens"] == again.charge.tokens_in + again.charge.tokens_out
    replayed = made.session.replay(run)
    assert replayed.held, replayed.divergence
    return records


def first_part(records: Sequence[Record], share: int) -> list[Record]:
    """So many thousandths of a run's records, and at least one."""
    at = 1 + share * len(records) // 1_000
    # A receipt and the end that it is of are one transaction.
    return list(records[: at + isinstance(records[at - 1], ReceiptIssued)])


def check_cuts(sandbox: WasmSandbox, whole: Whole, cuts: Sequence[int]) -> None:
    for share in cuts:
        before = first_part(whole.records, share)
        with watched() as trees:
            made = reopened(whole, sandbox, before)
        with made.session:
            if not check_cut(whole, before, made, trees[0]):
                return


def check_cut(whole: Whole, before: Sequence[Record], made: World, tree: WatchedTree) -> bool:
    """Resume a run from there. Returns False where nothing more can be compared."""
    doubtful = in_doubt(before)
    ended = isinstance(before[-1], RunEnded)
    head = made.ledger.row(whole.id)
    try:
        again = made.session.resume(whole.id, in_doubt="retry")
    except ResumeRefused:
        # It is at its cap.
        assert ended
        assert made.ledger.row(whole.id) == head
        return False
    records = check_resumed(whole, before, made, tree, again)
    if ended and before[-1].stop != "answered":  # type: ignore[union-attr]
        return False
    if any(isinstance(each, QueryRefused) for each in (*records, *whole.records)):
        # Which of a batch was paid for at a cap is a matter of who came first.
        return False
    if not in_doubt(records):
        assert not doubtful
        assert without_time(again.charge) == without_time(whole.run.charge)
    if not in_doubt(records) or whole.records[0].limits == MANY:  # type: ignore[union-attr]
        assert (again.stop, again.answer) == (whole.run.stop, whole.run.answer)
    if ended:
        assert made.ledger.row(whole.id) == head
        assert made.asked == []
    return True


def played_plan(sandbox: WasmSandbox, plan: Sequence[Planned], limits: RunLimits) -> Whole:
    # A text that is given whole, or one that stays on the host.
    lines = 20_000 if len(plan) % 2 else 2
    whole = played(
        sandbox,
        *plan,
        limits=limits,
        inputs=[given_text("a b c\n" * lines)],
        grants=["attachments.read", "attachments.write"],
        attachments=LastingAttachments(),
    )
    whole.world.session.close()
    return whole


@settings(max_examples=EXAMPLES, suppress_health_check=SLOW)
@given(plan=plans, limits=caps, cuts=cuts)
def test_a_run_goes_on_from_any_place_to_the_same_end_and_pays_for_nothing_twice(
    sandbox: WasmSandbox, plan: Sequence[Planned], limits: RunLimits, cuts: Sequence[int]
) -> None:
    check_cuts(sandbox, played_plan(sandbox, plan, limits), cuts)


@pytest.mark.slow
@settings(max_examples=EXAMPLES_SLOW, suppress_health_check=SLOW)
@given(plan=plans, limits=caps, cuts=cuts)
def test_hundreds_of_runs_go_on_from_any_place(
    sandbox: WasmSandbox, plan: Sequence[Planned], limits: RunLimits, cuts: Sequence[int]
) -> None:
    check_cuts(sandbox, played_plan(sandbox, plan, limits), cuts)


@settings(max_examples=EXAMPLES // 5, suppress_health_check=SLOW)
@given(plan=plans, share=shares, cut_at=shares)
def test_a_fork_at_any_turn_comes_to_the_same_end_and_goes_on_when_it_is_cut_off(
    sandbox: WasmSandbox, plan: Sequence[Planned], share: int, cut_at: int
) -> None:
    whole = played_plan(sandbox, plan, MANY)
    turns = max(each.turn for each in whole.records if isinstance(each, AskModel))
    turn = share * (turns + 1) // 1_000
    row = whole.world.ledger.row(whole.id)
    shared = shared_records(whole.id, whole.records, turn)
    made = world(
        sandbox,
        plan,
        ledger=whole.world.ledger,
        attachments=whole.world.session.attachments,
        recorded=shared,
    )
    fork = made.session.fork(whole.id, turn=turn)
    made.session.close()

    assert whole.world.ledger.row(whole.id) == row
    if turn == turns and whole.run.stop != "answered":
        # It goes on where the run stopped.
        return
    assert (fork.stop, fork.answer) == (whole.run.stop, whole.run.answer)
    assert without_time(fork.charge) == without_time(whole.run.charge)
    own = list(made.ledger.read(fork.run))
    at = 1 + cut_at * len(own) // 1_000
    cut = MemoryLedger()
    cut._rows, cut._entries = dict(whole.world.ledger._rows), dict(whole.world.ledger._entries)  # type: ignore[attr-defined]
    cut._entries[fork.run] = own[:at]
    head = Head(count=at, hash=own[at - 1].hash)
    cut._rows[fork.run] = msgspec.structs.replace(cut._rows[fork.run], head=head)
    before = whole_records(cut, fork.run)
    again = world(
        sandbox,
        plan,
        ledger=cut,
        attachments=whole.world.session.attachments,
        recorded=before,
    )
    if isinstance(before[-1], ReceiptIssued):
        return
    try:
        run = again.session.resume(fork.run, in_doubt="retry")
        assert (run.stop, run.answer) == (whole.run.stop, whole.run.answer) or at == len(own)
        assert verify_ledger(cut, [fork.run]).first_bad is None
        report = again.session.replay(fork.run)
        assert report.held, report.divergence
        assert not set(again.asked) & keys_of(fork.run, before[len(shared) :])
    finally:
        again.session.close()


@settings(max_examples=EXAMPLES // 8, suppress_health_check=SLOW)
@given(plan=plans, limits=caps, cuts=cuts)
def test_it_does_so_from_snapshots_too(
    sandbox: WasmSandbox, plan: Sequence[Planned], limits: RunLimits, cuts: Sequence[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "SNAPSHOT_FUEL", 0)
        check_cuts(sandbox, played_plan(sandbox, plan, limits), cuts)


# -- again and again ----------------------------------------------------------------------------

LIVES = (
    program("n = 1", "print(n)"),
    program("n += send('what')", "print(n)"),
    program("n += len(llm_query('one'))"),
    program("n += len(str(llm_query_batched(['a', 'bc', 'fails 1', 'def'])))", "print(n)"),
    program("n += fetch('key') + len(page(3))", "print(n)"),
    Planned("hm"),
    program("FINAL(n)", failures=1),
)


@settings(max_examples=EXAMPLES // 3, suppress_health_check=SLOW)
@given(
    lives=st.lists(st.tuples(st.integers(2, 40), shares), min_size=3, max_size=3),
)
def test_a_run_that_is_cancelled_and_cut_off_again_and_again_comes_to_its_end(
    sandbox: WasmSandbox, lives: Sequence[tuple[int, int]]
) -> None:
    """Each life ends by itself, or by a cancel while something is written; then some is lost."""
    whole = played(sandbox, *LIVES, attachments=LastingAttachments(), limits=MANY)
    records = whole.records[:1]
    # The last one is not cancelled.
    for number, share in (*lives, (0, 0)):
        cancelling = Cancelling()
        ledger = SlowLedger(number, cancelling)
        append_records(ledger, whole.id, records)
        made = world(
            sandbox,
            LIVES,
            ledger=ledger,
            attachments=whole.world.session.attachments,
            recorded=records,
        )
        made.model.before = cancelling.watch
        run = made.session.resume(whole.id, in_doubt="retry")

        assert not set(made.asked) & keys_of(whole.id, records)
        report = made.session.replay(whole.id)
        assert report.held, report.divergence
        made.session.close()
        if run.stop == "answered":
            assert run.answer == whole.run.answer
        else:
            assert run.stop == "cancelled"
            assert number
        records = first_part(made.records(whole.id), share)
    whole.world.session.close()
