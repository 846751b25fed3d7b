"""Define an input of a run: one text or picture.

The package `tallystick.inputs` lays inputs out for programs, describes them to the model, stores
and cites them. The runtime passes them on, and reads only the names of their variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick.runtime.context.namespace import CONTEXT, check_variables
from tallystick.sandbox.text import HostText

# The encoding of a file that needs no decoding.
UTF_8 = ""
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One text or picture, and its name. A text has no `media_type`.

    If `path` is set, `text` reads that file, which other processes may change. `variable` is the
    variable of programs. `encoding` is that of the file, `UTF_8` if it was not decoded.
    """

    name: str
    text: HostText
    media_type: str | None = None
    path: Path | None = None
    variable: str = CONTEXT
    encoding: str = UTF_8

    @property
    def is_picture(self) -> bool:
        """True for PNG, JPEG, GIF and WebP."""
        return self.media_type in PICTURES


def given_text(text: str, *, name: str | None = None, variable: str = CONTEXT) -> Input:
    """Return a text in memory as an input for programs, in `variable`.

    Several texts in one variable are a dictionary, each under its `name`; without one, the name is
    that of the variable. Raise `UsageError` if programs cannot have a variable of that name.
    """
    check_variables([variable])
    called = variable if name is None else name
    return Input(name=called, text=HostText.of(text), variable=variable)
