"""Sessions: how long until a new one answers, and how many can be kept.

Question: does a fresh session answer in 5 ms, a warm one in 0.5 ms, and does an idle one hold at
most 2 MB?

Sketch before measuring. Fresh: an instance is a copy-on-write mapping (0.1 ms), then the first
program touches a few hundred pages at about 1 us each and runs boot and bind: 2 to 4 ms. Warm: to
compile and run `1+1` takes 0.4 million fuel, 0.2 ms, and the way to the program thread and back
0.1 ms. Memory: the pages a small program writes, about 400 of 4 KiB, and the host's objects: 1.5 to
2 MB. A thousand sessions are a thousand times one: if each holds more than the 200 do, or making
them takes more than 5 s, something grows that should not.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable

from bench.measure import MIB, Bench, Row, World, checked, now, private_bytes, timed

from tallystick.sandbox.wasm.sandbox import WasmInterpreter
from tallystick.storage.clock import new_id

__all__ = ["BENCHES"]

_PROGRAM = "1+1"


def fresh(world: World) -> Iterable[Row]:
    async def measure() -> list[float]:
        found = []
        for _ in range(150):
            began = now()
            session = await world.sandbox.open(session_id=new_id())
            await checked(session, _PROGRAM)
            found.append((now() - began) * 1e3)
            await session.close()
        return found[10:]

    yield Row(
        bench="fresh",
        name="fresh session to first result",
        unit="ms",
        samples=world.do(measure()),
        target=5.0,
    )


def warm(world: World) -> Iterable[Row]:
    async def measure(session: WasmInterpreter) -> list[float]:
        found = [await timed(session, _PROGRAM) * 1e3 for _ in range(2_000)]
        return found[200:]

    with world.session() as session:
        samples = world.do(measure(session))
    yield Row(bench="warm", name="warm cell `1+1`", unit="ms", samples=samples, target=0.5)


async def _made(world: World, count: int) -> list[WasmInterpreter]:
    sessions = []
    for _ in range(count):
        session = await world.sandbox.open(session_id=new_id())
        await checked(session, _PROGRAM)
        sessions.append(session)
    return sessions


async def _closed(sessions: list[WasmInterpreter]) -> None:
    for session in sessions:
        await session.close()


def idle_memory(world: World) -> Iterable[Row]:
    async def measure() -> float:
        gc.collect()
        before = private_bytes()
        sessions = await _made(world, 200)
        gc.collect()
        each = (private_bytes() - before) / len(sessions) / MIB
        await _closed(sessions)
        return each

    world.do(measure())  # what the process itself allocates once is not a session's
    yield Row(
        bench="memory",
        name="idle session, private memory (200 live)",
        unit="MiB",
        samples=[world.do(measure()) for _ in range(3)],
        target=2.0,
    )


def thousand(world: World) -> Iterable[Row]:
    async def measure() -> tuple[float, float, float]:
        gc.collect()
        before = private_bytes()
        began = now()
        sessions = await _made(world, 1_000)
        made = now() - began
        began = now()
        answers = await asyncio.gather(*(checked(session, "6*7") for session in sessions))
        answered = now() - began
        if any(answer.value != "42" for answer in answers):
            raise RuntimeError("a session of the thousand answered wrongly")
        gc.collect()
        each = (private_bytes() - before) / len(sessions) / MIB
        await _closed(sessions)
        return made, answered, each

    made, answered, each = world.do(measure())
    bench, name = "thousand", "1,000 live sessions"
    yield Row(bench=bench, name=f"{name}: make, first result each", unit="s", samples=[made])
    yield Row(bench=bench, name=f"{name}: all answer at once", unit="s", samples=[answered])
    yield Row(bench=bench, name=f"{name}: memory each", unit="MiB", samples=[each])


BENCHES: dict[str, Bench] = {
    "fresh": fresh,
    "warm": warm,
    "memory": idle_memory,
    "thousand": thousand,
}
