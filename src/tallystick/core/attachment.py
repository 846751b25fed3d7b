"""What a record says instead of bytes: a reference to an attachment."""

from __future__ import annotations

import msgspec

__all__ = ["AttachmentRef"]


class AttachmentRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes by their name, and what they are taken for.

    `id` and `byte_len` come from the bytes. `media_type` is the declared one unless the bytes show
    another; then `declared` holds what was said of them.
    """

    id: str
    media_type: str
    byte_len: int
    width: int | None = None
    height: int | None = None
    label: str | None = None
    declared: str | None = None
