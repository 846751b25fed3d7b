"""Wheels that are not what they say: refused with a reason, or harmless."""

from __future__ import annotations

import contextlib
import io
import resource
import struct
import time
import zipfile
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wasm_session import TestSession

from tallystick.core.errors import TallystickError, UsageError
from tallystick.sandbox.wasm.sandbox import check_wheel

METADATA = {"w-1.dist-info/WHEEL": b"Wheel-Version: 1.0", "w-1.dist-info/METADATA": b"Name: w"}


def wheel(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**METADATA, **files}.items():
            archive.writestr(name, data)
    return made.getvalue()


def add(session: TestSession, data: bytes) -> list[str]:
    return list(session.do(session.session.add_wheel(data, name="w.whl")))


def many_entries(count: int) -> bytes:
    """A zip whose directory names one tiny file `count` times."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a", "")
    raw = made.getvalue()
    start = raw.index(b"PK\x01\x02")
    entry = raw[start : raw.index(b"PK\x05\x06")]
    body = raw[:start] + entry * count
    size, end = len(entry) * count, len(body)
    body += struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
    body += struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    full = (0xFFFF, 0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF)
    return body + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, *full, 0)


def hidden_directory(count: int, *, how: str) -> bytes:
    """A zip with a long directory of which its last record says nothing."""
    made = bytearray(many_entries(count))
    end = len(made) - 22
    if how == "a small one in the last record":
        made[end + 8 : end + 20] = struct.pack("<HHII", 1, 1, 60, 0)
    elif how == "a signature in the last record":
        # Looked for from behind, the record seems to begin at its own sixteenth byte.
        made[end + 16 : end + 20] = b"PK\x05\x06"
    elif how == "a signature in the comment":
        made[end + 20 : end + 22] = struct.pack("<H", 22)
        made += struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, 60, 0, 0)
    return bytes(made)


@pytest.mark.parametrize(
    "how",
    [
        "as it is",
        "a small one in the last record",
        "a signature in the last record",
        "a signature in the comment",
    ],
)
def test_a_directory_that_is_too_long_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    data = hidden_directory(200_000, how=how)
    seen: list[str] = []
    monkeypatch.setattr(zipfile.ZipInfo, "__init__", lambda *_, **__: seen.append("an entry"))

    with pytest.raises(UsageError, match=r"too many files|not a zip"):
        check_wheel(data, name="w.whl")

    assert seen == []


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a zip"),
        (b"PK\x03\x04" + bytes(100), "not a zip"),
        (wheel({})[:-30], "not a zip"),
        (wheel({"w.so": b"\x7fELF"}), "native code"),
        (wheel({"w/inner.pyd": b"MZ"}), "native code"),
        (wheel({"w.py": bytes(300 * 1024 * 1024)}), "unpacks to"),
        (bytes(65 * 1024 * 1024), "at most"),
        (many_entries(30_000), "files"),
    ],
    ids=[
        "nothing",
        "half a header",
        "cut short",
        "an ELF",
        "a pyd",
        "a bomb",
        "long",
        "many files",
    ],
)
def test_a_wheel_that_cannot_be_right_is_refused(
    data: bytes, why: str, session: TestSession
) -> None:
    session.value("kept = 41")

    with pytest.raises(UsageError, match=why):
        add(session, data)

    assert session.value("kept") == "41"


def test_a_bomb_that_lies_about_its_size_is_refused_by_the_guest(session: TestSession) -> None:
    data = bytearray(wheel({"w.py": bytes(50_000_000)}))
    size = struct.pack("<I", 50_000_000)
    while (at := data.find(size)) >= 0:
        data[at : at + 4] = struct.pack("<I", 10)

    with pytest.raises(TallystickError):
        add(session, bytes(data))

    assert session.value("1 + 1") == "2"


def test_odd_paths_name_nothing_outside_the_wheel(session: TestSession) -> None:
    odd = [
        "../../etc/x.py",
        "/etc/y.py",
        "a\\b.py",
        "..",
        "c/../../d.py",
        "\u202egnp.py",
        "json.py",
    ]
    add(session, wheel({name: b"x = 'from the wheel'" for name in odd}))

    assert (
        session.value("import json\nhasattr(json, 'x'), hasattr(json, 'dumps')") == "(False, True)"
    )
    assert session.run("open('../../etc/x.py')").metadata["capability"] == "files.read"


def test_a_wheel_cannot_replace_what_the_prelude_uses(session: TestSession) -> None:
    names = [
        "tallystick_guest/wire.py",
        "entry.py",
        "wit_world/__init__.py",
        "builtins.py",
        "sys.py",
    ]
    add(session, wheel({name: b"raise SystemExit" for name in names}))

    assert session.value("import wit_world, sys, builtins\n1 + 1") == "2"
    assert session.value("echo([1])") == "[1]"


def test_a_wheel_that_loops_when_imported_is_ended_like_its_program(session: TestSession) -> None:
    add(session, wheel({"w.py": b"while True: pass"}))

    assert session.run("import w", fuel=300_000_000).stop == "fuel"
    assert session.value("1 + 1") == "2"


def test_a_directory_of_300_000_files_is_refused_without_being_read(
    session: TestSession,
) -> None:
    data = many_entries(300_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()

    with pytest.raises(UsageError, match="files"):
        add(session, data)

    assert time.monotonic() - began < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_wheel_is_passed_or_refused_and_never_breaks_the_check(
    data: st.DataObject,
) -> None:
    raw = bytearray(wheel({"w.py": b"x = 1"}))
    places = st.integers(0, len(raw) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        raw[place] = value
    cut = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))

    with contextlib.suppress(UsageError):
        check_wheel(bytes(raw[:cut]), name="w.whl")
