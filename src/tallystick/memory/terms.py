"""Terms: the words of a text as ranking counts them.

A text is only text: quotes, operators and control characters are not words, and nothing of a query
is ever read as an instruction. Words are runs of letters, digits and marks, in small letters, of
the text in its compatible composed form (NFKC); `’s` at the end is left off; a stop word says
nothing; the others are stemmed. Scripts written without spaces give pairs of characters. Whoever
changes what comes out here gives it another VERSION: profiles name it, and old receipts are checked
by it.
"""

from __future__ import annotations

import functools
import re
import unicodedata

from tallystick.memory.stem import stem

__all__ = ["CHARS_MAX", "STOP", "VERSION", "terms", "words"]

VERSION = "nfkc-words-porter-1"
# A query or note longer than this is read as far as this. Notes are cut into windows before.
CHARS_MAX = 100_000

_TERM_CHARS_MAX = 64
# Runs of letters and digits, with an apostrophe inside.
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Han, kana and Thai are written without spaces between words.
_UNSPACED = re.compile(
    "[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]+"
)
# Articles, pronouns, prepositions, auxiliaries and the words that questions are made of.
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
    """The words of a text in order, in small letters, stop words too."""
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
    """What ranking counts of a text: its words without stop words, each as its stem."""
    return [_stem(word) for word in words(text) if word not in STOP]


# Pure, and the same few thousand words come again and again.
_stem = functools.lru_cache(maxsize=65_536)(stem)


def _pairs(word: str) -> list[str]:
    """Every two neighbours of a run without spaces; what stands beside the run is a word."""
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
