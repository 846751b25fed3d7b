"""What a run's machine knows of skills: which were loaded and used, and what that narrows.

Instructions that a program loads enter the prompt with its result, whole as far as there is room:
what a program prints is cut far shorter, and a model that forgets to print would never see them.
"""

from __future__ import annotations

import msgspec

from tallystick.core.prompt import cut
from tallystick.core.records import Event, HostAnswered, ProgramFinished, SkillLoaded, SkillUsed
from tallystick.core.state import RunState, SkillState

__all__ = ["after_program", "allows", "at_start", "heard", "instructions"]

_TEXT_CHARS_MAX = 16_000
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
_ABOVE = "(the instructions are below)"


def at_start(state: RunState) -> RunState:
    """With the skills that the user put in front."""
    given = state.started.skills
    if given is None or not given.put:
        return state
    skills = SkillState(
        loaded=tuple(each.id for each in given.put),
        tools=tuple(each.allowed_tools for each in given.put if each.allowed_tools is not None),
    )
    return msgspec.structs.replace(state, skills=skills)


def heard(state: RunState, event: Event) -> RunState:
    """After an answer, if it had to do with a skill."""
    if not isinstance(event, HostAnswered):
        return state
    skills = state.skills
    match event.skill:
        case SkillLoaded(id=id, allowed_tools=tools):
            text = _text_of(event)
            skills = msgspec.structs.replace(
                skills,
                loaded=(*skills.loaded, *(() if id in skills.loaded else (id,))),
                tools_next=skills.tools_next if tools is None else (*skills.tools_next, tools),
                texts=skills.texts if text is None else (*skills.texts, (id, text)),
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


def instructions(
    state: RunState, event: ProgramFinished
) -> tuple[ProgramFinished, tuple[str, ...]]:
    """What a program printed, without instructions that it loaded; and those, to be told whole."""
    if not state.skills.texts:
        found = state.skills.found
        return event, () if found is None else (_NOT_YET.format(call=f"skills.load({found!r})"),)
    stdout, notes = event.stdout, []
    for id, text in dict(state.skills.texts).items():
        if text.strip():
            stdout = stdout.replace(text.rstrip("\n"), _ABOVE)
        notes.append(f"Instructions of the skill {id!r}:\n{cut(text, _TEXT_CHARS_MAX)}")
    return msgspec.structs.replace(event, stdout=stdout), (*notes, _FOLLOW)


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
    """The instructions in an answer; None if they are kept apart, being very long."""
    tag, body = event.reply[:1], event.reply[1:]
    if tag == _TEXT:
        return body.decode("utf-8", "replace")
    if tag == _JSON:
        found = msgspec.json.decode(body)
        return found if isinstance(found, str) else None
    return None
