"""A directory as a disk could show it after losing power: built from what was done to it.

Rule 1: what a finished sync covers is there. Everything else that was begun may be there or not,
each change on its own; of a write, each sector of 512 bytes on its own.
Rule 2: names last when their directory was synced. A new file of which every byte was synced may
still have no name, and one that was removed may be back.
Rule 3: a change counts from where it began, and a sync when it has returned. So a change that ran
beside a sync is not covered by it.

Real disks and file systems lose less than this. Whoever survives it needs none of their promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

from tests.faults.disk_trace import ROOT_NODE, Change, Cut, Named, Said, Synced, Wrote

__all__ = ["FATES", "Fate", "Image", "image_of", "images", "points_of", "said_before"]

SECTOR_BYTES = 512
# What becomes of changes that no sync covers.
Fate = Literal["nothing", "everything", "prefix", "any", "torn", "names", "data"]
FATES: tuple[Fate, ...] = ("nothing", "everything", "prefix", "any", "torn", "names", "data")
# True keeps a change, False drops it; a number is the seed by which its sectors are chosen.
_Choice = bool | int
_Chooser = Callable[[Change], _Choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What is on the disk: contents by node, names by directory."""

    point: int
    fate: Fate
    seed: int
    files: dict[int, bytes]
    folders: dict[int, dict[str, int]]

    def __str__(self) -> str:
        return f"power lost at line {self.point}, {self.fate} kept, seed {self.seed}"

    def write(self, root: Path, node: int = ROOT_NODE) -> None:
        """Make it a directory. The index of a log is garbage: it was never meant to last."""
        root.mkdir(mode=0o700)
        for name, inside in self.folders[node].items():
            if inside in self.folders:
                self.write(root / name, inside)
            elif name.endswith("-shm"):
                (root / name).write_bytes(Random(self.seed).randbytes(len(self.files[inside])))
            else:
                (root / name).write_bytes(self.files[inside])


def points_of(changes: Sequence[Change]) -> list[int]:
    """Every moment that differs from the one before: as a change begins, and as it has ended."""
    return sorted({each.begun + 1 for each in changes} | {each.ended + 1 for each in changes})


def said_before(changes: Sequence[Change], point: int) -> list[str]:
    """The lines that were written to the output by then. What they tell of had happened."""
    texts = [each.text for each in changes if isinstance(each, Said) and each.begun < point]
    return "".join(texts).splitlines()


def images(changes: Sequence[Change], *, count: int, seed: int = 0) -> Iterator[Image]:
    """So many images, spread over all points and fates; half of them just after something said."""
    chance = Random(seed)
    points = points_of(changes)
    told = [each.begun + 1 for each in changes if isinstance(each, Said)]
    for number in range(count):
        point = chance.choice(told if told and number % 2 else points)
        yield image_of(changes, point, FATES[number // 2 % len(FATES)], seed=chance.getrandbits(32))


def image_of(changes: Sequence[Change], point: int, fate: Fate, *, seed: int = 0) -> Image:
    """The disk as power is lost before line `point` of the trace."""
    begun = [each for each in changes if each.begun < point]
    synced: dict[int, int] = {}
    for each in begun:
        if isinstance(each, Synced) and each.ended < point:
            synced[each.node] = max(synced.get(each.node, -1), each.begun)
    lasting = [
        not isinstance(each, Said | Synced) and each.ended < synced.get(each.node, -1)
        for each in begun
    ]
    loose = [each for each, lasts in zip(begun, lasting, strict=True) if not lasts]
    choose = _chooser(loose, fate, Random(seed))
    disk = _Disk()
    for each, lasts in zip(begun, lasting, strict=True):
        disk.apply(each, True if lasts else choose(each))
    return Image(
        point=point,
        fate=fate,
        seed=seed,
        files={node: bytes(data) for node, data in disk.files.items()},
        folders=disk.folders,
    )


def _chooser(loose: Sequence[Change], fate: Fate, chance: Random) -> _Chooser:
    match fate:
        case "nothing":
            return lambda change: False
        case "everything":
            return lambda change: True
        case "names":
            return lambda change: isinstance(change, Named)
        case "data":
            return lambda change: not isinstance(change, Named)
        case "any":
            return lambda change: chance.random() < 0.5
        case "torn":
            return lambda change: chance.choice((True, False, chance.getrandbits(32)))
        case "prefix":
            # In the order it was done, and the last of it in part.
            last = chance.randrange(len(loose) + 1)
            kept = {id(each) for each in loose[:last]}
            half = id(loose[last]) if last < len(loose) else 0
            seed = chance.getrandbits(32)
            return lambda change: seed if id(change) == half else id(change) in kept


@dataclass
class _Disk:
    """What has reached the disk so far."""

    files: dict[int, bytearray] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT_NODE: {}})

    def apply(self, change: Change, choice: _Choice) -> None:
        if isinstance(change, Named) and change.made is not None:
            # The file is there whether or not it has its name: another may be kept.
            if change.folder:
                self.folders[change.made] = {}
            else:
                self.files[change.made] = bytearray()
        if choice is False:
            return
        match change:
            case Named():
                for folder, name, node in change.names:
                    if node is None:
                        self.folders[folder].pop(name, None)
                    else:
                        self.folders[folder][name] = node
            case Cut():
                held = self.files[change.node]
                del held[change.length :]
                held.extend(bytes(change.length - len(held)))
            case Wrote():
                self._write(change, choice)

    def _write(self, change: Wrote, choice: _Choice) -> None:
        held = self.files[change.node]
        end = change.offset + len(change.data)
        # The length may have grown before the bytes came: then there are zeros.
        held.extend(bytes(max(0, end - len(held))))
        if choice is True:
            held[change.offset : end] = change.data
            return
        chance = Random(choice)
        at = change.offset
        while at < end:
            stop = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if chance.random() < 0.5:
                held[at:stop] = change.data[at - change.offset : stop - change.offset]
            at = stop
