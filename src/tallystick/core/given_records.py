"""What a run was given, as its first record names it: texts, views of them, pictures."""

from __future__ import annotations

from typing import Literal

import msgspec

from tallystick.core.attachment import AttachmentRef

__all__ = ["ContextRef", "InputRef", "TextRef", "ViewRef"]


class ContextRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text the program is given, named by its digest.

    `sample` is what the model is shown; `whole` says that all of the text is in there.
    """

    name: str
    sha256: str
    bytes: int
    chars: int
    sample: str
    whole: bool = False


class TextRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text that stays on the host, as the program's namespace names it."""

    name: str
    key: str | None
    id: int
    bytes: int
    attachment: AttachmentRef | None = None


class InputRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text that was given whole: the variable that holds it, the key if that is a dictionary."""

    name: str
    key: str | None
    attachment: AttachmentRef


class ViewRef(msgspec.Struct, frozen=True, kw_only=True):
    """A text taken apart, as a name that is made when a program uses it.

    `of` is the variable that holds the text, `key` the entry if that is a dictionary. A table has
    its columns in order, each with the kind of its cells; `amount` is a number with separators or a
    currency sign, such as "$1,204.50".
    """

    name: str
    kind: Literal["lines", "table", "json_lines", "json", "numbers"]
    of: str
    key: str | None = None
    delimiter: str = ","
    columns: tuple[tuple[str, Literal["int", "float", "amount", "str"]], ...] = ()
