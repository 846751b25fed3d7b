"""Runs that grew from others: what verify says of them, of their heads, and of proofs."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.ledger.builders import (
    EMPTY,
    OTHER,
    RUN,
    draft,
    drafted,
    drafts,
    filled,
    fork_record,
    grown,
    run_id,
)

from tallystick.core.chain import Draft, Head, Root, Sealed, check_entry, is_of_fork, root_of, seal
from tallystick.core.errors import LedgerCorrupt, RunNotFound
from tallystick.core.proof import check_proof
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Ancestor
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import BadEntry, ancestors_of, verified_ancestors_of, verify_ledger
from tallystick.upkeep.proof import head_of, proof_of

HASH = "ab" * 32


def a_fork(**fields: object) -> Draft:
    record = fork_record(RUN, 2, HASH)
    return drafted(msgspec.structs.replace(record, **fields))


def first_entry(first: Draft, *, behind: str = HASH) -> Sealed:
    return seal(first, run=OTHER, head=Head(count=0, hash=behind), salt=bytes(16))[0]


# -- what a chain begins with --------------------------------------------------------------------


def test_the_first_entry_of_a_fork_says_what_its_chain_begins_with() -> None:
    entry = first_entry(a_fork())

    root = root_of(entry, run=OTHER)

    assert isinstance(root, Root)
    assert (root.hash, root.fork) == (HASH, fork_record(RUN, 2, HASH))
    assert check_entry(entry, run=OTHER, seq=0, previous=root.hash) is None
    assert check_entry(entry, run=OTHER, seq=0, previous=EMPTY.hash) is not None


def test_any_other_run_begins_with_nothing() -> None:
    entry = first_entry(draft(0), behind=EMPTY.hash)

    assert root_of(entry, run=OTHER) == Root(hash=EMPTY.hash)
    assert not is_of_fork(b"[" * 99_999)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (first_entry(a_fork(parent=OTHER)), "grew from itself"),
        (first_entry(a_fork(parent="../../etc")), "no entry that a run can grow from"),
        (first_entry(a_fork(count=0)), "no entry that a run can grow from"),
        (first_entry(a_fork(count=-3)), "no entry that a run can grow from"),
        (first_entry(a_fork(count=1 << 60)), "no entry that a run can grow from"),
        (first_entry(a_fork(hash="zz")), "no entry that a run can grow from"),
        (
            msgspec.structs.replace(first_entry(a_fork()), body=None, salt=None),
            "its body was removed, and with it what the run grew from",
        ),
        (first_entry(Draft(tag="run.forked", intent=None, body=b"[" * 50_000)), "no record"),
        (first_entry(Draft(tag="run.forked", intent=None, body=b'{"a":1}')), "no record"),
        (first_entry(Draft(tag="run.forked", intent=None, body=draft(0).body)), "another record"),
    ],
)
def test_a_fork_that_does_not_say_what_it_grew_from_does_not_hold(entry: Sealed, why: str) -> None:
    found = root_of(entry, run=OTHER)

    assert isinstance(found, str)
    assert why in found


# -- verify --------------------------------------------------------------------------------------


def bad_of(ledger: MemoryLedger) -> BadEntry:
    bad = verify_ledger(ledger).first_bad
    assert bad is not None
    return bad


def test_a_fork_of_a_run_that_is_not_here_holds_and_that_is_noted() -> None:
    ledger = MemoryLedger()
    filled(ledger)
    grown(ledger)
    del ledger._rows[RUN], ledger._entries[RUN]

    report = verify_ledger(ledger)

    assert (report.ok, report.entries) == (True, 3)
    assert report.notes == (f"run {OTHER} grew from entry 1 of run {RUN}, which is not here",)
    assert msgspec.to_builtins(report)["notes"] == report.notes


def other_chain(ledger: MemoryLedger) -> None:
    """Put another run of the same id in the place of the one that was forked."""
    del ledger._rows[RUN], ledger._entries[RUN]
    filled(ledger, count=5)


def cut(ledger: MemoryLedger) -> None:
    del ledger._entries[RUN][1:]
    head = Head(count=1, hash=ledger._entries[RUN][0].hash)
    ledger._rows[RUN] = msgspec.structs.replace(ledger._rows[RUN], head=head)


def without_body(ledger: MemoryLedger) -> None:
    first = ledger._entries[OTHER][0]
    ledger._entries[OTHER][0] = msgspec.structs.replace(first, salt=None, body=None)


@pytest.mark.parametrize(
    ("tamper", "why"),
    [
        (other_chain, f"it grew from entry 1 of run {RUN}, which is another here"),
        (cut, f"it grew from entry 1 of run {RUN}, which has no such entry"),
        (without_body, "its body was removed, and with it what the run grew from"),
    ],
)
def test_a_fork_that_does_not_grow_from_what_is_here_is_found(
    tamper: Callable[[MemoryLedger], None], why: str
) -> None:
    ledger = MemoryLedger()
    filled(ledger)
    grown(ledger)

    tamper(ledger)

    assert bad_of(ledger) == BadEntry(run=OTHER, seq=0, why=why)


def test_an_entry_of_the_parent_that_cannot_be_read_is_told_of_the_fork(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as ledger:
        filled(ledger)
        grown(ledger)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DELETE FROM body WHERE run = ? AND seq = 1", (RUN,))

    with SqliteLedger(path) as ledger:
        bad = verify_ledger(ledger, [OTHER]).first_bad

    assert bad is not None
    assert (bad.run, bad.seq) == (OTHER, 0)
    assert bad.why.startswith(f"it grew from entry 1 of run {RUN}, which cannot be read: entry 1")


def test_a_fork_chained_to_another_hash_than_it_says_is_found() -> None:
    ledger = MemoryLedger()
    filled(ledger)
    fence = ledger.claim(OTHER, create=True, grown_from=HASH)
    shared = list(ledger.read(RUN))[1].hash

    ledger.append(
        OTHER,
        [drafted(fork_record(RUN, 2, shared))],
        expected=Head(count=0, hash=HASH),
        fence=fence,
        forced=False,
    )

    assert bad_of(ledger).run == OTHER
    assert "its hash is not that of its header and the entry before" in bad_of(ledger).why


def test_a_run_that_was_claimed_as_a_fork_and_begins_like_any_other_is_found() -> None:
    ledger = MemoryLedger()
    fence = ledger.claim(RUN, create=True, grown_from=HASH)

    ledger.append(RUN, drafts(1), expected=Head(count=0, hash=HASH), fence=fence, forced=False)

    assert bad_of(ledger).why == "its hash is not that of its header and the entry before"


def test_every_head_of_a_fork_that_was_kept_still_holds() -> None:
    ledger = MemoryLedger()
    filled(ledger)
    head = grown(ledger)
    entries = list(ledger.read(OTHER))
    root = Head(count=0, hash=list(ledger.read(RUN))[1].hash)
    kept = [Head(count=n, hash=entry.hash) for n, entry in enumerate(entries, start=1)]

    assert kept[-1] == head
    assert all(verify_ledger(ledger, [OTHER], heads={OTHER: each}).ok for each in [root, *kept])
    assert not verify_ledger(ledger, [OTHER], heads={OTHER: EMPTY}).ok


# -- ancestors -----------------------------------------------------------------------------------


def a_line() -> MemoryLedger:
    """A run, a fork of it, and a fork of the fork."""
    ledger = MemoryLedger()
    filled(ledger, run=run_id(1), count=6)
    grown(ledger, run=run_id(2), parent=run_id(1), shared=4, count=5)
    grown(ledger, run=run_id(3), parent=run_id(2), shared=2, count=4)
    return ledger


def test_the_ancestors_of_a_run_are_named_the_oldest_first_each_as_far_as_it_is_shared() -> None:
    ledger = a_line()

    found = ancestors_of(ledger, run_id(3))

    first, second = (list(ledger.read(run_id(number))) for number in (1, 2))
    assert found == (
        Ancestor(run=run_id(1), count=4, hash=first[3].hash),
        Ancestor(run=run_id(2), count=2, hash=second[1].hash),
    )
    assert verified_ancestors_of(ledger, run_id(3)) == found
    assert ancestors_of(ledger, run_id(1)) == ()


def test_an_ancestor_that_is_not_here_is_named() -> None:
    ledger = a_line()
    del ledger._rows[run_id(1)], ledger._entries[run_id(1)]

    with pytest.raises(RunNotFound) as caught:
        ancestors_of(ledger, run_id(3))

    assert caught.value.run == run_id(1)


def test_runs_that_say_they_grew_from_each_other_have_no_ancestors() -> None:
    ledger = MemoryLedger()
    for run, parent in ((RUN, OTHER), (OTHER, RUN)):
        fence = ledger.claim(run, create=True, grown_from=HASH)
        ledger.append(
            run,
            [a_fork(parent=parent)],
            expected=Head(count=0, hash=HASH),
            fence=fence,
            forced=False,
        )

    with pytest.raises(LedgerCorrupt, match="grew from itself"):
        ancestors_of(ledger, RUN)
    assert bad_of(ledger).why == f"it grew from entry 1 of run {OTHER}, which has no such entry"


def test_what_is_damaged_behind_what_is_shared_is_not_the_forks() -> None:
    ledger = a_line()
    entries = ledger._entries[run_id(1)]

    entries[5] = msgspec.structs.replace(entries[5], hash="00" * 32)
    behind = verified_ancestors_of(ledger, run_id(3))
    entries[1] = msgspec.structs.replace(entries[1], hash="00" * 32)

    assert len(behind) == 2
    with pytest.raises(LedgerCorrupt, match=f"run {run_id(1)} is damaged: entry 1: its hash"):
        verified_ancestors_of(ledger, run_id(3))


# -- heads and proofs ----------------------------------------------------------------------------


def test_a_fork_has_heads_and_proofs_like_any_other_run() -> None:
    ledger = MemoryLedger()
    filled(ledger)
    grown(ledger)

    head = head_of(ledger, OTHER, at_ms=0)
    proof = proof_of(ledger, OTHER, 1, body=True)

    assert head.count == 3
    assert check_proof(proof, head.head) is None
