"""Receipts by the thousand: each recomputes to its bytes, whatever was remembered after it.

1,000 of them with every CI run, 10,000 in a soak, both before 100,000 further notes. Half of the
recalls are lexical, half use vectors; between them the memory grows, and notes change.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import msgspec
import pytest
from tests.memory.memory_store import Clock, a_note, open_memory, quick_folder

from tallystick.core.errors import UsageError
from tallystick.memory.errors import StorageFailed
from tallystick.memory.forget import forget
from tallystick.memory.recall.codes import pack_tokens, pack_vector
from tallystick.memory.recall.recall import Asking, Recalled, Strategy, recall, verify_recall
from tallystick.memory.recall.scope import Embedded
from tallystick.memory.receipts.receipt import (
    Derived,
    Key,
    RecallReceipt,
    ReceiptError,
    read_receipt,
    receipt_bytes,
    sign,
)
from tallystick.memory.receipts.receipts import verify_chain
from tallystick.memory.remember import remember_all
from tallystick.memory.store.records import ForgetStrategy
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import embed_missing
from tallystick.memory.store.verify import verify_memory

FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
KEY = Key(id="k1", secret=b"s" * 32)
KEYS = {KEY.id: KEY.secret}
STRATEGIES: tuple[Strategy, ...] = ("lexical", "hybrid")
LATER_BATCH = 5_000
# The n-th of them is drawn about as often as 1/n, so some are in most notes and some in few.
WORDS = [
    "".join(pair)
    for head in ("har", "mol", "ver", "sil", "tam", "bro", "kel", "nor", "pid", "gus")
    for pair in zip((head,) * 12, ("bour", "dy", "ick", "ton", "a", "et", "ish", "um", "ow",
                                   "eld", "ax", "ory"), strict=True)
]  # fmt: skip
WEIGHTS = [1 / (n + 1) for n in range(len(WORDS))]


class Letters:
    """An embedder without a model: a text is as near to another as their words are."""

    digest = "e" * 64
    dimensions = 16

    def embed(self, text: str) -> Embedded:
        rows = [self._word(word) for word in text.split()] or [self._word("")]
        total = [math.fsum(column) for column in zip(*rows, strict=True)]
        long = math.hypot(*total) or 1.0
        return Embedded(
            vector=pack_vector([value / long for value in total]),
            tokens=pack_tokens([value for row in rows for value in row]),
        )

    def _word(self, word: str) -> list[float]:
        drawn = hashlib.sha256(word.encode()).digest()[: self.dimensions]
        values = [byte - 127.5 for byte in drawn]
        return [value / math.hypot(*values) for value in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A recall that was made, with what it takes to make it again."""

    query: str
    asking: Asking
    recalled: Recalled
    raw: bytes

    @property
    def embedder(self) -> Letters | None:
        return None if self.asking.strategy == "lexical" else Letters()


class World:
    """A memory that grows, and the recalls that were made of it on the way."""

    def __init__(self, memory: SqliteMemory, clock: Clock, *, seed: int) -> None:
        self.memory = memory
        self.made: list[Made] = []
        self.ids: list[str] = []
        self._clock = clock
        self._random = Random(seed)
        self._count = 0

    def remember(self, count: int) -> None:
        notes = [a_note(self._text(), agent_id="ann") for _ in range(count)]
        self.ids += [each.id for each in remember_all(self.memory, notes)]
        self._clock.now += 1_000

    def recall(self, count: int) -> None:
        """Recalls; now and then between them notes come and one goes, as in any memory."""
        often = max(10, count // 100)
        for number in range(count):
            if number % often == 0:
                self.remember(2)
                embed_missing(self.memory, Letters(), dimensions=Letters.dimensions)
            if number % (5 * often) == often:
                gone = self.ids.pop(self._random.randrange(len(self.ids)))
                forget(self.memory, [gone], strategy=ForgetStrategy.SOFT_DELETE, actor="ann")
            strategy: Strategy = self._random.choice(STRATEGIES)
            asking = Asking(
                agent_id="ann", reader="ann", k=self._random.randrange(1, 12), strategy=strategy
            )
            query = " ".join(self._random.choices(WORDS, k=3))
            embedder = None if strategy == "lexical" else Letters()
            found = recall(self.memory, query, asking, key=KEY, embedder=embedder)
            raw = receipt_bytes(found.receipt)
            self.made.append(Made(query=query, asking=asking, recalled=found, raw=raw))

    def later(self, count: int) -> None:
        """Further notes of the same words, so that every statistic of the whole memory changes."""
        for start in range(0, count, LATER_BATCH):
            self.remember(min(LATER_BATCH, count - start))

    def _text(self) -> str:
        self._count += 1
        drawn = self._random.choices(WORDS, WEIGHTS, k=self._random.randrange(5, 15))
        return f"{' '.join(drawn)} {self._count}"


@contextmanager
def world(*, receipts: int, later: int, seed: int, notes: int = 60) -> Iterator[World]:
    clock = Clock()
    with quick_folder() as folder, open_memory(folder, clock=clock) as memory:
        grown = World(memory, clock, seed=seed)
        grown.remember(notes)
        grown.recall(receipts)
        grown.later(later)
        yield grown


def check(memory: SqliteMemory, raw: bytes, made: Made) -> None:
    receipt = read_receipt(raw)
    assert isinstance(receipt, RecallReceipt)
    verified = verify_recall(memory, receipt, keys=KEYS, query=made.query, embedder=made.embedder)
    assert verified.ranking == "same"


def made_again(memory: SqliteMemory, made: Made) -> bytes:
    """The receipt of the same recall asked for now as of then, with the place in the chain of then.

    What is put back is only what says when it was asked: everything else is computed anew.
    """
    was = made.recalled.receipt
    asking = Asking(
        agent_id=made.asking.agent_id,
        reader=made.asking.reader,
        k=made.asking.k,
        strategy=made.asking.strategy,
        as_of=was.as_of,
        at=msgspec.convert(was.scope["at"], type=int),
    )
    again = recall(memory, made.query, asking, key=KEY, embedder=made.embedder)
    assert again.hits == made.recalled.hits
    assert again.notes == made.recalled.notes
    moved = msgspec.structs.replace(
        again.receipt,
        read_id=was.read_id,
        query_hash=was.query_hash,
        number=was.number,
        prev_hash=was.prev_hash,
        ts=was.ts,
    )
    return receipt_bytes(sign(moved, KEY))


def check_all(grown: World, *, asked_again: int) -> None:
    memory = grown.memory
    for made in grown.made:
        check(memory, made.raw, made)
    chain = [made.recalled.receipt for made in grown.made]
    assert verify_chain(chain, keys=KEYS).verified_records == len(chain)
    step = max(1, len(grown.made) // asked_again)
    for made in grown.made[::step]:
        assert made_again(memory, made) == made.raw


def changes_now(grown: World) -> int:
    """How many of some recalls find something else now: otherwise nothing here was put to test."""
    changed = 0
    for made in islice(grown.made, 0, None, max(1, len(grown.made) // 10)):
        lexical = Asking(agent_id="ann", reader="ann", k=made.asking.k, strategy="lexical")
        now = recall(grown.memory, made.query, lexical, key=KEY)
        changed += now.hits != made.recalled.hits
    return changed


def test_some_receipts_recompute_after_later_notes() -> None:
    with world(receipts=40, later=1_000, seed=1) as grown:
        check_all(grown, asked_again=10)
        assert changes_now(grown) >= 5


@pytest.mark.slow
def test_a_thousand_receipts_recompute_after_a_hundred_thousand_notes() -> None:
    with world(receipts=1_000, later=100_000, seed=2) as grown:
        check_all(grown, asked_again=50)


@pytest.mark.soak
def test_ten_thousand_receipts_recompute_after_a_hundred_thousand_notes() -> None:
    receipts, later = (10_000, 100_000) if FULL else (100, 2_000)
    with world(receipts=receipts, later=later, seed=3) as grown:
        check_all(grown, asked_again=500)
        assert verify_memory(grown.memory).valid
        assert changes_now(grown) >= 5


# -- one byte --------------------------------------------------------------------------------------


def is_found(work: Callable[[], None]) -> bool:
    """Whether a change is found: refused by name, never by an accident of ours."""
    try:
        work()
    except (ReceiptError, StorageFailed, UsageError):
        return True
    return False


def unfound_in_receipt(grown: World, made: Made, flips: Sequence[int]) -> list[tuple[int, int]]:
    """The places of a receipt's bytes, and the changes there, that are not found."""
    missed = []
    for place in range(len(made.raw)):
        for flip in flips:
            raw = bytearray(made.raw)
            raw[place] ^= flip
            changed = bytes(raw)
            if not is_found(lambda changed=changed: check(grown.memory, changed, made)):  # type: ignore[misc]
                missed.append((place, flip))
    return missed


def test_a_change_of_any_byte_of_a_receipt_is_found() -> None:
    with world(receipts=12, later=300, seed=4) as grown:
        made = max(grown.made, key=lambda each: len(each.recalled.hits))

        assert unfound_in_receipt(grown, made, flips=(1,)) == []


@pytest.mark.soak
def test_any_change_of_any_byte_of_a_receipt_is_found() -> None:
    with world(receipts=12, later=300, seed=5) as grown:
        made = min(grown.made, key=lambda each: len(each.raw))
        flips = range(1, 256) if FULL else (1, 0x20, 0x80)

        assert unfound_in_receipt(grown, made, flips=flips) == []


def unfound_in_note(grown: World, made: Made, seq: int, places: Sequence[int]) -> list[int]:
    """The places of a stored note's bytes whose change neither check finds."""
    missed = []
    with closing(sqlite3.connect(grown.memory.path, isolation_level=None)) as db:
        (body,) = db.execute("SELECT body FROM log WHERE seq = ?", (seq,)).fetchone()
        for place in places:
            changed = bytearray(body)
            changed[place % len(body)] ^= 1
            db.execute("UPDATE log SET body = ? WHERE seq = ?", (bytes(changed), seq))
            found = is_found(lambda: check(grown.memory, made.raw, made))
            report = verify_memory(grown.memory, projections=False)
            db.execute("UPDATE log SET body = ? WHERE seq = ?", (body, seq))
            if not found or report.valid or report.first_broken_at != seq:
                missed.append(place)
    check(grown.memory, made.raw, made)
    return missed


def place_of(hit: Derived) -> int:
    assert hit.seq is not None
    return hit.seq


@pytest.mark.parametrize("receipts", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_a_change_of_any_byte_of_a_recalled_note_is_found(receipts: int) -> None:
    with world(receipts=receipts, later=0, seed=6, notes=20) as grown:
        made = next(each for each in grown.made if each.recalled.hits)
        seq = place_of(made.recalled.receipt.derived_from[0])
        long = len(next(iter(grown.memory.entries(start=seq, stop=seq))).body or b"")

        assert unfound_in_note(grown, made, seq, range(0, long, 3 if receipts == 12 else 1)) == []


@pytest.mark.slow
def test_a_changed_byte_among_many_receipts_and_notes_is_found() -> None:
    """Drawn places of many receipts, and of many notes, in a memory of some size."""
    random = Random(7)
    with world(receipts=200, later=20_000, seed=7) as grown:
        for made in grown.made:
            raw = bytearray(made.raw)
            raw[random.randrange(len(raw))] ^= random.randrange(1, 256)
            assert is_found(lambda raw=raw, made=made: check(grown.memory, bytes(raw), made))  # type: ignore[misc]
        assert verify_memory(grown.memory).valid
        for made in random.sample([each for each in grown.made if each.recalled.hits], 3):
            seq = place_of(random.choice(made.recalled.receipt.derived_from))
            assert unfound_in_note(grown, made, seq, [random.randrange(1 << 20)]) == []


def test_a_receipt_of_another_memory_does_not_hold_here(tmp_path: Path) -> None:
    with world(receipts=3, later=0, seed=8) as grown, open_memory(tmp_path, seed=9) as other:
        made = next(each for each in grown.made if each.recalled.hits)

        assert is_found(lambda: check(other, made.raw, made))
