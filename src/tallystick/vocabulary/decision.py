"""What follows from a verdict, as plain data that a run can record and replay.

| | valid | not valid, retries left | not valid, none left |
| --- | --- | --- | --- |
| permissive | Pass | Pass | Pass |
| normal | Pass | Retry | Warn |
| strict | Pass | Block | Escalate |

After `Pass` and `Warn` the program runs. After `Retry` and `Block` it does not: the model is told,
and writes another, which counts as a retry. `Escalate` waits for a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tallystick.vocabulary.result import Strictness, ValidationResult

__all__ = ["Block", "Decision", "Escalate", "Pass", "Retry", "Warn", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """It runs. `reason` is what there is to record, if anything."""

    reason: str = ""
    kind: Literal["pass"] = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """It does not run; the model is told how to write it, and later it would run with a warning."""

    feedback: str
    kind: Literal["retry"] = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """It runs, and the warning is told to the model and recorded."""

    feedback: str
    kind: Literal["warn"] = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """It does not run; the model is told why."""

    feedback: str
    kind: Literal["block"] = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalate:
    """It does not run unless a person says so."""

    feedback: str
    kind: Literal["escalate"] = "escalate"


Decision = Pass | Retry | Warn | Block | Escalate


def decide(
    result: ValidationResult, *, strictness: Strictness, retry_count: int, max_retries: int
) -> Decision:
    """What to do with a program: see the table above. Exactly `max_retries` retries are given."""
    if result.is_valid or strictness == "permissive":
        return Pass(reason=result.message)
    feedback = result.feedback()
    retries_left = retry_count < max_retries
    if strictness == "normal":
        return Retry(feedback=feedback) if retries_left else Warn(feedback=feedback)
    return Block(feedback=feedback) if retries_left else Escalate(feedback=feedback)
