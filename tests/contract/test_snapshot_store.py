"""What every snapshot store promises, tried on each of them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import SnapshotNotFound
from tallystick.sandbox.snapshot import (
    PAGE_BYTES,
    Image,
    MemorySnapshotStore,
    SnapshotId,
    SnapshotStore,
)
from tallystick.sessions.snapshots import open_snapshots
from tallystick.stores import open_stores

StoreMaker = Callable[[Path], AbstractContextManager[SnapshotStore]]
STORES: dict[str, StoreMaker] = {
    "memory": lambda folder: nullcontext(MemorySnapshotStore()),
    "attachments-memory": lambda folder: nullcontext(open_stores("memory:").sessions.images),
    "attachments-sqlite": lambda folder: open_snapshots(folder / "ledger.db"),
}

repetitive = st.binary(min_size=1, max_size=8).map(lambda seed: (seed * PAGE_BYTES)[:PAGE_BYTES])
# Twelve of them do not fit into a row of the ledger.
incompressible = st.integers(0, 2**32).map(lambda seed: Random(seed).randbytes(PAGE_BYTES))
page_bytes = repetitive | incompressible


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
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SnapshotStore]:
    with STORES[request.param](tmp_path) as made:
        yield made


@pytest.mark.parametrize("kind", sorted(STORES))
@given(image=images())
def test_what_is_saved_is_what_is_loaded(
    kind: str, image: Image, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with STORES[kind](tmp_path_factory.mktemp("store")) as store:
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


@pytest.mark.parametrize(("first", "second"), [("1", "2"), ("2", "1"), ("1", "1")])
def test_a_snapshot_of_a_name_that_is_there_takes_its_place(
    store: SnapshotStore, first: str, second: str
) -> None:
    store.save(named("a", ident=first), an_image(b"\1"))
    store.save(named("b", ident="0"), an_image(b"\3"))

    store.save(named("a", ident=second), an_image(b"\2"))

    assert store.load("S", "a") == (named("a", ident=second), an_image(b"\2"))
    assert [each.name for each in store.list("S")] == ["b", "a"]


@pytest.mark.parametrize("name", ["a:b", ":", "::1:2", "a:X:7", "\u2028 \x1b", "x" * 256])
def test_a_name_may_hold_what_separates_it(store: SnapshotStore, name: str) -> None:
    store.save(named(name, ident="X"), an_image())

    assert store.load("S", name)[0] == named(name, ident="X")
    assert store.load("S", f"{name}:X")[0] == named(name, ident="X")


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
