"""Find the shape of a text (table, JSON, numbers, lines), and describe it to the model.

A model that is shown the shape of its data writes programs that fit it. So the whole text is read
once. It is a table only if every record has as many cells as the header. A column is numeric only
if every cell in it that is not empty is a number. The guest is given the result and does not guess.

Sizes are never shown: a model would return them as answers.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from tallystick.core.records import ViewRef
from tallystick.runtime.context.namespace import CONTEXT, spelling_of, view_name

# -- remarks on dates, and on upper and lower case -----------------------------------------------
#
# Dates that are compared as text, and written with the day first, give a wrong answer and no error.
# So the model is shown the form of a date and how to compare it.


_SAMPLED = 200
_SHARE = 0.9

# Each form of a date: a regular expression, and the format for `strptime`.
_YEAR_FIRST = (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "%Y-%m-%d")
_FORMS = (
    _YEAR_FIRST,
    (r"[0-9]{2}\.[0-9]{2}\.[0-9]{4}", "%d.%m.%Y"),
    (r"[0-9]{2}/[0-9]{2}/[0-9]{4}", "%d/%m/%Y"),
)

_TIME = re.compile(
    r"\b(?:date[sd]?|days?|weeks?|months?|years?|since|until|before|after|between|earliest|latest|"
    r"oldest|newest|when|january|february|march|april|may|june|july|august|september|october|"
    r"november|december)\b|\b(?:19|20)[0-9]{2}\b|[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2,4}",
    re.IGNORECASE,
)


def about_time(question: str) -> bool:
    """Return True if a question has a word or number that is about dates or periods, in English."""
    return _TIME.search(question) is not None


def dates_in_column(name: str, column: Sequence[str]) -> list[str]:
    """Return one remark on a column of dates; an empty list if it is not one.

    It is one if 90 % of a sample of its filled cells are dates of one form, and nothing else. Dates
    in which day and month cannot be distinguished give no remark.
    """
    found = _date_form([cell for cell in column if cell], whole=True)
    if found is None:
        return []
    (pattern, form), example = found
    cell = f"row[{name!r}]"
    if (pattern, form) == _YEAR_FIRST:
        return [
            f"{name!r} is text like {example!r}: it compares as text, {cell}[:7] is its month "
            f"({example[:7]!r}), {cell}[:4] its year."
        ]
    return [
        f"{name!r} is text like {example!r}: compare datetime.strptime({cell}, {form!r}) "
        "(from datetime import datetime)."
    ]


def dates_in_lines(lines: Sequence[str]) -> list[str]:
    """Return one remark on the dates inside lines; an empty list if there are none.

    There are if 90 % of a sample of the filled lines have a date of one form. Dates in which day
    and month cannot be distinguished give no remark.
    """
    found = _date_form([line for line in lines if line], whole=False)
    if found is None:
        return []
    (pattern, form), example = found
    taken = f're.search(r"{_short(pattern)}", line)[0]'
    if (pattern, form) == _YEAR_FIRST:
        return [f"{taken} is the date of a line, such as {example!r}; it compares as text."]
    return [
        f"{taken} is the date of a line, such as {example!r}: compare "
        f"datetime.strptime(..., {form!r}) (from datetime import datetime)."
    ]


def differing_in_case(values: Collection[str], what: str) -> list[str]:
    """Return a remark on the first two values that differ only in case; else an empty list.

    Values of more than 40 characters are not reported.
    """
    first: dict[str, str] = {}
    for value in values:
        other = first.setdefault(value.lower(), value)
        if other != value and len(value) <= 40:
            low, high = sorted((other, value))
            return [f"Upper and lower case differ: {what} can be {low!r} or {high!r}."]
    return []


def _take_sample(items: Sequence[str]) -> Sequence[str]:
    return items[:: max(1, len(items) // _SAMPLED)]


def _date_form(items: Sequence[str], *, whole: bool) -> tuple[tuple[str, str], str] | None:
    """Return the form of date that at least 90 % of the sampled items have, and one such date.

    With `whole`, an item has to be a date and nothing else. Return None if there is no such form,
    or if day and month cannot be distinguished.
    """
    if not items:
        return None
    for pattern, form in _FORMS:
        compiled = re.compile(rf"(?<![0-9]){pattern}(?![0-9])")
        seek = compiled.fullmatch if whole else compiled.search
        found = [match[0] for item in _take_sample(items) if (match := seek(item))]
        if len(found) < _SHARE * len(_take_sample(items)):
            continue
        if form == "%d/%m/%Y":
            order = _day_month_form([match[0] for item in items if (match := seek(item))])
            return None if order is None else ((pattern, order), found[-1])
        return (pattern, form), found[-1]
    return None


def _day_month_form(dates: Sequence[str]) -> str | None:
    """Return the format with the day or the month first; None if no date shows which it is."""
    if any(int(date[3:5]) > 12 for date in dates):
        return "%m/%d/%Y"
    return "%d/%m/%Y" if any(int(date[:2]) > 12 for date in dates) else None


def _short(pattern: str) -> str:
    return re.sub(r"\[0-9\]\{(\d)\}", lambda match: r"\d" * int(match[1]), pattern)


# -- shapes --------------------------------------------------------------------------------------


Item = TypeVar("Item")
ColumnKind = Literal["int", "float", "amount", "str"]
_DELIMITERS = (",", "\t", ";", "|")
_COLUMNS_MAX = 60
_HEADER_CHARS_MAX = 60
_SHOWN_CHARS_MAX = 240
_VALUES_SHOWN = 8
_CELL_CHARS_MAX = 30
# If the lines are longer on average, they are paragraphs: the text is prose.
_PROSE_CHARS = 200
# If the values of a key are at least this long on average, they are texts to read. So many of the
# first records are examined.
_READ_CHARS = 30
_LOOKED_AT = 200
_INT = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})\Z")
_FLOAT = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?\Z")
_BETWEEN = re.compile(r"[\s,;]+")
_NO_SIGNS = str.maketrans("", "", "$€£¥,")
_AMOUNT = re.compile(
    r"(?:[+-]?[$€£¥]\s?|[$€£¥]\s?[+-]|[+-])?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18})(?:\.[0-9]{1,17})?\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a text: its view beside `lines`, and its description for the model."""

    name: str
    kind: Literal["lines", "table", "json_lines", "json", "numbers"]
    delimiter: str = ","
    columns: tuple[tuple[str, ColumnKind], ...] = ()
    says: str = ""
    examples: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    on_dates: tuple[str, ...] = ()
    # Parts for a first program. `prose`: the lines are paragraphs. `path` and `read`: subscripts of
    # a plain value and of the text to read. For tables, `keys` are the values of each column and
    # `unique` the columns that have no value twice.
    prose: bool = False
    path: str = ""
    read: str = ""
    keys: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unique: frozenset[str] = frozenset()

    def views(self, *, of: str, key: str | None) -> tuple[ViewRef, ...]:
        """Return the views of a text in variable `of`: its lines, and its parsed value if any."""
        lines = ViewRef(name=view_name("lines", of), kind="lines", of=of, key=key)
        if self.kind == "lines":
            return (lines,)
        view = ViewRef(
            name=view_name(self.name, of),
            kind=self.kind,
            of=of,
            key=key,
            delimiter=self.delimiter,
            columns=self.columns,
        )
        return (lines, view)


def shape_of(text: str) -> Shape:
    """Read a whole text and return its shape. A text of no other kind is `lines`.

    JSON lines, JSON, numbers and tables are tried in this order. A table has a header and at least
    two records.
    """
    text = text.removeprefix("\ufeff")
    for attempt in (_json_lines, _json, _numbers, _table):
        shape = attempt(text)
        if shape is not None:
            return shape
    return _lines(text)


def describe_shape(shape: Shape, *, key: str | None, question: str, of: str = CONTEXT) -> str:
    """Return the description for the model: the view, examples of its values, and remarks.

    Empty texts have no examples. Remarks on dates are included only if the question is about time;
    else they mislead the model.
    """
    name = spelling_of(view_name(shape.name, of), key)
    lines = [f"`{name}` is {shape.says}. Some of it:"]
    lines += [f"    {shown}" for shown in shape.examples]
    lines += shape.remarks
    if about_time(question):
        lines += shape.on_dates
    return "\n".join(lines)


# -- kinds -------------------------------------------------------------------------------------


def _lines(text: str) -> Shape:
    lines = text.splitlines()
    return Shape(
        name="lines",
        kind="lines",
        prose=len(text) > _PROSE_CHARS * (len(lines) + 1),
        says="a list of its lines (str)",
        examples=_pick_examples(lines, _cut_line, each=3),
        remarks=tuple(differing_in_case(sorted(set(lines)), "a line")),
        on_dates=tuple(dates_in_lines(lines)),
    )


def _json_lines(text: str) -> Shape | None:
    first = text.lstrip()[:1]
    if first not in ("{", "["):
        return None
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) < 2:
        return None
    try:
        records = [msgspec.json.decode(line) for line in lines]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    few = _values_of_keys(records)
    return Shape(
        name="records",
        kind="json_lines",
        says="a list with the parsed value of each line of JSON",
        examples=_pick_examples(records, _short_repr, each=1),
        remarks=tuple(f"{key!r} is one of {_quote_all(values)}." for key, values in few.items()),
        path=_plain_value_path(records),
        read=_longest_text_path([each for each in records[:_LOOKED_AT] if isinstance(each, dict)]),
    )


def _json(text: str) -> Shape | None:
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if isinstance(value, dict):
        says = "the parsed JSON, a dict"
        examples: tuple[str, ...] = tuple(
            f"{key!r}: {_short_repr(item)}" for key, item in list(value.items())[:6]
        )
    else:
        says, examples = "the parsed JSON, a list", _pick_examples(value, _short_repr, each=1)
    return Shape(name="data", kind="json", says=says, examples=examples)


def _numbers(text: str) -> Shape | None:
    if not _FLOAT.match(_BETWEEN.split(text.lstrip(), maxsplit=1)[0]):
        return None
    words = [word for word in _BETWEEN.split(text) if word]
    if len(words) < 2 or not all(_FLOAT.match(word) for word in words):
        return None
    kind = "int" if all(_INT.match(word) for word in words) else "float"
    return Shape(
        name="numbers",
        kind="numbers",
        says=f"a list of all the numbers in the text ({kind})",
        examples=_pick_examples(words, str, each=2),
    )


def _table(text: str) -> Shape | None:
    head = text[: _HEADER_CHARS_MAX * _COLUMNS_MAX].lstrip().partition("\n")[0]
    delimiter = max(_DELIMITERS, key=head.count)
    if not head.count(delimiter):
        return None
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        records = [[cell.strip() for cell in record] for record in reader if record]
    except csv.Error:
        return None
    # Under one row, a heading could as well be a first sentence with commas.
    if len(records) < 3 or not _is_header(records[0]):
        return None
    header, body = records[0], records[1:]
    # A text whose lines have commas is no table: in one, every record has all columns.
    if any(len(record) != len(header) for record in body):
        return None
    columns = [list(column) for column in zip(*body, strict=True)]
    # Without a header, the first record would be lost as names of columns.
    if any(_is_data(name, column) for name, column in zip(header, columns, strict=True)):
        return None
    kinds = [_column_kind(column) for column in columns]
    typed = tuple(zip(header, kinds, strict=True))
    return Shape(
        name="rows",
        kind="table",
        delimiter=delimiter,
        columns=typed,
        says="a list with a dict for each record; numbers are int or float already",
        examples=_pick_examples(body, lambda record: _row(record, typed), each=1),
        read=_longest_text_path(
            [dict(zip(header, record, strict=True)) for record in body[:_LOOKED_AT]]
        ),
        remarks=_remarks_on_values(header, columns, kinds),
        on_dates=tuple(
            remark
            for name, column, kind in zip(header, columns, kinds, strict=True)
            if kind == "str"
            for remark in dates_in_column(name, column)
        ),
        keys={name: frozenset(column) for name, column in zip(header, columns, strict=True)},
        unique=frozenset(
            name
            for name, column in zip(header, columns, strict=True)
            if len(set(column)) == len(column)
        ),
    )


def _is_header(cells: Sequence[str]) -> bool:
    """Return True for 2 to 60 different names, each of 1 to 60 characters and no number."""
    return (
        1 < len(cells) <= _COLUMNS_MAX
        and len(set(cells)) == len(cells)
        and all(
            cell and len(cell) <= _HEADER_CHARS_MAX and not _FLOAT.match(cell) for cell in cells
        )
    )


def _is_data(name: str, column: Sequence[str]) -> bool:
    """Return True if a cell of the first record looks like data, not like the name of a column.

    It is among the values of its column, or has digits and the form of the first of them.
    """
    if name in column:
        return True
    return any(each.isdigit() for each in name) and _cell_form(name) == _cell_form(column[0])


def _cell_form(cell: str) -> str:
    return re.sub(r"[0-9]+", "9", re.sub(r"[^\W\d_]+", "a", cell))


def _column_kind(cells: Iterable[str]) -> ColumnKind:
    filled = [cell for cell in cells if cell]
    if not filled or not all(_FLOAT.match(cell) for cell in filled):
        # A leading zero marks a code, such as 007. After a currency sign it does not.
        amounts = filled and all(
            (_AMOUNT.match(cell) and not cell.startswith("0")) or _FLOAT.match(cell)
            for cell in filled
        )
        return "amount" if amounts else "str"
    return "int" if all(_INT.match(cell) for cell in filled) else "float"


# -- how it is shown ---------------------------------------------------------------------------


def _pick_examples(
    items: Sequence[Item], show: Callable[[Item], str], *, each: int
) -> tuple[str, ...]:
    """Return `each` examples from the start, `each` from the middle, and the last item.

    "..." stands where items are left out. The start alone would look like the whole.
    """
    count = len(items)
    if not count:
        return ()
    middle = count // 2
    places = {*range(min(each, count)), *range(middle, min(middle + each, count)), count - 1}
    shown: list[str] = []
    for place, after in zip(sorted(places), [*sorted(places)[1:], None], strict=True):
        shown.append(show(items[place]))
        if after is not None and after > place + 1:
            shown.append("...")
    return tuple(shown)


def _row(record: Sequence[str], columns: Sequence[tuple[str, ColumnKind]]) -> str:
    cells = {name: _cell(cell, kind) for cell, (name, kind) in zip(record, columns, strict=True)}
    return _short_repr(cells)


def _cell(cell: str, kind: ColumnKind) -> object:
    if kind == "str":
        return cell
    if not cell:
        return None
    if kind == "amount":
        cell = "".join(cell.translate(_NO_SIGNS).split())
    return int(cell) if kind == "int" else float(cell)


def _remarks_on_values(
    header: Sequence[str], columns: Sequence[Sequence[str]], kinds: Sequence[ColumnKind]
) -> tuple[str, ...]:
    """Return remarks on columns: at most 8 different values, differences in case, empty cells."""
    remarks = []
    for name, column, kind in zip(header, columns, kinds, strict=True):
        if kind != "str" and "" in column:
            remarks.append(f"{name!r} is None where its cell is empty.")
        values = sorted(set(column))
        if kind == "str" and len(values) <= _VALUES_SHOWN and len(values) * 2 < len(column):
            remarks.append(f"{name!r} is one of {_quote_all(values)}.")
        elif kind == "str":
            remarks += differing_in_case(values, repr(name))
    return tuple(remarks)


def _values_of_keys(records: Sequence[object]) -> dict[str, list[str]]:
    """Return the keys that have at most 8 different texts as values, with these texts.

    Empty if a record is not a dictionary. A key is left out unless there are more than two records
    for each text, and if a value is no text. Of more than 60 keys, the first are examined.
    """
    found: dict[str, set[str] | None] = {}
    for record in records:
        if not isinstance(record, dict):
            return {}
        for key, value in record.items():
            seen = found.setdefault(key, set())
            if seen is not None and isinstance(value, str) and len(seen) <= _VALUES_SHOWN:
                seen.add(value)
            else:
                found[key] = None
    return {
        key: sorted(values)
        for key, values in list(found.items())[:_COLUMNS_MAX]
        if values and len(values) <= _VALUES_SHOWN and len(values) * 2 < len(records)
    }


def _longest_text_path(records: Sequence[Mapping[str, object]]) -> str:
    """Return the subscript of the longest text in each record, such as `['note']`.

    Empty if no key has a text in every record with 30 characters or more on average.
    """
    chars = {
        key: sum(len(text) for text in texts)
        for key in (records[0] if records else ())
        if all(isinstance(each.get(key), str) for each in records)
        and (texts := [str(each[key]) for each in records])
    }
    key = max(chars, key=lambda key: chars[key], default="")
    return f"[{key!r}]" if key and chars[key] >= _READ_CHARS * len(records) else ""


def _plain_value_path(records: Sequence[object]) -> str:
    """Return the subscripts of a plain value that the first three records share.

    For example `['user']['name']`; empty if they share none.
    """
    path = ""
    held = list(records[:3])
    while (shared := _shared_keys(held)) and (first := held[0]):
        assert isinstance(first, dict)
        # Prefer a nested value: a model finds it less easily than a plain one.
        key = next((key for key in shared if isinstance(first[key], dict)), shared[0])
        path += f"[{key!r}]"
        held = [each[key] for each in held if isinstance(each, dict)]
    return path


def _shared_keys(held: Sequence[object]) -> list[str]:
    """Return the keys that all of these have, in the order of the first.

    Empty if one of them is not a dictionary.
    """
    if not held or not all(isinstance(each, dict) for each in held):
        return []
    first, *others = [each for each in held if isinstance(each, dict)]
    return [key for key in first if all(key in other for other in others)]


def _quote_all(values: Sequence[str]) -> str:
    return ", ".join(_quote(value, chars_max=_CELL_CHARS_MAX) for value in values)


def _quote(text: str, *, chars_max: int = _SHOWN_CHARS_MAX) -> str:
    return repr(text if len(text) <= chars_max else text[:chars_max] + "...")


def _cut_line(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."


def _short_repr(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 2 * _SHOWN_CHARS_MAX else shown[: 2 * _SHOWN_CHARS_MAX] + "..."
