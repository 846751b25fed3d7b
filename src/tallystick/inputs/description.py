"""Describe the inputs to the model: names, shapes, excerpts, and a short program to start from.

Weak models copy the last program that they were shown. So this program uses the columns and keys
of their own data. It only looks at a few rows, so its output is never the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.inputs.judging import PlacedText
from tallystick.inputs.nearest import READ_BYTES_MAX
from tallystick.inputs.shapes import Shape, describe_shape
from tallystick.runtime.context.namespace import spelling_of, view_name
from tallystick.sandbox.text import HostText

_ITEMS = {"table": "row", "json_lines": "record"}
_QUESTION_CHARS_MAX = 400


def program_over(placed: Sequence[PlacedText]) -> str:
    """Return a first program over these texts, at least one.

    It joins the first two tables that can be joined on a column. Otherwise it looks at the first
    text that is not empty, or at the first.
    """
    joined = _join([(_view(each), each[2]) for each in placed if each[2].kind == "table"])
    if joined is not None:
        return joined
    # An empty text has no examples, so another one is preferred.
    return _program_for(next((each for each in placed if each[2].examples), placed[0]))


def program_around(word: str, *, of: str, key: str | None, on_host: bool) -> str:
    """Return a first program that reads around each place of a word in a long text."""
    name = spelling_of(of, key)
    if on_host:
        return (
            f"for start, end, found in {name}.search({word!r}):\n"
            f"    print({name}[max(0, start - {_AROUND_CHARS}):end + {_AROUND_CHARS}])"
        )
    return (
        f"import re\n"
        f"for hit in re.finditer({word!r}, {name}):\n"
        f"    print({name}[max(0, hit.start() - {_AROUND_CHARS}):hit.end() + {_AROUND_CHARS}])"
    )


def describe_passages(passages: Sequence[tuple[str, str]], *, whole: bool) -> str:
    """Describe the passages nearest to the task: each with how its text is spelled, nearest first.

    `whole` says that the texts were searched from beginning to end.
    """
    where = "" if whole else f" (of {READ_BYTES_MAX // 1_000_000} MB of it)"
    names = {name for name, _ in passages}
    lines = [f"    {text}" if len(names) == 1 else f"    {name}: {text}" for name, text in passages]
    heading = f"Passages{where} with the rarest words of the task:"
    if len(names) == 1:
        heading = f"Passages of `{passages[0][0]}`{where} with the rarest words of the task:"
    return "\n".join([heading, *lines])


def query_program(placed: Sequence[PlacedText], *, question: str) -> str | None:
    """Return a program that asks a model about each row or record, in one batch.

    Return None if no text is a table or JSON lines with a text column to read. The program uses the
    words of the task, since a weak model does not change the question; of a long task, the last 400
    characters. It keeps the items whose answer was yes, since such a model continues from there.
    """
    for each in placed:
        shape = each[2]
        item = _ITEMS.get(shape.kind)
        if item is not None and shape.read:
            name = _view(each)
            return (
                f"question = {_cut_question(question)!r}\n"
                f'asked = [f"{{question}} For this one alone, yes or no: {{{item}{shape.read}}}" '
                f"for {item} in {name}]\n"
                f"said = llm_query_batched(asked, schema=bool)\n"
                f"chosen = [{item} for {item}, yes in zip({name}, said) if yes is True]\n"
                f"print(len(chosen), chosen[:3])"
            )
    return None


def _cut_question(question: str) -> str:
    return question if len(question) <= _QUESTION_CHARS_MAX else question[-_QUESTION_CHARS_MAX:]


def _view(placed: PlacedText) -> str:
    of, key, shape = placed
    return spelling_of(view_name(shape.name, of), key)


def _program_for(placed: PlacedText) -> str:
    of, key, shape = placed
    name = _view(placed)
    match shape.kind:
        case "table":
            return _program_for_rows(shape, name)
        case "json_lines":
            return _program_for_records(shape, name)
        case "json":
            return f"print(type({name}), list({name})[:5])"
        case "numbers":
            return f"print(len({name}), min({name}), max({name}))"
        case "lines" if shape.prose:
            return f"print({spelling_of(of, key)}[:500])"
        case "lines":
            return f"for line in {name}[:3]:\n    print(line)"


def _program_for_rows(shape: Shape, name: str) -> str:
    # The program has no condition: a weak model would keep it.
    number = _number_column(shape)
    text = next((column for column, kind in shape.columns[1:] if kind == "str"), None)
    shown = [column for column in (text, number) if column is not None] or [shape.columns[0][0]]
    cells = ", ".join(f"row[{column!r}]" for column in shown)
    return f"for row in {name}[:3]:\n    print({cells})"


def _program_for_records(shape: Shape, name: str) -> str:
    return f"for record in {name}[:3]:\n    print(record{shape.path})"


def _number_column(shape: Shape) -> str | None:
    return next(
        (column for place, (column, kind) in enumerate(shape.columns) if place and kind != "str"),
        None,
    )


def _join(tables: Sequence[tuple[str, Shape]]) -> str | None:
    """Return a program that joins two tables on a shared column; None if no two share one."""
    for left, left_shape in tables:
        for right, right_shape in tables:
            shared = _join_columns(left_shape, right_shape) if left != right else None
            if shared is not None:
                mine, theirs = shared
                shown = next(name for name, _ in (*right_shape.columns[1:], right_shape.columns[0]))
                return (
                    f"by_key = {{row[{theirs!r}]: row for row in {right}}}\n"
                    f"for row in {left}[:3]:\n"
                    f"    print(row, by_key[row[{mine!r}]][{shown!r}])"
                )
    return None


def _join_columns(left: Shape, right: Shape) -> tuple[str, str] | None:
    """Return a column of each table to join them on; None if no two fit.

    They have one kind. Each value of the left column occurs in the right one, which has no value
    twice.
    """
    left_kinds, right_kinds = dict(left.columns), dict(right.columns)
    for mine, values in left.keys.items():
        for theirs, known in right.keys.items():
            alike = left_kinds[mine] == right_kinds[theirs]
            if alike and theirs in right.unique and values and values <= known:
                return mine, theirs
    return None


# The description is short, whatever the size of the data.
#
# A text is described by its shape. If it is prose or stays on the host, excerpts of it are shown.
# Of several texts only some are described. Of more than 20, the first names are listed and short
# excerpts of a few are shown.


FILES_SHOWN = 4
_SAMPLE_CHARS = 300
# Beside passages, which are at most 480 characters: the prompt is not much longer with them.
_SAMPLE_BESIDE_CHARS = 80
_AROUND_CHARS = 200
WHOLE_CHARS_MAX = 1_500
_WHOLE_OF_SEVERAL_CHARS_MAX = 400
_NAMES_SHOWN = 20
# Limits for a variable with more files than `_NAMES_SHOWN`: less is shown of each.
_OF_MANY_SHOWN = 2
_OF_MANY_CHARS_MAX = 500
_OF_MANY_WHOLE_CHARS_MAX = 200
_OF_MANY_SAMPLE_CHARS = 80
_NAMES_CHARS_MAX = 4_000
_OF_MANY_NAMES_CHARS_MAX = 500


def files_shown(count: int, *, at_most: int) -> int:
    """Return how many of the `count` files in a variable are described, not only named.

    Of more than 20 files that is at most 2, else at most `at_most`.
    """
    return min(at_most, count if count <= _NAMES_SHOWN else _OF_MANY_SHOWN)


def describe_names(variable: str, names: Sequence[str]) -> str:
    """Describe a variable with several files: it is a dictionary, and these are its keys.

    At most 20 names are listed, in 4,000 characters, or in 500 if there are more than 20 files; the
    rest is counted.
    """
    many = len(names) > _NAMES_SHOWN
    left = _OF_MANY_NAMES_CHARS_MAX if many else _NAMES_CHARS_MAX
    shown: list[str] = []
    for name in names[:_NAMES_SHOWN]:
        left -= len(repr(name))
        if left < 0 and shown:
            break
        shown.append(_shorten(repr(name), _NAMES_CHARS_MAX))
    more = f" and {len(names) - len(shown):,} more" if len(shown) < len(names) else ""
    return f"`{variable}` is a dict of texts by file name: {', '.join(shown)}{more}."


def describe_host_texts(variable: str) -> str:
    """Describe the functions that search all texts of a variable on the host at once."""
    return (
        f"They stay outside: {variable}.grep(pattern) gives (name, line number, line) for each "
        f"line that matches in any of them, {variable}.search(pattern) gives (name, start, end, "
        "text) of each match."
    )


def describe_text(
    text: str,
    shape: Shape,
    *,
    of: str,
    key: str | None,
    alone: bool,
    count: int,
    question: str,
    beside: bool = False,
) -> tuple[str, bool]:
    """Describe a text in the guest, one of `count` in its variable.

    Return the description, and True if it shows the whole text. `alone` says that the run has no
    other text; then up to 1,500 characters are shown whole. Otherwise that is 400, or 200 if the
    variable has more than 20 files. The question decides about remarks on dates. `beside` says that
    passages are shown too; then parts of prose are shorter.
    """
    name = spelling_of(of, key)
    many = count > _NAMES_SHOWN
    description = describe_shape(shape, of=of, key=key, question=question)
    description = _shorten(description, _OF_MANY_CHARS_MAX) if many else description
    whole = WHOLE_CHARS_MAX if alone else _WHOLE_OF_SEVERAL_CHARS_MAX
    if len(text) <= (_OF_MANY_WHOLE_CHARS_MAX if many else whole):
        return f"`{name}` is this text (str), whole:\n{text}\n{description}", True
    if shape.prose:
        lines = spelling_of(view_name(shape.name, of), key)
        parts = _sample(HostText.of(text), count=count, beside=beside)
        return (
            f"`{name}` is a long text (str), `{lines}` the list of its lines. Parts:\n{parts}",
            False,
        )
    # The text itself is not named if it was parsed: weak models would parse it again.
    return description, False


def describe_host_text(
    text: HostText, *, of: str, key: str | None, count: int, beside: bool = False
) -> str:
    """Describe a text on the host, one of `count` in its variable, with excerpts.

    In a variable of more than 20 texts, the functions that search it are left out. `beside` says
    that passages are shown too.
    """
    name = spelling_of(of, key)
    parts = _sample(text, count=count, beside=beside)
    if count > _NAMES_SHOWN:
        return f"Parts of {name}:\n{parts}"
    return (
        f"`{name}` is a long text that stays outside: slice it ({name}[0:500]), or find in it with "
        f"{name}.search(pattern), which gives (start, end, text) of each match. Parts of it:\n"
        f"{parts}"
    )


def describe_in_short(shape: Shape | None, *, of: str, key: str | None) -> str:
    """Describe a text in one line. Without a shape, the text stays on the host."""
    name = spelling_of(of, key)
    if shape is None:
        return f"`{name}` is a long text that stays outside: slice it, or use {name}.search."
    view = spelling_of(view_name(shape.name, of), key)
    return f"`{name}` is a text (str), `{view}` is {shape.says}."


def _shorten(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}..."


def _sample(text: HostText, *, count: int, beside: bool) -> str:
    """Return head, middle and tail of a long text, or a short one whole.

    Each part has 300 characters; 80 beside passages, and in a variable of more than 20 files.
    """
    size = _SAMPLE_BESIDE_CHARS if beside else _SAMPLE_CHARS
    size = size if count <= _NAMES_SHOWN else _OF_MANY_SAMPLE_CHARS
    chars = text.length()
    if chars <= 3 * size:
        return text.slice(0, chars)
    middle = chars // 2
    parts = [
        text.slice(0, size),
        text.slice(middle - size // 2, middle + size // 2),
        text.slice(chars - size, chars),
    ]
    return "\n[...]\n".join(parts)
