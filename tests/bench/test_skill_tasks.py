"""The task that needs a skill: the rule is in no prompt, and following it gives the answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.real.skilled import skill_search

from tallystick.skills.catalog import fit_catalog
from tallystick.skills.match import search
from tallystick.skills.skills import Skills


@pytest.mark.parametrize("seed", range(12))
def test_the_skill_is_not_listed_is_found_by_the_words_of_the_task_and_has_the_rule(
    seed: int, tmp_path: Path
) -> None:
    task = skill_search(seed)
    for name, text in task.skills.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(text)
    registry = Skills.of(tmp_path).registry
    cards = registry.cards()

    catalog = fit_catalog(cards)
    found = search(cards, task.question)[0].id

    assert found not in catalog.evidence.shown
    assert found not in catalog.rendered
    rule = re.search(r"times (\d+), plus (\d+)", registry.find(found).body())
    code = re.search(r"is (\d+)\.", task.question)
    assert rule is not None
    assert code is not None
    assert task.check(str(int(rule[1]) * int(code[1]) + int(rule[2])))
    assert not any(map(task.check, task.near_misses))
