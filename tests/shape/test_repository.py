"""The pages at the root of the repository agree with the files they speak of."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILD = PROJECT["build-system"]["requires"]
RUNTIME = PROJECT["project"]["dependencies"]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def name_of(requirement: str) -> str:
    """Cut a requirement down to its name: `click>=8,<9` is `click`."""
    return re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0].lower()


LOCKS = ("requirements/dev.txt", "requirements/docs.txt")


def locked() -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", "\n".join(map(text_of, LOCKS)), re.MULTILINE))


def development() -> list[str]:
    lines = [*text_of("requirements/dev.in").splitlines()]
    lines += text_of("requirements/docs.in").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", text_of("Makefile"), re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_command_on_a_page_is_a_target(page: str) -> None:
    commands = set(re.findall(r"(?:^ *|`|\$ )make ([a-z]+)", text_of(page), re.MULTILINE))

    assert {"run", "test"} <= commands
    assert commands <= make_targets()


def test_every_target_that_is_meant_for_people_is_in_the_help() -> None:
    described = set(re.findall(r"^([a-z]+):.*## .+\.$", text_of("Makefile"), re.MULTILINE))

    assert make_targets() - described == {"setup"}


@pytest.mark.parametrize("requirement", sorted({*BUILD, *RUNTIME, *development()}))
def test_every_dependency_has_a_line_that_says_why(requirement: str) -> None:
    rows = re.findall(r"^(?:\| |- )`?([\w.-]+)`?", text_of("docs/dependencies.md"), re.MULTILINE)

    assert name_of(requirement) in rows


@pytest.mark.parametrize("requirement", sorted({*BUILD, *RUNTIME, *development()}))
def test_every_dependency_is_locked_at_a_version_it_allows(requirement: str) -> None:
    version = locked()[name_of(requirement)]

    assert "==" not in requirement or requirement.endswith(f"=={version}")


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_place_to_download_from(lock: str) -> None:
    assert "://" not in text_of(lock)


def test_the_locks_agree_so_that_both_fit_into_one_virtualenv() -> None:
    tools, site = (
        dict(re.findall(r"^([\w.-]+)==(\S+)", text_of(lock), re.MULTILINE)) for lock in LOCKS
    )

    assert {name: site[name] for name in site if name in tools} == {
        name: tools[name] for name in tools if name in site
    }


def test_every_decision_record_is_in_the_index() -> None:
    records = {path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md")}

    assert records == set(re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", text_of("docs/adr/README.md")))


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    headings = re.findall(r"^## (.+)$", text_of("CHANGELOG.md"), re.MULTILINE)

    assert headings[0] == "[Unreleased]"


def test_every_commit_that_blame_passes_over_is_one_of_ours() -> None:
    hashes = re.findall(r"^[0-9a-f]{40}$", text_of(".git-blame-ignore-revs"), re.MULTILINE)
    known = subprocess.run(
        ["git", "cat-file", "--batch-check"],
        cwd=ROOT,
        input="\n".join(hashes),
        capture_output=True,
        text=True,
        check=False,
    )
    if known.returncode != 0 or (ROOT / ".git" / "shallow").exists():
        pytest.skip("this copy has no history")

    assert hashes
    assert [line.split()[1] for line in known.stdout.splitlines()] == ["commit"] * len(hashes)
