"""Number and record the host calls of one program, until the program has ended.

A `Call` is given to the function that serves it. It names the program, and collects the notes that
are recorded with the answer. Once the scope is closed, a function that still runs is ignored: the
run has continued without its answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tallystick.core.charge import RunLimits
from tallystick.core.errors import TallystickError
from tallystick.core.history import Key
from tallystick.core.machine.state import Output
from tallystick.core.records import (
    CallHost,
    HostAnswered,
    NetworkAttempted,
    RunProgram,
    SkillModel,
)
from tallystick.core.views.open_calls import call_key
from tallystick.runtime.calls.requests import KeptRequest
from tallystick.runtime.journal.journal import Journal
from tallystick.runtime.journal.writer import PendingWrite
from tallystick.sandbox.host import call_digest

# The names of functions that each loaded skill allows.
Tools = tuple[tuple[str, ...], ...]


class Times:
    """The end of the time of a program, by the monotonic clock.

    `seconds` returns the seconds that the run has left. If a program runs `again` on its record,
    its time starts anew at the first call that is not on record.
    """

    def __init__(self, seconds: Callable[[], float], *, again: bool = False) -> None:
        self._seconds = seconds
        self._again = again
        self.ends_at = time.monotonic() + seconds()

    def begin_live_once(self) -> None:
        """Start the time anew, once: repeating the record must not use up the time of the run."""
        if self._again:
            self._again = False
            self.ends_at = time.monotonic() + self._seconds()


@dataclass(slots=True)
class Call:
    """One host call of a program.

    `name_outside` is the key that an effect is known by outside, such as at a payment service.
    `notes` are recorded with the answer, in order. A call that a script of a skill makes is a
    `Call` of its own, which shares the notes.
    """

    scope: CallScope
    key: Key
    index: int
    name: str
    request: bytes
    request_sha256: str
    name_outside: str
    notes: list[msgspec.Struct] = field(default_factory=list)

    @property
    def intent(self) -> int:
        return self.key.intent

    @property
    def program(self) -> int:
        return self.scope.program.intent

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The output of earlier programs that has left the prompt."""
        return self.scope.outputs

    def inside(self, name_outside: str) -> Call:
        """Return a call that a script makes while this one is served.

        It has the same number on record, shares the notes, and is known outside by another key.
        """
        return Call(
            self.scope,
            self.key,
            self.index,
            self.name,
            self.request,
            self.request_sha256,
            name_outside,
            self.notes,
        )


class NumberedRun(Protocol):
    """The part of a run that its calls need: their numbers, and whether it has ended."""

    @property
    def has_ended(self) -> bool: ...

    def next_number(self) -> int:
        """Return the number of the next call. Called from any thread."""
        ...


class CallScope:
    """The calls of one program of a run.

    `limits` are those that the program started with, even if a resume has changed them since.
    `host_calls_left` is the number of calls that it may make, `tools` what loaded skills allow,
    `skill_model` the model that one of them names for model calls which name none. `outputs` is the
    earlier output that has left the prompt. `failed` is the error that broke the record during a
    call from a native program. `depth` is the number of runs above. `left_open` names a call that
    was in progress when the program ended.
    """

    def __init__(
        self,
        run: str,
        program: RunProgram,
        journal: Journal,
        numbers: NumberedRun,
        *,
        limits: RunLimits,
        times: Times,
        tools: Tools = (),
        skill_model: SkillModel | None = None,
        host_calls_left: int = 0,
        outputs: tuple[Output, ...] = (),
        depth: int = 0,
    ) -> None:
        self.run = run
        self.depth = depth
        self.program = program
        self.limits = limits
        self.times = times
        self.tools = tools
        self.skill_model = skill_model
        self.host_calls_left = host_calls_left
        self.outputs = outputs
        self.failed: BaseException | None = None
        self.closed = False
        self.left_open: str | None = None
        self._journal = journal
        self._numbers = numbers
        self._guard = threading.Lock()
        self._open: dict[int, str] = {}
        # Calls of a native program without an answer yet, by number.
        self._asked: dict[int, HostAnswered] = {}
        self._paid: set[Key] = set()

    def call(self, name: str, request: bytes, *, index: int) -> Call:
        """Return a new call with the next number. Called from any thread.

        `index` is its position among the calls of the program. A call of a native program is
        remembered until it is answered, for `leave`.
        """
        intent, sha256 = self._numbers.next_number(), call_digest(request)
        if self.program.effect:
            self._asked[intent] = no_answer(self.program, intent, index, name, sha256)
        key = Key("host", intent)
        return Call(self, key, index, name, request, sha256, call_key(self.run, intent))

    def begin_effect(self, call: Call, attempt: int, kept: KeptRequest) -> CallHost:
        """Return the beginning of an effect, with what it asks, and count it as in progress."""
        self._open[call.intent] = call.name
        return CallHost(
            intent=call.intent,
            program=self.program.intent,
            index=call.index,
            name=call.name,
            request_sha256=call.request_sha256,
            policy="effect",
            attempt=attempt,
            **kept,
        )

    def note_answer(self, answered: HostAnswered) -> PendingWrite:
        """Record an answer, and return its write. It may be deferred, except for an effect.

        Wait for the write before the program sees the answer of an effect. An answer is not
        recorded if the program has ended, or if `leave` has recorded the call.
        """
        with self._guard:
            known = self._asked.pop(answered.intent, None) is not None
            if self.closed or (self.program.effect and not known):
                return PendingWrite()
            if self._open.pop(answered.intent, None) is not None:
                return self._journal.submit(answered)
            # Any other call can be made again with the program, so it costs no transaction.
            self._journal.append(answered)
            return PendingWrite()

    def note_attempt(self, attempt: NetworkAttempted) -> None:
        """Record that a native program tries to reach a server. Wait until that is committed.

        Raise `TallystickError` if the run has ended.
        """
        # Under the lock, so that the end of the run cannot be written before the attempt.
        with self._journal.lock:
            if self._numbers.has_ended:
                raise TallystickError("the run has ended")
            self._journal.write_here(attempt, forced=False)

    def open_call(self, key: Key) -> None:
        """Count a paid call as in progress."""
        if key.kind == "query":
            self._paid.add(key)

    def close_call(self, key: Key) -> None:
        """Count a paid call as ended."""
        self._paid.discard(key)

    def leave(self) -> None:
        """Record the calls that a native program did not wait for: it cannot be run again.

        Effects in progress are left out: they stay in doubt.
        """
        for call in [each for each in self._asked.values() if each.intent not in self._open]:
            self.note_answer(call)

    def close(self) -> None:
        """Record nothing more of the program: it has ended.

        An effect or a paid call without an answer is in doubt from here on, and `left_open` names
        one. Closing twice does nothing.
        """
        with self._guard:
            if self.closed:
                return
            self.closed = True
            left = next(iter(self._open.values()), None)
            self.left_open = left or ("llm_query" if self._paid else None)


def no_answer(
    program: RunProgram, intent: int, index: int, name: str, request_sha256: str
) -> HostAnswered:
    """Return the record of a call that a native program did not wait for."""
    return HostAnswered(
        intent=intent,
        program=program.intent,
        index=index,
        name=name,
        request_sha256=request_sha256,
        fuel=0,
        reply=b"",
        ok=False,
    )
