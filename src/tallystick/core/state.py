"""Where a run stands: everything the machine knows of it, as one value."""

from __future__ import annotations

from enum import Enum

import msgspec

from tallystick.core.doubt import Doubt
from tallystick.core.kept import Output, Past
from tallystick.core.prompt import Message
from tallystick.core.records import Charge, ProgramFinished, RunEnded, RunStarted
from tallystick.core.reply import Command

__all__ = ["NativeState", "Phase", "RunState", "SkillState"]


class Phase(Enum):
    """Where a run stands."""

    ASKING = "asking"
    CHECKING = "checking"
    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"


class SkillState(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has done with skills.

    `used` says of each what was used. `tools` are the functions that each loaded skill allows;
    `tools_next` those of skills that this program loaded, `texts` their instructions and files,
    `found` the first of those that it searched for.
    """

    loaded: tuple[str, ...] = ()
    used: tuple[tuple[str, str], ...] = ()
    tools: tuple[tuple[str, ...], ...] = ()
    tools_next: tuple[tuple[str, ...], ...] = ()
    texts: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    found: str | None = None


class NativeState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a native interpreter: the names that programs made, as their sources say.

    `ran` says that it has run one at all, `note` is what the model is still to be told of it.
    """

    names: tuple[str, ...] = ()
    ran: bool = False
    note: str = ""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of a run. Equal ledgers give equal states.

    `passing` says that the last reply and what was said to it leave the prompt once there is a
    better one: a failed program is copied as readily as a good one. `read` says that a program
    has named the data, `unnamed` which values of the question none has, `asked_about` which doubts
    of an answer the model was told of, `doubted` the last such answer. `texts` are the data, as
    far as it was given whole; `outputs` what programs printed and was too long to be shown, or is
    not shown any more. `results` are what programs came to, and `past` the turns that left a prompt
    that was too long: both are there only for `compaction`.
    `told` is the share of the budget, in per cent, that the model was last told of; `excused` how
    many attempts of this turn came to nothing by no fault of the model; `unfit` how many answers
    did not fit the schema; `unchecked` how many programs in a row were refused by the vocabulary,
    and `held` is what waits for a person.
    """

    started: RunStarted
    texts: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()
    phase: Phase = Phase.ASKING
    turn: int = 0
    attempt: int = 1
    excused: int = 0
    next_intent: int = 1
    messages: tuple[Message, ...] = ()
    base: int | None = None
    base_length: int = 0
    sent: int = 0
    passing: bool = False
    read: bool = False
    unnamed: tuple[str, ...] = ()
    asked_about: tuple[Doubt, ...] = ()
    doubted: str | None = None
    queue: tuple[Command, ...] = ()
    part: int = 0
    observed: tuple[Message, ...] = ()
    charge: Charge = Charge()
    answer: str | None = None
    partial: str | None = None
    seen: tuple[str, ...] = ()
    repeats: int = 0
    idle: int = 0
    refusals: int = 0
    told: int = 0
    ended: RunEnded | None = None
    results: tuple[ProgramFinished, ...] = ()
    past: Past | None = None
    unfit: int = 0
    skills: SkillState = SkillState()
    passed: bool = False
    unchecked: int = 0
    held: tuple[Command, ...] = ()
    native: NativeState = NativeState()
