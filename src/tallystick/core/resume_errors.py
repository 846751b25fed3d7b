"""Why a run is not resumed."""

from __future__ import annotations

from tallystick.core.charge import shown_usd
from tallystick.core.errors import ReplayDiverged, TallystickError, UsageError
from tallystick.core.views.open_calls import OpenIntent


class RunInDoubt(TallystickError):
    """Calls of a run were begun and nobody knows what came of them. Nothing was done.

    `open` has those of the runs inside it too.
    """

    code = "in_doubt"

    def __init__(self, *, run: str, open: tuple[OpenIntent, ...]) -> None:
        calls = "; ".join(_told(each) for each in open)
        super().__init__(
            f"run {run} was cut off while it waited for {calls}. Look whether it arrived, then "
            f"resume with --in-doubt retry (make it again, and accept that it may be paid twice) "
            f"or --in-doubt abandon (do without it)"
        )
        self.run = run
        self.open = open


class ResumeRefused(UsageError):
    """A run that cannot be gone on with, and why."""

    code = "usage.resume"

    def __init__(self, *, run: str, why: str) -> None:
        super().__init__(f"run {run} {why}")
        self.run = run
        self.why = why


class ResumeDiverged(ReplayDiverged):
    """Run again on its record, a run did something else. Nothing was written."""

    code = "replay.diverged"

    def __init__(self, *, run: str, seq: int, field: str, recorded: object, now: object) -> None:
        super().__init__(index=seq, field=field, recorded=recorded, now=now)
        self.args = (
            f"run {run} entry {seq}: {field} was {recorded!r} and is {now!r}; it cannot be gone "
            f"on with here",
        )


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
