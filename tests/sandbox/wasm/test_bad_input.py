"""Bad programs: one clear result each, and the session goes on."""

import pytest
from tests.wasm_session import TestSession


@pytest.mark.parametrize(
    ("program", "kind", "says"),
    [
        (b"x = '\xff\xfe'", "SyntaxError", "not UTF-8"),
        (b"\x80", "SyntaxError", "not UTF-8"),
        ("x = '\ud800'", "SyntaxError", "not UTF-8"),
        (b"#" * (10 * 1024 * 1024), "ProgramTooLong", "at most 1,048,576"),
        ("x = 'a\0b'\n1 +", "SyntaxError", ""),
        ("def", "SyntaxError", "invalid syntax"),
        ("  x = 1", "IndentationError", "unexpected indent"),
        ("if True:\nx = 1", "IndentationError", "expected an indented block"),
        ("print('unclosed", "SyntaxError", "unterminated"),
        ("return 1", "SyntaxError", "'return' outside function"),
        ("x = 08", "SyntaxError", "leading zeros"),
        ("await", "SyntaxError", "invalid syntax"),
        ("from __future__ import nosuch", "SyntaxError", "nosuch"),
        ("import nosuch_module", "ModuleNotFoundError", "nosuch_module"),
    ],
)
def test_a_bad_program_is_one_clear_result(
    session: TestSession, program: str | bytes, kind: str, says: str
) -> None:
    result = session.run(program)

    assert result.stop == "finished"
    assert result.exit_code == 1
    assert result.error is not None
    assert result.error.kind == kind
    assert says in result.error.message
    assert session.value("1 + 1") == "2"


@pytest.mark.parametrize(
    "program",
    [
        "\ufeff1 + 1",
        "1 + 1\r\n",
        "\r\n\r\n1 + 1",
        "\f1 + 1",
        "1 + 1 # \u2028",
        "# coding: latin-1\n1 + 1",
    ],
)
def test_odd_but_good_source_runs(session: TestSession, program: str) -> None:
    assert session.value(program) == "2"


def test_source_at_the_size_limit_runs_and_beyond_it_does_not(session: TestSession) -> None:
    program = "1 + 1\n#" + "x" * 1_000

    assert session.value(program, source_bytes=len(program)) == "2"
    error = session.run(program, source_bytes=len(program) - 1).error
    assert error is not None
    assert error.kind == "ProgramTooLong"


@pytest.mark.parametrize("depth", [50, 500, 20_000])
def test_nesting_of_any_depth_ends_in_a_result(session: TestSession, depth: int) -> None:
    for source in ("(" * depth + ")" * depth, "-" * depth + "1", "[" * depth, "x" + ".y" * depth):
        result = session.run(f"x = None\n{source}")
        assert result.stop in ("finished", "trap")
    assert session.value("1 + 1") == "2"
