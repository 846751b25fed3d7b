"""What is said beside an error: names that are there, and nothing that could be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.machine.test_machine import started

from tallystick.core.machine.prompt import advice, data_names, uses_data
from tallystick.core.records import ContextRef, ProgramFailure, RunStarted, ViewRef

CONTEXT = ContextRef(name="context", sha256="a", bytes=9, chars=9, sample="...")
LINES = ViewRef(name="lines", kind="lines", of="context")
ROWS = ViewRef(
    name="rows", kind="table", of="context", columns=(("vessel", "str"), ("tons", "int"))
)
TABLE = started(contexts=(CONTEXT,), views=(LINES, ROWS))


def failure(kind: str, message: str = "", traceback: str = "") -> ProgramFailure:
    return ProgramFailure(kind=kind, message=message, traceback=traceback)


def test_the_most_useful_name_of_the_data_comes_first_and_the_text_itself_last() -> None:
    assert data_names(TABLE) == ("rows", "lines", "context")
    assert data_names(started()) == ()


def test_views_of_several_files_are_named_once() -> None:
    views = tuple(
        ViewRef(name=name, kind="lines", of="context", key=key)
        for key in ("a", "b")
        for name in ("lines", "rows")
    )

    assert data_names(started(contexts=(CONTEXT,), views=views)) == ("rows", "lines", "context")


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("for row in rows: print(row)", True),
        ("print(len(lines))", True),
        ("context[:5]", True),
        ("open('vessels.csv')", True),
        ("rowspan = 1", False),
        ("my_rows = contexts = 2", False),
        ("print(6 * 7)", False),
        ("", False),
    ],
)
def test_a_program_reads_the_data_if_it_names_it_or_opens_it(source: str, reads: bool) -> None:
    assert uses_data(source, TABLE) is reads


@pytest.mark.parametrize(
    "failed",
    [
        failure("SandboxViolation", "open('x.csv') needs the capability files.read, which ..."),
        failure("SandboxViolation", "os.listdir('.') needs the capability files.read, which ..."),
        failure("FileNotFoundError", "open('x.csv')"),
    ],
)
def test_a_file_that_is_none_is_answered_with_the_names_of_the_data(
    failed: ProgramFailure,
) -> None:
    hint = advice(failed, TABLE)

    assert hint == (
        "There are no such files. The data is already there: `rows`, `lines`, `context`."
    )
    assert advice(failed, started()) == "There are no files here."


def test_a_module_that_is_not_there_is_answered_with_what_can_be_imported() -> None:
    failed = failure("ModuleNotFoundError", "No module named 'pandas'")

    assert advice(failed, TABLE) == (
        "Only the standard library can be imported. "
        "The data is already there: `rows`, `lines`, `context`."
    )
    assert advice(failed, started()) == "Only the standard library can be imported."


def test_a_column_that_is_none_is_answered_with_those_there_are() -> None:
    hint = advice(failure("KeyError", "'name'"), TABLE)

    assert hint == "The keys of `rows` are: 'vessel', 'tons'"


def test_the_columns_of_several_files_are_told_by_file() -> None:
    views = tuple(
        ViewRef(name="rows", kind="table", of="context", key=key, columns=((column, "str"),))
        for key, column in (("a.csv", "x"), ("b.csv", "y"))
    )

    hint = advice(failure("KeyError", "'name'"), started(contexts=(CONTEXT,), views=views))

    assert hint == "The keys of `rows['a.csv']` are: 'x'\nThe keys of `rows['b.csv']` are: 'y'"


@pytest.mark.parametrize(
    ("failed", "start"),
    [
        (failure("KeyError", "'tons'"), TABLE),
        (failure("KeyError", "'name'"), started(contexts=(CONTEXT,), views=(LINES,))),
        (failure("NameError", "no name in it"), TABLE),
        (failure("EOFError", "EOF when reading a line", "data = pickle.load(f)"), TABLE),
        (failure("SandboxViolation", "socket() needs the capability network"), TABLE),
        (failure("ZeroDivisionError", "division by zero"), TABLE),
        (failure("WallExceeded", "wall: 100 ms"), TABLE),
    ],
)
def test_where_nothing_is_certain_nothing_is_said(
    failed: ProgramFailure, start: RunStarted
) -> None:
    assert advice(failed, start) is None


def test_a_name_that_is_not_defined_is_answered_with_where_the_data_is() -> None:
    failed = failure("NameError", "name 'df' is not defined")

    assert advice(failed, TABLE) == (
        "`df` was never defined: import or define it first. "
        "The data is in `rows`, `lines`, `context`."
    )
    assert advice(failed, started()) == "`df` was never defined: import or define it first."


def test_text_without_quotes_is_answered_with_how_it_is_quoted() -> None:
    failed = failure("NameError", "name 'Paris' is not defined", "    FINAL(Paris)\nNameError")

    assert advice(failed, TABLE) == "Text needs quotes: FINAL('Paris')."


def test_who_waits_for_input_is_told_that_nobody_answers() -> None:
    failed = failure("EOFError", "EOF when reading a line", "name = input('name? ')\nEOFError")

    assert advice(failed, TABLE) == "Nobody answers input(). Take values from the data."


def test_of_many_columns_twenty_are_told_and_of_many_files_four() -> None:
    columns = tuple((f"column{place}", "str") for place in range(30))
    views = tuple(
        ViewRef(name="rows", kind="table", of="context", key=f"{place}.csv", columns=columns)  # type: ignore[arg-type]
        for place in range(9)
    )

    hint = advice(failure("KeyError", "'name'"), started(contexts=(CONTEXT,), views=views))

    assert hint is not None
    assert hint.count("\n") == 3
    assert "'column19'" in hint
    assert "'column20'" not in hint


@given(
    kind=st.sampled_from(
        ["KeyError", "NameError", "ImportError", "SandboxViolation", "EOFError", "ValueError"]
    ),
    message=st.text(max_size=40) | st.just("open('x')"),
    traceback=st.text(max_size=40) | st.just("input()"),
)
def test_any_failure_gets_a_short_hint_or_none(kind: str, message: str, traceback: str) -> None:
    hint = advice(failure(kind, message, traceback), TABLE)

    assert hint is None or 0 < len(hint) < 300
