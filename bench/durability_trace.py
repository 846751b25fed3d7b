"""What a process forces to the disk and writes to its files, counted call by call with strace.

Counts do not depend on how busy the machine is; times do. A write is counted where its file lies in
the folder that was asked about. What SQLite keeps in shared memory is mapped, and is not counted.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TRACE_MISSING", "Traced", "counted", "trace", "trace_available"]

TRACE_MISSING = "strace is not installed"
_FORCING = ("fsync", "fdatasync", "sync_file_range", "syncfs", "msync", "sync")
_WRITING = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
# fdatasync(5</folder/ledger.db-wal>) = 0; a mapped region and `sync` name no file.
_CALL = re.compile(r"(\w+)\((?:\d+<([^>]*)>)?.*\)\s+= (\d+)$")
_SECONDS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What was counted, and what the process said."""

    forced: int
    bytes_written: int
    output: str = ""


def trace_available() -> bool:
    return shutil.which("strace") is not None


def trace(command: Sequence[str], folder: Path, *, given: str = "") -> Traced:
    """Run a command to its end and count its calls for a folder, all its threads together."""
    called = ",".join((*_FORCING, *_WRITING))
    # A log to each thread, so that no call is cut in two by another. The kernel stops the process
    # at these calls only: what waits for the disk together, does so nearly as it would alone.
    strace = ["strace", "-ff", "--seccomp-bpf", "-qq", "-y", "-s", "0", "-e", f"trace={called}"]
    with tempfile.TemporaryDirectory(prefix="tally-calls-") as logs:
        done = subprocess.run(
            [*strace, "-e", "signal=none", "-o", str(Path(logs) / "thread"), *command],
            input=given,
            capture_output=True,
            text=True,
            # Away from the repository: a peer's own imports must not find our modules.
            cwd=folder,
            timeout=_SECONDS_MAX,
        )
        if done.returncode:
            raise RuntimeError(f"under strace: {done.stderr.strip()[-500:]}")
        # The kernel names files by the path that has no links in it.
        found = counted(_lines(Path(logs)), folder.resolve())
    return Traced(forced=found.forced, bytes_written=found.bytes_written, output=done.stdout)


def _lines(logs: Path) -> Iterable[str]:
    for path in logs.iterdir():
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file


def counted(lines: Iterable[str], folder: Path) -> Traced:
    """Add up the lines of a trace. Calls that failed are left out."""
    forced = written = 0
    for line in lines:
        call = _CALL.match(line.rstrip())
        if call is None:
            continue
        name, path, result = call.groups()
        if path is not None and not Path(path).is_relative_to(folder):
            continue
        if name in _FORCING:
            forced += 1
        elif name in _WRITING and path is not None:
            written += int(result)
    return Traced(forced=forced, bytes_written=written)
