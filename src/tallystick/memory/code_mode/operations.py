"""Recall programs as lists of operations: read one from JSON, run it, and bundle the result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Literal, Protocol, TypeVar, assert_never, cast

import msgspec

from tallystick.core.errors import Facts, InvalidLimit, Refused, TallystickError, UsageError
from tallystick.core.json_text import canonical, read_json, short_json

# The bundle of a recall program: hits, scores, receipts, the answer, and the cost.
#
# The declarative form and the Python form have the same bundle. It is data that can be stored, so
# that an auditor can run the program again and compare (`first_difference`).


NOTHING_RECALLED = "(no relevant memories)"
_BYTES_PER_TOKEN = 4
_TOKENS_PER_OPERATION = 4


class Tokenizer(Protocol):
    """A tokenizer that says its name: a count without one means nothing."""

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """A number of tokens, with the name of the tokenizer that counted them."""

    tokens: int
    tokenizer: str


class RecallHit(msgspec.Struct, frozen=True, kw_only=True):
    """One note as a recall gave it."""

    id: str
    content: str
    score: float


class Bundle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a recall program: its hits, in order and with repeats, and its answer.

    `guest_token_cost` is the reference's estimate, from bytes, and is kept to compare with others
    that give it; `answer_tokens` is a count. `receipts` are what `cite` gave, `scores` the last
    that `score` gave for each note. `records_seen` counts the hits that the host gave.
    `records_emitted` counts those of them whose whole text is in the answer.
    """

    recalled: tuple[RecallHit, ...]
    final_answer: str
    guest_token_cost: int
    guest_token_cost_by: Literal["estimated_reference"] = "estimated_reference"
    answer_tokens: TokenCount | None = None
    receipts: tuple[str, ...] = ()
    scores: dict[str, float] = msgspec.field(default_factory=dict)
    fuel_used: int = 0
    records_seen: int = 0
    records_emitted: int = 0

    def best_first(self) -> tuple[RecallHit, ...]:
        """Return each recalled note once, the best first, by its last `score` if it was asked for.

        Equal scores keep the order in which the notes first came.
        """
        first = {hit.id: hit for hit in reversed(self.recalled)}
        in_order = [first[id] for id in dict.fromkeys(hit.id for hit in self.recalled)]
        return tuple(sorted(in_order, key=lambda hit: -self.scores.get(hit.id, hit.score)))


def bundle_of(
    recalled: Sequence[RecallHit],
    *,
    operations: int,
    fuel_used: int,
    answer: str | None = None,
    receipts: Sequence[str] = (),
    scores: dict[str, float] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Bundle:
    """Make the bundle of a program that ran `operations` host calls.

    A program that gave no answer gets the assembled one. Without a tokenizer, the tokens of the
    answer are not counted.
    """
    final = assembled_answer(recalled) if answer is None else answer
    counted = None
    if tokenizer is not None:
        counted = TokenCount(tokens=tokenizer.count(final), tokenizer=tokenizer.name)
    return Bundle(
        recalled=tuple(recalled),
        final_answer=final,
        guest_token_cost=estimated_tokens(final) + _TOKENS_PER_OPERATION * operations,
        answer_tokens=counted,
        receipts=tuple(receipts),
        scores=dict(scores or {}),
        fuel_used=fuel_used,
        records_seen=len(recalled),
        records_emitted=emitted(recalled, final),
    )


def assembled_answer(recalled: Sequence[RecallHit]) -> str:
    """Return `- ` and the content of each hit, in order; without hits, a line that says so."""
    return "\n".join(f"- {hit.content}" for hit in recalled) or NOTHING_RECALLED


def emitted(recalled: Sequence[RecallHit], text: str) -> int:
    """Return how many of the hits are in a text with their whole content; repeats count again."""
    return sum(hit.content in text for hit in recalled)


def estimated_tokens(text: str) -> int:
    """Return the reference's estimate of a text: one token for each four bytes, rounded up."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def first_difference(recorded: Bundle, now: Bundle) -> str | None:
    """Return the first difference between two runs of one program, or None if there is none.

    They are compared as bytes, so that a score of another spelling is another score.
    """
    for place, (was, is_) in enumerate(zip(recorded.recalled, now.recalled, strict=False), 1):
        if canonical(was) != canonical(is_):
            return f"hit {place} was {was.id} ({was.score!r}) and is {is_.id} ({is_.score!r})"
    if len(recorded.recalled) != len(now.recalled):
        return f"{len(recorded.recalled):,} hits were recalled and {len(now.recalled):,} are"
    for name in Bundle.__struct_fields__:
        if canonical(getattr(recorded, name)) != canonical(getattr(now, name)):
            return f"{name} differs"
    return None


# Recall programs as data: a list of operations, read from a file that a stranger may have written.
#
# The file is JSON: `{"operations": [{"op": "recall", "query": "...", "k": 3}, ...]}`. There are
# three operations: `recall` with `query` and `k`, `score` with `memory_id`, `cite` with
# `memory_id`. A program cannot set its own limits; the caller who runs it does.


PROGRAM_BYTES_MAX = 1 << 20
# The default fuel pays for ten operations. This limit is for reading a stranger's file.
OPERATIONS_MAX = 10_000
QUERY_CHARS_MAX = 10_000
MEMORY_ID_CHARS_MAX = 200
K_MAX = 100
_WHY_CHARS_MAX = 200


class InvalidProgram(Facts, UsageError):
    """The recall program is not one, or cannot be run. Nothing of it was run.

    `operation` counts from one; None if the whole is at fault.
    """

    code = "usage.recall_program"

    why: str
    operation: int | None = None

    def text(self) -> str:
        place = "" if self.operation is None else f", operation {self.operation}"
        return f"recall program{place}: {self.why}"


class Recall(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="op",
    tag="recall",
):
    """Recall the best `k` notes for a query. With a `k` of 0, only its receipt is made."""

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
    """Ask for the score of a note."""

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
    """A list of operations, done in order.

    An empty one can be read, and is refused when it is run.
    """

    operations: tuple[Operation, ...]


def read_program(raw: bytes) -> Program:
    """Read a program; an empty list passes.

    Raise `InvalidProgram`, whose one line says what is wrong and where. A program has at most 1 MiB
    and 10,000 operations, is such JSON, and has only operations that are allowed.
    """
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
        raise InvalidProgram(why=f"unknown field {short_json(others[0])}; there is only operations")
    listed = value["operations"]
    _check_count(len(listed))
    program = Program(
        operations=tuple(_operation(each, number) for number, each in enumerate(listed, 1))
    )
    check_program(program)
    return program


def check_program(program: Program) -> None:
    """Raise `InvalidProgram` for an operation that is not allowed, or more than 10,000 of them.

    An empty program passes: running it raises `EmptyProgram`.
    """
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
            why=f"unknown operation {short_json(kind)}; there are recall, score and cite",
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
    if isinstance(k, bool) or not 0 <= k <= K_MAX:
        return f"k is {short_json(k)}; it is a whole number from 0 to {K_MAX}"
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
    """Return a message on one line, cut at 200 characters: parts of it are from a stranger."""
    return " ".join(text.split())[:_WHY_CHARS_MAX]


# Errors that end a recall program, sorted as in `tallystick.core.errors`.
#
#     UsageError
#     └── InvalidProgram        it is not a program, and nothing of it was run
#     Refused
#     └── CodeModeError         a recall program ended early
#         ├── EmptyProgram          it has no operation
#         ├── Halted                it used more fuel than it had
#         ├── OperationFailed       the store refused an operation, or could not do it
#         ├── SandboxViolation      it used something that the sandbox does not have
#         └── WallTimeExceeded      it used more time than it had
#
# `partial` is what the program had gathered and `fuel_used` what it had used; a program that never
# began has neither.


_MS_PER_SECOND = 1_000


class CodeModeError(Facts, Refused):
    """A recall program ended before its end."""

    code = "refused.code_mode"

    partial: Bundle | None = None
    fuel_used: int = 0


class EmptyProgram(CodeModeError):
    """The program has no operations. Nothing was charged."""

    code = "refused.code_mode.empty"
    says = "guest emitted no recall steps — refusing an empty bundle"


class Halted(CodeModeError):
    """The program would have used more fuel than it had. No operation beyond that was started."""

    code = "refused.code_mode.fuel"
    says = "guest fuel exhausted ({budget} units consumed)"

    budget: int


class WallTimeExceeded(CodeModeError):
    """The program used more time than `budget`, in milliseconds."""

    code = "refused.code_mode.wall"

    budget: int

    def text(self) -> str:
        return f"guest exceeded wall-time budget {_duration(self.budget)}"


class SandboxViolation(CodeModeError):
    """The program used something that the sandbox does not have."""

    code = "refused.code_mode.sandbox"
    says = "guest tried to access {capability} which is stripped from the sandbox"

    capability: str


class OperationFailed(CodeModeError):
    """The store refused an operation, or could not do it. The cause has the original error."""

    code = "refused.code_mode.operation"
    says = "operation {number} ({operation}): {why}"

    number: int
    operation: str
    why: str


def _duration(ms: int) -> str:
    """Format milliseconds as the reference spells a duration: `0ns`, `50ms`, `2s`, `1.5s`."""
    if ms == 0:
        return "0ns"
    if ms < _MS_PER_SECOND:
        return f"{ms}ms"
    seconds, rest = divmod(ms, _MS_PER_SECOND)
    return f"{seconds}{f'.{rest:03}'.rstrip('0') if rest else ''}s"


# Running a list of operations against a store, under a budget.
#
# Before each operation: (1) it is charged 1,000,000 fuel; (2) if that is more than the budget has,
# the program ends; (3) the same for time; (4) only then it is done. So ten million fuel pay for ten
# operations. Time is checked once more after the last one.
#
# Rule 1: limits are strict: exactly at one is allowed. With no fuel or no time, nothing begins.
# Rule 2: an error that ends a program has what was gathered until then, and the fuel used.
# Rule 3: no clock but the one that is passed in says what time is used up.
#
# A call of the host is made in another thread, and is left there when the time is over: it cannot
# be ended from outside, and what it may still give is not used. A host may also end a call itself,
# with a `TimeoutError`; that counts as the end of the program's time.


HOST_CALL_FUEL = 1_000_000
PAGE_BYTES = 65_536
# Fuel is counted as the reference does, in 64 bits, and stops at their maximum.
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
    """The limits of a program: fuel, pages of 64 KiB for what it gathers, and milliseconds.

    Raise `InvalidLimit` if one is not a whole number in its range.
    """

    fuel: int = 10_000_000
    mem_pages: int = 64
    wall_ms: int = 50

    def __post_init__(self) -> None:
        _check_limit("fuel", self.fuel, most=FUEL_MAX)
        _check_limit("mem_pages", self.mem_pages, most=_PAGES_MAX)
        _check_limit("wall_ms", self.wall_ms, most=_WALL_MS_MAX)


# For a Python program in the sandbox: its pages count above the interpreter's own.
PYTHON_FORM = Budget(fuel=1_000_000_000, mem_pages=1_024, wall_ms=2_000)


class Host(Protocol):
    """The operations that a program can call, and there are no others.

    A `TallystickError` refuses one operation; a `TimeoutError` ends the program as out of time.
    """

    def recall(self, query: str, k: int) -> Sequence[RecallHit]: ...

    def score(self, memory_id: str) -> float: ...

    def cite(self, memory_id: str) -> str: ...


@dataclass(slots=True)
class _Gathered:
    """The data that a program has gathered so far."""

    tokenizer: Tokenizer | None
    recalled: list[RecallHit] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    receipts: list[str] = field(default_factory=list)
    operations: int = 0
    fuel_used: int = 0
    bytes_held: int = 0

    def bundle(self) -> Bundle:
        """Return the bundle of what was gathered."""
        return bundle_of(
            self.recalled,
            operations=self.operations,
            fuel_used=self.fuel_used,
            receipts=self.receipts,
            scores=self.scores,
            tokenizer=self.tokenizer,
        )

    def hold(self, *texts: str, pages: int) -> None:
        """Count the bytes of texts.

        Raise `SandboxViolation`, and count none, if they do not fit into `pages` pages.
        """
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if self.bytes_held + size > pages * PAGE_BYTES:
            raise SandboxViolation(
                capability=f"memory beyond {pages} pages",
                partial=self.bundle(),
                fuel_used=self.fuel_used,
            )
        self.bytes_held += size


# The least time between two looks at the clock that was passed in.
_LOOK_AGAIN_SECONDS = 0.005
_Result = TypeVar("_Result")


class _CallThread:
    """A thread that makes the calls of one program, one at a time. It begins with the first."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._given: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        self._begun = False

    def call(
        self, work: Callable[[], _Result], *, seconds: float, over: Callable[[], bool]
    ) -> _Result:
        """Return the result of `work`, or raise its error.

        Raise `TimeoutError` if it is not there after `seconds` and `over` says that it is too late.
        `over` is called then, and every 5 ms after that. The call goes on, and the thread must not
        be asked again.
        """
        if not self._begun:
            self._begun = True
            # A daemon: a call that was left must not keep the process from ending.
            threading.Thread(target=self._work, name="recall program", daemon=True).start()
        self._asked.put(work)
        while True:
            try:
                given, error = self._given.get(timeout=max(seconds, _LOOK_AGAIN_SECONDS))
            except Empty:
                if over():
                    raise TimeoutError from None
                seconds = 0.0
                continue
            if error is not None:
                raise error
            return cast("_Result", given)

    def end(self) -> None:
        """End the thread, after the call that it is in."""
        self._asked.put(None)

    def _work(self) -> None:
        while (work := self._asked.get()) is not None:
            try:
                self._given.put((work(), None))
            except BaseException as error:
                self._given.put((None, error))


def run(
    program: Program,
    host: Host,
    *,
    clock: Callable[[], float],
    budget: Budget | None = None,
    tokenizer: Tokenizer | None = None,
) -> Bundle:
    """Run a program to its end, and return its bundle.

    Raise a `CodeModeError` if it ends early: `Halted`, `WallTimeExceeded`, `SandboxViolation` if
    there is no room for what it gathers, or `OperationFailed`.

    `tokenizer` counts the answer, if it is given. `clock` gives milliseconds that only grow; it is
    called at the start, before each operation, at the end, and when a call seems to have exceeded
    the time. `host` is called in another thread, one call at a time. A call that exceeded the time
    may still be running there afterwards.

    An empty program (`EmptyProgram`) and one with an operation that is not allowed
    (`InvalidProgram`) are refused before anything is charged or asked. `OperationFailed` has an
    error of the host as its cause; one that is not ours is passed on as it is.
    """
    if not program.operations:
        raise EmptyProgram
    check_program(program)
    budget = Budget() if budget is None else budget
    gathered = _Gathered(tokenizer=tokenizer)
    calls = _CallThread()
    try:
        _perform_all(program, host, gathered, budget, clock, calls)
    finally:
        calls.end()
    return gathered.bundle()


def _perform_all(
    program: Program,
    host: Host,
    gathered: _Gathered,
    budget: Budget,
    clock: Callable[[], float],
    calls: _CallThread,
) -> None:
    started = clock()

    def out_of_time() -> WallTimeExceeded:
        had = gathered.bundle()
        return WallTimeExceeded(budget=budget.wall_ms, partial=had, fuel_used=gathered.fuel_used)

    def over() -> bool:
        return clock() - started > budget.wall_ms

    for operation in program.operations:
        gathered.fuel_used = charge_call(gathered.fuel_used)
        if gathered.fuel_used > budget.fuel:
            raise Halted(
                budget=budget.fuel, partial=gathered.bundle(), fuel_used=gathered.fuel_used
            )
        # The clock may not have moved yet when the first operation comes; zero time still means
        # none.
        left_ms = budget.wall_ms - (clock() - started) if budget.wall_ms else -1.0
        if left_ms < 0:
            raise out_of_time()
        gathered.operations += 1
        try:
            # Only this thread gathers: a call that was left changes nothing.
            given = calls.call(
                partial(_ask, operation, host), seconds=left_ms / _MS_PER_SECOND, over=over
            )
            _gather(operation, given, gathered, pages=budget.mem_pages)
        except TimeoutError as error:
            raise out_of_time() from error
        except CodeModeError:
            # Our own end, such as no room for a hit; it is no failure of the operation.
            raise
        except TallystickError as error:
            raise OperationFailed(
                number=gathered.operations,
                operation=_name(operation),
                why=str(error),
                partial=gathered.bundle(),
                fuel_used=gathered.fuel_used,
            ) from error
    if over():
        raise out_of_time()


def charge_call(fuel_used: int) -> int:
    """Return the fuel that is used after one more host call, at most `FUEL_MAX`."""
    return min(fuel_used + HOST_CALL_FUEL, FUEL_MAX)


def _ask(operation: Operation, host: Host) -> list[RecallHit] | float | str:
    match operation:
        case Recall(query=query, k=k):
            return list(host.recall(query, k))
        case Score(memory_id=memory_id):
            return host.score(memory_id)
        case Cite(memory_id=memory_id):
            return host.cite(memory_id)
        case _:
            assert_never(operation)


def _gather(operation: Operation, given: object, gathered: _Gathered, *, pages: int) -> None:
    match operation:
        case Recall():
            for hit in cast("list[RecallHit]", given):
                gathered.hold(hit.id, hit.content, pages=pages)
                gathered.recalled.append(hit)
        case Score(memory_id=memory_id):
            gathered.scores[memory_id] = cast("float", given)
        case Cite():
            receipt = cast("str", given)
            gathered.hold(receipt, pages=pages)
            gathered.receipts.append(receipt)
        case _:
            assert_never(operation)


def _name(operation: Operation) -> str:
    return type(operation).__name__.lower()


# -- the reference's estimates ------------------------------------------------------------------
#


def json_mode_estimate(query: str, records: Sequence[str]) -> int:
    """Return the reference's estimate of a recall by JSON tool calling, in tokens."""
    return (
        _JSON_ENVELOPE_TOKENS
        + estimated_tokens(query)
        + sum(_JSON_RECORD_TOKENS + estimated_tokens(each) for each in records)
    )


def code_mode_estimate(query: str, records: Sequence[str], *, host_calls: int) -> int:
    """Return the reference's estimate of a recall by program, in tokens."""
    return (
        estimated_tokens(query)
        + _HOST_CALL_TOKENS * host_calls
        + sum(estimated_tokens(each) for each in records)
    )
