"""What a run spent before it was cut off is spent: its caps and others go on from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.laws.test_costed_sessions import watched
from tests.runtime.run.cut_runs import ROOMY, Dead, World, died, keys_of, played, reopened, world

from tallystick.client import Session
from tallystick.core.budget.amount import Amount, Budget, ScopeRow
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.records import (
    AskModel,
    HostAnswered,
    ModelReplied,
    QueryAsked,
    QueryRefused,
    QueryReplied,
    ReceiptIssued,
    Record,
    RunEnded,
)
from tallystick.core.resume_errors import RunInDoubt
from tallystick.core.views.open_calls import open_calls
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.spend.scopes import DEPLOYMENT, SharedCap
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import NANO_IN, NANO_OUT, ModelCall
from tallystick.testing.plans import program

# What is repeated is counted in the fuel of the guest.
NEEDS_GUEST = True

pytestmark = pytest.mark.slow

PLAN = (
    program("n = 1", "print(budget.remaining())"),
    program("n += len(llm_query('one'))", "print(budget.remaining())"),
    program("n += len(str(llm_query_batched(['a', 'bc', 'def'])))", "print(budget.remaining())"),
    program("FINAL(n)"),
)
TOTAL = Budget.of(usd=1)


def check_conserves(row: ScopeRow) -> None:
    """Limit = remaining + reserved + spent, in every dimension that is limited."""
    for name in ("usd", "tokens", "model_calls"):
        limit = getattr(row.limit, name)
        if limit is not None:
            left = getattr(row.remaining, name)
            assert limit == left + (getattr(row.reserved, name) or 0) + getattr(row.spent, name)


def spent_of(session: Session, kind: str) -> Amount:
    (row,) = [each for each in session.engine.scopes.rows() if each.scope.kind == kind]
    return row.spent


# -- the run's own cap -------------------------------------------------------------------------


def billed(record: Record) -> int:
    if isinstance(record, ModelReplied | QueryReplied):
        return record.usage.tokens_in * NANO_IN + record.usage.tokens_out * NANO_OUT
    return 0


@pytest.mark.parametrize("usd", ["0.0015", "0.004", "0.02"])
def test_what_is_billed_before_and_after_stays_within_the_cap(
    sandbox: WasmSandbox, usd: str
) -> None:
    """Also if whatever was under way was billed as well."""
    cap = nano_usd(usd)
    limits = RunLimits(tokens=10_000_000, usd=cap, reply_tokens=200)
    whole = played(sandbox, *PLAN, limits=limits)
    for at in range(1, len(whole.records)):
        before = whole.records[:at]
        if isinstance(before[-1], ReceiptIssued):
            # It is written together with the end that it is of.
            continue
        with watched() as trees:
            made = reopened(whole, sandbox, before)
        run = made.session.resume(whole.id, in_doubt="retry")

        paid = sum(map(billed, before)) + sum(billed(each) for each in made.records(whole.id)[at:])
        lost = [each for each in whole.records if billed(each)][: len(open_calls(before))]
        assert paid + sum(map(billed, lost)) <= cap
        assert (run.charge.usd or 0) <= cap
        assert trees[0].spent[whole.id]["usd"] == (run.charge.usd or 0)
        trees[0].quiet()
        made.session.close()


def test_a_batch_that_was_begun_as_a_whole_is_not_refused_as_a_whole(
    sandbox: WasmSandbox,
) -> None:
    """Others have spent meanwhile what the rest of it needs: that is told of each."""
    plan = (
        program(
            "rs = llm_query_batched(['a', 'bc', 'def'], fit='whole')",
            "print([getattr(each, 'kind', each) for each in rs])",
        ),
        program("FINAL('done')"),
    )
    whole = played(sandbox, *plan, budget=Budget.of(model_calls=9))
    place = next(n for n, each in enumerate(whole.records) if isinstance(each, HostAnswered))
    records = [each for each in whole.records[:place] if getattr(each, "item", 0) == 0]
    assert sum(isinstance(each, QueryReplied) for each in records) == 1
    # The turn, and the one call that was answered.
    made = reopened(whole, sandbox, records, budget=Budget.of(model_calls=2))

    made.session.resume(whole.id)

    after = made.records(whole.id)
    refused = [each for each in after if isinstance(each, QueryRefused)]
    assert [each.item for each in refused] == [1, 2]
    assert made.session.replay(whole.id).held
    again = reopened(whole, sandbox, after[:-2])
    assert again.session.resume(whole.id).stop in ("budget", "answered")
    assert again.session.replay(whole.id).held


# -- the session's -----------------------------------------------------------------------------


def test_what_another_process_spent_counts_against_the_session_that_goes_on(
    sandbox: WasmSandbox,
) -> None:
    whole = played(sandbox, *PLAN)
    made = whole.cut(sandbox, len(whole.records) // 2, budget=Budget.of(usd=1, tokens=10**7))

    run = made.session.resume(whole.id, in_doubt="retry")

    spent = spent_of(made.session, "session")
    assert spent.usd == run.charge.usd
    assert spent.tokens == run.charge.tokens_in + run.charge.tokens_out
    assert spent.turns == run.charge.turns


def test_a_session_that_goes_on_with_its_own_run_counts_it_once(sandbox: WasmSandbox) -> None:
    stopped = played(sandbox, *PLAN, limits=RunLimits(turns=2), budget=Budget.of(usd=1))
    session = stopped.world.session
    assert spent_of(session, "session").usd == stopped.run.charge.usd

    run = session.resume(stopped.id, limits=ROOMY)

    assert run.stop == "answered"
    spent = spent_of(session, "session")
    assert spent.usd == run.charge.usd
    assert spent.tokens == run.charge.tokens_in + run.charge.tokens_out


def test_a_session_without_room_stops_it_before_the_next_call(sandbox: WasmSandbox) -> None:
    whole = played(sandbox, *PLAN)
    place = next(n for n, each in enumerate(whole.records) if isinstance(each, AskModel) and n > 9)
    made = whole.cut(sandbox, place, budget=Budget.of(usd="0.0001"))

    run = made.session.resume(whole.id)

    assert (run.stop, made.asked) == ("budget", [])
    assert made.session.replay(whole.id).held


# -- the total that processes share ------------------------------------------------------------


@pytest.fixture
def opened() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for each in made:
        each.session.close()
        assert isinstance(each.ledger, SqliteLedger)
        each.ledger.close()


def holds(dead: Dead) -> list[int]:
    with SqliteLedger(dead.folder / "ledger.db") as ledger, SharedScopes(ledger.file) as scopes:
        for row in scopes.rows():
            check_conserves(row)
        return sorted(each.row.intent for each in scopes.holds(run=dead.run))


def total(dead: Dead) -> ScopeRow:
    with SqliteLedger(dead.folder / "ledger.db") as ledger, SharedScopes(ledger.file) as scopes:
        (row,) = [row for row in scopes.rows() if row.scope.id == DEPLOYMENT]
    return row


def dead_in(sandbox: WasmSandbox, folder: Path, where: str) -> Dead:
    """A run that was killed in a call: its own, or those of a batch."""

    def when(request: ModelCall) -> bool:
        own = request.messages[0].role == "system"
        return len(request.messages) > 3 if own and where == "model" else (
            not own and where == "batch" and request.messages[0].text in ("a", "def")
        )  # fmt: skip

    return died(sandbox, folder, *PLAN, when=when, total=TOTAL)


@pytest.mark.parametrize("policy", ["retry", "abandon"])
@pytest.mark.parametrize("where", ["model", "batch"])
def test_what_is_in_doubt_stays_held_until_it_is_decided(
    sandbox: WasmSandbox, tmp_path: Path, opened: list[World], where: str, policy: Any
) -> None:
    dead = dead_in(sandbox, tmp_path, where)
    made = dead.reopened(sandbox, total=TOTAL)
    opened.append(made)
    records = made.records(dead.run)
    held = [
        each.reserved.hold
        for each in open_calls(records)
        if isinstance(each, AskModel | QueryAsked) and each.reserved is not None
    ]
    assert holds(dead) == sorted(held)
    before = total(dead)

    with pytest.raises(RunInDoubt):
        made.session.resume(dead.run)
    assert holds(dead) == sorted(held)
    assert total(dead) == before

    run = made.session.resume(dead.run, in_doubt=policy)

    assert holds(dead) == []
    row = total(dead)
    check_conserves(row)
    assert row.spent.usd == run.charge.usd
    assert row.spent.tokens == run.charge.tokens_in + run.charge.tokens_out
    numbers = [
        each.reserved.hold
        for each in made.records(dead.run)
        if isinstance(each, AskModel | QueryAsked) and each.reserved is not None
    ]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) > 0


def test_what_was_never_sent_is_given_back_and_what_had_ended_is_settled(
    sandbox: WasmSandbox, tmp_path: Path, opened: list[World]
) -> None:
    """The process died between holding and writing, or between writing and settling."""
    dead = dead_in(sandbox, tmp_path, "model")
    with SqliteLedger(dead.folder / "ledger.db") as ledger:
        records = whole_records(ledger, dead.run)
        ended = next(each for each in records if isinstance(each, ModelReplied))
        assert ended.settled is not None
        scopes = SharedScopes(ledger.file)
        scopes.record_total(DEPLOYMENT, TOTAL)
        run_scopes = SharedCap(scopes, run=dead.run)
        before = total(dead).spent.usd
        run_scopes.number_after(40)
        never = run_scopes.reserve(Amount(usd=7_000_000, tokens=9, model_calls=1), usd_waived=False)
        run_scopes._numbers = iter([1])  # type: ignore[assignment]
        assert (
            run_scopes.reserve(Amount(usd=5_000_000, tokens=9, model_calls=1), usd_waived=False)
            == 1
        )
    assert holds(dead) == [1, 2, never]
    made = dead.reopened(sandbox, total=TOTAL)
    opened.append(made)

    run = made.session.resume(dead.run, in_doubt="retry")

    assert holds(dead) == []
    assert before is not None
    assert ended.settled.usd is not None
    # As its call ended, once more than it was settled already.
    assert total(dead).spent.usd == (run.charge.usd or 0) + ended.settled.usd
    scopes.close()


def test_a_call_that_never_arrived_gives_back_what_it_held(
    sandbox: WasmSandbox, tmp_path: Path, opened: list[World]
) -> None:
    from tallystick.core.views.open_calls import NOT_RECEIVED, Lookup

    async def find(model: str, key: str) -> Lookup:
        return NOT_RECEIVED

    dead = dead_in(sandbox, tmp_path, "batch")
    made = dead.reopened(sandbox, total=TOTAL, lookup=find)
    opened.append(made)

    run = made.session.resume(dead.run)

    assert holds(dead) == []
    assert total(dead).spent.usd == run.charge.usd


def test_a_total_that_others_used_up_stops_it(
    sandbox: WasmSandbox, tmp_path: Path, opened: list[World]
) -> None:
    dead = dead_in(sandbox, tmp_path, "model")
    low = Budget(usd=(total(dead).spent.usd or 0) + (total(dead).reserved.usd or 0))
    made = dead.reopened(sandbox, total=low)
    opened.append(made)

    run = made.session.resume(dead.run, in_doubt="retry")

    assert run.stop == "budget"
    assert made.model.keys == []
    row = total(dead)
    check_conserves(row)
    assert row.spent.usd == low.usd
    ended = made.records(dead.run)[-1]
    assert isinstance(ended, RunEnded)
    assert "all runs together" in ended.detail or "deployment" in ended.detail


def test_keys_are_never_used_twice_in_a_run_that_dies_again_and_again(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    """Each time in its next call, under a total: all of it on one disk."""
    dead = dead_in(sandbox, tmp_path, "model")
    seen: set[str] = set()
    for _ in range(3):
        with SqliteLedger(dead.folder / "ledger.db") as ledger:
            records = whole_records(ledger, dead.run)
        seen |= keys_of(dead.run, records)
        made = dead.reopened(sandbox, total=TOTAL)

        def dies(request: ModelCall) -> None:
            raise _Died

        made.model.before = dies
        with pytest.raises(_Died):
            made.session.resume(dead.run, in_doubt="retry")
        assert not set(made.model.keys) & seen
        assert len(made.model.keys) == 1
        made.session.close()
    made = dead.reopened(sandbox, total=TOTAL)
    run = made.session.resume(dead.run, in_doubt="retry")
    assert run.stop == "answered"
    assert run.charge.model_calls == 8 + 4
    assert made.session.replay(dead.run).held
    made.session.close()


class _Died(BaseException):
    """Whoever is asked takes the process down."""


def test_a_run_that_began_without_a_total_may_go_on_under_one(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    stopped = played(
        sandbox, *PLAN, limits=RunLimits(turns=2), ledger=SqliteLedger(tmp_path / "ledger.db")
    )
    made = world(
        sandbox, PLAN, ledger=SqliteLedger(tmp_path / "ledger.db"), recorded=stopped.records,
        total=TOTAL,
    )  # fmt: skip

    run = made.session.resume(stopped.id, limits=ROOMY)

    assert run.stop == "answered"
    (row,) = [each for each in made.session.engine.scopes.rows() if each.scope.id == DEPLOYMENT]
    assert row.spent.usd == (run.charge.usd or 0) - (stopped.run.charge.usd or 0)
    made.session.close()
    stopped.world.session.close()
