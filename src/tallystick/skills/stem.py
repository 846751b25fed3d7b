"""Stems: English words without their endings, so that `invoices` and `invoicing` are one word.

Endings are taken off by a few rules, from the outside in. A stem need not be a word: it has to be
the same for words of one family, and words of other languages pass mostly unchanged.
"""

from __future__ import annotations

__all__ = ["stem"]

_VOWELS = frozenset("aeiouy")
_PASSES = 3
# An ending, what stands in its stead, and how much of the word has to be left.
_ENDINGS = (
    ("ization", "iz", 3), ("isation", "iz", 3), ("ersion", "ert", 6), ("ation", "", 4),
    ("ating", "", 4), ("ator", "", 4), ("ated", "", 4), ("ate", "", 4), ("izing", "iz", 4),
    ("ising", "iz", 4), ("ized", "iz", 4), ("ised", "iz", 4), ("izer", "iz", 4),
    ("iser", "iz", 4), ("ize", "iz", 4), ("ise", "iz", 4), ("yzing", "ys", 4), ("yzed", "ys", 4),
    ("yzer", "ys", 4), ("yze", "ys", 4), ("ysis", "ys", 4), ("ment", "", 4), ("ness", "", 4),
    ("ion", "", 4), ("ing", "", 3), ("ied", "y", 3), ("er", "", 4), ("or", "", 4), ("ed", "", 3),
    ("ly", "", 4), ("e", "", 4),
)  # fmt: skip


def stem(word: str) -> str:
    """The stem of a word in small letters."""
    if not word.isascii():
        return word
    word = _singular(word)
    for _ in range(_PASSES):
        shorter = _without_ending(word)
        if shorter == word:
            break
        word = shorter
    return f"{word[:-1]}i" if word.endswith("y") and len(word) > 3 else word


def _singular(word: str) -> str:
    if len(word) <= 3 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-2] if word.endswith(("sses", "xes", "zes", "ches", "shes")) else word[:-1]


def _without_ending(word: str) -> str:
    for ending, instead, chars_min in _ENDINGS:
        if word.endswith(ending) and not word.endswith("eed"):
            root = word[: -len(ending)] + instead
            if len(root) < chars_min or _VOWELS.isdisjoint(root):
                continue
            # A consonant that was doubled before the ending: `planning`, `formatted`.
            doubled = len(root) > 3 and root[-1] == root[-2] and root[-1] not in "aeioulsz"
            return root[:-1] if doubled else root
    return word
