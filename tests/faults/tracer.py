"""Kills a process as it enters the n-th system call that anybody else can see, of all its threads.

strace counts the calls of each thread on its own, so it cannot name the n-th of a process with many
threads. This counts them all: a filter in the process stops it at the calls that change or tell
something (`stop_at_calls`), and ptrace looks at each stop: calls on the files of one directory and
on sockets are seen, the others pass. Linux on x86-64 and AArch64; `available` says whether.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Seen", "available", "run_traced", "stop_at_calls"]

# Calls on a descriptor, and calls on a path with the place of the path among their arguments.
_BY_DESCRIPTOR = {
    "x86_64": {
        1: "write", 3: "close", 18: "pwrite64", 20: "writev", 42: "connect", 44: "sendto",
        45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 73: "flock", 74: "fsync", 75: "fdatasync",
        77: "ftruncate",
    },
    "aarch64": {
        32: "flock", 46: "ftruncate", 57: "close", 64: "write", 66: "writev", 68: "pwrite64",
        82: "fsync", 83: "fdatasync", 203: "connect", 206: "sendto", 207: "recvfrom",
        211: "sendmsg", 212: "recvmsg",
    },
}  # fmt: skip
_BY_PATH = {
    "x86_64": {
        2: ("open", 0), 82: ("rename", 0), 83: ("mkdir", 0), 84: ("rmdir", 0), 87: ("unlink", 0),
        257: ("openat", 1), 258: ("mkdirat", 1), 263: ("unlinkat", 1), 264: ("renameat", 1),
        316: ("renameat2", 1),
    },
    "aarch64": {
        34: ("mkdirat", 1), 35: ("unlinkat", 1), 38: ("renameat", 1), 56: ("openat", 1),
        276: ("renameat2", 1),
    },
}  # fmt: skip
_CONT, _SEIZE, _INTERRUPT, _LISTEN, _SYSCALL_INFO = 7, 0x4206, 0x4207, 0x4208, 0x420E
# New threads and processes are followed too, a filter may stop, and all dies with who holds it.
_OPTIONS = 0x2 | 0x4 | 0x8 | 0x80 | 0x10_0000
_WALL = 0x4000_0000
_AT_CALL, _STOPPED = 7, 128
_PATH_BYTES_MAX = 512
# Of the filter: load the number of a call, jump if it is this one, return.
_LOAD, _JUMP_IF, _RETURN = 0x20, 0x15, 0x06
_TRACE, _ALLOW = 0x7FF0_0000, 0x7FFF_0000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2


@functools.cache
def available() -> bool:
    """Whether a process can be traced here: by the machine, and by whoever guards it."""
    if sys.platform != "linux" or platform.machine() not in _BY_PATH:
        return False
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        try:
            _Tracer(process.pid, "/", None).seize()
        except OSError:
            return False
        finally:
            process.kill()
    return True


def stop_at_calls() -> None:
    """Have this process, and what it begins, stop at these calls for whoever traces it.

    Without a tracer such calls fail from now on.
    """
    machine = platform.machine()
    numbers = [*_BY_DESCRIPTOR[machine], *_BY_PATH[machine]]
    code = [struct.pack("=HBBI", _LOAD, 0, 0, 0)]
    for place, number in enumerate(numbers):
        # Over the others and the return that allows.
        code.append(struct.pack("=HBBI", _JUMP_IF, len(numbers) - place, 0, number))
    code += [struct.pack("=HBBI", _RETURN, 0, 0, each) for each in (_ALLOW, _TRACE)]
    held = ctypes.create_string_buffer(b"".join(code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(held)))
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (
        (_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SECCOMP, _FILTER, ctypes.addressof(program), 0, 0),
    ):
        if libc.prctl(*map(ctypes.c_ulong, request)):
            raise OSError(ctypes.get_errno(), "no filter for system calls")


@dataclass(frozen=True, slots=True)
class Seen:
    """A call that was seen: its name, and the file or socket it is on."""

    call: str
    on: str

    def __str__(self) -> str:
        return f"{self.call} {self.on}"


@dataclass
class _Tracer:
    """Follows one process from now on to its end."""

    pid: int
    folder: str
    kill_at: int | None
    seen: list[Seen] = field(default_factory=list)
    _killed: bool = False

    def __post_init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._libc.ptrace.restype = ctypes.c_long
        self._by_descriptor = _BY_DESCRIPTOR[platform.machine()]
        self._by_path = _BY_PATH[platform.machine()]

    def seize(self) -> None:
        for thread in map(int, os.listdir(f"/proc/{self.pid}/task")):
            self._ask(_SEIZE, thread, 0, _OPTIONS)

    def follow(self) -> int:
        """Let it go on from stop to stop, until it is gone. Returns how it ended."""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            while True:
                thread, status = os.waitpid(-1, _WALL)
                if os.WIFSTOPPED(status):
                    self._stopped(thread, status, memory.fileno())
                elif thread == self.pid:
                    return os.waitstatus_to_exitcode(status)

    def _stopped(self, thread: int, status: int, memory: int) -> None:
        cause, event = os.WSTOPSIG(status), status >> 16
        if event == _STOPPED and cause != signal.SIGTRAP:
            self._ask(_LISTEN, thread)
            return
        if event == _AT_CALL and not self._killed:
            self._at_call(thread, memory)
        with contextlib.suppress(ProcessLookupError):
            self._ask(_CONT, thread, 0, 0 if event else cause)

    def _at_call(self, thread: int, memory: int) -> None:
        info = ctypes.create_string_buffer(88)
        self._ask(_SYSCALL_INFO, thread, len(info), ctypes.addressof(info))
        number, *arguments = struct.unpack_from("=7Q", info.raw, 24)
        found = self._looked_at(number, arguments, memory)
        if found is None:
            return
        self.seen.append(found)
        if len(self.seen) == self.kill_at:
            self._killed = True
            os.kill(self.pid, signal.SIGKILL)

    def _looked_at(self, number: int, arguments: list[int], memory: int) -> Seen | None:
        name = self._by_descriptor.get(number)
        if name is not None:
            on = self._behind(arguments[0])
        else:
            name, place = self._by_path[number]
            on = self._inside(_text_at(memory, arguments[place]))
        return None if on is None else Seen(name, on)

    def _behind(self, descriptor: int) -> str | None:
        try:
            path = os.readlink(f"/proc/{self.pid}/fd/{descriptor}")
        except OSError:
            return None
        return "socket" if path.startswith("socket:") else self._inside(path)

    def _inside(self, path: str) -> str | None:
        if path != self.folder and not path.startswith(f"{self.folder}/"):
            return None
        return path[len(self.folder) + 1 :] or "."

    def _ask(self, request: int, thread: int, address: int = 0, data: int = 0) -> None:
        if self._libc.ptrace(request, thread, address, data) < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))


def _text_at(memory: int, address: int) -> str:
    with contextlib.suppress(OSError):
        read = os.pread(memory, _PATH_BYTES_MAX, address)
        return read.partition(b"\0")[0].decode(errors="replace")
    return ""


def run_traced(
    pid: int, folder: Path, *, kill_at: int | None, go: Callable[[], None]
) -> tuple[int, list[Seen]]:
    """Follow a process that waits for `go`, and kill it as it enters the n-th call that is seen.

    The process calls `stop_at_calls` behind that. Returns how it ended and every call that was
    seen; the last is the one it died at.
    """
    tracer = _Tracer(pid, str(folder.resolve()), kill_at)
    tracer.seize()
    go()
    return tracer.follow(), tracer.seen
