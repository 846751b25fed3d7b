"""Make system calls that Python does not offer. Each function raises `OSError` if it fails."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
MNT_DETACH = 0x2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_THP_DISABLE = 41
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITIES_MAX = 63
_CAPABILITY_VERSION_3 = 0x2008_0522
# No root by number, no capabilities kept over a change of user, and both locked.
_SECUREBITS = 0b1111 | 0b1100_0000

_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_NEW_LISTENER = 1 << 3
_NUMBERS = {
    "x86_64": {"pivot_root": 155, "capset": 126, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "capset": 91, "seccomp": 277},
}
_CLOSE_RANGE = 436

_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":  # Elsewhere this can be imported, and nothing more.
    _libc.mount.argtypes = (
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_ulong,
        ctypes.c_char_p,
    )
    _libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
    _libc.unshare.argtypes = (ctypes.c_int,)
    _libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
    _libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: object) -> int:
    """Make a system call by its number, and return its result.

    Arguments are integers, bytes or ctypes values.
    """
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *passed), f"system call {number}")


def _number(name: str) -> int:
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise OSError(errno.ENOSYS, f"{name}: not known on {machine}")
    return _NUMBERS[machine][name]


def unshare(flags: int) -> None:
    """Move this process to new namespaces of the kinds in `flags`."""
    _check(_libc.unshare(flags), "unshare")


def mount(
    source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str = ""
) -> None:
    """Mount a file system, or change a mount."""
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind)]
    done = _libc.mount(*encoded, flags, os.fsencode(data) if data else None)
    _check(done, f"mount {kind or source or ''} on {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """Unmount, by default even if the mount is in use (`MNT_DETACH`)."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def pivot_root(new_root: str) -> None:
    """Make `new_root` the root, without the old one, and the current directory."""
    # Both at the same place: the old root is then mounted over the new one, and can be unmounted.
    exchange_root(new_root, old=".")
    umount(".")
    os.chdir("/")


def exchange_root(new_root: str, *, old: str) -> None:
    """Make `new_root` the root, with the old one at `old` in it. Change to `new_root`."""
    os.chdir(new_root)
    syscall(_number("pivot_root"), b".", os.fsencode(old))


def _prctl(option: int, *arguments: int) -> int:
    padded = [*arguments, *[0] * (4 - len(arguments))]
    return _check(_libc.prctl(option, *padded), f"prctl {option}")


def die_with_parent(signal_number: int) -> None:
    """Let the kernel send a signal when the parent ends. A change of the user undoes that."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)


def set_dumpable(dumpable: bool) -> None:
    """Allow or forbid other processes of this user to look into this one."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def set_name(name: str) -> None:
    """Set the name in process lists, of at most 15 bytes."""
    buffer = ctypes.create_string_buffer(name.encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(buffer))


def no_new_privileges() -> None:
    """Forbid that a program gains rights by being started, here and in all children, for good."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def no_huge_pages() -> None:
    """Disable huge pages for this process and all that it starts, if the kernel has them.

    Each page of memory then takes a fault of its own, and faults are counted.
    """
    with contextlib.suppress(OSError):  # A kernel without huge pages does not know the option.
        _prctl(_PR_SET_THP_DISABLE, 1)


def lock_capabilities() -> None:
    """Close every way to gain a capability by a start of a program or a change of the user.

    The capabilities that the process has now stay, until `drop_capabilities`.
    """
    for capability in range(_CAPABILITIES_MAX + 1):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:
                break  # There are no more on this kernel.
            raise
    _prctl(_PR_SET_SECUREBITS, _SECUREBITS)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def drop_capabilities() -> None:
    """Drop every capability of this process."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    syscall(_number("capset"), header, bytes(24))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def load_filter(program: bytes, *, listen: bool = False) -> int:
    """Install a seccomp filter, given as instructions, for this process and all that it starts.

    With `listen`, return a descriptor for the calls that the filter asks about; otherwise 0.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    packed = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    flags = _SECCOMP_NEW_LISTENER if listen else 0
    return syscall(_number("seccomp"), _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(packed))


def close_all_but(*kept: int) -> None:
    """Close every descriptor above 2, except those that are named."""
    low = 3
    for descriptor in [*sorted({each for each in kept if each > 2}), 1 << 30]:
        if descriptor > low:
            _close_range(low, descriptor - 1)
        low = descriptor + 1


def _close_range(low: int, high: int) -> None:
    try:
        syscall(_CLOSE_RANGE, low, high, 0)
    except OSError:
        os.closerange(low, min(high + 1, os.sysconf("SC_OPEN_MAX")))
