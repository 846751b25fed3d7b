"""Find the passages of long texts that have the rarest words of a question.

A sample of head, middle and tail shows how a text is written, and rarely what was asked about. The
ranking is made on the host when a run starts, by counting: no model, no index, no randomness. What
it finds is recorded with the start of the run, so a replay ranks nothing.

Rule 1: a word counts where a word of the text begins with it, in any case. One with more than 200
places ranks no passage by itself, and one in a hundred words or more tells nothing.
Rule 2: of all texts together, at most 16 MB are read: those whole, or equal parts from beginning to
end. So a text of 1 GB costs as much as one of 16 MB, about a fifth of a second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tallystick.sandbox.text import HostText

PASSAGES = 3
PASSAGE_CHARS = 160
READ_BYTES_MAX = 16_000_000
_BLOCK_BYTES = 1_000_000
_SHORT = PASSAGE_CHARS // 2
_HITS_IN_BLOCK_MAX = 2_000
_HITS_MAX = 200
_COMMON, _FEW = 100, 5
_WORDS_MAX = 24
_WORD_CHARS = 2
_WORD_CHARS_MAX = 60
_STEM_CHARS = 4
_CHARS_PER_WORD = 6
_WORD = re.compile(r"\w+(?:[.\-'’]\w+)*")
_SPACE = re.compile(r"\s+")
_ENDS = re.compile(r"[.!?]\s|\n")
# A word with a capital or a digit. One that begins a sentence is no name, and is not rare either.
_NAME = re.compile(r"\b(?:[A-Z]|\w*\d)\w+(?:[.\-'’]\w+)*")
_NAMES_MAX, _NAMED_MAX = 12, 20
_ENDINGS = ("ing", "ed", "es", "s")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestPassages:
    """The passages next to a question: each with the place of its text among those given.

    `word` is the rarest word of the question as the best passage has it. `whole` is False if only
    parts of the texts were read.
    """

    passages: tuple[tuple[int, str], ...] = ()
    word: str = ""
    whole: bool = True


@dataclass(slots=True)
class _Hit:
    """A place of a word: which text and block it is in, and the passage around it."""

    text: int
    block: int
    at: int
    around: str
    start: int
    score: float = 0.0


def nearest_passages(texts: Sequence[HostText], question: str) -> NearestPassages:
    """Return up to three passages of at most 160 characters, the nearest first.

    None of them overlap. There are none if no word of the question is in a text, or only words that
    are everywhere in them. The third may be one that has names of the first two: many questions
    name one thing and ask about another, and their answer stands beside the other.
    """
    words = question_words(question)
    if not words or not texts:
        return NearestPassages()
    seen = _Seen(texts)
    seen.count(words)
    ranked = seen.ranked(words)
    chosen = _apart(ranked, [], PASSAGES)
    if not chosen:
        return NearestPassages()
    first = chosen[: PASSAGES - 1]
    linked = seen.linked(first, words)
    chosen = [*first, *_apart(linked, first, 1)]
    if len(chosen) < PASSAGES:
        chosen += _apart(ranked, chosen, PASSAGES - len(chosen))
    best = chosen[0]
    near = {word: _as_written(word, best.around) for word in seen.words_in(best, words)}
    # Of words that are as rare, a name says more than another.
    rarest = max(near, key=lambda word: (seen.weight(word), _is_name(near[word]), len(word), word))
    return NearestPassages(
        passages=tuple((hit.text, hit.around) for hit in chosen),
        word=near[rarest],
        whole=seen.whole,
    )


def question_words(question: str) -> tuple[str, ...]:
    """Return the words of a question in lower case, without usual endings, each once, at most 24.

    A word of one character is left out. One with a digit keeps its ending. Of a longer question,
    the last words count: a task ends with what is asked.
    """
    found = [match[0].lower() for match in _WORD.finditer(question)]
    stems = [_stem(word) for word in found if _WORD_CHARS <= len(word) <= _WORD_CHARS_MAX]
    return tuple(dict.fromkeys(reversed(stems)))[:_WORDS_MAX][::-1]


def _stem(word: str) -> str:
    if any(each.isdigit() for each in word):
        return word
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _STEM_CHARS:
            return word.removesuffix(ending)
    return word


def _blocks(texts: Sequence[HostText]) -> Iterator[tuple[int, int, str, bool]]:
    """Yield blocks of the texts: the place of the text, the offset in bytes, the words, if all.

    Blocks have 1 MB. If the texts have more than 16 MB, each has its share of the blocks, at equal
    distances from its beginning to its end.
    """
    total = sum(len(text) for text in texts)
    for place, text in enumerate(texts):
        size = len(text)
        count = -(-size // _BLOCK_BYTES)
        most = count
        if total > READ_BYTES_MAX:
            most = min(count, max(1, READ_BYTES_MAX // _BLOCK_BYTES * size // total))
        for number in range(most):
            block = number if most == count else number * (count - 1) // max(1, most - 1)
            start = block * _BLOCK_BYTES
            # Beyond its end, so that a passage there is not cut in two.
            stop = min(size, start + _BLOCK_BYTES + PASSAGE_CHARS)
            yield place, start, text.read_bytes(start, stop), most == count


class _Seen:
    """The places of words in the texts, as far as they are read, and how rare each word is."""

    def __init__(self, texts: Sequence[HostText]) -> None:
        self._texts = texts
        self._hits: dict[str, list[_Hit]] = {}
        self._chars = 0
        self.counts: dict[str, int] = {}
        self.whole = True

    def count(self, words: Sequence[str]) -> None:
        """Find the places of more words. Of a word that is everywhere, only the number is kept."""
        self._hits |= {word: [] for word in words}
        self.counts |= dict.fromkeys(words, 0)
        self._chars = 0
        for text, block, body, is_all in _blocks(self._texts):
            self.whole = self.whole and is_all
            self._chars += len(body)
            folded = body.lower()
            if len(folded) != len(body):
                # A few letters become two in lower case, and every place after them would be wrong.
                folded = body
            for word in words:
                self._add_places(word, folded, body, text=text, block=block)

    def _add_places(self, word: str, folded: str, body: str, *, text: int, block: int) -> None:
        at, hits = folded.find(word), 0
        while at >= 0 and hits < _HITS_IN_BLOCK_MAX:
            if not at or not folded[at - 1].isalnum():
                hits += 1
                if self.counts[word] + hits <= _HITS_MAX:
                    start, around = _passage_at(body, at)
                    self._hits[word].append(
                        _Hit(text=text, block=block, at=at, around=around, start=start)
                    )
            at = folded.find(word, at + len(word))
        self.counts[word] += hits

    def weight(self, word: str) -> float:
        """Return how much a word tells: more, the rarer it is.

        0 for one that is not there, and for one in a hundred words or more.
        """
        count, all_words = self.counts[word], self._chars / _CHARS_PER_WORD
        if not count or (count > _FEW and count * _COMMON > all_words):
            return 0.0
        # Squared, so that the less rare words of a long question do not outweigh its rarest.
        return math.log(1 + all_words / count) ** 2

    def ranked(self, words: Sequence[str]) -> list[_Hit]:
        """Return the places of the rare ones of these words, by what all of them tell there."""
        found = [
            hit for word in words if self.counts[word] <= _HITS_MAX for hit in self._hits[word]
        ]
        any_word = _pattern_of(words)
        for hit in found:
            hit.score = sum(map(self.weight, set(any_word.findall(hit.around.lower()))))
        return sorted(found, key=lambda hit: (-hit.score, hit.text, hit.block, hit.at))

    def words_in(self, hit: _Hit, words: Sequence[str]) -> set[str]:
        """Return those of these words that a passage has."""
        return set(_pattern_of(words).findall(hit.around.lower())) if words else set()

    def linked(self, first: Sequence[_Hit], words: Sequence[str]) -> list[_Hit]:
        """Return the ranked places that have a name of a passage, and a rare word of the question.

        The names are those of the first passage that has any such place. A name is in the texts at
        most 20 times.
        """
        names = [_names_in(hit, words) for hit in first]
        self.count(tuple(dict.fromkeys(name for each in names for name in each)))
        rare = [word for word in words if 0 < self.counts[word] <= _HITS_MAX]
        for held in names:
            others = [name for name in held if 1 < self.counts[name] <= _NAMED_MAX]
            found = [
                each
                for each in self.ranked((*words, *others))
                if self.words_in(each, others) and self.words_in(each, rare)
            ]
            if _apart(found, first, 1):
                return found
        return []


def _passage_at(body: str, at: int) -> tuple[int, str]:
    """Return the start and the text of a passage around a place, in one line.

    It begins at the sentence or line of that place, if that is not too far before it.
    """
    low = max(0, at - PASSAGE_CHARS // 2)
    ends = [match.end() for match in _ENDS.finditer(body, low, at)]
    start = ends[-1] if ends else low
    stop = start + PASSAGE_CHARS
    # Without the beginning of a sentence that is cut, unless little else would be left.
    ends = [match.end() for match in _ENDS.finditer(body, max(at, start + _SHORT), stop)]
    return start, _SPACE.sub(" ", body[start : ends[-1] if ends else stop]).strip()


def _pattern_of(words: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of a word that one of these begins; the longest that fits counts."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(r"(?<![^\W_])(?:" + "|".join(map(re.escape, longest_first)) + ")")


def _names_in(hit: _Hit, words: Sequence[str]) -> tuple[str, ...]:
    """Return up to 12 names in a passage, in lower case, that no word of the question begins."""
    found = dict.fromkeys(match[0].lower() for match in _NAME.finditer(hit.around))
    return tuple(name for name in found if not name.startswith(tuple(words)))[:_NAMES_MAX]


def _is_name(word: str) -> bool:
    return _NAME.fullmatch(word) is not None


def _apart(ranked: Sequence[_Hit], others: Sequence[_Hit], at_most: int) -> list[_Hit]:
    """Return the best places that overlap neither each other nor `others`, nor say the same."""
    chosen: list[_Hit] = []
    for hit in ranked:
        if len(chosen) == at_most or not hit.score:
            break
        place = hit.block + hit.start
        if not any(
            each.around == hit.around
            or (each.text == hit.text and abs(each.block + each.start - place) < PASSAGE_CHARS)
            for each in (*others, *chosen)
        ):
            chosen.append(hit)
    return chosen


def _as_written(word: str, around: str) -> str:
    """Return a word as a passage has it, whole: `Jardes` for `jard`."""
    for match in _WORD.finditer(around):
        if match[0].lower().startswith(word):
            return match[0]
    return word
