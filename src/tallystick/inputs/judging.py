"""Recognise a task that asks for a judgement of items, and write a program that asks a model.

Code counts, sums and compares, but it cannot tell praise from blame. A weak model writes a search
for a word all the same, or takes what it sees of the first items for all of them.

Rule 1: the items are texts to read: a column or key of long texts, lines that are messages, or
several short files. Numbers, names and logs are none.
Rule 2: the task names a judgement, by a word of opinion, tone, intent or topic. Without such a word
nothing is said: a hint that does not fit costs more than it brings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from tallystick.inputs.shapes import Shape
from tallystick.runtime.context.namespace import spelling_of, view_name

# A text: its variable, its key if the variable is a dictionary (else None), and its shape.
PlacedText = tuple[str, str | None, Shape]

# Lines are sentences if they have `_MESSAGE_WORDS` words in a row on average, and messages of
# people if of their first 1,000 words at least 30 % differ too. The lines of a log repeat a few
# patterns.
_MESSAGE_WORDS = 8
_VARIED_WORDS, _VARIED_SHARE = 1_000, 0.3
_LINES_SEEN = 200
_LONE = r"[^\W\d_]+(?:['’-][^\W\d_]+)*"
_IN_A_ROW = re.compile(rf"{_LONE}(?:[,;:.!?]? {_LONE})*")
_LETTERS = re.compile(r"[^\W\d_]+")
# A program sends each item whole, and longer ones do not fit a small model.
_ITEM_CHARS_MAX = 8_000
# With a longer question, the prompt would grow by more than 60 tokens.
_ASKED_CHARS_MAX = 50
_SENTENCE_ENDS = re.compile(r"(?<=[.!?:])\s+")
_ITEM_NAMES = {"table": "row", "json_lines": "record", "lines": "line"}
# Beginnings of words. They are of what somebody thinks, feels, wants or writes about; words that
# programs count by, such as `like` or `good`, are left out.
_JUDGEMENTS = re.compile(
    r"\b(?:satisf|dissatisf|unsatisf|happy|unhappy|pleased|displeased|disappoint|delighted|angry|"
    r"annoyed|upset|frustrat|furious|grateful|thankful|complain|prais|critici|blam|sentiment|"
    r"opinion|attitude|tone\b|mood|emotion|feel|positive\b|negative\b|favou?rabl|unfavou?rabl|"
    r"polite|impolite|rude\b|friendly|unfriendly|hostile|aggressiv|insult|offensive|toxic|sarcas|"
    r"ironic|irony|humorous|funny|joking|serious|urgent|formal\b|informal|persuasi|convinc|"
    r"recommend|regret|enjoy|lik(?:es?|ed)\b|dislik|lov(?:es?|ed)\b|hat(?:es?|ed)\b|want|wish|"
    r"hope|agree|disagree|support(?:s|ed|ive)?\b|oppos|doubt|believ|suspicious|spam|phishing|"
    r"relevant|irrelevant|classif|categori[sz]|judg|is about|are about|talks? about|deals? with|"
    r"topic|theme|subject matter|describ|sounds?\b|seems?\b|suggests?\b|impl(?:y|ies)\b|intent|"
    r"in favou?r|against\b|fair\b|unfair|helpful|unhelpful|well[- ]written)",
    re.IGNORECASE,
)


def judging_program(
    placed: Sequence[PlacedText], texts: Sequence[str], question: str
) -> str | None:
    """Return a program that asks a model about each item that a task wants judged.

    It has the end of the task in it, since a weak model does not change the question. None if the
    task names no judgement, or if no text has items to read. `texts` are those placed, in the same
    order.
    """
    items = _items_of(placed, texts) if names_judgement(question) else None
    if items is None:
        return None
    part, item, all_items = items
    return (
        f"said = llm_query_batched([{f'{_end_of(question)} Is this one: '!r} + {part} "
        f"for {item} in {all_items}], schema=bool)\n"
        f"chosen = [{item} for {item}, yes in zip({all_items}, said) if yes is True]\n"
        f"print(len(chosen), chosen[:2])"
    )


def _items_of(placed: Sequence[PlacedText], texts: Sequence[str]) -> tuple[str, str, str] | None:
    """Return the text of an item, the name of an item, and all of them, as programs write it."""
    for (of, key, shape), text in zip(placed, texts, strict=True):
        name = spelling_of(view_name(shape.name, of), key)
        item = _ITEM_NAMES.get(shape.kind)
        if item is not None and shape.read:
            return f"{item}{shape.read}", item, name
        if shape.kind == "lines" and not shape.prose and _are_sentences(_some_lines(text)):
            return "line", "line", name
    variables = {of for of, _, _ in placed}
    if len(placed) > 1 and len(variables) == 1 and _are_items(placed, texts):
        return "text", "text", f"{placed[0][0]}.values()"
    return None


def _end_of(question: str) -> str:
    """Return the last sentence of a task, or the end of a long one."""
    said = " ".join(question.split())
    last = _SENTENCE_ENDS.split(said)[-1]
    if len(last) <= _ASKED_CHARS_MAX:
        return last
    return last[-_ASKED_CHARS_MAX:].partition(" ")[2] or last[-_ASKED_CHARS_MAX:]


def names_judgement(question: str) -> bool:
    """Return True if a task has a word of opinion, tone, intent or topic."""
    return _JUDGEMENTS.search(question) is not None


def are_messages(sampled: Sequence[str]) -> bool:
    """Return True if lines are messages, as in a chat: sentences that do not repeat.

    Only the first 2,000 characters of a line are read.
    """
    if not _are_sentences(sampled):
        return False
    words = (found[0].lower() for line in sampled for found in _LETTERS.finditer(line[:2_000]))
    counted = Counter(islice(words, _VARIED_WORDS))
    return len(counted) >= _VARIED_SHARE * counted.total()


def _are_sentences(sampled: Sequence[str]) -> bool:
    """Return True if lines have at least 8 words in a row on average. None are no sentences."""
    longest = [
        max((found[0].count(" ") + 1 for found in _IN_A_ROW.finditer(line[:2_000])), default=0)
        for line in sampled
    ]
    return bool(longest) and sum(longest) >= _MESSAGE_WORDS * len(sampled)


def _some_lines(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[:: max(1, len(lines) // _LINES_SEEN)]


def _are_items(placed: Sequence[PlacedText], texts: Sequence[str]) -> bool:
    """Return True if each text is one item: of no parsed shape, and short enough to be sent."""
    return all(shape.kind == "lines" for _, _, shape in placed) and all(
        len(text) <= _ITEM_CHARS_MAX for text in texts
    )
