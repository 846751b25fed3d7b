"""Commands of a reply as programs, and in the form the model is asked to write them."""

from __future__ import annotations

from tallystick.core.reply import Code, Command, Final, FinalVar, Rollback, Run, Snapshot, fenced

__all__ = ["as_program", "command_name", "is_native", "is_program", "shown"]

# What only a run has whose programs run natively.
_Native = Run | Snapshot | Rollback


def shown(command: Command, *, native: bool = False) -> str:
    """A command in the form the model is asked to write."""
    if isinstance(command, Code):
        return fenced(command.source)
    if native and isinstance(command, Run):
        return fenced(command.command, "bash")
    if native and isinstance(command, Snapshot | Rollback):
        return f"{command_name(command)}({command.name})"
    if isinstance(command, Final):
        return f"FINAL({command.text})"
    return fenced(as_program(command)) if isinstance(command, FinalVar) else command_name(command)


def command_name(command: Command) -> str:
    """The word a command is given by."""
    return str(command.__struct_config__.tag).upper()


def as_program(command: Command) -> str:
    """A command as the program that does it; one of a native session as what it is about.

    `FINAL(total)` outside a block names a variable more often than the word: the program knows.
    """
    if isinstance(command, Code):
        return command.source
    if isinstance(command, Run):
        return command.command
    if isinstance(command, Snapshot | Rollback):
        return command.name
    if isinstance(command, FinalVar):
        return f"FINAL_VAR({command.name!r})"
    assert isinstance(command, Final)
    return f"FINAL(globals().get({command.text!r}, {command.text!r}))"


def is_native(command: Command) -> bool:
    """Whether a command needs a shell, or files."""
    return isinstance(command, _Native)


def is_program(command: Command, *, native: bool = False) -> bool:
    """Whether a command is carried out by running something."""
    if native and is_native(command):
        return True
    if isinstance(command, Final):
        return command.text.isidentifier()
    return isinstance(command, Code | FinalVar)
