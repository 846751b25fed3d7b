"""Recognise an answer that is a position, a length or a count where the task asks for a thing.

A weak model looks for a text, prints where it is, and answers with that. Only what a program shows
to be a position is one: a number that `find`, `index`, `len`, `count` or a match gave, and
arithmetic on such numbers. A number that also comes from the data is none, and a task that may ask
for a number has no wrong ones: silence is cheap, and a question costs a model that was right a
turn.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from typing import TypeGuard

from tallystick.core.machine.commands import names_bound, tree_of
from tallystick.core.records import ProgramFinished, RunStarted

_OF_POSITIONS = frozenset({"find", "rfind", "index", "rindex", "count", "start", "end", "span"})
_WHOLE_NUMBERS = re.compile(r"[\[(]?\s*-?\d{1,15}(?:\s*,\s*-?\d{1,15})*\s*,?\s*[\])]?")
_DIGITS = re.compile(r"\d{1,15}")
_POSITIONS_MAX = 20
# Calls whose value is not shown as that of the last line.
_SHOWN_APART = ("print", "FINAL")
# A task that asks for a thing has one of these words, and none that may ask for a number.
_ASKS_FOR_THING = re.compile(r"\b(?:what|which|who|whom|whose)\b", re.IGNORECASE)
_ASKS_FOR_NUMBER = re.compile(
    r"\b(?:how|numbers?|numeric|integers?|counts?|counted|amounts?|lengths?|sizes?|positions?|"
    r"offsets?|index|indices|where|times|often|total|sums?|average|mean|median|frequency|distance|"
    r"difference|digits?|occurrences?|distinct|many|much|percent\w*|share|ratio|rank)\b"
    r"|\b(?:what|which)\s+(?:line|row|record|place|page|column|item|element|byte|character|word|"
    r"year|age|day|hour|minute)s?\b",
    re.IGNORECASE,
)
# Beside `what`, these may ask for a number too; beside `who` and `which`, they choose a thing.
_MAY_ASK_FOR_NUMBER = re.compile(
    r"\b(?:most|least|long|longest|short|shortest|unique|different)\b", re.IGNORECASE
)
_WORDS_LEAST = 4
_CHOOSES = re.compile(r"\b(?:which|who|whom|whose)\b", re.IGNORECASE)


def with_positions(known: tuple[str, ...], source: str, result: ProgramFinished) -> tuple[str, ...]:
    """Return `known` with the numbers that a program printed as positions, the last 20.

    A number that a program printed beside other values may be one of the data: it is left out.
    """
    if result.failure is not None:
        return known
    shown = _DIGITS.findall(f"{result.stdout}\n{result.value or ''}")
    tree = tree_of(source)
    if tree is None or not _prints_positions(tree):
        return tuple(each for each in known if each not in shown)
    return (*known, *shown[-_POSITIONS_MAX:])[-_POSITIONS_MAX:]


def is_position(answer: str, started: RunStarted, *, source: str, printed: Sequence[str]) -> bool:
    """Return True if an answer is a position, length or count, and the task asks for a thing.

    `source` is the program that gave it, "" for an answer without one, and `printed` are the
    numbers that programs printed as positions. False for a task that may ask for a number, and for
    an answer of a schema.
    """
    if started.schema is not None or not _WHOLE_NUMBERS.fullmatch(answer.strip()):
        return False
    if not _asks_for_thing(started.goal):
        return False
    was_printed = set(_DIGITS.findall(answer)) <= set(printed)
    tree = tree_of(source)
    if tree is None:
        return was_printed
    names = _names_of_positions(tree)
    bound = {name for each in tree.body for name in names_bound(each)}
    given = [node.args[0] for node in ast.walk(tree) if _calls(node, "FINAL") and node.args]
    # What the program computed in another way is no position, also if it is as large as one.
    return all(
        _is_position(each, names) or (was_printed and _is_from_before(each, bound))
        for each in given
    ) and (bool(given) or was_printed)


def _is_from_before(node: ast.expr, bound: Collection[str]) -> bool:
    """Return True for a number as it is written, and for a name that an earlier program bound."""
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id not in bound)


def _asks_for_thing(goal: str) -> bool:
    # "What is it?" may ask for anything.
    vague = len(goal.split()) < _WORDS_LEAST
    if vague or not _ASKS_FOR_THING.search(goal) or _ASKS_FOR_NUMBER.search(goal):
        return False
    return bool(_CHOOSES.search(goal)) or not _MAY_ASK_FOR_NUMBER.search(goal)


def _prints_positions(tree: ast.Module) -> bool:
    """Return True if a program prints positions, and no other value that is not its own text."""
    names = _names_of_positions(tree)
    shown = [each for node in ast.walk(tree) if _calls(node, "print") for each in node.args]
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr) and not any(_calls(last.value, name) for name in _SHOWN_APART):
        shown.append(last.value)
    parts = [part for each in shown for part in _parts(each)]
    return any(_is_position(each, names) for each in parts) and all(
        _is_position(each, names) or isinstance(each, ast.Constant) for each in parts
    )


def _parts(shown: ast.expr) -> list[ast.expr]:
    """Return what is shown of an expression: of an f-string its parts, else the expression."""
    if isinstance(shown, ast.JoinedStr):
        return [
            each.value if isinstance(each, ast.FormattedValue) else each for each in shown.values
        ]
    return [shown]


def _names_of_positions(tree: ast.Module) -> frozenset[str]:
    """Return the names that a program binds to positions alone, in the order of its lines."""
    positions: set[str] = set()
    others: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                pass
            case ast.For(target=ast.Tuple(elts=[ast.Name(id=name), *_]), iter=value) if _calls(
                value, "enumerate"
            ):
                positions.add(name)
                continue
            case _:
                continue
        (positions if _is_position(value, positions) else others).add(name)
    return frozenset(positions - others)


def _is_position(node: ast.AST, names: frozenset[str] | set[str]) -> bool:
    """Return True if an expression is a position, a length or a count, or made of such numbers."""
    match node:
        case ast.Call(func=ast.Name(id="len")):
            return True
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in _OF_POSITIONS
        case ast.Call(func=ast.Name(id="str" | "int"), args=[inner]):
            return _is_position(inner, names)
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(left=left, right=right):
            sides = (left, right)
            return any(_is_position(each, names) for each in sides) and all(
                _is_position(each, names) or isinstance(each, ast.Constant) for each in sides
            )
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return bool(parts) and all(_is_position(each, names) for each in parts)
        case ast.Subscript(value=inner):
            return _is_position(inner, names) and isinstance(inner, ast.Call)
        case _:
            return False


def _calls(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
