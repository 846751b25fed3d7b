"""Commands of a reply as programs, and in the form the model is asked to write them."""

from __future__ import annotations

from tallystick.core.reply import Code, Command, Final, FinalVar, fenced

__all__ = ["as_program", "command_name", "is_program", "shown"]


def shown(command: Command) -> str:
    """A command in the form the model is asked to write."""
    if isinstance(command, Code):
        return fenced(command.source)
    if isinstance(command, Final):
        return f"FINAL({command.text})"
    return fenced(as_program(command)) if isinstance(command, FinalVar) else command_name(command)


def command_name(command: Command) -> str:
    """The word a command is given by."""
    return str(command.__struct_config__.tag).upper()


def as_program(command: Command) -> str:
    """A finishing command as the program that does it.

    `FINAL(total)` outside a block names a variable more often than the word: the program knows.
    """
    if isinstance(command, FinalVar):
        return f"FINAL_VAR({command.name!r})"
    assert isinstance(command, Final)
    return f"FINAL(globals().get({command.text!r}, {command.text!r}))"


def is_program(command: Command) -> bool:
    """Whether a command is carried out by running something."""
    if isinstance(command, Final):
        return command.text.isidentifier()
    return isinstance(command, Code | FinalVar)
