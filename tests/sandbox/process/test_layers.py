"""What the process sandbox does on a host that lacks something: it says what, and stops."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.escape.process.boxes import made_sandbox, opened

from tallystick.core.errors import InvalidLimit, NotSupported, UsageError
from tallystick.sandbox.process.inside import cgroup
from tallystick.sandbox.process.inside.filter import build_filter
from tallystick.sandbox.process.inside.host_check import LAYERS
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.process.settings import (
    OPTIONAL,
    WAIVABLE,
    BoxSettings,
    IsolationMissing,
    require_layers,
)

# Prints what a host says that was changed by `{change}` before the sandbox was made.
_ON_ANOTHER_HOST = """
import asyncio, json, os, sys
from tallystick.core.errors import TallystickError
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext
from tallystick.sandbox.process.inside import kernel
from tallystick.sandbox.process.sandbox import ProcessSandbox
from tallystick.sandbox.process.settings import BoxSettings
{change}
async def main():
    sandbox = ProcessSandbox(settings=BoxSettings(accept_without=frozenset({accepted})), spares=0)
    try:
        session = await sandbox.open(session_id='S')
        context = ExecutionContext(session_id='S')
        result = await session.execute('6 * 7', context=context, host=HostTable())
        print(json.dumps(['ran', result.value]))
    except TallystickError as error:
        print(json.dumps([error.code, str(error), getattr(error, 'missing', None)]))
    await sandbox.close()
asyncio.run(main())
"""
# A user namespace that may hold no other.
_NO_USER_NAMESPACES = """
uid, gid = os.getuid(), os.getgid()
kernel.unshare(kernel.CLONE_NEWUSER)
for name, text in (('setgroups', 'deny'), ('uid_map', f'0 {uid} 1'), ('gid_map', f'0 {gid} 1')):
    open(f'/proc/self/{name}', 'w').write(text)
open('/proc/sys/user/max_user_namespaces', 'w').write('0')
"""
# A filter under which landlock, or seccomp itself, is not there.
_NO_CALL = """
import struct
kernel.no_new_privileges()
kernel.load_filter(b''.join(struct.pack('=HBBI', *each) for each in [
    (0x20, 0, 0, 0), (0x15, 0, 1, {number}), (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7fff0000)]))
"""


def on_another_host(change: str, accepted: tuple[str, ...] = ()) -> list[Any]:
    text = _ON_ANOTHER_HOST.replace("{change}", change).replace("{accepted}", repr(accepted))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ProcessSandbox]:
    made = made_sandbox(spares=0)
    yield made
    asyncio.run(made.close())


def test_every_layer_was_tried_here(sandbox: ProcessSandbox) -> None:
    assert set(asyncio.run(sandbox.layers())) == set(LAYERS)


def test_a_host_without_user_namespaces_is_refused_by_name(sandbox: ProcessSandbox) -> None:
    code, told, missing = on_another_host(_NO_USER_NAMESPACES)

    assert code == "refused.isolation"
    assert "user namespace (unshare: No space left on device)" in told
    assert missing["pid namespace"] == "it needs a user namespace"
    assert "landlock" not in missing


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
@pytest.mark.parametrize(
    ("layer", "number"),
    [("landlock", 444), ("seccomp", 317)],
)
@pytest.mark.slow
def test_a_missing_layer_is_refused_unless_it_was_accepted(
    sandbox: ProcessSandbox, layer: str, number: int
) -> None:
    change = _NO_CALL.replace("{number}", str(number))

    code, _, missing = on_another_host(change)

    assert (code, list(missing)) == ("refused.isolation", [layer])
    assert on_another_host(change, (layer,)) == ["ran", "42"]


@pytest.mark.slow
def test_a_layer_that_is_pretended_to_be_missing_is_refused() -> None:
    sandbox = made_sandbox()
    sandbox.pretend("landlock", "it is not here")
    with pytest.raises(IsolationMissing, match="landlock"):
        asyncio.run(sandbox.open(session_id="S"))
    asyncio.run(sandbox.close())


def test_sessions_work_without_the_layers_that_were_accepted() -> None:
    sandbox = made_sandbox(accept_without=WAIVABLE)
    for layer in WAIVABLE:
        sandbox.pretend(layer, "it is not here")
    with opened(sandbox) as session:
        assert session.value("6 * 7") == "42"
        assert session.said("echo here") == "here\n"
    asyncio.run(sandbox.close())


@pytest.mark.parametrize("layer", sorted(set(LAYERS) - WAIVABLE - OPTIONAL))
def test_what_makes_the_box_cannot_be_done_without(layer: str) -> None:
    with pytest.raises(UsageError, match=layer):
        BoxSettings(accept_without=frozenset({layer}))
    with pytest.raises(IsolationMissing, match=layer):
        require_layers(BoxSettings(accept_without=WAIVABLE), {layer: "not here"})


def test_some_layers_are_nothing_that_a_host_is_refused_for() -> None:
    require_layers(BoxSettings(), dict.fromkeys(OPTIONAL, "not here"))


@pytest.mark.parametrize(
    "settings",
    [
        {"disk_bytes": 0},
        {"tmp_bytes": -1},
        {"memory_total_bytes": True},
        {"processes_max": 3},
    ],
)
def test_a_size_that_makes_no_sense_is_an_error(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidLimit, match=next(iter(settings))):
        BoxSettings(**settings)


@pytest.mark.parametrize("path", ["relative", "/", "/a/../b"])
def test_a_path_that_would_open_too_much_is_an_error(path: str) -> None:
    with pytest.raises(UsageError, match="absolute path"):
        BoxSettings(readable=(Path(path),))


def test_other_systems_than_linux_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    sandbox = ProcessSandbox()

    with pytest.raises(NotSupported, match="darwin"):
        asyncio.run(sandbox.layers())
    asyncio.run(sandbox.close())


@pytest.mark.slow
def test_more_may_be_readable_and_importable(tmp_path: Path) -> None:
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.getuid() and not each.stat().st_mode & 0o001:
            each.chmod(each.stat().st_mode | 0o055)
    (tmp_path / "ours.py").write_text("VALUE = 7\n")
    sandbox = made_sandbox(packages=(tmp_path,))
    with opened(sandbox) as session:
        assert session.value("import ours\nours.VALUE") == "7"
        assert session.said("python3 -c 'import ours; print(ours.VALUE)'") == "7\n"
        assert session.command(f"echo x >> {tmp_path}/ours.py").exit_code != 0
    asyncio.run(sandbox.close())


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("sockets", [True, False])
def test_a_filter_is_well_formed_on_every_machine(machine: str, sockets: bool) -> None:
    code = build_filter(sockets=sockets, machine=machine)

    parts = [code[at : at + 8] for at in range(0, len(code), 8)]
    assert len(code) % 8 == 0
    assert len(parts) < 4_096
    for at, part in enumerate(parts):
        if part[0] & 0x07 == 0x05:  # A jump: where it leads is in the filter.
            assert at + 1 + max(part[2], part[3]) < len(parts)
    assert parts[-1][0] == 0x06


# -- control groups --------------------------------------------------------------------------------


def test_the_place_of_a_group_is_found_where_it_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/old\n0::/user.slice/a.service\n")
    (tmp_path / "mountinfo").write_text(
        "22 1 0:5 / /proc rw - proc proc rw\n30 22 0:26 /user.slice /groups rw - cgroup2 none rw\n"
    )

    assert cgroup.own_group_path(proc=str(tmp_path)) == "/groups/a.service"
    (tmp_path / "cgroup").write_text("0::/other.slice\n")
    with pytest.raises(OSError, match="no control groups"):
        cgroup.own_group_path(proc=str(tmp_path))


def test_a_group_is_limited_by_what_the_host_has_there(tmp_path: Path) -> None:
    group = cgroup.make_group(str(tmp_path), "box")
    for name in ("memory.max", "pids.max", "cgroup.procs"):
        (tmp_path / "tally-box" / name).touch()

    group.limit(memory_bytes=1000, processes=5)
    group.add(7)

    written = {path.name: path.read_text() for path in (tmp_path / "tally-box").iterdir()}
    assert written == {"memory.max": "1000", "pids.max": "5", "cgroup.procs": "7"}


def test_a_box_has_a_group_of_its_own_while_it_lives() -> None:
    try:
        made = cgroup.make_group(cgroup.own_group_path(), "test")
    except OSError as error:
        pytest.skip(f"this host gives us no group: {error}")
    made.end()
    sandbox = made_sandbox()
    sandbox.pretend("cgroup", None)

    with opened(sandbox) as session:
        group = Path(f"/proc/{session.session.box_pid}/cgroup").read_text()
        name = next(line for line in group.splitlines() if line.startswith("0::")).rpartition("/")[
            2
        ]
        assert name.endswith(f"-{session.session.box_pid}")
        place = Path(cgroup.own_group_path()) / name
        assert place.is_dir()

    until = time.monotonic() + 5
    while place.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not place.exists()
    asyncio.run(sandbox.close())


def test_only_the_groups_of_dead_launchers_are_cleared(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f"tally-{os.getpid()}-7", f"tally-{ended.pid}-7", "tally-old", "other"):
        (tmp_path / name).mkdir()

    cgroup.clear_left_behind(str(tmp_path))

    assert {each.name for each in tmp_path.iterdir()} == {f"tally-{os.getpid()}-7", "other"}
