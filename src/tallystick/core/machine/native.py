"""Runs whose programs run natively, with a shell and files: what the machine knows of them.

Rule 1: a program is an effect. It is served where it is recorded, and never run again for that; one
that was cut off has an end that says what was decided about it.
Rule 2: files, the shell's directory and its exported variables outlive a process, Python's
variables do not. Wherever a run is gone on with, its interpreter is another one, and the model is
told so by what is said next.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from tallystick.core.json_text import canonical, digest
from tallystick.core.machine.commands import (
    Code,
    Command,
    Final,
    FinalVar,
    QueryLlm,
    QueryLlmBatched,
    Rollback,
    Run,
    Snapshot,
    names_bound,
    tree_of,
)
from tallystick.core.machine.reply import Reply, as_program, shown
from tallystick.core.machine.state import NativeState, Phase, RunState
from tallystick.core.records import ProgramFinished, ProgramKind, RunForked, RunResumed, RunStarted

# The end of a program that was cut off, where it is begun once more.
RETRIED = "retried"
_TEXT_CHARS_MAX = 2_000
_NAMES_MAX = 40
_MISSING_MAX = 20


def is_native_run(started: RunStarted) -> bool:
    """Whether the programs of a run are native Python and bash."""
    return started.backend != "wasm"


def kind_of(command: Command) -> ProgramKind:
    """What is run for a command."""
    match command:
        case Run():
            return "bash"
        case Snapshot():
            return "snapshot"
        case Rollback():
            return "rollback"
        case Code() | Final() | FinalVar() | QueryLlm() | QueryLlmBatched():
            return "python"
        case _:
            assert_never(command)


def said_of(state: RunState, reply: Reply, text: str) -> str:
    """A reply as it stands in the prompt: its commands, in the form the model is asked to write."""
    native = is_native_run(state.started)
    said = "\n\n".join(shown(each, native=native) for each in reply.commands)
    return said or text[:_TEXT_CHARS_MAX]


def ran_before(state: RunState, event: ProgramFinished) -> tuple[str, bool]:
    """What identifies a program with what came of it, and whether that was there before.

    Files change what a program means: natively, only the one right before it counts.
    """
    source = as_program(state.queue[0])
    pair = digest(canonical([source, event.stdout, event.value, event.stop]))
    if not is_native_run(state.started):
        return pair, pair in state.seen
    told = [kind_of(state.queue[0]), event.stderr, event.failure and event.failure.message]
    pair = digest(canonical([pair, told]))
    return pair, state.seen[-1:] == (pair,)


def run_again(state: RunState) -> RunState:
    """The state after a program that was cut off and is to be begun once more: it is next."""
    return msgspec.structs.replace(state, phase=Phase.ASKING, passed=True)


def after_native(state: RunState, event: ProgramFinished) -> RunState:
    """Note which names a program made, as far as its source says. It is still first in the queue.

    A program that was stopped from outside has left the namespace as it was.
    """
    command = state.queue[0]
    if not is_native_run(state.started) or not isinstance(command, Code):
        return state
    if event.stop != "finished":
        return state
    tree = tree_of(command.source)
    made = [name for each in tree.body for name in names_bound(each)] if tree is not None else []
    names = [*dict.fromkeys(reversed([*state.native.names, *made]))][::-1]
    native = msgspec.structs.replace(state.native, names=tuple(names), ran=True)
    return msgspec.structs.replace(state, native=native)


def restarted(state: RunState, event: RunResumed | RunForked) -> RunState:
    """The state of a run that is gone on with, in another interpreter."""
    native = state.native
    if not is_native_run(state.started) or not (native.ran or event.files_missing):
        return state
    said = [native.note] if native.note else []
    if native.ran:
        names = ", ".join(f"`{name}`" for name in native.names[-_NAMES_MAX:])
        gone = f": {names}" if names else ""
        said.append(
            "The Python interpreter was started again. The variables, functions and imports of "
            f"earlier programs are gone{gone}. The files in the working directory, the shell's "
            "directory and its exported variables are as the last program left them."
        )
    if event.files_missing:
        missing = ", ".join(event.files_missing[:_MISSING_MAX])
        more = len(event.files_missing) - _MISSING_MAX
        rest = f" and {more} more" if more > 0 else ""
        said.append(f"These files could not be kept and are gone: {missing}{rest}.")
    return msgspec.structs.replace(state, native=NativeState(note="\n\n".join(said)))


def noted(state: RunState) -> RunState:
    """The state with what is to be said of a restart in the prompt, at the end of what is asked.

    What was asked before may never have been written, so nothing is said by reference to it.
    """
    note = state.native.note
    if not note:
        return state
    *before, last = state.messages
    said = msgspec.structs.replace(
        last, part=f"{last.part}+restarted:{state.next_intent}", text=f"{last.text}\n\n{note}"
    )
    return msgspec.structs.replace(
        state,
        native=msgspec.structs.replace(state.native, note=""),
        messages=(*before, said),
        base=None,
        base_length=0,
        sent=0,
    )
