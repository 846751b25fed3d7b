"""Lines and lists: counts, the longest, the most frequent, the k-th largest, the distinct."""

from __future__ import annotations

import datetime
import random
from collections import Counter

from bench.real.draw import (
    NOUNS,
    coined,
    elsewhere,
    identifiers,
    people,
    recased,
    sentences,
    source,
)
from bench.real.task import Task, money, name_check, number_check

__all__ = ["count_lines", "distinct", "frequent", "kth_largest", "longest"]


def _times(rng: random.Random, count: int) -> list[str]:
    """Rising moments, as a log has them."""
    at = datetime.datetime(2024, rng.randint(1, 12), rng.randint(1, 28), tzinfo=datetime.UTC)
    made = []
    for _ in range(count):
        at += datetime.timedelta(seconds=rng.randint(1, 90))
        made.append(at.strftime("%Y-%m-%d %H:%M:%S"))
    return made


def count_lines(seed: int) -> Task:
    """How many lines of a log have a level, or hold a word in any case."""
    rng = source("count-lines", seed)
    count = rng.randint(2_000, 3_500)
    levels = ["INFO", "DEBUG", "ERROR", "WARN", "FATAL"]
    level = rng.choice(levels[2:])
    word = rng.choice(["timeout", "overflow", "mismatch", "checksum", "handshake"])
    form = rng.choice(
        [
            "{time} {level} {part}: {said}",
            "[{level}] {time} {part} - {said}",
            "{time}|{level}|{part}|{said}",
        ]
    )
    parts = [name.lower() for name in coined(rng, 6)]
    said = sentences(rng, 200)
    with_level = with_word = exact = twice = spoken = 0
    lines = []
    for time in _times(rng, count):
        of_line = rng.choices(levels, weights=[60, 20, 9, 7, 4])[0]
        text = rng.choice(said)
        if rng.random() < 0.12:
            shown = recased(rng, word)
            text = f"{text} Saw a {shown}."
            with_word += 1
            exact += shown == word
            if rng.random() < 0.2:
                text = f"{text} Another {word} came."
                twice += 1
        if rng.random() < 0.05:
            # The level's name in small letters, in what is said.
            text = f"{text} No {level.lower()} though."
            spoken += of_line != level
        with_level += of_line == level
        lines.append(form.format(time=time, level=of_line, part=rng.choice(parts), said=text))
    if rng.random() < 0.5:
        question = f"How many lines of this log have the level {level}?"
        right, misses = with_level, [with_level + spoken, count - with_level]
    else:
        question = f'How many lines of this log contain the word "{word}", in any case of letters?'
        right, misses = with_word, [with_word + twice, exact]
    return Task(
        name="count-lines",
        kind="count",
        seed=seed,
        question=question,
        files={"server.log": "\n".join(lines) + "\n"},
        expected=str(right),
        check=number_check(str(right), question=question),
        near_misses=tuple(str(each) for each in [*misses, count, right - 1, right + 1]),
    )


def longest(seed: int) -> Task:
    """The id of the longest note, or the longest word."""
    rng = source("longest", seed)
    return _longest_line(rng, seed) if rng.random() < 0.5 else _longest_word(rng, seed)


def _longest_line(rng: random.Random, seed: int) -> Task:
    count = rng.randint(500, 900)
    ids = identifiers(rng, count)
    said = sentences(rng, 150)
    joint = rng.choice([": ", " | ", "\t", " - "])
    notes = [" ".join(rng.choices(said, k=rng.randint(1, 5))) for _ in range(count)]
    by_length = sorted(range(count), key=lambda at: len(ids[at] + notes[at]))
    at, second = elsewhere(rng, count), by_length[-1]
    if at == second:
        second = by_length[-2]
    # One clause more than the longest, so that it is the longest by any measure of length.
    notes[at] = f"{notes[second]} {rng.choice(said)}"
    question = rng.choice(
        [
            "Each line is a note that begins with its id. Which note is the longest? Give its id.",
            "What is the id of the longest line in this file? Every line begins with its id.",
        ]
    )
    return Task(
        name="longest",
        kind="longest",
        seed=seed,
        question=question,
        files={"notes.txt": "".join(f"{i}{joint}{n}\n" for i, n in zip(ids, notes, strict=True))},
        expected=ids[at],
        check=name_check(ids[at], rivals=ids),
        near_misses=(ids[second], ids[0], ids[-1], str(len(ids[at] + joint + notes[at]))),
    )


def _longest_word(rng: random.Random, seed: int) -> Task:
    common = [word.lower() for word in coined(rng, 300)] + NOUNS
    most = max(len(word) for word in common)
    rare = [word.lower() for word in coined(rng, 40, syllables=3) if len(word) > most]
    most = max(len(word) for word in [*common, *rare])
    longer = [word.lower() for word in coined(rng, 60, syllables=5) if len(word) >= most + 3]
    wanted = longer[0]
    words = rng.choices(common, k=rng.randint(9_000, 16_000))
    for word in rare:
        words[elsewhere(rng, len(words))] = word
    words[elsewhere(rng, len(words))] = wanted
    lines = []
    at = 0
    while at < len(words):
        size = rng.randint(5, 14)
        line = " ".join(words[at : at + size]).capitalize() + rng.choice([".", ".", "!", "?"])
        lines.append(line.replace(" ", ", ", 1) if rng.random() < 0.3 else line)
        at += size
    question = rng.choice(
        [
            "What is the longest word in this text?",
            "Which word in this text has the most letters? Punctuation does not count.",
        ]
    )
    # A word that could also stand in a sentence around the answer is no rival.
    rivals = [*rare, *common]
    second = max(rivals, key=len)
    return Task(
        name="longest",
        kind="longest",
        seed=seed,
        question=question,
        files={"text.txt": "\n".join(lines) + "\n"},
        expected=wanted,
        check=name_check(wanted, rivals=rivals),
        near_misses=(second, wanted[:-1], str(len(wanted)), words[0]),
    )


def frequent(seed: int) -> Task:
    """The item named most often, case aside; another one leads where case counts."""
    rng = source("frequent", seed)
    items = rng.sample(NOUNS, 20)
    count = rng.randint(5_000, 9_000)
    # The winner comes in three spellings, the second always in one: exact counting picks that.
    winner, second = items[0], items[1]
    shares = {item: rng.uniform(0.3, 0.8) for item in items[2:]} | {winner: 1.35, second: 1.1}
    drawn = rng.choices(list(shares), weights=list(shares.values()), k=count)
    counted = Counter(drawn)
    for _ in range(max(0, counted[second] + 20 - counted[winner])):
        drawn.append(winner)
    rng.shuffle(drawn)
    shown = [item if item == second else recased(rng, item) for item in drawn]
    if rng.random() < 0.5:
        text = "\n".join(shown) + "\n"
        told = "This file has one item per line."
    else:
        lines, at, day = [], 0, datetime.date(rng.randint(2018, 2024), 1, 1)
        while at < len(shown):
            size = rng.randint(3, 15)
            lines.append(f"{day.isoformat()}: {', '.join(shown[at : at + size])}")
            at, day = at + size, day + datetime.timedelta(days=1)
        text = "\n".join(lines) + "\n"
        told = "Each line has a date, a colon and the items of that day, separated by commas."
    question = f"{told} Which item occurs most often? Treat upper and lower case as the same."
    return Task(
        name="frequent",
        kind="frequent",
        seed=seed,
        question=question,
        files={"items.txt": text},
        expected=winner,
        check=name_check(winner, rivals=items),
        near_misses=(second, items[2], str(Counter(drawn)[winner]), f"{winner}s"),
    )


def kth_largest(seed: int) -> Task:
    """The k-th largest of numbers that differ and have different lengths."""
    rng = source("kth-largest", seed)
    k = rng.randint(4, 19)
    count = rng.randint(1_100, 1_600)
    top = rng.choice([12_000, 150_000, 1_100_000])
    if rng.random() < 0.5:
        drawn = rng.sample(range(-top // 10, top), count)
        numbers = {each: str(each) for each in drawn}
    else:
        drawn = rng.sample(range(-top // 10, top * 100), count)
        numbers = {each: money(each) for each in drawn}
    if rng.random() < 0.5:
        text = "\n".join(numbers[each] for each in drawn) + "\n"
    else:
        shown = [numbers[each] for each in drawn]
        joint = rng.choice([", ", " ", "; "])
        text = "\n".join(joint.join(shown[at : at + 10]) for at in range(0, count, 10)) + "\n"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(k if k < 4 else 0, "th")
    question = f"What is the {k}{ending} largest number in this file?"
    order = sorted(drawn, reverse=True)
    right = numbers[order[k - 1]]
    as_text = sorted(numbers.values(), reverse=True)[k - 1]
    misses = [numbers[order[k - 2]], numbers[order[k]], numbers[order[-k]], str(k)]
    return Task(
        name="kth-largest",
        kind="k-th largest",
        seed=seed,
        question=question,
        files={"numbers.txt": text},
        expected=right,
        check=number_check(right, question=question),
        near_misses=(*misses, *([as_text] if as_text != right else [])),
    )


def distinct(seed: int) -> Task:
    """How many different addresses a log holds, case aside."""
    rng = source("distinct", seed)
    count = rng.randint(900, 1_600)
    host = rng.choice(["example.com", "example.org", "example.net"])
    owners = [name.lower().replace(" ", ".") for name in people(rng, rng.randint(180, 420))]
    form = rng.choice(
        ["{time} login user={mail} result={how}", "{time} {how} <{mail}>", "{time},{mail},{how}"]
    )
    used, shown, lines = set(), set(), []
    for time in _times(rng, count):
        owner = rng.choice(owners)
        mail = f"{owner.title() if rng.random() < 0.2 else owner}@{host}"
        used.add(owner)
        shown.add(mail)
        lines.append(form.format(time=time, mail=mail, how=rng.choice(["ok", "denied", "expired"])))
    question = (
        "How many different e-mail addresses are there in this file? "
        "Upper and lower case make no difference."
    )
    right = len(used)
    return Task(
        name="distinct",
        kind="distinct",
        seed=seed,
        question=question,
        files={"logins.log": "\n".join(lines) + "\n"},
        expected=str(right),
        check=number_check(str(right), question=question),
        near_misses=(str(len(shown)), str(count), str(right + 1), str(right - 1)),
    )
