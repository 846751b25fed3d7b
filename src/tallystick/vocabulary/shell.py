"""What a shell command line uses: the commands in it, found without running it.

The names are the first words of all simple commands: in pipelines and lists, in loops, branches and
functions, in `$(…)`, backquotes, `<(…)` and here-documents, also inside double quotes; behind those
that start another (`sudo`, `env`, `xargs`, `timeout`, `find -exec`); and in what `sh -c`, `eval` or
`trap` is given as a literal. `/usr/bin/git` is `git`; any other path is a name as it stands there.
A command that only a running shell can know (`$tool`) is a name as it is written, so it is never a
known one.

What the shell itself has (`cd`, `echo`) is `standard`; functions that the text defines are `own`.
Words behind a command are data. Aliases and files that are sourced are not followed.

Reading is one pass: what is nested is read where it stands. A text that does not end what it begins
or is nested too deep is not read, whatever stands before: a shell runs a text line by line.
"""

from __future__ import annotations

import re

from tallystick.vocabulary.program import (
    PROGRAM_CHARS_MAX,
    Name,
    Problem,
    Program,
    too_long,
)
from tallystick.vocabulary.shell_command import inner_commands, plain_name, script_of
from tallystick.vocabulary.shell_text import DEPTH_MAX, Cursor, Unreadable
from tallystick.vocabulary.shell_word import Word, WordReader
from tallystick.vocabulary.standard_names import SHELL_BUILTINS

__all__ = ["DEPTH_MAX", "read_shell"]

# Words that begin or go on with something, behind which a command comes; and those that end it.
_LEADS_ON = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "coproc"})
_ENDS = frozenset({"fi", "done", "esac", "}"})
_REDIRECTION = re.compile(r"<<<|<<-?|&>>?|<>|[<>]&|>>|>\||[<>]")
_NO_PARAMETERS = re.compile(r"\([ \t]*\)")
_ESAC = re.compile(r"esac(?=[ \t\r\n;&|<>()]|\Z)")

# Behind a redirection, as behind an assignment, `if` is a command like any other.
_REDIRECTED = Word(raw="_=", literal="_=")


def read_shell(source: str) -> Program:
    """Read a command line or a script; never raises."""
    problem = too_long(source)
    if problem is None:
        found = _Found()
        try:
            _Reader(source, found, depth=0).read()
            return Program(chars=len(source), names=found.names())
        except Unreadable as error:
            problem = error.problem
    return Program(chars=len(source), problem=problem)


class _Found:
    """The commands of a text and of all that is nested in it."""

    def __init__(self) -> None:
        self.commands: dict[str, None] = {}
        self.functions: set[str] = set()
        # Scripts in scripts are read again and again, so that all of them have one limit.
        self._chars_left = PROGRAM_CHARS_MAX

    def pay(self, text: str) -> None:
        self._chars_left -= len(text)
        if self._chars_left < 0:
            why = f"the scripts in it have more than {PROGRAM_CHARS_MAX:,} characters"
            raise Unreadable(Problem("unread", why))

    def names(self) -> tuple[Name, ...]:
        return tuple(map(self._name, self.commands))

    def _name(self, path: str) -> Name:
        if path in self.functions:
            return Name(path, "own")
        return Name(path, "standard" if path in SHELL_BUILTINS else "free")


class _Reader:
    """Reads one text from its beginning. A script in quotes is read by another."""

    def __init__(self, text: str, found: _Found, *, depth: int) -> None:
        self._found = found
        self._cursor = Cursor(text, depth=depth)
        self._words = WordReader(
            self._cursor, commands=lambda: self._list(")"), script=self._script
        )
        # Here-documents whose text begins on the next line: end, whether quoted, whether indented.
        self._documents: list[tuple[str, bool, bool]] = []

    def read(self) -> None:
        self._list("")

    def read_quoted(self) -> None:
        """Read a text in which only substitutions count."""
        self._cursor.deeper()
        while not self._cursor.ended:
            self._words.part_in_quotes()

    def _script(self, text: str) -> None:
        self._found.pay(text)
        _Reader(text, self._found, depth=self._cursor.depth).read()

    # -- lists and commands ------------------------------------------------------------------------

    def _list(self, closer: str) -> None:
        """Commands up to `closer`: `)`, `;;` (or `esac`), or, if it is empty, the end of the text.

        What closes them is left to the caller.
        """
        cursor = self._cursor
        cursor.deeper()
        words: list[Word] = []
        while True:
            cursor.blanks()
            if cursor.ended or self._closes(closer, words):
                break
            if cursor.sees_word():
                self._take(words)
            elif cursor.here == "(":
                self._parenthesis(words)
            elif cursor.here in "<>" or cursor.sees("&>"):
                self._redirection()
                words.append(_REDIRECTED)
            else:
                self._separator(words)
        self._command(words)
        if closer:
            cursor.need(closer)
        cursor.depth -= 1

    def _closes(self, closer: str, words: list[Word]) -> bool:
        cursor = self._cursor
        if closer == ";;":
            ends = not words and _ESAC.match(cursor.text, cursor.at) is not None
            return ends or cursor.sees(";;", ";&")
        return closer == ")" and cursor.here == ")"

    def _separator(self, words: list[Word]) -> None:
        """The end of a line, `;`, `&`, `|`, or a `)` that closes nothing."""
        self._command(words)
        self._cursor.at += 1
        if self._cursor.text[self._cursor.at - 1] == "\n":
            self._read_documents()

    def _take(self, words: list[Word]) -> None:
        """A word of a command, or one that leads to or ends commands."""
        cursor = self._cursor
        word = self._words.word()
        keyword = "" if words or word.quoted else word.raw
        if keyword == "case":
            self._case()
        elif keyword == "[[":
            self._test()
        elif keyword == "function":
            cursor.blanks()
            self._found.functions.add(self._words.word().raw)
        elif keyword in _LEADS_ON or keyword in _ENDS:
            return
        elif not (word.raw.isdigit() and cursor.sees("<", ">")):
            # Digits before a redirection are the stream it is of.
            words.append(word)

    def _command(self, words: list[Word]) -> None:
        """The end of a simple command: note it, and what it starts."""
        if not words:
            return
        waiting = [(tuple(words), 0)]
        words.clear()
        while waiting:
            command, level = waiting.pop(0)
            first = next((at for at, word in enumerate(command) if not word.assigns), None)
            if first is None:
                continue
            self._check_level(level)
            name, rest = plain_name(command[first]), command[first + 1 :]
            self._found.commands[name] = None
            script = script_of(name, rest)
            if script is not None and script.literal is not None:
                self._script(script.literal)
            elif script is not None:
                self._found.commands[script.raw] = None
            waiting.extend((each, level + 1) for each in inner_commands(name, rest))

    def _check_level(self, level: int) -> None:
        """A command that starts one that starts one … is nested, too."""
        cursor = self._cursor
        depth, cursor.depth = cursor.depth, cursor.depth + level - 1
        cursor.deeper()
        cursor.depth = depth

    def _parenthesis(self, words: list[Word]) -> None:
        cursor = self._cursor
        if cursor.sees("(("):
            cursor.at += 2
            self._words.arithmetic()
        elif len(words) == 1 and (empty := _NO_PARAMETERS.match(cursor.text, cursor.at)):
            self._found.functions.add(words.pop().raw)
            cursor.at = empty.end()
        else:
            cursor.at += 1
            self._list(")")
            cursor.at += 1

    def _case(self) -> None:
        """From behind `case` to behind its `esac`."""
        cursor = self._cursor
        cursor.deeper()
        while self._pattern_word() != "in":
            cursor.need("in")
        while True:
            cursor.space()
            if (esac := _ESAC.match(cursor.text, cursor.at)) is not None:
                cursor.at = esac.end()
                break
            while self._pattern_word() != ")":
                cursor.need("esac")
            self._list(";;")
            while cursor.sees(";", "&"):
                cursor.at += 1
        cursor.depth -= 1

    def _pattern_word(self) -> str:
        """The next word, or sign, where there are no commands; empty at the end."""
        cursor = self._cursor
        cursor.space()
        if cursor.sees_word():
            return self._words.word().raw
        cursor.at += 1
        return cursor.text[cursor.at - 1 : cursor.at]

    def _test(self) -> None:
        """Between `[[` and `]]`, where `<`, `&&` and parentheses compare and group."""
        while self._pattern_word() != "]]":
            self._cursor.need("]]")

    # -- redirections ------------------------------------------------------------------------------

    def _redirection(self) -> None:
        cursor = self._cursor
        sign = _REDIRECTION.match(cursor.text, cursor.at)
        cursor.at += len(sign[0]) if sign is not None else 1
        cursor.blanks()
        if sign is None or not cursor.sees_word():
            return
        target = self._words.word()
        if sign[0] in ("<<", "<<-"):
            end = target.raw if target.literal is None else target.literal
            self._documents.append((end, target.quoted, sign[0] == "<<-"))

    def _read_documents(self) -> None:
        """The here-documents that were announced on the line before."""
        cursor = self._cursor
        waiting, self._documents = self._documents, []
        for end, quoted, indented in waiting:
            start = cursor.at
            while True:
                cursor.need(f"the end of <<{end[:40]}")
                stop = cursor.text.find("\n", cursor.at)
                stop = len(cursor.text) if stop < 0 else stop
                line = cursor.text[cursor.at : stop]
                if (line.lstrip("\t") if indented else line) == end:
                    break
                cursor.at = stop + 1
            body = cursor.text[start : cursor.at]
            cursor.at = min(stop + 1, len(cursor.text))
            if not quoted:
                self._found.pay(body)
                _Reader(body, self._found, depth=cursor.depth).read_quoted()
