"""The output of a program: kept inline up to a limit, whole in a file beyond it, counted in bytes.

If a stream passes its inline limit, all of it goes to a file of this execution, from its first
byte. The inline text then ends with a line that says so. Partial output is
kept, no matter how the program ends.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tallystick.core.errors import CleanUpWarning
from tallystick.storage.private_file import make_private, open_new

_LOST = "the rest is lost: "
_CUT_END = "]\n"


class OutputOverflow(Exception):
    """The program printed more than its limit. `total` is the bytes that it tried to print."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.total = total


class OutputStream:
    """One stream: stdout or stderr.

    At most `inline_max` bytes are kept inline; `place` names the file for a longer stream. With
    `whole`, the stream is kept there and not in a file: a program that is run again needs no disk.
    `lost` is why the file could not be kept when the program first ran; then none is written.
    Without `keep`, bytes are only counted. `place` is called once, when the limit is passed.
    """

    def __init__(
        self,
        *,
        inline_max: int,
        place: Callable[[], Path] | None,
        keep: bool = True,
        whole: bytearray | None = None,
        lost: str | None = None,
    ) -> None:
        self._inline_max = inline_max
        self._place = place
        self._path = Path()
        self._keep = keep
        self._inline = bytearray()
        self._file: BinaryIO | None = None
        self._whole = whole
        self._lost = lost
        if place is None and whole is None:
            self._lost = self._lost or "there is no directory for it"
        self.bytes_total = 0

    @property
    def truncated(self) -> bool:
        """True if the stream is longer than the inline limit; always False without `keep`."""
        return self._keep and self.bytes_total > self._inline_max

    @property
    def path(self) -> Path | None:
        """The file with the whole stream; None if there is none, or it could not be written."""
        return self._path if self._file is not None and self._lost is None else None

    @property
    def whole(self) -> bytes | None:
        """The whole stream, if it is kept in memory and is longer than the inline limit.

        None otherwise, and if the first run of the program could not keep it.
        """
        return bytes(self._whole or b"") if self._in_memory else None

    @property
    def kept(self) -> bool:
        """True if the stream is longer than the inline limit, and all of it is kept."""
        return self.path is not None or self._in_memory

    @property
    def _in_memory(self) -> bool:
        return self._whole is not None and self._lost is None and self.truncated

    def write(self, data: bytes) -> None:
        """Count the bytes and, with `keep`, keep them.

        A file that fails is noted and removed; never raise.
        """
        self.bytes_total += len(data)
        if not self._keep:
            return
        if self._whole is not None:
            self._whole += data
        elif self.bytes_total > self._inline_max and self._file is None and self._lost is None:
            self._spill()
        if self._file is not None and self._lost is None:
            self._to_file(data)
        room = self._inline_max - len(self._inline)
        if room > 0:
            self._inline += data[:room]

    def text(self, place: int | None = None) -> str:
        """Close the stream and return its inline text, with a last line if it was cut.

        `place` is the index in `outputs` where later programs find the whole stream; None if they
        do not. A cut text ends after a whole line, unless it has none.
        """
        self.close()
        if not self.truncated:
            return self._inline.decode("utf-8", "replace")
        whole_lines = self._inline.rfind(b"\n") + 1
        kept = self._inline[:whole_lines] if whole_lines else self._inline
        # The model reads this line, so it must not contain a path of the host.
        where = "the whole is kept in a file"
        if not self.kept:
            where = f"{_LOST}{self._lost}"
        elif place is not None:
            name = f"outputs[{place}]"
            where = f"{name} has all: {name}[0:500], {name}.search(pattern), {name}.peek()"
        shown = kept.decode("utf-8", "replace")
        gap = "" if shown.endswith("\n") or not shown else "\n"
        return f"{shown}{gap}[output cut: {self.bytes_total:,} bytes in all; {where}{_CUT_END}"

    def close(self) -> None:
        """Close the file, if there is one. If that fails, its content counts as lost."""
        if self._file is not None and not self._file.closed:
            try:
                self._file.close()
            except OSError as error:
                self._lose_file(error)

    def _spill(self) -> None:
        assert self._place is not None
        # The name is computed here, not earlier: few programs need a file.
        self._path = self._place()
        try:
            make_private(self._path.parent)
            self._file = os.fdopen(open_new(self._path), "wb")
        except OSError as error:
            self._lost = error.strerror or str(error)
            return
        self._to_file(bytes(self._inline))

    def _to_file(self, data: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            self._lose_file(error)

    def _lose_file(self, error: OSError) -> None:
        """Note why the stream is lost, and remove its file: on a full disk its bytes are needed."""
        assert self._file is not None
        self._lost = error.strerror or str(error)
        # Closing writes what is buffered once more, and may fail again.
        with contextlib.suppress(OSError):
            self._file.close()
        remove_output(self._path)


def lost_output(shown: str) -> str:
    """Return why the rest of a stream was lost, read from its inline text; "" if it was not."""
    last = shown[shown.rstrip("\n").rfind("\n") + 1 :]
    _, found, why = last.partition(f" bytes in all; {_LOST}")
    return why.removesuffix(_CUT_END) if found and last.startswith("[output cut: ") else ""


def remove_output(path: Path) -> None:
    """Remove a file of output. If that fails, warn with `CleanUpWarning` and go on.

    Nothing is lost then: the output was already stored elsewhere, or is not wanted.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        warnings.warn(CleanUpWarning(path=str(path), why=why), stacklevel=3)


class ProgramOutput:
    """Both streams of one execution, under one total."""

    def __init__(self, *, stdout: OutputStream, stderr: OutputStream, bytes_max: int) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._bytes_max = bytes_max

    @property
    def bytes_total(self) -> int:
        """The bytes that were printed to both streams together."""
        return self.stdout.bytes_total + self.stderr.bytes_total

    def discard(self) -> None:
        """Close both streams and remove their files, because no result will refer to them.

        A file that cannot be removed stays, with a `CleanUpWarning`.
        """
        for stream in (self.stdout, self.stderr):
            stream.close()
            if stream.path is not None:
                remove_output(stream.path)

    def write(self, handle: int, data: bytes) -> None:
        """Write to a stream (1 is stdout, anything else stderr), up to the common limit.

        Raise `OutputOverflow` if `data` goes beyond it; the part that fits is kept.
        """
        room = self._bytes_max - self.bytes_total
        stream = self.stdout if handle == 1 else self.stderr
        stream.write(data[:room] if len(data) > room else data)
        if len(data) > room:
            raise OutputOverflow(self._bytes_max - room + len(data))
