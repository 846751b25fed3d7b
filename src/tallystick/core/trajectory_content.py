"""The texts of a run as trajectory events give them: whole, cut, or left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tallystick.core.attachment import AttachmentRef
from tallystick.core.canonical import digest
from tallystick.core.step_records import written

__all__ = ["CHARS_MAX", "REDACTED", "Content", "Shown"]

# What is kept of a content, unless all of it is asked for.
CHARS_MAX = 10_000
# What stands in the place of a text that is not to be shown.
REDACTED = "<redacted>"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A text of a run. `sha256` and the counts are of all of it, in UTF-8; `cut` says that more is.

    `text` is None where the bytes are kept apart and are not here; then nobody counted characters.
    """

    text: str | None
    chars: int | None
    bytes: int
    sha256: str
    cut: bool = False


def _nowhere(ref: AttachmentRef) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How content is given. Without `chars_max` it is whole; `text_of` reads what is kept apart.

    What is redacted keeps its counts and its digest. Of a short text, whoever guesses it can say
    so by the digest.
    """

    redact: bool = False
    chars_max: int | None = CHARS_MAX
    text_of: Callable[[AttachmentRef], str | None] = _nowhere

    def content(self, text: str) -> Content:
        """A text that is there."""
        raw = text.encode("utf-8", "surrogatepass")
        return Content(
            text=self._text(text),
            chars=len(text),
            bytes=len(raw),
            sha256=digest(raw),
            cut=self._is_cut(text),
        )

    def optional(self, text: str | None) -> Content | None:
        """A text, if there is one."""
        return None if text is None else self.content(text)

    def kept(self, text: str, ref: AttachmentRef | None) -> Content:
        """A text, kept apart if there is a reference to it."""
        if ref is None:
            return self.content(text)
        found = None if self.redact else self.text_of(ref)
        if found is None:
            text_or_mark = REDACTED if self.redact else None
            return Content(text=text_or_mark, chars=None, bytes=ref.byte_len, sha256=ref.id)
        return Content(
            text=self._text(found),
            chars=len(found),
            bytes=ref.byte_len,
            sha256=ref.id,
            cut=self._is_cut(found),
        )

    def _text(self, text: str) -> str:
        if self.redact:
            return REDACTED
        # Half of a surrogate pair has no bytes in JSON.
        return written(text if self.chars_max is None else text[: self.chars_max])

    def _is_cut(self, text: str) -> bool:
        return not self.redact and self.chars_max is not None and len(text) > self.chars_max
