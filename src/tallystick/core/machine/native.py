"""Keep the state of runs whose programs run natively, with a shell and files.

Rule 1: a program is an effect. Its recorded result is served, and it is never run again for that;
one that was cut off has an end that records what was decided about it.
Rule 2: files, the shell's directory and its exported variables outlive a process, Python's
variables do not. After a resume or a fork, the interpreter is another one, and the next message to
the model says so.
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
from tallystick.core.machine.reply import Reply, as_program, command_text
from tallystick.core.machine.state import NativeState, Phase, RunState
from tallystick.core.records import ProgramFinished, ProgramKind, RunForked, RunResumed, RunStarted

# The stop of a program that was cut off and is begun once more.
RETRIED = "retried"
_TEXT_CHARS_MAX = 2_000
_NAMES_MAX = 40
_MISSING_MAX = 20


def is_native_run(started: RunStarted) -> bool:
    """Return True if the programs of a run are native Python and bash."""
    return started.backend != "wasm"


def kind_of(command: Command) -> ProgramKind:
    """Return the kind of program that a command runs."""
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


def reply_in_prompt(state: RunState, reply: Reply, text: str) -> str:
    """Return a reply as the prompt shows it: its commands, in the form the model is asked to write.

    Without commands, it is the first 2,000 characters of the text.
    """
    native = is_native_run(state.started)
    said = "\n\n".join(command_text(each, native=native) for each in reply.commands)
    return said or text[:_TEXT_CHARS_MAX]


def identify_program(state: RunState, event: ProgramFinished) -> tuple[str, bool]:
    """Return the digest of a program with its result, and True if the run had the same before.

    The program is still first in the queue. Files change what a program means: natively, only the
    one right before it counts.
    """
    source = as_program(state.queue[0])
    pair = digest(canonical([source, event.stdout, event.value, event.stop]))
    if not is_native_run(state.started):
        return pair, pair in state.seen
    told = [kind_of(state.queue[0]), event.stderr, event.failure and event.failure.message]
    pair = digest(canonical([pair, told]))
    return pair, state.seen[-1:] == (pair,)


def prepare_retry(state: RunState) -> RunState:
    """Return the state after a program that was cut off and is begun once more: it is next."""
    return msgspec.structs.replace(state, phase=Phase.ASKING, passed=True)


def note_names_made(state: RunState, event: ProgramFinished) -> RunState:
    """Return the state with the names that a program made, as far as its source shows.

    The program is still first in the queue. The state also notes that a program ran. It stays as it
    is if the run is not native, the command is no Python, or it was stopped from outside: that left
    the namespace as it was.
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


def note_restart(state: RunState, event: RunResumed | RunForked) -> RunState:
    """Return the state after a resume or fork, with a notice for the model about the restart.

    It lists the last 40 names that are gone, and the first 20 files that could not be kept. The
    state stays as it is if the run is not native, or if no program has run and no file is gone.
    """
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


def add_restart_note(state: RunState) -> RunState:
    """Return the state with the notice of a restart at the end of the prompt, if there is one.

    The earlier request may never have been recorded, so the next one does not refer to it.
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
