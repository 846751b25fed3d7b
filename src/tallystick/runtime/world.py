"""What a driver needs of everything outside it, and how that reports back."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tallystick.core.machine import RunState
from tallystick.core.prompt import Message
from tallystick.core.records import (
    AskModel,
    FilesKept,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    NetworkAttempted,
    ProgramFinished,
    RunProgram,
    SnapshotTaken,
)
from tallystick.runtime.pen import Writing
from tallystick.runtime.together import QueryWriter

__all__ = ["Asked", "CallRefused", "Kept", "WaitedTooLong", "World"]

# What is kept after a program.
Kept = SnapshotTaken | FilesKept


class Asked(Protocol):
    """How a world reports the host calls of a program it runs."""

    def calling(self, *, index: int, name: str, request_sha256: str, effect: bool) -> int:
        """Note that a call is about to be served. Returns its intent.

        Waits until an effect is on the disk.
        """
        ...

    def again(self, intent: int, *, index: int, name: str, request_sha256: str) -> None:
        """Note that an effect whose outcome nobody knows is begun once more."""
        ...

    def answered(self, answered: HostAnswered) -> Writing:
        """Note what it was answered. Of an effect that is to be committed before it is told."""
        ...

    def attempted(self, attempt: NetworkAttempted) -> None:
        """Note that a program tries to reach something. Waits until that is committed."""
        ...

    @property
    def queries(self) -> QueryWriter:
        """Where the model calls of the program are written."""
        ...


class WaitedTooLong(Exception):
    """The run's time was over before the model could be asked."""


class CallRefused(Exception):
    """No budget pays for the call: it is not made."""

    def __init__(self, event: ModelRefused) -> None:
        super().__init__(event.message)
        self.event = event


class World(Protocol):
    """What a driver needs of everything outside it."""

    def admitted(
        self, intent: AskModel, messages: tuple[Message, ...], *, model: str, wall_ms_left: int
    ) -> AbstractAsyncContextManager[AskModel]:
        """Wait until the model may be asked, and reserve what that may cost.

        Gives the intent as it is to be written, with what is reserved and the cap that it pays for.
        Raises `WaitedTooLong` or `CallRefused`. Nothing is begun yet.
        """
        ...

    async def ask(
        self, intent: AskModel, messages: tuple[Message, ...], *, wall_ms_left: int
    ) -> ModelReplied | ModelFailed: ...

    def left(self, intent: AskModel, *, sent: bool) -> ModelFailed:
        """What is written of a call that was left in the middle, by a cancel."""
        ...

    async def run(
        self, intent: RunProgram, source: str, asked: Asked, *, state: RunState
    ) -> ProgramFinished: ...

    def check_begun(self, intent: RunProgram) -> None:
        """Raise what ended the run before a program of it was begun, if something did."""
        ...

    def left_program(self, intent: RunProgram) -> ProgramFinished:
        """What is written of a native program that was left in the middle, by a cancel."""
        ...

    async def kept(self, finished: ProgramFinished, *, state: RunState) -> Kept | None:
        """What a program leaves, if it is worth keeping: its interpreter, or its files."""
        ...
