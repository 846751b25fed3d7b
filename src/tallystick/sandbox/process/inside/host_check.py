"""Find out which layers of isolation this host offers: try each in a process that then ends."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable

from tallystick.sandbox.process.inside import box, cgroup, confine, filter, kernel
from tallystick.sandbox.process.inside.layers import USER

LAYERS = (*box.NAMESPACES, "proc", "overlay", "landlock", "seccomp", "cgroup")


def check_layers() -> dict[str, str | None]:
    """Return each layer with None if it works here, or with the reason why it does not."""
    found: dict[str, str | None] = {"user namespace": _try_layer(_user)}
    without = found["user namespace"]
    for name, flag in box.NAMESPACES.items():
        if name not in found:
            attempt = functools.partial(_user, flag)
            found[name] = "it needs a user namespace" if without else _try_layer(attempt)
    inside = without or found["mount namespace"] or found["pid namespace"]
    found["proc"] = "it needs namespaces" if inside else _try_layer(_proc)
    found["overlay"] = "it needs namespaces" if inside else _try_layer(_overlay)
    found["landlock"] = _try_layer(_landlock)
    found["seccomp"] = _try_layer(_seccomp)
    found["cgroup"] = cgroup.unavailable_reason()
    return found


def _try_layer(attempt: Callable[[], None]) -> str | None:
    """Run `attempt` in a child process. Return None if it succeeds, or else why it failed."""
    ours, theirs = socket.socketpair()
    with ours:
        pid = os.fork()
        if not pid:
            try:
                attempt()
                theirs.send(b"+")
            except BaseException as error:
                why = getattr(error, "strerror", None) or str(error)
                theirs.send(f"-{why}".encode()[:300])
            finally:
                os._exit(0)
        theirs.close()
        said = ours.recv(512)
        os.waitpid(pid, 0)
    if said == b"+":
        return None
    return said[1:].decode("utf-8", "replace") or "the attempt was ended by the kernel"


def _user(more: int = 0) -> None:
    """Enter a new user namespace, and those of the flags `more`, and map our user into it.

    Raise `OSError` if the kernel refuses that.
    """
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER | more)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{USER} {uid} 1"),
        ("gid_map", f"{USER} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _proc() -> None:
    _user(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    pid = os.fork()
    if not pid:
        try:
            box.mount_proc("/proc")
            os._exit(0 if os.path.exists("/proc/1/status") else 1)
        except OSError as error:
            os._exit(error.errno or 1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, f"mounting proc: {os.strerror(code)}")


def _overlay() -> None:
    """Mount an overlay, and replace a directory of its lower layer: not every kernel can.

    Raise `OSError` if a step is refused, or if what lies below can still be seen.
    """
    _user(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", 0, "size=1m")
    for name in ("low", "top", "work", "all"):
        os.mkdir(f"/tmp/{name}")
    os.mkdir("/tmp/low/d")
    with open("/tmp/low/d/f", "w", encoding="ascii") as file:
        file.write("low")
    options = "userxattr,lowerdir=/tmp/low,upperdir=/tmp/top,workdir=/tmp/work"
    kernel.mount("overlay", "/tmp/all", "overlay", 0, options)
    os.unlink("/tmp/all/d/f")
    os.rmdir("/tmp/all/d")
    os.mkdir("/tmp/all/d")
    if os.listdir("/tmp/all/d") or not os.path.exists("/tmp/low/d/f"):
        raise OSError("the overlay does not hide what lies below")


def _landlock() -> None:
    kernel.no_new_privileges()
    confine.restrict_files(readable=["/usr"], writable=[], devices=[], network=False)
    try:
        os.stat("/proc/self/status")
        os.close(os.open("/proc/self/status", os.O_RDONLY))
    except PermissionError:
        return
    raise OSError("landlock lets everything through")


def _seccomp() -> None:
    if not filter.machine_is_known():
        raise OSError("the system calls of this machine are not known here")
    kernel.no_new_privileges()
    kernel.load_filter(filter.build_filter(sockets=False))
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()
    except OSError:
        return
    raise OSError("the filter lets everything through")
