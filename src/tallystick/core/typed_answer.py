"""Answers of a kind that was asked for: JSON that fits a schema, or is asked for again.

Rule 1: an answer is read as JSON, strictly (`json_text`). If it is one block in a fence, that is
read. Text that is no JSON, or does not fit, is taken as a string where the schema names strings.
Rule 2: what fits is kept as canonical JSON: names sorted, no spaces. So the answer and its value
say the same, and to read it again gives the same.
Rule 3: what does not fit is not taken, not on the last turn either. The model is told in one line
what is wrong, twice at most; then the run ends, with the last answer as a partial one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tallystick.core import prompt
from tallystick.core.canonical import canonical
from tallystick.core.direct import is_direct
from tallystick.core.errors import UsageError
from tallystick.core.json_text import read_json
from tallystick.core.prompt import Message
from tallystick.core.records import RunStarted, StopReason
from tallystick.core.schema import check_schema, problem_of, takes_text
from tallystick.core.state import Phase, RunState

__all__ = [
    "ASKED_AGAIN_MAX",
    "SCHEMA_BYTES_MAX",
    "Fit",
    "fit_of",
    "read_schema",
    "schema_text",
    "unfit",
    "value_of",
]

ASKED_AGAIN_MAX = 2
# Of a file, with its spaces. What is recorded of it is shorter.
SCHEMA_BYTES_MAX = 64_000
_PROBLEM_CHARS_MAX = 300
_SAID_CHARS_MAX = 4_000
_VALUE_CHARS_MAX = 100_000_000
_UNREADABLE = object()
_FENCED = re.compile(r"\s*```[a-zA-Z]*\n(.*)```\s*", re.DOTALL)
_AGAIN = "Write one ```python block that calls FINAL(...) with a value that fits."
_AGAIN_DIRECT = "Reply with a JSON value that fits, and nothing else."


# -- schemas -----------------------------------------------------------------------------------


def read_schema(raw: bytes, *, name: str) -> Mapping[str, Any]:
    """A schema from the bytes of a file. Raises `UsageError`, which names the file."""
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
    """A schema as it is recorded, in the order it was written. Raises `UsageError`."""
    if schema is None:
        return None
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
        check_schema(read_json(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"schema: not a JSON object: {error}") from None
    return text


# -- answers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """An answer: canonical JSON if it fits, else as it was given, with what is wrong."""

    text: str
    problem: str | None = None


def fit_of(answer: str, started: RunStarted) -> Fit:
    """How an answer fits the schema of its run. Without a schema, any answer does."""
    if started.schema is None:
        return Fit(text=answer)
    try:
        rule = check_schema(read_json(started.schema))
    except (UsageError, ValueError):
        # A record from elsewhere: nothing can be said to fit.
        return Fit(text=answer, problem="the schema of this run cannot be read")
    value, problem = _as_json(answer, rule)
    if problem is not None and takes_text(rule):
        readable = value is not _UNREADABLE
        value, told = answer, _text_problem(answer, rule)
        problem = problem if readable and told is not None else told
    if problem is not None:
        return Fit(text=answer, problem=_line(problem))
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
    """What an answer that was taken says, as Python has it; None where there is no schema."""
    if answer is None or started.schema is None:
        return None
    try:
        # Canonical numbers may be longer than they were given.
        return read_json(answer, chars_max=_VALUE_CHARS_MAX)
    except ValueError:
        return None


def _line(problem: str) -> str:
    line = " ".join(problem.split())
    return line if len(line) <= _PROBLEM_CHARS_MAX else f"{line[: _PROBLEM_CHARS_MAX - 3]}..."


# -- what does not fit -------------------------------------------------------------------------


def unfit(
    state: RunState, fit: Fit, cap: tuple[StopReason, str] | None
) -> tuple[RunState, str | None]:
    """The run after an answer that does not fit, and why it ends now, if it does.

    `cap` is the limit that allows no other turn. What is to be said stands in `observed`: a run
    that is gone on with says it.
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
