"""One text or picture that a run is given, as a request for a run names it.

How inputs are laid out for programs, described to the model, kept and cited is the capability of
`tallystick.inputs`. The runtime hands them through and asks for their names alone.
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
    """One text, or picture, and the name it came under. A text has no `media_type`.

    A long one has a `path`: its text is that file, which others may change. `variable` is where
    programs find it, `encoding` what its file was in, if that is not UTF-8.
    """

    name: str
    text: HostText
    media_type: str | None = None
    path: Path | None = None
    variable: str = CONTEXT
    encoding: str = UTF_8

    @property
    def is_picture(self) -> bool:
        return self.media_type in PICTURES


def given_text(text: str, *, name: str | None = None, variable: str = CONTEXT) -> Input:
    """A text that is there already, for programs in `variable`.

    Several in one variable are a dictionary there, each under its `name`.
    """
    check_variables([variable])
    called = variable if name is None else name
    return Input(name=called, text=HostText.of(text), variable=variable)
