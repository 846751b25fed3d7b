"""Matching: the score, what it is made of, who decides, and patterns of strangers."""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.skills.sets import plain, sets

from tallystick.core.json_text import canonical
from tallystick.skills.format.manifest import Card
from tallystick.skills.match import Host, Match, Matching, match_skills, path_matches

PDF = Card(
    id="office/pdf",
    name="pdf-forms",
    source="project",
    description="Fill in forms of a PDF file, and read tables from it.",
    when_to_use="Somebody has a form to fill in.",
    paths=("*.pdf", "forms/**", "[bad"),
)
CSV = Card(
    id="csv",
    name="csv",
    source="user",
    description="Clean tables: dates, numbers, empty cells.",
    paths=("**/*.csv",),
)


def scores(prompt: str, *cards: Card, **more: Any) -> dict[str, float]:
    return {each.id: each.score for each in match_skills(prompt, cards, **more).candidates}


@pytest.mark.parametrize(
    ("prompt", "score"),
    [
        ("Please clean the dates", 2 / 3.5),
        ("CLEAN, clean; Clean!", 1 / 2.5),
        ("dates numbers empty cells tables clean", 6 / 7.5),
        ("date", 0),
        ("of it is", 0),
        ("", 0),
        ("a CSV here", 2.0),
        ("clean my file.csv", 2.0 + 1 / 2.5),
    ],
)
def test_the_score_counts_different_words_and_the_name(prompt: str, score: float) -> None:
    assert scores(prompt, CSV).get("csv", 0) == pytest.approx(score)


@pytest.mark.parametrize(
    ("paths", "score"),
    [
        (["a.pdf"], 1.5),
        (["deep/er/a.pdf", "b.pdf"], 1.5),
        (["forms/a.pdf"], 3.0),
        (["forms/x/y.txt", "z.txt"], 1.5),
        (["z.txt"], 0),
        ([], 0),
    ],
)
def test_each_pattern_that_fits_a_path_counts_once(paths: list[str], score: float) -> None:
    assert scores("hello", PDF, paths=paths).get(PDF.id, 0) == score


def test_the_name_counts_wherever_it_stands() -> None:
    assert scores("use PDF-FORMS now", PDF)[PDF.id] == pytest.approx(2.0 + 2 / 3.5)
    assert scores("xcsvx", CSV) == {"csv": 2.0}
    assert scores("anything", Card(id="x", name="", source="user")) == {}


def test_a_matching_says_by_what_a_skill_fits() -> None:
    found = match_skills("fill the form, pdf-forms!", [PDF], paths=["a.pdf"]).candidates

    assert found[0].reason == "name; words fill, form, pdf, forms; paths *.pdf"


def test_the_best_is_matched_and_ties_are_in_the_order_of_ids() -> None:
    twins = [msgspec.structs.replace(CSV, id=id, name="zzz") for id in ("b", "a", "c")]

    found = match_skills("clean csv tables", [*twins, CSV])

    assert [each.id for each in found.candidates] == ["csv", "a", "b", "c"]
    assert found.matched == found.candidates[:1]
    assert (
        match_skills("clean", twins, top_n=2).matched == match_skills("clean", twins).candidates[:2]
    )
    assert match_skills("clean", twins, top_n=0).matched == ()


def test_no_match_is_an_answer_too() -> None:
    assert match_skills("sing", [CSV]) == Matching(strategy="metadata", candidates=(), matched=())


def test_a_disabled_skill_is_not_matched() -> None:
    cards = plain("auto", "manual", disabled=["manual"])
    seen: list[str] = []

    def host(prompt: str, cards: Sequence[Card]) -> Iterable[Match]:
        seen.extend(card.id for card in cards)
        return [Match(id="manual", score=9.0, reason="host")]

    assert [each.id for each in match_skills("auto manual", cards).candidates] == ["auto"]
    assert match_skills("x", cards, strategy="host", host=host).candidates == ()
    assert seen == ["auto"]


@pytest.mark.parametrize("strategy", ["host", "embedding"])
def test_a_host_decides_by_scores_of_its_own(strategy: str) -> None:
    def host(prompt: str, cards: Sequence[Card]) -> Iterable[Match]:
        yield Match(id="csv", score=-1.0, reason="far")
        yield Match(id=PDF.id, score=0.0, reason="near")
        yield Match(id="unknown", score=3.0, reason="made up")
        yield Match(id="csv", score=5.0, reason="twice")

    found = match_skills("clean csv", [CSV, PDF], strategy=strategy, host=host)

    assert found.strategy == strategy
    assert [(each.id, each.score) for each in found.candidates] == [(PDF.id, 0.0), ("csv", -1.0)]
    assert found.problem == ""


def broken(prompt: str, cards: Sequence[Card]) -> Iterable[Match]:
    raise RuntimeError("no model")


def lying(prompt: str, cards: Sequence[Card]) -> Iterable[Any]:
    return ["csv"]


def endless(prompt: str, cards: Sequence[Card]) -> Iterable[Match]:
    return [Match(id="csv", score=float("nan"), reason="odd")]


@pytest.mark.parametrize("host", [None, broken, lying, endless])
def test_where_the_host_fails_the_words_decide(host: Host | None) -> None:
    found = match_skills("clean", [CSV], strategy="host", host=host)

    assert (found.strategy, found.candidates[0].id) == ("metadata", "csv")
    assert found.problem


def test_an_unknown_strategy_is_the_words() -> None:
    found = match_skills("clean", [CSV], strategy="telepathy", host=broken)

    assert (found.strategy, found.problem) == ("metadata", "")


def formula(prompt: str, card: Card) -> float:
    """The score once more, with words cut another way."""

    def words(text: str) -> set[str]:
        spaced = "".join(each if each.isalnum() else " " for each in text.casefold())
        return {word for word in spaced.split() if len(word) > 2}

    hits = len(words(prompt) & words(f"{card.description} {card.when_to_use}"))
    return hits / (hits + 1.5) + 2.0 * (card.name.casefold() in prompt.casefold())


@given(sets(), st.text(st.sampled_from("abcdé字 x-wor"), max_size=60))
def test_any_prompt_is_scored_by_the_formula(cards: list[Card], prompt: str) -> None:
    found = match_skills(prompt, cards)
    expected = {
        card.id: score
        for card in cards
        if not card.disable_model_invocation and (score := formula(prompt, card)) > 0
    }

    assert {each.id: each.score for each in found.candidates} == pytest.approx(expected)
    assert list(found.candidates) == sorted(found.candidates, key=lambda m: (-m.score, m.id))
    assert msgspec.json.decode(canonical(found), type=Matching) == found


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "src/deep/a.py", ".py"], ["a.pyc", "py"]),
        ("src/*.py", ["src/a.py", "./src/a.py"], ["src/x/a.py", "a.py", "lib/src/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/x/a.py", "src/x/y/a.py"], ["a.py", "src/a.txt"]),
        ("**/test_*", ["test_a", "x/test_a.py"], ["x/atest_", "test_a/x"]),
        ("src/**", ["src/a", "src/x/y"], ["src", "srcs/a"]),
        ("src/", ["src/a", "src/x/y"], ["src", "other/src/a"]),
        ("**", ["a", "a/b"], []),
        ("a/**/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["a", "b", "ab"]),
        ("**/a/**/b/**", ["a/b/c", "x/a/y/b/c/d"], ["a/b", "b/a/c"]),
        ("a?c", ["abc", "x/a字c"], ["ac", "abbc"]),
        ("[ab]x", ["ax", "bx"], ["cx", "x"]),
        ("[!ab]x", ["cx"], ["ax"]),
        ("[a-c]*", ["beta", "a"], ["delta"]),
        ("[]x]", ["]", "x"], ["[]x]"]),
        ("[ab", ["[ab"], ["a"]),
        ("*.{ts,tsx}", ["a.ts", "b.tsx"], ["a.{ts,tsx}", "a.js"]),
        ("{a,b{c,d}}/x", ["a/x", "bc/x", "bd/x"], ["b/x"]),
        ("a**b", ["ab", "a--b"], ["a/b"]),
        ("A", ["A"], ["a"]),
        ("/abs/*", ["/abs/x", "abs/x"], ["x/abs/y"]),
        ("", [], ["a"]),
        ("/", ["a/b", "a"], [""]),
    ],
)
def test_patterns_are_for_the_paths_that_people_mean(
    pattern: str, yes: list[str], no: list[str]
) -> None:
    assert [path for path in yes if not path_matches(pattern, path)] == []
    assert [path for path in no if path_matches(pattern, path)] == []


@given(st.text(st.sampled_from("ab*?"), max_size=8), st.text(st.sampled_from("ab"), max_size=8))
def test_a_pattern_of_one_part_agrees_with_the_shell(pattern: str, name: str) -> None:
    expected = bool(pattern and name) and fnmatch.fnmatchcase(name, pattern)

    assert path_matches(pattern, name) is expected


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "?b"]), min_size=2, max_size=5),
    st.lists(st.sampled_from(["a", "b", "ab", "bb"]), min_size=1, max_size=5),
)
def test_a_pattern_of_several_parts_agrees_with_trying_every_division(
    wanted: list[str], parts: list[str]
) -> None:
    def fits(wanted: list[str], parts: list[str]) -> bool:
        if not wanted:
            return not parts
        if wanted[0] == "**":
            least = 0 if wanted[1:] else 1
            return any(fits(wanted[1:], parts[n:]) for n in range(least, len(parts) + 1))
        if not parts or not fnmatch.fnmatchcase(parts[0], wanted[0]):
            return False
        return fits(wanted[1:], parts[1:])

    merged = [each for n, each in enumerate(wanted) if wanted[n : n + 2] != ["**", "**"]]
    if len(merged) > 1:
        assert path_matches("/".join(wanted), "/".join(parts)) is fits(merged, parts)


@pytest.mark.parametrize(
    "pattern",
    [
        "*a" * 500 + "b",
        "**/" * 300 + "b",
        "**/*a" * 200 + "/b",
        "{a,b}" * 200,
        "{" * 1_000,
        "[" * 1_000,
        "[a-" * 300,
        "x" * 5_000,
    ],
)
def test_a_hostile_pattern_is_done_with_in_a_moment(pattern: str) -> None:
    began = time.perf_counter()

    assert not path_matches(pattern, "a" * 4_000)
    assert not path_matches(pattern, "a/" * 2_000)

    assert time.perf_counter() - began < 1


def test_patterns_are_not_regular_expressions() -> None:
    assert not re.fullmatch(r"\(a\+\)\+\$", "aaa")
    assert not path_matches("(a+)+$", "aaa")
    assert path_matches("(a+)+$", "(a+)+$")
