"""Parse a model's reply into programs and commands, leniently, and write commands as text.

A reply is hostile until it has been read, and it is also often nearly right. The rules:

Rule 1: a fence tagged as Python is a program, one tagged as a shell is a command line, one of
another language is prose. A bare fence is a program if its content is Python that does something;
otherwise it may hold commands. `42` in a bare fence is an output the model made up: to run it would
echo 42 and make it look like a fact.
Rule 2: a fence closes at the first line of as many marks or more. If that line is inside a
triple-quoted string, a later one is taken, provided the program then parses. A Python program has
no ``` outside a string, so a block that parses is read right.
Rule 3: a command is at the start of its line, after nothing but blanks and markdown: list, quote
and heading markers, `*`, a backtick. Prose may come before and after it on lines of its own. In the
middle of a sentence it is talked about, not given. `commands` finds where it ends.
Rule 4: what is inside a program is the program's: a FINAL in it is not counted again.
Rule 5: a reply without any fence that is Python and does something is a program as a whole.
Rule 6: reasoning is not read: <think>…</think>, and everything before a </think> whose opening was
in the prompt. In reasoning that is never closed, a command counts if the reply ends with it.
Rule 7: reading takes time in proportion to the text. More openings than `OPENINGS_MAX` are refused
together, and looking ahead is paid for from an `Effort`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from tallystick.core.machine.commands import (
    CHECKED_CHARS_MAX,
    COMMAND_NAMES,
    Code,
    Command,
    Effort,
    Final,
    FinalVar,
    Judge,
    Rollback,
    Run,
    Snapshot,
    Unreadable,
    dedent_block,
    make_command,
    read_argument,
)

OPENINGS_MAX = 1_000
_CLOSERS_TRIED_MAX = 8

_PYTHON = frozenset({"repl", "python", "python3", "py", "py3", "ipython", "tool_code"})
_SHELL = frozenset({"bash", "sh", "shell", "zsh", "console"})

# Possessive throughout (see `commands`), and matched only at the start of a line. Trying it on
# every line would cost a second for five million empty ones, so lines without a hint are not tried.
_NAMES = "|".join(COMMAND_NAMES)
_OPENING = re.compile(
    r"(?:(?P<lead>[ \t]*+(?:(?:[-+*]|\#{1,6}+|[0-9]{1,3}+[.)])[ \t]++|>[ \t]*+){0,8}+)"
    r"(?:(?P<fence>`{3,}+|~{3,}+)(?P<info>[^\n]*+)"
    rf"|[*`]{{0,4}}+(?P<name>{_NAMES})\("
    r"|<(?P<end>/?)(?P<think>think|thinking)>)"
    r"|[^`\n]*+(?P<late>`{3,}+)(?P<tag>[A-Za-z0-9_]++)[ \t]*+\r?+(?=\n|\Z))",
)
_HINT_OF_OPENING = re.compile(rf"```|~~~|(?:{_NAMES})\(|</?+think")
_LANGUAGE = re.compile(r"[ \t{.]*+([A-Za-z0-9_+#-]*+)")
_BACKTICKS = re.compile("`++")

_ASK = "write one block of Python: a line ```python, the program, a line ```"
_CUT = "cut at the token limit before it was whole; write only one code block, and a shorter one"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The commands of a reply.

    `problem` is one line for the model if nothing, or not all, was read.
    """

    commands: tuple[Command, ...]
    prose: str
    problem: str | None


class _Block(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    close: int
    end: int
    closed: bool


def fenced_block(source: str, language: str = "python") -> str:
    """Return a program in the form a model is asked to write; `parse_reply` reads the same back.

    The fence is longer than any run of backticks in the program, and at least three.
    """
    longest = max((len(run) for run in _BACKTICKS.findall(source)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{source}\n{fence}"


def parse_reply(text: str, *, cut: bool = False) -> Reply:
    """Read a reply; never raises. `cut` is True if it ended at the token limit.

    A reply with more than 1,000 blocks and commands has none, and a problem.
    """
    reader = _Reader(text, cut=cut)
    reader.read()
    return reader.reply()


class _Reader:
    """One pass over a reply: its current position, and what it has read so far."""

    def __init__(self, text: str, *, cut: bool) -> None:
        self.text = text
        self.cut = cut
        self.effort = Effort(text)
        self.judge = Judge(commands=COMMAND_NAMES)
        self.at = 0
        self.commands: list[Command] = []
        self.commands_end = 0
        self.prose: list[str] = []
        # A problem is returned in any case, a hint only if there is no command.
        self.problem: str | None = None
        self.hint: str | None = None
        self.body_start = 0
        self.thought = False
        self.outside: tuple[list[Command], str | None] | None = None
        self.fence_start: int | None = None
        self.fence_is_bare = False
        self.closer_passed = -1

    def read(self) -> None:
        """Read the whole reply, from one opening to the next.

        More than 1,000 openings end it, with a problem and without commands.
        """
        openings = 0
        while (hint := _HINT_OF_OPENING.search(self.text, self.at)) is not None:
            openings += 1
            if openings > OPENINGS_MAX:
                self.commands = []
                self.problem = f"more than {OPENINGS_MAX} blocks and commands, none was run; {_ASK}"
                break
            line_start = self.text.rfind("\n", 0, hint.start()) + 1
            opening = _OPENING.match(self.text, line_start) if line_start >= self.at else None
            if opening is None:
                self._pass_prose(self._line_end(hint.start()))
                continue
            self._pass_prose(line_start)
            if opening["think"]:
                self._reasoning(opening)
            elif opening["name"]:
                self._command(opening)
            elif opening["late"]:
                self._late_fence(opening)
            else:
                self._fence(opening)
        self._pass_prose(len(self.text))

    def reply(self) -> Reply:
        """Return what was read. Call it once, after `read`.

        A reply that is a program as a whole is returned as that program.
        """
        if self.outside is not None:
            self._leave_reasoning(*self.outside)
        bare = self._bare_program()
        if bare is not None:
            return Reply(commands=(Code(source=bare),), prose="", problem=None)
        problem = self.problem
        if problem is None and not self.commands:
            problem = self._why_nothing()
        prose = "".join(self.prose).strip()
        return Reply(commands=tuple(self.commands), prose=prose, problem=problem)

    # One method for each kind of opening. Each of them moves `at` past the opening.

    def _reasoning(self, opening: re.Match[str]) -> None:
        """Skip reasoning, or read on in reasoning that is never closed.

        A closing mark without an opening drops everything before it: the opening was in the prompt.
        """
        if self.outside is not None:
            self.at = opening.end()
            return
        closing = f"</{opening['think']}>"
        opened_before, self.thought = self.thought, True
        end = opening.end() if opening["end"] else self.text.find(closing, opening.end())
        if opening["end"] and not opened_before:
            self.commands, self.prose = [], []
            self.problem = self.hint = self.fence_start = None
        elif end < 0:
            end = opening.end()
            self.outside = (list(self.commands), self.problem)
        elif not opening["end"]:
            end += len(closing)
        self.at = end
        if not self.commands:
            self.body_start = end

    def _leave_reasoning(self, commands: list[Command], problem: str | None) -> None:
        """Drop what was read in reasoning that is not closed, but for a command that ends it."""
        ends_reply = not self.cut and not self.text[self.commands_end :].strip()
        last = self.commands[len(commands) :][-1:] if ends_reply else []
        self.commands, self.problem = commands + last, problem
        self.hint = f"the reply ended inside its reasoning; {_ASK}"

    def _command(self, opening: re.Match[str]) -> None:
        """Read a command with its argument, or note why it cannot be read."""
        name = opening["name"]
        argument = read_argument(self.text, opening.end(), self.effort)
        if isinstance(argument, Unreadable):
            lost = self.cut and not argument.closed
            self._refuse(_CUT if lost else f"{name}{argument.why}")
            self._pass_prose(opening.end())
            return
        made = make_command(name, argument)
        if isinstance(made, str):
            self._refuse(f"{name} {made}")
            self._pass_prose(argument.end)
            return
        self._take(made, end=argument.end)

    def _late_fence(self, opening: re.Match[str]) -> None:
        """Read a fence that follows prose on its line, if it is tagged as something that runs."""
        if opening["tag"].lower() not in _PYTHON | _SHELL:
            self._pass_prose(opening.end())
            return
        self._pass_prose(opening.start("late"))
        self._tagged_fence(
            opening, fence=opening["late"], language=opening["tag"].lower(), indent=""
        )

    def _fence(self, opening: re.Match[str]) -> None:
        """Read a fence: as a program, a command line, or prose, as which a quoted one counts."""
        lead, fence, info = opening["lead"], opening["fence"], opening["info"]
        quoted = ">" in lead or "#" in lead
        if quoted or opening.start() == self.closer_passed:
            self._pass_prose(opening.end())
            return
        if self.fence_start is None:
            self.fence_start = opening.start()
            self.fence_is_bare = not info.strip()
        if fence[0] in info:
            self._line_fence(opening)
            return
        found = _LANGUAGE.match(info)
        language = "" if found is None else found[1].lower()
        indent = "".join(char if char in " \t" else " " for char in lead)
        if language or info.strip():
            self._tagged_fence(opening, fence=fence, language=language, indent=indent)
        else:
            self._bare_fence(opening, indent=indent)

    def _line_fence(self, opening: re.Match[str]) -> None:
        """Read a block that opens and closes on one line: ```print(1)```.

        It is a program if it ends its line, and is tagged as Python or does something; else prose.
        """
        fence = opening["fence"]
        source, closed, after = opening["info"].partition(fence)
        tag, _, rest = source.strip().partition(" ")
        tagged = tag.lower() in _PYTHON and bool(rest)
        source = rest.strip() if tagged else source.strip()
        alone = bool(closed) and not after.strip()
        if alone and (tagged or self.judge.does_something(source)):
            self._take(Code(source=source), end=opening.end())
        else:
            self._pass_prose(opening.end())

    def _tagged_fence(
        self, opening: re.Match[str], *, fence: str, language: str, indent: str
    ) -> None:
        """Read a fence with a language, and note why if it is not run."""
        block = self._block(opening, fence=fence, indent=indent)
        whole = block.closed or (language in _PYTHON and self.judge.parses(block.source))
        if language not in _PYTHON | _SHELL:
            self.hint = f"a block of {language or 'another language'} is not run; {_ASK}"
            self._pass_prose(block.end)
        elif not block.source.strip():
            self.hint = f"the {language} block is empty; {_ASK}"
            self.at = block.end
        elif language in _SHELL and (whole or not self.cut):
            self._take(Run(command=_strip_prompts(block.source)), end=block.end)
        elif whole:
            self._take(Code(source=block.source), end=block.end)
        else:
            unclosed = f"the last block has no closing ``` and is not Python as it stands; {_ASK}"
            self._refuse(_CUT if self.cut else unclosed)
            self.at = block.end

    def _bare_fence(self, opening: re.Match[str], *, indent: str) -> None:
        block = self._block(opening, fence=opening["fence"], indent=indent)
        if self.judge.does_something(block.source):
            self._take(Code(source=block.source), end=block.end)
        else:
            self.closer_passed = block.close
            self._pass_prose(opening.end())

    def _bare_program(self) -> str | None:
        """Find a program without a fence, or in front of a closing one that was never opened.

        None inside reasoning that is not closed, and if the first fence has a language or a command
        was read beside it. None also for more than 32,768 characters, and for text that is no
        Python or does nothing.
        """
        if self.outside is not None:
            return None
        end = len(self.text)
        if self.fence_start is not None:
            if self.commands or not self.fence_is_bare:
                return None
            end = self.fence_start
        if not 0 < end - self.body_start <= CHECKED_CHARS_MAX:
            return None
        body = dedent_block(self.text[self.body_start : end])
        return body if self.judge.does_something(body) else None

    # The end of a block.

    def _block(self, opening: re.Match[str], *, fence: str, indent: str) -> _Block:
        """Return the content of a fence, up to the first closing line that fits.

        Of eight closing lines, the first is taken if none fits. Without one, it is the rest of the
        reply, or nothing for a bare fence before more than 32,768 characters.
        """
        start = min(opening.end() + 1, len(self.text))
        crlf = "\r" if opening[0].endswith("\r") else ""
        first: _Block | None = None
        for close, end in islice(self._closers(fence, start), _CLOSERS_TRIED_MAX):
            content = self.text[start:close].removesuffix("\n").removesuffix(crlf)
            source = _dedent(content, indent)
            block = _Block(source=source, close=close, end=end, closed=True)
            inside_string = source.count('"""') % 2 or source.count("'''") % 2
            if (first is None and not inside_string) or self.judge.parses(source):
                return block
            first = first or block
        if first is not None:
            return first
        bare = not (opening["info"] or opening["tag"] or "").strip()
        if bare and len(self.text) - start > CHECKED_CHARS_MAX:
            # Too long to be judged; copying it for each of many bare fences would be quadratic.
            return _Block(source="", close=start, end=start, closed=False)
        rest = self.text[start:].rstrip()
        source = _dedent(rest.removesuffix(fence), indent)
        end = len(self.text)
        return _Block(source=source, close=end, end=end, closed=rest.endswith(fence))

    def _closers(self, fence: str, start: int) -> Iterator[tuple[int, int]]:
        """Give the start and end of each line from `start` that may close the fence."""
        while (at := self.effort.find(fence, start)) >= 0:
            newline = self.effort.find("\n", at)
            line_end = len(self.text) if newline < 0 else newline
            line_start = self.text.rfind("\n", 0, at) + 1
            before, after = self.text[line_start:at], self.text[at:line_end].lstrip(fence[0])
            if not before.strip(" \t") and not after.strip(" \t\r"):
                yield line_start, line_end
            start = line_end

    def _line_end(self, start: int) -> int:
        at = self.text.find("\n", start)
        return len(self.text) if at < 0 else at

    # The results.

    def _take(self, command: Command, *, end: int) -> None:
        self.commands.append(command)
        self.commands_end = self.at = end

    def _refuse(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _pass_prose(self, end: int) -> None:
        if self.outside is None:
            self.prose.append(self.text[self.at : end])
        self.at = end

    def _why_nothing(self) -> str:
        if not self.text.strip():
            return f"the reply was empty; {_ASK}"
        if self.cut:
            return _CUT
        if self.hint is not None:
            return self.hint
        name = next((name for name in COMMAND_NAMES if f"{name}(" in self.text), None)
        if name is not None:
            return f"{name}(…) must start its own line; put it there, or {_ASK}"
        return f"no code was found; {_ASK}"


def _dedent(content: str, indent: str) -> str:
    """Take the fence's own indentation off the lines that have it.

    Nothing is taken off if the first line that is not blank lacks it.
    """
    blank = len(content) - len(content.lstrip())
    first_line = content.rfind("\n", 0, blank) + 1
    if not indent or not content.startswith(indent, first_line):
        return content
    return f"\n{content}".replace(f"\n{indent}", "\n")[1:]


def _strip_prompts(source: str) -> str:
    """Keep what follows `$ ` if there are such lines; the others are then output."""
    typed = [line[2:] for line in source.splitlines() if line.startswith("$ ") and line[2:].strip()]
    return "\n".join(typed) if typed else source


# Commands of a reply as programs, and in the form the model is asked to write them.


# The commands that only runs with native programs have.
_Native = Run | Snapshot | Rollback


def command_text(command: Command, *, native: bool = False) -> str:
    """Return a command in the form the model is asked to write.

    Of a command that runs of this kind do not have, it is the name alone. `native` is True for a
    run whose programs are native.
    """
    if isinstance(command, Code):
        return fenced_block(command.source)
    if native and isinstance(command, Run):
        return fenced_block(command.command, "bash")
    if native and isinstance(command, Snapshot | Rollback):
        return f"{command_name(command)}({command.name})"
    if isinstance(command, Final):
        return f"FINAL({command.text})"
    return (
        fenced_block(as_program(command))
        if isinstance(command, FinalVar)
        else command_name(command)
    )


def command_name(command: Command) -> str:
    """Return the word that a command is written with."""
    return str(command.__struct_config__.tag).upper()


def as_program(command: Command) -> str:
    """Return the program of a command; for one of a native session, its command line or its name.

    The command is one that `is_program` accepts. `FINAL(total)` outside a block names a variable
    more often than the word: the program knows.
    """
    if isinstance(command, Code):
        return command.source
    if isinstance(command, Run):
        return command.command
    if isinstance(command, Snapshot | Rollback):
        return command.name
    if isinstance(command, FinalVar):
        return f"FINAL_VAR({command.name!r})"
    assert isinstance(command, Final)
    return f"FINAL(globals().get({command.text!r}, {command.text!r}))"


def is_native(command: Command) -> bool:
    """Return True if a command needs a shell, or files: `RUN`, `SNAPSHOT` and `ROLLBACK`."""
    return isinstance(command, _Native)


def is_program(command: Command, *, native: bool = False) -> bool:
    """Return True if a command is carried out by running something.

    A `FINAL` is, if its text could be the name of a variable. Those of a native session are only
    with `native`.
    """
    if native and is_native(command):
        return True
    if isinstance(command, Final):
        return command.text.isidentifier()
    return isinstance(command, Code | FinalVar)
