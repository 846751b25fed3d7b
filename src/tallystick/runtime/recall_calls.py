"""The calls of a recall program: charged, checked, done by the store, and what they gave kept."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from tallystick.core.errors import TallystickError, UsageError
from tallystick.memory.bundle import Tokenizer, assembled_answer
from tallystick.memory.code_mode import (
    FUEL_MAX,
    HOST_CALL_FUEL,
    Bundle,
    Cite,
    Host,
    InvalidProgram,
    Program,
    Recall,
    RecallHit,
    Score,
    bundle_of,
)
from tallystick.memory.program import check_program
from tallystick.sandbox.host import Blocking, HostFunction, HostTable
from tallystick.sandbox.port import HostCall, HostNames, ProgramCharge
from tallystick.sandbox.wasm.execution import Stopped

__all__ = ["Calls", "Failed", "Gathered"]

Result = TypeVar("Result")
# Of one hit in an assembled answer, beside its content: the dash, the blank and the newline.
_LINE_BYTES = 3
_ERROR_CHARS_MAX = 2_000
_LOOKED_THROUGH_CHARS_MAX = 50_000_000
_END_CHARS = 16


@dataclass(slots=True)
class Gathered:
    """What a program has so far.

    Calls add to it in threads of their own, one at a time; a bundle is made of copies, so that one
    that was left behind changes nothing.
    """

    bytes_max: int
    answer_bytes_max: int
    recalled: list[RecallHit] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    receipts: list[str] = field(default_factory=list)
    operations: int = 0
    bytes_held: int = 0
    answer_cut: bool = False

    def hold(self, *texts: str) -> None:
        """Make room for texts. Raises `Stopped` if there is none."""
        size = sum(map(_bytes, texts))
        if self.bytes_held + size > self.bytes_max:
            raise Stopped("memory", f"memory: over {self.bytes_max:,} bytes were recalled")
        self.bytes_held += size

    def bundle(self, answer: str | None, *, fuel_used: int, tokenizer: Tokenizer | None) -> Bundle:
        """Make the bundle of a program that answered this, or nothing.

        An answer that is too long is none, and an assembled one has the lines that fit; then
        `answer_cut` is set.
        """
        recalled = tuple(self.recalled)
        if answer is not None and _bytes(answer) > self.answer_bytes_max:
            answer, self.answer_cut = None, True
        if answer is None:
            final, count = _assembled(recalled, self.answer_bytes_max)
            whole = count == len(recalled)
            self.answer_cut = self.answer_cut or not whole
        else:
            final, whole = answer, False
        answered = bundle_of(
            (),
            operations=self.operations,
            fuel_used=fuel_used,
            answer=final,
            receipts=self.receipts,
            scores=dict(self.scores),
            tokenizer=tokenizer,
        )
        # Thousands of hits may stand in one long answer: the same text is looked for once, and in
        # an answer that is made of all of them, none.
        emitted = len(recalled) if whole else _emitted(recalled, final)
        return msgspec.structs.replace(
            answered, recalled=recalled, records_seen=len(recalled), records_emitted=emitted
        )


def _assembled(recalled: Sequence[RecallHit], bytes_max: int) -> tuple[str, int]:
    """The assembled answer of as many hits as fit, and how many those are."""
    size = -1
    for count, hit in enumerate(recalled):
        size += _bytes(hit.content) + _LINE_BYTES
        if size > bytes_max:
            return (assembled_answer(recalled[:count]) if count else ""), count
    return assembled_answer(recalled), len(recalled)


def _emitted(recalled: Sequence[RecallHit], text: str) -> int:
    """How many of the hits stand in a text with their whole content.

    One look through a long text takes a fraction of a millisecond, and there may be a hundred
    thousand contents. Those of which both ends stand nowhere in it are found without looking.
    """
    counted = Counter(hit.content for hit in recalled)
    looked_for = list(counted)
    if len(counted) * len(text) > _LOOKED_THROUGH_CHARS_MAX:
        parts = {text[at : at + _END_CHARS] for at in range(len(text) - _END_CHARS + 1)}
        looked_for = [
            each
            for each in counted
            if len(each) < _END_CHARS
            or (each[:_END_CHARS] in parts and each[-_END_CHARS:] in parts)
        ]
    return sum(counted[each] for each in looked_for if each in text)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A call that was refused or could not be done; `why` is what the program was told."""

    number: int
    operation: str
    why: str
    error: TallystickError


class Calls:
    """Serves the calls of one program. Used once."""

    def __init__(self, host: Host, gathered: Gathered, *, fuel: int, ends_at: float) -> None:
        self._host = host
        self._fuel = fuel
        self._ends_at = ends_at
        self._charged = 0
        self._end: BaseException | None = None
        self.gathered = gathered
        self.failed: Failed | None = None
        self._table = HostTable(
            [HostFunction(name=each.__name__, function=each) for each in self._functions()],
            answering=True,
        )

    @property
    def names(self) -> HostNames:
        return self._table.names

    def fuel_used(self, charge: ProgramCharge) -> int:
        """The fuel of a program and its calls, also of one that was charged and not done."""
        # A request that was too long to read never came here, and is a call all the same.
        self._charged = max(self._charged, charge.host_calls)
        self.gathered.operations = max(self.gathered.operations, charge.host_calls)
        return min(charge.fuel + self._charged * HOST_CALL_FUEL, FUEL_MAX)

    def serve(self, call: HostCall) -> bytes | Awaitable[bytes]:
        """Charge a call, and do it if there is fuel and time for it. Raises `Stopped` if not."""
        self._charged = call.index + 1
        if call.fuel + self._charged * HOST_CALL_FUEL > self._fuel:
            raise Stopped("fuel", f"fuel: all {self._fuel:,} units used")
        if time.monotonic() > self._ends_at:
            raise Stopped("deadline", "deadline: it passed before the call")
        self.gathered.operations = call.index + 1
        reply = self._table.serve(call)
        return Blocking(lambda: self._done(reply)) if isinstance(reply, Blocking) else reply

    def _done(self, work: Blocking) -> bytes:
        reply = work()
        # The table tells a program of every error; some are not for it to go on from.
        if self._end is not None:
            raise self._end
        return reply

    def _functions(self) -> tuple[Callable[..., object], ...]:
        """What the program can call, as it reads of it."""
        gathered = self.gathered

        def recall(query: str, k: int = 10) -> list[dict[str, object]]:
            """Recall the best notes for a query: a list of {"id", "content", "score"}, best first.

            `k` is from 1 to 100; a query has at most 10,000 characters.
            Example: for note in recall("when is tea?", 3): print(note["content"])
            """

            def work() -> list[dict[str, object]]:
                asked = _asked(Recall, query=query, k=k)
                given: list[dict[str, object]] = []
                for hit in self._host.recall(asked.query, asked.k):
                    gathered.hold(hit.id, hit.content)
                    gathered.recalled.append(hit)
                    given.append({"id": hit.id, "content": hit.content, "score": hit.score})
                return given

            return self._perform("recall", work)

        def score(id: str) -> float:
            """Say how well a note does, by its id.

            Example: score(notes[0]["id"])
            """

            def work() -> float:
                asked = _asked(Score, memory_id=id)
                gathered.scores[asked.memory_id] = given = self._host.score(asked.memory_id)
                return given

            return self._perform("score", work)

        def cite(id: str) -> str:
            """Get the receipt of a note that was recalled, by its id.

            Example: cite(notes[0]["id"])
            """

            def work() -> str:
                asked = _asked(Cite, memory_id=id)
                receipt = self._host.cite(asked.memory_id)
                gathered.hold(receipt)
                gathered.receipts.append(receipt)
                return receipt

            return self._perform("cite", work)

        functions: tuple[Callable[..., object], ...] = (recall, score, cite)
        for each in functions:
            # Wrong arguments are told of under this name.
            each.__qualname__ = each.__name__
        return functions

    def _perform(self, operation: str, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except TimeoutError:
            self._end = Stopped("deadline", f"deadline: {operation} gave up")
            raise
        except TallystickError as error:
            self.failed = Failed(
                number=self.gathered.operations,
                operation=operation,
                why=str(error)[:_ERROR_CHARS_MAX],
                error=error,
            )
            raise
        except Exception as error:
            # Room that there is not, or a fault of the store's: neither is the program's.
            self._end = error
            raise


Asked = TypeVar("Asked", Recall, Score, Cite)


def _asked(kind: type[Asked], **fields: object) -> Asked:
    """An operation of what a program gave. Raises `UsageError`, which says what it may be."""
    try:
        made = msgspec.convert({"op": kind.__name__.lower(), **fields}, type=kind)
        check_program(Program(operations=(made,)))
    except msgspec.ValidationError as error:
        raise UsageError(str(error)) from None
    except InvalidProgram as error:
        raise UsageError(error.why) from None
    return made
