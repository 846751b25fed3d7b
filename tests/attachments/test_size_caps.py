"""A source that may have no end stops at a cap; one whose length is known does not."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.attachments import session
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import AttachmentTooLong, has_end
from tallystick.attachments.session import SessionAttachments
from tallystick.core.errors import InvalidLimit


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> SessionAttachments:
    monkeypatch.setattr(session, "ENDLESS_BYTES_MAX", 1_000_000)
    return SessionAttachments(MemoryAttachments(), session_id="a")


def endless() -> Iterator[bytes]:
    while True:
        yield bytes(100_000)


def test_an_iterator_without_end_stops_and_nothing_is_kept(held: SessionAttachments) -> None:
    with pytest.raises(AttachmentTooLong, match="more than 1,000,000 bytes"):
        held.put(endless())

    assert held.references() == []


def test_a_device_and_a_pipe_stop_too(held: SessionAttachments) -> None:
    with open("/dev/zero", "rb") as zero, pytest.raises(AttachmentTooLong, match="/dev/zero"):
        held.put(zero)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        assert not has_end(pipe)
        os.close(writing)
        assert held.put(pipe).byte_len == 0


def test_bytes_and_files_have_no_cap_unless_one_is_given(
    held: SessionAttachments, tmp_path: Path
) -> None:
    path = tmp_path / "long"
    path.write_bytes(bytes(1_500_000))

    assert held.put(bytes(1_500_001)).byte_len == 1_500_001
    assert held.put(io.BytesIO(bytes(1_500_002))).byte_len == 1_500_002
    with path.open("rb") as file:
        assert held.put(file).byte_len == 1_500_000
    with path.open("rb") as file, pytest.raises(AttachmentTooLong):
        held.put(file, bytes_max=1_499_999)
    with path.open("rb") as file:
        assert held.put(file, bytes_max=1_500_000).byte_len == 1_500_000


@pytest.mark.parametrize("bytes_max", [-1, True, 1.5])
def test_a_cap_is_a_whole_number(held: SessionAttachments, bytes_max: int) -> None:
    with pytest.raises(InvalidLimit, match="bytes_max"):
        held.put(b"x", bytes_max=bytes_max)
