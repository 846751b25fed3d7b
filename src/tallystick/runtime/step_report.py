"""What a replay of steps found: how much ran again, and the first place where it was another."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tallystick.core.step_records import StepEntered, StepLeft, StepStatus
from tallystick.core.step_value import KeptValue

__all__ = ["StepDivergence", "StepsReport", "entered_otherwise", "left_otherwise", "shown"]

_SHOWN_CHARS_MAX = 200


class StepDivergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where steps did something else than they had done."""

    step: str
    run: str | None = None
    field: str
    recorded: object
    now: object


@dataclass(slots=True, kw_only=True)
class StepsReport:
    """What a replay of steps found, once it is over: how many ran again, and whether all was so."""

    chain: str
    steps: int = 0
    runs: int = 0
    divergence: StepDivergence | None = None

    @property
    def held(self) -> bool:
        return self.divergence is None

    def note(self, found: StepDivergence | None) -> None:
        """Keep the first one."""
        if found is not None and self.divergence is None:
            self.divergence = msgspec.structs.replace(
                found, recorded=shown(found.recorded), now=shown(found.now)
            )


def entered_otherwise(now: StepEntered, before: StepEntered | None) -> StepDivergence | None:
    """Whether a step is one that was not entered, or with other arguments."""
    if before is None:
        return StepDivergence(step=now.path, field="step", recorded=None, now=now.path)
    recorded, arguments = before.arguments_sha256, now.arguments_sha256
    if not recorded or recorded == arguments:
        return None
    return StepDivergence(step=now.path, field="arguments_sha256", recorded=recorded, now=arguments)


def left_otherwise(
    path: str, status: StepStatus, kept: KeptValue, before: StepLeft | None
) -> StepDivergence | None:
    """Whether a step came to something else than it had."""
    if before is None:
        return None
    pairs: list[tuple[str, object, object]] = [("status", before.receipt.status, status)]
    if before.value_kind:
        pairs.append(("value", before.value, kept.text))
    for field, recorded, now in pairs:
        if recorded != now:
            return StepDivergence(step=path, field=field, recorded=recorded, now=now)
    return None


def shown(value: object) -> object:
    """A value as people are shown it."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, str) and len(value) > _SHOWN_CHARS_MAX:
        return f"{value[:_SHOWN_CHARS_MAX]}..."
    return value
