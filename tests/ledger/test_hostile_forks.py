"""Files of forks that lie about what they grew from: each is refused, and nothing is kept."""

import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.builders import OTHER, RUN, draft, drafted, drafts, filled, fork_record, run_id

from tallystick.core.chain import Draft, Head, Sealed, seal
from tallystick.core.errors import TransferRefused
from tallystick.core.json_text import canonical
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import ANCESTORS_MAX, Ancestor, ExportHeader
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transfer import MAGIC, import_run, write_stream
from tallystick.ledger.verify import verify_ledger

GRAND, PARENT = run_id(3), run_id(4)


def chain(run: str, *parts: Draft, root: str = "00" * 32) -> list[Sealed]:
    head, entries = Head(count=0, hash=root), []
    for each in parts:
        entry, head = seal(each, run=run, head=head, salt=b"s" * 16)
        entries.append(entry)
    return entries


def grown(run: str, parent: str, shared: list[Sealed], *, root: str | None = None) -> list[Sealed]:
    last = shared[-1].hash
    first = drafted(fork_record(parent, len(shared), last))
    return chain(run, first, *drafts(2), root=root or last)


def ancestor(run: str, entries: list[Sealed]) -> Ancestor:
    return Ancestor(run=run, count=len(entries), hash=entries[-1].hash)


GRAND_ENTRIES = chain(GRAND, *drafts(3))
PARENT_ENTRIES = grown(PARENT, GRAND, GRAND_ENTRIES)[:2]
ENTRIES = grown(RUN, PARENT, PARENT_ENTRIES)
ANCESTORS = (ancestor(GRAND, GRAND_ENTRIES), ancestor(PARENT, PARENT_ENTRIES))
HEADER = ExportHeader(
    format=3,
    run=RUN,
    count=len(ENTRIES),
    hash=ENTRIES[-1].hash,
    fence=3,
    moved=True,
    ancestors=ANCESTORS,
)


def file_of(*chains: list[Sealed], **changes: object) -> bytes:
    """A file of these chains, or of the good ones, whose header says other things."""
    stream = io.BytesIO()
    parts = chains or (GRAND_ENTRIES, PARENT_ENTRIES, ENTRIES)
    header = msgspec.structs.replace(HEADER, **changes)
    write_stream(stream, header, [entry for part in parts for entry in part])
    return stream.getvalue()


def ending(entries: list[Sealed], *ancestors: Ancestor) -> dict[str, object]:
    """What a header says of a run with these entries and ancestors."""
    return {"count": len(entries), "hash": entries[-1].hash, "ancestors": ancestors}


GOOD = file_of()
START = MAGIC + canonical(HEADER) + b"\n"


def other_count() -> bytes:
    """The fork grew from the first entry of its parent, and the file has two."""
    entries = grown(RUN, PARENT, PARENT_ENTRIES[:1])
    return file_of(GRAND_ENTRIES, PARENT_ENTRIES, entries, **ending(entries, *ANCESTORS))


def other_hash() -> bytes:
    """The fork grew from an entry of the same place, and another."""
    entries = grown(RUN, PARENT, grown(PARENT, GRAND, GRAND_ENTRIES[:2])[:2])
    return file_of(GRAND_ENTRIES, PARENT_ENTRIES, entries, **ending(entries, *ANCESTORS))


def no_fork() -> bytes:
    """A run that grew from nothing, with ancestors."""
    entries = chain(RUN, *drafts(3))
    return file_of(GRAND_ENTRIES, PARENT_ENTRIES, entries, **ending(entries, *ANCESTORS))


def rootless() -> bytes:
    """The oldest says that it grew from another, which is not in the file."""
    entries = grown(RUN, PARENT, PARENT_ENTRIES)
    return file_of(PARENT_ENTRIES, entries, **ending(entries, ANCESTORS[1]))


def unlinked() -> bytes:
    """The fork says what it grew from, and its chain begins with something else."""
    entries = grown(RUN, PARENT, PARENT_ENTRIES, root="11" * 32)
    return file_of(GRAND_ENTRIES, PARENT_ENTRIES, entries, **ending(entries, *ANCESTORS))


def without_its_body() -> bytes:
    entries = [msgspec.structs.replace(ENTRIES[0], salt=None, body=None), *ENTRIES[1:]]
    return file_of(GRAND_ENTRIES, PARENT_ENTRIES, entries)


def of_itself() -> bytes:
    entries = grown(RUN, RUN, PARENT_ENTRIES)
    return file_of(GRAND_ENTRIES, PARENT_ENTRIES, entries, **ending(entries, *ANCESTORS))


def a_ring() -> bytes:
    """A parent that says it grew from the fork."""
    first = drafted(fork_record(RUN, 1, "11" * 32))
    parent = chain(PARENT, first, draft(0), root="11" * 32)
    entries = grown(RUN, PARENT, parent)
    return file_of(parent, entries, **ending(entries, ancestor(PARENT, parent)))


def line_of(count: int) -> bytes:
    """A line of forks."""
    parts = [chain(run_id(10), *drafts(1))]
    ancestors = [ancestor(run_id(10), parts[0])]
    for number in range(11, 10 + count):
        parts.append(grown(run_id(number), run_id(number - 1), parts[-1])[:1])
        ancestors.append(ancestor(run_id(number), parts[-1]))
    entries = grown(RUN, run_id(9 + count), parts[-1])
    return file_of(*parts, entries, **ending(entries, *ancestors))


def alone() -> bytes:
    """A file of the earlier format with a fork in it."""
    return file_of(ENTRIES, format=2, **ending(ENTRIES))


def tampered(which: int, seq: int, **fields: object) -> bytes:
    parts = [list(GRAND_ENTRIES), list(PARENT_ENTRIES), list(ENTRIES)]
    parts[which][seq] = msgspec.structs.replace(parts[which][seq], **fields)
    return file_of(*parts)


def named(place: int, **fields: object) -> bytes:
    ancestors = list(ANCESTORS)
    ancestors[place] = msgspec.structs.replace(ancestors[place], **fields)
    return file_of(ancestors=tuple(ancestors))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "the format of forks without ancestors": (
        file_of(ENTRIES, ancestors=()), "it has format 3 and 0 ancestors"
    ),
    "ancestors in the format before": (file_of(format=2), "it has format 2 and 2 ancestors"),
    "ancestors in the first format": (file_of(format=1), "it has format 1 and 2 ancestors"),
    "a fork in the format before": (
        alone(), f"entry 0 does not hold: it grew from run {PARENT}, which does not come with it"
    ),
    "an ancestor that is the run": (named(1, run=RUN), "said to have grown from itself"),
    "an ancestor twice": (named(0, run=PARENT), "said to have grown from itself"),
    "an ancestor that is a path": (named(0, run="../../etc/passwd"), "is no id of a run"),
    "an ancestor with an escape sequence": (named(0, run="\x1b[2J" + RUN), "is no id of a run"),
    "an ancestor of no entries": (named(0, count=0), "counts what cannot be"),
    "an ancestor of fewer than no entries": (named(0, count=-1), "counts what cannot be"),
    "an ancestor of absurdly many": (named(0, count=1 << 60), "counts what cannot be"),
    "an ancestor of more than are there": (
        named(0, count=4), f"entry 3 of run {GRAND} does not hold: its header names another run"
    ),
    "an ancestor of fewer than are there": (
        named(0, count=2), f"its entries of run {GRAND} do not end in the head"
    ),
    "an ancestor with another end": (
        named(0, hash="11" * 32), f"its entries of run {GRAND} do not end in the head"
    ),
    "an ancestor with an end that is no hash": (
        named(1, hash="zz"), f"its entries of run {PARENT} do not end in the head"
    ),
    "too many ancestors": (
        line_of(ANCESTORS_MAX + 1), f"more than {ANCESTORS_MAX} ancestors"
    ),
    "a run of no entries with ancestors": (
        file_of(GRAND_ENTRIES, PARENT_ENTRIES, count=0, hash=PARENT_ENTRIES[-1].hash),
        "has no entry that says what it grew from",
    ),
    "a run that grew from nothing": (
        no_fork(), f"entry 0 does not hold: it did not grow from run {PARENT}"
    ),
    "a fork of fewer entries than come with it": (
        other_count(), f"it grew from another entry than the last of run {PARENT} in the file"
    ),
    "a fork of another entry than comes with it": (
        other_hash(), f"it grew from another entry than the last of run {PARENT} in the file"
    ),
    "a fork that is chained to something else": (
        unlinked(), "entry 0 does not hold: its hash is not that"
    ),
    "a fork without the body that says so": (
        without_its_body(), "entry 0 does not hold: its body was removed"
    ),
    "a fork of itself": (of_itself(), "it says that the run grew from itself"),
    "an oldest that is a fork": (
        rootless(), f"it grew from run {GRAND}, which does not come with it"
    ),
    "runs that grew from each other": (
        a_ring(), f"it grew from run {RUN}, which does not come with it"
    ),
    "the youngest first": (
        file_of(PARENT_ENTRIES, GRAND_ENTRIES, ENTRIES, ancestors=ANCESTORS[::-1]),
        f"entry 0 of run {PARENT} does not hold: it grew from run {GRAND}",
    ),
    "the entries of ancestors exchanged": (
        file_of(PARENT_ENTRIES, GRAND_ENTRIES, ENTRIES), "it says that the run grew from itself"
    ),
    "only the run's own entries": (
        file_of(ENTRIES), f"entry 0 of run {GRAND} does not hold: it grew from run {PARENT}"
    ),
    "another body in an ancestor": (tampered(0, 1, body=b"{}"), "does not hold: its body is not"),
    "another hash in an ancestor": (tampered(1, 1, hash="11" * 32), "entry 1 of run"),
    "an ancestor without its first body": (
        tampered(1, 0, salt=None, body=None), f"entry 0 of run {PARENT} does not hold: its body was"
    ),
    "cut in an ancestor": (GOOD[: len(START) + 60], "ends in the middle of entry 0"),
    "a field more in an ancestor": (
        GOOD.replace(b'"ancestors":[{', b'"ancestors":[{"a":1,', 1), "header cannot be read"
    ),
    "ancestors that are text": (
        GOOD.replace(canonical(ANCESTORS), b'"none"', 1), "header cannot be read"
    ),
}  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db") as opened:
        filled(opened, run=OTHER, count=2)
        yield opened


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_fork_that_lies_is_refused_and_nothing_imported(
    ledger: SqliteLedger, tmp_path: Path, name: str
) -> None:
    content, why = HOSTILE[name]
    file = tmp_path / "run.tally"
    file.write_bytes(content)

    with pytest.raises(TransferRefused) as caught:
        import_run(ledger, file)

    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert why in message
    assert message.endswith("nothing was imported")
    assert message.isprintable()
    assert [row.run for row in ledger.runs()] == [OTHER]
    with ledger.file.reading() as db:
        for table in ("entry", "body"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)


def test_the_file_that_all_of_these_are_made_from_is_good() -> None:
    ledger = MemoryLedger()

    assert import_run(ledger, io.BytesIO(GOOD)) == RUN
    assert verify_ledger(ledger).entries == 8
    assert verify_ledger(ledger).notes == ()


def test_as_many_ancestors_as_are_allowed_are_read() -> None:
    ledger = MemoryLedger()

    import_run(ledger, io.BytesIO(line_of(ANCESTORS_MAX)))

    assert verify_ledger(ledger).runs == ANCESTORS_MAX + 1


@given(place=st.integers(0, len(GOOD) - 1), mask=st.integers(1, 255))
def test_a_byte_changed_anywhere_in_the_file_of_a_fork_is_found(place: int, mask: int) -> None:
    ledger = MemoryLedger()
    content = GOOD[:place] + bytes([GOOD[place] ^ mask]) + GOOD[place + 1 :]

    with pytest.raises(TransferRefused):
        import_run(ledger, io.BytesIO(content))

    assert list(ledger.runs()) == []


@given(size=st.integers(0, len(GOOD) - 1))
def test_the_file_of_a_fork_cut_anywhere_is_refused(size: int) -> None:
    ledger = MemoryLedger()

    with pytest.raises(TransferRefused):
        import_run(ledger, io.BytesIO(GOOD[:size]))

    assert list(ledger.runs()) == []


def test_a_count_that_lies_costs_no_memory() -> None:
    content = named(0, count=1 << 50)
    tracemalloc.start()

    with pytest.raises(TransferRefused):
        import_run(MemoryLedger(), io.BytesIO(content))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 4 << 20
