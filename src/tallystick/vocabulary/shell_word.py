"""Words of a shell text: what each is once its quotes are gone, if that can be known.

The commands inside of a word are read where they stand: by `commands`, up to a `)`, or by `script`
for what has to be unquoted first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tallystick.vocabulary.shell_text import Cursor

__all__ = ["Word", "WordReader"]

_PLAIN = re.compile(r"[^ \t\r\n;&|<>()'\"\\$`]+")
_QUOTED = re.compile(r'[^"\\$`]+')
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?!$-])")
_SINGLE = re.compile(r"'([^']*)'")
_ESCAPED = re.compile(r"\$'(?:[^'\\]|\\.)*+'", re.DOTALL)
_BACKQUOTED = re.compile(r"`((?:[^`\\]|\\.)*+)`", re.DOTALL)
_UNQUOTED = re.compile(r"\\([`\\$])")
_ASSIGNS = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word as it stands there, and as the shell reads it; None if only a shell can know."""

    raw: str
    literal: str | None
    quoted: bool = False

    @property
    def assigns(self) -> bool:
        return _ASSIGNS.match(self.raw) is not None


class WordReader:
    """Reads words where the cursor stands."""

    def __init__(
        self, cursor: Cursor, *, commands: Callable[[], None], script: Callable[[str], None]
    ) -> None:
        self._cursor = cursor
        self._commands = commands
        self._script = script

    def word(self) -> Word:
        """A word, up to a blank or an operator. There is one if `Cursor.sees_word`."""
        cursor = self._cursor
        start = cursor.at
        parts: list[str | None] = []
        quoted = False
        while not cursor.ended:
            if (plain := _PLAIN.match(cursor.text, cursor.at)) is not None:
                parts.append(plain[0])
                cursor.at = plain.end()
            elif cursor.here in "'\"\\":
                parts.append(self._quotes())
                quoted = True
            elif cursor.here in "$`":
                parts.append(self._expansion())
            elif cursor.sees("<(", ">("):
                self._substitution(2)
                parts.append(None)
            elif cursor.sees("(") and cursor.at > start and cursor.text[cursor.at - 1] in "=?*+@!":
                self._values()
                parts.append(None)
            else:
                break
        known = [part for part in parts if part is not None]
        literal = "".join(known) if len(known) == len(parts) else None
        return Word(raw=cursor.text[start : cursor.at], literal=literal, quoted=quoted)

    def part_in_quotes(self) -> str | None:
        """The next part of a text in which only `$`, backquotes and backslashes count."""
        cursor = self._cursor
        if (plain := _QUOTED.match(cursor.text, cursor.at)) is not None:
            cursor.at = plain.end()
            return plain[0]
        if cursor.here in "$`":
            return self._expansion(quoted=True)
        cursor.at += 1
        if cursor.text[cursor.at - 1] != "\\":
            return '"'
        escaped = cursor.here
        cursor.at += 1
        if escaped == "\n":
            return ""
        return escaped if escaped in ("$", "`", '"', "\\") else f"\\{escaped}"

    def arithmetic(self) -> None:
        """Pass over what is computed, up to its `))`, and read the commands in it."""
        self._until("))")

    def _quotes(self) -> str | None:
        cursor = self._cursor
        if cursor.here == '"':
            return self._double_quotes()
        if cursor.here == "\\":
            escaped = cursor.text[cursor.at + 1 : cursor.at + 2]
            cursor.at += 2
            return escaped.replace("\n", "")
        return self._whole(_SINGLE, "'")[1]

    def _double_quotes(self) -> str | None:
        """What stands between double quotes; None if something in it is computed."""
        cursor = self._cursor
        cursor.at += 1
        parts: list[str | None] = []
        while not cursor.sees('"'):
            cursor.need('"')
            parts.append(self.part_in_quotes())
        cursor.at += 1
        known = [part for part in parts if part is not None]
        return "".join(known) if len(known) == len(parts) else None

    def _expansion(self, *, quoted: bool = False) -> str | None:
        """Pass over what begins with `$` or a backquote. A lone `$` stands for itself."""
        cursor = self._cursor
        if cursor.sees("`"):
            self._script(_UNQUOTED.sub(r"\1", self._whole(_BACKQUOTED, "`")[1]))
        elif cursor.sees("$(("):
            cursor.at += 3
            self.arithmetic()
        elif cursor.sees("$("):
            self._substitution(2)
        elif cursor.sees("${"):
            cursor.at += 2
            self._until("}", quoted=quoted)
        elif cursor.sees("$'") and not quoted:
            self._whole(_ESCAPED, "'")
        elif (variable := _VARIABLE.match(cursor.text, cursor.at)) is not None:
            cursor.at = variable.end()
        else:
            cursor.at += 1
            return "$"
        return None

    def _substitution(self, opening: int) -> None:
        self._cursor.at += opening
        self._commands()
        self._cursor.at += 1

    def _values(self) -> None:
        """The values of an array, or a pattern: up to `)`, and none of them is a command."""
        cursor = self._cursor
        cursor.deeper()
        cursor.at += 1
        while True:
            cursor.space()
            cursor.need(")")
            if cursor.sees(")"):
                break
            if cursor.sees("("):
                self._values()
            elif cursor.sees_word():
                self.word()
            else:
                cursor.at += 1
        cursor.at += 1
        cursor.depth -= 1

    def _until(self, end: str, *, quoted: bool = False) -> None:
        """Pass over a value (`}`) or an arithmetic expression (`))`)."""
        cursor = self._cursor
        cursor.deeper()
        opening, closing = ("", "}") if end == "}" else ("(", ")")
        open_ = len(end)
        while open_:
            cursor.need(end)
            if cursor.here == "'" and end == "}" and not quoted:
                self._whole(_SINGLE, "'")
            elif cursor.here == '"':
                self._double_quotes()
            elif cursor.here == "\\":
                cursor.at += 2
            elif cursor.here in "$`":
                self._expansion(quoted=quoted)
            else:
                open_ += (cursor.here == opening) - (cursor.here == closing)
                cursor.at += 1
        cursor.depth -= 1

    def _whole(self, pattern: re.Pattern[str], end: str) -> re.Match[str]:
        """Pass over a part that has an end, which has to be there."""
        cursor = self._cursor
        found = pattern.match(cursor.text, cursor.at)
        if found is None:
            cursor.at = len(cursor.text)
            cursor.need(end)
        assert found is not None
        cursor.at = found.end()
        return found
