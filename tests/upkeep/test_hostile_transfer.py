"""Files whose attachments lie: each is refused with one line, and nothing of it is kept."""

from __future__ import annotations

import hashlib
import io
import struct
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.builders import OTHER, RUN, draft
from tests.upkeep.transfer_builders import (
    FEW,
    SESSION,
    Place,
    attached_run,
    file_with,
    in_files,
    in_memory,
    session_id,
    started,
)

from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.core.chain import Draft, Head, seal
from tallystick.core.errors import TransferRefused
from tallystick.core.json_text import canonical
from tallystick.core.records import AttachmentRef
from tallystick.ledger.port import Carried, ExportHeader
from tallystick.ledger.transfer import write_stream
from tallystick.ledger.verify import verify_ledger
from tallystick.upkeep.transfer import import_run_with_attachments

DATA = b"some bytes"
REF = AttachmentRef(
    id=hashlib.sha256(DATA).hexdigest(), media_type="text/plain", byte_len=len(DATA), label="name"
)
GOOD = file_with(FEW)


def forged(
    *attachments: tuple[bytes, bytes],
    session: str = SESSION,
    mentioned: Sequence[AttachmentRef] = (),
    first: Draft | None = None,
    byte_len: int | None = None,
) -> bytes:
    """A file whose chain and digest hold, and whose attachments are whatever is given."""
    head, entries = Head.of_nothing(), []
    for each in (first or started(session, mentioned), draft(1)):
        entry, head = seal(each, run=RUN, head=head, salt=b"s" * 16)
        entries.append(entry)
    header = ExportHeader(
        format=2,
        run=RUN,
        count=head.count,
        hash=head.hash,
        fence=0,
        moved=False,
        attachments=len(attachments),
    )
    carried = [
        Carried(ref=ref, byte_len=len(data) if byte_len is None else byte_len, pieces=iter([data]))
        for ref, data in attachments
    ]
    stream = io.BytesIO()
    write_stream(stream, header, entries, carried)
    return stream.getvalue()


def said(**changes: object) -> bytes:
    """One attachment whose reference says other things than are true, or can be."""
    return forged((canonical(msgspec.structs.replace(REF, **changes)), DATA))


def raw(ref: bytes) -> bytes:
    return forged((ref, DATA))


PLAIN = canonical(REF)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no reference": (raw(b""), "the reference of attachment 0 cannot be read"),
    "a reference that is no JSON": (raw(b"id=1"), "cannot be read"),
    "a reference that is a list": (raw(b"[]"), "cannot be read"),
    "a reference nested deeply": (raw(b"[" * 8_000), "cannot be read"),
    "a reference that is no text": (raw(PLAIN.replace(b"name", b"n\xffme")), "cannot be read"),
    "half a character": (raw(PLAIN.replace(b"name", b"\\ud800")), "cannot be read"),
    "a length that is text": (raw(PLAIN.replace(b":10", b':"10"')), "cannot be read"),
    "a length that is a fraction": (raw(PLAIN.replace(b":10", b":10.5")), "cannot be read"),
    "a reference with spaces": (raw(PLAIN.replace(b",", b", ")), "not in canonical form"),
    "a further field": (raw(PLAIN.replace(b"{", b'{"path":"/etc",')), "not in canonical form"),
    "a field twice": (raw(PLAIN.replace(b"{", b'{"label":"x",')), "not in canonical form"),
    "a default written out": (raw(PLAIN[:-1] + b',"width":null}'), "not in canonical form"),
    "an id that is a path": (said(id="../../../etc/passwd"), "does not hold: attachment '../"),
    "an id that is empty": (said(id=""), "an id has 1 to"),
    "an id with a null byte": (said(id="\0" * 64), "an id is printable"),
    "an id in upper case": (said(id=REF.id.upper()), "its id is no digest"),
    "an id of another kind": (said(id="5a" * 16), "its id is no digest"),
    "an id of other bytes": (said(id="5a" * 32), f"attachment `{'5a' * 32}` does not hold: its by"),
    "other bytes": (forged((PLAIN, b"other byte")), f"attachment `{REF.id}` does not hold"),
    "more bytes than it says": (forged((PLAIN, DATA + b"!")), "has 11 bytes, and its reference"),
    "fewer bytes than it says": (forged((PLAIN, DATA[1:])), "has 9 bytes, and its reference"),
    "a negative length": (said(byte_len=-1), "has 10 bytes, and its reference says -1"),
    "a media type that is none": (said(media_type="text"), "a media type looks like"),
    "a media type with a line feed": (said(media_type="text/\nplain"), "a media type looks like"),
    "a media type in upper case": (said(media_type="TEXT/plain"), "not in canonical form"),
    "a media type with parameters": (said(media_type="text/plain; a=b"), "not in canonical form"),
    "a declared type that is none": (said(declared="../x"), "a media type looks like"),
    "a declared type that is the same": (said(declared="text/plain"), "declares the media type"),
    "a label that is too long": (said(label="x" * 1_001), "more than 1000 characters"),
    "a width of nothing": (said(width=0), "1 to 65535 pixels"),
    "an absurd height": (said(height=1 << 40), "1 to 65535 pixels"),
    "an attachment twice": (forged((PLAIN, DATA), (PLAIN, DATA)), "is in it twice"),
    "the same bytes under two labels": (
        forged((PLAIN, DATA), (PLAIN.replace(b"name", b"nome"), DATA)), "is in it twice",
    ),
    "one that a record needs, left out": (
        forged(mentioned=[REF]), f"entry 0 speaks of attachment '{REF.id}', which it does not",
    ),
    "one that a record says is longer": (
        forged((PLAIN, DATA), mentioned=[msgspec.structs.replace(REF, byte_len=11)]),
        "entry 0 speaks of attachment",
    ),
    "a record that speaks of a path": (
        forged((PLAIN, DATA), mentioned=[msgspec.structs.replace(REF, id="\n../x")]),
        r"speaks of attachment '\n../x'",
    ),
    "attachments without a session": (
        forged((PLAIN, DATA), first=draft(0)), "its first record names no session",
    ),
    "a session that is a person's": (forged((PLAIN, DATA), session="cli"), "session 'cli' is none"),
    "a person's session and no attachments": (forged(session="cli"), "session 'cli' is none"),
    "a session that is a line": (forged(session="a\nb"), r"session 'a\nb' is none that a run has"),
    "a session that is another run's": (
        forged((PLAIN, DATA), session=session_id(2)), f"its session is that of run {OTHER}",
    ),
    "another run's session and no attachments": (
        forged(session=session_id(2)), f"its session is that of run {OTHER}",
    ),
    "a length of 1 GB with 10 bytes behind it": (
        forged((PLAIN.replace(b":10", b":1073741824"), DATA), byte_len=1 << 30),
        "in the middle of attachment 0",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One place for all of them: nothing of them may be left in it."""
    made = in_files(tmp_path_factory.mktemp("place"))
    attached_run(made, FEW, run=OTHER, session=session_id(2))
    # A ledger opens its file for reading at the first read. Here, or a test would leave it open.
    assert len(made.ledger.runs()) == 1
    yield made
    made.close()


def assert_untouched(place: Place) -> None:
    assert isinstance(place.kept, SqliteAttachments)
    assert [row.run for row in place.ledger.runs()] == [OTHER]
    assert verify_ledger(place.ledger).entries == 3
    assert len(place.kept.references()) == len(FEW)
    assert [*place.kept.files.ids(), *place.kept.files.staged()] == []
    with place.kept.reading() as db:
        assert db is not None
        assert db.execute("SELECT count(*) FROM attachment_blob").fetchone() == (len(FEW),)


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_file_whose_attachments_lie_is_refused_and_nothing_imported(
    place: Place, tmp_path: Path, name: str
) -> None:
    content, why = HOSTILE[name]
    file = tmp_path / "run.tally"
    file.write_bytes(content)

    with pytest.raises(TransferRefused) as caught:
        import_run_with_attachments(place.ledger, place.kept, file)

    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert why in message
    assert message.endswith("; nothing was imported")
    assert message.isprintable()
    assert_untouched(place)


def refused(content: bytes) -> None:
    """Import into a new place in memory, which must come out of it empty."""
    place = in_memory(Path())
    assert isinstance(place.kept, MemoryAttachments)
    with pytest.raises(TransferRefused):
        import_run_with_attachments(place.ledger, place.kept, io.BytesIO(content))
    assert list(place.ledger.runs()) == []
    with place.kept.looking() as rows:
        assert [*rows.blobs(), *rows.references(), *place.kept.blobs.ids()] == []


def test_the_files_that_these_are_made_from_are_good() -> None:
    for content in (GOOD, forged((PLAIN, DATA), mentioned=[REF]), forged()):
        place = in_memory(Path())

        import_run_with_attachments(place.ledger, place.kept, io.BytesIO(content))

        assert verify_ledger(place.ledger).ok


def test_a_file_cut_at_any_place_is_refused() -> None:
    for size in range(len(GOOD)):
        refused(GOOD[:size])


def test_a_file_with_any_byte_changed_is_refused() -> None:
    for place in range(len(GOOD)):
        mask = 1 + place % 255
        refused(GOOD[:place] + bytes([GOOD[place] ^ mask]) + GOOD[place + 1 :])


@given(place=st.integers(0, 35), mask=st.integers(1, 255))
def test_bytes_changed_by_who_can_write_a_digest_are_refused_too(place: int, mask: int) -> None:
    content = bytearray(GOOD[:-32])
    content[content.index(b"two\n" * 9) + place] ^= mask

    refused(bytes(content) + hashlib.sha256(content).digest())


@given(noise=st.binary(max_size=300))
def test_noise_instead_of_attachments_is_refused(noise: bytes) -> None:
    start = GOOD.index(struct.pack(">Q", 3) + b'{"byte_len":3') - 4
    content = GOOD[:start] + noise

    refused(content + hashlib.sha256(content).digest())


def test_a_length_that_lies_costs_no_memory() -> None:
    content, _ = HOSTILE["a length of 1 GB with 10 bytes behind it"]
    tracemalloc.start()

    refused(content)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 4 << 20


def test_a_refused_file_does_not_spoil_a_good_one(tmp_path: Path) -> None:
    made = in_files(tmp_path)

    for content, _ in HOSTILE.values():
        with pytest.raises(TransferRefused):
            import_run_with_attachments(made.ledger, made.kept, io.BytesIO(content[:-1]))
    import_run_with_attachments(made.ledger, made.kept, io.BytesIO(GOOD))

    assert [data for _, data, _ in made.contents()] == [data for data, _, _ in FEW]
    made.close()
