"""The verdict at each strictness, by examples."""

import msgspec
import pytest

from tallystick.core.errors import InvalidLimit
from tallystick.vocabulary.check import (
    NORMAL,
    PERMISSIVE,
    STRICT,
    TERMS_SHOWN_MAX,
    Block,
    Escalate,
    Pass,
    Retry,
    Rules,
    Strictness,
    ValidationResult,
    Warn,
    decide,
    rules_of,
    validate,
)
from tallystick.vocabulary.program import read_python
from tallystick.vocabulary.shell import read_shell
from tallystick.vocabulary.terms import Thesaurus, Vocabulary, read_thesaurus

FILE = b"""\
{"term": "invoice", "synonyms": ["bill"], "related": ["customer"]}
{"term": "customer"}
{"term": "boat", "related": ["harbour"]}
{"term": "harbour"}
{"term": "git"}
{"term": "payroll", "denied": true, "instead": ["invoice"]}
{"term": "eval", "denied": true}
"""
WORDS = Vocabulary(
    functions=["llm_query", "FINAL"],
    tools=["crm.find", "skills.load"],
    skills=["shelf-codes"],
    thesaurus=read_thesaurus(FILE, name="t"),
)
NO_THESAURUS = Vocabulary(functions=["llm_query"])


def verdict(
    source: str, rules: Rules = STRICT, *, vocabulary: Vocabulary = WORDS, retry_count: int = 0
) -> ValidationResult:
    return validate(read_python(source), vocabulary, rules, retry_count=retry_count)


def test_the_presets_are_these() -> None:
    assert (PERMISSIVE.ratio_min, PERMISSIVE.retries_max, PERMISSIVE.connected) == (0.0, 0, False)
    assert (NORMAL.ratio_min, NORMAL.retries_max, NORMAL.connected) == (0.1, 3, False)
    assert (STRICT.ratio_min, STRICT.retries_max, STRICT.connected) == (0.3, 3, True)
    assert [rules_of(each) for each in ("permissive", "normal", "strict")] == [
        PERMISSIVE, NORMAL, STRICT,
    ]  # fmt: skip


@pytest.mark.parametrize("field", ["ratio_min", "retries_max"])
@pytest.mark.parametrize("value", [-1, 1.5, float("nan")])
def test_a_rule_that_makes_no_sense_is_an_error_that_names_it(field: str, value: float) -> None:
    with pytest.raises(InvalidLimit, match=field):
        Rules(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [PERMISSIVE, NORMAL, STRICT])
@pytest.mark.parametrize("source", ["", "  \n", "# a comment", "x = 1\nprint(x + 1)"])
def test_a_program_without_terms_passes(source: str, rules: Rules) -> None:
    assert verdict(source, rules) == ValidationResult(is_valid=True, strictness=rules.strictness)


def test_matched_and_unknown_terms_are_in_the_order_of_the_program() -> None:
    result = verdict("FINAL(frob(bill, llm_query('x'), invoice))", NORMAL)

    assert result.matched_terms == ("FINAL", "invoice", "llm_query")
    assert result.unknown_terms == ("frob",)
    assert result.is_valid


def test_strict_blocks_any_unknown_name_and_suggests_what_looks_like_it() -> None:
    result = verdict("lm_query('x')")

    assert not result.is_valid
    assert result.suggestions == {"lm_query": ("llm_query",)}


def test_normal_fails_without_a_match_and_below_a_tenth() -> None:
    def program(unknown: int) -> str:
        return "FINAL(1)\n" + "".join(f"f{number}()\n" for number in range(unknown))

    assert not verdict("frob()", NORMAL).is_valid
    assert verdict(program(9), NORMAL).is_valid
    assert not verdict(program(10), NORMAL).is_valid


def test_normal_says_nothing_without_a_thesaurus_and_strict_does() -> None:
    assert verdict("frob()", NORMAL, vocabulary=NO_THESAURUS).is_valid
    assert not verdict("frob()", STRICT, vocabulary=NO_THESAURUS).is_valid
    empty = Vocabulary(thesaurus=Thesaurus())
    assert not verdict("frob()", NORMAL, vocabulary=empty).is_valid


def test_strict_fails_below_three_tenths_with_the_words_that_tools_are_given() -> None:
    def program(unknown: int) -> str:
        words = ", ".join(f"'word{number}'" for number in range(unknown))
        return f"crm.find('invoice', 'customer', {words})"

    assert verdict(program(7)).is_valid
    assert not verdict(program(8)).is_valid
    assert verdict(program(80), NORMAL).is_valid


def test_words_in_the_arguments_of_tools_are_terms_and_prose_is_not() -> None:
    result = verdict("crm.find('the Bill of a customer, by ship', 'acme', '2024', 'a/b.csv', 'ab')")

    assert result.matched_terms == ("crm.find", "invoice", "customer")
    assert result.unknown_terms == ("acme",)


def test_arguments_of_other_functions_are_not_looked_at() -> None:
    assert verdict("FINAL('Paris')").unknown_terms == ()


def test_the_name_of_a_skill_is_known_where_a_tool_is_given_it() -> None:
    assert verdict("skills.load('shelf-codes')").matched_terms == ("skills.load", "shelf-codes")
    rules = Rules(strictness="strict", ratio_min=0.6, arguments=True)
    result = verdict("skills.load('shelf-code')", rules)
    assert result.suggestions == {"shelf-code": ("shelf-codes",)}


@pytest.mark.parametrize("rules", [NORMAL, STRICT])
@pytest.mark.parametrize(
    "source",
    [
        "FINAL(eval('1'))",
        "FINAL(1)\nf = eval",
        "eval = eval",
        "from builtins import *\nFINAL(payroll.total)",
        "crm.find('Payroll')",
        "crm.find('customer', 'all of the payroll')",
    ],
)
def test_a_denied_term_fails_wherever_it_stands(source: str, rules: Rules) -> None:
    result = verdict(source, rules)

    assert not result.is_valid
    assert "Denied here: " in result.message


def test_a_denied_term_says_what_to_use_instead() -> None:
    assert verdict("payroll()").suggestions == {"payroll": ("invoice",)}


def test_terms_that_nothing_connects_fail_in_strict_and_are_named() -> None:
    result = verdict("crm.find('invoice', 'customer', 'boat')")

    assert not result.is_valid
    assert result.unknown_terms == ()
    assert result.message.startswith('Not connected with the other terms: ["boat"].')
    assert verdict("crm.find('invoice', 'customer', 'boat')", NORMAL).is_valid
    assert verdict("crm.find('invoice', 'customer', 'git')").is_valid


def test_the_advice_depends_on_how_much_is_unknown_and_how_long_it_is() -> None:
    assert verdict("a1()").message == ""
    assert verdict("a1(b1, c1, d1)").message.startswith("Be more specific")
    assert verdict("a1(b1, c1)").message == ""
    assert verdict("a1()" + " " * 96).message == ""
    assert verdict("a1()" + " " * 97).message == "Break it down into shorter programs."


def test_when_retries_are_used_up_a_person_is_needed_and_nothing_is_suggested() -> None:
    result = verdict("lm_query('x')", retry_count=3)

    assert result.escalation_required
    assert result.retry_count == 3
    assert result.suggestions == {}
    assert result.message == "Retries used up: 3. A person has to decide."
    assert not verdict("lm_query('x')", retry_count=2).escalation_required
    assert not verdict("llm_query('x')", retry_count=9).escalation_required


def test_a_program_that_is_no_python_passes_with_the_reason() -> None:
    result = verdict("frob(")

    assert result.is_valid
    assert result.message == "Not checked: line 1: '(' was never closed."


@pytest.mark.parametrize("source", ["frob()\n" * 1_500_000, "a" + ".b" * 3_000])
def test_a_program_that_cannot_be_read_passes_in_normal_and_fails_in_strict(source: str) -> None:
    assert verdict(source, NORMAL).is_valid
    assert verdict(source, NORMAL).message.startswith("Not checked: ")
    assert not verdict(source, STRICT).is_valid
    assert verdict(source, STRICT, retry_count=3).escalation_required


def test_a_shell_text_that_is_cut_fails_in_strict_since_a_shell_runs_its_first_lines() -> None:
    program = read_shell("rm -r .\necho '")

    assert not validate(program, WORDS, STRICT).is_valid


def test_commands_are_terms() -> None:
    result = validate(read_shell("git log | frob $x && cd /"), WORDS, STRICT)

    assert (result.matched_terms, result.unknown_terms) == (("git",), ("frob",))


def test_a_verdict_stays_short_whatever_the_program_holds() -> None:
    many = "".join(f"f{number}()\n" for number in range(5_000)) + "x" * 5_000 + "()"

    result = verdict(many)

    assert len(result.unknown_terms) == TERMS_SHOWN_MAX
    assert f"There are {5_001 - TERMS_SHOWN_MAX:,} more unknown terms." in result.message
    assert len(result.feedback()) < 20_000
    assert len(verdict("x" * 5_000 + "()").feedback()) < 1_000


@pytest.mark.parametrize(
    ("strictness", "retry_count", "kind"),
    [
        ("permissive", 0, Pass),
        ("permissive", 9, Pass),
        ("normal", 0, Retry),
        ("normal", 2, Retry),
        ("normal", 3, Warn),
        ("strict", 0, Block),
        ("strict", 2, Block),
        ("strict", 3, Escalate),
        ("strict", 4, Escalate),
    ],
)
def test_what_follows_from_a_verdict_that_is_not_valid(
    strictness: Strictness, retry_count: int, kind: type
) -> None:
    result = ValidationResult.invalid(["a"], ["b"])

    decision = decide(result, strictness=strictness, retry_count=retry_count, max_retries=3)

    assert type(decision) is kind
    if not isinstance(decision, Pass):
        assert decision.feedback == result.feedback()


@pytest.mark.parametrize("strictness", ["permissive", "normal", "strict"])
def test_a_valid_program_passes_with_what_there_is_to_say(strictness: Strictness) -> None:
    result = ValidationResult(is_valid=True, message="Not checked: no.")

    decision = decide(result, strictness=strictness, retry_count=5, max_retries=3)

    assert decision == Pass(reason="Not checked: no.")


def test_a_decision_is_plain_data_that_says_its_kind() -> None:
    result = ValidationResult.invalid([], [])
    decision = decide(result, strictness="strict", retry_count=0, max_retries=1)

    kept = msgspec.to_builtins(decision)

    assert kept == {"feedback": result.feedback(), "kind": "block"}
    assert msgspec.convert(kept, Block) == decision
