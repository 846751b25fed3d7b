"""What a hostile program is, as data: its text, its limits, and what has to come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024
# A tenth of a second of guest time: enough for any program here that ends by itself.
FUEL = 1_000_000_000

# `tried(f, *args)` says what a call gave or which error it raised.
TRIED = """
def tried(function, *args, **kwargs):
    try:
        return repr(function(*args, **kwargs))
    except Exception as error:
        return type(error).__name__
"""

# The raw imports, called with addresses of our own choosing.
RAW = """
from wit_world.imports import host
DATA = bytes.__basicsize__ - 1
def address(data):
    return id(data) + DATA
def ask(request, dst=0, cap=0):
    return host.call(address(request), len(request), dst, cap)
def say(stream, data):
    host.stdio(stream, address(data), len(data))
"""

# The globals of our own modules, found by walking back from the program's frame.
PRELUDE = """
import sys
cell = sys._getframe().f_back.f_globals
entry = sys._getframe().f_back.f_back.f_back.f_globals
wire, streams, threads = (cell[name].__dict__ for name in ("wire", "streams", "threads"))
"""

# A result made by hand, in place of the one our own code would have sent.
FORGED = (
    RAW
    + PRELUDE
    + """
def forge(data):
    entry["_emit"] = lambda result: say(3, data)
"""
)

BY_ITSELF = ("finished",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One hostile program and how it must end.

    `kinds` are the error kinds it may end with; empty means that it must end well. `ruins_itself`
    says that the program ends by itself after breaking its own interpreter: later programs of
    that session may then trap, and nothing else may happen. `anyhow` says that what the program
    meets depends on how its image happens to lie in memory, which differs from build to build: how
    it ends is then open, and only the harm it does is looked at.
    """

    name: str
    program: str
    stops: tuple[str, ...] = BY_ITSELF
    kinds: tuple[str, ...] = ()
    capability: str | None = None
    value: str | None = None
    shows: tuple[str, ...] = ()
    ruins_itself: bool = False
    anyhow: bool = False
    wall_ms: int = 3_000
    fuel: int = FUEL
    limits: Mapping[str, Any] = field(default_factory=dict)
    max_output_bytes: int = 65_536


def refused(name: str, program: str, capability: str) -> Case:
    """A program that touches what is absent and is told which capability that needs."""
    return Case(name=name, program=program, kinds=("SandboxViolation",), capability=capability)


def raises(name: str, program: str, *kinds: str) -> Case:
    """A program that ends by itself with an error."""
    return Case(name=name, program=program, kinds=kinds)


def gives(name: str, program: str, value: str) -> Case:
    """A program that ends well and has this value."""
    return Case(name=name, program=program, value=value)


def traps(name: str, program: str, *shows: str) -> Case:
    """A program that breaks its own interpreter."""
    return Case(
        name=name, program=program, stops=("trap",), kinds=("InterpreterTrap",), shows=shows
    )


def breaks_the_interface(name: str, program: str, *shows: str) -> Case:
    """A raw call that the host answers by ending the program."""
    return Case(
        name=name,
        program=RAW + program,
        stops=("trap",),
        kinds=("InterpreterTrap",),
        shows=("rules of the host interface", *shows),
    )


def runs_out(
    name: str,
    program: str,
    *,
    of: str,
    fuel: int = 300_000_000,
    wall_ms: int = 3_000,
    **limits: int,
) -> Case:
    """A program that a limit ends."""
    kind = {
        "fuel": "FuelExhausted",
        "memory": "MemoryExhausted",
        "wall": "WallExceeded",
        "output": "OutputExceeded",
        "host_calls": "HostCallsExhausted",
    }[of]
    return Case(
        name=name,
        program=program,
        stops=(of,),
        kinds=(kind,),
        fuel=fuel if of == "fuel" else 100_000_000_000,
        wall_ms=wall_ms,
        limits=limits,
    )
