"""Count the memory of a box: what its processes hold, and what the kernel holds for them.

These count: private memory (swapped out or not), page tables, the files of /tmp and /dev/shm,
shared anonymous memory, and the buffers of sockets and pipes. Pages of programs and libraries on
disk do not: the machine can take them back at any time. Nor does the working directory, which has
a limit of its own.

There are two ways to count. The quick one never counts too little: memory that two processes share
counts twice. The exact one divides shared memory among its users, and is used only if the quick
count is above the limit. For a while after an exact count, an upper bound of the growth since then
is enough.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TMPFS = ("/tmp", "/dev/shm")
# An inode of a tmpfs and its name take about this much of the kernel's memory.
_INODE_BYTES = 1_024
_EXACT_FIELDS = (b"Pss_Anon:", b"SwapPss:")
_SHARED_LINE = b" /dev/zero (deleted)"


class Task(NamedTuple):
    """A process: how many of its threads may be running, and the bytes that it holds."""

    busy: int
    private: int
    page_tables: int


def tasks() -> dict[int, Task]:
    """Return every live process in the box by its id, without the keeper."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError), open(f"/proc/{name}/status", "rb") as file:
                task = _read_status(file.read())
                if task is not None:
                    found[int(name)] = task
    return found


def _read_status(text: bytes) -> Task | None:
    # A program may choose its name, but the kernel writes a line break in it as two characters.
    fields = dict(line.split(b":\t", 1) for line in text.split(b"\n") if b":\t" in line)
    if fields[b"State"][:1] in b"ZX":
        return None
    private = _kib(fields, b"RssAnon") + _kib(fields, b"VmSwap")
    threads = int(fields[b"Threads"])
    # The state is that of the first thread. The states of the others are not in this file, so they
    # are taken to be busy.
    busy = threads if fields[b"State"][:1] == b"R" or threads > 1 else 0
    return Task(busy, private, _kib(fields, b"VmPTE"))


def _kib(fields: dict[bytes, bytes], name: bytes) -> int:
    return int(fields[name].split()[0]) * 1024 if name in fields else 0


def proportional_bytes(pids: Collection[int], *, interrupted: Callable[[], bool]) -> int | None:
    """Return the private memory of processes in bytes, with shared pages counted once.

    It takes a while, so `interrupted` is called before each process. If it returns True, return
    None. A process that has ended counts as nothing.
    """
    total = 0
    for pid in pids:
        if interrupted():
            return None
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(_EXACT_FIELDS):
                    total += int(line.split()[1]) * 1024
    return total


class Growth:
    """An upper bound of how much processes have grown since they were counted exactly.

    A new private page is either fresh, or a copy of a shared page. Both need a page fault of the
    process, because the box has no huge pages. A new process started as a copy of one that was
    counted, so it is compared with the largest of those.
    """

    def __init__(self, found: Mapping[int, Task]) -> None:
        self._before = {pid: (task.private, _faults(pid)) for pid, task in found.items()}
        self._largest = max((task.private for task in found.values()), default=0)

    def since(self, found: Mapping[int, Task]) -> int:
        """Return the bytes by which all processes together have grown at most."""
        total = 0
        for pid, task in found.items():
            private, faults = self._before.get(pid, (self._largest, 0))
            total += max(0, task.private - private, (_faults(pid) - faults) * _PAGE_BYTES)
        return total


def _faults(pid: int) -> int:
    """Return the number of minor page faults of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[7])
    except OSError:
        return 0


def file_bytes() -> int:
    """Return the bytes in /tmp and /dev/shm, which are memory, with those of their inodes."""
    total = 0
    for place in _TMPFS:
        with contextlib.suppress(OSError):
            found = os.statvfs(place)
            total += (found.f_blocks - found.f_bfree) * found.f_frsize
            total += (found.f_files - found.f_ffree) * _INODE_BYTES
    return total


# Buffers of sockets. The kernel lists all sockets of a network namespace, even those that no
# process has open any more, because they are in transit inside another socket.


_NETLINK_SOCK_DIAG, _DIAG_BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_UNIX_SHOW, _UNIX_HEAD = 0x04 | 0x10 | 0x20, 16  # The other end, the queue, the memory.
_UNIX_PEER, _UNIX_QUEUE, _UNIX_MEMORY = 2, 4, 5
_TCP_MEMORY, _TCP_HEAD = 7, 72
_ANSWER_BYTES = 1 << 18
# Data counts with the socket that wrote it. If that is closed, the kernel tells only that there is
# some data, and not how much. It then counts as the most that one socket can write; for datagrams,
# which may come from several sockets, as that of ten.
_WRITTEN_BYTES_MAX = 425_984
_WRITERS_MAX = 10


class SocketBuffers:
    """The connection on which the kernel tells how much the sockets of this namespace hold."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        # Allocated once. A buffer of this size would be mapped and unmapped at each use, and for
        # that the kernel waits until no process reads our mappings. The programs of the box would
        # run on meanwhile.
        self._answer = bytearray(_ANSWER_BYTES)
        with contextlib.suppress(OSError):
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
            self._netlink = socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)
            self._netlink.settimeout(1.0)

    def total(self) -> int:
        """Return the bytes in all buffers, 0 if the kernel does not tell."""
        every = 0xFFFF_FFFF
        unix = struct.pack("=BBHIIIq", socket.AF_UNIX, 0, 0, every, 0, _UNIX_SHOW, -1)
        total = sum(_unix_bytes(answer) for answer in self._ask(unix))
        for family in (socket.AF_INET, socket.AF_INET6):
            shown = 1 << (_TCP_MEMORY - 1)
            tcp = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, shown, 0, every)
            for answer in self._ask(tcp):
                total += sum(_memory(_attributes(answer, _TCP_HEAD).get(_TCP_MEMORY)))
        return total

    def _ask(self, request: bytes) -> Iterator[bytes]:
        """Yield the kernel's answer for each socket; none if the kernel does not answer."""
        if self._netlink is None:
            return
        head = struct.pack("=IHHII", 16 + len(request), _DIAG_BY_FAMILY, _DUMP, 1, 0)
        try:
            self._netlink.send(head + request)
            while True:
                end, at = self._netlink.recv_into(self._answer), 0
                while at + 16 <= end:
                    length, kind = struct.unpack_from("=IH", self._answer, at)
                    if kind in (_DONE, _ERROR) or length < 16:
                        return
                    yield bytes(self._answer[at + 16 : at + length])
                    at += (length + 3) & ~3
        except OSError:
            return


def _attributes(answer: bytes, at: int) -> dict[int, bytes]:
    found = {}
    while at + 4 <= len(answer):
        length, kind = struct.unpack_from("=HH", answer, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = answer[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _memory(answer: bytes | None) -> tuple[int, int]:
    """Return the bytes that wait to be read, and those that were written; zeros if it is short."""
    if answer is None or len(answer) < 24:
        return 0, 0
    received, _, written, _, _, queued = struct.unpack_from("=6I", answer)
    return received, max(written, queued)


def _unix_bytes(answer: bytes) -> int:
    """Return the bytes in the buffers of a local socket, at least as many as there are."""
    found = _attributes(answer, _UNIX_HEAD)
    written = _memory(found.get(_UNIX_MEMORY))[1]
    waiting = struct.unpack_from("=I", found.get(_UNIX_QUEUE, bytes(4)))[0]
    if not waiting or found.get(_UNIX_PEER, bytes(4)) != bytes(4):
        return written
    writers = _WRITERS_MAX if answer[1] == socket.SOCK_DGRAM else 1
    return written + max(int(waiting), writers * _WRITTEN_BYTES_MAX)


# Buffers of pipes. The kernel gives a user's pipes their full size up to 64 MiB in all; each
# further pipe gets two pages.

_PIPE_BYTES, _PIPE_LEAST_BYTES, _PIPES_BYTES_MAX = 65_536, 8_192, 64 << 20


def pipe_bytes(pids: Collection[int], *, room: int) -> int:
    """Return the most bytes that the pipes of processes can hold.

    First each descriptor counts as a pipe, which is quick. Only if that is more than `room`, the
    pipes are counted.
    """
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            place = f"/proc/{pid}/fd"
            # Since Linux 6.2 the size of the directory is the number of descriptors.
            count += os.stat(place).st_size or len(os.listdir(place))
    if _of_pipes(count) <= room:
        return _of_pipes(count)
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(entry.path)
                    if target.startswith("pipe:"):
                        found.add(target)
    return _of_pipes(len(found))


def _of_pipes(count: int) -> int:
    return min(count * _PIPE_BYTES, _PIPES_BYTES_MAX + count * _PIPE_LEAST_BYTES)


# Shared anonymous memory. After a process unmaps a page, the page stays as long as any page of the
# same mapping is mapped anywhere. So what processes show is no upper bound. Therefore the seccomp
# filter asks the keeper about each mapping, and its full size counts until the mapping is gone.


_RECEIVE, _SEND, _STRUCT_BYTES = 0xC050_2100, 0xC018_2101, 80
_CONTINUE = 1
# After a mapping is granted, it takes a moment until the process has it.
_FRESH_SECONDS = 0.1


class Request(NamedTuple):
    """The request of a process to map `length` bytes of shared memory. The process waits."""

    listener: int
    id: int
    length: int

    def answer(self, error: int) -> None:
        """Let the process map the memory if `error` is 0, or else let its call fail with it."""
        reply = struct.pack("=QqiI", self.id, 0, -error, 0 if error else _CONTINUE)
        with contextlib.suppress(OSError):  # It may have been ended meanwhile.
            fcntl.ioctl(self.listener, _SEND, reply)


def receive_request(listener: int) -> Request | None:
    """Return the next request, None if the kernel gives none: its process has ended."""
    buffer = bytearray(_STRUCT_BYTES)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError:
        return None
    found = struct.unpack_from("=QIIiIQ6Q", buffer)
    return Request(listener, found[0], found[7])


class SharedMappings:
    """The sizes of the shared mappings that were granted to the box."""

    def __init__(self) -> None:
        self._granted: list[tuple[int, float]] = []

    @property
    def total(self) -> int:
        return sum(length for length, _ in self._granted)

    @property
    def any_recent(self) -> bool:
        """True if a mapping was granted in the last 0.1 s.

        It may be unmapped already, or not be mapped yet; that cannot be known.
        """
        before = time.monotonic() - _FRESH_SECONDS
        return any(made > before for _, made in self._granted)

    def add(self, length: int) -> None:
        """Add a mapping that is granted now."""
        self._granted.append((length, time.monotonic()))

    def forget_unmapped(self, pids: Collection[int]) -> int:
        """Remove mappings that are gone. Return the most bytes that the present ones can hold.

        The kernel tells how many there are, and not which, so the longest are taken to be present.
        Those granted in the last 0.1 s stay too, because they may not be mapped yet.
        """
        if not self._granted:
            return 0
        count = _count_mappings(pids)
        before = time.monotonic() - _FRESH_SECONDS
        longest = sorted(self._granted, reverse=True)
        self._granted = longest[:count] + [each for each in longest[count:] if each[1] > before]
        return sum(length for length, _ in longest[:count])


def peak_bytes(pid: int) -> int:
    """Return the most bytes that a process has had in memory at a time; 0 if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _count_mappings(pids: Collection[int]) -> int:
    """Return the number of shared anonymous mappings of these processes, each by its inode."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
            for line in file:
                if line.rstrip(b"\n").endswith(_SHARED_LINE):
                    found.add(line.split()[4])
    return len(found)
