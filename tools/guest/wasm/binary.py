"""The WebAssembly binary format, as far as the guest build needs it: bytes in, bytes out.

Rule 1: whatever the bytes are, reading them ends in a value or in `BadWasm`.
Rule 2: no read costs more than the bytes it consumes. A count is checked against what is left
before anything is made for it, so ten bytes cannot ask for four thousand million items.
Rule 3: offsets are those of the outermost file, so an error can be looked up in a hex dump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

__all__ = [
    "COMPONENT_HEADER",
    "EXNREF",
    "EXTERNREF",
    "F32",
    "F64",
    "FUNCREF",
    "HEADER_BYTES",
    "I32",
    "I64",
    "MODULE_HEADER",
    "REFERENCE_TYPES",
    "V128",
    "VALUE_TYPES",
    "BadWasm",
    "Limits",
    "Reader",
    "Section",
    "limits",
    "name",
    "section",
    "sections",
    "signed",
    "unsigned",
    "vector",
]

T = TypeVar("T")

MODULE_HEADER = b"\0asm\x01\0\0\0"
COMPONENT_HEADER = b"\0asm\x0d\0\x01\0"
HEADER_BYTES = 8

I32, I64, F32, F64, V128 = 0x7F, 0x7E, 0x7D, 0x7C, 0x7B
FUNCREF, EXTERNREF, EXNREF = 0x70, 0x6F, 0x69
REFERENCE_TYPES = frozenset({FUNCREF, EXTERNREF, EXNREF})

# The types that are one byte long. References to indexed types take more and are refused: they
# would have to be renumbered wherever a type is written, and nothing we merge has them.
VALUE_TYPES = {
    I32: "i32",
    I64: "i64",
    F32: "f32",
    F64: "f64",
    V128: "v128",
    FUNCREF: "funcref",
    EXTERNREF: "externref",
    EXNREF: "exnref",
}


class BadWasm(Exception):
    """Bytes the build cannot read or join. `offset` is None when no single byte is at fault."""

    def __init__(self, problem: str, *, offset: int | None = None) -> None:
        super().__init__(problem if offset is None else f"byte {offset:#x}: {problem}")
        self.problem = problem
        self.offset = offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The size of a memory in pages, or of a table in entries."""

    minimum: int
    maximum: int | None

    def admits(self, actual: Limits) -> bool:
        """Say whether something of size `actual` may be imported where `self` is asked for."""
        if actual.minimum < self.minimum:
            return False
        return self.maximum is None or (
            actual.maximum is not None and actual.maximum <= self.maximum
        )


class Reader:
    """A position in a range of bytes. Every read moves it forward or raises `BadWasm`."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, *, start: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = start
        self.end = len(data) if end is None else end

    @property
    def left(self) -> int:
        return self.end - self.position

    def bad(self, expected: str) -> BadWasm:
        return BadWasm(expected, offset=self.position)

    def byte(self, expected: str = "a byte") -> int:
        if self.position >= self.end:
            raise self.bad(f"expected {expected}, found the end")
        value = self.data[self.position]
        self.position += 1
        return value

    def take(self, length: int, expected: str = "bytes") -> bytes:
        if length > self.left:
            raise self.bad(f"expected {length} bytes of {expected}, found {self.left}")
        start = self.position
        self.position += length
        return self.data[start : self.position]

    def unsigned(self, bits: int = 32) -> int:
        """Read an unsigned LEB128 number of at most `bits` bits."""
        start = self.position
        value = shift = 0
        while True:
            byte = self.byte("a LEB128 number")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= bits:
                raise BadWasm(f"LEB128 number longer than {bits} bits", offset=start)
        if value >> bits:
            raise BadWasm(f"LEB128 number larger than {bits} bits", offset=start)
        return value

    def signed(self, bits: int) -> int:
        """Read a signed LEB128 number of at most `bits` bits."""
        start = self.position
        value = shift = 0
        while True:
            byte = self.byte("a signed LEB128 number")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= bits:
                raise BadWasm(f"signed LEB128 number longer than {bits} bits", offset=start)
        if byte & 0x40:
            value -= 1 << shift
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise BadWasm(f"signed LEB128 number larger than {bits} bits", offset=start)
        return value

    def count(self, expected: str) -> int:
        """Read how many items follow. Each takes a byte at least, so they must fit in the rest."""
        start = self.position
        value = self.unsigned()
        if value > self.left:
            raise BadWasm(f"{value} {expected} in {self.left} bytes", offset=start)
        return value

    def vector(self, read: Callable[[Reader], T], expected: str) -> list[T]:
        return [read(self) for _ in range(self.count(expected))]

    def name(self) -> str:
        start = self.position
        raw = self.take(self.unsigned(), "a name")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise BadWasm("expected a name in UTF-8", offset=start) from None

    def value_type(self) -> int:
        start = self.position
        value = self.byte("a value type")
        if value not in VALUE_TYPES:
            raise BadWasm(f"unsupported value type {value:#04x}", offset=start)
        return value

    def reference_type(self) -> int:
        start = self.position
        value = self.byte("a reference type")
        if value not in REFERENCE_TYPES:
            raise BadWasm(f"unsupported reference type {value:#04x}", offset=start)
        return value

    def index(self, space: int, what: str) -> int:
        """Read an index that must lie below `space`."""
        start = self.position
        value = self.unsigned()
        if value >= space:
            raise BadWasm(f"{what} {value} of {space}", offset=start)
        return value

    def limits(self) -> Limits:
        start = self.position
        flags = self.byte("limits")
        if flags > 1:
            # Shared, 64-bit and odd-sized pages: a snapshot could not carry the first, and no
            # address of the other two is what the host takes it for.
            raise BadWasm(f"unsupported limits {flags:#04x}", offset=start)
        return Limits(minimum=self.unsigned(), maximum=self.unsigned() if flags else None)

    def within(self, length: int, expected: str) -> Reader:
        """Split off the next `length` bytes as a range of their own."""
        start = self.position
        if length > self.left:
            raise self.bad(f"expected {length} bytes of {expected}, found {self.left}")
        self.position += length
        return Reader(self.data, start=start, end=self.position)

    def done(self, what: str) -> None:
        if self.left:
            raise self.bad(f"{self.left} bytes after the end of {what}")


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a module or a component: what it is and where its content lies."""

    id: int
    start: int
    content: Reader


def sections(reader: Reader, *, header: bytes) -> Iterator[Section]:
    """Walk the sections of a module or a component whose first bytes must be `header`."""
    start = reader.position
    if reader.take(HEADER_BYTES, "a header") != header:
        raise BadWasm(f"expected the header {header.hex()}", offset=start)
    while reader.left:
        start = reader.position
        section_id = reader.byte("a section")
        content = reader.within(reader.unsigned(), f"section {section_id}")
        yield Section(section_id, start, content)


def unsigned(value: int) -> bytes:
    """Write an unsigned LEB128 number in as few bytes as it needs."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    """Write a signed LEB128 number in as few bytes as it needs."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


def name(text: str) -> bytes:
    raw = text.encode()
    return unsigned(len(raw)) + raw


def limits(value: Limits) -> bytes:
    if value.maximum is None:
        return b"\0" + unsigned(value.minimum)
    return b"\1" + unsigned(value.minimum) + unsigned(value.maximum)


def vector(items: Iterable[bytes]) -> bytes:
    parts = list(items)
    return unsigned(len(parts)) + b"".join(parts)


def section(section_id: int, content: bytes) -> bytes:
    return bytes([section_id]) + unsigned(len(content)) + content
