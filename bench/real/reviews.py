"""Reviews to be judged: what each says has to be read, and no word of it gives it away.

Programs cannot tell praise from blame here; they have to ask a model about each review and count.
"""

from __future__ import annotations

import json
import random

from bench.real.draw import NOUNS, coined, csv_text, identifiers, source
from bench.real.task import Task, name_check, number_check

__all__ = ["judge_count", "judge_lines", "judge_top", "review_count", "review_top"]

_LIKED = (
    "I would buy this {thing} again tomorrow.",
    "My sister saw mine and ordered two for herself.",
    "It has worked every single day since I got it.",
    "Worth every cent, I am very happy with it.",
    "I recommend it to everyone who asks me.",
    "It does exactly what I hoped for, and more.",
    "The whole family loves it.",
    "Best {thing} I have owned in ten years.",
)
_DISLIKED = (
    "It broke on the second day and nobody answers my letters.",
    "I want my money back.",
    "Do not buy this {thing}, it is a waste of money.",
    "I regret the purchase and went back to my old one.",
    "It stopped working after a week.",
    "I am very disappointed with it.",
    "It smells awful and falls apart in your hands.",
    "Worst {thing} I have owned in ten years.",
)
_NEITHER = (
    "It came in a brown box on a Monday.",
    "I ordered the blue one.",
    "There are four screws in the bag.",
    "Mine is the model from last year.",
    "I live in a small flat on the third floor.",
    "It weighs about as much as a loaf of bread.",
)


def review_count(seed: int) -> Task:
    """How many customers are satisfied; the question says to ask a model."""
    return _count_task("review-count", seed, asking=True)


def judge_count(seed: int) -> Task:
    """How many customers are satisfied; nobody says how that is found."""
    return _count_task("judge-count", seed, asking=False)


def _count_task(name: str, seed: int, *, asking: bool) -> Task:
    rng = source(name, seed)
    count = rng.randint(10, 16)
    liked = rng.randint(3, count - 3)
    if liked * 2 == count:
        liked += 1
    tones = [True] * liked + [False] * (count - liked)
    rng.shuffle(tones)
    ids = identifiers(rng, count)
    texts = [_review(rng, tone) for tone in tones]
    lines = [json.dumps({"id": i, "review": text}) for i, text in zip(ids, texts, strict=True)]
    ask = "Ask a model of each review whether the customer is satisfied. " if asking else ""
    question = f"Each record has a customer's review. {ask}How many customers are satisfied?"
    return Task(
        name=name,
        kind="reviews" if asking else "judging",
        seed=seed,
        question=question,
        files={"reviews.jsonl": "\n".join(lines) + "\n"},
        expected=str(liked),
        check=number_check(str(liked), question=question),
        near_misses=(str(count), str(count - liked), str(liked + 1), str(liked - 1)),
        strategy="recursive" if asking else "code",
    )


def judge_lines(seed: int) -> Task:
    """How many messages, a line each, are complaints."""
    rng = source("judge-lines", seed)
    count = rng.randint(18, 26)
    liked = rng.randint(6, count - 6)
    if liked * 2 == count:
        liked += 1
    tones = [True] * liked + [False] * (count - liked)
    rng.shuffle(tones)
    lines = [_review(rng, tone) for tone in tones]
    wrong = count - liked
    question = "Each line is a message from a customer. How many of them are complaints?"
    return Task(
        name="judge-lines",
        kind="judging",
        seed=seed,
        question=question,
        files={"messages.txt": "\n".join(lines) + "\n"},
        expected=str(wrong),
        check=number_check(str(wrong), question=question),
        near_misses=(str(count), str(liked), str(wrong + 1), str(wrong - 1)),
    )


def review_top(seed: int) -> Task:
    """The product with most satisfied customers; the question says to ask a model."""
    return _top_task("review-top", seed, asking=True)


def judge_top(seed: int) -> Task:
    """The product with most satisfied customers; nobody says how that is found."""
    return _top_task("judge-top", seed, asking=False)


def _top_task(name: str, seed: int, *, asking: bool) -> Task:
    """The product that most customers are satisfied with, not the one with most reviews."""
    rng = source(name, seed)
    first, second, third = coined(rng, 3)
    # Satisfied and not, of each: the most reviewed has fewer satisfied ones.
    shares = {first: (rng.randint(5, 6), 1), second: (2, rng.randint(6, 7)), third: (3, 2)}
    drawn = [
        (product, tone)
        for product, (liked, disliked) in shares.items()
        for tone in [True] * liked + [False] * disliked
    ]
    rng.shuffle(drawn)
    rows = [[product, _review(rng, tone)] for product, tone in drawn]
    ask = "Ask a model of each review whether the customer is satisfied. " if asking else ""
    question = (
        f"Each row has a product and a customer's review of it. {ask}"
        "Which product has the most satisfied customers?"
    )
    return Task(
        name=name,
        kind="reviews" if asking else "judging",
        seed=seed,
        question=question,
        files={"reviews.csv": csv_text(["product", "review"], rows)},
        expected=first,
        check=name_check(first, rivals=shares),
        near_misses=(second, third),
        strategy="recursive" if asking else "code",
    )


def _review(rng: random.Random, liked: bool) -> str:
    """A few sentences, of which some say what the customer thinks and the others nothing."""
    thing = rng.choice(NOUNS)
    said = rng.sample(_LIKED if liked else _DISLIKED, 2) + rng.sample(_NEITHER, rng.randint(0, 2))
    rng.shuffle(said)
    return " ".join(said).format(thing=thing)
