"""Substitution: what stands for arguments and variables, and what stays as it is written."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.skills.skills import substitute

NAMES = {
    "SKILL_DIR": "/skills/pdf",
    "EMPTY": "",
    "TRICK": "$1 $$ ${SKILL_DIR} $ARGUMENTS",
    "": "no",
}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("run $ARGUMENTS now", "run one two words now"),
        ("$1 / $2", "one / two words"),
        ("$0 stays, $00 too", "$0 stays, $00 too"),
        ("$3 is missing, $12 too", "$3 is missing, $12 too"),
        ("$01 is one", "one is one"),
        ("$1st", "onest"),
        ("$$1 costs $$5", "$1 costs $5"),
        ("$$$1", "$one"),
        ("$$$$", "$$"),
        ("in ${SKILL_DIR}/a", "in /skills/pdf/a"),
        ("${EMPTY}|", "|"),
        ("${HOME} and ${PATH}", "${HOME} and ${PATH}"),
        ("${UNKNOWN $1}", "${UNKNOWN $1}"),
        ("unclosed ${SKILL_DIR and $1", "unclosed ${SKILL_DIR and one"),
        ("${", "${"),
        ("a $ alone, at the end $", "a $ alone, at the end $"),
        ("$ARGUMENT $arguments", "$ARGUMENT $arguments"),
        ("$ARGUMENTS[0]", "one two words[0]"),
        ("${1} ${ARGUMENTS}", "${1} ${ARGUMENTS}"),
        ("$\u0661 is not a digit here", "$\u0661 is not a digit here"),
        ("", ""),
        ("é字🙂 $1", "é字🙂 one"),
    ],
)
def test_placeholders_become_what_they_stand_for(body: str, text: str) -> None:
    assert substitute(body, ["one", "two words"], variables=NAMES) == text


def test_the_twelfth_argument_is_the_twelfth() -> None:
    arguments = [str(n) for n in range(101, 113)]

    assert substitute("$12 $1", arguments, variables={}) == "112 101"


def test_what_is_put_in_is_not_read_again() -> None:
    arguments = ["$2", "${SKILL_DIR}", "$$"]

    text = substitute("$1 $2 $3 $ARGUMENTS ${TRICK}", arguments, variables=NAMES)

    assert text == "$2 ${SKILL_DIR} $$ $2 ${SKILL_DIR} $$ $1 $$ ${SKILL_DIR} $ARGUMENTS"


def test_pieces_that_meet_do_not_make_a_placeholder() -> None:
    assert substitute("$11$ARGUMENTS", ["$", "x"], variables={}) == "$11$ x"
    assert substitute("$${SKILL_DIR}", [], variables=NAMES) == "${SKILL_DIR}"
    assert substitute("$1{SKILL_DIR}", ["$"], variables=NAMES) == "${SKILL_DIR}"


def test_without_arguments_the_whole_of_them_is_empty() -> None:
    assert substitute("[$ARGUMENTS] $1", [], variables={}) == "[] $1"


def test_the_environment_has_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALLYSTICK_SECRET", "hunter2")

    body = "${TALLYSTICK_SECRET} $TALLYSTICK_SECRET"

    assert substitute(body, [], variables={}) == body


PIECES = st.sampled_from(
    ["$", "$$", "${", "}", "{", "$1", "$2", "$0", "9", "$ARGUMENTS", "${A}", "${B}", "A", " ", "é"]
)
VALUES = st.text(st.sampled_from("$1{}A é"), max_size=6)
# The rules once more, as one expression: the alternatives are tried in this order.
RULES = re.compile(r"\$(?:(\$)|\{([^}]*)\}|(ARGUMENTS)|([0-9]+))")


def oracle(body: str, arguments: list[str], variables: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        dollar, name, whole, digits = found.groups()
        if dollar:
            return "$"
        if name is not None:
            return variables.get(name, found[0])
        if whole:
            return " ".join(arguments)
        return dict(enumerate(arguments, 1)).get(int(digits), found[0])

    return RULES.sub(value, body)


@given(st.lists(PIECES, max_size=14).map("".join), st.lists(VALUES, max_size=12), VALUES)
def test_any_text_is_filled_in_as_the_rules_say(body: str, arguments: list[str], a: str) -> None:
    variables = {"A": a}

    assert substitute(body, arguments, variables=variables) == oracle(body, arguments, variables)


@given(st.text())
def test_a_text_without_a_dollar_stays_as_it_is(body: str) -> None:
    body = body.replace("$", "")

    assert substitute(body, ["x"], variables=NAMES) == body


@pytest.mark.parametrize(
    "hostile", ["${" * 200_000, "$" * 400_001, "$1" + "9" * 400_000, "${}" * 99_999]
)
def test_a_hostile_text_takes_no_longer_than_its_length(hostile: str) -> None:
    began = time.perf_counter()

    substitute(hostile, ["x"], variables={})

    assert time.perf_counter() - began < 2
