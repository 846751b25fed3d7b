"""Who is in a box, and how much memory they hold, as the kernel shows it."""

from __future__ import annotations

import contextlib
import os

__all__ = ["processes", "resident_bytes", "shared_out_bytes"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def processes() -> dict[int, int]:
    """Every process in the box but the keeper, with how many threads it has.

    The dead do not count, whoever has to bury them.
    """
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may hold anything; what follows the last one is ours.
                fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    found[int(name)] = int(fields[17])
    return found


def resident_bytes() -> int:
    """Memory of all, where what two share counts twice: quick to know, and never too little."""
    total = 0
    for pid in processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
            total += int(file.read().split()[1])
    return total * _PAGE_BYTES


def shared_out_bytes() -> int:
    """The same with what is shared divided among those who share it."""
    total = 0
    for pid in processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
    return total
