"""Attachments: what a digest costs beside the disk, small ones together, and memory for large ones.

Question: is a put of 100 MB at least 0.7 as fast as writing and forcing the same bytes; are 10,000
small puts in one transaction at least 20 times faster than as many files, each as a careful program
writes it (forced, renamed, its directory forced); do 1 GB in and out fit in 32 MB of memory; are
100,000,000 characters of mixed width ready as context in 1.5 s, in 1.3 times their size, and are
their slices exact? Ready: from a file that the page cache no longer has to an attachment, forced
and under its name, and a text over its file that knows its length in characters.

Sketch before measuring. SHA-256 runs at 1.4 GB/s and the disk at about 1.2: one after the other
would be 0.45 of the disk, side by side on two cores 0.8. A small put is a hash and two inserts,
25 us; a file is two forced writes, 0.7 ms and more: 30 times. Memory: eight pieces of 1 MiB that
wait for the digest, and a few buffers: 12 MB. The text: 250 MB are read and put in 0.4 s; counting
their characters is a check of sixteen bytes at a time, 0.1 s; decoding them would be 1 s. Memory is
the mapped file, 1.0, an index of 16 bytes for 64 KiB, and the engine that counts.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.measure import MIB, ROOT, Bench, Row, World, now

from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.storage.private_file import force_directory

__all__ = ["BENCHES"]

_LARGE_BYTES = 100_000_000
_LARGE_ROUNDS = 9
_SMALL = 10_000
_SMALL_FILES = 2_000
_SMALL_ROUNDS = 3
_CHARACTERS = 100_000_000
_CHARACTERS_ROUNDS = 5
# Measured in processes of their own, since a peak is a process's. Not ru_maxrss, which begins with
# that of the process that started this one. Pages of mapped files count.
_OPENED = """
import json, random, sys, time
from pathlib import Path
from tallystick.attachments.session import SessionAttachments
from tallystick.attachments.sqlite import SqliteAttachments
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.sandbox.text import HostText

def status(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))

now = time.perf_counter
piece = bytes(range(256)) * 4096
ledger = SqliteLedger(Path(sys.argv[1]))
kept = SqliteAttachments(ledger.file)
held = SessionAttachments(kept, session_id="bench")
held.commit([held.put(piece[:100_000]).id])
before = status("VmRSS:")
"""
_HUGE = f"""{_OPENED}
ref = held.put(number.to_bytes(4, "big") + piece[4:] for number in range(1024))
put = status("VmHWM:") - before
with held.chunks(ref.id) as chunks:
    assert sum(map(len, chunks)) == 1 << 30
print(json.dumps([put, status("VmHWM:") - before]))
kept.close()
ledger.close()
"""
_READY = f"""{_OPENED}
began = now()
with open(sys.argv[2], "rb") as file:
    ref = held.put(file)
put = now() - began
with held.local(ref.id) as path:
    text = HostText.open(path)
characters = text.length()
ready = now() - began
growth = status("VmHWM:") - before
whole = Path(sys.argv[2]).read_bytes().decode()
assert characters == len(whole)
chance = random.Random(int(sys.argv[3]))
places = [(chance.randrange(characters), chance.randrange(10_000)) for _ in range(2_000)]
wrong = sum(text.slice(at, at + size) != whole[at : at + size] for at, size in places)
print(json.dumps([ready, put, growth / len(text), wrong]))
text.close()
kept.close()
ledger.close()
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
    with held.local(ref.id) as path:
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
        name="10,000 small puts batched, against a file each",
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
        force_directory(target)
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
    put, both = _alone(_HUGE, world.directory / "huge")
    yield Row(
        bench="attachment",
        name="1 GB put and got: growth of the process",
        unit="MB",
        samples=[both / 1e6],
        target=32,
        against=f"{put / 1e6:.1f} MB of it for the put",
    )


def ready(world: World) -> Iterable[Row]:
    path = world.directory / "mixed.txt"
    _write_mixed(path)
    size = path.stat().st_size
    rounds = []
    for number in range(_CHARACTERS_ROUNDS):
        _forget_pages(path)
        folder = world.directory / f"ready-{number}"
        rounds.append(_alone(_READY, folder, str(path), str(number)))
    path.unlink()
    puts = sorted(put for _, put, _, _ in rounds)
    yield Row(
        bench="attachment",
        name="100,000,000 characters ready as context",
        unit="s",
        samples=[each for each, _, _, _ in rounds],
        target=1.5,
        against=f"{size / 1e6:.0f} MB, widths of 1 to 4 bytes; {puts[len(puts) // 2]:.2f} s of it "
        "for the put",
    )
    yield Row(
        bench="attachment",
        name="100,000,000 characters: memory beside the data",
        unit="x",
        samples=[each for _, _, each, _ in rounds],
        target=1.3,
        against="growth of the process at its peak, pages of the mapped file included",
    )
    yield Row(
        bench="attachment",
        name="100,000,000 characters: slices that are wrong",
        unit="",
        samples=[each for _, _, _, each in rounds],
        target=0,
        against="2,000 in each round, at random places, against a str",
    )


def _write_mixed(path: Path) -> None:
    """As many characters of each width, each drawn by itself: the worst case for a decoder."""
    chance = random.Random(7)
    widths = ("abcdefghijklmnopqrstuvwxyz \n", "äöüßéñжщ", "€\u2603漢字語한", "😀𝄞🎉")
    block = "".join(chance.choice(chance.choice(widths)) for _ in range(1_000_000))
    with path.open("wb") as file:
        for _ in range(_CHARACTERS // len(block)):
            at = chance.randrange(len(block))
            file.write((block[at:] + block[:at]).encode())
        file.flush()
        os.fsync(file.fileno())


def _forget_pages(path: Path) -> None:
    """Have the next reader go to the disk, where the system can be told."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _alone(program: str, folder: Path, *arguments: str) -> Sequence[float]:
    """Run a program beside a new ledger in a process of its own, and remove what it stored."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", program, folder / "ledger.db", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for path in (folder / "ledger.db-attachments").rglob("*"):
        if path.is_file():
            path.unlink()
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    measured: list[float] = json.loads(done.stdout)
    return measured


def attachment(world: World) -> Iterable[Row]:
    yield from large(world)
    yield from small(world)
    yield from memory(world)
    yield from ready(world)


BENCHES: dict[str, Bench] = {"attachment": attachment}
