"""What a program is given to read: views made on use, names that stay, files by their names."""

from __future__ import annotations

import json

import pytest
from tests.core.machine.test_machine import started
from tests.wasm_session import TestSession, open_session

from tallystick.inputs.layout import layout_of
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.context.namespace import names_of
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionResult, HostCall, HostNames
from tallystick.sandbox.wasm.sandbox import WasmSandbox

TABLE = "id,tons,note\nA-1,10,first\nA-2,250,\nA-3,7,third\n"
PRICES = "item,price\ncork,$1.50\nbricks,$2\n"


class Given:
    """A host that gives texts to read, laid out as a run lays them out, and serves no calls."""

    def __init__(self, texts: str | dict[str, str]) -> None:
        named = {"data.csv": texts} if isinstance(texts, str) else texts
        layout = layout_of([given_text(text, name=name) for name, text in named.items()])
        start = started(values=layout.values, views=layout.views, files=layout.files)
        self._names = names_of(start, layout.values)

    @property
    def names(self) -> HostNames:
        return self._names

    def serve(self, call: HostCall) -> bytes:
        raise AssertionError(f"nothing is to be called: {call.name}")


@pytest.fixture
def table() -> Given:
    return Given(TABLE)


def kept(result: ExecutionResult) -> object:
    assert result.error is None, result.error.traceback
    return result.metadata.get("names_kept")


# -- views -------------------------------------------------------------------------------------


def test_a_table_is_rows_with_numbers_and_lines_beside_them(
    session: TestSession, table: Given
) -> None:
    assert session.value("rows[1]", host=table) == "{'id': 'A-2', 'tons': 250, 'note': ''}"
    assert session.value("len(rows), len(lines), lines[0]", host=table) == (
        "(3, 4, 'id,tons,note')"
    )


def test_a_view_is_made_when_it_is_named_and_only_then(sandbox: WasmSandbox) -> None:
    long = Given("id,tons\n" + "".join(f"A-{place},{place}\n" for place in range(2_000)))
    fuel = {}
    for program in ("x = 1", "x = rows", "x = lines"):
        with open_session(sandbox) as session:
            fuel[program] = session.run(program, host=long).charge.fuel

    assert fuel["x = 1"] * 2 < fuel["x = lines"] < fuel["x = rows"]


def test_a_view_is_made_once_in_a_session(session: TestSession, table: Given) -> None:
    first = session.run("n = len(rows)", host=table)

    again = session.run("n = len(rows)", host=table)

    assert again.charge.fuel < first.charge.fuel
    assert session.value("rows is rows", host=table) == "True"


@pytest.mark.parametrize(
    "program",
    [
        "len(rows)",
        "[len(rows) for _ in range(1)][0]",
        "f'{len(rows)}'",
        "(lambda: len(rows))()",
        "def count():\n    return len(rows)\ncount()",
        "rows = [row for row in rows if True]\nlen(rows)",
        "def count(rows):\n    return len(rows)\ncount(rows)",
        "import json\nlen(rows)",
    ],
)
def test_a_view_is_found_wherever_a_program_names_it(
    session: TestSession, table: Given, program: str
) -> None:
    assert session.value(program, host=table) in ("3", "'3'")


@pytest.mark.parametrize(
    "program",
    [
        "def some():\n    rows = []\n    return rows\nlen(rows)",
        "total = [0 for rows in range(2)]\nlen(rows)",
        "if not context:\n    rows = []\nlen(rows)",
        "class Held:\n    rows = 5\nlen(rows)",
        "for name in ():\n    rows = name\nlen(rows)",
    ],
)
def test_a_name_of_a_function_or_of_a_branch_not_taken_does_not_hide_the_view(
    session: TestSession, table: Given, program: str
) -> None:
    assert session.value(program, host=table) == "3"


def test_a_view_that_a_program_has_bound_anew_is_the_program_s_own(
    session: TestSession, table: Given
) -> None:
    result = session.run("rows = [row for row in rows if row['tons'] < 100]", host=table)

    assert kept(result) is None
    assert session.value("len(rows)", host=table) == "2"
    assert "names_restored" not in session.run("rows", host=table).metadata


def test_a_view_that_a_program_makes_by_itself_is_not_made_for_it(
    session: TestSession, table: Given
) -> None:
    program = "lines = context.split(',')\nlen(lines)"

    assert session.value(program, host=table) == str(TABLE.count(",") + 1)


def test_a_view_that_was_deleted_is_made_again(session: TestSession, table: Given) -> None:
    session.value("len(rows)", host=table)
    session.value("del rows", host=table)

    assert session.value("len(rows)", host=table) == "3"


def test_views_of_earlier_inputs_are_forgotten_with_them(
    session: TestSession, table: Given
) -> None:
    assert session.value("len(rows)", host=table) == "3"
    assert session.value("len(rows), rows[0]['price']", host=Given(PRICES)) == "(2, 1.5)"
    error = session.run("rows", host=Given("one\ntwo\n")).error
    assert error is not None
    assert error.kind == "NameError"


# -- kinds of views ----------------------------------------------------------------------------


def test_several_files_are_dictionaries_by_file_name(session: TestSession) -> None:
    host = Given({"books/a.csv": TABLE, "books/b.csv": PRICES, "notes.txt": "one\ntwo\n"})

    assert session.value("{name: len(rows[name]) for name in rows}", host=host) == (
        "{'books/a.csv': 3, 'books/b.csv': 2}"
    )
    assert session.value("sorted(lines), lines['notes.txt']", host=host) == (
        "(['books/a.csv', 'books/b.csv', 'notes.txt'], ['one', 'two'])"
    )
    assert session.value("sorted(context) == sorted(lines)", host=host) == "True"


def test_a_line_of_json_may_hold_other_line_separators_in_its_strings(
    session: TestSession,
) -> None:
    text = '{"said": "one\u2028two"}\n{"said": "three\u0085"}\n'

    assert session.value("[r['said'] for r in records]", host=Given(text)) == (
        repr(["one\u2028two", "three\u0085"])
    )


def test_a_cell_may_hold_a_line_end_and_its_row_is_one(session: TestSession) -> None:
    text = 'id,note\nA-1,"first\nand second"\nA-2,"with ""quotes"", and a comma"\n'

    assert session.value("[row['note'] for row in rows]", host=Given(text)) == (
        repr(["first\nand second", 'with "quotes", and a comma'])
    )


def test_line_ends_of_another_system_are_none_of_the_values(session: TestSession) -> None:
    host = Given(TABLE.replace("\n", "\r\n"))

    assert session.value("rows[2], lines[0]", host=host) == (
        "({'id': 'A-3', 'tons': 7, 'note': 'third'}, 'id,tons,note')"
    )


def test_a_byte_order_mark_is_no_part_of_the_first_column(session: TestSession) -> None:
    assert session.value("rows[0]['id']", host=Given(f"\ufeff{TABLE}")) == "'A-1'"


def test_json_behind_a_byte_order_mark_is_still_json(session: TestSession) -> None:
    host = Given('\ufeff{"a": 1}\n{"a": 2}\n')

    assert session.value("[r['a'] for r in records]", host=host) == "[1, 2]"


@pytest.mark.parametrize(
    ("text", "program", "value"),
    [
        ("1 2\n3.5\n-4e2", "numbers", "[1, 2, 3.5, -400.0]"),
        ("1,2;3", "sum(numbers)", "6"),
        ('{"a": [1, null]}', "data['a']", "[1, None]"),
        ("[1, 2]", "data", "[1, 2]"),
        ("[1]\n[2]\n", "records", "[[1], [2]]"),
        ("a|b\nx|1\n\ny|2\n", "rows", "[{'a': 'x', 'b': 1}, {'a': 'y', 'b': 2}]"),
        (
            'n,p\n1,"$1,204.50"\n2,\n3,-$5\n',
            "[r['p'] for r in rows]",
            "[1204.5, None, -5.0]",
        ),
        ("code\tn\n007\t1\n008\t2\n", "[r['code'] for r in rows]", "['007', '008']"),
    ],
)
def test_every_kind_of_text_is_taken_apart_as_it_was_told(
    session: TestSession, text: str, program: str, value: str
) -> None:
    assert session.value(program, host=Given(text)) == value


# -- names that stay ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sample",
    [
        "rows = [{'id': 'A-1', 'tons': 10}]",
        "rows: list = [{'id': 'A-1', 'tons': -10}]",
        "rows = ({'id': 'A-1'}, {'id': None})",
    ],
)
def test_a_sample_that_is_typed_in_does_not_take_the_place_of_the_data(
    session: TestSession, table: Given, sample: str
) -> None:
    result = session.run(f"{sample}\nlen(rows)", host=table)

    assert kept(result) == ["rows"]
    assert result.value == "3"


@pytest.mark.parametrize(
    "program",
    [
        "rows = []\nfor line in lines:\n    rows.append(line)\nlen(rows)",
        "rows = {}\nrows['a'] = lines\nlen(rows) + 3",
        "rows = list(lines)\nlen(rows)",
        "def f():\n    rows = [1, 2, 3, 4]\n    return len(rows)\nf()",
    ],
)
def test_a_program_may_make_something_of_its_own_under_the_name_of_a_view(
    session: TestSession, table: Given, program: str
) -> None:
    result = session.run(program, host=table)

    assert kept(result) is None
    assert result.value == "4"


@pytest.mark.parametrize(
    "program",
    [
        "rows = 0\nfor line in lines:\n    rows += 1\nrows",
        "lines = 0\nfor row in rows:\n    lines += 1\nlines + 1",
        "rows = ''\nrows += 'four'\nlen(rows)",
    ],
)
def test_a_count_that_begins_at_nothing_is_no_sample_of_the_data(
    session: TestSession, table: Given, program: str
) -> None:
    result = session.run(program, host=table)

    assert kept(result) is None
    assert result.value == "4"


@pytest.mark.parametrize(
    "program",
    [
        "context = 'id,tons\\nA-1,10'\nlen(context)",
        "context: str = 'typed in'\nlen(context)",
        "context = open('data.csv').read()\nlen(context)",
        "context = ['a', 'b']\nlen(context)",
    ],
)
def test_what_would_take_the_place_of_the_text_is_left_out_and_told(
    session: TestSession, table: Given, program: str
) -> None:
    result = session.run(program, host=table)

    assert kept(result) == ["context"]
    assert result.value == str(len(TABLE))


def test_what_is_made_of_the_text_itself_holds_for_the_program_and_no_longer(
    session: TestSession, table: Given
) -> None:
    result = session.run("context = context.upper()\ncontext[:2]", host=table)

    assert kept(result) is None
    assert result.value == "'ID'"
    after = session.run("context[:2]", host=table)
    assert after.value == "'id'"
    assert after.metadata["names_restored"] == ["context"]


def test_a_program_of_nothing_but_what_is_left_out_runs(session: TestSession, table: Given) -> None:
    result = session.run("context = 'typed in'", host=table)

    assert kept(result) == ["context"]
    assert result.value is None


def test_without_data_the_same_names_are_a_program_s_own(session: TestSession) -> None:
    host = HostTable(answering=True)

    result = session.run("rows = [{'id': 1}]\ncontext = 'mine'\n(rows, context)", host=host)

    assert kept(result) is None
    assert result.value == "([{'id': 1}], 'mine')"


# -- what the last line was assigned to --------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "assigned"),
    [
        ("total = sum(row['tons'] for row in rows)", ("total", "267")),
        ("total = 1\ntotal += 2", ("total", "3")),
        ("names = [row['id'] for row in rows]", ("names", "['A-1', 'A-2', 'A-3']")),
        ("total = 5\nprint(total)", None),
        ("total = 5\ntotal", None),
        ("a, b = 1, 2", None),
        ("a = b = 1", None),
        ("held = {}\nheld['a'] = 1", None),
    ],
)
def test_the_value_of_a_last_line_that_assigns_is_told_with_its_name(
    session: TestSession, table: Given, program: str, assigned: tuple[str, str] | None
) -> None:
    assert session.run(program, host=table).metadata.get("assigned") == assigned


def test_a_long_value_that_was_assigned_is_told_in_short(
    session: TestSession, table: Given
) -> None:
    found = session.run("held = ['x' * 5_000] * 5_000", host=table).metadata["assigned"]

    assert isinstance(found, tuple)
    assert len(found[1]) < 15_000


# -- files -------------------------------------------------------------------------------------


@pytest.fixture
def books() -> Given:
    return Given({"books/a.csv": TABLE, "books/b.csv": "naïve,x\n1,2\n3,4\n"})


@pytest.mark.parametrize(
    "opened",
    [
        "open('books/a.csv')",
        "open('a.csv')",
        "open('/some/where/a.csv')",
        "open('a.csv', 'r', encoding='utf-8', newline='')",
        "open(file='a.csv')",
        "__import__('io').open('a.csv')",
        "__import__('pathlib').Path('books/a.csv').open()",
    ],
)
def test_a_text_is_opened_by_its_name_or_the_last_part_of_it(
    session: TestSession, books: Given, opened: str
) -> None:
    assert session.value(f"with {opened} as f:\n    x = f.read()\nx", host=books) == repr(TABLE)


def test_an_open_text_is_read_by_lines_and_by_the_csv_module(
    session: TestSession, books: Given
) -> None:
    program = "import csv\n[row['tons'] for row in csv.DictReader(open('a.csv'))]"

    assert session.value("open('a.csv').readlines()[0]", host=books) == "'id,tons,note\\n'"
    assert session.value(program, host=books) == "['10', '250', '7']"


def test_a_text_opened_as_bytes_is_its_bytes(session: TestSession, books: Given) -> None:
    assert session.value("open('b.csv', 'rb').read()[:6]", host=books) == repr("naïve".encode())


def test_the_one_text_of_a_run_is_opened_by_its_name(session: TestSession, table: Given) -> None:
    assert session.value("open('data.csv').read() == context", host=table) == "True"


@pytest.mark.parametrize("name", ["c.csv", "books", "a.csv/", "", ".", "../a.csvx", "/etc/passwd"])
def test_any_other_name_is_refused_with_the_capability_it_would_need(
    session: TestSession, books: Given, name: str
) -> None:
    result = session.run(f"open({name!r})", host=books)

    assert result.error is not None
    assert result.error.kind == "SandboxViolation"
    assert result.metadata["capability"] == "files.read"


@pytest.mark.parametrize("mode", ["w", "a", "x", "r+", "wb", "rb+"])
def test_no_text_is_opened_for_writing(session: TestSession, books: Given, mode: str) -> None:
    result = session.run(f"open('a.csv', {mode!r})", host=books)

    assert result.error is not None
    assert result.metadata["capability"] == "files.write"
    assert session.value("open('a.csv').read()", host=books) == repr(TABLE)


def test_a_name_that_two_files_end_in_opens_neither(session: TestSession) -> None:
    host = Given({"2023/a.csv": TABLE, "2024/a.csv": PRICES})

    assert session.run("open('a.csv')", host=host).error is not None
    assert session.value("open('2024/a.csv').readline()", host=host) == "'item,price\\n'"


def test_what_is_written_to_an_open_text_changes_nothing(
    session: TestSession, table: Given
) -> None:
    session.run("open('data.csv').write('changed')", host=table)

    assert session.value("open('data.csv').read() == context", host=table) == "True"
    assert session.value("context", host=table) == repr(TABLE)


def test_without_data_no_file_can_be_opened(session: TestSession) -> None:
    result = session.run("open('data.csv')", host=HostTable(answering=True))

    assert result.metadata["capability"] == "files.read"


# -- programs that break what the views are made with ------------------------------------------

POISONS = {
    "csv.reader": "import csv\ncsv.reader = csv.DictReader = None",
    "the csv module": "import csv\nfor n in dir(csv):\n    if n[:2] != '__': delattr(csv, n)",
    "the field limit": "import csv\ncsv.field_size_limit(2)",
    "ast.parse": "import ast\nast.parse = ast.walk = None",
    "ast classes": "import ast\nast.Name = ast.Load = ast.Assign = ast.Constant = int",
    "ast.iter_child_nodes": "import ast\nast.iter_child_nodes = ast.iter_fields = None",
    "the ast module": "import ast\nfor n in dir(ast):\n    if n[:2] != '__': delattr(ast, n)",
    "io.StringIO": "import io\nio.StringIO = io.BytesIO = None",
    "json.loads": "import json\njson.loads = None",
    "re.split": "import re\nre.split = None",
    "injected names": "context = FINAL = answer = None",
}  # fmt: skip
SEVERAL = {"a.csv": TABLE, "b.jsonl": '{"a": 1}\n{"a": 2}\n', "c.txt": "1 2 3\n4"}


@pytest.mark.parametrize("poison", POISONS)
def test_a_program_that_breaks_modules_does_not_break_the_turns_after_it(
    session: TestSession, poison: str
) -> None:
    host = Given(SEVERAL)
    session.run(POISONS[poison], host=host)

    result = session.run("FINAL([len(rows), len(records), len(numbers), len(lines)])", host=host)

    assert result.error is None, result.error.traceback
    assert json.loads(str(result.metadata["answer"])) == [1, 1, 1, 3]
