"""The calls of one program: numbered, noted in the run, and closed when the program has ended.

A `Call` is handed along to whatever serves it: it says which program asks, and collects what is to
be noted with the answer. Once the scope is closed, what a function that was left behind still says
is not heard: the run has continued without it.
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
from tallystick.core.records import CallHost, HostAnswered, NetworkAttempted, RunProgram
from tallystick.core.views.open_calls import call_key
from tallystick.runtime.journal.journal import Journal
from tallystick.runtime.journal.writer import PendingWrite
from tallystick.sandbox.host import call_digest

# What each skill that was loaded allows.
Tools = tuple[tuple[str, ...], ...]


class Times:
    """When the time of a program is over, by the monotonic clock.

    `seconds` gives what the run has left then. Of a program that is run `again` from its record it
    is counted anew at the first call that is not on it.
    """

    def __init__(self, seconds: Callable[[], float], *, again: bool = False) -> None:
        self._seconds = seconds
        self._again = again
        self.ends_at = time.monotonic() + seconds()

    def begin_live_once(self) -> None:
        """Count anew, the first time: what is on the record took no time."""
        if self._again:
            self._again = False
            self.ends_at = time.monotonic() + self._seconds()


@dataclass(slots=True)
class Call:
    """One host call: who asks, and what serving it has touched.

    `name_outside` is the key under which its effects are known outside. `notes` are what is
    recorded with the answer, in order. A function that a script calls has a call of its own, with
    the same notes.
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
        """What programs printed before this one and is not shown any more."""
        return self.scope.outputs

    def inside(self, name_outside: str) -> Call:
        """Return a call that a script makes while it serves this one."""
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
    """The run that a program belongs to, as far as its calls have to know it."""

    @property
    def has_ended(self) -> bool: ...

    def next_number(self) -> int:
        """Take the number of the next call. Called in any thread."""
        ...


class CallScope:
    """The calls of one program of a run.

    `limits` are those that the program was begun with, whatever a continuation says since;
    `host_calls_left` is how many calls it may make, `tools` what the skills that were loaded
    allow, `outputs` what was printed before and is not shown any more. `failed` is what broke the
    record during a call from outside of the process, if something did. `left_open` is the call
    under way that was left when the program ended.
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
        host_calls_left: int = 0,
        outputs: tuple[Output, ...] = (),
    ) -> None:
        self.run = run
        self.program = program
        self.limits = limits
        self.times = times
        self.tools = tools
        self.host_calls_left = host_calls_left
        self.outputs = outputs
        self.failed: BaseException | None = None
        self.closed = False
        self.left_open: str | None = None
        self._journal = journal
        self._numbers = numbers
        self._guard = threading.Lock()
        self._open: dict[int, str] = {}
        # What was asked and not answered, of a program that is an effect.
        self._asked: dict[int, HostAnswered] = {}
        self._paid: set[Key] = set()

    def call(self, name: str, request: bytes, *, index: int) -> Call:
        """Give a call its number. Called in any thread."""
        intent, sha256 = self._numbers.next_number(), call_digest(request)
        if self.program.effect:
            self._asked[intent] = unanswered(self.program, intent, index, name, sha256)
        key = Key("host", intent)
        return Call(self, key, index, name, request, sha256, call_key(self.run, intent))

    def begun(self, call: Call, attempt: int) -> CallHost:
        """Return that an effect is about to begin, and count it as under way."""
        self._open[call.intent] = call.name
        return CallHost(
            intent=call.intent,
            program=self.program.intent,
            index=call.index,
            name=call.name,
            request_sha256=call.request_sha256,
            policy="effect",
            attempt=attempt,
        )

    def answered(self, answered: HostAnswered) -> PendingWrite:
        """Note what a call was answered. Of an effect that is to be committed before it is told."""
        with self._guard:
            known = self._asked.pop(answered.intent, None) is not None
            if self.closed or (self.program.effect and not known):
                return PendingWrite()
            if self._open.pop(answered.intent, None) is not None:
                return self._journal.submit(answered)
            self._journal.append(answered)
            return PendingWrite()

    def attempted(self, attempt: NetworkAttempted) -> None:
        """Note that the program tries to reach something. Waits until that is committed."""
        # The end of the run waits for it, and is not overtaken.
        with self._journal.lock:
            if self._numbers.has_ended:
                raise TallystickError("the run has ended")
            self._journal.write_here(attempt, forced=False)

    def opened(self, key: Key) -> None:
        """Note that a paid call is under way."""
        if key.kind == "query":
            self._paid.add(key)

    def settled(self, key: Key) -> None:
        """Note that it is not any more."""
        self._paid.discard(key)

    def leave(self) -> None:
        """Write that calls were not answered, of a program that is not run again to see it."""
        for call in [each for each in self._asked.values() if each.intent not in self._open]:
            self.answered(call)

    def close(self) -> None:
        """Write nothing more of the program: it has ended.

        An effect, or a paid call, that was begun and has no answer is in doubt from here on.
        """
        with self._guard:
            if self.closed:
                return
            self.closed = True
            left = next(iter(self._open.values()), None)
            self.left_open = left or ("llm_query" if self._paid else None)


def unanswered(
    program: RunProgram, intent: int, index: int, name: str, request_sha256: str
) -> HostAnswered:
    """Return what is recorded of a call that a native program did not wait for: no answer."""
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
