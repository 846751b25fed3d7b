"""Answers that look like slips: each is asked about once, and then taken as it is given again.

Most wrong answers of weak models are given in good faith and show it: the value was written down
before the program ran, or no program read the data, or none looked for what the question names, or
the filter matched nothing, or the answer is the question again. A model that was right loses one
turn and answers again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Literal

from tallystick.core.mismatch import line_with, mismatches
from tallystick.core.program import tree_of
from tallystick.core.prompt import WRITE, Message
from tallystick.core.records import ProgramFinished, RunStarted

__all__ = [
    "Doubt",
    "doubt_of",
    "is_empty",
    "named_values",
    "printed_empty",
    "question",
    "still_unnamed",
    "written_blind",
]

Doubt = Literal["unread", "empty", "unseen", "unnamed", "echo"]
_EMPTY = frozenset({"", "0", "0.0", "0.00", "none", "null", "[]", "{}", "nan", "-1"})
_NAMES_MAX = 20
# In double quotes; behind a word, with a capital; letters with a digit. Not numbers and dates:
# programs write those in many ways.
_NAMED = re.compile(
    r"[\"\u201c]([^\"\u201c\u201d\n]{2,60})[\"\u201d]"
    r"|(?<=[a-z,] )([A-Z][\w.-]*[\w])"
    r"|\b((?=[\w.-]*[A-Za-z])(?=[\w.-]*\d)[\w.-]*\w)\b"
)

_ECHO_CHARS_LEAST = 4
# Words of an answer that say what it is: with a digit, or with a capital but not at its beginning.
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,30})?")
_TELLING = re.compile(r"[\w.-]*\d[\w.-]*\w|\d|(?<=[^.!?] )[A-Z]\w+")


def named_values(goal: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The names in a question that stand in the data too: an answer has to do with them.

    Quoted words, words with a capital inside a sentence, and words with a digit.
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
    answer: str, started: RunStarted, *, read: bool, seen: bool, unnamed: Sequence[str] = ()
) -> Doubt | None:
    """Why an answer may be a slip: it came from nowhere, is about another, or is empty.

    `seen` is False for one that was written down beside a program, before that had run; `unnamed`
    are values the question names and no program has.
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
    return "echo" if _is_echo(answer, started.goal) else None


def _is_echo(answer: str, question: str) -> bool:
    """Whether an answer is words of the question, which offered no choice."""
    words = answer.strip().strip("'\"").lower()
    return (
        len(words) >= _ECHO_CHARS_LEAST
        and any(each.isalpha() for each in words)
        and words in question.lower()
        and " or " not in question.lower()
    )


def is_empty(text: str) -> bool:
    """Whether a value says that nothing was found."""
    return text.strip().strip("'\"").lower() in _EMPTY


def printed_empty(result: ProgramFinished) -> bool:
    """Whether a program printed a zero or an empty list, and nothing else."""
    said = bool(result.stdout.strip()) and is_empty(result.stdout)
    return said and result.failure is None and result.value is None


def still_unnamed(unnamed: Sequence[str], source: str, result: ProgramFinished) -> tuple[str, ...]:
    """The values of the question that stand in no program and no output yet."""
    said = f"{source}\n{result.stdout}\n{result.value or ''}".lower()
    return tuple(name for name in unnamed if name.lower() not in said)


def written_blind(source: str, answer: str, *, printed: bool, messages: Sequence[Message]) -> bool:
    """Whether an answer was typed in, and nothing that was shown before has it.

    One that stands under a condition is the program's decision, unless the program printed
    something too, which it then answered without having been read.
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
    """Whether a text has a part of an answer: as it is, or a number that rounds to it."""
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
        and _written(node.args[0].value) == answer
    )


def _written(value: object) -> str | None:
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
    """Why an answer was not taken at once. For some, the program that gave it is not shown."""
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
        case "empty":
            known = [column for view in started.views for column, _ in view.columns]
            facts = mismatches(source, texts, known=known)
            told = "".join(f"\n{fact}" for fact in facts)
            return (
                f"An earlier program came to {answer or 'nothing'}: its conditions matched "
                f"nothing.{told}\n{WRITE} If {answer or 'that'} is right all the same, give it "
                "again."
            )
