"""What every snapshot store promises, tried on each of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import SnapshotNotFound
from tallystick.sandbox.memory_store import MemorySnapshotStore
from tallystick.sandbox.snapshot import PAGE_BYTES, Image, SnapshotId, SnapshotStore
from tallystick.sandbox.sqlite_store import SqliteSnapshotStore

StoreMaker = Callable[[Path], SnapshotStore]
STORES: dict[str, StoreMaker] = {
    "memory": lambda folder: MemorySnapshotStore(),
    "sqlite": lambda folder: SqliteSnapshotStore(folder / "snapshots.db"),
}

page_bytes = st.binary(min_size=1, max_size=8).map(lambda seed: (seed * PAGE_BYTES)[:PAGE_BYTES])


@st.composite
def images(draw: st.DrawFn) -> Image:
    indices = sorted(draw(st.sets(st.integers(min_value=0, max_value=4_000), max_size=12)))
    return Image(
        guest=draw(st.text(max_size=8)),
        engine=draw(st.text(max_size=8)),
        memory_bytes=4_001 * PAGE_BYTES,
        state=draw(st.dictionaries(st.text(max_size=4), st.integers(-(2**63), 2**63 - 1))),
        session=draw(st.binary(max_size=64)),
        indices=indices,
        pages=[draw(page_bytes) for _ in indices],
    )


def named(name: str, *, session_id: str = "S", ident: str | None = None) -> SnapshotId:
    return SnapshotId(
        id=ident or f"id-{session_id}-{name}", name=name, session_id=session_id, created_at=7
    )


def an_image(fill: bytes = b"\1", *, count: int = 3) -> Image:
    return Image(
        guest="g",
        engine="e",
        memory_bytes=16 * PAGE_BYTES,
        state={"clock": 1},
        session=b"{}",
        indices=list(range(count)),
        pages=[fill * PAGE_BYTES] * count,
    )


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SnapshotStore:
    return STORES[request.param](tmp_path)


@pytest.mark.parametrize("kind", sorted(STORES))
@given(image=images())
def test_what_is_saved_is_what_is_loaded(
    kind: str, image: Image, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = STORES[kind](tmp_path_factory.mktemp("store"))

    store.save(named("a"), image)
    snapshot, loaded = store.load("S", "a")

    assert snapshot == named("a")
    assert loaded == image


def test_a_snapshot_is_found_by_its_name_and_by_name_and_id(store: SnapshotStore) -> None:
    store.save(named("a", ident="X"), an_image())

    assert store.load("S", "a")[0] == store.load("S", "a:X")[0]


def test_snapshots_are_listed_in_the_order_of_their_ids(store: SnapshotStore) -> None:
    for ident, name in (("2", "b"), ("1", "a"), ("3", "c")):
        store.save(named(name, ident=ident), an_image())

    assert [each.name for each in store.list("S")] == ["a", "b", "c"]


def test_sessions_do_not_see_each_others_snapshots(store: SnapshotStore) -> None:
    store.save(named("a", session_id="S"), an_image(b"\1"))
    store.save(named("a", session_id="T"), an_image(b"\2"))

    assert [each.session_id for each in store.list("S")] == ["S"]
    assert store.load("T", "a")[1] == an_image(b"\2")


def test_a_deleted_snapshot_is_gone_and_the_others_are_whole(store: SnapshotStore) -> None:
    store.save(named("a"), an_image(b"\1"))
    store.save(named("b"), an_image(b"\1"))

    store.delete("S", "a")

    assert [each.name for each in store.list("S")] == ["b"]
    assert store.load("S", "b")[1] == an_image(b"\1")


@pytest.mark.parametrize("name", ["nosuch", "a:nosuch", ""])
def test_what_is_not_there_is_refused_by_name(store: SnapshotStore, name: str) -> None:
    store.save(named("a"), an_image())

    with pytest.raises(SnapshotNotFound, match=f"no snapshot {name!r}"):
        store.load("S", name)
    with pytest.raises(SnapshotNotFound, match=f"no snapshot {name!r}"):
        store.delete("S", name)
