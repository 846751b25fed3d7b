"""Write what runs do to the logger `tallystick`: a line for each turn, and prompts for debugging.

Without a handler of the caller, nothing is formatted. No line has a key that this process knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.core.charge import shown_usd
from tallystick.core.records import (
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    Record,
    RunEnded,
    RunStarted,
)
from tallystick.model.endpoint import without_known_keys

if TYPE_CHECKING:
    from tallystick.core.machine.prompt import Message

LOGGER = logging.getLogger("tallystick")
LOGGER.addHandler(logging.NullHandler())
_CHARS_MAX = 200


def logged(watch: Callable[[str, Record], None]) -> Callable[[str, Record], None]:
    """Return a callback for records that logs each one, and calls `watch`.

    It is `watch` itself if nobody listens at the level INFO.
    """
    if not LOGGER.isEnabledFor(logging.INFO):
        return watch

    def log_and_watch(run: str, record: Record) -> None:
        line = _line_of(record)
        if line is not None:
            LOGGER.info("%s", without_known_keys(f"run {run} {line}"))
        watch(run, record)

    return log_and_watch


def log_prompt(model: str, messages: tuple[Message, ...]) -> None:
    """Log the prompt of a model call, whole, at the level DEBUG."""
    if not LOGGER.isEnabledFor(logging.DEBUG):
        return
    said = "\n".join(f"--- {each.role} ---\n{each.text}" for each in messages)
    LOGGER.debug("prompt for %s\n%s", model, without_known_keys(said))


def log_reply(model: str, text: str) -> None:
    """Log the reply of a model, whole, at the level DEBUG."""
    if LOGGER.isEnabledFor(logging.DEBUG):
        LOGGER.debug("reply of %s\n%s", model, without_known_keys(text))


def _line_of(record: Record) -> str | None:
    """Return the line about a record; None for records that are no part of the outline."""
    match record:
        case RunStarted():
            return f"started with {record.model}: {_short(record.goal)}"
        case ModelReplied():
            used = record.usage
            return (
                f"turn {record.turn} replied: {used.tokens_in:,} tokens in, {used.tokens_out:,} "
                f"out, {record.wall_ms:,} ms"
            )
        case ModelFailed():
            return f"turn {record.turn} got no reply: {record.reason}: {_short(record.message)}"
        case ProgramFinished():
            failed = "" if record.failure is None else f": {_short(record.failure.message)}"
            return f"turn {record.turn} program {record.stop}{failed}, {record.wall_ms:,} ms"
        case RunEnded():
            return f"ended: {record.stop}, {shown_usd(record.charge.usd)} {_short(record.detail)}"
        case _:
            return None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CHARS_MAX else f"{line[: _CHARS_MAX - 3]}..."
