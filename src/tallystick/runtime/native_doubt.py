"""A native program that was cut off: what it had under way is ended, and it with that.

It cannot be run again on its record. So its calls that nobody answered are settled, as far as they
may have been paid, and it has an end that says what was decided: it is begun once more, as another
program, or it is given up. Its files are those from before it in either case.
"""

from __future__ import annotations

from collections.abc import Callable

from tallystick.core.caps import charge_of
from tallystick.core.native import ABANDONED, RETRIED
from tallystick.core.passage_errors import LeftInDoubt
from tallystick.core.records import (
    DOUBTED,
    ChildBegun,
    ChildEnded,
    HostAnswered,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    RunProgram,
)
from tallystick.ledger.port import Ledger, find_row
from tallystick.runtime.doubts import Decision, Decisions
from tallystick.runtime.finished import cut_off
from tallystick.runtime.run_records import RunRecords
from tallystick.runtime.session_history import spent_so_far
from tallystick.runtime.settled_doubt import settled_doubt
from tallystick.runtime.teller import Teller, Terms
from tallystick.runtime.world import Asked
from tallystick.sandbox.host import error_reply

__all__ = ["CutOff"]

_RETRIED = "the process that ran it ended; it is begun once more, with the files from before it"
_ABANDONED = (
    "The program was left in the middle: the process that ran it ended, and how far it came is not "
    "known. The files, the shell's directory and its exported variables are as they were before it."
)
_LEFT = "its program was cut off"


class CutOff:
    """Ends native programs that were cut off, as was decided."""

    def __init__(
        self,
        records: RunRecords,
        decisions: Decisions,
        *,
        teller: Teller,
        terms_of: Callable[[str], Terms],
        ledger: Ledger,
    ) -> None:
        self._records = records
        self._decisions = decisions
        self._teller = teller
        self._terms_of = terms_of
        self._ledger = ledger

    def is_open(self, intent: RunProgram) -> bool:
        """Whether a program was begun, natively, and has no end."""
        known, ended = self._records.programs, self._records.finished
        return intent.effect and intent.intent in known and intent.intent not in ended

    def ended(self, intent: RunProgram, asked: Asked) -> ProgramFinished:
        """End a program whose recorded calls are noted by now."""
        ended = {
            (each.intent, each.item, each.attempt)
            for each in self._records.queries.get(intent.intent, ())
            if not isinstance(each, QueryAsked | ChildBegun)
        }
        for each in self._records.queries.get(intent.intent, ()):
            if (each.intent, each.item, each.attempt) in ended:
                continue
            if isinstance(each, QueryAsked):
                asked.queries.now(self._query(each))
            elif isinstance(each, ChildBegun):
                asked.queries.now(self._child(each))
        for call in self._records.unanswered.get(intent.intent, ()):
            asked.answered(
                HostAnswered(
                    intent=call.intent,
                    program=call.program,
                    index=call.index,
                    name=call.name,
                    request_sha256=call.request_sha256,
                    fuel=0,
                    reply=error_reply(LeftInDoubt(f"{call.name}: {_LEFT}")),
                    ok=False,
                )
            )
        calls = len(self._records.answers.get(intent.intent, ()))
        again = self._decisions.effects[intent.intent] is not Decision.ABANDON
        stop, why = (RETRIED, _RETRIED) if again else (ABANDONED, _ABANDONED)
        return cut_off(intent, stop, why, host_calls=calls)

    def _query(self, asked: QueryAsked) -> QueryFailed:
        found = self._decisions.paid[asked.intent, asked.item]
        settled, failure = settled_doubt(
            self._teller, self._terms_of(asked.model), asked.reserved, found
        )
        return QueryFailed(
            intent=asked.intent,
            item=asked.item,
            attempt=asked.attempt,
            reason=DOUBTED,
            message=failure or _LEFT,
            settled=settled,
            kind="terminal",
            billed=found is not Decision.AGAIN,
        )

    def _child(self, begun: ChildBegun) -> ChildEnded:
        row = find_row(self._ledger, begun.run)
        ended = ChildEnded(
            intent=begun.intent,
            item=begun.item,
            run=begun.run,
            stop="cancelled",
            detail=_LEFT,
            answer="",
            partial=False,
            charge=spent_so_far(self._ledger, begun.run),
            count=0 if row is None else row.head.count,
            hash="" if row is None else row.head.hash,
            attempt=begun.attempt,
        )
        self._teller.recalled("", charge_of(ended))
        return ended
