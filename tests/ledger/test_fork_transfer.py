"""A fork as a file: what it shares comes in front of it, and is kept as copies."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.ledger.builders import EMPTY, LEDGERS, bodies, drafts, filled, grown, run_id

from tallystick.core.chain import Head
from tallystick.core.errors import RunNotOwned, TransferRefused, UsageError
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import ExportHeader, TransferLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transfer import MAGIC, export_run, import_run
from tallystick.ledger.verify import verify_ledger

FIRST, SECOND, THIRD = map(run_id, (1, 2, 3))


@pytest.fixture(params=sorted(LEDGERS))
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sequence[TransferLedger]]:
    """Two ledgers of one kind; in the first a run, a fork of it, and a fork of the fork."""
    made = [LEDGERS[request.param](tmp_path / name) for name in ("here", "there")]
    a_line(made[0])
    yield made
    for ledger in made:
        if isinstance(ledger, SqliteLedger):
            ledger.close()


def a_line(ledger: TransferLedger) -> None:
    filled(ledger, run=FIRST, count=6)
    grown(ledger, run=SECOND, parent=FIRST, shared=4, count=5)
    grown(ledger, run=THIRD, parent=SECOND, shared=2, count=4)


def exported(ledger: TransferLedger, run: str, *, move: bool = False) -> io.BytesIO:
    stream = io.BytesIO()
    export_run(ledger, run, stream, move=move)
    stream.seek(0)
    return stream


def header_of(stream: io.BytesIO) -> ExportHeader:
    line = stream.getvalue()[len(MAGIC) :].split(b"\n", 1)[0]
    return msgspec.json.decode(line, type=ExportHeader)


def shape(ledger: TransferLedger) -> list[object]:
    return [(row, list(ledger.read(row.run))) for row in ledger.runs()]


def counts(ledger: TransferLedger) -> dict[str, int]:
    return {row.run: row.head.count for row in ledger.runs()}


def test_a_fork_comes_with_what_it_shares_and_no_more(two: Sequence[TransferLedger]) -> None:
    here, there = two

    assert import_run(there, exported(here, THIRD)) == THIRD

    assert counts(there) == {FIRST: 4, SECOND: 2, THIRD: 4}
    for run, count in counts(there).items():
        assert list(there.read(run)) == list(here.read(run, stop=count))
    report = verify_ledger(there)
    assert (report.ok, report.notes) == (True, ())


def test_only_a_fork_needs_the_newer_format(two: Sequence[TransferLedger]) -> None:
    here, _ = two

    headers = [header_of(exported(here, run)) for run in (FIRST, SECOND, THIRD)]

    assert [header.format for header in headers] == [2, 3, 3]
    assert [[each.run for each in header.ancestors] for header in headers] == [
        [],
        [FIRST],
        [FIRST, SECOND],
    ]


@pytest.mark.parametrize("move", [False, True])
def test_what_a_fork_shares_is_a_copy_even_if_the_fork_is_moved(
    two: Sequence[TransferLedger], move: bool
) -> None:
    here, there = two

    import_run(there, exported(here, THIRD, move=move))

    rows = {row.run: row for row in there.runs()}
    assert (rows[FIRST].imported, rows[SECOND].imported, rows[THIRD].imported) == (
        True,
        True,
        not move,
    )
    with pytest.raises(RunNotOwned, match="is a copy"):
        there.claim(SECOND, create=False)
    # The runs it grew from go on where they are.
    assert [row.moved for row in here.runs()] == [False, False, move]
    if move:
        fence = there.claim(THIRD, create=False)
        head = there.append(THIRD, drafts(1), expected=rows[THIRD].head, fence=fence, forced=False)
        assert head.count == 5


def test_importing_a_fork_again_changes_nothing(two: Sequence[TransferLedger]) -> None:
    here, there = two
    stream = exported(here, THIRD)
    import_run(there, stream)
    before = shape(there)

    stream.seek(0)
    import_run(there, stream)

    assert shape(there) == before
    assert exported(there, THIRD).getvalue() == stream.getvalue()


def test_a_run_that_is_there_and_agrees_stays_as_it_is(two: Sequence[TransferLedger]) -> None:
    here, there = two
    import_run(there, exported(here, FIRST, move=True))
    fence = there.claim(FIRST, create=False)
    head = there.append(FIRST, drafts(2), expected=there.runs()[0].head, fence=fence, forced=False)
    there.erase(FIRST, [1])
    before = shape(there)

    import_run(there, exported(here, THIRD))

    assert shape(there)[:1] == before
    assert counts(there) == {FIRST: 8, SECOND: 2, THIRD: 4}
    assert verify_ledger(there, heads={FIRST: head}).ok


def test_a_fork_brings_more_of_a_copy_that_is_there(two: Sequence[TransferLedger]) -> None:
    here, there = two
    grown(here, run=run_id(4), parent=SECOND, shared=4, count=2)

    import_run(there, exported(here, THIRD))
    import_run(there, exported(here, run_id(4)))
    import_run(there, exported(here, FIRST))

    assert counts(there) == {FIRST: 6, SECOND: 4, THIRD: 4, run_id(4): 2}
    assert all(row.imported for row in there.runs())
    assert verify_ledger(there).ok


def test_what_a_fork_left_behind_is_no_hindrance_to_the_title_of_its_parent(
    two: Sequence[TransferLedger],
) -> None:
    here, there = two
    import_run(there, exported(here, THIRD))

    import_run(there, exported(here, FIRST, move=True))

    rows = {row.run: row for row in there.runs()}
    assert (rows[FIRST].imported, rows[FIRST].head.count) == (False, 6)
    assert there.claim(FIRST, create=False) == 3
    assert verify_ledger(there).ok


def test_a_fork_of_another_run_of_the_same_id_is_refused(two: Sequence[TransferLedger]) -> None:
    here, there = two
    filled(there, run=FIRST, count=6)
    before = shape(there)

    with pytest.raises(
        TransferRefused,
        match=f"export of run {THIRD}: run {FIRST}, which it grew from, is here and parts from it "
        "at or before entry 3; nothing was imported",
    ):
        import_run(there, exported(here, THIRD))

    assert shape(there) == before


def test_a_fork_of_a_longer_run_than_the_one_that_is_owned_there_is_refused(
    two: Sequence[TransferLedger],
) -> None:
    _, there = two
    other = MemoryLedger(salts=bytes)
    filled(other, run=FIRST, count=6)
    grown(other, run=SECOND, parent=FIRST, shared=4)
    fence = there.claim(FIRST, create=True)
    there.append(FIRST, drafts(2), expected=EMPTY, fence=fence, forced=False)

    with pytest.raises(TransferRefused, match="which it grew from, is shorter here: 2 entries"):
        import_run(there, exported(other, SECOND))

    assert counts(there) == {FIRST: 2}


def test_a_copy_that_is_shorter_and_another_is_refused(two: Sequence[TransferLedger]) -> None:
    here, there = two
    other = MemoryLedger()
    filled(other, run=FIRST, count=2)
    import_run(there, exported(other, FIRST))

    with pytest.raises(TransferRefused, match="is here and parts from it at or before entry 1"):
        import_run(there, exported(here, SECOND))

    assert counts(there) == {FIRST: 2}


def test_a_longer_copy_grows_a_copy_and_a_shorter_one_is_refused(
    two: Sequence[TransferLedger],
) -> None:
    here, there = two
    short = exported(here, FIRST)
    import_run(there, short)
    row = here.runs()[0]
    here.append(FIRST, drafts(2), expected=row.head, fence=row.fence, forced=False)

    import_run(there, exported(here, FIRST))
    with pytest.raises(TransferRefused, match="another run with this id is here"):
        import_run(there, io.BytesIO(short.getvalue()))

    assert counts(there) == {FIRST: 8}
    assert there.runs()[0].imported
    assert verify_ledger(there).ok


def test_bodies_that_were_erased_stay_erased_and_the_rest_holds(
    two: Sequence[TransferLedger],
) -> None:
    here, there = two
    here.erase(FIRST, [0, 5])
    here.erase(SECOND, [1, 3])

    import_run(there, exported(here, THIRD))

    assert [body is None for body in bodies(there, FIRST)] == [True, False, False, False]
    assert [body is None for body in bodies(there, SECOND)] == [False, True]
    assert verify_ledger(there).erased == 2


def test_a_fork_of_a_run_that_is_gone_is_not_exported(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    a_line(ledger)
    del ledger._rows[FIRST], ledger._entries[FIRST]

    with pytest.raises(
        TransferRefused, match=f"run {THIRD} shares entries of run {FIRST}, which is not here"
    ):
        export_run(ledger, THIRD, tmp_path / "file", move=True)

    assert not (tmp_path / "file").exists()
    assert not any(row.moved for row in ledger.runs())


def test_a_fork_that_shares_what_is_damaged_is_not_exported(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    a_line(ledger)
    entries = ledger._entries[FIRST]
    entries[1], entries[2] = entries[2], entries[1]

    with pytest.raises(TransferRefused, match=f"run {FIRST}, entry 1: .*; nothing was exported"):
        export_run(ledger, THIRD, tmp_path / "file")

    assert not (tmp_path / "file").exists()


def test_a_run_that_is_to_be_a_fork_and_has_no_entry_is_not_exported(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    head: Head = filled(ledger, run=FIRST)
    ledger.claim(SECOND, create=True, grown_from=head.hash)

    with pytest.raises(TransferRefused, match="has no entry yet that says so; nothing was exp"):
        export_run(ledger, SECOND, tmp_path / "file", move=True)

    assert verify_ledger(ledger).ok


def test_a_copy_of_what_is_shared_stays_as_long_as_the_fork(two: Sequence[TransferLedger]) -> None:
    here, there = two
    import_run(there, exported(here, SECOND))

    with pytest.raises(UsageError, match=f"run {SECOND} grew from it"):
        there.remove(FIRST)
    there.remove(SECOND)
    there.remove(FIRST)

    assert counts(there) == {}
