"""Check a program's names against a vocabulary: the verdict, and the decision that follows from it.

A *term* of a program is a free name (see `program`), or a word in a text that it passes to a tool.
A text of one word (a letter, then letters, digits, `_`, `-` and dots; more than two in all) counts
whether it is known or not. In any other text, only known terms are looked for; the rest is prose or
data, which is not counted. Texts passed to functions other than tools are not looked at.

A known term is *matched*, any other is *unknown*. Denied ones are unknown wherever they are found,
as a name of any origin or as a word. The ratio is that of matched terms to all, each counted once;
only strict counts unknown words of arguments in it.

| | fails on |
| --- | --- |
| permissive | nothing: it is for the record |
| normal | a denied term; with a thesaurus, no matched term, or a ratio below 0.1 |
| strict | a denied term, any unknown name, no matched term, a ratio below 0.3, terms apart |

Terms are connected, not apart, if the thesaurus relates them, through any number of other terms. A
term that it relates to nothing is left out of this. A program without any term passes, as does one
that is not Python: it will fail by itself, with a better message. One that was not read (it is too
long, or too deep) fails in strict, since it could do anything; so does one that runs a text which
was not read. The message names what the check does not cover, whether the program passes or not.

The verdict follows from program, vocabulary and rules alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tallystick.core.errors import InvalidLimit
from tallystick.vocabulary.program import READING_FIRST, Name, Program, Uncovered
from tallystick.vocabulary.python_names import variants_of
from tallystick.vocabulary.terms import Vocabulary, words_of

# The verdict on a program, and the feedback for the model.
#
# Both are plain data: a verdict can be encoded, kept and read back, and follows from the program
# and the vocabulary alone.


Strictness = Literal["permissive", "normal", "strict"]

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """The terms that a program uses, and whether it may run.

    `matched_terms` are known, in the order in which the program has them; `suggestions` give known
    terms for some of the unknown ones. `message` adds the rest in one line. `retry_count` is how
    many programs were refused before this one; `escalation_required` says that no more may be.
    """

    is_valid: bool
    matched_terms: tuple[str, ...] = ()
    unknown_terms: tuple[str, ...] = ()
    suggestions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    strictness: Strictness = "normal"
    message: str = ""
    retry_count: int = 0
    escalation_required: bool = False

    @classmethod
    def valid(cls, matched: Iterable[str]) -> ValidationResult:
        """Return a verdict that passes."""
        return cls(is_valid=True, matched_terms=tuple(matched))

    @classmethod
    def invalid(cls, matched: Iterable[str], unknown: Iterable[str]) -> ValidationResult:
        """Return a verdict that fails."""
        return cls(is_valid=False, matched_terms=tuple(matched), unknown_terms=tuple(unknown))

    def with_suggestions(self, alternatives: Iterable[str]) -> ValidationResult:
        """Return the verdict with one list of alternatives for every unknown term."""
        flat = tuple(alternatives)
        return replace(self, suggestions=dict.fromkeys(self.unknown_terms, flat))

    def feedback(self) -> str:
        """Return the text for the model: a line for each fact, the last without a newline."""
        lines = ["Command validation warning:"]
        if self.unknown_terms:
            lines.append(f"  Unknown terms: {quote_list(self.unknown_terms)}")
        if self.matched_terms:
            lines.append(f"  Known terms you could use: {quote_list(self.matched_terms)}")
        for term, alternatives in sorted(self.suggestions.items()):
            if alternatives:
                shown = "".join(_visible(each) for each in term)
                lines.append(f"  Instead of '{shown}', consider: {quote_list(alternatives)}")
        if self.message:
            lines.append(f"  {self.message}")
        lines.append("Please rephrase to use only known domain terminology.")
        return "\n".join(lines)


def quote_list(terms: Iterable[str]) -> str:
    """Return a list as `["a", "b"]`."""
    return f"[{', '.join(quote(term) for term in terms)}]"


def quote(term: str) -> str:
    """Return a term in double quotes, on one line whatever it holds."""
    return '"' + "".join(_ESCAPES.get(each) or _visible(each) for each in term) + '"'


def _visible(each: str) -> str:
    # A line break in a term would let it begin a line of its own.
    return each if each.isprintable() else _ESCAPES.get(each) or f"\\u{{{ord(each):x}}}"


# The check: a program's names and arguments against a vocabulary, at a strictness.


# A verdict is kept in a record and shown to a model: both have to stay short.
TERMS_SHOWN_MAX = 50
_TERM_CHARS_MAX = 200
_SUGGESTED_MAX = 10
_UNCOVERED_SHOWN_MAX = 10
_UNKNOWN_FEW = 3
_CHARS_SHORT = 100
_WORD = re.compile(r"[^\W\d_][\w-]*(?:\.[\w-]+)*")
_WORD_CHARS_MIN = 3

_MORE_SPECIFIC = "Be more specific: name the functions and terms that are known."
_BREAK_DOWN = "Break it down into shorter programs."


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The strictness of a check, and its numbers.

    `ratio_min` is the least share of matched terms; `arguments` says whether unknown words in the
    arguments of tools lower it. `connected` says whether terms have to be. Raise `InvalidLimit` for
    a ratio that is not from 0 to 1, or a number of retries that is not a whole number from 0 up.
    """

    strictness: Strictness = "normal"
    ratio_min: float = 0.1
    retries_max: int = 3
    arguments: bool = False
    connected: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.ratio_min <= 1:
            raise InvalidLimit(field="ratio_min", given=self.ratio_min, why="from 0 to 1")
        if type(self.retries_max) is not int or self.retries_max < 0:
            why = "a whole number, 0 or more"
            raise InvalidLimit(field="retries_max", given=self.retries_max, why=why)


PERMISSIVE = Rules(strictness="permissive", ratio_min=0.0, retries_max=0)
NORMAL = Rules()
STRICT = Rules(strictness="strict", ratio_min=0.3, arguments=True, connected=True)
_PRESETS = {rules.strictness: rules for rules in (PERMISSIVE, NORMAL, STRICT)}


def rules_of(strictness: Strictness) -> Rules:
    """Return the default rules of a strictness. Raise `KeyError` if it is unknown."""
    return _PRESETS[strictness]


@dataclass(slots=True)
class _ProgramTerms:
    """The terms of a program, by the names and words that were found, so that each counts once."""

    names: dict[str, str] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    unknown_names: dict[str, None] = field(default_factory=dict)
    unknown_words: dict[str, None] = field(default_factory=dict)
    denied: dict[str, None] = field(default_factory=dict)

    @property
    def matched(self) -> list[str]:
        return list(dict.fromkeys((*self.names.values(), *self.words.values())))

    @property
    def unknown(self) -> list[str]:
        return list(dict.fromkeys((*self.denied, *self.unknown_names, *self.unknown_words)))

    def add_name(self, name: Name, vocabulary: Vocabulary, *, reading: int) -> None:
        """Count a name: as denied, as a known term, or as unknown if it is free.

        A name of the program's own counts only if it is denied, a standard one not as unknown.
        """
        paths = variants_of(name.path) if reading > READING_FIRST else (name.path,)
        if any(vocabulary.find_denied(path) is not None for path in paths):
            self.denied[name.path] = None
        elif name.origin == "own":
            return
        elif (term := vocabulary.find(name.path)) is not None:
            self.names[name.path] = term
        elif name.origin == "free":
            self.unknown_names[name.path] = None

    def add_text(self, text: str, vocabulary: Vocabulary) -> None:
        """Count the terms and denied words in a text, and the text itself if an unknown word."""
        words = words_of(text)
        denied = [each for each in (text, *words) if vocabulary.is_denied_word(each)]
        self.denied.update(dict.fromkeys(denied))
        for phrase in vocabulary.phrases(words):
            if vocabulary.is_known(phrase.term):
                self.words[" ".join(phrase.words)] = phrase.term
        term = vocabulary.find_word(text)
        if term is not None and vocabulary.is_known(term):
            self.words[" ".join(words)] = term
        elif text not in denied and _is_word(text):
            self.unknown_words[text] = None

    def ratio(self, *, arguments: bool) -> float:
        """Return the share of matched terms, 0 without any term. Denied terms are not counted.

        With `arguments`, unknown words of arguments are.
        """
        matched = len(self.names) + len(self.words)
        unknown = len(self.unknown_names) + (len(self.unknown_words) if arguments else 0)
        return matched / max(matched + unknown, 1)


def validate(
    program: Program, vocabulary: Vocabulary, rules: Rules = NORMAL, *, retry_count: int = 0
) -> ValidationResult:
    """Return the verdict on a program; nothing is raised.

    `retry_count` programs before it were refused. The verdict names at most 50 matched and 50
    unknown terms, each cut at 200 characters. Suggestions are for the first 10 unknown ones; there
    are none if the program passes, or if no retries are left.
    """
    if program.problem is not None:
        return _unread_verdict(program, rules, retry_count)
    found = _terms_of(program, vocabulary)
    matched, unknown = found.matched, found.unknown
    apart = _terms_apart(matched, vocabulary) if rules.connected else []
    uncovered = _uncovered(program, found, vocabulary)
    fails = _breaks_rules(found, vocabulary, rules, apart) or (
        rules.strictness == "strict" and any(each.runs for each in uncovered)
    )
    escalates = fails and retry_count >= rules.retries_max
    said = _message_sentences(
        found, unknown, apart, program, uncovered, rules, fails=fails, escalates=escalates
    )
    return ValidationResult(
        is_valid=not fails,
        matched_terms=_cut_terms(matched),
        unknown_terms=_cut_terms(unknown),
        suggestions=_suggestions(unknown, vocabulary) if fails and not escalates else {},
        strictness=rules.strictness,
        message=" ".join(said),
        retry_count=retry_count,
        escalation_required=escalates,
    )


def _terms_of(program: Program, vocabulary: Vocabulary) -> _ProgramTerms:
    found = _ProgramTerms()
    for name in program.names:
        found.add_name(name, vocabulary, reading=program.reading)
    for argument in program.arguments:
        if (term := found.names.get(argument.path)) is not None and vocabulary.is_tool(term):
            found.add_text(argument.text, vocabulary)
    return found


def _uncovered(
    program: Program, found: _ProgramTerms, vocabulary: Vocabulary
) -> Sequence[Uncovered]:
    """Return what the reading does not cover, in the order of the source.

    Where something is denied, that includes a value under which something denied is found, and
    texts for tools that are computed: a denied word may be in them.
    """
    made = set(program.uncovered)
    for path, line in program.values.items():
        if any(vocabulary.denies_below(each) for each in variants_of(path)):
            made.add(Uncovered(line, f"{path}, used as a value"))
    if vocabulary.denies_words:
        for path, line in (*program.computed.items(), *program.values.items()):
            if (term := found.names.get(path)) is not None and vocabulary.is_tool(term):
                made.add(Uncovered(line, f"texts for {path}"))
    return sorted(made)


def _uncovered_sentence(uncovered: Sequence[Uncovered]) -> str:
    shown = [f"{quote(_cut(each.what))} (line {each.line:,})" for each in uncovered]
    more = len(shown) - _UNCOVERED_SHOWN_MAX
    rest = f" and {more:,} more" if more > 0 else ""
    return f"Not covered by the check: {', '.join(shown[:_UNCOVERED_SHOWN_MAX])}{rest}."


def _breaks_rules(
    found: _ProgramTerms, vocabulary: Vocabulary, rules: Rules, apart: Sequence[str]
) -> bool:
    """Return True if the terms of a program break the rules. See the table of the module."""
    if rules.strictness == "permissive":
        return False
    if found.denied or apart:
        return True
    strict = rules.strictness == "strict"
    if strict and found.unknown_names:
        return True
    matched = bool(found.names or found.words)
    counted = matched or bool(found.unknown_names)
    if not counted or not (strict or vocabulary.has_thesaurus):
        return False
    return not matched or found.ratio(arguments=rules.arguments) < rules.ratio_min


def _terms_apart(matched: Sequence[str], vocabulary: Vocabulary) -> list[str]:
    """Return the terms that are not connected with the largest group of the others.

    Of groups of one size, the first by name is the largest.
    """
    groups: dict[str, list[str]] = {}
    for term in matched:
        if (group := vocabulary.group(term)) is not None:
            groups.setdefault(group, []).append(term)
    if len(groups) < 2:
        return []
    largest = min(groups, key=lambda group: (-len(groups[group]), group))
    return [term for term in matched if vocabulary.group(term) not in (None, largest)]


def _message_sentences(
    found: _ProgramTerms, unknown: Sequence[str], apart: Sequence[str], program: Program,
    uncovered: Sequence[Uncovered], rules: Rules, *, fails: bool, escalates: bool,
) -> Iterator[str]:  # fmt: skip
    """Yield the sentences of a verdict's message."""
    if found.denied:
        yield f"Denied here: {quote_list(_cut_terms(list(found.denied)))}."
    if apart:
        yield f"Not connected with the other terms: {quote_list(_cut_terms(apart))}."
    if len(unknown) > TERMS_SHOWN_MAX:
        yield f"There are {len(unknown) - TERMS_SHOWN_MAX:,} more unknown terms."
    if uncovered:
        yield _uncovered_sentence(uncovered)
    if escalates:
        yield _escalation(rules)
    elif fails:
        if len(unknown) > _UNKNOWN_FEW:
            yield _MORE_SPECIFIC
        if program.chars > _CHARS_SHORT:
            yield _BREAK_DOWN


def _unread_verdict(program: Program, rules: Rules, retry_count: int) -> ValidationResult:
    """Return the verdict on a program that was not read.

    It fails if the check is strict, unless the program is no Python and would fail by itself.
    """
    assert program.problem is not None
    fails = program.problem.kind == "unread" and rules.strictness == "strict"
    escalates = fails and retry_count >= rules.retries_max
    said = [f"Not checked: {program.problem.why}."]
    if escalates:
        said.append(_escalation(rules))
    elif fails:
        said.append(_BREAK_DOWN)
    return ValidationResult(
        is_valid=not fails,
        strictness=rules.strictness,
        message=" ".join(said),
        retry_count=retry_count,
        escalation_required=escalates,
    )


def _escalation(rules: Rules) -> str:
    person = " A person has to decide." if rules.strictness == "strict" else ""
    return f"Retries used up: {rules.retries_max:,}.{person}"


def _suggestions(unknown: Sequence[str], vocabulary: Vocabulary) -> dict[str, tuple[str, ...]]:
    found = {term: vocabulary.near(term) for term in unknown[:_SUGGESTED_MAX]}
    return {_cut(term): near for term, near in found.items() if near}


def _cut_terms(terms: Sequence[str]) -> tuple[str, ...]:
    return tuple(_cut(term) for term in terms[:TERMS_SHOWN_MAX])


def _cut(term: str) -> str:
    return term if len(term) <= _TERM_CHARS_MAX else f"{term[:_TERM_CHARS_MAX]}…"


def _is_word(text: str) -> bool:
    return len(text) >= _WORD_CHARS_MIN and _WORD.fullmatch(text) is not None


# The decision that follows from a verdict, as plain data that a run can record and replay.
#
# | | valid | not valid, retries left | not valid, none left |
# | --- | --- | --- | --- |
# | permissive | Pass | Pass | Pass |
# | normal | Pass | Retry | Warn |
# | strict | Pass | Block | Escalate |
#
# After `Pass` and `Warn` the program runs. After `Retry` and `Block` it does not: the model gets
# the feedback and writes another, which counts as a retry. `Escalate` waits for a person.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The program runs. `reason` is recorded, if there is one."""

    reason: str = ""
    kind: Literal["pass"] = "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The program does not run; the model gets the feedback and writes another.

    After the last retry, it would run with a warning.
    """

    feedback: str
    kind: Literal["retry"] = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """The program runs; the warning is shown to the model and recorded."""

    feedback: str
    kind: Literal["warn"] = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The program does not run; the model gets the reason."""

    feedback: str
    kind: Literal["block"] = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalate:
    """The program does not run unless a person approves it."""

    feedback: str
    kind: Literal["escalate"] = "escalate"


Decision = Pass | Retry | Warn | Block | Escalate


def decide(
    result: ValidationResult, *, strictness: Strictness, retry_count: int, max_retries: int
) -> Decision:
    """Decide what to do with a program, by its verdict.

    A valid one, and any if permissive, gives `Pass`. While retries are left, normal gives `Retry`
    and strict `Block`; then normal gives `Warn` and strict `Escalate`.

    Exactly `max_retries` retries are given. `Pass` has the message of the verdict as its reason.
    """
    if result.is_valid or strictness == "permissive":
        return Pass(reason=result.message)
    feedback = result.feedback()
    retries_left = retry_count < max_retries
    if strictness == "normal":
        return Retry(feedback=feedback) if retries_left else Warn(feedback=feedback)
    return Block(feedback=feedback) if retries_left else Escalate(feedback=feedback)
