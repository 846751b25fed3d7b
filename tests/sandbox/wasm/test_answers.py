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


# -- long answers, and results that a program forges ---------------------------------------------

MIB = 1024 * 1024
# The program puts itself in the place of what sends its result.
FORGE = """
import json, sys
from wit_world.imports import host
def forge(**result):
    raw = json.dumps(result, ensure_ascii=False).encode()
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    frame.f_globals['_emit'] = lambda _: host.stdio(3, id(raw) + bytes.__basicsize__ - 1, len(raw))
"""


def test_a_long_answer_is_an_answer(session: TestSession) -> None:
    result = session.run("FINAL('x' * 2_000_000)", host=HOST)

    assert (result.stop, result.error) == ("finished", None)
    assert result.metadata["answer"] == "x" * 2_000_000


@pytest.mark.parametrize("piece", ["'x'", "'\\n'", "'é'", "'\\U0001f600'"])
def test_an_answer_exactly_at_the_output_limit_is_one(session: TestSession, piece: str) -> None:
    size = len(eval(piece).encode())
    program = f"print('12345')\nFINAL({piece} * ({MIB} // {size}))"

    assert session.run(program, host=HOST, output_bytes=MIB + 6).stop == "finished"
    assert session.run(program, host=HOST, output_bytes=MIB + 5).stop == "output"


def test_an_answer_beyond_the_output_limit_says_so_and_undoes_the_program(
    session: TestSession,
) -> None:
    session.run("kept = 1", host=HOST)

    result = session.run("kept = 2\nFINAL('x' * 1001)", host=HOST, output_bytes=1_000)

    assert result.stop == "output"
    assert result.error is not None
    assert "an answer of 1,001 bytes" in result.error.message
    assert session.value("kept", host=HOST) == "1"


@pytest.mark.parametrize("limit", [0, 10, 1_000, 100_000])
@pytest.mark.parametrize("field", ["value", "message", "traceback", "kind", "answer", "capability"])
def test_a_forged_result_carries_no_more_than_the_output_limit(
    session: TestSession, field: str, limit: int
) -> None:
    program = f"{FORGE}forge(ok={field in ('value', 'answer')}, {field}='é' * 400_000)"
    result = session.run(program, host=HOST, output_bytes=limit)
    error = result.error
    texts = [result.value, result.metadata.get("answer"), result.metadata.get("capability")]
    texts += [] if error is None else [error.kind, error.message, error.traceback]
    carried = [len(str(text or "").encode()) for text in texts]

    # The texts of an error keep their first kilobyte under any limit.
    assert max(carried) <= max(limit, 1_024)
    assert max(carried[:2]) <= limit
    assert field != "answer" or result.stop == "output"


def test_a_forged_result_that_is_longer_than_any_ends_the_program(session: TestSession) -> None:
    program = f"{FORGE}forge(ok=True, value='x' * {2 * MIB})"

    assert session.run(program, host=HOST, output_bytes=1_000).stop == "output"
