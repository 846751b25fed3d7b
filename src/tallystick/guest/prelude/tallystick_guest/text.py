"""Text that stays on the host: a program reads slices of it and searches it there.

Positions are characters, as in a `str`. `read_bytes` and `search_bytes` work in bytes, which costs
the host no index. Nothing is copied into the guest but what is asked for.
"""

from tallystick_guest import wire

_call = wire.host_call


class HostText:
    """A long text held by the host.

    `text[10:200]`, `len(text)`, `"needle" in text` and `text.find("needle")` work as on a `str`.
    `text.search(pattern)` finds a regular expression (RE2 syntax: no backreferences, no
    lookaround) and returns at most `limit` matches as (start, end, matched text). `text.peek()`
    shows its beginning, middle and end.
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

    def __contains__(self, needle: str) -> bool:
        return self.find(needle) >= 0

    def find(self, needle: str, start: int = 0) -> int:
        """Return the position of the first `needle` at or after `start`, or -1."""
        return _call("text.find", (self._id, needle, slice(start, None).indices(len(self))[0]), {})

    def search(
        self, pattern: str, *, start: int = 0, limit: int = 100
    ) -> list[tuple[int, int, str]]:
        """Find a regular expression, in linear time. Example: text.search("ERR-[0-9]+")."""
        first = slice(start, None).indices(len(self))[0] if start else 0
        found = _call("text.search", (self._id, pattern, first, limit), {})
        return [tuple(match) for match in found]

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

    def __repr__(self) -> str:
        return f"<HostText {self._name!r}: {self.bytes_length:,} bytes on the host>"


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


wire.make_held(HostText)
