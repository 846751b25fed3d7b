"""Read the answers of direct runs and of runs with a schema, and ask again for what does not fit.

Rule 1: an answer is read as JSON, strictly (`json_text`). If it is one block in a fence, that is
read. Text that is no JSON, or does not fit, is taken as a string if the schema names strings.
Rule 2: an answer that fits is kept as canonical JSON: names sorted, no spaces. So the answer and
its value are the same, and reading it again gives the same.
Rule 3: an answer that does not fit is not taken, not on the last turn either. The model gets one
line with the problem, twice at most; then the run ends, with the last answer as a partial one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical, read_json
from tallystick.core.machine import prompt
from tallystick.core.machine.commands import Code, Final, FinalVar, Run
from tallystick.core.machine.prompt import Message
from tallystick.core.machine.reply import Reply
from tallystick.core.machine.state import Phase, RunState
from tallystick.core.records import ModelFailed, RunStarted, StopReason
from tallystick.core.schema.check import check_schema
from tallystick.core.schema.values import problem_of, takes_text

# Direct runs, which ask for the answer at once, and their fallback to code.
#
# Rule 1: the reply is the answer. Only a program in a fence is none: it is run, and the run
# continues as one that writes programs. Without a fence, text that looks like Python may be the
# answer.
# Rule 2: a reply that was cut off, is empty or refuses is no answer. The run then begins again as
# one that writes programs, and the part `not_direct:WHY` of its prompt records that on the ledger.
# Rule 3: only the prompt tells whether a run is still direct: a second flag could differ from it.


# The reasons why a direct run continues as code: its reply, a failure of the model, or no budget.
NotDirect = Literal["cut", "empty", "refused", "context_overflow", "content_policy", "budget"]
_FELL_BACK = "Reading alone did not give the answer. Find it with programs."
_PART = "not_direct:"
_FENCES = ("```", "~~~")
_THINKING = ("<think>", "<thinking>")
_THOUGHT = ("</think>", "</thinking>")
# The beginnings of replies that refuse. An answer that is wrongly taken for one costs a turn.
_REFUSALS = (
    *("i cannot", "i can't", "i can not", "i am unable", "i'm unable", "i am not able"),
    *("i'm not able", "i'm sorry", "i am sorry", "sorry, ", "as an ai", "i won't", "i will not"),
)
_SAID_CHARS_MAX = 4_000


class DirectReply(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of a reply to a direct prompt, with its answer, or as much as there is of one."""

    kind: Literal["answer", "program"] | NotDirect
    said: str = ""


def is_direct(state: RunState) -> bool:
    """Return True if the current prompt asks for the answer itself."""
    return state.messages[0].part == prompt.DIRECT


def is_fallback(message: Message) -> bool:
    """Return True if a message says that a direct run continues with programs."""
    return message.part.startswith(_PART)


def direct_reply(reply: Reply, text: str, *, cut: bool) -> DirectReply:
    """Return what a reply to a direct prompt is: an answer, a program, or why it is neither.

    A program goes before the rest, also in a reply that was cut off. `said` is the answer, or the
    text of a reply that is none; it is empty for a program and for a command that is not there.
    """
    said = _unfence(_without_reasoning(text).strip())
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
            # The reply uses a command that a direct run does not have.
            return DirectReply(kind="refused")
    if not said:
        return DirectReply(kind="empty")
    return DirectReply(kind="refused" if _refuses(said) else "answer", said=said)


def reply_text(text: str) -> str | None:
    """Return a reply without its reasoning, short enough to be shown; None for an empty one.

    Of a reply that is nothing but reasoning, it is that.
    """
    return prompt.cut((_without_reasoning(text) or text).strip(), _SAID_CHARS_MAX) or None


def words_of(reply: Reply, text: str, *, cut: bool) -> str | None:
    """Return the answer that a reply without any command gives in words.

    None if it has a command, was cut off, is empty, refuses, or has no letter and no digit.
    """
    read = direct_reply(reply, text, cut=cut)
    if read.kind != "answer" or reply.commands:
        return None
    # Fences and rules without a letter or a digit say nothing.
    return read.said if any(each.isalnum() for each in read.said) else None


def say_the_same(words: str | None, others: str | None) -> bool:
    """Return True if two replies in words are equal, apart from case, blanks and final `.` and `!`.

    False if one of them is None.
    """
    if words is None or others is None:
        return False
    one, other = (" ".join(each.lower().split()).rstrip(".!") for each in (words, others))
    return one == other


def _without_reasoning(text: str) -> str:
    for closing in _THOUGHT:
        text = text.rpartition(closing)[2]
    return "" if text.lstrip().startswith(_THINKING) else text


def _unfence(said: str) -> str:
    """Return the content of a fence, if that is the whole reply; else the reply as it is."""
    if not (said.startswith("```") and said.endswith("```") and said.count("```") == 2):
        return said
    head, newline, rest = said.removesuffix("```").partition("\n")
    return rest.strip() if newline else head.removeprefix("```").strip()


def _refuses(said: str) -> bool:
    word = said[: len(prompt.CANNOT) + 8].strip("`*\"'.:!\n ").split(maxsplit=1)[:1]
    if word and word[0].rstrip(".:,!") == prompt.CANNOT:
        return True
    return said[:40].replace("\u2019", "'").lower().startswith(_REFUSALS)


def fallback_reason(event: ModelFailed) -> NotDirect | None:
    """Return why a direct call failed, if a call with code need not fail the same way; else None.

    These are a prompt that is too long and a content policy. The prompt of a run with code is
    short, and shows little of the data.
    """
    match event.reason:
        case "context_overflow" | "content_policy" as reason:
            return reason
        case _:
            return None


def restart_as_code(state: RunState) -> RunState:
    """Return the state as one that writes programs, from the beginning, without the old prompt."""
    return msgspec.structs.replace(
        state, messages=prompt.opening(state.started), base=None, base_length=0, sent=0
    )


def fall_back_to_code(state: RunState, why: NotDirect, *, said: str = "") -> RunState:
    """Return the state of a direct run that is about to ask for programs instead.

    The first 4,000 characters of the reply `said` become a message that leaves the prompt with the
    next turn. If it was cut off, they are also the partial answer.
    """
    state, said = restart_as_code(state), said[:_SAID_CHARS_MAX]
    reply = Message(role="assistant", part=f"direct:{state.turn}", text=said or "(nothing)")
    told = Message(role="user", part=f"{_PART}{why}", text=_FELL_BACK)
    return msgspec.structs.replace(
        state,
        messages=(*state.messages, reply),
        observed=(told,),
        partial=said if why == "cut" and said else state.partial,
    )


# Answers of a kind that was asked for: JSON that fits a schema, or is asked for again.


ASKED_AGAIN_MAX = 2
# The size of a schema file, with its spaces. The recorded schema is shorter.
SCHEMA_BYTES_MAX = 64_000
_PROBLEM_CHARS_MAX = 300
_VALUE_CHARS_MAX = 100_000_000
_UNREADABLE = object()
_FENCED = re.compile(r"\s*```[a-zA-Z]*\n(.*)```\s*", re.DOTALL)
_AGAIN = "Write one ```python block that calls FINAL(...) with a value that fits."
_AGAIN_DIRECT = "Reply with a JSON value that fits, and nothing else."


# -- schemas -----------------------------------------------------------------------------------


def read_schema(raw: bytes, *, name: str) -> Mapping[str, Any]:
    """Return the schema in the bytes of a file.

    Raise `UsageError`, which names the file, for more than 64,000 bytes, text that is not UTF-8 or
    no JSON, and a schema that is not supported.
    """
    if len(raw) > SCHEMA_BYTES_MAX:
        raise UsageError(f"{name}: a schema has at most {SCHEMA_BYTES_MAX:,} bytes")
    try:
        return check_schema(read_json(raw.decode("utf-8-sig")))
    except UnicodeDecodeError:
        raise UsageError(f"{name}: cannot be read: not UTF-8") from None
    except ValueError as error:
        raise UsageError(f"{name}: cannot be read: {error}") from None
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def schema_text(schema: Mapping[str, Any] | None) -> str | None:
    """Return a schema as it is recorded, references in place, in its own order. None for None.

    Raise `UsageError` if it is no JSON, or no schema that this package supports.
    """
    if schema is None:
        return None
    try:
        placed = check_schema(read_json(json.dumps(schema, ensure_ascii=False)))
        text = json.dumps(placed, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"schema: not a JSON object: {error}") from None
    return text


# -- answers -----------------------------------------------------------------------------------


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """An answer as canonical JSON if it fits, else as it was given, with the problem."""

    text: str
    problem: str | None = None


def fit_of(answer: str, started: RunStarted) -> Fit:
    """Compare an answer with the schema of its run. Without a schema, any answer fits.

    With a schema that cannot be read, none does. The problem is one line of at most 300 characters.
    """
    if started.schema is None:
        return Fit(text=answer)
    try:
        rule = check_schema(read_json(started.schema))
    except (UsageError, ValueError):
        # The record comes from another version or another writer: no answer can be checked.
        return Fit(text=answer, problem="the schema of this run cannot be read")
    value, problem = _as_json(answer, rule)
    if problem is not None and takes_text(rule):
        readable = value is not _UNREADABLE
        value, told = answer, _text_problem(answer, rule)
        problem = problem if readable and told is not None else told
    if problem is not None:
        return Fit(text=answer, problem=_one_line(problem))
    return Fit(text=canonical(value).decode())


def _as_json(answer: str, rule: Mapping[str, Any]) -> tuple[object, str | None]:
    fenced = _FENCED.fullmatch(answer)
    try:
        value = read_json(answer if fenced is None else fenced[1])
    except ValueError as error:
        return _UNREADABLE, f"the answer cannot be read: {error}"
    return value, problem_of(value, rule)


def _text_problem(answer: str, rule: Mapping[str, Any]) -> str | None:
    if any("\ud800" <= each <= "\udfff" for each in answer):
        return "the answer holds half of a character"
    return problem_of(answer, rule)


def value_of(answer: str | None, started: RunStarted) -> object:
    """Return the value of an answer that was taken, as Python has it.

    None without an answer or a schema, and for an answer that is no JSON.
    """
    if answer is None or started.schema is None:
        return None
    try:
        # Canonical numbers may be longer than they were given.
        return read_json(answer, chars_max=_VALUE_CHARS_MAX)
    except ValueError:
        return None


def _one_line(problem: str) -> str:
    line = " ".join(problem.split())
    return line if len(line) <= _PROBLEM_CHARS_MAX else f"{line[: _PROBLEM_CHARS_MAX - 3]}..."


# -- answers that do not fit -------------------------------------------------------------------


def reject_answer(
    state: RunState, fit: Fit, cap: tuple[StopReason, str] | None
) -> tuple[RunState, str | None]:
    """Return the state after an answer that does not fit, and why the run ends now, if it does.

    It ends if `cap`, a limit that allows no other turn, is given, or at the third such answer. The
    message for the model is in `observed`, so a run that is resumed shows it too. The answer
    becomes the partial one, unless it is empty: whole at the end, else cut. In a direct run it
    joins the prompt too.
    """
    direct = is_direct(state)
    again = _AGAIN_DIRECT if direct else _AGAIN
    text = f"That answer does not fit the schema: {fit.problem}. {again}"
    told = Message(role="user", part=f"unfit:{state.turn}", text=text)
    said = fit.text[:_SAID_CHARS_MAX] or "(nothing)"
    reply = Message(role="assistant", part=f"reply:{state.base}", text=said)
    count = state.unfit + 1
    why = None
    if cap is not None:
        why = f"the answer does not fit the schema: {fit.problem} ({cap[1]})"
    elif count > ASKED_AGAIN_MAX:
        why = f"{count} answers do not fit the schema: {fit.problem}"
    partial = fit.text if why is not None else prompt.cut(fit.text, _SAID_CHARS_MAX)
    state = msgspec.structs.replace(
        state,
        phase=Phase.ASKING,
        messages=(*state.messages, reply) if direct else state.messages,
        observed=(*state.observed, told),
        partial=partial or state.partial,
        unfit=count,
    )
    return state, why
