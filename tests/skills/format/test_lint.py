"""Lint: as strict as the reference validator, on a corpus of skills good and bad."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skills_ref.validator import validate  # type: ignore[import-untyped]
from tests.skills.skill_corpus import CHANGES, Case, changed, corpus

from tallystick.skills.format.lint import lint

pytestmark = pytest.mark.slow

# Where the two differ on purpose, by the change that makes them: what the reference says, and what
# is said here. docs/reference/formats.md has the reasons.
DIFFERENT = {
    "known key": ("invalid", "valid"),
    "known flag": ("invalid", "valid"),
    "underscore key": ("invalid", "valid"),
    "description null": ("valid", "invalid"),
    "tools with colons": ("valid", "invalid"),
    "comment behind dashes": ("valid", "invalid"),
    "long closing": ("valid", "invalid"),
    "indented closing": ("valid", "invalid"),
    "NUL": ("valid", "invalid"),
}
# The reference ends the frontmatter at these wherever they are, so it depends on what comes after.
EITHER = {"description with dashes"}


def reference(folder: Path) -> str:
    try:
        return "invalid" if validate(folder) else "valid"
    except Exception:  # it raises on bytes that are not UTF-8, and on control characters
        return "invalid"


def here(folder: Path) -> str:
    return "invalid" if any(each.level == "error" for each in lint(folder)) else "valid"


def put(parent: Path, text: str, *, name: str = "pdf") -> Path:
    folder = parent / name
    folder.mkdir()
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    return folder


def good(body: str = "Do it.\n", extra: str = "") -> str:
    return f"---\nname: pdf\ndescription: Reads PDF files.\n{extra}---\n{body}"


def codes(folder: Path) -> list[str]:
    return [each.code for each in lint(folder)]


@pytest.mark.parametrize("change", [name for name in CHANGES if name not in EITHER])
def test_one_fault_is_judged_as_the_reference_does_or_as_stated(
    tmp_path: Path, change: str
) -> None:
    for seed in range(3):
        folder = changed(change, seed).written(tmp_path / str(seed))

        verdicts = (reference(folder), here(folder))

        if change in DIFFERENT:
            # A second fault of the same skill may be one for both.
            assert verdicts == DIFFERENT[change] or verdicts[0] == verdicts[1]
        else:
            assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("change", DIFFERENT)
def test_a_stated_difference_is_one(tmp_path: Path, change: str) -> None:
    seen = set()
    for seed in range(10):
        folder = changed(change, seed).written(tmp_path / str(seed))
        seen.add((reference(folder), here(folder)))

    assert DIFFERENT[change] in seen


@settings(max_examples=8)
@given(st.integers(0, 1_000_000))
def test_a_generated_corpus_is_judged_as_the_reference_does(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    parent = tmp_path_factory.mktemp("lint")
    for number, case in enumerate(corpus(seed, 25)):
        if case.traits & (DIFFERENT.keys() | EITHER):
            continue
        folder = case.written(parent / str(number))
        assert here(folder) == reference(folder), case


@pytest.mark.slow
def test_a_large_corpus_is_judged_as_the_reference_does(tmp_path: Path) -> None:
    verdicts = {"valid": 0, "invalid": 0}
    for number, case in enumerate(corpus(8, 3_000)):
        if case.traits & (DIFFERENT.keys() | EITHER):
            continue
        folder = case.written(tmp_path / str(number))
        verdict = reference(folder)
        verdicts[verdict] += 1
        assert here(folder) == verdict, case

    assert min(verdicts.values()) > 800


def test_a_good_skill_has_no_problems(tmp_path: Path) -> None:
    folder = put(tmp_path, good("Read [more](references/more.md#top) and `x`.\n"))
    (folder / "references").mkdir()
    (folder / "references" / "more.md").touch()
    (folder / "scripts").mkdir()
    (folder / "scripts" / "run.py").touch()

    assert lint(folder) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title\n", ["frontmatter.missing", "body"]),
        ("---\nname: pdf\n", ["frontmatter.unclosed"]),
        ("---\nname: pdf\n---\nx", ["description.missing"]),
        ("---\ndescription: x\n---\nx", ["name.missing"]),
        ("---\nname: PDF\ndescription: x\n---\nx", ["name.case", "name.folder"]),
        ("---\nname: pdf\ndescription: a: b\n---\nx", ["yaml.mended"]),
        ("---\nname: pdf\ndescription: &a b\n---\nx", ["yaml.anchor"]),
        ("---\nname: pdf\ndescription: x\nname: pdf\n---\nx", ["yaml.duplicate"]),
        (good(extra="metadata: {a: b}\n"), ["yaml.flow"]),
        (good(extra="version: 1\n"), ["key.unknown"]),
        (good(extra="allowed-tools: a:b\n"), ["allowed-tools.colon"]),
        (good(extra=f"compatibility: {'x' * 501}\n"), ["compatibility.long"]),
        ("\ufeff" + good(), ["encoding.bom"]),
    ],
)
def test_an_error_says_what_is_wrong(tmp_path: Path, text: str, expected: list[str]) -> None:
    folder = put(tmp_path, text)

    errors = [each.code for each in lint(folder) if each.level == "error"]

    assert errors == [each for each in expected if each != "body"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (good(extra="when_to_use: Always.\n"), ["key.extra"]),
        (good(extra="model: small\n"), ["key.extra"]),
        (good(extra="context: fork\n"), ["key.extra"]),
        (good(extra="context: inline\n"), ["key.extra", "context.unknown"]),
        (good(extra="argument-hint: FILE\n"), ["key.extra"]),
        (good(extra="effort: high\n"), ["key.unused"]),
        (good(extra="agent: explorer\n"), ["key.unused"]),
        (good(extra="hooks: none\n"), ["key.unused"]),
        (good(extra="shell: bash\n"), ["key.unused"]),
        (good(extra="requires-mcp: github\n"), ["key.unused"]),
        (good(extra="disable-model-invocation: maybe\n"),
         ["key.extra", "disable-model-invocation.flag"]),
        (good(extra="allowed-tools:\n  - Read\n"), ["allowed-tools.list"]),
        (good(extra="metadata: text\n"), ["metadata.type"]),
        (good(extra="compatibility:\n"), ["compatibility.empty"]),
        (good(extra="license: a --- b\n"), ["frontmatter.dashes"]),
        (good(extra="license: 'a\tb'\n"), ["yaml.tab"]),
        (good(""), ["body.empty"]),
        (good("line\n" * 501), ["body.long"]),
        (good("long " * 4_001), ["body.long"]),
        (good("[a](gone.md) ![b](img/x.png) [c](gone.md)\n"), ["link.missing", "link.missing"]),
        (good("[a](../other/SKILL.md)\n"), ["link.outside"]),
    ],
)  # fmt: skip
def test_a_warning_says_what_could_be_better(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    found = lint(put(tmp_path, text))

    assert [each.code for each in found] == expected
    assert {each.level for each in found} == {"warning"}


def test_a_key_that_changes_nothing_here_is_said_to_be_unused(tmp_path: Path) -> None:
    unused = ("effort: high", "agent: a", "hooks: none", "shell: bash", "requires-mcp: github")

    found = lint(put(tmp_path, good(extra="".join(f"{each}\n" for each in unused))))

    names = [each.partition(":")[0] for each in unused]
    assert [each.message for each in found] == [f"{name!r} is not used here" for name in names]


@pytest.mark.parametrize(
    "link",
    ["https://example.org/x.md", "mailto:a@b.c", "#top", "/docs/x", "//host/x", "{file}",
     "$FILE", "*.md", "SKILL.md", "SKILL.md#part", "./SKILL.md", "a%20b.md", "sub/"],
)  # fmt: skip
def test_links_that_lead_elsewhere_or_to_what_is_there_are_no_fault(
    tmp_path: Path, link: str
) -> None:
    folder = put(tmp_path, good(f"See [it]({link}).\n\n```\n[x](gone.md)\n```\n"))
    (folder / "a b.md").touch()
    (folder / "sub").mkdir()

    assert lint(folder) == ()


def test_files_that_are_never_read_or_run_are_told(tmp_path: Path) -> None:
    folder = put(tmp_path, good())
    (folder / "scripts").mkdir()
    (folder / "scripts" / "run.sh").touch()
    (folder / "scripts" / "run.py").touch()
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")

    found = {each.code: each.message for each in lint(folder)}

    assert codes(folder) == ["files.left_out", "files.left_out", "script.language"]
    assert found["script.language"].startswith("'scripts/run.sh' is not Python")


def test_a_file_in_lower_case_is_taken_with_a_warning(tmp_path: Path) -> None:
    folder = put(tmp_path, good())
    (folder / "SKILL.md").rename(folder / "skill.md")

    assert codes(folder) == ["file.case"]


def test_what_is_no_skill_at_all_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "SKILL.md").symlink_to("/etc/passwd")
    (tmp_path / "huge").mkdir()
    with open(tmp_path / "huge" / "SKILL.md", "wb") as file:
        file.truncate(1 << 40)

    assert codes(tmp_path / "nowhere") == ["folder.missing"]
    assert codes(tmp_path / "file") == ["folder.missing"]
    assert codes(Path("\0")) == ["folder.missing"]
    assert codes(tmp_path / ("x" * 300)) == ["folder.missing"]
    assert codes(tmp_path / "empty") == ["file.missing"]
    assert codes(tmp_path / "linked") == ["file.refused"]
    assert codes(tmp_path / "huge") == ["file.refused"]


def test_a_folder_is_known_by_its_name_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(put(tmp_path, good()))

    assert lint(Path()) == ()


def test_errors_come_before_warnings(tmp_path: Path) -> None:
    levels = [each.level for each in lint(put(tmp_path, good("", extra="short: x\nx: y\n")))]

    assert levels == sorted(levels)
    assert set(levels) == {"error", "warning"}


@pytest.mark.parametrize(
    "body", ["[" * 900_000, "](" * 450_000, "[a](b" * 180_000, "](x " * 200_000, "```\n" * 200_000]
)
def test_a_hostile_body_takes_no_long_time(tmp_path: Path, body: str) -> None:
    folder = put(tmp_path, good(body))
    begun = time.process_time()

    lint(folder)

    # It takes some tenths at most; the square of the size would take hours.
    assert time.process_time() - begun < 5


def test_a_case_of_the_corpus_is_the_same_for_the_same_seed() -> None:
    assert list(corpus(3, 20)) == list(corpus(3, 20))
    assert isinstance(next(corpus(4, 1)), Case)
