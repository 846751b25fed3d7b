"""Decide whether a call of a program needs a person's word, and what was decided about it.

Rule 1: a decision is about one request, by its digest. Another request is not made with it.
Rule 2: only a call that is not on record is asked about. One that is, was decided about then.
Rule 3: a policy that fails refuses the call. It never lets one through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tallystick.core.errors import TallystickError, UsageError
from tallystick.core.history import History
from tallystick.core.records import CallDecided, RunResumed
from tallystick.runtime.calls.functions import Ask, RunFunction
from tallystick.runtime.runs.decided import Decided

_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_decode = msgspec.json.Decoder(tuple[str, list[Any], dict[str, Any]]).decode


def _nobody(sha256: str) -> Decided | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """The ways in which a run gets the word of a person.

    `decided` is what was decided before this execution of the run. `ask` is the caller's policy for
    every function. `look` returns what was decided meanwhile about the request of a call that waits
    inside.
    """

    decided: Decided | None = None
    ask: Ask | None = None
    look: Callable[[str], Decided | None] = _nobody


class Approvals:
    """The calls of one run that need a person, and the decisions about them."""

    def __init__(
        self, run: str, functions: Sequence[RunFunction], history: History, word: Word
    ) -> None:
        self._run = run
        self._asks: Mapping[str, Ask | bool] = {each.name: each.ask for each in functions}
        self._policy = word.ask
        self._decided = word.decided
        self._history = history
        self.look = word.look

    def asks(self, name: str, request: bytes) -> bool:
        """Return True if a call needs a person's word; False for a request that is no call.

        Raise `UsageError` if a policy fails.
        """
        own = self._asks.get(name, False)
        if own is True or (own is False and (self._policy is None or name not in self._asks)):
            return own is True
        try:
            _, args, kwargs = _decode(request)
        except _UNREADABLE:
            return False  # It is no call, and is answered with an error.
        policies = [each for each in (own, self._policy) if callable(each)]
        try:
            return any(policy(name, args, kwargs) for policy in policies)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:200]
            raise UsageError(
                f"{name}: the policy that says who is asked about it failed ({said}); it was not "
                "called"
            ) from error

    def decision_on(self, sha256: str, *, waited: bool) -> Decided | None:
        """Return what was decided about a request, None if nobody has decided.

        `waited` says that the call was on record as waiting before. Any other call, such as the
        same one made again, needs a word of its own, unless all calls were approved.
        """
        decided = self._decided
        if decided is not None and decided.approves_all:
            return decided
        if decided is not None and waited and decided.covers(self._run, sha256):
            return decided
        return all_approved(self._history)

    def note(self, decided: Decided) -> None:
        """Take in a decision of this execution, which may be about later calls too."""
        if decided.approves_all:
            self._decided = decided


def all_approved(history: History) -> Decided | None:
    """Return the recorded approval of all calls of a run, None if there is none."""
    for record in history.records:
        if not isinstance(record, CallDecided | RunResumed) or record.decision != "approve":
            continue
        every = record.all if isinstance(record, CallDecided) else record.decided_all
        if every is True:
            return Decided(decision="approve", by=record.by, all=True)
    return None


def script_refusal(function: RunFunction, request: bytes) -> TallystickError | None:
    """Return why a script of a skill may not make a call; None if it needs nobody's word.

    A script has no record of its own, so it cannot be gone on with after a decision.
    """
    approvals = Approvals("", [function], History(), Word())
    try:
        if not approvals.asks(function.name, request):
            return None
    except UsageError as error:
        return error
    return UsageError(
        f"{function.name} needs a person's word, which a script of a skill cannot wait for; call "
        "it from a program"
    )
