"""Keys are made once, kept apart and closed to others; a signature needs the right key."""

import importlib.util
import os
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.ledger.builders import RUN, drafts, filled

from tallystick.core.errors import StoreError, UsageError
from tallystick.core.json_text import canonical
from tallystick.core.proof import HeadFile, parse_head, signed_bytes
from tallystick.ledger.memory import MemoryLedger
from tallystick.settings.signing import (
    PublicKey,
    SigningKey,
    open_signing_key,
    read_public_key,
    signing_available,
)
from tallystick.upkeep.proof import head_of, proof_of, verify_head, verify_proof

needs_extra = pytest.mark.skipif(
    not signing_available(), reason="the extra `sign` is not installed: signatures cannot be made"
)


def opened(tmp_path: Path, name: str = "config") -> SigningKey:
    return open_signing_key(tmp_path / name, ledger=tmp_path / "data" / "ledger.db")


def key_pair(tmp_path: Path, name: str = "config") -> tuple[SigningKey, PublicKey]:
    key = opened(tmp_path, name)
    return key, read_public_key(key.public_path)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match=r"pip install 'tallystick\[sign\]'"):
        opened(tmp_path)
    with pytest.raises(UsageError, match=r"pip install 'tallystick\[sign\]'"):
        read_public_key(tmp_path / "any")
    assert list(tmp_path.iterdir()) == []


@needs_extra
def test_a_key_is_made_once_and_closed_to_others(tmp_path: Path) -> None:
    first, again = opened(tmp_path), opened(tmp_path)

    assert (first.made, again.made) == (True, False)
    assert first.id == again.id == read_public_key(first.public_path).id
    assert mode_of(tmp_path / "config") == 0o700
    assert mode_of(tmp_path / "config" / "signing.key") == 0o600
    assert sorted(os.listdir(tmp_path / "config")) == ["signing.key", "signing.pub"]


@needs_extra
def test_a_public_half_that_was_lost_or_exchanged_is_written_again(tmp_path: Path) -> None:
    key, other = opened(tmp_path), opened(tmp_path, "other")
    shutil.copy(other.public_path, key.public_path)

    assert read_public_key(opened(tmp_path).public_path).id == key.id


@needs_extra
def test_a_key_is_not_made_beside_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data", target_is_directory=True)

    for name in ("data", "link"):
        with pytest.raises(UsageError, match="holds the ledger"):
            opened(tmp_path, name)
    assert not (tmp_path / "data").exists()


@needs_extra
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_reach_is_not_used(tmp_path: Path, mode: int) -> None:
    opened(tmp_path)
    (tmp_path / "config" / "signing.key").chmod(mode)

    with pytest.raises(StoreError, match="by others"):
        opened(tmp_path)


@needs_extra
@pytest.mark.parametrize("data", [b"", b"nothing", b"\xff" * 100])
def test_a_damaged_key_is_not_replaced(tmp_path: Path, data: bytes) -> None:
    opened(tmp_path)
    path = tmp_path / "config" / "signing.key"
    path.write_bytes(data)

    with pytest.raises(StoreError, match="damaged"):
        opened(tmp_path)
    assert path.read_bytes() == data


@needs_extra
def test_what_is_no_public_key_is_refused(tmp_path: Path) -> None:
    key = opened(tmp_path)
    (tmp_path / "text").write_text("nothing")
    curve = tmp_path / "curve"
    curve.write_text(
        "-----BEGIN PUBLIC KEY-----\n"
        "MCowBQYDK2VuAyEAhSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=\n"
        "-----END PUBLIC KEY-----\n"
    )

    for path, why in (
        (tmp_path / "nosuch", "No such file"),
        (tmp_path / "text", "not a public key"),
        (key.public_path.with_name("signing.key"), "is a private key"),
        (curve, "of another kind"),
    ):
        with pytest.raises(UsageError, match=why):
            read_public_key(path)


def signed_head(key: SigningKey) -> tuple[MemoryLedger, HeadFile]:
    ledger = MemoryLedger()
    filled(ledger)
    return ledger, head_of(ledger, RUN, at_ms=1_769_860_800_000, key=key)


@needs_extra
def test_a_signed_head_holds_with_its_key_and_says_so(tmp_path: Path) -> None:
    key, public = key_pair(tmp_path)
    ledger, document = signed_head(key)

    report, standing = verify_head(ledger, RUN, parse_head(canonical(document)), key=public)
    _, unchecked = verify_head(ledger, RUN, document, key=None)
    proven = verify_proof(proof_of(ledger, RUN, 1), document, key=public)

    assert (report.ok, report.entries, standing.signature) == (True, 4, "checked")
    assert standing.key_id == public.id
    assert unchecked.signature == "unchecked"
    assert (proven.ok, proven.tag, proven.head.signature) == (True, "program.run", "checked")


def others(document: HeadFile, *, signed_by: SigningKey) -> Sequence[tuple[HeadFile, str]]:
    """Heads that were not signed as they are, each with why."""
    forged = msgspec.structs.replace(document, key_id=signed_by.id)
    own = signed_by.sign(signed_bytes(forged)).hex()
    change = msgspec.structs.replace
    flipped = f"{int(document.signature[0], 16) ^ 1:x}{document.signature[1:]}"
    return [
        (change(document, count=3), "does not have the signature"),
        (change(document, hash="00" * 32), "does not have the signature"),
        (change(document, at="2027-01-31T12:00:00Z"), "does not have the signature"),
        (change(document, signature=flipped), "does not have the signature"),
        (change(document, signature=own), "does not have the signature"),
        (change(forged, signature=own), "names the key"),
        (change(document, key_id=None, signature="unsigned"), "unsigned"),
    ]


@needs_extra
def test_a_head_that_was_not_signed_as_it_is_does_not_hold(tmp_path: Path) -> None:
    key, public = key_pair(tmp_path)
    ledger, document = signed_head(key)

    for other, why in others(document, signed_by=opened(tmp_path, "other")):
        report, standing = verify_head(ledger, RUN, other, key=public)
        proven = verify_proof(proof_of(ledger, RUN, 1), other, key=public)

        assert report.first_bad is not None
        assert report.first_bad == proven.first_bad
        assert (report.first_bad.run, report.first_bad.seq) == (RUN, other.count - 1)
        assert why in report.first_bad.why
        assert (report.ok, proven.ok, standing.signature) == (False, False, "bad")


@needs_extra
def test_a_signed_head_catches_a_run_cut_back_and_written_on(tmp_path: Path) -> None:
    key, public = key_pair(tmp_path)
    _, document = signed_head(key)
    cut = MemoryLedger()
    head = filled(cut, count=2)

    short, _ = verify_head(cut, RUN, document, key=public)
    cut.append(RUN, drafts(3, start=2), expected=head, fence=1, forced=False)
    anew, _ = verify_head(cut, RUN, document, key=public)

    assert short.first_bad is not None
    assert (short.first_bad.run, short.first_bad.seq) == (RUN, 2)
    assert anew.first_bad is not None
    assert (anew.first_bad.run, anew.first_bad.seq) == (RUN, 3)


@needs_extra
@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here")
def test_another_tool_can_check_the_signature(tmp_path: Path) -> None:
    key = opened(tmp_path)
    _, document = signed_head(key)
    (tmp_path / "data.bin").write_bytes(signed_bytes(document))
    (tmp_path / "signature").write_bytes(bytes.fromhex(document.signature))

    done = subprocess.run(
        [
            *("openssl", "pkeyutl", "-verify", "-rawin", "-in", "data.bin"),
            *("-sigfile", "signature", "-pubin", "-inkey", str(key.public_path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )

    assert "Verified Successfully" in done.stdout, done.stderr
