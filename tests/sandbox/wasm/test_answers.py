"""How a program answers: `answer`, `FINAL`, `FINAL_VAR`, and what the host reads of it."""

import pytest
from tests.wasm_session import TestSession

from tallystick.sandbox.host import HostTable
from tallystick.sandbox.text import HostText

HOST = HostTable(answering=True)


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("FINAL('done')", "done"),
        ("FINAL(42)", "42"),
        ("Final(42)", "42"),
        ("final_answer(42)", "42"),
        ("final = 1\nFINAL(final)", "1"),
        ("FINAL([1, {'a': None}])", '[1,{"a":null}]'),
        ("FINAL({1, 2})", "{1, 2}"),
        ("FINAL(float('nan'))", "nan"),
        ("FINAL('')", ""),
        ("x = 6 * 7\nFINAL_VAR('x')", "42"),
        ("FINAL_VAR([1])", "[1]"),
        ("answer['content'] = 'set'\nanswer['ready'] = True", "set"),
        ("FINAL('first'); FINAL('second')", "second"),
        ("def f():\n    FINAL('inside')\nf()", "inside"),
    ],
)
def test_a_program_answers(session: TestSession, program: str, answer: str) -> None:
    assert session.run(program, host=HOST).metadata["answer"] == answer


@pytest.mark.parametrize(
    "program", ["1", "answer['content'] = 1", "answer['ready'] = False", "FINAL"]
)
def test_a_program_that_does_not_say_it_is_ready_has_not_answered(
    session: TestSession, program: str
) -> None:
    assert "answer" not in session.run(program, host=HOST).metadata


def test_an_unknown_variable_is_an_error_that_lists_the_known(session: TestSession) -> None:
    session.run("total = 1\nimport json", host=HOST)

    error = session.run("FINAL_VAR('nosuch')", host=HOST).error

    assert error is not None
    assert error.kind == "NameError"
    assert "total: int" in error.message


def test_an_answer_is_forgotten_before_the_next_program(session: TestSession) -> None:
    session.run("FINAL(1)", host=HOST)

    assert "answer" not in session.run("2", host=HOST).metadata


def test_an_answer_of_a_program_that_failed_afterwards_still_counts(session: TestSession) -> None:
    result = session.run("FINAL('known')\n1 / 0", host=HOST)

    assert result.error is not None
    assert result.metadata["answer"] == "known"


def test_a_rebound_final_is_back_in_the_next_program(session: TestSession) -> None:
    session.run("FINAL = answer = None", host=HOST)

    result = session.run("FINAL('back')", host=HOST)

    assert result.metadata["answer"] == "back"
    assert result.metadata["names_restored"] == ["answer", "FINAL"]


def test_variables_are_listed_without_what_the_run_injected(session: TestSession) -> None:
    session.run("rows = [1]\nname = 'n'", host=HOST)

    assert session.value("SHOW_VARS()", host=HOST) == "'Variables: rows: list, name: str'"


def test_without_answering_the_names_are_not_there(session: TestSession) -> None:
    assert session.run("FINAL(1)").error is not None


def test_values_are_given_to_the_program_and_come_back_when_rebound(session: TestSession) -> None:
    host = HostTable(values={"context": "a\nb", "rows": [1, {"k": None}]})

    assert session.value("context.split(), rows", host=host) == "(['a', 'b'], [1, {'k': None}])"
    session.run("context = 'lost'", host=host)
    assert session.value("context", host=host) == "'a\\nb'"


def test_texts_under_keys_are_a_dictionary(session: TestSession) -> None:
    host = HostTable(texts={"context": {"a.log": HostText.of("one"), "b.log": HostText.of("two")}})

    assert session.value("{name: text[:] for name, text in context.items()}", host=host) == (
        "{'a.log': 'one', 'b.log': 'two'}"
    )
