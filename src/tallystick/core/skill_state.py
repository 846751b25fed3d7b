"""What a run's machine knows of skills: which were loaded and used, and what that narrows.

Instructions that a program loads enter the prompt with its result, whole as far as there is room:
what a program prints is cut far shorter, and a model that forgets to print would never see them.
A run that a program begins is narrowed as that program is, from its start.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from tallystick.core.prompt import cut
from tallystick.core.records import Event, HostAnswered, ProgramFinished, SkillLoaded, SkillUsed
from tallystick.core.skill_records import files_told
from tallystick.core.state import RunState, SkillState

__all__ = ["TOLD_CHARS_MAX", "Taught", "after_program", "allows", "at_start", "heard", "taught"]

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
        said = (f"Instructions of the skill {id!r}:\n{told}", files_told(id, files))
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
