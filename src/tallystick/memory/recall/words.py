"""The words of a text as ranking counts them: stems, terms, tokens, and BM25 over any notes."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Stems: English words without their endings, by the algorithm that Martin Porter gave in 1980.
#
# Its measure m counts how often a run of vowels is followed by a run of consonants; most endings
# are removed only if the rest has a measure above a minimum. Other words than plain ASCII letters
# pass unchanged.


_CHARS_MIN = 3
_LETTERS = re.compile(r"[a-z]+")
_VOWEL = "[aeiouy]"
_CONSONANTS = "[^aeiou][^aeiouy]*"
_VOWELS = "[aeiouy][aeiou]*"
_MEASURE_1 = re.compile(f"^({_CONSONANTS})?{_VOWELS}{_CONSONANTS}")
_MEASURE_IS_1 = re.compile(f"^({_CONSONANTS})?{_VOWELS}{_CONSONANTS}({_VOWELS})?$")
_MEASURE_2 = re.compile(f"^({_CONSONANTS})?({_VOWELS}{_CONSONANTS}){{2}}")
_HAS_VOWEL = re.compile(f"^({_CONSONANTS})?{_VOWEL}")
# The rest ends with consonant, vowel, consonant, and the last is not w, x or y: `hop`, not `how`.
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
    """Return the stem of a word in small letters, by Porter's algorithm. A stem need not be a word.

    A word of fewer than 3 letters, or with anything but a to z, comes back unchanged.
    """
    if len(word) < _CHARS_MIN or _LETTERS.fullmatch(word) is None:
        return word
    # At the beginning of a word, y is a consonant. The patterns take a small y as a vowel too, but
    # never a capital one.
    first_y = word.startswith("y")
    if first_y:
        word = "Y" + word[1:]
    word = _strip_past_tense(_strip_plural(word))
    if word.endswith("y") and _HAS_VOWEL.match(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_suffix(word, _SECOND_ENDING, _SECOND)
    word = _replace_suffix(word, _THIRD_ENDING, _THIRD)
    word = _strip_final_letters(_drop_suffix(word))
    return "y" + word[1:] if first_y else word


def _strip_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _strip_past_tense(word: str) -> str:
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


def _replace_suffix(word: str, pattern: re.Pattern[str], endings: dict[str, str]) -> str:
    found = pattern.match(word)
    if found is None or not _MEASURE_1.match(found[1]):
        return word
    return found[1] + endings[found[2]]


def _drop_suffix(word: str) -> str:
    found = _FOURTH_ENDING.match(word)
    if found is None or not _MEASURE_2.match(found[1]):
        return word
    return word if found[2] == "ion" and found[1][-1] not in "st" else found[1]


def _strip_final_letters(word: str) -> str:
    if word.endswith("e"):
        root = word[:-1]
        if _MEASURE_2.match(root) or (_MEASURE_IS_1.match(root) and not _SHORT.match(root)):
            word = root
    return word[:-1] if word.endswith("ll") and _MEASURE_2.match(word[:-1]) else word


# Terms: the words of a text as ranking counts them.
#
# A text is only text: quotes, operators and control characters are not words, and nothing in a
# query is ever read as an instruction. Words are runs of letters and digits, in small letters, of
# the text in its compatible composed form (NFKC); `’s` at the end is left off; stop words are left
# out; the others are stemmed. Scripts written without spaces give pairs of characters. Any change
# of these results needs another VERSION: profiles name it, and old receipts are checked by it.


VERSION = "nfkc-words-porter-1"
# A longer query or note is read up to here. Notes are cut into windows before.
CHARS_MAX = 100_000

_TERM_CHARS_MAX = 64
# Runs of letters and digits, with an apostrophe inside.
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Han, kana and Thai are written without spaces between words.
_UNSPACED = re.compile(
    "[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]+"
)
# Articles, pronouns, prepositions, auxiliaries and question words.
STOP = frozenset(
    _WORD.findall(
        "a about after again all also am an and any are aren't as at be because been before "
        "being both but by can can't could couldn't did didn't do does doesn't doing don't down "
        "during each few for from had hadn't has hasn't have haven't having he her here hers "
        "him his how i i'd i'll i'm i've if in into is isn't it it's its just let's me might "
        "more most must my no nor not of off on once only or other our ours out over own s same "
        "shall she should shouldn't so some such t than that that's the their theirs them then "
        "there there's these they they're this those through to too under until up us very was "
        "wasn't we we'll we're we've were weren't what what's when where which while who whom "
        "whose why will with won't would wouldn't you you'd you'll you're you've your yours"
    )
)


def words(text: str) -> list[str]:
    """Return the words of a text in order, case folded, stop words too.

    Read at most `CHARS_MAX` characters, and cut each word at 64. A run of a script without spaces
    gives its pairs of neighbouring characters.
    """
    plain = unicodedata.normalize("NFKC", text[:CHARS_MAX]).casefold().replace("’", "'")
    found: list[str] = []
    for word in _WORD.findall(plain):
        word = word.removesuffix("'s")[:_TERM_CHARS_MAX]
        if word.isascii() or _UNSPACED.search(word) is None:
            found.append(word)
        else:
            found.extend(_pairs(word))
    return found


def terms(text: str) -> list[str]:
    """Return the terms of a text, as ranking counts them: the stem of each word but stop words."""
    return [_stem(word) for word in words(text) if word not in STOP]


# Cached, because the same few thousand words come again and again.
_stem = functools.lru_cache(maxsize=65_536)(stem)


def _pairs(word: str) -> list[str]:
    """Return every two neighbours of a run without spaces, and what is beside the run as a word."""
    found: list[str] = []
    end = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > end:
            found.append(word[end : run.start()])
        chars = run[0]
        found.extend(chars[at : at + 2] for at in range(max(1, len(chars) - 1)))
        end = run.end()
    if end < len(word):
        found.append(word[end:])
    return found


# BM25, exact over any set of notes: number, frequencies and lengths are that set's own.
#
# A full-text index keeps these figures for all its notes, so its answer for a part, or for an
# earlier time, changes with every later note. Here they are counted at each query.
#
# The score is a share of the best possible one: 1 is a note of nothing but the words of the query.
# So scores of different queries and sets can be compared, and added to those of other lanes.


# More different terms than this are not a question. Only the first ones count.
_ASKED_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Bm25:
    """The parameters of BM25: `saturation` is its k1, `length` its b.

    With a lower `saturation`, repeated words stop counting sooner. With a higher `length`, long
    notes lose more.
    """

    saturation: float = 0.9
    length: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Figures of a set of notes: their number, their terms in all, and how many have each term."""

    notes: int
    terms: int
    frequency: Mapping[str, int]

    def rarity(self, term: str) -> float:
        """Return the weight of a term: high if few notes have it, and always above 0."""
        having = self.frequency.get(term, 0)
        return math.log(1 + (self.notes - having + 0.5) / (having + 0.5))

    @property
    def length(self) -> float:
        """The mean number of terms of a note, or 1 if there are no terms."""
        return self.terms / self.notes if self.terms else 1.0


def count_terms(text: str) -> dict[str, int]:
    """Return the terms of a text, and how often each is in it."""
    return dict(Counter(terms(text)))


def asked_terms(query: str, *, without: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the different terms of a query in their order, except those in `without`.

    Only the first 256 are returned.
    """
    asked = dict.fromkeys(term for term in terms(query) if term not in without)
    return tuple(asked)[:_ASKED_MAX]


def count_statistics(asked: Iterable[str], counts: Sequence[Mapping[str, int]]) -> Statistics:
    """Count the statistics of a set of notes, as far as a query needs them.

    `asked` are the terms of the query, and `counts` the terms of each note.
    """
    frequency = {term: sum(term in count for count in counts) for term in asked}
    total = sum(sum(count.values()) for count in counts)
    return Statistics(notes=len(counts), terms=total, frequency=frequency)


def bm25_scores(
    asked: Sequence[str],
    counts: Sequence[Mapping[str, int]],
    statistics: Statistics,
    bm25: Bm25,
) -> list[float]:
    """Return for each note its share, from 0 to 1, of the best score possible for these terms.

    A term that no note of the set has is ignored, so it lowers no share.
    """
    known = [term for term in asked if statistics.frequency.get(term, 0) > 0]
    rarity = [(term, statistics.rarity(term)) for term in known]
    more = bm25.saturation + 1
    best = math.fsum(rare for _, rare in rarity) * more
    if best <= 0:
        return [0.0] * len(counts)
    usual, short = statistics.length, 1 - bm25.length
    scores: list[float] = []
    wanted = frozenset(known)
    for count in counts:
        if wanted.isdisjoint(count):
            scores.append(0.0)
            continue
        found = [(rare, count[term]) for term, rare in rarity if term in count]
        held = bm25.saturation * (short + bm25.length * (sum(count.values()) / usual))
        score = math.fsum([rare * (often * more / (often + held)) for rare, often in found])
        scores.append(score / best)
    return scores


# A tokenizer that is always available: words in pieces of at most four letters, and marks.
#
# Models differ in how they cut text, and their tables are large. This one needs none, is the same
# everywhere, and gives similar counts for English. Receipts have these counts and its name.


TOKENIZER = "tallystick-pieces-1"
# A mark is one piece; a space belongs to the piece after it, as with most models.
_PIECE = re.compile(r"[^\W\d_]{1,4}|\d{1,3}|[^\w\s]|_+|\n+|[^\S\n]{2,}")


def count_tokens(text: str) -> int:
    """Return how many pieces a text has, as `TOKENIZER` counts them."""
    return len(_PIECE.findall(text))


# Questions: the part of a text that asks and does not tell.


_SENTENCE = re.compile(r"[^.!?\u061f\uff1f\n]+[.!?\u061f\uff1f]*")
_ASKING = re.compile(r"[?\u061f\uff1f][.!?\u061f\uff1f]*$")


def told_share(text: str) -> float:
    """Return the share of the words of a text that are not in a question; 0 without words.

    Only its first 100,000 characters are read.
    """
    told = asked = 0
    for sentence in _SENTENCE.findall(text[:CHARS_MAX]):
        count = len(words(sentence))
        if _ASKING.search(sentence):
            asked += count
        else:
            told += count
    return told / (told + asked) if told else 0.0
