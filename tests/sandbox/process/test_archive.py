"""The working directory as bytes: what is packed comes back, and nothing hostile is laid out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import StoreError
from tallystick.core.json_text import digest
from tallystick.sandbox.process.files import (
    FilesState,
    KeptEntry,
    KeptStates,
    _read_listing,
    pack_state,
    unpack_state,
    write_files,
)

NAMES = st.binary(min_size=1, max_size=8).filter(
    lambda name: not {b"/"[0], 0} & set(name) and name not in (b".", b"..")
)


def file(path: bytes, content: bytes, mode: int = 0o644) -> KeptEntry:
    return KeptEntry(
        path=path, kind="file", mode=mode, mtime_ns=5, size=len(content), sha256=digest(content)
    )


def directory(path: bytes) -> KeptEntry:
    return KeptEntry(path=path, kind="directory", mode=0o750, mtime_ns=7)


@given(
    st.dictionaries(NAMES, st.binary(max_size=40), max_size=6),
    st.dictionaries(st.binary(min_size=1, max_size=5), st.binary(max_size=9), max_size=4),
    st.one_of(st.none(), st.binary(max_size=9)),
)
def test_what_is_packed_comes_back(
    files: dict[bytes, bytes], exported: dict[bytes, bytes], where: bytes | None
) -> None:
    state = FilesState(
        entries=tuple(file(name, content) for name, content in sorted(files.items())),
        where=where,
        exported=tuple(sorted(exported.items())),
    )
    contents = {digest(content): content for content in files.values()}

    assert unpack_state(pack_state(state, contents)) == (state, contents)


@given(st.data())
def test_a_changed_byte_is_found_or_changes_only_what_the_header_says(data: st.DataObject) -> None:
    state = FilesState(entries=(file(b"a", b"content"),))
    raw = pack_state(state, {digest(b"content"): b"content"})
    place = data.draw(st.integers(0, len(raw) - 1))
    changed = raw[:place] + bytes([raw[place] ^ data.draw(st.integers(1, 255))]) + raw[place + 1 :]

    try:
        found, contents = unpack_state(changed)
    except StoreError:
        return

    assert found != state
    assert contents == {digest(b"content"): b"content"}


@given(st.binary(max_size=200))
def test_what_is_no_archive_is_refused(raw: bytes) -> None:
    with pytest.raises(StoreError):
        unpack_state(raw)


def test_a_state_is_laid_out_as_it_was(tmp_path: Path) -> None:
    state = FilesState(
        entries=(
            directory(b"d"),
            file(b"d/x\xff", b"one", 0o640),
            KeptEntry(path=b"d/l", kind="link", mode=0o777, mtime_ns=0, target=b"../../etc"),
        )
    )

    write_files(state, {digest(b"one"): b"one"}, tmp_path)

    made = os.fsencode(tmp_path) + b"/d/x\xff"
    assert Path(os.fsdecode(made)).read_bytes() == b"one"
    assert os.stat(made).st_mode & 0o777 == 0o640
    assert os.stat(made).st_mtime_ns == 5
    assert os.readlink(tmp_path / "d" / "l") == "../../etc"
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize(
    "entries",
    [
        (file(b"../out", b""),),
        (file(b"/etc/x", b""),),
        (file(b"a//b", b""),),
        (file(b"a/./b", b""), directory(b"a")),
        (file(b"", b""),),
        (file(b"a\0b", b""),),
        (file(b"missing/x", b""),),
        (file(b"a", b""), file(b"a", b"")),
        # Nothing is written through a link.
        (
            KeptEntry(path=b"a", kind="link", mode=0, mtime_ns=0, target=b"/tmp"),
            file(b"a/x", b""),
        ),
        (KeptEntry(path=b"a", kind="link", mode=0, mtime_ns=0, target=b""),),
    ],
)
def test_hostile_paths_are_refused(tmp_path: Path, entries: tuple[KeptEntry, ...]) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()

    with pytest.raises(StoreError, match="kept files"):
        write_files(FilesState(entries=entries), {digest(b""): b""}, inside)

    assert [each.name for each in tmp_path.iterdir()] == ["inside"]


def test_states_share_contents_and_any_of_them_can_be_put_back() -> None:
    first = FilesState(entries=(file(b"a", b"one"),))
    second = FilesState(entries=(file(b"a", b"one"), file(b"b", b"two")))
    raws = [
        pack_state(first, {digest(b"one"): b"one"}),
        pack_state(second, {digest(b"two"): b"two"}),
    ]
    states = KeptStates()
    for intent, raw in zip((3, 7), raws, strict=True):
        states.add(intent, lambda raw=raw: raw)  # type: ignore[misc]

    assert [states.after(intent) for intent in (2, 3, 6, 7)] == [
        FilesState(),
        first,
        first,
        second,
    ]
    assert states.contents(second) == {digest(b"one"): b"one", digest(b"two"): b"two"}
    missing = FilesState(entries=(file(b"c", b"three"),))
    with pytest.raises(StoreError, match="is missing"):
        states.contents(missing)


def listing_bytes(entries: list[tuple[bytes, ...]], contents: bytes = b"") -> bytes:
    rows = b"".join(field + b"\0" for entry in entries for field in entry)
    return b"%d\0" % len(entries) + rows + contents


ENTRY = (b"a", b"f", b"644", b"1", b"2", b"3", b"4", b"")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"1",
        b"-1\0",
        b"99999999999999999999\0",
        b"2\0" + listing_bytes([ENTRY])[2:],
        listing_bytes([(b"a", b"f", b"999", *ENTRY[3:])]),
        listing_bytes([(b"a", b"f", b"644", b"soon", *ENTRY[4:])]),
        listing_bytes([ENTRY], b"0"),
        listing_bytes([ENTRY], b"0\x004\0abc"),
        listing_bytes([ENTRY], b"1\x003\0abc"),
        listing_bytes([ENTRY], b"0\0-1\0"),
    ],
)
def test_a_listing_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller says what it is of
        _read_listing(raw)


@given(st.binary(max_size=200) | st.binary(max_size=80).map(lambda raw: b"1\0" + raw))
def test_whatever_a_box_writes_is_a_listing_or_refused(raw: bytes) -> None:
    try:
        listing = _read_listing(raw)
    except ValueError:
        return
    assert len(listing.found) + len(listing.other) <= len(raw)
    assert sum(map(len, listing.contents.values())) <= len(raw)


def test_what_is_no_file_has_no_place_in_a_listing_and_contents_are_by_path() -> None:
    pipe = (b"p", b"?", *ENTRY[2:])
    sized = (b"s", b"f", b"644", b"1", b"2", b"3", b"-4", b"")
    listing = _read_listing(listing_bytes([ENTRY, pipe, sized], b"0\x003\0a\0c"))

    assert [each.path for each in listing.found] == [b"a"]
    assert listing.other == (b"p", b"s")
    assert listing.contents == {b"a": b"a\0c"}
