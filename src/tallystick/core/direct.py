"""A run that asks for its answer at once: how the reply is read, and how it falls back to code.

Rule 1: the reply is the answer. Only a program in a fence is none: it is run, and the run goes on
as one that writes programs. Without a fence, what looks like Python may well be what was asked for.
Rule 2: a reply that was cut off, is empty or refuses is no answer. The run then begins again as one
that writes programs, and the part `not_direct:WHY` of its prompt says so on the ledger.
Rule 3: the prompt is all that says that a run is still direct: there is no second word on it that
could differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from tallystick.core import prompt
from tallystick.core.prompt import Message
from tallystick.core.records import ModelFailed
from tallystick.core.reply import Code, Final, FinalVar, Reply, Run
from tallystick.core.state import RunState

__all__ = [
    "DirectReply",
    "NotDirect",
    "as_code",
    "direct_reply",
    "fallen_back",
    "is_direct",
    "is_fallback",
    "not_with_code",
]

# Why a direct run went on as code: its reply, a failure of the model, or no budget paid for it.
NotDirect = Literal["cut", "empty", "refused", "context_overflow", "content_policy", "budget"]
_FELL_BACK = "Reading alone did not give the answer. Find it with programs."
_PART = "not_direct:"
_FENCES = ("```", "~~~")
_THINKING = ("<think>", "<thinking>")
_THOUGHT = ("</think>", "</thinking>")
# How replies begin that answer nothing. One that is wrongly taken for such costs a turn.
_REFUSALS = (
    *("i cannot", "i can't", "i can not", "i am unable", "i'm unable", "i am not able"),
    *("i'm not able", "i'm sorry", "i am sorry", "sorry, ", "as an ai", "i won't", "i will not"),
)
_SAID_CHARS_MAX = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectReply:
    """What a reply is, with the answer in it, or as much as there is of one."""

    kind: Literal["answer", "program"] | NotDirect
    said: str = ""


def is_direct(state: RunState) -> bool:
    """Whether the prompt, as it stands, asks for the answer itself."""
    return state.messages[0].part == prompt.DIRECT


def is_fallback(message: Message) -> bool:
    """Whether a message says that a run goes on as code."""
    return message.part.startswith(_PART)


def direct_reply(reply: Reply, text: str, *, cut: bool) -> DirectReply:
    """Say what the reply to a direct prompt is."""
    said = _unwrapped(_without_reasoning(text).strip())
    fenced = any(each in text for each in _FENCES)
    others = []
    for command in reply.commands:
        if isinstance(command, FinalVar) or (isinstance(command, Code) and fenced):
            return DirectReply(kind="program")
        # A line for a shell, and Python without a fence, may be what was asked for.
        if not isinstance(command, Code | Run):
            others.append(command)
    if cut:
        return DirectReply(kind="cut", said=said)
    match others:
        case []:
            pass
        case [*_, Final(text=final)]:
            said = final.strip()
        case _:
            # It asks for what such a run does not have.
            return DirectReply(kind="refused")
    if not said:
        return DirectReply(kind="empty")
    return DirectReply(kind="refused" if _refuses(said) else "answer", said=said)


def _without_reasoning(text: str) -> str:
    for closing in _THOUGHT:
        text = text.rpartition(closing)[2]
    return "" if text.lstrip().startswith(_THINKING) else text


def _unwrapped(said: str) -> str:
    """What stands in a fence that is the whole reply."""
    if not (said.startswith("```") and said.endswith("```") and said.count("```") == 2):
        return said
    head, newline, rest = said.removesuffix("```").partition("\n")
    return rest.strip() if newline else head.removeprefix("```").strip()


def _refuses(said: str) -> bool:
    word = said[: len(prompt.CANNOT) + 8].strip("`*\"'.:!\n ").split(maxsplit=1)[:1]
    if word and word[0].rstrip(".:,!") == prompt.CANNOT:
        return True
    return said[:40].replace("\u2019", "'").lower().startswith(_REFUSALS)


def not_with_code(event: ModelFailed) -> NotDirect | None:
    """Why a call failed, if one of code need not: its prompt is short, and shows little data."""
    match event.reason:
        case "context_overflow" | "content_policy" as reason:
            return reason
        case _:
            return None


def as_code(state: RunState) -> RunState:
    """The run as one that writes programs, from the beginning: nothing of its prompt is kept."""
    return msgspec.structs.replace(
        state, messages=prompt.opening(state.started), base=None, base_length=0, sent=0
    )


def fallen_back(state: RunState, why: NotDirect, *, said: str = "") -> RunState:
    """The run as one that is about to ask for programs. What was `said` leaves the prompt."""
    state, said = as_code(state), said[:_SAID_CHARS_MAX]
    reply = Message(role="assistant", part=f"direct:{state.turn}", text=said or "(nothing)")
    told = Message(role="user", part=f"{_PART}{why}", text=_FELL_BACK)
    return msgspec.structs.replace(
        state,
        messages=(*state.messages, reply),
        observed=(told,),
        partial=said if why == "cut" and said else state.partial,
    )
