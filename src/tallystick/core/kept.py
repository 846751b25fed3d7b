"""What left the prompt of a run: texts that programs find in `outputs`, and turns."""

from __future__ import annotations

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.prompt import Message

__all__ = ["KeptText", "Output", "Past"]


class KeptText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that the records have and the prompt has not. The same pieces may be in several."""

    label: str
    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        return "".join(self.pieces)


# What programs find in `outputs`, by its place.
Output = AttachmentRef | KeptText


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The turns that left the prompt whole: how many, all of them as text, the names they made.

    `task` is the message they came after, as it was while they stood there.
    """

    task: Message
    turns: int = 0
    pieces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
