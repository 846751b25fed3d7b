"""What a Python program uses, as it is read from its source."""

import builtins
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.vocabulary.program import DEPTH_MAX, PROGRAM_CHARS_MAX, read_python
from tallystick.vocabulary.python_names import BUILTINS, MODULES


def names(source: str, origin: str = "free", **given: str) -> list[str]:
    program = read_python(source, given=given)
    assert program.problem is None
    return [name.path for name in program.names if name.origin == origin]


@pytest.mark.parametrize(
    ("source", "free"),
    [
        ("lookup(1)", ["lookup"]),
        ("crm.customer.find(1).name.strip()", ["crm.customer.find"]),
        ("x = crm.url", ["crm.url"]),
        ("report.title = 1", ["report.title"]),
        ("list(map(lookup, []))", ["lookup"]),
        ("f'{lookup(1)}'", ["lookup"]),
        ("@cached\ndef f(): pass", ["cached"]),
        ("def f(a: Money = zero) -> Money: ...", ["Money", "zero"]),
        ("import requests", ["requests"]),
        ("import a.b.c", ["a.b.c"]),
        ("import a.b\na.b.f()", ["a.b", "a.b.f"]),
        ("from requests import get as g\ng(1)", ["requests.get"]),
        ("import numpy as np\nnp.linalg.norm(1)", ["numpy", "numpy.linalg.norm"]),
        ("from a import *", ["a.*"]),
        ("lookup(1)\nlookup(2)", ["lookup"]),
    ],
)
def test_calls_paths_and_imports_are_names(source: str, free: list[str]) -> None:
    assert names(source) == free


@pytest.mark.parametrize(
    "source",
    [
        "",
        "1 + 1",
        "print(len([]), __name__, _)",
        "import json, os.path\nfrom re import findall\njson.loads(findall('', '')[0])",
        "from __future__ import annotations",
        "from . import mine\nmine()",
        "x = 1\nx.anything().at.all",
        "def f(a, *b, c=1, **d): return f(a, b, c, d)",
        "class A:\n    y = 1\nA().y",
        "for i, (j, *k) in []: i, j, k",
        "with open('x') as file: file.read()",
        "try: 1\nexcept ValueError as error: error.args",
        "[a for a in [] if (b := a)]\nb",
        "lambda q: q.z",
        "match 1:\n    case [a, *b]: a, b\n    case {'k': c, **d}: c, d\n    case e: e",
        "def f():\n    global g\n    g = 1\ng",
        "'a'.join([]).strip()",
        "[1][0].imag",
        "del x",
    ],
)
def test_what_is_pythons_or_the_programs_own_is_not_free(source: str) -> None:
    assert names(source) == []


def test_names_that_are_given_are_not_free() -> None:
    assert names("context.search('a')\nrows[0]", context="", rows="") == []


def test_what_an_earlier_program_imported_goes_by_the_path_of_its_module() -> None:
    first = read_python("import numpy as np\nimport os\nx = 1\ndef f(inner): pass")

    assert first.kept == {"np": "numpy", "os": "os", "x": "", "f": ""}
    assert names("np.sum(x, f)\nos.getcwd()\ninner", **first.kept) == ["numpy.sum", "inner"]


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("if a:\n    b = 1\nelse:\n    with c as d: e = 2", {"b", "d", "e"}),
        ("def f():\n    x = 1\n    import y", {"f"}),
        ("def f():\n    global g\n    g = 1", {"f", "g"}),
        ("class A:\n    x = 1", {"A"}),
        ("[x for x in y]", set()),
        ("any((z := x) for x in y)", {"z"}),
    ],
)
def test_only_what_is_bound_outside_of_functions_and_classes_is_kept(
    source: str, kept: set[str]
) -> None:
    assert set(read_python(source).kept) == kept


def test_a_name_that_is_also_imported_keeps_the_path_where_it_is_assigned() -> None:
    assert "os.system" in names("import os as o\no = o\no.system('x')", "own")


def test_texts_are_read_where_they_stand_in_a_call() -> None:
    program = read_python(
        "from crm import find as f\n"
        "f('a', *['no'], key='b', many=['c', 'd'], by={'e': 'f'}, g=f'{1}x', h='i' + 'j', n=3)\n"
        "f('a').g('not')\n"
    )

    assert [(each.path, each.text) for each in program.arguments] == [
        ("crm.find", text) for text in ("a", "no", "b", "c", "d", "e", "f", "ij")
    ]
    assert program.computed == {"crm.find": 2}


def test_a_program_that_does_not_parse_has_a_problem_and_nothing_else() -> None:
    program = read_python("x = = 1")

    assert program.problem is not None
    assert (program.problem.kind, program.problem.why) == ("syntax", "line 1: invalid syntax")
    assert program.names == ()


@pytest.mark.parametrize("source", ["a\0b", "\ud800 = 1", "x = '\udfff'", "\ufeff\x0c\x1a"])
def test_characters_that_no_program_has_are_a_problem_of_syntax(source: str) -> None:
    problem = read_python(source).problem

    assert problem is not None
    assert problem.kind == "syntax"


@pytest.mark.parametrize(
    "source",
    [
        "lookup(1)\n" * 1_000_000,
        "#" * (PROGRAM_CHARS_MAX + 1),
        "a" + ".b" * (DEPTH_MAX + 1),
        "a" + "[0]" * 2_000,
        "1" + "+1" * 30_000,
        "not " * 10_000 + "1",
    ],
    ids=lambda source: f"{source[:8]}…{len(source)}",
)
def test_a_program_beyond_the_limits_is_not_read(source: str) -> None:
    problem = read_python(source).problem

    assert problem is not None
    assert problem.kind == "unread"


def test_a_program_at_the_limit_is_read() -> None:
    assert read_python("#" * PROGRAM_CHARS_MAX).problem is None
    assert names("a" + ".b" * DEPTH_MAX) == ["a" + ".b" * DEPTH_MAX]


def test_every_name_of_this_interpreter_is_on_the_lists() -> None:
    assert {name for name in dir(builtins) if not name.startswith("_")} <= BUILTINS
    assert {name for name in sys.stdlib_module_names if not name.startswith("_")} <= MODULES


@given(st.text(alphabet=st.characters(), max_size=80))
def test_reading_any_text_gives_a_program_or_a_problem(source: str) -> None:
    program = read_python(source)

    assert program.problem is None or not program.names
