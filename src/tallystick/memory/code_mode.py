"""Code-mode recall: a program of operations is run against a store, under a budget.

Each operation, before it is done: (1) it costs 1,000,000 fuel; (2) more fuel than the budget has
ends the program; (3) so does more time; (4) only then is it done. So fuel of ten million pays for
ten operations. Time is looked at once more after the last.

Rule 1: limits are strict: exactly at one is allowed. Zero of fuel or time lets nothing begin.
Rule 2: what ends a program carries what it had gathered until then, and the fuel it used.
Rule 3: no clock is read here but the one that is given.

A host call that takes too long is not cut off from here: it is the host's to stop, with a
`TimeoutError`, which counts as the end of the program's time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, assert_never

import msgspec

from tallystick.core.errors import InvalidLimit, TallystickError
from tallystick.memory.bundle import (
    NOTHING_RECALLED,
    Bundle,
    RecallHit,
    TokenCount,
    Tokenizer,
    bundle_of,
    estimated_tokens,
    first_difference,
)
from tallystick.memory.code_mode_errors import (
    CodeModeError,
    EmptyProgram,
    Halted,
    OperationFailed,
    SandboxViolation,
    WallTimeExceeded,
)
from tallystick.memory.program import (
    Cite,
    InvalidProgram,
    Operation,
    Program,
    Recall,
    Score,
    check_program,
    read_program,
)

__all__ = [
    "FUEL_MAX",
    "HOST_CALL_FUEL",
    "NOTHING_RECALLED",
    "PAGE_BYTES",
    "PYTHON_FORM",
    "Budget",
    "Bundle",
    "Cite",
    "CodeModeError",
    "EmptyProgram",
    "Halted",
    "Host",
    "InvalidProgram",
    "Operation",
    "OperationFailed",
    "Program",
    "Recall",
    "RecallHit",
    "SandboxViolation",
    "Score",
    "TokenCount",
    "Tokenizer",
    "WallTimeExceeded",
    "bundle_of",
    "charged",
    "code_mode_estimate",
    "first_difference",
    "json_mode_estimate",
    "read_program",
    "run",
]

HOST_CALL_FUEL = 1_000_000
PAGE_BYTES = 65_536
# Fuel is counted as the reference does, in 64 bits that stay at their end.
FUEL_MAX = (1 << 64) - 1
_PAGES_MAX = 65_536
_WALL_MS_MAX = 86_400_000

_JSON_ENVELOPE_TOKENS = 120
_JSON_RECORD_TOKENS = 12
_HOST_CALL_TOKENS = 4


def _check_limit(field: str, given: object, *, most: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= most:
        why = f"it is a whole number from 0 to {most:,}"
        raise InvalidLimit(field=field, given=given, why=why)


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program may use: fuel, pages of 64 KiB for what it gathers, and milliseconds."""

    fuel: int = 10_000_000
    mem_pages: int = 64
    wall_ms: int = 50

    def __post_init__(self) -> None:
        _check_limit("fuel", self.fuel, most=FUEL_MAX)
        _check_limit("mem_pages", self.mem_pages, most=_PAGES_MAX)
        _check_limit("wall_ms", self.wall_ms, most=_WALL_MS_MAX)


# A Python program in the sandbox: there, pages count above the interpreter's own.
PYTHON_FORM = Budget(fuel=1_000_000_000, mem_pages=1_024, wall_ms=2_000)


class Host(Protocol):
    """What a program can ask for, and all that it can."""

    def recall(self, query: str, k: int) -> Sequence[RecallHit]: ...

    def score(self, memory_id: str) -> float: ...

    def cite(self, memory_id: str) -> str: ...


@dataclass(slots=True)
class _Gathered:
    """What a program has so far."""

    tokenizer: Tokenizer | None
    recalled: list[RecallHit] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    receipts: list[str] = field(default_factory=list)
    operations: int = 0
    fuel_used: int = 0
    bytes_held: int = 0

    def bundle(self) -> Bundle:
        return bundle_of(
            self.recalled,
            operations=self.operations,
            fuel_used=self.fuel_used,
            receipts=self.receipts,
            scores=self.scores,
            tokenizer=self.tokenizer,
        )

    def hold(self, *texts: str, pages: int) -> None:
        """Make room for texts, or end the program."""
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if self.bytes_held + size > pages * PAGE_BYTES:
            raise SandboxViolation(
                capability=f"memory beyond {pages} pages",
                partial=self.bundle(),
                fuel_used=self.fuel_used,
            )
        self.bytes_held += size


def run(
    program: Program,
    host: Host,
    *,
    clock: Callable[[], float],
    budget: Budget | None = None,
    tokenizer: Tokenizer | None = None,
) -> Bundle:
    """Run a program to its end, or raise what ended it.

    `clock` gives milliseconds that only grow. A program of no operations is refused, and one that
    cannot be meant (`InvalidProgram`), before anything is charged or asked.
    """
    if not program.operations:
        raise EmptyProgram
    check_program(program)
    budget = Budget() if budget is None else budget
    started = clock()
    gathered = _Gathered(tokenizer=tokenizer)

    def out_of_time() -> WallTimeExceeded:
        partial = gathered.bundle()
        return WallTimeExceeded(
            budget=budget.wall_ms, partial=partial, fuel_used=gathered.fuel_used
        )

    for operation in program.operations:
        gathered.fuel_used = charged(gathered.fuel_used)
        if gathered.fuel_used > budget.fuel:
            raise Halted(
                budget=budget.fuel, partial=gathered.bundle(), fuel_used=gathered.fuel_used
            )
        # A clock may stand still for as long as the first operation takes to come; zero is zero.
        if budget.wall_ms == 0 or clock() - started > budget.wall_ms:
            raise out_of_time()
        gathered.operations += 1
        try:
            _perform(operation, host, gathered, pages=budget.mem_pages)
        except TimeoutError as error:
            raise out_of_time() from error
        except CodeModeError:
            raise
        except TallystickError as error:
            raise OperationFailed(
                number=gathered.operations,
                operation=_name(operation),
                why=str(error),
                partial=gathered.bundle(),
                fuel_used=gathered.fuel_used,
            ) from error
    if clock() - started > budget.wall_ms:
        raise out_of_time()
    return gathered.bundle()


def charged(fuel_used: int) -> int:
    """The fuel that is used after one more host call."""
    return min(fuel_used + HOST_CALL_FUEL, FUEL_MAX)


def _perform(operation: Operation, host: Host, gathered: _Gathered, *, pages: int) -> None:
    match operation:
        case Recall(query=query, k=k):
            for hit in host.recall(query, k):
                gathered.hold(hit.id, hit.content, pages=pages)
                gathered.recalled.append(hit)
        case Score(memory_id=memory_id):
            gathered.scores[memory_id] = host.score(memory_id)
        case Cite(memory_id=memory_id):
            receipt = host.cite(memory_id)
            gathered.hold(receipt, pages=pages)
            gathered.receipts.append(receipt)
        case _:
            assert_never(operation)


def _name(operation: Operation) -> str:
    return type(operation).__name__.lower()


# -- the reference's estimates ------------------------------------------------------------------
#
# For comparison only. Both charge the text of every record alike, so what they differ by is the
# envelope; what a program really saves is the records that never enter the context, and
# `tokens_table` counts that.


def json_mode_estimate(query: str, records: Sequence[str]) -> int:
    """What the reference says that a recall by JSON tool calling costs, in tokens."""
    return (
        _JSON_ENVELOPE_TOKENS
        + estimated_tokens(query)
        + sum(_JSON_RECORD_TOKENS + estimated_tokens(each) for each in records)
    )


def code_mode_estimate(query: str, records: Sequence[str], *, host_calls: int) -> int:
    """What the reference says that a recall by program costs, in tokens."""
    return (
        estimated_tokens(query)
        + _HOST_CALL_TOKENS * host_calls
        + sum(estimated_tokens(each) for each in records)
    )
