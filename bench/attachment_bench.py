"""Attachments: what a digest costs beside the disk, small ones together, and memory for large ones.

Question: is a put of 100 MB at least 0.7 as fast as writing and forcing the same bytes; are 10,000
small puts in one transaction at least 20 times faster than as many files; do 1 GB in and out fit
in 32 MB of memory?

Sketch before measuring. SHA-256 runs at 1.4 GB/s and the disk at about 1.2: one after the other
would be 0.45 of the disk, side by side on two cores 0.8. A small put is a hash and two inserts,
25 us; a file is two forced writes, 0.7 ms and more: 30 times. Memory: eight pieces of 1 MiB that
wait for the digest, and a few buffers: 12 MB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.measure import MIB, ROOT, Bench, Row, World, now

from tallystick.attachments.files import fsync_directory
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.sqlite import SqliteLedger

__all__ = ["BENCHES"]

_LARGE_BYTES = 100_000_000
_LARGE_ROUNDS = 9
_SMALL = 10_000
_SMALL_FILES = 2_000
_SMALL_ROUNDS = 3
_GROWTH = """
import sys
from pathlib import Path
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.sqlite import SqliteLedger

def peak():
    # Not ru_maxrss, which begins with that of the process that started this one.
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))

piece = bytes(range(256)) * 4096
with SqliteLedger(Path(sys.argv[1])) as ledger, SqliteAttachments(ledger.file) as kept:
    held = SessionAttachments(kept, session_id="bench")
    held.commit([held.put(piece[:100_000]).id])
    before = peak()
    ref = held.put(number.to_bytes(4, "big") + piece[4:] for number in range(1024))
    put = peak() - before
    with held.chunks(ref.id) as chunks:
        assert sum(map(len, chunks)) == 1 << 30
    print(put, peak() - before)
"""


def large(world: World) -> Iterable[Row]:
    data = memoryview(os.urandom(_LARGE_BYTES))
    folder = world.directory / "large"
    folder.mkdir()
    pairs = []
    with SqliteLedger(folder / "ledger.db") as ledger, SqliteAttachments(ledger.file) as kept:
        held = SessionAttachments(kept, session_id="bench")
        for number in range(_LARGE_ROUNDS):
            # In turn, so that a busy moment falls on both. Other bytes each time, or it would be
            # a file that is there already.
            each = memoryview(bytes([number]) + bytes(data[1:]))
            pairs.append((_seconds_raw(folder / "raw", each), _seconds_put(held, each)))
    raw = sorted(_LARGE_BYTES / 1e6 / seconds for seconds, _ in pairs)[_LARGE_ROUNDS // 2]
    put = sorted(_LARGE_BYTES / 1e6 / seconds for _, seconds in pairs)[_LARGE_ROUNDS // 2]
    yield Row(
        bench="attachment",
        name="100 MB put, speed as a share of write and fsync",
        unit="x",
        samples=[plain / ours for plain, ours in pairs],
        target=0.7,
        higher_is_better=True,
        against=f"{put:,.0f} MB/s; raw write and fsync {raw:,.0f} MB/s",
    )


def _seconds_raw(path: Path, data: memoryview) -> float:
    began = now()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    for start in range(0, len(data), MIB):
        os.write(descriptor, data[start : start + MIB])
    os.fsync(descriptor)
    os.close(descriptor)
    took = now() - began
    path.unlink()
    return took


def _seconds_put(held: SessionAttachments, data: memoryview) -> float:
    began = now()
    ref = held.put(data)
    took = now() - began
    path = held.local_path(ref.id)
    if path is None:
        raise RuntimeError("100 MB were not stored as a file")
    held.delete(ref.id)
    path.unlink()
    return took


def small(world: World) -> Iterable[Row]:
    samples = []
    for number in range(_SMALL_ROUNDS):
        folder = world.directory / f"small-{number}"
        folder.mkdir()
        datas = [b"%d:%d " % (number, each) * 50 for each in range(_SMALL)]
        alone = _seconds_files(folder, datas[:_SMALL_FILES]) / _SMALL_FILES
        samples.append((alone, _seconds_batch(folder, datas) / _SMALL))
    yield Row(
        bench="attachment",
        name="10,000 small puts in one transaction, against a file each",
        unit="x",
        samples=[alone / together for alone, together in samples],
        target=20,
        higher_is_better=True,
        against=f"{samples[-1][1] * 1e6:.0f} us each; a forced and renamed file "
        f"{samples[-1][0] * 1e6:,.0f} us ({_SMALL_FILES} measured)",
    )


def _seconds_files(folder: Path, datas: list[bytes]) -> float:
    target = folder / "files"
    target.mkdir()
    began = now()
    for number, data in enumerate(datas):
        path = target / f"{number}.part"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.close(descriptor)
        path.rename(target / str(number))
        fsync_directory(target)
    return now() - began


def _seconds_batch(folder: Path, datas: list[bytes]) -> float:
    with SqliteLedger(folder / "ledger.db") as ledger, SqliteAttachments(ledger.file) as kept:
        held = SessionAttachments(kept, session_id="bench")
        held.commit([held.put(b"first").id])
        began = now()
        batch = held.batch()
        for data in datas:
            batch.add(data)
        batch.commit()
        return now() - began


def memory(world: World) -> Iterable[Row]:
    folder = world.directory / "huge"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH, folder / "ledger.db"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    put, both = (int(word) / 1024 for word in done.stdout.split())
    for path in (folder / "ledger.db-attachments").rglob("*"):
        if path.is_file():
            path.unlink()
    yield Row(
        bench="attachment",
        name="1 GB put and got: growth of the process",
        unit="MiB",
        samples=[both],
        target=32,
        against=f"{put:.1f} MiB of it for the put",
    )


def attachment(world: World) -> Iterable[Row]:
    yield from large(world)
    yield from small(world)
    yield from memory(world)


BENCHES: dict[str, Bench] = {"attachment": attachment}
