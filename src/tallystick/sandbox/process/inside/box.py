"""Build the box: a root with the system, to read only, and with the session's own files.

The process that becomes the keeper builds it, before any program exists. Of the host's files, the
box has only what is bound here, and that cannot be written. The namespaces of a box are listed
here too.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Sequence
from fcntl import ioctl
from typing import NamedTuple

from tallystick.sandbox.process.inside import kernel
from tallystick.sandbox.process.inside.kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
)
from tallystick.sandbox.process.inside.layers import FILES, HOME, KEPT, STORE, USER, WORK

NAMESPACES = {
    "user namespace": kernel.CLONE_NEWUSER,
    "mount namespace": kernel.CLONE_NEWNS,
    "pid namespace": kernel.CLONE_NEWPID,
    "network namespace": kernel.CLONE_NEWNET,
    "ipc namespace": kernel.CLONE_NEWIPC,
    "uts namespace": kernel.CLONE_NEWUTS,
    "cgroup namespace": kernel.CLONE_NEWCGROUP,
}
_HOSTNAME = "box"
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_CONFIGURATION = (
    "alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
    "mime.types", "pki/ca-trust", "pki/tls/certs", "protocols", "services", "ssl/certs",
    "ssl/openssl.cnf", "terminfo",
)  # fmt: skip
# The devices of a box, each with the host's device behind it. A shared mapping of the real
# /dev/zero is memory that no process shows as its own, so it could not be counted. So the box has
# the host's /dev/full in its place, which reads the same and cannot be mapped.
_DEVICES = {"null": "null", "zero": "full", "full": "full", "random": "random",
            "urandom": "urandom"}  # fmt: skip
_SMALL = "size=1m,nr_inodes=4096,mode=755"

_MOUNT_SETATTR = 442
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 0x1, 0x2, 0x4
_KEPT_FLAGS = ((0x8, MS_NOEXEC), (1024, 1024), (2048, 2048), (4096, 1 << 21))

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


class BoxPlan(NamedTuple):
    """The plan of a box: what it can read, its first files, and its sizes in bytes."""

    readable: Sequence[str]
    files: str | None
    disk_bytes: int
    tmp_bytes: int
    inodes_max: int
    network: bool
    hostname: bool


def build(plan: BoxPlan) -> None:
    """Build the box and make it the root. The caller is the first process of its namespaces.

    Raise `OSError` if the kernel refuses a step.
    """
    kernel.mount(None, "/", None, MS_REC | MS_PRIVATE)
    _enter_private_root()
    for name in _SYSTEM:
        _bind_system(name)
    _configuration()
    _devices(plan)
    os.mkdir("/new/proc")
    mount_proc("/new/proc")
    _writable(plan)
    for path in plan.readable:
        _bind(path.strip("/"))
    kernel.mount(None, "/new", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    kernel.pivot_root("/new")
    if plan.hostname:
        socket.sethostname(_HOSTNAME)
    if plan.network:
        raise_loopback()


def _enter_private_root() -> None:
    """Move to an empty root, with the host's at /old and a directory for the new root at /new.

    The old root stays reachable in a place of its own. Without that, mounting the new root over a
    directory would hide files that have to be bound from there.
    """
    kernel.mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, _SMALL)
    os.mkdir("/tmp/old")
    kernel.exchange_root("/tmp", old="old")
    os.chdir("/")
    os.mkdir("/new")
    kernel.mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, _SMALL)


def _bind_system(name: str) -> None:
    """Give the box a directory of the system as the host has it: a link stays a link.

    Do nothing if the host has no such directory.
    """
    old = f"/old/{name}"
    if os.path.islink(old):
        os.symlink(os.readlink(old), f"/new/{name}")
    elif os.path.isdir(old):
        _bind(name)


def _bind(path: str) -> None:
    """Bind a file or directory of the host at the same path, to read only."""
    old, new = f"/old/{path}", f"/new/{path}"
    if os.path.isdir(old):
        os.makedirs(new, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(new), exist_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    kernel.mount(old, new, None, MS_BIND | MS_REC)
    _read_only(new)


def _read_only(path: str) -> None:
    """Make a mount read-only, without devices and set-user-id, with all mounts below it.

    On kernels before 5.12 only the mount itself changes.
    """
    wanted = struct.pack("=QQQQ", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    try:
        kernel.syscall(
            _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, wanted, len(wanted)
        )
        return
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    before = os.statvfs(path).f_flag
    flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
    flags |= sum(ours for seen, ours in _KEPT_FLAGS if before & seen)
    kernel.mount(None, path, None, flags)


def _configuration() -> None:
    """Give the box the few files of /etc that programs need. Users and hosts are its own."""
    os.makedirs("/new/etc", exist_ok=True)
    for name in _CONFIGURATION:
        if os.path.exists(f"/old/etc/{name}"):
            _bind(f"etc/{name}")
    written = {
        "passwd": f"user:x:{USER}:{USER}:user:{WORK}:/bin/bash\n",
        "group": f"user:x:{USER}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "hostname": f"{_HOSTNAME}\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "resolv.conf": "",
    }
    for name, content in written.items():
        with open(f"/new/etc/{name}", "w", encoding="ascii") as file:
            file.write(content)


def _devices(plan: BoxPlan) -> None:
    os.mkdir("/new/dev")
    for name, device in _DEVICES.items():
        place = f"/new/dev/{name}"
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        kernel.mount(f"/old/dev/{device}", place, None, MS_BIND)
    for link, to in (
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ):
        os.symlink(to, f"/new/dev/{link}")
    os.mkdir("/new/dev/shm")
    _tmpfs("/new/dev/shm", plan, extra=MS_NOEXEC)


def _tmpfs(place: str, plan: BoxPlan, *, extra: int = 0) -> None:
    options = f"size={plan.tmp_bytes},nr_inodes={plan.inodes_max},mode=1777"
    kernel.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV | extra, options)


def mount_proc(place: str) -> None:
    """Mount /proc with the processes of this pid namespace.

    The files about the machine, and processes of other users, are hidden if the kernel can.
    """
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    for options in ("subset=pid,hidepid=invisible", "hidepid=2"):
        try:
            kernel.mount("proc", place, "proc", flags, options)
            return
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    kernel.mount("proc", place, "proc", flags)


def _writable(plan: BoxPlan) -> None:
    os.mkdir("/new/tmp")
    _tmpfs("/new/tmp", plan)
    for place in (HOME, WORK, KEPT, STORE, FILES):
        os.mkdir(f"/new{place}")
    mount_store(f"/new{STORE}", disk_bytes=plan.disk_bytes, inodes_max=plan.inodes_max)
    if plan.files is not None:
        _require_directory(f"/old{plan.files}")
        kernel.mount(f"/old{plan.files}", f"/new{FILES}", None, MS_BIND | MS_REC)
        _read_only(f"/new{FILES}")
    os.chmod(f"/new{KEPT}", 0)


def mount_store(place: str, *, disk_bytes: int, inodes_max: int) -> None:
    """Mount the file system for the session's own files, which limits their size and number."""
    options = f"size={disk_bytes},nr_inodes={inodes_max},mode=700"
    kernel.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)


def _require_directory(path: str) -> None:
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path}: not a directory")


def raise_loopback() -> None:
    """Enable the loopback interface, the only one of the network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        ioctl(sock, _SIOCGIFFLAGS, request)
        flags = struct.unpack_from("H", request, 16)[0]
        struct.pack_into("H", request, 16, flags | _IFF_UP)
        ioctl(sock, _SIOCSIFFLAGS, request)
