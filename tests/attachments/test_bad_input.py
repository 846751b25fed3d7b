"""Bad input: each gives one clear line and the right exit code, and leaves nothing behind."""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.attachments.builders import (
    AT_ONCE,
    EVERYTHING,
    LARGE,
    SMALL,
    digest,
    local_path,
    session,
    stored,
)
from tests.attachments.test_media import gif, jpeg, png, webp_extended

from tallystick.attachments.collect import reclaim, verify_attachments
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import (
    AttachmentCorrupt,
    AttachmentError,
    AttachmentSourceFailed,
    ReclamationRefused,
)
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.cli.main import main
from tallystick.sandbox.scheduling import watched_by
from tallystick.sandbox.text import HostText

pytestmark = pytest.mark.slow

USAGE, BACKEND = 2, 6
PATH_TRICKS = (
    "..", ".", "../../etc/passwd", "/etc/passwd", "a/../b", "a\\..\\b", "", "x" * 129, "caf\u00e9",
    "a\nb", "\x1b[2J", "\x7f",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: bytes
    error: str


Attach = Callable[..., Ended]


@pytest.fixture
def attach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Attach:
    """`tally attach` in this process, as it ends and with what it says."""
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["tally", "attach", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, error = capfdbinary.readouterr()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, out, error.decode())

    return call


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[SqliteAttachments]:
    with stored(tmp_path) as opened:
        yield opened


def put(attach: Attach, path: Path, data: bytes, *words: str) -> dict[str, object]:
    path.write_bytes(data)
    ended = attach("put", str(path), "--json", *words)
    assert (ended.code, ended.error) == (0, "")
    (ref,) = json.loads(ended.out)
    assert ref["id"] == digest(data)
    return dict(ref)


def one_line(ended: Ended, code: int) -> str:
    assert ended.code == code, ended.error
    assert ended.out == b""
    assert ended.error.count("\n") == 1
    assert ended.error.endswith("\n")
    assert ended.error[:-1].isprintable()
    return ended.error


def sql(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "ledger.db")) as db, db:
        db.execute(statement)


# -- ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", PATH_TRICKS)
def test_a_path_trick_is_a_usage_error_and_reads_and_writes_nothing(
    attach: Attach, tmp_path: Path, id: str
) -> None:
    said = one_line(attach("get", id, "-o", "out"), USAGE)

    assert said.startswith("usage.name: attachment ")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "data" / "ledger.db-attachments").exists()


@pytest.mark.parametrize("id", ["../../../../etc/passwd", "..", "0" * 63])
def test_a_path_trick_in_the_manifest_is_damage_and_no_path(
    attach: Attach, tmp_path: Path, id: str
) -> None:
    real = put(attach, tmp_path / "small", SMALL)["id"]
    sql(tmp_path / "data", f"UPDATE attachment_reference SET ref = replace(ref, '{real}', '{id}')")

    for words in (("ls",), ("get", str(real)), ("verify",)):
        assert "damaged" in one_line(attach(*words), BACKEND)


# -- what bytes are ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "declared", "believed"),
    [
        (b"<html>404</html>", "image/png", "text/plain"),
        (png(4, 3), "text/plain", "image/png"),
        (b"%PDF-1.7", "IMAGE/JPG", "application/pdf"),
        (b"{}", "application/zip", "application/json"),
    ],
)
def test_a_wrong_type_is_not_believed_and_kept_beside_the_right_one(
    attach: Attach, tmp_path: Path, data: bytes, declared: str, believed: str
) -> None:
    ref = put(attach, tmp_path / "file", data, "--type", declared)

    assert ref["media_type"] == believed
    assert ref["declared"] == {"IMAGE/JPG": "image/jpeg"}.get(declared, declared)


@pytest.mark.parametrize(
    "declared", ["png", "image/", "a b/c", "text/plain\nX: y", "\x1b/\x1b", ""]
)
def test_a_type_that_is_none_is_a_usage_error(
    attach: Attach, tmp_path: Path, declared: str
) -> None:
    (tmp_path / "file").write_bytes(LARGE)

    said = one_line(attach("put", "file", "--type", declared), USAGE)

    assert said.startswith("usage.name: media type ")
    assert attach("ls").out == b""


@pytest.mark.parametrize("after", [b"", bytes(100_000)], ids=["in a row", "in a file"])
@pytest.mark.parametrize(
    "image",
    [
        png(640, 480)[:20],
        png(2**31 - 1, 2**31 - 1),
        png(65_535, 65_535),
        png(0, 480),
        gif(640, 480)[:7],
        gif(0, 0),
        jpeg(65_535, 65_535),
        b"\xff\xd8\xff\xe0" + struct.pack(">H", 60_000),
        webp_extended(1 << 24, 1 << 24),
    ],
)
def test_an_image_that_is_cut_off_or_too_large_to_be_one_is_kept_without_a_size(
    attach: Attach, tmp_path: Path, image: bytes, after: bytes
) -> None:
    data = image + after

    ref = put(attach, tmp_path / "image", data)

    assert str(ref["media_type"]).startswith("image/")
    assert "width" not in ref
    assert "height" not in ref
    assert attach("get", digest(data)).out == data


def test_no_bytes_at_all_are_an_attachment_like_any_other(attach: Attach, tmp_path: Path) -> None:
    ref = put(attach, tmp_path / "empty", b"", "--type", "text/plain")

    assert (ref["byte_len"], ref["media_type"]) == (0, "text/plain")
    assert attach("get", digest(b"")).out == b""
    assert attach("verify").out == b"1 reference, 1 blob, 0 bytes\n"


# -- a source that is none ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nosuch", ".", "/proc/self/mem"])
def test_a_file_that_cannot_be_read_is_named(attach: Attach, name: str) -> None:
    ended = attach("put", name)

    said = one_line(ended, BACKEND if name.startswith("/proc") else USAGE)
    assert name in said
    assert attach("ls").out == b""


@pytest.mark.parametrize("whole_pieces", [0, 1, 5])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_source_that_breaks_off_is_not_taken_for_the_disk_of_the_store(
    kept: SqliteAttachments, store: str, whole_pieces: int
) -> None:
    def breaking() -> Iterator[bytes]:
        for _ in range(whole_pieces):
            yield LARGE
        raise OSError(5, "Input/output error")

    held = session(MemoryAttachments() if store == "memory" else kept)

    with pytest.raises(AttachmentSourceFailed, match="to its end: Input/output error"):
        held.put(breaking())

    assert held.references() == []
    assert list(kept.files.staged()) == []
    assert list(kept.files.ids()) == []


# -- bytes that were changed on the disk -------------------------------------------------------


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


FILE_DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit": flipped,
    "cut short": lambda path: os.truncate(path, 100),
    "emptied": lambda path: os.truncate(path, 0),
    "made longer": lambda path: os.truncate(path, len(LARGE) + 1),
    "removed": Path.unlink,
    "a directory": lambda path: replaced(path, Path.mkdir),
    "a pipe": lambda path: replaced(path, os.mkfifo),
    "a link": lambda path: replaced(path, lambda path: path.symlink_to("/etc/passwd")),
}
ROW_DAMAGE = {
    "a bit": "data = x'68656c6c6e'",
    "emptied": "data = x''",
    "no data": "data = NULL",
    "text": "data = 'hello'",
    "a number": "data = 7",
}


def told_everywhere(attach: Attach, tmp_path: Path, id: str) -> None:
    """Reading, getting and verifying all say it, and nothing wrong is left or handed out whole."""
    with stored(tmp_path / "data") as kept, pytest.raises(AttachmentError) as caught:
        session(kept, "cli").read(id)
    assert id in str(caught.value)
    assert str(caught.value).isprintable()

    ended = attach("get", id, "-o", "out")
    assert id in one_line(ended, BACKEND)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.part").exists()

    verified = attach("verify")
    assert verified.code == BACKEND
    assert verified.out.decode().splitlines()[0].startswith(f"{id}: ")


@pytest.mark.parametrize("damage", FILE_DAMAGE)
def test_a_file_that_was_changed_is_told_by_read_get_and_verify(
    attach: Attach, tmp_path: Path, damage: str
) -> None:
    id = str(put(attach, tmp_path / "large", LARGE)["id"])

    FILE_DAMAGE[damage](tmp_path / "data" / "ledger.db-attachments" / id[:2] / id)

    told_everywhere(attach, tmp_path, id)


@pytest.mark.parametrize("damage", ROW_DAMAGE)
def test_a_row_that_was_changed_is_told_by_read_get_and_verify(
    attach: Attach, tmp_path: Path, damage: str
) -> None:
    id = str(put(attach, tmp_path / "small", SMALL)["id"])

    sql(tmp_path / "data", f"UPDATE attachment_blob SET {ROW_DAMAGE[damage]}")

    told_everywhere(attach, tmp_path, id)


@pytest.mark.parametrize("damage", ["a bit", "cut short", "removed", "a link"])
def test_putting_the_same_bytes_again_mends_a_file(
    attach: Attach, tmp_path: Path, damage: str
) -> None:
    id = str(put(attach, tmp_path / "large", LARGE)["id"])
    FILE_DAMAGE[damage](tmp_path / "data" / "ledger.db-attachments" / id[:2] / id)

    put(attach, tmp_path / "large", LARGE)

    assert attach("get", id).out == LARGE
    assert attach("verify").code == 0


def test_a_ledger_that_was_lost_is_no_proof_that_nobody_holds_its_files(
    tmp_path: Path,
) -> None:
    with stored(tmp_path) as before:
        held = session(before)
        id = held.put(LARGE).id
        held.commit([id])
    for path in tmp_path.glob("ledger.db*"):
        if path.is_file():
            path.unlink()

    with stored(tmp_path) as after:
        for dry_run in (True, False):
            with pytest.raises(ReclamationRefused, match="1 attachments are stored and nobody"):
                reclaim(after, policy=AT_ONCE, dry_run=dry_run)
        assert list(after.files.ids()) == [id]

        assert reclaim(after, policy=EVERYTHING).orphan_file_count == 1


# -- a disk that is full -----------------------------------------------------------------------

# Runs `tally attach put` with its ledger in argv[1], and says how that ended and what it left.
_FULL = """
import json, os, subprocess, sys
from pathlib import Path
folder, source = Path(sys.argv[1]), sys.argv[2]
env = {**os.environ, "TALLYSTICK_DATA_DIR": str(folder)}
def attach(*words):
    done = subprocess.run(
        [sys.executable, "-m", "tallystick.cli.main", "attach", *words],
        env=env, capture_output=True, text=True,
    )
    return done.returncode, done.stdout, done.stderr
small = folder / "small"
small.write_bytes(b"small")
before = attach("put", str(small))
small.unlink()
full = attach("put", source)
left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
print(json.dumps([before, full, attach("verify"), attach("ls"), left]))
"""


def check_full(told: bytes, why: str) -> None:
    before, full, verified, listed, left = json.loads(told)
    assert before[0] == 0, before
    assert full[0] == BACKEND
    assert full[1] == ""
    assert full[2].count("\n") == 1
    assert full[2].startswith("backend.attachment.io: attachment store I/O failed at ")
    assert full[2].endswith(f": {why}\n")
    assert verified[:2] == [0, "1 reference, 1 blob, 5 bytes\n"]
    assert listed[1].count("\n") == 1
    assert [each for each in left if "attachments" in each] == []


def test_a_file_that_may_not_grow_refuses_a_put_halfway(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1 << 20) * 20)
    (tmp_path / "data").mkdir()
    limit = 6 << 20

    done = subprocess.run(
        [sys.executable, "-c", _FULL, tmp_path / "data", source],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        check=True,
    )

    check_full(done.stdout, "File too large")


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def test_a_disk_that_is_full_halfway_refuses_a_put(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("needs a small file system of its own")
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1 << 20) * 20)
    (tmp_path / "data").mkdir()

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c",
         'mount -t tmpfs -o size=8m tmpfs "$1" && exec "$0" -c "$3" "$1" "$2"',
         sys.executable, tmp_path / "data", source, _FULL],
        capture_output=True,
        check=True,
    )  # fmt: skip

    check_full(done.stdout, "No space left on device")


# -- text that is none -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"caf\xe9\n",
        b"a\0b\0",
        b"\xff\xfe" + "utf-16".encode("utf-16-le"),
        b"\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80",
        "half a snowman \N{SNOWMAN}".encode()[:-1],
        bytes(range(256)),
    ],
)
@pytest.mark.parametrize("times", [1, 20_000], ids=["in a row", "in a file"])
def test_what_is_not_text_is_kept_as_it_is_and_read_as_a_decoder_reads_it(
    kept: SqliteAttachments, data: bytes, times: int
) -> None:
    held = session(kept)
    ref = held.put(data * times)
    path = local_path(held, ref.id)

    text = HostText(held.read(ref.id)) if path is None else HostText.open(path)
    wanted = (data * times).decode("utf-8", "replace")

    assert ref.media_type == "application/octet-stream"
    assert text.length() == len(wanted)
    for start in range(0, len(wanted), max(1, len(wanted) // 20)):
        assert text.slice(start, start + 10) == wanted[start : start + 10]
    for needle in ("\0", "caf", "b"):
        assert text.find(needle, 0) == wanted.find(needle)
        found = re.finditer(re.escape(needle), wanted)
        assert [low for low, _, _ in text.search(needle, 0, 3)] == [
            match.start() for match in itertools.islice(found, 3)
        ]
    text.close()


# -- one line of 1 GB --------------------------------------------------------------------------

_GIGABYTE = 1 << 30
_END = "\N{SNOWMAN}end".encode()
# Everything that looks at all of a text, in a process that may not have 64 MB more.
_WHOLE_LINE = """
import resource, sys, time
from pathlib import Path
from tallystick.sandbox import utf8
from tallystick.sandbox.text import HostText
from tallystick.core.errors import UsageError
with open("/proc/self/status", encoding="ascii") as file:
    used = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20),) * 2)
text = HostText.open(Path(sys.argv[1]))
zeros = 1 << 30
assert text.length() == zeros + 4
assert text.slice(zeros - 2, zeros + 9) == "\\0\\0\\N{SNOWMAN}end"
assert text.slice(500_000_000, 500_000_003) == "\\0\\0\\0"
assert text.find("end", 0) == zeros + 1
assert text.search("[^\\\\x00]", 0, 9)[1:] == [(zeros + at, zeros + at + 1, c)
                                             for at, c in ((1, "e"), (2, "n"), (3, "d"))]
for attempt in (lambda: text.search("(?s).*", 0, 1), lambda: text.slice(0, 1 << 30)):
    try:
        attempt()
    except UsageError as error:
        print(error)
text.close()
"""


@pytest.fixture
def line(tmp_path: Path) -> Path:
    """A line of 1 GB that takes no room on the disk: a hole, and a few characters behind it."""
    path = tmp_path / "line"
    with path.open("wb") as file:
        file.truncate(_GIGABYTE)
        file.seek(_GIGABYTE)
        file.write(_END)
    return path


@pytest.mark.slow
def test_a_line_of_1_gb_is_read_and_searched_in_bounded_memory(line: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WHOLE_LINE, line], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "a match is longer than 1,048,576 bytes; make the pattern narrower",
        "a slice of 1,073,741,824 bytes; at most 33,554,432 at a time: read it in parts",
    ]


@pytest.mark.parametrize(
    "work",
    [
        lambda text: text.length(),
        lambda text: text.slice(9, 10),
        lambda text: text.find("never", 0),
        lambda text: text.search("never", 0, 1),
        lambda text: text.search_bytes("never", 0, 1),
    ],
    ids=["length", "slice", "find", "search", "search by bytes"],
)
def test_whatever_looks_at_a_line_of_1_gb_stops_when_it_is_told_to(
    line: Path, work: Callable[[HostText], object]
) -> None:
    class Enough(Exception):
        pass

    looked: list[int] = []

    def look() -> None:
        looked.append(1)
        if len(looked) == 3:
            raise Enough

    text = HostText.open(line)

    with watched_by(look), pytest.raises(Enough):
        work(text)

    text.close()


@pytest.mark.slow
def test_a_line_of_1_gb_is_put_and_read_back(kept: SqliteAttachments, line: Path) -> None:
    held = session(kept)

    with line.open("rb") as file:
        ref = held.put(file, media_type="text/plain")
    held.commit([ref.id])

    # A NUL is no text; what was declared is not contradicted by bytes that show nothing.
    assert (ref.byte_len, ref.media_type) == (_GIGABYTE + len(_END), "text/plain")
    assert verify_attachments(kept).ok
    path = local_path(held, ref.id)
    assert path is not None
    os.truncate(path, 5)
    with pytest.raises(AttachmentCorrupt):
        held.read(ref.id)
