"""Define the state of a run, as one value, and what skills change of it.

Instructions that a program loads enter the prompt with its result, whole as far as there is room.
The output of a program is cut far shorter, and a model that forgets to print would never see them.
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
    SkillModel,
    SkillsGiven,
    SkillUsed,
    skill_files_text,
)

# Parts that have left the prompt of a run: texts that programs find in `outputs`, and turns.


class KeptText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the records have and the prompt has not. The same pieces may be in several."""

    label: str
    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)


# An item of `outputs`, which programs find by its place.
Output = AttachmentRef | KeptText


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The turns that left the prompt: their number, all of them as text, the names they made.

    `task` is the message before them, as it was while they were in the prompt.
    """

    task: Message
    turns: int = 0
    pieces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class Phase(Enum):
    """The phase of a run, which decides the events that may come next."""

    ASKING = "asking"
    CHECKING = "checking"
    RUNNING = "running"
    ENDING = "ending"
    DONE = "done"


class SkillState(msgspec.Struct, frozen=True, kw_only=True):
    """The skills that a run loaded and used, and the functions that they allow.

    `used` pairs the id of a skill with a use of it. `tools` are the functions that each loaded
    skill allows, `tools_next` those of skills that the current program loaded. `texts` are the
    instructions and files of those, and `found` is the first skill that the program found by a
    search. `model` is that of the last loaded skill that names one, for model calls which name
    none; `model_next` is that of a skill which the current program loaded.
    """

    loaded: tuple[str, ...] = ()
    used: tuple[tuple[str, str], ...] = ()
    tools: tuple[tuple[str, ...], ...] = ()
    tools_next: tuple[tuple[str, ...], ...] = ()
    texts: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    found: str | None = None
    model: SkillModel | None = None
    model_next: SkillModel | None = None


class NativeState(msgspec.Struct, frozen=True, kw_only=True):
    """The names that programs of a native interpreter made, as their sources show.

    `ran` is True once it has run a program, `note` is a notice that the prompt does not have yet.
    """

    names: tuple[str, ...] = ()
    ran: bool = False
    note: str = ""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of a run. Equal ledgers give equal states.

    The prompt: `messages` are the prompt so far, of which the first `sent` were in the call of
    intent `base`. `passing` is True if the last reply and the observation of it leave the
    prompt once there is a better one: a model copies a failed program as readily as a good one.
    `observed` are the messages for the next turn. `rebound` are the tools whose names the last
    program took. `told` is the share of the budget, in per cent, of the last notice to the model.

    The data: `texts` are those that the run was given whole. `outputs` is what programs printed and
    was too long to be shown, or is not shown any more. `results` are the results of programs, and
    `past` the turns that left a prompt that was too long: both are there only for `compaction`.

    Suspect answers: `read` is True once a program has named the data. `unnamed` are the values of
    the question that no program has, `asked_about` the doubts that the model was asked about,
    `doubted` the last such answer. `positions` are numbers that programs printed as positions,
    lengths or counts.

    Counters: `excused` counts the attempts of this turn that failed by no fault of the model,
    `unfit` the answers that did not fit the schema, `unchecked` the programs that the vocabulary
    refused in a row. `held` are the commands that wait for a person.

    `failing` is the error and the line of the last program, if it failed.

    Results: `said` is the last reply, as far as it is shown for a run without an answer. `words` is
    the last one that answered in words and had nothing to run.
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
    positions: tuple[str, ...] = ()
    failing: str = ""


# The skills of a run: which were loaded and used, and what that narrows.


# The most characters of one text of instructions, and of all that one program loads.
SHOWN_CHARS_MAX = 16_000
_ALL_CHARS_MAX = 2 * SHOWN_CHARS_MAX + 1_000
# A text of at most this many characters stays in the output: replacing it could remove a part of
# the output that only happens to be equal.
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


class SplitResult(NamedTuple):
    """The result of a program, apart from the instructions that it loaded.

    `shown` is the result without them, `notes` are the instructions, `whole` is both in one.
    `lasts` is True if there are instructions, which stay in the prompt.
    """

    shown: ProgramFinished
    notes: tuple[str, ...]
    whole: ProgramFinished
    lasts: bool


def with_first_skills(state: RunState) -> RunState:
    """Return the first state with the skills that the user put first, or as it is without any.

    A run that a program of another run began is limited to what the skills of that one allow, and
    asks the model that they name.
    """
    started = state.started
    put = () if started.skills is None else started.skills.put
    caller = started.caller
    before = () if caller is None else caller.tools
    model = None if caller is None else caller.skill_model
    if not put and not before and model is None:
        return state
    own = tuple(each.allowed_tools for each in put if each.allowed_tools is not None)
    for each in put:
        model = SkillModel(name=each.model, skill=each.id) if each.model else model
    skills = SkillState(loaded=tuple(each.id for each in put), tools=(*before, *own), model=model)
    return msgspec.structs.replace(state, skills=skills)


def after_answer(state: RunState, event: Event) -> RunState:
    """Return the state after a host's answer, with the skill that it loaded, used or found.

    It stays as it is after any other event. Of the skills that searches of one program found, the
    first counts.
    """
    if not isinstance(event, HostAnswered):
        return state
    skills = state.skills
    match event.skill:
        case SkillLoaded() as loaded:
            skills = _after_load(skills, loaded, _text_of(event))
        case SkillUsed() as used:
            place = (used.id, used.said)
            if place not in skills.used:
                skills = msgspec.structs.replace(skills, used=(*skills.used, place))
        case None:
            found = _first_skill_found(event) if event.name == _SEARCH else None
            if found is None:
                return state
            skills = msgspec.structs.replace(skills, found=skills.found or found)
    return msgspec.structs.replace(state, skills=skills)


def _after_load(skills: SkillState, loaded: SkillLoaded, text: str | None) -> SkillState:
    """Return the skills of a run after one more was loaded. `text` is what its answer says.

    Its text, its tools and its model count from the next turn on. If a child run follows it, only
    its id is added.
    """
    id, tools, model = loaded.id, loaded.allowed_tools, skills.model_next
    skills = msgspec.structs.replace(
        skills, loaded=(*skills.loaded, *(() if id in skills.loaded else (id,)))
    )
    if loaded.by_child:
        # Its instructions were for the child run: they narrow that one, and are not shown here.
        return skills
    if loaded.model:
        model = SkillModel(name=loaded.model, skill=id)
    return msgspec.structs.replace(
        skills,
        tools_next=skills.tools_next if tools is None else (*skills.tools_next, tools),
        texts=skills.texts if text is None else (*skills.texts, (id, text, loaded.files)),
        model_next=model,
    )


def split_instructions(state: RunState, event: ProgramFinished) -> SplitResult:
    """Split the result of a program: what it printed, and the instructions that it loaded, whole.

    If the program only searched for skills, the note tells how to load the first one. A text of
    instructions is cut at 16,000 characters; after 33,000 in all, skills are only named.
    """
    texts = tuple(dict.fromkeys(state.skills.texts))
    if not texts:
        found = state.skills.found
        hint = () if found is None else (_NOT_YET.format(call=f"skills.load({found!r})"),)
        return SplitResult(shown=event, notes=hint, whole=event, lasts=False)
    stdout, notes, left_out, room = event.stdout, [], [], _ALL_CHARS_MAX
    for id, text, files in texts:
        told = cut(text, SHOWN_CHARS_MAX)
        if len(told) > room:
            left_out.append(id)
            continue
        room -= len(told)
        stdout = _without_text(stdout, text.strip("\n"))
        said = (f"Instructions of the skill {id!r}:\n{told}", skill_files_text(id, files))
        notes.append("\n".join(each for each in said if each))
    if left_out:
        ids = [repr(each) for each in dict.fromkeys(left_out)]
        more = f" and {len(ids) - _NAMED_MAX} more" if len(ids) > _NAMED_MAX else ""
        notes.append(_TOO_MANY.format(ids=", ".join(ids[:_NAMED_MAX]) + more))
    # When compaction shortens this turn, the instructions are kept together with the output.
    together = "\n\n".join(each for each in (stdout.rstrip("\n"), *notes) if each)
    return SplitResult(
        shown=msgspec.structs.replace(event, stdout=stdout),
        notes=(*notes, _FOLLOW),
        whole=msgspec.structs.replace(event, stdout=together),
        lasts=True,
    )


def _without_text(stdout: str, text: str) -> str:
    """Replace a text in the output by a remark, where it fills lines of its own."""
    if len(text) <= _TWICE_CHARS_MAX or text not in stdout:
        return stdout
    return re.sub(rf"^{re.escape(text)}$", _BELOW, stdout, flags=re.MULTILINE)


def after_program(state: RunState) -> RunState:
    """Return the state after a program: skills that it loaded narrow the programs that follow.

    The model that the last of them names counts from here on. Their instructions have been shown,
    so they are not kept.
    """
    skills = state.skills
    if not (skills.texts or skills.tools_next or skills.found or skills.model_next):
        return state
    skills = msgspec.structs.replace(
        skills,
        texts=(),
        found=None,
        tools=(*skills.tools, *skills.tools_next),
        tools_next=(),
        model=skills.model_next or skills.model,
        model_next=None,
    )
    return msgspec.structs.replace(state, skills=skills)


def allows(tools: tuple[tuple[str, ...], ...], name: str) -> bool:
    """Return True if every skill that was loaded allows a function, also if none was loaded.

    `*` is all of them, `namespace:mail` those of the group `mail`, any other the one of that name.
    """
    group = name.partition(".")[0] if "." in name else ""
    return all(
        "*" in each or name in each or (bool(group) and f"namespace:{group}" in each)
        for each in tools
    )


def _first_skill_found(event: HostAnswered) -> str | None:
    """Return the id of the first skill that a search gave, None if it gave none."""
    if event.reply[:1] != _JSON:
        return None
    found = msgspec.json.decode(event.reply[1:])
    first = found[0] if isinstance(found, list) and found else None
    id = first.get("id") if isinstance(first, dict) else None
    return id if isinstance(id, str) else None


def _text_of(event: HostAnswered) -> str | None:
    """Return the instructions in an answer, None if there are none.

    Of an answer that is kept apart, it is the part that the model is shown.
    """
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
    """Return the record of a match, also if no skill fits."""
    return SkillMatched(strategy=given.strategy, candidates=given.candidates, matched=given.matched)
