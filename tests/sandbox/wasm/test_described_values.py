"""What a result says about the value of a last assignment: told without the program's own code."""

import pytest
from tests.wasm_session import TestSession

from tallystick.sandbox.host import HostTable

HOST = HostTable(answering=True)


def assigned(session: TestSession, program: str) -> str:
    result = session.run(program, host=HOST, fuel=2_000_000_000)
    assert (result.stop, result.error) == ("finished", None)
    found = result.metadata["assigned"]
    assert isinstance(found, tuple)
    assert found[0] == "a"
    return str(found[1])


# Each way in which a class can have code of its own run when a value of it is looked at.
HOSTILE = {
    "repr": "class A:\n    def __repr__(self):\n        print('ran')\n        while True: pass",
    "repr of a list": "class A(list):\n    def __repr__(self):\n        print('ran')",
    "repr of a str": "class A(str):\n    def __repr__(self):\n        print('ran')",
    "repr of an int": "class A(int):\n    def __repr__(self):\n        print('ran')",
    "items of a dict": "class A(dict):\n    def items(self):\n        print('ran')",
    "length": "class A(list):\n    def __len__(self):\n        print('ran')\n        return 1",
    "every attribute": "class A:\n    def __getattribute__(self, name):\n        print('ran')",
    "class": "class A:\n    @property\n    def __class__(self):\n        print('ran')",
    "dict": "class A:\n    @property\n    def __dict__(self):\n        print('ran')",
    "a metaclass that hashes": (
        "class M(type):\n"
        "    def __hash__(self):\n        print('ran')\n        return 1\n"
        "    def __eq__(self, other):\n        print('ran')\n        return True\n"
        "class A(metaclass=M): pass\nprinted = M"
    ),
    "a metaclass with a name": (
        "class M(type):\n    @property\n    def __name__(self):\n        print('ran')\n"
        "class A(metaclass=M): pass"
    ),
    "a data class": (
        "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
        "    def __getattribute__(self, name):\n        print('ran')"
    ),
    "an instance check": (
        "import abc\nclass A(abc.ABC):\n    def __repr__(self):\n        print('ran')"
    ),
}
HELD = ("A()", "[A()]", "{'k': A()}", "({0: [A()]},)", "__import__('collections').deque([A()])")


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("case", HOSTILE)
def test_a_last_assignment_runs_no_code_of_the_value(
    session: TestSession, case: str, held: str
) -> None:
    result = session.run(f"{HOSTILE[case]}\na = {held}", host=HOST, fuel=2_000_000_000)

    assert (result.stop, result.error, result.stdout) == ("finished", None, "")
    assert "assigned" in result.metadata


def test_a_set_is_shown_without_comparing_its_items(session: TestSession) -> None:
    program = (
        "class A:\n    def __lt__(self, other):\n        print('ran')\n        return True\n"
        "a = {A(), A(), A()}"
    )

    assert session.run(program, host=HOST).stdout == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("42", "42"),
        ("-1.5", "-1.5"),
        ("None", "None"),
        ("'x'", "'x'"),
        ("b'x'", "b'x'"),
        ("[1, 'two', (3,), {4}]", "[1, 'two', (3,), {4}]"),
        ("{'k': [1, 2]}", "{'k': [1, 2]}"),
        ("set()", "set()"),
        ("frozenset({2, 1})", "frozenset({1, 2})"),
        ("range(3)", "range(0, 3, 1)"),
        ("__import__('collections').Counter('aab')", "Counter({'a': 2, 'b': 1})"),
        ("__import__('collections').OrderedDict(a=1)", "OrderedDict({'a': 1})"),
        ("__import__('fractions').Fraction(1, 3)", "Fraction(1, 3)"),
        ("__import__('decimal').Decimal('1.5')", "Decimal('1.5')"),
        ("__import__('datetime').date(2026, 1, 2)", "datetime.date(2026, 1, 2)"),
        ("__import__('collections').namedtuple('P', 'x y')(1, 2)", "P(x=1, y=2)"),
        ("len", "<builtin_function_or_method object>"),
        ("lambda: 1", "<function <lambda>>"),
        ("int", "<class 'int'>"),
        ("__import__('json')", "<module 'json'>"),
        ("object()", "<object object>"),
    ],
)
def test_an_ordinary_value_is_shown_as_it_is(session: TestSession, value: str, shown: str) -> None:
    assert assigned(session, f"a = {value}") == shown


def test_a_data_class_is_shown_by_its_fields(session: TestSession) -> None:
    program = (
        "import dataclasses\n@dataclasses.dataclass{}\nclass Point:\n    x: int\n    y: list\n"
        "a = Point(1, [2])"
    )

    for options in ("", "(slots=True)", "(frozen=True)"):
        assert assigned(session, program.format(options)) == "Point(x=1, y=[2])"


@pytest.mark.parametrize(
    "value",
    [
        "'x' * 50_000_000",
        "b'x' * 50_000_000",
        "10 ** 400_000",
        "list(range(1_000_000))",
        "[[[['x' * 1000] * 100] * 100] * 100] * 100",
        "dict.fromkeys(range(100_000))",
        "__import__('decimal').Decimal('9' * 100_000)",
    ],
)
def test_a_long_value_is_told_in_little(session: TestSession, value: str) -> None:
    assert len(assigned(session, f"a = {value}")) <= 4_096


def test_a_value_that_holds_itself_is_told(session: TestSession) -> None:
    assert assigned(session, "b = []\nb.append(b)\na = b") == "[[[[[...]]]]]"


def test_variables_are_listed_without_asking_their_metaclass(session: TestSession) -> None:
    result = session.run(f"{HOSTILE['a metaclass with a name']}\nb = A()\nSHOW_VARS()", host=HOST)

    assert (result.error, result.stdout) == (None, "")
