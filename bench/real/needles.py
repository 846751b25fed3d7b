"""Needles: one fact in a million characters, among others that look like it."""

from __future__ import annotations

import datetime
import random

from bench.real.draw import NOUNS, coined, elsewhere, people, sentences, source
from bench.real.task import Task, name_check, number_check

__all__ = ["needle_key", "needle_prose"]

_CHARS = 1_000_000


def needle_prose(seed: int) -> Task:
    """A code word somebody wrote down in a log."""
    rng = source("needle-prose", seed)
    thing = rng.choice(["code word", "access code", "release name", "locker code", "call sign"])
    projects = coined(rng, 7)
    codes = [f"{noun.upper()}-{rng.randint(1_000, 9_999)}" for noun in rng.sample(NOUNS, 7)]
    wrote = [name.split()[0] for name in people(rng, 20)]
    lines = _log(rng)
    for project, code in zip(projects, codes, strict=True):
        said = f"{rng.choice(wrote)} noted that the {thing} for {project} is {code}."
        _plant(rng, lines, said)
    for _ in range(2):
        _plant(rng, lines, f"{rng.choice(wrote)} had lost the {thing} for {projects[0]}.")
    question = rng.choice(
        [
            f"Somewhere in this log somebody wrote down the {thing} for {projects[0]}. "
            f"What is the {thing} for {projects[0]}?",
            f"What is the {thing} for {projects[0]}? It is mentioned somewhere in the log.",
        ]
    )
    return Task(
        name="needle-prose",
        kind="needle",
        seed=seed,
        question=question,
        files={"journal.log": "\n".join(lines) + "\n"},
        expected=codes[0],
        check=name_check(codes[0], rivals=codes[1:]),
        near_misses=(*codes[1:], codes[0].split("-")[0], projects[0]),
    )


def _log(rng: random.Random) -> list[str]:
    """Lines of a log, a little over a million characters."""
    said = sentences(rng, 400)
    joint = rng.choice([" ", " - ", " | ", ": "])
    place = rng.choice(["desk", "room", "unit", "post"])
    at = datetime.datetime(2023, rng.randint(1, 12), rng.randint(1, 28), tzinfo=datetime.UTC)
    lines, chars = [], 0
    while chars < _CHARS:
        at += datetime.timedelta(seconds=rng.randint(5, 500))
        parts = rng.choices(said, k=3)
        line = f"{at.isoformat(' ')[:19]}{joint}{place} {rng.randint(1, 9)}{joint}{' '.join(parts)}"
        lines.append(line)
        chars += len(line) + 1
    return lines


def _plant(rng: random.Random, lines: list[str], said: str) -> None:
    """Put a sentence behind what a line already says."""
    at = elsewhere(rng, len(lines))
    lines[at] = f"{lines[at]} {said}"


def needle_key(seed: int) -> Task:
    """The value of one key in a dump of settings."""
    rng = source("needle-key", seed)
    joint = rng.choice([".", "_", "/"])
    between = rng.choice([" = ", "=", ": "])
    words = [word.lower() for word in coined(rng, 400)]
    settings: dict[str, str] = {}
    chars = 0
    while chars < _CHARS:
        drawn = iter(rng.choices(words, k=3_000))
        values = map(str, rng.choices(range(10_000, 1_000_000), k=1_000))
        for parts, value in zip(zip(drawn, drawn, drawn, strict=True), values, strict=True):
            key = joint.join(parts)
            if key not in settings and chars < _CHARS:
                settings[key] = value
                chars += len(key) + len(between) + len(value) + 1
    keys = list(settings)
    key = keys[elsewhere(rng, len(keys))]
    first, second, third = key.split(joint)
    value = settings[key]
    # Longer and shuffled keys that hold the same words: looking for a part of it finds these too.
    decoys = [
        f"{key}{joint}{rng.choice(['old', 'backup', 'default'])}",
        f"{rng.choice(['test', 'staging'])}{joint}{key}",
        joint.join([second, first, third]),
    ]
    pairs = list(settings.items())
    for decoy in decoys:
        if decoy not in settings:
            other = str(rng.randint(10_000, 999_999))
            if other != value:
                settings[decoy] = other
                pairs.insert(elsewhere(rng, len(pairs)), (decoy, other))
    question = rng.choice(
        [
            f"What is the value of the key {key} in these settings?",
            f'What is the setting "{key}" set to?',
        ]
    )
    misses = [settings[decoy] for decoy in decoys if settings.get(decoy, value) != value]
    return Task(
        name="needle-key",
        kind="needle",
        seed=seed,
        question=question,
        files={"settings.txt": "".join(f"{name}{between}{held}\n" for name, held in pairs)},
        expected=value,
        check=number_check(value, question=question),
        near_misses=(*misses, str(int(value) + 1), value[:-1], key),
    )
