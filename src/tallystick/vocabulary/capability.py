"""Check the programs of a run against a vocabulary before they run, and record the verdicts.

Rule 1: the check follows from the record alone: the functions and skills of the run, its thesaurus
(kept as an attachment), the programs before. So replay and resume compute it again, and compare.
Rule 2: it is not a security boundary. Grants decide what programs may do; this finds slips.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tallystick.core.errors import UsageError
from tallystick.core.history import History
from tallystick.core.machine.native import kind_of as program_kind_of
from tallystick.core.machine.state import RunState
from tallystick.core.records import (
    CheckProgram,
    ProgramChecked,
    RunStarted,
    VocabularyGiven,
)
from tallystick.runtime.calls.capability import AskedRun, CapabilityBase, RunCapability, RunServices
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.sandbox.backend import kind_of

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.vocabulary.check import Rules
    from tallystick.vocabulary.program import Program
    from tallystick.vocabulary.terms import Thesaurus, Vocabulary

THESAURUS_LABEL = "thesaurus"
# Functions of our own: the texts that are passed to them are data, not terms.
_OURS = ("attachments.", "budget.", "outputs.", "skills.", "llm_query", "rlm_query")
# Names that the programs of every run find.
_ANSWERING = (
    "FINAL", "FINAL_VAR", "Final", "SHOW_VARS", "answer", "context", "final", "final_answer",
)  # fmt: skip
_OF_MEMORY = frozenset({"cite", "recall", "remember", "score"})


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyAsked:
    """The check that a user asked for: the rules, and a thesaurus as it was read."""

    rules: Rules
    thesaurus: bytes | None = None


def read_vocabulary(
    strictness: str | None, thesaurus: bytes | None, *, name: str
) -> VocabularyAsked | None:
    """Return the check that was asked for; None if nothing was. A thesaurus alone means `normal`.

    Raise `UsageError` for an unknown strictness, `ThesaurusInvalid` for a thesaurus with a fault.
    """
    if strictness is None and thesaurus is None:
        return None
    from tallystick.vocabulary.check import NORMAL, PERMISSIVE, STRICT
    from tallystick.vocabulary.terms import read_thesaurus

    known: dict[str, Rules] = {each.strictness: each for each in (PERMISSIVE, NORMAL, STRICT)}
    rules = known.get(strictness or "normal")
    if rules is None:
        raise UsageError(f"vocabulary {strictness!r:.80}: there are {', '.join(known)}")
    if thesaurus is not None:
        read_thesaurus(thesaurus, name=name)
    return VocabularyAsked(rules=rules, thesaurus=thesaurus)


class VocabularyCapability(CapabilityBase):
    """The vocabulary of a client's runs.

    `asked` is None without one; `skills` are the ids of its skills.
    """

    name = "vocabulary"

    def __init__(self, asked: VocabularyAsked | None, skills: Sequence[str] = ()) -> None:
        self._asked = asked
        self._skills = tuple(skills)

    def start_fields(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Return the rules for the start of a new run; nothing if no check was asked for.

        The thesaurus is kept, and committed with the run's first records. Raise `AttachmentError`
        if it cannot be kept.
        """
        if self._asked is None:
            return {}
        from tallystick.vocabulary.program import READING

        rules, ref = self._asked.rules, None
        if self._asked.thesaurus is not None:
            ref = run_attachments.keep(
                self._asked.thesaurus, media_type="text/plain", label=THESAURUS_LABEL
            )
        given = VocabularyGiven(
            strictness=rules.strictness,
            ratio_min=rules.ratio_min,
            retries_max=rules.retries_max,
            thesaurus=ref,
            reading=READING,
            parks=True,
        )
        return {"vocabulary": given}

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        """Return the check of a run, or None if it has no vocabulary.

        A recorded run is checked with its own thesaurus and skills, not with those of this client.
        Raise `ThesaurusInvalid` if the thesaurus has a fault, and `UsageError` if its programs are
        read in a way that this version does not know. Raise `NotSupported` for an unknown sandbox,
        and an `AttachmentError` if what a recorded run kept cannot be read.
        """
        if started.vocabulary is None:
            return None
        from tallystick.vocabulary.program import READING, READING_FIRST

        reading = started.vocabulary.reading
        if not READING_FIRST <= reading <= READING:
            raise UsageError(
                f"the programs of this run are checked by reading {reading}; this version of "
                f"tallystick knows {READING_FIRST} to {READING}: use the version that began the run"
            )
        files = services.run_attachments
        if not history.records and self._asked is not None:
            raw = self._asked.thesaurus
            skills = self._skills if started.skills is not None else ()
        else:
            ref = started.vocabulary.thesaurus
            raw, skills = None if ref is None else files.read(ref), ()
            if started.skills is not None:
                from tallystick.skills.skills import recorded_cards

                skills = tuple(each.id for each in recorded_cards(started.skills, files))
        # A program of the WASM sandbox is read by the Python that runs it.
        in_guest = reading > READING_FIRST and not kind_of(started.backend).host_python
        return _VocabularyOfRun(
            started, raw, skills, sandbox=services.sandbox if in_guest else None
        )


class _VocabularyOfRun(RunCapability):
    """The check of one run.

    It is made at the first program, when the functions of the run are known. Programs are read in
    `sandbox`, or by the Python of this process without one.
    """

    def __init__(
        self,
        started: RunStarted,
        raw: bytes | None,
        skills: Sequence[str],
        *,
        sandbox: Callable[[], WasmSandbox] | None,
    ) -> None:
        from tallystick.vocabulary.terms import read_thesaurus

        self._thesaurus = None if raw is None else read_thesaurus(raw, name=THESAURUS_LABEL)
        self._skills = skills
        self._sandbox = sandbox
        self._check: _Check | None = None

    async def check(
        self, source: str, state: RunState, asked: CheckProgram
    ) -> ProgramChecked | None:
        if self._check is None:
            # When a new run is opened, its start does not have its functions yet.
            self._check = _check_for(
                state.started, self._thesaurus, self._skills, sandbox=self._sandbox
            )
        return await self._check(source, state, asked)


def _check_for(
    started: RunStarted,
    thesaurus: Thesaurus | None,
    skills: Sequence[str],
    *,
    sandbox: Callable[[], WasmSandbox] | None,
) -> _Check:
    from tallystick.vocabulary.check import Rules, rules_of
    from tallystick.vocabulary.terms import Vocabulary

    given = started.vocabulary
    assert given is not None
    names = [name for name, _ in started.functions]
    ours = [each for each in names if each.startswith(_OURS) or each in _OF_MEMORY]
    preset = rules_of(given.strictness)
    return _Check(
        Vocabulary(
            functions=ours,
            tools=[each for each in names if each not in ours],
            skills=skills,
            thesaurus=thesaurus,
        ),
        Rules(
            strictness=given.strictness,
            ratio_min=given.ratio_min,
            retries_max=given.retries_max,
            arguments=preset.arguments,
            connected=preset.connected,
        ),
        given=_data_names(started),
        reading=given.reading,
        sandbox=sandbox,
    )


class _Check:
    """The check of the programs of one run, in order.

    Names that one program defines are known in the next.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        rules: Rules,
        *,
        given: dict[str, str],
        reading: int,
        sandbox: Callable[[], WasmSandbox] | None,
    ) -> None:
        self._vocabulary = vocabulary
        self._rules = rules
        self._reading = reading
        self._sandbox = sandbox
        self._given = given
        # Names that the programs checked so far define, with the paths they were imported from.
        self._left: dict[str, str] = {}

    async def __call__(self, source: str, state: RunState, asked: CheckProgram) -> ProgramChecked:
        from tallystick.vocabulary.check import Pass, decide, validate
        from tallystick.vocabulary.shell import read_shell

        rules, retries = self._rules, state.unchecked
        if program_kind_of(state.queue[0]) == "bash":
            program = read_shell(source)
        else:
            program = await self._read_python(source)
        verdict = validate(program, self._vocabulary, rules, retry_count=retries)
        decision = decide(
            verdict,
            strictness=rules.strictness,
            retry_count=retries,
            max_retries=rules.retries_max,
        )
        if decision.kind not in ("retry", "block"):
            # A program that waits for a person's decision may still run.
            self._left |= program.kept
        return ProgramChecked(
            turn=asked.turn,
            part=asked.part,
            sha256=asked.sha256,
            decision=decision.kind,
            feedback="" if isinstance(decision, Pass) else decision.feedback,
            is_valid=verdict.is_valid,
            matched_terms=verdict.matched_terms,
            unknown_terms=verdict.unknown_terms,
            suggestions=tuple(sorted(verdict.suggestions.items())),
            message=verdict.message,
            retry_count=verdict.retry_count,
            escalation_required=verdict.escalation_required,
        )

    async def _read_python(self, source: str) -> Program:
        given = self._given | self._left
        if self._sandbox is None:
            from tallystick.vocabulary.program import read_python

            return read_python(source, given=given, reading=self._reading)
        from tallystick.vocabulary.guest_python import read_python_in

        return await read_python_in(self._sandbox(), source, given=given)


def _data_names(started: RunStarted) -> dict[str, str]:
    """Return the names of data that programs of a run find beside functions, each with ""."""
    found = [*_ANSWERING, *started.values, *(each.name for each in started.texts)]
    found += [each.name for each in started.inputs]
    found += [each.name for each in started.views]
    return dict.fromkeys(found, "")
