"""Define the errors of a run that is not resumed, in the families of `tallystick.core.errors`.

TallystickError
├── NeedsPerson           a call needs a person's word; the run ends as waiting
├── LeftInDoubt           shown to a program for an effect that is not repeated
└── RunInDoubt            calls of the run were begun, and their outcome is unknown
UsageError
├── FunctionsMissing      a run whose functions are not here
└── ResumeRefused         a run that cannot be resumed
ReplayDiverged
└── ResumeDiverged        run again on its record, the run did something else
"""

from __future__ import annotations

from tallystick.core.charge import shown_usd
from tallystick.core.errors import Facts, ReplayDiverged, TallystickError, UsageError
from tallystick.core.views.call_text import open_call_text
from tallystick.core.views.open_calls import OpenIntent

# How much of a call in doubt an error shows.
_CALL_CHARS_MAX = 200


class RunInDoubt(Facts, TallystickError):
    """Calls of a run were begun and their outcome is unknown. Nothing was done.

    `open` has those of the runs inside it too.
    """

    code = "in_doubt"

    run: str
    open: tuple[OpenIntent, ...]

    def text(self) -> str:
        calls = "; ".join(_call_text(each) for each in self.open)
        return (
            f"run {self.run} was interrupted while it waited for {calls}. The outcome is unknown, "
            f"and it may have been paid for. Check whether it happened, then: tally resume "
            f"{self.run} --in-doubt retry (repeats it; you may pay twice) or --in-doubt abandon "
            f"(never repeats it)"
        )


class NeedsPerson(TallystickError):
    """A call of a program needs a person's word. The run ends as waiting, until it is resumed."""

    code = "waiting"


class ResumeRefused(Facts, UsageError):
    """A run that cannot be resumed, and the reason."""

    code = "usage.resume"
    says = "run {run} {why}"

    run: str
    why: str


class FunctionsMissing(UsageError):
    """Programs of a recorded run may call functions that are not here."""

    code = "usage.functions"


class ResumeDiverged(ReplayDiverged):
    """A run that did something else when it ran again on its record. Nothing was written."""

    code = "replay.diverged"
    says = (
        "run {run} entry {seq}: {field} was {recorded!r} and is {now!r}; the run cannot be "
        "resumed here"
    )

    def __init__(self, *, run: str, seq: int, field: str, recorded: object, now: object) -> None:
        self.run = run
        self.seq = seq
        super().__init__(index=seq, field=field, recorded=recorded, now=now)


class LeftInDoubt(TallystickError):
    """Raised in a program for an effect that may have happened and is not repeated."""

    code = "in_doubt"
    told_as = "InDoubt"


def _call_text(each: OpenIntent) -> str:
    place = f"turn {each.turn}, intent {each.intent}"
    if each.run:
        place = f"run {each.run}, {place}"
    if each.kind == "effect":
        return f"{open_call_text(each)[:_CALL_CHARS_MAX]} ({place})"
    cost = f", at most {shown_usd(each.usd)}" if each.usd is not None else ""
    many = f", {len(each.items)} calls" if len(each.items) > 1 else ""
    return f"{each.what} ({place}{many}{cost})"
