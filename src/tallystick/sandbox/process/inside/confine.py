"""Confine a process before it runs a program: limits, capabilities, Landlock and seccomp."""

from __future__ import annotations

import os
import resource
import struct
from collections.abc import Sequence
from typing import NamedTuple

from tallystick.sandbox.process.inside import kernel
from tallystick.sandbox.process.inside.filter import build_filter
from tallystick.sandbox.process.inside.layers import HOME, USER

# Landlock: the files that a process may use, as far as this kernel knows the rights.
#
# Each version of the interface has more rights. Rights that a kernel does not know are left out;
# the other layers still hold then. Rules name directories, and apply to what is mounted below them
# later too.


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
    """Return the version of the kernel's Landlock. Raise `OSError` if it has none."""
    return kernel.syscall(_CREATE_RULESET, 0, 0, _VERSION_ONLY)


def _known_rights(version: int) -> int:
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
    """Restrict this process, and all that it starts, to these files. There is no way back.

    Directories can be listed everywhere. Without `network`, TCP is refused as well, where Landlock
    has version 4. From version 6 on, abstract sockets of others and signals to them are refused
    too. Paths that do not exist are skipped. Return the version in use. Raise `OSError` without
    Landlock, or if a path cannot be opened. The process must have no_new_privs.
    """
    version = landlock_version()
    handled = _known_rights(version)
    network_handled = _TCP if version >= 4 and not network else 0
    attributes = struct.pack("=QQQ", handled, network_handled, _SCOPES if version >= 6 else 0)
    # A kernel accepts a longer structure only if the part that it does not know is zero, so pass
    # the length of its own version.
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


# The limits and layers of a process, set before it runs a program. There is no way back.


_READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc")
_WRITABLE = (HOME, "/tmp", "/dev/shm")
# Added to the limit of the address space, where mapped files and reserved, unused memory count too.
# Threads reserve a lot.
_ADDRESSES_EXTRA = 2 << 30


class Confinement(NamedTuple):
    """The limits and layers of the processes of one box. Sizes in bytes, time in seconds."""

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
    """Confine this process to the rights of a program. There is no way back.

    Return the descriptor on which the kernel asks the keeper about shared memory. None if the
    kernel cannot ask, or there is no filter. Raise `OSError` if the kernel refuses a step.
    """
    # Only the keeper may have a real-time priority; what a program starts must not get one.
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
    # The change of user made the process not dumpable, so it could not read its own files in /proc.
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
        # Only one filter of a process may ask a listener, and that of a container may do so
        # already. Shared anonymous memory is then refused.
        kernel.load_filter(build_filter(sockets=plan.network))
        return None


def leave_descriptors(spare: int) -> None:
    """Limit this process to all descriptors but `spare`, which the interpreter needs afterwards."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - spare, hard))


def set_memory(memory_bytes: int) -> None:
    """Limit the memory of this process, in bytes, within the hard limit of the session."""
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
