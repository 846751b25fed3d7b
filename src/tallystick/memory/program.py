"""Recall programs as data: a list of operations, read from a file that a stranger may have written.

The file is JSON: `{"operations": [{"op": "recall", "query": "...", "k": 3}, ...]}`. There are three
operations: `recall` with `query` and `k`, `score` with `memory_id`, `cite` with `memory_id`. A
program says nothing of its own limits; whoever runs it does.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.json_text import read_json, shown

__all__ = [
    "K_MAX",
    "MEMORY_ID_CHARS_MAX",
    "OPERATIONS_MAX",
    "PROGRAM_BYTES_MAX",
    "QUERY_CHARS_MAX",
    "Cite",
    "InvalidProgram",
    "Operation",
    "Program",
    "Recall",
    "Score",
    "check_program",
    "read_program",
]

PROGRAM_BYTES_MAX = 1 << 20
# The default fuel pays for ten. This one bounds what reading a stranger's file takes.
OPERATIONS_MAX = 10_000
QUERY_CHARS_MAX = 10_000
MEMORY_ID_CHARS_MAX = 200
K_MAX = 100
_WHY_CHARS_MAX = 200


class InvalidProgram(UsageError):
    """A recall program that is none, and where. Nothing of it was run.

    `operation` counts from one; None where the whole is at fault.
    """

    code = "usage.recall_program"

    def __init__(self, *, why: str, operation: int | None = None) -> None:
        place = "" if operation is None else f", operation {operation}"
        super().__init__(f"recall program{place}: {why}")
        self.why = why
        self.operation = operation


class Recall(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="op",
    tag="recall",
):
    """Recall the best `k` notes for a query."""

    query: str
    k: int


class Score(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="op",
    tag="score",
):
    """Ask how well a note does."""

    memory_id: str


class Cite(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="op",
    tag="cite",
):
    """Ask for a receipt of a note."""

    memory_id: str


Operation = Recall | Score | Cite
_KINDS: dict[str, type[Recall] | type[Score] | type[Cite]] = {
    "recall": Recall,
    "score": Score,
    "cite": Cite,
}


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operations, done in order. One of none can be written down and is refused when it is run."""

    operations: tuple[Operation, ...]


def read_program(raw: bytes) -> Program:
    """Read a program. Raises `InvalidProgram`, whose one line says what is wrong and where."""
    if len(raw) > PROGRAM_BYTES_MAX:
        raise InvalidProgram(
            why=f"it has {len(raw):,} bytes; a program has at most {PROGRAM_BYTES_MAX:,}"
        )
    try:
        value = read_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidProgram(why=f"byte {error.start + 1:,} is not UTF-8") from None
    except ValueError as error:
        raise InvalidProgram(why=_line(str(error))) from None
    if not isinstance(value, dict) or not isinstance(value.get("operations"), list):
        raise InvalidProgram(why='it is not an object with a list named "operations"')
    others = sorted(set(value) - {"operations"})
    if others:
        raise InvalidProgram(why=f"unknown field {shown(others[0])}; there is only operations")
    listed = value["operations"]
    _check_count(len(listed))
    program = Program(
        operations=tuple(_operation(each, number) for number, each in enumerate(listed, 1))
    )
    check_program(program)
    return program


def check_program(program: Program) -> None:
    """Refuse a program with an operation that cannot be meant. One of none is left to the run."""
    _check_count(len(program.operations))
    for number, operation in enumerate(program.operations, 1):
        match operation:
            case Recall(query=query, k=k):
                why = _why_not_query(query) or _why_not_k(k)
            case Score(memory_id=memory_id) | Cite(memory_id=memory_id):
                why = _why_not_id(memory_id)
            case _:
                assert_never(operation)
        if why is not None:
            raise InvalidProgram(why=why, operation=number)


def _operation(given: object, number: int) -> Operation:
    kind = given.get("op") if isinstance(given, dict) else None
    if not isinstance(kind, str):
        raise InvalidProgram(why='it is not an object with an "op"', operation=number)
    if kind not in _KINDS:
        raise InvalidProgram(
            why=f"unknown operation {shown(kind)}; there are recall, score and cite",
            operation=number,
        )
    try:
        return msgspec.convert(given, type=_KINDS[kind])
    except msgspec.ValidationError as error:
        raise InvalidProgram(why=f"{kind}: {_line(str(error))}", operation=number) from None


def _check_count(count: int) -> None:
    if count > OPERATIONS_MAX:
        raise InvalidProgram(
            why=f"it has {count:,} operations; a program has at most {OPERATIONS_MAX:,}"
        )


def _why_not_query(query: str) -> str | None:
    if len(query) > QUERY_CHARS_MAX:
        return f"query has {len(query):,} characters; at most {QUERY_CHARS_MAX:,}"
    return _why_not_text("query", query)


def _why_not_k(k: int) -> str | None:
    if isinstance(k, bool) or not 1 <= k <= K_MAX:
        return f"k is {shown(k)}; it is a whole number from 1 to {K_MAX}"
    return None


def _why_not_id(memory_id: str) -> str | None:
    if len(memory_id) > MEMORY_ID_CHARS_MAX:
        return f"memory_id has {len(memory_id):,} characters; at most {MEMORY_ID_CHARS_MAX}"
    return _why_not_text("memory_id", memory_id)


def _why_not_text(field: str, text: str) -> str | None:
    if not text.strip():
        return f"{field} is blank"
    if any("\ud800" <= each <= "\udfff" for each in text):
        return f"{field} holds half of a character"
    return None


def _line(text: str) -> str:
    """A message on one line, cut: parts of it are a stranger's."""
    return " ".join(text.split())[:_WHY_CHARS_MAX]
