"""What a process gives up before it runs anything of a program. There is no way back from it."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from typing import NamedTuple

from tallystick.sandbox.process.inside import kernel, landlock
from tallystick.sandbox.process.inside.filter import build_filter
from tallystick.sandbox.process.inside.places import HOME, USER

__all__ = ["Confinement", "confine", "leave_descriptors", "set_memory"]

_READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc")
_WRITABLE = (HOME, "/tmp", "/dev/shm")
# Mappings of files and reserved but unused room count here, and threads reserve a lot.
_ADDRESSES_EXTRA = 2 << 30


class Confinement(NamedTuple):
    """The limits and layers of the processes of one box."""

    memory_bytes: int
    processes_max: int
    open_files_max: int
    file_bytes: int
    cpu_seconds: int
    readable: Sequence[str]
    network: bool
    landlock: bool
    seccomp: bool
    change_user: bool


def confine(plan: Confinement) -> None:
    """Give up rights until only those of a program are left."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NPROC, plan.processes_max)
    _limit(resource.RLIMIT_NOFILE, plan.open_files_max)
    _limit(resource.RLIMIT_FSIZE, plan.file_bytes)
    _limit(resource.RLIMIT_CPU, plan.cpu_seconds)
    _limit(resource.RLIMIT_MEMLOCK, 64 * 1024)
    _limit(resource.RLIMIT_MSGQUEUE, 64 * 1024)
    _limit(resource.RLIMIT_DATA, plan.memory_bytes)
    _limit(resource.RLIMIT_AS, plan.memory_bytes + _ADDRESSES_EXTRA)
    kernel.lock_capabilities()
    if plan.change_user:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
    kernel.no_new_privileges()
    kernel.drop_capabilities()
    # A change of user made the process its own secret; programs look into themselves.
    kernel.set_dumpable(True)
    if plan.landlock:
        landlock.restrict(
            readable=[*_READABLE, *plan.readable],
            writable=_WRITABLE,
            devices=["/dev"],
            network=plan.network,
        )
    if plan.seccomp:
        kernel.load_filter(build_filter(sockets=plan.network))


def leave_descriptors(spare: int) -> None:
    """Let a program have all descriptors but some, which it takes to go on after it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - spare, hard))


def set_memory(memory_bytes: int) -> None:
    """Hold the rest of this process to less memory than the session may have."""
    for kind, wanted in (
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_AS, memory_bytes + _ADDRESSES_EXTRA),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (min(wanted, hard) if hard >= 0 else wanted, hard))


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (wanted, wanted))
