"""The shell of a session: starts one bash for each command, in the rights of a program.

A command finds the working directory and the exported variables that the one before it left. Both
are told on a descriptor of their own when bash ends, and kept by the host; a command that is ended
from outside leaves them as they were. Background processes go on until the session ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
from typing import Any

from tallystick.sandbox.process.inside import kernel, messages
from tallystick.sandbox.process.inside.confine import set_memory
from tallystick.sandbox.process.inside.layers import WORK

_STATE, _TEXT = 9, 8
_CANNOT_START = 126
# The command is read from a descriptor: an argument may not be long. What it leaves is told when
# bash ends: the directory, then each exported variable. `compgen` lists them; running `env` for it
# would cost a second program.
_AROUND = rf"""
trap '__tally_status=$?
{{ builtin printf "%s\0" "$PWD"
while IFS= builtin read -r __tally_name; do
builtin printf "%s=%s\0" "$__tally_name" "${{!__tally_name}}"
done < <(builtin compgen -e); }} >&{_STATE} 2>/dev/null
exit $__tally_status' EXIT
IFS= builtin read -r -d "" __tally_text <&{_TEXT}
exec {_TEXT}<&-
eval "$__tally_text"
"""


def serve(control: socket.socket) -> None:
    """Start commands as the keeper says. Returns never."""
    kernel.set_name("shell")
    while True:
        try:
            _, descriptors = messages.receive(control)
        except messages.Torn:
            os._exit(0)
        order, text, out, err, state = descriptors
        with open(order, "rb") as file:
            command = json.loads(file.read())
        messages.send(control, {"ended": _run(command, text, out, err, state)})


def _run(command: dict[str, Any], text: int, out: int, err: int, state: int) -> int:
    """Run bash for a command to its end, and say how it ended."""
    try:
        process = _start(command, text, out, err, state)
    except OSError as error:
        os.write(err, f"bash could not be started: {error.strerror}\n".encode())
        return _CANNOT_START
    finally:
        messages.close_quietly([text, out, err, state])
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _start(command: dict[str, Any], text: int, out: int, err: int, state: int) -> int:
    """Start bash. It leads a process group of its own."""
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    where = _place(command["where"])
    os.chdir(where)
    set_memory(command["memory_bytes"])
    # Out of the way of the places that they are put in.
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 20) for each in (text, state)]
    places = [(null, 0), (out, 1), (err, 2), (high[0], _TEXT), (high[1], _STATE)]
    try:
        return os.posix_spawn(
            "/bin/bash",
            ["bash", "--noprofile", "--norc", "-c", _AROUND],
            {**command["environment"], "PWD": where},
            file_actions=[(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in places],
            setpgroup=0,
            setsigdef=[signal.SIGPIPE],
        )
    finally:
        messages.close_quietly([null, *high])
        os.chdir("/")


def _place(where: str) -> str:
    return where if os.path.isdir(where) else WORK
