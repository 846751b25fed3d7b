"""What a process gives up before it runs anything of a program, by Landlock and by limits."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tallystick.sandbox.process.inside import kernel
from tallystick.sandbox.process.inside.filter import build_filter
from tallystick.sandbox.process.inside.layers import HOME, USER

# Landlock: which files a process may touch, told to the kernel in so far as it knows the words.
#
# Each version of the interface knows more rights. What a kernel does not know is left out; the
# other layers stand behind it. Rules name directories, and hold for what is mounted below them
# later.


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_ONLY = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_CHANGES = 0b1_1111_1111 << 4  # remove and make entries, of every kind
_MAKE_DEVICES = (1 << 6) | (1 << 11)
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
_TCP = 0b11
_SCOPES = 0b11  # abstract sockets and signals


def landlock_version() -> int:
    """The version of the kernel's Landlock; raises `OSError` where there is none."""
    return kernel.syscall(_CREATE_RULESET, 0, 0, _VERSION_ONLY)


def _handled(version: int) -> int:
    rights = _READ | _WRITE_FILE | _CHANGES
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    if version >= 5:
        rights |= _IOCTL_DEVICE
    return rights


def restrict_files(
    *, readable: Sequence[str], writable: Sequence[str], devices: Sequence[str], network: bool
) -> int:
    """Hold this process and all it starts to these files; without `network`, no TCP either.

    Returns the version in use. The process must have no_new_privs.
    """
    version = landlock_version()
    handled = _handled(version)
    network_handled = _TCP if version >= 4 and not network else 0
    attributes = struct.pack("=QQQ", handled, network_handled, _SCOPES if version >= 6 else 0)
    # Kernels take a longer structure only if what they do not know in it is zero.
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = kernel.syscall(_CREATE_RULESET, attributes[:size], size, 0)
    try:
        writing = (_READ | _WRITE_FILE | _CHANGES | _REFER | _TRUNCATE) & ~_MAKE_DEVICES & handled
        for paths, rights in (
            (["/"], _READ_DIR),
            (readable, _READ),
            (writable, writing),
            (devices, (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE) & handled),
        ):
            for path in paths:
                _allow(ruleset, path, rights)
        kernel.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # Nothing to allow.
    try:
        if not os.path.isdir(path):
            rights &= _OF_FILES
        kernel.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


# What a process gives up before it runs anything of a program. There is no way back from it.


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


def confine(plan: Confinement) -> int | None:
    """Give up rights until only those of a program are left.

    Returns the descriptor on which the keeper is asked for shared memory; None where the kernel
    cannot ask, or there is no filter.
    """
    # The keeper may run before everything else; nothing that a program starts may.
    _limit(resource.RLIMIT_RTPRIO, 0)
    _limit(resource.RLIMIT_NICE, 0)
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
    kernel.no_huge_pages()
    kernel.no_new_privileges()
    kernel.drop_capabilities()
    # A change of user made the process its own secret; programs look into themselves.
    kernel.set_dumpable(True)
    if plan.landlock:
        restrict_files(
            readable=[*_READABLE, *plan.readable],
            writable=_WRITABLE,
            devices=["/dev"],
            network=plan.network,
        )
    if not plan.seccomp:
        return None
    try:
        return kernel.load_filter(build_filter(sockets=plan.network, asks=True), listen=True)
    except OSError:
        # Only one filter of a process may ask, and a container's may do so already.
        kernel.load_filter(build_filter(sockets=plan.network))
        return None


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
