"""Records as lines for a person."""

from __future__ import annotations

from tallystick.core.records import (
    AskModel,
    CallHost,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFinished,
    Record,
    RunEnded,
    RunProgram,
    RunStarted,
)

__all__ = ["outcome", "transcript_lines"]

_SHOWN_CHARS_MAX = 70


def transcript_lines(record: Record) -> list[str]:
    """A record as normalized text: one vocabulary, no clock, no ids."""
    match record:
        case RunStarted():
            limits = record.limits
            named = "".join(f"  {each.name}={each.bytes}B" for each in record.contexts)
            return [
                f"run       started    goal={_short(record.goal)}{named}  turns<={limits.turns} "
                f"tokens<={limits.tokens}"
            ]
        case AskModel():
            return [f"turn {record.turn:<4} asked      added={','.join(record.added)}"]
        case ModelReplied():
            cut = "  cut" if record.cut else ""
            return [f"turn {record.turn:<4} replied    {len(record.text)} characters{cut}"]
        case ModelFailed():
            return [f"turn {record.turn:<4} failed     {record.reason}: {_short(record.message)}"]
        case RunProgram():
            return [f"turn {record.turn:<4} program    part={record.part}"]
        case CallHost():
            return [f"          calling    {record.name}  {record.policy}"]
        case HostAnswered():
            verdict = "ok" if record.ok else "error"
            return [f"          answered   {record.name}  {verdict}  {len(record.reply)} bytes"]
        case ProgramFinished():
            return [f"turn {record.turn:<4} finished   {outcome(record)}"]
        case RunEnded():
            kind = "partial" if record.partial else "answer"
            return [
                f"run       ended      {record.stop}  {kind}={_short(record.answer or '')}  "
                f"turns={record.charge.turns} host_calls={record.charge.host_calls}"
            ]


def outcome(record: ProgramFinished) -> str:
    """What came of a program, in a few words."""
    if record.failure is not None:
        return f"{record.failure.kind}: {_short(record.failure.message)}"
    if record.answer is not None:
        return f"answer={_short(record.answer)}"
    if record.value is not None:
        return f"value={_short(record.value)}"
    return (
        f"printed {_short(record.stdout.strip())}" if record.stdout.strip() else "nothing printed"
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN_CHARS_MAX else line[: _SHOWN_CHARS_MAX - 3] + "...")
