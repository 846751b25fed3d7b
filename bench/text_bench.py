"""Host-backed text of 1 GB: whether the guest pays for its size, and how fast a search is.

Question: does a slice of 100 KB take at most 1 ms, and does a search pass 100 MB/s?

Sketch before measuring. A slice by bytes is a host call and a copy: 30 us for 100 B, 0.1 ms for
100 KB, 1 ms for 1 MB. A search runs RE2 over the mapped file: with a literal prefix it is a memory
scan, 1 to 3 GB/s; without one the automaton takes a byte at a time, 200 to 400 MB/s. The limit is
`find` over the same mapping. The guest's memory stays as it was. A cancel waits for the window in
work, 8 MB: some 30 ms.
"""

from __future__ import annotations

import asyncio
import mmap
import random
from collections.abc import Iterable
from pathlib import Path

from bench.measure import CONTEXT, MIB, Bench, Row, World, checked, now, per_call, timed

from tallystick.sandbox.host import HostTable
from tallystick.sandbox.text import HostText
from tallystick.sandbox.wasm.sandbox import WasmInterpreter

__all__ = ["BENCHES"]

_FILE_BYTES = 1024 * MIB
_NEEDLE = b"\nNEEDLE-7f3a closing line\n"
_SLICES = ((100, "100 B", 500, None), (100_000, "100 KB", 200, 1.0), (1_000_000, "1 MB", 40, None))
_SEARCHES = (
    ("literal prefix", r"NEEDLE-[0-9a-f]+"),
    ("case-insensitive", r"(?i)needle-[0-9a-f]+"),
    ("word boundaries", r"\b[A-Z]{6}-\w+\b"),
)


def generate(path: Path) -> None:
    """Write 1 GB of lines of lower-case words, the same every time, with one needle at the end."""
    chance = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 11))) for _ in range(20_000)]
    lines = (" ".join(chance.choices(words, k=12)) for _ in range(120_000))
    block = "\n".join(lines).encode()[: 8 * MIB]
    with open(path, "wb") as file:
        left = _FILE_BYTES - len(_NEEDLE)
        while left:
            at = chance.randrange(len(block))
            left -= file.write((block[at:] + block[:at])[:left])
        file.write(_NEEDLE)


def text(world: World) -> Iterable[Row]:
    path = world.directory / "text.txt"
    generate(path)
    mapped = HostText.open(path)
    host = HostTable(texts={"book": mapped})
    try:
        with world.session() as session:
            before = world.run(session, "book.bytes_length", host=host).charge.memory_bytes
            yield from _slices(world, session, host)
            yield from _searches(world, session, host, _native_find(path))
            after = world.run(session, "book.bytes_length", host=host).charge.memory_bytes
            yield Row(
                bench="text",
                name="1 GB text: growth of the guest's memory",
                unit="MiB",
                samples=[(after - before) / MIB],
                against=f"{before / MIB:.0f} MiB before; the slices of 1 MB need some",
            )
            yield _cancelled(world, session, host)
    finally:
        mapped.close()
        path.unlink()


def _slices(world: World, session: WasmInterpreter, host: HostTable) -> Iterable[Row]:
    for size, shown, count, target in _SLICES:
        call = f"book.read_bytes(i * 4_999_999, i * 4_999_999 + {size})"
        found = per_call(world, session, call, count=count, repeats=7, host=host)
        yield Row(
            bench="text",
            name=f"1 GB text: slice of {shown} by bytes",
            unit="ms",
            samples=[seconds * 1e3 for seconds in found],
            target=target,
        )


def _native_find(path: Path) -> float:
    """MB/s of `find` over the mapped file in this process, the best of three."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = []
        for _ in range(3):
            began = now()
            if data.find(_NEEDLE) < 0:
                raise RuntimeError("the needle is not in the file")
            found.append(_FILE_BYTES / 1e6 / (now() - began))
    return max(found)


def _searches(
    world: World, session: WasmInterpreter, host: HostTable, native: float
) -> Iterable[Row]:
    for name, pattern in _SEARCHES:
        program = f"[found] = book.search_bytes({pattern!r})\nassert found[2].startswith('NEEDLE')"
        samples = [
            _FILE_BYTES / 1e6 / world.do(timed(session, program, host=host)) for _ in range(3)
        ]
        yield Row(
            bench="text",
            name=f"1 GB text: search, {name}",
            unit="MB/s",
            samples=samples,
            target=100,
            higher_is_better=True,
            against=f"{max(samples) / native:.2f} of native mmap find ({native:,.0f} MB/s)",
        )


def _cancelled(world: World, session: WasmInterpreter, host: HostTable) -> Row:
    async def measure() -> float:
        running = asyncio.ensure_future(
            session.execute("book.search_bytes('(?i)[x-z]{40}')", context=CONTEXT, host=host)
        )
        await asyncio.sleep(0.15)
        began = now()
        session.cancel()
        result = await running
        if result.stop != "cancelled":
            raise RuntimeError(f"the search ended by {result.stop} before it was cancelled")
        took = now() - began
        await checked(session, "1")
        return took * 1e3

    return Row(
        bench="text",
        name="1 GB text: cancel during a search",
        unit="ms",
        samples=[world.do(measure()) for _ in range(7)],
        target=50,
    )


BENCHES: dict[str, Bench] = {"text": text}
