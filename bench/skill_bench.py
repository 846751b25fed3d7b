"""Skills: what a thousand of them cost before the first prompt, and in it.

Question: is a collection of 1,000 skills scanned in under a second, and its catalog fitted with
evidence in under 20 ms; what is the scan beside reading the same files; and how does the reference
package do over the same folders?

Sketch before measuring. A scan lists folders, reads each file and parses a few lines of YAML with
libyaml: 0.2 ms each, of which reading is a quarter. Fitting is a sort and some additions for each
card: 10 µs each, most of it making the evidence. The reference parses with a slow, strict reader:
several milliseconds each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from bench.measure import Bench, Row, World, now
from bench.real.draw import NOUNS

from tallystick.skills.catalog import fit_catalog
from tallystick.skills.layers import scan
from tallystick.skills.match import match_skills, search
from tallystick.skills.places import Layer

__all__ = ["BENCHES"]

_COUNT = 1_000
_REFERENCE_COUNT = 100
_REPEATS = 7
_WORDS = NOUNS


def skills(world: World) -> Iterable[Row]:
    root = world.directory / "skills"
    _made(root)
    layers = [Layer(name="flag", path=root)]
    scanned = _timed(lambda: scan(layers))
    read = _timed(lambda: [(each / "SKILL.md").read_bytes() for each in root.iterdir()])
    ratio = sorted(scanned)[len(scanned) // 2] / sorted(read)[len(read) // 2]
    yield _row("scan 1,000 skills", "s", scanned, target=1.0, against=f"{ratio:.1f} times reading")
    cards = scan(layers).cards()
    fitted = [1000 * each for each in _timed(lambda: fit_catalog(cards))]
    yield _row("fit and evidence of 1,000", "ms", fitted, target=20.0)
    task = f"find the {_WORDS[3]} behind the {_WORDS[9]} and the {_WORDS[20]}"
    matched = [1000 * each for each in _timed(lambda: match_skills(task, cards))]
    yield _row("match 1,000 with a task", "ms", matched)
    found = [1000 * each for each in _timed(lambda: search(cards, task))]
    yield _row("search 1,000 by a task", "ms", found)
    yield _reference(root, [1000 * each / _COUNT for each in scanned])


def _reference(root: Path, ours: list[float]) -> Row:
    name = "read a skill's head"
    try:
        from skills_ref import read_properties  # type: ignore[import-untyped]
    except ImportError:
        return Row(
            bench="skills", name=name, unit="ms", samples=[], who="skills-ref",
            skipped="skills-ref is not installed",
        )  # fmt: skip
    folders = sorted(root.iterdir())[:_REFERENCE_COUNT]
    samples = [
        1000 * each / _REFERENCE_COUNT
        for each in _timed(lambda: [read_properties(folder) for folder in folders], repeats=3)
    ]
    middle = sorted(ours)[len(ours) // 2]
    return Row(
        bench="skills", name=name, unit="ms", samples=samples, who="skills-ref",
        against=f"ours, in a scan: {middle:.2f} ms",
    )  # fmt: skip


def _row(
    name: str, unit: str, samples: list[float], *, target: float | None = None, against: str = ""
) -> Row:
    return Row(
        bench="skills", name=name, unit=unit, samples=samples, target=target, against=against
    )


def _timed(work: Callable[[], object], *, repeats: int = _REPEATS) -> list[float]:
    work()
    found = []
    for _ in range(repeats):
        began = now()
        work()
        found.append(now() - began)
    return found


def _made(root: Path) -> None:
    rng = random.Random(8)
    for number in range(_COUNT):
        folder = root / f"{rng.choice(_WORDS)}-{rng.choice(_WORDS)}-{number}"
        folder.mkdir(parents=True)
        description = " ".join(rng.choices(_WORDS, k=45))
        body = "\n".join(" ".join(rng.choices(_WORDS, k=12)) for _ in range(80))
        head = f"name: {folder.name}\ndescription: {description}\nwhen_to_use: {rng.choice(_WORDS)}"
        (folder / "SKILL.md").write_text(f"---\n{head}\n---\n{body}\n")


BENCHES: dict[str, Bench] = {"skills": skills}
