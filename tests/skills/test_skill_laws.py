"""Laws of what skills may change in a run: they choose and narrow, and never widen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.agent.models import models_for_programs
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.machine.state import (
    RunState,
    after_answer,
    after_program,
    allows,
    with_first_skills,
)
from tallystick.core.records import Caller, HostAnswered, RunStarted, SkillLoaded, SkillModel
from tallystick.model.port import Model
from tallystick.runtime.calls.queries import find_asked
from tallystick.skills.skills import recorded_model_name
from tallystick.testing.models import ModelDouble

NAMES = st.sampled_from(["own", "sub", "small", "large", "opus", "", "own ", "SMALL", "a/b:c"])
FUNCTIONS = ("look", "touch", "box.open")
TOOLS = st.none() | st.lists(
    st.sampled_from([*FUNCTIONS, "namespace:box", "*", "other"]), max_size=3
).map(tuple)
LOADS = st.lists(
    st.builds(
        SkillLoaded,
        id=st.sampled_from(["a", "b", "c"]),
        source=st.just("flag"),
        sha256=st.just(""),
        token_estimate=st.just(1),
        allowed_tools=TOOLS,
        model=st.sampled_from(["", "small", "large"]),
        by_child=st.booleans(),
    ),
    max_size=6,
)


def start(*, tools: tuple[tuple[str, ...], ...] = (), model: SkillModel | None = None) -> RunState:
    """The first state of a run that a program began with these tools and this model."""
    caller = Caller(run="R", intent=1, item=0, depth=1, tools=tools, skill_model=model)
    return with_first_skills(
        RunState(
            started=RunStarted(
                goal="", model="own", limits=RunLimits(), grants=(), contexts=(), functions=(),
                texts=(), seed=0, session_id="", template="", guest="", engine="", started_at=0,
                caller=caller,
            )
        )
    )  # fmt: skip


def loaded(state: RunState, skill: SkillLoaded) -> RunState:
    answer = HostAnswered(
        intent=1, program=1, index=0, name="skills.load", request_sha256="", fuel=0,
        reply=b'0"Do it."', ok=True, skill=skill,
    )  # fmt: skip
    return after_answer(state, answer)


def allowed(state: RunState) -> set[str]:
    return {name for name in FUNCTIONS if allows(state.skills.tools, name)}


@given(loads=LOADS, ends=st.lists(st.booleans(), min_size=6, max_size=6))
def test_whatever_is_loaded_only_narrows_and_the_last_named_model_counts(
    loads: list[SkillLoaded], ends: list[bool]
) -> None:
    state, named = start(), None
    for skill, program_ends in zip(loads, ends, strict=False):
        before = allowed(state), state.skills.model
        state = loaded(state, skill)
        # Nothing changes for the program that loads.
        assert (allowed(state), state.skills.model) == before
        if skill.model and not skill.by_child:
            named = SkillModel(name=skill.model, skill=skill.id)
        if program_ends:
            state = after_program(state)
            assert allowed(state) <= before[0]
            assert state.skills.model == named

    assert set(state.skills.loaded) == {each.id for each in loads}


@given(loads=LOADS)
def test_a_skill_that_a_child_run_follows_changes_nothing_for_its_parent(
    loads: list[SkillLoaded],
) -> None:
    state = start(tools=(("look",),), model=SkillModel(name="small", skill="x"))
    after = state
    for skill in loads:
        after = after_program(loaded(after, _by_child(skill)))

    assert (after.skills.tools, after.skills.model) == (state.skills.tools, state.skills.model)
    assert after.skills.texts == ()


def _by_child(skill: SkillLoaded) -> SkillLoaded:
    return SkillLoaded(
        id=skill.id, source="flag", sha256="", token_estimate=1,
        allowed_tools=skill.allowed_tools, model=skill.model, by_child=True,
    )  # fmt: skip


@given(outer=st.lists(TOOLS.filter(lambda each: each is not None), max_size=3), own=TOOLS)
def test_a_child_run_is_allowed_what_its_parent_is_at_most(
    outer: list[tuple[str, ...]], own: tuple[str, ...] | None
) -> None:
    parent = start(tools=tuple(outer))
    child = start(tools=(*parent.skills.tools, *(() if own is None else (own,))))

    assert allowed(child) <= allowed(parent)
    assert allowed(child) <= {name for name in FUNCTIONS if own is None or allows((own,), name)}


@given(named=NAMES, has_sub=st.booleans(), aliases=st.dictionaries(NAMES, NAMES, max_size=4))
def test_a_name_leads_to_a_model_that_the_run_may_ask_or_to_none(
    named: str, has_sub: bool, aliases: dict[str, str]
) -> None:
    own, sub = ModelDouble("", name="own"), ModelDouble("", name="sub")
    others: dict[str, Model] = {"small": ModelDouble("", name="fake:small")}
    find = models_for_programs(
        own, others, (lambda: sub) if has_sub else None, lambda name: aliases.get(name, name)
    )
    mine = [own, *([sub] if has_sub else []), *others.values()]

    try:
        found = find(named)
    except UsageError:
        with pytest.raises(UsageError, match=r"\Amodel .*; the skill 'x' names it.*\Z"):
            find_asked(find, SkillModel(name=named, skill="x"))
        return

    assert find_asked(find, SkillModel(name=named, skill="x")) is found
    assert any(found is each for each in mine)
    # What is recorded leads to it again, also where aliases mean something else by then.
    recorded = recorded_model_name(named, find)
    assert models_for_programs(own, others, (lambda: sub) if has_sub else None)(recorded) is found
