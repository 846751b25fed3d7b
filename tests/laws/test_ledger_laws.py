"""Laws of the ledger, over generated runs."""

import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ledger.builders import EMPTY, RUN, draft, drafted, filled, grown, run_id

from tallystick.core.chain import Draft, Head
from tallystick.core.errors import LedgerConflict, LedgerError
from tallystick.core.records import ModelReplied, decode_record
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ledger, TransferLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transfer import export_run, import_run
from tallystick.ledger.verify import ancestors_of, verify_ledger
from tallystick.testing.strategies import usages

# More in a soak, whose profile asks for more.
SCALE = max(1, settings().max_examples // 100)

some_usages = usages(
    st.integers(0, 1 << 40),
    raw=st.dictionaries(st.text(max_size=5), st.integers(-(1 << 53), 1 << 53), max_size=3),
)
replies = st.builds(
    ModelReplied,
    intent=st.integers(0, 1 << 40),
    turn=st.integers(0, 1 << 40),
    text=st.text(max_size=40),
    usage=some_usages,
)
batches = st.lists(st.lists(replies.map(drafted), max_size=4), max_size=5)


def written(batches: list[list[Draft]]) -> tuple[MemoryLedger, list[Head]]:
    """A ledger to which batches were appended, and every head on the way."""
    ledger = MemoryLedger()
    fence = ledger.claim(RUN, create=True)
    heads = [EMPTY]
    for batch in batches:
        heads.append(ledger.append(RUN, batch, expected=heads[-1], fence=fence, forced=False))
    return ledger, heads


def shape(ledger: TransferLedger) -> list[object]:
    return [(row.run, row.head, list(ledger.read(row.run))) for row in ledger.runs()]


@settings(max_examples=40 * SCALE)
@given(batches=batches)
def test_what_was_appended_is_what_is_read_and_it_verifies(batches: list[list[Draft]]) -> None:
    ledger, heads = written(batches)

    bodies = [entry.body for entry in ledger.read(RUN)]

    assert bodies == [each.body for batch in batches for each in batch]
    assert all(decode_record(body) for body in bodies if body is not None)
    assert all(verify_ledger(ledger, heads={RUN: head}).ok for head in heads)


@settings(max_examples=40 * SCALE)
@given(batches=batches, data=st.data())
def test_an_append_succeeds_behind_the_head_and_nowhere_else(
    batches: list[list[Draft]], data: st.DataObject
) -> None:
    ledger, heads = written(batches)
    expected = data.draw(st.sampled_from(heads))
    before = shape(ledger)

    try:
        ledger.append(RUN, [], expected=expected, fence=1, forced=False)
    except LedgerConflict:
        assert expected != heads[-1]
    else:
        assert expected == heads[-1]

    assert shape(ledger) == before


@settings(max_examples=40 * SCALE)
@given(batches=batches, data=st.data(), move=st.booleans())
def test_exporting_then_importing_is_identity(
    batches: list[list[Draft]], data: st.DataObject, move: bool
) -> None:
    ledger, heads = written(batches)
    gone = data.draw(st.lists(st.integers(0, 20), max_size=3))
    ledger.erase(RUN, [seq for seq in gone if seq < heads[-1].count])
    stream, again = io.BytesIO(), io.BytesIO()

    export_run(ledger, RUN, stream, move=move)
    other = MemoryLedger()
    stream.seek(0)
    import_run(other, stream)
    export_run(other, RUN, again)

    assert shape(other) == shape(ledger)
    assert verify_ledger(other) == verify_ledger(ledger)
    assert move or again.getvalue() == stream.getvalue()


@settings(max_examples=40 * SCALE)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["claim", "append", "copy", "move", "import"]),
            st.integers(0, 1),
            st.integers(0, 7),
        ),
        max_size=25,
    )
)
def test_of_two_ledgers_that_pass_a_run_to_and_fro_at_most_one_owns_it(
    steps: list[tuple[str, int, int]],
) -> None:
    ledgers = [written([])[0], MemoryLedger()]
    files: list[bytes] = []

    for what, which, file in steps:
        ledger = ledgers[which]
        rows = list(ledger.runs())
        try:
            if what == "import" and files:
                import_run(ledger, io.BytesIO(files[file % len(files)]))
            elif what in ("copy", "move"):
                stream = io.BytesIO()
                export_run(ledger, RUN, stream, move=what == "move")
                files.append(stream.getvalue())
            elif what == "claim":
                ledger.claim(RUN, create=False)
            elif rows:
                row = rows[0]
                ledger.append(RUN, [draft(0)], expected=row.head, fence=row.fence, forced=False)
        except LedgerError:
            continue

        assert sum(not (r.moved or r.imported) for each in ledgers for r in each.runs()) <= 1
        assert all(verify_ledger(each).ok for each in ledgers)


# To which run, what, whether it is forced, and whether it is waited for.
Step = tuple[int, list[Draft], bool, bool]


class Plan(msgspec.Struct):
    """What one thread submits, in this order."""

    runs: list[str]
    steps: list[Step]


plans = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.lists(replies.map(drafted), max_size=3),
                st.booleans(),
                st.booleans(),
            ),
            max_size=12,
        ),
    ),
    min_size=1,
    max_size=4,
)


def numbered(plans: list[tuple[int, list[Step]]]) -> list[Plan]:
    """Give each thread runs of its own."""
    found = []
    for number, (count, steps) in enumerate(plans):
        runs = [run_id(1 + 10 * number + each) for each in range(count)]
        steps = [(each[0] % count, *each[1:]) for each in steps]
        found.append(Plan(runs=runs, steps=steps))
    return found


def carried_out(ledger: Ledger, plan: Plan) -> dict[str, Head]:
    """Submit as planned, and say which heads were acknowledged."""
    heads = dict.fromkeys(plan.runs, EMPTY)
    fences = {run: ledger.claim(run, create=True) for run in plan.runs}
    futures = []
    for which, batch, forced, waits in plan.steps:
        run = plan.runs[which]
        heads[run], written = ledger.submit(
            run, batch, expected=heads[run], fence=fences[run], forced=forced
        )
        futures.append(written)
        if waits:
            written.result()
    for written in futures:
        written.result()
    return heads


@settings(max_examples=20 * SCALE)
@given(plans=plans.map(numbered))
def test_threads_that_submit_at_once_write_the_chains_that_one_after_the_other_would(
    plans: list[Plan],
) -> None:
    alone = MemoryLedger(salts=bytes)
    expected = [carried_out(alone, plan) for plan in plans]

    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with SqliteLedger(path, salts=bytes) as ledger, ThreadPoolExecutor(len(plans)) as threads:
            heads = list(threads.map(partial(carried_out, ledger), plans))
            assert shape(ledger) == shape(alone)
        with SqliteLedger(path) as again:
            assert shape(again) == shape(alone)
            assert verify_ledger(again).ok

    assert heads == expected


@settings(max_examples=30 * SCALE)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(1, 4)), max_size=8),
    data=st.data(),
)
def test_a_fork_that_was_exported_is_whole_wherever_it_arrives(
    shapes: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    here, there = MemoryLedger(), MemoryLedger()
    counts = {run_id(1): filled(here, run=run_id(1)).count}
    for number, (which, shared, count) in enumerate(shapes, start=2):
        parent = list(counts)[which % len(counts)]
        grown(
            here,
            run=run_id(number),
            parent=parent,
            shared=min(shared, counts[parent]),
            count=count,
        )
        counts[run_id(number)] = count

    for run in data.draw(st.lists(st.sampled_from(list(counts)), min_size=1, max_size=4)):
        stream = io.BytesIO()
        export_run(here, run, stream)
        stream.seek(0)
        import_run(there, stream)

        assert list(there.read(run)) == list(here.read(run))
        for ancestor in ancestors_of(here, run):
            theirs = list(there.read(ancestor.run, stop=ancestor.count))
            assert theirs == list(here.read(ancestor.run, stop=ancestor.count))
        report = verify_ledger(there)
        assert (report.ok, report.notes) == (True, ())
