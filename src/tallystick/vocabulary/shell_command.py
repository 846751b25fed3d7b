"""Simple shell commands: their names, and the commands that some of them start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from tallystick.vocabulary.shell_word import Word

__all__ = ["inner_commands", "plain_name", "script_of"]

_BINARY = re.compile(r"/(?:usr/)?(?:local/)?s?bin/([^/]+)")
_SHELLS = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
_EXEC = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
# What starts another command, with its options that take a value in a word of their own.
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
    """The name of a command: of one in a system's directory of programs, the last part."""
    if word.literal is None:
        return word.raw
    binary = _BINARY.fullmatch(word.literal)
    return word.literal if binary is None else binary[1]


def script_of(name: str, words: Sequence[Word]) -> Word | None:
    """The word that a command runs as a script, if it has one."""
    if name in _SHELLS:
        for place, word in enumerate(words):
            options = word.literal or ""
            if not options.startswith("-") or options.startswith("--"):
                return None
            if "c" in options:
                return words[place + 1] if place + 1 < len(words) else None
        return None
    if name == "trap" and len(words) > 1:
        return words[0]
    if name == "eval" and words:
        literals = [word.literal for word in words]
        raw = " ".join(word.raw for word in words)
        known = all(each is not None for each in literals)
        return Word(raw=raw, literal=" ".join(filter(None, literals)) if known else None)
    return None


def inner_commands(name: str, words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """The words of each command that this one starts."""
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
