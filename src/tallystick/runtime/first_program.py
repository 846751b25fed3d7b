"""A short program that fits the data, for the model to start from.

Weak models copy whatever program they were shown last. So the one they see names their own
columns, keys and words, and looks at a few: what it finds is never the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.runtime.shapes import Shape
from tallystick.runtime.variables import CONTEXT, called, view_name

__all__ = ["Placed", "asking_over", "first_program", "program_over"]

_ITEMS = {"table": "row", "json_lines": "record"}
_QUESTION_CHARS_MAX = 400

# A text: the variable it is in, its key if that is a dictionary, and what it is made of.
Placed = tuple[str, str | None, Shape]


def first_program(shapes: Mapping[str, Shape]) -> str:
    """A program over the data of these names; one that joins, if two tables share a column."""
    single = len(shapes) == 1
    return program_over(
        [(CONTEXT, None if single else name, shape) for name, shape in shapes.items()]
    )


def program_over(placed: Sequence[Placed]) -> str:
    """The same for texts in any variables."""
    joined = _join([(_view(each), each[2]) for each in placed if each[2].kind == "table"])
    if joined is not None:
        return joined
    # An empty text has nothing to be shown.
    return _over(next((each for each in placed if each[2].examples), placed[0]))


def asking_over(placed: Sequence[Placed], *, question: str) -> str | None:
    """A program that asks a model about the text of each item; None if there are no such texts.

    It asks with the words of the task, since a weak model leaves the question as it is; and it
    keeps the items that the answer was yes for, since that is how such a model goes on.
    """
    for each in placed:
        shape = each[2]
        item = _ITEMS.get(shape.kind)
        if item is not None and shape.read:
            name = _view(each)
            return (
                f"question = {_cut(question)!r}\n"
                f'asked = [f"{{question}} For this one alone, yes or no: {{{item}{shape.read}}}" '
                f"for {item} in {name}]\n"
                f"said = llm_query_batched(asked, schema=bool)\n"
                f"chosen = [{item} for {item}, yes in zip({name}, said) if yes is True]\n"
                f"print(len(chosen), chosen[:3])"
            )
    return None


def _cut(question: str) -> str:
    return question if len(question) <= _QUESTION_CHARS_MAX else question[-_QUESTION_CHARS_MAX:]


def _view(placed: Placed) -> str:
    of, key, shape = placed
    return called(view_name(shape.name, of), key)


def _over(placed: Placed) -> str:
    of, key, shape = placed
    name = _view(placed)
    match shape.kind:
        case "table":
            return _over_rows(shape, name)
        case "json_lines":
            return _over_records(shape, name)
        case "json":
            return f"print(type({name}), list({name})[:5])"
        case "numbers":
            return f"print(len({name}), min({name}), max({name}))"
        case "lines" if shape.prose:
            return f"print({called(of, key)}[:500])"
        case "lines":
            return f"for line in {name}[:3]:\n    print(line)"


def _over_rows(shape: Shape, name: str) -> str:
    # No condition: a weak model would keep it.
    number = _number_column(shape)
    text = next((column for column, kind in shape.columns[1:] if kind == "str"), None)
    shown = [column for column in (text, number) if column is not None] or [shape.columns[0][0]]
    cells = ", ".join(f"row[{column!r}]" for column in shown)
    return f"for row in {name}[:3]:\n    print({cells})"


def _over_records(shape: Shape, name: str) -> str:
    return f"for record in {name}[:3]:\n    print(record{shape.path})"


def _number_column(shape: Shape) -> str | None:
    return next(
        (column for place, (column, kind) in enumerate(shape.columns) if place and kind != "str"),
        None,
    )


def _join(tables: Sequence[tuple[str, Shape]]) -> str | None:
    """Rows of one table with those of another, by a column that both have."""
    for left, left_shape in tables:
        for right, right_shape in tables:
            shared = _shared(left_shape, right_shape) if left != right else None
            if shared is not None:
                mine, theirs = shared
                shown = next(name for name, _ in (*right_shape.columns[1:], right_shape.columns[0]))
                return (
                    f"by_key = {{row[{theirs!r}]: row for row in {right}}}\n"
                    f"for row in {left}[:3]:\n"
                    f"    print(row, by_key[row[{mine!r}]][{shown!r}])"
                )
    return None


def _shared(left: Shape, right: Shape) -> tuple[str, str] | None:
    """A column of the left whose values are found in a column of the right that has each once."""
    left_kinds, right_kinds = dict(left.columns), dict(right.columns)
    for mine, values in left.keys.items():
        for theirs, known in right.keys.items():
            alike = left_kinds[mine] == right_kinds[theirs]
            if alike and theirs in right.unique and values and values <= known:
                return mine, theirs
    return None
