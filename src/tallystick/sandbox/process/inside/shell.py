"""The shell of a session: start one bash for each command, with the rights of a program.

A command finds the directory and the exported variables that the last one left. At its end, bash
writes both to a descriptor of their own, and the host keeps them. A command that is stopped from
outside leaves them as they were. Background processes continue until the session ends.
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
# The command is read from a descriptor, because the length of an argument is limited. When bash
# ends, it writes the directory and then each exported variable. `compgen` lists those; to run `env`
# for that would start a second program.
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
    """Run the commands that the keeper sends, one after another. Never return."""
    kernel.set_name("shell")
    while True:
        try:
            _, descriptors = messages.receive(control)
        except messages.ConnectionLost:
            os._exit(0)
        order, text, out, err, state = descriptors
        with open(order, "rb") as file:
            command = json.loads(file.read())
        messages.send(control, {"ended": _run(command, text, out, err, state)})


def _run(command: dict[str, Any], text: int, out: int, err: int, state: int) -> int:
    """Run bash for a command. Return its exit code, or minus the signal that ended it.

    If bash cannot be started, write why to the command's stderr, and return 126.
    """
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
    """Start bash in a process group of its own. Return its process id. Raise `OSError` if it fails.

    A directory that is gone is replaced by the working directory.
    """
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    where = _place(command["where"])
    os.chdir(where)
    set_memory(command["memory_bytes"])
    # First moved above 20, so that they do not overlap the numbers that they get in bash.
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
