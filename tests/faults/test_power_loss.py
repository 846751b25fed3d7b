"""Power is lost at any instant: what was acknowledged as forced is there, and the chain holds.

A worker is recorded by strace; the disk is then built as it could be found afterwards. The same
worker with forcing off must lose something, or these tests would prove nothing.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.faults.disk_trace import Change, Cut, Named, NotModelled, Said, Synced, Wrote, record
from tests.faults.power_loss import FATES, Fate, Image, image_of, images, points_of, said_before
from tests.faults.soak_record import noted
from tests.ledger.builders import draft

from tallystick.core.chain import Head
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("TALLYSTICK_SOAK") == "full"
IMAGES_SLOW, IMAGES_SOAK = 100, (10_000 if FULL else 200)
needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="system calls are recorded with strace"
)


def recorded(root: Path, *command: str) -> list[Change]:
    root.mkdir()
    return record(
        [sys.executable, *command],
        root=root,
        trace=root.with_suffix(".trace"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


# -- the model of a disk ------------------------------------------------------------------------

MADE = Named(begun=0, ended=0, node=0, names=((0, "a", 1),), made=1)
WROTE = Wrote(begun=1, ended=1, node=1, offset=0, data=b"x" * 1_500)
ALL = 99


def files(image: Image) -> dict[str, bytes]:
    """The files beside each other at the top."""
    named = image.folders[0].items()
    return {name: image.files[node] for name, node in named if node in image.files}


def outcomes(changes: Sequence[Change], point: int = ALL) -> list[dict[str, bytes]]:
    """Every different disk that hundreds of images show."""
    found: list[dict[str, bytes]] = []
    for fate in FATES:
        for seed in range(60):
            shown = files(image_of(changes, point, fate, seed=seed))
            if shown not in found:
                found.append(shown)
    return found


def test_what_was_synced_with_its_name_is_there_whatever_else_is_lost() -> None:
    synced: list[Change] = [
        MADE,
        WROTE,
        Synced(begun=2, ended=2, node=1),
        Synced(begun=3, ended=3, node=0),
    ]

    assert outcomes(synced) == [{"a": WROTE.data}]


def test_a_file_whose_bytes_were_synced_may_have_no_name() -> None:
    assert outcomes([MADE, WROTE, Synced(begun=2, ended=2, node=1)]) == [{}, {"a": WROTE.data}]


def test_a_file_whose_name_was_synced_may_have_any_of_its_sectors() -> None:
    shown = [each["a"] for each in outcomes([MADE, WROTE, Synced(begun=3, ended=3, node=0)])]

    sectors = {tuple(each[at : at + 1] for at in (0, 512, 1_024)) for each in shown if each}
    either = (b"x", b"\0")
    assert b"" in shown
    assert sectors == set(itertools.product(either, repeat=3))


def test_a_removed_file_may_be_back_until_its_directory_is_synced() -> None:
    synced: list[Change] = [MADE, Synced(begun=1, ended=1, node=0)]
    removed = [*synced, Named(begun=2, ended=2, node=0, names=((0, "a", None),))]

    assert outcomes(removed) == [{"a": b""}, {}]
    assert outcomes([*removed, Synced(begun=3, ended=3, node=0)]) == [{}]


def test_a_rename_is_there_or_not_and_never_in_part() -> None:
    begun: list[Change] = [
        MADE,
        WROTE,
        Synced(begun=2, ended=2, node=1),
        Synced(begun=3, ended=3, node=0),
    ]
    renamed = Named(begun=4, ended=4, node=0, names=((0, "a", None), (0, "b", 1)))

    assert outcomes([*begun, renamed]) == [{"a": WROTE.data}, {"b": WROTE.data}]


def test_what_ran_beside_a_sync_is_not_covered_by_it() -> None:
    beside = Wrote(begun=2, ended=4, node=1, offset=0, data=b"late")
    named = Synced(begun=1, ended=1, node=0)

    assert {"a": b""} in outcomes([MADE, named, beside, Synced(begun=3, ended=5, node=1)])
    assert {"a": b""} in outcomes([MADE, named, beside, Synced(begun=5, ended=6, node=1)], point=6)
    assert outcomes([MADE, named, beside, Synced(begun=5, ended=6, node=1)]) == [{"a": b"late"}]


def test_a_cut_that_was_not_synced_may_not_have_been_made() -> None:
    synced: list[Change] = [
        MADE,
        WROTE,
        Synced(begun=2, ended=2, node=1),
        Synced(begun=3, ended=3, node=0),
    ]
    shown = outcomes([*synced, Cut(begun=4, ended=4, node=1, length=3)])

    assert shown == [{"a": WROTE.data}, {"a": b"xxx"}]


WRITES = """
import os, sys
os.chdir(sys.argv[1])
os.mkdir("inner")
with open("inner/old", "wb", buffering=0) as file:
    file.write(b"one")
    file.write(b"two")
    file.seek(1)
    file.write(b"X")
os.write(1, b"written\\n")
with open("inner/old", "ab", buffering=0) as file:
    file.write(b"three")
    file.truncate(9)
    os.fsync(file.fileno())
os.rename("inner/old", "new")
fd = os.open(".", os.O_RDONLY)
os.fsync(fd)
os.write(1, b"named\\n")
os.unlink("new")
"""


@needs_strace
def test_a_recording_has_every_byte_and_name_in_order(tmp_path: Path) -> None:
    changes = recorded(tmp_path / "root", "-c", WRITES, str(tmp_path / "root"))

    told = {each.text: each.begun for each in changes if isinstance(each, Said)}
    written = image_of(changes, told["written\n"], "everything")
    (folder,) = written.folders[0].values()
    assert [written.files[node] for node in written.folders[folder].values()] == [b"oXetwo"]
    image = image_of(changes, told["named\n"], "nothing")
    assert files(image) == {"new": b"oXetwothr"}
    assert said_before(changes, told["named\n"] + 1) == ["written", "named"]
    assert files(image_of(changes, points_of(changes)[-1], "everything")) == {}


@needs_strace
def test_a_recording_with_a_call_that_is_not_modelled_is_refused(tmp_path: Path) -> None:
    links = "import os, sys; os.chdir(sys.argv[1]); open('a', 'w').close(); os.link('a', 'b')"

    with pytest.raises(NotModelled, match="link"):
        recorded(tmp_path / "root", "-c", links, str(tmp_path / "root"))


# -- the ledger ---------------------------------------------------------------------------------


def acknowledged(changes: Sequence[Change], point: int) -> dict[str, Head]:
    """The last head of each run that had been said to be forced."""
    said = [line.split() for line in said_before(changes, point)]
    return {run: Head(count=int(count), hash=hash) for _, run, count, hash in said}


def lost_in(image: Image, heads: dict[str, Head], where: Path, ledger: str) -> str | None:
    """What an image has lost of what was acknowledged, after it was opened and gone on with."""
    shutil.rmtree(where, ignore_errors=True)
    image.write(where)
    with SqliteLedger(where / ledger) as opened:
        report = verify_ledger(opened, heads=heads)
        if report.first_bad is not None:
            return f"run {report.first_bad.run}: {report.first_bad.why}"
        for run in heads:
            row = opened.row(run)
            assert row is not None
            fence = opened.claim(run, create=False)
            opened.append(run, [draft(0)], expected=row.head, fence=fence, forced=True)
        assert verify_ledger(opened).ok
    return None


def losses(
    changes: Sequence[Change], *, count: int, seed: int, where: Path, ledger: str
) -> dict[str, str]:
    """What every image that lost something lost."""
    found = {}
    for image in images(changes, count=count, seed=seed):
        lost = lost_in(image, acknowledged(changes, image.point), where, ledger)
        if lost is not None:
            found[str(image)] = lost
    return found


def append_under(folder: Path, how: str, ledger: str) -> list[Change]:
    path = str(folder / "root" / ledger)
    return recorded(folder / "root", "-m", "tests.faults.ledger_worker", path, how)


def sweep(folder: Path, *, count: int, seed: int = 0, ledger: str = "ledger.db") -> dict[str, str]:
    changes = append_under(folder, "forced", ledger)
    # Logs that were taken over and begun again, and a file that was closed: all of it was seen.
    assert sum(isinstance(each, Named) for each in changes) > 8
    assert sum(isinstance(each, Cut) for each in changes) > 2
    return losses(changes, count=count, seed=seed, where=folder / "image", ledger=ledger)


@needs_strace
@pytest.mark.slow
def test_no_forced_entry_is_lost_with_the_power(tmp_path: Path) -> None:
    assert sweep(tmp_path, count=IMAGES_SLOW) == {}


@needs_strace
@pytest.mark.slow
def test_no_forced_entry_is_lost_where_the_ledger_made_its_directories(tmp_path: Path) -> None:
    assert sweep(tmp_path, count=IMAGES_SLOW, ledger="new/data/ledger.db") == {}


@needs_strace
@pytest.mark.slow
def test_a_ledger_that_forces_nothing_loses_entries_and_nothing_else(tmp_path: Path) -> None:
    """The control: images that do not show this show nothing."""
    changes = append_under(tmp_path, "unforced", "ledger.db")

    found = losses(changes, count=IMAGES_SLOW, seed=0, where=tmp_path / "image", ledger="ledger.db")

    assert len(found) > IMAGES_SLOW // 10
    assert all("missing" in why or "the run is gone" in why for why in found.values()), found


@needs_strace
@pytest.mark.soak
@pytest.mark.parametrize("ledger", ["ledger.db", "new/data/ledger.db"])
def test_no_forced_entry_is_lost_in_any_of_many_images(tmp_path: Path, ledger: str) -> None:
    assert sweep(tmp_path, count=IMAGES_SOAK, seed=1, ledger=ledger) == {}

    where = "is there" if ledger == "ledger.db" else "is made with it"
    noted(f"ledgers that lost power; their directory {where}", [f"{IMAGES_SOAK:,} images"])


def test_every_fate_is_among_the_images() -> None:
    found: set[Fate] = {each.fate for each in images([MADE, WROTE], count=2 * len(FATES))}

    assert found == set(FATES)
