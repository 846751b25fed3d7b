"""The contract of owners, for every backend: who lives, who is proven dead, what is not known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.core.errors import StoreError
from tallystick.storage.owner import FileOwners, MemoryOwners, Owners


def in_files(folder: Path) -> Owners:
    return FileOwners(folder / "owners", failed=lambda path, error: StoreError(f"{path}: {error}"))


def in_memory(folder: Path) -> Owners:
    return MemoryOwners()


@pytest.fixture(params=[in_files, in_memory])
def owners(request: pytest.FixtureRequest, tmp_path: Path) -> Owners:
    make: Callable[[Path], Owners] = request.param
    return make(tmp_path)


def test_an_owner_lives_until_it_is_released(owners: Owners) -> None:
    owner = owners.hold()

    assert (owners.knows(owner.id), owners.proven_dead(owner.id)) == (True, False)
    owner.release(remove=False)

    assert (owners.knows(owner.id), owners.proven_dead(owner.id)) == (True, True)


def test_an_owner_that_is_released_twice_stays_dead(owners: Owners) -> None:
    owner = owners.hold()
    owner.release(remove=False)
    owner.release(remove=True)

    assert owners.proven_dead(owner.id)


def test_an_owner_that_nothing_names_leaves_no_proof(owners: Owners) -> None:
    owner = owners.hold()
    owner.release(remove=True)

    assert (owners.knows(owner.id), owners.proven_dead(owner.id)) == (False, False)
    assert owners.ids() == []


def test_one_owner_dies_alone(owners: Owners) -> None:
    first, second = owners.hold(), owners.hold()
    first.release(remove=False)

    assert [owners.proven_dead(each.id) for each in (first, second)] == [True, False]
    assert owners.ids() == sorted([first.id, second.id])
    second.release(remove=True)


@pytest.mark.parametrize("id", ["", "../x", "0" * 26, "x" * 500, "01M7H9059YPYTCBKVW1YQJBKX4"])
def test_an_unknown_owner_is_not_proven_dead(owners: Owners, id: str) -> None:
    owners.bury(id)

    assert (owners.knows(id), owners.proven_dead(id)) == (False, False)


def test_only_the_dead_are_buried(owners: Owners) -> None:
    living, dead = owners.hold(), owners.hold()
    dead.release(remove=False)
    for id in owners.ids():
        owners.bury(id)

    assert owners.ids() == [living.id]
    assert not owners.proven_dead(living.id)
    living.release(remove=True)


def test_no_owner_is_known_before_the_first(owners: Owners) -> None:
    assert owners.ids() == []
