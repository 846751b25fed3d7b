"""Snapshots by name: taken, listed, restored, deleted, and refused where they mean nothing."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wasm_session import TestSession, open_session

from tallystick.core.errors import (
    MaxSnapshotsReached,
    SnapshotMismatch,
    SnapshotNotFound,
    UsageError,
)
from tallystick.sandbox.snapshot import PAGE_BYTES, SnapshotStore
from tallystick.sandbox.wasm import namespace
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.sessions.snapshots import open_snapshots


def test_a_snapshot_brings_the_namespace_back(session: TestSession) -> None:
    session.run("import random\nx = [1]\ndef g():\n    yield from range(5)\ni = g(); next(i)")
    taken = session.do(session.session.snapshot("before"))
    first = session.value("x.append(2); x, next(i), random.random()")

    restored = session.do(session.session.restore("before"))

    assert restored == taken
    assert session.value("x.append(2); x, next(i), random.random()") == first


def test_what_comes_after_a_restore_is_equal_to_the_last_byte(session: TestSession) -> None:
    programs = [
        "import json; d = {str(i): [i] for i in range(2000)}",
        "sum(map(len, d))",
        "echo(1)",
    ]
    session.run("data = bytearray(3_000_000)")
    image = session.do(session.session.image())

    def ends() -> list[Any]:
        results = [session.run(program) for program in programs]
        digest = session.do(session.session.digest())
        return [(r.value, r.charge.fuel, r.charge.memory_bytes) for r in results] + [digest]

    first = ends()
    session.do(session.session.load(image))

    assert ends() == first


def test_snapshots_are_listed_and_deleted_by_name(session: TestSession) -> None:
    for name in ("a", "b"):
        session.do(session.session.snapshot(name))
    session.session.delete_snapshot("a")

    assert [each.name for each in session.session.snapshots()] == ["b"]
    with pytest.raises(SnapshotNotFound, match="'a'"):
        session.do(session.session.restore("a"))


def test_a_session_has_at_most_ten_and_deleting_one_makes_room(session: TestSession) -> None:
    for number in range(10):
        session.do(session.session.snapshot(f"s{number}"))

    with pytest.raises(MaxSnapshotsReached, match="10"):
        session.do(session.session.snapshot("one more"))
    session.session.delete_snapshot("s3")
    session.do(session.session.snapshot("one more"))

    assert len(session.session.snapshots()) == 10


def test_a_name_is_used_once(session: TestSession) -> None:
    session.do(session.session.snapshot("a"))

    with pytest.raises(UsageError, match="delete it first"):
        session.do(session.session.snapshot("a"))


def test_a_snapshot_of_another_guest_is_refused_by_name(session: TestSession) -> None:
    image = session.do(session.session.image())
    other = msgspec.structs.replace(image, guest="f" * 64)

    with pytest.raises(SnapshotMismatch, match="made by guest ffffffffffff"):
        session.do(session.session.load(other))


def test_a_snapshot_of_another_engine_is_refused_by_name(session: TestSession) -> None:
    image = session.do(session.session.image())
    other = msgspec.structs.replace(image, engine="wasmtime-1.0")

    with pytest.raises(SnapshotMismatch, match=r"engine 'wasmtime-1\.0'"):
        session.do(session.session.load(other))


@pytest.mark.parametrize(
    "change",
    [
        lambda image: {"indices": [*image.indices[:-1], 10**9]},
        lambda image: {"indices": [-1, *image.indices[1:]]},
        lambda image: {"indices": image.indices[:-1]},
        lambda image: {"indices": list(reversed(image.indices))},
        lambda image: {"indices": [image.indices[0]] * len(image.indices)},
        lambda image: {"pages": [b"short", *image.pages[1:]]},
        lambda image: {"pages": [bytes(PAGE_BYTES * 2), *image.pages[1:]]},
        lambda image: {"memory_bytes": image.memory_bytes + 1},
        lambda image: {"memory_bytes": 0},
        lambda image: {"memory_bytes": 1 << 40},
        lambda image: {"state": {}},
        lambda image: {"state": {**image.state, "memory": 1}},
        lambda image: {"session": b"junk"},
    ],
)
def test_a_forged_snapshot_is_refused_before_a_byte_is_written(
    session: TestSession, change: Any
) -> None:
    session.run("kept = 1")
    image = session.do(session.session.image())
    forged = msgspec.structs.replace(image, **change(image))

    with pytest.raises(SnapshotMismatch):
        session.do(session.session.load(forged))

    assert session.value("kept") == "1"


def test_a_snapshot_of_one_session_can_be_loaded_by_another(sandbox: WasmSandbox) -> None:
    with open_session(sandbox) as first, open_session(sandbox, seed=9) as second:
        first.run("import random\nx = 'from the first'")
        second.do(second.session.load(first.do(first.session.image())))

        assert second.value("x, random.random()") == first.value("x, random.random()")
        assert second.do(second.session.digest()) == first.do(first.session.digest())


def test_names_bound_before_a_snapshot_are_bound_after_it(session: TestSession) -> None:
    session.run("1")
    image = session.do(session.session.image())
    session.do(session.session.load(image))

    assert session.value("echo(3)") == "3"


def test_pages_found_by_the_kernel_are_those_found_by_comparing(
    session: TestSession, sandbox: WasmSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run("x = bytearray(5_000_000); x[2_500_000] = 1")
    instance = session.session._namespace.live_instance()
    where = {
        "base": instance.base,
        "size": instance.memory_size(),
        "image_base": sandbox.pristine.base,
        "image_size": sandbox.pristine.memory_size(),
    }

    by_kernel = namespace.changed_pages(**where)
    monkeypatch.setattr(namespace, "_written_pages", lambda base, count: None)

    assert by_kernel
    assert namespace.changed_pages(**where) == by_kernel


@given(indices=st.sets(st.integers(0, 30)))
def test_neighbouring_pages_are_moved_together_and_none_is_lost(indices: set[int]) -> None:
    ordered = sorted(indices)

    runs = list(namespace._neighbours(ordered))

    assert [ordered[first + n] for first, count in runs for n in range(count)] == ordered
    assert sum(count for _, count in runs) == len(ordered)


def test_a_restore_in_another_sandbox_is_the_same_session(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    def opened(store: SnapshotStore) -> WasmSandbox:
        return WasmSandbox(sandbox.guest, store=store, output_directory=None, active_max=2)

    async def scenario(store: SnapshotStore, other_store: SnapshotStore) -> tuple[str, str]:
        first = await opened(store).open(session_id="S")
        from tests.wasm_session import ECHO

        from tallystick.sandbox.port import ExecutionContext

        context = ExecutionContext(session_id="S")
        await first.execute("x = {n: str(n) for n in range(5000)}", context=context, host=ECHO)
        await first.snapshot("a")
        second = await opened(other_store).open(session_id="S")
        await second.restore("a")
        return await first.digest(), await second.digest()

    ledger = tmp_path / "ledger.db"
    with open_snapshots(ledger) as store, open_snapshots(ledger) as other_store:
        one, other = asyncio.run(scenario(store, other_store))
    assert one == other
