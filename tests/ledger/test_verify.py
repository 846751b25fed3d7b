"""What verify says of a ledger that nobody touched, and how long it takes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.ledger.builders import EMPTY, OTHER, RUN, draft, drafts, filled

from tallystick.core.chain import Draft, Header, Sealed, check_entry, seal
from tallystick.core.errors import RunNotFound
from tallystick.core.json_text import canonical
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger


def test_an_empty_ledger_and_an_empty_run_hold() -> None:
    ledger = MemoryLedger()
    nothing = verify_ledger(ledger)
    ledger.claim(RUN, create=True)
    empty = verify_ledger(ledger)

    assert (nothing.ok, nothing.runs, nothing.entries) == (True, 0, 0)
    assert (empty.ok, empty.runs, empty.entries) == (True, 1, 0)


def test_a_report_is_what_the_command_prints() -> None:
    ledger = MemoryLedger()
    filled(ledger)

    assert msgspec.to_builtins(verify_ledger(ledger)) == {
        "ok": True,
        "runs": 1,
        "entries": 4,
        "erased": 0,
        "first_bad": None,
    }


def test_only_the_named_runs_are_looked_at() -> None:
    ledger = MemoryLedger()
    filled(ledger, run=RUN, count=2)
    filled(ledger, run=OTHER, count=3)

    assert verify_ledger(ledger, [OTHER]).entries == 3
    with pytest.raises(RunNotFound):
        verify_ledger(ledger, ["nosuch"])


def test_every_head_that_was_kept_along_the_way_still_holds() -> None:
    ledger = MemoryLedger()
    fence = ledger.claim(RUN, create=True)
    heads = [EMPTY]
    for number in range(5):
        heads.append(
            ledger.append(RUN, [draft(number)], expected=heads[-1], fence=fence, forced=False)
        )

    assert all(verify_ledger(ledger, heads={RUN: head}).ok for head in heads)


class Growing(MemoryLedger):
    """A ledger that another writer appends to while it is read."""

    def read(self, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Sealed]:
        head = self.runs()[0].head
        self.append(run, drafts(2), expected=head, fence=1, forced=False)
        return super().read(run, start=start, stop=stop)


def test_a_run_that_grows_meanwhile_holds() -> None:
    ledger = Growing()
    filled(ledger)

    report = verify_ledger(ledger)

    assert (report.ok, report.entries) == (True, 6)


class Vanishing(MemoryLedger):
    """A ledger whose run is removed before it is read."""

    def read(self, run: str, *, start: int = 0, stop: int | None = None) -> Iterator[Sealed]:
        self.remove(run)
        return super().read(run, start=start, stop=stop)


def test_a_run_that_is_removed_meanwhile_is_no_damage() -> None:
    ledger = Vanishing()
    filled(ledger)

    assert verify_ledger(ledger).ok


def sealed(body: Draft, *, run: str = RUN) -> Sealed:
    return seal(body, run=run, head=EMPTY, salt=bytes(16))[0]


def rehashed(entry: Sealed, header: bytes) -> Sealed:
    """Give an entry another header, and the hash that goes with it."""
    import hashlib

    entry_hash = hashlib.sha256(bytes(32) + header).hexdigest()
    return msgspec.structs.replace(entry, header=header, hash=entry_hash)


GOOD = sealed(draft(0))
HEADER = msgspec.json.decode(GOOD.header, type=Header)


def with_header(**changes: Any) -> bytes:
    return canonical(msgspec.structs.replace(HEADER, **changes))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (
            rehashed(GOOD, GOOD.header.replace(b'"v":1', b'"v":3')),
            "format 3; this version reads 1 and 2",
        ),
        (rehashed(GOOD, GOOD.header.replace(b'"v":1', b'"v":2')), "format 2 and no time"),
        (rehashed(GOOD, with_header(at=5)), "format 1 and a time"),
        (rehashed(GOOD, with_header(v=2, at=-1)), "a time that no calendar has"),
        (rehashed(GOOD, with_header(v=2, at=10**15)), "a time that no calendar has"),
        (rehashed(GOOD, GOOD.header.replace(b'"seq":0', b'"seq":1')), "has place 1"),
        (rehashed(GOOD, GOOD.header + b" "), "not in canonical form"),
        (rehashed(GOOD, GOOD.header.replace(b"{", b'{"a":1,', 1)), "not in canonical form"),
        (rehashed(GOOD, GOOD.header.replace(b"{", b'{"v":9,', 1)), "not in canonical form"),
        (rehashed(GOOD, b"[" * 100_000), "cannot be read"),
        (rehashed(GOOD, b'{"v":"\xff"}'), "cannot be read"),
        (rehashed(GOOD, b""), "cannot be read"),
        (sealed(draft(0), run=OTHER), "names another run"),
        (sealed(Draft(tag="t", intent=None, body=b"{}")), "no record that this version knows"),
        (sealed(Draft(tag="t", intent=None, body=b"\xff")), "no record that this version knows"),
        (sealed(Draft(tag="t", intent=None, body=b"[" * 99_999)), "no record"),
        (sealed(Draft(tag="t", intent=0, body=draft(0).body)), "another record than its header"),
        (sealed(Draft(tag="model.replied", intent=7, body=draft(0).body)), "another record"),
    ],
)
def test_an_entry_that_hashes_well_and_means_nothing_does_not_hold(entry: Sealed, why: str) -> None:
    found = check_entry(entry, run=RUN, seq=0, previous=EMPTY.hash)

    assert found is not None
    assert why in found


@pytest.mark.slow
def test_a_hundred_thousand_entries_verify_in_five_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        fence = ledger.claim(RUN, create=True)
        head = EMPTY
        while head.count < 100_000:
            more = [draft(number, text="x" * 300) for number in range(1_000)]
            head = ledger.append(RUN, more, expected=head, fence=fence, forced=False)

        began = time.process_time()
        report = verify_ledger(ledger, heads={RUN: head})
        seconds = time.process_time() - began

    with capsys.disabled():
        print(f"\n100,000 entries verified in {seconds:.2f} s of CPU")
    assert (report.ok, report.entries) == (True, 100_000)
    assert seconds < 5
