"""Finding runs: what a command costs in a ledger of 100,000 runs, beside one of ten.

Question: does finding a run, listing the newest and pruning a few cost at most 1.5 times as much
with 100,000 runs as with ten? Ledgers are filled through the functions that the ledger itself uses.
Commands are called in this process, so what is timed is the command and not the interpreter.

Sketch before measuring. A row is found by its key or by an index: three or four pages more in the
large file. A listing of 50 runs shows ten where there are ten, so it is compared with 50.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench.measure import Bench, Row, World, now
from click.testing import CliRunner

from tallystick.cli.main import cli
from tallystick.core.chain import Draft, Head
from tallystick.core.charge import Charge, RunLimits
from tallystick.core.ids import ulid
from tallystick.core.records import (
    Caller,
    ReceiptIssued,
    Record,
    RunEnded,
    RunStarted,
    encode_record,
    intent_of,
    tag_of,
)
from tallystick.core.views.receipt import Tally
from tallystick.ledger import acts, custody
from tallystick.ledger.facts import row_after_entries, tagged_drafts
from tallystick.ledger.port import RunFilter
from tallystick.ledger.sqlite import SqliteLedger, insert_entries, put_row
from tallystick.runtime.runs.history import resolve_run
from tallystick.runtime.runs.tree import tree_of

__all__ = ["BENCHES", "fill"]

_FEW, _PAGE, _MANY = 10, 50, 100_000
_CHILDREN = 3
_ROUNDS = 15
_PRUNED = 5


def _run_id(number: int) -> str:
    return ulid(time_ms=1_700_000_000_000 + number, entropy=bytes(10))


def _drafts(number: int, caller: str | None) -> list[Draft]:
    start = RunStarted(
        goal=f"question {number}",
        model="bench:turns",
        limits=RunLimits(),
        grants=(),
        contexts=(),
        functions=(),
        texts=(),
        seed=number,
        session_id=ulid(time_ms=number, entropy=b"\1" * 10),
        template="t",
        guest="g" * 64,
        engine="e",
        started_at=1_700_000_000_000 + number,
        caller=None if caller is None else Caller(run=caller, intent=1, item=0, depth=1),
    )
    end = RunEnded(stop="answered", detail="", answer="42", partial=False, charge=Charge(turns=1))
    records: list[Record] = [start, ReceiptIssued(receipt=Tally().receipt(start, end)), end]
    return [
        Draft(tag=tag_of(each), intent=intent_of(each), body=encode_record(each))
        for each in records
    ]


def fill(path: Path, runs: int) -> None:
    """Make a ledger of so many runs that have ended, three of them begun by a fourth."""
    with SqliteLedger(path) as ledger, ledger.file.writing(forced=False) as db:
        acts.prepare(db)
        for number in range(runs):
            run = _run_id(number)
            inside = runs // 2 < number <= runs // 2 + _CHILDREN
            drafts = _drafts(number, _run_id(runs // 2) if inside else None)
            row = custody.row_after_claim(None, run, create=True)
            sealed, head = custody.seal_all(run, drafts, head=Head.of_nothing(), salts=os.urandom)
            insert_entries(db, run, list(enumerate(sealed)))
            row = custody.row_after_append(row, run, expected=row.head, fence=row.fence, head=head)
            put_row(db, row_after_entries(row, tagged_drafts(drafts)))
            acts.add(db, row, "created")


def _command(*words: str) -> Callable[[SqliteLedger], object]:
    def call(ledger: SqliteLedger) -> object:
        done = CliRunner().invoke(cli, words, standalone_mode=False, catch_exceptions=False)
        if done.return_value != 0:
            raise RuntimeError(f"{words} ended with {done.return_value}: {done.output}")
        return done.stdout

    return call


@contextlib.contextmanager
def _at(folder: Path) -> Iterator[None]:
    before = os.environ.get("TALLYSTICK_DATA_DIR")
    os.environ["TALLYSTICK_DATA_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("TALLYSTICK_DATA_DIR")
        if before is not None:
            os.environ["TALLYSTICK_DATA_DIR"] = before


def _seconds(folder: Path, call: Callable[[SqliteLedger], object]) -> float:
    with _at(folder), SqliteLedger(folder / "ledger.db") as ledger:
        began = now()
        call(ledger)
        return now() - began


def ledger_scale(world: World) -> Iterable[Row]:
    folders = {}
    for many in (_FEW, _PAGE, _MANY):
        folder = folders[many] = world.directory / f"runs-{many}"
        fill(folder / "ledger.db", many)
    middle = {many: _run_id(many // 2) for many in folders}
    asked: dict[str, tuple[int, Callable[[int], Callable[[SqliteLedger], object]]]] = {
        "tally ls --limit 50": (_PAGE, lambda many: _command("ls", "--limit", "50")),
        "tally inspect last": (_FEW, lambda many: _command("inspect", "last")),
        "a run by its prefix": (
            _FEW,
            lambda many: lambda ledger: resolve_run(ledger, middle[many][:-3]),
        ),
        "what the runs inside a run cost": (
            _FEW,
            lambda many: lambda ledger: tree_of(ledger, middle[many]),
        ),
        "the children of a run": (
            _FEW,
            lambda many: lambda ledger: ledger.runs(RunFilter(caller=middle[many])),
        ),
        "Ledger.row": (_FEW, lambda many: lambda ledger: ledger.row(middle[many])),
    }
    most = {"tally ls --limit 50": 50.0, "Ledger.row": 5.0}
    for name, (few, call) in asked.items():
        pairs = []
        for _ in range(_ROUNDS + 1):
            small = _seconds(folders[few], call(few))
            pairs.append((small, _seconds(folders[_MANY], call(_MANY))))
        pairs = pairs[1:]  # the first warms up
        yield Row(
            bench="ledger",
            name=f"{name}, {_MANY:,} runs to {few}",
            unit="x",
            samples=[large / small for small, large in pairs],
            target=1.5,
            against=f"{statistics.median(small for small, _ in pairs) * 1e3:.2f} ms with {few}",
        )
        yield Row(
            bench="ledger",
            name=f"{name}, {_MANY:,} runs",
            unit="ms",
            samples=[large * 1e3 for _, large in pairs],
            target=most.get(name),
        )
    yield from _prune(folders)


def _prune(folders: dict[int, Path]) -> Iterable[Row]:
    """Prune the oldest runs by their age, a few each time."""
    pairs = []
    for number in range(_PRUNED + 1):
        pair = []
        for many in (_PAGE, _MANY):
            words = [_run_id(3 * number + each) for each in range(3)]
            pair.append(_seconds(folders[many], _command("prune", *words, "--yes")))
        pairs.append((pair[0], pair[1]))
    pairs = pairs[1:]
    yield Row(
        bench="ledger",
        name=f"tally prune of 3 runs, {_MANY:,} runs to {_PAGE}",
        unit="x",
        samples=[large / small for small, large in pairs],
        target=1.5,
        against=f"{statistics.median(small for small, _ in pairs) * 1e3:.1f} ms with {_PAGE}",
    )
    for folder in folders.values():
        shutil.rmtree(folder)


BENCHES: dict[str, Bench] = {"ledger": ledger_scale}
