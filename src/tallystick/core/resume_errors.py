"""Why a run is not resumed, sorted as in `tallystick.core.errors`.

TallystickError
├── LeftInDoubt           what a program is told of an effect that is not made again
└── RunInDoubt            calls of the run were begun, and nobody knows what came of them
UsageError
└── ResumeRefused         a run that cannot be resumed
ReplayDiverged
└── ResumeDiverged        run again on its record, the run did something else
"""

from __future__ import annotations

from tallystick.core.charge import shown_usd
from tallystick.core.errors import Facts, ReplayDiverged, TallystickError, UsageError
from tallystick.core.views.open_calls import OpenIntent


class RunInDoubt(Facts, TallystickError):
    """Calls of a run were begun and nobody knows what came of them. Nothing was done.

    `open` has those of the runs inside it too.
    """

    code = "in_doubt"

    run: str
    open: tuple[OpenIntent, ...]

    def text(self) -> str:
        calls = "; ".join(_told(each) for each in self.open)
        return (
            f"run {self.run} was cut off while it waited for {calls}. Look whether it arrived, "
            f"then resume with --in-doubt retry (make it again, and accept that it may be paid "
            f"twice) or --in-doubt abandon (do without it)"
        )


class ResumeRefused(Facts, UsageError):
    """A run that cannot be gone on with, and why."""

    code = "usage.resume"
    says = "run {run} {why}"

    run: str
    why: str


class ResumeDiverged(ReplayDiverged):
    """Run again on its record, a run did something else. Nothing was written."""

    code = "replay.diverged"
    says = (
        "run {run} entry {seq}: {field} was {recorded!r} and is {now!r}; it cannot be gone on "
        "with here"
    )

    def __init__(self, *, run: str, seq: int, field: str, recorded: object, now: object) -> None:
        self.run = run
        self.seq = seq
        super().__init__(index=seq, field=field, recorded=recorded, now=now)


class LeftInDoubt(TallystickError):
    """What a program is told of an effect that may have happened and is not made again."""

    code = "in_doubt"
    told_as = "InDoubt"


def _told(each: OpenIntent) -> str:
    place = f"turn {each.turn}, intent {each.intent}"
    if each.run:
        place = f"run {each.run}, {place}"
    if each.kind == "effect":
        return f"{each.what} ({place})"
    cost = f", at most {shown_usd(each.usd)}" if each.usd is not None else ""
    many = f", {len(each.items)} calls" if len(each.items) > 1 else ""
    return f"{each.what} ({place}{many}{cost})"
