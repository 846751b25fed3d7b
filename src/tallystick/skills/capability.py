"""Give skills to runs: the catalog in a run's start, its evidence, and the `skills.*` functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.history import History
from tallystick.core.machine.state import RunState
from tallystick.core.records import EvidenceRef, HostAnswered, RunStarted, SkillLoaded, SkillUsed
from tallystick.runtime.calls.capability import (
    AskedRun,
    CapabilityBase,
    RunCapability,
    RunServices,
)
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.scope import CallScope
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.skills.calls import NO_SKILLS, SkillCalls
from tallystick.skills.scripts import Scripts
from tallystick.skills.skills import Skills, evidence_keeper, make_skills_given, recorded_cards
from tallystick.skills.why import drift_of


class SkillsCapability(CapabilityBase):
    """The skills that runs of a client may use. `skills` is None if the client has none.

    A client without skills can still replay and resume a recorded run that had some.
    """

    name = "skills"
    for_children = False

    def __init__(self, skills: Skills | None) -> None:
        self._skills = skills

    def start_fields(self, asked: AskedRun, run_attachments: RunAttachments) -> Mapping[str, Any]:
        """Return the skills of a new run as a field of its start.

        Match the skills with the goal, fit the catalog, and load what the user puts into the
        prompt. The cards are kept as an attachment of the run. Raise `UsageError` if this client
        has no skills. Raise `SkillNotFound`, `SkillAmbiguous`, `SkillArguments`, or another error
        of `make_skills_given`, if a skill for the prompt cannot be loaded, or names a model that
        the run may not ask.
        """
        if self._skills is None:
            put = asked.put_skills[0][:80] if asked.put_skills else ""
            raise UsageError(
                f"skill {put!r} cannot be loaded: there are no skills here; --skills names a "
                f"directory of them"
            )
        given = make_skills_given(
            self._skills,
            goal=asked.goal,
            put=asked.put_skills,
            files=[each.name for each in asked.inputs],
            run_attachments=run_attachments,
            session=asked.session_id,
            find_model=asked.find_model,
        )
        return {"skills": given}

    def drift(self, history: History, run_attachments: RunAttachments) -> Sequence[msgspec.Struct]:
        """Return the files of skills that differ from what a run saw, loaded or used.

        The result is empty if the run was given no skills, or if this client has none. Raise an
        `AttachmentError` or `msgspec.MsgspecError` if the recorded cards cannot be read.
        """
        started = history.started
        if started.skills is None or self._skills is None:
            return ()
        cards = recorded_cards(started.skills, run_attachments)
        return drift_of(started.skills, cards, history.records, self._skills)

    def open(
        self, started: RunStarted, history: History, services: RunServices
    ) -> RunCapability | None:
        """Return the skills of a run, new or recorded; None if it was given none."""
        if started.skills is None:
            return None
        return _SkillsOfRun(self._skills, started, services, is_new=not history.records)


class _SkillsOfRun(RunCapability):
    """The skills of one run.

    Programs find the `skills.*` functions only if there is a door to the models (a replay has none)
    and the prompt names a skill.
    """

    def __init__(
        self, skills: Skills | None, started: RunStarted, services: RunServices, *, is_new: bool
    ) -> None:
        given = started.skills
        assert given is not None
        self._services = services
        cards = skills.registry.cards() if is_new and skills is not None else ()
        live = services.door is not None
        self._evidence = evidence_keeper(given, services.run_attachments, cards=cards, live=live)
        self._calls: SkillCalls | None = None
        if services.door is not None and (given.rendered or given.put):
            self._calls = SkillCalls(
                skills or NO_SKILLS,
                session_id=started.session_id,
                scripts=Scripts(
                    services.sandbox,
                    lambda: services.others(self),
                    granted=started.grants,
                    seed=started.seed,
                    clock_ns=started.clock_ns,
                    spend=services.door.run_scopes.spend,
                ),
                find_model=services.find_model,
                children=services.children,
                put=[each.id for each in given.put],
            )

    def functions(self) -> Sequence[RunFunction]:
        return () if self._calls is None else self._calls.functions()

    def evidence(self, state: RunState) -> EvidenceRef | None:
        return self._evidence(state)

    def fields_of(self, notes: Sequence[msgspec.Struct]) -> Mapping[str, Any]:
        touched = [each for each in notes if isinstance(each, SkillLoaded | SkillUsed)]
        return {"skill": touched[-1]} if touched else {}

    def note_served_answer(self, scope: CallScope, answer: HostAnswered) -> None:
        """Take the host calls of a script off those that the program has left.

        The answer is served from the record, so its script does not run again and would not count
        them.
        """
        if isinstance(answer.skill, SkillUsed):
            scope.host_calls_left -= answer.skill.host_calls
