"""What a ledger holds of programs that run natively: their files, kept, and what they reached for.

Such a program cannot be run again on recorded answers: it is an effect, served where it is
recorded. So what it left behind is kept itself, and every attempt to leave its box is written down.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.attachment import AttachmentRef

__all__ = ["FilesKept", "NativeRecord", "NetworkAttempted", "ProgramKind"]

# What is run: a program, a command of the shell, or what is done to the session's state.
ProgramKind = Literal["python", "bash", "snapshot", "rollback"]


class FilesKept(msgspec.Struct, frozen=True, kw_only=True, tag="files.kept", omit_defaults=True):
    """The working directory after a program, with the shell's directory and exported variables.

    It is written where one of them has changed, with the end of the program. `archive` says all of
    it, and has the contents that no earlier one of the run has; None if nothing could be kept, and
    `problem` says why. `left_out` are the first of the paths that do not stand in it, `left_out_of`
    how many there are.
    """

    intent: int
    turn: int
    archive: AttachmentRef | None
    left_out: tuple[str, ...] = ()
    left_out_of: int = 0
    problem: str = ""


class NetworkAttempted(
    msgspec.Struct, frozen=True, kw_only=True, tag="network.attempted", omit_defaults=True
):
    """A program tried to reach something. Written before it is let through.

    `outcome` is allowed, refused, or failed for one that was allowed before. `address` is the one
    that the name had, and that it was let through to.
    """

    program: int
    host: str
    port: int
    method: str
    outcome: str
    why: str = ""
    address: str | None = None


NativeRecord = FilesKept | NetworkAttempted
