"""Tell which of its two forms a recall program has, without the sandbox."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Literal

from tallystick.core.json_text import read_json
from tallystick.memory.code_mode.operations import PROGRAM_BYTES_MAX, InvalidProgram

PYTHON_BYTES_MAX = 1 << 16
_WHY_CHARS_MAX = 200

# Syntax that a newer Python accepts and an older one does not. This process may run an older one
# than the guest, and then the guest decides.
_NEWER_SYNTAX = re.compile(
    r"""\b[frt]{1,2}["']|^[ \t]*type[ \t]|\b(?:def|class)[ \t]+\w+[ \t]*\[|^[ \t]*except\b""",
    re.MULTILINE | re.IGNORECASE,
)


def form_of(raw: bytes) -> Literal["operations", "python"]:
    """Return which of the two forms a file has.

    Raise `InvalidProgram` if it has neither, is empty or not UTF-8, or is over 1 MiB; Python has at
    most 64 KiB.

    A JSON object is a list of operations; `read_program` checks that it can be run. Anything else
    is Python. Syntax that only a newer Python may know passes: the guest reports its fault when it
    runs.
    """
    if len(raw) > PROGRAM_BYTES_MAX:
        raise too_long(len(raw), PROGRAM_BYTES_MAX)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidProgram(why=f"byte {error.start + 1:,} is not UTF-8") from None
    if not text.strip():
        raise InvalidProgram(why="it is empty")
    why_no_json = ""
    if text.lstrip().startswith("{"):
        try:
            read_json(text)
        except ValueError as error:
            why_no_json = one_line(str(error))
        # JSON with a fault is JSON; `read_program` names the fault.
        if not why_no_json.startswith("no JSON"):
            return "operations"
    if len(raw) > PYTHON_BYTES_MAX:
        raise too_long(len(raw), PYTHON_BYTES_MAX)
    why_no_python = _why_not_python(text)
    if why_no_python is not None:
        raise InvalidProgram(why="; ".join(filter(None, (why_no_json, why_no_python))))
    return "python"


def too_long(size: int, most: int) -> InvalidProgram:
    """Return the error for a program of so many bytes."""
    return InvalidProgram(why=f"it has {size:,} bytes; a program has at most {most:,}")


def _why_not_python(text: str) -> str | None:
    try:
        # The parser warns of escapes such as `\d`, which are the program's own business.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        if _NEWER_SYNTAX.search(text) is None:
            place = "" if error.lineno is None else f"line {error.lineno}: "
            return one_line(f"no Python: {place}{error.msg}")
    except ValueError as error:
        return one_line(f"no Python: {error}")
    except (RecursionError, MemoryError):
        # The guest has another stack, and may accept it.
        pass
    return None


def one_line(text: str) -> str:
    """Return a message on one line, cut at 200 characters: it is from a stranger."""
    shown = "".join(each if each.isprintable() else " " for each in text[: 4 * _WHY_CHARS_MAX])
    return " ".join(shown.split())[:_WHY_CHARS_MAX]
