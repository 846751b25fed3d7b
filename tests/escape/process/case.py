"""What a hostile program for the process sandbox is: bash or Python, and what has to come of it.

A program that gets what it is after prints `ESCAPED`. What it prints otherwise says how it failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 1024 * 1024

# `call(number, ...)` makes a system call and gives its result, or the error as a negative number.
RAW = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *[
        ctypes.c_long(each) if isinstance(each, int) else each for each in arguments])
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]
def escaped_if(done):
    print('ESCAPED' if done else 'refused')
def tried(function, *arguments):
    try:
        return repr(function(*arguments))
    except (OSError, ValueError) as error:
        return type(error).__name__
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One hostile program and how it must end.

    `shows` are parts of what it prints, either stream. `lasts` says that it leaves processes or
    files behind that the session's end must do away with.
    """

    name: str
    text: str
    python: bool = False
    stops: tuple[str, ...] = ("finished",)
    shows: tuple[str, ...] = ()
    wall_ms: int = 5_000
    limits: dict[str, Any] = field(default_factory=dict)


def shell(name: str, text: str, *shows: str, **more: Any) -> Case:
    """A command of bash."""
    return Case(name=name, text=text, shows=shows, **more)


def python(name: str, text: str, *shows: str, **more: Any) -> Case:
    """A Python program that may make system calls by their numbers."""
    return Case(name=name, text=RAW + text, python=True, shows=shows, **more)
