"""Two texts side by side: what is shown leads from one to the other, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.views.test_run_difference import mirrored_diff

from tallystick.core.views.difference import unified_diff

EXAMPLES = settings().max_examples
# Few lines, so that they repeat: that is where the two sides could be taken unequally.
texts = st.lists(st.sampled_from(["a", "b", "", "c\r", "-", "+x", "@@"]), max_size=30).map(
    "\n".join
)


def applied(text: str, diff: tuple[str, ...]) -> str:
    """The other text, from this one and what differs; every line that is taken must be there."""
    lines = text.split("\n")
    made: list[str] = []
    at = 0
    for line in diff:
        head = re.fullmatch(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@", line)
        if head is not None:
            start, count, other, more = map(int, head.groups())
            start -= count > 0
            made += lines[at:start]
            at = start
            assert len(made) == other - (more > 0)
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert lines[at] == line[1:]
            made += [line[1:]] if line[0] == " " else []
            at += 1
    return "\n".join(made + lines[at:])


@settings(max_examples=EXAMPLES)
@given(a=texts, b=texts)
def test_what_differs_leads_from_one_text_to_the_other(a: str, b: str) -> None:
    assert applied(a, unified_diff(a, b)) == b


@settings(max_examples=EXAMPLES)
@given(a=texts, b=texts)
def test_from_the_other_side_it_is_the_same_with_the_marks_changed(a: str, b: str) -> None:
    assert list(unified_diff(b, a)) == mirrored_diff(list(unified_diff(a, b)))


@settings(max_examples=EXAMPLES)
@given(a=texts, b=texts)
def test_nothing_is_shown_if_and_only_if_the_texts_are_the_same(a: str, b: str) -> None:
    assert (unified_diff(a, b) == ()) == (a == b)


def test_a_change_is_shown_with_three_lines_around_it() -> None:
    text = "\n".join("abcdefghijklmnopqrstuvwxyz")

    assert unified_diff(text, text.replace("m", "M")) == (
        "@@ -10,7 +10,7 @@", " j", " k", " l", "-m", "+M", " n", " o", " p",
    )  # fmt: skip


def test_changes_far_apart_are_shown_apart() -> None:
    text = "\n".join("abcdefghijklmnopqrstuvwxyz")
    shown = unified_diff(text, text.replace("c", "C").replace("x", "X\nY"))

    assert [line for line in shown if line[0] == "@"] == ["@@ -1,6 +1,6 @@", "@@ -21,6 +21,7 @@"]


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (None, None, ()),
        (None, "x", ("@@ -0,0 +1,1 @@", "+x")),
        ("x", None, ("@@ -1,1 +0,0 @@", "-x")),
        (None, "", ("@@ -0,0 +1,1 @@", "+")),
        ("x", "x\n", ("@@ -1,1 +1,2 @@", " x", "+")),
        ("x\r", "x", ("@@ -1,1 +1,1 @@", "-x\r", "+x")),
    ],
)
def test_no_text_and_an_empty_one_are_told_apart_and_so_are_line_ends(
    a: str | None, b: str | None, shown: tuple[str, ...]
) -> None:
    assert unified_diff(a, b) == shown


def test_texts_that_are_too_long_to_be_aligned_are_shown_whole() -> None:
    """Aligning these would take minutes."""
    a = "\n".join("ab"[at % 2] for at in range(20_000))
    b = "\n".join("abb"[at % 3] for at in range(20_000))
    shown = unified_diff(a, b)

    assert applied(a, shown) == b
    assert sum(line[0] == "-" for line in shown) > 19_000


def test_a_long_text_with_one_change_is_shown_by_the_change() -> None:
    a = "\n".join(map(str, range(50_000)))

    assert len(unified_diff(a, a.replace("\n25000\n", "\nhere\n"))) == 9
