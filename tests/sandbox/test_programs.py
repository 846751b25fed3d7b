"""What a program finds: full Python, its own namespace, readable errors."""

from tests.support import TestSession


def test_the_last_expression_is_the_value(session: TestSession) -> None:
    assert session.value("x = 40\nx + 2") == "42"
