"""A head as a document has one spelling, and an unsigned one never looks signed."""

import msgspec
import pytest
from tests.ledger.builders import RUN

from tallystick.core.chain import Head
from tallystick.core.errors import UsageError
from tallystick.core.ids import moment_text
from tallystick.core.json_text import canonical
from tallystick.core.proof import HEAD_FORMAT, UNSIGNED, HeadFile, parse_head, signed_bytes

PLAIN = HeadFile(
    format=HEAD_FORMAT,
    run=RUN,
    count=4,
    hash="ab" * 32,
    at=moment_text(1_769_860_800_999),
    key_id=None,
    signature=UNSIGNED,
)
SIGNED = msgspec.structs.replace(PLAIN, key_id="cd" * 32, signature="ef" * 64)


def changed(**fields: object) -> bytes:
    return canonical(msgspec.structs.replace(SIGNED, **fields))


@pytest.mark.parametrize("document", [PLAIN, SIGNED])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_document_is_read_as_it_was_written(document: HeadFile, end: bytes) -> None:
    assert parse_head(canonical(document) + end) == document
    assert document.head == Head(count=4, hash="ab" * 32)


def test_a_document_says_in_words_when_and_that_it_is_unsigned() -> None:
    assert canonical(PLAIN) == (
        b'{"at":"2026-01-31T12:00:00Z","count":4,"format":"tallystick-head@1","hash":"'
        + b"ab" * 32
        + b'","key_id":null,"run":"'
        + RUN.encode()
        + b'","signature":"unsigned"}'
    )


def test_what_is_signed_is_everything_but_the_signature() -> None:
    assert signed_bytes(SIGNED) == canonical(SIGNED).replace(
        b',"signature":"' + b"ef" * 64 + b'"', b""
    )


@pytest.mark.parametrize(
    "data",
    [
        b'{"count":4,"hash":"' + b"ab" * 32 + b'"}',
        b'{\n  "hash": "' + b"ab" * 32 + b'",\n  "count": 4\n}\n',
        b'{"run":"any","count":4,"hash":"' + b"ab" * 32 + b'"}',
    ],
)
def test_a_bare_head_of_earlier_versions_is_still_read(data: bytes) -> None:
    assert parse_head(data) == Head(count=4, hash="ab" * 32)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a head"),
        (b"7", "not a head"),
        (b"[" * 4000, "not a head"),
        (b"\xff", "not a head"),
        (b" " * 5000, "longer than 4,096 bytes"),
        (b"{}", "count"),
        (b'{"count":-1,"hash":"' + b"ab" * 32 + b'"}', "a count of -1"),
        (b'{"count":4,"hash":"' + b"AB" * 32 + b'"}', "64 hexadecimal digits"),
        (b'{"count":4,"hash":"abc"}', "64 hexadecimal digits"),
        (changed(format="tallystick-head@2"), "'tallystick-head@2'; this version reads"),
        (changed(format="tallystick-proof@1"), "this version reads"),
        (changed(run="x"), "not the id of one"),
        (changed(count=1 << 60), "a count of"),
        (changed(hash="ab"), "64 hexadecimal digits"),
        (changed(at="yesterday"), "its time"),
        (changed(at="2026-02-30T12:00:00Z"), "its time"),
        (changed(at="٢٠٢٦-01-31T12:00:00Z"), "its time"),
        (changed(key_id=None), "a signature without a key"),
        (changed(signature=UNSIGNED), "a key without a signature"),
        (changed(key_id="cd"), "its key_id"),
        (changed(signature="ef" * 63), "its signature"),
        (changed(signature=""), "its signature"),
        (canonical(SIGNED).replace(b"{", b'{"count":9,', 1), "not in canonical form"),
        (canonical(SIGNED).replace(b",", b", "), "not in canonical form"),
        (canonical(SIGNED).replace(b"{", b'{"public_key":"x",', 1), "public_key"),
    ],
)
def test_what_is_no_head_is_refused_by_name(data: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_head(data)
