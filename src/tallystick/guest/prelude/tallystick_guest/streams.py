"""stdout and stderr of a program, gathered in windows that the host can read after a trap.

A program that is stopped from outside never reaches its own flush. So text is gathered in two
windows at addresses the host was told at boot, each led by its fill count: whatever ends the
program, the host reads the rest from there.
"""

import array
import io
import struct
import sys

from tallystick_guest import wire

_SIZE = 16_384
_HEAD = 4
_put_count = struct.Struct("<I").pack_into
_write, _write_at = wire.write, wire.write_at


class Window:
    """Bytes on their way to one stream."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._cells = array.array("B", bytes(_HEAD + _SIZE))
        self._view = memoryview(self._cells)
        self.address = self._cells.buffer_info()[0]
        self._used = 0

    def put(self, data: bytes) -> None:
        size = len(data)
        end = self._used + size
        if end > _SIZE:
            self.flush()
            if size > _SIZE:
                _write(self.handle, data)
                return
            end = size
        self._view[_HEAD + self._used : _HEAD + end] = data
        self._used = end
        _put_count(self._view, 0, end)

    def flush(self) -> None:
        if self._used:
            used, self._used = self._used, 0
            # The count goes first: if the host stops us in the write, it has these bytes already.
            _put_count(self._view, 0, 0)
            _write_at(self.handle, self.address + _HEAD, used)


class _Binary(io.RawIOBase):
    """What `sys.stdout.buffer` is."""

    def __init__(self, window: Window, name: str) -> None:
        self._window = window
        self.name = name

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._window.handle

    def write(self, data: object) -> int:
        data = bytes(data)
        self._window.put(data)
        return len(data)


class Stream(io.TextIOBase):
    """A text stream without buffering of its own."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = False
    closed = False

    def __init__(self, window: Window, name: str) -> None:
        self._put = window.put
        self._fileno = window.handle
        self.buffer = _Binary(window, name)
        self.name = name
        self.mode = "w"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        """Return the number that `os.write` takes for this stream."""
        return self._fileno

    def close(self) -> None:
        pass

    def reconfigure(self, **settings: object) -> None:
        """Accept what `TextIOWrapper.reconfigure` takes; the encoding stays UTF-8."""

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._put(text.encode("utf-8", "backslashreplace"))
        return len(text)


_out, _err = Window(1), Window(2)
_stdout, _stderr = Stream(_out, "<stdout>"), Stream(_err, "<stderr>")


def settle() -> None:
    """Make these the streams of the image."""
    renew()


def renew() -> None:
    """Install both streams again: a program may have replaced them."""
    sys.stdout = sys.__stdout__ = _stdout
    sys.stderr = sys.__stderr__ = _stderr


def flush() -> None:
    """Send what is left of both streams."""
    _out.flush()
    _err.flush()


def windows() -> list[list[int]]:
    """Address, fill offset and size of each window, for the host."""
    return [[1, _out.address, _SIZE], [2, _err.address, _SIZE]]
