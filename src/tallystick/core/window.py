"""What of a run stands in the prompt when the model is asked again."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.core.prompt import Message

__all__ = ["asked_again"]


def asked_again(
    messages: tuple[Message, ...], observed: Sequence[Message], *, afresh: bool
) -> tuple[Message, ...]:
    """The prompt with what came of the last reply at its end.

    `afresh` takes the last reply out at once: what is to be said of it is added to what it was the
    reply to. A model that sees its own mistake copies it.
    """
    text = "\n\n".join(message.text for message in observed)
    parts = "+".join(message.part for message in observed)
    if afresh:
        *earlier, asked, _ = messages
        said = Message(
            role="user",
            part=f"{asked.part}+{parts}",
            text=f"{asked.text}\n\n{text}",
            images=asked.images,
        )
        return (*earlier, said)
    return (*messages, Message(role="user", part=parts, text=text))
