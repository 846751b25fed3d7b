"""Heads and proofs are handed out only of what holds, and are checked without the ledger."""

import sqlite3
from pathlib import Path

import pytest
from tests.ledger.builders import OTHER, RUN, drafts, filled

from tallystick.core.errors import LedgerCorrupt, RunNotFound, UsageError
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.upkeep.proof import head_of, proof_of, verify_head, verify_proof


def test_a_head_is_of_the_run_as_it_stands() -> None:
    ledger = MemoryLedger()
    head = filled(ledger)

    document = head_of(ledger, RUN, at_ms=0)

    assert (document.run, document.head, document.signed) == (RUN, head, False)
    assert document.at == "1970-01-01T00:00:00Z"


def test_an_entry_is_proven_under_a_head_that_was_kept_while_the_run_went_on() -> None:
    ledger = MemoryLedger()
    kept = filled(ledger)
    ledger.append(RUN, drafts(3, start=4), expected=kept, fence=1, forced=False)

    proof = proof_of(ledger, RUN, 2, head=kept, body=True)
    report = verify_proof(proof, kept, key=None)

    assert (report.ok, report.tag, report.body, report.count) == (True, "model.replied", True, 4)
    assert report.head.signature == "unsigned"
    with pytest.raises(UsageError, match="no entry 5 under a head of 4"):
        proof_of(ledger, RUN, 5, head=kept)


def test_erased_bodies_leave_heads_and_proofs_as_they_were() -> None:
    ledger = MemoryLedger()
    filled(ledger)
    before = head_of(ledger, RUN, at_ms=0), proof_of(ledger, RUN, 2)

    ledger.erase(RUN, range(4))

    assert (head_of(ledger, RUN, at_ms=0), proof_of(ledger, RUN, 2)) == before
    assert verify_proof(before[1], before[0], key=None).ok
    report, _ = verify_head(ledger, RUN, before[0], key=None)
    assert (report.ok, report.erased) == (True, 4)


def test_a_head_of_another_run_says_nothing_of_this_one() -> None:
    ledger = MemoryLedger()
    filled(ledger, run=RUN)
    filled(ledger, run=OTHER)
    foreign = head_of(ledger, OTHER, at_ms=0)

    report, _ = verify_head(ledger, RUN, foreign, key=None)
    proven = verify_proof(proof_of(ledger, RUN, 2), foreign, key=None)

    assert report.first_bad == proven.first_bad
    assert report.first_bad is not None
    assert (report.first_bad.run, report.first_bad.seq) == (RUN, 3)
    assert f"is one of run {OTHER}" in report.first_bad.why


def test_a_run_that_is_gone_is_found_by_its_head() -> None:
    ledger = MemoryLedger()
    filled(ledger)
    document = head_of(ledger, RUN, at_ms=0)
    ledger.remove(RUN)

    report, _ = verify_head(ledger, RUN, document, key=None)

    assert report.first_bad is not None
    assert "the run is gone" in report.first_bad.why
    with pytest.raises(RunNotFound):
        head_of(ledger, RUN, at_ms=0)
    with pytest.raises(RunNotFound):
        proof_of(ledger, RUN, 0)


def test_nothing_is_handed_out_of_a_chain_that_does_not_hold(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        filled(ledger)
        db = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
        db.execute(
            "UPDATE entry SET header = CAST(replace(header, 'model', 'medal') AS BLOB) "
            "WHERE seq = 2"
        )
        db.close()

        with pytest.raises(LedgerCorrupt, match=f"run {RUN} is damaged: entry 2: its hash"):
            head_of(ledger, RUN, at_ms=0)
        with pytest.raises(LedgerCorrupt, match="entry 1: its proof does not lead to the head"):
            proof_of(ledger, RUN, 1)
