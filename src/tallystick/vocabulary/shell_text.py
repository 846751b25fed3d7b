"""A shell text and how far it was read; and what ends the reading before its end."""

from __future__ import annotations

from tallystick.vocabulary.program import Problem

__all__ = ["DEPTH_MAX", "ENDS_WORD", "Cursor", "Unreadable"]

DEPTH_MAX = 32
ENDS_WORD = frozenset(" \t\r\n;&|<>()")
_BLANKS = frozenset(" \t\r")


class Unreadable(Exception):
    """The text does not end what it begins, or is nested too deep."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.why)
        self.problem = problem


class Cursor:
    """A place in a text. What is nested in it is one deeper."""

    def __init__(self, text: str, *, depth: int) -> None:
        self.text = text
        self.at = 0
        self.depth = depth

    @property
    def ended(self) -> bool:
        return self.at >= len(self.text)

    @property
    def here(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def sees(self, *begins: str) -> bool:
        return self.text.startswith(begins, self.at)

    def sees_word(self) -> bool:
        """Whether a word begins here: no blank and no operator, but for `<(` and `>(`."""
        return not self.ended and (self.here not in ENDS_WORD or self.sees("<(", ">("))

    def blanks(self) -> None:
        """Pass over blanks, continued lines and a comment."""
        while not self.ended:
            if self.here in _BLANKS:
                self.at += 1
            elif self.sees("\\\n"):
                self.at += 2
            elif self.sees("#"):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def space(self) -> None:
        """Pass over blanks, comments and the ends of lines."""
        self.blanks()
        while self.sees("\n"):
            self.at += 1
            self.blanks()

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            why = f"it is nested deeper than {DEPTH_MAX} levels"
            raise Unreadable(Problem("unread", why))

    def need(self, what: str) -> None:
        """End the reading if there is nothing more, and so no `what`."""
        if self.ended:
            line = self.text.count("\n") + 1
            raise Unreadable(Problem("unread", f"line {line:,}: {what} is missing"))
