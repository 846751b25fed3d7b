"""Detect answers that look like slips, and ask once about each, with facts from the data.

Most wrong answers of weak models are given in good faith and show it. The value was written before
the program ran. No program read the data, or none searched for what the question names. The filter
matched nothing, or the answer repeats the question. A model that was right loses one turn and
answers again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from tallystick.core.machine.commands import tree_of
from tallystick.core.machine.prompt import WRITE, Message, passages_shown, rebound_tools
from tallystick.core.records import ProgramFinished, RunStarted

# Reasons why a condition may have matched nothing: its words, compared with those of the data.
#
# For each word that a program compares with: is it in the data, and is it a whole value there? A
# program that looks for `2018-07` finds nothing if dates are days, nor for `Open` if the data has
# `open`.


_QUOTED_CHARS_MAX = 2_000
_FACTS_MAX = 4
_CHARS_LEAST = 2
_CHARS_MAX = 60
_LINE_CHARS_MAX = 200
_SEPARATORS = r"\s,;|\"'=(){}\[\]<>"
_VALUE = re.compile(rf"[^{_SEPARATORS}]*")


def mismatches(source: str, texts: Sequence[str], *, known: Sequence[str] = ()) -> list[str]:
    """Return a line for each word in a program's comparisons that is no whole value of the data.

    At most four lines. Words in `known` are skipped, as are those of fewer than 2 or more than 60
    characters and those that the data has as JSON escapes. None without texts.
    """
    facts: list[str] = []
    if not texts:
        return facts
    for word in _words(source):
        if word not in known and len(facts) < _FACTS_MAX:
            fact = _fact(word, texts)
            if fact is not None:
                facts.append(fact)
    return facts


def line_with(word: str, texts: Sequence[str]) -> str | None:
    """Return the line of the first text that has a word, cut to 200 characters around it.

    None if no text has it.
    """
    for text in texts:
        at = text.find(word)
        if at >= 0:
            start = max(text.rfind("\n", 0, at) + 1, at - _LINE_CHARS_MAX // 2)
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            return text[start : min(end, start + _LINE_CHARS_MAX)]
    return None


def _words(source: str) -> list[str]:
    """Return the texts of 2 to 60 characters that a program compares something with."""
    tree = tree_of(source)
    if tree is None:
        return []
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    found[part.value.strip()] = None
    return [word for word in found if _CHARS_LEAST <= len(word) <= _CHARS_MAX]


def _fact(word: str, texts: Sequence[str]) -> str | None:
    if _whole(re.escape(word), texts) is not None:
        return None
    parts = (_around(text, text.find(word), word) for text in texts)
    inside = next((part for part in parts if part), None)
    if inside is not None:
        return f"{word!r} stands in the data as a part of {inside!r}."
    other = _whole(f"(?i:{re.escape(word)})", texts) or _in_other_case(word, texts)
    if other is not None:
        return f"{word!r} is written {other!r} in the data."
    if any(_json_escape(word) in text for text in texts):
        return None
    return f"{word!r} does not stand in the data."


def _whole(pattern: str, texts: Sequence[str]) -> str | None:
    """Return the first match that is a whole value, between separators; None if there is none."""
    compiled = re.compile(rf"(?<![^{_SEPARATORS}]){pattern}(?![^{_SEPARATORS}])")
    return next((found[0] for text in texts if (found := compiled.search(text))), None)


def _around(text: str, at: int, word: str) -> str | None:
    return _value_at(text, at, len(word)) if at >= 0 else None


def _json_escape(word: str) -> str:
    """Return a word as JSON may write it, with escapes for what is not ASCII."""
    units = word.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


def _value_at(text: str, at: int, length: int) -> str:
    """Return the word around a place, up to the separators, or 60 characters, on both sides."""
    line_start = text.rfind("\n", 0, at) + 1
    before = text[max(line_start, at - _CHARS_MAX) : at]
    reach = _VALUE.match(text, at + length)
    end = min(reach.end() if reach else at + length, at + length + _CHARS_MAX)
    backwards = _VALUE.match(before[::-1])
    return text[at - (backwards.end() if backwards else 0) : end]


def _in_other_case(word: str, texts: Sequence[str]) -> str | None:
    pattern = re.compile(re.escape(word), re.IGNORECASE)
    for text in texts:
        found = pattern.search(text)
        if found is not None:
            return _value_at(text, found.start(), len(word))
    return None


# Answers that look like slips: the model is asked once about each, and its next answer is taken.


Doubt = Literal["unread", "empty", "unseen", "unnamed", "echo", "rebound", "position"]
_EMPTY = frozenset({"", "0", "0.0", "0.00", "none", "null", "[]", "{}", "nan", "-1"})
_NAMES_MAX = 20
# Words in double quotes; after another word, with a capital; letters with a digit. Not numbers and
# dates: programs write those in many ways.
_NAMED = re.compile(
    r"[\"\u201c]([^\"\u201c\u201d\n]{2,60})[\"\u201d]"
    r"|(?<=[a-z,] )([A-Z][\w.-]*[\w])"
    r"|\b((?=[\w.-]*[A-Za-z])(?=[\w.-]*\d)[\w.-]*\w)\b"
)

_ECHO_CHARS_LEAST = 4
_DIGITS = re.compile(r"\d{1,15}")
_AROUND_CHARS = 200
# The telling words of an answer: with a digit, or with a capital but not at its beginning.
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,30})?")
_TELLING = re.compile(r"[\w.-]*\d[\w.-]*\w|\d|(?<=[^.!?] )[A-Z]\w+")


def named_values(goal: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the names in a question that are in the data too: an answer has to do with them.

    They are quoted words, words with a capital inside a sentence, and words with a digit; each has
    a letter. Only the first 20 in the question are looked for.
    """
    found = [match[1] or match[2] or match[3] for match in _NAMED.finditer(goal)]
    return tuple(
        dict.fromkeys(
            name
            for name in found[:_NAMES_MAX]
            if any(each.isalpha() for each in name) and any(name in text for text in texts)
        )
    )


def doubt_of(
    answer: str,
    started: RunStarted,
    *,
    read: bool,
    seen: bool,
    unnamed: Sequence[str] = (),
    position: bool = False,
) -> Doubt | None:
    """Return why an answer may be a slip, or None if it does not look like one.

    `read` says that a program has used the data. `seen` is False for an answer that was written in
    a program before its output was seen. `unnamed` are values of the question that no program has.
    `position` is True for a position or a length where a text is asked for. The order is: unseen,
    unnamed, unread, empty, position, echo. Without data, only the first two are tested.
    """
    if not seen:
        return "unseen"
    if unnamed:
        return "unnamed"
    if not started.contexts:
        return None
    if not read and not all(each.whole for each in started.contexts):
        return "unread"
    if is_empty(answer):
        return "empty"
    if position:
        return "position"
    return "echo" if _is_echo(answer, started.goal) else None


def _is_echo(answer: str, question: str) -> bool:
    """Return True if an answer of 4 characters or more is words of the question.

    False for an answer without letters, and if the question offers a choice (` or `).
    """
    words = answer.strip().strip("'\"").lower()
    return (
        len(words) >= _ECHO_CHARS_LEAST
        and any(each.isalpha() for each in words)
        and words in question.lower()
        and " or " not in question.lower()
    )


def is_empty(text: str) -> bool:
    """Return True if a value says that nothing was found: empty, zero, -1, none, null, nan, []."""
    return text.strip().strip("'\"").lower() in _EMPTY


def printed_empty(result: ProgramFinished) -> bool:
    """Return True if a program printed only a value that says that nothing was found (`is_empty`).

    It must not have failed, nor have a value of its last line.
    """
    said = bool(result.stdout.strip()) and is_empty(result.stdout)
    return said and result.failure is None and result.value is None


def still_unnamed(unnamed: Sequence[str], source: str, result: ProgramFinished) -> tuple[str, ...]:
    """Return those of `unnamed` that are neither in a program nor in its output, in any case."""
    said = f"{source}\n{result.stdout}\n{result.value or ''}".lower()
    return tuple(name for name in unnamed if name.lower() not in said)


def is_typed_unseen(
    source: str, answer: str, *, printed: bool, messages: Sequence[Message]
) -> bool:
    """Return True if a program passes the answer to FINAL as a literal that was not shown before.

    It counts as shown if earlier output has at least half of its telling words. A call under a
    condition is the program's decision and does not count, unless the program also printed: it
    answered before that output was read.
    """
    tree = tree_of(source)
    if tree is None:
        return False
    nodes = ast.walk(tree) if printed else (_expression(each) for each in tree.body)
    if not any(_is_final(node, answer) for node in nodes):
        return False
    shown = "\n".join(each.text for each in messages[2:] if each.role == "user")
    parts = _TELLING.findall(answer) or [answer]
    return sum(_shows(shown, part) for part in parts) * 2 < len(parts)


def _shows(shown: str, part: str) -> bool:
    """Return True if a text has a part of an answer: as it is, or as a number that rounds to it."""
    if part in shown:
        return True
    if not _NUMBER.fullmatch(part):
        return False
    decimals = len(part.partition(".")[2])
    return any(round(float(found[0]), decimals) == float(part) for found in _NUMBER.finditer(shown))


def _expression(statement: ast.stmt) -> ast.AST:
    return statement.value if isinstance(statement, ast.Expr) else statement


def _is_final(node: ast.AST, answer: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "FINAL"
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and _text_of(node.args[0].value) == answer
    )


def _text_of(value: object) -> str | None:
    try:
        return str(value)
    except ValueError:  # An integer of more digits than Python writes.
        return None


def question(
    doubt: Doubt,
    answer: str,
    started: RunStarted,
    *,
    texts: Sequence[str] = (),
    unnamed: tuple[str, ...] = (),
    source: str = "",
) -> str:
    """Return the message that asks about an answer that was not taken at once.

    `source` is the program that gave it. An answer is quoted up to 2,000 characters. Words of the
    program, and the values `unnamed`, are looked for in `texts`.
    """
    if len(answer) > _QUOTED_CHARS_MAX:
        # An answer may be longer than any prompt.
        answer = f"{answer[:_QUOTED_CHARS_MAX]}... ({len(answer):,} characters in all)"
    match doubt:
        case "unseen":
            return (
                f"Nothing that was printed before shows {answer!r}. If the answer is in what was "
                "printed, finish with FINAL(...). If not, print what you need to see."
            )
        case "unnamed":
            names = ", ".join(repr(name) for name in unnamed)
            lines = [
                f"{name!r} stands in the data like this: {line}"
                for name in unnamed
                if (line := line_with(name, texts))
            ]
            return "\n".join(
                [
                    f"An earlier program answered {answer} and did not look for {names}, which the "
                    "task names.",
                    *lines,
                    "Write one ```python block that does.",
                ]
            )
        case "rebound":
            names = " and ".join(f"`{name}`" for name in rebound_tools(source, started))
            return (
                f"An earlier program answered {answer!r} with something of its own in the place of "
                f"{names}. That is defined already. Write one ```python block that calls it."
            )
        case "echo":
            return (
                f"An earlier program answered {answer!r}, which are words of the task itself. "
                "Write one ```python block that prints every place in the data that has to do "
                "with it."
            )
        case "unread":
            return (
                f"An earlier program answered {answer} without reading the data. Write one "
                "```python block that computes it from the data."
            )
        case "position":
            return (
                f"An earlier program answered {answer}, which is a position, a length or a count. "
                "The task asks for something that stands in the text. Write one ```python block "
                f"that prints the text itself{_text_at(answer, started)}."
            )
        case "empty":
            known = [column for view in started.views for column, _ in view.columns]
            facts = mismatches(source, texts, known=known)
            told = "".join(f"\n{fact}" for fact in facts)
            return (
                f"An earlier program came to {answer or 'nothing'}: its conditions matched "
                f"nothing.{told}\n{WRITE} If {answer or 'that'} is right all the same, give it "
                "again."
            )


def in_passages(answer: str, started: RunStarted) -> bool:
    """Return True if an answer stands in the passages that the run was shown for its task.

    It counts as seen then, though no program has read it. An answer of one character never counts.
    """
    said = answer.strip().strip("'\"")
    shown = passages_shown(started)
    if len(said) < _CHARS_LEAST or not shown:
        return False
    return re.search(rf"(?<!\w){re.escape(said)}(?!\w)", shown, re.IGNORECASE) is not None


def failing_line(result: ProgramFinished) -> str:
    """Return the error of a program with the line that failed, without its values; "" for none."""
    failure = result.failure
    if failure is None or failure.line is msgspec.UNSET:
        return ""
    line = failure.line.partition("\n")[0]
    return f"{failure.kind}: {failure.message}\n{line}"


def _text_at(answer: str, started: RunStarted) -> str:
    """Return how the text around a position is printed; "" if that is not certain."""
    at = _DIGITS.search(answer)
    (context, *others) = started.contexts
    if at is None or others or not 0 < int(at[0]) < context.chars:
        return ""
    start = max(0, int(at[0]) - _AROUND_CHARS)
    return f", for example {context.name}[{start}:{int(at[0]) + _AROUND_CHARS}]"
