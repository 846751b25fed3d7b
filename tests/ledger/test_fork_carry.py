"""The attachments of a fork: it brings what its shared entries speak of, in its own session."""

import io
from collections.abc import Sequence

import msgspec
import pytest
from tests.ledger.builders import EMPTY, OTHER, RUN, drafted, drafts, fork_record, run_id
from tests.upkeep.transfer_builders import (
    FEW,
    SESSION,
    Given,
    Place,
    attached_run,
    exported,
    session_id,
    started,
)

from tallystick.attachments.memory import MemoryAttachments
from tallystick.core.chain import Head
from tallystick.core.errors import TransferRefused, UsageError
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.transfer import export_run
from tallystick.ledger.verify import verify_ledger
from tallystick.upkeep.transfer import import_run_with_attachments, remove_run_with_attachments

FORK = run_id(5)
FORKS_SESSION = session_id(5)


def a_place() -> Place:
    return Place(ledger=MemoryLedger(), kept=MemoryAttachments())


def forked(
    place: Place,
    given: Sequence[Given] = FEW,
    *,
    parent: str = RUN,
    session: str = FORKS_SESSION,
) -> None:
    """Grow a run from the first two entries of another, with attachments of its own."""
    batch = place.held(session).batch()
    for data, label, kind in given:
        batch.add(data, label=label, media_type=kind)
    *_, last = place.ledger.read(parent, stop=2)
    record = fork_record(parent, 2, last.hash)
    first = drafted(msgspec.structs.replace(record, session_id=session))
    fence = place.ledger.claim(FORK, create=True, grown_from=last.hash)
    place.ledger.append(
        FORK,
        [first, *drafts(2)],
        expected=Head(count=0, hash=last.hash),
        fence=fence,
        forced=False,
        also=batch.commit,
    )


def taken_in(place: Place, content: bytes) -> None:
    import_run_with_attachments(place.ledger, place.kept, io.BytesIO(content))


def test_a_fork_brings_what_the_entries_that_it_shares_speak_of() -> None:
    here, there = a_place(), a_place()
    attached_run(here, FEW)
    forked(here)

    taken_in(there, exported(here, FORK))

    assert there.contents(FORKS_SESSION) == here.contents(FORKS_SESSION)
    assert len(there.contents(FORKS_SESSION)) == 3
    # The session of the run it grew from holds nothing there: only its entries came.
    assert there.contents(SESSION) == []
    assert verify_ledger(there.ledger).runs == 2


def test_the_parent_can_follow_with_its_own_attachments() -> None:
    here, there = a_place(), a_place()
    attached_run(here, FEW)
    forked(here)

    taken_in(there, exported(here, FORK))
    taken_in(there, exported(here, RUN))

    assert there.contents(SESSION) == here.contents(SESSION)
    assert [row.head.count for row in there.ledger.runs()] == [3, 3]


def test_a_fork_that_does_not_hold_what_it_shares_is_not_exported() -> None:
    here = a_place()
    attached_run(here, FEW)
    forked(here, FEW[:1])

    with pytest.raises(TransferRefused, match=f"of which entry 0 of run {RUN} speaks, is not its"):
        exported(here, FORK)


def test_a_fork_that_does_not_bring_what_it_shares_is_refused() -> None:
    here, there = a_place(), a_place()
    attached_run(here, FEW)
    forked(here, ())
    bare = io.BytesIO()
    export_run(here.ledger, FORK, bare)

    with pytest.raises(TransferRefused, match=f"entry 0 of run {RUN} speaks of attachment"):
        taken_in(there, bare.getvalue())

    assert list(there.ledger.runs()) == []


def test_an_ancestor_that_names_the_session_of_a_run_that_is_here_is_refused() -> None:
    here, there = a_place(), a_place()
    attached_run(here, FEW)
    forked(here)
    attached_run(there, FEW, run=OTHER, session=SESSION)
    before = there.contents(SESSION)

    with pytest.raises(
        TransferRefused,
        match=f"the session of run {RUN}, which it shares, is that of run {OTHER}, which is here",
    ):
        taken_in(there, exported(here, FORK))

    assert [row.run for row in there.ledger.runs()] == [OTHER]
    assert there.contents(SESSION) == before


def test_an_ancestor_that_names_a_session_which_holds_something_is_refused() -> None:
    here, there = a_place(), a_place()
    attached_run(here, FEW)
    forked(here)
    theirs = there.held(SESSION)
    theirs.commit([theirs.put(b"of somebody else").id])

    with pytest.raises(TransferRefused, match="which it shares, holds attachments here that it"):
        taken_in(there, exported(here, FORK))

    assert len(there.contents(SESSION)) == 1
    assert list(there.ledger.runs()) == []


def test_a_fork_in_the_session_of_its_parent_is_refused() -> None:
    here, there = a_place(), a_place()
    fence = here.ledger.claim(RUN, create=True)
    here.ledger.append(
        RUN,
        [started(SESSION, ()), *drafts(2)],
        expected=EMPTY,
        fence=fence,
        forced=False,
    )
    forked(here, (), session=SESSION)

    with pytest.raises(TransferRefused, match="two of its runs name the same session"):
        taken_in(there, exported(here, FORK))

    assert list(there.ledger.runs()) == []


def test_what_was_shared_can_be_removed_behind_the_fork() -> None:
    here, there = a_place(), a_place()
    attached_run(here, FEW)
    forked(here)
    taken_in(there, exported(here, FORK))

    with pytest.raises(UsageError, match=f"run {FORK} grew from it"):
        remove_run_with_attachments(there.ledger, there.kept, RUN)
    held = there.contents(FORKS_SESSION)
    gone = remove_run_with_attachments(there.ledger, there.kept, FORK)
    remove_run_with_attachments(there.ledger, there.kept, RUN)

    assert len(held) == len(gone) == 3
    assert list(there.ledger.runs()) == []
