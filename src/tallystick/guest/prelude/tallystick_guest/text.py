"""Text that stays on the host: a program reads slices of it and searches it there.

Positions are characters, as in a `str`. `read_bytes` and `search_bytes` work in bytes, which costs
the host no index. Nothing is copied into the guest but what is asked for.
"""

import re
from collections.abc import Iterator

from tallystick_guest import wire

_call = wire.host_call
_PIECE_BYTES = 1 << 20
_MATCHES_MAX = 10_000
_HINT = "it is a long text on the host: slice it (text[a:b]), or use text.search, .grep, .chunks"
_CORPUS_HINT = (
    "it is a dict of long texts on the host: take one (texts[name]), or look through all with "
    "texts.grep(pattern), texts.search(pattern)"
)


class HostText:
    """A long text held by the host.

    `text[10:200]`, `len(text)`, `"needle" in text`, `text.find("x")` and `text.count("x")` work as
    on a `str`. `text.search(pattern)` finds a regular expression (RE2 syntax: no backreferences, no
    lookaround) and returns at most `limit` matches as (start, end, matched text).
    `text.grep(pattern)` returns the lines that match, `text.lines()` goes through all of them,
    `text.chunks(size, overlap)` through pieces. `text.peek()` shows its beginning, middle and end.
    """

    __slots__ = ("_id", "_length", "_name", "bytes_length")

    def __init__(self, ident: int | str, bytes_length: int, name: str) -> None:
        self._id = ident
        self._length: int | None = None
        self._name = name
        self.bytes_length = bytes_length

    def __len__(self) -> int:
        if self._length is None:
            self._length = _call("text.length", (self._id,), {})
        return self._length

    def __bool__(self) -> bool:
        return self.bytes_length > 0

    def __getitem__(self, key: object) -> str:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return _call("text.slice", (self._id, start, max(start, stop)), {})
            if not range(start, stop, step):
                return ""
            low, high = sorted((start, range(start, stop, step)[-1]))
            part = _call("text.slice", (self._id, low, high + 1), {})
            return part[::step]
        index = key.__index__()
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError("text index out of range")
        return _call("text.slice", (self._id, index, index + 1), {})

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces():
            yield from piece

    def __contains__(self, needle: str) -> bool:
        return self.find(needle) >= 0

    def find(self, needle: str, start: int = 0, end: int | None = None) -> int:
        """Return the position of the first `needle` at or after `start`, or -1."""
        low, high, _ = slice(start, end).indices(len(self))
        at = _call("text.find", (self._id, needle, low), {})
        return at if at < 0 or at + len(needle) <= high else -1

    def index(self, needle: str, start: int = 0, end: int | None = None) -> int:
        """Like `find`, but raises ValueError where there is none."""
        at = self.find(needle, start, end)
        if at < 0:
            raise ValueError("substring not found")
        return at

    def count(self, needle: str) -> int:
        """How often a text stands in it, as `str.count` counts."""
        if not needle:
            return len(self) + 1
        return _call("text.count", (self._id, needle), {})

    def startswith(self, prefix: str | tuple[str, ...]) -> bool:
        """As of `str`."""
        longest = len(prefix) if isinstance(prefix, str) else max(map(len, prefix), default=0)
        return self[:longest].startswith(prefix)

    def endswith(self, suffix: str | tuple[str, ...]) -> bool:
        """As of `str`."""
        longest = len(suffix) if isinstance(suffix, str) else max(map(len, suffix), default=0)
        return self[max(0, len(self) - longest) :].endswith(suffix)

    def search(
        self, pattern: str, *, start: int = 0, limit: int = 100
    ) -> list[tuple[int, int, str]]:
        """Find a regular expression, in linear time. Example: text.search("ERR-[0-9]+")."""
        first = slice(start, None).indices(len(self))[0] if start else 0
        found = _call("text.search", (self._id, pattern, first, limit), {})
        return [tuple(match) for match in found]

    def grep(self, pattern: str, *, limit: int = 100) -> list[tuple[int, str]]:
        """Return the lines that match a regular expression, each with its number from 1."""
        found = _call("text.grep", (self._id, pattern, limit), {})
        return [tuple(match) for match in found]

    def lines(self) -> Iterator[str]:
        """Go through the lines, without their ends: a line feed, or one after a return."""
        rest = ""
        for piece in self._pieces():
            *whole, rest = (rest + piece).split("\n")
            for line in whole:
                yield line.removesuffix("\r")
        if rest:
            yield rest.removesuffix("\r")

    def splitlines(self) -> "Lines":
        """The lines, to go through, to count and to take by their place."""
        return Lines(self)

    def chunks(self, size: int, overlap: int = 0) -> Iterator[str]:
        """Go through pieces of `size` characters, each `overlap` into the one before it."""
        if size <= 0 or not 0 <= overlap < size:
            raise ValueError("chunks: size must be positive, and overlap from 0 to below size")
        length, start = len(self), 0
        while start < length:
            yield self[start : start + size]
            if start + size >= length:
                return
            start += size - overlap

    def peek(self, chars: int = 600) -> str:
        """Return parts of the text, about `chars` characters in all, each with its place."""
        length, part = len(self), max(1, chars // 3)
        if length <= 3 * part:
            return self[:]
        middle = length // 2 - part // 2
        shown = [(0, part), (middle, middle + part), (length - part, length)]
        return "\n".join(f"[{low}:{high}] {self[low:high]}" for low, high in shown)

    def read_bytes(self, start: int, stop: int) -> str:
        """Return the text between two byte offsets, with cut characters left out at both ends."""
        return _call("text.read_bytes", (self._id, start, stop), {})

    def search_bytes(
        self, pattern: str, *, start: int = 0, limit: int = 100
    ) -> list[tuple[int, int, str]]:
        """Like `search`, with positions in bytes."""
        found = _call("text.search_bytes", (self._id, pattern, start, limit), {})
        return [tuple(match) for match in found]

    def _pieces(self) -> Iterator[str]:
        length, size = len(self), max(1, _PIECE_BYTES // 4)
        for start in range(0, length, size):
            yield self[start : start + size]

    def __getattr__(self, name: str) -> object:
        if hasattr(str, name) and not name.startswith("_"):
            raise AttributeError(f"{name}: {_HINT}")
        raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<HostText {self._name!r}: {self.bytes_length:,} bytes on the host>"


class Corpus(dict):
    """Long texts by name, all on the host: `corpus["a.txt"]` is one of them.

    `corpus.grep(pattern)` and `corpus.search(pattern)` look through all of them at once, and say
    in which text each match is. `corpus.names()` lists the names. The rest is as of a `dict`.
    """

    def search(self, pattern: str, limit: int = 100) -> list[tuple[str, int, int, str]]:
        """Find a regular expression: (name, start, end, matched text) of at most `limit`."""
        return self._each("text.search_each", pattern, limit)

    def grep(self, pattern: str, limit: int = 100) -> list[tuple[str, int, str]]:
        """Return the lines that match: (name, line number from 1, line) of at most `limit`."""
        return self._each("text.grep_each", pattern, limit)

    def names(self) -> list[str]:
        """The names of the texts, in their order."""
        return [*self]

    def _each(self, function: str, pattern: str, limit: int) -> list[tuple[object, ...]]:
        held = {name: text._id for name, text in self.items() if type(text) is HostText}
        names = [*held]
        found = _call(function, ([*held.values()], pattern, limit), {})
        return [(names[place], *rest) for place, *rest in found]

    def __missing__(self, key: object) -> object:
        if isinstance(key, str):
            raise KeyError(key)
        raise TypeError(f"a text is taken by its name, not by {key!r}; {_CORPUS_HINT}")

    def __getattr__(self, name: str) -> object:
        if not name.startswith("_") and (hasattr(str, name) or hasattr(HostText, name)):
            raise AttributeError(f"{name}: {_CORPUS_HINT}")
        raise AttributeError(name)

    def __repr__(self) -> str:
        shown = ", ".join([*map(repr, [*self][:5]), *(["..."] if len(self) > 5 else [])])
        return f"<{len(self):,} long texts by name: {shown}>"


class Lines:
    """The lines of a long text. Nothing of it is held here."""

    __slots__ = ("_length", "_text")

    def __init__(self, text: HostText) -> None:
        self._text = text
        self._length: int | None = None

    def __iter__(self) -> Iterator[str]:
        return self._text.lines()

    def __len__(self) -> int:
        if self._length is None:
            breaks = self._text.count("\n")
            whole = not self._text or self._text.endswith("\n")
            self._length = breaks if whole else breaks + 1
        return self._length

    def __getitem__(self, key: object) -> object:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            wanted = range(start, stop, step)
            held = {each: line for each, line in self._numbered(wanted)}
            return [held[each] for each in wanted]
        index = key.__index__()
        place = index + len(self) if index < 0 else index
        for _, line in self._numbered(range(place, place + 1)):
            return line
        raise IndexError("line index out of range")

    def _numbered(self, wanted: range) -> Iterator[tuple[int, str]]:
        if not wanted:
            return
        last = max(wanted)
        for number, line in enumerate(self):
            if number in wanted:
                yield number, line
            if number >= last:
                return

    def __repr__(self) -> str:
        return f"<lines of {self._text!r}>"


class Match:
    """Where a pattern stands in a long text, as `re.Match` says it. It has no groups but all."""

    __slots__ = ("_span", "_text")

    def __init__(self, start: int, end: int, text: str) -> None:
        self._span = (start, end)
        self._text = text

    def span(self, group: int = 0) -> tuple[int, int]:
        _only_whole(group)
        return self._span

    def start(self, group: int = 0) -> int:
        return self.span(group)[0]

    def end(self, group: int = 0) -> int:
        return self.span(group)[1]

    def group(self, group: int = 0) -> str:
        _only_whole(group)
        return self._text

    __getitem__ = group

    def __repr__(self) -> str:
        return f"<match at {self._span}: {self._text[:50]!r}>"


def _only_whole(group: int) -> None:
    if group != 0:
        raise IndexError("a match in a long text has no groups: match its text again, with re")


class Outputs:
    """What earlier programs printed and was too long to be shown, in their order.

    `outputs[-1]` is the last of them, a text: slice it, `search` it, `peek` at it.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return _call("outputs.count", (), {})

    def __getitem__(self, place: int) -> HostText:
        count = len(self)
        index = place.__index__()
        if not -count <= index < count:
            raise IndexError(f"there are {count} kept outputs")
        return _call("outputs.get", (index % count,), {})

    def __repr__(self) -> str:
        return "<outputs of earlier programs>"


# -- `re` over a long text -----------------------------------------------------------------------


def _patterned(pattern: object, flags: int) -> str:
    """A pattern for the host, with its flags written into it."""
    if isinstance(pattern, re.Pattern):
        pattern, flags = pattern.pattern, flags | pattern.flags
    letters = "".join(
        letter for letter, flag in (("i", re.I), ("m", re.M), ("s", re.S)) if flags & flag
    )
    return f"(?{letters}){pattern}" if letters else pattern


def _through_host() -> None:
    """Let the functions of `re` that only look work on long texts too, on the host."""
    plain = {name: getattr(re, name) for name in ("search", "findall", "finditer")}

    def search(pattern: object, string: object, flags: int = 0) -> object:
        if type(string) is not HostText:
            return plain["search"](pattern, string, flags)
        found = string.search(_patterned(pattern, flags), limit=1)
        return Match(*found[0]) if found else None

    def finditer(pattern: object, string: object, flags: int = 0) -> object:
        if type(string) is not HostText:
            return plain["finditer"](pattern, string, flags)
        return iter(_all_matches(string, _patterned(pattern, flags)))

    def findall(pattern: object, string: object, flags: int = 0) -> object:
        if type(string) is not HostText:
            return plain["findall"](pattern, string, flags)
        found = [match.group() for match in _all_matches(string, _patterned(pattern, flags))]
        compiled = re.compile(pattern, 0 if isinstance(pattern, re.Pattern) else flags)
        if not compiled.groups:
            return found
        # What the groups hold is found again in each match, which is short.
        return [plain["findall"](compiled, each)[0] for each in found]

    for function in (search, finditer, findall):
        function.__module__ = "re"
        setattr(re, function.__name__, function)


def _all_matches(string: HostText, pattern: str) -> list[Match]:
    found = string.search(pattern, limit=_MATCHES_MAX)
    if len(found) == _MATCHES_MAX:
        raise ValueError(f"more than {_MATCHES_MAX:,} matches: use text.search(pattern, start=...)")
    return [Match(*each) for each in found]


def hint_for(error: BaseException) -> str:
    """What to do instead, where an error is about a long text."""
    if type(error) is not TypeError:
        return ""
    if "Corpus" in str(error):
        return f"; {_CORPUS_HINT}"
    return f"; {_HINT}" if "HostText" in str(error) else ""


wire.make_held(HostText)
_through_host()
