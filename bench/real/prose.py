"""Long prose: one fact, or two facts far apart, in paragraphs that no parser takes to pieces.

Each fact has rivals of the same form about other places, and its place is named a second time in a
sentence that does not answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from bench.real.draw import NOUNS, coined, elsewhere, people, sentences, source
from bench.real.task import Task, name_check, number_check

__all__ = ["prose_amount", "prose_colour", "prose_named", "prose_two", "prose_who"]

_RIVALS = 6
_COLOURS = (
    *("black", "blue", "brown", "crimson", "green", "grey", "ivory", "lilac", "olive", "orange"),
    *("pink", "purple", "red", "scarlet", "teal", "turquoise", "white", "yellow"),
)
_CALLED = ("barge", "sloop", "mare", "hound", "coach", "locomotive")


def _prose(rng: random.Random, facts: Sequence[str]) -> str:
    """Return a chronicle of 60,000 to 400,000 characters, with each fact at a place of its own."""
    said = sentences(rng, 500)
    paragraphs, chars, most = [], 0, rng.randint(60_000, 400_000)
    while chars < most:
        paragraphs.append(rng.choices(said, k=rng.randint(9, 16)))
        chars += sum(len(each) + 1 for each in paragraphs[-1])
    for fact in facts:
        paragraph = paragraphs[elsewhere(rng, len(paragraphs))]
        # Never first: a paragraph does not begin with what is asked for.
        paragraph.insert(rng.randint(1, len(paragraph) - 1), fact)
    return "\n\n".join(" ".join(each) for each in paragraphs) + "\n"


def _number_task(
    name: str, seed: int, question: str, text: str, right: int, rivals: Sequence[int]
) -> Task:
    return Task(
        name=name,
        kind="prose",
        seed=seed,
        question=question,
        files={"chronicle.txt": text},
        expected=str(right),
        check=number_check(str(right), question=question),
        near_misses=(*(str(each) for each in rivals if each != right), str(right + 1)),
    )


def _name_task(
    name: str, seed: int, question: str, text: str, right: str, rivals: Sequence[str]
) -> Task:
    return Task(
        name=name,
        kind="prose",
        seed=seed,
        question=question,
        files={"chronicle.txt": text},
        expected=right,
        check=name_check(right, rivals=rivals),
        near_misses=tuple(each for each in rivals if each != right),
    )


def prose_amount(seed: int) -> Task:
    """What a house at one place was sold for."""
    rng = source("prose-amount", seed)
    house = rng.choice(["mill", "inn", "bakery", "brewery", "smithy"])
    places = coined(rng, _RIVALS + 1)
    buyers = people(rng, _RIVALS + 1)
    prices = rng.sample(range(1_200, 9_900), _RIVALS + 1)
    facts = [
        f"The {house} at {place} was sold to {buyer} for {price} crowns."
        for place, buyer, price in zip(places, buyers, prices, strict=True)
    ]
    facts += [f"The {house} at {places[0]} had stood empty for {rng.randint(3, 60)} years."]
    question = f"For how many crowns was the {house} at {places[0]} sold?"
    return _number_task("prose-amount", seed, question, _prose(rng, facts), prices[0], prices[1:])


def prose_who(seed: int) -> Task:
    """Who had an office at one place."""
    rng = source("prose-who", seed)
    office, did = rng.choice(
        [
            ("keeper of the lighthouse", "kept the lighthouse"),
            ("captain of the ferry", "was captain of the ferry"),
            ("teacher of the school", "taught at the school"),
        ]
    )
    places = coined(rng, _RIVALS + 1)
    held = people(rng, _RIVALS + 2)
    facts = [
        f"In those years {who} was the {office} at {place}."
        for place, who in zip(places, held, strict=False)
    ]
    facts += [f"{held[-1]} once asked for the {office} at {places[0]} and found nobody."]
    question = f"Who {did} at {places[0]}?"
    return _name_task("prose-who", seed, question, _prose(rng, facts), held[0], held[1:])


def prose_named(seed: int) -> Task:
    """The name that a person gave to something."""
    rng = source("prose-named", seed)
    what = rng.choice(_CALLED)
    owners, names = people(rng, _RIVALS + 1), coined(rng, _RIVALS + 1)
    facts = [
        f"{owner} bought a {what} and called it {name}."
        for owner, name in zip(owners, names, strict=True)
    ]
    facts += [f"{owners[0]} was seen with the {what} at the {rng.choice(NOUNS)} fair."]
    question = f"What did {owners[0]} call the {what}?"
    return _name_task("prose-named", seed, question, _prose(rng, facts), names[0], names[1:])


def prose_colour(seed: int) -> Task:
    """The colour of one door among others in the same street."""
    rng = source("prose-colour", seed)
    street, other = coined(rng, 2)
    numbers = rng.sample(range(11, 98), _RIVALS + 1)
    colours = rng.sample(_COLOURS, _RIVALS + 1)
    facts = [
        f"The door of {number} {street} Street was painted {colour}."
        for number, colour in zip(numbers, colours, strict=True)
    ]
    facts += [
        f"The door of {numbers[0]} {other} Street was painted {colours[1]}.",
        f"Nobody had lived at {numbers[0]} {street} Street since the flood.",
    ]
    question = f"Which colour was the door of {numbers[0]} {street} Street painted?"
    return _name_task("prose-colour", seed, question, _prose(rng, facts), colours[0], colours[1:])


def prose_two(seed: int) -> Task:
    """Where the buyer of something was born: two facts that stand far apart."""
    rng = source("prose-two", seed)
    things = rng.sample(NOUNS, _RIVALS + 1)
    buyers, towns = people(rng, _RIVALS + 1), coined(rng, _RIVALS + 1)
    bought = [
        f"At the auction the golden {thing} went to {who}."
        for thing, who in zip(things, buyers, strict=True)
    ]
    born = [
        f"{who} had been born in {town} and never spoke of it."
        for who, town in zip(buyers, towns, strict=True)
    ]
    facts = [*bought, *born, f"Many people came to see the golden {things[0]} before the auction."]
    question = (
        f"At the auction somebody got the golden {things[0]}. In which town was that person born?"
    )
    return _name_task("prose-two", seed, question, _prose(rng, facts), towns[0], towns[1:])


PROSE: dict[str, Callable[[int], Task]] = {
    "prose-amount": prose_amount,
    "prose-who": prose_who,
    "prose-named": prose_named,
    "prose-colour": prose_colour,
    "prose-two": prose_two,
}
