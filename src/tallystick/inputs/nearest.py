"""Find the passages of long texts that have the rarest words of a question.

A sample of head, middle and tail shows how a text is written, and rarely what was asked about. The
ranking is made on the host when a run starts, by counting: no model, no index, no randomness. What
it finds is recorded with the start of the run, so a replay ranks nothing.

Rule 1: a word counts where a word of the text begins with it, in any case. A word with more than
1,000 places in a block, or of more than 200 in all, ranks no passage by itself.
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
_HITS_IN_BLOCK_MAX = 1_000
_HITS_MAX = 200
_WORDS_MAX = 24
_WORD_CHARS = 2
_WORD_CHARS_MAX = 60
_STEM_CHARS = 4
_CHARS_PER_WORD = 6
_WORD = re.compile(r"\w+(?:[.\-'’]\w+)*")
_SPACE = re.compile(r"\s+")
_ENDS = re.compile(r"[.!?]\s|\n")
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
    """A place of a word of the question: which text and block it is in, and the words around it."""

    text: int
    block: int
    at: int
    word: int
    around: str = ""
    start: int = 0
    score: float = 0.0


def nearest_passages(texts: Sequence[HostText], question: str) -> NearestPassages:
    """Return up to three passages of at most 160 characters, the nearest first.

    None of them overlap. There are none if no word of the question is in a text, or only words that
    are everywhere in them.
    """
    words = question_words(question)
    if not words or not texts:
        return NearestPassages()
    found: list[list[_Hit]] = [[] for _ in words]
    counts = [0] * len(words)
    chars, whole = 0, True
    for text, block, body, is_all in _blocks(texts):
        whole = whole and is_all
        chars += len(body)
        _add_hits(words, body, text=text, block=block, found=found, counts=counts)
    weights = [_weight(count, chars) for count in counts]
    anchors = [
        hit for word, hits in enumerate(found) if 0 < counts[word] <= _HITS_MAX for hit in hits
    ]
    any_word = _pattern_of(words)
    for hit in anchors:
        near = _words_in(any_word, hit.around)
        hit.score = sum(weights[words.index(word)] for word in near)
    anchors.sort(key=lambda hit: (-hit.score, hit.text, hit.block, hit.at))
    chosen = _apart(anchors)
    if not chosen:
        return NearestPassages()
    best = chosen[0]
    near = _words_in(any_word, best.around)
    rarest = max(near, key=lambda word: (weights[words.index(word)], word))
    return NearestPassages(
        passages=tuple((hit.text, hit.around) for hit in chosen),
        word=_as_written(rarest, best.around),
        whole=whole,
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


def _add_hits(
    words: Sequence[str],
    body: str,
    *,
    text: int,
    block: int,
    found: list[list[_Hit]],
    counts: list[int],
) -> None:
    """Add the places of the words in a block. Of a word that is everywhere, only the number."""
    folded = body.lower()
    if len(folded) != len(body):
        # A few letters become two in lower case, and every place after them would be wrong.
        folded = body
    for place, word in enumerate(words):
        at, hits = folded.find(word), 0
        while at >= 0 and hits < _HITS_IN_BLOCK_MAX:
            if not at or not folded[at - 1].isalnum():
                hits += 1
                if counts[place] + hits <= _HITS_MAX:
                    start, around = _passage(body, at)
                    found[place].append(
                        _Hit(text=text, block=block, at=at, word=place, around=around, start=start)
                    )
            at = folded.find(word, at + len(word))
        counts[place] += hits


def _passage(body: str, at: int) -> tuple[int, str]:
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


def _weight(count: int, chars: int) -> float:
    """Return how much a word tells: more, the rarer it is; 0 for one that is not there."""
    # Squared, so that the common words of a long question do not outweigh its rare one.
    return math.log(1 + chars / _CHARS_PER_WORD / count) ** 2 if count else 0.0


def _pattern_of(words: Sequence[str]) -> re.Pattern[str]:
    """Return the pattern of a word that one of these begins; the longest that fits counts."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(r"(?<![^\W_])(?:" + "|".join(map(re.escape, longest_first)) + ")")


def _words_in(any_word: re.Pattern[str], around: str) -> set[str]:
    return set(any_word.findall(around.lower()))


def _apart(anchors: Sequence[_Hit]) -> list[_Hit]:
    """Return the best places that do not overlap, and none that says the same as a better one."""
    chosen: list[_Hit] = []
    for hit in anchors:
        if len(chosen) == PASSAGES:
            break
        if not hit.score:
            continue
        place = hit.block + hit.start
        if any(
            each.around == hit.around
            or (each.text == hit.text and abs(each.block + each.start - place) < PASSAGE_CHARS)
            for each in chosen
        ):
            continue
        chosen.append(hit)
    return chosen


def _as_written(word: str, around: str) -> str:
    """Return a word as a passage has it, whole: `Jardes` for `jard`."""
    for match in _WORD.finditer(around):
        if match[0].lower().startswith(word):
            return match[0]
    return word
