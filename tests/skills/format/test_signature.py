"""Signatures of skills as files: one spelling, everything signed, nothing believed unread."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.json_text import canonical
from tallystick.skills.errors import SkillSignatureInvalid
from tallystick.skills.format.bundle import (
    SIGNATURE_BYTES_MAX,
    Bundle,
    BundledFile,
    SkillSignature,
    encode_signature,
    parse_signature,
    signature_for,
    signed_bytes,
    with_signature,
)

digests = st.text("0123456789abcdef", min_size=64, max_size=64)
files = st.builds(
    BundledFile, path=st.text(min_size=1, max_size=8), bytes=st.integers(0, 2**40), sha256=digests
)
bundles = st.lists(files, max_size=4, unique_by=lambda each: each.path).map(
    lambda found: Bundle(files=tuple(sorted(found, key=lambda each: each.path)))
)


def document(bundle: Bundle | None = None, raw: bytes = bytes(64)) -> SkillSignature:
    given_bundle = bundle or Bundle(files=(BundledFile(path="SKILL.md", bytes=3, sha256="a" * 64),))
    bare = signature_for(
        given_bundle, signer_fingerprint="b" * 64, skill_sha256="a" * 64, at_ms=1_769_860_800_000
    )
    return with_signature(bare, raw)


@given(bundle=bundles, raw=st.binary(min_size=64, max_size=64))
def test_what_is_written_is_read_again(bundle: Bundle, raw: bytes) -> None:
    made = document(bundle, raw)

    read = parse_signature(encode_signature(made))

    assert read == made
    assert (read.raw, read.bundle) == (raw, bundle)


def test_the_form_stays_what_it_is_in_every_version() -> None:
    made = document()
    fields = json.loads(encode_signature(made))

    assert made.signed_at == "2026-01-31T12:00:00Z"
    assert fields == {
        "format": "tallystick-skill@1",
        "signed_at": "2026-01-31T12:00:00Z",
        "signer_fingerprint": "b" * 64,
        "skill_sha256": "a" * 64,
        "manifest_sha256": made.bundle.sha256,
        "files": [{"path": "SKILL.md", "bytes": 3, "sha256": "a" * 64}],
        "signature": base64.b64encode(bytes(64)).decode(),
    }
    assert signed_bytes(made) == canonical(
        {name: value for name, value in fields.items() if name != "signature"}
    )


def test_every_field_but_the_signature_is_signed() -> None:
    made = document()
    changes: dict[str, Any] = {
        "format": "x", "signed_at": "x", "signer_fingerprint": "x", "skill_sha256": "x",
        "manifest_sha256": "x", "files": (),
    }  # fmt: skip
    assert {*changes, "signature"} == {each.name for each in msgspec.structs.fields(made)}

    for name, value in changes.items():
        changed = msgspec.structs.replace(made, **{name: value})
        assert signed_bytes(changed) != signed_bytes(made), name
    assert signed_bytes(with_signature(made, b"\1" * 64)) == signed_bytes(made)


def changed(**fields: Any) -> bytes:
    return canonical({**json.loads(encode_signature(document())), **fields})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a signature"),
        (b"{}", "not a signature"),
        (b"[]", "not a signature"),
        (b"\xff\xfe", "not a signature"),
        (b"[" * 100_000, "not a signature"),
        (b" " * (SIGNATURE_BYTES_MAX + 1), "longer than"),
        (changed(format="tallystick-skill@2"), "this version reads"),
        (changed(format=1), "not a signature"),
        (changed(extra=1), "not a signature"),
        (changed(signed_at="2026-13-31T12:00:00Z"), "its time"),
        (changed(signed_at="yesterday"), "its time"),
        (changed(signer_fingerprint="B" * 64), "64 hexadecimal digits"),
        (changed(skill_sha256=""), "64 hexadecimal digits"),
        (changed(signature=""), "64 bytes in base64"),
        (changed(signature="!" * 88), "64 bytes in base64"),
        (changed(signature=base64.b64encode(bytes(63)).decode()), "64 bytes in base64"),
        (changed(signature="é" * 88), "64 bytes in base64"),
        (changed(manifest_sha256="c" * 64), "not those of its manifest_sha256"),
        (changed(files=[]), "not those of its manifest_sha256"),
        (changed(files=[{"path": "b", "bytes": 1, "sha256": "c" * 64}] * 2), "there twice"),
        (encode_signature(document()) + b"\n", "canonical"),
        (b" " + encode_signature(document()), "canonical"),
        (encode_signature(document()).replace(b'"bytes":3', b'"bytes":3,"bytes":3'), "canonical"),
    ],
)
def test_what_is_no_signature_is_refused_with_a_reason(data: bytes, says: str) -> None:
    with pytest.raises(SkillSignatureInvalid, match=says) as caught:
        parse_signature(data)

    assert len(str(caught.value)) < 500


@given(data=st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    with pytest.raises(SkillSignatureInvalid):
        parse_signature(data)
