"""The launcher: a process of its own that makes boxes for the host, by one fork for each box.

It runs as a script, with the Python that programs will use. Of the host it has only one connection:
no environment, no files, no threads. It imports everything that a session needs, once, so that a
new session is a copy of this process and needs no start of Python.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import socket
import sys
from typing import Any

sys.path.insert(0, os.path.abspath(f"{os.path.dirname(__file__)}/../../../.."))

from tallystick.sandbox.process.inside import (
    box,
    cgroup,
    filter,
    host_check,
    interpreter,
    kernel,
    messages,
)
from tallystick.sandbox.process.inside.confine import Confinement
from tallystick.sandbox.process.inside.keeper import Keeper
from tallystick.sandbox.process.inside.layers import USER, make_working_directory
from tallystick.sandbox.process.inside.watch import scheduling

# The user of programs outside of the box, if the host is root.
_NOBODY = 65_534
_PIDFD_OPEN = 434
_OWN_PROCESSES = 8
# Python imports an encoding when it is first used. In the box that import would look in the wrong
# place, so these are loaded before.
_ENCODINGS = ("ascii", "latin-1", "utf-8-sig", "idna")


def main() -> None:
    """Serve the host that started this process, until it is gone or closes the connection.

    The boxes end with this process.
    """
    host = socket.socket(fileno=int(sys.argv[1]))
    prelude = sys.argv[2]
    kernel.set_name("tally-launcher")
    kernel.close_all_but(host.fileno())
    interpreter.load(prelude)
    for name in _ENCODINGS:
        codecs.lookup(name)
    if filter.machine_is_known():
        for sockets in (False, True):
            filter.build_filter(sockets=sockets, asks=True)  # Cached for every box.
    del sys.path[0]
    sys.argv = ["program"]
    # Up to here, the host reads errors from our stderr. From here on it is closed, so that no box
    # shares it.
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    messages.send(host, {"found": host_check.check_layers(), "root": os.geteuid() == 0})
    with contextlib.suppress(OSError):
        cgroup.clear_left_behind(cgroup.own_group_path())
    # The connection alone does not show that the host is gone: a process that the host forked has
    # the other end too.
    parent = kernel.syscall(_PIDFD_OPEN, os.getppid(), 0)
    poll = select.poll()
    poll.register(host, select.POLLIN)
    poll.register(parent, select.POLLIN)
    # A signal writes to this pipe, so the end of a box cannot be missed between two polls.
    wakes, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    poll.register(wakes, select.POLLIN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if parent in ready:
            return
        if wakes in ready:
            os.read(wakes, 4096)
            _reap()
        if host.fileno() in ready:
            try:
                order, descriptors = messages.receive(host)
            except messages.ConnectionLost:
                return
            pid, problem = _open(order, descriptors)
            messages.close_quietly(descriptors)
            messages.send(host, {"pid": pid, "problem": problem})


# The group of each box, by the process that waits for it.
_groups: dict[int, cgroup.Group] = {}


def _reap() -> None:
    """Reap the processes that waited for boxes, and end the groups of their boxes."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            group = _groups.pop(pid, None)
            if group is not None:
                group.end()


def _limit_box(pid: int, order: dict[str, Any]) -> None:
    """Put a box into a control group of its own, with limits, if the host allows it."""
    with contextlib.suppress(OSError):
        group = cgroup.make_group(cgroup.own_group_path(), f"{os.getpid()}-{pid}")
        _groups[pid] = group
        plan = order["box"]
        files = plan["disk_bytes"] + 2 * plan["tmp_bytes"]
        group.limit(
            memory_bytes=order["memory_total_bytes"] + files,
            processes=order["confinement"]["processes_max"] + _OWN_PROCESSES,
        )
        group.add(pid)


def _open(order: dict[str, Any], descriptors: list[int]) -> tuple[int, str | None]:
    """Start a box. Return the id of the process that waits for its end, and a problem or None.

    The keeper reports for itself, on the connection that came with the order.
    """
    asks, mapped = socket.socketpair()
    with asks, mapped:
        pid = os.fork()
        if pid:
            mapped.close()
            if order["group"]:
                _limit_box(pid, order)
            return pid, _write_maps(pid, asks)
        try:
            asks.close()
            kernel.close_all_but(mapped.fileno(), *descriptors)
            _become_box(order, descriptors, mapped)
        except BaseException as error:
            with contextlib.suppress(OSError):
                mapped.send(f"!{type(error).__name__}: {error}".encode()[:500])
        finally:
            os._exit(70)


def _write_maps(pid: int, asks: socket.socket) -> str | None:
    """Write the maps of users and groups once the new user namespace exists.

    Return what went wrong, or None. If the host is root, the box's user is mapped to nobody, which
    only root may do; otherwise to the host's user.
    """
    said = asks.recv(512)
    if not said.startswith(b"?"):
        return said[1:].decode("utf-8", "replace") or "it ended at once"
    uid, gid = os.geteuid(), os.getegid()
    users = f"0 {uid} 1\n{USER} {_NOBODY} 1" if uid == 0 else f"{USER} {uid} 1"
    groups = f"0 {gid} 1\n{USER} {_NOBODY} 1" if uid == 0 else f"{USER} {gid} 1"
    try:
        if uid != 0:
            _put(f"/proc/{pid}/setgroups", "deny")
        _put(f"/proc/{pid}/uid_map", users)
        _put(f"/proc/{pid}/gid_map", groups)
    except OSError as error:
        return f"user namespace: {error}"
    asks.send(b"!")
    return None


def _put(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _become_box(order: dict[str, Any], descriptors: list[int], mapped: socket.socket) -> None:
    """Enter new namespaces, fork the keeper, and wait for its end. Return only on failure."""
    host, life = descriptors
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    scheduling.allow_first()
    wanted = [flag for name, flag in box.NAMESPACES.items() if name not in order["without"]]
    kernel.unshare(sum(wanted))
    mapped.send(b"?")
    if mapped.recv(1) != b"!":
        return
    mapped.close()
    ready, started = os.pipe2(os.O_CLOEXEC)
    keeper = os.fork()
    if not keeper:
        os.close(started)
        os.close(life)
        _be_keeper(order, socket.socket(fileno=host), ready)
    # This process stays outside of the box and waits. Its end closes `life`, and the host sees it.
    scheduling.stay_normal()
    kernel.set_name("tally-box")
    kernel.close_all_but(life, started)
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(70)
    os.write(started, b"!")
    os.close(started)
    os.waitpid(keeper, 0)
    os._exit(0)


def _be_keeper(order: dict[str, Any], host: socket.socket, ready: int) -> None:
    """Build the box and serve the host as its first process. Never return.

    If something fails, send the problem to the host.
    """
    try:
        kernel.die_with_parent(signal.SIGKILL)
        # The waiter may have ended before the call above, and then no signal would come. In that
        # case nothing arrives here.
        if os.read(ready, 1) != b"!":
            os._exit(70)
        os.close(ready)
        root = order["root"]
        if root:
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
        box.build(box.BoxPlan(**order["box"]))
        working = make_working_directory(
            overlay=order["overlay"],
            given=order["box"]["files"] is not None,
            writable_lower=not root,
        )
        kernel.set_name("tally-keeper")
        kernel.no_new_privileges()
        kernel.set_dumpable(False)
        # Again, because a change of the user undoes it.
        kernel.die_with_parent(signal.SIGKILL)
        Keeper(
            host,
            working=working,
            confinement=Confinement(**order["confinement"]),
            packages=order["packages"],
            memory_total_bytes=order["memory_total_bytes"],
        ).serve()
    except messages.ConnectionLost:
        pass
    except BaseException as error:
        with contextlib.suppress(messages.ConnectionLost):
            messages.send(host, {"problem": f"{type(error).__name__}: {error}"[:500]})
    finally:
        os._exit(0)


if __name__ == "__main__":
    try:
        main()
    finally:
        # The boxes end with this process, but their groups have to be removed.
        for left in _groups.values():
            left.end()
