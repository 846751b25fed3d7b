"""What can go wrong with a vocabulary, sorted as in `tallystick.core.errors`.

UsageError
└── ThesaurusInvalid          a thesaurus file that is none, or contradicts itself
"""

from __future__ import annotations

from tallystick.core.errors import UsageError

__all__ = ["ThesaurusInvalid"]


class ThesaurusInvalid(UsageError):
    """A thesaurus that cannot be used. `line` is where, 0 for the file as a whole."""

    code = "usage.thesaurus"

    def __init__(self, *, name: str, line: int, why: str) -> None:
        place = f", line {line:,}" if line else ""
        super().__init__(f"thesaurus {name[:200]!r}{place}: {why}")
        self.name = name
        self.line = line
        self.why = why
