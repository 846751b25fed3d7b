"""Children under a total that processes share: what each holds of it is its own."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.run.cut_children import (
    GOAL,
    ONE,
    TOTAL,
    WIDE,
    cut_off,
    holds,
    is_root,
    opened,
    says,
    spent,
)

from tallystick.core.records import RunForked, RunStarted
from tallystick.core.views.open_calls import Lookup
from tallystick.ledger.scopes import SharedScopes
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model import NOT_RECEIVED
from tallystick.model.port import ModelReply
from tallystick.runtime.runs.history import records_of
from tallystick.runtime.runs.in_doubt import close_calls
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import ModelCall, ModelDouble, block

THREE = "FINAL(str(rlm_query_batched(['child one', 'child two', 'child three'])))"
KID = "FINAL('kid')"


@pytest.fixture(scope="module")
def one_dead(sandbox: WasmSandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut off in the first call of its child."""
    model = ModelDouble(says(ONE, None))
    return cut_off(sandbox, tmp_path_factory.mktemp("one"), model, total=TOTAL)


@pytest.fixture(scope="module")
def three_dead(sandbox: WasmSandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was cut off in the first calls of its three children."""
    model = ModelDouble(says(THREE, None))
    return cut_off(sandbox, tmp_path_factory.mktemp("three"), model, wanted=3, total=TOTAL)


@pytest.fixture
def one(one_dead: Path, tmp_path: Path) -> Iterator[SqliteLedger]:
    shutil.copytree(one_dead, tmp_path / "one")
    with SqliteLedger(tmp_path / "one" / "ledger.db") as ledger:
        yield ledger


@pytest.fixture
def three(three_dead: Path, tmp_path: Path) -> Iterator[SqliteLedger]:
    shutil.copytree(three_dead, tmp_path / "three")
    with SqliteLedger(tmp_path / "three" / "ledger.db") as ledger:
        yield ledger


def test_what_a_child_holds_is_held_in_its_own_name(one: SqliteLedger, three: SqliteLedger) -> None:
    for ledger in (one, three):
        _, *children = [row.run for row in ledger.runs()]

        held = holds(ledger)

        assert sorted(each.row.run for each in held) == sorted(children)
        assert all(each.owner_dead for each in held)


def test_a_childs_call_that_is_made_again_is_paid_twice_by_the_total_as_well(
    sandbox: WasmSandbox, one: SqliteLedger
) -> None:
    parent, _ = (row.run for row in one.runs())
    (held,) = holds(one)
    before = spent(one)

    with opened(sandbox, one, says(ONE, KID), total=TOTAL) as session:
        run = session.resume(parent, in_doubt="retry")

    assert run.answer == "kid"
    assert run.charge.usd is not None
    assert spent(one) == run.charge.usd > before + (held.row.amount.usd or 0)
    assert holds(one) == []


def test_children_that_go_on_together_let_each_others_holds_be(
    sandbox: WasmSandbox, three: SqliteLedger
) -> None:
    """Each asks when it comes to it: the first has reconciled long before the last looks."""
    parent, *children = (row.run for row in three.runs())
    model = ModelDouble(says(THREE, KID))
    model.delay = 0.05

    async def find(name: str, key: str) -> ModelReply | Lookup:
        await asyncio.sleep(0.03 * children.index(key.split("-")[0]))
        return NOT_RECEIVED

    with opened(sandbox, three, model, total=TOTAL, lookup=find) as session:
        run = session.resume(parent)
        assert all(session.replay(each).held for each in (parent, *children))

    assert run.answer == "['kid', 'kid', 'kid']"
    assert len(model.keys) == 3
    assert spent(three) == run.charge.usd
    assert holds(three) == []


def test_resolving_a_child_closes_what_it_held_and_its_parent_held_nothing(
    one: SqliteLedger,
) -> None:
    parent, child = (row.run for row in one.runs())
    (held,) = holds(one)
    before = spent(one)

    with SharedScopes(one.file) as scopes:
        of_parent = close_calls(one, parent, charge=True, scopes=scopes, at=1)
        left = holds(one)
        of_child = close_calls(one, child, charge=True, scopes=scopes, at=1)

    assert (of_parent.calls, of_parent.holds, left) == (0, 0, [held])
    assert (of_child.calls, of_child.holds, holds(one)) == (1, 1, [])
    assert spent(one) == before + (held.row.amount.usd or 0)


def test_a_parents_own_call_in_doubt_is_not_taken_for_one_of_its_childs(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    """Both count what they hold from one on."""
    program = "print(rlm_query('child please'))"

    def said(call: ModelCall) -> str | None:
        if is_root(call):
            return None if call.turn else block(program)
        return block(KID)

    folder = cut_off(sandbox, tmp_path, ModelDouble(said), total=TOTAL)
    with SqliteLedger(folder / "ledger.db") as ledger:
        parent, _ = (row.run for row in ledger.runs())
        assert [each.row.run for each in holds(ledger)] == [parent]

        with opened(sandbox, ledger, says("FINAL(1)"), total=TOTAL) as session:
            run = session.resume(parent, in_doubt="retry")

        assert run.answer == "1"
        assert spent(ledger) == run.charge.usd
        assert holds(ledger) == []


def test_children_of_a_fork_are_asked_at_its_temperature(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        model = ModelDouble(says(ONE, KID))
        with opened(sandbox, ledger, model) as session:
            first = session.run(GOAL, limits=WIDE, temperature=0.1)
            assert model.temperatures == [0.1, 0.1]

            session.fork(first.run, turn=0, temperature=0.9)

        assert model.temperatures[2:] == [0.9, 0.9]
        begun = [next(records_of(ledger, row.run)) for row in ledger.runs()]
        assert [each.temperature for each in begun if isinstance(each, RunStarted | RunForked)] == [
            0.1, 0.1, 0.9, 0.9,
        ]  # fmt: skip
