"""What a text is made of: read whole, told in part, and taken apart in the guest as it was told."""

from __future__ import annotations

import ast
import csv
import io
import os
import re
import string
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sandbox.wasm.test_given_data import Given
from tests.wasm_session import open_session

from tallystick.inputs.layout import layout_of
from tallystick.inputs.shapes import Shape, describe_shape, shape_of
from tallystick.runtime.context.inputs import given_text
from tallystick.sandbox.wasm.sandbox import WasmSandbox

# Examples that go through the sandbox: fewer, in proportion to what the profile says.
EXAMPLES = settings().max_examples * 15 // 100
DELIMITERS = ",\t;|"
HEADER = ("name", "some col", "tons", "note")
SIGNS = str.maketrans("", "", "$€£¥,")

numbers = st.one_of(
    st.integers(-(10**17), 10**17).map(str),
    st.decimals(-9_999, 9_999, places=3).map(str),
    st.sampled_from(["0", "-0.5", "1e5", "+3", " 7 ", ""]),
)
amounts = st.sampled_from(["$1,204.50", "-$5", "€ 3", "12", "£0.99", "", "1,000,000"])
codes = st.sampled_from(["007", "0042", "1-2", "١٢", "1_000", "0x1", "nan", "1,23", ""])
words = st.text(f"ab {DELIMITERS}\"'\n\r\u2028\u00a0é0", max_size=6)
cells = st.one_of(numbers, amounts, codes, words).filter(lambda cell: cell.strip() not in HEADER)


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, str, list[list[str]]]:
    """A table as `csv` writes it: its text, its delimiter, and its records."""
    delimiter = draw(st.sampled_from(DELIMITERS))
    width = draw(st.integers(2, len(HEADER)))
    columns = [draw(st.sampled_from([numbers, amounts, codes, words, cells])) for _ in range(width)]
    body = draw(st.lists(st.tuples(*columns).map(list), min_size=2, max_size=6))
    records = [list(HEADER[:width]), *body]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=delimiter).writerows(records)
    return out.getvalue(), delimiter, records


def typed(cell: str, kind: str) -> object:
    """A cell as its column's kind says, by rules written down here once more."""
    cell = cell.strip()
    match kind:
        case "str":
            return cell
        case _ if not cell:
            return None
        case "int":
            return int(cell)
        case "float":
            return float(cell)
        case _:
            return float(cell.translate(SIGNS).replace(" ", ""))


@settings(max_examples=EXAMPLES)
@given(table=tables())
def test_a_table_is_read_in_the_guest_as_python_reads_it_here(
    sandbox: WasmSandbox, table: tuple[str, str, list[list[str]]]
) -> None:
    text, delimiter, (header, *body) = table

    shape = shape_of(text)

    assert (shape.kind, shape.delimiter) == ("table", delimiter)
    assert [name for name, _ in shape.columns] == header
    expected = [
        {name: typed(cell, kind) for cell, (name, kind) in zip(record, shape.columns, strict=True)}
        for record in body
    ]
    with open_session(sandbox) as session:
        shown = session.value("rows", host=Given(text))
    assert shown is not None
    assert ast.literal_eval(shown) == expected


@settings(max_examples=3 * EXAMPLES)
@given(table=tables())
def test_a_column_is_of_numbers_only_if_every_cell_in_it_is_one(
    table: tuple[str, str, list[list[str]]],
) -> None:
    text, _, (_, *body) = table

    for (_, kind), column in zip(shape_of(text).columns, zip(*body, strict=True), strict=True):
        filled = [cell.strip() for cell in column if cell.strip()]
        whole = [re.fullmatch(r"[+-]?[0-9]+", cell) is not None for cell in filled]
        if kind == "int":
            assert filled
            assert all(whole)
        if kind == "str" and filled:
            assert not all(whole) or any(cell.lstrip("+-").startswith("0") for cell in filled)
        if kind != "str":
            assert any(each.isdigit() for cell in filled for each in cell)


@given(text=st.text(max_size=120) | st.text(f'ab1{DELIMITERS}"\n{{[:]}} $-.', max_size=80))
def test_any_text_has_a_shape(text: str) -> None:
    shape = shape_of(text)

    assert shape.kind in ("lines", "table", "json_lines", "json", "numbers")
    assert shape.views(of="context", key=None)[0].name == "lines"
    assert describe_shape(shape, key=None, question="").startswith(f"`{shape.name}` is ")


@given(
    cells=st.lists(
        st.tuples(
            st.sampled_from(["", "+", "-"]),
            st.sampled_from(["", "$", "€"]),
            st.sampled_from(["", " ", "\u00a0"]),
            st.sampled_from(["", "-"]),
            st.sampled_from(["5", "1,204", "07", "3.50"]),
        ).map("".join),
        min_size=2,
        max_size=3,
    )
)
def test_a_column_of_amounts_is_one_of_numbers_or_of_words_in_whatever_way_they_are_written(
    cells: list[str],
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out).writerows([["name", "tons"], *(["x", cell] for cell in cells)])

    shape = shape_of(out.getvalue())

    assert shape.kind == "table"
    if dict(shape.columns)["tons"] != "str":
        assert [float(re.sub(r"[\s,$€]", "", cell)) for cell in cells]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (["1", "-2", "+3"], "int"),
        (["1", "", "3"], "int"),
        (["1", "2.5"], "float"),
        (["1e5", "2"], "float"),
        (["$1,204.50", "$3"], "amount"),
        (["1,000", "2"], "amount"),
        (["-$5", "€ 7"], "amount"),
        (["007", "008"], "str"),
        (["1", "n/a"], "str"),
        (["", ""], "str"),
        (["1.2.3", "1"], "str"),
        (["2031-05-06", "2031-05-07"], "str"),
        (["1" * 19, "2"], "str"),
        (["1,23", "4"], "str"),
        (["nan", "1"], "str"),
        (["--5", "--6"], "str"),
    ],
)
def test_the_kind_of_a_column(column: list[str], kind: str) -> None:
    text = "".join(f'x;"{cell}"\n' for cell in column)

    assert shape_of(f"name;value\n{text}").columns == (("name", "str"), ("value", kind))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a,b\n1,2\n", "one record is not a table"),
        ("a,b\n1,2\n3\n", "a record has fewer cells than the header"),
        ("a,b\n1,2\n3,4,5\n", "a record has more cells than the header"),
        ("a,a\n1,2\n3,4\n", "two columns have one name"),
        ("a,\n1,2\n3,4\n", "a column has no name"),
        ("1,x\n2,y\n3,z\n", "a number heads nothing"),
        ("A-1,x\nA-2,y\nA-3,x\n", "the first record looks like those below it"),
        ("x,y\nx,1\nz,2\n", "a name stands in its own column"),
        ('a,b\n"1,2\n3,4\n', "a quote is not closed"),
        ("one, two\nthree\nfour\n", "it is prose"),
        ("just a line", "there is nothing to divide it by"),
        ("", "there is nothing"),
    ],
)
def test_what_is_not_a_table_is_lines(text: str, why: str) -> None:
    assert shape_of(text).kind == "lines", why


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"a": 1}\n{"a": 2}\n', "json_lines"),
        ('{"a": 1}\n\n  {"a": 2}', "json_lines"),
        ("[1, 2]\n[3]\n", "json_lines"),
        ('{"a":\n 1}', "json"),
        ('{"a": 1}', "json"),
        ("[1, 2, 3]", "json"),
        ("[]", "json"),
        ("{}", "json"),
        ('{"a": 1}\nnot json\n', "lines"),
        ("{a: 1}", "lines"),
        ("1 2 3", "numbers"),
        ("1\n2.5\n-3e4\n", "numbers"),
        ("1,2;3", "numbers"),
        ("1", "lines"),
        ("1 2 x", "lines"),
        ("007 008", "lines"),
    ],
)
def test_json_and_numbers_are_known_by_all_of_their_text(text: str, kind: str) -> None:
    assert shape_of(text).kind == kind


def test_what_is_shown_is_of_the_beginning_the_middle_and_the_end() -> None:
    lines = [f"line {letter}" for letter in string.ascii_lowercase]

    shown = shape_of("\n".join(lines)).examples

    assert shown == (
        *("line a", "line b", "line c", "..."),
        *("line n", "line o", "line p", "..."),
        "line z",
    )


def long_text(kind: str, count: int) -> str:
    """A text of so many records, with no number in it that could be its size."""
    match kind:
        case "table":
            return "name,flag\n" + "Amber Anchor,xyz\nCedar Gate,uvw\n" * (count // 2)
        case "json_lines":
            return '{"name": "Amber"}\n' * count
        case "json":
            return "[" + ", ".join(['{"name": "Amber"}'] * count) + "]"
        case "numbers":
            return "7 " * count
        case "prose":
            return "Words and more words. " * (count * 4)
        case _:
            return "a line of it\n" * count


@settings(max_examples=EXAMPLES)
@given(
    kind=st.sampled_from(["table", "json_lines", "json", "numbers", "lines", "prose"]),
    half=st.integers(600, 900),
    files=st.integers(1, 2),
)
def test_sizes_are_never_told(kind: str, half: int, files: int) -> None:
    text = long_text(kind, 2 * half)
    layout = layout_of([given_text(text, name=f"{name}.txt") for name in "ab"[:files]])

    (context,) = layout.contexts

    told = set(re.findall(r"[0-9]+", context.sample.replace(",", "")))
    sizes = {2 * half, 2 * half + 1, len(text), len(text) * files, text.count("\n")}
    assert told.isdisjoint(str(size) for size in sizes if size > 9)
    assert len(context.sample) < 3_000


def test_a_column_of_few_values_is_told_with_all_of_them() -> None:
    shape = shape_of("name,flag\n" + "".join(f"v{place}x,{place % 2 == 0}\n" for place in range(9)))

    assert "'flag' is one of 'False', 'True'." in shape.remarks


def test_a_number_that_is_missing_somewhere_is_told() -> None:
    shape = shape_of("name,tons\na,1\nb,\n")

    assert "'tons' is None where its cell is empty." in shape.remarks


def test_keys_of_json_lines_with_few_values_are_told() -> None:
    lines = "".join(f'{{"id": {place}, "state": "s{place % 2}"}}\n' for place in range(9))

    assert shape_of(lines).remarks == ("'state' is one of 's0', 's1'.",)


def test_how_dates_are_written_is_told_if_the_question_is_about_time() -> None:
    shape = shape_of("name,day\na,06.05.2031\nb,07.05.2031\n")

    assert "strptime" in describe_shape(shape, key=None, question="which came after 06.05.2031?")
    assert "strptime" not in describe_shape(shape, key=None, question="who owns it?")


def test_a_view_of_one_of_several_files_is_told_by_its_key() -> None:
    shape = shape_of("name,tons\na,1\nb,2\n")

    assert describe_shape(shape, key="x.csv", question="").startswith("`rows['x.csv']` is ")
    assert [view.key for view in shape.views(of="context", key="x.csv")] == ["x.csv", "x.csv"]


def test_what_is_told_of_a_text_is_the_same_in_every_process() -> None:
    """A prompt that differs from process to process matches no recording."""
    program = (
        "from tallystick.inputs.shapes import shape_of\n"
        "words = 'alpha beta gamma delta epsilon zeta eta theta'.split()\n"
        "print(shape_of('\\n'.join(words + [each.title() for each in words])).remarks)"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }

    assert len(told) == 1


def test_a_shape_without_columns_has_only_lines() -> None:
    (view,) = Shape(name="lines", kind="lines").views(of="context", key=None)

    assert (view.name, view.kind, view.of, view.key) == ("lines", "lines", "context", None)
