"""Where a run stands: everything the machine knows of it as one value, with what it kept aside.

Instructions that a program loads enter the prompt with its result, whole as far as there is room:
what a program prints is cut far shorter, and a model that forgets to print would never see them.
A run that a program begins is narrowed as that program is, from its start.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

import msgspec

from tallystick.core.charge import Charge
from tallystick.core.machine.commands import Command
from tallystick.core.machine.prompt import Message, cut
from tallystick.core.machine.suspect_answer import Doubt
from tallystick.core.records import (
    AttachmentRef,
    Event,
    HostAnswered,
    ProgramFinished,
    RunEnded,
    RunStarted,
    SkillLoaded,
    SkillMatched,
    SkillsGiven,
    SkillUsed,
    skill_files_text,
)

# What left the prompt of a run: texts that programs find in `outputs`, and turns.


class KeptText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the records have and the prompt has not. The same pieces may be in several."""

    label: str
    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.pieces)


# What programs find in `outputs`, by its place.
Output = AttachmentRef | KeptText


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The turns that left the prompt whole: how many, all of them as text, the names they made.

    `task` is the message they came after, as it was while they stood there.
    """

    task: Message
    turns: int = 0
    pieces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


# Where a run stands: everything the machine knows of it, as one value.


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
    and `held` is what waits for a person. `rebound` are the tools whose names the last one took.
    `said` is the last reply, as far as it is shown where a run has no answer; `words` the last one
    that answered in words and held nothing to run.
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
    rebound: tuple[str, ...] = ()
    said: str | None = None
    words: str | None = None


# What a run's machine knows of skills: which were loaded and used, and what that narrows.


# Of one text of instructions, and of all that one program loads.
TOLD_CHARS_MAX = 16_000
_ALL_CHARS_MAX = 2 * TOLD_CHARS_MAX + 1_000
# A shorter one may be told twice; taken out, it could stand for what is none of it.
_TWICE_CHARS_MAX = 40
_NAMED_MAX = 10
_JSON, _TEXT = b"0", b"2"
_FOLLOW = (
    "Do what these instructions say, step by step, with the data of the task, and write the next "
    "block."
)
_NOT_YET = """\
These are skills to choose from, and not the answer. Load the one that fits, for example:
```python
print({call})
```"""
_SEARCH = "skills.search"
_BELOW = "(the instructions are below)"
_TOO_MANY = "Loaded too, and not told here for want of room: {ids}. Load only the one that fits."


class Taught(NamedTuple):
    """What a program taught: its result as it is shown, what is told besides, and all in one.

    `lasts` says that there are instructions in it, which stay in the prompt.
    """

    shown: ProgramFinished
    notes: tuple[str, ...]
    whole: ProgramFinished
    lasts: bool


def at_start(state: RunState) -> RunState:
    """With the skills that the user put in front, and what those of its caller allow."""
    started = state.started
    put = () if started.skills is None else started.skills.put
    before = () if started.caller is None else started.caller.tools
    if not put and not before:
        return state
    own = tuple(each.allowed_tools for each in put if each.allowed_tools is not None)
    skills = SkillState(loaded=tuple(each.id for each in put), tools=(*before, *own))
    return msgspec.structs.replace(state, skills=skills)


def heard(state: RunState, event: Event) -> RunState:
    """After an answer, if it had to do with a skill."""
    if not isinstance(event, HostAnswered):
        return state
    skills = state.skills
    match event.skill:
        case SkillLoaded(id=id, allowed_tools=tools, files=files):
            text = _text_of(event)
            skills = msgspec.structs.replace(
                skills,
                loaded=(*skills.loaded, *(() if id in skills.loaded else (id,))),
                tools_next=skills.tools_next if tools is None else (*skills.tools_next, tools),
                texts=skills.texts if text is None else (*skills.texts, (id, text, files)),
            )
        case SkillUsed() as used:
            place = (used.id, used.said)
            if place not in skills.used:
                skills = msgspec.structs.replace(skills, used=(*skills.used, place))
        case None:
            found = _found_by(event) if event.name == _SEARCH else None
            if found is None:
                return state
            skills = msgspec.structs.replace(skills, found=skills.found or found)
    return msgspec.structs.replace(state, skills=skills)


def taught(state: RunState, event: ProgramFinished) -> Taught:
    """What a program printed, without instructions that it loaded; and those, to be told whole."""
    texts = tuple(dict.fromkeys(state.skills.texts))
    if not texts:
        found = state.skills.found
        hint = () if found is None else (_NOT_YET.format(call=f"skills.load({found!r})"),)
        return Taught(shown=event, notes=hint, whole=event, lasts=False)
    stdout, notes, left_out, room = event.stdout, [], [], _ALL_CHARS_MAX
    for id, text, files in texts:
        told = cut(text, TOLD_CHARS_MAX)
        if len(told) > room:
            left_out.append(id)
            continue
        room -= len(told)
        stdout = _without(stdout, text.strip("\n"))
        said = (f"Instructions of the skill {id!r}:\n{told}", skill_files_text(id, files))
        notes.append("\n".join(each for each in said if each))
    if left_out:
        ids = [repr(each) for each in dict.fromkeys(left_out)]
        more = f" and {len(ids) - _NAMED_MAX} more" if len(ids) > _NAMED_MAX else ""
        notes.append(_TOO_MANY.format(ids=", ".join(ids[:_NAMED_MAX]) + more))
    # Where this turn is shown in short, what it taught is kept with what it printed.
    together = "\n\n".join(each for each in (stdout.rstrip("\n"), *notes) if each)
    return Taught(
        shown=msgspec.structs.replace(event, stdout=stdout),
        notes=(*notes, _FOLLOW),
        whole=msgspec.structs.replace(event, stdout=together),
        lasts=True,
    )


def _without(stdout: str, text: str) -> str:
    """What was printed, with a text left out where it stands in lines of its own."""
    if len(text) <= _TWICE_CHARS_MAX or text not in stdout:
        return stdout
    return re.sub(rf"^{re.escape(text)}$", _BELOW, stdout, flags=re.MULTILINE)


def after_program(state: RunState) -> RunState:
    """What was loaded is told once, and narrows the programs that follow."""
    skills = state.skills
    if not skills.texts and not skills.tools_next and skills.found is None:
        return state
    skills = msgspec.structs.replace(
        skills, texts=(), found=None, tools=(*skills.tools, *skills.tools_next), tools_next=()
    )
    return msgspec.structs.replace(state, skills=skills)


def allows(tools: tuple[tuple[str, ...], ...], name: str) -> bool:
    """Whether every skill that was loaded allows a function.

    `*` is all of them, `namespace:mail` those of the group `mail`, any other the one of that name.
    """
    group = name.partition(".")[0] if "." in name else ""
    return all(
        "*" in each or name in each or (bool(group) and f"namespace:{group}" in each)
        for each in tools
    )


def _found_by(event: HostAnswered) -> str | None:
    """The first skill that a search gave."""
    if event.reply[:1] != _JSON:
        return None
    found = msgspec.json.decode(event.reply[1:])
    first = found[0] if isinstance(found, list) and found else None
    id = first.get("id") if isinstance(first, dict) else None
    return id if isinstance(id, str) else None


def _text_of(event: HostAnswered) -> str | None:
    """The instructions in an answer; of those that are kept apart, what is told of them."""
    if event.reply_ref is not None:
        return event.skill.told or None if isinstance(event.skill, SkillLoaded) else None
    tag, body = event.reply[:1], event.reply[1:]
    if tag == _TEXT:
        return body.decode("utf-8", "replace")
    if tag == _JSON:
        found = msgspec.json.decode(body)
        return found if isinstance(found, str) else None
    return None


def matched_record(given: SkillsGiven) -> SkillMatched:
    """What is written of the match, also where nothing fits."""
    return SkillMatched(strategy=given.strategy, candidates=given.candidates, matched=given.matched)
