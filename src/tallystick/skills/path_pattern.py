"""Path patterns: globs that a skill says it is for, matched in bounded time.

`*` is any text within one part of a path, `?` one character, `[a-z]` and `[!a-z]` one of a set,
`**` as a whole part any number of parts, `{a,b}` one of several texts. A pattern without a slash
is for the last part of a path; one that ends in a slash is for all below it. Case counts.

Patterns come from strangers. They are never turned into regular expressions, which can be made to
backtrack for ever. All places of the pattern where a match may stand are kept at once, as the bits
of one number, and each character of the path moves them on: the time is linear in the path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["path_matches"]

_PATTERN_CHARS_MAX = 256
_PATH_CHARS_MAX = 4_096
_ALTERNATIVES_MAX = 16

_Test = Callable[[str], bool]


@dataclass(slots=True)
class _Places:
    """A pattern as places: the n-th test has to hold for the n-th place to be passed.

    Bits of `runs` are places that any character but a slash may stay in, of `deep_runs` any
    character at all; both may be passed for nothing. From `skips` two places are passed so.
    """

    tests: list[_Test] = field(default_factory=list)
    runs: int = 0
    deep_runs: int = 0
    skips: int = 0

    def add(self, test: _Test) -> None:
        self.tests.append(test)

    def add_run(self, *, deep: bool = False, skip: bool = False) -> None:
        bit = 1 << len(self.tests)
        self.runs |= 0 if deep else bit
        self.deep_runs |= bit if deep else 0
        self.skips |= bit if skip else 0
        self.tests.append(_never)


def path_matches(pattern: str, path: str) -> bool:
    """Say whether a path is one that a pattern is for; not if either is too long to be meant."""
    if not pattern or len(pattern) > _PATTERN_CHARS_MAX or len(path) > _PATH_CHARS_MAX:
        return False
    parts = _parts(path)
    return bool(parts) and any(_one_matches(each, parts) for each in _alternatives(pattern))


def _one_matches(pattern: str, parts: Sequence[str]) -> bool:
    deep = "/" in pattern.removeprefix("./")
    places = _places(_parts(f"{pattern}**" if pattern.endswith("/") else pattern))
    stays = {True: places.deep_runs, False: places.runs | places.deep_runs}
    passes: dict[str, int] = {}
    at = _free(places, 1)
    for letter in "/".join(parts) if deep else parts[-1]:
        if letter not in passes:
            passes[letter] = sum(1 << n for n, test in enumerate(places.tests) if test(letter))
        at = _free(places, (at & passes[letter]) << 1, at & stays[letter == "/"])
        if not at:
            return False
    return bool(at >> len(places.tests))


def _free(places: _Places, come: int, stayed: int = 0) -> int:
    """Add the places that are reached without a character. No two runs follow each other."""
    # Parts are skipped from where a part begins: by who comes there, not by who stayed.
    at = come | (come & places.skips) << 2 | stayed
    return at | (at & (places.runs | places.deep_runs)) << 1


def _places(parts: Sequence[str]) -> _Places:
    places = _Places()
    for n, part in enumerate(parts):
        last = n == len(parts) - 1
        if part == "**":
            if not last and parts[n + 1] == "**":
                continue
            places.add_run(deep=True, skip=not last)
        else:
            _add_part(places, part)
        if not last:
            places.add("/".__eq__)
    return places


def _add_part(places: _Places, part: str) -> None:
    at = 0
    while at < len(part):
        end = at + 1
        match part[at]:
            case "*":
                if at == 0 or part[at - 1] != "*":
                    places.add_run()
            case "?":
                places.add("/".__ne__)
            case "[" if (close := part.find("]", at + 2 + part.startswith("[!", at))) > 0:
                places.add(_of_set(part[at + 1 : close]))
                end = close + 1
            case letter:
                places.add(letter.__eq__)
        at = end


def _of_set(inside: str) -> _Test:
    wanted = not inside.startswith("!")
    inside = inside.removeprefix("!")
    single: set[str] = set()
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(inside):
        if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside):
            ranges.append((inside[at], inside[at + 2]))
            at += 3
        else:
            single.add(inside[at])
            at += 1

    def test(letter: str) -> bool:
        found = letter in single or any(low <= letter <= high for low, high in ranges)
        return found is wanted and letter != "/"

    return test


def _never(_: str) -> bool:
    return False


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _alternatives(pattern: str) -> list[str]:
    """Write out `{a,b}`, innermost first; too many of them leave the braces as they are."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        if len(done) + len(todo) > _ALTERNATIVES_MAX:
            return [pattern]
        each = todo.pop()
        close = each.find("}")
        start = each.rfind("{", 0, close) if close >= 0 else -1
        if start < 0:
            done.append(each)
            continue
        head, tail = each[:start], each[close + 1 :]
        todo += [head + option + tail for option in each[start + 1 : close].split(",")]
    return done
