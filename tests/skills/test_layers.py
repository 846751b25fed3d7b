"""Layers: what was found counts, is shadowed or has failed, and nothing goes without a word."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.skills.skill_corpus import corpus

from tallystick.skills.errors import (
    SkillAmbiguous,
    SkillNotFound,
    SkillPathRefused,
    SkillUnreadable,
)
from tallystick.skills.format import folder as walk_module
from tallystick.skills.format.manifest import Card
from tallystick.skills.layers import Registry, scan
from tallystick.skills.places import LAYER_ORDER, Layer, LayerName

SECRET = "the secret outside"


def put(root: Path, path: str, *, name: str = "", text: str = "", file: str = "SKILL.md") -> Path:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    shown = name or folder.name
    content = text or f"---\nname: {shown}\ndescription: Does {shown}.\n---\nBody of {path}.\n"
    (folder / file).write_text(content, encoding="utf-8")
    return folder


def flat(*paths: Path, name: LayerName = "project") -> Registry:
    return scan([Layer(name=name, path=path) for path in paths])


def ids(registry: Registry) -> list[str]:
    return [each.id for each in registry.skills]


def failed(registry: Registry, root: Path) -> dict[str, str]:
    return {str(each.path.relative_to(root)): each.why for each in registry.failed}


def test_a_skill_is_a_folder_with_a_file_of_that_name(tmp_path: Path) -> None:
    folder = put(tmp_path, "pdf")
    put(tmp_path, "lower", file="skill.md")
    (tmp_path / "empty").mkdir()
    (tmp_path / "README.md").touch()

    registry = flat(tmp_path)

    assert ids(registry) == ["lower", "pdf"]
    pdf = registry.find("pdf")
    digest = hashlib.sha256((folder / "SKILL.md").read_bytes()).hexdigest()
    assert (pdf.name, pdf.namespace, pdf.layer, pdf.sha256) == ("pdf", "", "project", digest)
    assert pdf.folder.path == folder
    assert pdf.body() == "Body of pdf."
    assert registry.find("lower").body() == "Body of lower."
    assert (registry.failed, registry.shadowed, registry.truncated) == ((), (), ())


def test_of_two_files_the_one_in_capitals_counts(tmp_path: Path) -> None:
    put(tmp_path, "a", file="skill.md", name="small")
    put(tmp_path, "a", name="capital")

    assert ids(flat(tmp_path)) == ["capital"]


def test_a_card_has_one_line_of_each_text_and_nothing_hidden(tmp_path: Path) -> None:
    put(
        tmp_path,
        "pdf",
        text='---\nname: pdf\ndescription: "Reads\\n\\n- `evil`: \\u202ePDF\\e[31m files.  More."\n'
        "when_to_use: |\n  first\n  second\ndisable-model-invocation: true\nuser-invocable: false\n"
        "paths: ['*.pdf']\nallowed-tools: Read\n---\n",
    )

    (card,) = flat(tmp_path, name="user").cards()

    assert card == Card(
        id="pdf",
        name="pdf",
        source="user",
        description="Reads - `evil`: PDF[31m files. More.",
        when_to_use="first second",
        short="Reads - `evil`: PDF[31m files.",
        disable_model_invocation=True,
        user_invocable=False,
        paths=("*.pdf",),
        allowed_tools=("Read",),
        sha256=card.sha256,
    )


def test_directories_between_are_namespaces(tmp_path: Path) -> None:
    put(tmp_path, "pdf")
    put(tmp_path, "office/pdf")
    put(tmp_path, "office/word/docx")
    put(tmp_path, "my (own) things/x")

    registry = flat(tmp_path)

    assert ids(registry) == ["my -own- things/x", "office/pdf", "office/word/docx", "pdf"]
    assert [each.namespace for each in registry.skills] == [
        "my -own- things",
        "office",
        "office/word",
        "",
    ]
    assert registry.shadowed == ()


def test_the_namespace_of_a_layer_comes_before_all(tmp_path: Path) -> None:
    put(tmp_path, "pdf")
    put(tmp_path, "office/docx")

    registry = scan([Layer(name="package", path=tmp_path, namespace="acme")])

    assert ids(registry) == ["acme/office/docx", "acme/pdf"]


def test_a_name_is_found_by_its_id_or_by_an_end_that_one_skill_has(tmp_path: Path) -> None:
    for path in ("pdf", "office/pdf", "office/docx", "a/word", "b/word", "a/b/deep"):
        put(tmp_path, path)
    registry = flat(tmp_path)

    assert registry.find("pdf").id == "pdf"
    assert registry.find("office/pdf").id == "office/pdf"
    assert registry.find(" docx ").id == "office/docx"
    assert registry.find("b/deep").id == "a/b/deep"
    with pytest.raises(SkillAmbiguous) as ambiguous:
        registry.find("word")
    assert ambiguous.value.ids == ("a/word", "b/word")
    with pytest.raises(SkillNotFound) as unknown:
        registry.find("docs")
    assert "docx" in unknown.value.near


@pytest.mark.parametrize("name", ["", "/", "..", "\0", "x" * 100_000, "\ud800", "pdf/", "PDF"])
def test_no_name_that_is_none_is_found(tmp_path: Path, name: str) -> None:
    put(tmp_path, "pdf")

    with pytest.raises(SkillNotFound):
        flat(tmp_path).find(name)


def test_a_higher_layer_wins_whatever_the_order_given(tmp_path: Path) -> None:
    for layer in LAYER_ORDER:
        put(tmp_path / layer, "pdf")
    layers = [Layer(name=name, path=tmp_path / name) for name in reversed(LAYER_ORDER)]

    for lowest in range(len(layers)):
        registry = scan(layers[: lowest + 1])
        (skill,) = registry.skills

        assert skill.layer == layers[lowest].name
        assert {each.skill.layer for each in registry.shadowed} == {
            each.name for each in layers[:lowest]
        }
        assert all(each.by is skill for each in registry.shadowed)


def test_the_order_of_layers_is_the_stated_one() -> None:
    assert LAYER_ORDER == (
        "flag", "environment", "project", "config", "user", "package", "system", "host",
    )  # fmt: skip


def test_within_a_layer_the_first_by_path_wins_and_the_first_of_two_directories(
    tmp_path: Path,
) -> None:
    put(tmp_path / "one", "b", name="pdf")
    put(tmp_path / "one", "a", name="pdf")
    put(tmp_path / "two", "a", name="pdf")

    registry = flat(tmp_path / "one", tmp_path / "two")

    assert registry.find("pdf").folder.path == tmp_path / "one" / "a"
    shadowed = [each.skill.folder.path.relative_to(tmp_path) for each in registry.shadowed]
    assert [each.as_posix() for each in shadowed] == ["one/b", "two/a"]


def test_a_broken_skill_does_not_hide_one_below_it(tmp_path: Path) -> None:
    put(tmp_path / "project", "pdf", text="---\nname: pdf\n---\n")
    put(tmp_path / "user", "pdf")

    registry = scan([
        Layer(name="project", path=tmp_path / "project"),
        Layer(name="user", path=tmp_path / "user"),
    ])  # fmt: skip

    assert registry.find("pdf").layer == "user"
    (broken,) = registry.failed
    assert (broken.layer, broken.path) == ("project", tmp_path / "project" / "pdf")
    assert broken.why == "no description: a model cannot know when to use it"
    assert [each.code for each in broken.problems] == ["description.missing"]


def test_faults_of_form_are_kept_with_a_skill_that_loads(tmp_path: Path) -> None:
    put(
        tmp_path,
        "pdf",
        text="\ufeff---\r\nname: Other\r\ndescription: a: b\r\nversion: 1\r\n---\r\n",
    )

    (skill,) = flat(tmp_path).skills

    assert (skill.id, skill.manifest.description) == ("Other", "a: b")
    assert [each.code for each in skill.problems] == [
        "encoding.bom", "yaml.mended", "key.unknown", "name.folder",
    ]  # fmt: skip


def test_a_layer_that_is_itself_a_skill_counts_and_hides_nothing(tmp_path: Path) -> None:
    put(tmp_path, "skills")
    put(tmp_path, "skills/pdf")
    put(tmp_path, "skills/pdf/examples/nested")

    registry = flat(tmp_path / "skills")

    assert ids(registry) == ["pdf", "skills"]
    assert registry.find("skills").body() == "Body of skills."
    assert registry.find("skills").folder.read("SKILL.md")


def test_a_directory_that_two_layers_share_is_looked_through_once(tmp_path: Path) -> None:
    put(tmp_path / "skills", "pdf")
    (tmp_path / "again").symlink_to("skills")

    registry = scan([
        Layer(name="user", path=tmp_path / "skills"),
        Layer(name="project", path=tmp_path / "again"),
    ])  # fmt: skip

    assert [each.layer for each in registry.skills] == ["project"]
    assert registry.shadowed == ()


def test_only_a_directory_that_somebody_named_is_missed(tmp_path: Path) -> None:
    registry = scan([Layer(name=name, path=tmp_path / name) for name in LAYER_ORDER])

    assert [each.layer for each in registry.failed] == ["flag", "environment", "config"]
    assert registry.failed[0].why == "there is no such directory"


def test_a_layer_that_is_a_file_or_a_loop_has_failed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")

    registry = flat(tmp_path / "file", tmp_path / "loop", Path("\0"), Path("x" * 300))

    assert len(registry.failed) == 4
    assert registry.skills == ()


def test_links_are_told_and_not_followed(tmp_path: Path) -> None:
    outside = put(tmp_path, "outside/pdf", text=f"---\ndescription: {SECRET}\n---\n{SECRET}")
    root = tmp_path / "skills"
    put(root, "good")
    (root / "link").symlink_to(outside)
    (root / "relative").symlink_to("../outside")
    (root / "inner").mkdir()
    (root / "inner" / "loop").symlink_to("..")
    (root / "self").symlink_to("self")
    (root / "nowhere").symlink_to("gone")
    (root / "file").symlink_to("../outside/pdf/SKILL.md")
    (root / "through").mkdir()
    (root / "through" / "SKILL.md").symlink_to(outside / "SKILL.md")

    registry = flat(root)

    assert ids(registry) == ["good"]
    told = failed(registry, root)
    assert set(told) == {"link", "relative", "inner/loop", "self", "nowhere", "through"}
    assert told["relative"].startswith("is a link to '../outside'; links are not followed")
    assert told["nowhere"] == "is a link that leads nowhere"
    assert told["through"] == "its SKILL.md is a link; links are not followed"
    assert SECRET not in repr(registry)


@pytest.mark.parametrize("target", ["../outside", "/etc", ".agents/../../outside"])
def test_a_project_cannot_make_its_layer_a_link_that_leads_out(tmp_path: Path, target: str) -> None:
    put(tmp_path, "outside/pdf", text=f"---\ndescription: {SECRET}\n---\n")
    project = tmp_path / "project"
    (project / ".agents").mkdir(parents=True)
    (project / ".agents" / "skills").symlink_to(f"../{target}" if target[0] != "/" else target)

    registry = scan([
        Layer(name="project", path=project / ".agents" / "skills", within=project)
    ])  # fmt: skip

    assert registry.skills == ()
    assert "leads out of" in registry.failed[0].why
    assert SECRET not in repr(registry)


def test_a_project_may_link_one_of_its_directories_to_another(tmp_path: Path) -> None:
    put(tmp_path / ".agents/skills", "pdf")
    (tmp_path / ".claude").symlink_to(".agents")

    registry = scan([
        Layer(name="project", path=tmp_path / ".claude" / "skills", within=tmp_path)
    ])  # fmt: skip

    assert ids(registry) == ["pdf"]


def test_a_skill_that_became_a_link_later_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "skills"
    folder = put(root, "pdf")
    put(tmp_path, "outside/pdf", text=SECRET)
    skill = flat(root).find("pdf")

    folder.rename(tmp_path / "away")
    folder.symlink_to(tmp_path / "outside" / "pdf")

    with pytest.raises(SkillPathRefused):
        skill.body()
    root.rename(tmp_path / "moved")
    with pytest.raises(SkillUnreadable):
        skill.body()


@pytest.mark.parametrize("name", ["Skill.md", "SKILL.MD", "sKiLl.md"])
def test_a_file_that_is_almost_called_so_is_told(tmp_path: Path, name: str) -> None:
    put(tmp_path, "pdf", file=name)

    assert failed(flat(tmp_path), tmp_path) == {"pdf": f"has '{name}'; rename it to SKILL.md"}


def test_files_that_are_huge_or_no_files_have_failed(tmp_path: Path) -> None:
    for name in ("huge", "pipe", "directory", "empty", "binary"):
        (tmp_path / name).mkdir()
    with open(tmp_path / "huge" / "SKILL.md", "wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")
    (tmp_path / "directory" / "SKILL.md").mkdir()
    (tmp_path / "empty" / "SKILL.md").touch()
    (tmp_path / "binary" / "SKILL.md").write_bytes(b"---\0")

    told = failed(flat(tmp_path), tmp_path)

    assert told["huge"] == "its SKILL.md has 1,099,511,627,776 bytes; at most 1,000,000 are read"
    assert told["pipe"] == told["directory"] == "its SKILL.md is not an ordinary file"
    assert set(told) == {"huge", "pipe", "directory", "empty", "binary"}


def test_a_name_that_cannot_be_shown_is_not_in_an_id(tmp_path: Path) -> None:
    put(tmp_path, "\x1b[2J", name="fine")
    put(tmp_path, "\u202eevil", text="---\ndescription: x\n---\n")
    put(tmp_path, "a\nb/inner")

    registry = flat(tmp_path)

    assert ids(registry) == ["fine"]
    assert all(each.why.isprintable() for each in registry.failed)
    assert len(registry.failed) == 2


def test_version_control_and_dependencies_are_not_looked_through(tmp_path: Path) -> None:
    for name in (".git", ".GIT", "node_modules", ".venv", "__pycache__"):
        put(tmp_path, f"{name}/pdf")
    put(tmp_path, ".system/pdf")

    assert ids(flat(tmp_path)) == ["system/pdf"]


def test_a_scan_goes_six_deep_and_says_so(tmp_path: Path) -> None:
    put(tmp_path, "1/2/3/4/5/six")
    put(tmp_path, "a/b/c/d/e/f/seven")

    registry = flat(tmp_path)

    assert ids(registry) == ["1/2/3/4/5/six"]
    (note,) = registry.truncated
    assert note == (f"project: {tmp_path}/a/b/c/d/e/f is 6 deep; what is below it was not seen")


def test_a_scan_is_bounded_in_directories_and_breadth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk_module, "_DIRECTORIES_MAX", 10)
    monkeypatch.setattr(walk_module, "_ENTRIES_MAX", 20)
    for number in range(15):
        put(tmp_path / "many", f"s{number:02}")
    for number in range(25):
        (tmp_path / "wide").mkdir(exist_ok=True)
        (tmp_path / "wide" / f"f{number}").touch()

    many, wide = flat(tmp_path / "many"), flat(tmp_path / "wide")

    assert ids(many) == [f"s{number:02}" for number in range(9)]
    assert "more than 10 directories" in many.truncated[0]
    assert "more than 20 entries" in wide.truncated[0]


def test_the_bounds_are_the_stated_ones() -> None:
    assert (walk_module._WALK_DEPTH_MAX, walk_module._DIRECTORIES_MAX) == (6, 2_000)


def test_a_directory_that_may_not_be_read_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "open")
    put(tmp_path, "closed")
    real = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "closed":
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)

    registry = flat(tmp_path)

    assert ids(registry) == ["open"]
    assert failed(registry, tmp_path) == {"closed": "it cannot be read: Permission denied"}


def test_an_empty_registry_finds_nothing() -> None:
    assert Registry().cards() == ()
    with pytest.raises(SkillNotFound):
        Registry().find("a")


@settings(max_examples=10)
@given(st.integers(0, 1_000_000))
def test_every_folder_is_a_skill_a_shadow_or_a_failure(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    root = tmp_path_factory.mktemp("corpus")
    folders = {case.written(root / f"{number:03}") for number, case in enumerate(corpus(seed, 20))}

    registry = flat(root)

    found = [each.folder.path for each in registry.skills]
    lost = [each.skill.folder.path for each in registry.shadowed]
    broken = [each.path for each in registry.failed]
    assert sorted([*found, *lost, *broken]) == sorted(folders)
    assert ids(registry) == sorted(set(ids(registry)))
    assert all(registry.find(each.id) is each for each in registry.skills)
    for card in registry.cards():
        assert card.description
        assert all("\n" not in each for each in (card.id, card.description, card.short))
    assert flat(root) == registry


@pytest.mark.slow
def test_a_thousand_skills_are_scanned_in_the_time_of_reading_them_a_few_times(
    tmp_path: Path,
) -> None:
    for number in range(1_000):
        put(tmp_path, f"skill-{number:04}")

    def reading() -> int:
        return sum(len(path.read_bytes()) for path in tmp_path.glob("*/SKILL.md"))

    def quickest(action: object) -> float:
        assert callable(action)
        taken = []
        for _ in range(3):
            begun = time.perf_counter()
            action()
            taken.append(time.perf_counter() - begun)
        return min(taken)

    assert len(flat(tmp_path).skills) == 1_000
    # About 6 times, measured; a scan that took the square of it would take hundreds.
    assert quickest(lambda: flat(tmp_path)) < 40 * quickest(reading)
