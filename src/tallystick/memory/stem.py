"""Stems: English words without their endings, by the algorithm that Martin Porter gave in 1980.

`m` counts how often a run of vowels is followed by a run of consonants; most endings go only if
what is left has enough of these. Words that are not plain ASCII letters pass unchanged.
"""

from __future__ import annotations

import re

__all__ = ["stem"]

_CHARS_MIN = 3
_WORD = re.compile(r"[a-z]+")
_CONSONANT = "[^aeiou]"
_VOWEL = "[aeiouy]"
_CONSONANTS = "[^aeiou][^aeiouy]*"
_VOWELS = "[aeiouy][aeiou]*"
_MEASURE_1 = re.compile(f"^({_CONSONANTS})?{_VOWELS}{_CONSONANTS}")
_MEASURE_IS_1 = re.compile(f"^({_CONSONANTS})?{_VOWELS}{_CONSONANTS}({_VOWELS})?$")
_MEASURE_2 = re.compile(f"^({_CONSONANTS})?({_VOWELS}{_CONSONANTS}){{2}}")
_HAS_VOWEL = re.compile(f"^({_CONSONANTS})?{_VOWEL}")
# Ends consonant, vowel, consonant, the last of which is not w, x or y: `hop`, not `how`.
_SHORT = re.compile(f"^{_CONSONANTS}{_VOWEL}[^aeiouwxy]$")

_SECOND = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize",
    "abli": "able", "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize",
    "ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful",
    "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
}  # fmt: skip
_THIRD = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_FOURTH = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou",
    "ism", "ate", "iti", "ous", "ive", "ize",
)  # fmt: skip


def _longest_first(endings: dict[str, str] | tuple[str, ...]) -> re.Pattern[str]:
    either = "|".join(sorted(endings, key=lambda ending: (-len(ending), ending)))
    return re.compile(f"^(.+?)({either})$")


_SECOND_ENDING = _longest_first(_SECOND)
_THIRD_ENDING = _longest_first(_THIRD)
_FOURTH_ENDING = _longest_first(_FOURTH)


def stem(word: str) -> str:
    """The stem of a word in small letters. A stem need not be a word."""
    if len(word) < _CHARS_MIN or _WORD.fullmatch(word) is None:
        return word
    # At the beginning of a word, y is a consonant; a capital is neither for the patterns.
    first_y = word.startswith("y")
    if first_y:
        word = "Y" + word[1:]
    word = _past(_plural(word))
    if word.endswith("y") and _HAS_VOWEL.match(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _SECOND_ENDING, _SECOND)
    word = _replaced(word, _THIRD_ENDING, _THIRD)
    word = _last(_dropped(word))
    return "y" + word[1:] if first_y else word


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _MEASURE_1.match(word[:-3]) else word
    root = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else ""
    if not root or not _HAS_VOWEL.match(root):
        return word
    if root.endswith(("at", "bl", "iz")):
        return root + "e"
    if len(root) > 1 and root[-1] == root[-2] and root[-1] not in "aeiouylsz":
        return root[:-1]
    return root + "e" if _SHORT.match(root) else root


def _replaced(word: str, pattern: re.Pattern[str], endings: dict[str, str]) -> str:
    found = pattern.match(word)
    if found is None or not _MEASURE_1.match(found[1]):
        return word
    return found[1] + endings[found[2]]


def _dropped(word: str) -> str:
    found = _FOURTH_ENDING.match(word)
    if found is None or not _MEASURE_2.match(found[1]):
        return word
    return word if found[2] == "ion" and found[1][-1] not in "st" else found[1]


def _last(word: str) -> str:
    if word.endswith("e"):
        root = word[:-1]
        if _MEASURE_2.match(root) or (_MEASURE_IS_1.match(root) and not _SHORT.match(root)):
            word = root
    return word[:-1] if word.endswith("ll") and _MEASURE_2.match(word[:-1]) else word
