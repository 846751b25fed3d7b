"""Problems: what is wrong with a skill, as it is shown to whoever has to put it right."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Level", "Problem"]

Level = Literal["error", "warning"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. With an error a skill cannot be used; with a warning it can.

    `code` is stable and dotted, `message` one line that is safe to print.
    """

    level: Level
    code: str
    message: str
