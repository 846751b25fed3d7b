"""Pictures of a request, read from the attachments where the request leaves, and nowhere before."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.prompt import Image, Message

__all__ = ["with_pictures"]


def with_pictures(
    messages: tuple[Message, ...], read: Callable[[AttachmentRef], bytes]
) -> tuple[Message, ...]:
    """The messages with the bytes of every picture. One that is missing fails the request."""
    return tuple(
        msgspec.structs.replace(each, images=tuple(_read(image, read) for image in each.images))
        if each.images
        else each
        for each in messages
    )


def _read(image: Image, read: Callable[[AttachmentRef], bytes]) -> Image:
    if image.ref is None or image.data:
        return image
    return Image(media_type=image.ref.media_type, data=read(image.ref), ref=image.ref)
