"""Runs with skills as a user has them: what is said before, shown after, and carried elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_exec import Tally
from tests.skills.skill_runs import make_skill

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow

SCREEN = "\x1b[31mred\x1b]0;owned\x07\x9b2J"


def replies(tally: Tally, *programs: str) -> str:
    lines = [json.dumps({"text": f"```python\n{each}\n```"}) for each in programs]
    (tally.directory / "model.jsonl").write_text("\n".join(lines))
    return "scripted:model.jsonl"


def run(tally: Tally, programs: Sequence[str], *words: str, **env: str) -> Any:
    return tally("run", "which shelf has code 5?", "-m", replies(tally, *programs), *words, **env)


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    make_skill(
        tmp_path / "mine",
        "shelf-codes",
        body="Add $1 to the code. That is the shelf, and there is no other.\n",
        files={"rates.csv": "a,1\n", "run.py": "print(open('rates.csv').read())"},
    )
    # A checkout of its own: nothing above it is looked at.
    (tmp_path / ".git").mkdir()
    made = Tally(tmp_path)
    made.env["HOME"] = str(tmp_path / "home")
    return made


USES = [
    "print(skills.search('shelf'))",
    "print(skills.load('shelf-codes', 7))",
    "print(skills.run('shelf-codes', 'run.py'), skills.read('shelf-codes', 'rates.csv'))",
    "FINAL(12)",
]


def test_a_run_with_skills_is_carried_to_another_machine_whole(
    tally: Tally, tmp_path: Path
) -> None:
    assert run(tally, USES, "--skills", "mine", "--quiet").stdout == "12\n"
    assert tally("verify").returncode == 0
    assert tally("export", "last", "there.tally").returncode == 0
    assert tally("export", "last", "-", "--format", "trajectory").returncode == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".git").mkdir()
    (tmp_path / "there.tally").rename(elsewhere / "there.tally")
    other = Tally(elsewhere)
    assert other("import", "there.tally").returncode == 0

    replayed = other("replay", "last")
    why = other("skills", "why", "shelf-codes", "last")

    assert (replayed.returncode, "no divergence" in replayed.stdout) == (0, True)
    assert "drift: skill 'shelf-codes': rates.csv is not found here" in replayed.stderr
    assert "a program loaded it in turn 2 and programs used script run.py in turn 3" in why.stdout
    assert "resource rates.csv in turn 3" in why.stdout
    assert "loaded the skill shelf-codes" in other("inspect", "last").stdout
    assert other("verify").returncode == 0


def test_a_run_with_skills_is_forked_at_every_turn_compared_and_pruned(tally: Tally) -> None:
    model = replies(tally, *USES)
    done = tally("run", "which shelf has code 5?", "-m", model, "--skills", "mine", "--json")
    whole = json.loads(done.stdout)["run"]
    for turn in range(1, 4):
        forked = tally(
            "fork", whole, "--at", str(turn), "-m", model,
            "--skills", "mine", "--quiet",
        )  # fmt: skip
        assert forked.stdout == "12\n", forked.stderr
        assert "no divergence" in tally("replay", "last", "--skills", "mine").stdout
    bare = run(tally, ["FINAL(12)"], "--no-skills", "--json")
    compared = tally("diff", whole, json.loads(bare.stdout)["run"])
    assert compared.returncode == 0
    assert "other prompt" in compared.stdout
    # What others were grown from stays; the last one goes.
    assert tally("prune", "--yes", "last").returncode == 0
    assert tally("prune", "--yes", whole).returncode == 6
    assert tally("verify").returncode == 0


def test_what_a_skill_says_does_nothing_to_a_terminal(tally: Tally, tmp_path: Path) -> None:
    folder = make_skill(tmp_path / "evil", "evil", body=f"Body {SCREEN} text.\n")
    head = folder / "SKILL.md"
    escaped = json.dumps(SCREEN)[1:-1].replace("\\u00", "\\x")
    head.write_text(
        head.read_text().replace("About evil.", f'"{escaped} about shelf code"'), encoding="utf-8"
    )
    (folder / f"file{SCREEN.replace('/', '')}.py").write_text("print(1)")
    (folder / "run.py").write_text(f"print({SCREEN!r})\nraise ValueError({SCREEN!r})")
    make_skill(tmp_path / "evil", f"bad{SCREEN}")
    programs = [
        "print(skills.search('shelf'))",
        "print(skills.load('evil'))",
        "out = skills.run('evil', 'run.py')\nprint(out['stdout'], out['stderr'])",
        "FINAL(12)",
    ]
    said = [
        *(
            tally("skills", *words, "--dir", "evil")
            for words in (
                ["list"], ["catalog"], ["catalog", "--reference"], ["show", "evil", "--body"],
                ["lint", "evil"], ["match", "shelf"], ["why", "evil"],
            )
        ),
        run(tally, programs, "--skills", "evil"),
        tally("inspect", "last"),
        tally("inspect", "last", "--programs"),
        tally("skills", "why", "evil", "last"),
    ]  # fmt: skip
    (folder / "run.py").unlink()
    said.append(tally("replay", "last", "--skills", "evil"))

    assert "drift" in said[-1].stderr
    for each in said:
        text = each.stdout + each.stderr
        assert [one for one in text if not one.isprintable() and one != "\n"] == [], text


def test_a_folder_whose_name_is_no_text_does_not_stop_anything(
    tally: Tally, tmp_path: Path
) -> None:
    odd = os.fsencode(tmp_path) + b"/odd-\xff"
    os.rename(tmp_path / "mine", odd)
    place = os.fsdecode(odd)

    listed = tally("skills", "list", "--json", TALLYSTICK_SKILLS=place)
    shown = tally("skills", "show", "shelf-codes", "--json", TALLYSTICK_SKILLS=place)
    done = run(tally, USES, "--quiet", TALLYSTICK_SKILLS=place)

    assert json.loads(listed.stdout)["skills"][0]["path"] == f"{place}/shelf-codes"
    assert json.loads(shown.stdout)["usable"] is True
    assert (done.stdout, done.stderr) == ("12\n", "")
    assert "no divergence" in tally("replay", "last", TALLYSTICK_SKILLS=place).stdout


def test_what_a_user_asks_for_and_cannot_have_is_said_with_what_to_do(
    tally: Tally, tmp_path: Path
) -> None:
    make_skill(tmp_path / ".agents" / "skills", "deploy-notes")

    def told(*words: str) -> str:
        done = run(tally, ["FINAL(12)"], *words)
        assert done.returncode in (1, 2), done.stderr
        assert "Traceback" not in done.stderr
        return str(done.stderr)

    assert "tally skills trust deploy-notes" in told("--skill", "deploy-notes now")
    assert "tally skills trust deploy-notes" in told("--dry-run", "--skill", "deploy-notes")
    assert "1 skill that was found is not used (deploy-notes)" in told("--skill", "nope")
    assert "no skill 'shelf-code'; did you mean shelf-codes" in told(
        "--skills", "mine", "--skill", "shelf-code"
    )
    assert "no skill 'nope'" in told("--skills", "mine", "--dry-run", "--skill", "nope")
    assert "the name of a skill" in told("--skills", "mine", "--skill", " ")
    assert "No closing quotation" in told("--skills", "mine", "--skill", "shelf-codes 'x")
    assert "contradict" in told("--no-skills", "--skill", "shelf-codes")
    assert "there is no such directory" in told("--skills", "nowhere")


def test_a_dry_run_counts_what_skills_put_into_the_prompt(tally: Tally, tmp_path: Path) -> None:
    make_skill(tmp_path / "mine", "long-one", body="Go on. " * 3_000)

    def estimated(*words: str) -> int:
        done = run(tally, ["FINAL(12)"], "--dry-run", "--json", *words)
        return int(json.loads(done.stdout)["tokens_in_estimated"])

    bare = estimated("--no-skills")
    listed = estimated("--skills", "mine")
    put = estimated("--skills", "mine", "--skill", "long-one")

    assert bare + 40 < listed < bare + 1_000
    assert put > listed + 4_000


def test_the_reference_catalog_has_texts_as_they_are_written(tally: Tally, tmp_path: Path) -> None:
    folder = make_skill(tmp_path / "lines", "lines")
    (folder / "SKILL.md").write_text(
        "---\nname: lines\ndescription: |-\n  One line,\n    another.\n"
        'when_to_use: "when  two\\n  lines"\n---\nDo it.\n'
    )

    done = tally("skills", "catalog", "--dir", "lines", "--reference", "--json")

    found = json.loads(done.stdout)
    assert "- `lines`: One line,\n  another.\n  when: when  two\n  lines" in found["rendered"]
    assert found["evidence"]["cards"][0]["description"] == "One line,\n  another."
