"""Docstrings in the styles that people write: the summary, and what each argument is."""

from __future__ import annotations

import pytest

from tallystick.tools.docstrings import described

GOOGLE = """Send a mail
to one person.

Longer text.

Args:
    to (str): The address,
        such as ann@example.org.
    body: The text: plain.
    **more: Others.

Returns:
    str: The id of the mail.

Raises:
    ValueError: if not.
"""
NUMPY = """Send a mail to one person.

Parameters
----------
to : str
    The address,
    such as ann@example.org.
body
    The text: plain.
cc, bcc : str, optional
    Others.

Returns
-------
str
    The id of the mail.
"""
REST = """Send a mail to one person.

:param str to: The address,
    such as ann@example.org.
:param body: The text: plain.
:type body: str
:returns: The id of the mail.
"""


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_every_style_gives_the_summary_and_the_arguments(docstring: str) -> None:
    found = described(docstring)

    assert found.summary.rstrip(".") == "Send a mail to one person"
    assert found.arguments["to"] == "The address, such as ann@example.org."
    assert found.arguments["body"] == "The text: plain."
    assert "Returns" not in found.arguments
    assert "str" not in found.arguments


def test_two_arguments_of_numpy_may_share_a_description() -> None:
    assert described(NUMPY).arguments["bcc"] == described(NUMPY).arguments["cc"] == "Others."


@pytest.mark.parametrize(
    ("docstring", "summary"),
    [
        (None, ""),
        ("", ""),
        ("One line.", "One line."),
        ("\n    Indented.\n\n    More.\n    ", "Indented."),
        ("Args:\n    a: the first", ""),
        ("Note: this is a sentence.", "Note: this is a sentence."),
        ("Returns the rate.", "Returns the rate."),
        ("The text.\n:param a: one", "The text."),
        ("The text.\nArgs:\n  a: one", "The text."),
    ],
)
def test_the_summary_is_the_first_paragraph(docstring: str | None, summary: str) -> None:
    assert described(docstring).summary == summary


def test_text_without_a_style_has_no_arguments() -> None:
    assert described("Look.\n\nThe key: any text.\nArgs are fine.").arguments == {}


def test_an_item_with_code_in_it_is_kept_whole() -> None:
    doc = "Look.\n\nArgs:\n    key: as in `{'a': 1}`:\n        deeper: yes\n    other: x"

    assert described(doc).arguments == {"key": "as in `{'a': 1}`: deeper: yes", "other": "x"}
