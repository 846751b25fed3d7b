"""What a program prints: kept inline up to a cap, the rest in a file, counted to the byte.

When the next line would pass the cap of its stream, what was kept and all that follows go to a file
of this execution, and the inline text ends with a line that says so. Partial output is kept however
the program ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tallystick.storage import system


class OutputOverflow(Exception):
    """The program printed more than it may. `total` is what it tried to print."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.total = total


class OutputStream:
    """One stream: stdout or stderr."""

    def __init__(
        self, *, inline_max: int, place: Callable[[], Path] | None, keep: bool = True
    ) -> None:
        self._inline_max = inline_max
        self._place = place
        self._path = Path()
        self._keep = keep
        self._inline = bytearray()
        self._file: BinaryIO | None = None
        self._lost: str | None = "there is no directory for it" if place is None else None
        self.bytes_total = 0

    @property
    def truncated(self) -> bool:
        return self._keep and self.bytes_total > self._inline_max

    @property
    def path(self) -> Path | None:
        """The file that holds the whole stream, if there is one."""
        return self._path if self._file is not None and self._lost is None else None

    def write(self, data: bytes) -> None:
        self.bytes_total += len(data)
        if not self._keep:
            return
        if self.bytes_total > self._inline_max and self._file is None and self._lost is None:
            self._spill()
        if self._file is not None and self._lost is None:
            self._to_file(data)
        room = self._inline_max - len(self._inline)
        if room > 0:
            self._inline += data[:room]

    def text(self, place: int | None = None) -> str:
        """The inline text, with its closing line if it was cut.

        `place` is where later programs find the whole, in `outputs`; None if they do not.
        """
        self.close()
        if not self.truncated:
            return self._inline.decode("utf-8", "replace")
        whole_lines = self._inline.rfind(b"\n") + 1
        kept = self._inline[:whole_lines] if whole_lines else self._inline
        # The program's author reads this; where the host keeps files is not for them.
        where = "the whole is kept in a file"
        if self.path is None:
            where = f"the rest is lost: {self._lost}"
        elif place is not None:
            name = f"outputs[{place}]"
            where = f"{name} has all: {name}[0:500], {name}.search(pattern), {name}.peek()"
        shown = kept.decode("utf-8", "replace")
        gap = "" if shown.endswith("\n") or not shown else "\n"
        return f"{shown}{gap}[output cut: {self.bytes_total:,} bytes in all; {where}]\n"

    def close(self) -> None:
        if self._file is not None and not self._file.closed:
            try:
                self._file.close()
            except OSError as error:
                self._lost = error.strerror or str(error)

    def _spill(self) -> None:
        assert self._place is not None
        # A name is made for the few programs that need one.
        self._path = self._place()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | system.CLOEXEC
            self._file = os.fdopen(os.open(self._path, flags, 0o600), "wb")
        except OSError as error:
            self._lost = error.strerror or str(error)
            return
        self._to_file(bytes(self._inline))

    def _to_file(self, data: bytes) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            self._lost = error.strerror or str(error)


class ProgramOutput:
    """Both streams of one execution, under one total."""

    def __init__(self, *, stdout: OutputStream, stderr: OutputStream, bytes_max: int) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._bytes_max = bytes_max

    @property
    def bytes_total(self) -> int:
        return self.stdout.bytes_total + self.stderr.bytes_total

    def discard(self) -> None:
        """Do away with what was kept in files: nobody will hear of it."""
        for stream in (self.stdout, self.stderr):
            stream.close()
            if stream.path is not None:
                stream.path.unlink(missing_ok=True)

    def write(self, handle: int, data: bytes) -> None:
        """Take what was printed, up to the total; beyond it the program has to end."""
        room = self._bytes_max - self.bytes_total
        stream = self.stdout if handle == 1 else self.stderr
        stream.write(data[:room] if len(data) > room else data)
        if len(data) > room:
            raise OutputOverflow(self._bytes_max - room + len(data))
