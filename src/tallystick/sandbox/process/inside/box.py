"""The box: namespaces, and a root that holds the system to read and the session's own files.

Built by the process that becomes the keeper, before anything of a program exists. Nothing of the
host's own tree is left in it but what is bound here, and that cannot be written.
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
# Each with the host's device that it is. Shared mappings of the real /dev/zero are memory that no
# process shows as its own. /dev/full reads the same, and cannot be mapped.
_DEVICES = {"null": "null", "zero": "full", "full": "full", "random": "random",
            "urandom": "urandom"}  # fmt: skip
_SMALL = "size=1m,nr_inodes=4096,mode=755"

_MOUNT_SETATTR = 442
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 0x1, 0x2, 0x4
_KEPT_FLAGS = ((0x8, MS_NOEXEC), (1024, 1024), (2048, 2048), (4096, 1 << 21))

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


class BoxPlan(NamedTuple):
    """What a box is made of. Sizes in bytes."""

    readable: Sequence[str]
    files: str | None
    disk_bytes: int
    tmp_bytes: int
    inodes_max: int
    network: bool
    hostname: bool


def build(plan: BoxPlan) -> None:
    """Make the box and go into it. The caller is the first process of its namespaces."""
    kernel.mount(None, "/", None, MS_REC | MS_PRIVATE)
    _into_a_place_of_our_own()
    for name in _SYSTEM:
        _same(name)
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


def _into_a_place_of_our_own() -> None:
    """Two steps, so that nothing which is to be bound is hidden by where it is bound to."""
    kernel.mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, _SMALL)
    os.mkdir("/tmp/old")
    kernel.exchange_root("/tmp", old="old")
    os.chdir("/")
    os.mkdir("/new")
    kernel.mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, _SMALL)


def _same(name: str) -> None:
    """A part of the system as the host has it: a link stays a link."""
    old = f"/old/{name}"
    if os.path.islink(old):
        os.symlink(os.readlink(old), f"/new/{name}")
    elif os.path.isdir(old):
        _bind(name)


def _bind(path: str) -> None:
    """Make something of the host readable in the same place."""
    old, new = f"/old/{path}", f"/new/{path}"
    if os.path.isdir(old):
        os.makedirs(new, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(new), exist_ok=True)
        os.close(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    kernel.mount(old, new, None, MS_BIND | MS_REC)
    _read_only(new)


def _read_only(path: str) -> None:
    """Take writing, devices and set-user-id from a mount and all below it."""
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
    """The few files of /etc that programs look for. Users and hosts are the box's own."""
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
    """Show the processes of this pid namespace; nothing of the machine where the kernel can."""
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
    """Where every byte of the session's own files is: it cannot hold more than this."""
    options = f"size={disk_bytes},nr_inodes={inodes_max},mode=700"
    kernel.mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)


def _require_directory(path: str) -> None:
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path}: not a directory")


def raise_loopback() -> None:
    """Let the network namespace have its one interface, which leads nowhere else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        ioctl(sock, _SIOCGIFFLAGS, request)
        flags = struct.unpack_from("H", request, 16)[0]
        struct.pack_into("H", request, 16, flags | _IFF_UP)
        ioctl(sock, _SIOCSIFFLAGS, request)
