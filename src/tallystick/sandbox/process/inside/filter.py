"""Build the seccomp filter, which refuses system calls to the programs of a box.

A refused call changes the machine, exposes more of the kernel, reaches into other processes, or
would undo the other layers. Calls that are newer than this file (above `_NEWEST`) get ENOSYS, as if
the kernel did not have them. So does `clone3`: its flags are in memory, which a filter cannot read,
and the C library uses `clone` instead.

Mappings of shared anonymous memory are decided by the keeper. Such memory can live on when no
process shows it as its own, so it could not be counted afterwards.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO, _ASK = 0x7FFF_0000, 0x8000_0000, 0x0005_0000, 0x7FC0_0000
_AND = 0x54
_NUMBER, _MACHINE = 0, 4
_ARGUMENTS = 16
_X32 = 0x4000_0000

_MACHINES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
# The last call known here: `mseal`. Numbers above 424 are the same on every machine.
_NEWEST = 462

# name: (x86_64, aarch64); None where the machine does not have it.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "listmount": (458, 458),
    "statmount": (457, 457),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "userfaultfd": (323, 282),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "syslog": (103, 116),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "vmsplice": (278, 75),
    "memfd_secret": (447, 447),
    # Memory that belongs to no process, and that no limit of ours would count.
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "set_mempolicy_home_node": (450, 450),
    "cachestat": (451, 451),
}
_MKNOD = ("mknod", "mknodat")
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_IOCTL = (16, 29)
_PERSONALITY = (135, 92)
_PRCTL = (157, 167)
_MMAP = (9, 222)

# user, mount, cgroup, uts, ipc, pid, net, and time.
_NEW_NAMESPACES = 0x7E02_0000 | 0x80
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_MASK = 1, 0xF
_REFUSED_IOCTLS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
_S_IFMT_FIFO, _S_IFMT_SOCK, _S_IFMT_REGULAR = 0o010000, 0o140000, 0o100000
_S_IFMT = 0o170000
_SET_SECUREBITS, _SET_MM, _SET_HUGE_PAGES = 28, 35, 41
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGE = 0x01, 0x20, 0x4_0000


def machine_is_known() -> bool:
    """Return True if the system call numbers of this machine are known here."""
    return platform.machine() in _MACHINES


class _Code:
    """The instructions of a filter, in order; a jump skips the instructions right after it."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int, int, int]] = []

    def add(self, code: int, operand: int, if_true: int = 0, if_false: int = 0) -> None:
        self.parts.append((code, if_true, if_false, operand))

    def load(self, offset: int) -> None:
        self.add(_LOAD, offset)

    def answer(self, verdict: int) -> None:
        self.add(_RETURN, verdict)

    def refuse(self, number: int) -> None:
        self.answer(_ERRNO | number)

    def only_for(self, call: int, body: _Code) -> None:
        """Add `body` for one call. Its paths must all end with an answer.

        The number of the call must be loaded before.
        """
        self.add(_JUMP_EQUAL, call, 0, len(body.parts))
        self.parts += body.parts

    def to_bytes(self) -> bytes:
        return b"".join(struct.pack("=HBBI", *part) for part in self.parts)


def _argument(index: int) -> int:
    """Return the offset of the low half of an argument; both known machines are little-endian."""
    return _ARGUMENTS + 8 * index


@functools.cache
def build_filter(*, sockets: bool, asks: bool = False, machine: str | None = None) -> bytes:
    """Return the filter for this machine, or the one named. With `sockets`, TCP is allowed.

    With `asks`, the process that listens decides about shared anonymous memory; otherwise that is
    refused. Raise `ValueError` for a machine that is not known.
    """
    name = machine or platform.machine()
    place = list(_MACHINES).index(name)
    code = _Code()
    code.load(_MACHINE)
    code.add(_JUMP_EQUAL, _MACHINES[name], 1, 0)
    code.answer(_KILL)
    code.load(_NUMBER)
    code.add(_JUMP_GREATER, _X32 if name == "x86_64" else 1 << 30, 0, 1)
    code.answer(_KILL)
    code.add(_JUMP_GREATER, _NEWEST + 1, 0, 1)
    code.refuse(errno.ENOSYS)
    for refused, numbers in _REFUSED.items():
        number = numbers[place]
        if number is not None and refused not in _MKNOD:
            code.only_for(number, _refusal(errno.EPERM))
    code.only_for(_CLONE3[place], _refusal(errno.ENOSYS))
    code.only_for(_CLONE[place], _unless_set(0, _NEW_NAMESPACES))
    code.only_for(_SOCKET[place], _families(sockets=sockets))
    code.only_for(_SOCKETPAIR[place], _one_of(0, (_AF_UNIX,), errno.EAFNOSUPPORT))
    code.only_for(_IOCTL[place], _none_of(1, _REFUSED_IOCTLS))
    code.only_for(_PERSONALITY[place], _one_of(0, (0, 0xFFFF_FFFF), errno.EPERM))
    code.only_for(_PRCTL[place], _none_of(0, (_SET_SECUREBITS, _SET_MM, _SET_HUGE_PAGES)))
    code.only_for(_MMAP[place], _shared_memory(_ASK if asks else _ERRNO | errno.ENOMEM))
    for refused, mode_at in zip(_MKNOD, (1, 2), strict=True):
        number = _REFUSED[refused][place]
        if number is not None:
            code.only_for(number, _no_devices(mode_at))
    code.answer(_ALLOW)
    return code.to_bytes()


def _refusal(number: int) -> _Code:
    code = _Code()
    code.refuse(number)
    return code


def _unless_set(argument: int, bits: int) -> _Code:
    code = _Code()
    code.load(_argument(argument))
    code.add(_JUMP_SET, bits, 0, 1)
    code.refuse(errno.EPERM)
    code.answer(_ALLOW)
    return code


def _one_of(argument: int, allowed: tuple[int, ...], number: int) -> _Code:
    code = _Code()
    code.load(_argument(argument))
    for value in allowed:
        code.add(_JUMP_EQUAL, value, 0, 1)
        code.answer(_ALLOW)
    code.refuse(number)
    return code


def _none_of(argument: int, refused: tuple[int, ...]) -> _Code:
    code = _Code()
    code.load(_argument(argument))
    for value in refused:
        code.add(_JUMP_EQUAL, value, 0, 1)
        code.refuse(errno.EPERM)
    code.answer(_ALLOW)
    return code


def _families(*, sockets: bool) -> _Code:
    """Allow local sockets; with `sockets`, TCP too, which reaches nothing but the proxy."""
    code = _Code()
    code.load(_argument(0))
    code.add(_JUMP_EQUAL, _AF_UNIX, 0, 1)
    code.answer(_ALLOW)
    if sockets:
        code.add(_JUMP_EQUAL, _AF_INET, 2, 0)
        code.add(_JUMP_EQUAL, _AF_INET6, 1, 0)
        code.refuse(errno.EAFNOSUPPORT)
        code.load(_argument(1))
        code.add(_AND, _SOCK_MASK)
        code.add(_JUMP_EQUAL, _SOCK_STREAM, 0, 1)
        code.answer(_ALLOW)
    code.refuse(errno.EAFNOSUPPORT)
    return code


def _shared_memory(verdict: int) -> _Code:
    """Answer `verdict` for mappings that are shared and have no file.

    Huge pages are refused, because the kernel does not count them with their process.
    """
    code = _Code()
    code.load(_argument(3))
    code.add(_JUMP_SET, _MAP_HUGE, 0, 1)
    code.refuse(errno.EPERM)
    code.add(_AND, _MAP_SHARED | _MAP_ANONYMOUS)
    code.add(_JUMP_EQUAL, _MAP_SHARED | _MAP_ANONYMOUS, 0, 1)
    code.answer(verdict)
    code.answer(_ALLOW)
    return code


def _no_devices(mode_at: int) -> _Code:
    """Allow pipes, sockets and plain files as new nodes, and refuse devices."""
    code = _Code()
    code.load(_argument(mode_at))
    code.add(_AND, _S_IFMT)
    for kind in (0, _S_IFMT_REGULAR, _S_IFMT_FIFO, _S_IFMT_SOCK):
        code.add(_JUMP_EQUAL, kind, 0, 1)
        code.answer(_ALLOW)
    code.refuse(errno.EPERM)
    return code
