"""Find the commands in a shell command line, without running it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tallystick.vocabulary.program import (
    PROGRAM_CHARS_MAX,
    Name,
    Problem,
    Program,
    too_long,
)
from tallystick.vocabulary.python_names import SHELL_BUILTINS

# A shell text and the position in it; and the error that ends the reading early.


DEPTH_MAX = 32
ENDS_WORD = frozenset(" \t\r\n;&|<>()")
_BLANKS = frozenset(" \t\r")


class Unreadable(Exception):
    """The text does not end what it begins, or is nested too deep. `problem` says which."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.why)
        self.problem = problem


class Cursor:
    """A position in a text. `depth` counts what it is nested in."""

    def __init__(self, text: str, *, depth: int) -> None:
        self.text = text
        self.at = 0
        self.depth = depth

    @property
    def ended(self) -> bool:
        """True at the end of the text."""
        return self.at >= len(self.text)

    @property
    def here(self) -> str:
        """The next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def at_any(self, *begins: str) -> bool:
        """Return True if one of these texts begins at the cursor."""
        return self.text.startswith(begins, self.at)

    def at_word(self) -> bool:
        """Return True if a word begins here: no blank and no operator, except `<(` and `>(`."""
        return not self.ended and (self.here not in ENDS_WORD or self.at_any("<(", ">("))

    def skip_blanks(self) -> None:
        """Pass over blanks, continued lines and comments, to before the end of the line."""
        while not self.ended:
            if self.here in _BLANKS:
                self.at += 1
            elif self.at_any("\\\n"):
                self.at += 2
            elif self.at_any("#"):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def skip_space(self) -> None:
        """Pass over blanks, comments and the ends of lines."""
        self.skip_blanks()
        while self.at_any("\n"):
            self.at += 1
            self.skip_blanks()

    def enter(self) -> None:
        """Count one level more; raise `Unreadable` beyond 32."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            why = f"it is nested deeper than {DEPTH_MAX} levels"
            raise Unreadable(Problem("unread", why))

    def require(self, what: str) -> None:
        """Raise `Unreadable` at the end of the text, where `what` would be needed."""
        if self.ended:
            line = self.text.count("\n") + 1
            raise Unreadable(Problem("unread", f"line {line:,}: {what} is missing"))


# Words of a shell text, and their values without quotes, if those can be known.
#
# The commands inside of a word are read in place: by `commands`, up to a `)`, or by `script` if
# they have to be unquoted first.


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
    """A word as it is written, and as the shell reads it: None if only a shell can know."""

    raw: str
    literal: str | None
    quoted: bool = False

    @property
    def assigns(self) -> bool:
        return _ASSIGNS.match(self.raw) is not None


class WordReader:
    """Reads words at the cursor.

    Commands inside of a word are passed on: `commands` reads them at the cursor up to a `)`, and
    `script` takes those that have to be unquoted first. A method raises `Unreadable` if what it
    reads does not end, or is nested too deep.
    """

    def __init__(
        self, cursor: Cursor, *, commands: Callable[[], None], script: Callable[[str], None]
    ) -> None:
        self._cursor = cursor
        self._commands = commands
        self._script = script

    def read_word(self) -> Word:
        """Read a word, up to a blank or an operator. There is one if `Cursor.at_word`.

        Commands inside of it are read too. Its literal is None if a part can only be known by a
        shell.
        """
        cursor = self._cursor
        start = cursor.at
        parts: list[str | None] = []
        quoted = False
        while not cursor.ended:
            if (plain := _PLAIN.match(cursor.text, cursor.at)) is not None:
                parts.append(plain[0])
                cursor.at = plain.end()
            elif cursor.here in "'\"\\":
                parts.append(self._read_quotes())
                quoted = True
            elif cursor.here in "$`":
                parts.append(self._skip_expansion())
            elif cursor.at_any("<(", ">("):
                self._skip_substitution(2)
                parts.append(None)
            elif (
                cursor.at_any("(") and cursor.at > start and cursor.text[cursor.at - 1] in "=?*+@!"
            ):
                self._skip_values()
                parts.append(None)
            else:
                break
        known = [part for part in parts if part is not None]
        literal = "".join(known) if len(known) == len(parts) else None
        return Word(raw=cursor.text[start : cursor.at], literal=literal, quoted=quoted)

    def read_quoted_part(self) -> str | None:
        """Read the next part of a text in which only `$`, backquotes and backslashes count.

        Return it as the shell reads it, None if only a shell can know.
        """
        cursor = self._cursor
        if (plain := _QUOTED.match(cursor.text, cursor.at)) is not None:
            cursor.at = plain.end()
            return plain[0]
        if cursor.here in "$`":
            return self._skip_expansion(quoted=True)
        cursor.at += 1
        if cursor.text[cursor.at - 1] != "\\":
            return '"'
        escaped = cursor.here
        cursor.at += 1
        if escaped == "\n":
            return ""
        return escaped if escaped in ("$", "`", '"', "\\") else f"\\{escaped}"

    def skip_arithmetic(self) -> None:
        """Pass over an arithmetic expression, up to its `))`, and read the commands in it."""
        self._skip_until("))")

    def _read_quotes(self) -> str | None:
        cursor = self._cursor
        if cursor.here == '"':
            return self._read_double_quotes()
        if cursor.here == "\\":
            escaped = cursor.text[cursor.at + 1 : cursor.at + 2]
            cursor.at += 2
            return escaped.replace("\n", "")
        return self._match(_SINGLE, "'")[1]

    def _read_double_quotes(self) -> str | None:
        """Return the text between double quotes; None if something in it is computed."""
        cursor = self._cursor
        cursor.at += 1
        parts: list[str | None] = []
        while not cursor.at_any('"'):
            cursor.require('"')
            parts.append(self.read_quoted_part())
        cursor.at += 1
        known = [part for part in parts if part is not None]
        return "".join(known) if len(known) == len(parts) else None

    def _skip_expansion(self, *, quoted: bool = False) -> str | None:
        """Pass over what begins with `$` or a backquote.

        Return "$" for a lone `$`, which is literal, and None for all else.
        """
        cursor = self._cursor
        if cursor.at_any("`"):
            self._script(_UNQUOTED.sub(r"\1", self._match(_BACKQUOTED, "`")[1]))
        elif cursor.at_any("$(("):
            cursor.at += 3
            self.skip_arithmetic()
        elif cursor.at_any("$("):
            self._skip_substitution(2)
        elif cursor.at_any("${"):
            cursor.at += 2
            self._skip_until("}", quoted=quoted)
        elif cursor.at_any("$'") and not quoted:
            self._match(_ESCAPED, "'")
        elif (variable := _VARIABLE.match(cursor.text, cursor.at)) is not None:
            cursor.at = variable.end()
        else:
            cursor.at += 1
            return "$"
        return None

    def _skip_substitution(self, opening: int) -> None:
        self._cursor.at += opening
        self._commands()
        self._cursor.at += 1

    def _skip_values(self) -> None:
        """Pass over the values of an array, or a pattern, up to its `)`.

        None of them is a command.
        """
        cursor = self._cursor
        cursor.enter()
        cursor.at += 1
        while True:
            cursor.skip_space()
            cursor.require(")")
            if cursor.at_any(")"):
                break
            if cursor.at_any("("):
                self._skip_values()
            elif cursor.at_word():
                self.read_word()
            else:
                cursor.at += 1
        cursor.at += 1
        cursor.depth -= 1

    def _skip_until(self, end: str, *, quoted: bool = False) -> None:
        """Pass over a value (`}`) or an arithmetic expression (`))`).

        The cursor is after its beginning, and ends after `end`. Commands in it are read.
        """
        cursor = self._cursor
        cursor.enter()
        opening, closing = ("", "}") if end == "}" else ("(", ")")
        open_ = len(end)
        while open_:
            cursor.require(end)
            if cursor.here == "'" and end == "}" and not quoted:
                self._match(_SINGLE, "'")
            elif cursor.here == '"':
                self._read_double_quotes()
            elif cursor.here == "\\":
                cursor.at += 2
            elif cursor.here in "$`":
                self._skip_expansion(quoted=quoted)
            else:
                open_ += (cursor.here == opening) - (cursor.here == closing)
                cursor.at += 1
        cursor.depth -= 1

    def _match(self, pattern: re.Pattern[str], end: str) -> re.Match[str]:
        """Pass over a part that matches `pattern`, and return the match.

        Raise `Unreadable` if its end is missing.
        """
        cursor = self._cursor
        found = pattern.match(cursor.text, cursor.at)
        if found is None:
            cursor.at = len(cursor.text)
            cursor.require(end)
        assert found is not None
        cursor.at = found.end()
        return found


# Simple shell commands: their names, and the commands that some of them start.


_BINARY = re.compile(r"/(?:usr/)?(?:local/)?s?bin/([^/]+)")
_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
_EXEC = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
# Commands that start another, each with its options that take a value in a word of their own.
_STARTERS: dict[str, frozenset[str]] = {
    "builtin": frozenset(),
    "command": frozenset(),
    "doas": frozenset({"-C", "-u"}),
    "env": frozenset({"-C", "-u", "--chdir", "--unset"}),
    "exec": frozenset({"-a"}),
    "ionice": frozenset({"-c", "-n"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "nohup": frozenset(),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-e", "-i", "-o"}),
    "sudo": frozenset({"-C", "-D", "-g", "-h", "-p", "-r", "-t", "-u", "--group", "--user"}),
    "time": frozenset({"-f", "-o"}),
    "timeout": frozenset({"-k", "-s", "--kill-after", "--signal"}),
    "xargs": frozenset({"-a", "-d", "-E", "-I", "-L", "-n", "-P", "-s"}),
}


def plain_name(word: Word) -> str:
    """Return the name of a command: of a path in a system's directory of programs, the last part.

    If only a shell can know it, return it as it is written.
    """
    if word.literal is None:
        return word.raw
    binary = _BINARY.fullmatch(word.literal)
    return word.literal if binary is None else binary[1]


def script_of(name: str, words: Sequence[Word]) -> Word | None:
    """Return the word that a command runs as a script; None if it runs none.

    It is the word after `-c` for a shell, the first of several for `trap`, and all of them joined
    for `eval`. Its literal is None if only a shell can know it.
    """
    if name in _SHELLS:
        for place, word in enumerate(words):
            # An option that only a shell can know ends the search: what follows may be a file.
            options = word.literal or ""
            if not options.startswith("-") or options.startswith("--"):
                return None
            # Letters may stand together, as in `-ec`.
            if "c" in options:
                return words[place + 1] if place + 1 < len(words) else None
        return None
    # With one word, `trap` resets or shows a signal.
    if name == "trap" and len(words) > 1:
        return words[0]
    if name == "eval" and words:
        literals = [word.literal for word in words]
        raw = " ".join(word.raw for word in words)
        known = all(each is not None for each in literals)
        return Word(raw=raw, literal=" ".join(filter(None, literals)) if known else None)
    return None


def inner_commands(name: str, words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Return the words of each command that this one starts: none, one, or several for `find`.

    One of them may be empty, or all assignments: then there is no command.
    """
    if name == "find":
        places = [place for place, word in enumerate(words) if word.literal in _EXEC]
        return [tuple(words[place + 1 : after]) for place, after in pairwise((*places, len(words)))]
    if name not in _STARTERS:
        return []
    place = 0
    while place < len(words) and (option := words[place].literal or "").startswith("-"):
        place += 2 if option in _STARTERS[name] else 1
        if option == "--":
            break
    if name == "timeout":
        place += 1
    return [tuple(words[place:])]


# The commands of a shell command line, found without running it.
#
# The names are the first words of all simple commands: in pipelines and lists, in loops, branches
# and functions, in `$(…)`, backquotes, `<(…)` and here-documents, also inside double quotes; after
# those that start another (`sudo`, `env`, `xargs`, `timeout`, `find -exec`); and in the literal
# argument of `sh -c`, `eval` or `trap`. `/usr/bin/git` is `git`; any other path is a name as it is
# written. A command that only a running shell can know (`$tool`) is also a name as it is written,
# so it is never a known one.
#
# Commands of the shell itself (`cd`, `echo`) are `standard`; functions that the text defines are
# `own`. Words after a command are data. Aliases and files that are sourced are not followed.
#
# Reading is one pass: nested commands are read in place. A text that does not end what it begins,
# or is nested too deep, counts as not read, even if its first lines were: a shell would run them.


# Keywords that are followed by a command; and those that end a compound command.
_LEADS_ON = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "coproc"})
_ENDS = frozenset({"fi", "done", "esac", "}"})
_REDIRECTION = re.compile(r"<<<|<<-?|&>>?|<>|[<>]&|>>|>\||[<>]")
_NO_PARAMETERS = re.compile(r"\([ \t]*\)")
_ESAC = re.compile(r"esac(?=[ \t\r\n;&|<>()]|\Z)")

# Stands for a redirection among the words of a command. It looks like an assignment, because after
# either of them `if` is no keyword but a command like any other.
_REDIRECTED = Word(raw="_=", literal="_=")


def read_shell(source: str) -> Program:
    """Read a command line or a script; nothing is raised, a fault is the `problem`."""
    problem = too_long(source)
    if problem is None:
        found = _Commands()
        try:
            _Reader(source, found, depth=0).read()
            return Program(chars=len(source), names=found.names())
        except Unreadable as error:
            problem = error.problem
    return Program(chars=len(source), problem=problem)


class _Commands:
    """The commands of a text and of all that is nested in it."""

    def __init__(self) -> None:
        self.commands: dict[str, None] = {}
        self.functions: set[str] = set()
        # A script in a script in a script is read at each level, so all of them share one limit.
        self._chars_left = PROGRAM_CHARS_MAX

    def count_chars(self, text: str) -> None:
        """Count the characters of a nested script.

        Raise `Unreadable` if nested scripts have too many in all.
        """
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
    """Reads one text from its beginning. A script in quotes is read by another.

    A method raises `Unreadable` if what it reads does not end, is nested too deep, or has scripts
    in it of too many characters.
    """

    def __init__(self, text: str, found: _Commands, *, depth: int) -> None:
        self._found = found
        self._cursor = Cursor(text, depth=depth)
        self._words = WordReader(
            self._cursor, commands=lambda: self._read_list(")"), script=self._script
        )
        # Here-documents whose text begins on the next line: end, whether quoted, whether indented.
        self._documents: list[tuple[str, bool, bool]] = []

    def read(self) -> None:
        self._read_list("")

    def read_quoted(self) -> None:
        """Read a text in which only substitutions count."""
        self._cursor.enter()
        while not self._cursor.ended:
            self._words.read_quoted_part()

    def _script(self, text: str) -> None:
        self._found.count_chars(text)
        _Reader(text, self._found, depth=self._cursor.depth).read()

    # -- lists and commands ------------------------------------------------------------------------

    def _read_list(self, closer: str) -> None:
        """Read commands up to `closer`, or to the end of the text if `closer` is empty.

        It may be `)` or `;;`, in place of which `;&` and `esac` count as well. The caller passes
        over it. Raise `Unreadable` if it is missing.
        """
        cursor = self._cursor
        cursor.enter()
        words: list[Word] = []
        while True:
            cursor.skip_blanks()
            if cursor.ended or self._closes(closer, words):
                break
            if cursor.at_word():
                self._read_word(words)
            elif cursor.here == "(":
                self._read_parenthesis(words)
            elif cursor.here in "<>" or cursor.at_any("&>"):
                self._read_redirection()
                words.append(_REDIRECTED)
            else:
                self._end_command(words)
        self._note_command(words)
        if closer:
            cursor.require(closer)
        cursor.depth -= 1

    def _closes(self, closer: str, words: list[Word]) -> bool:
        cursor = self._cursor
        if closer == ";;":
            ends = not words and _ESAC.match(cursor.text, cursor.at) is not None
            return ends or cursor.at_any(";;", ";&")
        return closer == ")" and cursor.here == ")"

    def _end_command(self, words: list[Word]) -> None:
        """End a command at the end of a line, `;`, `&`, `|`, or a `)` that closes nothing.

        Note the command, empty `words`, and pass over the sign; after a line, also over the texts
        of its here-documents, which are read.
        """
        self._note_command(words)
        self._cursor.at += 1
        if self._cursor.text[self._cursor.at - 1] == "\n":
            self._read_documents()

    def _read_word(self, words: list[Word]) -> None:
        """Read a word of a command, or one that leads to or ends commands.

        Add it to `words`, unless it is a keyword or the number of a redirected stream. After
        `case`, `[[` and `function`, read on to the end of what they begin, or over the name.
        """
        cursor = self._cursor
        word = self._words.read_word()
        keyword = "" if words or word.quoted else word.raw
        if keyword == "case":
            self._read_case()
        elif keyword == "[[":
            self._skip_test()
        elif keyword == "function":
            cursor.skip_blanks()
            self._found.functions.add(self._words.read_word().raw)
        elif keyword in _LEADS_ON or keyword in _ENDS:
            return
        elif not (word.raw.isdigit() and cursor.at_any("<", ">")):
            # Digits before a redirection name its stream, as in `2>file`.
            words.append(word)

    def _note_command(self, words: list[Word]) -> None:
        """End a simple command: note it, and what it starts.

        `words` are emptied. Scripts in it are read; one that only a shell can know is noted as a
        command. Assignments alone are none.
        """
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
        """Raise `Unreadable` if commands start each other more levels deep than may be nested."""
        cursor = self._cursor
        depth, cursor.depth = cursor.depth, cursor.depth + level - 1
        cursor.enter()
        cursor.depth = depth

    def _read_parenthesis(self, words: list[Word]) -> None:
        cursor = self._cursor
        if cursor.at_any("(("):
            cursor.at += 2
            self._words.skip_arithmetic()
        elif len(words) == 1 and (empty := _NO_PARAMETERS.match(cursor.text, cursor.at)):
            self._found.functions.add(words.pop().raw)
            cursor.at = empty.end()
        else:
            cursor.at += 1
            self._read_list(")")
            cursor.at += 1

    def _read_case(self) -> None:
        """Read from after `case` to after its `esac`."""
        cursor = self._cursor
        cursor.enter()
        while self._read_pattern_word() != "in":
            cursor.require("in")
        while True:
            cursor.skip_space()
            if (esac := _ESAC.match(cursor.text, cursor.at)) is not None:
                cursor.at = esac.end()
                break
            while self._read_pattern_word() != ")":
                cursor.require("esac")
            self._read_list(";;")
            while cursor.at_any(";", "&"):
                cursor.at += 1
        cursor.depth -= 1

    def _read_pattern_word(self) -> str:
        """Read the next word, or sign, where there are no commands. Return it; empty at the end."""
        cursor = self._cursor
        cursor.skip_space()
        if cursor.at_word():
            return self._words.read_word().raw
        cursor.at += 1
        return cursor.text[cursor.at - 1 : cursor.at]

    def _skip_test(self) -> None:
        """Pass over a test up to its `]]`; in it, `<`, `&&` and parentheses compare and group."""
        while self._read_pattern_word() != "]]":
            self._cursor.require("]]")

    # -- redirections ------------------------------------------------------------------------------

    def _read_redirection(self) -> None:
        cursor = self._cursor
        sign = _REDIRECTION.match(cursor.text, cursor.at)
        cursor.at += len(sign[0]) if sign is not None else 1
        cursor.skip_blanks()
        if sign is None or not cursor.at_word():
            return
        target = self._words.read_word()
        if sign[0] in ("<<", "<<-"):
            end = target.raw if target.literal is None else target.literal
            self._documents.append((end, target.quoted, sign[0] == "<<-"))

    def _read_documents(self) -> None:
        """Read the here-documents that were announced on the line before.

        The cursor ends after the last of them. In one whose end was not quoted, commands are read.
        """
        cursor = self._cursor
        waiting, self._documents = self._documents, []
        for end, quoted, indented in waiting:
            start = cursor.at
            while True:
                cursor.require(f"the end of <<{end[:40]}")
                stop = cursor.text.find("\n", cursor.at)
                stop = len(cursor.text) if stop < 0 else stop
                line = cursor.text[cursor.at : stop]
                if (line.lstrip("\t") if indented else line) == end:
                    break
                cursor.at = stop + 1
            body = cursor.text[start : cursor.at]
            cursor.at = min(stop + 1, len(cursor.text))
            if not quoted:
                self._found.count_chars(body)
                _Reader(body, self._found, depth=cursor.depth).read_quoted()
