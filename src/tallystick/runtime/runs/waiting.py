"""Find what a run, or a run inside it, waits for a person to decide about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from tallystick.core.errors import LedgerError
from tallystick.core.history import History
from tallystick.core.machine.reply import as_program, is_program, parse_reply
from tallystick.core.machine.turn import ESCALATED
from tallystick.core.records import (
    AttachmentRef,
    ModelReplied,
    ProgramChecked,
    Record,
    RunEnded,
    RunProgram,
)
from tallystick.core.views.call_text import call_text
from tallystick.ledger.port import Ledger
from tallystick.runtime.runs.history import UNREADABLE, records_of
from tallystick.runtime.runs.lock import is_running

_DEPTH_MAX = 64


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that waits for a person's word, or a program that does.

    `run` is the run that it belongs to, which may be inside another. `name` is that of the function
    that is called, "" for a program. `request` is what is asked, or the source of the program;
    `request_ref` has a long one. A decision is about `sha256`, the digest of the request or source.
    With `inside`, the process of the run waits for the decision.
    """

    run: str
    kind: Literal["call", "program"]
    turn: int
    name: str
    sha256: str
    request: str = ""
    request_ref: AttachmentRef | None = None
    inside: bool = False

    def text(self) -> str:
        """Return the call as Python, or the source of the program."""
        if self.kind == "program":
            return self.request or "a program"
        if self.request:
            return call_text(self.name, self.request)
        size = "" if self.request_ref is None else f"{self.request_ref.byte_len:,} bytes"
        return f"{self.name}({size})"


def waiting_in(
    ledger: Ledger, run: str, records: Sequence[Record] | None = None, *, depth: int = 0
) -> list[Waiting]:
    """Return what waits for a person in a run and in those inside it, in the order of the calls.

    `records` are those of the run, if they were read. A run that is not here, or cannot be read,
    waits for nothing. Other errors of the ledger are raised.
    """
    if records is None:
        try:
            records = list(records_of(ledger, run))
        except (LedgerError, *UNREADABLE):
            return []
    found = waiting_of(run, records, running=lambda: is_running(ledger, run))
    for child in History(records).awaited_children if depth < _DEPTH_MAX else ():
        found += waiting_in(ledger, child, depth=depth + 1)
    return found


def waiting_of(
    run: str, records: Sequence[Record], *, running: Callable[[], bool] = lambda: False
) -> list[Waiting]:
    """Return what waits for a person in a run, without those inside it.

    `running` says whether a process works on the run; it is asked for a native program only.
    """
    history = History(records)
    last = records[-1] if records else None
    if isinstance(last, RunEnded) and last.detail.startswith(ESCALATED):
        return _program_of(run, records)
    found = []
    for each in history.undecided:
        # A native program is not run again: once its process is gone, nobody can make its call.
        inside = _is_native(records, each.program)
        if inside and (isinstance(last, RunEnded) or not running()):
            continue
        found.append(
            Waiting(
                run=run,
                kind="call",
                turn=each.turn,
                name=each.name,
                sha256=each.request_sha256,
                request=each.request if isinstance(each.request, str) else "",
                request_ref=None
                if isinstance(each.request_ref, msgspec.UnsetType)
                else each.request_ref,
                inside=inside,
            )
        )
    return found


def _program_of(run: str, records: Sequence[Record]) -> list[Waiting]:
    checked = next((each for each in reversed(records) if isinstance(each, ProgramChecked)), None)
    if checked is None:
        return []
    replied = next((each for each in reversed(records) if isinstance(each, ModelReplied)), None)
    source = ""
    if replied is not None:
        commands = parse_reply(replied.text, cut=replied.cut).commands
        if checked.part < len(commands) and is_program(commands[checked.part]):
            source = as_program(commands[checked.part])
    return [
        Waiting(
            run=run,
            kind="program",
            turn=checked.turn,
            name="",
            sha256=checked.sha256,
            request=source,
        )
    ]


def _is_native(records: Sequence[Record], program: int) -> bool:
    return any(
        isinstance(each, RunProgram) and each.intent == program and each.effect for each in records
    )
