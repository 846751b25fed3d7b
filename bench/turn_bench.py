"""Runs: what a turn costs beside its program, what starting the command costs, what is stored.

Question: does the record cost at most 2 ms of processor time a turn, with the disk waited for?

Sketch before measuring. A turn is one forced and one committed append (0.5 ms), a prompt that is
rendered and hashed (0.1 ms), three records encoded and sealed (0.1 ms), and a few hops: about 1 ms.
Bytes per turn: a reply, a result and two intents, under 2 KB whatever the turn.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterable

import msgspec
from bench.measure import ECHO, Bench, Row, World

from tallystick.client import Session
from tallystick.core.chain import Sealed
from tallystick.core.charge import RunLimits
from tallystick.core.records import CallHost, Record, decode_record, encode_record
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.calls.functions import host_function

__all__ = ["BENCHES"]

_TURNS = 10
_ROUNDS = 15
_PROGRAMS = [f"rows = [i * {n} for i in range(500)]\nsum(rows)" for n in range(1, _TURNS)] + [
    "FINAL(sum(rows))"
]


def _alone(world: World) -> float:
    """Processor milliseconds a program, run in one session without a record."""
    with world.session() as session:
        world.run(session, "def FINAL(value): pass", host=ECHO)
        began = time.process_time()
        for program in _PROGRAMS:
            world.run(session, program, host=ECHO)
        return (time.process_time() - began) * 1000 / _TURNS


def _recorded(world: World, ledger: SqliteLedger) -> tuple[float, int]:
    """Processor milliseconds a turn of a scripted run, and the bytes its entries take."""
    replies = [ScriptedReply(text=f"```repl\n{program}\n```") for program in _PROGRAMS]
    model = ScriptedModel(replies)
    with Session(config=None, model=model, ledger=ledger, sandbox=world.sandbox) as session:
        session.ledger.runs()
        began = time.process_time()
        run = session.run("sum them", limits=RunLimits(turns=_TURNS))
        took = (time.process_time() - began) * 1000 / _TURNS
    if run.stop != "answered":
        raise RuntimeError(f"the run ended with {run.stop}: {run.detail}")
    stored = sum(len(each.header) + len(each.body or b"") for each in ledger.read(run.run))
    return took, stored


def turn(world: World) -> Iterable[Row]:
    ledger = SqliteLedger(world.directory / "ledger.db")
    _alone(world), _recorded(world, ledger)
    # In turn, so that a busy moment falls on both.
    pairs = [(_alone(world), _recorded(world, ledger)) for _ in range(_ROUNDS)]
    ledger.close()
    alone = sorted(pair[0] for pair in pairs)[_ROUNDS // 2]
    yield Row(
        bench="turn",
        name="processor time of a turn above its program, disk waited for",
        unit="ms",
        samples=[recorded - plain for plain, (recorded, _) in pairs],
        target=2.0,
        against=f"the program alone: {alone:.2f} ms",
    )
    yield Row(
        bench="turn",
        name="stored per turn",
        unit="bytes",
        samples=[stored / _TURNS for _, (_, stored) in pairs],
    )


@host_function()
def pay(invoice: str, amount: float) -> str:
    """Pay an invoice."""
    return invoice


def requested(world: World) -> Iterable[Row]:
    """Count what the recorded requests of effects add to the entries of a run."""
    program = "for n in range(10):\n    pay(f'INV-{n:03}', amount=12.5)\nFINAL('paid')"
    model = ScriptedModel([ScriptedReply(text=f"```repl\n{program}\n```")])
    with (
        SqliteLedger(world.directory / "requests.db") as ledger,
        Session(
            config=None, model=model, ledger=ledger, sandbox=world.sandbox, functions=[pay]
        ) as session,
    ):
        run = session.run("pay them").run
        entries = list(ledger.read(run))
    calls = [each for entry in entries if isinstance(each := decoded(entry), CallHost)]
    whole = [len(encode_record(each)) for each in calls]
    bare = [
        len(encode_record(msgspec.structs.replace(each, request=msgspec.UNSET))) for each in calls
    ]
    yield Row(
        bench="turn",
        name="stored for the request of an effect with two short arguments",
        unit="bytes",
        samples=[one - other for one, other in zip(whole, bare, strict=True)],
        against=f"its record without the request: {bare[0]:,} bytes",
    )


def decoded(entry: Sealed) -> Record | None:
    return None if entry.body is None else decode_record(entry.body)


def imported(world: World) -> Iterable[Row]:
    def seconds(module: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)

    floor = sorted(seconds("sys") for _ in range(9))[4]
    for module, target in (("tallystick.cli.main", 0.15), ("tallystick.cli.commands.run", None)):
        samples = [seconds(module) for _ in range(9)]
        yield Row(
            bench="import",
            name=f"import of {module}",
            unit="s",
            samples=samples,
            target=target,
            against=f"python itself: {floor:.3f} s",
        )


BENCHES: dict[str, Bench] = {"turn": turn, "request": requested, "import": imported}
