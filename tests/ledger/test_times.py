"""Entries say when they were appended; those of older versions do not, and hold all the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.builders import EMPTY, RUN, draft

from tallystick.core.chain import Draft, Head, Sealed, check_entry, draft_of, seal, time_of
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import timed_records
from tallystick.storage.clock import now_ms
from tallystick.testing.models import ModelDouble, programs
from tallystick.testing.runs import play
from tallystick.testing.sandbox import PlainSandbox

moments = st.none() | st.integers(0, 253_402_300_799_999)


def chain_of(times: list[int | None]) -> list[Sealed]:
    head, entries = EMPTY, []
    for number, at in enumerate(times):
        timed = msgspec.structs.replace(draft(number), at=at)
        entry, head = seal(timed, run=RUN, head=head, salt=bytes(16))
        entries.append(entry)
    return entries


def first_bad(entries: list[Sealed]) -> int | None:
    previous = EMPTY.hash
    for seq, entry in enumerate(entries):
        if check_entry(entry, run=RUN, seq=seq, previous=previous) is not None:
            return seq
        previous = entry.hash
    return None


@given(times=st.lists(moments, max_size=8))
def test_a_chain_with_times_and_without_holds_and_each_is_read_back(
    times: list[int | None],
) -> None:
    """Also one that changes in the middle, and one whose clock goes back."""
    entries = chain_of(times)

    assert first_bad(entries) is None
    assert [time_of(each) for each in entries] == times
    # As before, to the byte: an entry without a time says nothing of times.
    assert all(
        (b'"at"' in each.header) == (at is not None)
        for each, at in zip(entries, times, strict=True)
    )


@given(times=st.lists(moments, min_size=1, max_size=5), data=st.data())
def test_a_time_that_was_changed_added_or_taken_is_found(
    times: list[int | None], data: st.DataObject
) -> None:
    entries = chain_of(times)
    place = data.draw(st.integers(0, len(times) - 1))
    other = data.draw(moments.filter(lambda at: at != times[place]))
    forged = chain_of([*times[:place], other, *times[place + 1 :]])[place]

    changed = [*entries]
    changed[place] = msgspec.structs.replace(entries[place], header=forged.header)

    assert first_bad(changed) == place


@pytest.mark.parametrize("header", [b"", b"{}", b"\xff", b'{"at":1}', b'{"at":"now"}'])
def test_a_header_that_cannot_be_read_has_no_time(header: bytes) -> None:
    assert time_of(Sealed(header=header, hash="", salt=None, body=None)) is None


def test_a_run_has_the_time_of_each_of_its_entries() -> None:
    begun = now_ms()
    played = play(PlainSandbox(), ModelDouble(programs("print(1)", "FINAL(2)")))
    ended = now_ms()

    timed = list(timed_records(played.ledger, played.run.run))
    times = [at for at, _ in timed if at is not None]

    assert [record for _, record in timed] == played.records
    assert len(times) == len(timed)
    assert begun <= min(times) <= max(times) <= ended
    assert played.replayed().held


def test_a_run_that_an_older_version_began_is_continued_with_times() -> None:
    ledger = MemoryLedger()
    fence = ledger.claim(RUN, create=True)
    older: list[Draft] = [draft(0), draft(1)]
    head: Head = ledger.append(RUN, older, expected=EMPTY, fence=fence, forced=False)
    record = next(each for _, each in timed_records(ledger, RUN))

    ledger.append(RUN, [draft_of(record, at=7)], expected=head, fence=fence, forced=False)

    assert verify_ledger(ledger).ok
    assert [at for at, _ in timed_records(ledger, RUN)] == [None, None, 7]
