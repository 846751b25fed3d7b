"""Questions that only a skill answers, in a collection where its card has no room.

The rule is made up for each seed, so that no model knows it. Its skill stands behind more others
than a catalog lists, and is not matched: a program has to search for it, load it and follow it.
"""

from __future__ import annotations

from bench.real.draw import NOUNS, coined, source
from bench.real.task import Task, number_check

__all__ = ["skill_search"]

_FIGURES = ("weight class", "delivery zone", "service interval", "storage level")


def skill_search(seed: int) -> Task:
    """A number by a rule that is in no prompt."""
    rng = source("skill-search", seed)
    # The last in the alphabet: names in that order run out of room long before.
    word = max(coined(rng, 3))
    noun = rng.choice(NOUNS)
    factor, plus, code = rng.randint(3, 9), rng.randint(11, 90), rng.randint(120, 880)
    wanted = factor * code + plus
    skills = {
        f"{each}-{figure.replace(' ', '-')}": _skill(
            f"{each}-{figure.replace(' ', '-')}",
            f"Work out the {figure} of a {each}.",
            f"Multiply its length by {rng.randint(2, 9)} and subtract {rng.randint(2, 90)}.",
        )
        for each in NOUNS
        for figure in _FIGURES
    }
    name = f"z-{word.lower()}-number"
    skills[name] = _skill(
        name,
        f"Work out the {word} number of a {noun} from its code.",
        f"The {word} number is the code times {factor}, plus {plus}.\n\n"
        f"Example: a code of 10 has the {word} number {factor * 10 + plus}.",
    )
    question = f"The code of a {noun} is {code}. What is its {word} number?"
    return Task(
        name="skill-search",
        kind="skills",
        seed=seed,
        question=question,
        files={},
        expected=str(wanted),
        check=number_check(str(wanted), question=question),
        near_misses=(str(code), str(factor * code), str(code + plus), str(factor * 10 + plus)),
        skills=skills,
    )


def _skill(name: str, description: str, body: str) -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n{body}\n"
