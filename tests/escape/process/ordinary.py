"""Runs hostile programs as an ordinary user, and prints what came of them as JSON.

Started by root, it first becomes somebody who may do nothing: with its own view of the file system,
in which the interpreter and the package lie where such a user can read them.
"""

from __future__ import annotations

import asyncio
import json
import os
import site
import sys
from pathlib import Path

_NOBODY = 65_534
_ROOT = Path(__file__).resolve().parents[3]


def become_nobody() -> None:
    """Give up root, and start this file again as somebody else. Returns never."""
    from tallystick.sandbox.process.inside import kernel

    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    place = "/mnt"  # Only here: nobody else sees what is mounted on it.
    kernel.mount("tmpfs", place, "tmpfs", 0, "mode=755")
    packages = site.getsitepackages()[0]
    for name, source in (("python", sys.base_prefix), ("packages", packages), ("tree", _ROOT)):
        os.mkdir(f"{place}/{name}")
        kernel.mount(str(source), f"{place}/{name}", None, kernel.MS_BIND | kernel.MS_REC)
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    executable = f"{place}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    path = f"{place}/tree/src:{place}/tree:{place}/packages"
    os.chdir("/")
    os.execve(
        executable,
        [executable, "-B", f"{place}/tree/tests/escape/process/ordinary.py", *sys.argv[1:]],
        {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "TALLYSTICK_CANARY": "canary-of-the-user"},
    )


def main(kinds: list[str]) -> None:
    from tests.escape.process.boxes import ProcessTestSession, living_in
    from tests.escape.process.programs import CLASSES

    from tallystick.sandbox.process.sandbox import ProcessSandbox
    from tallystick.sandbox.process.settings import BoxSettings

    settings = BoxSettings(disk_bytes=64 << 20, tmp_bytes=32 << 20, inodes_max=2_048)
    sandbox = ProcessSandbox(settings=settings)
    bad, left, count = [], [], 0
    for kind in kinds or CLASSES:
        session = ProcessTestSession(sandbox)
        for case in CLASSES[kind]:
            session.value("kept = 41")
            perform = session.run if case.python else session.command
            result = perform(case.text, wall_ms=case.wall_ms, **case.limits)
            printed = result.stdout + result.stderr
            well = result.stop in case.stops and session.value("kept + 1") == "42"
            if "ESCAPED" in printed or "canary-of" in printed or not well:
                bad.append([kind, case.name, repr(result)[:600]])
            count += 1
        session.close()
        left += living_in(session.namespace)
    tested = asyncio.run(sandbox.self_test())
    asyncio.run(sandbox.close())
    print(json.dumps([os.getuid(), count, bad, left, tested]))


if __name__ == "__main__":
    if os.geteuid() == 0:
        become_nobody()
    main(sys.argv[1:])
