"""Files that lie: each is refused with one line, and the ledger holds what it held."""

import hashlib
import io
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.builders import OTHER, RUN, drafts, filled

from tallystick.core.chain import Draft, Head, Sealed, seal
from tallystick.core.errors import TransferRefused
from tallystick.core.json_text import canonical
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.port import Carried, ExportHeader
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transfer import MAGIC, import_run, write_stream
from tallystick.ledger.verify import verify_ledger

FRAME = struct.Struct(">IBI")


def chain(*, run: str = RUN, more: tuple[Draft, ...] = ()) -> tuple[list[Sealed], Head]:
    head, entries = Head.of_nothing(), []
    for each in (*drafts(3), *more):
        entry, head = seal(each, run=run, head=head, salt=b"s" * 16)
        entries.append(entry)
    return entries, head


ENTRIES, HEAD = chain()
HEADER = ExportHeader(format=2, run=RUN, count=HEAD.count, hash=HEAD.hash, fence=3, moved=True)
CARRYING = msgspec.structs.replace(HEADER, attachments=1)


def file_of(
    header: ExportHeader = HEADER,
    entries: list[Sealed] = ENTRIES,
    attachments: tuple[tuple[bytes, bytes], ...] = (),
) -> bytes:
    stream = io.BytesIO()
    carried = [
        Carried(ref=ref, byte_len=len(data), pieces=iter([data])) for ref, data in attachments
    ]
    write_stream(stream, header, entries, carried)
    return stream.getvalue()


def with_digest(data: bytes) -> bytes:
    """What a forger would do: close with the right digest."""
    return data + hashlib.sha256(data).digest()


def raw(line: bytes, rest: bytes = b"") -> bytes:
    return with_digest(MAGIC + line + b"\n" + rest)


def said(**changes: object) -> bytes:
    """A file whose header says other things than are true."""
    return file_of(msgspec.structs.replace(HEADER, **changes))


def json_with(**changes: object) -> bytes:
    fields = msgspec.to_builtins(HEADER) | changes
    return raw(canonical({key: value for key, value in fields.items() if value is not ...}))


GOOD = file_of()
START = MAGIC + canonical(HEADER) + b"\n"


def framed(header_bytes: int, there: int, body_bytes: int, rest: bytes = b"") -> bytes:
    return with_digest(START + FRAME.pack(header_bytes, there, body_bytes) + rest)


def attached(ref_bytes: int, byte_len: int, rest: bytes = b"") -> bytes:
    """A good run, and behind it an attachment that says of itself what it likes."""
    entries = file_of(CARRYING)[:-32]
    return with_digest(entries + struct.pack(">IQ", ref_bytes, byte_len) + rest)


def changed(seq: int, **fields: object) -> bytes:
    entries = list(ENTRIES)
    entries[seq] = msgspec.structs.replace(entries[seq], **fields)
    return file_of(entries=entries)


def relinked(alter: Callable[[Sealed], bytes]) -> bytes:
    """A file whose last entry has another header, with all hashes made to fit."""
    header = alter(ENTRIES[2])
    entry_hash = hashlib.sha256(bytes.fromhex(ENTRIES[1].hash) + header).hexdigest()
    last = msgspec.structs.replace(ENTRIES[2], header=header, hash=entry_hash)
    return file_of(msgspec.structs.replace(HEADER, hash=entry_hash), [*ENTRIES[:2], last])


def no_record() -> bytes:
    entries, head = chain(more=(Draft(tag="t", intent=None, body=b"[" * 50_000),))
    return file_of(msgspec.structs.replace(HEADER, count=4, hash=head.hash), entries)


def other_runs_chain() -> bytes:
    entries, head = chain(run=OTHER)
    return file_of(msgspec.structs.replace(HEADER, hash=head.hash), entries)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing at all": (b"", "no export"),
    "another kind of file": (b"PK\3\4" + bytes(200), "no export"),
    "a database": (b"SQLite format 3\0" + bytes(4096), "no export"),
    "half of the magic": (MAGIC[:9], "no export"),
    "only the magic": (MAGIC, "ends in the middle of its header"),
    "magic in other letters": (GOOD.upper(), "no export"),
    "a header without an end": (MAGIC + b"{" * 500, "ends in the middle of its header"),
    "a header that never ends": (MAGIC + b"{" * 50_000, "header is too long"),
    "a header that is no JSON": (raw(b"count=3"), "header cannot be read"),
    "a header that is a list": (raw(b"[1]"), "header cannot be read"),
    "a header nested deeply": (raw(b"[" * 1_000), "header cannot be read"),
    "a header that is no text": (raw(b'{"format":2,"run":"\xff"}'), "header cannot be read"),
    "no format": (json_with(format=...), "header cannot be read"),
    "a newer format": (json_with(format=4), "it has format 4; this version reads 1 to 3"),
    "a newer format with new fields": (json_with(format=5, new=[1]), "it has format 5"),
    "a format before the first": (json_with(format=-1), "it has format -1"),
    "a format that is text": (json_with(format="1"), "header cannot be read"),
    "no run": (json_with(run=...), "header cannot be read"),
    "no moved": (json_with(moved=...), "header cannot be read"),
    "a further field": (json_with(path="/etc/passwd"), "header cannot be read"),
    "a count that is text": (json_with(count="3"), "header cannot be read"),
    "a count that is a fraction": (json_with(count=2.5), "header cannot be read"),
    "a count of no attachments": (json_with(attachments=0), "not in canonical form"),
    "a header with spaces": (
        raw(msgspec.json.format(canonical(HEADER), indent=0).replace(b",", b", ")),
        "not in canonical form",
    ),
    "a field twice": (
        raw(canonical(HEADER).replace(b'"count":3', b'"count":9,"count":3')),
        "not in canonical form",
    ),
    "a run that is a path": (said(run="../../../etc/passwd"), "is no id of a run"),
    "a run that is an absolute path": (said(run="/etc/passwd"), "is no id of a run"),
    "a run with a null byte": (said(run=RUN[:-1] + "\0"), "is no id of a run"),
    "a run with an escape sequence": (said(run="\x1b[2J" + RUN), "is no id of a run"),
    "an empty run": (said(run=""), "is no id of a run"),
    "a run of another id": (said(run=OTHER), "entry 0 does not hold: its header names another"),
    "a negative count": (said(count=-1), "counts what cannot be"),
    "an absurd count": (said(count=1 << 60), "counts what cannot be"),
    "a count above what is there": (said(count=4), "entry 3"),
    "a large count": (said(count=1 << 50), "entry 3"),
    "a count below what is there": (said(count=2), "do not end in the head"),
    "a count of nothing": (said(count=0), "do not end in the head"),
    "a negative fence": (said(fence=-1), "counts what cannot be"),
    "an absurd fence": (said(fence=(1 << 63) - 1), "counts what cannot be"),
    "a head that is another": (said(hash="00" * 32), "do not end in the head"),
    "a head that is no hash": (said(hash="zz"), "do not end in the head"),
    "cut behind its header": (START, "ends in the middle of entry 0"),
    "cut in an entry": (GOOD[: len(START) + 60], "ends in the middle of entry 0"),
    "cut in the last body": (GOOD[:-40], "ends in the middle of entry 2"),
    "cut before its digest": (GOOD[:-32], "ends in the middle of its digest"),
    "cut in its digest": (GOOD[:-1], "ends in the middle of its digest"),
    "a digest of something else": (GOOD[:-32] + bytes(32), "its digest is not"),
    "a byte behind the end": (GOOD + b"\0", "has bytes after its end"),
    "the same file twice": (GOOD + GOOD, "has bytes after its end"),
    "an entry header of 4 GB": (framed(0xFFFFFFFF, 1, 10), "longer than any entry may be"),
    "a body of 4 GB": (framed(100, 1, 0xFFFFFFFF), "longer than any entry may be"),
    "a body just over the limit": (framed(100, 1, (64 << 20) + 1), "longer than any entry may be"),
    "a body of 64 MB that is not there": (framed(100, 1, 64 << 20), "in the middle of entry 0"),
    "an entry header of no length": (framed(0, 1, 0, bytes(48)), "its header cannot be read"),
    "a body that is there and not": (framed(100, 0, 10), "neither that it has a body"),
    "a flag that is none": (framed(100, 7, 10), "neither that it has a body"),
    "a header that takes the body's bytes": (
        framed(len(ENTRIES[0].header) + 9, 1, 9, GOOD[len(START) + FRAME.size : -32]),
        "entry 0 does not hold: its header cannot be read",
    ),
    "an entry twice": (
        file_of(msgspec.structs.replace(HEADER, count=4), [*ENTRIES, ENTRIES[2]]),
        "entry 3 does not hold: its header has place 2",
    ),
    "an entry left out": (
        file_of(msgspec.structs.replace(HEADER, count=2), [ENTRIES[0], ENTRIES[2]]),
        "entry 1 does not hold",
    ),
    "entries exchanged": (
        file_of(entries=[ENTRIES[1], ENTRIES[0], ENTRIES[2]]),
        "entry 0 does not hold: its header has place 1",
    ),
    "a chain that begins later": (
        file_of(msgspec.structs.replace(HEADER, count=2), ENTRIES[1:]),
        "entry 0 does not hold",
    ),
    "another body": (changed(1, body=b"{}"), "entry 1 does not hold: its body is not the one"),
    "another salt": (changed(1, salt=b"t" * 16), "entry 1 does not hold: its body is not the one"),
    "another hash": (changed(1, hash="11" * 32), "entry 1 does not hold: its hash is not"),
    "another header": (
        changed(1, header=ENTRIES[1].header.replace(b'"intent":1', b'"intent":2')),
        "entry 1 does not hold: its hash is not",
    ),
    "a newer entry": (
        relinked(lambda entry: entry.header.replace(b'"v":1', b'"v":2')),
        "entry 2 does not hold: its header has format 2",
    ),
    "an entry with two readings": (
        relinked(lambda entry: entry.header.replace(b"{", b'{"run":"x",', 1)),
        "entry 2 does not hold: its header is not in canonical form",
    ),
    "a body that is no record": (no_record(), "entry 3 does not hold: its body is no record"),
    "attachments in a file of the first format": (
        said(format=1, attachments=1), "counts what cannot be"
    ),
    "a negative count of attachments": (said(attachments=-1), "counts what cannot be"),
    "an absurd count of attachments": (said(attachments=100_001), "counts what cannot be"),
    "attachments that are not there": (said(attachments=3), "attachment 0"),
    "attachments and nowhere to keep them": (
        file_of(CARRYING, attachments=((b"{}", b"data"),)), "here is nowhere to keep them"
    ),
    "an attachment more than it counts": (
        file_of(attachments=((b"{}", b"data"),)), "its digest is not that of its bytes"
    ),
    "a reference of 4 GB": (attached(0xFFFFFFFF, 1), "longer than any attachment may be"),
    "a reference just over the limit": (attached(8_193, 1), "longer than any attachment may be"),
    "a reference that is cut off": (attached(8_192, 1, b"{"), "in the middle of attachment 0"),
    "an attachment of 16 EB": (attached(2, (1 << 64) - 1, b"{}"), "longer than any attachment"),
    "the chain of another run": (other_runs_chain(), "entry 0 does not hold: its header names"),
}  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with SqliteLedger(tmp_path / "ledger.db") as opened:
        filled(opened, run=OTHER, count=2)
        yield opened


def assert_untouched(ledger: SqliteLedger) -> None:
    assert [row.run for row in ledger.runs()] == [OTHER]
    assert verify_ledger(ledger).entries == 2
    with ledger._file.reading() as db:
        for table in ("entry", "body"):
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_file_that_lies_is_refused_and_nothing_imported(
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
    assert_untouched(ledger)


def test_the_file_that_all_of_these_are_made_from_is_good() -> None:
    ledger = MemoryLedger()

    assert import_run(ledger, io.BytesIO(GOOD)) == RUN
    assert verify_ledger(ledger).entries == 3


@given(place=st.integers(0, len(GOOD) - 1), mask=st.integers(1, 255))
def test_a_byte_changed_anywhere_in_a_file_is_found(place: int, mask: int) -> None:
    ledger = MemoryLedger()
    content = GOOD[:place] + bytes([GOOD[place] ^ mask]) + GOOD[place + 1 :]

    with pytest.raises(TransferRefused):
        import_run(ledger, io.BytesIO(content))

    assert list(ledger.runs()) == []


@given(size=st.integers(0, len(GOOD) - 1))
def test_a_file_cut_anywhere_is_refused(size: int) -> None:
    ledger = MemoryLedger()

    with pytest.raises(TransferRefused):
        import_run(ledger, io.BytesIO(GOOD[:size]))

    assert list(ledger.runs()) == []


@given(noise=st.binary(max_size=400))
def test_noise_behind_a_good_beginning_is_refused(noise: bytes) -> None:
    ledger = MemoryLedger()

    with pytest.raises(TransferRefused):
        import_run(ledger, io.BytesIO(START + noise))

    assert list(ledger.runs()) == []


def test_a_length_that_lies_costs_no_memory() -> None:
    content = framed(100, 1, 64 << 20, bytes(2_000))
    tracemalloc.start()

    with pytest.raises(TransferRefused):
        import_run(MemoryLedger(), io.BytesIO(content))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 4 << 20


@pytest.mark.parametrize("place", ["missing", "folder", "plain/below"])
def test_a_file_that_cannot_be_opened_is_refused_by_name(
    ledger: SqliteLedger, tmp_path: Path, place: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").touch()

    with pytest.raises(TransferRefused, match=f"{place}: it cannot be opened"):
        import_run(ledger, tmp_path / place)

    assert_untouched(ledger)


class Broken(io.BytesIO):
    """A disk that fails in the middle."""

    def read(self, count: int | None = -1, /) -> bytes:
        if self.tell() > len(START):
            raise OSError(5, "Input/output error")
        return super().read(count)


def test_a_file_that_stops_being_readable_is_refused(ledger: SqliteLedger) -> None:
    with pytest.raises(TransferRefused, match="the given stream: it cannot be read: Input/output"):
        import_run(ledger, Broken(GOOD))

    assert_untouched(ledger)
