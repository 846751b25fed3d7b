"""Host calls: what a program pays to ask the host for something.

Question: is a call with a small value answered in 40 us or less?

Sketch before measuring. A crossing from guest to host Python and back is 1 to 2 us, the copies and
the record of the call 5 us, JSON on the guest's side 6 us and on ours 3 us: 20 to 30 us for a small
value. A kilobyte both ways adds the guest's JSON at about 30 ns a byte: 60 to 100 us. A call handed
to the event loop adds two thread switches: 100 to 150 us. The floor is a native call of an empty
function, tens of nanoseconds: three orders of magnitude, which is why long texts are sliced and
searched on the host instead of being fetched piece by piece.
"""

from __future__ import annotations

import json
import timeit
from collections.abc import Iterable

from bench.measure import ECHO, Bench, Row, World, echo, per_call

from tallystick.sandbox.host import HostFunction, HostTable
from tallystick.sandbox.port import Host, HostCall, HostNames

__all__ = ["BENCHES"]

# The bytes objects lie in the guest; the import takes their addresses.
_RAW_SETUP = """
from wit_world.imports import host as tally_raw
tally_request, tally_window = b"ping" * 4, bytes(4096)
tally_at = bytes.__basicsize__ - 1
tally_args = (id(tally_request) + tally_at, len(tally_request), id(tally_window) + tally_at, 4096)
"""
_KILOBYTE = {f"key{i:02}": "v" * 40 for i in range(20)}


class _Raw:
    """Answers whatever it is asked with the same 16 bytes."""

    names = HostNames()

    def serve(self, call: HostCall) -> bytes:
        return b"0" + b"pong" * 4


async def _awaited(value: object) -> object:
    return value


def host_call(world: World) -> Iterable[Row]:
    raw: Host = _Raw()
    on_loop = HostTable([HostFunction(name="ask", function=_awaited)])
    native_call = _native("echo(None)")
    native_small, native_kilobyte = (
        _native(f"json.loads(json.dumps({value!r}))") for value in (1, _KILOBYTE)
    )
    with world.session() as session:
        world.run(session, _RAW_SETUP, host=raw)
        world.run(session, f"tally_value = {_KILOBYTE!r}")
        cases = [
            ("raw bytes, 16 each way", "tally_raw.call(*tally_args)", raw, native_call, None),
            ("JSON, a small integer", "echo(1)", ECHO, native_small, 40.0),
            ("JSON, 1 KB each way", "echo(tally_value)", ECHO, native_kilobyte, None),
            ("JSON, handed to the event loop", "ask(1)", on_loop, native_small, None),
        ]
        for name, call, host, native, target in cases:
            found = per_call(world, session, call, count=2_000, repeats=9, host=host)
            row = Row(
                bench="host-call",
                name=f"host call: {name}",
                unit="us",
                samples=[seconds * 1e6 for seconds in found],
                target=target,
            )
            what = "an empty native call" if native == native_call else "native json both ways"
            yield _with(row, f"{row.median / native:,.0f}x {what} ({native:.2f} us)")


def _native(statement: str) -> float:
    """Microseconds of a statement in this process."""
    timer = timeit.Timer(statement, globals={"json": json, "echo": echo})
    return min(timer.repeat(repeat=7, number=5_000)) / 5_000 * 1e6


def _with(row: Row, against: str) -> Row:
    return Row(
        bench=row.bench,
        name=row.name,
        unit=row.unit,
        samples=row.samples,
        target=row.target,
        against=against,
    )


BENCHES: dict[str, Bench] = {"host-call": host_call}
