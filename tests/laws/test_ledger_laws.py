"""Laws of the ledger, over generated runs."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ledger.builders import EMPTY, RUN, draft, drafted

from tallystick.core.chain import Draft, Head
from tallystick.core.errors import LedgerConflict, LedgerError
from tallystick.core.records import ModelReplied, ModelUsage, decode_record
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import TransferLedger
from tallystick.ledger.transfer import export_run, import_run
from tallystick.ledger.verify import verify

# More in a soak, whose profile asks for more.
SCALE = max(1, settings().max_examples // 100)

usages = st.builds(
    ModelUsage,
    tokens_in=st.integers(0, 1 << 40),
    tokens_out=st.integers(0, 1 << 40),
    reported=st.booleans(),
    raw=st.dictionaries(st.text(max_size=5), st.integers(-(1 << 53), 1 << 53), max_size=3),
)
replies = st.builds(
    ModelReplied,
    intent=st.integers(0, 1 << 40),
    turn=st.integers(0, 1 << 40),
    text=st.text(max_size=40),
    usage=usages,
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
    assert all(verify(ledger, heads={RUN: head}).ok for head in heads)


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
    assert verify(other) == verify(ledger)
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
        assert all(verify(each).ok for each in ledgers)
