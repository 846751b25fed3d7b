"""Laws of the check, for any program and any vocabulary."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tallystick.vocabulary.check import NORMAL, PERMISSIVE, STRICT, Pass, Rules, decide, validate
from tallystick.vocabulary.program import Program, read_python
from tallystick.vocabulary.shell import read_shell
from tallystick.vocabulary.terms import Entry, Thesaurus, Vocabulary

PACKAGE = Path(__file__).parents[2] / "src/tallystick/vocabulary"
# The check in runs, and the reading in the sandbox.
_WITH_A_SANDBOX = {
    PACKAGE / name for name in ("__init__.py", "alone.py", "capability.py", "guest_python.py")
}
ROOTS = ("ask", "crm", "crm.find", "crm.find.all", "note", "ships", "print", "order")
TEXTS = (*ROOTS, "a note on order", "order note", "unknown", "Note", "12", "")
names = st.sampled_from(ROOTS)
rules = st.sampled_from([PERMISSIVE, NORMAL, STRICT])
entries = st.dictionaries(names, st.lists(names, max_size=2), max_size=4).map(
    lambda related: tuple(
        Entry(term=term, related=tuple(others)) for term, others in sorted(related.items())
    )
)


@st.composite
def sources(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(0, 6))):
        called = draw(names | st.sampled_from(["frob", "frob.x", "len", "mine"]))
        given = ", ".join(repr(text) for text in draw(st.lists(st.sampled_from(TEXTS), max_size=4)))
        lines.append(f"{called}({given})")
    if draw(st.booleans()):
        lines.append("mine = 1")
    return "\n".join(lines)


class Given:
    """What a vocabulary is made of, so that one with more can be made."""

    def __init__(
        self, functions: set[str], tools: set[str], skills: set[str], entries: tuple[Entry, ...]
    ) -> None:
        self.functions, self.tools, self.skills, self.entries = functions, tools, skills, entries

    def vocabulary(self, *, kind: str = "", term: str = "") -> Vocabulary:
        more = {term}
        added = () if kind != "thesaurus" or self._has(term) else (Entry(term=term),)
        return Vocabulary(
            functions=self.functions | (more if kind == "function" else set()),
            tools=self.tools | (more if kind == "tool" else set()),
            skills=self.skills | (more if kind == "skill" else set()),
            thesaurus=Thesaurus(entries=self.entries + added),
        )

    def _has(self, term: str) -> bool:
        return any(term in (entry.term, *entry.related) for entry in self.entries)

    def knows(self, term: str) -> bool:
        return term in self.functions | self.tools | self.skills or self._has(term)


few = st.sets(names, max_size=3)
givens = st.builds(Given, few, few, few, entries)


@given(sources(), givens, rules, names, st.sampled_from(["function", "skill", "tool", "thesaurus"]))
def test_a_new_term_without_relations_never_turns_valid_into_invalid(
    source: str, given: Given, rules: Rules, term: str, kind: str
) -> None:
    program = read_python(source)
    if given.knows(term) or not validate(program, given.vocabulary(), rules).is_valid:
        return

    assert validate(program, given.vocabulary(kind=kind, term=term), rules).is_valid


@given(sources(), givens, st.integers(0, 5))
def test_permissive_never_stops_a_program(source: str, given: Given, retry_count: int) -> None:
    vocabulary = given.vocabulary()
    result = validate(read_python(source), vocabulary, PERMISSIVE, retry_count=retry_count)

    decision = decide(result, strictness="permissive", retry_count=retry_count, max_retries=0)

    assert result.is_valid
    assert isinstance(decision, Pass)


@given(sources(), givens)
def test_what_strict_lets_pass_normal_does_too(source: str, given: Given) -> None:
    program, vocabulary = read_python(source), given.vocabulary()

    strict = validate(program, vocabulary, STRICT).is_valid

    assert not strict or validate(program, vocabulary, NORMAL).is_valid


@given(sources(), givens, rules)
def test_suggestions_are_known_terms_for_unknown_ones(
    source: str, given: Given, rules: Rules
) -> None:
    vocabulary = given.vocabulary()

    result = validate(read_python(source), vocabulary, rules)

    assert set(result.suggestions) <= set(result.unknown_terms)
    assert all(vocabulary.is_known(each) for near in result.suggestions.values() for each in near)


@given(sources(), givens, rules)
def test_matched_terms_are_known_and_unknown_ones_are_not_matched(
    source: str, given: Given, rules: Rules
) -> None:
    vocabulary = given.vocabulary()

    result = validate(read_python(source), vocabulary, rules)

    assert all(vocabulary.is_known(term) for term in result.matched_terms)
    assert not {*result.matched_terms} & {*result.unknown_terms}


@given(sources(), givens, rules)
def test_a_verdict_does_not_depend_on_the_order_in_which_terms_were_given(
    source: str, given: Given, rules: Rules
) -> None:
    program = read_python(source)
    one = Vocabulary(
        functions=sorted(given.functions), tools=sorted(given.tools), skills=sorted(given.skills),
        thesaurus=Thesaurus(entries=given.entries),
    )  # fmt: skip
    other = Vocabulary(
        functions=sorted(given.functions, reverse=True), tools=sorted(given.tools, reverse=True),
        skills=sorted(given.skills, reverse=True),
        thesaurus=Thesaurus(entries=given.entries[::-1]),
    )  # fmt: skip

    assert validate(program, one, rules) == validate(program, other, rules)


@given(st.text(st.characters(), max_size=60) | sources(), givens, rules, st.integers(0, 4))
def test_any_text_has_a_verdict_and_a_message_of_whole_lines(
    source: str, given: Given, rules: Rules, retry_count: int
) -> None:
    vocabulary = given.vocabulary()
    programs: list[Program] = [read_python(source), read_shell(source)]

    for program in programs:
        result = validate(program, vocabulary, rules, retry_count=retry_count)
        feedback = result.feedback()

        assert all(line.isprintable() for line in feedback.split("\n"))
        assert feedback.encode()


def test_the_check_imports_nothing_but_the_core_and_the_standard_library() -> None:
    imported = set()
    # What a run does with the check is the one module that knows of runs.
    for path in set(PACKAGE.glob("*.py")) - _WITH_A_SANDBOX:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")

    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}

    assert foreign
    assert all(name.startswith(("tallystick.core.", "tallystick.vocabulary.")) for name in foreign)
    assert not imported & {"io", "os", "pathlib", "random", "socket", "subprocess", "time"}
